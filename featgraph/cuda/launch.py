"""Launches of CUDA kernels with arguments that stay packed between launches.

`Launches` launches a kernel through the dialect the first time, and then straight
through a driver object: a `PlainDriver`, or the driver that traces supersteps for
replays (`runtime.recording.cuda_trace`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.cuda import dialect
from featgraph.cuda import driver as cuda_driver
from featgraph.cuda.arguments import (
    ArrayWords,
    OtherTypesError,
    PackedArguments,
    flatten,
    tuples_of,
)
from featgraph.cuda.memory import Strided

__all__ = ["OPAQUE", "Launches", "PlainDriver"]

#: Entry of a trace for an operation that cannot be replayed, such as a copy from host
#: memory, or the first launch of a kernel, which compiles it.
OPAQUE = ("opaque",)

Kernel = Any
Stream = Any


class _Prepared:
    """A kernel's machine code, with the packed arguments of the last two launches.

    Double buffers swap after each superstep, so that a launch mostly has the arrays of
    the last launch but one. Two sets of packed arguments alternate, therefore.
    """

    __slots__ = ("_next", "_packed", "_tuples", "handle")

    def __init__(self, compiled: cuda_driver.Compiled, words: ArrayWords) -> None:
        self.handle = compiled.handle
        self._packed = PackedArguments(compiled.parameters, words)
        self._next = PackedArguments(compiled.parameters, words)
        #: Positions of arguments that are namedtuples; None before the first launch.
        self._tuples: tuple[int, ...] | None = None

    def pack(self, arguments: Sequence[Any]) -> PackedArguments:
        """Return the packed arguments of a launch, which the next but one overwrites.

        Raises
        ------
        OtherTypesError
            If an argument has another type than the kernel was compiled for.
        """
        if self._tuples is None:
            self._tuples = tuples_of(arguments)
        packed = self._next
        self._next, self._packed = self._packed, packed
        if self._tuples == (0,):  # the usual case: `d` alone
            arguments = [*arguments[0], *arguments[1:]]
        elif self._tuples:
            arguments = flatten(arguments, self._tuples)
        packed.pack(arguments)
        return packed


class PlainDriver:
    """Launches kernels without recording them.

    Parameters
    ----------
    driver : Driver
    """

    def __init__(self, driver: cuda_driver.Driver) -> None:
        self._driver = driver

    def launch(
        self,
        handle: Any,
        blocks: int,
        threads: int,
        stream: Stream,
        packed: PackedArguments,
    ) -> None:
        """Launch a kernel with packed arguments."""
        self._driver.launch(handle, blocks, threads, stream, packed.address)

    def note(self, *operation: Any) -> None:
        """Do nothing: only a driver that traces stores operations."""


class Launches:
    """Launches kernels: the first time through the dialect, then through the driver.

    The dialect compiles a kernel for the types of its arguments, and analyzes the types
    again at each launch, which takes longer than a small superstep. The driver needs
    only the handle of a compiled kernel and its packed arguments. A launch with other
    argument types goes through the dialect again.

    Parameters
    ----------
    driver : TracedDriver or PlainDriver
        Launches a compiled kernel.
    by_dialect : callable, optional
        ``by_dialect(kernel, blocks, threads, stream)(*arguments)`` launches through the
        dialect.
    compiled : callable, optional
        ``compiled(kernel, arguments)`` returns the dialect's machine code, or None.
    ahead : callable, optional
        ``ahead(kernel, types)`` compiles for some types, and returns the same.

    Attributes
    ----------
    firsts : int
        Number of launches through the dialect, each of which may have compiled.
    """

    def __init__(
        self,
        driver: Any,
        by_dialect: Callable[..., Any] = dialect.launcher,
        compiled: Callable[..., cuda_driver.Compiled | None] = cuda_driver.compiled,
        ahead: Callable[..., cuda_driver.Compiled | None] = (
            cuda_driver.compiled_ahead
        ),
    ) -> None:
        self._driver = driver
        self._by_dialect = by_dialect
        self._compiled, self._ahead = compiled, ahead
        #: Kernel -> one entry for each set of argument types.
        self._prepared: dict[Kernel, list[_Prepared]] = {}
        #: Kernels whose machine code the dialect does not expose.
        self._opaque: set[Kernel] = set()
        self._words = words = ArrayWords(cuda_driver.address_of)
        #: Returns the device address of an array, cached while it lives.
        self.address_of = words.address_of
        # Held until the driver has read the packed arguments.
        self._lock = threading.Lock()
        self.firsts = 0

    def __call__(
        self,
        kernel: Kernel,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        stream: Stream = 0,
    ) -> None:
        """Launch a kernel; does not wait for it.

        Parameters
        ----------
        kernel : kernel of the dialect
        blocks, threads : int
            Blocks of the grid, threads of a block.
        arguments : sequence
            GPU arrays, scalars of a fixed type, and namedtuples of these.
        stream : stream of the dialect, optional
            Default: the default stream.
        """
        for prepared in self._prepared.get(kernel, ()):
            with self._lock:
                try:
                    packed = prepared.pack(arguments)
                except OtherTypesError:
                    continue
                self._driver.launch(prepared.handle, blocks, threads, stream, packed)
                return
        self._launch_first(kernel, blocks, threads, arguments, stream)

    def _launch_first(
        self,
        kernel: Kernel,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        stream: Stream,
    ) -> None:
        """Launch a kernel through the dialect, and keep its machine code."""
        self.firsts += 1
        self._driver.note(*OPAQUE)
        arguments = [_in_dialect(argument) for argument in arguments]
        self._by_dialect(kernel, blocks, threads, stream)(*arguments)
        if kernel in self._opaque:
            return
        compiled = self._compiled(kernel, arguments)
        if compiled is None:
            self._opaque.add(kernel)
        else:
            self._prepared.setdefault(kernel, []).append(
                _Prepared(compiled, self._words)
            )

    def prepare(self, kernel: Kernel, types: Sequence[Any]) -> None:
        """Compile a kernel for arguments of some types of the dialect."""
        compiled = self._ahead(kernel, types)
        if compiled is not None:
            self._prepared.setdefault(kernel, []).append(
                _Prepared(compiled, self._words)
            )

    def is_prepared(self, kernel: Kernel) -> bool:
        """Whether the next launch of a kernel can go straight to the driver."""
        return kernel in self._prepared


def _in_dialect(argument: Any) -> Any:
    """Return an argument with `Strided` arrays replaced by arrays of the dialect."""
    if isinstance(argument, tuple):
        return type(argument)(*map(_in_dialect, argument))
    return argument.in_dialect() if isinstance(argument, Strided) else argument

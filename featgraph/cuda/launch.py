"""Launches of CUDA kernels with arguments that stay packed."""

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

#: Stands for what no recording can do again: memory that comes from the host, a kernel
#: that has to be compiled first.
OPAQUE = ("opaque",)

Kernel = Any
Stream = Any


class _Prepared:
    """A kernel's machine code, and its arguments as they were packed of late.

    Buffers and sets change places from one superstep to the next, and the memory of one
    call is mostly that of the call before the last. So what is packed for a launch is
    compared with what was packed for the launch before the last.
    """

    __slots__ = ("_next", "_packed", "_tuples", "handle")

    def __init__(self, compiled: cuda_driver.Compiled, words: ArrayWords) -> None:
        self.handle = compiled.handle
        self._packed = PackedArguments(compiled.parameters, words)
        self._next = PackedArguments(compiled.parameters, words)
        #: Which of the arguments are namedtuples, once it has been launched.
        self._tuples: tuple[int, ...] | None = None

    def pack(self, arguments: Sequence[Any]) -> PackedArguments:
        """Return the packed arguments of a launch, which stay until the next one.

        Raises
        ------
        OtherTypesError
            If they are of other types.
        """
        if self._tuples is None:
            self._tuples = tuples_of(arguments)
        packed = self._next
        self._next, self._packed = self._packed, packed
        packed.pack(flatten(arguments, self._tuples) if self._tuples else arguments)
        return packed


class PlainDriver:
    """Launches a handle, and remembers nothing.

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
        """Take no notice of what was done by other ways."""


class Launches:
    """Launches kernels: the first time through the dialect, then through the driver.

    The dialect compiles a kernel for the types of its arguments, and looks at those
    types again at each launch, which takes longer than a small superstep. Once a kernel
    is compiled, the driver needs its handle and its packed arguments only. Arguments of
    other types go through the dialect again.

    Parameters
    ----------
    driver : TracedDriver or PlainDriver
        Launches a handle.
    by_dialect : callable, optional
        ``by_dialect(kernel, blocks, threads, stream)(*arguments)`` launches through the
        dialect.
    compiled : callable, optional
        ``compiled(kernel, arguments)`` tells what it has compiled, or None.
    ahead : callable, optional
        ``ahead(kernel, types)`` compiles for some types, and tells the same.

    Attributes
    ----------
    firsts : int
        Launches so far that went through the dialect, which may have compiled.
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
        #: For each set of argument types.
        self._prepared: dict[Kernel, list[_Prepared]] = {}
        #: Kernels about which the dialect tells nothing.
        self._opaque: set[Kernel] = set()
        self._words = words = ArrayWords(cuda_driver.address_of)
        #: Returns the device address of an array, which is remembered while it lives.
        self.address_of = words.address_of
        # What is packed must not change before the driver has read it.
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
            Device arrays, scalars of a fixed type, and namedtuples of these.
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
        """Return whether the next launch of a kernel goes straight to the driver."""
        return kernel in self._prepared


def _in_dialect(argument: Any) -> Any:
    """Return an argument, which may be a namedtuple, with arrays of the dialect."""
    if isinstance(argument, tuple):
        return type(argument)(*map(_in_dialect, argument))
    return argument.in_dialect() if isinstance(argument, Strided) else argument

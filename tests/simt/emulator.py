"""Run generated CUDA kernels lane by lane, without a GPU.

`launch` executes the text of a kernel module as Python. Its imports of the dialect
(`featgraph.cuda.dialect`), of Numba's scalar types and of `featgraph.device` are
answered with twins: the dialect is emulated by `tests.simt.dialect`, the device
functions are executed from their real sources, so they are tested as well.

Every lane is a greenlet that runs until it meets others: at a shuffle, a vote or a
barrier. All lanes that the operation's mask names must arrive at the same call path, in
the same iteration of the loops around it, and none may have left the kernel; otherwise
`DivergenceError` lists which lanes wait where. Beyond that

- an index that is negative or out of range is a `MemoryFault`;
- shared and local memory starts as NaN or a huge integer;
- two lanes that touch an entry of shared memory, one of them writing, with no barrier
  between are a `RaceError` (``syncthreads``, or ``syncwarp`` within a warp; a shuffle
  does not order memory);
- a lane pauses before each compare-and-swap, so that retry loops do retry.

What it does not check: the order of writes to global memory, and integer types
(integers are unbounded between casts and stores; Numba widens to 64 bits).
`activemask` is the lanes that have not ended. Blocks run one after the other; one whose
lane acquires what another may have written is behind all others then.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import linecache
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.simt import dialect
from tests.simt.lanes import (
    Block,
    CountTrips,
    DivergenceError,
    EmulationError,
    MemoryFault,
    RaceError,
    begin_trips,
)
from tests.simt.memory import GuardedArray
from tests.simt.tiles import tiles_module

__all__ = [
    "DivergenceError",
    "EmulationError",
    "Emulator",
    "MemoryFault",
    "RaceError",
    "launch",
]

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "featgraph.device"
#: Prefix of the names of generated modules; some import others.
_GENERATED = "featgraph_kernel_"
#: Modules elsewhere whose device functions kernels call.
_ELSEWHERE = (
    "featgraph.ranks.exchange.gpu_row_copies",
    "featgraph.dynamic.kernels_cuda",
    "featgraph.dynamic.sorts_cuda",
)


def next_block(waiting: deque[Iterator[None]]) -> Iterator[None]:
    """Take the block that runs next: the one that has waited longest."""
    return waiting.popleft()


class Emulator:
    """Kernel modules executed against the emulated dialect.

    Parameters
    ----------
    sources : mapping of str to str, optional
        Texts that stand in for modules of `featgraph.device`, by full name: how tests
        plant faults in the device library.
    """

    def __init__(self, sources: Mapping[str, str] | None = None) -> None:
        self._sources = dict(sources or {})
        self._modules: dict[str, types.ModuleType] = {
            "featgraph.cuda.dialect": _module(
                "featgraph.cuda.dialect", dialect.scalar_types() | dialect.cuda_module()
            ),
            "featgraph.cuda.tiles": _module("featgraph.cuda.tiles", tiles_module()),
            "numba": _module("numba", dialect.scalar_types()),
            "math": _module("math", dialect.math_functions()),
            _PACKAGE: _module(_PACKAGE, {}),
        }
        self._builtins = dict(
            vars(builtins),
            __import__=self._import,
            begin_trips=begin_trips,
            min=dialect.smallest,
            max=dialect.largest,
        )

    def load(self, source: str, name: str = "kernel") -> types.ModuleType:
        """Execute the text of a module.

        Parameters
        ----------
        source : str
            The text.
        name : str
            Its name in messages.

        Returns
        -------
        module
            Its functions are plain Python; those decorated as kernels included.
        """
        return self._execute(source, name, f"<{name}>")

    def launch(
        self,
        module: types.ModuleType | str,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
    ) -> None:
        """Run a kernel to its end; arrays among the arguments change in place.

        Parameters
        ----------
        module : module or str
            From `load`, or the text of a module.
        kernel : str
            The kernel's name in it.
        grid, block : int or sequence of int
            Blocks in the grid and threads in a block; a multiple of 32 threads.
        args : sequence
            NumPy arrays, scalars, and (named) tuples of them.

        Raises
        ------
        DivergenceError, MemoryFault, RaceError
            See the module. A note names the block and the thread.
        """
        if isinstance(module, str):
            module = self.load(module)
        function = getattr(module, kernel)
        arguments = [_guard(each) for each in args]
        grid_shape, block_shape = _shape(grid), _shape(block)
        waiting = deque(
            Block(function, arguments, (x, y, z), grid_shape, block_shape).turns()
            for z, y, x in itertools.product(*map(range, reversed(grid_shape)))
        )
        while waiting:
            block = next_block(waiting)
            waiting.extend(block for _ in itertools.islice(block, 1))

    def _execute(self, source: str, name: str, filename: str) -> types.ModuleType:
        module = _module(name, {"__builtins__": self._builtins, "__file__": filename})
        # Tracebacks quote the text.
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        exec(_compiled(source, filename), vars(module))  # noqa: S102
        return module

    def _import(
        self,
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        if name == _PACKAGE:
            for each in fromlist or ():
                setattr(self._modules[_PACKAGE], each, self._device(each))
        elif name.startswith(f"{_PACKAGE}."):
            return self._device(name.removeprefix(f"{_PACKAGE}."))
        elif name in _ELSEWHERE:
            return self._of_file(name)
        elif name.startswith(_GENERATED) and name not in self._modules:
            text = inspect.getsource(sys.modules[name])
            self._modules[name] = self.load(text, name)
        if name in self._modules:
            return self._modules[name]
        return builtins.__import__(name, globals_, locals_, fromlist or (), level)

    def _device(self, name: str) -> types.ModuleType:
        return self._of_file(f"{_PACKAGE}.{name}")

    def _of_file(self, full_name: str) -> types.ModuleType:
        if full_name not in self._modules:
            path = _ROOT.joinpath(*full_name.split(".")).with_suffix(".py")
            source = self._sources.get(full_name) or path.read_text(encoding="utf-8")
            self._modules[full_name] = self._execute(source, full_name, str(path))
        return self._modules[full_name]


@lru_cache(maxsize=512)
def _compiled(source: str, filename: str) -> types.CodeType:
    """Compile a text, once for all emulators: each has the whole device library."""
    tree = CountTrips().visit(ast.parse(source, filename))
    return compile(ast.fix_missing_locations(tree), filename, "exec")


def launch(
    source: str,
    kernel: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
) -> None:
    """Run a kernel of a module's text; see `Emulator.launch`."""
    Emulator().launch(source, kernel, grid, block, args)


def _module(name: str, members: Mapping[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(members)
    return module


def _shape(size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _guard(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return GuardedArray(argument)
    if isinstance(argument, tuple):
        members = [_guard(each) for each in argument]
        if hasattr(argument, "_fields"):
            return type(argument)(*members)
        return tuple(members)
    if isinstance(argument, np.bool_ | np.integer):
        return argument.item()
    return argument

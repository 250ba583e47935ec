"""Faults that the tools must find, or their silence means nothing.

Each tool gets small kernels with the faults that it is for, and cases of `cases` whose
generated kernels, or whose calls of the runtime, get one. `Fault.is_met` tests that the
fault was in something that ran: a text without the pattern has none.

A barrier that threads do not reach because they have ended is no fault on sm_70 and
later: those that are left pass it, and synccheck reports nothing, so none is planted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.sanitizers.cases import make_cases

#: Tool -> its faults. A fault of a generated program has the names of a case, and its
#: K. Nothing else may write what the fault leaves out: rows of 3 features are padded,
#: and padded rows begin as zeros, so that "leaves new buffers as they are" takes 8.
FAULTS: dict[str, dict[str, dict[str, Any] | None]] = {
    "memcheck": {
        "writes past the end": None,
        "reads rows past the last one": {
            "program": "weighted_sum",
            "variant": "push",
            "k": 17,
        },
    },
    "racecheck": {
        "has no barrier": None,
        "drops the barriers of hubs": {
            "program": "weighted_sum",
            "variant": "hubs",
            "k": 3,
        },
    },
    "initcheck": {
        "reads what was not written": None,
        "leaves new buffers as they are": {
            "program": "pagerank",
            "variant": "unfolded",
            "k": 8,
        },
    },
    "synccheck": {
        "names others than itself": None,
        "waits under a condition": None,
        # In most other programs the assembler proves that lanes are together, and drops
        # the instruction that has them wait.
        "leaves lanes out of syncs": {
            "program": "belief_propagation",
            "variant": "pull",
            "k": 3,
        },
        "leaves warps out of barriers": {
            "program": "weighted_sum",
            "variant": "hubs",
            "k": 3,
        },
    },
}

#: Faults in the text of generated kernels: a pattern, and its replacement.
_EDITS = {
    # Warps at the end of the grid have fewer vertices than places.
    "reads rows past the last one": (
        r"min\(index, int32\(vertex_count - 1\)\)",
        "index",
    ),
    "drops the barriers of hubs": (r"cuda\.syncthreads\(\)", "pass"),
    "leaves lanes out of syncs": (r"warp\.sync\(\)", "cuda.syncwarp(0xFFFE)"),
    "leaves warps out of barriers": (
        r"cuda\.syncthreads\(\)",
        "if cuda.threadIdx.x < 40: cuda.syncthreads()",
    ),
}


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes
    ----------
    is_met : callable
        ``is_met(kernels)`` is whether the fault was in something that ran, given the
        names (`kernel_name`) of the kernels that were launched.
    launch : callable or None
        ``launch(device)`` launches the small kernel that has the fault; None if the
        fault is in what a case runs.
    """

    is_met: Callable[[Collection[str]], bool]
    launch: Callable[[Any], None] | None = None


def cases_of(of: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the case that runs a fault of `FAULTS`; none for a small kernel."""
    if of is None:
        return []
    names = "program", "variant"
    found = [c for c in make_cases() if all(c[name] == of[name] for name in names)]
    return [found[0] | of]


def kernel_name(module: str, function: str) -> str:
    """Return the name under which launches of a kernel are counted."""
    return f"{module.removeprefix('featgraph_kernel_')}.{function}"


def plant(name: str, put: Callable[[Any, str, Any], None] = setattr) -> Fault:
    """Make a fault.

    Parameters
    ----------
    name : str
        Name of the fault in `FAULTS`.
    put : callable
        Replaces an attribute, as `setattr` does, which changes the whole process.
    """
    if name in _EDITS:
        return _edit_texts(*_EDITS[name], put)
    if name == "leaves new buffers as they are":
        return _skip_copies(put)
    launch = _launches()[name]
    return Fault(lambda kernels: bool(kernels), launch)


def _edit_texts(pattern: str, text: str, put: Callable[[Any, str, Any], None]) -> Fault:
    """Have a pattern replaced in the text of each generated module."""
    from featgraph.fold.compiling import kernel

    load, edited = kernel.load_module, set[str]()

    def load_edited(source: Any) -> Any:
        new = re.sub(pattern, text, source.text)
        given = SimpleNamespace(text=new, stem=source.stem, program=source.program)
        module, before = load(given), _functions(source.text)
        edited.update(
            kernel_name(module.__name__, function)
            for function, tree in _functions(new).items()
            if tree != before[function]
        )
        return module

    put(kernel, "load_module", load_edited)
    return Fault(lambda kernels: not edited.isdisjoint(kernels))


def _functions(text: str) -> dict[str, str]:
    """Return the trees of the functions of a module, by name."""
    body = ast.parse(text).body
    return {f.name: ast.dump(f) for f in body if isinstance(f, ast.FunctionDef)}


def _skip_copies(put: Callable[[Any, str, Any], None]) -> Fault:
    """Have no next buffer get the values of the current one.

    Vertices that do not commit are not written, and are read when the buffers swap.
    """
    from featgraph.runtime.memory import data

    skipped: list[Any] = []
    put(data, "copy_values", lambda *arrays: skipped.append(arrays))
    return Fault(lambda kernels: bool(skipped))


def _launches() -> dict[str, Any]:
    from featgraph.cuda.dialect import cuda, kernel

    @kernel
    def past_the_end(array):  # type: ignore[no-untyped-def]
        array[cuda.grid(1)] = 1

    @kernel
    def no_barrier(array):  # type: ignore[no-untyped-def]
        own = cuda.shared.array(64, np.int32)
        thread = cuda.threadIdx.x
        own[thread] = array[thread]
        array[thread] = own[63 - thread]

    @kernel
    def unwritten(source, array):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        array[thread] = source[thread] + 1

    @kernel
    def others(turns):  # type: ignore[no-untyped-def]
        # Where lanes are not known to be together: elsewhere no instruction is left.
        thread = cuda.threadIdx.x
        named = cuda.ballot_sync(0xFFFFFFFF, thread < 16)
        for _ in range(turns[thread]):
            cuda.syncwarp(named)
            turns[thread] += turns[15 - (thread >> 1)]

    @kernel
    def some_wait(array):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        array[thread] = thread
        if thread < 40:
            cuda.syncthreads()
            array[thread] += array[63 - thread]
        cuda.syncthreads()
        array[thread] += array[63 - thread]

    def full(device: Any) -> Any:
        return device.upload(np.zeros(64, np.int32))

    def of(function: Any, *arguments: Any) -> Any:
        return lambda device: device.launches(
            function, 1, 64, tuple(make(device) for make in arguments)
        )

    return {
        "writes past the end": of(
            past_the_end, lambda device: device.upload(np.zeros(63, np.int32))
        ),
        "has no barrier": of(no_barrier, full),
        "reads what was not written": of(
            unwritten, lambda device: device.empty((64,), "int32"), full
        ),
        "names others than itself": of(
            others,
            lambda device: device.upload((np.arange(64) < 17).astype(np.int32) * 2),
        ),
        "waits under a condition": of(some_wait, full),
    }

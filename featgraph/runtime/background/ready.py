"""Whether a superstep can run at once, or something has to be compiled first (0045).

Functions that supersteps call are compiled by the types of their arguments alone,
before anything calls them. A call with other types compiles again: nothing but time
depends on what is said here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.base.config import config
from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import import_whole
from featgraph.fold.compiling.disk_cache import is_stored
from featgraph.fold.compiling.kernel import Kernel
from featgraph.runtime.background.queue import COMPILER, Job
from featgraph.runtime.devices.bound import BoundEntry, RowKernel
from featgraph.runtime.devices.forks import is_single_threaded
from featgraph.runtime.superstep.frontier import Frontier
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["is_ready"]

#: Kernel -> in which forms, and with what -> what compiles it; None if nothing has to.
_jobs: weakref.WeakKeyDictionary[Kernel, dict[tuple[object, ...], Job | None]] = (
    weakref.WeakKeyDictionary()
)


def is_ready(
    superstep: Superstep,
    forms: Sequence[str],
    *,
    with_sets: bool = False,
    asks: bool = True,
) -> bool:
    """Whether a superstep of vertices and pushes compiles nothing that takes long.

    Parameters
    ----------
    superstep : Superstep
    forms : sequence of str
        Of each of its phases.
    with_sets : bool, optional
        Look at what finds due vertices, too (CPU).
    asks : bool, optional
        Have what is missing compiled behind the run.
    """
    if not config.compile_behind:
        return True
    jobs = _jobs.setdefault(superstep.kernel, {})
    # Chunks of a graph, or only one of them, are swept by other functions.
    key = (*forms, with_sets, *_are_cut(superstep, forms))
    if key not in jobs:
        functions = functions_of(superstep, forms)
        if with_sets:
            functions += set_functions_of(superstep)
        missing = [f.compile for f in functions if not f.is_compiled]
        made = Job(repr(superstep.kernel), lambda: missing, _firsts(superstep.device))
        jobs[key] = made if missing else None
    job = jobs[key]
    if job is None:
        return True
    if asks:
        COMPILER.ask(job)
    return job.is_done


def _firsts(device: Any) -> Callable[[], int] | None:
    """Return what tells how often runs may have compiled, where calls soon do again."""
    return None if device.name == "cpu" else lambda: int(device.launches.firsts)


def _are_cut(superstep: Superstep, forms: Sequence[str]) -> list[bool]:
    pairs = zip(superstep.phases, forms, strict=True)
    return [e.is_cut for own, form in pairs for e in own.entries(form)]


#: Sets that the phases of vertices and pushes are given.
_SETS = ("active_sources", "due", "passed")


@dataclass(frozen=True)
class Function:
    """A function, and types for which it may be compiled.

    Attributes
    ----------
    is_compiled : bool
        Whether it was, here or in another process that has stored it.
    compile : callable
        Compiles it, on any thread.
    """

    is_compiled: bool
    compile: Callable[[], Any]


def functions_of(superstep: Superstep, forms: Sequence[str]) -> list[Function]:
    """Return what the phases of vertices and pushes call, in these forms."""
    bound = superstep.bound
    bound.arrive()
    phases = zip(superstep.phases, forms, strict=True)
    entries = [entry for own, form in phases for entry in own.entries(form)]
    if superstep.device.name == "cpu":
        data = _typeof(bound.data(Frontier(), None))
        return [f for entry in entries for f in _of_cpu(entry, data)]
    return [_of_cuda(entry, superstep) for entry in entries]


def set_functions_of(superstep: Superstep) -> list[Function]:
    """Return what finds due vertices, and counts edges, for single supersteps (CPU)."""
    words, place = _words(), _typeof(0)
    list_, graph = _list(), superstep.bound.buffers.graph
    few = graph.kernel("reach_few", "out")
    found = [
        _numba(few.function, (words, list_, words, list_, place, *_rows(few))),
        *_of_rows(graph.kernel("reach", "out"), words),
        *_of_rows(graph.kernel("find", "in"), words),
    ]
    for along in ("in", "out"):
        count = graph.kernel("count", along)
        found.append(_numba(count.function, (words, list_, *_rows(count))))
    return found


def _of_cuda(entry: BoundEntry, superstep: Superstep) -> Function:
    device: Any = superstep.device
    types = entry.kernel.signature(entry.entry, superstep.kernel.module)
    launches = device.launches
    function = entry.function
    is_there = launches.is_prepared(function) or is_stored(function, types)
    return Function(is_there, lambda: launches.prepare(function, types))


def _of_cpu(entry: BoundEntry, data: Any) -> list[Function]:
    """Return what sweeps a chunk, and what calls that for all of several chunks."""
    signatures = import_whole("featgraph.fold.compiling.signatures")
    known = dict.fromkeys(_SETS, _words()) | {"d": data}
    known |= signatures.own_types(entry.entry)
    places, given = entry.place, entry.fill(known)
    if "swept_words" in places:
        given[places["swept_words"]] = _list()
    is_cut = entry.is_cut and not is_single_threaded()
    numba = import_whole("numba")
    types = [v if isinstance(v, numba.types.Type) else numba.typeof(v) for v in given]
    whole = [_numba(entry.function, types)] if is_cut else []
    del types[places["chunks"]]
    return [_numba(entry.sweep, (*[numba.int64] * 3, *types)), *whole]


def _of_rows(kernel: RowKernel, words: Any) -> list[Function]:
    """Return what goes through the words of two sets, and in chunks if it is cut."""
    bounds, rows = [import_whole("numba").int64] * 3, _rows(kernel)
    found = [_numba(kernel.function, (*bounds, words, words, *rows))]
    if not (kernel.is_one_chunk or is_single_threaded()):
        chunks = _typeof(kernel.chunks)
        found.append(_numba(kernel.in_chunks, (chunks, words, words, *rows)))
    return found


def _numba(function: Any, types: Sequence[Any]) -> Function:
    given = tuple(types)
    is_there = given in function.overloads or is_stored(function, given)
    return Function(is_there, lambda: function.compile(given))


def _rows(kernel: RowKernel) -> list[Any]:
    return [_typeof(array) for array in kernel.rows]


def _words() -> Any:
    """Return the type of a set."""
    return import_whole("numba").uint32[::1]


def _list() -> Any:
    """Return the type of a list of words."""
    return import_whole("numba").int64[::1]


def _typeof(value: Any) -> Any:
    return import_whole("numba").typeof(value)

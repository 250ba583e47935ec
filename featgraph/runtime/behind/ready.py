"""Whether a superstep can run at once, or something has to be compiled first (0045)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.config import config
from featgraph.fold.compiling.kernel import Kernel
from featgraph.runtime.behind.functions import functions_of, set_functions_of
from featgraph.runtime.behind.queue import COMPILER, Job
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

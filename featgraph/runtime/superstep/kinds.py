"""Functions that prepare and finish a phase of a superstep, by kind of phase.

`prepare_*` refreshes the stale entries that the phase reads, and returns the arguments
of its kernels that differ from superstep to superstep (`Given`). After the launches
(`featgraph.runtime.superstep.superstep`), `finish_*` updates the vertex sets of the
`Frontier`. Each kind of phase (`featgraph.fold.kinds`) names its two functions;
docs/design/0001-architecture.md describes the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from featgraph.cuda.values import name_of
from featgraph.fold.plan.plan import Phase
from featgraph.fold.printing.module import Field
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.bound import BoundPhase, BoundState, ChangedEdges
from featgraph.runtime.superstep.directions import pulls_all
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["Finish", "Given", "Prepare", "functions_for"]

Words = Any
#: int64 words of the barrier of all blocks between turns: see `queue_cuda.meet_at`.
WORDS_OF_TURNS = 32
#: Arguments of the kernels of a phase that belong to one superstep, by their names in
#: the generated module.
Given = dict[str, Any]
Prepare = Callable[[BoundState, BoundPhase, Frontier], Given]
Finish = Callable[[BoundState, BoundPhase, Frontier, Given], None]


def functions_for(phase: Phase) -> tuple[Prepare, Finish]:
    """Return the functions that prepare and finish a phase."""
    return globals()[phase.kind.prepare], globals()[phase.kind.finish]


# -- vertices


def prepare_vertices(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare vertex functions and gathers on the due vertices."""
    due, phase = bound.due.vertices(frontier), own.phase
    bound.stale.freshen(bound.buffers, phase, due)
    is_all = isinstance(due, VertexSet)
    words, sources = due.words if is_all else due, bound.everyone.words
    if not frontier.all_due:
        sources = words_of(bound.due.active(frontier))
        if own.widens_active and sources is not bound.everyone.words:
            # A copy, to which the kernel adds the vertices that it commits.
            sources = bound.device.sets.union(sources, sources)
    given: Given = {
        "due": words,
        "all_swept": is_all,
        "active_sources": sources,
        "passed": bound.device.sets.empty(bound.word_count),
        "some_due": frontier.some_due,
    }
    if not (frontier.all_due or is_all):
        given["active_count"] = frontier.active_count
    if phase.incremental and frontier.incremental is not None:
        given["changed_sources"] = frontier.incremental.changed
        given["stale"] = frontier.incremental.stale
        frontier.incremental.due = words
    if phase.spreads:
        on = bound.full.words if frontier.only is None else frontier.only.words
        given["allowed"] = on
        # Kernels may add to any set that was made here; `on` is shared.
        given["spreads"] = frontier.spreads and words is not on
    return given


def prepare_combining(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare vertex functions in a sweep that also combines later reduces.

    The functions run on the due vertices; all vertices contribute to the reduces.
    """
    given = prepare_vertices(bound, own, frontier)
    given["swept"] = bound.full.words if frontier.only is None else frontier.only.words
    for number in own.phase.combines:
        given[f"partials_{number}"] = bound.buffers.temporaries[bound.partials[number]]
    return given


def finish_vertices(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Update the sets of passed and stopped vertices, if a later step reads them.

    Values that other vertices read are restored at vertices that did not pass.
    """
    due, passed, before = given["due"], given["passed"], frontier.passed
    for name in own.phase.restores_behind:
        bound.stale.refresh(bound.buffers, name, due, passed)
    if before is None and own.is_last:
        frontier.passed = passed
        return
    sets = bound.device.sets
    stopped = sets.without(due, passed)
    if before is not None:
        passed = sets.union(sets.without(before, stopped), passed)
    frontier.passed = passed
    if frontier.stopped is not None:
        stopped = sets.union(frontier.stopped, stopped)
    frontier.stopped = stopped


def prepare_push(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare a pushed gather: set the memory of its results to identities."""
    due, buffers = bound.due.vertices(frontier), bound.buffers
    bound.stale.freshen(buffers, own.phase, due)
    source, rows = bound.kernel.kernel_source, bound.graph.vertex_count
    fills = source.fill_values
    for field in source.fields:
        if field.name in fills and field.of == own.phase.into:
            shape = (rows, *bound.plan.item_shape(field.of))
            memory = buffers.temporary(field.name, field.dtype, shape)
            bound.device.fill(memory, _fill_value(fills[field.name], field))
    everything = frontier.all_due or isinstance(due, VertexSet)
    active = bound.due.active(frontier)
    return {
        "due": words_of(due),
        "passed": words_of(due),
        "active_count": None if everything else frontier.active_count,
        "active_sources": words_of(active),
        "all_swept": isinstance(active, VertexSet),
    }


# -- edges


def prepare_edges(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare edge functions on the out-edges of their sources."""
    if bound.changed is not None:
        return _prepare_changed(bound, own, frontier, bound.changed)
    sources, phase = bound.due.sources(own.phase, frontier), own.phase
    is_first = own.is_first_of_edges
    # A later edge phase skips the edges that an earlier one has stopped.
    swept = sources if is_first else bound.device.sets.empty(bound.word_count)
    bound.stale.freshen(bound.buffers, phase, swept)
    bound.stale.remember_sources(phase, sources)
    frontier.targets = bound.device.sets.empty(bound.word_count)
    given: Given = {
        "sources": words_of(sources),
        "all_swept": isinstance(sources, VertexSet),
        "targets": frontier.targets,
    }
    if sources is frontier.active and not given["all_swept"]:
        given["active_count"] = frontier.active_count
    if bound.plan.has_edge_state:
        given["edge_state"] = bound.edge_state(is_first=is_first)
    return given


def _prepare_changed(
    bound: BoundState, own: BoundPhase, frontier: Frontier, changed: ChangedEdges
) -> Given:
    """Prepare edge functions on those out-edges of their sources that have changed."""
    changed.begin(bound.buffers, bound.graph.edge_count)
    bound.stale.leave_to_kernel(bound.buffers, own.phase)
    frontier.targets = bound.device.sets.empty(bound.word_count)
    sources = bound.due.sources(own.phase, frontier)
    return {
        "sources": words_of(sources),
        "all_swept": isinstance(sources, VertexSet),
        "targets": frontier.targets,
        "edge_state": bound.edge_state(is_first=False),  # all begin with the whole set
        **changed.given,
    }


def finish_edges(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Restore entries of stopped edges, and collect the targets of passed ones."""
    for name in own.phase.restores_behind:
        bound.stale.restore_edges(bound.buffers, name, given["edge_state"])
    if "edge_state" in given and bound.changed is None:
        arrays = bound.buffers.graph
        frontier.targets = bound.device.sets.targets(given["edge_state"], arrays)


def prepare_pulled(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare a vertex phase whose edge functions run along in-edges.

    The kernel sweeps the due vertices and the targets of the sources. A target becomes
    due if an edge function returns True on one of its in-edges.
    """
    device, full, phase = bound.device, bound.full, own.phase
    sources = bound.due.sources(phase, frontier)
    due = bound.due.reached(frontier)
    swept = full
    all_sources = isinstance(sources, VertexSet)
    # Finding the vertices to sweep may take longer than sweeping all.
    if not (all_sources or pulls_all(bound, frontier.active_count)):
        swept = bound.due.targeted(sources, due, frontier)
    allowed = full.words if frontier.only is None else frontier.only.words
    if frontier.stopped is not None:
        allowed = device.sets.without(allowed, frontier.stopped)
    if frontier.only is not None or frontier.stopped is not None:
        due = device.sets.intersection(words_of(due), allowed)
    bound.stale.freshen(bound.buffers, phase, swept, sources)
    bound.stale.remember_sources(phase, sources)
    frontier.targets = bound.device.sets.empty(bound.word_count)
    given: Given = {
        "active_sources": words_of(bound.due.active(frontier)),
        "swept": words_of(swept),
        "all_swept": isinstance(swept, VertexSet),
        "due": words_of(due),
        "allowed": allowed,
        "sources": words_of(sources),
        "all_sources": all_sources,
        "targets": frontier.targets,
        "passed": bound.device.sets.empty(bound.word_count),
    }
    if not given["all_swept"]:
        given["active_count"] = frontier.active_count
    return given


def finish_pulled(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Update the sets as `finish_vertices` does; the kernel has filled the targets."""
    due = words_of(bound.due.vertices(frontier))
    finish_vertices(bound, own, frontier, {"due": due, "passed": given["passed"]})


# -- exclusive edge functions


def prepare_exclusive(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare an exclusive edge function on the out-edges of its sources.

    Locks and counters of turns start at zero in each superstep.
    """
    sources, phase = bound.due.sources(own.phase, frontier), own.phase
    buffers, device = bound.buffers, bound.device
    bound.stale.freshen(buffers, phase, sources)
    frontier.targets = bound.device.sets.empty(bound.word_count)
    given: Given = {
        "sources": words_of(sources),
        "all_sources": isinstance(sources, VertexSet),
        "targets": frontier.targets,
    }
    if given["all_sources"] and phase.passes_all:
        device.copy(frontier.targets, bound.graph.ends)
    if device.name == "cuda":
        given["arrived"] = buffers.temporary("arrived", "int64", (WORDS_OF_TURNS,))
        device.fill(given["arrived"], 0)
        given["stalled"] = buffers.stalled(phase.schedule.name)
    count = max(bound.graph.vertex_count, 1)
    # A bit for each end of an edge at which the function writes.
    given["conflicts"] = ("u" in phase.conflicts) + 2 * ("v" in phase.conflicts)
    if phase.schedule.holds:
        given["locks"] = buffers.temporary("locks", "int32", (count,))
        device.fill(given["locks"], 0)  # a sweep may have ended early
        if device.name == "cuda":
            # Two lists of edges: each pass reads one and fills the other.
            wide = bound.plan.traits.wide_offsets
            size, offset = 2 * bound.graph.edge_count, "int64" if wide else "int32"
            given["deferred"] = buffers.temporary("deferred", offset, (max(size, 1),))
    if phase.record:
        given["turn_counts"] = buffers.temporary("turn_counts", "int32", (count,))
        device.fill(given["turn_counts"], 0)
        device.fill(buffers.property(phase.record), -1)
    return given


def finish_exclusive(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Do nothing: an exclusive function writes to the current buffers."""


# -- triangles


def prepare_triangles(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare a triangle function on triangles of edges, or of vertices (S4)."""
    bound.stale.freshen(bound.buffers, own.phase, bound.full)
    if own.phase.from_edges:
        flags = bound.edge_state(is_first=False)
        given = {} if bound.changed is None else bound.changed.given
        return {
            "edge_state": flags,
            "active": bound.everyone.words,
            "all_active": True,
            **given,
        }
    sources = bound.due.sources(own.phase, frontier)
    is_all = isinstance(sources, VertexSet)
    return {"active": words_of(sources), "all_active": is_all}


def finish_triangles(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Do nothing: a triangle function commits nothing."""


# -- reduces


def prepare_reduce(bound: BoundState, own: BoundPhase, frontier: Frontier) -> Given:
    """Prepare a reduce over the vertices that the foldmap is restricted to."""
    buffers, phase = bound.buffers, own.phase
    if phase.touches_next:
        bound.stale.freshen(buffers, phase, bound.full)
    parts = buffers.temporaries[bound.partials[own.number]]
    given: Given = {
        "due": bound.full.words if frontier.only is None else frontier.only.words,
        "partials": parts,
        "reduced": buffers.temporaries[bound.results[phase.into][0]],
    }
    if phase.in_a_tree:
        given["memory"] = partial(_memory_of, buffers, own.number, parts.dtype)
    is_read = bound.plan.facts.reductions[phase.into].is_read
    if is_read and frontier.tracks and not frontier.all_due:
        given["last"] = _last_result(bound, phase.into, frontier)
    return given


def _memory_of(
    buffers: Buffers, number: int, dtype: Any, name: str, shape: tuple[int, ...]
) -> Any:
    """Return device memory for partial results of the reduce of a phase."""
    return buffers.temporary(f"{name} {number}", name_of(dtype), shape)


def _last_result(bound: BoundState, name: str, frontier: Frontier) -> Any:
    """Return a copy of the last result of a reduce.

    Without one, make all vertices due and return None.
    """
    if name not in bound.state:
        frontier.all_due, frontier.base = True, None
        return None
    current = bound.buffers.property(name)
    shape, dtype = (current.size,), name_of(current.dtype)
    last = bound.buffers.temporary(f"last {name}", dtype, shape)
    bound.device.copy(last, current.reshape(shape))
    return last


def finish_reduce(
    bound: BoundState, own: BoundPhase, frontier: Frontier, given: Given
) -> None:
    """Combine the result over all ranks, and make its memory the property's.

    If it differs from the last result, all vertices are due for the remaining phases
    (S7).
    """
    phase, reduced, last = own.phase, given["reduced"], given.get("last")
    if phase.in_a_tree or bound.ghosts is not None:
        combine = bound.plan.facts.reductions[phase.into].combine
        if phase.in_a_tree:
            bound.exchange.blocks.combine(given, combine)
        else:
            bound.exchange.combine(reduced, combine)
    if last is not None:
        bound.exchange.settle()
        bound.due.widen(frontier, bound.device.sets.differ(last, reduced))
    name, buffers = phase.into, bound.buffers
    bound.find_state().put_result(name, bound.result_types[name], buffers)
    if buffers.current.get(name) is not buffers.temporaries[bound.results[name][1]]:
        bound.place_result(name, frontier)


def _fill_value(text: str, field: Field) -> Any:
    """Return the value of an identity, given as text of a generated module.

    The text is a name of `device.ordering`, a bool, a number, or a call with one
    number, such as ``float32(-math.inf)``.
    """
    from featgraph.device import ordering

    if hasattr(ordering, text):
        return getattr(ordering, text)
    if text in {"True", "False"}:
        return text == "True"
    inner = text[text.index("(") + 1 : -1] if "(" in text else text
    number = float if "." in inner else int
    return np.dtype(field.dtype).type(number(inner.replace("math.", "")))

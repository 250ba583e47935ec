"""Vertices that changes of a graph, and single writes, make due for a foldmap (S12).

A foldmap that runs again on a State has left pending and due vertices. `find_due`
returns the vertices to add if the graph has changed since, or `State.put` has written
entries. A vertex becomes

* *due* if an edge that it gathers along was inserted, was deleted or has another value;
  if the vertex is new; and if a degree that a function reads at its own vertex has
  changed;

* *active* if a degree that a function reads elsewhere has changed; if an inserted or
  changed edge leads from it and a gather combines over active sources only; and if it
  is an end of such an edge and functions run on edges or triangles.

All vertices are due if a count that a function reads has changed, or the log of the
graph does not reach back far enough.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field, replace
from featgraph.base.errors import StaleSourcesWarning
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.traits import REVERSED
from featgraph.program.active import ActiveSet
from featgraph.program.following import Put, Seen, log_since
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import arrays_for

__all__ = ["Added", "explain_due", "find_due", "note_call", "warn_of_losses"]

Ids = npt.NDArray[np.int64]
Words = Any
#: Edges of a gather -> the ends of an edge at which it runs: 0 source, 1 target.
_GATHERS_AT = {"in": (1,), "out": (0,), "both": (0, 1)}


@dataclass(eq=False)
class Added:
    """Vertices that have become due and active for a foldmap, by reason.

    Attributes
    ----------
    everything : str
        Reason why all vertices are due; "" if they are not.
    due, active, read : dict of str to list of ndarray
        Reason -> ids of vertices; an id may occur several times. Vertices of `read`
        have a changed entry that functions read at neighbors. They become active, with
        the sources of their in-edges if the plan has edge functions, which run on the
        out-edges of active vertices.
    beside : dict of str to list of ndarray
        Edges of a gather -> vertices that gather again; all neighbors that they gather
        from become active.
    """

    everything: str = ""
    due: dict[str, list[Ids]] = field(default_factory=lambda: defaultdict(list))
    active: dict[str, list[Ids]] = field(default_factory=lambda: defaultdict(list))
    read: dict[str, list[Ids]] = field(default_factory=lambda: defaultdict(list))
    beside: dict[str, list[Ids]] = field(default_factory=lambda: defaultdict(list))

    def sets(
        self, plan: FoldPlan, state: State, device: Device
    ) -> tuple[Words, Words | None]:
        """Return the active vertices, and further due ones, as sets on a device."""
        view, sets = arrays_for(state, device), device.sets

        def words(several: list[Ids]) -> Words:
            ids = np.concatenate([*several, np.zeros(0, np.int64)])
            return ActiveSet(state.graph, ids).on(device, view.vertex_count)

        active, due, read = (
            words([i for each in of.values() for i in each])
            for of in (self.active, self.due, self.read)
        )
        if self.read:
            if plan.facts.along_edges:
                read = sets.expand(read, view, None, "out")
            active = sets.union(active, read)
        for along, ids in self.beside.items():
            others = sets.expand(words(ids), view, None, REVERSED[along])
            active = sets.union(active, others)
        return active, due if self.due else None

    def describe(self) -> list[str]:
        """Return a line for each reason, with the number of vertices."""
        if self.everything:
            return [f"all vertices are due: {self.everything}"]
        each = self.due, self.active, self.read
        return [
            f"{np.unique(np.concatenate(ids)).size} {what}: {why}"
            for what, of in zip(("due", "active", "active"), each, strict=True)
            for why, ids in of.items()
        ]


def find_due(plan: FoldPlan, state: State, since: Seen) -> Added | None:
    """Return the vertices that have become due for a plan since an earlier call.

    `since` has the version of the graph and the number of `State.put` at that call.
    None if the logs do not reach back so far: then all vertices are due.
    """
    added, puts = Added(), state.puts.since(since.puts)
    if puts is None:
        return None
    if since.stamp is not state.graph.stamps.version:
        changes = log_since(state.graph, since.version)
        if changes is None:
            return None
        _add_batches(added, plan, state, changes)
    for put in puts:
        if isinstance(put.ids, ActiveSet):  # may be on a GPU
            put = replace(put, ids=put.ids.vertices.astype(np.int64))
        _add_put(added, plan, state, put)
    return added


def _add_batches(added: Added, plan: FoldPlan, state: State, changes: Any) -> None:
    """Add the vertices that batches of a graph have made due and active."""
    facts, directed, born = plan.facts, state.graph.directed, changes.born
    inserted, deleted, dead = changes.inserted, changes.deleted, changes.dead.size
    both = (1,) if directed else (0, 1)
    counted = [_ends(pairs, both).size for pairs in (inserted, deleted)]
    is_moved = {
        "vertex_count": born.size, "living_count": born.size or dead,
        "edge_count": counted[0] != counted[1],
    }  # fmt: skip
    counts = [name for name in is_moved if is_moved[name] and name in facts.scalars]
    if counts:
        added.everything = f"{counts[0]} of the graph has changed"
    elif facts.reductions and dead:
        added.everything = "reduces leave out vertices that were deleted"
    if born.size:
        added.due["new"].append(born)
    for how in ("inserted", "deleted", "changed"):
        _add_edges(added, plan, getattr(changes, how), directed, how)
    for end, name in enumerate(("out_degree", "in_degree")):
        _add_readers(
            added, plan, name, f"{name} has changed",
            partial(_with_other_degree, inserted, deleted, end, directed),
        )  # fmt: skip


def _add_edges(
    added: Added, plan: FoldPlan, pairs: Any, directed: bool, how: str,
    what: str = "an edge",
) -> None:  # fmt: skip
    """Add the ends of changed edges at which gathers and edge functions read."""
    if not pairs[0].size:
        return
    for gather in plan.facts.gathers:
        along = gather.along if directed else "both"
        added.due[f"{what} was {how}"] += [pairs[end] for end in _GATHERS_AT[along]]
        if gather.from_active and how != "deleted":
            sources = [pairs[end] for end in _GATHERS_AT[REVERSED[along]]]
            added.active[f"source of {what} that was {how}"] += sources
    if plan.facts.along_edges and how != "deleted":
        added.active[f"end of {what} that was {how}"] += pairs


def _add_readers(added: Added, plan: FoldPlan, name: str, why: str, find: Any) -> None:
    """Add the vertices with another value of `name`, if functions of the plan read it.

    `find` returns the vertices; it is called only if needed.
    """
    for of, reads in (
        (added.due, plan.facts.read_here),
        (added.read, plan.facts.read_elsewhere),
    ):
        if name in reads and (ids := find()).size:
            of[why].append(ids)


def _with_other_degree(inserted: Any, deleted: Any, end: int, directed: bool) -> Ids:
    """Return the vertices whose degree has changed.

    Vertices that gained as many edges as they lost are left out.
    """
    ends = (end,) if directed else (0, 1)
    gained, lost = (_ends(pairs, ends) for pairs in (inserted, deleted))
    gains = np.repeat([1.0, -1.0], [gained.size, lost.size])
    found, at = np.unique(np.concatenate([gained, lost]), return_inverse=True)
    ids: Ids = found[np.bincount(at, gains, found.size) != 0]
    return ids


def _ends(pairs: Any, ends: tuple[int, ...]) -> Ids:
    """Return some ends of edges; a loop, which is in one row once, has one."""
    found = pairs[ends[0]]
    if len(ends) == 2:
        found = np.append(found, pairs[1][pairs[0] != pairs[1]])
    return found  # type: ignore[no-any-return]


def _add_put(added: Added, plan: FoldPlan, state: State, put: Put) -> None:
    """Add the vertices that read entries which `State.put` has written."""
    facts, directed = plan.facts, state.graph.directed
    if put.ends is not None:  # of edges
        if put.name in facts.read_here | facts.read_elsewhere:
            what = f"{put.name} of an edge"
            _add_edges(added, plan, put.ends, directed, "written", what)
    elif put.is_reset and all(g.combine.rules.selects for g in facts.gathers):
        added.due[f"{put.name} was reset"].append(put.ids)
        for gather in facts.gathers:
            if gather.from_active:
                added.beside[gather.along].append(put.ids)
    else:
        _add_readers(added, plan, put.name, f"{put.name} was written", lambda: put.ids)


def note_call(plan: FoldPlan, state: State, committed: ActiveSet) -> None:
    """Log the writes of one superstep for foldmaps with pending vertices on a State.

    On ranks, and if a function writes edges, all vertices become due for these.
    """
    facts, entries = plan.facts, state.left[1]
    if not entries or not facts.writes:
        return
    if state.graph.ranks is not None or facts.edges_at:
        entries.clear()  # everything is due
        return
    kept = copy.copy(committed)  # the caller may overwrite its set
    for name in facts.writes:
        state.puts.add(Put(name, kept), state.graph.vertex_count)


def warn_of_losses(plan: FoldPlan, state: State, since: Seen) -> None:
    """Warn if min or max aggregates continue from values along deleted edges.

    An extreme only improves, so that such a value would never be replaced.
    """
    extremes = [g for g in plan.facts.gathers if g.combine.rules.order]
    if not extremes or state.trimmed >= state.follow().version:
        return
    changes = log_since(state.graph, max(since.version, state.trimmed))
    if changes is None:
        return
    of_edges = {n for n, t in state.types if t.kind is PropertyKind.EDGE}
    reads_edges = any(of_edges.intersection(g.anywhere) for g in extremes)
    _, gone, changed = changes.counts
    if not (gone or (reads_edges and changed)):
        return
    warnings.warn(
        f"{extremes[0].name} continues after edges were deleted or changed: values "
        "that came along them stay. Call fg.trim(state, source=..., reset=...) first, "
        "or assign initial values",
        StaleSourcesWarning,
        stacklevel=7,
    )


def explain_due(left: Any, plan: FoldPlan, state: State) -> list[str]:
    """Return the reasons why vertices are due for a foldmap that has run before."""
    if left is None or left.seen == state.follow():
        return []
    if left.words is None:
        return ["all vertices are due: none was seen, or other foldmaps have run since"]
    added = find_due(plan, state, left.seen)
    if added is None:
        return ["all vertices are due: the log of changes does not reach back so far"]
    return added.describe()

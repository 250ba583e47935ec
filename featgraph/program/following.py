"""A State that follows its graph and writes to some entries.

A graph that changes in batches keeps a log of them, `Changes`. A State has the version
that it has seen (`Seen`). `follow` gives it entries for new vertices, and writes `fill`
where a vertex is new or dead. What else a batch means for foldmaps, the runtime finds
(`featgraph.runtime.superstep.catch_up`). `put_entries` notes which entries it has
written, so that the runtime finds their readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import host_values
from featgraph.errors import StateError
from featgraph.graph import Graph
from featgraph.graph.inputs.take import Borrowed, storage_values
from featgraph.graph.views.view import Stamp
from featgraph.program.active import checked_vertices
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind

__all__ = [
    "Put", "Puts", "Seen", "follow", "has_log", "has_own_edges", "log_since",
    "numbers_of", "put_entries", "seen_now",
]  # fmt: skip

Ids = npt.NDArray[np.int64]
#: A State remembers at least so many written entries; with more vertices, an eighth.
FEWEST_PUT = 4096


class Seen(NamedTuple):
    """What a State, or what a foldmap has left on it, has seen.

    Attributes
    ----------
    stamp : Stamp
        The version of the graph.
    version : int
        The number of that version; 0 without a log.
    puts : int
        How many times `State.put` was called.
    """

    stamp: Stamp
    version: int
    puts: int


@dataclass(frozen=True, eq=False)
class Put:
    """Entries that were written.

    Attributes
    ----------
    name : str
        The property.
    ids : ndarray
        Vertices, or none where it belongs to edges.
    ends : (ndarray, ndarray) or None
        Sources and targets of edges.
    is_reset : bool
        Whether values were reset that extremes of others do not rest on.
    """

    name: str
    ids: Ids
    ends: tuple[Ids, Ids] | None = None
    is_reset: bool = False

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.ids.size if self.ends is None else self.ends[0].size


@dataclass(eq=False)
class Puts:
    """The log of what `State.put` has written; the oldest entries are forgotten.

    Attributes
    ----------
    count : int
        How many calls there were.
    """

    count: int = 0
    _kept: list[Put] = field(default_factory=list)

    def add(self, put: Put, vertex_count: int) -> None:
        """Note what one call has written."""
        self.count += 1
        self._kept.append(put)
        most = max(vertex_count // 8, FEWEST_PUT)
        while self._kept and sum(p.size for p in self._kept) > most:
            self._kept.pop(0)

    def since(self, count: int) -> Sequence[Put] | None:
        """Return what was written since so many calls; None where that is forgotten."""
        wanted = self.count - count
        return None if wanted > len(self._kept) else self._kept[-wanted or self.count :]


def has_log(graph: Graph) -> bool:
    """Whether a graph changes in batches and keeps a log of them."""
    return hasattr(graph, "changes")


def log_since(graph: Any, since: int) -> Any:
    """Return the `Changes` of a graph since a version; None where they are unknown."""
    return graph.changes(since=since) if has_log(graph) else None


def seen_now(state: Any) -> Seen:
    """Return what a State that has followed its graph has seen."""
    graph = state.graph
    version = int(graph.version) if has_log(graph) else 0
    return Seen(graph.stamps.version, version, state.puts.count)


def follow(state: Any, then: Seen, now: Seen) -> None:
    """Give a State the vertices and edges of its graph, which has changed."""
    graph = state.graph
    if not has_log(graph):
        return
    changes, count = log_since(graph, then.version), graph.vertex_count
    numbers = state.edge_numbers
    if state.residency is not None:
        edge_count = None if numbers is None else numbers.size
        state.residency.make_room((state.vertices_seen, edge_count))
    if changes is None:  # which ids were given out again is forgotten
        living = getattr(graph, "living", None)
        dead = np.zeros(0, np.int64) if living is None else np.flatnonzero(~living)
        filled = np.union1d(dead, np.arange(min(state.vertices_seen, count), count))
    else:
        filled = np.union1d(changes.born, changes.dead).astype(np.int64)
    for column in state._columns.values():
        if column.type.kind is PropertyKind.VERTEX:
            column.extend(count, column.fill)
            if filled.size:
                write_rows(column, filled, column.fill)
        elif numbers is not None and has_own_edges(column):
            column.put(_renumbered(column, numbers, numbers_of(graph)))
    if numbers is not None:
        state.edge_numbers = numbers_of(graph)
    state.vertices_seen = count


def has_own_edges(column: Column) -> bool:
    """Whether a column has values of edges that belong to its State."""
    return column.type.kind is PropertyKind.EDGE and not column.type.column


def numbers_of(graph: Any) -> Any:
    """Return the number of the insertion of each edge id; None without a log."""
    return getattr(graph._edges, "numbers", None)


def _renumbered(column: Column, then: Any, now: Any) -> npt.NDArray[Any]:
    """Return the values of edges by the ids that they have now; `fill` for new ones."""
    values = column.on_host()
    made = np.empty((now.size, *values.shape[1:]), values.dtype)
    made[:] = column.fill
    order = np.argsort(then)
    places = np.searchsorted(then, now, sorter=order)
    known = places < then.size
    known[known] = then[order[places[known]]] == now[known]
    made[known] = values[order[places[known]]]
    return made


def write_rows(column: Column, ids: Ids, values: Any) -> None:
    """Write some entries of a column where its values are."""
    if column.held is not None and column.held[0].put(column.held[1], ids, values):
        return
    values_here = column.lend()
    if column.held is not None or not isinstance(values_here, np.ndarray):
        values_here = np.array(column.on_host())
        values_here[ids] = values
        column.put(values_here)
        return
    if column.borrowed is not None:
        column.borrowed, column.values = None, values_here.copy()
        values_here = column.values
    values_here[ids] = values
    column.touch()


def put_entries(
    state: Any, name: str, ids: Any, values: Any, *, is_reset: bool = False
) -> None:
    """Write some entries of a property, and note which: see `State.put`."""
    column, graph = state._column(name), state.graph
    kind, where = column.type.kind, f"state.put({name!r})"
    if kind not in {PropertyKind.VERTEX, PropertyKind.EDGE} or graph.ranks is not None:
        raise StateError(
            "some entries are written of a property of vertices or edges, on one rank",
            where=where,
            got=column.type.describe() if graph.ranks is None else repr(graph),
            fix=f"assign all of it: state[{name!r}] = values",
        )
    is_edge = kind is PropertyKind.EDGE
    rows = graph.given_edge_count * (1 + column.per_direction)
    count = rows if is_edge else graph.vertex_count
    places = np.asarray(checked_vertices(ids, count, f"{where}, ids"))
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    places = places.astype(np.int64)
    living = None if is_edge else graph.living
    if living is not None and not living[places].all():
        raise StateError(
            "a dead vertex has the value fill=",
            where=where,
            got=f"vertex {places[np.argmin(living[places])]}, which is dead",
            expected="living vertices",
        )
    made = storage_values(name, values, column.type.dtype)
    made = host_values(made.copied()) if isinstance(made, Borrowed) else made
    item = column.type.item_shape
    if made.shape not in {(), item, (places.size, *item)}:
        raise StateError(
            "one value per entry is needed",
            where=where,
            got=f"shape {made.shape}",
            expected=f"{(places.size, *item)}, or one value for all",
        )
    if is_edge:
        whole = state[name]
        whole[places] = made
        state._write(name, whole)
        given = places % max(graph.given_edge_count, 1)
        sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
        ends = sources[given].astype(np.int64), targets[given].astype(np.int64)
        put = Put(name, places[:0], ends)
    else:
        write_rows(column, places, made)
        put = Put(name, places, is_reset=is_reset)
    if not put.size:
        return
    state.puts.add(put, graph.vertex_count)

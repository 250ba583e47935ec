"""A State that follows its graph and writes to some entries.

A graph that changes in batches keeps a log of them, `Changes`. A State has the version
that it has seen (`Seen`). `follow` gives it entries for new vertices, and writes `fill`
where a vertex is new or dead. What else a batch means for foldmaps, the runtime finds
(`featgraph.runtime.superstep.catch_up`). `put_entries` notes which entries it has
written, so that the runtime finds their readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph._dataclass import dataclass, field
from featgraph.arrays.values import host_values
from featgraph.errors import GraphInputError, StateError
from featgraph.graph import Graph
from featgraph.graph.inputs.take import Borrowed, storage_values
from featgraph.graph.views.view import Stamp
from featgraph.program.active import checked_vertices
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind

__all__ = [
    "Put", "Puts", "Seen", "follow", "log_since", "put_entries", "seen_now",
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
    insertions : (int, int)
        The number of the graph's next insertion, and how often edges had been numbered
        anew.
    """

    stamp: Stamp
    version: int
    puts: int
    insertions: tuple[int, int] = (0, 0)


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
    insertions = (0, 0) if graph.changing is None else graph.changing.insertions
    return Seen(graph.stamps.version, version, state.puts.count, insertions)


def follow(state: Any, then: Seen, now: Seen) -> None:
    """Give a State the vertices and edges of its graph, which has changed."""
    graph = state.graph
    if not has_log(graph):
        return
    changes = log_since(graph, then.version)
    if state.residency is not None:
        state.residency.make_room()
    count = graph.vertex_count
    if changes is None:
        seen = np.arange(min(state.vertices_seen, count), count)
        filled = np.union1d(graph.turned_since(then.version), seen)
    else:
        filled = np.union1d(changes.born, changes.dead).astype(np.int64)
    came: Ids | None = None
    for column in state._columns.values():
        if column.type.kind is PropertyKind.VERTEX:
            column.extend(count, column.fill)
            if filled.size:
                write_rows(column, filled, column.fill)
        elif _has_ids(column):
            if came is None:
                came = _edges_since(graph, then)
            column.extend(graph.stored_count, column.fill)
            if came.size:
                write_rows(column, came, column.fill)
    state.vertices_seen = count


def _has_ids(column: Column) -> bool:
    """Whether values of a State on a graph that changes are by edge id."""
    is_own = column.type.kind is PropertyKind.EDGE and not column.type.column
    return is_own and column.edges is None


def _edges_since(graph: Any, then: Seen) -> Ids:
    """Return the ids of edges that came since a version.

    Raises
    ------
    StateError
        If edges were numbered anew so often that they cannot be found.
    """
    found: Ids | None = graph.ids_since(then.version, *then.insertions)
    if found is None:
        raise StateError(
            "values of edges are of a version that is too long ago",
            got="edges that were numbered anew several times",
            expected="a State that is read or run in between",
            fix="make a State of the graph as it is now",
        )
    return found


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
    if not is_edge and graph.living is not None:
        dead = places[~graph.living[places]]
        if dead.size:
            raise GraphInputError(
                "the vertex was deleted",
                where=f"{where}, ids",
                got=int(dead[0]),
                expected="ids of living vertices",
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

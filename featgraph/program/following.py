"""Updates of a State: after changes of its graph, and by writes to some entries.

A graph that changes in batches keeps a log of them, `Changes`. A State stores the
version that it has processed (`Seen`). `follow` adds entries for new vertices, and
writes `fill` into the entries of new and of dead ones.
`featgraph.runtime.superstep.catch_up` finds the vertices that a batch makes due.
`checked_put` logs the entries that it has written, so that the runtime finds the
vertices that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import GraphInputError, StateError
from featgraph.cuda.values import host_values
from featgraph.graph import Graph
from featgraph.graph.inputs.take import Borrowed, storage_values
from featgraph.graph.views.view import Stamp
from featgraph.program.active import ActiveSet, checked_vertices
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind

__all__ = [
    "Put", "Puts", "Seen", "checked_put", "follow", "log_since", "seen_now",
]  # fmt: skip

Ids = npt.NDArray[np.int64]
#: Most entries in the log of a State, or V / 8, if that is more.
FEWEST_PUT = 4096


class Seen(NamedTuple):
    """The state of a graph and of the log of puts that has been processed.

    Attributes
    ----------
    stamp : Stamp
        The version of the graph.
    version : int
        The number of this version; 0 for a graph without a log.
    puts : int
        Number of calls of `State.put`.
    insertions : (int, int)
        The number of the graph's next insertion, and the number of times that its edges
        have been renumbered.
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
    ids : ndarray or ActiveSet
        Vertices; empty if the property belongs to edges. A set stays as it is, perhaps
        on a device, until its vertices are needed.
    ends : (ndarray, ndarray) or None
        Sources and targets of edges.
    is_reset : bool
        Whether `fg.trim` has reset the values: no minimum or maximum at another vertex
        depends on them, so that their readers need not become due.
    """

    name: str
    ids: Any
    ends: tuple[Ids, Ids] | None = None
    is_reset: bool = False

    @property
    def size(self) -> int:
        """Number of entries; for a set V / 64, as an estimate without counting."""
        if isinstance(self.ids, ActiveSet):
            return self.ids.vertex_count // 64
        return int(self.ids.size if self.ends is None else self.ends[0].size)


@dataclass(eq=False)
class Puts:
    """The log of the writes of `State.put`; the oldest are dropped.

    Attributes
    ----------
    count : int
        Number of calls.
    """

    count: int = 0
    _kept: list[Put] = field(default_factory=list)
    _size: int = 0

    def add(self, put: Put, vertex_count: int) -> None:
        """Log the entries of one call."""
        self.count += 1
        self._kept.append(put)
        self._size += put.size
        most = max(vertex_count // 8, FEWEST_PUT)
        while self._size > most:
            self._size -= self._kept.pop(0).size

    def since(self, count: int) -> Sequence[Put] | None:
        """Return the writes since the first `count` calls; None if some are dropped."""
        wanted = self.count - count  # for 0, a slice from -0 would have all writes
        return None if wanted > len(self._kept) else self._kept[-wanted or self.count :]


def log_since(graph: Graph, since: int) -> Any:
    """Return the `Changes` of a graph since a version; None if they are unknown."""
    return None if graph.changing is None else graph.changing.changes(since=since)


def seen_now(state: Any) -> Seen:
    """Return the current version of a State's graph and number of its puts."""
    stamp, changing, puts = state.graph.stamps.version, state.graph.changing, state.puts
    if changing is None:
        return Seen(stamp, 0, puts.count)
    version, insertions = changing.seen
    return Seen(stamp, version, puts.count, insertions)


def follow(state: Any, then: Seen) -> None:
    """Add entries for new vertices and edges of its graph to a State.

    Raises
    ------
    StateError
        If edges have been renumbered so often that new ones cannot be found.
    """
    graph, changing = state.graph, state.graph.changing
    if changing is None:
        return
    changes, count = log_since(graph, then.version), graph.vertex_count
    if state.residency is not None:
        state.residency.make_room()
    if changes is None:
        seen = np.arange(min(state.vertices_seen, count), count)
        new = np.union1d(changing.turned_since(then.version), seen)
    else:
        new = np.union1d(changes.born, changes.dead).astype(np.int64)
    came: Ids | None = None
    for column in state._columns.values():
        kind, ids, room = column.type.kind, new, count
        if kind is PropertyKind.EDGE and not column.type.column:
            if came is None:
                came = changing.ids_since(then.version, *then.insertions)
            if came is None:
                raise StateError(
                    "values of edges belong to a version that is too old",
                    got="edges that were renumbered several times",
                    expected="a State that is read or run in between",
                    fix="make a State of the graph as it is now",
                )
            ids, room = came, changing.stored_count
        elif kind is not PropertyKind.VERTEX:
            continue
        column.extend(room, column.fill)
        if ids.size:
            state.in_use.changes += 1  # views end
            write_rows(column, ids, column.fill)
    state.vertices_seen = count


def write_rows(column: Column, ids: Ids, values: Any) -> None:
    """Write some entries of a column in its current place."""
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


def checked_put(
    state: Any, name: str, ids: Any, values: Any, *, is_reset: bool = False
) -> Callable[[], None]:
    """Check entries of a property; return a function that writes and logs them.

    See `State.put`.
    """
    column, graph = state._column(name), state.graph
    kind, where = column.type.kind, f"state.put({name!r})"
    column.require_own(where)
    if kind not in {PropertyKind.VERTEX, PropertyKind.EDGE} or graph.ranks is not None:
        raise StateError(
            "only entries of vertices and edges can be written, and on one rank only",
            where=where,
            got=column.type.describe() if graph.ranks is None else repr(graph),
            fix=f"assign all of it: state[{name!r}] = values",
        )
    given, living, count = graph.given_edge_count, graph.living, graph.vertex_count
    if kind is PropertyKind.EDGE:
        living, count = None, given * (1 + column.per_direction)
    places = np.asarray(checked_vertices(ids, count, f"{where}, ids"))
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    places = places.astype(np.int64)
    if living is not None and not living[places].all():
        raise GraphInputError(
            "the vertex was deleted",
            where=f"{where}, ids",
            got=int(places[np.argmin(living[places])]),
            expected="ids of living vertices",
        )
    made = storage_values(name, values, column.type.dtype)
    made = host_values(made.copied()) if isinstance(made, Borrowed) else made
    item = column.type.item_shape
    if made.shape not in {(), item, (places.size, *item)}:
        raise StateError(
            "one value per entry is needed", where=where, got=f"shape {made.shape}",
            expected=f"{(places.size, *item)}, or one value for all",
        )  # fmt: skip

    def write() -> None:
        put = Put(name, places, is_reset=is_reset)
        if kind is PropertyKind.EDGE:
            whole = state[name]
            whole[places] = made
            state._write(name, whole)
            edges = places % max(given, 1)
            sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
            ends = sources[edges].astype(np.int64), targets[edges].astype(np.int64)
            put = Put(name, places[:0], ends)
        elif places.size:
            write_rows(column, places, made)
        if places.size:
            state.puts.add(put, graph.vertex_count)

    return write

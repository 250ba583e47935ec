"""Views of the rows of a dynamic graph: edge lists for the host, arrays for kernels.

`LivingEdges` is the edge list of one version, as `Graph` reads it; its arrays are
collected when they are first read. `RunArrays` is `Graph.changing`. It returns the
arrays that generated kernels take, by name:

* rows, columns and degrees are the arrays of the store, which batches write in place;
* arrays over edge ids, such as "in_sources", are *derived*: they have room for more
  ids, and after a batch `renewed` returns the entries to overwrite;
* lists of hubs are written in place where as many parts of rows are in them as before;
* cuts of the vertices, and other lists of hubs, are made anew when the shape changes.

Arrays over vertices and edges are as long as the capacities (`room`), so that a batch
replaces none of them, and kernels stay bound, until a capacity grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import DeviceError, GraphInputError
from featgraph.cuda.values import DeviceValues, Reordered, Rows, offset_dtype
from featgraph.dynamic.batches import Changes, on_host
from featgraph.dynamic.inputs import Turns
from featgraph.dynamic.pools import RowPool
from featgraph.dynamic.rows import HUB, edges_of, lengths_of, living_slots, ranges
from featgraph.dynamic.store import EdgeStore
from featgraph.fold.plan.traits import (
    COLUMN,
    HUB_DEGREE,
    NUMBER,
    REVERSED,
    GraphTraits,
    hub_degree_of,
    needs_wide_positions,
    rows_along,
    rows_with,
    traits_of_degrees,
    windows_of,
)
from featgraph.fold.plan.traits import Rows as RowNames
from featgraph.graph import Graph
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze
from featgraph.graph.degrees import SHORT
from featgraph.graph.views.structure import edge_rows
from featgraph.program.active import word_count
from featgraph.program.given import PropertySpec
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices import host_arrays

__all__ = [
    "ColumnValues", "GraphColumn", "LivingEdges", "RunArrays", "find_pairs",
    "freeze_living",
]  # fmt: skip

Array = npt.NDArray[Any]


class LivingEdges(EdgeList):
    """The edges of one version of a store, in the order of insertion.

    Arrays are collected at the first read, which must be before the next batch.

    Parameters
    ----------
    store : EdgeStore
    names : Names or None
        The names of the vertices.
    """

    is_built_on_gpu = False  # the rows exist already

    def __init__(self, store: EdgeStore, names: Any = None) -> None:
        self.store, self.directed, self._names = store, store.directed, names
        #: When the list was made: a state of the store.
        self.at = store.version, store.moves
        self.vertex_count, self.given_count = store.vertex_count, store.given_count
        self.edge_count = store.edge_count
        self.sides, self.is_given_on_gpu = None, False
        self._weights = None  # States bind the column of the rows
        #: Collected columns by name.
        self.columns: dict[str, Array] = {}
        self.weights_dtype = store.columns.get("weight", (None,))[0]

    @property
    def is_oriented_on_gpu(self) -> bool:
        """Whether the store is on a GPU."""
        return self.store.target == "cuda"

    @cached_property
    def on_gpu_oriented(self) -> Any:
        """The undirected edges, oriented towards the end of higher degree."""
        from featgraph.dynamic.gpu_memory import orient_rows  # imports the dialect

        return orient_rows(self.store.pool("in"), self.vertex_count)

    @cached_property
    def names(self) -> Any:  # type: ignore[override]
        """The names of the vertices, or None."""
        return None if self._names is None else tuple(self._names.of)

    @property
    def _given(self) -> tuple[Any, Any]:
        """Row and slot along "in" of each given edge, not kept in memory of a GPU."""
        return self._slots if self.store.target == "cpu" else self.store._slots()

    @cached_property
    def _slots(self) -> tuple[Any, Any]:
        return self.store._slots()

    @cached_property
    def in_edges(self) -> Adjacency:
        """The CSC: rows along "in" are in the order of insertion, too."""
        pool = self.store.pool("in")
        offsets = np.zeros(self.vertex_count + 1, offset_dtype(self.edge_count))
        np.cumsum(lengths_of(pool, self.vertex_count), out=offsets[1:])
        slots = living_slots(pool, self.vertex_count)
        ends = on_host(pool.entries_at("ends", slots))
        return Adjacency(freeze(offsets), freeze(ends), None)

    @cached_property
    def ids(self) -> Array:
        """The ids of all edges, in the order of rows."""
        self.store.give_ids()
        pool = self.store.pool("in")
        slots = living_slots(pool, self.vertex_count)
        return freeze(on_host(pool.entries_at("ids", slots)))

    @cached_property
    def sources(self) -> Array:
        """The sources of the edges."""
        return freeze(on_host(self.store.pool("in").entries_at("ends", self._given[1])))

    @cached_property
    def targets(self) -> Array:
        """The targets of the edges."""
        return freeze(on_host(self._given[0]))

    @cached_property
    def weights(self) -> Array | None:
        """The column "weight", or None."""
        return None if self.weights_dtype is None else self.column("weight")

    def column(self, name: str) -> Array:
        """Return the values of a column, in the order of insertion."""
        if name not in self.columns:
            values = self.store.pool("in").column_at(name, self._given[1])
            self.columns[name] = freeze(on_host(values))
        return self.columns[name]


def freeze_living(edges: LivingEdges, living: Array | None) -> Graph:
    """Return the static graph of the edges and the living vertices."""
    sources, targets, names = edges.sources, edges.targets, edges.names
    count = edges.vertex_count
    if living is not None and not living.all():
        alive, numbers = np.flatnonzero(living), np.cumsum(living, dtype=np.int32) - 1
        sources, targets, count = numbers[sources], numbers[targets], alive.size
        names = alive if names is None else tuple(names[v] for v in alive.tolist())
    if not count:
        raise GraphInputError(
            "a graph needs at least one vertex", where="graph.freeze",
            got="a graph without vertices", fix="insert a vertex first",
        )  # fmt: skip
    return Graph(
        EdgeList(sources, targets, edges.weights, count, edges.directed, names)
    )


def find_pairs(pool: RowPool, sources: Array, targets: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the pairs that rows along "in" have; none with negative ids."""
    known = (sources >= 0) & (targets >= 0)
    wanted = sources[known].astype(np.int64) << 32 | targets[known]
    u, v = edges_of(pool, np.unique(wanted & 0xFFFFFFFF))
    found = np.zeros(sources.size, np.bool_)
    found[known] = np.isin(wanted, u.astype(np.int64) << 32 | v)
    return found


class ColumnValues(Reordered):
    """The values of a column of a dynamic graph in its present version."""

    is_shared = True

    def __init__(self, graph: Any, name: str) -> None:
        self.graph, self.name = graph, name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the column."""
        return self.graph._store.columns[self.name][0]  # type: ignore[no-any-return]

    @property
    def array(self) -> Array:  # type: ignore[override]
        """The values in the order of insertion, read-only."""
        return self.graph._edges.column(self.name)  # type: ignore[no-any-return]

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """The position in `array` of each edge id."""
        return edge_rows(self.graph)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values by edge id."""
        width = self.graph._store.columns[self.name][1]
        return self.graph.edge_count, *(() if width is None else (width,))

    def sample(self, most: int) -> Array:
        """Return up to `most` values, of edges in evenly spaced rows."""
        return self.graph._store.sample(self.name, most)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.graph.given_edge_count  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.array, dtype)


class GraphColumn(PropertySpec):
    """A column of a graph, as a property of a `State`, or as an array.

    ``fg.State(graph, weight=graph.column("weight"))`` copies nothing, and has the
    values of each version. ``numpy.asarray(graph.column("weight"))`` has those of this
    version, in the order of insertion.
    """

    def __init__(self, values: ColumnValues) -> None:
        super().__init__(PropertyKind.EDGE, values, False, None, None, copy=False)
        self.graph = values.graph

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.values.array, dtype)


#: Traits that are lowered only if rows of twice the lengths would not have them.
_KEPT = ("has_hubs", "long_rows", "has_giant")


def _lowered(then: GraphTraits, now: GraphTraits, twice: GraphTraits) -> GraphTraits:
    """Return the traits `now`, with hysteresis: lower ones only past a factor of two.

    `then` are the traits before, and `twice` those of rows of twice the lengths.
    """
    kept: dict[str, Any] = {
        name: getattr(now, name) or (getattr(then, name) and getattr(twice, name))
        for name in _KEPT
    }
    if now.typical_degree < then.typical_degree <= 2 * now.typical_degree:
        kept["typical_degree"] = then.typical_degree
    if now.rows_of_longest <= 2 * then.rows_of_longest <= 4 * now.rows_of_longest:
        kept["rows_of_longest"] = then.rows_of_longest
    return replace(now, **kept)


#: Prefixes of the names of arrays whose sizes are exact, without room for later edges.
_ORIENTED = ("upper_", "lower_", "both_", "order_", "degree_")
EXACT = (*_ORIENTED, "triangle_")


class RunArrays:
    """The arrays of a dynamic graph by their names in generated code; `Graph.changing`.

    It is the layout "runs" of the graph, and all that States, results and the runtime
    read of its store.

    Attributes
    ----------
    turns : Turns
        The lock between batches and supersteps.
    """

    name = "runs"

    def __init__(self, store: EdgeStore, names: Any = None) -> None:
        self._store, self._names, self.turns = store, names, Turns()
        self._edges = LivingEdges(store, names)
        self.changes, self.turned_since = store.changes, store.turned_since
        self.keep_ids = store.by_id.add
        #: The traits of the version, and the key of the last computation: traits
        #: without hysteresis, and slots; None while hysteresis has an effect.
        self._traits: GraphTraits | None = None
        self._found: tuple[GraphTraits, int] | None = None
        #: The traits for which each cut of the vertices was made, by name.
        self._cut_for: dict[str, GraphTraits | None] = {}
        #: The version of each derived array, by name.
        self._derived: dict[str, int] = {}
        #: Lists of hubs by name, those to write again, and how often sizes changed.
        self._lists: dict[str, Array] = {}
        self._stale: set[str] = set()
        self._cuts = 0

    @property
    def edges(self) -> LivingEdges:
        """The edge list of the present version."""
        if self._edges.at != (self._store.version, self._store.moves):
            self._edges = LivingEdges(self._store, self._names)
        return self._edges

    def degrees(self, side: str) -> Any:
        """Return degrees, (vertex capacity,), which batches update; 0 from V on."""
        side = side if self._store.directed else "in"
        return self._store.pool("in").degrees_of(side, self._store.vertex_count)

    def traits(self) -> GraphTraits:
        """Return the traits of the version, lowered with hysteresis: see `_lowered`.

        They follow from counts of rows by length, without a pass over the vertices.
        """
        store, then = self._store, self._traits
        pool = store.pool("in")
        short = pool.length_counts[:SHORT]
        longest, below = pool.longest()
        if "out" in store.pools:
            longest, below = map(max, (longest, below), store.pools["out"].longest())
        made = traits_of_degrees(store, longest, below, short)
        if (made, pool.slots) == self._found and then is not None:
            return then
        self._found = made, pool.slots
        self._traits = now = replace(
            made, layout=self.name, wide_offsets=needs_wide_positions(pool.slots),
            wide_both=store.directed and needs_wide_positions(2 * pool.slots),
        )  # fmt: skip
        if then is not None and now != then:
            twice = traits_of_degrees(store, 2 * longest, below, short)
            self._traits = _lowered(then, now, twice)
            if self._traits != now:
                self._found = None
        return self._traits

    def most_edges(self, side: str) -> int:
        """Return a bound of the degrees, without a pass over the vertices."""
        store = self._store
        if side == "out" and store.directed and store.target == "cuda":
            pool = store.pools.get("out")  # on a GPU, other pools have no out-degrees
            return store.edge_count if pool is None else pool.longest()[0]
        return store.pool("in").longest()[0]

    @property
    def in_rows(self) -> Any:
        """The `RowPool` along "in"; its spare slots have arbitrary values."""
        return self._store.pool("in")

    def values_since(self, name: str, since: int | None) -> Any:
        """Return values of a column, with all that came or changed since a version.

        These are the values in the rows of such edges, if they are few; otherwise, and
        if `since` is None, all in the column's memory.
        """
        pool = self.in_rows
        values = pool.columns[name]
        changes = None if since is None else self.changes(since=since)
        if changes is not None and isinstance(values, np.ndarray):
            targets = np.concatenate([changes.inserted[1], changes.changed[1]])
            starts, stops = pool.spans(np.unique(targets))
            if PICK_COST * int((stops - starts).sum()) <= values.size:
                values = values[ranges(starts, stops)]
        return values

    @property
    def stored_ids(self) -> Array:
        """The edge id of each edge by row: the index of its values in a State."""
        return self.edges.ids

    def given_ids(self, per_direction: bool) -> list[Any]:
        """Return the ids of edges in the order of insertion, on the graph's target.

        With `per_direction`, a second array has those of twins: a loop has its own id.
        """
        lists = self._store.given_ids(per_direction)
        if self._store.target == "cpu":
            return lists
        from featgraph.dynamic.gpu_memory import uploaded  # imports the dialect

        return [DeviceValues(uploaded(ids)) for ids in lists]

    @property
    def stored_count(self) -> int:
        """The bound of edge ids, those of no edge included."""
        self._store.give_ids()
        return self._store.next_id

    @property
    def seen(self) -> tuple[int, tuple[int, int]]:
        """The version, the number of the next insertion, and how many renumberings."""
        store = self._store
        return store.version, (store.next_number, store.numberings)

    def target_of(self, target: str) -> str:
        """Return the target of the graph if `target` is that or "auto".

        Raises
        ------
        DeviceError
            If `target` is another one.
        """
        own = self._store.target
        if target in {"cpu", "cuda"} - {own}:
            raise DeviceError(
                "the graph lives on another target", where="target=", got=target,
                expected=f"'auto' or {own!r}",
                fix="DynamicGraph.from_graph(graph.freeze(), target=...)",
            )  # fmt: skip
        return own if target == "auto" else target

    def column_of(self, graph: Any, values: object) -> ColumnValues | None:
        """Return the column whose values an argument is, or None."""
        if isinstance(values, ColumnValues):
            return values if values.graph is graph else None
        for name, known in self.edges.columns.items():
            if known is values:
                return ColumnValues(graph, name)
        return None

    def add_triangles(self, changes: Changes, counts: Any) -> tuple[int, int] | str:
        """Update counts of triangles, a view of (V,), by changes: see `triangles`."""
        from featgraph.dynamic import triangles  # loads Numba

        made: Any = triangles.Counter
        if self._store.target == "cuda":
            from featgraph.dynamic.triangles_cuda import GpuCounter as made
        count = made(self.in_rows, counts.current())
        edges = changes.inserted, changes.deleted
        return triangles.add_triangles(count, *edges, changes.dead)

    @property
    def room(self) -> tuple[int, int]:
        """The lengths of arrays over vertices, and over edge ids."""
        return int(self._store.pool("in").starts.size), self._store.id_room

    def list_hubs(self) -> int:
        """Make the lists of hubs anew; return how often one had another size."""
        made = {name: self._hub_list(name) for name in self._lists}
        if any(made[name].size != then.size for name, then in self._lists.items()):
            made, self._cuts = {}, self._cuts + 1  # kernels are bound to other arrays
        for name, hubs in made.items():
            if not np.array_equal(hubs, self._lists[name]):
                self._stale.add(name)
        self._lists = made
        return self._cuts

    def renewed(self, name: str) -> tuple[Array | None, Array] | None:
        """Return the indices and values to write to a derived array, or None.

        The indices are None for all of the array.
        """
        if name in self._stale:
            self._stale.discard(name)
            return None, self._lists[name]
        then, now = self._derived.get(name), self._store.version
        if then is None or then == now:
            return None
        self._derived[name] = now
        slots = self._slots_since(then)
        return self._by_id(name, slots) if slots.size else None

    def stays(self, name: str) -> bool:
        """Return whether an array is still right after the traits have changed."""
        if name in self._cut_for:
            return self._cut_for[name] == self._traits
        if "hub" in name or "joined" in name:
            return name in self._lists
        return not name.startswith(EXACT)

    def array(self, graph: Any, name: str) -> Any:
        """Return the array with this name, as long as a capacity; None if unknown."""
        vertices, edges = self.room
        along, _, kind = name.partition("_run_")
        if kind:
            self._store.give_ids() if kind == "ids" else None
            return getattr(self._store.pool(_ALONG[along]), kind)
        if name in _OF_IDS or name.startswith(_COLUMN_BY_ID):
            ids, values = self._by_id(name, None)
            self._derived[name] = self._store.version
            made = np.zeros((edges, *values.shape[1:]), values.dtype)
            made[ids] = values
            return made
        if name.startswith(COLUMN):
            _, order, column = name.split(" ", 2)
            return self._store.pool(order).columns[column]
        if name in _PLAIN:
            return _PLAIN[name](self)
        if name.startswith(_ORIENTED) and self.edges.is_oriented_on_gpu:
            return self._oriented(graph, name)
        if name.startswith(_ORIENTED) and name.endswith("_edges"):
            ids = host_arrays.host_graph_array(graph, name)
            # In this version, edges without ids get those of CSC, if any.
            has_ids = self._store.free_ids is not None
            return (self.stored_ids[ids] if has_ids else ids).astype(np.int64)
        of, windows = rows_with(name), windows_of(name)
        if windows is not None or "chunks" in name:
            self._cut_for[name] = self._traits
        if windows is not None:
            rows, *limits = windows
            return host_arrays.cut_windows(self._lengths(rows), *limits)
        if of is not None and name == of.chunks:
            before = np.cumsum(self._lengths(of), dtype=np.int64)
            return host_arrays.cut_words(vertices, np.append(0, before))
        kind = name.split(" ")[0]
        if of is not None and kind in {of.hubs, of.hub_parts, of.joined_parts}:
            self._stale.discard(name)
            self._lists[name] = self._hub_list(name)
            return self._lists[name]
        return None

    def _oriented(self, graph: Any, name: str) -> Any:
        """Return an array of the oriented graph, on the GPU."""
        from featgraph.dynamic.gpu_memory import extended
        from featgraph.runtime.devices import gpu_arrays

        found = gpu_arrays.oriented_array(graph, name)
        if name not in _BY_DEGREE:
            return found
        return extended(found, self.room[0] + (name in _BEGINS))

    def _hub_list(self, name: str) -> Array:
        """Return a list of hubs, or of the parts that their rows are cut into."""
        from featgraph.runtime.devices import gpu_arrays

        of: Any = rows_with(name)
        cut = {
            of.hubs: gpu_arrays.longest_first, of.hub_parts: gpu_arrays.parts_of_rows,
            of.joined_parts: gpu_arrays.joined_parts,
        }[name.split(" ")[0]]  # fmt: skip
        pool: Any = self._store.pool(_along(of))
        least, hubs = hub_degree_of(name) or HUB_DEGREE, pool.hubs
        if least >= HUB:
            lengths = pool.hub_lengths
        else:
            lengths = lengths_of(pool, self._store.vertex_count)
            hubs = np.arange(lengths.size)
        return cut(hubs[lengths >= least], lengths[lengths >= least])

    def _lengths(self, of: RowNames) -> Array:
        """Return the lengths of rows, (vertex capacity,)."""
        pool = self._store.pool(_along(of))
        return lengths_of(pool, int(pool.starts.size))

    def living_ids(self) -> Array:
        """Return a mask of the edge ids below `stored_count` that an edge has."""
        self._store.give_ids()
        free: Any = self._store.free_ids
        made = np.ones(self._store.next_id, np.bool_)
        made[on_host(free.next(len(free)))] = False
        return made

    def _slots_since(self, version: int) -> Array:
        """Return slots along "in" of all edges inserted or changed since a version.

        Inserted edges are the last ones of their rows. Of rows with changed values, and
        of all rows if the log begins later, all slots are returned.
        """
        pool, changes = self._store.pool("in"), self._store.changes(version)
        if changes is None:
            return living_slots(pool, self._store.vertex_count)
        came, other = changes.inserted, changes.changed
        if not self._store.directed:  # a loop stands once
            came, other = ((u, np.append(v, u[u != v])) for u, v in (came, other))
        rows, at = np.unique(np.append(came[1], other[1]), return_inverse=True)
        starts, stops = pool.spans(rows)
        counts = np.bincount(at[: came[1].size], minlength=rows.size)
        first = np.where(np.isin(rows, other[1]), starts, stops - counts)
        return ranges(first, stops)

    def _edges_at(self, slots: Array) -> tuple[Any, ...]:
        """Return ids, ends, numbers and columns of edges by slot along "in"."""
        self._store.give_ids()
        pool = self._store.pool("in")
        ends, numbers, columns, ids = pool.edges_at(pool.memory.placed(slots))
        return (*map(on_host, (ids, ends, numbers)), columns)

    def ids_since(self, version: int, number: int, numbering: int) -> Array | None:
        """Return the ids of the edges inserted since a version; None if unknown.

        `number` and `numbering` are those of `seen` in that version. The ids are
        unknown if edges were renumbered more than once since then.
        """
        if numbering < self._store.numberings - 1:
            return None
        if numbering < self._store.numberings:
            number = int(np.searchsorted(self._store.known, number))
        ids, _, numbers, _ = self._edges_at(self._slots_since(version))
        found: Array = ids[numbers >> 1 >= number]
        return found

    def _by_id(self, name: str, slots: Array | None) -> tuple[Array, Array]:
        """Return edge ids, and entries of a derived array, of edges by slot, or all."""
        if slots is None and name == "edge_twin":
            both = [*map(on_host, self._store.given_ids(per_direction=True))]
            return np.concatenate(both), self._wide_ids(np.concatenate(both[::-1]))
        if slots is None:
            slots = self._slots_since(-1)
        ids, ends, numbers, columns = self._edges_at(slots)
        if name == "in_sources":
            return ids, ends
        if name == "edge_is_twin":
            return ids, numbers & 1 == 1
        if name == "edge_twin":
            order = np.argsort(numbers, kind="stable")
            ids, insertions = ids[order], numbers[order] >> 1
            is_first = np.flatnonzero(insertions[1:] == insertions[:-1])
            twins = ids.copy()  # unsigned: else Numba checks for negative indices
            twins[is_first], twins[is_first + 1] = ids[is_first + 1], ids[is_first]
            return ids, self._wide_ids(twins)
        return ids, on_host(columns[name.removeprefix(_COLUMN_BY_ID)])

    def _wide_ids(self, ids: Array) -> Array:
        """Return edge ids in the type in which kernels of the target read twins."""
        is_on_gpu = self._store.target == "cuda"
        return ids.astype(self._store.pool("in").starts.dtype) if is_on_gpu else ids


#: Prefixes of names of arrays -> direction of the rows.
_ALONG = {rows_along(a).offsets.removesuffix("_offsets"): a for a in REVERSED}


def _along(of: RowNames) -> str:
    """Return the direction of rows, as a key of `EdgeStore.pools`."""
    return _ALONG[of.chunks.removesuffix("_chunks")]


#: Arrays in degree order that GPU kernels read up to the vertex capacity.
_BEGINS = frozenset({"upper_offsets", "lower_offsets", "both_offsets"})
_BY_DEGREE = _BEGINS | {"order_vertex", "degree_order"}
#: Arrays that follow from the capacities alone, and degrees.
_PLAIN: dict[str, Callable[[RunArrays], Array]] = {
    NUMBER: lambda of: np.arange(of.room[0], dtype=np.int32),
    "vertex_chunks": lambda of: host_arrays.cut_words(of.room[0]),
    "word_chunks": lambda of: np.arange(word_count(of.room[0]) + 1),
    "edge_word_chunks": lambda of: host_arrays.cut_words(of.room[1]),
    "edge_chunks": lambda of: host_arrays.edge_chunks(of.room[1]),
    "in_degree": lambda of: of.degrees("in"),
    "out_degree": lambda of: of.degrees("out"),
}
#: Derived arrays: one entry per edge id.
_OF_IDS = frozenset({"in_sources", "edge_twin", "edge_is_twin"})
_COLUMN_BY_ID = f"{COLUMN} id "
#: The time of picking a value of an edge by its slot, over that of checking one of all:
#: 1.7 to 5.7 (4M and 0.5M edges, an AMD EPYC, 2026-11-30).
PICK_COST = 6

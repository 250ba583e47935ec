"""Views of a dynamic graph: edges for the host, arrays for kernels.

`LivingEdges` is the list of the edges of one version, made when the host first reads
it. `RunArrays` has the arrays of kernels by name: those of the store as they are, and
others that follow from them, and the traits of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import DeviceError, GraphInputError
from featgraph.cuda.values import Reordered, Rows
from featgraph.dynamic.batches import Changes, on_host
from featgraph.dynamic.inputs import Turns
from featgraph.dynamic.pools import RowPool
from featgraph.dynamic.rows import HUB, edges_of, living_slots, ranges
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
from featgraph.graph.building.edges import EdgeList, freeze
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
    """The edges of one version of a store, in the order of their insertion.

    They are collected at the first read, before the next version.

    Parameters
    ----------
    store : EdgeStore
    names : object or None
        The names of all vertices of the version, by its method `of`.
    """

    def __init__(self, store: EdgeStore, names: Any = None) -> None:
        self.store, self.directed, self._names = store, store.directed, names
        self.vertex_count, self.given_count = store.vertex_count, store.given_count
        self.edge_count = store.edge_count
        self.sides, self.is_given_on_gpu = None, False
        self._weights = None  # States bind the column
        #: Columns that have been collected.
        self.columns: dict[str, Array] = {}
        self.weights_dtype = store.columns.get("weight", (None,))[0]

    @property
    def is_built_on_gpu(self) -> bool:
        """Whether a GPU makes the rows of these edges: they have rows already."""
        return False

    @cached_property
    def names(self) -> Any:  # type: ignore[override]
        """The names of the vertices; None without."""
        return None if self._names is None else tuple(self._names.of)

    @cached_property
    def _given(self) -> tuple[Array, Array]:
        """The rows and slots along "in" of the edges as given."""
        return self.store._slots()

    @cached_property
    def ids(self) -> Array:
        """The ids of all edges, in the order of rows."""
        self.store.give_ids()
        pool = self.store.pool("in").on_host()
        return freeze(pool.ids[living_slots(pool, self.vertex_count)])

    @cached_property
    def sources(self) -> Array:
        """Where edges begin."""
        return freeze(self.store.pool("in").on_host().ends[self._given[1]])

    @cached_property
    def targets(self) -> Array:
        """Where they end."""
        return freeze(self._given[0])

    @cached_property
    def weights(self) -> Array | None:
        """Their weights; None without."""
        return None if self.weights_dtype is None else self.column("weight")

    def column(self, name: str) -> Array:
        """Return the values of a column, in the order of insertion."""
        if name not in self.columns:
            values = self.store.pool("in").on_host().columns[name]
            self.columns[name] = freeze(values[self._given[1]])
        return self.columns[name]


def freeze_living(edges: LivingEdges, living: Array | None) -> Graph:
    """Return the graph of the edges and the living vertices, which does not change."""
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
    """Return for each pair whether rows along "in" have it; negative ids have none."""
    known = np.flatnonzero((sources >= 0) & (targets >= 0))
    wanted, inverse = np.unique(
        _keys(sources[known], targets[known]), return_inverse=True
    )
    present = _keys(*edges_of(pool, np.unique(wanted & 0xFFFFFFFF)))
    found = np.zeros(sources.size, np.bool_)
    found[known] = np.isin(wanted, present)[inverse]
    return found


def _keys(sources: Array, targets: Array) -> Array:
    """Return a number for each pair."""
    return sources.astype(np.int64) << 32 | targets


class ColumnValues(Reordered):
    """The values of a column of a graph, in the version that there is."""

    is_shared = True

    def __init__(self, graph: Any, name: str) -> None:
        self.graph, self.name = graph, name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.graph._store.columns[self.name][0]  # type: ignore[no-any-return]

    @property
    def array(self) -> Array:  # type: ignore[override]
        """The values in the order of insertion, read-only."""
        return self.graph._edges.column(self.name)  # type: ignore[no-any-return]

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """The row of each edge id in that order."""
        return edge_rows(self.graph)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values by edge id."""
        width = self.graph._store.columns[self.name][1]
        return self.graph.edge_count, *(() if width is None else (width,))

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


#: Traits that a factor of two on the lengths of rows keeps.
_KEPT = ("has_hubs", "long_rows", "has_giant")


def _lowered(then: GraphTraits, now: GraphTraits, twice: GraphTraits) -> GraphTraits:
    """Return traits that fall only where rows of twice the lengths had lower ones."""
    kept: dict[str, Any] = {
        name: getattr(now, name) or (getattr(then, name) and getattr(twice, name))
        for name in _KEPT
    }
    if now.typical_degree < then.typical_degree <= 2 * now.typical_degree:
        kept["typical_degree"] = then.typical_degree
    if now.rows_of_longest <= 2 * then.rows_of_longest <= 4 * now.rows_of_longest:
        kept["rows_of_longest"] = then.rows_of_longest
    return replace(now, **kept)


#: First words of the names of arrays whose sizes follow the edges of a version.
_ORIENTED = ("upper_", "lower_", "both_", "order_", "degree_")
_EXACT = (*_ORIENTED, "triangle_")


class RunArrays:
    """The arrays of a graph that changes, by their names in generated code.

    Pools, columns and degrees are those of the store, which batches write in place.
    Arrays by edge id are *derived*: they have room for all ids, and in each version
    some entries are written. States and results read the store through it:
    `Graph.changing`.

    Attributes
    ----------
    edges : LivingEdges
        The list of the edges of the version.
    turns : Turns
    """

    name = "runs"
    edges: LivingEdges

    def __init__(self, store: EdgeStore) -> None:
        self._store, self.turns = store, Turns()
        self.changes, self.turned_since = store.changes, store.turned_since
        self.keep_ids = store.by_id.add
        #: The traits of the version, and with what they were found last: the traits
        #: without regard to those of before, and slots. None where these differ.
        self._traits: GraphTraits | None = None
        self._found: tuple[GraphTraits, int] | None = None
        #: Name of a cut of the vertices -> the traits for which it was made.
        self._cut_for: dict[str, GraphTraits | None] = {}
        #: Name of a derived array -> the version that it is of.
        self._derived: dict[str, int] = {}

    def degrees(self, side: str) -> Any:
        """Return degrees, in memory that batches write; entries behind V are 0."""
        side = side if self._store.directed else "in"
        return self._store.pool("in").degrees_of(side, self._store.vertex_count)

    def traits(self) -> GraphTraits:
        """Return the traits: higher ones at once, lower ones past a factor of two.

        The store counts rows by length: there is no pass over the vertices.
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

    @property
    def in_rows(self) -> Any:
        """The `RowPool` of rows along "in"; slots without an edge have old values."""
        return self._store.pool("in")

    @property
    def stored_ids(self) -> Array:
        """Where values of a `State` are, by edge id of the host."""
        return self.edges.ids

    @property
    def stored_count(self) -> int:
        """How many values of edges a `State` has, those that no edge has included."""
        self._store.give_ids()
        return self._store.next_id

    @property
    def seen(self) -> tuple[int, tuple[int, int]]:
        """The version, the number of the next insertion, and how many numberings."""
        store = self._store
        return store.version, (store.next_number, store.numberings)

    def target_of(self, target: str) -> str:
        """Return the target of the graph.

        Raises
        ------
        DeviceError
            If another target is requested.
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
        """Return the column of a graph that has these values; None where none has."""
        if isinstance(values, ColumnValues):
            return values if values.graph is graph else None
        for name, known in self.edges.columns.items():
            if known is values:
                return ColumnValues(graph, name)
        return None

    def add_triangles(self, changes: Changes, counts: Array) -> tuple[int, int] | None:
        """Have counts of triangles, (V,), follow changes: see `add_triangles`."""
        from featgraph.dynamic.triangles import add_triangles  # loads Numba

        ends = np.concatenate([*changes.inserted, *changes.deleted])
        rows = self.in_rows.rows_at(np.unique(ends), self._store.vertex_count)
        return add_triangles(rows, changes.inserted, changes.deleted, counts)

    @property
    def room(self) -> tuple[int, int]:
        """How many vertices, and how many edges, arrays have entries for."""
        return int(self._store.pool("in").starts.size), self._store.id_room

    def hubs(self) -> dict[str, bytes]:
        """Return the key of the lists of hubs that GPU kernels use."""
        if self._store.target != "cuda":
            return {}
        pools: Any = self._store.pools
        return {
            along: pool.hubs.tobytes() + pool.hub_lengths.tobytes()
            for along, pool in pools.items() if pool.hubs.size
        }  # fmt: skip

    def holds_exact(self, names: Iterable[str]) -> bool:
        """Whether some of these arrays have other sizes in other versions."""
        return any(name.startswith(_EXACT) for name in names)

    def renewed(self, name: str) -> tuple[Array, Array] | None:
        """Return which entries of an array a version has others of, and these."""
        then, now = self._derived.get(name), self._store.version
        if then is None or then == now:
            return None
        self._derived[name] = now
        slots = self._slots_since(then)
        return self._by_id(name, slots) if slots.size else None

    def stays(self, name: str) -> bool:
        """Whether an array holds in another shape: no list of hubs, no other cut."""
        if name in self._cut_for:
            return self._cut_for[name] == self._traits
        is_list = "hub" in name or "joined" in name
        return not is_list and not name.startswith(_EXACT)

    def array(self, graph: Any, name: str) -> Any:
        """Return an array with entries up to the capacities; None for other names."""
        vertices, edges = self.room
        along, _, kind = name.partition("_run_")
        if kind:
            self._store.give_ids() if kind == "ids" else None
            return getattr(self._store.pool(_ALONG[along]), kind)
        if name in _OF_IDS or name.startswith(_COLUMN_BY_ID):
            ids, values = self._by_id(name, self._slots_since(-1))
            self._derived[name] = self._store.version
            made = np.zeros((edges, *values.shape[1:]), values.dtype)
            made[ids] = values
            return made
        if name.startswith(COLUMN):
            _, order, column = name.split(" ", 2)
            return self._store.pool(order).columns[column]
        if name in _PLAIN:
            return _PLAIN[name](self)
        if name.startswith(_ORIENTED) and name.endswith("_edges"):
            ids = host_arrays.host_graph_array(graph, name)
            return self.stored_ids[ids].astype(np.int64)
        of, windows = rows_with(name), windows_of(name)
        if windows is not None or "chunks" in name:
            self._cut_for[name] = self._traits
        if name == "vertex_chunks":
            return host_arrays.cut_words(vertices)
        if name in _BY_DEGREE and self._store.target == "cuda":
            found = host_arrays.host_graph_array(graph, name)
            return np.pad(found, (0, vertices + (name in _BEGINS) - found.size), "edge")
        if windows is not None:
            rows, *limits = windows
            return host_arrays.cut_windows(self._lengths(rows), *limits)
        if of is not None and name == of.chunks:
            before = np.cumsum(self._lengths(of), dtype=np.int64)
            return host_arrays.cut_words(vertices, np.append(0, before))
        kind = name.split(" ")[0]
        if of is not None and kind in {of.hubs, of.hub_parts, of.joined_parts}:
            return self._hub_list(of, name)
        return None

    def _hub_list(self, of: RowNames, name: str) -> Array:
        """Return a list of hubs, or of parts of their rows."""
        from featgraph.runtime.devices import gpu_arrays

        cut = {
            of.hubs: gpu_arrays.longest_first, of.hub_parts: gpu_arrays.parts_of_rows,
            of.joined_parts: gpu_arrays.joined_parts,
        }[name.split(" ")[0]]  # fmt: skip
        pool: Any = self._store.pool(_along(of))
        least, hubs = hub_degree_of(name) or HUB_DEGREE, pool.hubs
        if least >= HUB:
            lengths = pool.hub_lengths
        else:
            lengths = pool.lengths(self._store.vertex_count)
            hubs = np.arange(lengths.size)
        return cut(hubs[lengths >= least], lengths[lengths >= least])

    def _lengths(self, of: RowNames) -> Array:
        """Return the lengths of rows, up to the vertex capacity."""
        pool = self._store.pool(_along(of))
        return pool.lengths(int(pool.starts.size))

    def living_ids(self) -> Array:
        """Return which ids that were given out edges have."""
        self._store.give_ids()
        free: Any = self._store.free_ids
        made = np.ones(self._store.next_id, np.bool_)
        made[on_host(free.next(len(free)))] = False
        return made

    def _slots_since(self, version: int) -> Array:
        """Return slots along "in" with all edges that have come or changed since then.

        Those that came are the last ones of their rows; of a row where one got another
        value, all are here. Where that is forgotten, all edges are.
        """
        pool, changes = self._store.pool("in"), self._store.changes(version)
        if changes is None:
            return living_slots(pool.on_host(), self._store.vertex_count)
        came, other = changes.inserted, changes.changed
        if not self._store.directed:  # a loop stands once
            came, other = ((u, np.append(v, u[u != v])) for u, v in (came, other))
        rows, at = np.unique(np.append(came[1], other[1]), return_inverse=True)
        starts, stops = pool.taken_at("starts", rows), pool.taken_at("stops", rows)
        counts = np.bincount(at[: came[1].size], minlength=rows.size)
        first = np.where(np.isin(rows, other[1]), starts, stops - counts)
        return ranges(first, stops)

    def _edges_at(self, slots: Array) -> tuple[Any, ...]:
        """Return ids, ends and numbers of edges by slot along "in", and columns."""
        self._store.give_ids()
        pool = self._store.pool("in")
        ends, numbers, columns, ids = pool.edges_at(
            pool.memory.placed(slots.astype(pool.starts.dtype))
        )
        return (*map(on_host, (ids, ends, numbers)), columns)

    def ids_since(self, version: int, number: int, numbering: int) -> Array | None:
        """Return the ids of edges that came since a version.

        `number` was that of the next insertion, when edges had been numbered anew so
        often. None where they have been more than once since then.
        """
        if numbering < self._store.numberings - 1:
            return None
        if numbering < self._store.numberings:
            number = int(np.searchsorted(self._store.known, number))
        ids, _, numbers, _ = self._edges_at(self._slots_since(version))
        found: Array = ids[numbers >> 1 >= number]
        return found

    def _by_id(self, name: str, slots: Array) -> tuple[Array, Array]:
        """Return ids of edges by slot along "in", and their entries of an array."""
        ids, ends, numbers, columns = self._edges_at(slots)
        if name == "in_sources":
            return ids, ends
        if name == "edge_is_twin":
            return ids, numbers & 1 == 1
        if name == "edge_twin":
            order = np.argsort(numbers, kind="stable")
            ids, insertions = ids[order], numbers[order] >> 1
            is_first = np.flatnonzero(insertions[1:] == insertions[:-1])
            twins = ids.copy()  # unsigned, so that kernels of the CPU wrap none around
            twins[is_first], twins[is_first + 1] = ids[is_first + 1], ids[is_first]
            if self._store.target == "cuda":
                twins = twins.astype(self._store.pool("in").starts.dtype)
            return ids, twins
        return ids, on_host(columns[name.removeprefix(_COLUMN_BY_ID)])


#: First parts of names of arrays -> along which edges these rows lead.
_ALONG = {rows_along(a).offsets.removesuffix("_offsets"): a for a in REVERSED}


def _along(of: RowNames) -> str:
    """Return along which edges some rows lead."""
    return _ALONG[of.chunks.removesuffix("_chunks")]


#: Arrays of rows by degree order that kernels of the GPU read up to the capacity.
_BEGINS = frozenset({"upper_offsets", "lower_offsets", "both_offsets"})
_BY_DEGREE = _BEGINS | {"order_vertex", "degree_order"}
#: Arrays that follow from the capacities, or that the degrees are.
_PLAIN: dict[str, Callable[[RunArrays], Array]] = {
    NUMBER: lambda of: np.arange(of.room[0], dtype=np.int32),
    "word_chunks": lambda of: np.arange(word_count(of.room[0]) + 1),
    "edge_word_chunks": lambda of: host_arrays.cut_words(of.room[1]),
    "edge_chunks": lambda of: host_arrays.edge_chunks(of.room[1]),
    "in_degree": lambda of: of.degrees("in"),
    "out_degree": lambda of: of.degrees("out"),
}
#: Derived arrays with an entry for each edge id.
_OF_IDS = frozenset({"in_sources", "edge_twin", "edge_is_twin"})
_COLUMN_BY_ID = f"{COLUMN} id "

"""What hosts and kernels read of a graph that changes.

`LivingEdges` is the list of the edges of one version, made when the host first asks for
it. `RunArrays` has the arrays of kernels by name: those of the store as they are, and
others that follow from them. `Degrees` has the degrees of all vertices, and counts
vertices by degree, so that traits need no pass over them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.arrays.values import Reordered, Rows
from featgraph.dynamic.store import EdgeStore, RowPool
from featgraph.fold.plan.layout import (
    BY_ID,
    BY_SLOT,
    NUMBER,
    REVERSED,
    rows_along,
    rows_with,
)
from featgraph.fold.plan.layout import Rows as RowNames
from featgraph.fold.plan.traits import (
    HUB_DEGREE,
    GraphTraits,
    needs_wide_positions,
    traits_of_degrees,
)
from featgraph.graph._structure import edge_rows
from featgraph.graph.building.edges import EdgeList, freeze
from featgraph.graph.degrees import SHORT
from featgraph.graph.views.view import SPARE
from featgraph.program.active import word_count
from featgraph.runtime.devices.host_arrays import cut_words, host_graph_array

__all__ = ["ColumnValues", "Degrees", "LivingEdges", "RunArrays", "slots_of"]

Array = npt.NDArray[Any]


class LivingEdges(EdgeList):
    """The edges of one version of a store, in the order of their insertion.

    They are collected when first asked for, before the next version.

    Parameters
    ----------
    store : EdgeStore
    names : VertexNames or None
        Of all vertices of the version.
    """

    def __init__(self, store: EdgeStore, names: Any = None) -> None:
        self.store, self.directed = store, store.directed
        self.vertex_count, self.given_count = store.vertex_count, store.given_count
        self.edge_count = store.edge_count  # type: ignore[misc]
        self.names, self.sides, self.is_given_on_gpu = names, None, False
        self._weights = store.columns.get("weight")
        self.weights_dtype = None if self._weights is None else self._weights.dtype

    @property
    def is_built_on_gpu(self) -> bool:
        """Whether a GPU makes the rows of these edges: they have rows already."""
        return False

    @cached_property
    def slots(self) -> Array:
        """The slot of each edge along "in", by edge id, (E,): row by row."""
        return slots_of(self.store.pools["in"], self.vertex_count)

    @cached_property
    def _given(self) -> tuple[Array, Array, Array]:
        """Sources, targets and slots of the edges as given."""
        pool, slots = self.store.pools["in"], self.slots
        numbers = pool.numbers[slots]
        lengths = pool.stops[: self.vertex_count] - pool.starts[: self.vertex_count]
        targets = np.repeat(np.arange(self.vertex_count, dtype=np.int32), lengths)
        ids = np.flatnonzero(numbers & 1 == 0)  # no twins
        ids = ids[np.argsort(numbers[ids], kind="stable")]
        slots = slots[ids]
        return freeze(pool.ends[slots]), freeze(targets[ids]), slots

    @cached_property
    def sources(self) -> Array:
        """Where edges begin."""
        return self._given[0]

    @cached_property
    def targets(self) -> Array:
        """Where they end."""
        return self._given[1]

    @cached_property
    def weights(self) -> Array | None:
        """Their weights; None without."""
        return self.column("weight") if self._weights is not None else None

    @cached_property
    def columns(self) -> dict[str, Array]:
        """The columns that have been collected."""
        return {}

    def column(self, name: str) -> Array:
        """Return the values of a column, in the order of insertion."""
        if name not in self.columns:
            values = self.store.pools["in"].columns[name]
            self.columns[name] = freeze(values[self._given[2]])
        return self.columns[name]


def slots_of(pool: RowPool, vertex_count: int) -> Array:
    """Return the slots of all edges, row by row."""
    starts = pool.starts[:vertex_count].astype(np.int64)
    lengths = pool.stops[:vertex_count] - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


class ColumnValues(Reordered):
    """The values of a column of a graph, in the version that there is."""

    is_shared = True

    def __init__(self, graph: Any, name: str) -> None:
        self.graph, self.name = graph, name

    @property
    def array(self) -> Array:  # type: ignore[override]
        """The values in the order of insertion, read-only."""
        return self.graph._edges.column(self.name)  # type: ignore[no-any-return]

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """The row of each edge id in that order."""
        return edge_rows(self.graph)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.graph._store.columns[self.name].dtype  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values by edge id."""
        items = self.graph._store.columns[self.name].shape
        return self.graph.edge_count, *items

    def __len__(self) -> int:
        return self.graph.given_edge_count  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.array, dtype)


class Degrees:
    """Degrees of all vertices of a store, and how many vertices have each of them.

    Attributes
    ----------
    of : dict of str to ndarray of int32, shape (vertex capacity,)
        "in" and "out"; one array of an undirected graph.
    """

    def __init__(self, store: EdgeStore) -> None:
        self.store = store
        pool = store.pools["in"]
        into = (pool.stops - pool.starts).astype(np.int32)
        self.of = {"in": into, "out": into}
        if store.directed:
            slots = slots_of(pool, store.vertex_count)
            out = np.bincount(pool.ends[slots], minlength=into.size)
            self.of["out"] = out.astype(np.int32)
        self._counts = {side: self._count(side) for side in self._sides}
        self._traits: GraphTraits | None = None

    @property
    def _sides(self) -> tuple[str, ...]:
        return ("in", "out") if self.store.directed else ("in",)

    def _count(self, side: str) -> Array:
        return np.bincount(self.of[side][: self.store.vertex_count], minlength=SHORT)

    def grow(self, capacity: int) -> None:
        """Have entries for more vertices."""
        into = np.zeros(capacity, np.int32)
        into[: self.of["in"].size] = self.of["in"]
        grown = {"in": into, "out": into}
        if self.store.directed:
            grown["out"] = np.zeros(capacity, np.int32)
            grown["out"][: self.of["out"].size] = self.of["out"]
        self.of = grown

    def add(self, ends: tuple[Array, Array], change: int, born: int = 0) -> None:
        """Follow edges that have come (+1) or gone (-1), and `born` new vertices.

        Parameters
        ----------
        ends : tuple of ndarray
            Sources and targets, of undirected edges once.
        change : int
        born : int
            Vertices that the store has more than before.
        """
        sources, targets = ends
        of_side = {"in": targets, "out": sources}
        if not self.store.directed:
            of_side = {"in": np.append(sources, targets[sources != targets])}
        for side, touched in of_side.items():
            self._counts[side][0] += born
            if touched.size:
                self._move(side, *np.unique(touched, return_counts=True), change)

    def _move(self, side: str, vertices: Array, times: Array, change: int) -> None:
        degrees, counts = self.of[side], self._counts[side]
        before = degrees[vertices]
        after = before + change * times.astype(np.int32)
        degrees[vertices] = after
        most = int(after.max(initial=0))
        if most >= counts.size:
            counts = np.append(counts, np.zeros(2 * most - counts.size + 1, np.int64))
            self._counts[side] = counts
        np.subtract.at(counts, before, 1)
        np.add.at(counts, after, 1)

    def traits(self) -> GraphTraits:
        """Return the traits: higher ones at once, lower ones past a factor of two."""
        store, sized = self.store, LivingEdges(self.store)
        found = [np.flatnonzero(self._counts[side]) for side in self._sides]
        longest = max(int(degrees.max(initial=0)) for degrees in found)
        below = max(
            int(degrees[degrees < HUB_DEGREE].max(initial=0)) for degrees in found
        )
        short = self._counts["in"][:SHORT]
        now, twice = (
            traits_of_degrees(
                sized, *(min(n * m, store.edge_count) for m in (longest, below)), short
            )
            for n in (1, 2)
        )
        then = self._traits
        slots = max(len(pool.ends) for pool in store.pools.values())
        is_wide = needs_wide_positions(slots)
        now = replace(
            now, layout=RunArrays.name, wide_offsets=is_wide,
            wide_both=store.directed and needs_wide_positions(2 * slots),
        )  # fmt: skip
        self._traits = now if then is None else _lowered(then, now, twice)
        return self._traits


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
_EXACT = ("upper_", "lower_", "both_", "order_", "degree_", "triangle_", "edge_chunks")


class RunArrays:
    """The arrays of a graph that changes, by their names in generated code.

    Pools, columns and degrees are those of the store, which batches write in place.
    Others are *derived*: arrays by edge id, and rows that the store does not have. They
    have room for all ids of the capacity, and are made anew in each version.

    Edge ids are those that the frozen graph has: slots of its in-edges.
    """

    name = "runs"

    def __init__(self, store: EdgeStore, degrees: Degrees) -> None:
        self._store, self._degrees = store, degrees

    @property
    def room(self) -> tuple[int, int]:
        """How many vertices, and how many edges, arrays have entries for."""
        pool = self._store.pools["in"]
        return len(pool.starts), len(pool.ends)

    def is_exact(self, name: str) -> bool:
        """Whether an array has other sizes in other versions."""
        return name.startswith(_EXACT)

    def is_derived(self, name: str) -> bool:
        """Whether an array is made anew in each version, where it was."""
        if name.startswith(BY_ID) or name in _OF_IDS:
            return True
        along, _, kind = name.partition("_run_")
        return kind == "ids" or (kind != "" and _ALONG[along] not in self._store.pools)

    def array(self, graph: Any, name: str) -> Array:
        """Return an array with entries up to the capacities."""
        vertices, edges = self.room
        along, _, kind = name.partition("_run_")
        if kind:
            return self._of_rows(graph, _ALONG[along], kind)
        if name.startswith(BY_ID):
            values = ColumnValues(graph, name.removeprefix(BY_ID))
            return _padded(values.on_host(), edges)
        if name.startswith(BY_SLOT):
            return self._store.pools["in"].columns[name.removeprefix(BY_SLOT)]
        if name in {"in_degree", "out_degree"}:
            return self._degrees.of[name.removesuffix("_degree")]
        if name == NUMBER:
            return np.arange(vertices, dtype=np.int32)
        if name == "word_chunks":
            return np.arange(word_count(vertices) + 1)
        if name == "edge_word_chunks":
            return cut_words(edges)
        of = rows_with(name)
        if name == "vertex_chunks" or (of is not None and name == of.chunks):
            return cut_words(vertices, None if of is None else self._edges_before(of))
        found = host_graph_array(graph, name)
        return _padded(found, edges) if name in _OF_IDS else found

    def _of_rows(self, graph: Any, along: str, kind: str) -> Array:
        """Return an array of the rows along some edges."""
        pool, rows = self._store.pools.get(along), rows_along(along)
        if pool is not None and kind != "ids":
            return getattr(pool, kind)
        vertices, edges = self.room
        if kind in {"starts", "stops"}:
            offsets = host_graph_array(graph, rows.offsets)
            bounds = offsets[:-1] if kind == "starts" else offsets[1:]
            return _padded(bounds, vertices, offsets[-1])
        if kind == "ends":
            count = edges * (2 if along == "both" else 1)
            return _padded(host_graph_array(graph, rows.ends), max(count, 1), SPARE)
        if rows.edges:
            ids = host_graph_array(graph, rows.edges).astype(np.uint32)
        else:
            ids = np.arange(graph.edge_count, dtype=np.uint32)
        if pool is None:
            return _padded(ids, edges * (2 if along == "both" else 1))
        made = np.zeros(len(pool.ends), np.uint32)
        made[slots_of(pool, graph.vertex_count)] = ids
        return made

    def _edges_before(self, of: RowNames) -> Array:
        """Return how many edges stand in the rows before each of some rows."""
        degrees = self._degrees.of
        into, out = degrees["in"], degrees["out"]
        lengths = {"in_chunks": into, "out_chunks": out}.get(of.chunks, into + out)
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


#: First parts of names of arrays -> along which edges these rows lead.
_ALONG = {rows_along(a).offsets.removesuffix("_offsets"): a for a in REVERSED}
#: Derived arrays with an entry for each edge id.
_OF_IDS = frozenset({"in_sources", "edge_twin", "edge_is_twin"})


def _padded(array: Array, room: int, value: Any = 0) -> Array:
    """Return a copy of an array with entries up to a capacity."""
    made = np.full((room, *array.shape[1:]), value, array.dtype)
    made[: len(array)] = array
    return made

"""Shards: the parts of a distributed graph.

`make_shards` cuts a whole graph along a partition: `_find_part` finds edges and ghosts
of each rank, and `_make_shard` adds the lists of own vertices to send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze
from featgraph.graph.inputs.numbers import number_array
from featgraph.graph.partition.partition import Partition

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = ["Shard", "make_shards"]


@dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """A rank's part of a whole graph: the vertices that it owns, and edges into them.

    Local numbers 0 to ``own - 1`` are own vertices, in the order of the partition. The
    *ghosts* follow: copies of vertices of other ranks with edges to own vertices, by
    owner and then by place in the order.

    Attributes
    ----------
    rank : int
    partition : Partition
    vertex_count, edge_count : int
        V and E of the whole graph.
    directed : bool
        Whether the whole graph is directed.
    digest : str
        Digest of the whole graph.
    local : Graph
        A directed graph of all in-edges of own vertices, in local numbers. No edge
        leads to a ghost, and edges are given in the order of edge ids. Cut along
        "both", it also has the out-edges of own vertices, and is undirected with twins
        of all edges if the whole graph is undirected. Rows of own vertices have the
        order of the whole graph, and in-edges of own vertices have the first edge ids.
        Weights are those in the whole graph.
    own : int
        The number of vertices that the rank owns.
    numbers : ndarray of int32, shape (own + ghosts,)
        The number of each local vertex in the whole graph.
    edge_ids : range, or ndarray, one for each local edge as given; or None
        Edge ids in the whole graph, followed by those of twins. None if no rank had the
        whole graph.
    ghosts : ndarray of int64, shape (P + 1,)
        Local numbers ``ghosts[p]`` to ``ghosts[p + 1]`` are the ghosts that rank p
        owns; ``ghosts[0]`` is `own`.
    send_lists : tuple of P ndarrays of int32
        For each rank, the local numbers of own vertices that are ghosts there:
        ascending, in the order of these ghosts.
    """

    rank: int
    partition: Partition
    vertex_count: int
    edge_count: int
    directed: bool
    digest: str
    local: Any
    own: int
    numbers: NDArray[np.int32]
    edge_ids: range | NDArray[Any] | None
    ghosts: NDArray[np.int64]
    send_lists: tuple[NDArray[np.int32], ...]

    def __repr__(self) -> str:
        return (
            f"Shard(rank {self.rank} of {self.partition.parts}, {self.own} vertices, "
            f"{self.numbers.size - self.own} ghosts, {self.local.edge_count} edges)"
        )

    def locals_of(self, numbers: object) -> NDArray[np.int32]:
        """Return the local numbers of vertices of the whole graph.

        Parameters
        ----------
        numbers : array_like of integers

        Returns
        -------
        ndarray of int32, shape of `numbers`
            -1 for a vertex that is not in the shard.
        """
        wanted = number_array(numbers, "numbers")
        ascending, local = self._by_number
        if not ascending.size:
            return np.full(wanted.shape, -1, np.int32)
        # In the dtype of `ascending`, so that NumPy does not convert it.
        is_one = (wanted >= 0) & (wanted < self.vertex_count)
        known = np.where(is_one, wanted, -1).astype(ascending.dtype)
        at = np.minimum(np.searchsorted(ascending, known), ascending.size - 1)
        return np.where(ascending[at] == known, local[at], np.int32(-1))

    @cached_property
    def _by_number(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Numbers in the whole graph, ascending, and the local number of each."""
        # Without an order, numbers of lower ranks' ghosts are below those of own
        # vertices, numbers of higher ranks' ghosts above.
        if self.partition.order is None:
            after = int(self.ghosts[self.rank])
            own, before, behind = np.split(
                np.arange(self.numbers.size, dtype=np.int32), [self.own, after]
            )
            local = np.concatenate((before, own, behind))
        else:
            local = np.argsort(self.numbers, kind="stable").astype(np.int32)
        return self.numbers[local], local


def make_shards(
    graph: Structure, partition: Partition, along: str = "in"
) -> list[Shard]:
    """Cut a graph into the shards of all ranks.

    Parameters
    ----------
    graph : Graph
    partition : Partition
        A partition of V vertices.
    along : {"in", "both"}, optional
        The edges of a shard: in-edges of own vertices, or also their out-edges, which
        are the twins in an undirected graph.

    Returns
    -------
    list of Shard

    Raises
    ------
    GraphInputError
        If the partition has another number of vertices.

    Notes
    -----
    O(V + E) time, and temporary memory of one array of V int32 (three with an order).
    """
    check_fits(graph, partition)
    numbers = np.zeros(graph.vertex_count, np.int32)
    parts = [
        _find_part(graph, partition, rank, numbers, along)
        for rank in range(partition.parts)
    ]
    # For each part, the positions of ghosts by owner.
    bounds = [np.searchsorted(part.ghosts, partition.cuts) for part in parts]
    weights = graph.weights
    if weights is not None:
        weights = graph.expand_edge_values(weights)
    return [
        _make_shard(graph, partition, rank, parts, bounds, weights)
        for rank in range(partition.parts)
    ]


def check_fits(graph: Structure, partition: Partition) -> None:
    """Raise GraphInputError if a partition has another number of vertices."""
    if partition.vertex_count != graph.vertex_count:
        raise GraphInputError(
            "the cuts are those of another graph",
            where="cuts",
            got=f"cuts[-1] = {partition.vertex_count}",
            expected=f"{graph.vertex_count}, the number of vertices",
            fix="parts=n chooses the cuts",
        )


@dataclass(frozen=True)
class _Edges:
    """Edges of a part in given order: ends, and ids of edges, followed by twins."""

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    edge_ids: Any  # an array, or a range
    directed: bool = True


@dataclass(frozen=True)
class _Part:
    """The edges of a part in local numbers, and ascending places of its ghosts."""

    edges: _Edges
    ghosts: NDArray[np.int32]


def _find_part(
    graph: Structure,
    partition: Partition,
    rank: int,
    numbers: NDArray[np.int32],
    along: str,
) -> _Part:
    """Find the edges and ghosts of a rank.

    Local numbers of ghosts are stored in `numbers`, by place; all other entries must be
    nonnegative.
    """
    from featgraph.graph.partition import kernels  # loads Numba

    first, last = map(int, partition.cuts[rank : rank + 2])
    own = last - first
    edges = _edges_into(graph, partition, first, last)
    ends = [edges.sources]
    if along == "both":
        if graph.directed:
            edges = _joined(graph, edges, _edges_out(graph, partition, first, last))
        else:
            edges = _undirected(graph, partition, edges.edge_ids)
        ends = [edges.sources, edges.targets]
    at = np.concatenate(ends)
    found = np.empty(min(at.size, graph.vertex_count - own), np.int32)
    count = kernels.collect_ghosts(at, first, last, numbers, found)
    ghosts = np.sort(found[:count])
    numbers[ghosts] = np.arange(own, own + count, dtype=np.int32)
    local = np.empty((2, edges.sources.size), np.int32)
    for places, renumbered in zip((edges.sources, edges.targets), local, strict=True):
        kernels.renumber(places, first, last, numbers, renumbered)
    local_edges = replace(edges, sources=local[0].copy(), targets=local[1].copy())
    return _Part(local_edges, ghosts)


def _edges_into(
    graph: Structure, partition: Partition, first: int, last: int
) -> _Edges:
    """Return the edges into the vertices of a range of places; ends are places."""
    columns, edge_ids, own = _rows(graph.in_edges, partition, first, last)
    return _Edges(columns, own, edge_ids)


def _edges_out(graph: Structure, partition: Partition, first: int, last: int) -> _Edges:
    """Return the edges from a range of places to other ranks; ends are places."""
    rows = graph.out_edges
    columns, slots, own = _rows(rows, partition, first, last)
    leaves = (columns < first) | (columns >= last)
    chosen = slice(slots.start, slots.stop) if isinstance(slots, range) else slots
    edge_ids = cast("NDArray[Any]", rows.edge_ids)[chosen]
    return _Edges(own[leaves], columns[leaves], edge_ids[leaves])


def _joined(graph: Structure, one: _Edges, other: _Edges) -> _Edges:
    """Return the edges of both, in given order."""
    into = np.asarray(one.edge_ids, other.edge_ids.dtype)
    ids = np.concatenate((into, other.edge_ids))
    order = np.argsort(graph.given_index[ids], kind="stable")
    return _Edges(
        np.concatenate((one.sources, other.sources))[order],
        np.concatenate((one.targets, other.targets))[order],
        freeze(ids[order]),
    )


def _undirected(graph: Structure, partition: Partition, into: Any) -> _Edges:
    """Return the given edges at own vertices; ends are places.

    `into` has the ids of all their in-edges, which may be given edges or twins.
    """
    ids = np.asarray(into, graph.twins.dtype)
    given, count = graph.given_index[ids], graph.given_edge_count
    is_twin = given >= count
    given, first = _first_of_each(given - count * is_twin, count)
    ids = np.where(is_twin, graph.twins[ids], ids)[first]
    ids = np.concatenate((ids, graph.twins[ids]))
    ends = graph.sources[given], graph.targets[given]
    if partition.places is not None:
        ends = partition.places[ends[0]], partition.places[ends[1]]
    return _Edges(*ends, freeze(ids), directed=False)


def _first_of_each(
    numbers: NDArray[Any], count: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct numbers, ascending, and the first place of each.

    Numbers are less than `count`, so this takes one pass, while `np.unique` sorts.
    """
    places = np.full(count, -1, offset_dtype(numbers.size))
    places[numbers[::-1]] = np.arange(numbers.size, dtype=places.dtype)[::-1]
    found = np.flatnonzero(places >= 0)
    return found, places[found]


def _rows(
    rows: Adjacency, partition: Partition, first: int, last: int
) -> tuple[NDArray[np.int32], range | NDArray[Any], NDArray[np.int32]]:
    """Return other ends, slots and own ends of the rows of a range of places."""
    from featgraph.graph.partition import kernels  # loads Numba

    offsets, columns = rows.row_offsets, rows.column_indices
    own = np.arange(first, last, dtype=np.int32)
    if partition.order is None or partition.places is None:
        degree = np.diff(offsets[first : last + 1])
        begin, end = int(offsets[first]), int(offsets[last])
        return columns[begin:end], range(begin, end), np.repeat(own, degree)
    vertices = partition.order[first:last]
    own = np.repeat(own, offsets[vertices + 1] - offsets[vertices])
    ends, slots = np.empty(own.size, np.int32), np.empty(own.size, offsets.dtype)
    kernels.gather_rows(offsets, columns, vertices, partition.places, ends, slots)
    return ends, freeze(slots), own


def _make_shard(
    graph: Structure,
    partition: Partition,
    rank: int,
    parts: list[_Part],
    bounds: list[NDArray[np.int64]],
    weights: NDArray[Any] | None,
) -> Shard:
    part = parts[rank]
    first, last = map(int, partition.cuts[rank : rank + 2])
    own = last - first
    places = np.concatenate((np.arange(first, last, dtype=np.int32), part.ghosts))
    numbers = places if partition.order is None else partition.order[places]
    send_lists = tuple(
        freeze(other.ghosts[at[rank] : at[rank + 1]] - np.int32(first))
        for other, at in zip(parts, bounds, strict=True)
    )
    return Shard(
        rank=rank,
        partition=partition,
        vertex_count=graph.vertex_count,
        edge_count=graph.edge_count,
        directed=graph.directed,
        digest=graph.digest,
        local=_local_graph(type(graph), part, numbers.size, weights),
        own=own,
        numbers=freeze(numbers),
        edge_ids=part.edges.edge_ids,
        ghosts=freeze(own + bounds[rank]),
        send_lists=send_lists,
    )


def _local_graph(
    kind: type[Structure], part: _Part, count: int, weights: NDArray[Any] | None
) -> Structure:
    """Make the graph of a part; `weights` are by edge id of the whole graph."""
    own = None
    if weights is not None:
        ids = part.edges.edge_ids
        chosen = slice(ids.start, ids.stop) if isinstance(ids, range) else ids
        own = weights[chosen][: part.edges.sources.size].copy()
    edges = part.edges
    return kind(EdgeList(edges.sources, edges.targets, own, count, edges.directed))

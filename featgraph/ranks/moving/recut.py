"""`recut`: a distributed graph with other cuts, and the exchange of its rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import GraphInputError
from featgraph.graph.building.row_edges import RowEdges
from featgraph.graph.partition.cuts import WORD, round_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import require_same
from featgraph.ranks.exchange.edges import PartEdges
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.parts import made_graph
from featgraph.ranks.loading.rows import OwnRows, part_of_rows

__all__ = ["Mover", "recut"]

Array = npt.NDArray[Any]
#: Most ranks whose cuts an error shows.
MOST_SHOWN = 8


class Mover:
    """Exchange of rows of vertices and edges between owners before and after a recut.

    All ranks call the same methods in the same order.

    Parameters
    ----------
    engine : Engine
    before, after : Partition
        Two partitions of the same order of vertices.
    """

    def __init__(self, engine: Engine, before: Partition, after: Partition) -> None:
        self._engine = engine
        own = before.cuts[engine.rank : engine.rank + 2]
        #: The own rows that this rank sends to each rank.
        bounds = np.clip(after.cuts, *own) - own[0]
        self._sent = [slice(begin, end) for begin, end in pairwise(bounds.tolist())]

    def rows(self, own: Array) -> Array:
        """Return the rows of the vertices that this rank owns after the move."""
        parts = [np.ascontiguousarray(own[some]) for some in self._sent]
        return self._handed(parts)

    def slots(self, offsets: Array, values: Array) -> Array:
        """Return the rows of the slots of these vertices, given by CSR offsets."""
        ends = [
            (int(offsets[some.start]), int(offsets[some.stop])) for some in self._sent
        ]
        parts = [np.ascontiguousarray(values[begin:end]) for begin, end in ends]
        return self._handed(parts)

    def _handed(self, parts: list[Array]) -> Array:
        found = self._engine.all_to_allv(parts, about="rows of other owners")
        return np.concatenate(found)


def with_ghosts(engine: Engine, shard: Shard, own: Array) -> Array:
    """Return rows of own vertices, followed by those of ghosts from their owners."""
    told = [own[listed] for listed in shard.send_lists]
    found = engine.all_to_allv(told, about="rows of ghosts")
    return np.concatenate((own, *found))


def with_ghost_edges(engine: Engine, edges: PartEdges, own: Array) -> Array:
    """Return entries of own edges, followed by those of ghosts from their owners."""
    told = [own[listed] for listed in edges.lists.sent]
    found = engine.all_to_allv(told, about="entries of edges")
    return np.concatenate((own, *found))


def recut(graph: DistributedGraph, cuts: object) -> DistributedGraph:
    """Return a distributed graph with other cuts; all ranks call it.

    The result equals that of `distribute` on the whole graph with these cuts and the
    same order of vertices. Rows are sent as they are, and nothing is sorted. During the
    exchange a rank stores its rows once more, beside both parts.

    Parameters
    ----------
    graph : DistributedGraph
        It is not changed.
    cuts : array_like of int, shape (P + 1,)
        Multiples of 32, but for the last one, V.

    Raises
    ------
    GraphInputError
        If cuts do not fit the graph or the number of ranks, are no multiples of 32, or
        differ between ranks.
    """
    engine, before = graph.engine, graph.shard.partition
    after = Partition.of_known(cuts, before.order)
    if (after.parts, after.vertex_count) != (before.parts, before.vertex_count):
        raise GraphInputError(
            "the cuts are those of another graph, or of other ranks",
            where="cuts=",
            got=f"{after.parts} ranges of {after.vertex_count} vertices",
            expected=f"{before.parts} ranges of {before.vertex_count}",
        )
    rounded = np.where(
        after.cuts < after.vertex_count, round_cuts(after.cuts), after.cuts
    )
    if not np.array_equal(rounded, after.cuts):
        raise GraphInputError(
            "a graph in parts is cut between whole words of vertices",
            where="cuts=",
            got=str(after.cuts[after.cuts != rounded][0]),
            expected=f"multiples of {WORD}, and {after.vertex_count} at the end",
            fix=f"cuts={rounded.tolist()}" if after.parts <= MOST_SHOWN else None,
        )
    require_same(
        engine,
        f"digest {graph.digest} cuts {after.cuts.tolist()}",
        "ranks were given different graphs or cuts",
        fix="give the same on all of them",
        about="cuts",
    )
    mover = Mover(engine, before, after)
    own = _moved(graph, mover, Division.of(after))
    found = part_of_rows(engine, own, graph.along, "edges of other owners")
    return made_graph(engine, graph.whole, after, graph.along, found)


def _moved(graph: DistributedGraph, mover: Mover, division: Division) -> OwnRows:
    """Return the edges into the vertices that this rank owns after the move."""
    shard, edges, part = graph.shard, graph.edges, graph.part
    partition, rows = shard.partition, part.in_edges
    offsets = np.asarray(rows.row_offsets[: shard.own + 1])
    ghosts = shard.numbers[shard.own :]
    if partition.places is not None:
        ghosts = partition.places[ghosts]
    first = int(partition.cuts[shard.rank])
    own = np.arange(first, first + shard.own, dtype=np.int32)
    places = np.concatenate((own, ghosts.astype(np.int32, copy=False)))
    sources = places[np.asarray(rows.column_indices[: edges.own])]
    moved = {"rows": mover.slots(offsets, np.asarray(edges.given_rows[: edges.own]))}
    weights = _weights_by_id(graph)
    if weights is not None:
        moved["weights"] = mover.slots(offsets, weights[: edges.own])

    def read(*into: Array | None) -> None:
        for name, array in zip(("rows", "weights"), into, strict=True):
            if array is not None:
                array[...] = moved.pop(name)

    degrees = mover.rows(np.diff(offsets))
    return OwnRows(
        division,
        shard.rank,
        np.concatenate(([0], np.cumsum(degrees))).astype(np.int64),
        mover.slots(offsets, sources),
        read,
        graph.whole.weights_dtype,
        graph.given_edge_count,
        graph.directed,
        mover.rows(np.asarray(part.out_degree)[: shard.own]),
        mover.rows(np.asarray(edges.starts)),
    )


def _weights_by_id(graph: DistributedGraph) -> Array | None:
    """Return the weights of the part by edge id; None without weights."""
    part = graph.part
    if isinstance(part._edges, RowEdges):
        return part._edges.by_id
    if part.weights is None:
        return None
    index, count = np.asarray(part.given_index), part.given_edge_count
    return np.asarray(part.weights[index - (index >= count) * count])

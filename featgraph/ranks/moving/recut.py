"""A graph in parts, cut otherwise: edges and rows go to those who own them then."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.graph.partition.cuts import WORD, round_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.agreed import require_same
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.build import part_of_edges
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.parts import made_graph
from featgraph.ranks.loading.rounds import exchange_edges

__all__ = ["Mover", "recut"]

Array = npt.NDArray[Any]
#: Ranks whose cuts an error shows.
MOST_SHOWN = 8


class Mover:
    """Hands rows of vertices and edges to those who own them between other cuts.

    All ranks call the same methods in the same order.

    Parameters
    ----------
    engine : Engine
    before, after : Partition
        In one order.
    """

    def __init__(self, engine: Engine, before: Partition, after: Partition) -> None:
        self._engine = engine
        own = before.cuts[engine.rank : engine.rank + 2]
        #: Which of its rows this rank hands to each.
        bounds = np.clip(after.cuts, *own) - own[0]
        self._sent = [slice(begin, end) for begin, end in pairwise(bounds.tolist())]

    def rows(self, own: Array) -> Array:
        """Return the rows of vertices that this rank owns behind it."""
        parts = [np.ascontiguousarray(own[some]) for some in self._sent]
        return self._handed(parts)

    def slots(self, offsets: Array, values: Array) -> Array:
        """Return rows likewise that vertices have several of, between offsets."""
        ends = [
            (int(offsets[some.start]), int(offsets[some.stop])) for some in self._sent
        ]
        parts = [np.ascontiguousarray(values[begin:end]) for begin, end in ends]
        return self._handed(parts)

    def _handed(self, parts: list[Array]) -> Array:
        found = self._engine.all_to_allv(parts, about="rows of other owners")
        return np.concatenate(found)


def with_ghosts(engine: Engine, shard: Shard, own: Array) -> Array:
    """Return rows of own vertices, and of ghosts, which their owners send."""
    told = [own[listed] for listed in shard.send_lists]
    found = engine.all_to_allv(told, about="rows of ghosts")
    return np.concatenate((own, *found))


def with_ghost_edges(engine: Engine, edges: PartEdges, own: Array) -> Array:
    """Return entries of own edges, and of those that other ranks own."""
    sent = own[edges.sent]
    told = [sent[begin:end] for begin, end in edges.bounds]
    found = engine.all_to_allv(told, about="entries of edges")
    return np.concatenate((own, *found))


def recut(graph: DistributedGraph, cuts: object) -> DistributedGraph:
    """Return a graph in parts with other cuts; all ranks call it.

    It is what `distribute` makes of the whole graph with these cuts, in the same order
    of the vertices. No rank has more than its parts, and the messages of a round.

    Parameters
    ----------
    graph : DistributedGraph
        It stays as it is.
    cuts : array_like of int, shape (P + 1,)
        At words, as graphs that are loaded in parts have them.

    Raises
    ------
    GraphInputError
        If they are no cuts of this graph for as many ranks, or not at multiples of 32,
        or others on other ranks.
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
    mover, part, own = Mover(engine, before, after), graph.part, graph.shard.own
    both_ends = graph.along == "both" or not graph.directed
    given = _given(graph)
    division = Division.of(after)
    arrived = exchange_edges(engine, given, division, graph.given_edge_count, both_ends)
    out = mover.rows(np.asarray(part.out_degree)[:own])
    at = division, engine.rank
    found = part_of_edges(arrived, graph.whole, at, graph.along, out)
    starts = mover.rows(np.asarray(graph.edges.starts))
    found = replace(found, starts=starts)
    return made_graph(engine, graph.whole, after, graph.along, found)


def _given(graph: DistributedGraph) -> Given:
    """Return the edges as given that lead into vertices of this rank, by places."""
    shard, edges, part = graph.shard, graph.edges, graph.part
    partition = shard.partition
    rows = np.asarray(edges.given_rows[: edges.own])
    # The others are twins, of which other ranks may have the edges as given.
    is_given = rows < graph.given_edge_count
    which = np.flatnonzero(is_given)
    first = int(partition.cuts[shard.rank])
    ghosts = shard.numbers[shard.own :]
    if partition.places is not None:
        ghosts = partition.places[ghosts]
    own = np.arange(first, first + shard.own, dtype=np.int32)
    places = np.concatenate((own, ghosts))
    adjacency = part.in_edges
    degrees = np.diff(np.asarray(adjacency.row_offsets)[: shard.own + 1])
    targets = np.repeat(own, degrees)
    weights = part.weights
    if weights is not None:
        weights = weights[np.asarray(part.given_index)[which]]
    dtype = None if weights is None else weights.dtype
    chunk = Chunk(
        places[np.asarray(adjacency.column_indices)[which]],
        targets[which],
        weights,
        rows[which].astype(offset_dtype(2 * graph.given_edge_count)),
    )
    return Given([chunk], graph.vertex_count, graph.directed, dtype)

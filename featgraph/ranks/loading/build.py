"""A graph in parts, made of the edges that each rank happens to have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.fold.plan.traits import GraphTraits
from featgraph.graph import Graph
from featgraph.graph._structure import structure_digest
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.parts import Found, cuts_of_words, localized, made_graph
from featgraph.ranks.loading.rounds import (
    ROUND_EDGES,
    Arrived,
    count_sources,
    exchange_edges,
)
from featgraph.ranks.working import with_idle, working_ranks

__all__ = ["build", "number_rows", "part_of_edges"]

Array = npt.NDArray[Any]


def build(
    engine: Engine, given: Given, along: str, ranks: object = None
) -> DistributedGraph:
    """Make a graph of which each rank gets its part; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : Given
        What this rank has; its edges have rows, and it is let go of.
    along : {"both", "in"}
        Which edges at its vertices a rank gets.
    ranks : optional
        How many ranks get vertices: see `working_ranks`.

    Notes
    -----
    A rank has the edges that it was given, then those at its own vertices, and messages
    of `ROUND_EDGES`; of vertices it has a count for each word of 32, and two bits of
    each, with which ghosts are found.
    """
    from featgraph.graph.building import digests  # loads Numba

    words, sums = _look(engine, given)
    size = given.vertex_count, int(words.sum())
    working = working_ranks(engine, ranks, size)
    cuts = cuts_of_words(words, given.vertex_count, working)
    cuts = with_idle(cuts, engine.size)
    partition = Partition.of_known(cuts, None)
    given_count = _total(engine, given.size)
    # An undirected edge stands in the rows of both of its ends.
    both_ends = along == "both" or not given.directed
    out = None if both_ends else count_sources(engine, given, cuts)
    dtype = given.weights_dtype
    text = digests.text_of(sums[:2])
    whole = Whole(
        given.vertex_count,
        given_count,
        int(words.sum()),
        given.directed,
        dtype,
        None,
        structure_digest(given.vertex_count, given.directed, text),
        "" if dtype is None else f"{dtype} {digests.text_of(sums[2:])}",
        GraphTraits(),
    )
    arrived = exchange_edges(engine, given, cuts, given_count, both_ends)
    first, last = map(int, cuts[engine.rank : engine.rank + 2])
    found = part_of_edges(arrived, whole, (first, last), along, out)
    made = made_graph(engine, whole, partition, along, found)
    made.keeps_idle = working < engine.size
    return made


def number_rows(engine: Engine, given: Given) -> None:
    """Have the edges of this rank follow those of the ranks before it."""
    sizes = engine.all_gather(np.array([given.size], np.int64), about="given edges")
    row = int(np.concatenate(sizes)[: engine.rank].sum())
    for i, chunk in enumerate(given.chunks):
        given.chunks[i] = Chunk(chunk.sources, chunk.targets, chunk.weights, row)
        row += chunk.size


def _look(engine: Engine, given: Given) -> tuple[Array, Array]:
    """Return in-edges of all words of vertices, and sums for the digests."""
    from featgraph.graph.building import digests  # loads Numba
    from featgraph.graph.partition import part_kernels

    words = np.zeros(-(-given.vertex_count // WORD), np.int64)
    sums = np.zeros(4, np.uint64)
    for chunk in given.parts(ROUND_EDGES):
        ends = chunk.sources, chunk.targets
        part_kernels.add_words(*ends, given.directed, words)
        digests.add_ends(sums[:2], chunk.rows, *ends)
        if chunk.weights is not None:
            digests.add_values(sums[2:], chunk.rows, chunk.weights)
    words = engine.all_reduce(words, "sum", about="in-edges")
    return words, engine.all_reduce(sums, "sum", about="the digest of a graph")


def part_of_edges(
    arrived: Arrived, whole: Whole, own: tuple[int, int], along: str, out: Array | None
) -> Found:
    """Return the part of this rank, of the edges that have come."""
    if along == "in":
        arrived = _by_target(arrived, *own, whole)
    ends = arrived.sources, arrived.targets
    ghosts = localized(ends, *own, whole.vertex_count)
    count = own[1] - own[0]
    is_directed = whole.directed or along == "in"
    local = Graph(EdgeList(*ends, arrived.weights, count + ghosts.size, is_directed))
    of_own = np.asarray(local.in_degree[:count])
    if out is None:
        out = np.asarray(local.out_degree[:count])
    rows = _given_rows(whole, local, arrived.rows)
    return Found(local, ghosts, rows, (of_own, out))


def _by_target(arrived: Arrived, first: int, last: int, whole: Whole) -> Arrived:
    """Return the edges into own vertices, row by row, and twins as edges."""
    u, v, rows = arrived.sources, arrived.targets, arrived.rows
    into = np.flatnonzero((v >= first) & (v < last))
    twins = np.empty(0, np.int64)
    if not whole.directed:
        twins = np.flatnonzero((u >= first) & (u < last) & (u != v))
    which = np.concatenate((into, twins))
    targets = np.concatenate((v[into], u[twins]))
    # Of edges and twins in one row, that comes first which was given first.
    order = np.lexsort((which, targets))
    which = which[order]
    weights = arrived.weights
    given = np.asarray(whole.given_count, rows.dtype)
    return Arrived(
        np.concatenate((u[into], v[twins]))[order],
        targets[order],
        None if weights is None else weights[which],
        np.concatenate((rows[into], rows[twins] + given))[order],
    )


def _given_rows(whole: Whole, local: Graph, rows: Array) -> Array:
    """Return the row in given order of each slot."""
    slots = local.given_index
    found: Array
    if local.directed:
        found = rows[slots]
        return found
    is_twin = slots >= rows.size
    found = rows[slots - is_twin * slots.dtype.type(rows.size)]
    found += is_twin * found.dtype.type(whole.given_count)
    return found


def _total(engine: Engine, number: int) -> int:
    counts = np.array([number], np.int64)
    return int(engine.all_reduce(counts, "sum", about="given edges")[0])

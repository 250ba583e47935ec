"""A graph in parts, made of the edges that each rank happens to have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import FileFormatError
from featgraph.fold.plan.traits import HUB_DEGREE, GraphTraits, traits_of_degrees
from featgraph.graph import Graph
from featgraph.graph._structure import structure_digest
from featgraph.graph.building.edges import EdgeList, freeze
from featgraph.graph.degrees import SHORT
from featgraph.graph.partition.cuts import WORD, Balance, even_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.graph import DistributedGraph, Here, Whole
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.rounds import (
    ROUND_EDGES,
    Arrived,
    count_sources,
    exchange_edges,
)

__all__ = ["Stored", "build", "cuts_of_words", "number_rows"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """What slices say of a graph.

    Attributes
    ----------
    where : str
    digest, weights_digest : str
        Of the graph.
    stored_digest : str
        Sums over its edges, by places.
    names : ndarray or None
        Names of vertices, in their file.
    order : ndarray of int32 or None
        The vertex at each place, in its file.
    starts : ndarray of int64 or None
        Of each own vertex, the edge id of its first in-edge; beside an order.
    """

    where: str
    digest: str
    weights_digest: str
    stored_digest: str
    names: Any = None
    order: Array | None = None
    starts: Array | None = None


def build(
    engine: Engine,
    given: Given,
    along: str,
    cuts: npt.NDArray[np.int64] | None = None,
    stored: Stored | None = None,
) -> DistributedGraph:
    """Make a graph of which each rank gets its part; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : Given
        What this rank has; its edges have rows, and it is let go of.
    along : {"both", "in"}
        Which edges at its vertices a rank gets.
    cuts : ndarray of int64, shape (P + 1,), optional
        By default work is balanced.
    stored : Stored, optional
        What the edges must be.

    Raises
    ------
    FileFormatError
        On all ranks, where the edges are not those that were stored.

    Notes
    -----
    A rank has the edges that it was given, then those at its own vertices, and messages
    of `ROUND_EDGES`; of vertices it has a count for each word of 32, and two bits of
    each, with which ghosts are found.
    """
    from featgraph.graph.building import digests  # loads Numba

    words, sums = _look(engine, given)
    if cuts is None:
        cuts = cuts_of_words(words, given.vertex_count, engine.size)
    order = None if stored is None else stored.order
    partition = Partition.of_known(cuts, order)
    given_count = _total(engine, given.size)
    # An undirected edge stands in the rows of both of its ends.
    both_ends = along == "both" or not given.directed
    out = None
    if not both_ends:
        out = count_sources(engine, given, partition.cuts)
    dtype = given.weights_dtype
    text, of_weights = digests.text_of(sums[:2]), ""
    if dtype is not None:
        of_weights = f"{dtype} {digests.text_of(sums[2:])}"
    digest = structure_digest(given.vertex_count, given.directed, text)
    if stored is not None:
        _require_stored(stored, text, of_weights)
        digest = stored.digest
    whole = Whole(
        given.vertex_count,
        given_count,
        int(words.sum()),
        given.directed,
        dtype,
        None if stored is None else stored.names,
        digest,
        of_weights,
        GraphTraits(),
    )
    arrived = exchange_edges(engine, given, partition.cuts, given_count, both_ends)
    starts = None if stored is None else stored.starts
    return _in_parts(engine, whole, partition, arrived, (along, out, starts))


def _require_stored(stored: Stored, ends: str, weights: str) -> None:
    """Raise where all edges are not those that a manifest is of."""
    for found, expected in (
        (ends, stored.stored_digest),
        (weights, stored.weights_digest),
    ):
        if found != expected:
            raise FileFormatError(
                "the slices are of another graph than the manifest",
                where=stored.where,
                got=f"sums {found}",
                expected=expected,
                fix="make the folder again: featgraph convert",
            )


def number_rows(engine: Engine, given: Given) -> None:
    """Have the edges of this rank follow those of the ranks before it."""
    sizes = engine.all_gather(np.array([given.size], np.int64), about="given edges")
    row = int(np.concatenate(sizes)[: engine.rank].sum())
    for i, chunk in enumerate(given.chunks):
        given.chunks[i] = Chunk(chunk.sources, chunk.targets, chunk.weights, row)
        row += chunk.size


def cuts_of_words(
    words: npt.NDArray[np.int64], vertex_count: int, parts: int
) -> npt.NDArray[np.int64]:
    """Return balanced cuts, given the in-edges of each word of vertices."""
    before = np.zeros(words.size + 1, np.float64)
    np.cumsum(words, out=before[1:])
    return even_cuts(before, vertex_count, parts, Balance())


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


def _in_parts(
    engine: Engine,
    whole: Whole,
    partition: Partition,
    arrived: Arrived,
    asked: tuple[str, Array | None, Array | None],
) -> DistributedGraph:
    """Make the part of this rank, of the edges that have come."""
    (along, out, starts), rank = asked, engine.rank
    first, last = map(int, partition.cuts[rank : rank + 2])
    own = last - first
    if along == "in":
        arrived = _by_target(arrived, first, last, whole)
    ghosts = _localized(arrived, first, last, whole.vertex_count)
    bounds = np.searchsorted(ghosts, partition.cuts)
    asked_of = [ghosts[b:e] for b, e in pairwise(bounds.tolist())]
    send_lists = tuple(
        freeze(wanted - np.int32(first))
        for wanted in engine.all_to_allv(asked_of, about="ghosts")
    )
    is_directed = whole.directed or along == "in"
    edges = EdgeList(
        arrived.sources,
        arrived.targets,
        arrived.weights,
        own + ghosts.size,
        is_directed,
    )
    numbers = np.concatenate((np.arange(first, last, dtype=np.int32), ghosts))
    if partition.order is not None:
        numbers = np.asarray(partition.order[numbers])
    shard = Shard(
        rank=rank,
        partition=partition,
        vertex_count=whole.vertex_count,
        edge_count=whole.edge_count,
        directed=whole.directed,
        digest=whole.digest,
        local=Graph(edges),
        own=own,
        numbers=freeze(numbers),
        edge_ids=None,
        ghosts=freeze(own + bounds),
        send_lists=send_lists,
    )
    degrees = _degrees(engine, whole, shard, out)
    traits = _traits(engine, whole, degrees, own)
    rows = _given_rows(whole, shard, arrived.rows)
    if starts is None:
        starts = _starts(engine, shard)
    here = Here(along, rows, starts, degrees)
    return DistributedGraph(replace(whole, traits=traits), shard, engine, here)


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


def _localized(arrived: Arrived, first: int, last: int, vertex_count: int) -> Array:
    """Turn ends into local numbers, in place; return the ghosts, ascending."""
    from featgraph.graph.partition import part_kernels  # loads Numba

    words = np.zeros(-(-vertex_count // WORD), np.uint32)
    before = np.empty(words.size, np.int32)
    ends = arrived.sources, arrived.targets
    for end in ends:
        part_kernels.mark(end, first, last, words)
    ghosts = np.empty(part_kernels.count_words(words, before), np.int32)
    part_kernels.list_members(words, ghosts)
    for end in ends:
        part_kernels.localize(end, first, last, words, before)
    return ghosts


def _degrees(
    engine: Engine, whole: Whole, shard: Shard, out: Array | None
) -> tuple[Array, Array]:
    """Return in- and out-degrees of local vertices in the whole graph."""
    local, own = shard.local, shard.own
    dtype = offset_dtype(whole.edge_count)
    of_own = np.asarray(local.in_degree[:own])
    into = _with_ghosts(engine, shard, of_own.astype(dtype))
    if not whole.directed:
        return into, into
    if out is None:
        out = np.asarray(local.out_degree[:own])
    return into, _with_ghosts(engine, shard, out.astype(dtype))


def _with_ghosts(engine: Engine, shard: Shard, values: Array) -> Array:
    """Return values of own vertices, and of ghosts, which their owners tell."""
    told = [values[listed] for listed in shard.send_lists]
    found = engine.all_to_allv(told, about="degrees of ghosts")
    return np.concatenate((values, *found))


def _traits(
    engine: Engine, whole: Whole, degrees: tuple[Array, Array], own: int
) -> GraphTraits:
    """Return the traits of the whole graph, of which each rank knows its part."""
    sides = [side[:own] for side in (degrees if whole.directed else degrees[:1])]
    longest = [int(side.max(initial=0)) for side in sides]
    below = [int(side[side < HUB_DEGREE].max(initial=0)) for side in sides]
    about = "degrees of all vertices"
    most = engine.all_reduce(np.array([max(longest), max(below)]), "max", about=about)
    short = np.bincount(np.minimum(sides[0], SHORT), minlength=SHORT)[:SHORT]
    short = engine.all_reduce(short.astype(np.int64), "sum", about=about)
    return traits_of_degrees(whole, int(most[0]), int(most[1]), short)


def _given_rows(whole: Whole, shard: Shard, rows: Array) -> Array:
    """Return the row in given order of each slot."""
    local = shard.local
    slots = local.given_index
    if local.directed:
        return freeze(rows[slots])
    is_twin = slots >= rows.size
    found = rows[slots - is_twin * slots.dtype.type(rows.size)]
    found += is_twin * found.dtype.type(whole.given_count)
    return freeze(found)


def _starts(engine: Engine, shard: Shard) -> Array:
    """Return the edge id of the first in-edge of each own vertex."""
    offsets = shard.local.in_edges.row_offsets[: shard.own + 1].astype(np.int64)
    counts = engine.all_gather(offsets[-1:], about="own edges")
    before = int(np.concatenate(counts)[: engine.rank].sum())
    return np.asarray(offsets[:-1] + before)


def _total(engine: Engine, number: int) -> int:
    counts = np.array([number], np.int64)
    return int(engine.all_reduce(counts, "sum", about="given edges")[0])

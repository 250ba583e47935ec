"""What a rank has found of its part, made a graph: ghosts, degrees and traits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.fold.plan.traits import HUB_DEGREE, GraphTraits, traits_of_degrees
from featgraph.graph import Graph
from featgraph.graph._structure import in_offsets
from featgraph.graph.building.edges import freeze
from featgraph.graph.degrees import SHORT
from featgraph.graph.partition.cuts import WORD, Balance, even_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.edges import LazyArray
from featgraph.ranks.graph import DistributedGraph, Here, Whole
from featgraph.ranks.loading.division import Division

__all__ = [
    "Found",
    "cuts_of_words",
    "localized",
    "made_graph",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Found:
    """The edges at a rank's own vertices.

    Attributes
    ----------
    local : Graph
        In local numbers.
    ghosts : ndarray of int32
        Places of vertices that it has beside its own, ascending.
    rows : ndarray of integers, or a function that returns it
        Row in given order of each edge, by its edge id in `local`.
    degrees : tuple of 2 ndarrays
        In- and out-degrees of own vertices.
    starts : ndarray of int64 or None
        Of each own vertex, the edge id of its first in-edge; None where these follow
        from the order of ranks.
    """

    local: Graph
    ghosts: npt.NDArray[np.int32]
    rows: LazyArray
    degrees: tuple[Array, Array]
    starts: Array | None = None


def cuts_of_words(
    words: npt.NDArray[np.int64], vertex_count: int, parts: int
) -> npt.NDArray[np.int64]:
    """Return balanced cuts, given the in-edges of each word of vertices."""
    before = np.zeros(words.size + 1, np.float64)
    np.cumsum(words, out=before[1:])
    return even_cuts(before, vertex_count, parts, Balance())


def localized(
    ends: tuple[Array, Array], division: Division, rank: int
) -> npt.NDArray[np.int32]:
    """Turn numbers of a division into local ones, in place.

    Returns the places of the ghosts, ascending.
    """
    from featgraph.graph.partition import part_kernels  # loads Numba

    first, last = division.own(rank)
    words = np.zeros(-(-division.size // WORD), np.uint32)
    before = np.empty(words.size, np.int32)
    for end in ends:
        part_kernels.mark(end, words)
    own = slice(-(-first // WORD), -(-last // WORD))
    words[own] = 0
    ghosts = np.empty(part_kernels.count_words(words, before), np.int32)
    part_kernels.list_members(words, ghosts)
    before += np.int32(last - first)
    words[own] = 0xFFFFFFFF
    before[own] = np.arange(0, last - first, WORD)
    for end in ends:
        part_kernels.localize(end, words, before)
    return division.places(ghosts)


def made_graph(
    engine: Engine, whole: Whole, partition: Partition, along: str, found: Found
) -> DistributedGraph:
    """Make the graph of what each rank has found; all ranks call it.

    Parameters
    ----------
    engine : Engine
    whole : Whole
        But for its traits.
    partition : Partition
    along : {"both", "in"}
    found : Found
    """
    rank, ghosts = engine.rank, found.ghosts
    first, last = map(int, partition.cuts[rank : rank + 2])
    own = last - first
    bounds = np.searchsorted(ghosts, partition.cuts)
    asked_of = [ghosts[b:e] for b, e in pairwise(bounds.tolist())]
    send_lists = tuple(
        freeze(wanted - np.int32(first))
        for wanted in engine.all_to_allv(asked_of, about="ghosts")
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
        local=found.local,
        own=own,
        numbers=freeze(numbers),
        edge_ids=None,
        ghosts=freeze(own + bounds),
        send_lists=send_lists,
    )
    traits = _traits(engine, whole, found.degrees)
    degrees = _degrees(engine, whole, send_lists, found.degrees)
    starts = found.starts
    if starts is None:
        starts = _starts(engine, shard)
    rows = found.rows
    here = Here(along, rows if callable(rows) else freeze(rows), starts, degrees)
    return DistributedGraph(replace(whole, traits=traits), shard, engine, here)


def _degrees(
    engine: Engine, whole: Whole, send_lists: Any, of_own: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return degrees of own vertices, and of ghosts, which their owners tell."""
    dtype = offset_dtype(whole.edge_count)

    def with_ghosts(values: Array) -> Array:
        told = [values[listed] for listed in send_lists]
        ghosts = engine.all_to_allv(told, about="degrees of ghosts")
        return np.concatenate((values, *ghosts))

    into = with_ghosts(of_own[0].astype(dtype))
    return into, with_ghosts(of_own[1].astype(dtype)) if whole.directed else into


def _traits(engine: Engine, whole: Whole, degrees: tuple[Array, Array]) -> GraphTraits:
    """Return the traits of the whole graph, of which each rank knows its part."""
    sides = degrees if whole.directed else degrees[:1]
    longest = [int(side.max(initial=0)) for side in sides]
    below = [int(side[side < HUB_DEGREE].max(initial=0)) for side in sides]
    about = "degrees of all vertices"
    most = engine.all_reduce(np.array([max(longest), max(below)]), "max", about=about)
    short = np.bincount(np.minimum(sides[0], SHORT), minlength=SHORT)[:SHORT]
    short = engine.all_reduce(short.astype(np.int64), "sum", about=about)
    return traits_of_degrees(whole, int(most[0]), int(most[1]), short)


def _starts(engine: Engine, shard: Shard) -> Array:
    """Return the edge id of the first in-edge of each own vertex."""
    offsets = in_offsets(shard.local)[: shard.own + 1].astype(np.int64)
    counts = engine.all_gather(offsets[-1:], about="own edges")
    before = int(np.concatenate(counts)[: engine.rank].sum())
    return np.asarray(offsets[:-1] + before)

"""Building of a distributed graph from any edges given to each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import replace
from featgraph.graph import Graph
from featgraph.graph.building.edges import EdgeList
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.cutting import Counted, Kind, cut_evenly
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.parts import Found, localized, made_graph
from featgraph.ranks.loading.rounds import (
    ROUND_EDGES,
    Arrived,
    count_sources,
    exchange_edges,
)

__all__ = ["build", "count_edges", "kind_of", "number_rows", "part_of_edges"]

Array = npt.NDArray[Any]


def build(
    engine: Engine, given: Given, along: str, ranks: object = None
) -> DistributedGraph:
    """Build a distributed graph; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : Given
        The edges given to this rank, with row numbers; they are released.
    along : {"both", "in"}
        Which edges at its vertices a rank gets.
    ranks : optional
        The number of ranks that get vertices: see `working_ranks`.

    Notes
    -----
    Memory of a rank: its given edges, then those at its own vertices, and messages of
    `ROUND_EDGES` edges; a count for each word of 32 vertices, and two bits for each
    vertex, to find ghosts. A graph with sides needs a count for each vertex during the
    cut, and two numbers for each vertex.
    """
    kind = kind_of(engine, given, along)
    counted = Counted.of_all(engine, count_edges(given, kind), kind)
    cut = cut_evenly(engine, kind, counted, ranks)
    division = Division.of(cut.partition, cut.partition.places)
    out = None if kind.both_ends else count_sources(engine, given, division)
    whole = counted.whole(kind)
    edges = given, division, kind.given_count, kind.both_ends
    arrived = exchange_edges(engine, *edges)
    found = part_of_edges(arrived, whole, (division, engine.rank), along, out)
    found = replace(found, starts=cut.starts(engine.rank))
    made = made_graph(engine, whole, cut.partition, along, found)
    made.keeps_idle = cut.is_idle
    return made


def kind_of(engine: Engine, given: Given, along: str) -> Kind:
    """Return the facts of the edges given to all ranks; all ranks call it."""
    counts = np.array([given.size], np.int64)
    total = engine.all_reduce(counts, "sum", about="given edges")
    known = given.directed, along, given.weights_dtype, given.sides
    return Kind(given.vertex_count, int(total[0]), *known)


def number_rows(engine: Engine, given: Given) -> None:
    """Set the rows of this rank's edges, behind those of the ranks before it."""
    sizes = engine.all_gather(np.array([given.size], np.int64), about="given edges")
    row = int(np.concatenate(sizes)[: engine.rank].sum())
    for i, chunk in enumerate(given.chunks):
        given.chunks[i] = Chunk(chunk.sources, chunk.targets, chunk.weights, row)
        row += chunk.size


def count_edges(given: Given, kind: Kind) -> Counted:
    """Count the in-edges given to this rank, and add up their digest."""
    from featgraph.graph.building import digests  # loads Numba
    from featgraph.graph.partition import kernels

    into = np.zeros(kind.counters, np.int64)
    sums = np.zeros(4, np.uint64)
    for chunk in given.parts(ROUND_EDGES):
        ends = chunk.sources, chunk.targets
        kernels.add_into(*ends, kind.directed, kind.shift, into)
        digests.add_ends(sums[:2], chunk.rows, *ends)
        if chunk.weights is not None:
            digests.add_values(sums[2:], chunk.rows, chunk.weights)
    return Counted(into, sums)


def part_of_edges(
    arrived: Arrived,
    whole: Whole,
    at: tuple[Division, int],
    along: str,
    out: Array | None,
) -> Found:
    """Return the part of a rank, built of the received edges."""
    own = at[0].own(at[1])
    if along == "in":
        arrived = _by_target(arrived, *own, whole)
    ends = arrived.sources, arrived.targets
    ghosts = localized(ends, *at)
    count = own[1] - own[0]
    is_directed = whole.directed or along == "in"
    local = Graph(EdgeList(*ends, arrived.weights, count + ghosts.size, is_directed))
    of_own = np.asarray(local.in_degree[:count])
    if out is None:
        out = np.asarray(local.out_degree[:count])
    rows = _given_rows(whole, local, arrived.rows)
    return Found(local, ghosts, rows, (of_own, out))


def _by_target(arrived: Arrived, first: int, last: int, whole: Whole) -> Arrived:
    """Return the edges into own vertices by target, with twins as edges."""
    u, v, rows = arrived.sources, arrived.targets, arrived.rows
    into = np.flatnonzero((v >= first) & (v < last))
    twins = np.empty(0, np.int64)
    if not whole.directed:
        twins = np.flatnonzero((u >= first) & (u < last) & (u != v))
    which = np.concatenate((into, twins))
    targets = np.concatenate((v[into], u[twins]))
    # Within a row, edges and twins are in the order in which they were given.
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
    """Return the row in given order of each edge slot of the part."""
    slots = local.given_index
    found: Array
    if local.directed:
        found = rows[slots]
        return found
    is_twin = slots >= rows.size
    found = rows[slots - is_twin * slots.dtype.type(rows.size)]
    found += is_twin * found.dtype.type(whole.given_count)
    return found

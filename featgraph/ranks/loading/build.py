"""Parts built from edges: those given to each rank in chunks, or a whole graph's.

Edges in chunks are sent to the owners of their ends. Of a whole graph, each rank
selects the edges at its own vertices, and none are sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import replace
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.partition.partition import Partition
from featgraph.graph.views.structure import is_given_on_gpu
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.chunks import Chunk, Division, EdgeChunks
from featgraph.ranks.loading.cutting import Counted, Cut, Kind, cut_evenly, kind_of
from featgraph.ranks.loading.parts import Found, localized, made_graph
from featgraph.ranks.loading.rounds import (
    ROUND_EDGES,
    Arrived,
    count_sources,
    exchange_edges,
)

__all__ = [
    "build",
    "count_edges",
    "number_rows",
    "part_of_edges",
    "part_of_whole",
]

Array = npt.NDArray[Any]


def build(
    engine: Engine, given: EdgeChunks, along: str, ranks: object = None
) -> DistributedGraph:
    """Build a distributed graph; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : EdgeChunks
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
    return made_graph(engine, whole, cut.partition, along, found, cut.is_idle)


def number_rows(engine: Engine, given: EdgeChunks) -> None:
    """Set the rows of this rank's edges, behind those of the ranks before it."""
    sizes = engine.all_gather(np.array([given.size], np.int64), about="given edges")
    row = int(np.concatenate(sizes)[: engine.rank].sum())
    for i, chunk in enumerate(given.chunks):
        given.chunks[i] = Chunk(chunk.sources, chunk.targets, chunk.weights, row)
        row += chunk.size


def count_edges(given: EdgeChunks, kind: Kind) -> Counted:
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


def part_of_whole(
    engine: Engine, graph: Graph, partition: Partition, along: str, is_idle: bool
) -> DistributedGraph:
    """Return a distributed graph from a whole graph on each rank; all ranks call it.

    Parameters
    ----------
    engine : Engine
    graph : Graph
        The whole graph, the same on all ranks.
    partition : Partition
    along : {"both", "in"}
    is_idle : bool
        Whether ranks without vertices stay without any.
    """
    whole, begins = Whole.of(graph), None
    if partition.order is not None:
        into = np.asarray(graph.in_degree, np.int64)
        begins = np.cumsum(into) - into
    cut = Cut(partition, is_idle, begins)
    if is_given_on_gpu(graph):
        from featgraph.ranks.loading.on_gpu import cut_on_gpu  # imports the dialect

        return cut_on_gpu(engine, graph, cut, whole, along)
    at = Division.of(partition, partition.places), engine.rank
    arrived = _at_own(graph, *at, along == "both" or not graph.directed)
    out = np.asarray(graph.out_degree)[_own(partition, engine.rank)]
    found = part_of_edges(arrived, whole, at, along, out)
    found = replace(found, starts=cut.starts(engine.rank))
    return made_graph(engine, whole, partition, along, found, is_idle)


def _own(partition: Partition, rank: int) -> Any:
    """Return an index of the vertices of a rank: a slice or an array."""
    own = slice(*map(int, partition.cuts[rank : rank + 2]))
    return own if partition.order is None else partition.order[own]


def _at_own(graph: Graph, division: Division, rank: int, both_ends: bool) -> Arrived:
    """Return the edges at own vertices, in given order; ends are numbers."""
    from featgraph.graph.partition import kernels  # loads Numba

    weights, dtype = graph.weights, graph._edges.weights_dtype
    chunk = Chunk(graph.sources, graph.targets, weights)
    given = EdgeChunks([chunk], graph.vertex_count, graph.directed, dtype)
    found: list[Chunk] = []
    own = division.own(rank)
    places = np.empty(ROUND_EDGES, np.int64)
    for some in given.parts(ROUND_EDGES):
        numbered = division.renumbered(some)
        ends = numbered.sources, numbered.targets
        count = kernels.list_at(*ends, *own, both_ends, places)
        found.append(numbered.at(places[:count]))
    total = sum(part.size for part in found)
    return Arrived(
        _joined([part.sources for part in found], total, np.int32),
        _joined([part.targets for part in found], total, np.int32),
        None if dtype is None else _joined([p.weights for p in found], total, dtype),
        _joined(
            [part.rows for part in found],
            total,
            offset_dtype(2 * graph.given_edge_count),
        ),
    )


def _joined(parts: list[Any], total: int, dtype: Any) -> Array:
    """Concatenate arrays, and release each as soon as it is copied."""
    made = np.empty(total, dtype)
    end = total
    while parts:
        part = parts.pop()
        made[end - part.size : end] = part
        end -= part.size
    return made

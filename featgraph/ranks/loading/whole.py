"""Parts of a graph whose edges each rank has in full: none are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import replace
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.partition.partition import Partition
from featgraph.graph.views.structure import is_given_on_gpu
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.build import part_of_edges
from featgraph.ranks.loading.cutting import Cut
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.parts import made_graph
from featgraph.ranks.loading.rounds import ROUND_EDGES, Arrived

__all__ = ["part_of_whole"]

Array = npt.NDArray[Any]


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
        from featgraph.ranks.loading.on_gpu import cut_there  # imports the dialect

        return cut_there(engine, graph, cut, whole, along)
    at = Division.of(partition, partition.places), engine.rank
    arrived = _at_own(graph, *at, along == "both" or not graph.directed)
    out = np.asarray(graph.out_degree)[_own(partition, engine.rank)]
    found = part_of_edges(arrived, whole, at, along, out)
    found = replace(found, starts=cut.starts(engine.rank))
    made = made_graph(engine, whole, partition, along, found)
    made.keeps_idle = is_idle
    return made


def _own(partition: Partition, rank: int) -> Any:
    """Return an index of the vertices of a rank: a slice or an array."""
    own = slice(*map(int, partition.cuts[rank : rank + 2]))
    return own if partition.order is None else partition.order[own]


def _at_own(graph: Graph, division: Division, rank: int, both_ends: bool) -> Arrived:
    """Return the edges at own vertices, in given order; ends are numbers."""
    from featgraph.graph.partition import kernels  # loads Numba

    weights, dtype = graph.weights, graph._edges.weights_dtype
    chunk = Chunk(graph.sources, graph.targets, weights)
    given = Given([chunk], graph.vertex_count, graph.directed, dtype)
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

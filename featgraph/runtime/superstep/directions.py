"""The direction of a superstep: pulled by due vertices, or pushed.

Where a gather combines over the edges from active vertices only, it can go along the
edges out of these as well as along the edges into those that are due: the result is the
same, bit for bit, if the combine does not round. Which way is shorter changes from
superstep to superstep, so both are counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph import Graph
from featgraph.graph.degrees import most_edges
from featgraph.graph.views.view import Stamp
from featgraph.runtime.devices.bound import GraphSize
from featgraph.runtime.devices.protocol import Reach
from featgraph.runtime.superstep.bound import BoundState

__all__ = [
    "fixed_cost",
    "is_push_shorter",
    "is_soon_swept",
    "least_pulled",
    "most_reached",
    "pulls_all",
]

Words = Any
#: An edge that is pushed costs as many that are pulled: an atomic, instead of a read of
#: a bit that mostly says no. A search pushes up to 1/15 of the edges that are left
#: (Beamer et al., "Direction-Optimizing Breadth-First Search", 2012); with weights,
#: every edge that is pulled counts, since none is left out behind the first.
_EDGES_A_PUSH = 8
#: A GPU pulls so many edges more than a push costs in any case, and nobody chooses:
#: that takes it no longer than the host takes to choose, 0.1 ms, and loops of the GPU
#: (0039) go on. A search of 530 supersteps, each of a few thousand vertices, took 154
#: ms on a Delaunay graph where each was chosen (NVIDIA H100).
FEWEST_TO_CHOOSE = {"cuda": 1 << 22}
#: Values that are set to identities before a push cost as much as one edge.
_VALUES_AN_EDGE = 4
#: Kernels with pulled edges sweep all vertices from so many active ones and targets of
#: theirs a vertex on. With half of a Delaunay graph's vertices active, finding the
#: others and refreshing edges took 270 of 440 us (NVIDIA H200).
LEAST_REACHED = 1 / 8
#: All vertices are swept where they and their edges, times the features, are fewer: a
#: sweep then takes no longer than finding due vertices. Skipping lost up to a third on
#: graphs of 0.3M to 0.9M vertices and edges, with k = 4 (NVIDIA H200).
FEWEST_TO_SKIP = 1 << 22

#: Shape of a graph -> what `most_reached` returns: a pass over all degrees.
_most_reached: weakref.WeakKeyDictionary[Stamp, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)


def is_push_shorter(
    bound: BoundState, reach: Reach, most: int, find_base: Callable[[], Words]
) -> bool:
    """Whether pushing along the edges out of A is less work than pulling.

    Parameters
    ----------
    bound : BoundState
        As the kernel that pulls works on it.
    reach : Reach
        A, and how many edges lead out of it.
    most : int
        How many edges lead into A and the vertices that gather from it, at most.
    find_base : callable
        Returns those.
    """
    sets = bound.device.sets
    cost = _EDGES_A_PUSH * reach.pushed + fixed_cost(bound.plan, bound.graph)
    # No count is taken that could not say otherwise, and none that is waited for.
    if most <= cost or sets.counts_wait:
        return most > cost
    return sets.edges_of(find_base(), bound.buffers.graph, "in") > cost


def fixed_cost(plan: FoldPlan, graph: GraphSize) -> int:
    """Return what a push costs in any case, in edges that are pulled."""
    width = max(p.width for p in plan.phases)
    return graph.vertex_count * width // _VALUES_AN_EDGE


def least_pulled(plan: FoldPlan, graph: GraphSize) -> int:
    """Return how many edges a pull has, at least, for which a push may be chosen."""
    fewest = FEWEST_TO_CHOOSE.get(plan.options.target, 0)
    return fixed_cost(plan, graph) + fewest


def most_reached(graph: Graph, target: str) -> tuple[int, int]:
    """Return how many edges lead into a vertex, and into it and its targets, at most.

    It is found where the target builds its rows.
    """
    known = _most_reached.get(shape := graph.stamps.shape)
    if known is None:
        out, into = (most_edges(graph, side, target) for side in ("out", "in"))
        known = _most_reached[shape] = into, (out + 1) * into
    return known


def is_soon_swept(graph: GraphSize, width: int) -> bool:
    """Whether a graph is so small that a GPU sweeps all of it in any case."""
    return (graph.vertex_count + graph.edge_count) * width < FEWEST_TO_SKIP


def pulls_all(bound: BoundState, active_count: int | None) -> bool:
    """Whether kernels with pulled edges sweep all vertices though few are due.

    Where such a kernel writes all in-edges of the vertices it sweeps, that saves
    finding the due ones, and refreshing what it would leave out. On small graphs it
    does.
    """
    if not bound.kernel.kernel_source.forwarded or active_count is None:
        return False
    graph = bound.graph
    if is_soon_swept(graph, max(p.width for p in bound.plan.phases)):
        return True
    # A rank may have no vertices.
    reached = active_count * (1 + graph.edge_count / max(graph.vertex_count, 1))
    return reached >= LEAST_REACHED * graph.vertex_count

"""The direction of a superstep: pulled by due vertices, or pushed by active ones.

A gather that combines over edges from active vertices only can read the in-edges of due
vertices, or follow the out-edges of active ones. The result is the same, bit for bit,
if the combine does not round. The direction with fewer edges changes from superstep to
superstep, as in direction-optimizing BFS, so that `is_push_shorter` compares the two.
`loops.foldmap_run` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph import Graph
from featgraph.graph.degrees import most_edges
from featgraph.graph.views.view import Stamp
from featgraph.runtime.devices.protocol import GraphSize, Reach
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
#: Cost of a pushed edge in pulled ones: an atomic in place of a read of a bit that is
#: mostly 0. A search pushes up to 1/15 of the remaining edges (Beamer et al.,
#: "Direction-Optimizing Breadth-First Search", 2012); with weights, a pull has no early
#: exit, so that each of its edges counts.
_EDGES_A_PUSH = 8
#: Target -> edges beyond the fixed cost of a push up to which a superstep pulls without
#: a choice. A GPU pulls this many in the 0.1 ms of a choice on the host, and loops on
#: the device (0039) go on. With a choice in each of 530 supersteps of a few thousand
#: vertices, a search on a Delaunay graph took 154 ms (NVIDIA H100).
FEWEST_TO_CHOOSE = {"cuda": 1 << 22}
#: A push first sets the results of all vertices to identities. Setting this many values
#: costs as much as one pulled edge.
_VALUES_AN_EDGE = 4
#: Fraction of vertices that are active or targets from which kernels with pulled edges
#: sweep all vertices. With half of a Delaunay graph's vertices active, finding the
#: others and refreshing edges took 270 of 440 us (NVIDIA H200).
LEAST_REACHED = 1 / 8
#: Vertices and edges, times features, below which all vertices are swept: that takes no
#: longer than finding due ones. Skipping cost up to a third more time on graphs of 0.3M
#: to 0.9M vertices and edges, with k = 4 (NVIDIA H200).
FEWEST_TO_SKIP = 1 << 22

#: Shape of a graph -> result of `most_reached`, which reads all degrees.
_most_reached: WeakKeyDictionary[Stamp, tuple[int, int]] = WeakKeyDictionary()


def is_push_shorter(
    bound: BoundState, reach: Reach, most: int, find_base: Callable[[], Words]
) -> bool:
    """Whether pushing along the out-edges of A costs less than pulling.

    Parameters
    ----------
    bound : BoundState
        The State, bound to the pulling kernel.
    reach : Reach
        A, and the number of its out-edges.
    most : int
        Upper bound of the edges of a pull: of the in-edges of A and of all vertices
        that gather from A.
    find_base : callable
        Returns the set of these vertices.
    """
    sets = bound.device.sets
    cost = _EDGES_A_PUSH * reach.pushed + fixed_cost(bound.plan, bound.graph)
    # Edges are counted only if that may change the choice and needs no wait.
    if most <= cost or sets.counts_wait:
        return most > cost
    return sets.edges_of(find_base(), bound.buffers.graph, "in") > cost


def fixed_cost(plan: FoldPlan, graph: GraphSize) -> int:
    """Return the fixed cost of a push, in pulled edges."""
    return graph.vertex_count * plan.width // _VALUES_AN_EDGE


def least_pulled(plan: FoldPlan, graph: GraphSize) -> int:
    """Return the fewest edges of a pull for which a push may be chosen."""
    fewest = FEWEST_TO_CHOOSE.get(plan.options.target, 0)
    return fixed_cost(plan, graph) + fewest


def most_reached(graph: Graph, target: str) -> tuple[int, int]:
    """Return upper bounds of in-edges: of a vertex, and of a vertex with its targets.

    The degrees are read on the device of `target`, where the rows are.
    """
    known = _most_reached.get(shape := graph.stamps.shape)
    if known is None:
        changing = graph.changing
        find = partial(most_edges, graph, target=target)
        find = find if changing is None else changing.most_edges
        out, into = map(find, ("out", "in"))
        known = _most_reached[shape] = into, (out + 1) * into
    return known


def is_soon_swept(graph: GraphSize, width: int) -> bool:
    """Whether a graph is so small that a GPU always sweeps all of it."""
    return (graph.vertex_count + graph.edge_count) * width < FEWEST_TO_SKIP


def pulls_all(bound: BoundState, active_count: int | None) -> bool:
    """Whether kernels with pulled edges sweep all vertices though few are due.

    Such a kernel writes all in-edges of the vertices that it sweeps. A sweep of all
    saves finding the due vertices, and refreshing the in-edges of the others.
    """
    if not bound.kernel.kernel_source.forwarded or active_count is None:
        return False
    graph = bound.graph
    if is_soon_swept(graph, bound.plan.width):
        return True
    # A rank may have no vertices.
    reached = active_count * (1 + graph.edge_count / max(graph.vertex_count, 1))
    return reached >= LEAST_REACHED * graph.vertex_count

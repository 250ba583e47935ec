"""The direction of a superstep: pulled by due vertices, or pushed.

Where a gather combines over the edges from active vertices only, it can go along the
edges out of these as well as along the edges into those that are due: the result is the
same, bit for bit, if the combine does not round. Which way is shorter changes from
superstep to superstep, so both are counted.
"""

from __future__ import annotations

from typing import Any

from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph import Graph
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["fixed_cost", "is_push_shorter", "most_reached"]

Words = Any
#: An edge that is pushed costs as many that are pulled: an atomic, instead of a read of
#: a bit that mostly says no. A search pushes up to 1/15 of the edges that are left
#: (Beamer et al., "Direction-Optimizing Breadth-First Search", 2012); with weights,
#: every edge that is pulled counts, since none is left out behind the first.
_EDGES_A_PUSH = 8
#: Values that are set to identities before a push cost as much as one edge.
_VALUES_AN_EDGE = 4


def is_push_shorter(
    plan: FoldPlan,
    graph: Graph,
    device: Device,
    buffers: Buffers,
    active: Words,
    due: Words,
) -> bool:
    """Whether pushing along the edges out of `active` is less work than pulling.

    Parameters
    ----------
    active : words
        A.
    due : words
        A, and the vertices that gather from A.
    """
    pushed = device.edges_of(active, buffers.graph["out_offsets"])
    pulled = device.edges_of(due, buffers.graph["in_offsets"])
    return pulled > _EDGES_A_PUSH * pushed + fixed_cost(plan, graph)


def fixed_cost(plan: FoldPlan, graph: Graph) -> int:
    """Return what a push costs in any case, in edges that are pulled."""
    width = max(p.width for p in plan.phases)
    return graph.vertex_count * width // _VALUES_AN_EDGE


def most_reached(graph: Graph) -> int:
    """Return how many edges lead into a vertex and its targets, at most."""
    out = int(graph.out_degree.max(initial=0))
    return (out + 1) * int(graph.in_degree.max(initial=0))

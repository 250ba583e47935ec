"""How warps go through the edges out of the sources of a superstep (CUDA)."""

from __future__ import annotations

from featgraph.fold.passes.worklists.common import Worklist
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Contribute
from featgraph.fold.tree.statements import Body, agreed, code

__all__ = ["contributes", "degree", "each_edge", "in_warps"]

_WARPS = """
first_chunk = int32(cuda.grid(1) >> 5)
chunk_stride = int32(cuda.gridsize(1) >> 5)
"""
_EACH_EDGE = """
chunk = first_chunk
while chunk * 32 < edge_count:
    u, place, inside_edge = queues.edge_of(
        lists, chunk, rows, edge_count, step_number
    )
    EDGE
    chunk += chunk_stride
"""


def in_warps(worklist: Worklist) -> Body:
    """Return the names of the features, and which chunks are a warp's."""
    return worklist.front() + code(_WARPS)


def each_edge(worklist: Worklist, body: Body) -> Body:
    """Return a walk over the edges, from ``u`` to ``v``."""
    layout = worklist.facts.layout
    edge = layout.row("u") + layout.at_place("u", Walk("together"), "start", body)
    return agreed(code(_EACH_EDGE, EDGE=edge), "warp")


def degree(worklist: Worklist) -> Body:
    """Return how many edges lead out of `v`."""
    layout = worklist.facts.layout
    return layout.row("v") + code(f"out_degree = int64({layout.degree})")


def contributes(worklist: Worklist) -> Body:
    """Return what all gathers take of an edge."""
    return [Contribute(f.name) for f in worklist.gathers]

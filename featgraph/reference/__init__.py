"""The reference interpreter: the semantics of a program, slow and obvious.

It runs the user's plain Python functions vertex by vertex, edge by edge and feature by
feature, in program order, over NumPy arrays. It reads declarations and a graph, never a
plan, so that plans can be checked against it. Start at `rules`.
"""

from featgraph.reference.driver import Run, from_state, iterate
from featgraph.reference.rules import Outcome, superstep

__all__ = ["Outcome", "Run", "from_state", "iterate", "superstep"]

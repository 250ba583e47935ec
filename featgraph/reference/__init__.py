"""The reference interpreter: what a program means, slow and obvious.

It runs the user's plain Python functions vertex by vertex, edge by edge and feature by
feature, in the order in which they stand, over NumPy arrays. It sees declarations and a
graph, never a plan, so that it can say whether a plan is right. Start at `rules`.
"""

from featgraph.reference.driver import Run, iterate
from featgraph.reference.rules import Outcome, superstep
from featgraph.reference.snapshot import from_state

__all__ = ["Outcome", "Run", "from_state", "iterate", "superstep"]

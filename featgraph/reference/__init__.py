"""The reference interpreter: the semantics of a program, slow and obvious.

It runs the user's plain Python functions vertex by vertex, edge by edge and feature by
feature, in program order, over NumPy arrays. It reads declarations and a graph, never a
plan, so that plans can be checked against it.

S1 to S11 are the sections of docs/model.md. Begin with `rules`, which runs a superstep;
`sweep` runs one function on all of its vertices or edges, and `team` all features of
one vertex or edge. `memory` has the values, `numbers` the arithmetic, `facts` the
widths and types, and `driver` repeats supersteps.
"""

from featgraph.reference.driver import Run, from_state, iterate
from featgraph.reference.rules import Outcome, superstep

__all__ = ["Outcome", "Run", "from_state", "iterate", "superstep"]

"""All kinds of phases: the first one that runs a function is that of its phase.

A new kind is a file and a name here.
"""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.kinds.edge import EDGE
from featgraph.fold.kinds.exclusive import EXCLUSIVE
from featgraph.fold.kinds.push import PUSH
from featgraph.fold.kinds.reduce import REDUCE
from featgraph.fold.kinds.triangle import TRIANGLE
from featgraph.fold.kinds.vertex import PULLED, VERTEX

__all__ = ["KINDS", "kind_of"]

KINDS = (VERTEX, PULLED, PUSH, EXCLUSIVE, EDGE, TRIANGLE, REDUCE)


def kind_of(function: Analysed, *, pushes: bool) -> PhaseKind:
    """Return the kind of phase that a function begins, if gathers are pushed or not."""
    return next(kind for kind in KINDS if kind.runs(function, pushes))

"""How gathered values pass through memory."""

from __future__ import annotations

from featgraph.fold.codegen.kernels.accumulators import Accumulator, accumulator_of
from featgraph.fold.plan.plan import FoldPlan

__all__ = ["indexed_forms", "was_packed"]


def indexed_forms(plan: FoldPlan) -> dict[str, str]:
    """Return how entries of each temporary, and its sources, are read from memory."""
    library = "warp" if plan.target == "cuda" else "cpu"
    forms: dict[str, str] = {}
    for function in plan.analysis.functions:
        if function.kind == "gather":
            accumulator = accumulator_of(function, plan.analysis)
            forms |= accumulator.forms(was_packed(accumulator, plan), library)
    return forms


def was_packed(accumulator: Accumulator, plan: FoldPlan) -> bool:
    """Return whether a push has left key and source in one word."""
    return accumulator.is_arg and any(
        p.kind == "push" and plan.functions_of(p)[0].into == accumulator.name
        for p in plan.phases
    )

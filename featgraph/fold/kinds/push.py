"""Push phases: one gather, combined with atomics in memory along edges from sources."""

from __future__ import annotations

from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind, loads
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body, expression

__all__ = ["PUSH"]


def _title(facts: NestFacts) -> str:
    some = "a chunk of" if facts.target is Target.CPU else "all"
    if facts.phase.along != "in":
        return f"Push from {some} neighbors into the due vertices."
    return f"Push along the out-edges of {some} sources into the due targets."


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    active = ["active_sources"] * facts.plan.takes_active(facts.phase)
    return ["d", "due", *places, *facts.layout.arrays, *more, *active]


def _nest(facts: NestFacts) -> Body:
    """Return a push: one gather into memory, along the edges from each source."""
    [function] = facts.functions
    due = expression(f"{facts.intrinsics}.test_bit(due, v)")
    edges = nodes.ForEdges(
        "u", [nodes.Only(due, [*loads(facts), nodes.Push(function)])]
    )
    words = "active_sources" if facts.plan.takes_active(facts.phase) else ""
    return [nodes.Sweep("u", words, "is_source", [edges])]


PUSH = PhaseKind(
    "push", lambda f, pushes: f.kind.gathers and pushes, _title,
    _arguments, _nest, "prepare_push", "finish_vertices",
    ends=frozenset({"passed"}), pushes=True,
)  # fmt: skip

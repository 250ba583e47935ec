"""From a phase of the plan to its nest: what it does, and nothing of where it runs."""

from __future__ import annotations

from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import ForEdges, FromMemory, Only, Push, Sweep
from featgraph.fold.tree.statements import Body, expression

__all__ = ["nest_of"]


def nest_of(facts: Facts) -> Body:
    """Return the nest of the phase."""
    return [_pushed(facts)]


def _pushed(facts: Facts) -> Sweep:
    """Return a push: one gather into memory, along the edges from each source."""
    [function] = facts.functions
    loads = [FromMemory(name) for name in (*facts.phase.loads, *facts.read_entries)]
    due = expression(f"{facts.library}.test_bit(due, v)")
    edges = ForEdges("u", [Only(due, [*loads, Push(function)])])
    words = "active_sources" if facts.plan.takes_active(facts.phase) else ""
    return Sweep("u", words, "is_source", [edges])

"""Reduce phases: one function on all due vertices, combined into one result."""

from __future__ import annotations

from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body

__all__ = ["REDUCE"]


def _title(facts: NestFacts) -> str:
    if facts.target is Target.CPU:
        return "Reduce a chunk of vertices into its row of `partials`."
    part = "word of them" if facts.phase.in_a_tree else "block"
    return f"Reduce the due vertices, a row of `partials` for each {part}."


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    if facts.target is Target.CPU:
        return ["d", "due", "partials", *places]
    parts = ["together", "part_count"] if facts.phase.in_a_tree else []
    return ["d", "due", *places, *parts, "partials", *more]


def _nest(facts: NestFacts) -> Body:
    """Return a reduce: what all due vertices contribute, a part of them at a time."""
    [function], name = facts.functions, facts.reduced
    summed = tuple(facts.summed) if facts.binding.block else ()
    between: Body = [nodes.PutBy(summed), nodes.Start(name)] if summed else []
    due = nodes.Sweep(
        "v",
        "due",
        "is_due",
        [nodes.Contribute(function)],
        [nodes.Settle(name)],
        between,
    )
    behind: Body = [nodes.AddUp(summed)] if summed else []
    behind += [nodes.Finish(name), nodes.Meet("collect", "partial", (name,))]
    return [nodes.Start(name), due, *behind]


REDUCE = PhaseKind(
    "reduce", lambda f, pushes: f.kind.reduces, _title,
    _arguments, _nest, "prepare_reduce", "finish_reduce",
    reduces=True, chunks="vertex_chunks",
)  # fmt: skip

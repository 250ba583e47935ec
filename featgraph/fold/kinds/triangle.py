"""Triangle phases: one function on all triangles, or on those of edges that passed."""

from __future__ import annotations

from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind
from featgraph.fold.schedules.intersect_rows import Intersection
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body

__all__ = ["TRIANGLE"]


def _title(facts: NestFacts) -> str:
    return _intersection(facts).does


def _intersection(facts: NestFacts) -> Intersection:
    schedule = facts.schedule
    if not isinstance(schedule, Intersection):
        raise TypeError(f"{schedule.name} does not intersect rows")
    return schedule


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    cut = places if facts.target is Target.CPU else ()
    return ["d", *cut, *_intersection(facts).arguments(facts.oriented), *more]


def _nest(facts: NestFacts) -> Body:
    """Return the intersection of rows, with the call for each triangle."""
    [function] = facts.functions.values()
    within = str(getattr(function.declared, "within", None) or "")
    may_wait = tuple(dict.fromkeys(each.role for each in facts.sums))
    run = nodes.Triangle(function.name)
    return [nodes.Intersect([run], may_wait, within, facts.phase.from_edges)]


TRIANGLE = PhaseKind(
    "triangle", lambda f, pushes: f.kind.intersects, _title,
    _arguments, _nest, "prepare_triangles", "finish_triangles",
    intersects=True, chunks="triangle_chunks", chunk=("first", "last"),
)  # fmt: skip

"""Edge phases: edge functions on the out-edges of sources."""

from __future__ import annotations

from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind, along_edge
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body, code, expression

__all__ = ["EDGE"]


def _title(facts: NestFacts) -> str:
    on_cpu = facts.target is Target.CPU
    marked = "`targets` gets their ends where the verdict is True"
    if facts.phase.changed_only:
        of, lists = (" of a chunk", "") if on_cpu else ("", ", a list the edges")
        swept = f"edges{of} of which something has changed, from sources"
        return f"Sweep the {swept}; {marked}{lists}."
    sources = "a chunk of sources" if on_cpu else "the sources"
    return f"Sweep the out-edges of {sources}; {marked}."


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    sets, state = ["d", "sources", "targets"], facts.plan.has_edge_state
    if not facts.phase.changed_only:
        edges = facts.layout.arrays
        return [*sets, *places, *edges, *["edge_state"] * state, *more]
    own = ["in_sources", "edge_twin", "edge_state", "changed_edges"]
    if facts.target is Target.CPU:
        return [*sets, *places, *own]
    return [*sets, *own, "passed_edges", "passed_count"]


def _nest(facts: NestFacts) -> Body:
    """Return a sweep of edges: those from each source, but for those that stopped."""
    if facts.phase.changed_only:
        return _changed_edges(facts)
    if not facts.plan.has_edge_state:
        mark = nodes.Mark(code(f"{facts.intrinsics}.set_bit(targets, v)"))
        edges = nodes.ForEdges("u", along_edge(facts, [mark]))
        return [nodes.Sweep("u", "sources", "is_source", [edges])]
    # Where several phases sweep edges, targets are found behind the last one.
    mark = nodes.Mark(code("edge_state[e] = 2"), code("edge_state[e] = 1"))
    only = nodes.Only(expression("edge_state[e] != 1"), along_edge(facts, [mark]))
    return [nodes.Sweep("u", "sources", "is_source", [nodes.ForEdges("u", [only])])]


def _changed_edges(facts: NestFacts) -> Body:
    """Return a sweep of edges of which something has changed, by their numbers.

    What was committed at one of them has changed, too: so no others have next entries
    that differ. One stays in the set if it passes, and if its source is not active.
    """
    names = facts.of_edges(facts.phase.writes_next)
    twin = facts.number("edge_twin[e]")
    each = code(
        f"u = in_sources[e]\nv = in_sources[{twin}]\nedge_state[e] = 1\nstays = True"
    )
    target = code(f"edge_state[e] = 2\n{facts.intrinsics}.set_bit(targets, v)")
    mark = nodes.Mark(target, code("stays = False"))
    is_source = expression(f"{facts.intrinsics}.test_bit(sources, u)")
    each += [nodes.Copy(names, "e")] if names else []
    each += [nodes.Only(is_source, along_edge(facts, [mark]))]
    words = "changed_edges"
    return [nodes.Sweep("e", words, "is_changed", each, marks=(("stays", words),))]


EDGE = PhaseKind(
    "edge", lambda f, pushes: f.kind.writes_edges, _title,
    _arguments, _nest, "prepare_edges", "finish_edges",
    ends=frozenset({"targets"}), sweeps_edges=True,
)  # fmt: skip

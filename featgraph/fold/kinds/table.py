"""All kinds of phases but vertex phases, and the list of all kinds.

- Push phases: one gather, combined by atomics in memory, along the edges from sources.
- Edge phases: edge functions on the out-edges of sources.
- Exclusive phases: one edge function, with both ends of the edge locked or otherwise
  excluded from other edges (S11).
- Triangle phases: one function on all triangles, or on those of edges that passed.
- Reduce phases: one function on all due vertices, combined into one result.

`kind_of` takes the first kind in `KINDS` that runs a function. A new kind is a title,
arguments, a nest, and a `PhaseKind` in that list.
"""

from __future__ import annotations

import math
import textwrap

import numpy as np

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind, along_edge, loads
from featgraph.fold.kinds.vertex import PULLED, VERTEX
from featgraph.fold.schedules.intersect_rows import Intersection
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body, code, expression
from featgraph.program.signature import PropertyKind

__all__ = ["EDGE", "EXCLUSIVE", "KINDS", "PUSH", "kind_of"]


def _title_push(facts: NestFacts) -> str:
    some = "a chunk of" if facts.target is Target.CPU else "all"
    if facts.phase.along != "in":
        return f"Push from {some} neighbors into the due vertices."
    return f"Push along the out-edges of {some} sources into the due targets."


def _arguments_push(facts: NestFacts, places: Names, more: Names) -> list[str]:
    active = ["active_sources"] * facts.plan.takes_active(facts.phase)
    return ["d", "due", *places, *facts.layout.arrays, *more, *active]


def _nest_push(facts: NestFacts) -> Body:
    """Return the nest: one gather, pushed to due targets along edges of each source."""
    [function] = facts.functions
    due = expression(f"{facts.intrinsics}.test_bit(due, v)")
    edges = nodes.ForEdges(
        "u", [nodes.Only(due, [*loads(facts), nodes.Push(function)])]
    )
    words = "active_sources" if facts.plan.takes_active(facts.phase) else ""
    return [nodes.Sweep("u", words, "is_source", [edges])]


PUSH = PhaseKind(
    "push", lambda f, pushes: f.kind.gathers and pushes, _title_push,
    _arguments_push, _nest_push, "prepare_push", "finish_vertices",
    ends=frozenset({"passed"}), pushes=True,
)  # fmt: skip


def _title_edge(facts: NestFacts) -> str:
    on_cpu = facts.target is Target.CPU
    marked = "`targets` gets their ends where the verdict is True"
    if facts.phase.changed_only:
        of, lists = (" of a chunk", "") if on_cpu else ("", ", a list the edges")
        swept = f"edges{of} of which something has changed, from sources"
        return f"Sweep the {swept}; {marked}{lists}."
    sources = "a chunk of sources" if on_cpu else "the sources"
    return f"Sweep the out-edges of {sources}; {marked}."


def _arguments_edge(facts: NestFacts, places: Names, more: Names) -> list[str]:
    sets, state = ["d", "sources", "targets"], facts.plan.has_edge_state
    if not facts.phase.changed_only:
        edges = facts.layout.arrays
        return [*sets, *places, *edges, *["edge_state"] * state, *more]
    own = ["in_sources", "edge_twin", "edge_state", "changed_edges"]
    if facts.target is Target.CPU:
        return [*sets, *places, *own]
    return [*sets, *own, "passed_edges", "passed_count"]


def _nest_edge(facts: NestFacts) -> Body:
    """Return the nest: edge functions on the edges from each source.

    With `edge_state`, edges that an earlier phase stopped (1) are skipped, and verdicts
    are stored: 1 for an edge that stopped, 2 for an edge that passed.
    """
    if facts.phase.changed_only:
        return _changed_edges(facts)
    if not facts.plan.has_edge_state:
        mark = nodes.Mark(code(f"{facts.intrinsics}.set_bit(targets, v)"))
        edges = nodes.ForEdges("u", along_edge(facts, [mark]))
        return [nodes.Sweep("u", "sources", "is_source", [edges])]
    # With several phases over edges, targets are found behind the last of them.
    mark = nodes.Mark(code("edge_state[e] = 2"), code("edge_state[e] = 1"))
    only = nodes.Only(expression("edge_state[e] != 1"), along_edge(facts, [mark]))
    return [nodes.Sweep("u", "sources", "is_source", [nodes.ForEdges("u", [only])])]


def _changed_edges(facts: NestFacts) -> Body:
    """Return the nest: edge functions on changed edges, by their ids.

    Next entries differ from current ones at changed edges only, since a commit changes
    an edge, too; so they are first made equal. An edge stays in the set of changed
    edges if it passes, or if its source is not active and its functions do not run.
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
    "edge", lambda f, pushes: f.kind.writes_edges, _title_edge,
    _arguments_edge, _nest_edge, "prepare_edges", "finish_edges",
    ends=frozenset({"targets"}), sweeps_edges=True,
)  # fmt: skip


def _title_exclusive(facts: NestFacts) -> str:
    some = "a chunk of the order" if facts.target is Target.CPU else "all turns"
    return f"Sweep the edges of {some}; `targets` gets both ends of those that pass."


def _arguments_exclusive(facts: NestFacts, places: Names, more: Names) -> list[str]:
    sets = ["d", "sources", "all_sources", "targets"]
    meeting = ["arrived", "stalled"] * (facts.target is Target.CUDA)
    holds, records = facts.binding.holds, bool(facts.phase.record)
    locks = ["locks", *["deferred"] * (facts.target is Target.CUDA)] * holds
    recorded = ["conflicts"] * (holds or records) + ["turn_counts"] * records
    return [*sets, *places, *meeting, *locks, *recorded, *more]


def _nest_exclusive(facts: NestFacts) -> Body:
    """Return the nest: an exclusive function on edges, whose ends become due.

    ``held`` is True for an edge of an active source whose locks the lane holds.
    """
    intrinsics = facts.intrinsics
    runs = f"all_sources or {intrinsics}.test_bit(sources, u)"
    runs = "held" if facts.binding.holds else runs
    recorded = _RECORD.format(facts.phase.record) if facts.phase.record else ""
    # A test first, since an atomic takes longer than a load.
    due = "".join(
        f"if not {intrinsics}.test_bit(targets, {end}):\n"
        f"    {intrinsics}.set_bit(targets, {end})\n"
        for end in "uv"
    )
    if facts.phase.passes_all:
        due = "if not all_sources:\n" + textwrap.indent(due, "    ")
    mark = nodes.Mark(code(recorded + due), code(recorded))
    each = nodes.Only(expression(runs), along_edge(facts, [mark]))
    prefetches = (
        code("\n".join(_prefetches(facts))) if facts.target is Target.CUDA else []
    )
    values = facts.phase.ordered
    return [
        nodes.Sweep(
            "e", "", "inside_edge", [each], prefetches=prefetches, values=values
        )
    ]


def _prefetches(facts: NestFacts) -> list[str]:
    """Return prefetches of the rows of u and v, and of the values of the edge.

    `ask_for` takes every eighth entry: one of each sector of 32 bytes, or of every
    other one where entries have 8 bytes, so that two calls take all of these.
    """
    lines, types = list[str](), facts.plan.analysis.signature
    [function] = facts.functions.values()
    for name in sorted({a.name for a in function.accesses}):
        kind, shape = types[name].kind, types[name].item_shape
        if kind is PropertyKind.VERTEX:
            axis, item = facts.binding.features, np.dtype(types[name].dtype).itemsize
            count = axis.stride if shape == (axis.width,) else math.prod(shape)
            size = max(count * min(item, 4) // 4, 1)
            firsts = ["", " + 4"] if item == 8 and size > 4 else [""]
            # In 64 bits: the first entry of a row may exceed int32.
            lines += [
                f"queues.ask_for(d.{name}, int64({end}) * {count}{first}, "
                f"{size - 4 * bool(first)})"
                for end in "uv"
                for first in firsts
            ]
    return lines + [f"queues.ask_for(ordered_{n}, at, 1)" for n in facts.phase.ordered]


#: Statements that record and count the turns of the ends of an edge, while no other
#: edge may use them. ``conflicts`` has bit 0 for conflicts at u and bit 1 for those at
#: v; a self-loop counts once.
_RECORD = """\
if conflicts & 1:
    d.{0}[e, 0] = turn_counts[u]
if conflicts & 2:
    d.{0}[e, 1] = turn_counts[v]
if conflicts & 1:
    turn_counts[u] += 1
if conflicts == 2 or (conflicts == 3 and u != v):
    turn_counts[v] += 1
"""

EXCLUSIVE = PhaseKind(
    "exclusive", lambda f, pushes: f.kind.exclusive, _title_exclusive,
    _arguments_exclusive, _nest_exclusive, "prepare_exclusive", "finish_exclusive",
    ends=frozenset({"targets"}), in_turns=True, chunk=("first", "last"),
)  # fmt: skip


def _intersection(facts: NestFacts) -> Intersection:
    schedule = facts.schedule
    if not isinstance(schedule, Intersection):
        raise TypeError(f"{schedule.name} does not intersect rows")
    return schedule


def _arguments_triangle(facts: NestFacts, places: Names, more: Names) -> list[str]:
    cut = places if facts.target is Target.CPU else ()
    return ["d", *cut, *_intersection(facts).arguments(facts.oriented), *more]


def _nest_triangle(facts: NestFacts) -> Body:
    """Return the nest: intersections of rows, with the call for each triangle."""
    [function] = facts.functions.values()
    within = str(getattr(function.declared, "within", None) or "")
    may_wait = tuple(dict.fromkeys(each.role for each in facts.sums))
    run = nodes.Triangle(function.name)
    return [nodes.Intersect([run], may_wait, within, facts.phase.from_edges)]


TRIANGLE = PhaseKind(
    "triangle", lambda f, pushes: f.kind.intersects,
    lambda facts: _intersection(facts).does, _arguments_triangle, _nest_triangle,
    "prepare_triangles", "finish_triangles",
    intersects=True, chunks="triangle_chunks", chunk=("first", "last"),
)  # fmt: skip


def _title_reduce(facts: NestFacts) -> str:
    if facts.target is Target.CPU:
        return "Reduce a chunk of vertices into its row of `partials`."
    part = "word of them" if facts.phase.in_a_tree else "block"
    return f"Reduce the due vertices, a row of `partials` for each {part}."


def _arguments_reduce(facts: NestFacts, places: Names, more: Names) -> list[str]:
    if facts.target is Target.CPU:
        return ["d", "due", "partials", *places]
    parts = ["together", "part_count"] if facts.phase.in_a_tree else []
    return ["d", "due", *places, *parts, "partials", *more]


def _nest_reduce(facts: NestFacts) -> Body:
    """Return the nest: contributions of due vertices, combined to partial results."""
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
    "reduce", lambda f, pushes: f.kind.reduces, _title_reduce,
    _arguments_reduce, _nest_reduce, "prepare_reduce", "finish_reduce",
    reduces=True, chunks="vertex_chunks",
)  # fmt: skip


KINDS = (VERTEX, PULLED, PUSH, EXCLUSIVE, EDGE, TRIANGLE, REDUCE)


def kind_of(function: Analysed, *, pushes: bool) -> PhaseKind:
    """Return the kind of the phase in which a function runs."""
    return next(kind for kind in KINDS if kind.runs(function, pushes))

"""Exclusive phases: one edge function that holds both ends of its edge (S11)."""

from __future__ import annotations

import math
import textwrap

import numpy as np

from featgraph.fold.kinds.base import Names, NestFacts, PhaseKind, along_edge
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body, code, expression
from featgraph.program.signature import PropertyKind

__all__ = ["EXCLUSIVE"]


def _title(facts: NestFacts) -> str:
    some = "a chunk of the order" if facts.target is Target.CPU else "all turns"
    return f"Sweep the edges of {some}; `targets` gets both ends of those that pass."


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    sets = ["d", "sources", "all_sources", "targets"]
    meeting = ["arrived", "stalled"] * (facts.target is Target.CUDA)
    holds, records = facts.binding.holds, bool(facts.phase.record)
    locks = ["locks", *["deferred"] * (facts.target is Target.CUDA)] * holds
    recorded = ["conflicts"] * (holds or records) + ["turn_counts"] * records
    return [*sets, *places, *meeting, *locks, *recorded, *more]


def _nest(facts: NestFacts) -> Body:
    """Return a sweep of the edges of some sources, of which both ends become due."""
    intrinsics = facts.intrinsics
    runs = f"all_sources or {intrinsics}.test_bit(sources, u)"
    runs = "held" if facts.binding.holds else runs
    recorded = _RECORD.format(facts.phase.record) if facts.phase.record else ""
    due = "".join(
        f"if not {intrinsics}.test_bit(targets, {end}):\n"
        f"    {intrinsics}.set_bit(targets, {end})\n"
        for end in "uv"
    )
    if facts.phase.passes_all:
        due = "if not all_sources:\n" + textwrap.indent(due, "    ")
    mark = nodes.Mark(code(recorded + due), code(recorded))
    each = nodes.Only(expression(runs), along_edge(facts, [mark]))
    asks = code("\n".join(_asked(facts))) if facts.target is Target.CUDA else []
    values = facts.phase.ordered
    return [nodes.Sweep("e", "", "inside_edge", [each], asks=asks, values=values)]


def _asked(facts: NestFacts) -> list[str]:
    """Return prefetches of the rows of u and v, and of the values of the edge."""
    lines, types = list[str](), facts.plan.analysis.signature
    [function] = facts.functions.values()
    for name in sorted({a.name for a in function.accesses}):
        kind, shape = types[name].kind, types[name].item_shape
        if kind is PropertyKind.VERTEX:
            axis = facts.binding.features
            count = axis.stride if shape == (axis.width,) else math.prod(shape)
            size = count * np.dtype(types[name].dtype).itemsize // 4
            lines += [
                f"queues.ask_for(d.{name}, int64({end}) * {count}, {size or 1})"
                for end in "uv"
            ]
    return lines + [f"queues.ask_for(ordered_{n}, at, 1)" for n in facts.phase.ordered]


#: Turns are counted under the exclusion, a self-loop once.
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
    "exclusive", lambda f, pushes: f.kind.exclusive, _title,
    _arguments, _nest, "prepare_exclusive", "finish_exclusive",
    ends=frozenset({"targets"}), in_turns=True, chunk=("first", "last"),
)  # fmt: skip

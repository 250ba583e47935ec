"""Triangles: intersections of rows, and local sums of what functions add (0012)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from featgraph.fold.analysis.gathers import ROLES, Sum
from featgraph.fold.passes.nests.facts import NestFacts
from featgraph.fold.schedules.intersect_rows import Intersection
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import (
    FromPlace,
    Intersect,
    Meet,
    Places,
    Target,
    Triangle,
    Waits,
)
from featgraph.fold.tree.statements import Body, Rewriting, code, when

__all__ = ["Intersections", "Sums"]


class Intersections(Rewriting):
    """Lower `Intersect` by the schedule."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts

    def visit_Intersect(self, node: Intersect) -> Body:
        """Return the sweep that finds triangles."""
        schedule = self.facts.schedule
        if not isinstance(schedule, Intersection):
            raise TypeError(f"{schedule.name} does not intersect rows")
        return schedule.intersect(node, self.facts.binding, self.facts.oriented)


class Sums(Rewriting):
    """Accumulate sums of triangles in registers, or in arrays along a row."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts, self.intrinsics = facts, facts.intrinsics
        #: Corner or edge -> the index at which its sums wait; "" for registers.
        self.waiting: dict[str, str] = {}

    def visit_Waits(self, node: Waits) -> Body:
        """Initialize sums; add them to memory behind the body."""
        outer = self.waiting
        self.waiting = {**outer, **dict.fromkeys(node.at, node.index)}
        body = self.over(node.body)
        self.waiting = outer
        own = self._at(node.at)
        if node.index or not own:
            return body
        out: Body = []
        for each in own:
            out += code(f"{each.name} = {each.zero}")
        names = tuple(each.name for each in own)
        taken: Body = []
        for each in own:
            taken += self._settled(each, each.name)
        return [
            *out,
            *body,
            Meet("sum", node.scope, names),
            *self._by_one(node.scope, taken),
        ]

    def visit_Triangle(self, node: Triangle) -> Body:
        """Call the function, and add its results."""
        names = ", ".join(each.more for each in self.facts.sums)
        call = f"{node.function}({', '.join((*ROLES, 'd'))})"
        out = code(f"{names} = {call}" if names else call)
        for each in self.facts.sums:
            index = self.waiting.get(each.role)
            if index is None:
                out += self._settled(each, each.more)
            elif index == "":
                out += code(each.plus(each.more))
            else:
                out += self._put(each, index)
        return out

    def visit_Places(self, node: Places) -> Body:
        """Declare arrays of zeros."""
        own, out = self._at(node.at), code("")
        if self.facts.target is Target.CPU:
            for each in own:
                out += code(f"{each.name} = np.zeros({node.size}, np.{each.dtype})")
            return out
        count = node.size_bytes // sum(np.dtype(each.dtype).itemsize for each in own)
        start = code("")
        for each in own:
            out += code(f"{each.name} = cuda.shared.array({count}, {each.dtype})")
            start += code(f"{each.name}[found] = {each.zero}")
        out += code(f"place_count = {count}")
        turns = f"range(thread, {count}, {self.facts.threads})"
        return out + code(f"for found in {turns}:\n    START", START=start)

    def visit_FromPlace(self, node: FromPlace) -> Body:
        """Add an entry of the arrays to memory."""
        own, rows = self._at(node.at), self.facts.oriented
        roles = {each.role for each in own}
        out: Body = []
        if "w" in roles:
            out += code(f"w = {rows.vertex(rows.upper.end_at(node.place))}")
        if "e_vw" in roles:
            out += code(f"e_vw = {rows.upper.edge(node.place)}")
        for each in own:
            at = f"{each.name}[{node.index}]"
            taken = code(f"{each.more} = {at}") + self._settled(each, each.more)
            if (
                self.facts.target is Target.CUDA
            ):  # a block has one row, and as many places at most
                taken = when([f"{node.index} < {each.name}.shape[0]"], taken)
            else:
                taken += code(f"{at} = 0")
            out += taken
        return out

    def _at(self, roles: Sequence[str]) -> list[Sum]:
        """Return the sums at some corners and edges."""
        return [each for each in self.facts.sums if each.role in roles]

    def _put(self, each: Sum, index: str) -> Body:
        """Add to an entry of a row array, or to memory if it does not fit."""
        if self.facts.target is Target.CPU:
            return code(f"{each.name}[{index}] += {each.more}")
        shared = code(f"warp.atomic_add({each.name}, {index}, {each.more})")
        orelse = self._settled(each, each.more)
        return when([f"{index} < place_count"], shared, orelse)

    def _settled(self, each: Sum, value: str) -> Body:
        """Add a sum to memory, if it is not zero."""
        add = code(f"{self.intrinsics}.atomic_add(d.{each.into}, {each.role}, {value})")
        # Sums of ranks go into outboxes: owners mark the entries that have arrived.
        notes = each.into in self.facts.phase.marks
        if notes and not self.facts.oriented.in_parts:
            for edge in (each.role, self.facts.oriented.twin(each.role)):
                add += code(f"{self.intrinsics}.join_bit(changed_edges, {edge})")
        return when([f"{value} != 0"], add)

    def _by_one(self, scope: str, body: Body) -> Body:
        """Return statements of one lane on behalf of a scope."""
        lanes = self.facts.binding.scopes[scope].lanes
        if lanes == 1:
            return body
        return when(["cuda.laneid == 0" if lanes == WARP else "lane == 0"], body)

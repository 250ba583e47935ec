"""Supersteps over few vertices as one loop of a CPU: what its functions do (0018).

One thread goes along the edges, one after the other. What gathers fill stands in rows
of memory, one for each vertex that was met.
"""

from __future__ import annotations

from dataclasses import replace

from featgraph.fold.functions.facts import Callee, Context
from featgraph.fold.lowering.homes import InRows
from featgraph.fold.lowering.worklists.common import Worklist
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.tree.nodes import Contribute, ForEdges, Only, Start
from featgraph.fold.tree.statements import Body, code, expression, noted, when

__all__ = ["CpuWorklist"]

_PASSED = """
passed[passed_count] = v
passed_count += 1
"""
_MET = """
row = due_count
due[row] = v
due_count += 1
met = due_count
marks[v] = met
"""
_STOPPED = """
marks[v] = -1
stopped_count += 1
due[due.size - stopped_count] = v
"""
_LOOP = """
number, work = 0, 0
passed_count, far_count = sizes[1], 0
while True:
    now = other if number % 2 else d
    REFRESH
    if key < 0:
        sources, passed = passed, sources
        source_count = passed_count
    SPLIT
    COUNT
    ends = number == most or source_count == 0
    if ends or edges > most_edges or work + edges > most_work:
        break
    limits[number] = limit
    CALL
    counts[number] = passed_count
    work += edges
    number += 1
sizes[1], sizes[2], sizes[3] = source_count, far_count, work
limits[number] = limit
END
return sources
"""
_SPLIT = """
if key == {key}:
    source_count, far_count, limit = queue.split(
        now.{name}, sign, delta, limit, passed, passed_count, sources, far, far_count,
        waits,
    )
"""


class CpuWorklist(Worklist):
    """The functions of a loop that one thread of a CPU runs."""

    def __init__(
        self, context: Context, plan: FoldPlan, callees: dict[str, Callee]
    ) -> None:
        super().__init__(context, plan, callees, CpuSchedule())
        self.facts.binding = replace(self.facts.binding, in_rows=True)

    @property
    def rows(self) -> list[InRows]:
        """What gathers fill, in memory."""
        facts = self.facts
        return [InRows(facts, facts.filled(f.name)) for f in self.gathers]

    def front(self) -> Body:
        """Return the names of the features, and what is worked in."""
        return CpuSchedule().front(self.facts.binding)

    def superstep(self) -> Body:
        """Return a superstep from ``sources``; ``passed`` gets those that commit."""
        met = code("met = marks[v]")
        met += when(["met == 0"], self._meet())
        takes: Body = code("row = int64(uint32(met - 1))")
        takes += [Contribute(f.name) for f in self.gathers]
        edges = ForEdges("u", [*met, Only(expression("met > 0"), takes, seldom=True)])
        out = self.front() + code("due_count = 0")
        out += [] if self.repeats else code("stopped_count = 0")
        out += _each_source("v", self._meet()) + _each_source("u", [edges])
        out += code("passed_count = 0")
        loop = "for row in range(due_count):\n    BODY"
        out += code(loop, BODY=self._commit())
        if not self.repeats:
            behind = "marks[int64(due[due.size - 1 - place])] = 0"
            out += code(f"for place in range(stopped_count):\n    {behind}")
        return out + code("return passed_count")

    def _meet(self) -> Body:
        """Return what is done for `v` where it is met for the first time.

        It leaves one more than the row of what its gathers fill in ``met``.
        """
        body = code(_MET)
        body += [Start(str(f.into)) for f in self.gathers]
        test = "goes_on_0(chunk, v, d)" if self.before else ""
        return when([test], body, [] if self.repeats else code(_STOPPED))

    def _commit(self) -> Body:
        """Return what is done for a vertex that was met, behind all edges."""
        out = code("v = due[row]\nmarks[v] = 0")
        return out + self.settled() + when(["alive"], code(_PASSED), self.dropped())

    def loop(self, call: str, other: str, unlike: list[str]) -> Body:
        """Return the loop; `call` runs a superstep.

        Parameters
        ----------
        other : str
            ``d`` with both buffers of what is committed exchanged.
        unlike : list of str
            Tests that arrays have rows of another length than they have. None of them
            ever holds. Behind them rows are as long as the compiler is told, and it
            multiplies by a number that it knows.
        """
        layout, plan = self.facts.layout, self.facts.plan
        refresh = [
            f"queue.refresh(now.{name}_next, now.{name}, passed, passed_count)"
            for name in self.facts.phase.writes_next
        ]
        split: Body = []
        for key, name in enumerate(plan.facts.queue_keys):
            split += code(_SPLIT.format(key=key, name=name))
        row = layout.row("u") + code(f"edges += {layout.degree}")
        count = code("edges = 0") + _each_source("u", row)
        end = noted(code("sizes[0] = number"), "last: what is told stands")
        out = when([" or ".join(unlike)], code("return passed")) if unlike else []
        out += code(f"other = {other}")
        return out + code(
            _LOOP, REFRESH=code("\n".join(refresh)), SPLIT=split, COUNT=count,
            CALL=code(f"passed_count = {call}"), END=end,
        )  # fmt: skip


def _each_source(vertex: str, body: Body) -> Body:
    """Return a loop over the active vertices."""
    loop = f"for place in range(source_count):\n    {vertex} = sources[place]\n    BODY"
    return code(loop, BODY=body)

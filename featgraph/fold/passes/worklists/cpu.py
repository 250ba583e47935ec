"""The worklist loop of the CPU: one thread processes edges sequentially (0018).

Accumulators are rows in memory, one for each visited vertex. ``marks[v]`` is 0 for a
vertex not visited in the superstep, -1 for one that has stopped, and else one more than
the number of its row. The list ``due`` has visited vertices in the order of their rows
and, from its end, stopped ones. The strings below are parts of the generated loop.
"""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.homes import InRows
from featgraph.fold.passes.worklists.common import Worklist
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.worklist import overwrites, settles_at_once
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.tree.nodes import ForEdges, Only, Start
from featgraph.fold.tree.statements import Body, code, expression, noted, when

__all__ = ["CpuWorklist"]

#: Append `v` to the committed vertices.
_PASSED = """
passed[passed_count] = v
passed_count += 1
"""
#: Give `v` the next row of accumulators.
_MET = """
row = due_count
due[row] = v
due_count += 1
met = due_count
marks[v] = met
"""
#: Mark `v` as stopped, so that further edges to it do nothing.
_STOPPED = """
marks[v] = -1
stopped_count += 1
due[due.size - stopped_count] = v
"""
_GOES_ON = "goes_on_0(chunk, v, d)"
#: Distance in the list of active vertices between the one whose row is read and the one
#: whose row is prefetched: these rows are scattered in memory. `bfs` on coAuthorsDBLP
#: took 21 ms in place of 27 on one shared core, with distances of 4, 8 and 16 (AMD
#: EPYC, 2026-11-29).
AHEAD = 8
#: The loop. It ends after `most` supersteps, if no vertex is active, or if the edges to
#: walk exceed `most_edges` in a superstep, or `most_work` in all.
_LOOP = """
number, work = 0, 0
passed_count, far_count = sizes[1], 0
while True:
    BUFFERS
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
"""
#: With near and far vertices: list the near ones as sources, let the others wait.
_SPLIT = """
if key == {key}:
    source_count, far_count, limit = queue.split(
        {now}.{name}, sign, delta, limit, passed, passed_count, sources, far, far_count,
        waits,
    )
"""


class CpuWorklist(Worklist):
    """Functions of the loop that one CPU thread runs.

    Attributes
    ----------
    overwrites : bool
        Whether current and next buffers are the same.
    at_once : bool
        Whether one edge can settle a vertex: see `settled_at_once`.
    """

    def __init__(
        self, context: Context, plan: FoldPlan, callees: dict[str, Callee]
    ) -> None:
        super().__init__(context, plan, callees, CpuSchedule())
        self.overwrites = overwrites(plan)
        self.at_once = settles_at_once(plan)
        self.facts.binding = replace(self.facts.binding, in_rows=True)

    @property
    def rows(self) -> list[InRows]:
        """Accumulators in memory."""
        facts = self.facts
        return [InRows(facts, facts.filled(f.name)) for f in self.gathers]

    def front(self) -> Body:
        """Return the declarations of the features and of the work areas."""
        return CpuSchedule().front(self.facts.binding)

    @property
    def stops(self) -> bool:
        """Whether vertices may be marked as stopped, which gives them no row."""
        return self.at_once or not self.repeats

    def superstep(self) -> Body:
        """Return a superstep from ``sources`` to ``passed``, the committed vertices."""
        # Unsigned: an index that may be negative costs a test.
        takes: Body = code("row = int64(uint32(met - 1))")
        takes += self.contributes()
        takes = [Only(expression("met > 0"), takes, seldom=not self.at_once)]
        edges = ForEdges("u", [*self._meet_by_edge(), *takes])
        out = self.front() + code("due_count, passed_count = 0, 0")
        out += code("stopped_count = 0") if self.stops else []
        out += _each_source("v", self._meet())  # active vertices are due, too
        out += _each_source("u", [*self._prefetch(), edges])
        loop = "for row in range(due_count):\n    BODY"
        out += code(loop, BODY=self._commit())
        if self.stops:
            behind = "marks[int64(due[due.size - 1 - place])] = 0"
            out += code(f"for place in range(stopped_count):\n    {behind}")
        return out + code("return passed_count")

    def _prefetch(self) -> Body:
        """Prefetch the begin of the row of an active vertex `AHEAD` in the list."""
        layout = self.facts.layout
        ahead = code(f"ahead = sources[min(place + {AHEAD}, source_count - 1)]")
        fetch = code(f"cpu.prefetch({layout.ends}, start)")
        return ahead + layout.row("ahead") + fetch

    def settled_at_once(self) -> Body:
        """Return the function that settles `v` by one edge from ``u``, if possible.

        It returns whether the edge settles `v`, and whether `v` commits.
        """
        out = (
            self.tried_at_once()
            + code("alive = False")
            + when(["all_found"], self.settled())
        )
        return out + code("return all_found, alive")

    def _meet_by_edge(self) -> Body:
        """Return the visit of `v` at an edge, in front of its contributions.

        It sets ``met`` as `_meet` does, or to 0 if the edge contributes nothing.
        """
        if not self.at_once:
            return code("met = marks[v]") + when(["met == 0"], self._meet())
        # Few vertices have marks; while none has, they are not loaded.
        met = code("met = 0")
        met += when(["due_count + stopped_count > 0"], code("met = marks[v]"))
        at_once = code("all_found, alive = settled_0(chunk, u, v, e, d)")
        # A settled vertex that still goes on must not be settled a second time.
        again = when([_GOES_ON], code(_STOPPED))
        passed = when(["alive"], code(_PASSED))
        at_once += when(["all_found"], passed + again, self._row())
        return met + when(["met == 0"], when([_GOES_ON], at_once))

    def _meet(self) -> Body:
        """Return the first visit of `v`.

        It sets ``met`` to one more than the row of accumulators of `v`.
        """
        test = _GOES_ON if self.before else ""
        return when([test], self._row(), [] if self.repeats else code(_STOPPED))

    def _row(self) -> Body:
        """Give `v` a row of accumulators, and initialize it."""
        return code(_MET) + [Start(str(f.into)) for f in self.gathers]

    def _commit(self) -> Body:
        """Return the commit of a visited vertex behind all edges."""
        out = code("v = due[row]\nmarks[v] = 0")
        return out + self.settled() + when(["alive"], code(_PASSED), self.dropped())

    @property
    def now(self) -> str:
        """Variable with the current entries of a superstep."""
        return "d" if self.overwrites else "now"

    def loop(self, call: str, other: str, unlike: list[str]) -> Body:
        """Return the loop; `call` runs a superstep.

        Parameters
        ----------
        call : str
            Call of the superstep, with the argument `now`.
        other : str
            ``d`` with current and next buffers exchanged.
        unlike : list of str
            Tests, never True, that rows have another length. Behind them, lengths are
            constants for the compiler in computations of indices.
        """
        layout, plan = self.facts.layout, self.facts.plan
        exchange, buffers = code(""), code("")
        if not self.overwrites:
            exchange = code(f"other = {other}")
            buffers = code("now = other if number % 2 else d")
            # Both buffers are then equal, except where the superstep writes.
            for name in self.facts.phase.writes_next:
                own = f"now.{name}_next, now.{name}"
                buffers += code(f"queue.refresh({own}, passed, passed_count)")
        split: Body = []
        for key, name in enumerate(plan.facts.queue_keys):
            split += code(_SPLIT.format(key=key, name=name, now=self.now))
        row = layout.row("u") + code(f"edges += {layout.degree}")
        count = code("edges = 0") + _each_source("u", row)
        end = noted(code("sizes[0] = number"), "last: what is told stands")
        out = when([" or ".join(unlike)], code("return")) if unlike else []
        return out + exchange + code(
            _LOOP, BUFFERS=buffers, SPLIT=split, COUNT=count,
            CALL=code(f"passed_count = {call}"), END=end,
        )  # fmt: skip


def _each_source(vertex: str, body: Body) -> Body:
    """Return a loop over the active vertices."""
    loop = f"for place in range(source_count):\n    {vertex} = sources[place]\n    BODY"
    return code(loop, BODY=body)

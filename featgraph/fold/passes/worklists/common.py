"""Base class of compiled loops over supersteps of few vertices (0018, 0042).

A superstep pushes along the out-edges of the active vertices (the worklist). A vertex
that it visits for the first time runs the functions in front of the gathers, and
contributions are combined in memory. Then visited vertices that have not stopped run
the functions behind the gathers. Only lists of vertices pass from one superstep to the
next. `Worklist` has the parts that both targets share: the test that a vertex goes on,
contributions, and functions behind all edges.
"""

from __future__ import annotations

from collections.abc import Sequence

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.access import next_dropped
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.accumulators import final_test
from featgraph.fold.passes.nests.facts import NestFacts, element, layout_of
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.traits import along_to_push
from featgraph.fold.plan.worklist import parts_of
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.tree.nodes import (
    AllFound,
    Areas,
    Comment,
    Contribute,
    Copy,
    Run,
    Settle,
    Start,
    Then,
)
from featgraph.fold.tree.statements import Body, code, expression, when

__all__ = ["Worklist"]


class Worklist:
    """Functions of the loop over supersteps of a plan of one phase.

    Attributes
    ----------
    pushed : Phase
        The phase, with edges in push direction.
    repeats : bool
        Whether the functions in front of the gathers write nothing, so that they may
        run several times for a vertex.
    of_an_edge : NestFacts
        Facts for `tried_at_once`: accumulators of one edge are in registers.
    """

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        callees: dict[str, Callee],
        schedule: Schedule,
    ) -> None:
        [phase] = plan.phases
        parts = parts_of(plan.functions_of(phase))
        self.before, self.gathers, self.behind = parts
        along = along_to_push(phase.along, self.gathers, plan.analysis, plan.traits)
        self.pushed = replace(phase, along=along)
        self.repeats = not any(
            a.mode != "read" for f in self.before for a in f.accesses
        )
        self.facts = NestFacts(context, plan, phase, callees, schedule)
        # Edges are walked from their sources, not along the rows of the phase.
        self.facts.layout = layout_of(plan, self.pushed)
        # Copied before a target sets the binding, by which accumulators are in memory.
        self.of_an_edge = replace(self.facts)

    def front(self) -> Body:
        """Return the declarations of the features and of the work areas of a lane."""
        return [Areas()]

    def goes_on(self) -> Body:
        """Return the body of the test that vertex `v` goes on to its gathers."""
        dropped = self.copied(next_dropped([f.body for f in self.before]))
        runs = self.runs(self.before) + when(["not alive"], dropped)
        return self.front() + runs + code("return alive")

    def contributes(self) -> Body:
        """Return the contributions of an edge to all gathers."""
        return [Contribute(f.name) for f in self.gathers]

    def tried_at_once(self) -> Body:
        """Return the contributions of one edge, and the test that they settle `v`."""
        facts = self.of_an_edge
        filled = [facts.filled(f.name) for f in self.gathers]
        out = self.front() + [Start(a.name) for a in filled] + self.contributes()
        return [*out, AllFound([expression(final_test(a, element(a))) for a in filled])]

    def settled(self) -> Body:
        """Return the functions of a vertex behind its edges, without restores."""
        return [*(Settle(str(f.into)) for f in self.gathers), *self.runs(self.behind)]

    def dropped(self) -> Body:
        """Return the restores of entries that a vertex wrote and did not commit."""
        bodies = [f.body for f in (*self.before, *self.behind)]
        return self.copied(next_dropped(bodies))

    def runs(self, functions: Sequence[Analysed]) -> Body:
        """Return vertex functions, each run if the one before returned True."""
        first, *rest = functions
        kind = f"{first.kind} function {first.declared.name}"
        behind: Body = [Then(self.runs(rest))] if rest else []
        return [Comment(kind), Run(first.name), *behind]

    def copied(self, dropped: frozenset[str], commits: bool = False) -> Body:
        """Return the copies of the entries of a vertex in `dropped` properties.

        If `commits`, next entries are copied to the current buffer.
        """
        names = self.facts.of_vertices(tuple(sorted(dropped)))
        return [Copy(names, "v", commits)] if names else []

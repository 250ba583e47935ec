"""What loops over supersteps of few vertices have in common (0018, 0042).

A superstep goes along the edges out of the active vertices. A vertex that is met for
the first time runs what stands before the gathers, and what they fill is combined in
memory. Then those that were met, and not stopped, run the rest. Nothing but lists of
vertices is handed on.
"""

from __future__ import annotations

from collections.abc import Sequence

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.definite_assignment import next_dropped
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.facts import NestFacts, layout_of
from featgraph.fold.plan.layout import along_to_push
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.worklist import parts_of
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.tree.nodes import Areas, Comment, Copy, Run, Settle, Then
from featgraph.fold.tree.statements import Body, code, when

__all__ = ["Worklist"]


class Worklist:
    """What loops over the supersteps of a plan of one phase have in common.

    Attributes
    ----------
    pushed : Phase
        The phase, as its vertices push along the edges that lead out of them.
    repeats : bool
        Whether it is all the same how often the first functions run.
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
        self.facts.layout = layout_of(plan, self.pushed)

    def front(self) -> Body:
        """Return the names of the features, and what is worked in."""
        return [Areas()]

    def goes_on(self) -> Body:
        """Return the test that a vertex goes on to its gathers."""
        dropped = self.copied(next_dropped([f.body for f in self.before]))
        runs = self.runs(self.before) + when(["not alive"], dropped)
        return self.front() + runs + code("return alive")

    def settled(self) -> Body:
        """Return what a vertex does behind all edges, but for what it has dropped."""
        return [*(Settle(str(f.into)) for f in self.gathers), *self.runs(self.behind)]

    def dropped(self) -> Body:
        """Return what puts back what a vertex has written, and then dropped."""
        bodies = [f.body for f in (*self.before, *self.behind)]
        return self.copied(next_dropped(bodies))

    def runs(self, functions: Sequence[Analysed]) -> Body:
        """Return vertex functions, each behind True of the one before."""
        first, *rest = functions
        kind = f"{first.kind} function {first.declared.name}"
        behind: Body = [Then(self.runs(rest))] if rest else []
        return [Comment(kind), Run(first.name), *behind]

    def copied(self, dropped: frozenset[str], commits: bool = False) -> Body:
        """Return copies of a vertex's entries, where it has any of these."""
        names = self.facts.of_vertices(tuple(sorted(dropped)))
        return [Copy(names, "v", commits)] if names else []

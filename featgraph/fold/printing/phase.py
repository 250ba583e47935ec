"""What a target prints kernels from: a phase, and what its functions have become."""

from __future__ import annotations

from featgraph.base.dataclass import dataclass
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.statements import make_function, print_once
from featgraph.fold.printing.writer import Writer
from featgraph.fold.schedules.base import GraphArray, Schedule
from featgraph.fold.tree.statements import Body

__all__ = ["PhaseToPrint"]


@dataclass(frozen=True, eq=False)
class PhaseToPrint:
    """A phase of a plan, behind its functions.

    Attributes
    ----------
    writer : Writer
        Takes the kernels.
    context : Context
        How its functions were printed.
    plan, phase : FoldPlan, Phase
        What has been decided.
    number : int
        Of the phase in the plan.
    callees : dict
        Emitted name of a function -> how it is called.
    """

    writer: Writer
    context: Context
    plan: FoldPlan
    phase: Phase
    number: int
    callees: dict[str, Callee]

    def facts(self, schedule: Schedule, threads: int = 0) -> Facts:
        """Return what passes ask about a kernel of the phase, in some schedule."""
        return Facts(
            self.context, self.plan, self.phase, self.callees, schedule, threads
        )

    @property
    def ordered(self) -> tuple[GraphArray, ...]:
        """Copies of properties of edges, in the order in which edges are taken."""
        types = self.plan.analysis.signature
        return tuple(
            GraphArray(f"ordered_{name}", dtype=types[name].dtype)
            for name in self.phase.ordered
        )

    def finish(
        self, name: str, decorator: str, doc: str, body: Body, block: int = 0
    ) -> Entry:
        """Print the kernel that combines the rows of `partials` of a reduce."""
        arguments = ("partials", "reduced")
        print_once(self.writer, make_function(decorator, name, arguments, doc, body))
        return Entry(name, self.number, "finish", arguments, block=block)

"""The interface of a kind of phase, and the parts of nests that several kinds share.

A plan is a sequence of phases, each of them a kernel. The kind of a phase defines which
functions run in it, the arguments and the loop nest of its kernel, and which vertices
it may make due. Planner, passes, printing and runtime read that from `Phase.kind`; none
of them compares the name of a kind.

This room is imported by the plan. A kind makes a nest from the facts of a kernel, of
which `NestFacts` is the interface; the class is in `passes/nests/facts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import Sum
from featgraph.fold.schedules.base import Binding, Schedule
from featgraph.fold.schedules.intersect_rows import Oriented
from featgraph.fold.tree import nodes
from featgraph.fold.tree.layout import AdjacencyLayout
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body

__all__ = [
    "Names", "NestFacts", "PhaseKind", "along_edge", "loads", "nested", "reads_what",
    "restored",
]  # fmt: skip

Names = Sequence[str]


class NestFacts(Protocol):
    """The facts of a kernel from which its kind makes the nest and the arguments.

    Attributes
    ----------
    plan, phase : FoldPlan, Phase
        Decisions of the planner. Their classes are in rooms that import this one, so
        that they are no types here.
    context : Context
        How functions are printed; likewise.
    callees : dict
        Emitted name of a function -> how it is called.
    schedule : Schedule
        Schedule of the phase.
    """

    plan: Any
    phase: Any
    context: Any
    callees: Any
    schedule: Schedule

    @property
    def target(self) -> Target:
        """Target of the kernel."""

    @property
    def intrinsics(self) -> str:
        """Module of `featgraph.device` with atomics, bits and shuffles."""

    @property
    def functions(self) -> dict[str, Analysed]:
        """Functions of the phase by their emitted names, in order."""

    @property
    def reduced(self) -> str:
        """The accumulator of a phase of one function, a push or a reduce."""

    @property
    def summed(self) -> list[str]:
        """Accumulators that are summed in blocks."""

    @property
    def sums(self) -> tuple[Sum, ...]:
        """Sums that a triangle function adds to its corners and edges."""

    @property
    def read_entries(self) -> tuple[str, ...]:
        """Entries of temporaries at constant features that functions read."""

    @property
    def finds_due(self) -> bool:
        """Whether the kernel finds which of the swept vertices are due."""

    @property
    def binding(self) -> Binding:
        """The binding of the schedule."""

    @property
    def layout(self) -> AdjacencyLayout:
        """The layout of the rows that the phase walks."""

    @property
    def oriented(self) -> Oriented:
        """The rows that a triangle phase intersects."""

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return the layout of the rows along "in", "out" or "both"."""

    def of_vertices(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties among `names` that belong to vertices."""

    def of_edges(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties among `names` that belong to edges."""

    def number(self, text: str) -> str:
        """Return the text of an edge id, converted to the type of edge ids."""

    def base(self, name: str) -> str | None:
        """Return the accumulator of a name: a temporary, its sources, or an entry."""

    def is_filled_here(self, name: str) -> bool:
        """Return whether a temporary, or the row of an entry, is gathered here."""


@dataclass(frozen=True, eq=False)
class PhaseKind:
    """One kind of phase.

    Attributes
    ----------
    name : str
        Name in plans, and in the names of kernels.
    runs : callable
        (function, whether gathers are pushed) -> whether it runs in such a phase.
    title : callable
        Facts -> one line in the docstring of the kernel.
    arguments : callable
        (facts, places, more) -> names of the arguments of the kernel. `places` are the
        arguments by which threads find their vertices or edges; `more` are the list of
        a listed set, and the least degree of hubs.
    nest : callable
        Facts -> the nest, which is the same for all schedules and targets.
    prepare, finish : str
        Functions of `runtime.superstep.kinds` that run before the kernels of a phase
        are launched, and afterwards.
    ends : frozenset of str
        The vertices that it may make due: "passed" (vertices that it swept), "targets"
        (of edges that it swept), or both. Empty for a kind that makes none due.
    pulls : bool
        Whether it sweeps due vertices, each along its own row of edges.
    pulls_edges : bool
        Whether edge functions run along these rows, in front of the gathers.
    pushes : bool
        Whether it combines in memory of targets, along the out-edges of sources.
    sweeps_edges : bool
        Whether it runs edge functions on the out-edges of sources.
    intersects : bool
        Whether it runs on triangles.
    reduces : bool
        Whether it combines over all vertices.
    in_turns : bool
        Whether one kernel runs several turns, with barriers of all threads in between.
    chunks : str
        Array of the graph with the cuts into chunks of equal work (CPU); "" for the
        array that belongs to its rows.
    chunk : (str, str)
        Variables of the first element of a chunk, and of the one behind it (CPU).
    sweeps_blocks : bool
        Whether chunks consist of blocks of vertices, each with a row of partial
        results.
    """

    name: str
    runs: Callable[[Analysed, bool], bool]
    title: Callable[[NestFacts], str]
    arguments: Callable[[NestFacts, Names, Names], list[str]]
    nest: Callable[[NestFacts], Body]
    prepare: str
    finish: str
    ends: frozenset[str] = frozenset()
    pulls: bool = False
    pulls_edges: bool = False
    pushes: bool = False
    sweeps_edges: bool = False
    intersects: bool = False
    reduces: bool = False
    in_turns: bool = False
    chunks: str = ""
    chunk: tuple[str, str] = ("first_word", "last_word")
    sweeps_blocks: bool = False

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def reports_due(self) -> bool:
        """Whether it makes vertices due."""
        return bool(self.ends)

    @property
    def from_sources(self) -> bool:
        """Whether sources write along their out-edges."""
        return self.pushes or self.sweeps_edges

    @property
    def fills(self) -> bool:
        """Whether it runs one function, whose values are combined in memory."""
        return self.pushes or self.reduces


def along_edge(facts: NestFacts, behind: Body) -> Body:
    """Return the calls of all edge functions on an edge, then `behind`."""
    phase = facts.phase
    groups = [[f] for f in facts.functions.values() if f.kind.writes_edges]
    out: Body = [nodes.Begin(facts.of_edges(phase.copies), "e")]
    out += [*nested(facts, groups, [], []), *behind]
    return out + restored(facts.of_edges(phase.restores), "e")


def restored(names: tuple[str, ...], entity: str) -> Body:
    """Return the statement that restores the properties `names`, if there are any."""
    return [nodes.Restore(names, entity)] if names else []


def loads(facts: NestFacts) -> Body:
    """Return the loads of temporaries of earlier phases, single entries last."""
    entries = [n for n in facts.read_entries if not facts.is_filled_here(n)]
    return [nodes.FromMemory(name) for name in (*facts.phase.loads, *entries)]


def nested(
    facts: NestFacts, groups: Sequence[list[Analysed]], ran: list[Analysed], last: Body
) -> Body:
    """Return the calls of groups of functions, then `last`.

    Each function runs if the one before it returned True. Gathers of a group share a
    walk over edges; `ran` are the functions that run before.
    """
    if not groups:
        return last
    group, *rest = groups
    behind = nested(facts, rest, [*ran, *group], last)
    [function, *_] = group
    entity = "e" if function.kind.writes_edges else "v"
    out: Body = [nodes.Ordered(entity)] if reads_what(facts, ran, group) else []
    if function.kind.gathers:
        names = tuple(f.name for f in group)
        edges = nodes.ForEdges("v", [nodes.Contribute(name) for name in names])
        out.append(nodes.Gathers(names, edges))
        # If the kernel finds the due vertices, it does so in the walk over edges.
        return [*out, *([nodes.Then(behind)] if facts.finds_due else behind)]
    out.append(nodes.Comment(f"{function.kind} function {function.declared.name}"))
    return [*out, nodes.Run(function.name), *([nodes.Then(behind)] if rest else behind)]


def reads_what(facts: NestFacts, ran: list[Analysed], group: list[Analysed]) -> bool:
    """Return whether functions access entries that functions before them wrote.

    Then lanes of a vertex must synchronize, since another lane may have written.
    """
    wrote = {(a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"}
    # Forwarded entries are in registers of the lane that reads them.
    wrote -= {(name, "next") for name in facts.context.forwarded}
    return bool(wrote & {(a.name, a.version) for f in group for a in f.accesses})

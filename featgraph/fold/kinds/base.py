"""The interface of a kind of phase, and the parts of nests that several kinds share.

A plan is a sequence of phases, each of them a kernel. The kind of a phase defines which
functions run in it, the arguments and the nest of its kernel, and which vertices it may
make due. Planning, lowering, printing and the runtime read that from `Phase.kind`: none
of them compares its name.

Kinds stand below the plan. A nest is made from the facts of a kernel, which lowering
has; `NestFacts` lists the facts that kinds read.
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
        Decisions of the planner. Their classes stand above this room.
    context : Context
        How functions are printed; its class stands above, too.
    callees : dict
        Emitted name of a function -> how it is called.
    schedule : Schedule
        How vertices, edges and features go to threads.
    """

    plan: Any
    phase: Any
    context: Any
    callees: Any
    schedule: Schedule

    @property
    def target(self) -> Target:
        """Where the kernel runs."""

    @property
    def intrinsics(self) -> str:
        """Module that atomics, bits and shuffles come from."""

    @property
    def functions(self) -> dict[str, Analysed]:
        """Functions of the phase by their emitted names, in order."""

    @property
    def reduced(self) -> str:
        """The accumulator of a phase of one function, which fills it."""

    @property
    def summed(self) -> list[str]:
        """Accumulators that are summed in blocks."""

    @property
    def sums(self) -> tuple[Sum, ...]:
        """Sums that a triangle function adds to its corners and edges."""

    @property
    def read_entries(self) -> tuple[str, ...]:
        """Single gathered values that functions of the phase are given."""

    @property
    def finds_due(self) -> bool:
        """Whether the kernel finds which of the vertices that it sweeps are due."""

    @property
    def binding(self) -> Binding:
        """The binding of the schedule."""

    @property
    def layout(self) -> AdjacencyLayout:
        """The layout of the rows that the phase goes along."""

    @property
    def oriented(self) -> Oriented:
        """The rows in which a triangle phase looks for neighbors."""

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return the layout of the rows along other edges."""

    def of_vertices(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties among `names` that belong to vertices."""

    def of_edges(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties among `names` that belong to edges."""

    def number(self, text: str) -> str:
        """Return the text of the number of an edge, in the type of edge numbers."""

    def base(self, name: str) -> str | None:
        """Return the accumulator of a temporary: itself, its sources or an entry."""

    def is_filled_here(self, name: str) -> bool:
        """Whether a temporary, or the row that it is an entry of, is gathered here."""


@dataclass(frozen=True, eq=False)
class PhaseKind:
    """One kind of phase.

    Attributes
    ----------
    name : str
        Its name in plans, and in the names of kernels.
    runs : callable
        (function, whether gathers are pushed) -> whether it runs in such a phase.
    title : callable
        Facts -> one line in the docstring of the kernel.
    arguments : callable
        (facts, places, more) -> arguments of the kernel, by name. `places` are those by
        which its threads find what they sweep, `more` those of the form of a launch.
    nest : callable
        Facts -> the nest: what the phase does, for any schedule and target.
    prepare, finish : str
        Functions of `runtime.superstep.kinds` that are called before its entries are
        launched, and afterwards.
    ends : frozenset of str
        The vertices that it may make due: "passed" (those that it swept), "targets"
        (of edges that it swept), or both. Empty for a kind that makes none due.
    pulls : bool
        Whether it sweeps due vertices, each along its own row of edges.
    pulls_edges : bool
        Whether edge functions run along these rows, from sources, in front of gathers.
    pushes : bool
        Whether it combines into memory along the edges from sources.
    sweeps_edges : bool
        Whether it runs edge functions on the out-edges of sources.
    intersects : bool
        Whether it runs on triangles.
    reduces : bool
        Whether it combines over all vertices.
    in_turns : bool
        Whether one kernel runs turns, between which all threads meet.
    chunks : str
        The array of the graph with the cuts into chunks of equal work; "" for that of
        the rows that it goes along.
    chunk : (str, str)
        The bounds of a chunk (CPU).
    sweeps_blocks : bool
        Whether chunks are of blocks of vertices, each with a row of partial results.
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
        """Whether it runs one function, and combines the values in memory."""
        return self.pushes or self.reduces


def along_edge(facts: NestFacts, behind: Body) -> Body:
    """Return the calls of edge functions on an edge, and `behind` the calls."""
    phase = facts.phase
    groups = [[f] for f in facts.functions.values() if f.kind.writes_edges]
    out: Body = [nodes.Begin(facts.of_edges(phase.copies), "e")]
    out += [*nested(facts, groups, [], []), *behind]
    return out + restored(facts.of_edges(phase.restores), "e")


def restored(names: tuple[str, ...], entity: str) -> Body:
    """Return the statement that restores entries, if there are any."""
    return [nodes.Restore(names, entity)] if names else []


def loads(facts: NestFacts) -> Body:
    """Return the loads of temporaries of earlier phases, single entries last."""
    entries = [n for n in facts.read_entries if not facts.is_filled_here(n)]
    return [nodes.FromMemory(name) for name in (*facts.phase.loads, *entries)]


def nested(
    facts: NestFacts, groups: Sequence[list[Analysed]], ran: list[Analysed], last: Body
) -> Body:
    """Return calls in order; each function runs where the one before returned True.

    `last` stands behind all of them.
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
        # Whether the vertex is due is known behind its edges then.
        return [*out, *([nodes.Then(behind)] if facts.finds_due else behind)]
    out.append(nodes.Comment(f"{function.kind} function {function.declared.name}"))
    return [*out, nodes.Run(function.name), *([nodes.Then(behind)] if rest else behind)]


def reads_what(facts: NestFacts, ran: list[Analysed], group: list[Analysed]) -> bool:
    """Whether functions read what earlier ones wrote, in other lanes as well."""
    wrote = {(a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"}
    wrote -= {(name, "next") for name in facts.context.forwarded}
    return bool(wrote & {(a.name, a.version) for f in group for a in f.accesses})

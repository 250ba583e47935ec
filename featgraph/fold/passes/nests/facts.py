"""What passes ask about a phase: its functions, what they fill, and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.changes import IncrementalGather
from featgraph.fold.analysis.expressions import needs_guard
from featgraph.fold.analysis.gathered_values import base_name
from featgraph.fold.analysis.gathers import Sum, find_sums, in_blocks
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.bodies.store_sinking import reads_what_it_changes
from featgraph.fold.passes.nests.accumulators import Accumulator, accumulator_of
from featgraph.fold.passes.nests.layouts import layout_along, layout_of, types_of
from featgraph.fold.plan.layout import rows_along
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.schedules.base import Binding, KernelShape, Schedule
from featgraph.fold.tree.layout import AdjacencyLayout
from featgraph.fold.tree.oriented import Oriented, SortedRows
from featgraph.fold.tree.statements import Body
from featgraph.fold.tree.target import Target
from featgraph.program.combines import Combine
from featgraph.program.signature import PropertyKind, Real

__all__ = ["Facts", "RowFacts", "element", "shape_of"]

#: What the compiler of a GPU contracts with nothing, by the type of what is added.
_ADDS = {
    Real.FLOAT32: "cuda.libdevice.fadd_rn", Real.FLOAT64: "cuda.libdevice.dadd_rn",
}  # fmt: skip


class RowFacts(Protocol):
    """What passes ask about any kernel that goes through rows of edges."""

    @property
    def binding(self) -> Binding:
        """What its schedule says of itself."""

    @property
    def layout(self) -> AdjacencyLayout:
        """How edges are found."""

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return how edges along others are found; "" for `layout`."""


def shape_of(accumulator: Accumulator) -> str:
    """Return what features an accumulator has: "one", "wide" or "matrix"."""
    return ("one", "wide", "matrix")[len(accumulator.shape)]


def element(accumulator: Accumulator, name: str = "") -> str:
    """Return an element of an accumulator, or of what goes with one."""
    index = {"one": "", "wide": "[f]", "matrix": "[i, f]"}[shape_of(accumulator)]
    return f"{name or accumulator.name}{index}"


@dataclass(eq=False)
class Facts:
    """One kernel of a phase of a plan.

    Attributes
    ----------
    context : Context
        How its functions are printed.
    plan, phase : FoldPlan, Phase
        What has been decided.
    callees : dict
        Emitted name of a function -> how it is called.
    schedule : Schedule
        How vertices, edges and features go to threads.
    threads : int
        Of a block; 0 on the CPU.
    arguments : tuple of str
        What the kernel is given.
    covers : bool
        Whether the grid has a place for each vertex.
    nest : callable or None
        What makes its nest, where that is not a phase's.
    """

    context: Context
    plan: FoldPlan
    phase: Phase
    callees: dict[str, Callee]
    schedule: Schedule
    threads: int = 0
    arguments: tuple[str, ...] = ()
    covers: bool = False
    nest: Callable[[], Body] | None = None

    @property
    def title(self) -> str:
        """Which kernel it is, to read."""
        number, schedule = self.plan.phases.index(self.phase), type(self.schedule)
        return f"{self.phase.kind} phase {number}, {schedule.__name__}"

    @property
    def finds_due(self) -> bool:
        """Whether the kernel tells which of the vertices that it sweeps are due."""
        return self.phase.finds_due and self.nest is None

    @property
    def target(self) -> Target:
        """Where the kernel runs."""
        return Target(self.plan.target)

    @property
    def intrinsics(self) -> str:
        """Module that atomics, bits and shuffles come from."""
        return self.target.intrinsics

    @cached_property
    def functions(self) -> dict[str, Analysed]:
        """Functions of the phase by their emitted names, in order."""
        return {f.name: f for f in self.plan.functions_of(self.phase)}

    @cached_property
    def accumulators(self) -> dict[str, Accumulator]:
        """What gathers and reduces of the program fill, by name.

        Beside that, whether an edge of a vertex passed: lanes combine that, too.
        """
        analysis = self.plan.analysis
        passed = Accumulator("edge_passed", "bool", Combine("any"), "", "False", ())
        found = {"edge_passed": passed} | {
            f.accumulator: accumulator_of(f, analysis)
            for f in analysis.functions
            if f.kind.combines
        }
        if self.phase.in_a_tree and self.target is Target.CUDA:
            name = self.reduced
            adds = _ADDS[self.context.real] if found[name].rules.is_sum else ""
            found[name] = replace(found[name], adds=adds)
        return found

    @property
    def reduced(self) -> str:
        """The accumulator of a reduce phase, which has one function."""
        [function] = self.functions.values()
        return function.accumulator

    @cached_property
    def layout(self) -> AdjacencyLayout:
        """How edges are found: the rows that the phase goes along."""
        return layout_of(self.plan, self.phase)

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return how edges along others are found, but not their numbers."""
        if not along:
            return self.layout
        rows = rows_along(along, finds_edges=False)
        return layout_along(rows, self.plan.traits, self.plan.target)

    @cached_property
    def shape(self) -> KernelShape:
        """What the schedule is told."""
        by_feature = not all(
            p.is_collective or p.function.is_scalar for p in self.callees.values()
        )
        count, form = "vertex_count", self.plan.form
        if self.target is Target.CPU:
            count = self.layout.vertex_count
            form = "listed" if self.phase.kind.pulls else form
        kind = self.phase.kind
        return KernelShape(
            self.phase.width, kind.pulls, kind.reduces, self.phase.spreads, form,
            self.threads, self.covers, by_feature, count, *types_of(self.plan),
        )  # fmt: skip

    @cached_property
    def binding(self) -> Binding:
        """What the schedule says of itself."""
        found = self.schedule.bind(self.phase.mapping, self.shape)
        axis = replace(found.features, any_width=self.phase.any_width)
        return replace(found, features=axis)

    def filled(self, function: str) -> Accumulator:
        """Return the accumulator that a gather or reduce fills."""
        return self.accumulators[self.functions[function].accumulator]

    def of_vertices(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some properties that vertices have."""
        signature = self.plan.analysis.signature
        return tuple(n for n in names if signature[n].kind is PropertyKind.VERTEX)

    def of_edges(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some properties that edges have."""
        signature = self.plan.analysis.signature
        return tuple(n for n in names if signature[n].kind is PropertyKind.EDGE)

    @cached_property
    def summed(self) -> list[str]:
        """What functions of the phase sum in blocks, if any does."""
        return [f.accumulator for f in self.functions.values() if in_blocks(f)]

    def number(self, text: str) -> str:
        """Return the text of a number of an edge, in the type of these."""
        _, number = types_of(self.plan)
        return f"{number}({text})" if number else text

    # -- triangles

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """What a triangle function returns, to be added where it says."""
        [function] = self.functions.values()
        return find_sums(function, self.plan.analysis.signature)

    @cached_property
    def oriented(self) -> Oriented:
        """The rows in which a triangle phase looks for neighbors."""
        [function] = self.functions.values()
        place, number = types_of(self.plan)
        upper, lower, both = (
            SortedRows(
                f"{rows}_offsets", f"{rows}_orders", f"{rows}_{numbers}", place, number
            )
            for rows, numbers in (
                ("upper", "edges"),
                ("lower", "positions"),
                ("both", "edges"),
            )
        )
        in_parts = self.plan.traits.renumbered
        rows = Oriented(upper, lower, both, self.intrinsics, number, in_parts=in_parts)
        if self.phase.from_edges:
            twin = rows.twin("{0}")
            passed = f"edge_state[{{0}}] == 2 or edge_state[{twin}] == 2"
            rows = replace(rows, passed=passed)
        name: str | None = getattr(function.declared, "within", None)
        if name is None:
            return rows
        type_ = self.plan.analysis.signature[name]
        has = f"d.{name}[{{0}}]{'' if type_.dtype == 'bool' else ' != 0'}"
        # Where directions of an edge may differ, it is one of them in both.
        twins = () if type_.shared else (has.format(rows.twin("{0}")),)
        within = " and ".join([has, *twins])
        return replace(rows, within=within, asks_twins=not type_.shared)

    # -- kept aggregates

    @cached_property
    def drops_padding(self) -> bool:
        """Whether functions may compute with what stands behind a row.

        It ends no loop and makes no index then, and nothing is asked of all features
        that a lane gathers. What comes of it stays with features that there are not.
        """
        helpers = {h.name: h for h in self.plan.analysis.helpers}
        called = any(a.function for a in self.accumulators.values())
        if called or self.phase.stops or self.phase.incremental:
            return False
        bodies = [s for f in self.functions.values() for s in f.body]
        return not any(needs_guard(statement, helpers) for statement in bodies)

    def incremental(self, function: str) -> IncrementalGather | None:
        """Return how the aggregates of a gather are kept; None if they are not."""
        into = self.functions[function].into
        return (
            self.plan.incremental.gathers[str(into)]
            if into in self.phase.incremental
            else None
        )

    def is_constant(self, function: str) -> bool:
        """Whether a kept gather reads nothing that changes."""
        how = self.incremental(function)
        return how is not None and how.is_constant

    def seen(self, function: str) -> Callee:
        """Return a kept gather as it was when its aggregates took it in."""
        how = self.incremental(function)
        if how is None or how.seen is None:
            raise KeyError(f"{function} is not patched")
        return self.callees[how.seen.name]

    def renews_aside(self, functions: tuple[str, ...]) -> bool:
        """Whether aggregates are taken anew beside those of other lanes of a warp."""
        binding = self.binding
        alone = not binding.walk.own and not any(map(self.shuffles, functions))
        alone = alone and binding.together is None
        company = binding.scopes["vertex"].company
        return binding.meets and company == "warp" and not alone

    # -- calls

    def shuffles(self, function: str) -> bool:
        """Whether all lanes that share an edge must call a function."""
        return self.callees[function].is_collective and self.binding.features.lanes > 1

    def agrees(self, function: str) -> bool:
        """Whether each lane of an edge finds the verdict of all features by itself.

        What a lane reads back of its own writes it may see before others do.
        """
        own = self.functions[function]
        apart = own.returns_varying or reads_what_it_changes(own)
        return self.phase.passes_all or (self.shuffles(function) and not apart)

    # -- gathered values that a function is given

    def base(self, name: str) -> str | None:
        """Return the accumulator that a temporary is, is the sources or an entry of."""
        entry = self.plan.analysis.entries.get(name)
        found = entry.of if entry is not None else name
        return base_name(found, self.plan.analysis.temporaries)

    def is_wide(self, name: str) -> bool:
        """Whether a temporary has an entry for each feature."""
        entries = self.plan.analysis.entries
        return name not in entries and self.accumulators[str(self.base(name))].is_wide

    def is_filled_here(self, name: str) -> bool:
        """Whether what a temporary is, or is one of, is gathered by this phase."""
        gathers = self.functions.values() if self.phase.kind.pulls else []
        return any(f.into == self.base(name) for f in gathers)

    @cached_property
    def read_entries(self) -> tuple[str, ...]:
        """Single gathered values that functions of the phase are given."""
        taken = [t for f in self.functions for t in self.callees[f].temporaries]
        return tuple(dict.fromkeys(t for t in taken if t in self.plan.analysis.entries))

    # -- small arrays of kernels that loop over features

    def row_left(self, function: str, stem: str = "contribution") -> str:
        """Return the array in which a loop over features leaves what it contributes."""
        several = len({a.type for a in self.rows_left.values()}) > 1
        return f"{stem}_{self.filled(function).type}" if several else stem

    @cached_property
    def rows_left(self) -> dict[str, Accumulator]:
        """Functions that leave what they contribute in an array, and what they fill."""
        return {
            name: self.filled(name)
            for name, function in self.functions.items()
            if function.kind.combines
            and self.binding.features.is_looped
            and self.callees[name].is_collective
            and not self.callees[name].vectors
            and self.filled(name).is_wide
        }

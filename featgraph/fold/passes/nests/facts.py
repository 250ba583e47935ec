"""What passes ask about a phase: its functions, what they fill, and its schedule."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Protocol

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.change_driven import IncrementalGather
from featgraph.fold.analysis.gathered_values import base_name
from featgraph.fold.analysis.gathers import in_blocks, is_matrix
from featgraph.fold.analysis.guarded import needs_guard
from featgraph.fold.analysis.sums import Sum, find_sums
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.bodies.stores import reads_what_it_changes
from featgraph.fold.passes.nests.accumulators import Accumulator, accumulator_of
from featgraph.fold.plan.layout import Rows, rows_along
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules.base import Binding, KernelShape, Schedule
from featgraph.fold.tree.layout import AdjacencyLayout, Csr, WalkedByPlace
from featgraph.fold.tree.nodes import RowLoad
from featgraph.fold.tree.oriented import Oriented, SortedRows
from featgraph.fold.tree.statements import Body, code, expression
from featgraph.fold.tree.target import Target
from featgraph.program.combine import Combine
from featgraph.program.signature import PropertyKind, Real

__all__ = [
    "LAYOUTS",
    "NestFacts",
    "RowFacts",
    "call_for_all",
    "call_for_one",
    "call_of_part",
    "element",
    "layout_along",
    "layout_of",
    "registers_of",
    "rows_of",
    "shape_of",
]

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
class NestFacts:
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
            self.threads, self.covers, by_feature, count, *_types_of(self.plan),
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
        _, number = _types_of(self.plan)
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
        place, number = _types_of(self.plan)
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


#: The array with the edge of each edge's reverse.
TWINS = "edge_twin"


@dataclass(frozen=True)
class _Runs(WalkedByPlace):
    """Rows that are runs of slots in a pool, in any order; a place is a slot.

    The start of an empty row is a slot of the pool. Slots in no row have some vertex
    and some number, too.

    Attributes
    ----------
    prefix : str
        The first part of the names of its arrays.
    ends : str
        The vertex at the other end of each slot's edge.
    numbers : str
        The number of each edge; "" where it is the slot, or none is used.
    twins : str
        The number of each twin, where rows lead to the other ends of twins.
    """

    prefix: str
    ends: str
    numbers: str
    place_type: str = ""
    number_type: str = ""
    twins: str = ""

    @classmethod
    def of(cls, rows: Rows, place_type: str, number_type: str) -> _Runs:
        """Return the layout of some rows."""
        prefix = f"{rows.offsets.removesuffix('offsets')}run"
        has_ids = rows.finds_edges and not rows.by_slot
        numbers = f"{prefix}_ids" if has_ids else ""
        twins = TWINS if has_ids and rows.edges == TWINS else ""
        return cls(prefix, f"{prefix}_ends", numbers, place_type, number_type, twins)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that a kernel is given."""
        bounds = f"{self.prefix}_starts", f"{self.prefix}_stops"
        return (*bounds, self.ends, *filter(None, [self.numbers, self.twins]))

    @property
    def vertex_count(self) -> str:
        """Text of the number of rows."""
        return f"{self.prefix}_starts.size"

    def row(self, vertex: str) -> Body:
        """Bind the row of a vertex."""
        starts, stops, *_ = self.arrays
        return code(f"start, stop = {starts}[{vertex}], {stops}[{vertex}]")

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        """Return the slot of the edge at a place, and its number."""
        at = self._number(place)
        return [], at, self._number_at(at)

    def slot_at(self, slot: str) -> tuple[str, str, str]:
        """Return the end and the number that a slot has: copies alone ask all slots."""
        return "", f"{self.ends}[{slot}]", self._number_at(self._number(slot))

    def _number_at(self, number: str) -> str:
        """Return the number of the edge in a slot."""
        for array in filter(None, (self.numbers, self.twins)):
            number = self._number(f"{array}[{number}]")
        return number


def _csr(rows: Rows, place_type: str, number_type: str) -> Csr:
    return Csr(rows.offsets, rows.ends, rows.edges, place_type, number_type)


#: `GraphTraits.layout` -> what makes one, from rows and the types of places and of
#: numbers of edges. Names of arrays begin as those in `Rows` do: by that the runtime
#: tells that they are the graph's.
LAYOUTS: dict[str, Callable[[Rows, str, str], AdjacencyLayout]] = {
    "csr": _csr,
    "runs": _Runs.of,
}


def layout_along(rows: Rows, traits: GraphTraits, target: str) -> AdjacencyLayout:
    """Return how the edges of some rows are found."""
    make = LAYOUTS[traits.layout]
    if traits.undirected and rows.edges in {"out_edges", "row_edges"}:
        rows = replace(rows, edges=rows.edges if make is _csr else TWINS)
    if target == "cpu":
        return make(rows, "", "")
    if traits.wide_offsets:
        return make(rows, "", "uint64")
    return make(rows, "int32", "uint32")


def layout_of(plan: FoldPlan, phase: Phase) -> AdjacencyLayout:
    """Return how edges are found: the rows that the phase goes along."""
    return layout_along(phase.rows, plan.traits, plan.target)


def _types_of(plan: FoldPlan) -> tuple[str, str]:
    """Return the types of places and of numbers of edges; "" where Python's will do."""
    if plan.target == "cpu":
        return "", ""
    return ("int64", "uint64") if plan.traits.wide_offsets else ("int32", "uint32")


def call_for_one(facts: NestFacts, callee: Callee) -> ast.expr:
    """Return the call of a function for feature f."""
    declared = callee.function.declared.roles
    args = ["i"] * ("i" in declared)
    args += [] if callee.function.is_scalar else ["f"]
    args += _roles(facts, callee)
    for name in callee.temporaries:
        wide = facts.is_wide(name)
        args.append(f"{name}[f]" if wide else _entry(facts, name))
    index = "i" if is_matrix(callee.function) else "f"
    args += [f"{row.register or row.name}[{index}]" for row in callee.rows]
    return expression(f"{callee.name}({', '.join(args)})")


def call_for_all(
    facts: NestFacts, callee: Callee, mask: str = "", left: Sequence[str] = ()
) -> ast.expr:
    """Return the call of a function that takes all features of a lane.

    Parameters
    ----------
    mask : str
        Where lanes make shuffles: whose call counts.
    left : sequence of str
        Arrays in which loops leave what is contributed.
    """
    args = _roles(facts, callee) + (["lane", mask] if mask else [])
    axis = facts.binding.features
    for name in callee.temporaries:
        if name in facts.phase.solved:
            args += [axis.element(name, i, j) for i, j in axis.elements()]
            continue
        args.append(f"*{name}" if facts.is_wide(name) else _entry(facts, name))
    args += left
    if callee.arrays:
        kinds = {"rows": "real", "flags": "int64"}
        args += [name for name, kind in kinds.items() if callee.arrays[kind]]
    args += callee.areas_and_matrices
    return expression(f"{callee.name}({', '.join(args)})")


def call_of_part(facts: NestFacts, callee: Callee, part: str, feature: str = "") -> str:
    """Return the text of a call: "row", "column" or "scale" of an outer product."""
    args = [feature] * bool(feature) + _roles(facts, callee)
    args += [_entry(facts, name) for name in callee.temporaries]
    if part == "column":
        args += [f"{row.name}[f]" for row in callee.rows]
    return f"{callee.name}_{part}({', '.join(args)})"


def rows_of(callee: Callee) -> tuple[RowLoad, ...]:
    """Return the rows of which a function takes features behind the temporaries."""
    return tuple(
        RowLoad(row.register)
        if row.register
        else RowLoad(row.name, row.key[0], row.index)
        for row in callee.rows
    )


def registers_of(facts: NestFacts, name: str) -> list[str]:
    """Return the names under which a lane has a temporary of its vertex."""
    axis = facts.binding.features
    return axis.names(name) if facts.is_wide(name) else [_entry(facts, name)]


def _roles(facts: NestFacts, callee: Callee) -> list[str]:
    """Return the vertices, edges and data that a function takes."""
    values = [f"{name}_e" for name in facts.phase.ordered]
    roles = [r for r in callee.function.declared.roles if r not in {"f", "i"}]
    return [r for role in roles for r in (values if values and role == "e" else [role])]


def _entry(facts: NestFacts, name: str) -> str:
    """Return a temporary that is the same for all features."""
    entry, axis = facts.plan.analysis.entries.get(name), facts.binding.features
    if entry is None or axis.lanes > 1 or not facts.is_filled_here(name):
        return name
    if axis.is_looped:
        return f"{entry.of}[{entry.feature}]"
    return axis.name(entry.of, entry.feature)

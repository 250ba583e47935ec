"""Facts about the kernel of a phase that passes read, layouts, and calls.

`NestFacts` has the functions of a kernel, their accumulators and its schedule.
`LAYOUTS` are the layouts that edges may have in memory, by name: CSR, and runs of slots
in a pool, for a graph that changes, where two arrays hold begin and end of each run.
`call_for_one` and `call_for_all` return the call of a user function for one feature, or
for all features of a lane.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Protocol

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.access import base_name
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.changes import IncrementalGather
from featgraph.fold.analysis.gathers import (
    Sum,
    find_sums,
    in_blocks,
    is_matrix,
    needs_guard,
)
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.accumulators import Accumulator, accumulator_of
from featgraph.fold.plan.plan import VERTICES, FoldPlan, Phase
from featgraph.fold.plan.traits import GraphTraits, Rows, rows_along
from featgraph.fold.plan.worklist import combines_once
from featgraph.fold.schedules.base import Binding, KernelShape, Schedule
from featgraph.fold.schedules.intersect_rows import Oriented, SortedRows
from featgraph.fold.tree.layout import AdjacencyLayout, Csr
from featgraph.fold.tree.nodes import RowLoad, Target
from featgraph.fold.tree.statements import Body, code, expression
from featgraph.program.combines import Combine
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
    "partials_of",
    "registers_of",
    "rows_of",
    "shape_of",
]

#: Type of the terms -> addition that the compiler of a GPU never contracts to an FMA.
_ADDS = {
    Real.FLOAT32: "cuda.libdevice.fadd_rn", Real.FLOAT64: "cuda.libdevice.dadd_rn",
}  # fmt: skip


class RowFacts(Protocol):
    """Facts about any kernel that walks rows of edges."""

    @property
    def binding(self) -> Binding:
        """Binding of its schedule."""

    @property
    def layout(self) -> AdjacencyLayout:
        """Layout of the edges that it walks."""

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return the layout of the rows along some edges; "" for `layout`."""


def shape_of(accumulator: Accumulator) -> str:
    """Return the shape class of an accumulator: "one", "wide" or "matrix"."""
    return ("one", "wide", "matrix")[len(accumulator.shape)]


def element(accumulator: Accumulator, name: str = "") -> str:
    """Return the text of an element of an accumulator, or of `name` of its shape."""
    index = {"one": "", "wide": "[f]", "matrix": "[i, f]"}[shape_of(accumulator)]
    return f"{name or accumulator.name}{index}"


@dataclass(eq=False)
class NestFacts:
    """One kernel of a phase of a plan.

    Attributes
    ----------
    context : Context
        Facts shared by its functions.
    plan, phase : FoldPlan, Phase
        Decisions of the planner.
    callees : dict
        Emitted name of a function -> its signature.
    schedule : Schedule
        Mapping of vertices, edges and features to threads.
    threads : int
        Threads of a block; 0 on the CPU.
    arguments : tuple of str
        Arguments of the kernel.
    covers : bool
        Whether the grid has a thread for each vertex.
    nest : callable or None
        Returns its nest, if that is not the nest of the phase.
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
        """Name of the kernel in listings of trees."""
        number, schedule = self.plan.phases.index(self.phase), type(self.schedule)
        return f"{self.phase.kind} phase {number}, {schedule.__name__}"

    @property
    def finds_due(self) -> bool:
        """Whether the kernel determines which swept vertices are due."""
        return self.phase.finds_due and self.nest is None

    @property
    def target(self) -> Target:
        """Target of the kernel."""
        return Target(self.plan.target)

    @property
    def intrinsics(self) -> str:
        """Module of atomics, bit operations and shuffles."""
        return self.target.intrinsics

    @cached_property
    def functions(self) -> dict[str, Analysed]:
        """Functions of the phase by their emitted names, in order."""
        combined = [self.plan.phases[n] for n in self.phase.combines]
        phases = [self.phase, *combined]
        return {f.name: f for p in phases for f in self.plan.functions_of(p)}

    @cached_property
    def accumulators(self) -> dict[str, Accumulator]:
        """Accumulators of all gathers and reduces of the program, by name.

        The flag ``edge_passed`` is one more: lanes combine it like a gathered value.
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
        """Layout of the rows that the phase walks."""
        return layout_of(self.plan, self.phase)

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return the layout of the rows along other edges, without edge ids."""
        if not along:
            return self.layout
        rows = rows_along(along, finds_edges=False)
        return layout_along(rows, self.plan.traits, self.plan.target)

    @cached_property
    def shape(self) -> KernelShape:
        """Shape of the kernel, for its schedule."""
        by_feature = not all(
            p.is_collective or p.function.is_scalar for p in self.callees.values()
        )
        count, form = "vertex_count", self.plan.frontier_form
        kind = self.phase.kind
        if self.target is Target.CPU:
            count = self.layout.vertex_count
            functions = self.plan.functions_of(self.phase)
            listed = form == VERTICES and (kind.pulls or combines_once(*functions))
            form = "listed" if kind.pulls else "plain"
            form = "blocks" if self.phase.combines else form
            form = VERTICES if listed else form
        return KernelShape(
            self.phase.width, kind.pulls, kind.reduces, self.phase.spreads, form,
            self.threads, self.covers, by_feature, count, *_types_of(self.plan),
        )  # fmt: skip

    @cached_property
    def binding(self) -> Binding:
        """Binding of the schedule."""
        found = self.schedule.bind(self.phase.mapping, self.shape)
        axis = replace(found.features, any_width=self.phase.any_width)
        return replace(found, features=axis)

    def filled(self, function: str) -> Accumulator:
        """Return the accumulator of a gather or reduce."""
        return self.accumulators[self.functions[function].accumulator]

    def of_vertices(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the vertex properties among `names`."""
        signature = self.plan.analysis.signature
        return tuple(n for n in names if signature[n].kind is PropertyKind.VERTEX)

    def of_edges(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the edge properties among `names`."""
        signature = self.plan.analysis.signature
        return tuple(n for n in names if signature[n].kind is PropertyKind.EDGE)

    @cached_property
    def summed(self) -> list[str]:
        """Accumulators that functions of the phase sum in blocks of its sweep."""
        own = self.plan.functions_of(self.phase)
        return [f.accumulator for f in own if in_blocks(f)]

    def number(self, text: str) -> str:
        """Return the text of an edge id, converted to the type of edge ids."""
        _, number = _types_of(self.plan)
        return f"{number}({text})" if number else text

    # -- triangles

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Sums that a triangle function returns, with the entries to add them to."""
        [function] = self.functions.values()
        return find_sums(function, self.plan.analysis.signature)

    @cached_property
    def oriented(self) -> Oriented:
        """Oriented rows that a triangle phase intersects."""
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
        # If the two directions of an edge may have different values, both must hold.
        twins = () if type_.shared else (has.format(rows.twin("{0}")),)
        within = " and ".join([has, *twins])
        return replace(rows, within=within, reads_twins=not type_.shared)

    # -- kept aggregates

    @cached_property
    def drops_padding(self) -> bool:
        """Whether functions may compute on the padding of rows without masks.

        Padding must then end no loop and form no index, and no condition may cover all
        features of a lane. Its results stay in features beyond the last one.
        """
        called = any(a.function for a in self.accumulators.values())
        if called or self.phase.stops or self.phase.incremental:
            return False
        bodies = [s for f in self.functions.values() for s in f.body]
        analysis = self.plan.analysis
        return not any(needs_guard(statement, analysis) for statement in bodies)

    def incremental(self, function: str) -> IncrementalGather | None:
        """Return the plan of an incremental gather; None if it is not incremental."""
        into = self.functions[function].into
        return (
            self.plan.incremental.gathers[str(into)]
            if into in self.phase.incremental
            else None
        )

    def is_constant(self, function: str) -> bool:
        """Whether an incremental gather reads only constant values."""
        how = self.incremental(function)
        return how is not None and how.is_constant

    def renews_aside(self, functions: tuple[str, ...]) -> bool:
        """Whether a whole warp recomputes aggregates, into accumulators of their own.

        It must where lanes of other vertices take part in its walk or its shuffles:
        each lane then selects the recomputed value, or the patched one. Elsewhere
        aggregates are recomputed in a branch.
        """
        binding = self.binding
        alone = not binding.walk.own and not any(map(self.shuffles, functions))
        alone = alone and binding.together is None
        company = binding.scopes["vertex"].company
        return binding.meets and company == "warp" and not alone

    # -- calls

    def shuffles(self, function: str) -> bool:
        """Whether a function has shuffles: all lanes of an edge must call it."""
        return self.callees[function].is_collective and self.binding.features.lanes > 1

    # -- gathered values among the arguments of functions

    def base(self, name: str) -> str | None:
        """Return the accumulator behind a temporary, its sources or an entry."""
        entry = self.plan.analysis.entries.get(name)
        found = entry.of if entry is not None else name
        return base_name(found, self.plan.analysis.temporaries)

    def is_wide(self, name: str) -> bool:
        """Whether a temporary has an entry for each feature."""
        entries = self.plan.analysis.entries
        return name not in entries and self.accumulators[str(self.base(name))].is_wide

    def is_filled_here(self, name: str) -> bool:
        """Whether this phase gathers a temporary, or the row that it is an entry of."""
        gathers = self.functions.values() if self.phase.kind.pulls else []
        return any(f.into == self.base(name) for f in gathers)

    @cached_property
    def read_entries(self) -> tuple[str, ...]:
        """Single gathered values among the arguments of functions."""
        taken = [t for f in self.functions for t in self.callees[f].temporaries]
        return tuple(dict.fromkeys(t for t in taken if t in self.plan.analysis.entries))

    # -- small arrays of kernels that loop over features

    def row_left(self, function: str, stem: str = "contribution") -> str:
        """Return the array of contributions of a loop over features."""
        several = len({a.type for a in self.rows_left.values()}) > 1
        return f"{stem}_{self.filled(function).type}" if several else stem

    @cached_property
    def rows_left(self) -> dict[str, Accumulator]:
        """Functions that return contributions in an array, and their accumulators."""
        return {
            name: self.filled(name)
            for name, function in self.functions.items()
            if function.kind.combines
            and self.binding.features.is_looped
            and self.callees[name].is_collective
            and not self.callees[name].vectors
            and self.filled(name).is_wide
        }


#: The array with the id of each edge's twin.
TWINS = "edge_twin"


@dataclass(frozen=True)
class _Runs(AdjacencyLayout):
    """Rows that are runs of slots in a pool, in any order; a place is a slot.

    Idle lanes may load any slot: the start of an empty row is a slot of the pool, and
    slots that belong to no row have a valid vertex and number.

    Attributes
    ----------
    prefix : str
        The first part of the names of its arrays.
    ends : str
        Array of the vertex at the other end of each slot's edge.
    numbers : str
        Array of the edge id of each slot; "" if the id is the slot, or is not used.
    twins : str
        Array of the id of each edge's twin, for rows of an undirected graph that lead
        to the other ends of twins; "" for others.
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
        """Return the end and the number of a slot; for kernels that copy all slots."""
        return "", f"{self.ends}[{slot}]", self._number_at(self._number(slot))

    def _number_at(self, number: str) -> str:
        """Return the number of the edge in a slot."""
        for array in filter(None, (self.numbers, self.twins)):
            number = self._number(f"{array}[{number}]")
        return number


def _csr(rows: Rows, place_type: str, number_type: str) -> Csr:
    return Csr(rows.offsets, rows.ends, rows.edges, place_type, number_type)


#: `GraphTraits.layout` -> constructor, from rows and the types of slots and edge ids.
#: Names of arrays must begin like those in `Rows`: the runtime recognizes arrays of the
#: graph by these prefixes.
LAYOUTS: dict[str, Callable[[Rows, str, str], AdjacencyLayout]] = {
    "csr": _csr,
    "runs": _Runs.of,
}


def layout_along(rows: Rows, traits: GraphTraits, target: str) -> AdjacencyLayout:
    """Return the layout of a kind of rows."""
    make = LAYOUTS[traits.layout]
    if traits.undirected and rows.edges in {"out_edges", "row_edges"}:
        rows = replace(rows, edges=rows.edges if make is _csr else TWINS)
    if target == "cpu":
        return make(rows, "", "")
    if traits.wide_offsets:
        return make(rows, "", "uint64")
    return make(rows, "int32", "uint32")


def layout_of(plan: FoldPlan, phase: Phase) -> AdjacencyLayout:
    """Return the layout of the rows that a phase walks."""
    return layout_along(phase.rows, plan.traits, plan.target)


def _types_of(plan: FoldPlan) -> tuple[str, str]:
    """Return the types of slots and of edge ids; "" for plain Python integers."""
    if plan.target == "cpu":
        return "", ""
    return ("int64", "uint64") if plan.traits.wide_offsets else ("int32", "uint32")


def partials_of(facts: NestFacts, name: str) -> str:
    """Return the argument with the partial results of a reduce."""
    for number in facts.phase.combines:
        [function] = facts.plan.functions_of(facts.plan.phases[number])
        if function.accumulator == name:
            return f"partials_{number}"
    return "partials"


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
    """Return the call of a function for all features of a lane.

    Parameters
    ----------
    mask : str
        Predicate of lanes whose call counts, in functions with shuffles.
    left : sequence of str
        Arrays for contributions of loops.
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
    """Return the call of a `part` of an outer product: "row", "column" or "scale"."""
    args = [feature] * bool(feature) + _roles(facts, callee)
    args += [_entry(facts, name) for name in callee.temporaries]
    if part == "column":
        args += [f"{row.name}[f]" for row in callee.rows]
    return f"{callee.name}_{part}({', '.join(args)})"


def rows_of(callee: Callee) -> tuple[RowLoad, ...]:
    """Return the rows whose features are arguments behind the temporaries."""
    return tuple(
        RowLoad(row.register)
        if row.register
        else RowLoad(row.name, row.key[0], row.index)
        for row in callee.rows
    )


def registers_of(facts: NestFacts, name: str) -> list[str]:
    """Return the variables of a lane that hold a temporary of its vertex."""
    axis = facts.binding.features
    return axis.names(name) if facts.is_wide(name) else [_entry(facts, name)]


def _roles(facts: NestFacts, callee: Callee) -> list[str]:
    """Return the vertex, edge and data arguments of a function."""
    values = [f"{name}_e" for name in facts.phase.ordered]
    roles = [r for r in callee.function.declared.roles if r not in {"f", "i"}]
    return [r for role in roles for r in (values if values and role == "e" else [role])]


def _entry(facts: NestFacts, name: str) -> str:
    """Return the text of a temporary without features."""
    entry, axis = facts.plan.analysis.entries.get(name), facts.binding.features
    if entry is None or axis.lanes > 1 or not facts.is_filled_here(name):
        return name
    if axis.is_looped:
        return f"{entry.of}[{entry.feature}]"
    return axis.name(entry.of, entry.feature)

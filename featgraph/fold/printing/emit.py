"""Print a FoldPlan as a module: namedtuple, user functions, a kernel per phase.

`emit` lowers and prints the functions of each phase, then leaves kernels to the printer
of the target. `data_fields` lists the arrays and scalars of ``d``, the namedtuple that
all kernels take.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.changes import seen_name
from featgraph.fold.analysis.gathers import has_wide_key, memory_dtype
from featgraph.fold.operations.table import OPERATIONS
from featgraph.fold.passes.bodies.definitions import form_of
from featgraph.fold.passes.bodies.facts import BodyFacts, Callee, Context
from featgraph.fold.passes.bodies.memory import Site, find_staged
from featgraph.fold.passes.bodies.nodes import Define
from featgraph.fold.passes.bodies.stores import find_forwarded
from featgraph.fold.passes.nests.accumulators import indexed_forms
from featgraph.fold.passes.passes import callee_of, lower_function, lower_helper
from featgraph.fold.plan.plan import WORKLIST, FoldPlan, Phase
from featgraph.fold.plan.worklist import is_queued
from featgraph.fold.printing import cpu, cuda
from featgraph.fold.printing.module import Field, KernelSource
from featgraph.fold.printing.writer import (
    PhaseToPrint,
    Writer,
    make_function,
    print_function,
)
from featgraph.fold.syntax.names import BUILTIN_ARRAYS, NUMBER
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.passes import Pass
from featgraph.fold.tree.statements import Body, code, narrowed
from featgraph.program.source import FunctionSource

__all__ = ["emit"]

Watch = Callable[[str, Pass[Any], Body], None]


#: First lines of all modules.
_IMPORTS = ("import math", "from collections import namedtuple", "")


def emit(
    plan: FoldPlan, watch: Watch | None = None, numbers: Sequence[int] | None = None
) -> KernelSource:
    """Print `plan`. No decisions are made here.

    Parameters
    ----------
    watch : callable, optional
        Called after each pass over a nest with the name of the kernel, the pass, and
        the tree, which the next pass may change.
    numbers : sequence of int, optional
        Numbers of the phases to print, all in one module. By default, all phases are
        printed, and those that serve any number of features in a module of their own.

    Raises
    ------
    UserFunctionError, PlanError
        If an operation cannot be printed for the mapping.
    """
    if numbers is None:
        numbers = range(len(plan.phases))
        shared = [n for n in numbers if plan.phases[n].any_width]
        if 0 < len(shared) < len(numbers):
            of_all = emit(plan, watch, shared)
            own = emit(plan, watch, [n for n in numbers if n not in shared])
            entries = sorted((*of_all.entries, *own.entries), key=lambda e: e.phase)
            waits = of_all.waits or own.waits
            return replace(own, entries=tuple(entries), shared=of_all, waits=waits)
    target = cuda if plan.target == "cuda" else cpu
    writer = Writer()
    sites: list[Site] | None = [] if plan.options.checked else None
    fields = data_fields(plan)
    _header(writer, plan, numbers)
    modules = target.device_modules(plan).items()
    devices = (f"from featgraph.device import {name}" for name, used in modules if used)
    for line in (*_IMPORTS, *target.IMPORTS, *devices, ""):
        writer.line(line)
    names = ", ".join(repr(f.name) for f in fields)
    writer.line(f'Data = namedtuple("Data", [{names}])')
    for line in target.constants(plan):
        writer.line(line)
    if sites is not None:
        _print_guard(writer, target.DECORATOR, Target(plan.target))
    for helper in plan.analysis.helpers:
        tree = lower_helper(helper, plan.real, plan.target == "cuda")
        _print_functions(writer, helper.source, tree)
    entries = []
    forwarded: list[str] = []
    seen = {n: seen_name(n, plan.analysis.signature) for n in plan.incremental.reads}
    forms = indexed_forms(plan)
    for number in numbers:
        phase = plan.phases[number]
        if plan.frontier_form != "plain" and not plan.can_take(
            plan.frontier_form, phase
        ):
            continue  # supersteps run the plain kernel of this phase
        context = Context(
            plan.analysis,
            phase.mapping,
            phase.width,
            plan.target == "cuda",
            sites,
            seen,
            solved=phase.solved,
            restored=phase.restores,
            ordered=phase.ordered,
            indexed=forms,
            any_width=phase.any_width,
            watch=watch,
        )
        if plan.target == "cuda":
            given = plan.functions_of(phase), phase.mapping, phase.width
            context.staged = find_staged(plan.analysis, *given)
            context.forwarded = find_forwarded(context, plan, phase)
            forwarded += context.forwarded
        callees = {
            f.name: _print_function(writer, context, phase, f)
            for f in [*plan.swept_by(phase), *plan.seen_of(phase)]
        }
        if phase.kind.pushes:
            _check_pushed(plan, phase)
        if plan.frontier_form != WORKLIST:
            one = PhaseToPrint(writer, context, plan, phase, number, callees, fields)
            entries += target.print_phase(one)
    queue = None
    if is_queued(plan):
        queue = target.print_queue(writer, context, plan, callees, fields)
        entries += [queue.entry] if queue.entry is not None else []
    return KernelSource(
        plan, writer.text, tuple(entries), fields, writer.origins,
        _named(sites or [], plan.analysis), queue, tuple(forwarded),
        plan.frontier_form == "plain" and numbers[-1] == len(plan.phases) - 1
        and _waits(plan, callees),
    )  # fmt: skip


def _named(sites: list[Site], analysis: Analysis) -> list[Site]:
    """Return the sites of indices, with the names of the user's properties.

    Mirrors and outboxes, which only several ranks have, are named like the property.
    """
    known = {
        name: of for name, (of, _) in (analysis.mirrors | analysis.outboxes).items()
    }
    return [
        (function, file, line, known.get(name, analysis.as_given(name)), axis)
        for function, file, line, name, axis in sites
    ]


def _check_pushed(plan: FoldPlan, phase: Phase) -> None:
    """Raise if a key and its source exceed the 64 bits of one atomic."""
    temporary = plan.analysis.temporaries[phase.into]
    if has_wide_key(temporary, plan.real):
        name = plan.functions_of(phase)[0].name
        raise PlanError(
            f"{name} cannot be pushed: its key has 64 bits and must share a word with "
            "the source",
            where="direction='push'",
            got=f"a key of type {memory_dtype(temporary.type, plan.real)}",
            expected="float32 or int32 keys",
            fix="use direction='pull', or store the key as float32 or int32",
        )


def _waits(plan: FoldPlan, callees: dict[str, Callee]) -> bool:
    """Whether a kernel has the property `KernelSource.waits`."""
    *before, last = plan.phases
    functions = plan.analysis.functions
    if not (last.kind.pulls and all(p.kind.reduces for p in before)):
        return False
    one = functions[-1]
    if [f for f in functions if f.kind.writes] != [one]:
        return False
    others = (a for f in functions[:-1] for a in f.accesses)
    alone = not any(a.version == "next" or a.where == "foreign" for a in others)
    own = all(a.where in {"own", "global"} for a in one.accesses)
    return alone and own and callees[one.name].waits


def _print_function(
    writer: Writer, context: Context, phase: Phase, function: Analysed
) -> Callee:
    facts = BodyFacts(context, function, form_of(context, phase, function))
    tree = lower_function(facts)
    _print_functions(writer, function.declared.source, tree)
    return callee_of(facts, tree)


def _header(writer: Writer, plan: FoldPlan, numbers: Sequence[int]) -> None:
    """Write the docstring of the module, which describes the plan."""
    title = " + ".join(f.declared.name for f in plan.analysis.functions)
    writer.line(f'"""{title}, folded by featgraph.')
    writer.line()
    for line in plan.describe(numbers).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        for part in textwrap.wrap(line, 88, subsequent_indent=indent) or [""]:
            writer.line(part)
    writer.line('"""')
    writer.line()


def _print_guard(writer: Writer, decorator: str, target: Target) -> None:
    # Numba's common type of uint64 (wide edge ids) and int64 is float64.
    zero = "warp.cast_like(0, index)" if target is Target.CUDA else "0"
    given = ("index", "bound", "site", "vertex", "edge", "record")
    doc = "Return `index` if it is in range, else report it and return 0."
    test = f"{target.intrinsics}.checked({', '.join(given)})"
    body = code(f"return index if {test} else {zero}")
    print_function(writer, make_function(decorator, "guarded", given, doc, body))


def data_fields(plan: FoldPlan) -> tuple[Field, ...]:
    """Return the fields of `d`.

    They are all arrays that functions read and write, and both buffers of restored or
    copied properties.
    """
    analysis, found = plan.analysis, dict[str, Field]()
    both = {n for p in plan.phases for n in (*p.copies, *p.restores)}
    in_memory = {n for p in plan.phases for n in (*p.loads, *p.indexes, *p.stores)}
    pushed = {plan.functions_of(p)[0].into: p for p in plan.phases if p.kind.pushes}
    for function in analysis.functions:
        for access in function.accesses:
            _add_access(found, analysis, access.name, access.version)
        for name in function.scalars:
            _add_scalar(found, analysis, name, plan.target)
        for operation in function.twin_operations:
            name = OPERATIONS[operation].edge_array
            dtype = "offset" if operation == "reverse" else "bool"
            found[name] = Field(name, "builtin", dtype, 1, name)
    for name in sorted(both):
        _add_access(found, analysis, name, "now")
        _add_access(found, analysis, name, "next")
    for name, (of, _) in (analysis.mirrors | analysis.outboxes).items():
        type_ = analysis.signature[name]
        rank = 1 + len(type_.item_shape)
        source = "degrees" if of in BUILTIN_ARRAYS else "everywhere"
        found[name] = Field(name, source, type_.dtype, rank, of)
    stored = {n for p in plan.phases for n in p.incremental}
    for phase in plan.phases:
        for name in {
            n for k in phase.incremental for n in plan.incremental.gathers[k].reads
        }:
            type_ = analysis.signature[name]
            field_name = seen_name(name, analysis.signature)
            rank = 1 + len(type_.item_shape)
            found[field_name] = Field(field_name, "seen", type_.dtype, rank, name)
    for name in sorted(in_memory | stored | {str(n) for n in pushed}):
        temporary = analysis.temporaries[name]
        rank = 1 + len(temporary.item_shape)
        dtype = memory_dtype(temporary.type, analysis.real)
        if name in stored:
            found[name] = Field(name, "incremental", dtype, rank, name)
            continue
        pushes = pushed.get(name)
        if pushes is not None and temporary.combine.is_arg:
            # An atomic changes key and source together, in one word.
            packed = f"{name}_packed"
            found[packed] = Field(packed, "temporary", "int64", rank, name)
            continue
        found[name] = Field(name, "temporary", dtype, rank, name)
        if temporary.combine.is_arg:
            source = f"{name}_source"
            found[source] = Field(source, "temporary", "int32", rank, name)
    if plan.options.checked:
        found["fault"] = Field("fault", "fault", "int64", 1, "fault")
    return tuple(found[name] for name in sorted(found))


def _add_access(
    found: dict[str, Field], analysis: Analysis, name: str, version: str
) -> None:
    """Add the field of an accessed property, or of the result of a reduce."""
    type_ = analysis.signature.get(name)
    if type_ is None:
        if name in analysis.reductions:
            producer = next(
                f for f in analysis.functions if f.kind.reduces and f.into == name
            )
            dtype = memory_dtype(producer.returns, analysis.real)
            rank = len(analysis.reductions[name])
            found[name] = Field(name, "vector", dtype, rank, name)
        return  # a temporary
    if type_.kind.value == "vector":
        found[name] = Field(name, "vector", type_.dtype, len(type_.item_shape), name)
        return
    rank = 1 + len(type_.item_shape)
    if version == "next":
        found[f"{name}_next"] = Field(f"{name}_next", "next", type_.dtype, rank, name)
    else:
        found[name] = Field(name, "property", type_.dtype, rank, name)


def _add_scalar(
    found: dict[str, Field], analysis: Analysis, name: str, target: str
) -> None:
    """Add the field of a scalar of the State, or of a built-in name."""
    type_ = analysis.signature.get(name)
    if type_ is not None:
        dtype = analysis.real if type_.dtype == "real" else type_.dtype
        found[name] = Field(name, "scalar", dtype, 0, name)
    elif name in {"in_degree", "out_degree", NUMBER}:
        found[name] = Field(name, "builtin", "int32", 1, name)
    else:
        rank = int(name == "superstep" and target == "cuda")
        found[name] = Field(name, "builtin", "int64", rank, name)


def _print_functions(writer: Writer, source: FunctionSource, tree: Body) -> None:
    """Write the generated functions of one user function."""
    for node in tree:
        one = narrowed(node, Define)
        arguments = (*one.roles, *one.more)
        made = make_function(one.decorator, one.name, arguments, "", one.body)
        made.lineno = source.line
        print_function(writer, made, source.file)

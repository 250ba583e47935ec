"""Prints a FoldPlan as a module: namedtuple, user functions, a kernel per phase."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from featgraph.fold.accumulate import indexed_forms
from featgraph.fold.accumulators import (
    accumulator_of,
    check_pushable,
    is_packed,
    memory_dtype,
)
from featgraph.fold.analyse import Analysed, Analysis
from featgraph.fold.copies import print_copies
from featgraph.fold.forward import find_forwarded
from featgraph.fold.functions import (
    Context,
    Printed,
    print_featurewise,
    print_helper,
    print_rank_one,
    stores_rows,
)
from featgraph.fold.keep import seen_name
from featgraph.fold.loops import print_loops
from featgraph.fold.nodes import TWIN_OPERATIONS
from featgraph.fold.plan import FoldPlan, Phase
from featgraph.fold.queued import is_queued
from featgraph.fold.staged import find_staged
from featgraph.fold.triangles import print_triangle
from featgraph.fold.vectors import (
    column_form,
    print_vector_column,
    print_vectors,
    vector_form,
)
from featgraph.fold.writer import Writer

__all__ = ["Entry", "Field", "KernelSource", "Queue", "emit"]


@dataclass(frozen=True)
class Field:
    """One field of the namedtuple `d`.

    Attributes
    ----------
    name : str
        Its name.
    source : str
        "property", "next", "scalar", "vector", "temporary", "builtin", "fault", "kept"
        (an aggregate that stays) or "seen" (what a property was when the aggregates
        last took it in): where the runtime finds it.
    dtype : str
        NumPy dtype.
    rank : int
        Dimensions; 0 for scalars.
    of : str
        The property or temporary it belongs to.
    """

    name: str
    source: str
    dtype: str
    rank: int
    of: str


@dataclass(frozen=True)
class Entry:
    """One kernel of the module.

    Attributes
    ----------
    name : str
        Function name in the module.
    phase : int
        Which phase of the plan it is.
    role : str
        "main", "hubs" (a block for each vertex of high degree) or "finish" (the last
        step of a reduce).
    arguments : tuple of str
        What the runtime must pass, by name.
    scratch : dict
        Argument name -> dtype, and shape behind the first axis, of a scratch area in
        global memory, one a thread or group.
    block : int
        Threads a block (CUDA).
    launch_bounds : int or (int, int)
        What the compiler is told of it: threads a block, and how many blocks must fit a
        multiprocessor (CUDA).
    strides : int
        Vertices that a group of lanes takes in turn, at least, so that what its block
        does first pays (CUDA).
    covers : bool
        Whether its grid must have a place for each vertex, since nobody goes round;
        other grids may have any size (CUDA).
    """

    name: str
    phase: int
    role: str
    arguments: tuple[str, ...]
    scratch: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    block: int = 0
    launch_bounds: int | tuple[int, int] = 0
    strides: int = 1
    covers: bool = False


@dataclass(frozen=True)
class Queue:
    """The loop over supersteps of few vertices, where a module has one (0018).

    Attributes
    ----------
    name : str
        Function name in the module.
    arguments : tuple of str
        What the runtime must pass, by name.
    memory : tuple of (str, str, tuple of int)
        Of those, what gathers fill: dtypes and shapes of an entry.
    keys : tuple of str
        Properties by which it can tell near vertices from far ones.
    commits : tuple of str
        Iterated properties that it writes.
    offsets : str
        The rows of edges out of active vertices.
    """

    name: str
    arguments: tuple[str, ...]
    memory: tuple[tuple[str, str, tuple[int, ...]], ...]
    keys: tuple[str, ...]
    commits: tuple[str, ...]
    offsets: str


@dataclass(frozen=True, eq=False)
class KernelSource:
    """The generated module and what the runtime must know to launch it.

    Attributes
    ----------
    text : str
        Python source.
    entries : tuple of Entry
        Its kernels in the order in which they run.
    fields : tuple of Field
        Fields of `d`.
    origins : dict
        Line of the module -> (file, line) of the user's code.
    sites : list
        Checked mode: (function, file, line, name, axis) of each guarded index.
    queue : Queue or None
        The loop over supersteps of few vertices.
    forwarded : tuple of str
        Edge properties of which a pulled phase writes the ``_next`` entries of all
        in-edges of whom it sweeps, whether their sources are active or not.
    waits : bool
        Whether the current buffers may stand for the next ones where no vertex reads
        from another that is swept: all there is to commit is what one vertex function
        has stored, behind its verdict, for its vertex.
    """

    plan: FoldPlan
    text: str
    entries: tuple[Entry, ...]
    fields: tuple[Field, ...]
    origins: dict[int, tuple[str, int]]
    sites: list[tuple[str, str, int, str, int]]
    queue: Queue | None = None
    forwarded: tuple[str, ...] = ()
    waits: bool = False

    @property
    def fill_values(self) -> dict[str, str]:
        """Pushed temporaries (by field) -> text of the value that fills them first."""
        fills = {}
        for phase in self.plan.phases:
            if phase.kind != "push":
                continue
            accumulator = accumulator_of(
                self.plan.functions_of(phase)[0], self.plan.analysis
            )
            if accumulator.is_arg:
                kind = "FLOAT32" if accumulator.type == "real" else "INT32"
                fills[f"{accumulator.name}_packed"] = f"PACKED_NONE_{kind}"
            else:
                fills[accumulator.name] = accumulator.identity
        return fills


def emit(plan: FoldPlan) -> KernelSource:
    """Print `plan`. No decisions are made here.

    Raises
    ------
    UserFunctionError, PlanError
        If an operation cannot be printed for the mapping.
    """
    from featgraph.fold import cpu_kernels, cuda_kernels

    target = cuda_kernels if plan.target == "cuda" else cpu_kernels
    writer = Writer()
    sites: list[tuple[str, str, int, str, int]] | None = (
        [] if plan.options.checked else None
    )
    fields = data_fields(plan)
    _header(writer, plan)
    for line in target.imports(plan):
        writer.line(line)
    writer.line()
    names = ", ".join(repr(f.name) for f in fields)
    writer.line(f'Data = namedtuple("Data", [{names}])')
    for line in target.constants(plan):
        writer.line(line)
    if sites is not None:
        _print_guard(writer, target.DECORATOR, target.LIBRARY)
    for helper in plan.analysis.helpers:
        print_helper(writer, helper, plan.real, target.DECORATOR, plan.target == "cuda")
    entries: list[Entry] = []
    forwarded: list[str] = []
    seen = {n: seen_name(n, plan.analysis.signature) for n in plan.keeping.reads}
    forms = indexed_forms(plan)
    for number, phase in enumerate(plan.phases):
        if plan.form != "plain" and not plan.can_take(plan.form, phase):
            continue
        context = Context(
            writer,
            plan.analysis,
            phase.mapping,
            phase.width,
            plan.target == "cuda",
            sites,
            seen,
            find_staged(
                plan.analysis, plan.functions_of(phase), phase.mapping, phase.width
            ),
            solved=phase.solved,
            restored=phase.restores,
            indexed=forms,
        )
        if plan.target == "cuda":
            context.forwarded = find_forwarded(context, plan, phase)
            forwarded += context.forwarded
        printed = {
            f.name: _print_function(context, phase, f)
            for f in [*plan.functions_of(phase), *plan.seen_of(phase)]
        }
        if phase.kind == "push":
            function = plan.functions_of(phase)[0]
            check_pushable(function, accumulator_of(function, plan.analysis), plan.real)
        entries += target.print_phase(context, plan, number, phase, printed)
    queue = None
    if is_queued(plan):
        queue = cpu_kernels.print_queue(context, plan, printed, fields)
    return KernelSource(
        plan, writer.text, tuple(entries), fields, writer.origins, sites or [], queue,
        tuple(forwarded), plan.form == "plain" and _waits(plan, printed),
    )  # fmt: skip


def _waits(plan: FoldPlan, printed: dict[str, Printed]) -> bool:
    """Whether a kernel has the property `KernelSource.waits`."""
    *before, last = plan.phases
    functions = plan.analysis.functions
    if last.kind != "vertex" or any(p.kind != "reduce" for p in before):
        return False
    one = functions[-1]
    if [f for f in functions if f.kind in {"vertex", "edge"}] != [one]:
        return False
    others = (a for f in functions[:-1] for a in f.accesses)
    alone = not any(a.version == "next" or a.where == "foreign" for a in others)
    own = all(a.where in {"own", "global"} for a in one.accesses)
    return alone and own and printed[one.name].waits


def _print_function(context: Context, phase: Phase, function: Analysed) -> Printed:
    if phase.kind == "triangle":
        return print_triangle(context, function)
    summed = function.rank_one is not None and function.into in phase.held
    if summed or function.into in phase.tiles:
        if column_form(context, function):
            return print_vector_column(context, function)
        return print_rank_one(context, function)
    if vector_form(context, phase, function):
        return print_vectors(context, function)
    if not function.collective and not stores_rows(context, function):
        return print_featurewise(context, function)
    if phase.mapping.loops and not function.is_scalar:
        return print_loops(context, function)
    return print_copies(context, function)


def _header(writer: Writer, plan: FoldPlan) -> None:
    title = " + ".join(f.declared.name for f in plan.analysis.functions)
    writer.line(f'"""{title}, folded by featgraph.')
    writer.line()
    for line in str(plan).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        for part in textwrap.wrap(line, 88, subsequent_indent=indent) or [""]:
            writer.line(part)
    writer.line('"""')
    writer.line()


def _print_guard(writer: Writer, decorator: str, library: str) -> None:
    # Numba joins uint64 (wide edge ids) and int64 to float64.
    zero = "warp.cast_like(0, index)" if library == "warp" else "0"
    for line in (
        "",
        "",
        decorator,
        "def guarded(index, bound, site, vertex, edge, record):",
        '    """Return `index` if it is in range, else report it and return 0."""',
        f"    return index if {library}.checked(index, bound, site, vertex, edge, "
        f"record) else {zero}",
    ):
        writer.line(line)


def data_fields(plan: FoldPlan) -> tuple[Field, ...]:
    """Return the fields of `d`.

    They are what the functions read and write, and both buffers of what is restored or
    copied.
    """
    analysis, found = plan.analysis, dict[str, Field]()
    both = {n for p in plan.phases for n in (*p.copies, *p.restores)}
    in_memory = {n for p in plan.phases for n in (*p.loads, *p.indexes, *p.stores)}
    pushed = {plan.functions_of(p)[0].into: p for p in plan.phases if p.kind == "push"}
    for function in analysis.functions:
        for access in function.accesses:
            _add_access(found, analysis, access.name, access.version)
        for name in function.scalars:
            _add_scalar(found, analysis, name)
        for operation in function.twin_operations:
            name = TWIN_OPERATIONS[operation]
            dtype = "offset" if operation == "reverse" else "bool"
            found[name] = Field(name, "builtin", dtype, 1, name)
    for name in sorted(both):
        _add_access(found, analysis, name, "now")
        _add_access(found, analysis, name, "next")
    kept = {n for p in plan.phases for n in p.keeps}
    for phase in plan.phases:
        for name in {n for k in phase.keeps for n in plan.keeping.gathers[k].reads}:
            type_ = analysis.signature[name]
            field_name = seen_name(name, analysis.signature)
            rank = 1 + len(type_.item_shape)
            found[field_name] = Field(field_name, "seen", type_.dtype, rank, name)
    for name in sorted(in_memory | kept | {str(n) for n in pushed}):
        temporary = analysis.temporaries[name]
        rank = 1 + len(temporary.item_shape)
        dtype = memory_dtype(temporary.type, analysis.real)
        if name in kept:
            found[name] = Field(name, "kept", dtype, rank, name)
            continue
        pushes = pushed.get(name)
        if pushes is not None and is_packed(
            accumulator_of(plan.functions_of(pushes)[0], analysis), "push"
        ):
            found[f"{name}_packed"] = Field(
                f"{name}_packed", "temporary", "int64", rank, name
            )
            continue
        found[name] = Field(name, "temporary", dtype, rank, name)
        if temporary.is_arg:
            found[f"{name}_source"] = Field(
                f"{name}_source", "temporary", "int32", rank, name
            )
    if plan.options.checked:
        found["fault"] = Field("fault", "fault", "int64", 1, "fault")
    return tuple(found[name] for name in sorted(found))


def _add_access(
    found: dict[str, Field], analysis: Analysis, name: str, version: str
) -> None:
    type_ = analysis.signature.get(name)
    if type_ is None:
        if name in analysis.reductions:
            producer = next(
                f for f in analysis.functions if f.kind == "reduce" and f.into == name
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


def _add_scalar(found: dict[str, Field], analysis: Analysis, name: str) -> None:
    type_ = analysis.signature.get(name)
    if type_ is not None:
        dtype = analysis.real if type_.dtype == "real" else type_.dtype
        found[name] = Field(name, "scalar", dtype, 0, name)
    elif name in {"in_degree", "out_degree"}:
        found[name] = Field(name, "builtin", "int32", 1, name)
    else:
        found[name] = Field(name, "builtin", "int64", 0, name)

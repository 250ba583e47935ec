"""Which gathers can be incremental, and which not, and why.

Their aggregates stay in memory between supersteps and are patched there: where a source
has changed, the old contribution is taken out and the new one put in. That needs a
combine that can be patched, contributions that depend on nothing else that changes, and
a copy of what the sources were.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence

import numpy as np

from featgraph.base.dataclass import dataclass, field, replace
from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.syntax.names import CANONICAL
from featgraph.fold.tree.expressions import Access, Whole
from featgraph.program.names import GENERATED
from featgraph.program.signature import PropertyKind, Real, Signature

__all__ = [
    "Changes",
    "IncrementalGather",
    "IncrementalGathers",
    "changes_of",
    "entry_bytes",
    "find_incremental",
    "join_changes",
    "seen_name",
]


@dataclass(frozen=True)
class Changes:
    """What the foldmaps of a run change.

    Attributes
    ----------
    announced : tuple of str
        Iterated vertex properties; the active sets tell at which vertices.
    silent : tuple of str
        What changes and no active set tells where: edge properties, what is written in
        place or atomically, and what a foldmap writes that announces targets of edges.
    """

    announced: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class IncrementalGather:
    """A gather whose aggregates stay in memory and are patched there.

    Attributes
    ----------
    into : str
        Its temporary, which is the array that stays.
    is_constant : bool
        Nothing that it reads changes: it is never patched.
    reads : tuple of str
        Properties of which it needs a copy of what the sources were.
    is_exact : bool
        Patches leave nothing to rounding: everything but sums and products of reals.
    seen : Analysed or None
        The function as it was: it reads the copies. None for a constant gather.
    """

    into: str
    is_constant: bool
    reads: tuple[str, ...]
    is_exact: bool
    seen: Analysed | None


@dataclass(frozen=True)
class IncrementalGathers:
    """Which gathers of a plan are incremental, if that is asked for.

    Attributes
    ----------
    gathers : dict
        ``into`` -> what patching it takes.
    recomputed : dict
        ``into`` -> why it cannot be.
    """

    gathers: dict[str, IncrementalGather] = field(default_factory=dict)
    recomputed: dict[str, str] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """Properties of which there is a copy of what they were."""
        return tuple(sorted({n for k in self.gathers.values() for n in k.reads}))


def changes_of(analysis: Analysis) -> Changes:
    """Return what one foldmap changes."""
    functions = [f for f in analysis.functions if not f.kind.is_silent]
    announcing = functions[-1:]
    functions = [f for f in analysis.functions if not f.kind.reduces]
    tells_targets = any(f.kind.writes_edges for f in announcing)
    announced, silent = set(), set()
    for function in functions:
        for record in function.accesses:
            if record.mode == "read":
                continue
            type_ = analysis.signature.get(record.name)
            is_vertex = type_ is not None and type_.kind is PropertyKind.VERTEX
            if is_vertex and record.version == "next" and not tells_targets:
                announced.add(record.name)
            else:
                silent.add(record.name)
    return join_changes([Changes(tuple(announced), tuple(silent))])


def join_changes(several: Iterable[Changes]) -> Changes:
    """Return what several foldmaps change together."""
    all_of = list(several)
    silent = {n for c in all_of for n in c.silent}
    announced = {n for c in all_of for n in c.announced} - silent
    return Changes(tuple(sorted(announced)), tuple(sorted(silent)))


def find_incremental(analysis: Analysis, changes: Changes) -> IncrementalGathers:
    """Find the gathers whose aggregates can stay and be patched.

    Parameters
    ----------
    analysis : Analysis
        The middle end's result.
    changes : Changes
        What the foldmaps of the run change, this one included.
    """
    incremental = IncrementalGathers()
    earlier: list[Analysed] = []
    for function in analysis.functions:
        if function.kind.gathers:
            into = str(function.into)
            found = _incremental(function, earlier, analysis, changes)
            if isinstance(found, str):
                incremental.recomputed[into] = found
            else:
                incremental.gathers[into] = found
        earlier.append(function)
    for into in incremental.recomputed:  # one that stands twice is nowhere
        incremental.gathers.pop(into, None)
    return incremental


def _incremental(
    function: Analysed,
    earlier: Sequence[Analysed],
    analysis: Analysis,
    changes: Changes,
) -> IncrementalGather | str:
    """Return how a gather is incremental, or why it is not."""
    problem = _problem(function, earlier, analysis)
    if problem is not None:
        return problem
    changing = {*changes.announced, *changes.silent}
    moving = [a for a in function.accesses if a.name in changing]
    temporary = analysis.temporaries[str(function.into)]
    is_real = temporary.type == "real"
    exact = not (is_real and temporary.combine.rules.rounds)
    if not moving:
        return IncrementalGather(temporary.name, True, (), True, None)
    for record in moving:
        problem = _moving_problem(record, changes)
        if problem is not None:
            return problem
    if not temporary.combine.rules.patch:
        return f"combines with {temporary.combine.name}"
    if temporary.combine.rules.patch == "quotient" and not is_real:
        return "a product of integers cannot be divided"
    reads = tuple(sorted({a.name for a in moving}))
    seen = _as_seen(function, reads, analysis)
    return IncrementalGather(temporary.name, False, reads, exact, seen)


def _problem(
    function: Analysed, earlier: Sequence[Analysed], analysis: Analysis
) -> str | None:
    """Return what of a gather itself forbids change-driven aggregates."""
    temporary = analysis.temporaries[str(function.into)]
    behind = next((f for f in earlier if f.kind.writes), None)
    if behind is not None:
        return f"runs behind {behind.declared.name}, which may leave vertices out"
    if takes_active(function):
        return "combines active sources only"
    if len(temporary.item_shape) == 2:
        size = entry_bytes(temporary.item_shape, temporary.type, analysis.real)
        return f"matrix: would take {size} bytes a vertex"
    if temporary.combine.is_arg:
        return temporary.combine.name
    if "superstep" in function.scalars:
        return "reads d.superstep"
    for record in function.accesses:
        if record.where == "foreign":
            return f"reads {record.name} at foreign vertices"
        if record.name in analysis.reductions:
            return f"reads {record.name}, which a reduce of the same foldmap fills"
        if record.name.removesuffix("_source") in analysis.temporaries:
            return f"reads {record.name}, what another gather has left"
    return None


def _moving_problem(record: AccessRecord, changes: Changes) -> str | None:
    """Return why a gather that reads what changes cannot be patched."""
    if record.name in changes.silent:
        return f"reads {record.name}, and no active set tells where it changes"
    if record.where == "own":
        return f"reads {record.name} of the vertex that gathers"
    if record.version == "next":
        return f"reads {record.name}_next"
    return None


def entry_bytes(shape: tuple[int, ...], type_: str, real: Real) -> int:
    """Return the memory that one entry of a kept array takes."""
    dtype = {"real": real, "bool": "int32"}.get(type_, type_)
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def seen_name(name: str, signature: Signature) -> str:
    """Return the field that holds what property `name` was; no property has it."""
    field_name = f"{name}_seen"
    while field_name in signature:
        field_name += "_"
    return field_name


def _as_seen(
    function: Analysed, reads: tuple[str, ...], analysis: Analysis
) -> Analysed:
    """Return a gather that reads what its sources were: its old contribution."""
    body = copy.deepcopy(function.body)
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, Access | Whole) and node.name in reads:
                node.version = "seen"
    taken = {*GENERATED, *CANONICAL, *analysis.emitted}
    taken |= {f.name for f in analysis.functions} | {h.name for h in analysis.helpers}
    name = f"{function.name}_seen"
    while name in taken:
        name += "_"
    return replace(function, name=name, body=body)

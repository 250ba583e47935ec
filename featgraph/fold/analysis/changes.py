"""The properties that foldmaps change, and the options that depend on these changes.

- `Changes` lists the properties that the foldmaps of a run change: those whose changed
  vertices are in active sets, and others.
- `find_incremental` finds the gathers whose aggregates can stay in memory between
  supersteps. Where a source has changed, its old contribution is removed and the new
  one added. That needs a combine that can be patched, contributions that depend on
  nothing else that changes, and a copy of the sources' previous values.
- `check_any_order` serves asynchronous runs. Such a run ends with the result of a
  synchronous one if every function is monotone. The caller promises that, since it
  cannot be proved (docs/model.md, S8). A program whose access table contradicts the
  promise raises.
- `not_announced` finds reads of edge functions and gathers that may change although
  their edge or vertex is not due, so that skipping them would change results. Edge
  functions run on the out-edges of the active set. If one reads its twin, targets of
  edges that returned True are active, too, so that an edge is due where its twin was
  committed (docs/model.md, S3 and S4; `tells_targets`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from featgraph.base.dataclass import dataclass, field, replace
from featgraph.base.errors import PlanError
from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    memory_dtype,
    takes_active,
)
from featgraph.fold.syntax.names import CANONICAL, unused_name
from featgraph.fold.tree.statements import (
    Access,
    Whole,
    contains,
    copied,
    entity_of,
    every,
    is_reversed,
    name_of,
)
from featgraph.program.combines import SELECTIVE
from featgraph.program.signature import GENERATED, PropertyKind, Real, Signature

__all__ = [
    "Changes",
    "IncrementalGather",
    "IncrementalGathers",
    "changes_of",
    "check_any_order",
    "check_dense",
    "entry_bytes",
    "find_incremental",
    "is_announced",
    "join_changes",
    "not_announced",
    "place_of",
    "seen_name",
    "tells_targets",
]


@dataclass(frozen=True)
class Changes:
    """The properties that the foldmaps of a run change.

    Attributes
    ----------
    announced : tuple of str
        Iterated vertex properties, whose changed vertices are in the active sets.
    silent : tuple of str
        Properties of whose changes active sets have no record: edge properties,
        properties written in place or atomically, and properties of foldmaps whose
        active sets are the targets of edges.
    """

    announced: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class IncrementalGather:
    """A gather whose aggregates stay in memory and are patched there.

    Attributes
    ----------
    into : str
        Its temporary: the array of aggregates.
    is_constant : bool
        Whether nothing that it reads changes, so that it is never patched.
    reads : tuple of str
        Properties whose values at the last patch are kept, to compute the old
        contributions of sources.
    is_exact : bool
        Whether patches add no rounding errors: False for sums and products of reals.
    seen : Analysed or None
        The same function, reading those kept values. None for a constant gather.
    """

    into: str
    is_constant: bool
    reads: tuple[str, ...]
    is_exact: bool
    seen: Analysed | None


@dataclass(frozen=True)
class IncrementalGathers:
    """The gathers of a plan that can be incremental.

    Attributes
    ----------
    gathers : dict
        ``into`` -> data for patching it.
    recomputed : dict
        ``into`` -> reason why a gather is not incremental.
    """

    gathers: dict[str, IncrementalGather] = field(default_factory=dict)
    recomputed: dict[str, str] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """Properties whose values at the last patch are kept."""
        return tuple(sorted({n for k in self.gathers.values() for n in k.reads}))


def changes_of(analysis: Analysis) -> Changes:
    """Return the changes of one foldmap."""
    # The last function that may commit determines the next active set: vertices on
    # which it returned True, or targets of such edges.
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
    """Return the changes of several foldmaps together."""
    all_of = list(several)
    silent = {n for c in all_of for n in c.silent}
    # Active sets are incomplete where one of the foldmaps is silent.
    announced = {n for c in all_of for n in c.announced} - silent
    return Changes(tuple(sorted(announced)), tuple(sorted(silent)))


def find_incremental(analysis: Analysis, changes: Changes) -> IncrementalGathers:
    """Find the gathers whose aggregates can stay in memory and be patched.

    Parameters
    ----------
    analysis : Analysis
        Analysis of one foldmap.
    changes : Changes
        Changes of all foldmaps of the run, this one included.
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
    for into in incremental.recomputed:  # two gathers may have one `into`
        incremental.gathers.pop(into, None)
    return incremental


def _incremental(
    function: Analysed,
    earlier: Sequence[Analysed],
    analysis: Analysis,
    changes: Changes,
) -> IncrementalGather | str:
    """Return the data for patching a gather, or the reason why there are none."""
    problem = _problem(function, earlier, analysis)
    if problem is not None:
        return problem
    changing = {*changes.announced, *changes.silent}
    changed = [a for a in function.accesses if a.name in changing]
    temporary = analysis.temporaries[str(function.into)]
    is_real = temporary.type == "real"
    exact = not (is_real and temporary.combine.rules.rounds)
    # A constant gather is never patched, so that any combine will do.
    if not changed:
        return IncrementalGather(temporary.name, True, (), True, None)
    for record in changed:
        problem = _moving_problem(record, changes)
        if problem is not None:
            return problem
    if not temporary.combine.rules.patch:
        return f"combines with {temporary.combine.name}"
    if temporary.combine.rules.patch == "quotient" and not is_real:
        return "a product of integers cannot be divided"
    reads = tuple(sorted({a.name for a in changed}))
    seen = _as_seen(function, reads, analysis)
    return IncrementalGather(temporary.name, False, reads, exact, seen)


def _problem(
    function: Analysed, earlier: Sequence[Analysed], analysis: Analysis
) -> str | None:
    """Return why a gather cannot keep aggregates, whatever changes; None if it can."""
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
    """Return why a gather with a changing input cannot be patched."""
    if record.name in changes.silent:
        return f"reads {record.name}, and no active set tells where it changes"
    if record.where == "own":
        return f"reads {record.name} of the vertex that gathers"
    if record.version == "next":
        return f"reads {record.name}_next"
    return None


def entry_bytes(shape: tuple[int, ...], type_: str, real: Real) -> int:
    """Return the bytes of one entry of a kept array."""
    return int(np.prod(shape)) * np.dtype(memory_dtype(type_, real)).itemsize


def seen_name(name: str, signature: Signature) -> str:
    """Return the field of ``d`` for kept values of a property; no property has it."""
    return unused_name(f"{name}_seen", signature)


def _as_seen(
    function: Analysed, reads: tuple[str, ...], analysis: Analysis
) -> Analysed:
    """Return a gather that reads kept values, so that it returns old contributions."""
    body = tuple(map(copied, function.body))
    for node in every(body):
        if isinstance(node, Access | Whole) and node.name in reads:
            node.version = "seen"
    taken = {*GENERATED, *CANONICAL, *analysis.emitted}
    taken |= {f.name for f in analysis.functions} | {h.name for h in analysis.helpers}
    name = unused_name(f"{function.name}_seen", taken)
    return replace(function, name=name, body=body)


def check_any_order(analysis: Analysis, others: Iterable[Changes], where: str) -> None:
    """Raise for functions whose result could depend on the order of vertices.

    Parameters
    ----------
    analysis : Analysis
        Analysis of one foldmap.
    others : iterable of Changes
        Changes of the other foldmaps of the run.
    where : str
        The option that requires this.

    Raises
    ------
    PlanError
        With the function, the reason, and a fix.
    """
    changes = join_changes([changes_of(analysis), *others])
    #: Properties that change during the run, and temporaries that depend on them.
    moving = {*changes.announced, *changes.silent}
    waiting: list[Analysed] = []
    for function in analysis.functions:
        read = sorted({a.name for a in function.accesses if _moves(a.name, moving)})
        problem, fix = _order_problem(function, read)
        if problem is not None:
            raise PlanError(f"{place_of(function)} {problem}", where=where, fix=fix)
        if function.kind.gathers:
            for earlier, name in _filters(waiting, moving):
                raise PlanError(
                    f"{place_of(earlier)} runs before a gather and reads {name}, which "
                    "changes in the run: a vertex that it stops would not see what is "
                    "better and comes later",
                    where=where,
                    fix="let it read what does not change, or drop the option",
                )
            if read:
                # Functions behind it read a result that depends on the order so far.
                moving.add(str(function.into))
        waiting.append(function)


def place_of(function: Analysed) -> str:
    """Return file, line and name of a function, for an error message."""
    return f"{function.declared.source.where()}: {function.declared.name}"


def _moves(name: str, moving: set[str]) -> bool:
    return name in moving or name.removesuffix("_source") in moving


def _order_problem(function: Analysed, read: Sequence[str]) -> tuple[str | None, str]:
    """Return why the result of a function depends on the order, and the fix.

    `read` has the changing names that it reads. The reason is None if it does not.
    """
    drop = "drop the option"
    if not (function.kind.combines or function.kind.writes_vertices):
        article = "an" if function.kind.writes_edges else "a"
        return (
            f"is {article} {function.kind} function: it runs where the superstep "
            "before has committed"
        ), f"write it as a gather, or {drop}"
    if "superstep" in function.scalars:
        return "reads d.superstep, and supersteps do not count the same", drop
    written = sorted(function.writes("now"))
    if written:
        return (
            f"writes {written[0]} in place, which shows how often it ran"
        ), f"declare {written[0]} with iterated=True and write d.{written[0]}_next"
    if any(a.mode == "atomic" for a in function.accesses):
        return "uses fg.atomic, which shows how often it ran", drop
    if function.kind.reduces and read:
        return (
            f"reduces {read[0]}, which changes in the run: its result shows how far "
            "others have come"
        ), f"reduce it behind the run, or {drop}"
    if not function.kind.gathers or not read:
        return None, ""
    combine = combine_of(function)
    if not combine.rules.selects:
        return (
            f"combines {read[0]}, which changes in the run, with "
            f"{combine.name!r}: what was counted early would stay in it"
        ), f"combine with {', '.join(SELECTIVE)}, or {drop}"
    any_will_do = getattr(function.declared, "first", False)
    if any_will_do and combine.rules.gives != "bool":
        return (
            f"takes the first of what {read[0]} contributes, which changes in the run: "
            "another one may be better"
        ), f"drop first=True, or {drop}"
    return None, ""


def _filters(
    earlier: Sequence[Analysed], moving: set[str]
) -> list[tuple[Analysed, str]]:
    """Return the vertex functions whose verdict may depend on a changing name."""
    return [
        (function, access.name)
        for function in earlier
        if function.kind.writes_vertices
        for access in function.accesses
        if access.mode == "read" and _moves(access.name, moving)
    ]


#: The functions of a foldmap.
Functions = Sequence[Analysed]


@dataclass(frozen=True)
class Unannounced:
    """A read whose value may change while the vertex or edge is not due, and why."""

    function: Analysed
    node: ast.AST | None
    problem: str


def tells_targets(functions: Functions) -> bool:
    """Return whether targets of edges that returned True are in the next active set.

    They are if an edge function reads its twin's entry of a property that it writes.
    """
    written = _written(functions)
    return any(
        a.name in written and a.where == "twin"
        for function in functions
        if function.kind.writes_edges
        for a in function.accesses
    )


def not_announced(
    functions: Functions, others: Sequence[Functions]
) -> Unannounced | None:
    """Return the first read of a foldmap that may change without an announcement.

    Parameters
    ----------
    functions : sequence of Analysed
        Functions of the foldmap.
    others : sequence of sequences of Analysed
        Functions of the other foldmaps of the run.
    """
    return next(_Reads(functions, others).find(), None)


def is_announced(function: Analysed) -> bool:
    """Return whether active sets have all vertices that a function changes."""
    at_vertices = function.kind.combines or function.kind.writes_vertices
    return at_vertices and _unannounced_effect(function) is None


def _unannounced_effect(function: Analysed) -> str | None:
    """Return an effect of a function that no active set announces; None without one."""
    if any(a.mode == "atomic" for a in function.accesses):
        return "uses fg.atomic, also where it is not due"
    written = function.writes("now")
    if written:
        return f"writes {min(written)} in place, also where it is not due"
    if takes_active(function):
        return "gathers from active vertices only"
    if "superstep" in function.scalars:
        return "reads d.superstep, so a vertex that is not due may change"
    return None


def check_dense(functions: Functions, others: Sequence[Functions], where: str) -> None:
    """Check that running a foldmap on vertices that are not due changes no result.

    Parameters
    ----------
    functions, others
        As for `not_announced`.
    where : str
        The option that requires this.

    Raises
    ------
    PlanError
        With the function, and the effect or read that forbids it.
    """
    fix = "use change_driven='auto'"
    for function in functions:
        problem = _unannounced_effect(function)
        if problem is not None:
            name = function.declared.name
            raise PlanError(f"{name} {problem}", where=where, fix=fix)
    found = not_announced(functions, others)
    if found is not None:
        declared = found.function.declared
        raise PlanError(
            f"{declared.name} {found.problem}",
            where=f"{where}: {declared.source.where(found.node)}",
            fix=fix,
        )


def _written(functions: Functions, of: str = "edge") -> frozenset[str]:
    """Return the properties whose ``_next`` functions write, `of` edge or vertex."""
    return frozenset(
        n for f in functions if f.kind.writes == of for n in f.writes("next")
    )


class _Reads:
    """The reads of one foldmap, compared with the changes of all foldmaps of a run.

    Attributes
    ----------
    vertices : frozenset of str
        Vertex properties that some foldmap changes.
    own, others : frozenset of str
        Edge properties that this foldmap changes; those that other foldmaps change.
    silent : frozenset of str
        Edge properties changed by a foldmap that does not make targets active.
    compared : frozenset of str
        Properties of out-edges whose current and next entries a gather compares.
    """

    def __init__(self, functions: Functions, others: Sequence[Functions]) -> None:
        self.functions = functions
        every = (functions, *others)
        self.vertices = frozenset().union(*(_written(fs, "vertex") for fs in every))
        self.own = _written(functions)
        self.others = frozenset().union(*map(_written, others))
        self.silent = frozenset().union(
            *(
                _written(fs)
                for fs in every
                if not tells_targets(fs) and not fs[-1].kind.writes_edges
            )
        )
        self.compared = frozenset().union(
            *(_compared(f) for f in functions if f.kind.gathers)
        )

    def find(self) -> Iterator[Unannounced]:
        """Yield the reads that may change without an announcement."""
        yield from self._before_edges()
        sent: set[str] = set()
        is_behind = False
        for function in self.functions:
            if function.kind.writes_edges:
                yield from self._of_edge(function)
                sent |= function.writes("next")
                is_behind = True
            elif function.kind.gathers:
                yield from self._of_gather(function, sent, is_behind)

    def _before_edges(self) -> Iterator[Unannounced]:
        """Yield vertex functions in front of edge functions with functions behind them.

        A vertex that is due only as a target of an edge skips the functions in front of
        the edge functions. Were all vertices due, such a function could stop it.
        """
        for place, function in enumerate(self.functions):
            later = iter(self.functions[place + 1 :])
            any(f.kind.writes_edges for f in later)  # advances to the first one
            leads_back = any(f.kind.writes_vertices or f.kind.gathers for f in later)
            if function.kind.writes_vertices and leads_back:
                problem = "may stop vertices that are due only as targets of edges"
                yield Unannounced(function, None, problem)

    def _of_edge(self, function: Analysed) -> Iterator[Unannounced]:
        """Yield reads of an edge function; an edge is due when its source is active."""
        lasting = _Dependence(function).reads()
        for node in _reads(function):
            name, problem = node.name, None
            if entity_of(node) == "v":
                if name in self.vertices:
                    problem = f"reads d.{name} of its target"
            elif any(map(is_reversed, node.indices[:1])):
                if name in self.silent - self.own:
                    problem = f"reads d.{name} of its twin, which another foldmap sends"
            elif name in self.others:
                problem = f"reads d.{name}, which another foldmap sends"
            elif node in lasting and name in self.own - self.compared:
                problem = f"makes d.{name}_next of what d.{name} was at the same edge"
            if problem is not None:
                why = "and an edge is due when its source is"
                yield Unannounced(function, node, f"{problem}, {why}")

    def _of_gather(
        self, function: Analysed, sent: set[str], is_behind: bool
    ) -> Iterator[Unannounced]:
        """Yield reads of a gather behind edge functions that have written `sent`."""
        is_in = declared_along(function) == "in"
        for node in _reads(function):
            name, is_new = node.name, node.version == "next" and node.name in sent
            if entity_of(node) == "u":
                if is_behind and name in self.vertices:
                    why = "and behind an edge function only targets of edges are due"
                    problem = f"gathers d.{name} of its sources, {why}"
                    yield Unannounced(function, node, problem)
                continue
            if is_new or name not in self.own | self.others:
                continue
            by_target = is_in and not any(map(is_reversed, node.indices[:1]))
            if by_target and name in self.silent:
                problem = f"reads d.{name}, whose changes do not make the target due"
                yield Unannounced(function, node, problem)
            elif not by_target and name not in _compared(function):
                problem = f"reads d.{name}, whose changes do not make the source due"
                yield Unannounced(function, node, problem)


def _compared(gather: Analysed) -> set[str]:
    """Return properties of which a gather reads current and next entries at twins.

    A vertex that compares both can commit, and so be active, if they differ.
    """
    twins = {(a.name, a.version) for a in gather.accesses if a.where == "twin"}
    return {n for n, version in twins if version == "now" and (n, "next") in twins}


def _reads(function: Analysed) -> Iterator[Access | Whole]:
    """Yield the accesses by which a function reads properties."""
    for statement in function.body:
        nodes = list(every([statement]))
        targets = {id(n.targets[0]) for n in nodes if isinstance(n, ast.Assign)}
        for node in nodes:
            if isinstance(node, Access | Whole) and id(node) not in targets:
                yield node


_LEAVING = ast.Return | ast.Break | ast.Continue


class _Dependence:
    """Finds the reads of a function at its own edge on which written values depend.

    Data flow is by name, not by path: a local depends on the reads of all assignments
    to it, and of the conditions around them. Reads on which only the verdict depends
    are left out: an edge that is not due may have another verdict, but it would write
    the values that are there already.
    """

    def __init__(self, function: Analysed) -> None:
        self.function = function
        #: Local -> reads that it depends on.
        self.locals: dict[str, set[ast.AST]] = {}
        self.written: set[ast.AST] = set()

    def reads(self) -> set[ast.AST]:
        """Return these reads: a fixed point, since loops carry locals backwards."""
        before = -1
        while before != self._size():
            before = self._size()
            self._go(self.function.body, set())
        return self.written

    def _size(self) -> int:
        return len(self.written) + sum(map(len, self.locals.values()))

    def _of(self, node: ast.AST) -> set[ast.AST]:
        """Return the reads on which an expression depends."""
        found: set[ast.AST] = set()
        for each in every([node]):
            found |= self.locals.get(name_of(each), set())
            if isinstance(each, Access | Whole) and self._is_own(each):
                found.add(each)
        return found

    def _is_own(self, node: Access | Whole) -> bool:
        is_written = node.version == "next" and node.name in self.function.next_definite
        return entity_of(node) == "e" and not is_written

    def _go(self, body: Sequence[ast.stmt], under: set[ast.AST]) -> set[ast.AST]:
        """Walk over statements whose execution depends on the reads `under`.

        Return `under` with the reads on which statements behind these depend, too,
        because a branch may leave.
        """
        under = set(under)
        for statement in body:
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
                self._assign(statement, under)
            elif isinstance(statement, ast.If | ast.While):
                inner = under | self._of(statement.test)
                for part in (statement.body, statement.orelse):
                    ends = self._go(part, inner)
                    if any(contains(each, _LEAVING) for each in part):
                        under |= inner | ends
            elif isinstance(statement, ast.For):
                inner = under | self._of(statement.iter)
                self._take(statement.target, inner)
                under |= self._go(statement.body, inner)
        return under

    def _assign(
        self, statement: ast.Assign | ast.AugAssign | ast.AnnAssign, under: set[ast.AST]
    ) -> None:
        value = under | (self._of(statement.value) if statement.value else set())
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
        )
        for target in targets:
            self._take(target, value)

    def _take(self, target: ast.AST, value: set[ast.AST]) -> None:
        if isinstance(target, Access):
            self.written |= value
            return
        for name in (n.id for n in every([target]) if isinstance(n, ast.Name)):
            self.locals.setdefault(name, set()).update(value)

"""Which changes of a foldmap's edges are announced, and which are not.

Edge functions run on the out-edges of A: an edge is due when its source is. Where one
reads its twin, targets of edges that returned True are active, too, so that it is due
where its twin was committed (docs/model.md, S3 and S4). What else an edge or a gather
reads may change while it is not due; `not_announced` finds that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import declared_along, takes_active
from featgraph.fold.tree.expressions import Access, Whole, is_reversed

__all__ = [
    "Unannounced",
    "check_dense",
    "is_announced",
    "not_announced",
    "tells_targets",
]

Functions = Sequence[Analysed]


@dataclass(frozen=True)
class Unannounced:
    """What a function reads that may change while it is not due: where, and why."""

    function: Analysed
    node: ast.AST | None
    problem: str


def tells_targets(functions: Functions) -> bool:
    """Whether the targets of edges that returned True are active behind a superstep."""
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
        Of the foldmap.
    others : sequence of sequences of Analysed
        Of the other foldmaps of the run.
    """
    return next(_Reads(functions, others).find(), None)


def is_announced(function: Analysed) -> bool:
    """Whether all that a function changes is announced, and nothing else."""
    at_vertices = function.kind.combines or function.kind.writes_vertices
    return at_vertices and _untold(function) is None


def _untold(function: Analysed) -> str | None:
    """Return what a function does of which no active set tells."""
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
    """See that running a foldmap on vertices that are not due changes no result.

    Parameters
    ----------
    functions, others
        As for `not_announced`.
    where : str
        The option that asks for it.

    Raises
    ------
    PlanError
        Names the function, and what it does or reads.
    """
    fix = "use change_driven='auto'"
    for function in functions:
        problem = _untold(function)
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
    """Return the properties of an owner whose next entries functions write."""
    return frozenset(
        n for f in functions if f.kind.writes == of for n in f.writes("next")
    )


class _Reads:
    """What one foldmap of a run reads, next to what all of them change."""

    def __init__(self, functions: Functions, others: Sequence[Functions]) -> None:
        self.functions = functions
        every = (functions, *others)
        self.vertices = frozenset().union(*(_written(fs, "vertex") for fs in every))
        self.own = _written(functions)
        self.others = frozenset().union(*map(_written, others))
        #: Written by a foldmap that does not announce targets.
        self.silent = frozenset().union(
            *(
                _written(fs)
                for fs in every
                if not tells_targets(fs) and not fs[-1].kind.writes_edges
            )
        )
        #: What a gather at the source compares with what it was.
        self.compared = frozenset().union(
            *(_compared(f) for f in functions if f.kind.gathers)
        )

    def find(self) -> Iterator[Unannounced]:
        """Give all such reads."""
        yield from self._asked_before()
        sent: set[str] = set()
        is_behind = False
        for function in self.functions:
            if function.kind.writes_edges:
                yield from self._of_edge(function)
                sent |= function.writes("next")
                is_behind = True
            elif function.kind.gathers:
                yield from self._of_gather(function, sent, is_behind)

    def _asked_before(self) -> Iterator[Unannounced]:
        """Give vertex functions before edge functions that lead to vertices again.

        A vertex due only as a target runs just the functions behind the edge functions;
        with everything due, one before them may stop it.
        """
        for place, function in enumerate(self.functions):
            later = iter(self.functions[place + 1 :])
            any(f.kind.writes_edges for f in later)  # goes on to the first one
            leads_back = any(f.kind.writes_vertices or f.kind.gathers for f in later)
            if function.kind.writes_vertices and leads_back:
                problem = "may stop vertices that are due only as targets of edges"
                yield Unannounced(function, None, problem)

    def _of_edge(self, function: Analysed) -> Iterator[Unannounced]:
        lasting = _own_in_writes(function)
        for node in _reads(function):
            first, name = node.indices[0] if node.indices else None, node.name
            problem = None
            if isinstance(first, ast.Name) and first.id == "v":
                if name in self.vertices:
                    problem = f"reads d.{name} of its target"
            elif first is not None and is_reversed(first):
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
        is_in = declared_along(function) == "in"
        for node in _reads(function):
            first, name = node.indices[0] if node.indices else None, node.name
            is_new = node.version == "next" and name in sent
            if isinstance(first, ast.Name) and first.id == "u":
                if is_behind and name in self.vertices:
                    why = "and behind an edge function only targets of edges are due"
                    problem = f"gathers d.{name} of its sources, {why}"
                    yield Unannounced(function, node, problem)
                continue
            if is_new or name not in self.own | self.others:
                continue
            by_target = is_in and not (first is not None and is_reversed(first))
            if by_target and name in self.silent:
                problem = f"reads d.{name}, whose changes do not make the target due"
                yield Unannounced(function, node, problem)
            elif not by_target and name not in _compared(function):
                problem = f"reads d.{name}, whose changes do not make the source due"
                yield Unannounced(function, node, problem)


def _compared(gather: Analysed) -> set[str]:
    """Return what it reads of the edges that its vertex sends, before and after.

    A vertex that compares them announces itself where its own messages have moved.
    """
    twins = {(a.name, a.version) for a in gather.accesses if a.where == "twin"}
    return {n for n, version in twins if version == "now" and (n, "next") in twins}


def _reads(function: Analysed) -> Iterator[Access | Whole]:
    """Give the places where a function reads properties."""
    for statement in function.body:
        targets = {
            id(node.targets[0])
            for node in ast.walk(statement)
            if isinstance(node, ast.Assign)
        }
        for node in ast.walk(statement):
            if isinstance(node, Access | Whole) and id(node) not in targets:
                yield node


def _own_in_writes(function: Analysed) -> set[ast.AST]:
    """Return the reads at the function's own edge that what it writes depends on.

    Its verdict may depend on others: that an edge which is not due would return
    something else changes nothing, since what it writes is what is there.
    """
    return _Dependence(function).reads()


class _Dependence:
    """Which reads of a function at its own edge reach what it writes.

    By names, not by paths: what any assignment to a local depends on, each does.
    """

    def __init__(self, function: Analysed) -> None:
        self.function = function
        #: Local -> reads that it depends on.
        self.locals: dict[str, set[ast.AST]] = {}
        self.written: set[ast.AST] = set()

    def reads(self) -> set[ast.AST]:
        """Return them."""
        before = -1
        while before != self._size():
            before = self._size()
            self._go(self.function.body, set())
        return self.written

    def _size(self) -> int:
        return len(self.written) + sum(map(len, self.locals.values()))

    def _of(self, node: ast.AST) -> set[ast.AST]:
        found: set[ast.AST] = set()
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                found |= self.locals.get(each.id, set())
            if isinstance(each, Access | Whole) and self._is_own(each):
                found.add(each)
        return found

    def _is_own(self, node: Access | Whole) -> bool:
        first = node.indices[0] if node.indices else None
        is_own = isinstance(first, ast.Name) and first.id == "e"
        return is_own and not (
            node.version == "next" and node.name in self.function.next_definite
        )

    def _go(self, body: Sequence[ast.stmt], under: set[ast.AST]) -> set[ast.AST]:
        """Go through statements that run under some reads; return what ends them."""
        under = set(under)
        for statement in body:
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
                self._assign(statement, under)
            elif isinstance(statement, ast.If | ast.While):
                inner = under | self._of(statement.test)
                for part in (statement.body, statement.orelse):
                    ends = self._go(part, inner)
                    if any(_leaves(each) for each in part):
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
        elif isinstance(target, ast.Name):
            self.locals.setdefault(target.id, set()).update(value)
        else:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    self.locals.setdefault(each.id, set()).update(value)


def _leaves(statement: ast.stmt) -> bool:
    kinds = ast.Return | ast.Break | ast.Continue
    return any(isinstance(node, kinds) for node in ast.walk(statement))

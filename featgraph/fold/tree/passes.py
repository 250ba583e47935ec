"""Passes over trees, and the invariants that tests verify after each of them.

A pass is a function from tree to tree; the first line of its docstring is its
description in `explain` and in the documentation. `run` runs a list of passes; the
lists are in `passes/passes.py`. `verify` checks invariants whose violation gives wrong
code in some kernels only: a barrier in a branch that some lanes do not enter, a node
that stands twice in a tree and is changed in both places, an unbound name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.tree import nodes
from featgraph.fold.tree.statements import Body, Node, agrees, every

__all__ = ["Pass", "Stage", "TreeError", "run", "verify"]

#: Whether trees are verified behind each pass; tests set it.
verifying = False

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Pass(Generic[Facts]):
    """A pass, and the classes of nodes that it removes from the tree."""

    run: Callable[[Facts, Body], Body]
    rewrites: tuple[type[ast.AST], ...] = ()

    @property
    def name(self) -> str:
        """Name of the pass."""
        return self.run.__name__

    @property
    def does(self) -> str:
        """Description in one sentence: the first line of the docstring."""
        return str(self.run.__doc__).partition("\n")[0]


def run(
    passes: Sequence[Pass[Facts]],
    facts: Facts,
    stage_of: Callable[[Pass[Facts]], Stage] = lambda _: Stage(),
) -> Iterator[tuple[Pass[Facts], Body]]:
    """Yield each pass with its result, which is the input of the next pass.

    Parameters
    ----------
    stage_of : callable
        Pass -> invariants after it, without `gone`, which `run` adds.
    """
    tree: Body = []
    gone: tuple[type[ast.AST], ...] = ()
    for one in passes:
        tree = one.run(facts, tree)
        gone += one.rewrites
        if verifying:
            verify(tree, stage_of(one).without(gone))
        yield one, tree


#: Statements that leave a branch, so that it binds no name for the statements behind.
_LEAVES = (ast.Break, ast.Continue, ast.Return)


class TreeError(AssertionError):
    """A tree that breaks an invariant."""


@dataclass(frozen=True)
class Stage:
    """Invariants that hold after a pass.

    Attributes
    ----------
    gone : tuple of classes
        Nodes that this pass and earlier ones rewrite, and that no later pass creates.
    companies : mapping or None
        Scope of a `Meet` -> lanes that must reach it together, "warp" or "block"; ""
        for a single lane. None before lanes are assigned.
    given : collection of str or None
        Arguments and globals of a kernel, which it reads without binding them. None
        before all other names are bound.
    """

    gone: tuple[type[ast.AST], ...] = ()
    companies: Mapping[str, str] | None = None
    given: Collection[str] | None = None

    def without(self, gone: tuple[type[ast.AST], ...]) -> Stage:
        """Return the invariants with the classes of nodes that must be gone."""
        return replace(self, gone=gone)


def verify(tree: Body, stage: Stage) -> None:
    """Raise if a tree breaks an invariant.

    Raises
    ------
    TreeError
        For a node that stands twice, a node that must be gone, a `Meet` in a branch or
        loop that its lanes may not enter together, and a name that may be unbound.
    """
    _once(tree, stage.gone)
    if stage.companies is not None:
        _meets(tree, stage.companies, [])
    if stage.given is not None:
        _Bound(stage.given).body(tree)


def _once(tree: Body, gone: tuple[type[ast.AST], ...]) -> None:
    """Raise for a node that must be gone, or that stands in two places.

    A pass that changes the one place would change the other, too.
    """
    found = list(every(tree))
    for kind in set(map(type, found)):
        if issubclass(kind, gone):
            raise TreeError(f"{kind.__name__} is rewritten by an earlier pass")
    seen = set(map(id, found))
    if len(seen) == len(found):
        return
    for node in found:
        if id(node) not in seen:
            raise TreeError(f"this stands twice in the tree: {_shown(node)}")
        seen.remove(id(node))


def _meets(body: Body, companies: Mapping[str, str], apart: list[ast.stmt]) -> None:
    """Raise for a `Meet` that some lanes may not reach; `apart`: statements around."""
    for node in body:
        if isinstance(node, nodes.Meet):
            _meets_here(node, companies[node.scope], apart)
        inner = (
            [*apart, node] if isinstance(node, ast.If | ast.For | ast.While) else apart
        )
        for name in ("body", "orelse"):
            _meets(getattr(node, name, []), companies, inner)


def _meets_here(node: nodes.Meet, company: str, around: list[ast.stmt]) -> None:
    """Raise if a branch or loop around a `Meet` may be entered by some lanes only."""
    if not company:
        return
    for outer in around:
        if isinstance(outer, Node):
            continue
        # A statement that a whole block enters is entered by all its warps.
        if agrees(outer) not in {company, "block"}:
            raise TreeError(
                f"lanes meet to {node.what} the {node.scope}, but some may not enter "
                f"{_shown(outer)}"
            )


class _Bound:
    """Names that are bound on every path to a statement.

    A name that one branch binds is bound behind the ``if`` if the other branch binds
    it, too, or leaves. A name that is bound under a test is bound in a later branch
    under the same test; if a branch under its negation binds the name, too, it is bound
    behind that. Both hold only because tests change from True to False in between, and
    never back.
    """

    def __init__(self, given: Collection[str]) -> None:
        self.names = set(given)
        #: Text of a test -> names bound behind a branch under it.
        self.under: dict[str, set[str]] = {}

    def body(self, body: Body) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self._branches(node)
        elif isinstance(node, ast.For | ast.While):
            self._loop(node)
        elif isinstance(node, ast.Assign):
            self._reads(node.value)
            for target in node.targets:
                self._binds(target)
        elif isinstance(node, ast.AugAssign):
            self._reads(node.target)
            self._reads(node.value)
        elif isinstance(node, ast.Expr):
            self._reads(node.value)

    def _branches(self, node: ast.If) -> None:
        """Follow both branches; `ways` has the names bound at the ends that go on."""
        self._reads(node.test)
        before, ways = self.names, list[set[str]]()
        known = self.under.get(ast.unparse(node.test), set())
        for branch, more in ((node.body, known), (node.orelse, set[str]())):
            self.names = before | more
            self.body(branch)
            if not (branch and isinstance(branch[-1], _LEAVES)):
                ways.append(self.names)
        test = ast.unparse(node.test)
        if ways and isinstance(node.test, ast.UnaryOp):
            other = self.under.get(ast.unparse(node.test.operand), set())
            ways[-1] = ways[-1] | other
        self.under[test] = ways[0] if ways else before
        self.names = set.intersection(*ways) if ways else before

    def _loop(self, node: ast.For | ast.While) -> None:
        if isinstance(node, ast.For):
            self._reads(node.iter)
            self._binds(node.target)
        else:
            self._reads(node.test)
        before = set(self.names)
        self.body(node.body)
        if not _runs(node):
            self.names = before

    def _binds(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.names.add(target.id)
        elif isinstance(target, ast.Tuple):
            for part in target.elts:
                self._binds(part)
        else:
            self._reads(target)

    def _reads(self, value: ast.expr) -> None:
        for node in every([value]):
            if not isinstance(node, ast.Name) or not node.id.isidentifier():
                continue  # text that is printed already, no name
            if node.id not in self.names:
                raise TreeError(f"nothing binds {node.id} in {_shown(value)}")


def _runs(node: ast.For | ast.While) -> bool:
    """Return whether the body of a loop runs at least once."""
    if isinstance(node, ast.While):
        return isinstance(node.test, ast.Constant)
    args = node.iter.args if isinstance(node.iter, ast.Call) else []
    return len(args) == 1 and isinstance(args[0], ast.Constant)


def _shown(node: ast.AST) -> str:
    """Return the first line of a statement, or the class of a node of the nest."""
    if isinstance(node, Node):
        return type(node).__name__
    try:
        return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0]
    except (AttributeError, RecursionError, TypeError):  # a node of the nest
        return type(node).__name__

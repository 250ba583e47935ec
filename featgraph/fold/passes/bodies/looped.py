"""Loops over features, for one thread that owns many of them.

The body is cut at the collaborative calls. Each varying local is a small array with one
element for each feature. The statements between two cuts share one loop, which also
takes up a reduction behind them. Other operations have loops of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import cast

from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.forms import Call, Form, InForm, diverges
from featgraph.fold.passes.bodies.nodes import Define, GoOn
from featgraph.fold.syntax.normal_form import (
    has_collective,
    is_collective,
    varies,
)
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Operate,
    code,
    contains,
    copied,
    expression,
    narrowed,
    placed,
)

__all__ = ["Loops", "looped"]


def looped(facts: BodyFacts, node: Define) -> Define:
    """Put loops over features between collaborative calls."""
    loops = Loops(facts, node.varying)
    node.body = loops.body(node.body)
    node.areas, node.arrays = tuple(loops.areas), dict(loops.rows)
    kinds = {"rows": "real", "flags": "int64"}
    scratch = [name for name, kind in kinds.items() if loops.rows[kind]]
    node.more = (*facts.temporaries, *loops.contributions, *scratch, *loops.area_names)
    return node


class Loops(Form):
    """The looped form: arrays of local variables, and loops over all features."""

    def __init__(self, facts: BodyFacts, varying: frozenset[str]) -> None:
        super().__init__(facts, varying)
        self.rows = {"real": 0, "int64": 0}
        #: Varying local -> the template of its element.
        self.arrays = {
            name: self.new_row(facts.function.variables.get(name, ""), "f")
            for name in sorted(varying - {"f"})
        }
        #: Arrays into which a gather stores contributions; argmin and argmax also
        #: store sources.
        self.contributions: list[str] = []
        if facts.returns_value:
            both = ["contribution", "contribution_source"]
            self.contributions = both if facts.has_key else both[:1]

    def new_row(self, type_: str, place: str) -> str:
        """Add an array, and return the template of its elements."""
        kind = "real" if type_ == "real" else "int64"
        number = self.rows[kind]
        self.rows[kind] += 1
        return f"{'rows' if kind == 'real' else 'flags'}[{number}, {place}]"

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression for feature f."""
        return cast("ast.expr", _Element(self).visit(copied(node)))

    def over_features(self, body: Body) -> Body:
        """Return a loop over the features."""
        size = self.facts.context.any_width or self.facts.width
        return code(f"for f in range({size}):\n    BODY", BODY=body)

    # -- statements

    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements; neighboring ones that vary share a loop over features."""
        out: Body = []
        run: Body = []
        for node in body:
            if self._is_featurewise(node):
                run.append(node)
                continue
            joins = self._joins(node, run)
            if not joins:
                out += self._each(run)
                run = []
            if isinstance(node, ast.Assign) and is_collective(node.value):
                fused = self._elements(run) if joins else []
                out += looped_call(self, node, fused)
                run = []
            else:
                out += self._structured(node)
        return out + self._each(run)

    def _each(self, run: Body) -> Body:
        """Return one loop over statements for each feature."""
        return self.over_features(self._elements(run)) if run else []

    def _elements(self, run: Body) -> Body:
        return _Element(self).over(run)

    def _is_featurewise(self, node: ast.stmt) -> bool:
        """Whether a statement varies, has no collaborative call and does not return."""
        if has_collective(node) or contains(node, ast.Return | GoOn):
            return False
        if isinstance(node, ast.If | ast.For | ast.While) and not diverges(
            node, self.varying
        ):
            return False
        return varies(node, self.varying) or contains(node, Atomic)

    def _joins(self, node: ast.stmt, run: Body) -> bool:
        """Whether an operation can be fused into the loop in front of it."""
        return (
            bool(run)
            and isinstance(node, ast.Assign)
            and isinstance(node.value, Operate)
            and node.value.is_collective
            and primitive_of(node.value).ends_loop(node.value)
        )

    def _structured(self, node: ast.stmt) -> Body:
        if isinstance(node, ast.Return):
            return self._return(node)
        if isinstance(node, GoOn):
            end = [] if self.contributions else code("return result")
            return self._all(node.call) + end
        if isinstance(node, ast.If | ast.For | ast.While):
            return [self.together(node)]
        return self._elements([node])

    def _return(self, node: ast.Return) -> Body:
        value = narrowed(node.value, ast.expr)
        if self.contributions or varies(value, self.varying):
            end = "return" if self.contributions else "return result"
            return placed(self._all(value) + code(end), node)
        node.value = self.value(value)
        return [node]

    def _all(self, value: ast.expr) -> Body:
        """Return the contributions of all features, or their common verdict."""
        one = self.value(value)
        if self.contributions:
            targets = ", ".join(f"{name}[f]" for name in self.contributions)
            return self.over_features(code(f"{targets} = X", X=one))
        each = self.over_features(code("result |= X", X=one))
        return code("result = False") + each


class _Element(InForm):
    """Rewrite statements and expressions for feature f."""

    def __init__(self, loops: Loops) -> None:
        super().__init__(loops)
        self.arrays = loops.arrays

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return an array element in place of a local variable."""
        array = self.arrays.get(node.id)
        return node if array is None else expression(array)

    def visit_Access(self, node: Access) -> ast.AST:
        """Return an element of an argument."""
        if self.form.is_argument(node):
            return expression(f"{node.name}[f]")
        return self.generic_visit(node)


def looped_call(loops: Loops, node: ast.Assign, fused: Body) -> Body:
    """Return the statements of ``target = operation(...)``.

    Parameters
    ----------
    fused : list of ast.stmt
        Statements in front of it, to fuse into its loop.
    """
    target = narrowed(node.targets[0], ast.Name).id
    operate = narrowed(node.value, Operate)
    loops.facts.fresh.begin()
    call = _LoopedCall(loops, node, fused)
    primitive_of(operate).loop(operate, target, call)
    return call.body


class _LoopedCall(Call):
    """Context of an operation: see `operations.primitive.Looped`."""

    def __init__(self, loops: Loops, node: ast.Assign, fused: Body) -> None:
        super().__init__(loops, node)
        self.loops, self.fused = loops, fused

    def all_features(self) -> AbstractContextManager[None]:
        return self.block(f"for f in range({self.width}):")

    def each(self, template: str, **parts: ast.expr) -> None:
        last = placed(code(template, **parts), self.node)
        self.body += self.loops.over_features([*self.fused, *last])

    def element_of(self, target: str) -> str:
        return self.loops.arrays[target]

    def new_row(self, type_: str) -> str:
        return self.loops.new_row(type_, "PLACE")

"""The middle end's expressions as text, to read: nothing that runs is printed here."""

from __future__ import annotations

import ast
from typing import Any, cast

from featgraph.fold.passes.bodies import nodes as functions
from featgraph.fold.tree import expressions
from featgraph.fold.tree.statements import Body, Rewriting, copied

__all__ = ["shown", "shown_body"]

_VERSIONS = {"next": "_next", "seen": "_seen"}


def shown(node: ast.AST) -> str:
    """Return a statement or an expression as text."""
    return ast.unparse(ast.fix_missing_locations(_Shown().visit(copied(node))))


def shown_body(body: Body) -> Body:
    """Return statements whose expressions are Python's."""
    return [cast("ast.stmt", _Shown().visit(copied(node))) for node in body]


class _Shown(Rewriting):
    """Turns nodes that Python does not have into names that it prints."""

    def _name(self, form: str, *parts: Any) -> ast.Name:
        texts = (
            ", ".join(map(shown, part)) if isinstance(part, list) else shown(part)
            for part in parts
        )
        return ast.Name(form.format(*texts))

    def visit_Access(self, node: expressions.Access) -> ast.Name:
        """Show the element, and that it has been loaded with its row."""
        if node.row:
            return ast.Name(f"{node.row}[f]")
        name = f"d.{node.name}{_VERSIONS.get(node.version, '')}"
        return self._name(f"{name}[{{}}]", node.indices)

    def visit_Whole(self, node: expressions.Whole) -> ast.Name:
        """Show the row or matrix."""
        form = f"d.{node.name}[{{}}]" if node.indices else f"d.{node.name}"
        return self._name(form, node.indices)

    def visit_Array(self, node: functions.Array) -> ast.Name:
        """Show the array."""
        return ast.Name(f"d.{node.name}{_VERSIONS.get(node.version, '')}")

    def visit_Scalar(self, node: expressions.Scalar) -> ast.Name:
        """Show the scalar."""
        return ast.Name(f"d.{node.name}")

    def visit_Operate(self, node: expressions.Operate) -> ast.Name:
        """Show the call; what is chosen is left out."""
        return self._name(f"fg.{node.name}({{}})", node.args)

    def visit_Atomic(self, node: expressions.Atomic) -> ast.Name:
        """Show the call."""
        form = f"fg.atomic.{node.op}(d.{node.name}[{{}}], {{}})"
        return self._name(form, node.indices, node.value)

    def visit_Helper(self, node: expressions.Helper) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.emitted}({{}})", node.args)

    def visit_MathCall(self, node: expressions.MathCall) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.name}({{}})", node.args)

    def visit_Numeric(self, node: expressions.Numeric) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.name}({{}})", node.args)

    def visit_Cast(self, node: expressions.Cast) -> ast.Name:
        """Show the conversion."""
        return self._name(f"{node.to}({{}})", node.value)

    def visit_Identity(self, node: expressions.Identity) -> ast.Name:
        """Show that there is nothing to combine."""
        return ast.Name("fg.nothing")

    def visit_AnyFeature(self, node: functions.AnyFeature) -> ast.Name:
        """Show whose verdict it is."""
        return self._name("any_feature({})", node.value)

    def visit_Place(self, node: functions.Place) -> ast.AST:
        """Show the index."""
        return cast("ast.AST", self.visit(node.value))

    def visit_Checked(self, node: functions.Checked) -> ast.Name:
        """Show that an index is checked."""
        return self._name("checked({})", node.value)

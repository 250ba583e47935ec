"""Base classes of the forms of a function, and of calls of operations in them.

A form writes a function for several features at once: `Copies` (`unrolled`) has a
variable for each feature, and `Loops` (`looped`) has loops over arrays. Through a
`Call`, an operation adds statements to the function; `operations.primitive` has its
interface. SIMD vectors (`vectorized`) share none of this: they have no work areas and
no inverses.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from featgraph.fold.analysis.access import INDEXED
from featgraph.fold.analysis.gathers import operand_type
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.nodes import Place
from featgraph.fold.syntax.normal_form import loop_varies, varies
from featgraph.fold.tree.statements import (
    Access,
    Body,
    Rewriting,
    Whole,
    code,
    expression,
    is_matrix_sum,
    narrowed,
    placed,
)

__all__ = ["Call", "Form", "InForm", "diverges"]


class Form:
    """A function for several features at once.

    Parameters
    ----------
    varying : frozenset of str
        Names whose values differ between features.
    """

    def __init__(self, facts: BodyFacts, varying: frozenset[str]) -> None:
        self.facts, self.varying = facts, varying
        #: Columns of the work areas that operations have requested.
        self.areas: list[int] = []
        #: Name of an inverse -> the work area that has its elements.
        self.matrices: dict[str, str] = {}

    @abstractmethod
    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression rewritten for the feature of copy j."""

    @abstractmethod
    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements rewritten for all features of a thread or lane."""

    def together(self, node: ast.If | ast.For | ast.While) -> ast.stmt:
        """Return a branch or loop that all features enter, or none."""
        if isinstance(node, ast.For):
            node.iter = self.value(node.iter)
            node.target = self.value(node.target)
        else:
            node.test = self.value(node.test)
        node.body, node.orelse = self.body(node.body), self.body(node.orelse)
        return node

    def new_area(self, columns: int) -> str:
        """Return the name of a further work area of K rows."""
        self.areas.append(columns)
        return f"work_{len(self.areas) - 1}"

    @property
    def area_names(self) -> list[str]:
        """Names of all work areas."""
        return [f"work_{n}" for n in range(len(self.areas))]

    def is_argument(self, node: Access) -> bool:
        """Whether an access reads an argument that has an entry for each feature."""
        is_given = node.name in self.facts.temporaries and node.version != INDEXED
        # A matrix (v, i, f) is passed as an array.
        return is_given and len(node.indices) < 3 and self.facts.is_wide(node.name)


class InForm(Rewriting):
    """Rewrite statements and expressions for one feature of a form."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return an element of an inverse, in the right half of its work area."""
        self.generic_visit(node)
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        area = self.form.matrices.get(name)
        if area is None:
            return node
        row, column = narrowed(node.slice, ast.Tuple).elts
        return _inverse_element(area, row, column, self.form.facts.width)


def diverges(node: ast.If | ast.For | ast.While, varying: frozenset[str]) -> bool:
    """Whether a branch or a loop may diverge between features."""
    if isinstance(node, ast.If):
        return varies(node.test, varying)
    return loop_varies(node, varying)


class Call:
    """Context of the operation of one statement ``target = operation(...)``."""

    def __init__(self, form: Form, node: ast.stmt) -> None:
        self.form, self.facts, self.node = form, form.facts, node
        self.body: Body = []
        self.width, self.fresh = self.facts.width, self.facts.fresh
        self.real, self.cuda = self.facts.context.real, self.facts.context.cuda
        self.new_area, self.value = form.new_area, form.value

    def line(self, template: str, **parts: ast.expr) -> None:
        """Add a statement; a name in capitals stands for an expression."""
        self.body += placed(code(template, **parts), self.node)

    @contextmanager
    def block(self, header: str, **parts: ast.expr) -> Iterator[None]:
        """Add a branch or a loop, into which go the statements that follow."""
        outside, self.body = self.body, []
        yield
        [made] = code(f"{header}\n    BODY", BODY=self.body, **parts)
        self.body = [*outside, ast.copy_location(made, self.node)]

    def type_of(self, node: ast.expr) -> str:
        """Return the type of an operand."""
        return operand_type(node, self.facts.function, self.facts.analysis)

    def varies(self, node: ast.AST) -> bool:
        """Return whether an expression differs between features."""
        return varies(node, self.form.varying)

    def store_inverse(self, target: str, area: str) -> None:
        """Record that the inverse `target` stands right of column K of `area`."""
        self.form.matrices[target] = area

    def element(
        self, matrix: ast.expr, row: ast.expr, column: ast.expr, j: int = 0
    ) -> ast.expr:
        """Return ``matrix[row, column]`` in copy `j`."""
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            left, right = (
                self.element(m, row, column, j) for m in (sum_.left, sum_.right)
            )
            return ast.BinOp(left, sum_.op, right)
        if isinstance(matrix, Whole):
            found = self._entry(matrix, row, column, j)
            if self.type_of(matrix) != "real":
                found = expression(f"{self.real}(X)", X=found)
            if not self.facts.needs_guard(matrix):
                return found
            # Its vertex may be valid only where the function runs.
            return expression(f"X if {self.facts.live} else {self.real}(0.0)", X=found)
        if isinstance(matrix, ast.Name) and matrix.id in self.facts.function.matrices:
            area = self.form.matrices[matrix.id]
            return _inverse_element(area, row, column, self.width)
        raise self.facts.function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

    def _entry(
        self, matrix: Whole, row: ast.expr, column: ast.expr, j: int
    ) -> ast.expr:
        """Return an element of a stored matrix, or the variable that holds it."""
        if matrix.name in self.facts.context.solved:
            place = f"{ast.unparse(row)}_{ast.unparse(column)}"
            return ast.Name(f"{matrix.name}_{place}", ast.Load())
        entity = [self.value(index, j) for index in matrix.indices]
        indices = [*entity, Place(row), Place(column)]
        return ast.copy_location(Access(matrix.name, "now", indices), matrix)


def _inverse_element(
    area: str, row: ast.expr, column: ast.expr, width: int
) -> ast.expr:
    """Return an element of an inverse, stored right of column K of its area."""
    return expression(f"{area}[ROW, {width} + COLUMN]", ROW=row, COLUMN=column)

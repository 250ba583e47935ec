"""One collaborative operation as loops over features."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.functions.facts import FunctionFacts
from featgraph.fold.functions.matrix_columns import matrix_element
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.nodes import Operate, Whole, is_matrix_sum, narrowed
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.statements import Body, code, expression, placed

__all__ = ["looped_call"]


class _Loops(Protocol):
    """The arrays of a function: see `looped.Loops`."""

    facts: FunctionFacts
    varying: frozenset[str]
    areas: list[int]
    arrays: dict[str, str]
    matrices: dict[str, str]

    def new_row(self, type_: str, place: str) -> str:
        """Return the template of an element of a further array."""

    def value(self, node: ast.expr) -> ast.expr:
        """Return an expression for feature f."""

    def over_features(self, body: Body) -> Body:
        """Return a loop over the features."""


def looped_call(loops: _Loops, node: ast.Assign, waiting: Body) -> Body:
    """Return the statements of ``target = operation(...)``.

    Parameters
    ----------
    waiting : list of ast.stmt
        Statements in front of it that its loop takes up.
    """
    target = narrowed(node.targets[0], ast.Name).id
    operate = narrowed(node.value, Operate)
    loops.facts.fresh.begin()
    call = _LoopedCall(loops, node, waiting)
    primitive_of(operate).loop(operate, target, call)
    return call.body


class _LoopedCall:
    """What the operation asks of the function; see `operations.contexts.Looped`."""

    def __init__(self, loops: _Loops, node: ast.Assign, waiting: Body) -> None:
        facts = loops.facts
        self.loops, self.facts, self.node, self.waiting = loops, facts, node, waiting
        self.body: Body = []
        self.width = facts.width
        self.real, self.cuda = facts.context.real, facts.context.cuda
        self.fresh, self.value = facts.fresh, loops.value

    def line(self, template: str, **parts: ast.expr) -> None:
        self.body += placed(code(template, **parts), self.node)

    @contextmanager
    def block(self, header: str, **parts: ast.expr) -> Iterator[None]:
        outside, self.body = self.body, []
        yield
        [made] = code(f"{header}\n    BODY", BODY=self.body, **parts)
        self.body = [*outside, ast.copy_location(made, self.node)]

    def all_features(self) -> AbstractContextManager[None]:
        return self.block(f"for f in range({self.width}):")

    def each(self, template: str, **parts: ast.expr) -> None:
        last = placed(code(template, **parts), self.node)
        self.body += self.loops.over_features([*self.waiting, *last])

    def element_of(self, target: str) -> str:
        return self.loops.arrays[target]

    def new_row(self, type_: str) -> str:
        return self.loops.new_row(type_, "PLACE")

    def type_of(self, node: ast.expr) -> str:
        return operand_type(node, self.facts.function, self.facts.analysis)

    def varies(self, node: ast.AST) -> bool:
        return varies(node, self.loops.varying)

    def new_area(self, columns: int) -> str:
        self.loops.areas.append(columns)
        return f"work_{len(self.loops.areas) - 1}"

    def store_inverse(self, target: str, area: str) -> None:
        self.loops.matrices[target] = area

    def element(self, matrix: ast.expr, row: ast.expr, column: ast.expr) -> ast.expr:
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            sides = (self.element(m, row, column) for m in (sum_.left, sum_.right))
            left, right = sides
            return ast.BinOp(left, sum_.op, right)
        if isinstance(matrix, Whole):
            entity = [self.value(index) for index in matrix.indices]
            whole = ast.copy_location(Whole(matrix.name, entity), matrix)
            found = matrix_element(whole, row, column, self.facts.context.solved)
            if self.type_of(matrix) == "real":
                return found
            return expression(f"{self.real}(X)", X=found)
        if isinstance(matrix, ast.Name) and matrix.id in self.facts.function.matrices:
            area = self.loops.matrices[matrix.id]
            place = f"ROW, {self.width} + COLUMN"
            return expression(f"{area}[{place}]", ROW=row, COLUMN=column)
        raise self.facts.function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

"""One collaborative operation of a function that is printed as named copies."""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager
from dataclasses import replace

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.text.expressions import print_expression
from featgraph.fold.functions.unrolled_columns import MatrixColumns
from featgraph.fold.functions.unrolled_names import CopyNames
from featgraph.fold.operations.contexts import Column
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.plan.schedules import MOST_HELD
from featgraph.fold.syntax.nodes import Operate
from featgraph.fold.syntax.variance import varies

__all__ = ["print_call"]


def print_call(
    owner: CopyNames,
    target: str,
    call: Operate,
    predicate: str,
    origin: tuple[str, int],
) -> None:
    """Print ``target = operation(...)``.

    Parameters
    ----------
    owner : CopyNames
        The function that is printed.
    predicate : str
        What holds where the call is made; "" for everywhere.
    """
    copies = _UnrolledCall(owner, predicate, origin)
    primitive = primitive_of(call)
    if primitive.is_matrix or not (owner.in_rounds and predicate):
        primitive.print_unrolled(call, target, copies)
        return
    # A group that goes round with others keeps what its own last iteration gave.
    found = owner.fresh("found")
    primitive.print_unrolled(call, found, copies)
    with owner.writer.block(f"if {predicate}:"):
        if target in owner.varying:
            for own, new in zip(copies.names(target), copies.names(found), strict=True):
                copies.line(f"{own} = {new}")
        else:
            copies.line(f"{target} = {found}")


class _UnrolledCall:
    """What the operation asks of the function; see `operations.contexts.Unrolled`."""

    def __init__(
        self, owner: CopyNames, predicate: str, origin: tuple[str, int]
    ) -> None:
        self.owner = owner
        self.predicate = predicate
        self.origin = origin
        self.width = owner.width
        self.count = owner.count
        self.lanes = owner.lanes
        self.real = owner.context.real
        self.cuda = owner.context.cuda
        self.predicated = owner.predicated
        self.padded = owner.padded
        is_thread = owner.mapping.schedule == "thread"
        self.in_registers = is_thread and owner.width <= MOST_HELD
        self.columns = MatrixColumns(owner, origin)
        self.fresh = owner.fresh
        self.feature = owner.feature

    def line(self, text: str) -> None:
        self.owner.writer.line(text, self.origin)

    def block(self, header: str) -> AbstractContextManager[None]:
        return self.owner.writer.block(header, self.origin)

    def names(self, target: str) -> list[str]:
        return [self.owner.copy_name(target, j) for j in range(self.count)]

    def inside(self, j: int) -> str:
        return self.owner.copy_name("inside", j)

    # -- expressions

    def index(self, text: str) -> str:
        return self.owner.styles[0].index(text)

    def text(self, node: ast.expr, j: int = 0) -> str:
        return print_expression(node, self.owner.styles[j])

    def operands(self, node: ast.expr, identity: str, masked: bool = True) -> list[str]:
        owner, texts = self.owner, []
        for j in range(self.count):
            text = self.text(node, j)
            predicate = self.predicate if masked and self.predicated else ""
            tests = owner.where(predicate, owner.needs_guard(node))
            tests += [self.inside(j)] if self.padded else []
            if tests:
                text = f"({text}) if {' and '.join(tests)} else {identity}"
            texts.append(f"({text})")
        return texts

    def type_of(self, node: ast.expr) -> str:
        return operand_type(node, self.owner.function, self.owner.context.analysis)

    def varies(self, node: ast.AST) -> bool:
        return varies(node, self.owner.varying)

    # -- matrices

    def element(self, matrix: ast.expr, row: str, column: str, j: int = 0) -> str:
        return self.columns.element(matrix, row, column, j)

    def column(self, call: Operate) -> Column:
        return self.columns.column(call)

    def is_at_hand(self, matrix: ast.expr) -> bool:
        is_held = bool(self.owner.staged) or self.columns.takes_rows(matrix)
        return is_held and self.width > 1

    def new_area(self, columns: int) -> str:
        self.owner.areas.append(columns)
        return f"work_{len(self.owner.areas) - 1}"

    def keep_inverse(self, target: str, area: str) -> None:
        self.owner.styles = [
            replace(style, matrices={**style.matrices, target: area})
            for style in self.owner.styles
        ]

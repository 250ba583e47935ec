"""One collaborative operation of a function that is printed as loops over features."""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.text.expressions import print_element
from featgraph.fold.functions.looped_names import LoopNames, Origin
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.nodes import Operate, Whole, is_matrix_sum, narrowed, symbol
from featgraph.fold.syntax.variance import varies

__all__ = ["print_call"]


def print_call(owner: LoopNames, node: ast.Assign, waiting: list[ast.stmt]) -> None:
    """Print ``target = operation(...)``.

    Parameters
    ----------
    owner : LoopNames
        The function that is printed.
    waiting : list of ast.stmt
        Statements in front of it that its loop takes up.
    """
    target = narrowed(node.targets[0], ast.Name).id
    call = narrowed(node.value, Operate)
    loops = _LoopedCall(owner, waiting, (owner.file, node.lineno))
    primitive_of(call).print_looped(call, target, loops)


class _LoopedCall:
    """What the operation asks of the function; see `operations.contexts.Looped`."""

    def __init__(
        self, owner: LoopNames, waiting: list[ast.stmt], origin: Origin
    ) -> None:
        self.owner = owner
        self.waiting = waiting
        self.origin = origin
        self.width = owner.width
        self.real = owner.context.real
        self.cuda = owner.context.cuda
        self.fresh = owner.fresh
        self.text = owner.text

    def line(self, text: str) -> None:
        self.owner.line(text, self.origin)

    def block(self, header: str) -> AbstractContextManager[None]:
        return self.owner.writer.block(header, self.origin)

    def all_features(self) -> AbstractContextManager[None]:
        return self.block(f"for f in range({self.width}):")

    def each(self, line: str) -> None:
        self.owner.over_features(self.waiting, lambda: self.line(line))

    def element_of(self, target: str) -> str:
        return self.owner.arrays[target]

    def new_row(self, type_: str) -> str:
        kind = "real" if type_ == "real" else "int64"
        row = self.owner.rows[kind]
        self.owner.rows[kind] += 1
        return f"{'rows' if kind == 'real' else 'flags'}[{row}, {{}}]"

    def type_of(self, node: ast.expr) -> str:
        return operand_type(node, self.owner.function, self.owner.context.analysis)

    def varies(self, node: ast.AST) -> bool:
        return varies(node, self.owner.varying)

    def new_area(self, columns: int) -> str:
        self.owner.areas.append(columns)
        return f"work_{len(self.owner.areas) - 1}"

    def keep_inverse(self, target: str, area: str) -> None:
        self.owner.matrices[target] = area

    def element(self, matrix: ast.expr, row: str, column: str) -> str:
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            sides = [self.element(m, row, column) for m in (sum_.left, sum_.right)]
            return f"({f' {symbol(sum_)} '.join(sides)})"
        if isinstance(matrix, Whole):
            text = print_element(matrix, row, column, self.owner.style())
            return text if self.type_of(matrix) == "real" else f"{self.real}({text})"
        if isinstance(matrix, ast.Name) and matrix.id in self.owner.function.matrices:
            return f"{self.owner.matrices[matrix.id]}[{row}, {self.width} + {column}]"
        raise self.owner.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

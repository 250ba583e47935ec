"""Columns of a matrix for a product: one entry for each feature of a lane."""

from __future__ import annotations

import ast
from typing import Protocol

from featgraph.fold.analysis.gathers import is_real_matrix, operand_type
from featgraph.fold.operations.primitive import Column
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.memory import STAGED_REGISTERS, Staged, has_pieces
from featgraph.fold.passes.bodies.nodes import Array, Place
from featgraph.fold.tree.statements import (
    Access,
    Operate,
    Whole,
    expression,
    is_matrix_sum,
    narrowed,
)

__all__ = ["MatrixColumns", "inverse_element", "matrix_element"]


class _Copies(Protocol):
    """Interface of `unrolled.Copies`."""

    facts: BodyFacts
    matrices: dict[str, str]

    def feature(self, j: int) -> ast.expr:
        """Return copy j's feature."""

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression for the feature of copy j."""


class _Line(Protocol):
    """Callback that adds a statement in front of the product."""

    def __call__(self, template: str, **parts: ast.expr) -> None: ...


def inverse_element(area: str, row: ast.expr, column: ast.expr, width: int) -> ast.expr:
    """Return an element of an inverse, stored right of column K of its area."""
    return expression(f"{area}[ROW, {width} + COLUMN]", ROW=row, COLUMN=column)


def matrix_element(
    matrix: Whole, row: ast.expr, column: ast.expr, solved: tuple[str, ...]
) -> ast.expr:
    """Return an element of a matrix argument."""
    if matrix.name in solved:
        return ast.Name(
            f"{matrix.name}_{ast.unparse(row)}_{ast.unparse(column)}", ast.Load()
        )
    indices = [*matrix.indices, Place(row), Place(column)]
    return ast.copy_location(Access(matrix.name, "now", indices), matrix)


class MatrixColumns:
    """Entries of matrices in global memory, shared memory or registers.

    Parameters
    ----------
    copies : Copies
        The function's copies.
    line : callable
        Adds a statement.
    """

    def __init__(self, copies: _Copies, line: _Line) -> None:
        self.copies, self.facts, self.line = copies, copies.facts, line

    def element(
        self, matrix: ast.expr, row: ast.expr, column: ast.expr, j: int
    ) -> ast.expr:
        """Return ``matrix[row, column]`` in copy `j`."""
        function, analysis = self.facts.function, self.facts.analysis
        real = self.facts.context.real
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            left, right = (
                self.element(m, row, column, j) for m in (sum_.left, sum_.right)
            )
            return ast.BinOp(left, sum_.op, right)
        if isinstance(matrix, Whole):
            entity = [self.copies.value(index, j) for index in matrix.indices]
            whole = ast.copy_location(Whole(matrix.name, entity), matrix)
            found = matrix_element(whole, row, column, self.facts.context.solved)
            if operand_type(matrix, function, analysis) != "real":
                found = expression(f"{real}(X)", X=found)
            if not self.facts.needs_guard(matrix):
                return found
            return expression(f"X if {self.facts.live} else {real}(0.0)", X=found)
        if isinstance(matrix, ast.Name) and matrix.id in function.matrices:
            area = self.copies.matrices[matrix.id]
            return inverse_element(area, row, column, self.facts.width)
        raise function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

    def in_whole_tiles(self, matrix: ast.expr) -> str:
        """Return the array of a matrix made of whole tiles; else "".

        Sums of a block are padded to tiles; matrices of the whole graph are as they
        were given.
        """
        facts = self.facts
        if not isinstance(matrix, Whole) or facts.needs_guard(matrix):
            return ""
        if matrix.name in facts.temporaries:
            return matrix.name
        is_whole = not matrix.indices and facts.width % facts.mapping.tile == 0
        if not is_whole or not is_real_matrix(matrix, facts.function, facts.analysis):
            return ""
        return f"d.{matrix.name}"

    def column(self, node: Operate) -> Column:
        """Return the entries A[f, i] for column i, one for each copy.

        For a transposed matrix, these are A[i, f]. Loads they need are added at the
        first use.
        """
        matrix, transpose = node.args[0], node.option("transpose")
        turned: bool | str
        if isinstance(transpose, ast.Constant) or transpose is None:
            turned = transpose is not None and bool(transpose.value)
        else:
            # Choose the indices, not the element: one load and no branch.
            turned = self.facts.fresh("turned")
            value = self.copies.value(transpose)
            if self.facts.needs_guard(transpose):
                value = expression(f"{self.facts.live} and X", X=value)
            self.line(f"{turned} = X", X=value)
        if isinstance(matrix, Whole) and not matrix.indices:
            staged = self.facts.staged.get(matrix.name)
            if staged is not None and staged.in_registers:
                return lambda i: self._column_of_registers(
                    staged.names, turned, _number(i)
                )
            if staged is not None:
                first = self._first_row(staged, turned)
                return lambda i: self._staged_column(staged, first, i)
            if turned is True and self._has_pieces(matrix):
                return lambda i: self._pieces(Array(matrix.name), i, self.facts.piece)

        if self.takes_rows(matrix):
            rows = self._load_rows(narrowed(matrix, Whole))
            return lambda i: self._column_of_registers(rows, turned, _number(i))

        def element(j: int, i: ast.expr) -> ast.expr:
            f = self.copies.feature(j)
            if isinstance(turned, bool):
                row, column = (i, f) if turned else (f, i)
            else:
                row = expression(f"I if {turned} else F", I=i, F=f)
                column = expression(f"F if {turned} else I", I=i, F=f)
            return self.element(matrix, row, column, j)

        return lambda i: [element(j, i) for j in range(self.facts.count)]

    def takes_rows(self, matrix: ast.expr) -> bool:
        """Whether one lane loads a small matrix of a vertex or edge row by row.

        Only a thread that has all features does, with one load for each row.
        """
        facts, context = self.facts, self.facts.context
        if not isinstance(matrix, Whole) or not matrix.indices:
            return False
        if context.checked is not None or facts.predicated:
            return False
        if not facts.count == facts.width == facts.piece > 1:
            return False
        is_stored = matrix.name not in {*context.solved, *facts.temporaries}
        type_ = facts.analysis.signature.get(matrix.name)
        is_real = type_ is not None and type_.dtype in {"real", context.real}
        return is_stored and is_real and facts.width**2 <= STAGED_REGISTERS

    def _has_pieces(self, matrix: Whole) -> bool:
        """Whether rows of a matrix of the whole graph can be loaded in pieces.

        These rows are not padded, so K must be a multiple of the piece.
        """
        facts = self.facts
        if facts.context.checked is not None or facts.needs_guard(matrix):
            return False
        is_real = is_real_matrix(matrix, facts.function, facts.analysis)
        is_stored = matrix.name in facts.analysis.signature
        divides = facts.count > 1 and has_pieces(facts.mapping, facts.width)
        return is_real and is_stored and divides

    def _load_rows(self, matrix: Whole) -> tuple[str, ...]:
        """Add a load for each row of a matrix; return the names of the rows."""
        k, names = self.facts.width, []
        entity = self.copies.value(matrix.indices[0])
        for i in range(k):
            names.append(self.facts.fresh("row"))
            self.line(
                f"{names[i]} = warp.load_row(ARRAY, ENTITY, {i * k}, {k * k}, {k})",
                ARRAY=Array(matrix.name),
                ENTITY=entity,
            )
        return tuple(names)

    def _column_of_registers(
        self, rows: tuple[str, ...], turned: bool | str, i: int
    ) -> list[ast.expr]:
        """Return column i of a matrix whose rows are in registers."""
        found = []
        for f in range(self.facts.count):
            plain, other = f"{rows[f]}[{i}]", f"{rows[i]}[{f}]"
            if isinstance(turned, bool):
                found.append(expression(other if turned else plain))
            else:
                found.append(expression(f"{other} if {turned} else {plain}"))
        return found

    def _first_row(self, staged: Staged, turned: bool | str) -> str:
        """Add the offset of the staged copy to multiply by; return its name.

        Loaded from places that the compiler knows, the whole matrix would be kept in
        registers: with 8 x 8 entries 132 of them for belief propagation, not 104.
        """
        first = self.facts.fresh("first")
        if isinstance(turned, bool):
            place = str(staged.turns.index(turned) * staged.width)
        else:
            plain, other = (
                staged.turns.index(way) * staged.width for way in (False, True)
            )
            place = f"{other} if {turned} else {plain}"
        self.line(f"{first} = warp.anew(uint32({place}))")
        return first

    def _staged_column(self, staged: Staged, first: str, i: ast.expr) -> list[ast.expr]:
        """Return column i of a matrix in shared memory; lanes read neighbors."""
        [name] = staged.names
        row = expression(f"{first} + I", I=i)
        if staged.piece > 1:
            return self._pieces(ast.Name(name, ast.Load()), row, staged.piece)
        features = [self.copies.feature(j) for j in range(self.facts.count)]
        return [expression(f"{name}[ROW, F]", ROW=row, F=f) for f in features]

    def _pieces(self, array: ast.expr, row: ast.expr, size: int) -> list[ast.expr]:
        """Add the loads of a lane's features of a row; return the values."""
        found = []
        for j in range(0, self.facts.count, size):
            piece = self.facts.fresh("column")
            self.line(
                f"{piece} = warp.load_row(ARRAY, ROW, F, {self.facts.width}, {size})",
                ARRAY=array,
                ROW=row,
                F=self.copies.feature(j),
            )
            found += [expression(f"{piece}[{n}]") for n in range(size)]
        return found


def _number(node: ast.expr) -> int:
    """Return the number of a column that is a constant."""
    return int(ast.literal_eval(node))

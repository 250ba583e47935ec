"""Prints the entries of a matrix that a product takes at a time, one for each copy."""

from __future__ import annotations

import ast

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.text.expressions import (
    array_text,
    print_element,
    print_entity,
    print_expression,
)
from featgraph.fold.functions.staging import STAGED_REGISTERS, Staged
from featgraph.fold.functions.unrolled_names import CopyNames
from featgraph.fold.operations.contexts import Column
from featgraph.fold.syntax.nodes import Operate, Whole, is_matrix_sum, narrowed, symbol

__all__ = ["MatrixColumns"]


class MatrixColumns:
    """Entries of matrices: in memory, at hand in shared memory, or in registers.

    Parameters
    ----------
    owner : CopyNames
        The function that reads them.
    origin : tuple
        File and line of the statement.
    """

    def __init__(self, owner: CopyNames, origin: tuple[str, int]) -> None:
        self.owner = owner
        self.origin = origin

    def _line(self, text: str) -> None:
        self.owner.writer.line(text, self.origin)

    def element(self, matrix: ast.expr, row: str, column: str, j: int) -> str:
        """Return the text of ``matrix[row, column]`` in copy `j`."""
        function, analysis = self.owner.function, self.owner.context.analysis
        real, style = self.owner.context.real, self.owner.styles[j]
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            sides = [self.element(m, row, column, j) for m in (sum_.left, sum_.right)]
            return f"({f' {symbol(sum_)} '.join(sides)})"
        if isinstance(matrix, Whole):
            text = print_element(matrix, row, column, style)
            if operand_type(matrix, function, analysis) != "real":
                text = f"{real}({text})"
            guarded = self.owner.needs_guard(matrix)
            return (
                f"({text} if {self.owner.live} else {real}(0.0))" if guarded else text
            )
        row_, column_ = style.index(row), style.index(column)
        if isinstance(matrix, ast.Name) and matrix.id in function.matrices:
            area = style.matrices[matrix.id]
            return f"{area}[{row_}, {self.owner.width} + {column_}]"
        raise function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

    def column(self, node: Operate) -> Column:
        """Return how the entries A[f, i] of column i are printed, one for each copy.

        Where the matrix is transposed, these are A[i, f]. What must be loaded before
        they are used is printed when they are asked for.
        """
        owner, matrix = self.owner, node.args[0]
        transpose = node.option("transpose")
        turned: bool | str
        if isinstance(transpose, ast.Constant) or transpose is None:
            turned = transpose is not None and bool(transpose.value)
        else:
            # Choose the indices, not the element: one load and no branch.
            turned = owner.fresh("turned")
            text = print_expression(transpose, owner.styles[0])
            if owner.needs_guard(transpose):
                text = f"{owner.live} and ({text})"
            self._line(f"{turned} = {text}")
        if isinstance(matrix, Whole) and not matrix.indices:
            staged = owner.staged.get(matrix.name)
            if staged is not None and staged.in_registers:
                return lambda i: self._held_column(staged.names, turned, int(i))
            if staged is not None:
                first = self._first_row(staged, turned)
                return lambda i: self._staged_column(staged, first, i)

        if self.takes_rows(matrix):
            rows = self._load_rows(narrowed(matrix, Whole))
            return lambda i: self._held_column(rows, turned, int(i))

        def element(j: int, i: str) -> str:
            f = owner.feature(j)
            if isinstance(turned, bool):
                row, column = (i, f) if turned else (f, i)
            else:
                row, column = (
                    f"({i} if {turned} else {f})",
                    f"({f} if {turned} else {i})",
                )
            return self.element(matrix, row, column, j)

        return lambda i: [element(j, i) for j in range(owner.count)]

    def takes_rows(self, matrix: ast.expr) -> bool:
        """Whether a small matrix of a vertex or edge is loaded row by row.

        By a thread that has all features, a load for each row.
        """
        owner = self.owner
        style, piece = owner.styles[0], owner.mapping.piece
        if not isinstance(matrix, Whole) or not matrix.indices or style.guard:
            return False
        if owner.predicated or not owner.count == owner.width == piece > 1:
            return False
        is_stored = matrix.name not in style.held | set(style.temporaries)
        type_ = owner.context.analysis.signature.get(matrix.name)
        is_real = type_ is not None and type_.dtype in {"real", owner.context.real}
        return is_stored and is_real and owner.width**2 <= STAGED_REGISTERS

    def _load_rows(self, matrix: Whole) -> tuple[str, ...]:
        """Print a load for each row of a matrix; return the names of the rows."""
        owner, style = self.owner, self.owner.styles[0]
        array, entity = array_text(matrix, style), print_entity(matrix, style)
        k, names = owner.width, []
        for i in range(k):
            names.append(owner.fresh("row"))
            place = f"{entity}, {i * k}, {k * k}, {k}"
            self._line(f"{names[i]} = warp.load_row({array}, {place})")
        return tuple(names)

    def _held_column(
        self, rows: tuple[str, ...], turned: bool | str, i: int
    ) -> list[str]:
        """Return the entries of a matrix whose rows stand in registers."""
        texts = []
        for f in range(self.owner.count):
            plain, other = f"{rows[f]}[{i}]", f"{rows[i]}[{f}]"
            if isinstance(turned, bool):
                texts.append(other if turned else plain)
            else:
                texts.append(f"({other} if {turned} else {plain})")
        return texts

    def _first_row(self, staged: Staged, turned: bool | str) -> str:
        """Print where the area begins that is multiplied by; return its name.

        Loaded from places that the compiler knows, the whole matrix would be kept in
        registers: with 8 x 8 entries 132 of them for belief propagation, not 104.
        """
        first = self.owner.fresh("first")
        if isinstance(turned, bool):
            text = str(staged.turns.index(turned) * staged.width)
        else:
            plain, other = (
                staged.turns.index(way) * staged.width for way in (False, True)
            )
            text = f"{other} if {turned} else {plain}"
        self._line(f"{first} = warp.anew(uint32({text}))")
        return first

    def _staged_column(self, staged: Staged, first: str, i: str) -> list[str]:
        """Return the entries of a matrix in shared memory: neighbors side by side."""
        owner, [name] = self.owner, staged.names
        style = owner.styles[0]
        row = style.index(f"{first} + {i}")
        if staged.piece == 1:
            return [
                f"{name}[{row}, {style.index(owner.feature(j))}]"
                for j in range(owner.count)
            ]
        texts = []
        for j in range(0, owner.count, staged.piece):
            piece = owner.fresh("column")
            f = style.index(owner.feature(j))
            self._line(
                f"{piece} = warp.load_row({name}, {row}, {f}, {staged.width}, "
                f"{staged.piece})"
            )
            texts += [f"{piece}[{place}]" for place in range(staged.piece)]
        return texts

"""Prints ``matvec`` as loops over features, in each of its semirings."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.functions.looped_names import LoopNames, Origin
from featgraph.fold.codegen.functions.unrolled_products import (
    finite_text,
    logarithm_text,
)
from featgraph.fold.codegen.text.expressions import as_part, print_element
from featgraph.fold.syntax.nodes import Operate, Whole, is_matrix_sum, narrowed, symbol

__all__ = ["LoopProducts"]


class LoopProducts(LoopNames):
    """Products of a k x k matrix and a vector with one entry a feature."""

    def _element(self, matrix: ast.expr, row: str, column: str) -> str:
        style = self.style()
        if is_matrix_sum(matrix):
            sum_ = narrowed(matrix, ast.BinOp)
            sides = [self._element(m, row, column) for m in (sum_.left, sum_.right)]
            return f"({f' {symbol(sum_)} '.join(sides)})"
        if isinstance(matrix, Whole):
            text = print_element(matrix, row, column, style)
            is_real = (
                operand_type(matrix, self.function, self.context.analysis) == "real"
            )
            return text if is_real else f"{self.context.real}({text})"
        if isinstance(matrix, ast.Name) and matrix.id in self.function.matrices:
            return f"{self.matrices[matrix.id]}[{row}, {self.width} + {column}]"
        raise self.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

    def _matvec(self, target: str, call: Operate, origin: Origin) -> None:
        matrix, x = call.args
        if isinstance(matrix, Operate) and matrix.name == "outer":
            self._outer_times(target, matrix, x, call.option("transpose"), origin)
            return
        element = self._turned(matrix, call.option("transpose"), origin)
        row = self.rows["real"]
        self.rows["real"] += 1
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"rows[{row}, f] = {self._text(x)}", origin)
        print_entry: dict[str | None, Callable[[str, str, Origin], str]] = {
            "max_plus": self._largest_term,
            "log_plus": self._logarithm_of_sum,
        }
        printer = print_entry.get(call.constant("semiring"), self._sum_of_products)
        with self.writer.block(f"for f in range({self.width}):"):
            result = printer(element, f"rows[{row}, i]", origin)
            self._line(f"{self.arrays[target]} = {result}")

    def _turned(
        self, matrix: ast.expr, transpose: ast.expr | None, origin: Origin
    ) -> str:
        """Return how A[f, i] is printed, or A[i, f] where it is transposed."""
        if transpose is None:
            return self._element(matrix, "f", "i")
        if isinstance(transpose, ast.Constant):
            turned = ("i", "f") if transpose.value else ("f", "i")
            return self._element(matrix, *turned)
        name = self._fresh("turned")
        self._line(f"{name} = {self._text(transpose)}", origin)
        return self._element(matrix, f"(i if {name} else f)", f"(f if {name} else i)")

    def _sum_of_products(self, element: str, x: str, origin: Origin) -> str:
        product = self._fresh("product")
        self._line(f"{product} = {self.context.real}(0.0)")
        with self.writer.block(f"for i in range({self.width}):"):
            self._line(f"{product} += {element} * {x}", origin)
        return product

    def _largest_term(self, element: str, x: str, origin: Origin) -> str:
        top = self._fresh("top")
        self._line(f"{top} = {self.context.real}(-math.inf)")
        with self.writer.block(f"for i in range({self.width}):"):
            self._line(f"{top} = max({top}, {element} + {x})", origin)
        return top

    def _logarithm_of_sum(self, element: str, x: str, origin: Origin) -> str:
        top = self._largest_term(element, x, origin)
        shift, total = self._fresh("shift"), self._fresh("total")
        self._line(f"{shift} = {finite_text(top, self.context.real)}", origin)
        self._line(f"{total} = {self.context.real}(0.0)")
        with self.writer.block(f"for i in range({self.width}):"):
            self._line(f"{total} += math.exp({element} + {x} - {shift})", origin)
        return logarithm_text(top, total, self.context.real)

    def _outer_times(
        self,
        target: str,
        matrix: Operate,
        x: ast.expr,
        transpose: ast.expr | None,
        origin: Origin,
    ) -> None:
        a, b = matrix.args
        if transpose is not None and not isinstance(transpose, ast.Constant):
            raise self.source.error(
                "transpose= of an outer product must be a constant", matrix
            )
        if transpose is not None and transpose.value:
            a, b = b, a
        dot = self._fresh("dot")
        self._line(f"{dot} = {self.context.real}(0.0)")
        with self.writer.block(f"for f in range({self.width}):"):
            factors = (as_part(self._text(n), "*") for n in (b, x))
            self._line(f"{dot} += {' * '.join(factors)}", origin)
        with self.writer.block(f"for f in range({self.width}):"):
            text = as_part(self._text(a), "*")
            self._line(f"{self.arrays[target]} = {text} * {dot}", origin)

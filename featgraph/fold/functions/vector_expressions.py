"""Expressions over features as expressions over vectors of them."""

from __future__ import annotations

import ast

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathered_values import INDEXED
from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.text.expressions import (
    Plain,
    Style,
    array_text,
    print_expression,
)
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.syntax.nodes import (
    Access,
    Identity,
    MathCall,
    Whole,
    names_read,
)
from featgraph.fold.syntax.variance import varies

__all__ = ["VectorText", "VectorTypes"]

_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq
#: Functions of real numbers that `featgraph.device.vectors_cpu` has.
_MATH = {"abs": "absolute", "fabs": "absolute", "isfinite": "is_finite"}


class VectorTypes:
    """Which expressions of a function are vectors of real numbers, and which masks.

    Parameters
    ----------
    function : Analysed
        A function whose features one thread owns.
    """

    def __init__(self, context: Context, function: Analysed) -> None:
        self.context = context
        self.function = function
        self.varying = function.varying

    def is_row(self, node: Access) -> bool:
        """Return whether an access reads real numbers, neighboring ones by f."""
        analysis, real = self.context.analysis, self.context.real
        *others, last = node.indices
        if not (isinstance(last, ast.Name) and last.id == "f"):
            return False
        if node.version == INDEXED:
            return False
        if any(varies(index, self.varying) for index in others):
            return False
        temporary = analysis.temporaries.get(node.name)
        if temporary is not None:
            return temporary.type == "real" and len(node.indices) == 2
        type_ = analysis.signature.get(node.name)
        return type_ is not None and type_.dtype in {real, "real"}

    def fits_real(self, node: ast.expr) -> bool:
        """Return whether a vector of real numbers can stand for an expression."""
        if isinstance(node, Identity):
            return True  # printed in the type that is combined
        is_real = operand_type(node, self.function, self.context.analysis) == "real"
        if not varies(node, self.varying):
            return is_real
        if isinstance(node, ast.Name):
            return is_real and node.id != "f"
        if isinstance(node, Access):
            return self.is_row(node)
        if isinstance(node, ast.BinOp):
            fits = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
            return fits and self.fits_real(node.left) and self.fits_real(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.fits_real(node.operand)
        if isinstance(node, ast.IfExp):
            test = not varies(node.test, self.varying) or self.fits_mask(node.test)
            return test and self.fits_real(node.body) and self.fits_real(node.orelse)
        return (
            isinstance(node, MathCall)
            and _MATH.get(node.name) == "absolute"
            and self.fits_real(node.args[0])
        )

    def fits_mask(self, node: ast.expr) -> bool:
        """Return whether a mask can stand for a condition that varies."""
        if not varies(node, self.varying):
            return False
        if isinstance(node, ast.Name):
            return self.function.variables.get(node.id) == "bool"
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not) and self.fits_mask(node.operand)
        if isinstance(node, ast.BoolOp):
            return all(self.fits_mask(value) for value in node.values)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            fits = len(sides) == 2 and isinstance(node.ops[0], _ORDERS)
            return fits and all(self.fits_real(side) for side in sides)
        return (
            isinstance(node, MathCall)
            and _MATH.get(node.name) == "is_finite"
            and self.fits_real(node.args[0])
        )

    def is_real_matrix(self, node: ast.expr) -> bool:
        """Return whether a matrix is given whole, and stored in the real type."""
        if not isinstance(node, Whole):
            return False
        type_ = self.context.analysis.signature.get(node.name)
        if type_ is not None:
            return type_.dtype in {self.context.real, "real"}
        return operand_type(node, self.function, self.context.analysis) == "real"

    def matrix_text(self, matrix: ast.expr, style: Style) -> str:
        """Return the array of a matrix given as a whole."""
        if not isinstance(matrix, Whole):
            raise TypeError(f"{type(matrix).__name__} is no matrix")
        if matrix.name in style.temporaries:
            return style.temporaries[matrix.name]
        array = array_text(matrix, style)
        if not matrix.indices:
            return array
        return f"{array}[{print_expression(matrix.indices[0], style)}]"


class VectorText(Plain):
    """Prints an expression for `size` features from `first` on.

    Parameters
    ----------
    style : Style
        Names of varying locals are those of this vector.
    """

    def __init__(
        self, style: Style, varying: frozenset[str], first: int, size: int
    ) -> None:
        super().__init__(style)
        self.varying = varying
        self.first = first
        self.size = size

    def vector(self, node: ast.expr) -> str:
        """Return the text of a vector, also where all features have the same."""
        if varies(node, self.varying):
            return self.text(node)
        number = self.text(node)
        if not number.startswith(f"{self.style.real}("):
            number = f"{self.style.real}({number})"
        return f"vectors.spread_{self.size}({number})"

    def visit_Access(self, node: Access) -> ast.expr:
        """Load a row; everything else is the same for all features."""
        if "f" not in names_read(node.indices[-1]):
            return super().visit_Access(node)
        if node.name in self.style.temporaries:
            array = self.style.temporaries[node.name]
            index = str(self.first)
        else:
            array = array_text(node, self.style)
            others = [self.text(index) for index in node.indices[:-1]]
            index = ", ".join([*others, str(self.first)])
            index = f"({index})" if others else index
        return self.parse(f"vectors.load_{self.size}({array}, {index})")

    def visit_MathCall(self, node: MathCall) -> ast.expr:
        """Call what does the same with each element."""
        if not varies(node, self.varying):
            return super().visit_MathCall(node)
        return self.parse(f"vectors.{_MATH[node.name]}({self.text(node.args[0])})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Turn masks round."""
        if isinstance(node.op, ast.Not) and varies(node, self.varying):
            return self.parse(f"vectors.negated({self.text(node.operand)})")
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Join masks; no element has to wait for another, so all are computed."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        name = "both" if isinstance(node.op, ast.And) else "either"
        text, *others = (self.text(value) for value in node.values)
        for other in others:
            text = f"vectors.{name}({text}, {other})"
        return self.parse(text)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Choose element by element, or a whole vector."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        test, a, b = (
            self.text(node.test),
            self.vector(node.body),
            self.vector(node.orelse),
        )
        if varies(node.test, self.varying):
            return self.parse(f"vectors.where({test}, {a}, {b})")
        return self.parse(f"({a} if {test} else {b})")

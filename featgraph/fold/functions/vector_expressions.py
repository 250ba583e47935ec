"""Expressions over features as expressions over vectors of them."""

from __future__ import annotations

import ast
from typing import cast

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathered_values import INDEXED
from featgraph.fold.analysis.operand_type import is_real_matrix, operand_type
from featgraph.fold.functions.facts import Context, FunctionFacts
from featgraph.fold.functions.nodes import Array
from featgraph.fold.syntax.nodes import (
    Access,
    Cast,
    Identity,
    MathCall,
    Whole,
    names_read,
)
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.statements import Rewriting, copied, expression

__all__ = ["InVectors", "VectorTypes", "matrix_array"]

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
        return is_real_matrix(node, self.function, self.context.analysis)


def matrix_array(facts: FunctionFacts, matrix: ast.expr) -> ast.expr:
    """Return the array of a matrix given as a whole."""
    if not isinstance(matrix, Whole):
        raise TypeError(f"{type(matrix).__name__} is no matrix")
    if matrix.name in facts.temporaries:
        return ast.Name(matrix.name, ast.Load())
    array = Array(matrix.name)
    if not matrix.indices:
        return array
    return expression("ARRAY[ENTITY]", ARRAY=array, ENTITY=matrix.indices[0])


class InVectors(Rewriting):
    """Writes an expression for the features of one vector.

    Parameters
    ----------
    varying : frozenset of str
        Names of which there is a vector for each piece.
    piece : tuple of int
        The first feature, and how many there are.
    """

    def __init__(
        self, facts: FunctionFacts, varying: frozenset[str], piece: tuple[int, int]
    ) -> None:
        self.facts, self.varying = facts, varying
        self.first, self.size = piece

    def _one(self, node: ast.expr) -> ast.expr:
        return cast("ast.expr", self.visit(copied(node)))

    def vector(self, node: ast.expr) -> ast.expr:
        """Return a vector, also where all features have the same."""
        number = self._one(node)
        if varies(node, self.varying):
            return number
        if not self._is_real(node):
            number = expression(f"{self.facts.context.real}(X)", X=number)
        return expression(f"vectors.spread_{self.size}(X)", X=number)

    def _is_real(self, node: ast.expr) -> bool:
        """Whether an expression is a number of the storage type as it is written."""
        if isinstance(node, Identity):
            return self.facts.memory.identity.startswith(f"{self.facts.context.real}(")
        return isinstance(node, Cast) and node.to in {"real", self.facts.context.real}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Name the vector."""
        if node.id in self.varying:
            node.id = f"{node.id}_{self.first}"
        return node

    def visit_Access(self, node: Access) -> ast.AST:
        """Load a row; everything else is the same for all features."""
        if "f" not in names_read(node.indices[-1]):
            return self.generic_visit(node)
        array: ast.expr = Array(node.name, node.version)
        others = node.indices[:-1]
        if node.name in self.facts.temporaries:
            array, others = ast.Name(node.name, ast.Load()), []
        place: ast.expr = ast.Constant(self.first)
        if others:
            place = ast.Tuple([*map(self._one, others), place], ast.Load())
        load = f"vectors.load_{self.size}(ARRAY, PLACE)"
        return expression(load, ARRAY=array, PLACE=place)

    def visit_MathCall(self, node: MathCall) -> ast.AST:
        """Call what does the same with each element."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        return expression(f"vectors.{_MATH[node.name]}(X)", X=self._one(node.args[0]))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Turn masks round."""
        if isinstance(node.op, ast.Not) and varies(node, self.varying):
            return expression("vectors.negated(X)", X=self._one(node.operand))
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Join masks; no element has to wait for another, so all are computed."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        name = "both" if isinstance(node.op, ast.And) else "either"
        first, *others = (self._one(value) for value in node.values)
        for other in others:
            first = expression(f"vectors.{name}(A, B)", A=first, B=other)
        return first

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Choose element by element, or a whole vector."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        parts = {
            "TEST": self._one(node.test),
            "A": self.vector(node.body),
            "B": self.vector(node.orelse),
        }
        form = "A if TEST else B"
        if varies(node.test, self.varying):
            form = "vectors.where(TEST, A, B)"
        return expression(form, **parts)

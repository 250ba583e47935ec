"""Matrix gathers that sum outer products: the pattern, and how its parts are printed.

``x[i] * y[f] * c`` is an outer product however it is spelt: as ``fg.outer(x, y)[i,
f]``, which is lowered to this product, or element by element. What depends on i, on f
and on neither is computed once a row, once a column and once an edge.
"""

from __future__ import annotations

import ast
import copy

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.expressions import Cast, copy_location, names_read

__all__ = ["OuterProduct", "find_outer_product"]


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """A contribution that is ``scale * row * column``.

    Attributes
    ----------
    row : ast.expr
        What depends on i, as a function of f if `symmetric`.
    column : ast.expr
        What depends on f.
    scale : ast.expr or None
        What depends on neither.
    symmetric : bool
        Whether row and column are the same function.
    """

    row: ast.expr
    column: ast.expr
    scale: ast.expr | None
    symmetric: bool

    @property
    def is_square(self) -> bool:
        """Whether row and column are the same numbers."""
        return self.symmetric and self.scale is None


def find_outer_product(body: list[ast.stmt]) -> OuterProduct | None:
    """Return the parts of the typed body of a matrix gather or reduce, if it has them.

    A body of assignments to different names and one return is seen through.
    """
    value = _returned(body)
    if value is None:
        return None
    groups: dict[str, list[tuple[ast.expr, bool]]] = {"row": [], "column": [], "": []}
    for factor, divides in _factors(value, False):
        reads = names_read(factor) & {"i", "f"}
        if len(reads) == 2 or (reads and divides):
            return None
        groups[{"i": "row", "f": "column"}.get("".join(reads), "")].append(
            (factor, divides)
        )
    if not groups["row"] or not groups["column"]:
        return None
    row, column = _product(groups["row"]), _product(groups["column"])
    as_column = _Renamed().visit(copy.deepcopy(row))
    symmetric = ast.dump(as_column) == ast.dump(column) and _same(as_column, column)
    scale = _product(groups[""]) if groups[""] else None
    return OuterProduct(row, column, scale, symmetric)


def _returned(body: list[ast.stmt]) -> ast.expr | None:
    *assignments, last = body
    values: dict[str, ast.expr] = {}
    for statement in assignments:
        if not isinstance(statement, ast.Assign):
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id in values:
            return None
        values[target.id] = _Inlined(values).visit(copy.deepcopy(statement.value))
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    found: ast.expr = _Inlined(values).visit(copy.deepcopy(last.value))
    return found


def _factors(node: ast.expr, divides: bool) -> list[tuple[ast.expr, bool]]:
    """Return the factors of a product, and which of them divide."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        turned = divides != isinstance(node.op, ast.Div)
        return _factors(node.left, divides) + _factors(node.right, turned)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        minus = copy_location(
            Cast("real", copy_location(ast.Constant(-1.0), node)), node
        )
        return [(minus, False), *_factors(node.operand, divides)]
    return [(node, divides)]


def _product(factors: list[tuple[ast.expr, bool]]) -> ast.expr:
    """Return the product of factors that are not all divisors of nothing."""
    ordered = sorted(factors, key=lambda factor: factor[1])
    first, divides = ordered[0]
    product = first
    if divides:
        one = copy_location(ast.Constant(1.0), first)
        whole = copy_location(Cast("real", one), first)
        product = copy_location(ast.BinOp(whole, ast.Div(), first), first)
    for factor, divides in ordered[1:]:
        operator: ast.operator = ast.Div() if divides else ast.Mult()
        product = copy_location(ast.BinOp(product, operator, factor), factor)
    return product


def _same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two trees of one shape name the same properties and functions."""
    attributes = ("name", "version", "to", "emitted")
    return all(
        all(getattr(x, n, None) == getattr(y, n, None) for n in attributes)
        for x, y in zip(ast.walk(a), ast.walk(b), strict=True)
    )


class _Renamed(ast.NodeTransformer):
    """Puts f for i."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == "i":
            return copy_location(ast.Name("f", node.ctx), node)
        return node


class _Inlined(ast.NodeTransformer):
    """Puts what was assigned for the names of locals."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        return node if value is None else copy.deepcopy(value)

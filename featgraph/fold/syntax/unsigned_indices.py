"""Cast indices to unsigned integers in CUDA kernels and functions that they call."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from featgraph.fold.syntax.names import EDGES
from featgraph.fold.tree.statements import Body, Rewriting, every

__all__ = ["unsigned_indices"]

#: Functions of the device library with a row and a column as arguments.
_MOVES = frozenset({"warp.load_row", "warp.store_row"})
_CASTS = frozenset({"uint32", "uint64"})
#: Functions that return what they are given first, in its type.
_AS_GIVEN = frozenset({"guarded", "warp.anew"})


def unsigned_indices(body: Body) -> Body:
    """Make indices unsigned: a signed one costs a wrap-around.

    An index is cast once, where it stands, unless it is a literal or unsigned where it
    is bound. Where loops count to literals in all indices of an element, none is cast:
    the compiler sees that none is negative, and casts cost registers there. A thread
    took 140 for 118 that goes over all elements of a matrix (8 x 8, sm_90).
    """
    return _Unsigned(_unsigned_names(body)).over(body)


class _Unsigned(Rewriting):
    """Casts what stands in an index."""

    def __init__(self, unsigned: frozenset[str]) -> None:
        self.unsigned = unsigned
        #: Names that loops around count up from 0 to a number.
        self.counted: frozenset[str] = frozenset()

    def visit_For(self, node: ast.For) -> ast.For:
        """Know what the loop counts."""
        counted, target = self.counted, {ast.unparse(node.target)}
        args = node.iter.args if isinstance(node.iter, ast.Call) else []
        is_counted = len(args) == 1 and isinstance(args[0], ast.Constant)
        self.counted = counted | target if is_counted else counted - target
        self.generic_visit(node)
        self.counted = counted
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Cast the index of an array, or of a tuple."""
        self.generic_visit(node)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = self._cast(node.slice.elts)
        elif not isinstance(node.slice, ast.Slice):
            [node.slice] = self._cast([node.slice])
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Cast the indices that a function of the device library takes."""
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in _MOVES:
            node.args[1:3] = self._cast(node.args[1:3])
        elif name.startswith("warp.atomic_"):
            place = node.args[1]
            if isinstance(place, ast.Tuple):
                place.elts = self._cast(place.elts)
            else:
                [node.args[1]] = self._cast([place])
        return node

    def _cast(self, indices: list[ast.expr]) -> list[ast.expr]:
        """Return the indices of one element."""
        if all(map(self._is_counted, indices)):
            return indices
        return [
            index
            if isinstance(index, ast.Constant) or _is_unsigned(index, self.unsigned)
            else ast.Call(ast.Name("uint32"), [index], [])
            for index in indices
        ]

    def _is_counted(self, node: ast.expr) -> bool:
        """Whether an index is made of literals and of what loops count."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self._is_counted(node.left) and self._is_counted(node.right)
        if isinstance(node, ast.Name):
            return node.id in self.counted
        return isinstance(node, ast.Constant)


def _unsigned_names(body: Body) -> frozenset[str]:
    """Return the names that are unsigned wherever they are bound.

    Numbers of edges are, also where a function is given them.
    """
    bound = defaultdict[str, list[ast.expr | None]](list)
    for node in every(body):
        for name, value in _bindings(node):
            bound[name].append(value)
    found, before = frozenset(bound), None
    while found != before:
        before, known = found, found | EDGES
        found = frozenset(
            name
            for name in before
            if all(value and _is_unsigned(value, known) for value in bound[name])
        )
    return found | EDGES


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement binds, and to what; None where it is unknown."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value)
    elif isinstance(node, ast.AugAssign | ast.For):
        yield from _unpacked(node.target, None)


def _unpacked(
    target: ast.expr, value: ast.expr | None
) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(values):
            values = [*value.elts]
        for one, own in zip(target.elts, values, strict=True):
            yield from _unpacked(one, own)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value, None)


def _is_unsigned(node: ast.expr, names: frozenset[str]) -> bool:
    """Whether the type of an expression is unsigned as it stands."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.IfExp):
        return _is_unsigned(node.body, names) and _is_unsigned(node.orelse, names)
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name in _CASTS or (name in _AS_GIVEN and _is_unsigned(node.args[0], names))

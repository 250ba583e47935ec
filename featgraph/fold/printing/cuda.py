"""What only CUDA wants of the text of a kernel."""

from __future__ import annotations

import ast

from featgraph.fold.tree.statements import Body, Rewriting

__all__ = ["unsigned_indices"]

#: Names that are unsigned where they are bound.
_UNSIGNED = frozenset({"e", "member", "thread"})
#: Functions of the device library -> which of their arguments are places in an array.
_PLACES = {"warp.load_row": (1, 2), "warp.store_row": (1, 2)}


def unsigned_indices(body: Body) -> Body:
    """Make indices unsigned: a signed one costs a wrap-around."""
    return _Unsigned().over(body)


class _Unsigned(Rewriting):
    """Casts what stands in an index."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Cast the index of an array."""
        self.generic_visit(node)
        node.slice = _index(node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Cast the places that a function of the device library is told."""
        self.generic_visit(node)
        name = ast.unparse(node.func)
        places = (1,) if name.startswith("warp.atomic_") else _PLACES.get(name, ())
        for place in places:
            node.args[place] = _index(node.args[place])
        return node


def _index(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Tuple):
        node.elts = [_index(part) for part in node.elts]
        return node
    if isinstance(node, ast.Constant) or _is_unsigned(node):
        return node
    return ast.Call(ast.Name("uint32"), [node], [])


def _is_unsigned(node: ast.expr) -> bool:
    """Whether the type of an expression is unsigned as it stands."""
    if isinstance(node, ast.Name):
        return node.id in _UNSIGNED
    cast = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return cast and node.func.id in {"uint32", "uint64"}  # type: ignore[attr-defined]

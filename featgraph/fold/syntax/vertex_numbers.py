"""Translation between the user's vertex ids and those of a shard's kernels (S10).

In a shard `u` and `v` are positions among its rows. In an index they stay positions;
as a value they are translated by the shard's array of vertex ids. Reads at a computed
vertex go to a mirror, an array with the rows of all vertices. Atomics there go to an
outbox, an array with a row for each vertex.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from featgraph.fold.syntax.names import EDGES
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Whole,
    copy_location,
    is_reversed,
)
from featgraph.program.functions import FunctionKind

__all__ = [
    "NUMBER",
    "ends_of",
    "is_at_end",
    "is_elsewhere",
    "redirected",
    "with_numbers",
]

#: The array, as generated code calls it.
NUMBER = "vertex_number"


def ends_of(kind: FunctionKind) -> frozenset[str]:
    """Return the parameter names of vertices in functions of a kind."""
    return frozenset({"u", "v", "w"} if kind.intersects else {"u", "v"})


def with_numbers(
    body: list[ast.stmt], kinds: Mapping[str, str], ends: frozenset[str]
) -> list[ast.stmt]:
    """Return a body in which vertices that are values have the user's numbers.

    Parameters
    ----------
    body : list of ast.stmt
        Normal form; changed.
    kinds : mapping of str to str
        What each name belongs to: see `Names`.
    ends : set of str
        The names of vertices: see `ends_of`.
    """
    return [_Numbers(kinds, ends).visit(statement) for statement in body]


class _Numbers(ast.NodeTransformer):
    def __init__(self, kinds: Mapping[str, str], ends: frozenset[str]) -> None:
        self.kinds, self.ends = kinds, ends

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.ends or not isinstance(node.ctx, ast.Load):
            return node
        return copy_location(Access(NUMBER, "now", [node]), node)

    def visit_Access(self, node: Access) -> ast.AST:
        return self._indexed(node)

    def visit_Whole(self, node: Whole) -> ast.AST:
        return self._indexed(node)

    def visit_Atomic(self, node: Atomic) -> ast.AST:
        if is_elsewhere(node, self.ends):  # by its number, be it the source of an edge
            self.generic_visit(node)
            return node
        return self._indexed(node)

    def _indexed(self, node: Access | Whole | Atomic) -> ast.AST:
        """Translate all indices but the vertex that owns the entry."""
        first, has_rows = node.indices[:1], self.kinds.get(node.name) != "vector"
        own = first if has_rows and isinstance(first[0], ast.Name) else []
        node.indices = node.indices[len(own) :]
        self.generic_visit(node)
        node.indices = [*own, *node.indices]
        return node


def redirected(
    body: list[ast.stmt],
    mirrors: Mapping[tuple[str, str], str],
    outboxes: Mapping[tuple[str, str], str],
    ends: frozenset[str],
) -> None:
    """Redirect accesses at computed vertices to mirrors and outboxes.

    Parameters
    ----------
    body : list of ast.stmt
        Changed: what stands at the ends of an edge or triangle stays.
    mirrors : mapping of (str, str) to str
        Property and version -> its mirror.
    outboxes : mapping of (str, str) to str
        Property and atomic operation -> its outbox.
    ends : set of str
        The names of vertices: see `ends_of`.
    """
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, Atomic) and is_elsewhere(node, ends):
            node.name = outboxes.get((node.name, node.op), node.name)
        elif isinstance(node, Access | Whole) and not is_at_end(node, ends):
            mirror = mirrors.get((node.name, node.version))
            if mirror is not None:
                node.name, node.version = mirror, "now"


def is_at_end(node: Access | Whole, ends: frozenset[str]) -> bool:
    """Whether an entry belongs to the vertex itself, or to that at the other end."""
    return any(isinstance(i, ast.Name) and i.id in ends for i in node.indices[:1])


def is_elsewhere(node: Atomic, ends: frozenset[str]) -> bool:
    """Whether an atomic is at another vertex than that whose rank runs it.

    Edges are the target's. Of triangles all vertices and edges stand on their rank,
    if only as ghosts: what is combined there is sent on by itself.
    """
    first = node.indices[0]
    if "w" in ends:
        return not (
            is_reversed(first)
            or (isinstance(first, ast.Name) and first.id in ends | EDGES)
        )
    return not (isinstance(first, ast.Name) and first.id in {"v", "e"})

"""The list of operations, and those that read an array of the edges.

Each operation has one entry, in the file of its family.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations import (
    products,
    reductions,
    systems,
)
from featgraph.fold.operations.primitive import Primitive, Types
from featgraph.fold.tree.expressions import Operate
from featgraph.program.operations import is_twin, reverse

__all__ = ["OPERATIONS", "primitive_of"]


@dataclass(frozen=True)
class _OfEdge(Primitive):
    """An operation that reads an array of the graph at an edge."""

    def typed(self, call: Operate, types: Types) -> str:
        """Take an edge, and nothing else."""
        if types.typed(call.args[0])[1] != "edge":
            raise types.error(
                f"fg.{self.name} takes an edge", call, expected=f"fg.{self.name}(e)"
            )
        return self.operation.gives

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Vary as the edge does."""
        return varies(call.args[0])


_OF_EDGES = (
    _OfEdge(reverse, edge_array="edge_twin"),
    _OfEdge(is_twin, edge_array="edge_is_twin"),
)

#: Name of an operation -> its primitive.
OPERATIONS: dict[str, Primitive] = {
    primitive.name: primitive
    for primitive in (
        *_OF_EDGES,
        *reductions.PRIMITIVES,
        *products.PRIMITIVES,
        *systems.PRIMITIVES,
    )
}


def primitive_of(call: Operate) -> Primitive:
    """Return the primitive of a call."""
    return OPERATIONS[call.name]

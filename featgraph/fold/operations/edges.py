"""Operations on an edge of an undirected graph; each reads an array of the graph."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations.contexts import Types
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.tree.expressions import Operate
from featgraph.program.operations import is_twin, reverse

__all__ = ["PRIMITIVES"]


@dataclass(frozen=True)
class OfEdge(Primitive):
    """What an array of the graph says of an edge."""

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


PRIMITIVES = (
    OfEdge(reverse, edge_array="edge_twin"),
    OfEdge(is_twin, edge_array="edge_is_twin"),
)

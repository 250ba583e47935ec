"""The list of operations: each has one entry, in the file of its family."""

from __future__ import annotations

from featgraph.fold.operations import (
    edges,
    products,
    reductions,
    selection,
    systems,
)
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.tree.expressions import Operate

__all__ = ["OPERATIONS", "primitive_of"]

#: Name of an operation -> what the folder knows of it.
OPERATIONS: dict[str, Primitive] = {
    primitive.name: primitive
    for family in (edges, reductions, selection, products, systems)
    for primitive in family.PRIMITIVES
}


def primitive_of(call: Operate) -> Primitive:
    """Return what is known of the operation of a call."""
    return OPERATIONS[call.name]

"""A block has a part of the vertices, and each thread elements of a matrix for them."""

from __future__ import annotations

from featgraph.fold.schedules.base import (
    Binding,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_strides,
)
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code

__all__ = ["ElementSchedule"]

#: Where a block is in the grid, and how many there are.
BLOCKS = ("cuda.blockIdx.x", "cuda.gridDim.x")


class ElementSchedule(Schedule):
    """A thread sums one element over all vertices of the block, then the next one."""

    name = "elements"
    is_asked_for = False
    shares_features = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return (
            f"one thread an element of {width} x {width}, over a block's part of the "
            "vertices"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        axis = FeatureAxis(shape.width, is_element=True, are_values=True)
        alone = dict.fromkeys(("edge", "vertex", "partial"), Scope())
        block = mapping.block
        return Binding(False, axis, Walk("range"), alone, block=block, partial="row")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        return [Areas(), *in_strides(node, binding.block, node.body, BLOCKS)]

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the loop of a thread over its elements."""
        k = shape.width
        each = code(f"i = int32(element // {k})\nf = int32(element - i * {k})")
        elements = f"range(cuda.threadIdx.x, {k * k}, {shape.threads})"
        loop = code(f"for element in {elements}:\n    BODY", BODY=each + body)
        return code("row = uint32(cuda.blockIdx.x)") + loop

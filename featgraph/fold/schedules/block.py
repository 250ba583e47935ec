"""A block takes one vertex of high degree: all its lanes take edges of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping as Dict
from dataclasses import replace

from featgraph.errors import PlanError
from featgraph.fold.schedules.base import Binding, BlockScope, KernelShape, Schedule
from featgraph.fold.schedules.lanes import lanes_of, marked, shared
from featgraph.fold.schedules.mapping import Mapping, Work
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["BlockSchedule"]


class BlockSchedule(Schedule):
    """The whole block leaves a vertex, or none of its threads does."""

    name = "block"

    def choose(self, mapping: Mapping, work: Work, given: Dict[str, int]) -> Mapping:
        """Leave hubs to blocks; lanes take the others."""
        if work.leaves_matrices:
            raise PlanError(
                "the block schedule cannot hold matrices in memory",
                where="schedule='block'",
            )
        return replace(mapping, hubs=True) if work.sweeps_edges else mapping

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        scope = BlockScope(shape.threads, "block")
        return replace(shared(mapping, shape, scope), block=mapping.block)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        vertex = node.vertex
        each = code(f"{vertex} = hubs[index]")
        if node.words:
            leave = noted([ast.Continue()], "the whole block")
            test = f"not warp.test_bit({node.words}, {vertex})"
            each += agreed(when([test], leave), "block")
        if shape.kind == "vertex":
            each += code(f"{node.wanted} = True")
        loop = code(
            "for index in range(cuda.blockIdx.x, hubs.size, cuda.gridDim.x):\n    BODY",
            BODY=each + node.body + marked(node, binding, shape),
        )
        front = code("thread = uint32(cuda.threadIdx.x)")
        return front + lanes_of(binding, "cuda.threadIdx.x") + agreed(loop, "block")

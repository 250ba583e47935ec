"""A block takes one vertex of high degree, or a part of its row, with all its lanes."""

from __future__ import annotations

import ast
from collections.abc import Mapping as Dict
from dataclasses import replace

from featgraph.errors import PlanError
from featgraph.fold.schedules.base import Binding, BlockScope, KernelShape, Schedule
from featgraph.fold.schedules.lanes import lanes_of, marked, shared
from featgraph.fold.schedules.mapping import WARP, Mapping, Work
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["BlockSchedule", "PartSchedule"]


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
        binding = shared(mapping, shape, scope)
        # Of a vertex one warp stores; the others would do the same beside it.
        return replace(binding, block=mapping.block, runs=f"thread < {WARP}")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        vertex = node.vertex
        every, each = self._found(vertex)
        if node.words:
            leave = noted([ast.Continue()], "the whole block")
            test = f"not warp.test_bit({node.words}, {vertex})"
            each += agreed(when([test], leave), "block")
        if shape.kind == "vertex":
            each += code(f"{node.wanted} = True")
        loop = code(
            f"for index in {every}:\n    BODY",
            BODY=each + node.body + marked(node, binding, shape),
        )
        front = code("thread = uint32(cuda.threadIdx.x)")
        return front + lanes_of(binding, "cuda.threadIdx.x") + agreed(loop, "block")

    def _found(self, vertex: str) -> tuple[str, Body]:
        """Return the places of a block in the list, and what it finds its own by."""
        every = "range(cuda.blockIdx.x, hubs.size, cuda.gridDim.x)"
        return every, code(f"{vertex} = hubs[index]")


class PartSchedule(BlockSchedule):
    """Several blocks take a vertex, where none asks what others have come to."""

    name = "block_parts"
    is_asked_for = False

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        part = ("part_first", "part_last")
        return replace(super().bind(mapping, shape), part=part)

    def _found(self, vertex: str) -> tuple[str, Body]:
        """Return the places of parts; and a vertex, with the bounds of one."""
        every = "range(3 * cuda.blockIdx.x, hub_parts.size, 3 * cuda.gridDim.x)"
        found = code(
            "place = uint32(index)\n"
            f"{vertex} = hub_parts[place]\n"
            "part_first = hub_parts[uint32(place + uint32(1))]\n"
            "part_last = hub_parts[uint32(place + uint32(2))]"
        )
        return every, found

"""Schedules in which a block takes a vertex of high degree, or part of its row."""

from __future__ import annotations

import ast
from collections.abc import Mapping as Dict

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    GraphArray,
    KernelShape,
    Schedule,
)
from featgraph.fold.schedules.lanes import lanes_of, leaves_matrices, marked, shared
from featgraph.fold.schedules.mapping import WARP, Mapping, Work
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = [
    "JOINED_ENTRIES", "PART", "PART_ENTRIES", "BlockSchedule", "JoinSchedule",
    "PartSchedule", "found_parts", "listed",
]  # fmt: skip

#: The bounds of a part of a row.
PART = ("part_first", "part_last")
#: Entries of a list for each part: its row, and these; where the last block goes on,
#: also the place of the row's first part, and how many parts it has.
PART_ENTRIES, JOINED_ENTRIES = 3, 5


class BlockSchedule(Schedule):
    """A block takes one vertex; early exits are uniform over the block."""

    name = "block"

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping of "lanes", with hubs left to blocks."""
        if leaves_matrices(mapping, work):
            raise PlanError(
                "the block schedule cannot hold matrices in memory",
                where="schedule='block'",
            )
        return replace(mapping, hubs=True) if work.sweeps_edges else mapping

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the list of hubs."""
        return self.lists or (listed("hubs", 1, mapping),)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
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
        if shape.pulls:
            each += code(f"{node.wanted} = True")
        loop = code(
            f"for index in {every}:\n    BODY",
            BODY=each + node.body + marked(node, binding, shape),
        )
        front = code("thread = uint32(cuda.threadIdx.x)")
        return front + lanes_of(binding, "cuda.threadIdx.x") + agreed(loop, "block")

    def _found(self, vertex: str) -> tuple[str, Body]:
        """Return the range of list entries of a block, and the load of its vertex."""
        every = "range(cuda.blockIdx.x, hubs.size, cuda.gridDim.x)"
        return every, code(f"{vertex} = hubs[index]")


class PartSchedule(BlockSchedule):
    """Several blocks take one vertex, without a combined result."""

    name = "block_parts"
    is_selectable = False
    lists = (GraphArray("hub_parts", "{hub_parts}", PART_ENTRIES),)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), part=PART)

    def _found(self, vertex: str) -> tuple[str, Body]:
        """Return the range of parts, and the loads of a vertex and bounds."""
        return found_parts("hub_parts", vertex, PART_ENTRIES)


class JoinSchedule(BlockSchedule):
    """Several blocks take one long row; the last one combines and continues."""

    name = "block_joins"
    is_selectable = False

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the list of parts of rows, with the index of each in its row."""
        return (listed("joined_parts", JOINED_ENTRIES, mapping),)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), part=PART, joins=True)

    def _found(self, vertex: str) -> tuple[str, Body]:
        """Return the range of parts, and the loads of a vertex and its part."""
        return found_parts("joined_parts", vertex, JOINED_ENTRIES)


def listed(name: str, each: int, mapping: Mapping) -> GraphArray:
    """Return the list of vertices that a mapping leaves to blocks.

    Its name in the graph includes the degree, if that is not the degree of hubs.
    """
    degree = f" {mapping.hub_degree}" if mapping.hub_degree else ""
    return GraphArray(name, f"{{{name}}}{degree}", each)


def found_parts(array: str, vertex: str, size: int) -> tuple[str, Body]:
    """Return the range of a block in a list of parts, and the loads of its part.

    Further fields of the `size` entries are loaded where they are used.
    """
    every = f"range({size} * cuda.blockIdx.x, {array}.size, {size} * cuda.gridDim.x)"
    found = code(f"place = uint32(index)\n{vertex} = {array}[place]")
    for n, name in enumerate(PART, 1):
        found += code(f"{name} = {array}[uint32(place + uint32({n}))]")
    return every, found

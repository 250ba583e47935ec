"""Schedules over words of a set: ranges of words, or one word for each part.

`WordRangesSchedule` is for set kernels whose output is in the order of vertices. The
others are for reduces in a fixed tree, which depends neither on threads nor on the
partition: the sum of a part, a word of 32 vertices or a single vertex, is a leaf.
"""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.schedules.base import Binding, KernelShape, Scope
from featgraph.fold.schedules.block import ElementSchedule
from featgraph.fold.schedules.lanes import LaneSchedule, lanes_of
from featgraph.fold.schedules.mapping import (
    SHARING_BLOCKS,
    WARP,
    LaunchSizes,
    Mapping,
    share_features,
)
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, when

__all__ = ["WordElementSchedule", "WordRangesSchedule", "WordSchedule", "map_words"]


class WordRangesSchedule(LaneSchedule):
    """A warp takes a range of words, so that its output is in the order of vertices.

    The set may be ``everything``: all vertices.
    """

    name = "word_ranges"
    is_selectable = False

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), has_idle_lanes=True)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        wanted = f"everything or warp.test_bit({node.words}, index)"
        each = code(
            "index = int32(word * 32 + cuda.laneid)\n"
            f"{node.wanted} = index < vertex_count and ({wanted})\n"
            f"{node.vertex} = min(index, int32(vertex_count - 1))"
        )
        loop = "for word in range(first_word, last_word):\n    BODY"
        out = code(
            "warp_count = cuda.gridsize(1) >> 5\n"
            "all_words = int64(vertex_count + 31 >> 5)\n"
            "each_words = (all_words + warp_count - 1) // warp_count\n"
            "first_word = min((cuda.grid(1) >> 5) * each_words, all_words)\n"
            "last_word = min(first_word + each_words, all_words)"
        )
        swept = agreed(code(loop, BODY=each + node.body), "warp")
        return [Areas(), *out, *swept, *node.behind]


class WordSchedule(LaneSchedule):
    """Lanes take the vertices of a part one after the other, and share features.

    A part is a word, or, with ``together = 1``, a vertex. Its sum does not depend on
    the partition of other vertices: see `featgraph.runtime.devices.fixed_trees`.
    """

    name = "words"
    is_selectable = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return f"{mapping.shares}, over a word of vertices"

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks for the parts of a tree."""
        places = int(sizes.argument("part_count")) * mapping.lanes_per_vertex
        return sizes.shared_out(places)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = super().bind(mapping, shape)
        scopes = {**binding.scopes, "partial": Scope()}
        return replace(binding, scopes=scopes, partial="part", leaves="is_part")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        lanes = binding.scopes["vertex"].lanes
        place = "cuda.laneid" if lanes == WARP else f"(cuda.laneid & {lanes - 1})"
        each = code(
            f"{node.wanted} = part_bits >> uint32(place) & uint32(1) != 0\n"
            f"{node.vertex} = int32(min(first + place, int64(vertex_count - 1)))"
        )
        # Lanes without a part have no vertex in the set.
        loop = _places(node, each + node.body, " if is_part else uint32(0)")
        shift = lanes.bit_length() - 1
        group = f"cuda.laneid >> {shift}" if shift else "cuda.laneid"
        own = code(f"own_part = int32({group})\nwarp_parts = {WARP // lanes}")
        return [*own, *lanes_of(binding, place), *agreed(loop, "warp"), *node.behind]

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the warp-uniform loop over parts."""
        [front] = [n for n, part in enumerate(body, 1) if isinstance(part, Areas)]
        each = code(
            "is_part = base + own_part < part_count\n"
            "part = int32(min(base + own_part, part_count - 1))"
        )
        # In 64 bits: the step behind the last part may exceed int32.
        loop = code(
            "for base in range(int64(cuda.grid(1) >> 5) * warp_parts, part_count, "
            "int64(cuda.gridsize(1) >> 5) * warp_parts):\n    BODY",
            BODY=each + body[front:],
        )
        return [*body[:front], *agreed(loop, "warp")]


class WordElementSchedule(ElementSchedule):
    """A thread sums one element at a time over the vertices of a word."""

    name = "word_elements"
    is_selectable = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return f"one thread an element of {width} x {width}, over a word of vertices"

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks: one for each part of a tree."""
        return min(int(sizes.argument("part_count")), SHARING_BLOCKS)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), partial="part")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        each = code(f"{node.vertex} = int32(first + place)") + node.body
        each = when(["part_bits >> uint32(place) & uint32(1) != 0"], each)
        return [Areas(), *_places(node, each), *node.behind]

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the loops of a block over parts, and of a thread over elements."""
        k = shape.width
        each = code(f"i = int32(element // {k})\nf = int32(element - i * {k})")
        elements = f"range(cuda.threadIdx.x, {k * k}, {shape.threads})"
        loop = code(f"for element in {elements}:\n    BODY", BODY=each + body)
        parts = "range(cuda.blockIdx.x, part_count, cuda.gridDim.x)"
        return code(f"for part in {parts}:\n    BODY", BODY=loop)


def map_words(mapping: Mapping, width: int, has_matrices: bool) -> Mapping:
    """Return the mapping of a word of vertices, whose sum is a leaf of a tree."""
    if has_matrices:
        return Mapping(1, 1, 1, False, WordElementSchedule.name)
    lanes, copies = mapping.lanes_per_edge, mapping.features_per_lane
    if mapping.is_looped:
        lanes, copies = share_features(width, 1)
    # One vertex after the other: any other order of additions has other bits.
    return replace(
        mapping, lanes_per_edge=lanes, features_per_lane=copies, is_looped=False,
        lanes_per_vertex=lanes, schedule=WordSchedule.name, block=0, unroll=1,
        vertices=1, resident=0,
    )  # fmt: skip


def _places(node: Sweep, body: Body, otherwise: str = "") -> Body:
    """Return the loop over the vertices of a part, whose bits are in one word."""
    out = code(
        "first = int64(part) * together\n"
        f"part_bits = {node.words}[first >> 5] >> uint32(first & 31){otherwise}"
    )
    return out + code("for place in range(together):\n    BODY", BODY=body)

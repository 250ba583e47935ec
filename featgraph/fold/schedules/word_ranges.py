"""Warps look through ranges of a set, a lane for each vertex of a word."""

from __future__ import annotations

from dataclasses import replace

from featgraph.fold.schedules.base import Binding, KernelShape
from featgraph.fold.schedules.lanes import LaneSchedule
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, agreed, code

__all__ = ["WordRangesSchedule"]


class WordRangesSchedule(LaneSchedule):
    """A warp has vertices in a row, so that what it leaves is in their order.

    ``everything`` stands for the set of all vertices.
    """

    name = "word_ranges"
    is_asked_for = False

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        return replace(super().bind(mapping, shape), uninvited=True)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
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

"""How the lanes of a CUDA kernel come to the vertices of a set that has few."""

from __future__ import annotations

from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code

__all__ = ["each_listed", "each_packed"]


def each_packed(node: Sweep, lanes: int, body: Body) -> Body:
    """Return a warp's loop over the vertices of a set, `lanes` lanes for each.

    A warp looks at up to 32 words together and takes the vertices that it finds there
    side by side, however far apart they are. Its words are far apart, so that warps
    find about as many. All its lanes stay in the loop; those without a vertex of their
    own, for which ``node.wanted`` is False, have the last one.
    """
    shift = lanes.bit_length() - 1
    own = {1: "cuda.laneid", WARP: "0"}.get(lanes, f"(cuda.laneid >> {shift})")
    each = code(
        f"nth = int32(done + {own})\n"
        f"{node.wanted} = nth < count\n"
        "bit = warp.nth_bit(word, bits_before, min(nth, int32(count - 1)))\n"
        f"{node.vertex} = warp.vertex_at(first_place, warp_count, bit)"
    )
    loop = code(
        f"for done in range(0, count, {WARP // lanes}):\n    BODY", BODY=each + body
    )
    turn = code(
        "place = int32(first_place + cuda.laneid * warp_count)\n"
        f"word = warp.word_of_lane({node.words}, place, turn)\n"
        "bits_before, count = warp.bits_before(word)"
    )
    turn += agreed(loop, "warp")
    turn += code("first_place = int32(first_place + turn * warp_count)")
    out = code(
        f"turn = warp.words_a_turn({node.words})\n"
        "warp_count = int32(cuda.gridsize(1) >> 5)\n"
        "first_place = int32(cuda.grid(1) >> 5)"
    )
    loop = code(f"while first_place < {node.words}.size:\n    BODY", BODY=turn)
    return out + agreed(loop, "warp")


def each_listed(node: Sweep, lanes: int, body: Body) -> Body:
    """Return which vertex of a list a lane has, `lanes` lanes for each.

    The list has all of the set, none twice, and the grid `lanes` lanes for each of the
    list. Lanes behind its end have the last one; there ``node.wanted`` is False.
    """
    shift = f" >> {lanes.bit_length() - 1}" if lanes > 1 else ""
    test = f"warp.test_bit({node.words}, {node.vertex})"
    return (
        body[:0]
        + code(
            f"nth = int32(cuda.grid(1){shift})\n"
            f"{node.vertex} = listed[min(nth, int32(listed.size - 1))]\n"
            f"{node.wanted} = nth < listed.size and {test}"
        )
        + body
    )

"""How the lanes of a CUDA kernel come to the vertices of a set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.schedules.mapping import WARP

__all__ = ["each_listed", "each_packed"]


@contextmanager
def each_packed(
    writer: Writer, words: str, vertex: str, wanted: str, span: int
) -> Iterator[None]:
    """Print a warp's loop over the vertices of a set, `span` lanes for each.

    A warp looks at up to 32 words together and takes the vertices that it finds there
    side by side, however far apart they are. Its words are far apart, so that warps
    find about as many. All its lanes stay in the loop; those without a vertex of their
    own, where `wanted` is False, have the last one.
    """
    line = writer.line
    line(f"turn = warp.words_a_turn({words})")
    line("warp_count = int32(cuda.gridsize(1) >> 5)")
    line("first_place = int32(cuda.grid(1) >> 5)")
    with writer.block(f"while first_place < {words}.size:"):
        line("place = int32(first_place + cuda.laneid * warp_count)")
        line(f"word = warp.word_of_lane({words}, place, turn)")
        line("bits_before, count = warp.bits_before(word)")
        with writer.block(f"for done in range(0, count, {WARP // span}):"):
            own = {1: "cuda.laneid", WARP: "0"}.get(
                span, f"(cuda.laneid >> {span.bit_length() - 1})"
            )
            line(f"nth = int32(done + {own})")
            line(f"{wanted} = nth < count")
            line("bit = warp.nth_bit(word, bits_before, min(nth, int32(count - 1)))")
            line(f"{vertex} = warp.vertex_at(first_place, warp_count, bit)")
            yield
        line("first_place = int32(first_place + turn * warp_count)")


@contextmanager
def each_listed(
    writer: Writer, words: str, vertex: str, wanted: str, span: int
) -> Iterator[None]:
    """Print which vertex of a list a lane has, `span` lanes for each.

    The list has all of the set, none twice, and the grid `span` lanes for each of the
    list. Lanes behind its end have the last one; there `wanted` is False.
    """
    shift = f" >> {span.bit_length() - 1}" if span > 1 else ""
    writer.line(f"nth = int32(cuda.grid(1){shift})")
    writer.line(f"{vertex} = listed[uint32(min(nth, int32(listed.size - 1)))]")
    writer.line(f"{wanted} = nth < listed.size and warp.test_bit({words}, {vertex})")
    yield

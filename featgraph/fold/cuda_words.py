"""How a warp of a CUDA kernel goes through the words of a set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.writer import Writer

__all__ = ["each_word"]


@contextmanager
def each_word(writer: Writer, words: str) -> Iterator[None]:
    """Print a warp's loop over words of a set that are not zero, from vertex `base` on.

    Where the grid has fewer warps than the set has words, a warp skips those that are
    zero 32 at a time.
    """
    line = writer.line
    line("stride = int32(cuda.gridsize(1) & ~31)")
    line(f"base = warp.next_word({words}, int32(cuda.grid(1) & ~31), stride)")
    with writer.block("while base < vertex_count:"):
        yield
        line(f"base = warp.next_word({words}, base + stride, stride)")

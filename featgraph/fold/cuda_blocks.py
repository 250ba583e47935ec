"""Blocks of long rows on CUDA: where their sums wait, and how many there can be.

Sums of blocks stand in local memory: an array that is indexed by a variable takes no
registers from the loop over edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featgraph.fold.accumulators import Accumulator
from featgraph.fold.analyse import Analysed
from featgraph.fold.owner import OwnerBody

__all__ = ["CudaBlocks", "each_stride"]

#: Bits of the number of edges of a row, with offsets of 32 bits and of 64, and where
#: there are no hubs.
_BITS, _WIDE_BITS, _BITS_WITHOUT_HUBS = 31, 40, 12


class CudaBlocks(OwnerBody):
    """Where threads and lanes leave the sums of blocks of their edges."""

    #: Lanes or threads that go through the edges of one vertex beside each other.
    slots = 1

    def levels(self, accumulator: Accumulator) -> int:
        """Return how many sums of blocks wait.

        Of matrices that are not held by one thread there is one: all earlier blocks
        together. A few of them would not fit.
        """
        if accumulator.is_matrix and accumulator.name not in self.phase.held:
            return 1
        traits = self.plan.traits
        bits = _WIDE_BITS if traits.wide_offsets else _BITS
        if self.phase.kind == "vertex" and not traits.has_hubs:
            bits = _BITS_WITHOUT_HUBS
        return max(((1 << bits) // (self.block * self.slots)).bit_length(), 2)

    def narrow_place(self, text: str) -> str:
        """Return a place in a row in the type of the offsets."""
        return text if self.plan.traits.wide_offsets else f"int32({text})"

    def width_of(self, accumulator: Accumulator) -> int:
        """Return the elements of an accumulator that one thread has."""
        if accumulator.is_matrix:
            return accumulator.size
        if not accumulator.is_wide:
            return 1
        return self.phase.width if self.loops else self.copies

    def declare_waiting(self, functions: list[Analysed]) -> None:
        """Declare the arrays in which sums of blocks wait."""
        for accumulator in self.in_blocks(functions):
            if self.waits_in_area(accumulator):
                continue
            name, width = self.waiting(accumulator), self.width_of(accumulator)
            levels = self.levels(accumulator)
            shape = f"({levels}, {width})" if levels > 1 else str(width)
            self.writer.line(f"{name} = cuda.local.array({shape}, {self.context.real})")

    def waits_in_area(self, accumulator: Accumulator) -> bool:
        """Whether a matrix of one thread waits in global memory, as it stands there."""
        in_memory = accumulator.name not in self.phase.held
        return self.library == "warp" and accumulator.is_matrix and in_memory

    def each_element(
        self, accumulator: Accumulator, body: Callable[[str, str], None]
    ) -> None:
        """Print ``body(element, its place among those that wait)`` for all elements."""
        if accumulator.name not in self.phase.held:
            super().each_element(accumulator, body)
            return
        k = self.phase.width
        function = next(f for f in self.functions if f.into == accumulator.name)
        for i, f in self.computed(function):
            place = self.place_of(accumulator, str(i * k + f))
            body(f"{accumulator.name}_{i}_{f}", place)

    def computed(self, function: Analysed) -> list[tuple[int, int]]:
        """Return the elements of a held matrix that are summed; others mirror them."""
        parts, k = function.rank_one, self.phase.width
        symmetric = parts is not None and parts.symmetric
        return [(i, f) for i in range(k) for f in range(i + 1 if symmetric else k)]


@contextmanager
def each_stride(body: CudaBlocks, name: str) -> Iterator[None]:
    """Print a loop from ``first_vertex`` by ``stride``; a reduce sums in blocks."""
    block, last = body.writer.block, "int32(vertex_count)"
    summed = body.in_blocks(body.functions) if body.phase.kind == "reduce" else []
    if not summed:
        with block(f"for {name} in range(first_vertex, {last}, stride):"):
            yield
        return
    size = f"{body.block} * stride"
    narrow = "int32({})".format  # as wide as the numbers of vertices
    with (
        body.cut(summed, "first_vertex", last, size, body.start, narrow),
        block(f"for {name} in range(block_start, block_end, stride):"),
    ):
        yield

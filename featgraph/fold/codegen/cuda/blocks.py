"""Blocks of long rows on CUDA: where the sum of those that have been summed waits."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.owner import OwnerBody

__all__ = ["CudaBlocks"]


class CudaBlocks(OwnerBody):
    """Where threads and lanes leave the sums of blocks of their edges."""

    #: Lanes or threads that go through the edges of one vertex beside each other.
    slots = 1

    def levels(self, accumulator: Accumulator) -> int:
        """Return 1: all earlier blocks wait as one sum, in registers.

        A lane takes a share of a row only, so it has few blocks. An array for a binary
        counter would be local memory, which Numba zeros in each thread: a quarter of a
        superstep's time where there are many hubs (H200, 2026-11-22).
        """
        return 1

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
        """Declare the arrays in which sums of earlier blocks wait."""
        for accumulator in self.in_blocks(functions):
            if self.waits_in_area(accumulator):
                continue
            name, width = self.waiting(accumulator), self.width_of(accumulator)
            self.writer.line(f"{name} = cuda.local.array({width}, {self.context.real})")

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

"""Sums of many terms: in blocks, whose sums are added up pairwise.

One after the other, n terms lose up to n roundings of the whole sum. In blocks of
`SUM_BLOCK` terms, by place in the row, they lose as many as a block has terms, and one
more each time that the number of blocks doubles. The sums of blocks wait in a small
array, where entry i has 2**i blocks: as in a binary counter, a new one is added to
those that are full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import in_blocks
from featgraph.fold.codegen.kernels.accumulate import AccumulatorBody
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["CPU_LEVELS", "BlockedRows"]

#: Entries of the array on the CPU: for rows of 2**40 edges.
CPU_LEVELS = 32


class BlockedRows(AccumulatorBody):
    """Cuts the rows of edges into blocks, where some are long."""

    #: Of the row, or the block of it, that is gone through: where it begins and ends.
    #: None where these are asked of the offsets.
    bounds: tuple[str, str] | None = None

    @property
    def block(self) -> int:
        """Terms that are added up one after the other; 0 for all."""
        return self.phase.mapping.block

    def in_blocks(self, stage: Sequence[Analysed]) -> list[Accumulator]:
        """Return what a stage sums in blocks."""
        if not self.block:
            return []
        return [self.accumulators[str(f.into)] for f in stage if in_blocks(f)]

    def levels(self, accumulator: Accumulator) -> int:
        """Return how many sums of blocks wait; with one, all earlier ones together."""
        return CPU_LEVELS

    def waiting(self, accumulator: Accumulator) -> str:
        """Return the array in which sums of blocks wait; no user can have named it."""
        summed = [f.into for f in self.functions if in_blocks(f)]
        return f"block_sums_{summed.index(accumulator.name)}"

    # -- rows of edges

    @contextmanager
    def row_in_blocks(
        self, stage: Sequence[Analysed], restart: Callable[[Accumulator], None]
    ) -> Iterator[None]:
        """Print the loop over the blocks of a row around that over edges.

        `restart` sets what a block sums to the identity.
        """
        summed = self.in_blocks(stage)
        if not summed:
            yield
            return
        first, last = self.row_bounds()
        with self.cut(summed, first, last, self.block_places(), restart):
            yield
            for function in stage:
                self.settle(function)
        self.bounds = None

    def block_places(self) -> int:
        """Return how many edges of a row a block of it has."""
        return self.block

    def row_bounds(self) -> tuple[str, str]:
        """Return where the row of `v` begins and ends."""
        offsets = self.phase.rows.offsets
        return f"{offsets}[{self.index('v')}]", f"{offsets}[{self.index('v + 1')}]"

    def narrow_place(self, text: str) -> str:
        """Return a place in a row in the type of the offsets."""
        return text

    def settle(self, function: Analysed) -> None:
        """Bring in what has been put aside of the contributions of a block."""

    @contextmanager
    def cut(
        self,
        summed: Sequence[Accumulator],
        first: str,
        last: str,
        size: int | str,
        restart: Callable[[Accumulator], None],
        narrow: Callable[[str], str] | None = None,
    ) -> Iterator[None]:
        """Print a loop over blocks of `size` places; what they sum is added up."""
        line, block = self.writer.line, self.writer.block
        line(f"block_start, block_last, block_count = {first}, {last}, 0")
        with block("while True:"):
            end = f"block_start + min(block_last - block_start, {size})"
            line(f"block_end = {(narrow or self.narrow_place)(end)}")
            self.bounds = ("block_start", "block_end")
            yield
            line("block_start = block_end")
            with block("if block_start == block_last:"):
                line("break")
            self.put_by(summed)
            for accumulator in summed:
                restart(accumulator)
        self.add_up(summed)

    # -- sums of blocks

    def put_by(self, summed: Sequence[Accumulator]) -> None:
        """Leave the sums of a block with those of the blocks before it."""
        line, block = self.writer.line, self.writer.block
        few = [a for a in summed if self.levels(a) == 1]
        many = [a for a in summed if a not in few]
        if few:
            with block("if block_count > 0:"):
                self._each_sum(few, self._take_waiting)
            self._each_sum(few, self._leave)
        if many:
            line("block_level = 0")
            with block("while (block_count >> block_level) & 1:"):
                self._each_sum(many, self._take_waiting)
                line("block_level += 1")
            self._each_sum(many, self._leave)
        line("block_count += 1")

    def add_up(self, summed: Sequence[Accumulator]) -> None:
        """Add the sums of all earlier blocks to those of the last."""
        line, block = self.writer.line, self.writer.block
        few = [a for a in summed if self.levels(a) == 1]
        many = [a for a in summed if a not in few]
        if few:
            with block("if block_count > 0:"):
                self._each_sum(few, self._take_waiting)
        if many:
            line("block_level = 0")
            with block("while block_count > 0:"):
                with block("if block_count & 1:"):
                    self._each_sum(many, self._take_waiting)
                line("block_count >>= 1")
                line("block_level += 1")

    def _each_sum(
        self,
        summed: Sequence[Accumulator],
        body: Callable[[Accumulator, str, str], None],
    ) -> None:
        """Print ``body(accumulator, element, its place among those that wait)``."""
        for accumulator in summed:
            self.each_element(accumulator, partial(body, accumulator))

    def each_element(
        self, accumulator: Accumulator, body: Callable[[str, str], None]
    ) -> None:
        """Print ``body(element, its place among those that wait)`` for all elements."""
        name = accumulator.name
        if accumulator.is_matrix:
            with self._elements():
                body(f"{name}[i, f]", self.place_of(accumulator, "i", "f"))
        elif accumulator.is_wide and self.loops:
            with self.writer.block(f"for f in range({self.phase.width}):"):
                body(f"{name}[f]", self.place_of(accumulator, "f"))
        else:
            for j in range(self.copies if accumulator.is_wide else 1):
                held = self.held(accumulator, j)
                body(held, self.place_of(accumulator, str(j)))

    def place_of(self, accumulator: Accumulator, *parts: str) -> str:
        """Return the text of an element that waits."""
        level = ["block_level"] if self.levels(accumulator) > 1 else []
        return f"{self.waiting(accumulator)}[{self.index(*level, *parts)}]"

    def _take_waiting(self, accumulator: Accumulator, name: str, place: str) -> None:
        self.writer.line(accumulator.update(name, place))

    def _leave(self, accumulator: Accumulator, name: str, place: str) -> None:
        self.writer.line(f"{place} = {name}")

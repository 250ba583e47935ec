"""Matrices that lanes sum in registers: each lane has columns of its own.

In memory every element would be read and written for each edge. What is summed is left
there behind the loop, for the functions that index it or solve with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cuda.names import WarpNames
from featgraph.fold.codegen.functions.featurewise import Printed
from featgraph.fold.codegen.functions.vector_access import load_lines
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["WarpColumns"]


class WarpColumns(WarpNames):
    """Names for the elements of the columns of a lane."""

    #: What the lanes that go round together sum in blocks.
    summed: Sequence[Accumulator] = ()

    def elements(self, accumulator: Accumulator) -> list[str]:
        """Return the names of a lane's columns of a matrix, one after the other."""
        k = self.phase.width
        return [
            self._element(accumulator, i, j)
            for j in range(self.copies)
            for i in range(k)
        ]

    def _element(self, accumulator: Accumulator, i: int, j: int) -> str:
        column = f"_{j}" if self.copies > 1 else ""
        return f"{accumulator.name}{column}_{i}"

    def contribute_column(
        self, accumulator: Accumulator, printed: Printed, j: int
    ) -> None:
        """Combine what edge `e` contributes to the column of this lane's feature j."""
        k = self.phase.width
        mapping = self.phase.mapping.of_column(k)
        for i in range(k):
            if printed.rows and i % mapping.piece == 0:
                self._lines(load_lines(printed.rows, i, str(i), k, mapping))
            call = self._call_element(printed, i, j)
            self._take(accumulator, self._element(accumulator, i, j), call)

    def _call_element(self, printed: Printed, i: int, j: int) -> str:
        mapping = self.phase.mapping.of_column(self.phase.width)
        args = [str(i), self.feature_argument(str(j))]
        args += [r for r in printed.function.declared.roles if r not in {"i", "f"}]
        args += [
            self.temporary(name, j if self.is_wide(name) else 0)
            for name in printed.temporaries
        ]
        args += [row.copy(i, mapping) for row in printed.rows]
        return f"{printed.name}({', '.join(args)})"

    def leave_columns(self, accumulator: Accumulator) -> None:
        """Write the sums of this lane's columns to where functions read them."""
        for j in range(self.copies):
            name, column = accumulator.name, self.index(self.feature(str(j)))
            lines = [
                f"{name}[{i}, {column}] = {self._element(accumulator, i, j)}"
                for i in range(self.phase.width)
            ]
            self._under([self.inside(j)], lambda lines=lines: self._lines(lines))

    # -- blocks of long rows

    @contextmanager
    def rounds_in_blocks(self, stage: list[Analysed]) -> Iterator[None]:
        """Have the rounds that are printed sum in blocks, where there are long rows."""
        self.summed = self.in_blocks(stage)
        if self.summed:
            self.writer.line("block_count = 0")
        yield
        self.add_up(self.summed)
        self.summed = ()

    def next_block(self) -> None:
        """Put by what lanes have summed, when they have gone so many rounds."""
        if self.summed:
            test = f"if step > 0 and step % {self.block} == 0:"
            with self.writer.block(test):
                self.put_by(self.summed)
                for accumulator in self.summed:
                    self.start(accumulator)

    def each_element(
        self, accumulator: Accumulator, body: Callable[[str, str], None]
    ) -> None:
        """Print ``body(element, its place among those that wait)`` for all elements."""
        if not accumulator.is_matrix:
            super().each_element(accumulator, body)
            return
        if self.phase.mapping.column_piece:
            for place, element in enumerate(self.elements(accumulator)):
                body(element, self.place_of(accumulator, str(place)))
            return
        with self.writer.block(f"for i in range({self.phase.width}):"):
            for j in range(self.copies):
                column = self.index(self.feature(str(j)))
                element = f"{accumulator.name}[uint32(i), {column}]"
                waits = self.place_of(accumulator, f"i * {self.copies} + {j}")
                self._under([self.inside(j)], lambda e=element, p=waits: body(e, p))

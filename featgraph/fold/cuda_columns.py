"""Matrices that lanes sum in registers: each lane has columns of its own.

In memory every element would be read and written for each edge. What is summed is left
there behind the loop, for the functions that index it or solve with it.
"""

from __future__ import annotations

from featgraph.fold.accumulators import Accumulator
from featgraph.fold.cuda_names import WarpNames
from featgraph.fold.functions import Printed
from featgraph.fold.rows import load_lines

__all__ = ["WarpColumns"]


class WarpColumns(WarpNames):
    """Names for the elements of the columns of a lane."""

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

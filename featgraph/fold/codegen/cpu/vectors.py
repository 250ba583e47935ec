"""Prints sums over edges as vectors in registers, for the CPU target."""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cpu.tiles import TiledBody
from featgraph.fold.codegen.functions.vectorized import pieces
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["VectorBody"]


class VectorBody(TiledBody):
    """Sums what gathers return as vectors; everything else as `TiledBody`.

    The sums stand in an array behind the loop over the edges, where functions in any
    form find them.
    """

    def _sums_vectors(self, function: Analysed) -> bool:
        is_matrix = function.into in self.phase.tiles
        return self.printed[function.name].vectors and not is_matrix

    def begin(self, accumulator: Accumulator) -> None:
        """Set what a gather fills to its identity."""
        name = accumulator.name
        if not any(f.into == name and self._sums_vectors(f) for f in self.functions):
            super().begin(accumulator)
            return
        for first, size in self._pieces():
            self.writer.line(
                f"{name}_{first} = vectors.spread_{size}({accumulator.identity})"
            )

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` contributes."""
        if not self._sums_vectors(function):
            super().contribute(function)
            return
        call = self.call_collective(self.printed[function.name])
        self.writer.line(f"contributed = {call}")
        for place, (first, _) in enumerate(self._pieces()):
            self.writer.line(f"{function.into}_{first} += contributed[{place}]")

    def settle(self, function: Analysed) -> None:
        """Leave the sums where the functions behind read them."""
        if not self._sums_vectors(function):
            super().settle(function)
            return
        for first, size in self._pieces():
            name = str(function.into)
            self.writer.line(f"vectors.store_{size}({name}, {first}, {name}_{first})")

    def _pieces(self) -> list[tuple[int, int]]:
        return pieces(self.phase.width, self.context.real)

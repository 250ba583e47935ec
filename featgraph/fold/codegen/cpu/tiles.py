"""Prints matrices that are sums of outer products, for the CPU target.

Rows are put aside until there is a batch of them. Then all of the batch is added to one
tile of the matrix after the other, each held in registers meanwhile.
"""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import is_only_solved
from featgraph.fold.analysis.outer_products import RankOne
from featgraph.fold.codegen.functions.vectorized import pieces
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.owner import OwnerBody
from featgraph.fold.lowering.homes import padded

__all__ = ["TiledBody"]

#: Rows of a batch. Of 32 rows, 64 features are 8 KB: they stay in the first cache.
_BATCH = 32


class TiledBody(OwnerBody):
    """Sums outer products in tiles; everything else as `OwnerBody`.

    Features are passed as numbers that are not literals: Numba would compile the callee
    anew for each literal.
    """

    def feature_argument(self, f: str) -> str:
        """Return what stands for feature `f` in a call."""
        return f"f_{f}" if f.isdigit() else f

    def panels(self, accumulator: Accumulator) -> None:
        """Allocate the matrix and the rows that wait for it."""
        real, name, line = self.context.real, accumulator.name, self.writer.line
        k = padded(self.phase.width, real)
        line(f"tile_like = np.empty(0, np.{real})")
        line(f"{name} = tiles.zeros({k}, {k}, tile_like)")
        line(f"{self._tile(name, 'columns')} = tiles.zeros({_BATCH}, {k}, tile_like)")
        if not self._shared(name):
            line(f"{self._tile(name, 'rows')} = tiles.zeros({_BATCH}, {k}, tile_like)")

    def _tile(self, name: str, what: str) -> str:
        """Return the name of what belongs to a matrix; no user can have given it."""
        return f"tile_{what}_{self.phase.tiles.index(name)}"

    def _summing(self, name: str) -> Analysed:
        return next(f for f in self.functions if f.into == name)

    def _shared(self, name: str) -> bool:
        """Whether rows and columns are the same numbers."""
        parts = self._summing(name).rank_one
        return parts is not None and parts.symmetric and parts.scale is None

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity."""
        super().start(accumulator)
        if accumulator.name in self.phase.tiles:
            self.writer.line(f"{self._tile(accumulator.name, 'count')} = 0")

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        parts, name, line = function.rank_one, str(function.into), self.writer.line
        if name not in self.phase.tiles or parts is None:
            super().contribute(function)
            return
        printed, count = self.printed[function.name], self._tile(name, "count")
        others = [r for r in function.declared.roles if r not in {"i", "f"}]
        others += [self.temporary(name, 0) for name in printed.temporaries]
        scale = ""
        if parts.scale is not None:
            scale = self._tile(name, "scale")
            line(f"{scale} = {printed.name}_scale({', '.join(others)})")
        if printed.vectors:
            self._put_vectors_aside(function, others, scale)
        else:
            self._put_aside(function, parts, others, scale)
        line(f"{count} += 1")
        with self.writer.block(f"if {count} == {_BATCH}:"):
            self._add(function)
            line(f"{count} = 0")

    def _put_aside(
        self, function: Analysed, parts: RankOne, others: list[str], scale: str
    ) -> None:
        """Print the row and the column of one product, feature by feature."""
        name, called = str(function.into), self.printed[function.name].name
        count = self._tile(name, "count")
        with self.writer.block(f"for f in range({self.phase.width}):"):
            column = f"{self._tile(name, 'columns')}[{count}, f]"
            self.writer.line(f"{column} = {called}_column({', '.join(['f', *others])})")
            if not self._shared(name):
                row = f"{called}_row({', '.join(['f', *others])})"
                self.writer.line(
                    f"{self._tile(name, 'rows')}[{count}, f] = "
                    f"{f'{scale} * ' if scale else ''}"
                    f"{column if parts.symmetric else row}"
                )

    def _put_vectors_aside(
        self, function: Analysed, others: list[str], scale: str
    ) -> None:
        """Print the same, vector by vector; row and column are the same numbers."""
        name, called = str(function.into), self.printed[function.name].name
        count = self._tile(name, "count")
        split = pieces(self.phase.width, self.context.real)
        self.writer.line(f"column = {called}_column({', '.join(others)})")
        for j, (first, size) in enumerate(split):
            place = f"({count}, {first}), "
            self.writer.line(
                f"vectors.store_{size}({self._tile(name, 'columns')}, {place}"
                f"column[{j}])"
            )
            if not self._shared(name):
                self.writer.line(
                    f"vectors.store_{size}({self._tile(name, 'rows')}, {place}"
                    f"{f'{scale} * ' if scale else ''}column[{j}])"
                )

    def _add(self, function: Analysed) -> None:
        name, parts = str(function.into), function.rank_one
        columns, count = self._tile(name, "columns"), self._tile(name, "count")
        rows = columns if self._shared(name) else self._tile(name, "rows")
        symmetric = parts is not None and parts.symmetric
        self.writer.line(
            f"tiles.add_products({name}, {rows}, {columns}, {count}, {symmetric})"
        )

    def settle(self, function: Analysed) -> None:
        """Add the rows that are left."""
        if function.into in self.phase.tiles and function.rank_one is not None:
            self._add(function)

    def finish(self, function: Analysed) -> None:
        """Copy one triangle of a symmetric matrix into the other."""
        name, parts = str(function.into), function.rank_one
        if name not in self.phase.tiles or parts is None:
            return
        if parts.symmetric and not (self.loops and self._only_solved(name)):
            self.writer.line(f"tiles.mirror({name}, {self.phase.width})")

    def _only_solved(self, name: str) -> bool:
        """Whether a matrix goes nowhere but into `fg.solve`, positive definite.

        That reads the upper triangle. Copying it down goes across the cache lines: for
        64 features and more it costs as much as the solution.
        """
        statements = [s for f in self.functions for s in f.body]
        return name not in self.phase.stores and is_only_solved(name, statements, True)

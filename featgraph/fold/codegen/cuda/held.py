"""Small matrices that a thread holds in registers while it goes over its edges.

In memory every element would be read and written for each edge. Outer products cost a
load of each row and, where they are symmetric, the lower triangle.
"""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cuda.slots import EdgeSlots
from featgraph.fold.codegen.functions.featurewise import Printed
from featgraph.fold.codegen.functions.vector_access import load_lines
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["HeldBody"]


class HeldBody(EdgeSlots):
    """Names for the elements of `phase.held`; all else as `OwnerBody`."""

    def arguments(self, name: str) -> list[str]:
        """Return what stands for a temporary in the call of a collective function."""
        if name not in self.phase.solved:
            return super().arguments(name)
        k = self.phase.width
        return [f"{name}_{i}_{f}" for i in range(k) for f in range(k)]

    def _summing(self, name: str) -> Analysed:
        return next(f for f in self.functions if f.into == name)

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity."""
        name = accumulator.name
        if name not in self.phase.held:
            super().start(accumulator)
            return
        for i, f in self.computed(self._summing(name)):
            self.writer.line(f"{name}_{i}_{f} = {accumulator.identity}")

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        name = str(function.into)
        if name not in self.phase.held:
            super().contribute(function)
            return
        accumulator, printed = self.accumulators[name], self.printed[function.name]
        if function.rank_one is None:
            for i, f in self.computed(function):
                call = self.call_featurewise(printed, str(f), str(i))
                self._take(accumulator, f"{name}_{i}_{f}", call)
            return
        rows = self._factors(function, printed)
        for i, f in self.computed(function):
            self._take(accumulator, f"{name}_{i}_{f}", f"{rows[i]} * element_{f}")

    def _factors(self, function: Analysed, printed: Printed) -> list[str]:
        """Compute ``element_f``, the columns, and return the scaled rows."""
        parts, k, line = function.rank_one, self.phase.width, self.writer.line
        mapping = self.phase.mapping
        for f in range(k):
            if printed.rows and f % mapping.piece == 0:
                for text in load_lines(printed.rows, f, str(f), k, mapping):
                    line(text)
            loaded = [row.copy(f, mapping) for row in printed.rows]
            line(f"element_{f} = {self._factor(printed, 'column', f, loaded)}")
        if parts is None or (parts.symmetric and parts.scale is None):
            return [f"element_{i}" for i in range(k)]
        rows = [f"element_{i}" for i in range(k)]
        if not parts.symmetric:
            rows = [self._factor(printed, "row", i, []) for i in range(k)]
        if parts.scale is not None:
            line(f"value = {self._factor(printed, 'scale', None, [])}")
            rows = [f"value * {row}" for row in rows]
        for i, row in enumerate(rows):
            line(f"row_{i} = {row}")
        return [f"row_{i}" for i in range(k)]

    def _factor(
        self, printed: Printed, part: str, feature: int | None, loaded: list[str]
    ) -> str:
        args = [] if feature is None else [str(feature)]
        args += [r for r in printed.function.declared.roles if r not in {"f", "i"}]
        args += [
            self.temporary(name, feature or 0 if self.is_wide(name) else 0)
            for name in printed.temporaries
        ]
        return f"{printed.name}_{part}({', '.join([*args, *loaded])})"

    def finish(self, function: Analysed) -> None:
        """Give all elements a value, in memory where somebody indexes them there."""
        name, k = str(function.into), self.phase.width
        if name not in self.phase.held:
            return
        computed = set(self.computed(function))
        for i in range(k):
            for f in range(k):
                own, other = f"{name}_{i}_{f}", f"{name}_{f}_{i}"
                value = own if (i, f) in computed else other
                if name not in self.phase.solved:
                    self.writer.line(f"{name}[{i}, {f}] = {value}")
                elif value != own:
                    self.writer.line(f"{own} = {value}")

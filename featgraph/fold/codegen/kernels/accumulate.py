"""Prints how accumulators start, take contributions, and pass through memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.functions.featurewise import Printed
from featgraph.fold.codegen.functions.vector_access import load_lines
from featgraph.fold.codegen.kernels.accumulators import Accumulator, accumulator_of
from featgraph.fold.codegen.kernels.temporaries import Temporaries
from featgraph.fold.plan.plan import FoldPlan

__all__ = ["AccumulatorBody", "contribution_rows", "indexed_forms"]

_SUMMED = {"gather", "reduce"}


class AccumulatorBody(Temporaries):
    """The accumulators of one phase, for one vertex `v`."""

    def feature_argument(self, f: str) -> str:
        """Return what stands for feature `f` in a call."""
        return f

    def call_featurewise(self, printed: Printed, f: str, row: str = "i") -> str:
        """Return the call of a feature-wise function for `f`, a number or ``"f"``.

        The rows that this feature and those behind it need are loaded first.
        """
        mapping, width, first = self.phase.mapping, self.phase.width, self.feature(f)
        if printed.rows and int(f) % mapping.piece == 0:
            for line in load_lines(printed.rows, int(f), first, width, mapping):
                self.writer.line(line)
        args = [] if printed.function.is_scalar else [self.feature_argument(f)]
        args += [r for r in printed.function.declared.roles if r not in {"f", "i"}]
        if "i" in printed.function.declared.roles:
            args.insert(0, row)
        for name in printed.temporaries:
            if not self.is_wide(name):
                args.append(self.temporary(name, 0))
            elif self.loops:
                args.append(f"{self.temporary(name, 0)}[f]")
            else:
                args.append(self.temporary(name, int(f)))
        args += [row.copy(int(f), mapping) for row in printed.rows]
        return f"{printed.name}({', '.join(args)})"

    def left_in(self, accumulator: Accumulator, stem: str = "contribution") -> str:
        """Return the row in which loops leave contributions: one for each type."""
        several = len({a.type for a in self.rows_left()}) > 1
        return f"{stem}_{accumulator.type}" if several else stem

    def rows_left(self) -> list[Accumulator]:
        """Return what the loops of collective functions leave rows for."""
        return [
            accumulator
            for f in self.functions
            if f.kind in _SUMMED
            and self.loops
            and self.printed[f.name].is_collective
            and not self.printed[f.name].vectors
            and (accumulator := self.accumulators[f.into]).is_wide
        ]

    def call_collective(self, printed: Printed, stem: str = "contribution") -> str:
        """Return the call of a collective function; loops leave a row of `stem`."""
        args = [r for r in printed.function.declared.roles if r not in {"f", "i"}]
        for name in printed.temporaries:
            args += self.arguments(name)
        if printed.arrays:
            if printed.function.kind in _SUMMED and not printed.vectors:
                accumulator = self.accumulators[printed.function.into]
                args.append(self.left_in(accumulator, stem))
                args += ["contribution_source"] * accumulator.is_arg
            kinds = {"rows": "real", "flags": "int64"}
            args += [name for name, kind in kinds.items() if printed.arrays[kind]]
        args += printed.areas_and_matrices
        return f"{printed.name}({', '.join(args)})"

    @contextmanager
    def _elements(self) -> Iterator[None]:
        """Print the loops over the elements of a matrix."""
        k, block = self.phase.width, self.writer.block
        with block(f"for i in range({k}):"), block(f"for f in range({k}):"):
            yield

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity."""
        writer = self.writer
        if accumulator.is_matrix:
            with self._elements():
                writer.line(f"{accumulator.name}[i, f] = {accumulator.identity}")
        elif accumulator.is_wide and self.loops:
            with writer.block(f"for f in range({self.phase.width}):"):
                for line in accumulator.start(f"{accumulator.name}[f]"):
                    writer.line(line)
        else:
            for j in range(self.copies if accumulator.is_wide else 1):
                for line in accumulator.start(self.held(accumulator, j)):
                    writer.line(line)

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        accumulator, printed = (
            self.accumulators[function.into],
            self.printed[function.name],
        )
        writer, k = self.writer, self.phase.width
        if accumulator.is_matrix:
            with self._elements():
                self._take(
                    accumulator,
                    f"{accumulator.name}[i, f]",
                    self.call_featurewise(printed, "f"),
                )
        elif printed.is_collective:
            self._contribute_collective(accumulator, printed)
        elif not accumulator.is_wide:
            self._take(
                accumulator, accumulator.name, self.call_featurewise(printed, "0")
            )
        elif self.loops:
            with writer.block(f"for f in range({k}):"):
                self._take(
                    accumulator,
                    f"{accumulator.name}[f]",
                    self.call_featurewise(printed, "f"),
                )
        else:
            for j in range(self.copies):
                self._take(
                    accumulator,
                    self.held(accumulator, j),
                    self.call_featurewise(printed, str(j)),
                )

    def _contribute_collective(
        self, accumulator: Accumulator, printed: Printed
    ) -> None:
        writer, call = self.writer, self.call_collective(printed)
        if self.loops and accumulator.is_wide:
            writer.line(call)
            with writer.block(f"for f in range({self.phase.width}):"):
                self._take(
                    accumulator,
                    f"{accumulator.name}[f]",
                    self._contribution_row(accumulator),
                )
            return
        count = self.copies if accumulator.is_wide else 1
        names = [f"contribution_{j}" for j in range(count)]
        writer.line(f"{', '.join(names)} = {call}")
        for j, name in enumerate(names):
            self._take(accumulator, self.held(accumulator, j), name)

    def _contribution_row(self, accumulator: Accumulator) -> str:
        row = f"{self.left_in(accumulator)}[f]"
        return f"{row}, contribution_source[f]" if accumulator.is_arg else row

    def _take(self, accumulator: Accumulator, name: str, value: str) -> None:
        for line in accumulator.take(name, value, self.library):
            self.writer.line(line)

    def load_temporaries(self) -> None:
        """Bring what the phase reads, and earlier ones have gathered, from memory."""
        for name in self.phase.loads:
            self._load(self.accumulators[name])
        for name in self.read_entries():
            if not self.is_filled_here(name):
                entry = self.entries[name]
                place = self.index("v", str(entry.feature))
                text = self.context.indexed[entry.of].format(place)
                self.writer.line(f"{name} = {text}")

    def _load(self, accumulator: Accumulator) -> None:
        packed = was_packed(accumulator, self.plan)
        if accumulator.is_matrix:
            self.writer.line(
                f"{accumulator.name} = d.{accumulator.name}[{self.index('v')}]"
            )
        elif accumulator.is_wide and self.loops:
            with self.writer.block(f"for f in range({self.phase.width}):"):
                name = f"{accumulator.name}[f]"
                for line in accumulator.load(
                    name, self.index("v", "f"), packed, self.library
                ):
                    self.writer.line(line)
        else:
            for j in range(self.copies if accumulator.is_wide else 1):
                index = self.index(
                    "v", *([self.feature(str(j))] if accumulator.is_wide else [])
                )
                for line in accumulator.load(
                    self.held(accumulator, j), index, packed, self.library
                ):
                    self.writer.line(line)

    def _store(self, accumulator: Accumulator) -> None:
        if accumulator.is_matrix:
            with self._elements():
                index = self.index("v", "i", "f")
                self.writer.line(
                    f"d.{accumulator.name}[{index}] = {accumulator.name}[i, f]"
                )
        elif accumulator.is_wide and self.loops:
            with self.writer.block(f"for f in range({self.phase.width}):"):
                name = f"{accumulator.name}[f]"
                for line in accumulator.store(name, self.index("v", "f")):
                    self.writer.line(line)
        else:
            for j in range(self.copies if accumulator.is_wide else 1):
                index = self.index(
                    "v", *([self.feature(str(j))] if accumulator.is_wide else [])
                )
                for line in accumulator.store(self.held(accumulator, j), index):
                    self.writer.line(line)


def contribution_rows(body: AccumulatorBody) -> dict[str, str]:
    """Return the rows in which loops leave contributions: name -> dtype."""
    rows: dict[str, str] = {}
    for each in body.rows_left():
        dtype = body.context.real if each.type == "real" else each.type
        rows[body.left_in(each)] = dtype
        if each.name in body.phase.keeps:
            rows[body.left_in(each, "contribution_seen")] = dtype
        if each.is_arg:
            rows["contribution_source"] = "int32"
    return rows


def indexed_forms(plan: FoldPlan) -> dict[str, str]:
    """Return how entries of each temporary, and its sources, are read from memory."""
    library = "warp" if plan.target == "cuda" else "cpu"
    forms: dict[str, str] = {}
    for function in plan.analysis.functions:
        if function.kind == "gather":
            accumulator = accumulator_of(function, plan.analysis)
            forms |= accumulator.forms(was_packed(accumulator, plan), library)
    return forms


def was_packed(accumulator: Accumulator, plan: FoldPlan) -> bool:
    """Return whether a push has left key and source in one word."""
    return accumulator.is_arg and any(
        p.kind == "push" and plan.functions_of(p)[0].into == accumulator.name
        for p in plan.phases
    )

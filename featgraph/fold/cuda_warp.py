"""The body of a CUDA kernel in which lanes share a vertex or an edge.

`lanes` of them share its features, the others take further edges. Shuffles and votes
take the whole warp. So no lane leaves early: lanes without work go along on a valid
vertex and edge, and `alive`, `writer` and `inside_edge` keep what they compute out of
every result.
"""

from __future__ import annotations

from featgraph.fold.accumulators import Accumulator
from featgraph.fold.analyse import Analysed
from featgraph.fold.cuda_gathers import WarpGathers

__all__ = ["WarpBody"]


class WarpBody(WarpGathers):
    """Prints the stages of one phase for a vertex or edge that lanes share."""

    def vertex(self) -> None:
        """Print all stages for `v` where `is_due`; its verdict is left in ``alive``."""
        writer = self.writer
        for name in self.phase.loads:
            self._load(self.accumulators[name])
        writer.line("alive = is_due")
        self._copy_first("alive")
        ran: list[Analysed] = []
        for stage in self._stages():
            if stage[0].kind == "gather":
                if any(f.kind == "vertex" for f in ran):
                    writer.line("stop = stop if alive else start")
                self._order(ran, stage)
                self._gather(stage)
            else:
                self._order(ran, stage)
                self._verdict(stage[0])
            ran += stage
        if self.phase.stores:
            self._under([f"alive{self._and_slot()}"], lambda: self._store_all())

    def _store_all(self) -> None:
        for name in self.phase.stores:
            self._store(self.accumulators[name])

    def _copy_first(self, condition: str) -> None:
        """Copy entries to the next buffer before anything is written there."""
        entity = "e" if self.phase.kind == "edge" else "v"
        if self.phase.copies:
            slot = self._and_slot() if entity == "v" else ""
            self._under(
                [f"{condition}{slot}"],
                lambda: self._copy_each(self.phase.copies, entity),
            )
            self._sync()

    def _order(self, ran: list[Analysed], stage: list[Analysed]) -> None:
        """Make what earlier functions wrote visible to the lanes that read it."""
        wrote = {
            (a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"
        }
        if wrote & {(a.name, a.version) for f in stage for a in f.accesses}:
            self._sync()

    def _verdict(self, function: Analysed) -> None:
        """Run a vertex function; ``alive`` is its or over the features."""
        printed, line = self.printed[function.name], self.writer.line
        line(f"# {function.kind} function {function.declared.name}")
        if function.kind == "edge":
            self._moved(printed, "alive")
            self._vote("moved", self.lanes)
            return
        line(f"writer = alive{self._and_slot()}")
        self._moved(printed, "writer")
        if self.threads:
            line("alive = cuda.syncthreads_or(int32(moved)) != 0")
        else:
            self._vote("moved", self.span)

    def restore(self, entity: str, condition: str) -> None:
        """Put entries of the next buffer back where the verdict is False."""
        if self.phase.restores:
            self._sync()
            slot = self._and_slot() if entity == "v" else ""
            with self.writer.block(f"if {condition} and not alive{slot}:"):
                self._copy_each(self.phase.restores, entity)

    # -- memory

    def _store(self, accumulator: Accumulator) -> None:
        name = accumulator.name
        if accumulator.is_matrix:
            place = self.index("v", "i")
            self._columns(
                lambda f: self.writer.line(
                    f"d.{name}[{place}, {f}] = {name}[uint32(i), {f}]"
                )
            )
            return
        for j in range(self._count(accumulator)):
            index = self.index(
                "v", *([self.feature(str(j))] if accumulator.is_wide else [])
            )
            lines = accumulator.store(self.held(accumulator, j), index)
            test = (
                self.inside(j)
                if accumulator.is_wide
                else ("lane == 0" if self.lanes > 1 else "")
            )
            self._under([test], lambda lines=lines: self._lines(lines))

    def _copy_each(self, names: tuple[str, ...], entity: str) -> None:
        """Copy entries with the lanes side by side, whatever their width is."""
        writer = self.writer
        for name in names:
            shape = self.plan.analysis.signature[name].item_shape
            parts = ["i", "j"] if len(shape) == 2 else ["j"][: len(shape)]
            index = self.index(entity, *parts)
            depth = writer.depth
            if not shape and self.lanes > 1:
                writer.line("if lane == 0:")
                writer.depth += 1
            for letter, size in zip(parts, shape, strict=True):
                strided = letter == "j" and self.lanes > 1
                bounds = f"lane, {size}, {self.lanes}" if strided else size
                writer.line(f"for {letter} in range({bounds}):")
                writer.depth += 1
            writer.line(f"d.{name}_next[{index}] = d.{name}[{index}]")
            writer.depth = depth

    # -- pushed gathers and edges

    def push(self) -> None:
        """Combine what edge `e` contributes into memory at its target `v`."""
        function = self.functions[0]
        accumulator, printed = (
            self.accumulators[function.into],
            self.printed[function.name],
        )
        array = f"d.{accumulator.name}{'_packed' if accumulator.is_arg else ''}"
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    index = self.index("v", "i", self.feature(str(j)))
                    call = self.call_copy(printed, j)
                    self._under(
                        [self.inside(j)],
                        lambda i=index, c=call: self._atomic(accumulator, array, i, c),
                    )
            return
        for j in range(self._count(accumulator)):
            predicated = self.is_predicated(printed)
            value = (
                self.contribution(function, j)
                if predicated
                else self.call_copy(printed, j)
            )
            index = self.index(
                "v", *([self.feature(str(j))] if accumulator.is_wide else [])
            )
            test = (
                self.inside(j)
                if accumulator.is_wide
                else ("lane == 0" if self.lanes > 1 else "")
            )
            self._under(
                [test], lambda i=index, v=value: self._atomic(accumulator, array, i, v)
            )

    def load_temporaries(self) -> None:
        """Bring what a pushed gather reads at its target back from memory."""
        for name in self.phase.loads:
            self._load(self.accumulators[name])

    def edge(self) -> None:
        """Print the functions for `e` where `inside_edge`; the verdict is ``alive``."""
        self._copy_edge()
        self.writer.line("alive = inside_edge")
        ran: list[Analysed] = []
        for function in self.functions:
            self._order(ran, [function])
            self._verdict(function)
            ran.append(function)

    def _copy_edge(self) -> None:
        if self.phase.copies:
            with self.writer.block("if inside_edge:"):
                self._copy_each(self.phase.copies, "e")
            self._sync()

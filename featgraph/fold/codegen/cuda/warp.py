"""The body of a CUDA kernel in which lanes share a vertex or an edge.

`lanes` of them share its features, the others take further edges. Shuffles and votes
take the whole warp. So no lane leaves early: lanes without work go along on a valid
vertex and edge, and `alive`, `writer` and `inside_edge` keep what they compute out of
every result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.announced_targets import tells_targets
from featgraph.fold.codegen.cuda.forward import WarpForward, all_lanes_agree
from featgraph.fold.codegen.functions.vector_access import (
    copied,
    copy_line,
    is_piecewise,
)
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["WarpBody"]


class WarpBody(WarpForward):
    """Prints the stages of one phase for a vertex or edge that lanes share."""

    def vertex(self) -> None:
        """Print all stages for a swept vertex; its verdict is left in ``alive``."""
        writer = self.writer
        self.load_temporaries()
        writer.line("alive = is_swept" if self.phase.pulls_edges else "alive = is_due")
        self._copy_first("alive")
        ran: list[Analysed] = []
        for place, stage in enumerate(self._stages()):
            if self.phase.pulls_edges and place == 0:
                self._gather(stage, pulled=True)
                self.share_entries(stage)
                self._find_due()
                ran += [f for f in self.functions if f.kind == "edge"]
            elif stage[0].kind == "gather":
                if any(f.kind != "gather" for f in ran):
                    writer.line("stop = stop if alive else start")
                self._order(ran, stage)
                self._gather(stage)
                self.share_entries(stage)
            else:
                self._order(ran, stage)
                self._verdict(stage[0])
            ran += stage
        if self.phase.stores:
            self._under([f"alive{self._and_slot()}"], lambda: self._store_all())
        self.commit()

    def _find_due(self) -> None:
        """Behind pulled edges: who is due, and whom nobody knew to be before."""
        line = self.writer.line
        if self.threads:
            line("edge_passed = cuda.syncthreads_or(int32(edge_passed)) != 0")
        elif self.slots > 1:
            line(f"edge_passed = warp.group_any(edge_passed, {self.span})")
        line("is_due = warp.test_bit(due, v)")
        told = tells_targets(self.plan.analysis.functions)
        new = "edge_passed" if told else "edge_passed and not is_due"
        tests = [new, self._and_slot().removeprefix(" and ")]
        only = "lane == 0" if self.lanes > 1 else ""
        self._under([*tests, only], lambda: line("warp.set_bit(targets, v)"))
        allowed = "(edge_passed and warp.test_bit(allowed, v))"
        line(f"alive = is_swept and (is_due or {allowed})")

    def _store_all(self) -> None:
        for name in self.phase.stores:
            self._store(self.accumulators[name])

    def _copy_first(self, condition: str) -> None:
        """Copy entries to the next buffer before anything is written there."""
        names = self.entries_of(self.phase.copies, "v")
        if names:
            self._under(
                [f"{condition}{self._and_slot()}"], lambda: self._copy_each(names, "v")
            )
            self._sync()

    def _verdict(self, function: Analysed) -> None:
        """Run a vertex function; ``alive`` is its or over the features."""
        printed, line = self.printed[function.name], self.writer.line
        line(f"# {function.kind} function {function.declared.name}")
        if function.kind == "edge":
            self._moved(printed, "alive")
            if self.is_predicated(printed) and all_lanes_agree(function):
                line("alive = moved")
            else:
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
        names = self.entries_of(self.phase.restores, entity)
        if names:
            self._sync()
            slot = self._and_slot() if entity == "v" else ""
            with self.writer.block(f"if {condition} and not alive{slot}:"):
                self._copy_each(names, entity)

    def commit(self) -> None:
        """Commit `v` in the kernel; the lanes have met behind its verdict."""
        names = self.phase.commits
        if names:
            self._sync()
            self._under(
                [f"alive{self._and_slot()}"],
                lambda: self._copy_each(names, "v", commits=True),
            )

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

    def _copy_each(
        self, names: tuple[str, ...], entity: str, *, commits: bool = False
    ) -> None:
        """Copy entries with the lanes side by side, whatever their width is."""
        writer = self.writer
        for name in names:
            shape = self.plan.analysis.signature[name].item_shape
            parts = ["i", "j"] if len(shape) == 2 else ["j"][: len(shape)]
            index = self.index(entity, *parts)
            depth = writer.depth
            piece = self.phase.mapping.piece
            if shape and is_piecewise(self.plan.analysis, name, shape[0], piece):
                self._copy_pieces(name, entity, shape[0], commits)
                continue
            if not shape and self.lanes > 1:
                writer.line("if lane == 0:")
                writer.depth += 1
            for letter, size in zip(parts, shape, strict=True):
                if letter == "j" and self.lanes > 1:
                    break
                writer.line(f"for {letter} in range({size}):")
                writer.depth += 1
            to, from_ = copied(name, commits)
            text = f"{to}[{index}] = {from_}[{index}]"
            if shape and self.lanes > 1:
                with self._strided("lane", shape[-1], self.lanes):
                    writer.line(text)
            else:
                writer.line(text)
            writer.depth = depth

    def _copy_pieces(self, name: str, entity: str, width: int, commits: bool) -> None:
        piece = self.phase.mapping.piece
        first = f"lane * {piece}" if self.lanes > 1 else "0"
        place = f"{self.index(entity)}, {self.index('j')}, {width}, {piece}"
        with self._strided(first, width, self.lanes * piece):
            self.writer.line(copy_line(name, place, commits))

    @contextmanager
    def _strided(self, first: str, stop: int, step: int) -> Iterator[None]:
        """Print a loop over `j`; none where a lane goes through it once.

        The compiler unrolls loops of which it does not know that.
        """
        line, depth = self.writer.line, self.writer.depth
        if step < stop:
            line(f"for j in range({first}, {stop}, {step}):")
            self.writer.depth += 1
        else:
            line(f"j = {first}")
            if step > stop:
                line(f"if j < {stop}:")
                self.writer.depth += 1
        yield
        self.writer.depth = depth

    # -- edges

    def edge(self, mask: str = "runs_edge") -> None:
        """Print the edge functions for `e` where `mask`; the verdict is ``alive``."""
        names = self.entries_of(self.phase.copies, "e")
        if names:
            with self.writer.block(f"if {mask}:"):
                self._copy_each(names, "e")
            self._sync()
        self.writer.line(f"alive = {mask}")
        ran: list[Analysed] = []
        for function in self.functions:
            if function.kind == "edge":
                self._order(ran, [function])
                self._verdict(function)
                ran.append(function)

    def _pull_edge(self) -> None:
        """Run the edge functions on edge `e` where ``runs_edge``."""
        if self.context.forwarded:
            self.forward_edge()
            return
        self.edge()
        self.writer.line("edge_passed = edge_passed or alive")
        self.restore("e", "runs_edge")

"""Prints the gathers of a CUDA kernel in which lanes share a vertex.

Edges go over slots; what each slot has accumulated is combined behind the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cuda.columns import WarpColumns
from featgraph.fold.codegen.cuda.combine import (
    WARP,
    combines_four,
    print_block_combine,
    print_four_combine,
    print_span_combine,
)
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["WarpGathers"]


class WarpGathers(WarpColumns):
    """Accumulators in registers; every slot takes edges of its own."""

    @contextmanager
    def edges(self, stop: str = "stop", may_stop: bool = False) -> Iterator[None]:
        """Print a loop over the edges of a vertex; every lane goes its own way.

        A weighted sum over K = 8 took 48 registers with ``range``, 36 with a while loop
        whose counter is as narrow as the offsets (sm_90).
        """
        writer = self.writer
        start, stop = self.bounds or ("start", stop)
        first_own = self.narrow(f"{start} + slot") if self.slots > 1 else start
        writer.line(f"position = {first_own}")
        unroll = self.phase.mapping.unroll if self.phase.kind == "vertex" else 1
        if may_stop:  # out of one loop, not into the next
            unroll = 1
        with writer.block(f"while position < {stop}:"):
            first = len(writer.lines)
            yield
            writer.line(f"position = {self.narrow(f'position + {self.slots}')}")
        if unroll > 1:
            self._unroll(first, unroll, stop)

    def _unroll(self, first: int, times: int, stop: str) -> None:
        """Print a loop over whole rounds of edges before the one at line `first` - 1.

        Their loads do not wait for each other; the loop behind takes what is left.
        """
        lines, depth = self.writer.lines, self.writer.depth
        body = lines[first:]
        whole = [
            f"whole = {self.narrow(f'{stop} - {(times - 1) * self.slots}')}",
            "while position < whole:",
        ]
        lines[first - 1 : first - 1] = [
            *("    " * depth + text for text in whole),
            *(body * times),
        ]

    def _gather_all(self, stage: list[Analysed], pulled: bool) -> None:
        writer = self.writer
        if pulled:
            writer.line("edge_passed = False")
        filled = [self.accumulators[f.into] for f in stage]
        matrices = [a for a in filled if a.is_matrix]
        held = self.phase.mapping.column_piece > 0
        if matrices and not held:
            writer.line("warp.sync()")
        for function in stage:
            self.announce(function)
            self.start(self.accumulators[function.into])
        self.gather_edges(stage, pulled=pulled)
        if matrices and held:
            writer.line("warp.sync()")
            for accumulator in matrices:
                self.leave_columns(accumulator)
        if matrices:
            writer.line("warp.sync()")

    def gather_edges(
        self, stage: list[Analysed], stop: str = "stop", *, pulled: bool = False
    ) -> None:
        """Combine what the edges up to `stop` contribute."""
        if self._meets(stage) or (pulled and self.lanes > 1):
            with self.rounds_in_blocks(stage):
                self.rounds(lambda: self._contribute_masked(stage, pulled), stop)
        else:
            self.row_end = stop
            with (
                self.row_in_blocks(stage, self.start),
                self.edges(stop, self.may_stop(stage)),
            ):
                self.slot_end("u", "position")
                if pulled:
                    self.slot_edge("position")
                    self._pull_free()
                self.contribute_all(stage, "" if pulled else "position")
        for function in stage:
            self.combine_slots(self.accumulators[function.into])

    def _meets(self, stage: list[Analysed]) -> bool:
        """Whether the lanes of a warp must go through their edges together."""
        return any(self.is_predicated(self.printed[f.name]) for f in stage)

    def _order(self, ran: list[Analysed], stage: list[Analysed]) -> None:
        """Make what earlier functions wrote visible to the lanes that read it."""
        wrote = {
            (a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"
        }
        wrote -= {(name, "next") for name in self.context.forwarded}
        if wrote & {(a.name, a.version) for f in stage for a in f.accesses}:
            self._sync()

    def _pull_free(self) -> None:
        """Run the edge functions on edge `e`; no lane waits for another."""
        self.writer.line(f"runs_edge = {self.is_source()}")
        if self.context.forwarded:
            self.load_forwarded()
        with self.of_edges():
            self._pull_edge()
        self.store_forwarded()

    def _pull_masked(self, stage: list[Analysed]) -> None:
        """Run the edge functions where all lanes go along, if any of the warp has to.

        The gathers of `stage` follow on the same edges.
        """
        self.writer.line(f"runs_edge = inside_edge and ({self.is_source()})")
        pulled = [f for f in self.functions if f.kind == "edge"]
        if self.context.forwarded:
            self.load_forwarded()
        any_runs = f"warp.group_any(runs_edge, {WARP})"
        with self.writer.block(f"if {any_runs}:"), self.of_edges():
            self._pull_edge()
            self._order(pulled, stage)
        if self.context.forwarded:
            self._under(["inside_edge"], self.store_forwarded)

    def _contribute_masked(self, stage: list[Analysed], pulled: bool) -> None:
        """Every lane calls what makes shuffles; only lanes inside take the result."""
        if pulled:
            self._pull_masked(stage)
        if self.takes_active(stage):
            test = self.is_active_source()
            self.writer.line(f"inside_edge = inside_edge and {test}")
        for function in stage:
            printed = self.printed[function.name]
            if self.is_predicated(printed):
                self.call_contribution(printed, "inside_edge")
        with self.writer.block("if inside_edge:"):
            for function in stage:
                if self.is_predicated(self.printed[function.name]):
                    self.take_contribution(function)
                else:
                    self.contribute(function)

    def take_contribution(self, function: Analysed) -> None:
        """Combine what `call_contribution` brought."""
        accumulator = self.accumulators[function.into]
        for j in range(self._count(accumulator)):
            name = self.held(accumulator, j)
            self._take(accumulator, name, self.contribution(function, j))

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity; each lane its own columns of a matrix."""
        if not accumulator.is_matrix:
            super().start(accumulator)
            return
        name = accumulator.name
        if self.phase.mapping.column_piece:
            for element in self.elements(accumulator):
                self.writer.line(f"{element} = {accumulator.identity}")
            return
        self._columns(
            lambda f: self.writer.line(
                f"{name}[uint32(i), {f}] = {accumulator.identity}"
            )
        )

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        accumulator, printed = (
            self.accumulators[function.into],
            self.printed[function.name],
        )
        if accumulator.is_matrix and self.phase.mapping.column_piece:
            for j in range(self.copies):
                self.contribute_column(accumulator, printed, j)
            return
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    column = self.index(self.feature(str(j)))
                    element = f"{accumulator.name}[uint32(i), {column}]"
                    call = self.call_copy(printed, j)
                    self._under(
                        [self.inside(j)],
                        lambda e=element, c=call: self._take(accumulator, e, c),
                    )
            return
        if self.owns_all(printed):
            self._contribute_collective(accumulator, printed)
            return
        for j in range(self._count(accumulator)):
            self._take(
                accumulator, self.held(accumulator, j), self.call_copy(printed, j)
            )

    def combine_slots(self, accumulator: Accumulator) -> None:
        """Combine what the edge slots of a vertex have; every lane gets the result."""
        in_memory = accumulator.is_matrix and not self.phase.mapping.column_piece
        if in_memory or self.slots == 1:
            return
        names = [self.held(accumulator, j) for j in range(self._count(accumulator))]
        if accumulator.is_matrix:
            names = self.elements(accumulator)
        if not self.threads and combines_four(accumulator, len(names), self.slots):
            print_four_combine(self.writer, accumulator, names, self.lanes, self.span)
            return
        for name in names:
            if self.threads:
                print_block_combine(
                    self.writer,
                    accumulator,
                    name,
                    self.lanes,
                    self.threads,
                    self.context.real,
                )
            else:
                print_span_combine(
                    self.writer, accumulator, name, self.lanes, self.span
                )

    def rounds(self, body, stop: str = "stop") -> None:  # type: ignore[no-untyped-def]
        """Print a loop over the edges of a vertex in which the warp stays together."""
        writer = self.writer
        edges = f"{stop} - start"
        if self.slots > 1:
            shift = self.slots.bit_length() - 1
            edges = f"({stop} - start + {self.slots - 1}) >> {shift}"
        rounds = edges if self.threads else f"warp.group_max(int32({edges}), 32)"
        writer.line(f"rounds = {rounds}")
        with writer.block("for step in range(rounds):"):
            self.next_block()
            step = f"step * {self.slots} + {self.slot}" if self.slots > 1 else "step"
            writer.line(f"position = {self.narrow(f'start + {step}')}")
            writer.line(f"inside_edge = position < {stop}")
            writer.line(f"position = max(min(position, {stop} - 1), 0)")
            self.slot_end("u", "position")
            self.slot_edge("position")
            body()

"""Names, calls and masks of a CUDA kernel in which lanes share a vertex or an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathered_values import base_name
from featgraph.fold.codegen.cuda.forwarded import ForwardedEntries
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.plan.plan import FoldPlan, Phase

__all__ = ["WarpNames"]


class WarpNames(ForwardedEntries):
    """Which lane has which features, and under what condition it acts.

    Parameters
    ----------
    edge_id : str
        As for `OwnerBody`.
    threads : int
        Threads of the block that shares a hub; 0 where a span of lanes shares a vertex.
    """

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        phase: Phase,
        printed: dict[str, Printed],
        edge_id: str,
        threads: int = 0,
    ) -> None:
        super().__init__(context, plan, phase, printed, "warp", edge_id)
        mapping = phase.mapping
        self.copies = mapping.copies
        self.lanes = mapping.lanes
        self.threads = threads
        self.slots = threads // mapping.lanes if threads else mapping.slots
        self.span = mapping.span
        self.padded = mapping.is_padded(phase.width)
        self.slot = "slot" if self.slots > 1 else "0"
        #: Whether what is printed runs on an edge: its lanes are all who share it.
        self.at_edge = False
        self.rename: Callable[[str], str] | None = None
        #: Where the edges of the vertex end, or those that are gone through.
        self.row_end = "stop"

    @property
    def block(self) -> int:
        """Terms that are added up one after the other; 0 for all.

        Rows that are left to a span of lanes are no longer than a few blocks.
        """
        left_to_span = self.phase.mapping.hubs and not self.threads
        return 0 if left_to_span else super().block

    def block_places(self) -> int:
        """Return how many edges of a row a block of it has: as many of each slot."""
        return self.block * self.slots

    def row_bounds(self) -> tuple[str, str]:
        """Return where the edges begin that the slots take in turn, and end."""
        return "start", self.row_end

    def waits_in_area(self, accumulator: Accumulator) -> bool:
        """Whether a matrix waits in global memory: lanes have columns of their own."""
        return False

    def width_of(self, accumulator: Accumulator) -> int:
        """Return the elements of an accumulator that one lane has."""
        if accumulator.is_matrix:
            return self.phase.width * self.copies
        return super().width_of(accumulator)

    def entry(self, name: str) -> str:
        """Return the text of an entry at a constant feature, the same for all."""
        return name if self.lanes > 1 else super().entry(name)

    def share_entries(self, stage: list[Analysed]) -> None:
        """Let all lanes of a vertex have the entries at constant features.

        One lane has gathered each; all lanes are here.
        """
        filled = {f.into for f in stage}
        for name in self.read_entries():
            entry = self.entries[name]
            base = base_name(entry.of, self.plan.analysis.temporaries)
            if self.lanes == 1 or base not in filled:
                continue
            lane, copy = divmod(entry.feature, self.copies)
            held = self.temporary(entry.of, copy)
            if self.accumulators[str(base)].type == "bool":
                text = f"warp.broadcast(int32({held}), {lane}, {self.lanes}) != 0"
            else:
                text = f"warp.broadcast({held}, {lane}, {self.lanes})"
            self.writer.line(f"{name} = {text}")

    @contextmanager
    def renamed(self, rename: Callable[[str], str]) -> Iterator[None]:
        """Let accumulators have other names."""
        self.rename = rename
        yield
        self.rename = None

    def held(self, accumulator: Accumulator, j: int) -> str:
        """Return the name of copy j of an accumulator (of its only one)."""
        name = super().held(accumulator, j)
        return name if self.rename is None else self.rename(name)

    def feature(self, f: str) -> str:
        """Return the text of the feature of copy `f`."""
        if self.lanes == 1:
            return f
        return "f" if self.copies == 1 else f"f_{f}"

    def feature_argument(self, f: str) -> str:
        """Return what stands for feature `f` in a call."""
        return self.feature(f)

    def inside(self, j: int) -> str:
        """Return the test that copy j is a feature; "" where all are."""
        if not self.padded:
            return ""
        return "inside" if self.copies == 1 else f"inside_{j}"

    def is_predicated(self, printed: Printed) -> bool:
        """Whether a function makes shuffles."""
        return printed.is_collective and self.lanes > 1

    def call_predicated(self, printed: Printed, writer: str) -> str:
        """Return the call of a function that makes shuffles; all lanes make it."""
        args = [r for r in printed.function.declared.roles if r not in {"f", "i"}]
        args += ["lane", writer]
        for name in printed.temporaries:
            args += [
                self.temporary(name, j)
                for j in range(self.copies if self.is_wide(name) else 1)
            ]
        args += printed.areas_and_matrices
        return f"{printed.name}({', '.join(args)})"

    def owns_all(self, printed: Printed) -> bool:
        """Whether one call stands for all features of a vertex, and gives them all."""
        whole = printed.is_collective and not printed.function.is_scalar
        return whole and self.lanes == 1 and self.copies > 1

    def call_copy(self, printed: Printed, j: int) -> str:
        """Return the call of a function without shuffles for copy j."""
        if printed.is_collective:  # of one feature
            return self.call_collective(printed)
        return self.call_featurewise(printed, str(j))

    def narrow(self, text: str) -> str:
        """Return a place among the edges in the type of the offsets.

        Left alone, Numba computes in int64.
        """
        return text if self.plan.traits.wide_offsets else f"int32({text})"

    @contextmanager
    def of_edges(self) -> Iterator[None]:
        """Print what runs on an edge inside the phase of a vertex."""
        self.at_edge = True
        yield
        self.at_edge = False

    def _and_slot(self) -> str:
        return " and slot == 0" if self.slots > 1 else ""

    def _sync(self) -> None:
        """Let the lanes that share a vertex or an edge see what each has written."""
        if self.at_edge:
            if self.lanes > 1:
                self.writer.line("warp.sync()")
        elif self.threads:
            self.writer.line("cuda.syncthreads()")
        elif self.span > 1:
            self.writer.line("warp.sync()")

    def _under(self, tests: list[str], body) -> None:  # type: ignore[no-untyped-def]
        """Print `body` under the conjunction of what is not empty of `tests`."""
        condition = " and ".join(t for t in tests if t)
        if condition:
            with self.writer.block(f"if {condition}:"):
                body()
        else:
            body()

    def _vote(self, flag: str, lanes: int) -> None:
        text = f"warp.group_any({flag}, {lanes})" if lanes > 1 else flag
        self.writer.line(f"alive = {text}")

    def _moved(self, printed: Printed, writer: str) -> None:
        """Set ``moved`` to the verdict of this lane's features."""
        line = self.writer.line
        if self.is_predicated(printed):
            line(f"moved = {self.call_predicated(printed, writer)}")
            line(f"moved = moved and {writer}")
            return
        line("moved = False")
        if printed.function.is_scalar or printed.is_collective:
            only = "lane == 0" if self.lanes > 1 else ""
            self._under(
                [writer, only], lambda: line(f"moved = {self.call_copy(printed, 0)}")
            )
        elif self.padded and self.copies > 1:
            for j in range(self.copies):
                call = self.call_copy(printed, j)
                self._under(
                    [writer, self.inside(j)], lambda call=call: line(f"moved |= {call}")
                )
        else:
            with self.writer.block(
                f"if {' and '.join(t for t in (writer, self.inside(0)) if t)}:"
            ):
                for j in range(self.copies):
                    line(f"moved {'|=' if j else '='} {self.call_copy(printed, j)}")

    def _count(self, accumulator: Accumulator) -> int:
        return self.copies if accumulator.is_wide else 1

    def contribution(self, function: Analysed, j: int) -> str:
        """Return the name of what copy j of a function with shuffles contributes."""
        return f"new_{self.held(self.accumulators[function.into], j)}"

    def call_contribution(self, printed: Printed, mask: str) -> None:
        """Call a gather or reduce that makes shuffles; all lanes do."""
        count = self._count(self.accumulators[printed.function.into])
        names = [self.contribution(printed.function, j) for j in range(count)]
        call = self.call_predicated(printed, mask)
        self.writer.line(f"{', '.join(names)} = {call}")

    def _columns(self, column) -> None:  # type: ignore[no-untyped-def]
        """Print what is done to each element of a matrix in this lane's columns."""
        with self.writer.block(f"for i in range({self.phase.width}):"):
            for j in range(self.copies):
                text = self.index(self.feature(str(j)))
                self._under([self.inside(j)], lambda text=text: column(text))

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self.writer.line(line)

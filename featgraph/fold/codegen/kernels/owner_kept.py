"""Gathers whose aggregates are kept, where one thread owns a vertex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.change_driven import KeptGather
from featgraph.fold.codegen.functions.featurewise import Printed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.blocks import BlockedRows
from featgraph.fold.codegen.kernels.patches import Patch, change_name

__all__ = ["KeptGathers"]


class KeptGathers(BlockedRows):
    """Patches kept aggregates, or takes them anew from all edges where it must."""

    def kept_of(self, function: Analysed) -> KeptGather | None:
        """Return how the aggregates of a gather are kept; None if they are not."""
        if function.into not in self.phase.keeps:
            return None
        return self.plan.keeping.gathers[str(function.into)]

    def patch_of(self, accumulator: Accumulator) -> Patch:
        """Return how an accumulator is patched."""
        return Patch(accumulator, self.library, self.context.real)

    def patched(self, stage: list[Analysed]) -> list[Analysed]:
        """Return the gathers of a stage that are patched, not constant."""
        kept = [(f, self.kept_of(f)) for f in stage]
        return [f for f, how in kept if how is not None and not how.is_constant]

    def kept_place(self, accumulator: Accumulator, f: str) -> str:
        """Return the text of an entry of the kept array."""
        parts = [self.feature(f)] if accumulator.is_wide else []
        test = " != 0" if accumulator.type == "bool" else ""
        return f"d.{accumulator.name}[{self.index('v', *parts)}]{test}"

    def announce(self, function: Analysed) -> None:
        """Print what a gather does."""
        accumulator = self.accumulators[function.into]
        how = self.kept_of(function)
        kept = "" if how is None else ", kept"
        if how is not None and how.is_constant:
            kept = ", kept: nothing that it reads changes"
        self.writer.line(
            f"# gather {function.declared.name}: {accumulator.combine.name} into "
            f"{accumulator.name}{kept}"
        )

    @contextmanager
    def in_slots(self) -> Iterator[None]:
        """Print the loop over the edges that `v` gathers along."""
        first, last = self.bounds or self.row_bounds()
        with self.writer.block(f"for slot in range({first}, {last}):"):
            self.slot_end("u")
            yield

    def slot_end(self, vertex: str, place: str = "slot") -> None:
        """Print which vertex is at the other end of the edge at a place of the rows.

        That comes first: `slot_edge` may stand behind a test on that vertex.
        """
        at = self.edge_id.format(place)
        self.writer.line(f"{vertex} = {self.phase.rows.ends}[{at}]")

    def slot_edge(self, place: str = "slot") -> None:
        """Print which edge stands at a place of the rows."""
        edge, edges = self.edge_id.format(place), self.phase.rows.edges
        if edges:
            edge = self.edge_id.format(f"{edges}[{edge}]")
        self.writer.line(f"e = {edge}")

    def gather_kept(self, stage: list[Analysed]) -> None:
        """Print the gathers of a stage whose aggregates are kept."""
        writer, patched = self.writer, self.patched(stage)
        for function in stage:
            self.announce(function)
        writer.line(f"is_patched = not {self.library}.test_bit(stale, v)")
        with writer.block("if is_patched:"):
            for function in stage:
                self._begin_patch(function)
            if patched:
                test = f"if {self.library}.test_bit(changed_sources, u):"
                with (
                    self.row_in_blocks(patched, self.start),
                    self.in_slots(),
                    writer.block(test),
                ):
                    self.slot_edge()
                    for function in patched:
                        self._take_patch(function)
            for function in patched:
                self._finish_patch(function)
        with writer.block("if not is_patched:"):
            for function in stage:
                self.start(self.accumulators[function.into])
            with self.row_in_blocks(stage, self.start), self.in_slots():
                self.slot_edge()
                for function in stage:
                    self.contribute(function)
            for function in stage:
                if function not in patched:
                    self._store(self.accumulators[function.into])
        for function in patched:
            self._store(self.accumulators[function.into])

    # -- one gather

    def _each(
        self,
        accumulator: Accumulator,
        body: Callable[[str, str, str, str], list[str]],
    ) -> None:
        """Print ``body(name, change, kept, f)`` for every entry of an accumulator."""
        if accumulator.is_wide and self.loops:
            change = f"{change_name(accumulator.name)}[f]"
            with self.writer.block(f"for f in range({self.phase.width}):"):
                kept = self.kept_place(accumulator, "f")
                for line in body(f"{accumulator.name}[f]", change, kept, "f"):
                    self.writer.line(line)
            return
        for j in range(self.copies if accumulator.is_wide else 1):
            name = self.held(accumulator, j)
            kept = self.kept_place(accumulator, str(j))
            for line in body(name, change_name(name), kept, str(j)):
                self.writer.line(line)

    def _begin_patch(self, function: Analysed) -> None:
        how, accumulator = self.kept_of(function), self.accumulators[function.into]
        patch = self.patch_of(accumulator)
        if how is not None and how.is_constant:
            self._load(accumulator)
        else:
            self._each(
                accumulator,
                lambda name, change, kept, f: patch.start(name, change, kept),
            )

    def _finish_patch(self, function: Analysed) -> None:
        accumulator = self.accumulators[function.into]
        patch = self.patch_of(accumulator)
        if not patch.starts_from_kept:
            self._each(
                accumulator,
                lambda name, change, kept, f: patch.finish(name, change, kept),
            )

    def _take_patch(self, function: Analysed) -> None:
        """Put in what edge `e` contributes, take out what it contributed."""
        accumulator = self.accumulators[function.into]
        new, old = self.printed[function.name], self.printed[self.seen_of(function)]
        patch = self.patch_of(accumulator)
        if not new.is_collective:
            self._each(
                accumulator,
                lambda name, change, kept, f: patch.take(
                    name,
                    change,
                    self.call_featurewise(new, f),
                    self.call_featurewise(old, f),
                ),
            )
            return
        self._call_both(new, old, accumulator)
        self._each(
            accumulator,
            lambda name, change, kept, f: patch.take(
                name,
                change,
                self._part(accumulator, "contribution", f),
                self._part(accumulator, "contribution_seen", f),
            ),
        )

    def seen_of(self, function: Analysed) -> str:
        """Return the emitted name of a gather as it was."""
        how = self.kept_of(function)
        if how is None or how.seen is None:
            raise KeyError(f"{function.name} is not patched")
        return how.seen.name

    def _call_both(self, new: Printed, old: Printed, accumulator: Accumulator) -> None:
        count = self.copies if accumulator.is_wide else 1
        for printed, name in ((new, "contribution"), (old, "contribution_seen")):
            call = self.call_collective(printed, name)
            if not (self.loops and accumulator.is_wide):
                names = ", ".join(f"{name}_{j}" for j in range(count))
                call = f"{names} = {call}"
            self.writer.line(call)

    def _part(self, accumulator: Accumulator, stem: str, f: str) -> str:
        if self.loops and accumulator.is_wide:
            return f"{self.left_in(accumulator, stem)}[f]"
        return f"{stem}_{f}"

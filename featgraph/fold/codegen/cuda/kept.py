"""Gathers whose aggregates are kept, in a CUDA kernel whose lanes share a vertex.

Every slot patches with the edges that it takes. What the slots have is combined, and
then all lanes of the vertex agree whether the patch holds. Where some vertex of the
warp has one that does not, the whole warp goes through all edges, since the combine of
slots takes all of its lanes; vertices that hold go along without edges.
"""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cuda.gathers import WarpGathers
from featgraph.fold.codegen.functions.featurewise import Printed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.patches import change_name

__all__ = ["WarpKept"]


class WarpKept(WarpGathers):
    """Patches kept aggregates in slots, or takes them anew."""

    def gather_kept(self, stage: list[Analysed]) -> None:
        """Print the gathers of a stage whose aggregates are kept."""
        writer, patched = self.writer, self.patched(stage)
        for function in stage:
            self.announce(function)
        writer.line("is_patched = is_due and not warp.test_bit(stale, v)")
        for function in stage:
            self._begin_patch(function)
        if patched:
            writer.line("part_stop = stop if is_patched else start")
            self._patch_slots(patched)
        self._renew(stage)
        for function in stage:
            held = "" if function in patched else " and not is_patched"
            self._under(
                [f"is_due{held}{self._and_slot()}"],
                lambda f=function: self._store(self.accumulators[f.into]),
            )

    def _patch_slots(self, patched: list[Analysed]) -> None:
        """Patch with the edges from changed sources; lanes agree if it holds."""
        writer = self.writer
        if self._meets(patched):
            with self.rounds_in_blocks(patched):
                self.rounds(lambda: self._patch_masked(patched), "part_stop")
        else:
            self.row_end = "part_stop"
            with self.row_in_blocks(patched, self.start), self.edges("part_stop"):
                self.slot_end("u", "position")
                with writer.block("if warp.test_bit(changed_sources, u):"):
                    self.slot_edge("position")
                    for function in patched:
                        self._take_patch(function)
        for function in patched:
            accumulator = self.accumulators[function.into]
            self.combine_slots(accumulator)
            if self.patch_of(accumulator).measures:
                with self.renamed(change_name):
                    self.combine_slots(accumulator)
            self._finish_patch(function)
        if self.threads:
            writer.line("is_patched = cuda.syncthreads_or(int32(not is_patched)) == 0")
        elif self.span > 1:
            writer.line(f"is_patched = warp.group_all(is_patched, {self.span})")

    def _patch_masked(self, patched: list[Analysed]) -> None:
        """Every lane calls what makes shuffles; only lanes inside take the result."""
        writer = self.writer
        writer.line("inside_edge = inside_edge and warp.test_bit(changed_sources, u)")
        for function in patched:
            if self.is_predicated(self.printed[function.name]):
                accumulator = self.accumulators[function.into]
                names = range(self._count(accumulator))
                for printed, contribution in self._versions(function):
                    left = ", ".join(
                        contribution(self.held(accumulator, j)) for j in names
                    )
                    call = self.call_predicated(printed, "inside_edge")
                    writer.line(f"{left} = {call}")
        with writer.block("if inside_edge:"):
            for function in patched:
                self._take_patch(function)

    def _versions(
        self, function: Analysed
    ) -> list[tuple[Printed, Callable[[str], str]]]:
        """Return the gather as it is and as it was, and names of what they give."""
        new, old = self.printed[function.name], self.printed[self.seen_of(function)]
        return [(new, lambda held: f"new_{held}"), (old, lambda held: f"old_{held}")]

    def _take_patch(self, function: Analysed) -> None:
        """Put in what edge `e` contributes, take out what it contributed."""
        if self.owns_all(self.printed[function.name]):
            super()._take_patch(function)
            return
        accumulator = self.accumulators[function.into]
        patch = self.patch_of(accumulator)
        for j in range(self._count(accumulator)):
            held = self.held(accumulator, j)
            parts = [
                name(held)
                if self.is_predicated(printed)
                else self.call_copy(printed, j)
                for printed, name in self._versions(function)
            ]
            self._lines(patch.take(held, change_name(held), *parts))

    def _renew(self, stage: list[Analysed]) -> None:
        """Take aggregates anew from all edges where they could not be patched."""
        writer = self.writer
        if self.threads or (self.slots == 1 and not self._meets(stage)):
            test = "not is_patched" if self.threads else "is_due and not is_patched"
            with writer.block(f"if {test}:"):
                self._begin(stage)
                self.gather_edges(stage)
            return
        test = f"if warp.group_any(is_due and not is_patched, {32}):"
        with writer.block(f"{test}  # the whole warp"):
            writer.line("part_stop = start if is_patched else stop")
            with self.renamed(lambda name: f"all_{name}"):
                self._begin(stage)
                self.gather_edges(stage, "part_stop")
            for function in stage:
                for name in self._names(self.accumulators[function.into]):
                    writer.line(f"{name} = {name} if is_patched else all_{name}")

    def _begin(self, stage: list[Analysed]) -> None:
        for function in stage:
            self.start(self.accumulators[function.into])

    def _names(self, accumulator: Accumulator) -> list[str]:
        return [self.held(accumulator, j) for j in range(self._count(accumulator))]

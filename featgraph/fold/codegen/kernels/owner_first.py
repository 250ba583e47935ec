"""Gathers that leave their edges early or alone, where one thread owns a vertex."""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.codegen.kernels.accumulators import found
from featgraph.fold.codegen.kernels.owner_kept import KeptGathers

__all__ = ["StoppingGathers"]


class StoppingGathers(KeptGathers):
    """Knows when no edge that follows can change what a gather fills."""

    def leaving(self, stages: list[list[Analysed]]) -> str:
        """Return the test that makes all stages needless; "" where none is known."""
        return ""

    def takes_active(self, stage: list[Analysed]) -> bool:
        """Whether gathers that go over the edges together take those from A only."""
        return takes_active(stage[0]) and self.plan.takes_active(self.phase)

    def is_source(self) -> str:
        """Return the test that pulled edge functions run on an edge from ``u``."""
        return f"all_sources or {self.library}.test_bit(sources, u)"

    def is_active_source(self) -> str:
        """Return the test that the source of an edge is active."""
        return f"{self.library}.test_bit(active_sources, u)"

    def contribute_all(self, stage: list[Analysed], place: str = "") -> None:
        """Combine what an edge contributes to gathers, if it does to these.

        It is `e`, or the one at `place`, which becomes `e`.
        """
        depth = self.writer.depth
        if self.takes_active(stage):
            self.writer.line(f"if {self.is_active_source()}:")
            self.writer.depth += 1
        if place:
            self.slot_edge(place)
        for function in stage:
            self.contribute(function)
        if self.may_stop(stage):
            self.stop(stage)
        self.writer.depth = depth

    def may_stop(self, stage: list[Analysed]) -> bool:
        """Whether gathers that go over the edges together need not see all of them."""
        return all(f.into in self.phase.stops for f in stage)

    def all_found(self, stage: list[Analysed]) -> str:
        """Return the test that no edge that follows changes what a stage fills."""
        filled = [self.accumulators[f.into] for f in stage]
        return " and ".join(
            found(a, self.held(a, j))
            for a in filled
            for j in range(self.copies if a.is_wide else 1)
        )

    def stop(self, stage: list[Analysed]) -> None:
        """Leave the loop over the edges where that is so."""
        writer = self.writer
        wide = [a for f in stage if (a := self.accumulators[f.into]).is_wide]
        if not self.loops or not wide:
            writer.line(f"all_found = {self.all_found(stage)}")
        else:
            writer.line("all_found = True")
            with writer.block(f"for f in range({self.phase.width}):"):
                for accumulator in wide:
                    test = found(accumulator, f"{accumulator.name}[f]")
                    writer.line(f"all_found &= {test}")
        with writer.block("if all_found:"):
            writer.line("break")

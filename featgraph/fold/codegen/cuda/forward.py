"""Prints pulled edges whose next entries stay in the registers of several lanes."""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.store_sinking import reads_what_it_changes
from featgraph.fold.codegen.cuda.kept import WarpKept

__all__ = ["WarpForward", "all_lanes_agree"]


class WarpForward(WarpKept):
    """An edge function returns next entries; the kernel stores them, once."""

    def forward_edge(self) -> None:
        """Run the edge function on edge `e` where ``runs_edge``."""
        [function] = [f for f in self.functions if f.kind == "edge"]
        printed, writer = self.printed[function.name], self.writer
        if not self.is_predicated(printed):
            super().forward_edge()
            return
        writer.line(f"# {function.kind} function {function.declared.name}")
        call = self.call_predicated(printed, "runs_edge")
        writer.line(f"result = {call}")
        writer.line("moved = result[0] and runs_edge")
        if all_lanes_agree(function):
            writer.line("alive = moved")
        else:
            self._vote("moved", self.lanes)
        self.take_forwarded()


def all_lanes_agree(function: Analysed) -> bool:
    """Whether each lane finds the verdict of all features by itself.

    What a lane reads back of its own writes it may see before others do.
    """
    return not (function.returns_varying or reads_what_it_changes(function))

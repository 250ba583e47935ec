"""Prints pulled edges whose next entries stay in registers for the gathers."""

from __future__ import annotations

from featgraph.fold.analyse import Analysed
from featgraph.fold.cuda_kept import WarpKept
from featgraph.fold.rows import is_piecewise

__all__ = ["WarpForward", "all_lanes_agree"]


class WarpForward(WarpKept):
    """An edge function returns next entries; the kernel stores them, once."""

    def load_forwarded(self) -> None:
        """Begin with the current entries: what the next ones are unless one passes."""
        mapping, width = self.phase.mapping, self.phase.width
        for name, own in self.context.forwarded.items():
            piece = mapping.piece
            wide = is_piecewise(self.plan.analysis, name, width, piece)
            for first in range(0, self.copies, piece if wide else 1):
                f = self.index(self.feature(str(first)))
                if not wide:
                    self.writer.line(f"{own}_{first} = d.{name}[e, {f}]")
                    continue
                names = ", ".join(f"{own}_{first + j}" for j in range(piece))
                self.writer.line(
                    f"{names} = warp.load_row(d.{name}, e, {f}, {width}, {piece})"
                )

    def _forward_edge(self) -> None:
        """Run the edge function on edge `e` where ``runs_edge``."""
        [function] = [f for f in self.functions if f.kind == "edge"]
        printed, writer = self.printed[function.name], self.writer
        names = [
            f"{own}_{j}"
            for own in self.context.forwarded.values()
            for j in range(self.copies)
        ]
        writer.line(f"# {function.kind} function {function.declared.name}")
        if self.is_predicated(printed):
            call = self.call_predicated(printed, "runs_edge")
            writer.line(f"result = {call}")
            writer.line("moved = result[0] and runs_edge")
            if all_lanes_agree(function):
                writer.line("alive = moved")
            else:
                self._vote("moved", self.lanes)
            self._take_forwarded(names)
            self._under(["runs_edge"], self._store_forwarded)
            return
        with writer.block("if runs_edge:"):
            writer.line(f"result = {self.call_collective(printed)}")
            writer.line("alive = result[0]")
            self._take_forwarded(names)
            self._store_forwarded()

    def _take_forwarded(self, names: list[str]) -> None:
        with self.writer.block("if alive:"):
            self.writer.line("edge_passed = True")
            for place, name in enumerate(names, 1):
                self.writer.line(f"{name} = result[{place}]")

    def _store_forwarded(self) -> None:
        mapping, width = self.phase.mapping, self.phase.width
        for name, own in self.context.forwarded.items():
            piece = mapping.piece
            wide = is_piecewise(self.plan.analysis, name, width, piece)
            for first in range(0, self.copies, piece if wide else 1):
                f = self.index(self.feature(str(first)))
                text = f"d.{name}_next[e, {f}] = {own}_{first}"
                if wide:
                    values = ", ".join(f"{own}_{first + j}" for j in range(piece))
                    text = (
                        f"warp.store_row(d.{name}_next, e, {f}, {width}, {piece}, "
                        f"({values}))"
                    )
                self._under(
                    [self.inside(first)], lambda text=text: self.writer.line(text)
                )


def all_lanes_agree(function: Analysed) -> bool:
    """Whether each lane finds the verdict of all features by itself.

    What a lane reads back of its own writes it may see before others do.
    """
    reads = {(a.name, a.version) for a in function.accesses if a.mode == "read"}
    changes = {(a.name, a.version) for a in function.accesses if a.mode != "read"}
    return not (function.returns_varying or reads & changes)

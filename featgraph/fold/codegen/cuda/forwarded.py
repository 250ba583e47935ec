"""Prints pulled edges whose next entries stay in registers for the gathers.

The edge function returns its verdict and the new entries; the kernel takes the old ones
where the verdict is False or the source is not active, stores once, and hands the
gathers what it has stored. So a sweep over all vertices leaves no entry to refresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from featgraph.fold.codegen.cuda.blocks import CudaBlocks
from featgraph.fold.codegen.functions.vector_access import is_piecewise

__all__ = ["ForwardedEntries"]


class ForwardedEntries(CudaBlocks):
    """What lanes that share a vertex, and threads that own one, do about them."""

    def inside(self, j: int) -> str:
        """Return the test that copy j is a feature; "" where all are."""
        return ""

    def _pieces(self) -> Iterator[tuple[str, int, str, list[str]]]:
        """Yield the parts of an edge's entries that are loaded and stored at once.

        A part is the property, its first copy, the place of that in the row, and the
        names of the registers.
        """
        piece, width = self.phase.mapping.piece, self.phase.width
        for name, own in self.context.forwarded.items():
            wide = is_piecewise(self.plan.analysis, name, width, piece)
            count = piece if wide else 1
            for first in range(0, self.copies, count):
                f = self.index(self.feature(str(first)))
                place = f"e, {f}, {width}, {piece}" if wide else f"e, {f}"
                yield name, first, place, [f"{own}_{first + j}" for j in range(count)]

    def forwarded_names(self) -> list[str]:
        """Return the names of the registers that hold an edge's entries."""
        own = self.context.forwarded.values()
        return [f"{name}_{j}" for name in own for j in range(self.copies)]

    def load_forwarded(self) -> None:
        """Begin with the current entries: what the next ones are unless one passes."""
        for name, _, place, held in self._pieces():
            loaded = f"d.{name}[{place}]"
            if len(held) > 1:
                loaded = f"warp.load_row(d.{name}, {place})"
            self.writer.line(f"{', '.join(held)} = {loaded}")

    def forward_edge(self) -> None:
        """Run the edge function on edge `e` where ``runs_edge``; no lane waits."""
        [function] = [f for f in self.functions if f.kind == "edge"]
        self.writer.line(f"# {function.kind} function {function.declared.name}")
        with self.writer.block("if runs_edge:"):
            self.call_forwarding()

    def call_forwarding(self) -> None:
        """Run the edge function on edge `e`; take the new entries if it says so."""
        [function] = [f for f in self.functions if f.kind == "edge"]
        call = self.call_collective(self.printed[function.name])
        self.writer.line(f"result = {call}")
        self.writer.line("alive = result[0]")
        self.take_forwarded()

    def take_forwarded(self) -> None:
        """Take the new entries of edge `e` if its verdict is True."""
        with self.writer.block("if alive:"):
            self.writer.line("edge_passed = True")
            for place, name in enumerate(self.forwarded_names(), 1):
                self.writer.line(f"{name} = result[{place}]")

    def store_forwarded(self) -> None:
        """Store the entries of edge `e` that now stand."""
        for name, first, place, held in self._pieces():
            text = f"d.{name}_next[{place}] = {held[0]}"
            if len(held) > 1:
                text = f"warp.store_row(d.{name}_next, {place}, ({', '.join(held)}))"
            inside = self.inside(first)
            with self.writer.block(f"if {inside}:") if inside else nullcontext():
                self.writer.line(text)

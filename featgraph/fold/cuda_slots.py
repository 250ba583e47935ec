"""Prints how a CUDA thread that owns a vertex goes over its edges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featgraph.fold.analyse import Analysed
from featgraph.fold.forwarded import ForwardedEntries

__all__ = ["EdgeSlots"]


class EdgeSlots(ForwardedEntries):
    """A loop whose steps are few instructions; pulled edges two at a time, if asked."""

    #: The gathers behind pulled edges that are taken two at a time.
    paired: list[Analysed] | None = None

    @contextmanager
    def in_slots(self) -> Iterator[None]:
        """Print the loop over the edges that `v` gathers along.

        Its counter is as narrow as the offsets. With ``range`` every step would ask
        again whether there is a next one, in front of the loads of that.
        """
        rows = self.phase.rows
        first, last = (f"{rows.offsets}[{self.index(v)}]" for v in ("v", "v + 1"))
        self.writer.line(f"slot, stop = {first}, {last}")
        if self.paired:
            self._pairs(self.paired)
        with self.writer.block("while slot < stop:"):
            self.writer.line(f"u = {rows.ends}[{self.edge_id.format('slot')}]")
            yield
            self.writer.line(f"slot = {self._narrow('slot + 1')}")

    def _narrow(self, text: str) -> str:
        """Return a place among the edges in the type of the offsets."""
        return text if self.plan.traits.wide_offsets else f"int32({text})"

    def _gather_all(self, stage: list[Analysed], pulled: bool) -> None:
        ends_early = self.may_stop(stage) or self.takes_active(stage)
        if pulled and self.context.forwarded and self.phase.mapping.unroll > 1:
            self.paired = None if ends_early else stage
        super()._gather_all(stage, pulled)
        self.paired = None

    def _pull_edge(self) -> None:
        """Run the edge functions on edge `e` if its source is active."""
        if not self.context.forwarded:
            super()._pull_edge()
            return
        self.writer.line(f"runs_edge = {self.is_source()}")
        self.load_forwarded()
        self.forward_edge()

    def _pairs(self, stage: list[Analysed]) -> None:
        """Print a loop over two edges at a time, where all sources are active.

        What the second one reads is on its way before the first is stored.
        """
        writer, rows = self.writer, self.phase.rows
        writer.line(f"whole = {self._narrow('stop - 1')} if all_sources else slot")
        with writer.block("while slot < whole:"):
            [function] = [f for f in self.functions if f.kind == "edge"]
            name = function.declared.name
            writer.line(f"# edge function {name}, on two edges at a time")
            for which in (_own, self._other()):
                writer.rename = which
                writer.line(f"u = {rows.ends}[{self.edge_id.format('slot')}]")
                self.slot_edge()
                self.load_forwarded()
                self.call_forwarding()
            for which in (_own, self._other()):
                writer.rename = which
                self.store_forwarded()
                self.contribute_all(stage)
            writer.rename = None
            writer.line(f"slot = {self._narrow('slot + 2')}")

    def _other(self) -> Callable[[str], str]:
        """Return what turns a line for an edge into one for the other of two."""
        own = [rf"{own}_\d+" for own in self.context.forwarded.values()]
        names = "|".join(["u", "e", "alive", "result", *own])
        found = re.compile(rf"(?<![\w.])({names})(?!\w)")
        prefix = "two_"
        while any(str(name).startswith(prefix) for name in self.accumulators):
            prefix += "_"
        return lambda text: re.sub(
            r"\bslot\b", "slot + 1", found.sub(rf"{prefix}\1", text)
        )


def _own(text: str) -> str:
    return text

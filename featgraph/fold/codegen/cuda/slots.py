"""Prints how a CUDA thread that owns a vertex goes over its edges."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.store_sinking import leaving_test
from featgraph.fold.codegen.cuda.forwarded import ForwardedEntries
from featgraph.fold.codegen.text.expressions import print_expression
from featgraph.fold.syntax.nodes import Access

__all__ = ["EdgeSlots"]


class EdgeSlots(ForwardedEntries):
    """A loop whose steps are few instructions; pulled edges two at a time, if asked."""

    #: Prints a loop over several edges at a time, in front of that over the others.
    together: Callable[[], None] | None = None

    @contextmanager
    def in_slots(self) -> Iterator[None]:
        """Print the loop over the edges that `v` gathers along.

        Its counter is as narrow as the offsets. With ``range`` every step would ask
        again whether there is a next one, in front of the loads of that.
        """
        first, last = self.bounds or self.row_bounds()
        self.writer.line(f"slot, stop = {first}, {last}")
        if self.together is not None:
            self.together()
        with self.writer.block("while slot < stop:"):
            self.slot_end("u")
            yield
            self.writer.line(f"slot = {self._narrow('slot + 1')}")

    def leaving(self, stages: list[list[Analysed]]) -> str:
        """Return the test with which the function behind the gathers leaves at once.

        Nobody needs what was gathered for such a vertex. Kept aggregates, those that
        later phases read, and edges are for others, too.
        """
        phase = self.phase
        if phase.pulls_edges or phase.keeps or phase.stores or phase.commits:
            return ""
        rest = [s[0] for s in stages if s[0].kind != "gather"]
        if stages[0][0].kind != "gather" or not rest or self.context.checked:
            return ""
        test = leaving_test(rest[0])
        if test is None:
            return ""
        own = set(self.plan.analysis.signature)
        stored = all(n.name in own for n in ast.walk(test) if isinstance(n, Access))
        text = print_expression(test, self.context.style(rest[0]))
        return f"({text})" if stored else ""

    def _narrow(self, text: str) -> str:
        """Return a place among the edges in the type of the offsets."""
        return text if self.plan.traits.wide_offsets else f"int32({text})"

    def _gather_all(self, stage: list[Analysed], pulled: bool) -> None:
        if self._goes_straight(stage, pulled):
            form = self._pairs if pulled else self._groups
            self.together = lambda: form(stage)
        super()._gather_all(stage, pulled)
        self.together = None

    def _goes_straight(self, stage: list[Analysed], pulled: bool) -> bool:
        """Whether nothing keeps the loads of several edges from going together."""
        if self.phase.mapping.unroll == 1 or self.loops:
            return False
        if self.may_stop(stage) or self.takes_active(stage):
            return False
        filled = [self.accumulators[f.into] for f in stage]
        in_memory = any(a.is_matrix and a.name not in self.phase.held for a in filled)
        return not in_memory and (not pulled or bool(self.context.forwarded))

    def _pull_edge(self) -> None:
        """Run the edge functions on edge `e` if its source is active."""
        if not self.context.forwarded:
            super()._pull_edge()
            return
        self.writer.line(f"runs_edge = {self.is_source()}")
        self.load_forwarded()
        self.forward_edge()
        self.store_forwarded()

    def _groups(self, stage: list[Analysed]) -> None:
        """Print a loop over some edges at a time, which the compiler writes out.

        What they read is on its way together.
        """
        writer, count = self.writer, self.phase.mapping.unroll
        writer.line(f"whole = {self._narrow(f'stop - {count - 1}')}")
        with writer.block("while slot < whole:"):
            with writer.block(f"for step in range({count}):"):
                self.slot_end("u", "slot + step")
                self.contribute_all(stage, "slot + step")
            writer.line(f"slot = {self._narrow(f'slot + {count}')}")

    def _pairs(self, stage: list[Analysed]) -> None:
        """Print a loop over two edges at a time, where all sources are active.

        What the second one reads is on its way before the first is stored: the second
        is computed ahead, and put by.
        """
        writer = self.writer
        names = ", ".join(["u", "e", *self.forwarded_names()])
        writer.line(f"whole = {self._narrow('stop - 1')} if all_sources else slot")
        with writer.block("while slot < whole:"):
            [function] = [f for f in self.functions if f.kind == "edge"]
            name = function.declared.name
            writer.line(f"# edge function {name}, on two edges at a time")
            for place in ("slot + 1", "slot"):
                self.slot_end("u", place)
                self.slot_edge(place)
                self.load_forwarded()
                self.call_forwarding()
                if place != "slot":
                    writer.line(f"other_edge = ({names})")
            self.store_forwarded()
            self.contribute_all(stage)
            writer.line(f"{names} = other_edge")
            self.store_forwarded()
            self.contribute_all(stage)
            writer.line(f"slot = {self._narrow('slot + 2')}")

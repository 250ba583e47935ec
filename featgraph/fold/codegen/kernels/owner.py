"""The body of a kernel in which one thread owns a vertex or an edge, all its features.

The CPU target, and the mapping that is not feature-aware on CUDA.
"""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathered_values import base_name
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.codegen.functions.vector_access import (
    copied,
    copy_line,
    is_piecewise,
)
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.owner_first import StoppingGathers
from featgraph.program.signature import PropertyKind

__all__ = ["OwnerBody"]


class OwnerBody(StoppingGathers):
    """Prints the stages of one phase for one vertex `v` (or edge `e`).

    Parameters
    ----------
    library : str
        "cpu" or "warp": where atomics and bits come from.
    edge_id : str
        Format of an edge id made from a slot, ``{}`` or ``uint32({})``.
    """

    # -- vertex phases

    def vertex(self) -> None:
        """Print all stages for vertex `v`; leaves its verdict in ``alive``."""
        self.load_temporaries()
        self.copy_entries(self.phase.copies, "v", "")
        writer = self.writer
        depth = writer.depth
        stages = self._stages()
        leaving = self.leaving(stages)
        if leaving:
            writer.line(f"alive = not {leaving}")
            writer.line("if alive:")
            writer.depth += 1
        elif not self.phase.pulls_edges:
            writer.line("alive = True")
        for place, stage in enumerate(stages):
            pulled = self.phase.pulls_edges and place == 0
            if stage[0].kind == "gather":
                self._gather(stage, pulled)
                if not pulled:
                    continue
                writer.line(f"alive = {self.is_due('v')}")
            else:
                self._verdict(stage[0])
            if place < len(stages) - 1:
                writer.line("if alive:")
                writer.depth += 1
        for name in self.phase.stores:
            self._store(self.accumulators[name])
        writer.depth = depth
        self.commit()

    def commit(self) -> None:
        """Print the commit of `v` in the kernel, from the next buffer to the other."""
        if self.phase.commits:
            with self.writer.block("if alive:"):
                self._copy_each(self.phase.commits, "v", commits=True)

    def _stages(self) -> list[list[Analysed]]:
        """Group gathers that share one pass over the edges.

        Pulled edge functions run in the first one.
        """
        stages: list[list[Analysed]] = []
        known = self.plan.analysis.temporaries
        for function in self.functions:
            if function.kind == "edge":
                continue
            share = bool(stages) and function.kind == stages[-1][0].kind == "gather"
            share = share and takes_active(function) == takes_active(stages[-1][0])
            reads = {
                base_name(self.entries[t].of if t in self.entries else t, known)
                for t in self.printed[function.name].temporaries
            }
            if share and not reads & {f.into for f in stages[-1]}:
                stages[-1].append(function)
            else:
                stages.append([function])
        return stages

    def _verdict(self, function: Analysed) -> None:
        """Run a vertex or edge function; ``alive`` is its or over the features."""
        printed, writer = self.printed[function.name], self.writer
        writer.line(f"# {function.kind} function {function.declared.name}")
        if printed.is_collective:
            writer.line(f"alive = {self.call_collective(printed)}")
        elif function.is_scalar:
            writer.line(f"alive = {self.call_featurewise(printed, '0')}")
        elif self.loops:
            writer.line("alive = False")
            with writer.block(f"for f in range({self.phase.width}):"):
                writer.line(f"alive |= {self.call_featurewise(printed, 'f')}")
        else:
            writer.line(f"alive = {self.call_featurewise(printed, '0')}")
            for j in range(1, self.copies):
                writer.line(f"alive |= {self.call_featurewise(printed, str(j))}")

    def is_due(self, vertex: str) -> str:
        """Return the test that a swept vertex is due, behind its pulled edges (S4)."""
        due, allowed = (
            f"{self.library}.test_bit({words}, {vertex})"
            for words in ("due", "allowed")
        )
        return f"{due} or (edge_passed and {allowed})"

    def _gather(self, stage: list[Analysed], pulled: bool = False) -> None:
        kept = [f for f in stage if f.into in self.phase.keeps]
        if kept:
            self.gather_kept(kept)
        others = [f for f in stage if f not in kept]
        if others:
            self._gather_all(others, pulled)

    def _gather_all(self, stage: list[Analysed], pulled: bool) -> None:
        """Combine over all edges."""
        if pulled:
            self.writer.line("edge_passed = False")
        for function in stage:
            self.announce(function)
            self.begin(self.accumulators[function.into])
        with self.row_in_blocks(stage, self.begin), self.in_slots():
            if pulled:
                self.slot_edge()
                self._pull_edge()
            self.contribute_all(stage, "" if pulled else "slot")
        for function in stage:
            if not self.in_blocks(stage):
                self.settle(function)
            self.finish(function)

    def begin(self, accumulator: Accumulator) -> None:
        """Set what a gather fills to its identity."""
        self.start(accumulator)

    def finish(self, function: Analysed) -> None:
        """Give what has been summed the form in which it is read."""

    def _pull_edge(self) -> None:
        """Run the edge functions on edge `e` if its source is active."""
        writer = self.writer
        with writer.block(f"if {self.is_source()}:"):
            self.edge()
            with writer.block("if alive:"):
                writer.line("edge_passed = True")
            self.copy_entries(self.phase.restores, "e", "else:")

    def entries_of(self, names: tuple[str, ...], entity: str) -> tuple[str, ...]:
        """Return the properties of `names` that belong to vertices, or to edges."""
        kind = PropertyKind.EDGE if entity == "e" else PropertyKind.VERTEX
        signature = self.plan.analysis.signature
        return tuple(n for n in names if signature[n].kind is kind)

    def copy_entries(self, names: tuple[str, ...], entity: str, condition: str) -> None:
        """Print the copy of entries from the current buffer to the next one."""
        names = self.entries_of(names, entity)
        if not names:
            return
        if condition:
            with self.writer.block(condition):
                self._copy_each(names, entity)
        else:
            self._copy_each(names, entity)

    def _copy_each(
        self, names: tuple[str, ...], entity: str, *, commits: bool = False
    ) -> None:
        for name in names:
            shape = self.plan.analysis.signature[name].item_shape
            depth, piece = self.writer.depth, self.phase.mapping.piece
            if shape and is_piecewise(self.plan.analysis, name, shape[0], piece):
                for first in range(0, shape[0], piece):
                    place = f"{self.index(entity)}, {first}, {shape[0]}, {piece}"
                    self.writer.line(copy_line(name, place, commits))
                continue
            for letter, size in zip(
                "if" if len(shape) == 2 else "f", shape, strict=False
            ):
                self.writer.line(f"for {letter} in range({size}):")
                self.writer.depth += 1
            index = self.index(
                entity, *("if" if len(shape) == 2 else "f"[: len(shape)])
            )
            to, from_ = copied(name, commits)
            self.writer.line(f"{to}[{index}] = {from_}[{index}]")
            self.writer.depth = depth

    # -- edges

    def edge(self) -> None:
        """Print the edge functions for edge `e`; leaves their verdict in ``alive``."""
        self.copy_entries(self.phase.copies, "e", "")
        depth = self.writer.depth
        functions = [f for f in self.functions if f.kind == "edge"]
        for place, function in enumerate(functions):
            self._verdict(function)
            if place < len(functions) - 1:
                self.writer.line("if alive:")
                self.writer.depth += 1
        self.writer.depth = depth

"""CUDA kernels in which one thread owns a vertex with all its features (NFA)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.codegen.cuda.areas import numba_name
from featgraph.fold.codegen.cuda.held import HeldBody
from featgraph.fold.codegen.cuda.phase import CudaPhase
from featgraph.fold.codegen.cuda.words import each_listed, each_packed
from featgraph.fold.codegen.functions.staging import at_hand
from featgraph.fold.codegen.kernels.accumulate import contribution_rows
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.printing.cuda import unsigned_indices
from featgraph.fold.printing.statements import print_body

__all__ = ["ThreadPhase"]


class ThreadPhase(CudaPhase):
    """One thread owns a vertex with all its features (NFA)."""

    def _body(self) -> HeldBody:
        return HeldBody(
            self.context, self.plan, self.phase, self.printed, "warp", self.edge_id
        )

    @contextmanager
    def _each(self, vertex: str, words: str) -> Iterator[None]:
        """Print a thread's loop over the vertices of the set `words` (all if "")."""
        writer = self.writer
        if self.form != "plain" and words:
            each = each_packed if self.form == "packed" else each_listed
            sweep = each(writer, words, vertex, "is_wanted", 1)
            with sweep, writer.block("if is_wanted:"):
                yield
            return
        if self.covers:
            writer.line(f"{vertex} = int32(cuda.grid(1))")
            test = (
                f"warp.test_bit({words}, {vertex})"
                if words
                else f"{vertex} < vertex_count"
            )
            with writer.block(f"if {test}:"):
                yield
            return
        writer.line(
            "first_vertex, stride = int32(cuda.grid(1)), int32(cuda.gridsize(1))"
        )
        with writer.block(
            f"for {vertex} in range(first_vertex, int32(vertex_count), stride):"
        ):
            if words:
                with writer.block(f"if not warp.test_bit({words}, {vertex}):"):
                    writer.line("continue")
            yield

    def vertex(self) -> None:
        """Print the body of the kernel."""
        self._arrays()
        if self.form != "plain":
            self._vertex_apart()
            return
        writer, line, pulls = self.writer, self.writer.line, self.phase.pulls_edges
        words = "swept" if pulls else "due"
        with self._each_of_all("v"):
            line("alive = edge_passed = False" if pulls else "alive = False")
            with writer.block(f"if warp.test_bit({words}, v):"):
                self._own_vertex()
            if pulls:
                line("warp.set_bits(targets, v, edge_passed)")
            line("warp.set_bits(passed, v, alive)")

    @contextmanager
    def _each_of_all(self, vertex: str) -> Iterator[None]:
        """Print a warp's loop over all vertices; its lanes stay together."""
        writer = self.writer
        if self.covers:
            writer.line(f"{vertex} = int32(cuda.grid(1))")
            yield
            return
        writer.line("first_vertex = int32((cuda.grid(1) >> 5) << 5)")
        writer.line("stride = int32(cuda.gridsize(1))")
        with writer.block(
            "for base in range(first_vertex, int32(vertex_count), stride):"
        ):
            writer.line(f"{vertex} = int32(base + cuda.laneid)")
            yield

    def _vertex_apart(self) -> None:
        """Print the same where a warp has vertices of several words."""
        writer, pulls = self.writer, self.phase.pulls_edges
        with self._each("v", "swept" if pulls else "due"):
            self._own_vertex()
            if pulls:
                with writer.block("if edge_passed:"):
                    writer.line("warp.set_bit(targets, v)")
            with writer.block("if alive:"):
                writer.line("warp.set_bit(passed, v)")

    def _own_vertex(self) -> None:
        """Print all that a thread does for its vertex."""
        body = self._body()
        body.vertex()
        body.copy_entries(self.phase.restores, "v", "if not alive:")

    def _arrays(self) -> None:
        """Bring matrices to hand; declare the small arrays that a thread works in."""
        real, k, line = self.context.real, self.phase.width, self.writer.line
        staged = at_hand(self.context.staged, real, self.threads)
        print_body(self.writer, unsigned_indices(staged))
        if self._has_matrices():
            self._matrices(0, "cuda.grid(1)")
        self._body().declare_waiting(self.functions)
        if not self.phase.mapping.loops:
            return
        for array, kind, dtype in (("rows", "real", real), ("flags", "int64", "int64")):
            count = max(
                (p.arrays.get(kind, 0) for p in self.printed.values()), default=0
            )
            if count:
                line(f"{array} = cuda.local.array(({count}, {k}), {dtype})")
        for accumulator in self._held():
            if accumulator.is_wide:
                dtype = self._dtype(accumulator)
                line(f"{accumulator.name} = cuda.local.array({k}, {dtype})")
                if accumulator.is_arg:
                    line(f"{accumulator.name}_source = cuda.local.array({k}, int32)")
                if accumulator.name in self.phase.keeps:
                    line(f"change_{accumulator.name} = cuda.local.array({k}, {dtype})")
        for name, dtype in contribution_rows(self._body()).items():
            line(f"{name} = cuda.local.array({k}, {numba_name(dtype)})")

    def _dtype(self, accumulator: Accumulator) -> str:
        return {"real": self.context.real, "bool": "boolean"}.get(
            accumulator.type, accumulator.type
        )

"""CUDA kernels in which lanes share a vertex (FA), or a block shares a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from featgraph.fold.codegen.cuda.combine import WARP
from featgraph.fold.codegen.cuda.phase import CudaPhase
from featgraph.fold.codegen.cuda.warp import WarpBody
from featgraph.fold.codegen.cuda.words import each_listed, each_packed
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.functions.staging import at_hand
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.schedules import BLOCK_THREADS, HUB_THREADS, SHARED_BYTES
from featgraph.fold.printing.cuda import unsigned_indices
from featgraph.fold.printing.statements import print_body

__all__ = ["HubPhase", "WarpPhase"]


class WarpPhase(CudaPhase):
    """A span of lanes shares a vertex: its features, and its edges by slots (FA)."""

    #: Threads that share a vertex if a whole block does.
    block_threads = 0

    def _body(self) -> WarpBody:
        return WarpBody(
            self.context,
            self.plan,
            self.phase,
            self.printed,
            self.edge_id,
            self.block_threads,
        )

    def _prologue(self) -> None:
        """Say which features and which edges are this lane's."""
        line, mapping, body = self.writer.line, self.phase.mapping, self._body()
        if self.block_threads:
            line("thread = uint32(cuda.threadIdx.x)")
        if mapping.lanes > 1:
            line(f"lane = cuda.laneid & {mapping.lanes - 1}")
        if body.slots > 1:
            shift = mapping.lanes.bit_length() - 1
            place = "cuda.threadIdx.x" if self.block_threads else "cuda.laneid"
            if not self.block_threads and mapping.span < WARP:
                place += f" & {mapping.span - 1}"
            if shift:
                place = (
                    f"({place}) >> {shift}" if "&" in place else f"{place} >> {shift}"
                )
            line(f"slot = {place}")
        self._features(body)
        staged = at_hand(self.context.staged, self.context.real, self.threads)
        print_body(self.writer, unsigned_indices(staged))
        if self._has_matrices():
            self._print_matrices()
        body.declare_waiting(self.functions)

    def _features(self, body: WarpBody) -> None:
        line, copies, k = self.writer.line, body.copies, self.phase.width
        if body.lanes == 1:
            return
        for j in range(copies):
            own = "lane" if copies == 1 else f"lane * {copies}{f' + {j}' if j else ''}"
            if body.padded:
                line(f"{body.inside(j)} = {own} < {k}")
                piece = self.phase.mapping.piece  # whole pieces stay in the row
                own = f"min({own}, {k - piece + j % piece})"
            line(f"{body.feature(str(j))} = {own}")

    def _print_matrices(self) -> None:
        # Of each slot: all of them run what works in it.
        shift = self.phase.mapping.lanes.bit_length() - 1
        if self.phase.mapping.shared_matrices:
            self._matrices(self.threads >> shift, f"cuda.threadIdx.x >> {shift}")
        else:
            self._matrices(0, f"cuda.grid(1) >> {shift}")

    @contextmanager
    def _each(self, vertex: str, words: str, wanted: str) -> Iterator[None]:
        """Print the loop over the vertices of a warp; all its lanes stay in it."""
        writer, span = self.writer, self.phase.mapping.span
        if self.form == "packed" and words:
            with each_packed(writer, words, vertex, wanted, span):
                yield
            return
        if self.form == "listed" and words:
            with each_listed(writer, words, vertex, wanted, span):
                self._leave(wanted, "return")
                yield
            return
        if self.covers:
            shift = span.bit_length() - 1
            place = f"cuda.grid(1) >> {shift}" if shift else "cuda.grid(1)"
            name = vertex if span == WARP else "index"
            writer.line(f"{name} = int32({place})")
            # Also where there is no set to test: warps at the grid's end have no row.
            self._want(name, words, wanted)
            self._leave(wanted, "return")
            if name == "index":
                writer.line(f"{vertex} = min(index, int32(vertex_count - 1))")
            yield
            return
        count = WARP // span
        times = f" * {count}" if count > 1 else ""
        # In 32 bits: in 64, the loop alone takes eight registers more.
        writer.line(f"first_vertex = int32((cuda.grid(1) >> 5){times})")
        writer.line(f"stride = int32((cuda.gridsize(1) >> 5){times})")
        name = "base" if count > 1 else vertex
        with writer.block(
            f"for {name} in range(first_vertex, int32(vertex_count), stride):"
        ):
            if count > 1:
                own = (
                    f"(cuda.laneid >> {span.bit_length() - 1})"
                    if span > 1
                    else "cuda.laneid"
                )
                writer.line(f"index = base + {own}")
                name = "index"
            self._want(name, words, wanted)
            # Without a set each turn has a vertex, that of the first lanes.
            if words:
                self._leave(wanted, "continue")
            if count > 1:
                writer.line(f"{vertex} = int32(min(index, vertex_count - 1))")
            yield

    def _want(self, name: str, words: str, wanted: str) -> None:
        """Print whether a lane's vertex is swept."""
        in_set = (
            f"warp.test_bit({words}, {name})" if words else f"{name} < vertex_count"
        )
        self.writer.line(f"{wanted} = {in_set}")

    def _leave(self, wanted: str, end: str) -> None:
        """Print what a warp does none of whose lanes has a vertex of its own."""
        with self.writer.block(f"if not warp.group_any({wanted}, {WARP}):"):
            self.writer.line(f"{end}  # the whole warp")

    def _row(self, vertex: str, wanted: str) -> None:
        """Find the edges of a vertex: `start` to `stop`, none where not wanted."""
        line, offsets = self.writer.line, self.phase.rows.offsets
        first, last = f"uint32({vertex})", f"uint32({vertex} + 1)"
        line(f"start, stop = {offsets}[{first}], {offsets}[{last}]")
        if self.role == "main" and self.phase.mapping.hubs:
            line(f"{wanted} = {wanted} and stop - start < hub_degree")
        if self.role == "main":
            line(f"stop = stop if {wanted} else start")

    def vertex(self) -> None:
        """Print the body of the kernel."""
        self._prologue()
        swept = ("swept", "is_swept") if self.phase.pulls_edges else ("due", "is_due")
        with self._each("v", *swept):
            if self.gathers:
                self._row("v", swept[1])
            body = self._body()
            body.vertex()
            tests = [
                "alive",
                *(["slot == 0"] if body.slots > 1 else []),
                *(["lane == 0"] if body.lanes > 1 else []),
            ]
            if self._has_words():
                self.writer.line("warp.set_bits(passed, v, alive)")
            else:
                with self.writer.block(f"if {' and '.join(tests)}:"):
                    self.writer.line("warp.set_bit(passed, v)")
            body.restore("v", swept[1])

    def _has_words(self) -> bool:
        """Whether a warp has the 32 vertices of a word of a set, a lane each."""
        is_word = self.phase.mapping.span == 1 and self.form == "plain"
        return is_word and not self.block_threads


class HubPhase(WarpPhase):
    """A block takes one vertex of high degree: all its slots take edges of it."""

    role = "hubs"
    other_schedule = "block"

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        number: int,
        phase: Phase,
        printed: dict[str, Printed],
    ) -> None:
        super().__init__(context, plan, number, phase, printed)
        self.name += "_hubs"
        threads, lanes = HUB_THREADS, phase.mapping.lanes
        areas = self._area_bytes()
        while threads > BLOCK_THREADS and threads // lanes * areas > SHARED_BYTES:
            threads //= 2
        self.threads = self.block_threads = threads

    def _area_bytes(self) -> int:
        """Return what the areas of a group or thread take."""
        return sum(
            self.phase.width * columns * np.dtype(dtype).itemsize
            for _, columns, dtype in self._areas()
        )

    def _prologue(self) -> None:
        super()._prologue()
        if self.phase.kind == "vertex":
            self._boxes()

    @contextmanager
    def _each(self, vertex: str, words: str, wanted: str) -> Iterator[None]:
        """Print the loop over the hubs of a block; the whole block exits or none."""
        writer = self.writer
        with writer.block(
            "for index in range(cuda.blockIdx.x, hubs.size, cuda.gridDim.x):"
        ):
            writer.line(f"{vertex} = hubs[uint32(index)]")
            if words:
                with writer.block(f"if not warp.test_bit({words}, {vertex}):"):
                    writer.line("continue  # the whole block")
            if self.phase.kind == "vertex":
                writer.line(f"{wanted} = True")
            yield

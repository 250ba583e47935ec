"""Kernels of triangle functions on the CUDA target.

Lanes that share a row `u` of the oriented graph take members `w` behind `v`, and search
them in the row of `v`, or the other way round if that is shorter. Long rows `v` are
left to a block each (`cuda_long_rows`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featgraph.fold.codegen.cuda.long_rows import LongRows
from featgraph.fold.codegen.cuda.triangle import CudaTriangles
from featgraph.fold.codegen.kernels.triangles import print_found
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.schedules import BLOCK_THREADS

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Entry

__all__ = ["print_triangles"]


def print_triangles(
    context: Context, plan: FoldPlan, number: int, phase: Phase
) -> list[Entry]:
    """Print the kernels of a triangle phase; that of long rows is launched first."""
    kernels: list[type[CudaTriangles]] = [_Rows]
    if phase.mapping.hubs:
        kernels = [LongRows, _Rows]
    if phase.from_edges:
        kernels = [_Edges]
    function = plan.functions_of(phase)[0]
    return [
        of(context, phase, function, number, plan.traits.wide_offsets).run()
        for of in kernels
    ]


class _Rows(CudaTriangles):
    """Prints the kernel in which lanes share a row."""

    def run(self) -> Entry:
        """Print the kernel in which lanes share a row."""
        line, block, lanes = (
            self.writer.line,
            self.writer.block,
            self.phase.mapping.span,
        )
        arguments = ["d", "active", "all_active", "vertex_count"]
        arguments += ["rank_vertex", "upper_offsets", "upper_ranks", "upper_edges"]
        arguments += ["edge_twin"] if self.by_direction else []
        arguments += ["hub_degree"] if self.phase.mapping.hubs else []
        doc = "Sweep rows, and search the triangles that begin there."
        with self.kernel("", BLOCK_THREADS, arguments, doc) as entry:
            line(f"lane = cuda.laneid & {lanes - 1}")
            shift = f" >> {lanes.bit_length() - 1}" if lanes > 1 else ""
            line(f"first_row = int32(cuda.grid(1){shift})")
            line(f"stride = int32(cuda.gridsize(1){shift})")
            with block("for low in range(first_row, int32(vertex_count), stride):"):
                line(f"start, stop = {self.ends('upper', 'low')}")
                with block("if stop - start < 2:"):
                    line("continue")
                line("u = rank_vertex[uint32(low)]")
                self._skip_inactive()
                self.start(self.at("u"))
                with block(f"for slot in range(start, {self.place('stop - 1')}):"):
                    self._member(lanes)
                self.settle_all(self.at("u"))
        return entry

    def _skip_inactive(self) -> None:
        line, block = self.writer.line, self.writer.block
        line(f"is_active = all_active or {self.test_active('u')}")
        line("some_active = is_active")
        line("slot = start")
        with block("while not some_active and slot < stop:"):
            vertex = f"rank_vertex[uint32(upper_ranks[{self.edge_id('slot')}])]"
            line(f"some_active = {self.test_active(vertex)}")
            line(f"slot = {self.place('slot + 1')}")
        with block("if not some_active:"):
            line("continue")

    def _member(self, lanes: int) -> None:
        line, block = self.writer.line, self.writer.block
        line(f"middle = upper_ranks[{self.edge_id('slot')}]")
        line(f"first, end = {self.ends('upper', 'middle')}")
        test = " or end - first >= hub_degree" if self.phase.mapping.hubs else ""
        with block(f"if first == end{test}:"):
            line("continue")
        edge = f"upper_edges[{self.edge_id('slot')}]"
        line(f"e_uv = {self.edge_id(edge)}")
        self.skip_unless_within("e_uv")
        line("v = rank_vertex[uint32(middle)]")
        line(f"both_active = is_active or {self.test_active('v')}")
        self.start(self.at("v", "e_uv"))
        line(f"begin = {self.place('slot + 1')}")
        line("swaps = end - first < stop - begin")
        line("near, near_end = (first, end) if swaps else (begin, stop)")
        line("far, far_end = (begin, stop) if swaps else (first, end)")
        step = self.place(str(lanes))
        with block(f"for own in range({self.place('near + lane')}, near_end, {step}):"):
            line(f"high = upper_ranks[{self.edge_id('own')}]")
            line("far = warp.lower_bound(upper_ranks, far, far_end, high)")
            here = f"upper_ranks[{self.edge_id('far')}]"
            with block(f"if far < far_end and {here} == high:"):
                line("other, mine = (far, own) if swaps else (own, far)")
                self.triangle("u", "v", "e_uv")
        self.settle_all(self.at("v", "e_uv"))


class _Edges(CudaTriangles):
    """Prints the kernel in which a warp takes an edge that passed."""

    def run(self) -> Entry:
        """Print the kernel in which a warp takes an edge that passed."""
        line, block = self.writer.line, self.writer.block
        doc = "Sweep the edges that passed, a warp each, and their triangles."
        with self.kernel("", BLOCK_THREADS, ["d", *self.edge_arguments], doc) as entry:
            line("lane = int32(cuda.laneid)")
            line(f"count = {self.place('edge_state.shape[0]')}")
            line(f"first, stride = {self.place('cuda.grid(1) - lane')}, "
                 f"{self.place('cuda.gridsize(1)')}")  # fmt: skip
            with block("for base in range(first, count, stride):"):
                line(f"e = {self.edge_id('min(base + lane, count - 1)')}")
                line("takes = base + lane < count and edge_state[e] == 2")
                with block("if takes:"):
                    line(f"twin = {self.edge_id('edge_twin[e]')}")
                    line("earlier = twin < e and edge_state[twin] == 2")
                    line("takes = twin != e and not earlier")
                line("pending = warp.group_bits(takes, 32)")
                with block("while pending != 0:  # the whole warp"):
                    line(f"e = {self.edge_id('base + warp.trailing_zeros(pending)')}")
                    line("pending = uint32(pending & (pending - uint32(1)))")
                    self._edge()
        return entry

    def _edge(self) -> None:
        line, block = self.writer.line, self.writer.block
        line(f"twin = {self.edge_id('edge_twin[e]')}")
        line("one = vertex_rank[uint32(in_sources[e])]")
        line("two = vertex_rank[uint32(in_sources[twin])]")
        line("edge = e if one < two else twin")
        self.skip_unless_within("edge")
        line("low, high = (one, two) if one < two else (two, one)")
        line(f"start, stop = {self.ends('both', 'low')}")
        line(f"other, end = {self.ends('both', 'high')}")
        line("swaps = end - other < stop - start")
        with block("if swaps:"):
            line("start, stop, other, end = other, end, start, stop")
        step = self.place("32")
        with block(f"for slot in range({self.place('start + lane')}, stop, {step}):"):
            line(f"third = both_ranks[{self.edge_id('slot')}]")
            line("other = warp.lower_bound(both_ranks, other, end, third)")
            with block("if other == end:"):
                line("break")
            with block(f"if both_ranks[{self.edge_id('other')}] != third:"):
                line("continue")
            for name, place in (("to_low", "slot"), ("to_high", "other")):
                found = f"both_edges[{self.edge_id(place)}]"
                line(f"{name} = {self.edge_id(found)}")
            with block("if swaps:"):
                line("to_low, to_high = to_high, to_low")
            print_found(self, "warp")

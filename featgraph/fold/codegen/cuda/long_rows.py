"""The CUDA kernel of triangle functions for long rows: a block and a bitmap each.

A bitmap of the row of `v` tells in one load of shared memory whether `w` is a member,
and how many members stand before it. So the members' sums can wait in shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featgraph.fold.codegen.cuda.triangle import CudaTriangles
from featgraph.fold.plan.schedules import HUB_THREADS

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Entry

__all__ = ["LongRows"]

#: Words of the bitmap of a long row: it has the highest ranks, where the members of
#: long rows are. Others are searched for.
BITMAP_WORDS = 4096
#: Shared memory of a block for sums at the places of members; those beyond go to global
#: memory at once. With the bitmap it makes 48 KiB.
SUM_BYTES = 1 << 14
#: Lanes that share what one vertex has behind a long row.
HUB_LANES = 16


class LongRows(CudaTriangles):
    """Prints the kernel in which a block takes a long row."""

    def run(self) -> Entry:
        """Print the kernel in which a block takes one row."""
        line, block = self.writer.line, self.writer.block
        arguments = ["d", "active", "all_active", "hubs", "vertex_count"]
        arguments += self.row_arguments
        doc = (
            "Sweep long rows, a block each, and the triangles with them in the middle."
        )
        with self.kernel("hubs", HUB_THREADS, arguments, doc) as entry:
            line("thread = int32(cuda.threadIdx.x)")
            line("row = hubs[uint32(cuda.blockIdx.x)]")
            line("v = rank_vertex[uint32(row)]")
            line(f"start, stop = {self.ends('upper', 'row')}")
            line(f"is_active = all_active or {self.test_active('v')}")
            self._bitmap()
            self.start(self.of_row)
            self._lower_vertices()
            line("cuda.syncthreads()")
            self._settle_places()
            for each in self.of_row:
                line(f"{each.name} = warp.group_sum({each.name}, 32)")
            if self.of_row:
                with block("if cuda.laneid == 0:"):
                    self.settle_all(self.of_row)
        return entry

    def _bitmap(self) -> None:
        line, block = self.writer.line, self.writer.block
        line("# The highest ranks: which are members, and the place of the first of a")
        line("# word.")
        line(f"bits = cuda.shared.array({BITMAP_WORDS}, uint32)")
        line(f"before = cuda.shared.array({BITMAP_WORDS}, int32)")
        line(f"base = int32(max(vertex_count - {32 * BITMAP_WORDS}, 0))")
        with block(f"for word in range(thread, {BITMAP_WORDS}, {HUB_THREADS}):"):
            line("bits[uint32(word)] = uint32(0)")
        for each in self.of_place:
            size = SUM_BYTES // len(self.of_place) // (8 if "64" in each.dtype else 4)
            line(f"{each.name} = cuda.shared.array({size}, {each.dtype})")
            with block(f"for found in range(thread, {size}, {HUB_THREADS}):"):
                line(f"{each.name}[uint32(found)] = {each.zero}")
        line("cuda.syncthreads()")
        with block(f"for found in range(thread, stop - start, {HUB_THREADS}):"):
            line(f"high = upper_ranks[{self.edge_id('start + found')}]")
            with block("if high >= base:"):
                line("word = uint32(uint32(high - base) >> 5)")
                line("last_word = int32(-1)")
                with block("if found > 0:"):
                    previous = f"upper_ranks[{self.edge_id('start + found - 1')}]"
                    line(f"last_word = int32(({previous} - base) >> 5)")
                with block("if last_word != int32(word):"):
                    line("before[word] = int32(found)")
                line("warp.set_bit(bits, high - base)")
        line("cuda.syncthreads()")
        line("outside = warp.lower_bound(upper_ranks, start, stop, base)")

    def _lower_vertices(self) -> None:
        line, block = self.writer.line, self.writer.block
        groups = HUB_THREADS // HUB_LANES
        line(f"lane = cuda.laneid & {HUB_LANES - 1}")
        line(f"group = thread >> {HUB_LANES.bit_length() - 1}")
        line(f"first_lower, last_lower = {self.ends('lower', 'row')}")
        header = f"range(first_lower, last_lower, {self.place(str(groups))})"
        with block(f"for first in {header}:"):
            line("# All lanes of the warp go round together: they add up below.")
            line("lower = first + group")
            line("takes = lower < last_lower")
            line(f"lower = {self.place('min(lower, last_lower - 1)')}")
            line(f"slot = lower_slots[{self.edge_id('lower')}]")
            line(f"low = lower_ranks[{self.edge_id('lower')}]")
            edge = f"upper_edges[{self.edge_id('slot')}]"
            line(f"e_uv = {self.edge_id(edge)}")
            if self.within is not None:
                line(f"takes = takes and {self.is_within('e_uv')}")
            line(
                f"begin, end = {self.place('slot + 1')}, upper_offsets[uint32(low + 1)]"
            )
            line("end = end if takes else begin")
            line("u = rank_vertex[uint32(low)]")
            line(f"both_active = is_active or {self.test_active('u')}")
            self.start(self.of_lower)
            step = self.place(str(HUB_LANES))
            with block(
                f"for other in range({self.place('begin + lane')}, end, {step}):"
            ):
                line(f"high = upper_ranks[{self.edge_id('other')}]")
                self._find_member()
                with block("if found >= 0:"):
                    line(f"mine = {self.place('start + found')}")
                    self.triangle("v", "u", "e_uv", "found")
            for each in self.of_lower:
                line(f"{each.name} = warp.group_sum({each.name}, {HUB_LANES})")
            if self.of_lower:
                with block("if lane == 0:"):
                    self.settle_all(self.of_lower)

    def _find_member(self) -> None:
        line, block = self.writer.line, self.writer.block
        line("found = int32(-1)")
        with block("if high >= base:"):
            line("bit = uint32(high - base)")
            line("word = bits[uint32(bit >> 5)]")
            line("below = uint32((uint32(1) << (bit & uint32(31))) - 1)")
            with block("if uint32((word >> (bit & uint32(31))) & uint32(1)) != 0:"):
                count = "warp.count_bits(uint32(word & below))"
                line(f"found = int32(before[uint32(bit >> 5)] + {count})")
        with block("elif start < outside:"):
            line("hit = warp.lower_bound(upper_ranks, start, outside, high)")
            here = f"upper_ranks[{self.edge_id('hit')}]"
            with block(f"if hit < outside and {here} == high:"):
                line("found = int32(hit - start)")

    def _settle_places(self) -> None:
        line, block = self.writer.line, self.writer.block
        for each in self.of_place:
            size = f"min(stop - start, {each.name}.shape[0])"
            with block(f"for found in range(thread, {size}, {HUB_THREADS}):"):
                place = self.edge_id("start + found")
                if each.role == "w":
                    line(f"w = rank_vertex[uint32(upper_ranks[{place}])]")
                else:
                    line(f"e_vw = {self.edge_id(f'upper_edges[{place}]')}")
                line(f"{each.more} = {each.name}[uint32(found)]")
                self.settle(each, each.more)

"""Kernels of triangle functions on the CPU target: chunks of rows over threads.

The row of `v` is intersected with what the vertices `u` below it have above `v`.
Marked, the places of its members stand in an array over all vertices, so that each
entry of the others costs one read. Merged, two sorted rows are walked side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from featgraph.fold.codegen.kernels.triangles import Triangles, print_found
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.plan.plan import FoldPlan, Phase

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Entry

__all__ = ["print_triangles"]


def print_triangles(
    context: Context, plan: FoldPlan, number: int, phase: Phase
) -> list[Entry]:
    """Print the kernel of a triangle phase."""
    return _CpuTriangles(context, phase, plan.functions_of(phase)[0], "cpu").run(number)


class _CpuTriangles(Triangles):
    def run(self, number: int) -> list[Entry]:
        from featgraph.fold.codegen.module import Entry

        name = f"triangle_phase_{number}"
        if self.phase.from_edges:
            arguments = ["d", "chunks", *self.edge_arguments]
            doc = "Sweep the edges of a chunk that passed, and their triangles."
        else:
            arguments = ["d", "chunks", "active", "all_active", *self.row_arguments]
            doc = "Sweep the rows of a chunk, and the triangles that begin there."
        with self._kernel(number, name, arguments, doc):
            if self.phase.from_edges:
                self._edges()
            else:
                self._rows()
        return [Entry(name, number, "main", tuple(arguments))]

    @contextmanager
    def _kernel(
        self, number: int, name: str, arguments: list[str], doc: str
    ) -> Iterator[None]:
        writer = self.writer
        inner = [a for a in arguments if a != "chunks"]
        sweep = f"sweep_{number}"
        writer.line()
        writer.line()
        writer.line("@njit(**SWEEP)")
        with writer.block(f"def {sweep}(first, last, {', '.join(inner)}):"):
            writer.line(f'"""{doc}"""')
            yield
        writer.line()
        writer.line()
        writer.line("@njit(**KERNEL)")
        with (
            writer.block(f"def {name}({', '.join(arguments)}):"),
            writer.block("for chunk in prange(chunks.size - 1):"),
        ):
            writer.line(
                f"{sweep}(chunks[chunk], chunks[chunk + 1], {', '.join(inner)})"
            )

    # -- rows of the oriented graph

    def _rows(self) -> None:
        line, block = self.writer.line, self.writer.block
        marks = self.phase.mapping.schedule == "mark"
        if marks:
            line("# One more than the place of each member in the row.")
            line("place = np.zeros(rank_vertex.size, np.int32)")
        if self.of_place:
            line("longest = 0")
            with block("for row in range(first, last):"):
                line("size = upper_offsets[row + 1] - upper_offsets[row]")
                line("longest = max(longest, size)")
        for each in self.of_place:
            line(f"{each.name} = np.zeros(longest, np.{each.dtype})")
        with block("for row in range(first, last):"):
            line("start, stop = upper_offsets[row], upper_offsets[row + 1]")
            with block(
                "if start == stop or lower_offsets[row] == lower_offsets[row + 1]:"
            ):
                line("continue")
            line("v = rank_vertex[row]")
            self._look_for_active()
            if marks:
                with block("for slot in range(start, stop):"):
                    self.skip_unless_within("upper_edges[slot]")
                    line("place[upper_ranks[slot]] = slot - start + 1")
            self.start(self.of_row)
            with block(
                "for lower in range(lower_offsets[row], lower_offsets[row + 1]):"
            ):
                self._lower(marks)
            self._settle_row(marks)

    def _look_for_active(self) -> None:
        """Print whether the middle vertex, or any above it, is active."""
        line, block = self.writer.line, self.writer.block
        line("is_active = all_active or cpu.test_bit(active, v)")
        line("some_active = is_active")
        line("slot = start")
        with block("while not some_active and slot < stop:"):
            line("some_active = cpu.test_bit(active, rank_vertex[upper_ranks[slot]])")
            line("slot += 1")

    def _lower(self, marks: bool) -> None:
        line, block = self.writer.line, self.writer.block
        line("slot, low = lower_slots[lower], lower_ranks[lower]")
        line("begin, end = slot + 1, upper_offsets[low + 1]")
        with block("if begin == end:"):
            line("continue")
        line("u, e_uv = rank_vertex[low], upper_edges[slot]")
        self.skip_unless_within("e_uv")
        line("both_active = is_active or cpu.test_bit(active, u)")
        with block("if not (both_active or some_active):"):
            line("continue")
        self.start(self.of_lower)
        if marks:
            with block("for other in range(begin, end):"):
                line("high = upper_ranks[other]")
                line("found = place[high] - 1")
                with block("if found >= 0:"):
                    self._triangle()
        else:
            line("other, mine = begin, start")
            with block("while other < end and mine < stop:"):
                line("high = upper_ranks[other]")
                line("found, own = mine - start, upper_ranks[mine]")
                line("mine += own <= high")
                with block("if own == high:"):
                    if self.within is not None:
                        line("e_vw = upper_edges[start + found]")
                        with block(f"if {self.is_within('e_vw')}:"):
                            self._triangle()
                    else:
                        self._triangle()
                line("other += own >= high")
        for each in self.of_lower:
            self.settle(each)

    def _triangle(self) -> None:
        line, block = self.writer.line, self.writer.block
        line("e_uw, e_vw = upper_edges[other], upper_edges[start + found]")
        line("w = rank_vertex[high]")
        tests = [] if self.within is None else [self.is_within("e_uw")]
        tests.append("(both_active or cpu.test_bit(active, w))")
        with block(f"if {' and '.join(tests)}:"):
            self.call()
            self.take(self.of_row + self.of_lower)
            for each in self.of_place:
                line(f"{each.name}[found] += {each.more}")
            for each in self.of_once:
                self.settle(each, each.more)

    def _settle_row(self, marks: bool) -> None:
        line, block = self.writer.line, self.writer.block
        for each in self.of_row:
            self.settle(each)
        if not marks and not self.of_place:
            return
        with block("for slot in range(start, stop):"):
            if marks:
                line("place[upper_ranks[slot]] = 0")
            if any(s.role == "w" for s in self.of_place):
                line("w = rank_vertex[upper_ranks[slot]]")
            if any(s.role == "e_vw" for s in self.of_place):
                line("e_vw = upper_edges[slot]")
            for each in self.of_place:
                line(f"{each.more} = {each.name}[slot - start]")
                self.settle(each, each.more)
                line(f"{each.name}[slot - start] = 0")

    # -- edges that passed

    def _edges(self) -> None:
        line, block = self.writer.line, self.writer.block
        with block("for e in range(first, last):"):
            line("twin = edge_twin[e]")
            with block(
                "if edge_state[e] != 2 or twin == e or "
                "(twin < e and edge_state[twin] == 2):"
            ):
                line("continue")
            line(
                "low, high = vertex_rank[in_sources[e]], vertex_rank[in_sources[twin]]"
            )
            line("edge = e if low < high else twin")
            self.skip_unless_within("edge")
            line("low, high = min(low, high), max(low, high)")
            line("near, far = low, high")
            for name in ("near", "far"):
                size = f"both_offsets[{name} + 1] - both_offsets[{name}]"
                line(f"size_of_{name} = {size}")
            with block("if size_of_far < size_of_near:"):
                line("near, far = far, near")
            line("other, end = both_offsets[far], both_offsets[far + 1]")
            with block(
                "for slot in range(both_offsets[near], both_offsets[near + 1]):"
            ):
                line("third = both_ranks[slot]")
                line("other = cpu.lower_bound(both_ranks, other, end, third)")
                with block("if other == end:"):
                    line("break")
                with block("if both_ranks[other] != third:"):
                    line("continue")
                line("to_low, to_high = both_edges[slot], both_edges[other]")
                with block("if near != low:"):
                    line("to_low, to_high = to_high, to_low")
                self._found("cpu")

    def _found(self, library: str) -> None:
        print_found(self, library)

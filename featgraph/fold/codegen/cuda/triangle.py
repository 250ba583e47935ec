"""What the CUDA kernels of triangle functions have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.kernels.triangles import Sum, Triangles
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.plan.plan import Phase

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Entry

__all__ = ["CudaTriangles"]


class CudaTriangles(Triangles):
    """Prints indices, tests and sums of these kernels."""

    def __init__(
        self,
        context: Context,
        phase: Phase,
        function: Analysed,
        number: int,
        wide: bool,
    ) -> None:
        super().__init__(context, phase, function, "warp")
        self.number = number
        self.wide = wide

    def run(self) -> Entry:
        """Print the kernel."""
        raise NotImplementedError

    def edge_id(self, text: str) -> str:
        """Return the text of an edge id, or of a place in the rows."""
        return f"{'uint64' if self.wide else 'uint32'}({text})"

    def place(self, text: str) -> str:
        """Return a signed number that counts places in the rows."""
        return f"{'int64' if self.wide else 'int32'}({text})"

    def ends(self, rows: str, row: str) -> str:
        """Return where a row begins and ends."""
        first, last = self.index(row), self.index(f"{row} + 1")
        return f"{rows}_offsets[{first}], {rows}_offsets[{last}]"

    @contextmanager
    def kernel(
        self, suffix: str, threads: int, arguments: list[str], doc: str
    ) -> Iterator[Entry]:
        """Print the header of a kernel around its body."""
        from featgraph.fold.codegen.module import Entry

        writer, role = self.writer, suffix or "main"
        name = f"triangle_phase_{self.number}{suffix and '_'}{suffix}"
        writer.line()
        writer.line()
        writer.line(f"@kernel(cache=True, launch_bounds={threads})")
        with writer.block(f"def {name}({', '.join(arguments)}):"):
            writer.line(f'"""{doc}"""')
            yield Entry(name, self.number, role, tuple(arguments), {}, threads, threads)

    def test_active(self, vertex: str) -> str:
        """Return the test whether a vertex is active."""
        return f"warp.test_bit(active, {vertex})"

    def at(self, *roles: str) -> list[Sum]:
        """Return the sums at some places of a triangle."""
        return [s for s in self.sums if s.role in roles]

    def settle_all(self, sums: list[Sum]) -> None:
        """Print that memory takes sums."""
        for each in sums:
            self.settle(each)

    def triangle(self, *waiting: str) -> None:
        """Print what is done for w = high, at `other` of u's row and `mine` of v's."""
        line, block = self.writer.line, self.writer.block
        for name, place in (("e_uw", "other"), ("e_vw", "mine")):
            edge = f"upper_edges[{self.edge_id(place)}]"
            line(f"{name} = {self.edge_id(edge)}")
        line("w = rank_vertex[uint32(high)]")
        tests = [self.is_within(e) for e in ("e_uw", "e_vw") if self.within is not None]
        tests.append(f"(both_active or {self.test_active('w')})")
        with block(f"if {' and '.join(tests)}:"):
            self.call()
            for each in self.sums:
                if each.role in waiting:
                    line(each.plus(each.more))
                elif "found" in waiting and each in self.of_place:
                    with block(f"if found < {each.name}.shape[0]:"):
                        line(f"warp.atomic_add({each.name}, found, {each.more})")
                    with block("else:"):
                        self.settle(each, each.more)
                else:
                    self.settle(each, each.more)

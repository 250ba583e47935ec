"""Memory that a CUDA kernel works in: k x k areas of its groups or threads."""

from __future__ import annotations

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.cuda.blocks import CudaBlocks
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.plan.plan import Phase

__all__ = ["KernelAreas", "numba_name"]


def numba_name(dtype: str) -> str:
    """Return how a generated module names a dtype."""
    return "boolean" if dtype == "bool" else dtype


class KernelAreas:
    """Which areas a phase needs, and where they are."""

    context: Context
    writer: Writer
    phase: Phase
    functions: list[Analysed]
    printed: dict[str, Printed]
    #: Argument -> dtype and shape of an area in global memory.
    scratch: dict[str, tuple[str, tuple[int, ...]]]

    def _body(self) -> CudaBlocks:
        raise NotImplementedError

    def _matrices(self, shared: int, owner: str) -> None:
        """Name the k x k areas of each group or thread.

        In shared memory for `shared` groups, else in scratch memory.
        """
        k, line = self.phase.width, self.writer.line
        for name, columns, dtype in self._areas():
            if shared:
                shape, kind = f"({shared}, {k}, {columns})", numba_name(dtype)
                line(f"{name} = cuda.shared.array({shape}, {kind})[uint32({owner})]")
                continue
            argument = f"scratch_{len(self.scratch)}"
            self.scratch[argument] = dtype, (k, columns)
            line(f"{name} = {argument}[uint32({owner})]")

    def _areas(self) -> list[tuple[str, int, str]]:
        """Return name, columns and dtype of the areas of a group or thread."""
        elsewhere, real = {*self.phase.loads, *self.phase.solved}, self.context.real
        areas = [
            (a.name, self.phase.width, real if a.type == "real" else a.type)
            for a in self._held()
            if a.is_matrix and a.name not in elsewhere
        ]
        body = self._body()
        areas += [
            (body.waiting(a), self.phase.width, real)
            for a in body.in_blocks(self.functions)
            if body.waits_in_area(a)
        ]
        for printed in self.printed.values():
            areas += [
                (f"{printed.name}_work_{n}", columns, real)
                for n, columns in enumerate(printed.areas)
            ]
        return areas

    def _has_matrices(self) -> bool:
        return bool(self._areas())

    def _held(self) -> list[Accumulator]:
        """Return the accumulators that this phase keeps for a vertex."""
        names = (
            {f.into for f in self.functions if f.into is not None}
            if self.phase.kind != "push"
            else set()
        )
        accumulators = self._body().accumulators
        return [accumulators[n] for n in sorted(names | set(self.phase.loads))]

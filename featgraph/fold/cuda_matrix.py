"""CUDA kernels of reduces whose result is a k x k matrix."""

from __future__ import annotations

from featgraph.fold.cuda_phase import CudaPhase
from featgraph.fold.owner import OwnerBody

__all__ = ["MatrixReduce"]


class MatrixReduce(CudaPhase):
    """A block has a partial matrix, and each of its threads elements of that."""

    def _body(self) -> OwnerBody:
        return OwnerBody(
            self.context, self.plan, self.phase, self.printed, "warp", self.edge_id
        )

    def reduce(self) -> None:
        """Print the body of the kernel."""
        writer, accumulator = self.writer, self._reduced()
        function, k = self.functions[0], self.phase.width
        roles = [r for r in function.declared.roles if r not in {"i", "f"}]
        call = f"{self.printed[function.name].name}(i, f, {', '.join(roles)})"
        writer.line("row = uint32(cuda.blockIdx.x)")
        elements = f"range(cuda.threadIdx.x, {k * k}, {self.threads})"
        with writer.block(f"for element in {elements}:"):
            writer.line(f"i = int32(element // {k})")
            writer.line(f"f = int32(element - i * {k})")
            writer.line(f"total = {accumulator.identity}")
            vertices = "range(cuda.blockIdx.x, int32(vertex_count), cuda.gridDim.x)"
            with (
                writer.block(f"for v in {vertices}:"),
                writer.block("if warp.test_bit(due, v):"),
            ):
                writer.line(accumulator.update("total", call))
            writer.line("partials[row, uint32(element)] = total")

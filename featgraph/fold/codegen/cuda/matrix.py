"""CUDA kernels of reduces whose result is a k x k matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from featgraph.fold.codegen.cuda.blocks import CudaBlocks
from featgraph.fold.codegen.cuda.phase import CudaPhase
from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["MatrixReduce"]


class _ElementBody(CudaBlocks):
    """A thread sums one element of the matrix, in ``total``."""

    def waiting(self, accumulator: Accumulator) -> str:
        """Return the array in which sums of blocks wait."""
        return "block_sums_0"


class MatrixReduce(CudaPhase):
    """A block has a partial matrix, and each of its threads elements of that."""

    def _body(self) -> _ElementBody:
        return _ElementBody(
            self.context, self.plan, self.phase, self.printed, "warp", self.edge_id
        )

    def reduce(self) -> None:
        """Print the body of the kernel."""
        writer, accumulator = self.writer, self.reduced()
        function, k = self.functions[0], self.phase.width
        roles = [r for r in function.declared.roles if r not in {"i", "f"}]
        call = f"{self.printed[function.name].name}(i, f, {', '.join(roles)})"
        writer.line("row = uint32(cuda.blockIdx.x)")
        elements = f"range(cuda.threadIdx.x, {k * k}, {self.threads})"
        with writer.block(f"for element in {elements}:"):
            writer.line(f"i = int32(element // {k})")
            writer.line(f"f = int32(element - i * {k})")
            writer.line(f"total = {accumulator.identity}")
            with (
                self._each_vertex(accumulator),
                writer.block("if warp.test_bit(due, v):"),
            ):
                writer.line(accumulator.update("total", call))
            writer.line("partials[row, uint32(element)] = total")

    @contextmanager
    def _each_vertex(self, accumulator: Accumulator) -> Iterator[None]:
        """Print a block's loop over vertices, in blocks of them for sums."""
        writer, body = self.writer, self._body()
        first, last, stride = "cuda.blockIdx.x", "int32(vertex_count)", "cuda.gridDim.x"
        total = replace(accumulator, name="total", shape=())
        if not body.in_blocks(self.functions):
            with writer.block(f"for v in range({first}, {last}, {stride}):"):
                yield
            return
        first, size = f"int32({first})", f"{body.block} * int32({stride})"
        writer.line(f"block_sums_0 = cuda.local.array(1, {self.context.real})")
        narrow = "int32({})".format
        with (
            body.cut([total], first, last, size, body.start, narrow),
            writer.block(f"for v in range(block_start, block_end, int32({stride})):"),
        ):
            yield

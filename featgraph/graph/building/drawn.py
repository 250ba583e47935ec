"""Generated edges: any range of them, on the host or on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import DeviceValues, in_pieces

__all__ = ["Drawing", "drawn"]

#: Weights that are copied to the host at a time.
_PIECE = 1 << 24


@dataclass(frozen=True)
class Drawing:
    """A generator of edges that are functions of their indices.

    Attributes
    ----------
    name : str
        A function of `featgraph.graph.building.drawing_cpu`, and of the kernels.
    parameters : tuple
        Its arguments before the index of the first edge and the arrays.
    count, vertex_count : int
        Numbers of edges and of vertices.
    weights : numpy.uint64, or None
        The seed of weights; None for edges without weights.
    weights_by : str
        The function that generates weights.
    sides : tuple of int, or None
        Number of vertices of each side; each edge joins two sides.
    """

    name: str
    parameters: tuple[Any, ...]
    count: int
    vertex_count: int
    weights: np.uint64 | None = None
    weights_by: str = "draw_weights"
    sides: tuple[int, ...] | None = None

    def on_gpu(self, first: int, last: int) -> tuple[Any, Any, Any]:
        """Return sources, targets and weights of a range of edges, on the GPU."""
        from featgraph.cuda import arrays
        from featgraph.graph.building import drawing_cuda

        count, start = last - first, np.int64(first)
        ends = arrays.empty((count,), np.int32), arrays.empty((count,), np.int32)
        kernel = getattr(drawing_cuda, self.name)
        arrays.launch_over(kernel, count, *self.parameters, start, *ends)
        if self.weights is None:
            return *ends, None
        weights = arrays.empty((count,), np.float32)
        given = self.weights, start, weights
        arrays.launch_over(getattr(drawing_cuda, self.weights_by), count, *given)
        return *ends, weights

    def weights_to_host(self) -> np.ndarray[Any, Any] | None:
        """Return all weights on the host, generated on the GPU, or None."""
        from featgraph.cuda import arrays
        from featgraph.graph.building import drawing_cuda

        if self.weights is None:
            return None
        made = np.empty(self.count, np.float32)
        draw = getattr(drawing_cuda, self.weights_by)
        for first in range(0, self.count, _PIECE):
            part = made[first : first + _PIECE]
            piece = arrays.empty(part.shape, np.float32)
            given = self.weights, np.int64(first), piece
            arrays.launch_over(draw, part.size, *given)
            part[:] = arrays.read(piece)
        return made

    def on_host(self, first: int, last: int) -> tuple[Any, Any, Any]:
        """Return sources, targets and weights of a range of edges, on the host."""
        from featgraph.graph.building import drawing_cpu

        count = last - first
        u, v = np.empty(count, np.int32), np.empty(count, np.int32)
        weights = None if self.weights is None else np.empty(count, np.float32)
        draw = getattr(drawing_cpu, self.name)
        weigh = getattr(drawing_cpu, self.weights_by)

        def fill(begin: int, end: int) -> None:
            some, start = slice(begin, end), first + begin
            draw(*self.parameters, start, u[some], v[some])
            if weights is not None:
                weigh(self.weights, start, weights[some])

        # Generating an edge costs as much as moving 20 bytes or more.
        in_pieces(count, 20 * count, fill)
        return u, v, weights


def drawn(target: str, drawing: Drawing) -> tuple[Any, Any, Any]:
    """Return sources, targets and weights of all edges, on the target.

    Parameters
    ----------
    target : {"cpu", "cuda"}
    drawing : Drawing
    """
    if target == "cpu":
        return drawing.on_host(0, drawing.count)
    made = drawing.on_gpu(0, drawing.count)
    return tuple(None if a is None else DeviceValues(a) for a in made)  # type: ignore[return-value]

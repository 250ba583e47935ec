"""Generated edges: any range, on the host or on the GPU, in a list or in rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import DeviceValues, in_pieces
from featgraph.graph.building.row_edges import GpuRowEdgeList

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from featgraph.graph.building.gpu_part_edges import GpuRowEdges
    from featgraph.graph.building.gpu_parts import Piece, Pieces, Survey

__all__ = ["Drawing", "DrawnRowEdges", "drawn"]

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

    def pieces(self, first: int = 0, last: int | None = None) -> Pieces:
        """Return a stream of a range of edges, drawn on the GPU piece by piece."""
        from featgraph.graph.building.gpu_part_edges import PIECE_EDGES
        from featgraph.graph.building.gpu_parts import Piece  # imports the dialect

        end = self.count if last is None else last

        def passing() -> Iterator[Piece]:
            for begin in range(first, end, PIECE_EDGES):
                yield Piece(begin, *self.on_gpu(begin, min(begin + PIECE_EDGES, end)))

        return passing

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


class DrawnRowEdges(GpuRowEdgeList):
    """Edges generated on a GPU at the first use, and stored there as rows.

    Counts, and sums over the edges, do not require the rows.

    Parameters
    ----------
    drawing : Drawing
    directed : bool
    """

    def __init__(self, drawing: Drawing, directed: bool) -> None:
        self._drawing, self.directed = drawing, directed
        self.vertex_count, self.names = drawing.vertex_count, None
        self.sides = drawing.sides
        self.is_given_on_gpu, self._known = True, {}
        is_weighted = drawing.weights is not None
        self.weights_dtype = np.dtype(np.float32) if is_weighted else None
        self._as_given = drawing.weights_to_host

    @property
    def given_count(self) -> int:  # type: ignore[override]
        """The number of edges that are drawn."""
        return self._drawing.count

    @property
    def edge_count(self) -> int:
        """Directed edges, twins included; self-loops are counted in the rows."""
        return self._drawing.count if self.directed else self.on_gpu.edge_count

    @property
    def on_gpu(self) -> GpuRowEdges:
        """The edges as rows on the GPU, generated at the first use."""
        return self._rows[0]

    @property
    def by_id(self) -> Any:
        """Weights on the GPU, by edge id; None without."""
        return self._rows[1] if self.weights_dtype is not None else None

    @cached_property
    def _rows(self) -> tuple[GpuRowEdges, Any]:
        """All edges as rows, and their weights; edges are never stored as a list."""
        from featgraph.graph.building.gpu_parts import (  # imports the dialect
            Part,
            Wanted,
        )

        count, given = self.vertex_count, self._drawing.count
        wanted = Wanted(0, count, count, given, True, self.directed)
        part, dtype = Part(self._drawing.pieces(), wanted), self.weights_dtype
        to_host = self._drawing.weights_to_host
        made = GpuRowEdgeList.of_part(part, dtype, None, {}, to_host)
        rows: Any = made.on_gpu
        return rows, made.by_id

    def sum_ends(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of ends: uint64, shape (2,)."""
        return self._survey.ends

    def sum_weights(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of weights: uint64, shape (2,)."""
        return self._survey.weights

    @cached_property
    def _survey(self) -> Survey:
        from featgraph.graph.building.gpu_parts import survey  # imports the dialect

        counters = -(-self.vertex_count // 32)
        return survey(self._drawing.pieces(), counters, 5, self.directed)

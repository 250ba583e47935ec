"""Edges generated on a GPU at the first use, and stored as rows only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.graph.building.drawn import Drawing
from featgraph.graph.building.row_edges import GpuRowEdgeList

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from featgraph.graph.building.gpu_part_edges import GpuRowEdges
    from featgraph.graph.building.gpu_parts import Part, Piece, Pieces, Survey, Wanted

__all__ = ["DrawnRowEdges", "drawn_pieces", "part_edges"]


def drawn_pieces(drawing: Drawing, first: int, last: int) -> Iterator[Piece]:
    """Draw some edges on the GPU, piece by piece."""
    from featgraph.graph.building.gpu_part_edges import PIECE_EDGES
    from featgraph.graph.building.gpu_parts import Piece  # imports the dialect

    for begin in range(first, last, PIECE_EDGES):
        made = drawing.on_gpu(begin, min(begin + PIECE_EDGES, last))
        yield Piece(begin, *made)


def part_edges(
    drawing: Drawing,
    wanted: Wanted,
    known: dict[str, Any] | None = None,
    places: Any = None,
) -> tuple[Part, GpuRowEdgeList]:
    """Return the part of a rank of all edges that are drawn, and its edges.

    Parameters
    ----------
    drawing : Drawing
    wanted : Wanted
        Which of them. Given edges of a whole graph are in the order of their numbers;
        those of a part are in the order of its rows.
    known : dict, optional
        Known facts of the graph, if it is whole.
    places : array of int32, shape (V,), optional
        Of the GPU: the place of each vertex in the order that parts are ranges of.
        Default: its number.
    """
    from featgraph.graph.building.gpu_part_edges import GpuRowEdges
    from featgraph.graph.building.gpu_parts import (  # imports the dialect
        Part,
        renumbered,
    )

    pieces: Pieces = partial(drawn_pieces, drawing, 0, drawing.count)
    part = Part(pieces if places is None else renumbered(pieces, places), wanted)
    ends, weights = part.rows(None if drawing.weights is None else np.float32)
    is_directed, numbers = wanted.directed, part.numbers
    is_whole = known is not None
    if not wanted.is_both:  # edges into own vertices alone are given row by row
        is_directed, numbers = True, None  # type: ignore[assignment]
    rows = GpuRowEdges(
        part.offsets,
        ends,
        is_directed,
        numbers,
        max(drawing.count, 1),
        is_by_slot=not is_whole,
    )
    as_given = drawing.weights_to_host if is_whole else None
    known = {**(known or {}), "in_offsets": part.on_host}
    return part, GpuRowEdgeList(rows, weights, known, as_given)


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
        """The edges, drawn."""
        return self._rows[0]

    @property
    def _by_id(self) -> Any:
        return self._rows[1] if self.weights_dtype is not None else None

    @cached_property
    def _rows(self) -> tuple[GpuRowEdges, Any]:
        """All edges as rows, and their weights; edges are never stored as a list."""
        from featgraph.graph.building.gpu_parts import Wanted  # imports the dialect

        count, given = self.vertex_count, self._drawing.count
        wanted = Wanted(0, count, count, given, True, self.directed)
        made = part_edges(self._drawing, wanted, {})[1]
        rows: Any = made.on_gpu
        return rows, made.there_by_id

    def sum_ends(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of ends: uint64, shape (2,)."""
        return self._survey.ends

    def sum_weights(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of weights: uint64, shape (2,)."""
        return self._survey.weights

    @cached_property
    def _survey(self) -> Survey:
        from featgraph.graph.building.gpu_parts import survey  # imports the dialect

        pieces = partial(drawn_pieces, self._drawing, 0, self._drawing.count)
        return survey(pieces, -(-self.vertex_count // 32), 5, self.directed)

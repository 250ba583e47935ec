"""Edges that a GPU draws and never has but as rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.arrays.drawn import Drawing
from featgraph.graph._structure import structure_digest
from featgraph.graph.building.gpu_row_edges import GpuRowEdgeList

if TYPE_CHECKING:
    from featgraph.arrays.parts.passing import Part, Piece, Pieces, Wanted

__all__ = ["drawn_pieces", "drawn_rows", "part_edges"]


def drawn_pieces(drawing: Drawing, first: int, last: int) -> Iterator[Piece]:
    """Draw some edges on the GPU, piece by piece."""
    from featgraph.arrays.parts.passing import Piece  # imports the dialect
    from featgraph.arrays.parts.row_edges import PIECE_EDGES

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
        Which of them. Of a whole graph given edges have the order of their numbers; of
        a part, of which nobody is given edges, that of its rows.
    known : dict, optional
        Of the whole graph, what else is known of it.
    places : array of int32, shape (V,), optional
        Of the GPU: the place of each vertex in the order that parts are ranges of.
        Default: its number.
    """
    from featgraph.arrays.parts.passing import Part, renumbered  # imports the dialect
    from featgraph.arrays.parts.row_edges import GpuRowEdges

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


def drawn_rows(drawing: Drawing, directed: bool) -> GpuRowEdgeList:
    """Return all edges, in rows; no list of them is ever there."""
    from featgraph.arrays.parts.passing import Wanted, survey  # imports the dialect
    from featgraph.graph.building import digests  # loads Numba

    count = drawing.vertex_count
    pieces = partial(drawn_pieces, drawing, 0, drawing.count)
    seen = survey(pieces, -(-count // 32), 5, directed)
    known = {"digest": structure_digest(count, directed, digests.text_of(seen.ends))}
    if drawing.weights is not None:
        known["weights_digest"] = f"float32 {digests.text_of(seen.weights)}"
    wanted = Wanted(0, count, count, drawing.count, True, directed)
    made = part_edges(drawing, wanted, known)[1]
    made.sides, made.joins_sides = drawing.sides, drawing.sides is not None
    return made

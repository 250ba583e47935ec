"""Gathering of rows of all ranks on every rank, piece by piece.

Pieces are stored straight into the result, so memory is needed for a few pieces only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.graph.partition.partition import Partition
from featgraph.ranks.engines.messages import rows_like
from featgraph.ranks.engines.protocol import Engine

__all__ = ["gather_at", "gather_rows"]

Array = npt.NDArray[Any]
#: ``write(begin, count, message)`` writes `count` own rows, from `begin` on, to a
#: message; ``read(rank, begin, count, message)`` stores such rows of another rank.
_Write = Callable[[int, int, Array], None]
_Read = Callable[[int, int, int, Array], None]
#: Approximate bytes of a piece: so many that the latency of an exchange is small beside
#: them, even over Gloo, and so few that memory of the last piece is reused.
PIECE_BYTES = 1 << 23
#: A full piece has a multiple of so many rows, so that the indices that follow its rows
#: in a message are aligned.
_ROWS = 8


def gather_rows(
    engine: Engine, partition: Partition, own: Array, out: Array, about: str
) -> None:
    """Fill an array with the rows of all vertices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    partition : Partition
    own : array
        Rows of the vertices that this rank owns, in the order of the partition.
    out : array
        The result, by given vertex id, with the dtype of `own`.
    about : str
        A name of the values, for errors.
    """
    cuts, order = partition.cuts.tolist(), partition.order

    def place(rank: int, begin: int, rows: Array) -> None:
        places = slice(cuts[rank] + begin, cuts[rank] + begin + len(rows))
        out[places if order is None else order[places]] = rows

    def write(begin: int, count: int, message: Array) -> None:
        rows_like(message, own)[...] = own[begin : begin + count]

    def read(rank: int, begin: int, count: int, message: Array) -> None:
        place(rank, begin, rows_like(message, own))

    place(engine.rank, 0, own)
    counts = np.diff(partition.cuts).tolist()
    _send_pieces(engine, counts, _row_bytes(own), write, read, _named(about, own))


def gather_at(
    engine: Engine, places: Array, stored: Array, chosen: Array, out: Array, about: str
) -> None:
    """Fill an array with rows of all ranks at given indices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    places : array of integers
        The index in the result of each row of this rank.
    stored, chosen : array
        ``stored[chosen]`` are the rows of this rank.
    out : array
        The result, of the dtype of `stored`.
    about : str
        A name of the values, for errors.
    """
    number = np.dtype(np.int32 if len(out) < 1 << 31 else np.int64)
    row = _row_bytes(stored)
    sizes = engine.all_gather(np.array([places.size]), about=about)

    def write(begin: int, count: int, message: Array) -> None:
        piece = slice(begin, begin + count)
        rows_like(message[: count * row], stored)[...] = stored[chosen[piece]]
        message[count * row :].view(number)[...] = places[piece]

    def read(rank: int, begin: int, count: int, message: Array) -> None:
        at = message[count * row :].view(number)
        out[at] = rows_like(message[: count * row], stored)

    out[places] = stored[chosen]
    counts = np.concatenate(sizes).tolist()
    wire = row + number.itemsize
    _send_pieces(engine, counts, wire, write, read, _named(about, stored))


def _send_pieces(
    engine: Engine,
    counts: Sequence[int],
    row_bytes: int,
    write: _Write,
    read: _Read,
    about: str,
) -> None:
    """Send the rows of each rank to all others; an exchange has a piece of each."""
    step = max(PIECE_BYTES // max(row_bytes, 1) // _ROWS, 1) * _ROWS
    for begin in range(0, max(counts), step):
        left = [min(max(count - begin, 0), step) for count in counts]
        own = left[engine.rank]
        engine.hand_to_all(
            own * row_bytes,
            lambda message, begin=begin, own=own: write(begin, own, message),  # type: ignore[misc]
            lambda rank, message, begin=begin, left=left: read(  # type: ignore[misc]
                rank, begin, left[rank], message
            ),
            about=about,
        )


def _row_bytes(array: Array) -> int:
    return array.dtype.itemsize * prod(array.shape[1:])


def _named(about: str, rows: Array) -> str:
    """Return the name of an exchange, with the dtype and shape of rows."""
    return f"{about}, {rows.dtype}{list(rows.shape[1:])}"

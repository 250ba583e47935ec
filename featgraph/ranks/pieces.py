"""The rows of a whole graph on one rank, piece by piece: no rank ever has them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import DistributedError, StateError
from featgraph.ranks.members import packed

__all__ = ["Pieces", "gather_first"]

Array = npt.NDArray[Any]
#: Bytes of a piece, about.
PIECE_BYTES = 1 << 24
#: Rows of a piece are a multiple: a set is whole words then.
_ROWS = 32


class Pieces:
    """Rows that ranks have, in the order of the whole: a piece in each turn.

    All ranks go through it, once. The first one is given the pieces, others nothing.

    Parameters
    ----------
    engine : Engine
    count : int
        How many rows there are.
    places : array of int64
        Which of them this rank has, in any order; some may be on several ranks.
    rows : array
        These.
    as_set : bool
        Whether rows are truth values of which a bitvector is made.
    """

    def __init__(
        self, engine: Engine, count: int, places: Array, rows: Array, as_set: bool
    ) -> None:
        order = np.argsort(places, kind="stable")
        self._engine, self._count, self._as_set = engine, count, as_set
        self._places, self._rows = places[order], np.take(rows, order, axis=0)
        self.dtype: np.dtype[Any] = np.dtype(np.uint32) if as_set else rows.dtype
        length = -(-count // _ROWS) if as_set else count
        self.shape = (length, *rows.shape[1:])
        self._is_spent = False

    def __iter__(self) -> Iterator[Array]:
        if self._is_spent:
            raise StateError(
                "something else was put there meanwhile",
                fix="save again, or choose another path",
            )
        self._is_spent = True
        row = self._rows.itemsize * prod(self._rows.shape[1:])
        step = max(PIECE_BYTES // row // _ROWS, 1) * _ROWS
        for begin in range(0, self._count, step):
            size = min(step, self._count - begin)
            bounds = np.searchsorted(self._places, [begin, begin + size])
            chosen = slice(*bounds.tolist())
            offsets = (self._places[chosen] - begin).astype(np.int32)
            parts = [offsets.view(np.uint8), _bytes(self._rows[chosen])]
            received = _to_first(self._engine, np.concatenate(parts))
            if self._engine.rank == 0:
                yield self._put_together(received, size)

    def _put_together(self, received: list[Array], size: int) -> Array:
        piece = np.empty((size, *self._rows.shape[1:]), self._rows.dtype)
        row = piece.itemsize * prod(piece.shape[1:])
        for message in received:
            number = message.size // (4 + row)
            offsets = message[: 4 * number].view(np.int32)
            rows = np.ascontiguousarray(message[4 * number :]).view(piece.dtype)
            piece[offsets] = rows.reshape(number, *piece.shape[1:])
        return packed(piece) if self._as_set else piece


def gather_first(
    engine: Engine, first: Callable[[], Any], others: Callable[[], Any], about: str
) -> None:
    """Run a function on rank 0 that goes through `Pieces`, and one on the others.

    What the first one raises is raised, and told to the others, which raise, too.
    """
    if engine.rank:
        others()
        _to_first(engine, np.empty(0, np.uint8))
        return
    try:
        first()
    except BaseException as error:
        text = f"{about} failed on rank 0: {type(error).__name__}: {error}"
        _tell_others(engine, text.encode())
        raise
    _to_first(engine, np.empty(0, np.uint8))


def _bytes(rows: Array) -> Array:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)


def _to_first(engine: Engine, message: Array) -> list[Array]:
    """Hand rank 0 a message; return what it gets.

    Raises
    ------
    DistributedError
        On the others, if it has called `_tell_others`.
    """
    nothing = np.empty(0, np.uint8)
    messages = [nothing if rank else message for rank in range(engine.size)]
    received = engine.all_to_allv(messages, about="rows for rank 0")
    if engine.rank and received[0].size:
        raise DistributedError(received[0].tobytes().decode())
    return received


def _tell_others(engine: Engine, text: bytes) -> None:
    message = np.frombuffer(text, np.uint8)
    messages = [message if rank else message[:0] for rank in range(engine.size)]
    engine.all_to_allv(messages, about="rows for rank 0")

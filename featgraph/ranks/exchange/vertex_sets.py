"""Vertex sets of a rank: their words, and boundary vertices cut into ranges.

A rank has bits of its own vertices and of its ghosts. Boundary vertices (`Boundary`)
are those that are ghosts on other ranks; a sweep that overlaps with an exchange goes
over them range by range (`Pieces`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.graph.partition.cuts import Balance
from featgraph.graph.partition.shard import Shard
from featgraph.program.active import WORD_BITS, word_count
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.runtime.devices.protocol import Device

__all__ = ["Boundary", "Piece", "Pieces", "packed", "unpacked"]

Words = Any
Mask = npt.NDArray[np.bool_]


def packed(mask: Mask) -> npt.NDArray[np.uint32]:
    """Return a mask as words of 32 bits, padded with zeros."""
    padded = np.zeros(word_count(mask.size) * WORD_BITS, np.bool_)
    padded[: mask.size] = mask
    words = np.packbits(padded, bitorder="little").view("<u4")
    return words.astype(np.uint32)


def unpacked(words: npt.NDArray[np.uint32]) -> Mask:
    """Return words of 32 bits as a mask; its size is a multiple of 32."""
    bytes_ = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    return np.unpackbits(bytes_, bitorder="little").astype(np.bool_)


#: Least bytes of rows per piece, by target. An exchange over Gloo takes half a
#: millisecond, in which 10 Gb/s move a third of that; one through windows is two
#: launches, and NVLink moves this many bytes in a tenth of a millisecond.
PIECE_BYTES = {"cpu": 1 << 20, "cuda": 1 << 24}
#: The first sweep and the last exchange are not hidden: a sixteenth of each, or more.
MOST_PIECES = 16


@dataclass(frozen=True, eq=False)
class Pieces:
    """Own vertices in pieces: the boundary vertices range by range, and the rest.

    Attributes
    ----------
    words : tuple of words
        The vertices of each range, as a set.
    rest : words or None
        The vertices that are ghosts on no rank; None if there are none.
    listed : tuple of arrays of int32
        On GPUs, the vertices of each range, and those of the rest, as lists.
    sent, received : tuple of list of (int, int)
        For each range, by rank, begin and end of the entries of a send list that are
        in the range: of the list for that rank, and of that rank's list for this one.
    """

    words: tuple[Words, ...]
    rest: Words | None
    listed: tuple[Any, ...]
    sent: tuple[list[tuple[int, int]], ...]
    received: tuple[list[tuple[int, int]], ...]


class Piece(NamedTuple):
    """One range of boundary vertices, whose rows are sent in an exchange of its own.

    Attributes
    ----------
    pieces : Pieces
    number : int
        The index of the range.
    """

    pieces: Pieces
    number: int

    def __str__(self) -> str:
        return f"piece {self.number + 1} of {len(self.pieces.words)}"

    def of_lists(
        self, sent: Sequence[Any], received: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the entries of send and receive lists, by rank, that are in it."""
        of_sent, of_received = self.pieces.sent, self.pieces.received
        number = self.number
        return _within(sent, of_sent[number]), _within(received, of_received[number])


class Boundary:
    """The vertices of a rank that are ghosts on other ranks.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : Device

    Attributes
    ----------
    choices : mapping
        Plan -> whether its sweeps are cut (`ghosts.Choice`).
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._known: dict[int, Pieces] = {}
        self.choices: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._piece_bytes = PIECE_BYTES[device.name]

    def pieces(self, row_bytes: int) -> Pieces:
        """Return own vertices in pieces, each large enough for an exchange of its own.

        All ranks call it, and get the same number of pieces.
        """
        rows = self.most_rows * row_bytes
        count = min(max(rows // self._piece_bytes, 1), MOST_PIECES)
        if count not in self._known:
            self._known[count] = self._make(count)
        return self._known[count]

    def may_pay(self, row_bytes: int) -> bool:
        """Whether rows of some rank may fill a piece; the same on all ranks.

        This needs no exchange: the cuts give the number of vertices of each rank.
        """
        most = int(np.diff(self._shard.partition.cuts).max(initial=0))
        return most * row_bytes >= self._piece_bytes

    @cached_property
    def _mask(self) -> npt.NDArray[np.bool_]:
        """The mask of the own vertices that are ghosts on other ranks."""
        mask = np.zeros(self._shard.own, np.bool_)
        for listed in self._shard.send_lists:
            mask[listed] = True
        return mask

    @cached_property
    def most_rows(self) -> int:
        """The largest number of boundary vertices of any rank."""
        own = int(np.count_nonzero(self._mask))
        about = "vertices that others have as ghosts"
        return reduce_number(self._engine, own, "max", about)

    def _make(self, count: int) -> Pieces:
        """Return pieces of `count` ranges; all ranks call it."""
        cuts = self._cuts(count)
        own = [np.searchsorted(listed, cuts) for listed in self._shard.send_lists]
        theirs = self._engine.all_to_allv(own, about=f"{count} pieces of rows")
        everyone = np.zeros(self._shard.numbers.size, np.bool_)
        masks = []
        for begin, end in pairwise(cuts):
            mask = everyone.copy()
            mask[begin:end] = self._mask[begin:end]
            masks.append(mask)
        rest = everyone
        rest[: self._shard.own] = ~self._mask
        upload = self._device.upload
        listed: list[Any] = []
        if self._device.name != "cpu":  # by a list, a GPU skips words of other pieces
            found = (np.flatnonzero(mask).astype(np.int32) for mask in (*masks, rest))
            # Kernels take no empty array; if no vertex of a piece is due, none runs.
            listed = [upload(v if v.size else np.zeros(1, np.int32)) for v in found]
        return Pieces(
            tuple(upload(packed(mask)) for mask in masks),
            upload(packed(rest)) if rest.any() else None,
            tuple(listed),
            _by_piece(own),
            _by_piece(theirs),
        )

    def _cuts(self, count: int) -> npt.NDArray[np.int64]:
        """Return cuts of the own vertices at whole words, into about equal work."""
        rows = self._shard.local.in_edges.row_offsets[: self._shard.own + 1]
        work = np.where(self._mask, np.diff(rows) + Balance().vertex, 0)
        before = np.concatenate([[0], np.cumsum(work)])
        shares = before[-1] * np.arange(1, count) // count
        inner = np.searchsorted(before, shares) // WORD_BITS * WORD_BITS
        return np.concatenate([[0], inner, [self._shard.own]]).astype(np.int64)


def _within(lists: Sequence[Any], bounds: Sequence[tuple[int, int]]) -> list[Any]:
    """Return a range of each list."""
    return [one[begin:end] for one, (begin, end) in zip(lists, bounds, strict=True)]


def _by_piece(bounds: Sequence[Any]) -> tuple[list[tuple[int, int]], ...]:
    """Return (begin, end) by piece and rank, from the bounds of pieces by rank."""
    ranges = [[*pairwise(one.tolist())] for one in bounds]
    return tuple([*each] for each in zip(*ranges, strict=True))

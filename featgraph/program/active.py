"""Active sets: the vertices to process, as a bitvector on the host or on a device."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import GraphInputError
from featgraph.graph.building.check import checked_count, require_ids
from featgraph.graph.inputs.numbers import number_array

__all__ = [
    "MOST_HELD", "WORD_BITS", "ActiveSet", "checked_vertices", "pack_mask", "resized",
    "word_count",
]  # fmt: skip

WORD_BITS = 32
#: Most sets that stay on devices: memory there is scarce, and the search for an unused
#: set goes through all of them.
MOST_HELD = 32
#: Most listed vertices of a set that is made on a device directly: the device clears
#: all words, and sets those with bits.
_FEW = 4
#: Vertices are listed from the nonzero words alone if at most 1 / _DENSE of all are.
_DENSE = 8


def word_count(vertex_count: int) -> int:
    """Return the number of words of a bitvector over `vertex_count` vertices."""
    return (vertex_count + WORD_BITS - 1) // WORD_BITS


def resized(words: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.uint32]:
    """Return a copy of a bitvector with `count` words, cut off or padded with zeros."""
    made = np.zeros(count, np.uint32)
    made[: words.size] = words[:count]
    return made


def _checked(count: object) -> int:
    """Return a checked number of vertices, which may be 0, unlike that of a graph."""
    is_none = isinstance(count, int | np.integer) and count == 0
    return 0 if is_none and not isinstance(count, bool) else checked_count(count)


class HeldSets(Protocol):
    """The operations on sets of a device that an `ActiveSet` needs."""

    def upload(self, words: npt.NDArray[np.uint32]) -> Any: ...

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Any: ...

    def snapshot(self, words: Any) -> Any: ...

    def count(self, words: Any) -> int: ...


class Holder(Protocol):
    """The owner of the words of a set, such as a device."""

    #: Whether stored sets take scarce memory, which limits their number (`MOST_HELD`).
    is_scarce: bool

    @property
    def sets(self) -> HeldSets: ...

    def download(self, array: Any) -> npt.NDArray[Any]: ...


class ActiveSet:
    """A set of vertices, as a bitvector of uint32 words.

    Vertex v is bit ``v % 32`` of word ``v // 32``; the bits after the last vertex are
    zero.

    Parameters
    ----------
    vertex_count : int or Graph
        V, or a graph that has it.
    vertices : array_like, optional
        Integer ids of shape (N,), or a boolean mask of shape (V,); None for the empty
        set, ``"all"`` for all vertices. Dead vertices of a graph are left out.

    Raises
    ------
    GraphInputError
        If an id is out of range or the mask has the wrong length.

    Examples
    --------
    >>> import featgraph as fg
    >>> active = fg.ActiveSet(40, [0, 33])
    >>> len(active), 33 in active, active.vertices.tolist()
    (2, True, [0, 33])
    """

    def __init__(self, vertex_count: Any, vertices: Any = None) -> None:
        count = getattr(vertex_count, "vertex_count", vertex_count)
        self.vertex_count = _checked(count)
        #: A device and the words in its memory, until they are downloaded.
        self._held: tuple[Holder, Any] | None = None
        #: Index -> word, for nonzero words, until all words are needed on the host.
        self._few: dict[int, int] | None = None
        living = getattr(vertex_count, "living", None)
        if vertices is None:
            self._few = {}
        elif isinstance(vertices, str) and vertices == "all":
            is_all = np.ones(self.vertex_count, np.bool_)
            self._words = pack_mask(is_all if living is None else living)
        else:
            array = checked_vertices(vertices, self.vertex_count)
            if living is not None:
                array = array & living if array.dtype == bool else array[living[array]]
            if array.dtype != np.bool_ and array.size <= _FEW:
                self._few = _few_words(array)
            else:
                self._words = _as_words(array, self.vertex_count)

    @classmethod
    def from_words(cls, vertex_count: int, words: npt.NDArray[np.uint32]) -> ActiveSet:
        """Return a set over a copy of `words`."""
        made = cls(vertex_count)
        made._words, made._few = np.array(words, np.uint32), None
        return made

    @classmethod
    def held(cls, vertex_count: int, device: Holder, words: Any) -> ActiveSet:
        """Return a set whose words are on a device; nothing may write them any more.

        If more than `MOST_HELD` sets are in scarce memory, the oldest are downloaded.
        """
        made = cls.__new__(cls)
        # The number of vertices comes from a graph, and needs no check.
        made.vertex_count, made._held = vertex_count, (device, words)
        made._few = None
        if not device.is_scarce:
            return made
        _sets_held[next(_numbers)] = made
        while len(_sets_held) > MOST_HELD:
            oldest = _sets_held.pop(next(iter(_sets_held)), None)
            if oldest is not None:
                _ = oldest.words  # downloads them
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return ActiveSet.from_words, (self.vertex_count, self.words)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        """The bitvector on the host, shape (W,)."""
        held = self._held
        if held is not None:
            device, words = held
            found, count = device.download(words), word_count(self.vertex_count)
            self._words = resized(found, count)
            self._held = None
        if self._few is not None:
            self._words = np.zeros(word_count(self.vertex_count), np.uint32)
            for number, bits in self._few.items():
                self._words[number] = bits
            self._few = None
        return self._words

    @words.setter
    def words(self, words: npt.NDArray[np.uint32]) -> None:
        self.words[:] = words

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Boolean mask of shape (V,)."""
        return _bits(self.words)[: self.vertex_count].astype(np.bool_)

    @property
    def vertices(self) -> npt.NDArray[np.int32]:
        """Ids of the vertices, ascending, shape (N,)."""
        words = self.words
        some = np.flatnonzero(words)
        if some.size * _DENSE > words.size:
            return np.flatnonzero(self.mask).astype(np.int32)
        places = np.flatnonzero(_bits(words[some]))
        found = some[places // WORD_BITS] * WORD_BITS + places % WORD_BITS
        return found.astype(np.int32)

    def on(self, device: Holder, room: int | None = None) -> Any:
        """Return the words in memory of a device that no later run writes.

        With `room`, there are words for `room` vertices.
        """
        held, count = self._held, word_count(room or self.vertex_count)
        if held is not None and held[0] is device:
            if room is None or held[1].size == count:
                return device.sets.snapshot(held[1])
        elif self._few is not None:
            return device.sets.empty(count, self._few)
        return device.sets.upload(resized(self.words, count))

    def hand_over(self, old: Holder, new: Holder, move: Callable[[Any], Any]) -> None:
        """Move words from one holder to another; `move` returns the new words."""
        held = self._held
        if held is not None and held[0] is old:
            self._held = new, move(held[1])

    @property
    def is_held(self) -> bool:
        """Whether the words are on a device."""
        return self._held is not None

    def __len__(self) -> int:
        held = self._held
        if held is not None:
            return held[0].sets.count(held[1])
        if self._few is not None:
            return sum(bits.bit_count() for bits in self._few.values())
        return int(np.bitwise_count(self.words).sum())

    def __contains__(self, vertex: object) -> bool:
        if (
            not isinstance(vertex, int | np.integer)
            or not 0 <= vertex < self.vertex_count
        ):
            return False
        word, bit = divmod(int(vertex), WORD_BITS)
        return bool(self.words[word] >> np.uint32(bit) & np.uint32(1))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ActiveSet)
            and self.vertex_count == other.vertex_count
            and bool(np.array_equal(self.words, other.words))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ActiveSet({len(self)} of {self.vertex_count} vertices)"

    def copy(self) -> ActiveSet:
        """Return an independent copy."""
        if self._held is not None:
            return ActiveSet.held(self.vertex_count, *self._held)
        return ActiveSet.from_words(self.vertex_count, self.words)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> ActiveSet:
        return self.copy()


#: Sets in scarce memory, oldest first, while anything else refers to them.
_sets_held: weakref.WeakValueDictionary[int, ActiveSet] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def checked_vertices(
    vertices: Any, vertex_count: int, where: str = "active set"
) -> npt.NDArray[Any]:
    """Return a mask of all vertices, or ids of some, after a check."""
    array = number_array(vertices, where)
    if array.dtype == np.bool_:
        if array.shape != (vertex_count,):
            raise GraphInputError(
                "a mask needs one entry per vertex",
                where=where,
                got=f"shape {array.shape}",
                expected=f"({vertex_count},)",
            )
        return array
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise GraphInputError(
            "vertices are integer ids or a boolean mask",
            where=where,
            got=f"{array.dtype} of shape {array.shape}",
            expected="integers of shape (N,)",
        )
    require_ids(array, where, vertex_count, fix=f"give ids below {vertex_count}")
    return array


def _bits(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the bits of words, each a byte."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")


def _few_words(vertices: npt.NDArray[Any]) -> dict[int, int]:
    """Return index -> word, for the nonzero words of a bitvector of some vertices."""
    words: dict[int, int] = {}
    for vertex in vertices.tolist():
        number, bit = divmod(vertex, WORD_BITS)
        words[number] = words.get(number, 0) | 1 << bit
    return words


def _as_words(array: npt.NDArray[Any], vertex_count: int) -> npt.NDArray[np.uint32]:
    """Return the bitvector of a mask, or of ids."""
    if array.dtype == np.bool_:
        return pack_mask(array)
    words = np.zeros(word_count(vertex_count), np.uint32)
    if array.size > words.size:  # many: one byte per vertex, packed in one pass
        mask = np.zeros(vertex_count, np.bool_)
        mask[array] = True
        return pack_mask(mask)
    ids = array.astype(np.int64)
    bits = np.uint32(1) << (ids % WORD_BITS).astype(np.uint32)
    np.bitwise_or.at(words, ids // WORD_BITS, bits)
    return words


def pack_mask(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return the bitvector of a mask."""
    padded = np.zeros(word_count(mask.size) * WORD_BITS, np.bool_)
    padded[: mask.size] = mask
    packed = np.packbits(padded, bitorder="little").view("<u4")
    return packed.astype(np.uint32)

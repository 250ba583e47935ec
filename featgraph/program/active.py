"""Active sets: which vertices to process, held as an active bitvector."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.errors import GraphInputError
from featgraph.graph.building.check import checked_count

__all__ = ["MOST_HELD", "WORD_BITS", "ActiveSet", "word_count"]

WORD_BITS = 32
#: Sets that are kept on devices. Memory there is scarce, and whatever needs one there
#: looks through all that are held.
MOST_HELD = 32


def word_count(vertex_count: int) -> int:
    """Return how many words a bitvector over `vertex_count` vertices has."""
    return (vertex_count + WORD_BITS - 1) // WORD_BITS


def _checked(count: object) -> int:
    is_none = isinstance(count, int | np.integer) and count == 0
    return 0 if is_none and not isinstance(count, bool) else checked_count(count)


class HeldSets(Protocol):
    """What is asked of a device's sets."""

    def upload(self, words: npt.NDArray[np.uint32]) -> Any: ...

    def snapshot(self, words: Any) -> Any: ...

    def count(self, words: Any) -> int: ...


class Holder(Protocol):
    """A device that has the words of a set."""

    #: Whether sets that are kept there take scarce memory.
    is_scarce: bool

    @property
    def sets(self) -> HeldSets: ...

    def download(self, array: Any) -> npt.NDArray[Any]: ...


class ActiveSet:
    """A set of vertices, as an active bitvector of uint32 words.

    Vertex v is bit ``v % 32`` of word ``v // 32``; the bits behind the last vertex are
    zero.

    Parameters
    ----------
    vertex_count : int or Graph
        V, or a graph that has it.
    vertices : array_like, optional
        Integer ids of shape (N,), or a boolean mask of shape (V,); None for the empty
        set, ``"all"`` for all vertices.

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
        #: A device and the words there, until they are asked for on the host.
        self._held: tuple[Holder, Any] | None = None
        if vertices is None:
            self._words = np.zeros(word_count(self.vertex_count), np.uint32)
        elif isinstance(vertices, str) and vertices == "all":
            self._words = _pack(np.ones(self.vertex_count, np.bool_))
        else:
            self._words = _as_words(vertices, self.vertex_count)

    @classmethod
    def from_words(cls, vertex_count: int, words: npt.NDArray[np.uint32]) -> ActiveSet:
        """Return a set over a copy of `words`."""
        made = cls(vertex_count)
        made._words = np.array(words, np.uint32)
        return made

    @classmethod
    def held(cls, vertex_count: int, device: Holder, words: Any) -> ActiveSet:
        """Return a set of words of a device, which nothing writes any more.

        The oldest ones go to the host where more than `MOST_HELD` are in memory that
        is scarce.
        """
        made = cls.__new__(cls)
        made.vertex_count, made._held = _checked(vertex_count), (device, words)
        if not device.is_scarce:
            return made
        _sets_held[next(_numbers)] = made
        while len(_sets_held) > MOST_HELD:
            oldest = _sets_held.pop(next(iter(_sets_held)), None)
            if oldest is not None:
                _ = oldest.words  # on the host from here on
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return ActiveSet.from_words, (self.vertex_count, self.words)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        """The bitvector itself, shape (W,)."""
        held = self._held
        if held is not None:
            device, words = held
            self._words = np.array(device.download(words), np.uint32)
            self._held = None
        return self._words

    @words.setter
    def words(self, words: npt.NDArray[np.uint32]) -> None:
        self.words[:] = words

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Boolean mask of shape (V,)."""
        bits = np.unpackbits(self.words.astype("<u4").view(np.uint8), bitorder="little")
        return bits[: self.vertex_count].astype(np.bool_)

    @property
    def vertices(self) -> npt.NDArray[np.int32]:
        """Ids of the set, ascending, shape (N,)."""
        return np.flatnonzero(self.mask).astype(np.int32)

    def on(self, device: Holder) -> Any:
        """Return the words on a device; nothing else writes them."""
        held = self._held
        if held is not None and held[0] is device:
            return device.sets.snapshot(held[1])
        return device.sets.upload(self.words.copy())

    @property
    def is_held(self) -> bool:
        """Whether the words are on a device."""
        return self._held is not None

    def __len__(self) -> int:
        held = self._held
        if held is not None:
            return held[0].sets.count(held[1])
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


#: Those that are held, oldest first, as long as anything else has them.
_sets_held: weakref.WeakValueDictionary[int, ActiveSet] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _as_words(vertices: Any, vertex_count: int) -> npt.NDArray[np.uint32]:
    array = np.asarray(vertices)
    if array.dtype == np.bool_:
        if array.shape != (vertex_count,):
            raise GraphInputError(
                "a mask needs one entry per vertex",
                where="active set",
                got=f"shape {array.shape}",
                expected=f"({vertex_count},)",
            )
        return _pack(array)
    words = np.zeros(word_count(vertex_count), np.uint32)
    if array.size == 0:
        return words
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise GraphInputError(
            "vertices are integer ids or a boolean mask",
            where="active set",
            got=f"{array.dtype} of shape {array.shape}",
            expected="integers of shape (N,)",
        )
    bad = np.flatnonzero((array < 0) | (array >= vertex_count))
    if bad.size:
        raise GraphInputError(
            "vertex id out of range",
            where=f"active set, position {bad[0]}",
            got=int(array[bad[0]]),
            expected=f"0 <= id < {vertex_count}",
        )
    if array.size > words.size:  # many: a byte each, and then one pass
        mask = np.zeros(vertex_count, np.bool_)
        mask[array] = True
        return _pack(mask)
    ids = array.astype(np.int64)
    bits = np.uint32(1) << (ids % WORD_BITS).astype(np.uint32)
    np.bitwise_or.at(words, ids // WORD_BITS, bits)
    return words


def _pack(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    padded = np.zeros(word_count(mask.size) * WORD_BITS, np.bool_)
    padded[: mask.size] = mask
    packed = np.packbits(padded, bitorder="little").view("<u4")
    return packed.astype(np.uint32)

"""Which words of a bitvector have bits, for the few sets that were made last.

A superstep over few vertices must not go through the words of all of them. A set that
was found by following edges is known by the words that it touched, and what a kernel
leaves of it lies within these. Sets are known by weak references: nothing writes to a
set that is known, and a set that is gone is forgotten.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KnownSets", "SparseSet"]

#: How many sets are known: two supersteps of several foldmaps in turn.
_MOST_KNOWN = 8


@dataclass(frozen=True)
class SparseSet:
    """What is known of a set.

    Attributes
    ----------
    at : ndarray of int64
        Numbers of the words that may have bits; in any order, each once.
    work : int
        About how many edges its vertices have.
    count : int or None
        How many vertices it has.
    """

    at: npt.NDArray[np.int64]
    work: int
    count: int | None = None


class KnownSets:
    """The sets that were noted last."""

    def __init__(self) -> None:
        self._known: deque[tuple[Any, SparseSet]] = deque(maxlen=_MOST_KNOWN)

    def find(self, words: Any) -> SparseSet | None:
        """Return what is known of a set, None if nothing is."""
        for reference, found in self._known:
            if reference() is words:
                return found
        return None

    def note(self, words: Any, found: SparseSet) -> None:
        """Remember where a set has bits, if that is at few of its words."""
        self._known.appendleft((weakref.ref(words), found))

"""Digests of edges that do not depend on their distribution: sums of hashes.

The hash of an edge combines its row in given order with a word, such as its ends or its
weight. A digest has two 64-bit sums, of two such hashes. Sums are independent of the
order and the rank of edges: each rank sums its own edges, and the ranks' sums are
added. Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit

_Array: TypeAlias = NDArray[Any]
Sums: TypeAlias = NDArray[np.uint64]

#: Edges that are hashed at once, which bounds temporaries.
_CHUNK = 1 << 20


def no_sums() -> Sums:
    """Return the sums over no edges."""
    return np.zeros(2, np.uint64)


def add_ends(sums: Sums, rows: int | _Array, sources: _Array, targets: _Array) -> None:
    """Add edges by their ends.

    Parameters
    ----------
    rows : int or ndarray of integers
        Row in given order of each edge, or of the first one of consecutive edges.
    """
    for begin in range(0, sources.size, _CHUNK):
        some = slice(begin, begin + _CHUNK)
        words = sources[some].astype(np.uint64) << np.uint64(32)
        words |= targets[some].astype(np.uint64)
        _add(_numbers(rows, some, words.size), words, sums)


def add_values(sums: Sums, rows: int | _Array, values: _Array) -> None:
    """Add edges by the bits of one value per edge."""
    width = values.dtype.itemsize
    for begin in range(0, values.size, _CHUNK):
        some = slice(begin, begin + _CHUNK)
        words = np.ascontiguousarray(values[some]).view(f"u{width}").astype(np.uint64)
        _add(_numbers(rows, some, words.size), words, sums)


def text_of(sums: Sums) -> str:
    """Return sums as hexadecimal text, for files and other digests."""
    return f"{int(sums[0]):016x}{int(sums[1]):016x}"


def _numbers(rows: int | _Array, some: slice, count: int) -> _Array:
    """Return the rows of the `count` edges of a slice, as uint64."""
    if isinstance(rows, np.ndarray):
        return rows[some].astype(np.uint64)
    first = rows + some.start
    return np.arange(first, first + count, dtype=np.uint64)


@jit
def _mixed(x: Any) -> Any:
    """Mix the bits of a word: the finaliser of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def mixed_row(row: Any) -> Any:
    """Return the hash of an edge's row, or of a vertex."""
    # The increment of SplitMix64: `_mixed` leaves zero as it is.
    return _mixed(row + np.uint64(0x9E3779B97F4A7C15))


@jit
def first_number(row: Any, word: Any) -> Any:
    """Return an edge's term of the first sum, from its `mixed_row` and a word."""
    return _mixed(row ^ word)


@jit
def second_number(row: Any, word: Any) -> Any:
    """Return an edge's term of the second sum, from its `mixed_row` and a word."""
    # Another order of mixing, so that edges with equal first terms have other ones.
    return _mixed((row + np.uint64(0xD1342543DE82EF95)) ^ _mixed(word))


@jit
def _add(rows: _Array, words: _Array, sums: _Array) -> None:
    one, two = sums[0], sums[1]
    for i in range(rows.size):
        row = mixed_row(rows[i])
        one += first_number(row, words[i])
        two += second_number(row, words[i])
    sums[0], sums[1] = one, two

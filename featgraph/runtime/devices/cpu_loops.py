"""Compiled loops over bitvectors, which the CPU runtime calls between kernels.

They list and fill sets, copy rows of stale vertices, and find near vertices. All run on
one thread. Bit v % 32 of word v // 32 is vertex v.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, uint32

from featgraph.base.store import njit
from featgraph.device import cpu

#: The largest finite key.
MOST = 1.7976931348623157e308


@njit(cache=True, error_model="numpy")
def list_set(words, vertices):  # type: ignore[no-untyped-def]
    """List the vertices of a set, ascending; return their number."""
    count = 0
    for word in range(words.size):
        pending = words[word]
        if pending == uint32(0xFFFFFFFF):  # of a set of all vertices; SIMD
            for bit in range(32):
                vertices[count + bit] = word * 32 + bit
            count += 32
            continue
        while pending != 0:
            vertices[count] = word * 32 + cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            count += 1
    return count


@njit(cache=True, error_model="numpy")
def fill_set(vertices, count, words):  # type: ignore[no-untyped-def]
    """Add the first `count` vertices of a list to a set."""
    for place in range(count):
        v = int64(vertices[place])
        words[v >> 5] |= uint32(1) << uint32(v & 31)


@njit(cache=True, error_model="numpy")
def fill_waiting(vertices, count, waits, words):  # type: ignore[no-untyped-def]
    """Add the waiting vertices of a list to a set, and clear their flags in `waits`.

    Entries without a flag are outdated. Returns the number of waiting vertices.
    """
    found = 0
    for place in range(count):
        v = int64(vertices[place])
        if waits[v] != 0:
            waits[v] = 0
            words[v >> 5] |= uint32(1) << uint32(v & 31)
            found += 1
    return found


@njit(cache=True, error_model="numpy")
def find_set(words, at, found):  # type: ignore[no-untyped-def]
    """Write the indices in `at` of nonzero words to `found`.

    Returns the number of these words, and the number of their set bits.
    """
    count = bits = 0
    for place in range(at.size):
        word = words[at[place]]
        if word != 0:
            found[count] = at[place]
            count += 1
            bits += cpu.count_bits(word)
    return count, bits


@njit(cache=True, error_model="numpy")
def refresh_few(words, at, without, next_, current):  # type: ignore[no-untyped-def]
    """Copy rows of `current` to `next_` at vertices in `words`, not in `without`.

    `at` has the indices of the words that may be nonzero; `without` may be None.
    """
    for place in range(at.size):
        word = at[place]
        pending = words[word]
        if without is not None:
            pending = uint32(pending & ~without[word])
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            v = word * 32 + bit
            for f in range(current.shape[1]):
                next_[v, f] = current[v, f]


@njit(cache=True, error_model="numpy")
def near(words, keys, sign, limit, out):  # type: ignore[no-untyped-def]
    """Set `out` to the vertices of `words` with a key that is not beyond `limit`.

    `keys` has shape (V, N).
    """
    for word in range(words.size):
        pending = words[word]
        found = uint32(0)
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            for f in range(keys.shape[1]):
                if not sign * float64(keys[word * 32 + bit, f]) > limit:
                    found |= uint32(1) << uint32(bit)
                    break
        out[word] = found


@njit(cache=True, error_model="numpy")
def first_key(words, keys, sign):  # type: ignore[no-untyped-def]
    """Return the smallest ``sign * key`` of the vertices in `words`.

    Infinite keys count as `MOST`. The result is -inf if a key is NaN, and inf for the
    empty set.
    """
    first = np.inf
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            for f in range(keys.shape[1]):
                key = sign * float64(keys[word * 32 + bit, f])
                if key != key:
                    key = -np.inf
                first = min(first, min(key, MOST))
    return first


@njit(cache=True, error_model="numpy")
def refresh_vertices(words, next_, current):  # type: ignore[no-untyped-def]
    """Copy rows of `current` to `next_`, of shape (V, N), at vertices in `words`."""
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            v = word * 32 + bit
            for f in range(current.shape[1]):
                next_[v, f] = current[v, f]

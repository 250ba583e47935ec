"""Loops over bitvectors that the CPU runtime needs between kernels."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
from numba import float64, int64, njit, prange, uint32

from featgraph.device import cpu

__all__ = [
    "collect_targets",
    "count_edges",
    "expand",
    "expand_alone",
    "expand_few",
    "fill_set",
    "fill_waiting",
    "find_due",
    "find_due_alone",
    "find_set",
    "first_key",
    "list_set",
    "near",
    "refresh_edges",
    "refresh_few",
    "refresh_vertices",
]


@njit(cache=True, error_model="numpy")
def collect_targets(edge_state, in_offsets, words):  # type: ignore[no-untyped-def]
    """Set the bits of the vertices with an in-edge that passed last."""
    for v in range(in_offsets.size - 1):
        for e in range(in_offsets[v], in_offsets[v + 1]):
            if edge_state[e] == 2:
                cpu.set_bit(words, v)
                break


def _expand(active, due, out_offsets, out_targets):  # type: ignore[no-untyped-def]
    for word in prange(active.size):
        pending = active[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            u = word * 32 + bit
            for slot in range(out_offsets[u], out_offsets[u + 1]):
                v = out_targets[slot]
                if not cpu.test_bit(due, v):
                    cpu.set_bit(due, v)


def _alone(function: Any, name: str) -> Any:
    """Compile what others compile for all threads, for one.

    The name is its own: Numba's cache goes by it, and not by how a function is
    compiled, so that one thread would be given the code for all of them.
    """
    named = FunctionType(function.__code__, function.__globals__, name)
    named.__qualname__ = name
    return njit(cache=True, error_model="numpy")(named)


#: Add the targets of the active vertices' out-edges to `due`: on all threads, on one.
expand = njit(cache=True, parallel=True, error_model="numpy")(_expand)
expand_alone = _alone(_expand, "expand_alone")


@njit(cache=True, error_model="numpy")
def expand_few(active, at, due, found, out_offsets, out_targets, most):  # type: ignore[no-untyped-def]
    """Add the active vertices, and the targets of their out-edges, to an empty `due`.

    `at` are the words of `active` that may have bits; `found` gets those of `due`.
    Return how many these are, and the number of out-edges. With more than `most` of
    them, nothing is done, and -1 returned.
    """
    edges = 0
    for place in range(at.size):
        pending = active[at[place]]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            u = at[place] * 32 + bit
            edges += out_offsets[u + 1] - out_offsets[u]
    if edges > most:
        return -1, edges
    count = 0
    for place in range(at.size):
        word = at[place]
        if active[word] != 0:
            due[word] = active[word]
            found[count] = word
            count += 1
    for place in range(at.size):
        pending = active[at[place]]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            u = at[place] * 32 + bit
            for slot in range(out_offsets[u], out_offsets[u + 1]):
                v = out_targets[slot]
                word = v >> 5
                if due[word] == 0:
                    found[count] = word
                    count += 1
                due[word] |= uint32(1) << uint32(v & 31)
    return count, edges


@njit(cache=True, error_model="numpy")
def list_set(words, vertices):  # type: ignore[no-untyped-def]
    """Put the vertices of a set into a list, ascending; return how many they are."""
    count = 0
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            vertices[count] = word * 32 + cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            count += 1
    return count


@njit(cache=True, error_model="numpy")
def fill_set(vertices, count, words):  # type: ignore[no-untyped-def]
    """Set the bits of the first `count` vertices of a list."""
    for place in range(count):
        v = int64(vertices[place])
        words[v >> 5] |= uint32(1) << uint32(v & 31)


@njit(cache=True, error_model="numpy")
def fill_waiting(vertices, count, waits, words):  # type: ignore[no-untyped-def]
    """Set the bits of those of a list that wait, and note that they wait no more.

    Return how many they are.
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
def count_edges(words, at, offsets):  # type: ignore[no-untyped-def]
    """Return the sum of the degrees of the vertices in the words at `at`."""
    total = int64(0)
    for place in range(at.size):
        pending = words[at[place]]
        while pending != 0:
            v = at[place] * 32 + cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            total += offsets[v + 1] - offsets[v]
    return total


@njit(cache=True, error_model="numpy")
def find_set(words, at, found):  # type: ignore[no-untyped-def]
    """Put those of the words at `at` that have bits into `found`.

    Return how many they are, and how many bits they have.
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
    """Copy the rows of vertices that are not in `without`, if any; see `expand_few`."""
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


def _find_due(active, due, in_offsets, in_sources):  # type: ignore[no-untyped-def]
    """Add to `due` the vertices with an active source; each looks for one."""
    count = in_offsets.size - 1
    for word in prange(active.size):
        found = due[word]
        for v in range(word * 32, min(word * 32 + 32, count)):
            bit = uint32(1) << uint32(v & 31)
            if found & bit:
                continue
            for slot in range(in_offsets[v], in_offsets[v + 1]):
                if cpu.test_bit(active, in_sources[slot]):
                    found |= bit
                    break
        due[word] = found


find_due = njit(cache=True, parallel=True, error_model="numpy")(_find_due)
find_due_alone = _alone(_find_due, "find_due_alone")


@njit(cache=True, error_model="numpy")
def near(words, keys, sign, limit, out):  # type: ignore[no-untyped-def]
    """Set `out` to the vertices of `words` with a feature that is not beyond `limit`.

    `keys` is of shape (V, N).
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
    """Return the smallest ``sign * key`` of the vertices in `words`."""
    first = np.inf
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            for f in range(keys.shape[1]):
                key = sign * float64(keys[word * 32 + bit, f])
                if key < first:
                    first = key
    return first


@njit(cache=True, error_model="numpy")
def refresh_vertices(words, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in `words`, both of shape (V, N)."""
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            v = word * 32 + bit
            for f in range(current.shape[1]):
                next_[v, f] = current[v, f]


@njit(cache=True, error_model="numpy")
def refresh_edges(words, next_, current, out_offsets, out_edges):  # type: ignore[no-untyped-def]
    """Copy the rows of the out-edges of the vertices in `words`, shape (E, N)."""
    for word in range(words.size):
        pending = words[word]
        while pending != 0:
            bit = cpu.trailing_zeros(pending)
            pending = uint32(pending & (pending - uint32(1)))
            u = word * 32 + bit
            for slot in range(out_offsets[u], out_offsets[u + 1]):
                e = out_edges[slot]
                for f in range(current.shape[1]):
                    next_[e, f] = current[e, f]

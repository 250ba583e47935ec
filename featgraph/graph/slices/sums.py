"""Sums over edges, and checksums of blocks, by which slices are checked.

Sums are 64-bit numbers, and sums of parts are added. The sums over given edges, and
those over twins and self-loops, are each computed as in `building.digests`; other sums
are differences, which are zero for a valid folder. Each block of a slice has an XXH64
of seed 0 (Collet 2014), the same as that of ``xxhsum -H1`` and the package xxhash, at
the speed of memory.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit
from featgraph.graph.building.digests import first_number, mixed_row, second_number

_Array: TypeAlias = NDArray[Any]

#: Number of sums, and index of each. The first four are pairs of sums, as a digest has.
#: The GPU kernels `add_slots` and `add_weights` use the same indices.
SUMS = 12
GIVEN, TWINS, GIVEN_WEIGHTS, TWIN_WEIGHTS, ROWS, OUTS, STARTS, DESCENTS = (
    0, 2, 4, 6, 8, 9, 10, 11,
)  # fmt: skip
#: Slots that are processed at once: they fit the L1 cache, and the loops over them have
#: no branches, so that the compiler vectorizes them.
_TOGETHER = 1024


@jit
def find_range(values: _Array, first: int, last: int, found: _Array) -> None:
    """Store the least and the greatest of some integers."""
    part = values[first:last]  # indices from 0: Numba vectorizes the loads
    low = high = part[0]
    for i in range(part.size):
        low, high = min(low, part[i]), max(high, part[i])
    found[0], found[1] = low, high


@jit
def add_rows(first: int, last: int) -> Any:
    """Return the sum over a range of rows in given order."""
    total = np.uint64(0)
    for row in range(first, last):
        total += mixed_row(np.uint64(row))
    return total


@jit
def add_outs(outs: _Array, first: int) -> Any:
    """Return the sum over sources of edges, computed from out-degrees.

    ``outs[i]`` is the out-degree of vertex ``first + i``.
    """
    total = np.uint64(0)
    for i in range(outs.size):
        total += np.uint64(outs[i]) * mixed_row(np.uint64(first + i))
    return total


@jit
def add_starts(starts: _Array, degrees: _Array, vertices: _Array) -> Any:
    """Sum a hash of each vertex and its first edge, minus that of the next vertex.

    The first edge of the next vertex is the end of this vertex's row, so the sum
    telescopes: only the first vertex and the end of the last one remain.
    """
    total = np.uint64(0)
    for i in range(starts.size):
        vertex, start = np.int64(vertices[i]), starts[i]
        total += _start(vertex, start) - _start(vertex + 1, start + degrees[i])
    return total


@jit
def starts_of(vertex_count: int, edge_count: int) -> Any:
    """Return the result of `add_starts` for all vertices of a valid folder."""
    return _start(0, 0) - _start(vertex_count, edge_count)


@jit
def _start(vertex: Any, start: Any) -> Any:
    return first_number(mixed_row(np.uint64(vertex)), np.uint64(start))


@jit
def add_slots(
    adjacency: tuple[_Array, _Array, _Array, _Array],
    vertices: _Array,
    number: int,
    given: int,
    place: int,
    last_place: int,
    found: _Array,
) -> None:
    """Store the sums over the edges into some vertices.

    Parameters
    ----------
    adjacency : tuple of ndarray
        Offsets, sources, rows in given order, and bits of weights (empty without).
    vertices : ndarray of int32
        The vertex of each number; empty if ends are vertices.
    number : int
        The number of the first row.
    given : int
        Twins have rows in given order from `given` on.
    place, last_place : int
        Range of rows to sum, counted from the first.
    found : ndarray of uint64
    """
    offsets, sources, rows, weights = adjacency
    # Entry 0 is for the slot before this piece, entry i + 1 for slot i of the piece.
    targets = np.full(_TOGETHER + 1, -1, np.int64)
    numbers = np.full(_TOGETHER + 1, -1, np.int64)
    words = np.empty(_TOGETHER, np.uint64)
    # Masks of all bits or none: for given edges, and for twins and self-loops.
    is_given = np.empty(_TOGETHER, np.uint64)
    is_other = np.empty(_TOGETHER, np.uint64)
    found[:] = 0
    at, end, place_at = offsets[place], offsets[last_place], place
    while at < end:
        size = min(_TOGETHER, end - at)
        filled = 0
        while filled < size:
            stop = min(offsets[place_at + 1] - at, size)
            for i in range(filled, stop):
                targets[i + 1] = number + place_at
            filled = stop
            place_at += filled < size
        some, masks = slice(at, at + size), (is_given[:size], is_other[:size])
        ends = sources[some], targets[1 : size + 1]
        _split(ends, rows[some], vertices, given, numbers[1:], words, masks)
        edges = numbers[1 : size + 1]
        _add(edges, words[:size], masks, found[GIVEN:GIVEN_WEIGHTS])
        if weights.size:
            _add(edges, weights[some], masks, found[GIVEN_WEIGHTS:ROWS])
        found[ROWS] += _sum_of_rows(edges, masks[0])
        found[OUTS] += _sum_of_sources(ends[0])
        found[DESCENTS] += _descents(targets[: size + 1], numbers[: size + 1])
        targets[0], numbers[0] = targets[size], numbers[size]
        at += size


@jit
def _split(
    ends: tuple[_Array, _Array],
    rows: _Array,
    vertices: _Array,
    given: int,
    numbers: _Array,
    words: _Array,
    masks: tuple[_Array, _Array],
) -> None:
    """Store each edge's number, its ends in one word, and its masks."""
    sources, targets = ends
    is_given, is_other = masks
    for i in range(rows.size):
        u, v = np.int64(sources[i]), targets[i]
        if vertices.size:
            u, v = np.int64(vertices[u]), np.int64(vertices[v])
        row = np.int64(rows[i])
        is_twin, is_loop = row >= given, u == v
        numbers[i] = row - given * is_twin
        source, target = (v, u) if is_twin else (u, v)
        words[i] = (np.uint64(source) << np.uint64(32)) | np.uint64(target)
        is_given[i] = np.uint64(np.int64(is_twin) - 1)
        is_other[i] = np.uint64(-np.int64(is_twin | is_loop))


@jit
def _add(
    rows: _Array, words: _Array, masks: tuple[_Array, _Array], found: _Array
) -> None:
    is_given, is_other = masks
    given_0 = given_1 = others_0 = others_1 = np.uint64(0)
    for i in range(rows.size):
        row, word = mixed_row(np.uint64(rows[i])), np.uint64(words[i])
        one, two = first_number(row, word), second_number(row, word)
        given_0 += one & is_given[i]
        given_1 += two & is_given[i]
        others_0 += one & is_other[i]
        others_1 += two & is_other[i]
    found[0] += given_0
    found[1] += given_1
    found[2] += others_0
    found[3] += others_1


@jit
def _sum_of_rows(rows: _Array, mask: _Array) -> Any:
    total = np.uint64(0)
    for i in range(rows.size):
        total += mixed_row(np.uint64(rows[i])) & mask[i]
    return total


@jit
def _sum_of_sources(sources: _Array) -> Any:
    total = np.uint64(0)
    for i in range(sources.size):
        total += mixed_row(np.uint64(sources[i]))
    return total


@jit
def _descents(targets: _Array, numbers: _Array) -> Any:
    """Count slots whose edge does not come after that of the previous slot."""
    found = 0
    for i in range(targets.size - 1):
        is_same = targets[i] == targets[i + 1]
        found += is_same & (numbers[i] >= numbers[i + 1])
    return np.uint64(found)


# -- checksums of blocks


# The primes of XXH64.
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


def checksum(data: NDArray[np.uint8]) -> str:
    """Return the XXH64 of an array of bytes, as 16 digits."""
    whole = data.size // 8 * 8
    words = data[:whole].view("<u8").astype(np.uint64, copy=False)
    tail = np.zeros(8, np.uint8)
    tail[: data.size - whole] = data[whole:]
    return f"{int(_checksum(words, tail, data.size)):016x}"


def checksums(data: NDArray[np.uint8], block: int) -> NDArray[np.uint64]:
    """Return the XXH64 of each block of an array of bytes; the last may be shorter.

    `block` is a multiple of 8.
    """
    count = data.size // block
    found = np.empty(-(-data.size // block), np.uint64)
    words = data[: count * block].view("<u8").astype(np.uint64, copy=False)
    _checksums(words.reshape(count, block // 8), np.zeros(8, np.uint8), found)
    if found.size > count:
        found[count] = int(checksum(data[count * block :]), 16)
    return found


@jit
def _turned(x: Any, bits: int) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@jit
def _round(lane: Any, word: Any) -> Any:
    return _turned(lane + word * _P2, 31) * _P1


@jit
def _checksum(words: _Array, tail: _Array, size: int) -> Any:
    at, zero = 0, np.uint64(0)
    if size >= 32:
        a, b, c, d = _P1 + _P2, _P2, zero, zero - _P1
        while at + 4 <= words.size:
            a, b = _round(a, words[at]), _round(b, words[at + 1])
            c, d = _round(c, words[at + 2]), _round(d, words[at + 3])
            at += 4
        mixed = _turned(a, 1) + _turned(b, 7) + _turned(c, 12) + _turned(d, 18)
        for lane in (a, b, c, d):
            mixed = (mixed ^ _round(zero, lane)) * _P1 + _P4
    else:
        mixed = _P5
    mixed += np.uint64(size)
    while at < words.size:
        mixed = _turned(mixed ^ _round(zero, words[at]), 27) * _P1 + _P4
        at += 1
    left, at = size % 8, 0
    if left >= 4:
        word = zero
        for i in range(4):
            word |= np.uint64(tail[i]) << np.uint64(8 * i)
        mixed = _turned(mixed ^ (word * _P1), 23) * _P2 + _P3
        at = 4
    while at < left:
        mixed = _turned(mixed ^ (np.uint64(tail[at]) * _P5), 11) * _P1
        at += 1
    mixed = (mixed ^ (mixed >> np.uint64(33))) * _P2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
    return mixed ^ (mixed >> np.uint64(32))


@jit
def _checksums(blocks: _Array, tail: _Array, found: _Array) -> None:
    for i in range(blocks.shape[0]):
        found[i] = _checksum(blocks[i], tail, 8 * blocks.shape[1])

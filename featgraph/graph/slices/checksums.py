"""XXH64 (Collet 2014) of bytes: a checksum at the speed of memory.

Each block of a slice has one, of seed 0, the same as ``xxhsum -H1`` and the package
xxhash compute. Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["checksum", "checksums"]

_Array: TypeAlias = NDArray[Any]

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

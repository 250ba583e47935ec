"""What a graph of slices relies on: ranges, rows, twins, degrees, places.

Checksums need no key: whoever alters an array can sign it again. Numbers must be in
range, each edge must have a row of its own, twins must lead back, and counts must be
those of the edges. Sums of numbers and of their squares, modulo 2^64, show it in the
pass that looks for the range: any number that is altered changes them.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.arrays.values import in_pieces
from featgraph.errors import FileFormatError
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.manifest import Manifest

__all__ = [
    "require_edges",
    "require_in_range",
    "require_names",
    "require_order",
    "require_words",
    "row_bound",
]

_Array: TypeAlias = NDArray[Any]
_AGAIN = "make the folder again: featgraph convert"
_WORD = 1 << 64


def row_bound(manifest: Manifest) -> int:
    """Return the highest row in given order, that of a twin, plus one."""
    return manifest.given_count * (1 if manifest.directed else 2)


def require_in_range(slices: Slices, name: str, found: _Array) -> tuple[int, int]:
    """Raise FileFormatError unless sources or rows are those of some edge.

    Returns
    -------
    (int, int)
        The sum of the numbers, and that of their squares, modulo 2^64.
    """
    from featgraph.graph.slices import sums  # loads Numba

    manifest = slices.manifest
    bound = manifest.vertex_count if name == "sources" else row_bound(manifest)
    if not found.size:
        return 0, 0
    parts: list[_Array] = []

    def look(begin: int, end: int) -> None:
        part = np.empty(4, np.int64)
        sums.add_numbers(found, begin, end, part)
        parts.append(part)

    in_pieces(found.size, found.nbytes, look)
    low, high = min(part[0] for part in parts), max(part[1] for part in parts)
    if low < 0 or high >= bound:
        raise FileFormatError(
            "a number out of range",
            where=str(slices.folder / f"{name}.bin"),
            got=f"{low} to {high}",
            expected=f"0 to {bound - 1}",
        )
    total, squares = (sum(int(part[i]) for part in parts) % _WORD for i in (2, 3))
    return total, squares


def require_edges(
    slices: Slices,
    adjacency: tuple[_Array, _Array, _Array],
    totals: tuple[tuple[int, int], tuple[int, int]],
    outs: _Array | None,
) -> None:
    """Raise FileFormatError unless all edges are those of a graph, each of them once.

    Parameters
    ----------
    slices : Slices
    adjacency : tuple of ndarray
        Offsets, sources and rows, which are in range.
    totals : tuple of (int, int)
        What `require_in_range` returned of sources and of rows.
    outs : ndarray of int64, or None
        Out-degrees, of a directed graph.
    """
    from featgraph.graph.slices import sums  # loads Numba

    of_sources, of_rows = totals
    given = slices.manifest.given_count
    if outs is None:
        of_rows = _require_twins(slices, adjacency)
    else:
        told = np.empty(4, np.int64)
        sums.add_degrees(outs, told)
        low, count, *totals_told = told.tolist()
        is_sound = low >= 0 and count == adjacency[1].size
        if not is_sound or tuple(t % _WORD for t in totals_told) != of_sources:
            _fail(slices, "outs", "out-degrees that are not those of the edges")
    total, squares = (
        given * (given - 1) // 2,
        (given - 1) * given * (2 * given - 1) // 6,
    )
    if of_rows != (total % _WORD, squares % _WORD):
        _fail(slices, "rows", "rows that are not those of the given edges, each once")


def _require_twins(
    slices: Slices, adjacency: tuple[_Array, _Array, _Array]
) -> tuple[int, int]:
    """Raise FileFormatError unless twins lead back; return sums of given rows."""
    from featgraph.graph.slices import sums  # loads Numba

    factors = np.array([secrets.randbits(62) | 1 for _ in range(4)], np.int64)
    given, parts = slices.manifest.given_count, []

    def look(first: int, last: int) -> None:
        part = np.empty(4, np.int64)
        sums.add_twins(adjacency, given, factors, first, last, part)
        parts.append(part)

    in_pieces(adjacency[0].size - 1, 8 * adjacency[1].size, look)
    total, squares, twins, loops = (
        sum(int(part[i]) for part in parts) % _WORD for i in range(4)
    )
    if twins or loops:
        _fail(slices, "sources", "undirected edges that do not lead both ways")
    return total, squares


def require_words(slices: Slices, offsets: _Array, words: _Array) -> None:
    """Raise FileFormatError unless words have the in-edges of 32 vertices each."""
    ends = offsets[np.minimum(np.arange(words.size + 1) * 32, offsets.size - 1)]
    if not np.array_equal(words, np.diff(ends)):
        _fail(slices, "words", "counts of in-edges that offsets do not have")


def require_order(
    slices: Slices, offsets: _Array, order: _Array, starts: _Array
) -> None:
    """Raise FileFormatError unless each vertex has a place, and its edges a start."""
    degrees = np.full(order.size, -1, np.int64)
    is_order = bool(order.min() >= 0 and order.max() < order.size)
    if is_order:
        degrees[order] = np.diff(offsets)
    if not is_order or bool((degrees < 0).any()):
        _fail(slices, "order", "an order that does not have each vertex once")
    if not np.array_equal(starts, (np.cumsum(degrees) - degrees)[order]):
        _fail(slices, "starts", "first edges that are not those of the order")


def require_names(slices: Slices, names: _Array) -> None:
    """Raise FileFormatError unless names of vertices ascend."""
    if not bool((names[1:] > names[:-1]).all()):
        _fail(slices, "names", "names of vertices that do not ascend")


def _fail(slices: Slices, name: str, what: str) -> NoReturn:
    raise FileFormatError(
        what,
        where=str(slices.folder / f"{name}.bin"),
        got="an altered array with a checksum of its own",
        expected="arrays that fit each other",
        fix=_AGAIN,
    )

"""The Matrix Market exchange format, coordinate matrices (NIST, Boisvert et al. 1996).

SciPy's reader is not used: it allocates by the size line before it reads the entries
(10**13 entries are a MemoryError), reads 1e999 as infinity, and mirrors a symmetric
file with both triangles, which doubles its edges.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.formats.text import Table, Text, scan_table

__all__ = [
    "check_claims",
    "check_range",
    "fail_triangles",
    "matrix_market_header",
    "parse_matrix_market",
]

#: Field of the banner -> kinds of columns for `scan_table`.
_FIELDS = {
    "pattern": "ii",
    "integer": "iii",
    "unsigned-integer": "iii",
    "real": "iir",
    "double": "iir",
}


def parse_matrix_market(text: Text) -> EdgeList:
    """Read the edges of a square coordinate matrix; see `read_matrix_market`."""
    kinds, is_symmetric, count, entries, start = matrix_market_header(text)
    table = scan_table(
        text,
        start,
        kinds,
        comments="%",
        field_count=len(kinds),
        row_count=entries,
    )
    check_range(table, count)
    sources, targets = table.integers[0], table.integers[1]
    if is_symmetric:
        _check_triangle(table, sources, targets)
    weights: NDArray[Any] | None = None
    if kinds == "iir":
        weights = table.reals
    elif kinds == "iii":
        weights = table.integers[2].copy()
    return EdgeList(
        (sources - 1).astype(np.int32),
        (targets - 1).astype(np.int32),
        weights,
        count,
        directed=not is_symmetric,
    )


def matrix_market_header(text: Text) -> tuple[str, bool, int, int, int]:
    """Read the banner and the size line.

    Returns
    -------
    kinds, is_symmetric, vertex_count, entries, start
        `kinds` as `scan_table` takes them.
    """
    kinds, is_symmetric, start = _banner(text)
    return kinds, is_symmetric, *_size_line(text, start, len(kinds))


def _banner(text: Text) -> tuple[str, bool, int]:
    """Return the kinds of columns, whether symmetric, and the byte after the banner."""
    _, end, line = next(text.lines(), (0, 0, ""))
    words = line.lower().split()
    expected = (
        "%%MatrixMarket matrix coordinate (pattern|integer|real) (general|symmetric)"
    )
    if not words or words[0] != "%%matrixmarket":
        text.fail("not a Matrix Market file", 0, expected=expected)
    if len(words) != 5:
        text.fail("malformed banner", 0, expected=expected)
    _, thing, layout, field, symmetry = words
    if thing != "matrix" or layout != "coordinate":
        text.fail(
            "not a coordinate matrix",
            0,
            expected=expected,
            fix="a dense matrix: Graph.from_scipy(coo_array(scipy.io.mmread(path)))",
        )
    if field not in _FIELDS:
        text.fail("weights of this kind make no graph", 0, expected=expected)
    if symmetry not in ("general", "symmetric"):
        text.fail(
            "a matrix of this symmetry makes no graph",
            0,
            expected=expected,
            fix="Graph.from_scipy(scipy.io.mmread(path)) reads it entry by entry",
        )
    return _FIELDS[field], symmetry == "symmetric", end


def _size_line(text: Text, start: int, width: int) -> tuple[int, int, int]:
    """Return V, the number of entries, and the byte at which they begin."""
    for begin, end, line in text.lines(start):
        if not line or line.startswith("%"):
            continue
        words = line.split()
        if len(words) != 3 or not all(is_count(word) for word in words):
            text.fail(
                "malformed size line",
                begin,
                expected="rows, columns, entries: 3 counts",
            )
        rows, columns, entries = map(int, words)
        if rows != columns:
            text.fail(
                "an adjacency matrix is square",
                begin,
                expected="as many rows as columns",
                fix="read a bipartite graph with scipy.io.mmread and place it in a "
                "square matrix: scipy.sparse.block_array([[None, B], [B.T, None]])",
            )
        check_claims(text, begin, end, rows, entries, 2 * width)
        return rows, entries, end
    text.fail("no size line", len(text.data), got="the end of the file")


def is_count(word: str) -> bool:
    """Whether a word is a plain decimal number without sign, of bounded length."""
    return word.isascii() and word.isdigit() and len(word) <= 19


def check_claims(
    text: Text, begin: int, end: int, vertices: int, entries: int, entry_bytes: int
) -> None:
    """Compare the counts in a header with the size of the file, before allocation.

    Parameters
    ----------
    begin, end : int
        Byte range of the header's line.
    entry_bytes : int
        Least bytes of an entry with its newline, which the last one may lack.
    """
    if not 1 <= vertices <= MAX_VERTEX_COUNT:
        text.fail(
            "number of vertices out of range",
            begin,
            expected=f"1 to {MAX_VERTEX_COUNT}: vertex ids are int32",
        )
    possible = (text.size - end + 1) // entry_bytes
    if entries > possible:
        text.fail(
            "the header claims more entries than the file can hold",
            begin,
            expected=f"at most {possible} entries in {text.size - end} bytes",
            fix="the file is truncated or its header is wrong",
        )
    # Every adjacency has an offset for each vertex, with or without edges.
    if 4 * vertices > text.limit_bytes:
        text.fail(
            "the header claims more vertices than a file of this size is trusted with",
            begin,
            expected=f"at most {text.limit_bytes // 4}",
            fix="pass max_bytes= (4 bytes a vertex) if the file is to be trusted",
        )


def check_range(table: Table, vertices: int) -> None:
    """Check that 1-based ids are in [1, vertices]; the error has the first bad line."""
    ids = table.integers[:2]
    if ids.size == 0 or (ids.min() >= 1 and ids.max() <= vertices):
        return
    row = int(np.flatnonzero(((ids < 1) | (ids > vertices)).any(axis=0))[0])
    table.text.fail(
        "vertex out of range",
        table.position(row),
        expected=f"1 to {vertices}",
    )


def _check_triangle(
    table: Table, sources: NDArray[np.int64], targets: NDArray[np.int64]
) -> None:
    """Refuse a symmetric file with both triangles, whose edges would count twice."""
    above = sources < targets
    if above.any() and (sources > targets).any():
        fail_triangles(table.text, table.position(int(np.flatnonzero(above)[0])))


def fail_triangles(text: Text, position: int) -> NoReturn:
    """Raise FileFormatError for an entry in the other triangle than earlier ones."""
    text.fail(
        "a symmetric file holds entries of both triangles",
        position,
        expected="one triangle only, the other one is implied",
        fix="change 'symmetric' to 'general' in the first line if both directions "
        "are listed, or drop one triangle",
    )

"""The Matrix Market exchange format, coordinate matrices (NIST, Boisvert et al. 1996).

SciPy's reader is not used: it allocates by the size line before it reads the entries
(10**13 entries are a MemoryError), reads 1e999 as infinity, and mirrors a symmetric
file with both triangles, which doubles its edges.
"""

from __future__ import annotations

from featgraph.graph.formats.layout import Layout, check_claims, is_count
from featgraph.graph.formats.text import Text

__all__ = ["matrix_market_layout"]

#: Field of the banner -> kinds of columns for `scan_table`.
_FIELDS = {
    "pattern": "ii",
    "integer": "iii",
    "unsigned-integer": "iii",
    "real": "iir",
    "double": "iir",
}


def matrix_market_layout(text: Text) -> Layout:
    """Return the layout of a square coordinate matrix, from banner and size line."""
    kinds, is_symmetric, start = _banner(text)
    count, entries, start = _size_line(text, start, len(kinds))
    return Layout.of(
        text,
        start,
        kinds,
        "%",
        base=1,
        vertex_count=count,
        entries=entries,
        directed=not is_symmetric,
        is_symmetric=is_symmetric,
    )


def _banner(text: Text) -> tuple[str, bool, int]:
    """Return kinds of columns, whether it is symmetric, and the end of the banner."""
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

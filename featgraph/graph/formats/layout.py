"""Readers of text files with an edge on each line, whole or by ranges of bytes.

A format defines the `Layout` of a file from its first lines: columns, comments, and
the counts of a header. `read_edges` then reads all lines, and `read_blocks` those that
begin in a range of bytes. `Seen` has the checks that need all lines of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FileFormatError
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.formats.fields import marks_of
from featgraph.graph.formats.text import Table, Text, scan_table

__all__ = [
    "Block",
    "Layout",
    "Seen",
    "check_claims",
    "fail_empty",
    "is_count",
    "line_at",
    "read_block",
    "read_blocks",
    "read_edges",
]

#: Bytes of text that are parsed at once; their rows take up to six times as much.
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Layout:
    """The layout of all lines of a text file, from its first lines.

    Attributes
    ----------
    path : str
    start, size : int
        Byte at which rows begin, and bytes of the file.
    limit_bytes : int
        Most bytes to allocate for the file.
    kinds, comments, prefix, field_count, separator
        Parameters of `scan_table`.
    integer_columns : tuple of int
        Positions of sources, targets and weights among the columns of integers (``i``
        in `kinds`), from 0. Weights in a column of reals have none.
    weights_may_be_real : bool
        Whether weights are read again as real numbers if one is not an integer.
    base : int
        The number of the first vertex: 1 if the header has the number of vertices.
    vertex_count, entries : int or None
        Counts from the header, or from the caller.
    directed : bool
    is_symmetric : bool
        Whether all entries must be in one triangle.
    are_names : bool
        Whether ids are names unless they are exactly 0..V-1.
    are_words : bool
        Whether ids are words, which cannot be numbered from a part of the file.
    takes_names : bool
        Whether the reader has the options ``names=`` and ``vertex_count=``, which
        errors then propose.
    """

    path: str
    start: int
    size: int
    limit_bytes: int
    kinds: str
    comments: str
    prefix: str = ""
    field_count: int = 0
    separator: str = " "
    integer_columns: tuple[int, ...] = (0, 1, 2)
    weights_may_be_real: bool = False
    base: int = 0
    vertex_count: int | None = None
    entries: int | None = None
    directed: bool = True
    is_symmetric: bool = False
    are_names: bool = False
    are_words: bool = False
    takes_names: bool = False

    @classmethod
    def of(
        cls, text: Text, start: int, kinds: str, comments: str, **known: Any
    ) -> Layout:
        """Return the layout of a file whose rows begin at byte `start` of a text."""
        begin, size = text.begin + start, text.begin + text.size
        return cls(text.path, begin, size, text.limit_bytes, kinds, comments, **known)

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""
        return len(self.kinds.replace("-", "")) == 3

    def weights_dtype(self, total: int, any_real: bool) -> np.dtype[Any] | None:
        """Return the dtype of the weights of `total` edges; None without weights."""
        if not self.has_weights:
            return None
        # The dtype of an empty list in `Graph.from_edges`.
        is_none = total == 0 and self.entries is None
        is_real = any_real or "r" in self.kinds or is_none
        return np.dtype(np.float64 if is_real else np.int64)

    def text(self, begin: int, data: bytes) -> Text:
        """Return `data`, which begins at byte `begin` of the file, as a `Text`."""
        return Text(self.path, data, self.limit_bytes, begin, self.size - begin)

    def range_of(self, part: int, parts: int) -> tuple[int, int]:
        """Return the byte range of one of several about equal parts."""
        length = self.size - self.start
        begin = self.start + length * part // parts
        return begin, self.start + length * (part + 1) // parts


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of some lines, in their order.

    Attributes
    ----------
    begin : int
        Byte of the file at which the lines begin.
    sources, targets : ndarray of int64
        Numbers from 0 on, or names.
    weights : ndarray of int64 or float64, or None
    above, below : int
        Row of the first entry above, and below the diagonal; -1 without one.
    """

    begin: int
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[Any] | None
    above: int = -1
    below: int = -1


def read_edges(layout: Layout, text: Text) -> EdgeList:
    """Read the edges of a whole file whose header has the number of vertices.

    Raises
    ------
    FileFormatError
        If a line is not a valid edge, with its number, or lines do not match the
        header.
    """
    block = read_block(layout, text)
    ends = block.sources.astype(np.int32), block.targets.astype(np.int32)
    count = layout.vertex_count or 0
    return EdgeList(*ends, block.weights, count, layout.directed)


def read_block(layout: Layout, text: Text) -> Block:
    """Read all lines of a file from its text; raise as `read_edges` does."""
    table, _ = _scanned(layout, text, layout.kinds, layout.entries)
    block = _block(layout, layout.start, table)
    if block.above >= 0 and block.below >= 0:
        _fail_triangles(text, table.position(block.above))
    return block


def read_blocks(layout: Layout, begin: int, end: int) -> Iterator[Block]:
    """Yield the edges of the lines that begin in a range of bytes.

    Raises
    ------
    FileFormatError
        If a line is not a valid edge, with its number.
    """
    kinds = layout.kinds
    for at, data in _lines(layout, begin, end):
        table, kinds = _scanned(layout, layout.text(at, data), kinds)
        yield _block(layout, at, table)


def _scanned(
    layout: Layout, text: Text, kinds: str, row_count: int | None = None
) -> tuple[Table, str]:
    """Parse some lines; return a table, and the kinds of columns to use from now on.

    Weights are read as integers until one of them is not.
    """

    def scan() -> Table:
        return scan_table(
            text,
            max(layout.start - text.begin, 0),
            kinds,
            comments=layout.comments,
            prefix=layout.prefix,
            field_count=layout.field_count,
            row_count=row_count,
            separator=layout.separator,
            takes_names=layout.takes_names,
        )

    try:
        return scan(), kinds
    except FileFormatError:
        if "r" in kinds or not (layout.has_weights and layout.weights_may_be_real):
            raise
    places = [place for place, kind in enumerate(kinds) if kind == "i"]
    at = places[layout.integer_columns[2]]
    kinds = f"{kinds[:at]}r{kinds[at + 1 :]}"
    return scan(), kinds


def _block(layout: Layout, at: int, table: Table) -> Block:
    """Return checked edges of parsed lines."""
    columns, base, weights = layout.integer_columns, layout.base, None
    count = table.integers.shape[0]
    if layout.has_weights:
        weights = table.integers[columns[2]].copy() if count == 3 else table.reals
    if count == 2:  # without the column of weights
        columns = tuple(np.argsort(columns[:2]).argsort().tolist())
    sources, targets = (table.integers[place] for place in columns[:2])
    if base:
        _check_range(table, layout.vertex_count or 0)
        sources, targets = sources - base, targets - base
    elif not layout.are_names:
        _check_ids(table, sources, targets, layout)
    above = below = -1
    if layout.is_symmetric:
        above, below = _first(sources < targets), _first(sources > targets)
    return Block(at, sources, targets, weights, above, below)


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask)) if mask.any() else -1


def line_at(layout: Layout, begin: int, row: int) -> tuple[Text, int]:
    """Return the text of a block, and the position of one of its rows."""
    at, data = next(_lines(layout, begin, layout.size))
    text = layout.text(at, data)
    marks = marks_of(layout.comments, layout.separator)
    table = Table(text, 0, marks, np.empty((0, 0), np.int64), np.empty(0))
    return text, table.position(row)


def _lines(layout: Layout, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole lines that begin in a range, with their first byte."""
    with open(layout.path, "rb") as stream:
        at = begin
        if begin > layout.start:
            stream.seek(begin - 1)
            while line := stream.readline():
                at = stream.tell()
                if line.endswith(b"\n"):
                    break
        stream.seek(at)
        while at < end and (data := stream.read(min(BLOCK_BYTES, end - at))):
            if not data.endswith(b"\n"):
                data += stream.readline()
            yield at, data
            at += len(data)


# -- checks that need all lines of a file


class Seen:
    """Statistics of the lines that begin in a range of a file.

    Parameters
    ----------
    layout : Layout

    Attributes
    ----------
    count : int
        Number of edges.
    highest : int
        The highest id; -1 without edges.
    least : int
        The lowest id; 0 without edges.
    above, below : bool
        Whether there is an entry on this side of the diagonal.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.count, self.highest, self.least = 0, -1, 0
        self._above: tuple[int, int] | None = None
        self.below = False
        self._blocks: list[tuple[int, int]] = []

    @property
    def above(self) -> bool:
        """Whether there is an entry above the diagonal."""
        return self._above is not None

    def add(self, block: Block) -> None:
        """Update the statistics with some edges."""
        self._blocks.append((self.count, block.begin))
        self.count += block.sources.size
        for ends in (block.sources, block.targets):
            self.highest = max(self.highest, int(ends.max(initial=-1)))
            self.least = min(self.least, int(ends.min(initial=0)))
        if block.above >= 0 and self._above is None:
            self._above = block.begin, block.above
        self.below |= block.below >= 0

    def check(self, total: int, sides: tuple[bool, bool], before: int = 0) -> None:
        """Check that all lines together match the header of the file.

        Parameters
        ----------
        total : int
            Number of edges in the file.
        sides : tuple of 2 bool
            Whether the file has entries above, and below the diagonal.
        before : int
            Number of edges in earlier ranges.

        Raises
        ------
        FileFormatError
            On the rank that has the wrong line, or on all ranks if lines are missing.
        """
        layout, most = self._layout, self._layout.entries
        if most is not None and before <= most < before + self.count:
            row = most - before
            first, begin = next(b for b in reversed(self._blocks) if b[0] <= row)
            text, position = line_at(layout, begin, row - first)
            text.fail(
                "more entries than in the header",
                position,
                expected=f"{most} entries",
            )
        if most is not None and total < most:
            raise FileFormatError(
                "fewer entries than in the header",
                where=layout.path,
                got=f"{total} entries before the end of the file",
                expected=f"{most} entries",
                fix="the file is truncated: fetch it again",
            )
        if all(sides) and self._above is not None:
            _fail_triangles(*line_at(layout, *self._above))
        if not total and layout.vertex_count is None:
            fail_empty(layout.text(layout.size, b""))


def fail_empty(text: Text) -> NoReturn:
    """Raise FileFormatError for a file without edges."""
    text.fail(
        "no edges",
        len(text.data),
        got="the end of the file",
        expected="lines of two vertex ids",
        fix="pass vertex_count= and names=False for a graph without edges",
    )


def _fail_triangles(text: Text, position: int) -> NoReturn:
    """Raise FileFormatError for an entry in the other triangle than earlier ones."""
    text.fail(
        "a symmetric file holds entries of both triangles",
        position,
        expected="one triangle only, the other one is implied",
        fix="change 'symmetric' to 'general' in the first line if both directions "
        "are listed, or drop one triangle",
    )


def _check_range(table: Table, vertices: int) -> None:
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


def _check_ids(
    table: Table,
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    layout: Layout,
) -> None:
    """Check ids that are vertex numbers; an error has the line of the first bad one."""
    # Without vertex_count, the highest id determines the size of adjacencies: it is
    # untrusted, like a header.
    trusted = table.text.limit_bytes // 4
    vertex_count: object = layout.vertex_count
    is_given = isinstance(vertex_count, int)
    bound = int(vertex_count) if isinstance(vertex_count, int) else trusted
    bad = (sources < 0) | (targets < 0) | (sources >= bound) | (targets >= bound)
    if bad.any():
        fix = "pass names=True to renumber the ids, or vertex_count to trust them"
        if is_given:
            fix = "pass a larger vertex_count, or names=True to renumber the ids"
        table.text.fail(
            "vertex id out of range",
            table.position(int(np.flatnonzero(bad)[0])),
            expected=f"0 <= id < {bound}",
            fix=fix if layout.takes_names else None,
        )


# -- counts in headers


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

"""Readers of parts of text files: the lines that begin in a range of bytes.

Properties of the whole file, such as the number of fields and of entries, come from its
first lines (`Layout`). Checks that need all lines are in `checks`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_path
from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import FileFormatError, GraphInputError
from featgraph.graph.formats.dimacs import problem_line
from featgraph.graph.formats.edge_list import EdgeListOptions, check_ids, edge_columns
from featgraph.graph.formats.fields import marks_of
from featgraph.graph.formats.matrix_market import (
    check_range,
    fail_triangles,
    matrix_market_header,
)
from featgraph.graph.formats.text import (
    GZIP_MAGIC,
    UTF8_BOM,
    Table,
    Text,
    refuse_utf16,
    scan_table,
    trusted_bytes,
)

__all__ = [
    "Block",
    "Layout",
    "Seen",
    "line_at",
    "read_blocks",
    "read_layout",
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
    order : tuple of int
        Integer columns of sources and targets, followed by the column of weights.
    base : int
        The number of the first vertex.
    vertex_count, entries : int or None
        Counts from the header, or from the caller.
    directed : bool
    is_symmetric : bool
        Whether all entries must be in one triangle.
    are_names : bool
        Whether ids are names unless they are exactly 0..V-1.
    are_words : bool
        Whether ids are words, which cannot be numbered from a part of the file.
    """

    path: str
    start: int
    size: int
    limit_bytes: int
    kinds: str
    comments: str
    prefix: str
    field_count: int
    order: tuple[int, ...]
    base: int
    vertex_count: int | None
    entries: int | None
    directed: bool
    is_symmetric: bool = False
    are_names: bool = False
    are_words: bool = False
    separator: str = " "

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""
        return len(self.order) == 3

    def weights_dtype(self, total: int, any_real: bool) -> np.dtype[Any] | None:
        """Return the dtype of the weights of `total` edges; None without weights."""
        if not self.has_weights:
            return None
        # The dtype of an empty list in `Graph.from_edges`.
        is_none = total == 0 and self.entries is None
        is_real = any_real or "r" in self.kinds or is_none
        return np.dtype(np.float64 if is_real else np.int64)

    def text(self, begin: int, data: bytes) -> Text:
        """Return a part of the file."""
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


def read_layout(
    path: str | os.PathLike[str],
    suffix: str,
    directed: bool | None,
    options: dict[str, Any],
) -> Layout:
    """Read the layout of a file from its first lines.

    Parameters
    ----------
    path : path
    suffix : str
        ".mtx", ".gr", or another one for an edge list.
    directed : bool or None
    options : dict
        Options of the format's reader, except ``duplicates``: see `require_options`.

    Raises
    ------
    FileFormatError
        If the file has another format, or is compressed.
    """
    options = dict(options)
    max_bytes = options.pop("max_bytes", None)
    if suffix in (".mtx", ".mm"):
        text = _head(path, "%", max_bytes)
        kinds, symmetric, count, entries, start = matrix_market_header(text)
        made = _layout(text, start, kinds, "%", (0, 1, 2)[: len(kinds)])
        made = replace(
            made, field_count=len(kinds), base=1, vertex_count=count, entries=entries
        )
        made = replace(made, directed=not symmetric, is_symmetric=symmetric)
    elif suffix == ".gr":
        text = _head(path, "c", max_bytes)
        count, entries, start = problem_line(text)
        made = _layout(text, start, "iii", "c", (0, 1, 2))
        made = replace(made, prefix="a", field_count=3, base=1)
        made = replace(made, vertex_count=count, entries=entries)
    else:
        list_options = EdgeListOptions(**options)
        return _edge_list(path, max_bytes, directed is not False, list_options)
    _refuse_directed(made, directed)
    return made


def _refuse_directed(made: Layout, directed: bool | None) -> None:
    if directed is not None and directed != made.directed:
        kind = "directed" if made.directed else "undirected"
        raise GraphInputError(
            "directed= contradicts the file",
            where=made.path,
            got=f"directed={directed}, of a graph that is {kind}",
            fix="leave directed out",
        )


def _edge_list(
    path: Any, max_bytes: int | None, directed: bool, list_options: EdgeListOptions
) -> Layout:
    comments: Any = list_options.comments
    text = _head(path, comments if isinstance(comments, str) else "#%", max_bytes)
    how = edge_columns(text, list_options)
    kinds = ["-"] * (max(how.chosen) + 1)
    for column in how.chosen:
        kinds[column] = "i"
    order = tuple(sorted(how.chosen).index(column) for column in how.chosen)
    made = _layout(text, how.start, "".join(kinds), comments, order)
    return replace(
        made,
        field_count=how.field_count,
        separator=how.separator,
        vertex_count=list_options.vertex_count,
        directed=directed,
        are_names=bool(list_options.names),
        are_words=how.are_words,
    )


def _layout(
    text: Text, start: int, kinds: str, comments: str, order: tuple[int, ...]
) -> Layout:
    begin = text.begin + start
    size = text.begin + text.size
    return Layout(
        text.path, begin, size, text.limit_bytes, kinds, comments, "", 0, order, 0,
        None, None, directed=True,
    )  # fmt: skip


def _head(path: Any, comments: str, max_bytes: int | None) -> Text:
    """Read a file up to its second line that is neither empty nor a comment."""
    name = require_path(path)
    with open(name, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FileFormatError("not a regular file", where=name)
        data = stream.read(4)
        if data.startswith(GZIP_MAGIC):
            raise FileFormatError(
                "a compressed file cannot be read in parts",
                where=name,
                got="gzip",
                fix="decompress it, or make slices of it: featgraph convert",
            )
        refuse_utf16(name, data)
        stream.seek(0)
        found, lines = 0, []
        while found < 2 and (line := stream.readline()):
            lines.append(line)
            word = line.removeprefix(UTF8_BOM).strip()
            found += bool(word) and chr(word[0]) not in comments
    data, begin = b"".join(lines), 0
    if data.startswith(UTF8_BOM):
        begin = len(UTF8_BOM)
    limit = trusted_bytes(status.st_size) if max_bytes is None else max_bytes
    if max_bytes is not None and status.st_size > max_bytes:
        raise FileFormatError(
            "too much text",
            where=name,
            got=f"{status.st_size} bytes",
            expected=f"at most {max_bytes} bytes (max_bytes)",
            fix="pass max_bytes= if the file is to be trusted",
        )
    return Text(name, data[begin:], limit, begin, status.st_size - begin)


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


def _scanned(layout: Layout, text: Text, kinds: str) -> tuple[Table, str]:
    """Parse some lines; weights that are all integers stay integers."""
    try:
        return _scan(layout, text, kinds), kinds
    except FileFormatError:
        is_first = layout.has_weights and "r" not in kinds and layout.base == 0
        if not is_first:
            raise
    places = [place for place, kind in enumerate(kinds) if kind == "i"]
    at = places[layout.order[2]]
    kinds = f"{kinds[:at]}r{kinds[at + 1 :]}"
    return _scan(layout, text, kinds), kinds


def _scan(layout: Layout, text: Text, kinds: str) -> Table:
    return scan_table(
        text,
        0,
        kinds,
        comments=layout.comments,
        prefix=layout.prefix,
        field_count=layout.field_count,
        separator=layout.separator,
    )


def _block(layout: Layout, at: int, table: Table) -> Block:
    order = list(layout.order)
    weights: NDArray[Any] | None = None
    if layout.has_weights and table.integers.shape[0] == len(order):
        weights = table.integers[order[2]].copy()
    elif layout.has_weights:
        weights = table.reals
    if layout.has_weights and table.integers.shape[0] == 2:
        order = [place - (place > order[2]) for place in order[:2]]
    if layout.base:
        check_range(table, layout.vertex_count or 0)
    sources, targets = (table.integers[place] for place in order[:2])
    if not (layout.base or layout.are_names):
        check_ids(table, sources, targets, layout.vertex_count)
    above = below = -1
    if layout.is_symmetric:
        above, below = _first(sources < targets), _first(sources > targets)
    base = layout.base
    return Block(at, sources - base, targets - base, weights, above, below)


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask)) if mask.any() else -1


def line_at(layout: Layout, begin: int, row: int) -> tuple[Text, int]:
    """Return the text of a block, and the position of one of its rows."""
    at, data = next(_lines(layout, begin, layout.size))
    text = layout.text(at, data)
    return text, _scan_row(layout, text, row)


def _scan_row(layout: Layout, text: Text, row: int) -> int:
    nothing = np.empty((0, 0), np.int64)
    marks = marks_of(layout.comments, layout.separator)
    table = Table(text, 0, marks, nothing, np.empty(0))
    return table.position(row)


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
            fail_triangles(*line_at(layout, *self._above))
        if not total and layout.vertex_count is None:
            raise FileFormatError(
                "no edges",
                where=layout.path,
                got="the end of the file",
                expected="lines of two vertex ids",
                fix="pass vertex_count= and names=False for a graph without edges",
            )

"""Edge lists as text: SNAP, comma or tab separated tables, with or without header.

The compiled scanner reads ids that are integers; words, and integers in quotes, are
read line by line in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import FileFormatError
from featgraph.graph.building.edges import EdgeList, edge_list
from featgraph.graph.formats.columns import (
    INTEGER,
    EdgeColumns,
    EdgeListOptions,
    divided,
    edge_columns,
)
from featgraph.graph.formats.fields import (
    BLANKS,
    is_number,
    named_separator,
    unquoted,
)
from featgraph.graph.formats.text import Table, Text, real_of, scan_table

__all__ = ["check_ids", "parse_edge_list", "read_columns"]


def parse_edge_list(
    text: Text, list_options: EdgeListOptions, **options: Any
) -> EdgeList:
    """Read the chosen columns; see `read_edge_list`."""
    sources, targets, values = read_columns(
        text, edge_columns(text, list_options), list_options
    )
    if sources.size == 0 and list_options.vertex_count is None:
        text.fail(
            "no edges",
            len(text.data),
            got="the end of the file",
            expected="lines of two vertex ids",
            fix="pass vertex_count= and names=False for a graph without edges",
        )
    options |= {
        "names": bool(list_options.names),
        "vertex_count": list_options.vertex_count,
    }
    return edge_list(sources, targets, weights=values, **options)


def read_columns(
    text: Text, how: EdgeColumns, list_options: EdgeListOptions
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return sources and targets as in the file, and weights."""
    names, comments = list_options.names, list_options.comments
    if how.are_words:
        return _read_words(text, how, comments)
    try:
        table, values = _scan(text, how, comments)
    except FileFormatError:
        if isinstance(names, str) or not names:
            raise
        return _read_words(text, how, comments)
    # The scanner stores columns from left to right.
    order = np.argsort(how.chosen[:2])
    sources, targets = (
        table.integers[int(np.flatnonzero(order == i)[0])] for i in (0, 1)
    )
    if not names:
        check_ids(table, sources, targets, list_options.vertex_count)
    return sources, targets, values


def _scan(
    text: Text, how: EdgeColumns, comments: str
) -> tuple[Table, NDArray[Any] | None]:
    """Parse the table; weights that are all integers stay integers."""
    chosen = how.chosen
    kinds = ["-"] * (max(chosen) + 1)
    for column in chosen:
        kinds[column] = "i"

    def scanned() -> Table:
        return scan_table(
            text,
            how.start,
            "".join(kinds),
            comments=comments,
            field_count=how.field_count,
            separator=how.separator,
        )

    if len(chosen) == 2:
        return scanned(), None
    rank = sorted(chosen).index(chosen[2])
    try:
        table = scanned()
    except FileFormatError:
        kinds[chosen[2]] = "r"
        table = scanned()
        return table, table.reals
    weights = table.integers[rank]
    ids = np.delete(table.integers, rank, axis=0)
    return Table(text, how.start, table.marks, ids, table.reals), weights


def check_ids(
    table: Table,
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    vertex_count: object,
) -> None:
    """Check ids that are vertex numbers; an error has the line of the first bad one."""
    # Without vertex_count, the highest id determines the size of adjacencies: it is
    # untrusted, like a header.
    trusted = table.text.limit_bytes // 4
    is_given = isinstance(vertex_count, int)
    bound = int(vertex_count) if isinstance(vertex_count, int) else trusted
    bad = (sources < 0) | (targets < 0) | (sources >= bound) | (targets >= bound)
    if bad.any():
        table.text.fail(
            "vertex id out of range",
            table.position(int(np.flatnonzero(bad)[0])),
            expected=f"0 <= id < {bound}",
            fix="pass a larger vertex_count, or names=True to renumber the ids"
            if is_given
            else "pass names=True to renumber the ids, or vertex_count to trust them",
        )


def _read_words(
    text: Text, how: EdgeColumns, comments: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return sources, targets and weights.

    Returns
    -------
    sources, targets : ndarray of int64, or of objects (str)
    weights : ndarray of int64 or float64, or None

    Raises
    ------
    FileFormatError
        If a row is not an edge, with its line, or the first line may be a header as
        well as an edge.
    """
    rows = list(_rows(text, how, comments))
    if how.doubted is not None and _is_header(text, how, rows):
        del rows[0]
    sources, targets = (
        [unquoted(fields[column]) for _, fields in rows] for column in how.chosen[:2]
    )
    ends = _as_integers(sources, targets)
    if ends is None:
        ends = np.array(sources, object), np.array(targets, object)
    return *ends, _weights(text, how, rows)


def _rows(
    text: Text, how: EdgeColumns, comments: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first byte of each row, and its fields."""
    at, separator = how.start, how.separator
    for data in text.data[at:].split(b"\n"):
        begin, at = at, at + len(data) + 1
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            text.fail("not UTF-8 text", begin + error.start)
        content = line.strip(BLANKS)
        if not content or content[0] in comments:
            continue
        fields = divided(text, begin, line.rstrip("\r"), separator)
        if len(fields) != how.field_count:
            few = "few" if len(fields) < how.field_count else "many"
            text.fail(
                f"too {few} fields",
                begin,
                expected=f"{how.field_count} fields, separated by "
                f"{named_separator(separator)}",
            )
        for column in how.chosen[:2]:
            if not unquoted(fields[column]):
                text.fail("empty field", begin, expected="the name of a vertex")
        yield begin, fields


def _is_header(text: Text, how: EdgeColumns, rows: list[tuple[int, list[str]]]) -> bool:
    """Whether the first line of words is a header.

    It is an edge if one of its vertices has another edge, and a header if there are
    numbers below it. If both or neither apply, an error requires ``header=``.
    """
    (begin, first), *others = rows
    ids = how.chosen[:2]
    ends = {unquoted(first[column]) for column in ids}
    recurs = any(unquoted(row[column]) in ends for _, row in others for column in ids)
    is_above = any(map(is_number, others[0][1])) if others else False
    if recurs == is_above:
        text.fail(
            "the first line may be a header, and may be an edge",
            begin,
            expected="names of columns, or of two vertices",
            fix="pass header=True or header=False",
        )
    return is_above


def _as_integers(
    *columns: list[str],
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return ids as 64-bit integers; None if one is not an integer."""
    if not all(INTEGER.fullmatch(word) for words in columns for word in words):
        return None
    try:
        sources, targets = (np.array(list(map(int, c)), np.int64) for c in columns)
    except (OverflowError, ValueError):
        return None
    return sources, targets


def _weights(
    text: Text, how: EdgeColumns, rows: list[tuple[int, list[str]]]
) -> NDArray[Any] | None:
    """Return the weights; those that are all integers stay integers."""
    if len(how.chosen) == 2:
        return None
    words = [fields[how.chosen[2]] for _, fields in rows]
    if words and all(INTEGER.fullmatch(word) for word in words):
        try:
            return np.array(list(map(int, words)), np.int64)
        except (OverflowError, ValueError):  # too many digits for Python, or for int64
            pass
    found = [real_of(text, w, at) for w, (at, _) in zip(words, rows, strict=True)]
    return np.array(found, np.float64)

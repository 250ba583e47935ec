"""Edge lists as text: SNAP, comma or tab separated tables, with or without header."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import ArgumentError, FileFormatError, GraphInputError
from featgraph.graph.building.arguments import shown
from featgraph.graph.building.edges import EdgeList, edge_list
from featgraph.graph.formats.text import Table, Text, scan_table

__all__ = ["check_ids", "edge_list_columns", "parse_edge_list"]


def parse_edge_list(
    text: Text,
    columns: tuple[int | str, int | str],
    weights: int | str | None,
    comments: str,
    names: bool | str,
    **options: Any,
) -> EdgeList:
    """Read the chosen columns; see `read_edge_list`."""
    chosen, start = edge_list_columns(text, columns, weights, comments, names)
    table, values = _scan(text, start, chosen, comments)
    # The scanner stores columns from left to right.
    order = np.argsort(chosen[:2])
    sources, targets = (
        table.integers[int(np.flatnonzero(order == i)[0])] for i in (0, 1)
    )
    if sources.size == 0 and options.get("vertex_count") is None:
        text.fail(
            "no edges",
            len(text.data),
            got="the end of the file",
            expected="lines of two vertex ids",
            fix="pass vertex_count= and names=False for a graph without edges",
        )
    if names is False:
        check_ids(table, sources, targets, options.get("vertex_count"))
    return edge_list(
        sources, targets, weights=values, names=names is not False, **options
    )


def edge_list_columns(
    text: Text,
    columns: tuple[int | str, int | str],
    weights: int | str | None,
    comments: str,
    names: bool | str,
) -> tuple[list[int], int]:
    """Return the columns of source, target and weight, and where the rows begin."""
    if not isinstance(comments, str) or not comments.isascii():
        raise ArgumentError(
            "not characters that begin comments",
            where="comments=",
            got=shown(comments),
            expected="a string of ASCII characters, '' for none",
        )
    if not isinstance(columns, tuple | list) or len(columns) != 2:
        raise ArgumentError(
            "not the columns of an edge",
            where="columns=",
            got=shown(columns),
            expected="two numbers from 0 on, or names from the header line",
        )
    if not isinstance(names, bool | np.bool_ | str) or names not in (
        "auto",
        True,
        False,
    ):
        raise GraphInputError(
            "unknown way to treat vertex names",
            where="names",
            got=shown(names),
            expected="'auto', True or False",
        )
    header, start = _header(text, comments)
    chosen = [_column(text, header, column) for column in columns]
    if weights is not None:
        chosen.append(_column(text, header, weights))
    if len(set(chosen)) != len(chosen):
        raise GraphInputError(
            "a column is chosen twice",
            where="columns, weights",
            got=f"columns {chosen}",
            expected="different columns",
        )
    return chosen, start


def _scan(
    text: Text, start: int, chosen: list[int], comments: str
) -> tuple[Table, NDArray[Any] | None]:
    """Parse the table; weights that are all integers stay integers."""
    kinds = ["-"] * (max(chosen) + 1)
    for column in chosen:
        kinds[column] = "i"
    if len(chosen) == 2:
        return scan_table(text, start, "".join(kinds), comments=comments), None
    rank = sorted(chosen).index(chosen[2])
    try:
        table = scan_table(text, start, "".join(kinds), comments=comments)
    except FileFormatError:
        kinds[chosen[2]] = "r"
        table = scan_table(text, start, "".join(kinds), comments=comments)
        return table, table.reals
    weights = table.integers[rank]
    ids = np.delete(table.integers, rank, axis=0)
    return Table(text, start, comments, ids, table.reals), weights


def _header(text: Text, comments: str) -> tuple[list[str] | None, int]:
    """Return the words of a header line, if there is one, and where the rows begin."""
    for begin, end, line in text.lines():
        if not line or line[0] in comments:
            continue
        if "\r" in line:  # a blank to the scanner, which would see one line
            text.fail(
                "lines that end in a carriage return alone",
                begin,
                got=repr(line[:60]),
                expected="lines that end in \\n or \\r\\n",
                fix="tr '\\r' '\\n' < FILE > OTHER",
            )
        words = [word.strip().strip('"') for word in _split(line)]
        if any(_is_number(word) for word in words):
            break
        # A word at least: a line of control characters is no header but damage.
        if all(word.isprintable() and word for word in words) and len(words) > 1:
            return words, end
        break
    return None, 0


def _split(line: str) -> list[str]:
    for separator in (",", ";"):
        if separator in line:
            return line.split(separator)
    return line.split()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _column(text: Text, header: list[str] | None, column: int | str) -> int:
    if isinstance(column, str):
        if header is None or column not in header:
            text.fail(
                "no such column",
                0,
                got=repr(column),
                expected=f"one of {header}" if header else "a number: no header line",
            )
        return header.index(column)
    if isinstance(column, bool) or not isinstance(column, int) or column < 0:
        raise GraphInputError(
            "not a column",
            where="columns, weights",
            got=repr(column),
            expected="a number from 0 on, or a name from the header line",
        )
    if column > _MAX_COLUMN:
        raise GraphInputError("not a column", got=column, expected=f"<= {_MAX_COLUMN}")
    return column


# Bounds the table of column kinds.
_MAX_COLUMN = 10_000


def check_ids(
    table: Table,
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    vertex_count: object,
) -> None:
    """Check ids that are used as they are, naming the line of the first bad one."""
    # Without vertex_count the highest id decides what every adjacency allocates: it is
    # a claim of the file like any header's.
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

"""Edge lists as text: SNAP, comma or tab separated tables, with or without header.

`edge_columns` finds separator, header and columns in the first lines. The compiled
scanner reads ids that are integers; words, and integers in quotes, are read line by
line in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, FileFormatError, GraphInputError
from featgraph.graph.building.check import checked_count
from featgraph.graph.building.edges import EdgeList, edge_list
from featgraph.graph.formats.fields import (
    BLANKS,
    checked_separator,
    is_number,
    named_separator,
    separator_of,
    split_fields,
    unquoted,
)
from featgraph.graph.formats.layout import Layout, fail_empty, read_block
from featgraph.graph.formats.text import Text, real_of

__all__ = [
    "INTEGER",
    "EdgeColumns",
    "EdgeListOptions",
    "divided",
    "edge_columns",
    "edge_list_layout",
    "is_word",
    "parse_edge_list",
    "read_columns",
]


def parse_edge_list(
    text: Text, list_options: EdgeListOptions, **options: Any
) -> EdgeList:
    """Read the chosen columns; see `read_edge_list`."""
    how, count = edge_columns(text, list_options), list_options.vertex_count
    sources, targets, values = read_columns(text, how, list_options)
    if sources.size == 0 and count is None:
        fail_empty(text)
    options |= {"names": bool(list_options.names), "vertex_count": count}
    return edge_list(sources, targets, weights=values, **options)


def read_columns(
    text: Text, how: EdgeColumns, list_options: EdgeListOptions
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return sources and targets as in the file, and weights."""
    names = list_options.names
    if not how.are_words:
        try:
            block = read_block(_layout(text, how, list_options), text)
            return block.sources, block.targets, block.weights
        except FileFormatError:
            if isinstance(names, str) or not names:
                raise
    return _read_words(text, how, list_options.comments)


def edge_list_layout(text: Text, *, directed: bool = True, **options: Any) -> Layout:
    """Return the layout of an edge list, by the options of `read_edge_list`."""
    list_options = EdgeListOptions(**options)
    return _layout(text, edge_columns(text, list_options), list_options, directed)


def _layout(
    text: Text, how: EdgeColumns, list_options: EdgeListOptions, directed: bool = True
) -> Layout:
    kinds = ["-"] * (max(how.chosen) + 1)
    for column in how.chosen:
        kinds[column] = "i"
    return Layout.of(
        text,
        how.start,
        "".join(kinds),
        list_options.comments,
        integer_columns=tuple(map(sorted(how.chosen).index, how.chosen)),
        weights_may_be_real=True,
        field_count=how.field_count,
        separator=how.separator,
        vertex_count=list_options.vertex_count,
        directed=directed,
        are_names=bool(list_options.names),
        are_words=how.are_words,
        takes_names=True,
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
    if how.doubted is not None and _is_header_of_words(text, how, rows):
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


def _is_header_of_words(
    text: Text, how: EdgeColumns, rows: list[tuple[int, list[str]]]
) -> bool:
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


# -- the first lines: separator, header and columns


Column: TypeAlias = int | str

#: A field that is an integer, and a field of several numbers.
INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBERS = re.compile(r"[-+.\deE]+[,; \t][-+.\deE,; \t]*", re.ASCII)
#: Highest column, which bounds the table of column kinds.
_MAX_COLUMN = 10_000
#: Names of the columns of an edge, and of its weight, in data frames.
_ENDS, _WEIGHT = ("source", "target"), "weight"


@dataclass
class EdgeListOptions:
    """Options for reading an edge list: see `read_edge_list`."""

    columns: tuple[Column, Column] | None = None
    weights: Column | None = None
    comments: str = "#%"
    names: bool | str = "auto"
    vertex_count: int | None = None
    separator: str = "auto"
    header: bool | str = "auto"

    def __post_init__(self) -> None:
        if self.vertex_count is not None:
            self.vertex_count = checked_count(self.vertex_count)
            is_auto = isinstance(self.names, str) and self.names == "auto"
            self.names = False if is_auto else self.names


@dataclass(frozen=True)
class Line:
    """A line that is neither empty nor a comment.

    Attributes
    ----------
    begin, end : int
        Byte range, with the newline.
    fields : list of str
        Fields with their quotes.
    """

    begin: int
    end: int
    fields: list[str]

    @property
    def names(self) -> list[str]:
        """The fields without quotes."""
        return [unquoted(field) for field in self.fields]

    @property
    def is_text(self) -> bool:
        """Whether the line can be a header or an edge of words: it has no numbers."""
        names = self.names
        is_clean = all(name.isprintable() for name in names) and any(names)
        return len(names) > 1 and is_clean and not any(map(is_number, names))

    def has_number(self, column: Column | None) -> bool:
        """Whether the column exists and is a number."""
        is_field = isinstance(column, int) and 0 <= column < len(self.fields)
        return is_field and is_number(self.fields[column])  # type: ignore[index]


@dataclass(frozen=True)
class EdgeColumns:
    """The columns and layout of the rows of an edge list.

    Attributes
    ----------
    chosen : list of int
        Columns of source, target and, if any, weight.
    start : int
        Byte at which rows begin.
    separator : str
        One character; " " for blanks.
    field_count : int
        Number of fields of each row.
    are_words : bool
        Whether ids are words.
    doubted : Line or None
        A first line of words, which is a header or an edge depending on other rows.
    """

    chosen: list[int]
    start: int
    separator: str
    field_count: int
    are_words: bool
    doubted: Line | None


def edge_columns(text: Text, list_options: EdgeListOptions) -> EdgeColumns:
    """Return the columns and layout of an edge list, from its first lines."""
    _check_arguments(list_options)
    separator = checked_separator(list_options.separator)
    mark, first, second = _first_lines(text, list_options.comments, separator)
    is_header: bool | None = False
    if first is not None:
        is_header = _is_header(first, second, list_options)
        if is_header is None and not list_options.names:  # words cannot be ids
            is_header = True
    row = first if is_header is False else second
    heading = first if is_header else None
    if first is not None and row is second and row is not None:
        _check_width(text, first, row, mark)
    chosen = _chosen(text, heading, list_options)
    fields = [] if row is None else row.fields
    ids = [fields[column] for column in chosen[:2] if column < len(fields)]
    are_words = bool(list_options.names) and (
        is_header is None or any(map(is_word, ids))
    )
    return EdgeColumns(
        chosen,
        0 if heading is None else heading.end,
        mark,
        max(max(chosen) + 1, len(fields)),
        are_words,
        first if is_header is None else None,
    )


def _check_arguments(list_options: EdgeListOptions) -> None:
    comments: object = list_options.comments
    columns: Any = list_options.columns
    weights: object = list_options.weights
    if not isinstance(comments, str) or not comments.isascii():
        raise ArgumentError(
            "not characters that begin comments",
            where="comments=",
            got=shown(comments),
            expected="a string of ASCII characters, '' for none",
        )
    is_pair = isinstance(columns, tuple | list) and len(columns) == 2
    if columns is not None and not is_pair:
        raise ArgumentError(
            "not the columns of an edge",
            where="columns=",
            got=shown(columns),
            expected="two numbers from 0 on, or names from the header line",
        )
    if not isinstance(weights, str | int | None):
        raise GraphInputError(
            "not a column",
            where="weights=",
            got=shown(weights),
            expected="a number from 0 on, a name from the header line, 'auto', or None",
        )
    for option in ("names", "header"):
        value = getattr(list_options, option)
        is_flag = isinstance(value, bool | np.bool_)
        if not (is_flag or (isinstance(value, str) and value == "auto")):
            raise GraphInputError(
                "neither a truth value nor 'auto'",
                where=f"{option}=",
                got=shown(value),
                expected="'auto', True or False",
            )


def divided(text: Text, begin: int, line: str, separator: str) -> list[str]:
    """Return the fields of a line with their quotes; `begin` is its first byte."""
    try:
        return split_fields(line, separator)
    except ValueError:
        text.fail(
            "malformed quotes",
            begin,
            expected="a field that ends with its second quote, on the same line",
        )


def _first_lines(
    text: Text, comments: str, separator: str | None
) -> tuple[str, Line | None, Line | None]:
    """Return the separator, and the first two lines that are not comments."""
    found: list[Line] = []
    for begin, end, stripped in text.lines():
        if not stripped or stripped[0] in comments:
            continue
        # Keep a leading tab that is a separator.
        line = text.data[begin:end].decode("utf-8", "replace").rstrip("\r\n")
        # The scanner takes a carriage return for a blank, not for the end of a line.
        if not found and "\r" in line:
            text.fail(
                "lines that end in a carriage return alone",
                begin,
                got=repr(line[:60]),
                expected="lines that end in \\n or \\r\\n",
                fix="tr '\\r' '\\n' < FILE > OTHER",
            )
        separator = separator or separator_of(line)
        found.append(Line(begin, end, divided(text, begin, line, separator)))
        if len(found) == 2:
            break
    first, second = [*found, None, None][:2]
    return separator or " ", first, second


def _is_header(
    first: Line, second: Line | None, list_options: EdgeListOptions
) -> bool | None:
    """Whether the first line is a header; None if it may be an edge of words."""
    columns, weights = list_options.columns, list_options.weights
    if not isinstance(list_options.header, str):
        return bool(list_options.header)
    if not first.is_text:
        return False
    chosen = (*(columns or ()), weights)
    if any(isinstance(column, str) and column != "auto" for column in chosen):
        return True
    if set(_ENDS) <= set(first.names):
        return True
    if second is None:
        return False
    if all(second.has_number(column) for column in columns or (0, 1)):
        return True
    if weights == "auto" and _WEIGHT in first.names:
        weights = first.names.index(_WEIGHT)
    # A word is not a weight: a line with a word above a column of numbers is a header.
    if second.has_number(weights):
        return True
    return None if len(first.fields) == len(second.fields) else False


def _check_width(text: Text, header: Line, row: Line, separator: str) -> None:
    """Refuse a header whose number of fields differs from that of a row."""
    if len(header.fields) != len(row.fields):
        text.fail(
            "the header is not as wide as the rows",
            header.begin,
            got=f"{len(header.fields)} names: {', '.join(map(repr, header.names))}"[
                :200
            ],
            expected=f"{len(row.fields)} fields separated by "
            f"{named_separator(separator)}, as in the row below",
            fix="name every column (an empty name will do), or remove the line",
        )


def _chosen(
    text: Text, header: Line | None, list_options: EdgeListOptions
) -> list[int]:
    """Return the numbers of the columns of source, target and weight."""
    columns, weights = list_options.columns, list_options.weights
    names = None if header is None else header.names
    if columns is None:
        is_named = names is not None and set(_ENDS) <= set(names)
        columns = _ENDS if is_named else (0, 1)
    if weights == "auto":
        weights = _WEIGHT if names is not None and _WEIGHT in names else None
    chosen = [_column(text, names, column) for column in columns]
    if weights is not None:
        chosen.append(_column(text, names, weights))
    if len(set(chosen)) != len(chosen):
        raise GraphInputError(
            "a column is chosen twice",
            where="columns=, weights=",
            got=f"columns {chosen}",
            expected="different columns",
        )
    return chosen


def _column(text: Text, header: list[str] | None, column: Column) -> int:
    if isinstance(column, str):
        if header is None or header.count(column) != 1:
            is_twice = header is not None and column in header
            text.fail(
                "two columns have the same name" if is_twice else "no such column",
                0,
                got=repr(column),
                expected=f"one of {header}" if header else "a number: no header line",
                fix="choose the column by its number, from 0 on" if is_twice else None,
            )
        return header.index(column)
    if isinstance(column, bool) or not isinstance(column, int) or column < 0:
        raise GraphInputError(
            "not a column",
            where="columns=, weights=",
            got=repr(column),
            expected="a number from 0 on, or a name from the header line",
        )
    if column > _MAX_COLUMN:
        raise GraphInputError(
            "not a column",
            where="columns=, weights=",
            got=column,
            expected=f"{_MAX_COLUMN} or less",
        )
    return column


def is_word(field: str) -> bool:
    """Whether an id is a word, which the compiled scanner does not read.

    Numbers in quotes are words. Numbers that are not integers, and several numbers in
    one field, are not ids.
    """
    are_numbers = is_number(field) or _NUMBERS.fullmatch(field)
    return bool(field) and field.isprintable() and not are_numbers

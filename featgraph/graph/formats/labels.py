"""Vertex labels as text."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.formats.columns import divided, is_word
from featgraph.graph.formats.fields import separator_of, unquoted
from featgraph.graph.formats.text import Text

__all__ = ["parse_labels"]

_MAX_ID = 2**63 - 1


def parse_labels(text: Text, column: str | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read a label for each listed vertex; see `read_labels`."""
    try:
        content = text.data.decode("utf-8")
    except UnicodeDecodeError as error:
        text.fail("not UTF-8 text", error.start)
    rows = _rows(text, content)
    if not rows:
        text.fail("no labels", len(text.data), got="the end of the file")
    place, width = 1, 2
    header = _header(text, rows, column)
    if header is not None:
        place, width = header.index(column or "label", 1), len(header)
    are_words = bool(rows) and is_word(rows[0][1][0])
    is_name = bool if are_words else _is_id
    vertices, labels = [], []
    for line, fields in rows:
        if len(fields) != width or not is_name(fields[0]) or not fields[place]:
            _fail_row(text, line, fields, width, are_words)
        vertices.append(fields[0] if are_words else int(fields[0]))
        labels.append(fields[place])
    return np.array(vertices, None if are_words else np.int64), _as_array(labels)


def _header(
    text: Text, rows: list[tuple[int, list[str]]], column: str | None
) -> list[str] | None:
    """Take the header from the rows; None if they begin with a labelled vertex."""
    first = rows[0][1]
    if _is_id(first[0]):
        if column is not None:
            text.fail("no such column", 0, got=repr(column), expected="a header line")
        return None
    wanted = "label" if column is None else column
    if wanted in first[1:]:
        return rows.pop(0)[1]
    has_ids = any(_is_id(fields[0]) for _, fields in rows)
    if column is not None or has_ids or not is_word(first[0]):
        text.fail(
            "no such column",
            0,
            got=repr(wanted),
            expected=f"one of {first[1:]}",
            fix="pass column=",
        )
    return None


def _rows(text: Text, content: str) -> list[tuple[int, list[str]]]:
    """Return (line, fields) of every line that is neither empty nor a comment."""
    first = next(
        (line for line in content.splitlines() if line.strip() and line[0] not in "#%"),
        "",
    )
    separator, rows = separator_of(first), []
    if separator == " ":
        at = 0
        for number, line in enumerate(content.split("\n"), 1):
            if line.strip() and line[0] not in "#%":
                fields = divided(text, at, line.rstrip("\r"), separator)
                rows.append((number, [unquoted(field) for field in fields]))
            at += len(line.encode()) + 1
        return rows
    # Fields in quotes may have several lines.
    reader = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=separator,
        skipinitialspace=separator != "\t",
        strict=True,
    )
    try:
        for fields in reader:
            if fields and not fields[0].startswith(("#", "%")):
                rows.append((reader.line_num, [field.strip() for field in fields]))
    except csv.Error as error:
        _fail_row(text, reader.line_num, [str(error)], 2)
    return rows


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word[:20]) <= _MAX_ID


def _as_array(labels: list[str]) -> NDArray[Any]:
    try:
        if any("_" in label for label in labels):
            raise ValueError
        return np.array([int(label) for label in labels], np.int64)
    except (ValueError, OverflowError):
        return np.array(labels)


def _fail_row(
    text: Text, line: int, fields: list[str], width: int, are_words: bool = False
) -> None:
    starts = [begin for begin, _, _ in text.lines()]
    vertex = "a vertex (its name)" if are_words else "a vertex (an integer >= 0)"
    text.fail(
        "malformed label line",
        starts[min(line, len(starts)) - 1] if starts else 0,
        got=repr(" | ".join(fields))[:80],
        expected=f"{width} fields: {vertex}, its label"
        + (", and others" if width > 2 else ""),
    )

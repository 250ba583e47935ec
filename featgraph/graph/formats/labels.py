"""Vertex labels as text."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.formats.text import Text

__all__ = ["parse_labels"]

_MAX_ID = 2**63 - 1


def parse_labels(
    text: Text, column: str | None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Read a label for each listed vertex; see `read_labels`."""
    try:
        content = text.data.decode("utf-8")
    except UnicodeDecodeError as error:
        text.fail("not UTF-8 text", error.start)
    rows = _rows(text, content)
    if not rows:
        text.fail("no labels", len(text.data), got="the end of the file")
    place = 1
    if not _is_id(rows[0][1][0]):
        header = rows.pop(0)[1]
        wanted = "label" if column is None else column
        if wanted not in header[1:]:
            text.fail(
                "no such column",
                0,
                got=repr(wanted),
                expected=f"one of {header[1:]}",
                fix="pass column=",
            )
        place = header.index(wanted, 1)
        width = len(header)
    else:
        if column is not None:
            text.fail("no such column", 0, got=repr(column), expected="a header line")
        width = 2
    vertices, labels = [], []
    for line, fields in rows:
        if len(fields) != width or not _is_id(fields[0]) or not fields[place]:
            _fail_row(text, line, fields, width)
        vertices.append(int(fields[0]))
        labels.append(fields[place])
    return np.array(vertices, np.int64), _as_array(labels)


def _rows(text: Text, content: str) -> list[tuple[int, list[str]]]:
    """Return (line, fields) of every line that is neither empty nor a comment."""
    first = next(
        (line for line in content.splitlines() if line.strip() and line[0] not in "#%"),
        "",
    )
    if "," not in first:
        return [
            (number, line.split())
            for number, line in enumerate(content.split("\n"), 1)
            if line.strip() and line[0] not in "#%"
        ]
    rows = []
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
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


def _fail_row(text: Text, line: int, fields: list[str], width: int) -> None:
    starts = [begin for begin, _, _ in text.lines()]
    text.fail(
        "malformed label line",
        starts[min(line, len(starts)) - 1] if starts else 0,
        got=repr(" | ".join(fields))[:80],
        expected=f"{width} fields: a vertex (an integer >= 0), its label"
        + (", and others" if width > 2 else ""),
    )

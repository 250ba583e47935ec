"""Fields of a line of text: the separator of a file, quotes, and comments.

A file has one separator, which is found in its first line. The compiled scanner
(`scan`) and the readers of words split lines by the same rules.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import shown
from featgraph.base.errors import ArgumentError

__all__ = [
    "BLANKS",
    "COMMENT",
    "SEPARATOR",
    "checked_separator",
    "is_number",
    "marks_of",
    "named_separator",
    "separator_of",
    "split_fields",
    "unquoted",
]

BLANKS = " \t\r\v\f"
#: Separators in the order of the search. A comma comes last, because fields between
#: other separators may have decimal commas.
_SEPARATORS = (";", "\t", ",")
_NAMES = {" ": "blanks", "\t": "tabs", ",": "commas", ";": "semicolons"}

# Bits of `marks_of`.
COMMENT = 1
SEPARATOR = 2

# A field in quotes, in which two quotes stand for one; a run of blanks.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_RUN = re.compile(f"[{BLANKS}]+")


def separator_of(line: str) -> str:
    r"""Return the separator of a file, from its first line.

    It is a semicolon, else a tab, else a comma, outside quotes; without any of them it
    is " ", for blanks. A line of numbers is separated by blanks if a field between tabs
    or commas would consist of several numbers: ``1 2\t3``, ``0 1 2,5``.
    """
    bare = _QUOTED.sub("", line)
    found = next((mark for mark in _SEPARATORS if mark in bare), " ")
    if found in "\t,":
        fields = [field.split() for field in bare.split(found)]
        numbers = [word for field in fields for word in field]
        if max(map(len, fields)) > 1 and all(fields) and all(map(is_number, numbers)):
            return " "
    return found


def checked_separator(separator: object) -> str | None:
    """Return a checked separator; None for "auto"."""
    if isinstance(separator, str) and separator == "auto":
        return None
    if not isinstance(separator, str) or separator not in _NAMES:
        raise ArgumentError(
            "not a separator of fields",
            where="separator=",
            got=shown(separator),
            expected="'auto', or one of ',', ';', '\\t', and ' ' for blanks",
        )
    return separator


def named_separator(separator: str) -> str:
    """Return the name of a separator for errors."""
    return _NAMES[separator]


def split_fields(line: str, separator: str) -> list[str]:
    """Split a line into fields, which keep their quotes.

    A field that begins with a quote ends with the next one; two quotes within it stand
    for one.

    Raises
    ------
    ValueError
        If quotes are not closed, or text follows them in the field.
    """
    if '"' not in line:
        if separator == " ":
            return _RUN.split(line.strip(BLANKS))
        return [field.strip(BLANKS) for field in line.split(separator)]
    ends = BLANKS if separator == " " else separator
    padding = BLANKS if separator == " " else BLANKS.replace(separator, "")
    line = line.strip(padding)
    fields, at = [], 0
    while True:
        quoted = _QUOTED.match(line, at)
        end = at if quoted is None else quoted.end()
        is_open = quoted is None and line[at : at + 1] == '"'
        begin = end
        while end < len(line) and line[end] not in ends:
            end += 1
        if is_open or (quoted is not None and line[begin:end].strip(padding)):
            raise ValueError("malformed quotes")
        fields.append(line[at:end].strip(BLANKS))
        if end == len(line):
            return fields
        at = end + 1
        while at < len(line) and line[at] in padding:
            at += 1


def unquoted(field: str) -> str:
    """Return the text of a field, without its quotes."""
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field


def is_number(word: str) -> bool:
    """Whether Python's float accepts a word."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def marks_of(comments: str, separator: str) -> NDArray[np.uint8]:
    """Return the bits `COMMENT` and `SEPARATOR` for each byte: uint8, shape (256,)."""
    marks = np.zeros(256, np.uint8)
    if separator != " ":
        marks[ord(separator)] = SEPARATOR
    marks[[ord(character) for character in comments]] |= COMMENT
    return marks

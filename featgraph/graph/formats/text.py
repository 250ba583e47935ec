"""Whole text files, plain or gzipped, of bounded size; `scan` parses their rows.

Files are untrusted: memory is allocated in proportion to the bytes of the file, never
by the sizes in a header alone.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_integer, require_path
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FileFormatError
from featgraph.graph.formats.fields import marks_of, named_separator

__all__ = [
    "GZIP_MAGIC",
    "Table",
    "Text",
    "Tokens",
    "read_head",
    "read_text",
    "real_of",
    "scan_table",
]

#: First bytes of gzip data, and of UTF-8 text with a byte order mark.
GZIP_MAGIC = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"
#: Bytes that are decompressed at once.
_CHUNK_BYTES = 1 << 22

# Default limit on memory, relative to the size of the file: edge lists compress 3- to
# 10-fold (measured on SNAP and Matrix Market files), gzip bombs 1000-fold. The limit is
# at least `_FREE_BYTES`.
_MAX_RATIO = 100
_FREE_BYTES = 64 << 20

# Longer fields are not numbers: exact decimals of doubles have up to 767 digits.
_MAX_TOKEN = 1100

#: The fix in errors for words in place of ids.
_NAMED = "where ids are words, pass names=True"

# Indexed by the statuses of `scan`: the problem, and the expected text.
_PROBLEMS = (
    ("", ""),
    ("not an integer", "decimal digits, with an optional sign, between {separator}"),
    ("integer out of range", "an integer that fits 64 bits"),
    ("too few fields", "{fields} fields, separated by {separator}"),
    ("too many fields", "{fields} fields, separated by {separator}"),
    ("empty field", "a value between separators"),
    ("more entries than in the header", "{rows} entries"),
    ("unknown kind of line", "{prefix}"),
    ("malformed quotes", "a field that ends with its second quote, on the same line"),
)


@dataclass(frozen=True, eq=False)
class Text:
    """The bytes of a file, decompressed, without byte order mark.

    Attributes
    ----------
    path : str
    data : bytes
    limit_bytes : int
        Most bytes that a reader may allocate.
    begin : int
        Byte of the file at which `data` begins, if it is a part.
    whole_bytes : int or None
        Bytes of the whole text, if `data` is a part.
    """

    path: str
    data: bytes
    limit_bytes: int
    begin: int = 0
    whole_bytes: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the whole text."""
        return len(self.data) if self.whole_bytes is None else self.whole_bytes

    def lines(self, start: int = 0) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, text) of each line, from byte `start` on."""
        while start < len(self.data):
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end + 1
            yield start, end, self.data[start:end].decode("utf-8", "replace").strip()
            start = end

    def fail(
        self, what: str, position: int | None = None, got: object = None, **parts: Any
    ) -> NoReturn:
        """Raise FileFormatError for the line around byte `position`."""
        where = self.path
        if position is not None:
            line = self.data.count(b"\n", 0, position) + 1
            line += _lines_before(self.path, self.begin)
            where = f"{where}:{line}"
            if got is None:
                got = self._snippet(position)
        raise FileFormatError(what, where=where, got=got, **parts)

    def _snippet(self, position: int) -> str:
        begin = self.data.rfind(b"\n", 0, position) + 1
        begin = max(begin, position - 30)
        end = self.data.find(b"\n", position)
        end = min(len(self.data) if end < 0 else end, begin + 60)
        return repr(self.data[begin:end].decode("utf-8", "replace").rstrip("\r"))


def _lines_before(path: str, end: int) -> int:
    """Count the lines of a file that end before a byte."""
    count = 0
    if end:
        with open(path, "rb") as stream:
            while end > 0 and (data := stream.read(min(_CHUNK_BYTES, end))):
                count += data.count(b"\n")
                end -= len(data)
    return count


def read_text(path: str | os.PathLike[str], max_bytes: int | None = None) -> Text:
    """Read a plain or gzipped file, detected by its content.

    Parameters
    ----------
    path : path of a regular file
    max_bytes : int, optional
        Most bytes of text. Default for a gzipped file: 100 times its size, at least
        64 MiB.

    Raises
    ------
    FileFormatError
        If it is not a regular file, is damaged or truncated, or has too much text.
    OSError
        If the file is missing or cannot be read.
    """
    name = require_path(path)
    with open(name, "rb", buffering=0) as stream:
        is_gzip, _, limit = _begin(stream, name, max_bytes)
        data = _decompress(stream, name, limit) if is_gzip else stream.read()
    if is_gzip:
        _refuse_utf16(name, data)
    return Text(name, data.removeprefix(UTF8_BOM), limit)


def read_head(
    path: str | os.PathLike[str], comments: str, max_bytes: int | None = None
) -> Text:
    """Read a plain file up to its second line that is neither empty nor a comment.

    Raises
    ------
    FileFormatError
        As `read_text` does, or if the file is compressed.
    """
    name = require_path(path)
    with open(name, "rb") as stream:
        is_gzip, size, limit = _begin(stream, name, max_bytes)
        if is_gzip:
            raise FileFormatError(
                "a compressed file cannot be read in parts",
                where=name,
                got="gzip",
                fix="decompress it, or make slices of it: featgraph convert",
            )
        found, lines = 0, []
        while found < 2 and (line := stream.readline()):
            lines.append(line)
            word = line.removeprefix(UTF8_BOM).strip()
            found += bool(word) and chr(word[0]) not in comments
    data = b"".join(lines)
    begin = len(UTF8_BOM) if data.startswith(UTF8_BOM) else 0
    return Text(name, data[begin:], limit, begin, size - begin)


def _begin(stream: Any, name: str, max_bytes: int | None) -> tuple[bool, int, int]:
    """Return whether a file is gzipped, its bytes, and the most bytes to allocate."""
    if max_bytes is not None:
        max_bytes = require_integer(
            "max_bytes", max_bytes, 0, what="not a number of bytes"
        )
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise FileFormatError("not a regular file", where=name)
    first = stream.read(len(GZIP_MAGIC))
    stream.seek(0)
    is_gzip = first == GZIP_MAGIC
    _refuse_utf16(name, first)
    size, limit = status.st_size, max_bytes
    if limit is None:
        limit = max(_FREE_BYTES, _MAX_RATIO * size)
    elif size > limit and not is_gzip:
        _refuse_size(name, limit)
    return is_gzip, size, limit


def _refuse_utf16(name: str, data: bytes) -> None:
    """Raise FileFormatError for text with a UTF-16 byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileFormatError(
            "not UTF-8 text", where=f"{name}:1", got="UTF-16", fix="convert to UTF-8"
        )


def _decompress(stream: Any, name: str, limit: int) -> bytes:
    data = bytearray()
    try:
        with gzip.GzipFile(fileobj=stream) as unzipped:
            while chunk := unzipped.read(_CHUNK_BYTES):
                data += chunk
                if len(data) > limit:
                    _refuse_size(name, limit)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileFormatError(
            "damaged or truncated gzip data",
            where=f"{name}, after {len(data)} bytes of text",
            got=str(error),
            fix="fetch the file again",
        ) from error
    return bytes(data)


def _refuse_size(name: str, limit: int) -> NoReturn:
    raise FileFormatError(
        "too much text",
        where=name,
        got=f"more than {limit} bytes",
        expected=f"at most {limit} bytes (max_bytes, or 100 times a gzipped file)",
        fix="pass max_bytes= if the file is to be trusted",
    )


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a text file in columns.

    Attributes
    ----------
    text : Text
    start : int
        First byte after the header.
    marks : ndarray of uint8, shape (256,)
        Table of `fields.marks_of`: comments and separators, by byte.
    integers : ndarray of int64, shape (integer columns, rows)
    reals : ndarray of float64, shape (rows,); empty if no column is real
    """

    text: Text
    start: int
    marks: NDArray[np.uint8]
    integers: NDArray[np.int64]
    reals: NDArray[np.float64]

    def position(self, row: int) -> int:
        """Return the byte at which the line of a row begins."""
        from featgraph.graph.formats import scan

        return int(scan.find_row(_bytes(self.text), self.start, self.marks, row))


def scan_table(
    text: Text,
    start: int,
    kinds: str,
    *,
    comments: str = "",
    prefix: str = "",
    field_count: int = 0,
    row_count: int | None = None,
    separator: str = " ",
    takes_names: bool = False,
) -> Table:
    """Parse the rows from byte `start` on.

    Parameters
    ----------
    kinds : str
        One letter per column: "i" integer, "r" real (one at most), "-" skipped.
    comments : str
        First characters of comment lines.
    prefix : str
        A letter that begins every row.
    field_count : int
        Number of fields of each row; 0: the number of kinds.
    row_count : int, optional
        Exact number of rows; checked already against the size of the file.
    separator : str
        One character between fields, which blanks may surround; " ": blanks.
    takes_names : bool
        Whether errors propose ``names=True`` for words in place of ids.

    Raises
    ------
    FileFormatError
        If a line is invalid, with its number.
    """
    from featgraph.graph.formats import scan  # loads Numba

    marks = marks_of(comments, separator)
    field_count = field_count or len(kinds)
    codes = np.array(["-ir".index(kind) for kind in kinds], np.int64)
    lines = scan.Lines(marks, ord(prefix) if prefix else 0, field_count, codes)
    found = scan.scan_pieces(_bytes(text), start, lines, row_count)
    if found.status:
        what, expected = _PROBLEMS[found.status]
        is_word = found.status == scan.NOT_INTEGER
        text.fail(
            what,
            found.position,
            expected=expected.format(
                fields=field_count,
                rows=row_count,
                separator=named_separator(separator),
                prefix=f"lines that begin with {prefix!r} or {comments!r}",
            ),
            fix=_NAMED if is_word and takes_names else None,
        )
    if row_count is not None and found.rows < row_count:
        text.fail(
            "fewer entries than in the header",
            len(text.data),
            got=f"{found.rows} entries before the end of the file",
            expected=f"{row_count} entries",
            fix="the file is truncated: fetch it again",
        )
    _finish_reals(text, found.reals, found.tokens, separator)
    return Table(text, start, marks, found.integers, found.reals)


def _finish_reals(
    text: Text,
    reals: NDArray[np.float64],
    tokens: NDArray[np.int64],
    separator: str,
) -> None:
    """Parse the fields that the scanner left to Python."""
    for row in np.flatnonzero(tokens[: reals.size] >= 0):
        begin = int(tokens[row])
        field = text.data[begin : begin + _MAX_TOKEN].split(b"\n", 1)[0]
        end = None if separator == " " else separator.encode()
        token = field.split(end, 1)[0].strip().decode("utf-8", "replace")
        reals[row] = real_of(text, token, begin)


def real_of(text: Text, token: str, position: int) -> float:
    """Return the value of a field; raise FileFormatError if it is not a weight."""
    try:
        # Python's float accepts 1_000; other readers do not.
        is_odd = "_" in token or not token.isascii() or len(token) >= _MAX_TOKEN
        value = math.nan if is_odd else float(token)
    except ValueError:
        value = math.nan
    is_overflow = math.isinf(value) and "n" not in token.lower()
    if math.isnan(value) or is_overflow:
        has_comma = token.count(",") == 1 and "." not in token
        text.fail(
            "not a weight" if math.isnan(value) else "number too large for float64",
            position,
            expected="a decimal number or inf",
            fix="write decimal points, such as 2.5 for 2,5" if has_comma else None,
        )
    return value


def _bytes(text: Text) -> NDArray[np.uint8]:
    return np.frombuffer(text.data, np.uint8)


# -- words, one after another

# Longer words are refused: they are neither numbers nor names.
_LONGEST = 1000
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Tokens:
    """A cursor over the words of a file.

    Parameters
    ----------
    text : Text
    pattern : compiled regular expression of bytes
        Matches one word; a group named ``skip`` matches text between words.
    """

    def __init__(self, text: Text, pattern: re.Pattern[bytes]) -> None:
        self.text = text
        self._matches = pattern.finditer(text.data)
        self._next: re.Match[bytes] | None = None
        self._advance()

    def _advance(self) -> None:
        for match in self._matches:
            if match.lastgroup != "skip":
                self._next = match
                return
        self._next = None

    @property
    def position(self) -> int:
        """The first byte of the next word."""
        return len(self.text.data) if self._next is None else self._next.start()

    @property
    def left_bytes(self) -> int:
        """The number of bytes from the next word on."""
        return len(self.text.data) - self.position

    @property
    def at_end(self) -> bool:
        """Whether no word is left."""
        return self._next is None

    def peek(self) -> bytes:
        """Return the next word, empty at the end, without consuming it."""
        return b"" if self._next is None else self._next[0]

    def take(self, expected: str) -> bytes:
        """Return the next word, and consume it."""
        if self._next is None:
            self.fail("the file ends early", expected=expected)
        word = self._next[0]
        if len(word) > _LONGEST:
            self.fail("word too long", expected=expected)
        self._advance()
        return word

    def skip(self, word: bytes, where: str) -> None:
        """Consume `word`, which must be next."""
        if self.peek().lower() != word:
            self.fail(f"malformed {where}", expected=repr(word.decode()))
        self._advance()

    def count(self, what: str, low: int, high: int) -> int:
        """Return the next word as an integer in [low, high]."""
        word = self.peek()
        expected = f"{what}: {low} to {high}" if high < 10**18 else f"{what}: {low} ..."
        is_plain = word.isdigit() and len(word) <= 19
        if not is_plain or not low <= int(word) <= high:
            self.fail(f"not a {what}", expected=expected)
        self._advance()
        return int(word)

    def probability(self, what: str) -> float:
        """Return the next word as a finite, nonnegative number."""
        word = self.peek()
        value = math.nan
        if len(word) <= _LONGEST and _NUMBER.fullmatch(word):
            value = float(word)
        if not 0 <= value < math.inf:
            self.fail(f"not a {what}", expected="a finite number, 0 or more")
        self._advance()
        return value

    def fail(self, what: str, position: int | None = None, **parts: Any) -> NoReturn:
        """Raise FileFormatError at the next word, or at `position`."""
        at = self.position if position is None else position
        if at >= len(self.text.data):
            parts.setdefault("got", "the end of the file")
        self.text.fail(what, at, **parts)

"""Compiled parser of the rows of a text table, at the speed of the disk.

A row is a line of fields separated by blanks, or by one separator with any blanks
around it (`fields`). The scanner stops at the first invalid byte and returns its
position, from which `text` makes an error. `scan_pieces` scans pieces of whole lines on
several threads. Import this module inside functions only: it loads Numba.

Decimal numbers become the nearest double: a number is an integer w of up to 19 digits
times a power of ten. The product of w with 128 bits of the power of five determines the
double, except in rare cases that are left to Python (Lemire, Number parsing at a
gigabyte per second, 2021, algorithm 1).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import import_whole
from featgraph.base.store import jit
from featgraph.graph.formats.fields import BLANKS, COMMENT, SEPARATOR

__all__ = [
    "NOT_INTEGER",
    "Lines",
    "Scanned",
    "count_lines",
    "find_row",
    "next_line",
    "scan_pieces",
    "scan_rows",
]

_Array: TypeAlias = NDArray[Any]

# Statuses of `scan_rows`; `text` has the messages.
OK = 0
NOT_INTEGER = 1
OUT_OF_RANGE = 2
FEWER_FIELDS = 3
MORE_FIELDS = 4
EMPTY_FIELD = 5
TOO_MANY_ROWS = 6
BAD_PREFIX = 7
BAD_QUOTES = 8

# Kinds of column.
SKIP = 0
INTEGER = 1
REAL = 2

# Bytes of characters, and the largest integer.
_NEWLINE = 10
_RETURN = 13
_QUOTE = 34
_MAX_INT64 = np.int64(2**63 - 1)

# By byte: blanks, and ends of a field for any separator.
_BLANKS = np.isin(np.arange(256), list(BLANKS.encode()))
_ENDS = _BLANKS | (np.arange(256) == _NEWLINE)
# Not a byte: fields are separated by blanks.
_NONE = 256

# Powers of ten that are exact in float64. A mantissa below 2**53 multiplied or divided
# by one of them is rounded once, so the result is the nearest double (Clinger 1990).
_EXACT_POWERS = np.array([float(f"1e{i}") for i in range(23)])


@jit
def _separator(marks: _Array) -> int:
    for byte in range(256):
        if marks[byte] & SEPARATOR:
            return byte
    return _NONE


@jit
def _skip_blanks(text: _Array, at: int, separator: int) -> int:
    while at < text.size and _BLANKS[text[at]] and text[at] != separator:
        at += 1
    return at


@jit
def _is_end(text: _Array, at: int, separator: int) -> bool:
    return at == text.size or _ENDS[text[at]] or text[at] == separator


@jit
def _field_end(text: _Array, at: int, separator: int) -> int:
    """Return the end of a field that is skipped; -1 for malformed quotes."""
    if at < text.size and text[at] == _QUOTE:
        at += 1
        while at < text.size and text[at] != _NEWLINE:
            if text[at] == _QUOTE:
                at += 1
                if at == text.size or text[at] != _QUOTE:
                    return at if _is_end(text, at, separator) else -1
            at += 1
        return -1
    while at < text.size and text[at] != _NEWLINE and text[at] != separator:
        if separator == _NONE and _BLANKS[text[at]]:
            break
        at += 1
    return at


@jit
def _parse_integer(text: _Array, at: int, separator: int) -> tuple[int, Any, int]:
    """Return the status, value and end of digits with an optional sign.

    The status is that of a field which ends after these digits.
    """
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    begin, value = at, np.int64(0)
    while at < text.size:
        # int64 only: Numba converts mixed uint8 and int64 to float64.
        digit = np.int64(text[at]) - 48
        if digit < 0 or digit > 9:
            break
        # Eighteen digits are always in range.
        if at - begin >= 18 and value > (_MAX_INT64 - digit) // 10:
            return OUT_OF_RANGE, np.int64(0), at
        value = value * 10 + digit
        at += 1
    if at == begin or not _is_end(text, at, separator):
        return NOT_INTEGER, np.int64(0), at
    return OK, -value if negative else value, at


@jit
def _parse_real(text: _Array, at: int, separator: int) -> tuple[bool, float, Any, int]:
    """Return whether a field is a plain decimal, its value or bits, and its end.

    If bits are zero, the value counts. Other fields (more than 19 digits, subnormal
    numbers, inf, nan, invalid text) are left to Python's float, which rounds correctly
    and validates.
    """
    none = np.uint64(0)
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    mantissa, digits, scale = none, 0, 0
    seen_point, seen_digit = False, False
    while at < text.size:
        digit = np.int64(text[at]) - 48
        if text[at] == 46 and not seen_point:
            seen_point = True
        elif 0 <= digit <= 9 and digits < 19:  # 19 digits always fit 64 bits
            mantissa = mantissa * np.uint64(10) + np.uint64(digit)
            seen_digit = True
            digits += 1 if mantissa > 0 else 0
            scale += 1 if seen_point else 0
        else:
            break
        at += 1
    if at + 1 < text.size and text[at] in (69, 101):
        status, exponent, at = _parse_integer(text, at + 1, separator)
        if status != OK or abs(exponent) > 1000:
            return False, 0.0, none, at
        scale -= exponent
    # Python also gets fields without digits ("", ".", "-"), and raises for them.
    if not _is_end(text, at, separator) or not seen_digit:
        return False, 0.0, none, at
    sign = np.uint64(negative) << np.uint64(63)
    # Both numbers are exact doubles, so that one operation rounds correctly (Clinger,
    # "How to read floating point numbers accurately", 1990).
    if mantissa < np.uint64(1 << 53) and abs(scale) <= 22:
        value = float(mantissa)
        if scale > 0:
            value /= _EXACT_POWERS[scale]
        else:
            value *= _EXACT_POWERS[-scale]
        return True, -value if negative else value, none, at
    if mantissa == none and abs(scale) <= 1000:
        return True, -0.0 if negative else 0.0, none, at
    is_found, bits = mantissa != none, none
    if is_found:
        is_found, bits = double_bits(mantissa, -scale)
    return is_found, 0.0, bits | sign, at


@jit
def _scan_fields(
    text: _Array,
    at: int,
    row: int,
    separator: int,
    kinds: _Array,
    integers: _Array,
    reals: _Array,
    tokens: _Array,
) -> tuple[int, int, int]:
    """Read one line from its first field on: (status, position, number of fields)."""
    field, column = 0, 0
    while True:
        kind = kinds[field] if field < kinds.size else SKIP
        begin = at
        if kind != SKIP and _is_end(text, at, separator):
            return EMPTY_FIELD, at, field
        if kind == INTEGER:
            status, value, at = _parse_integer(text, at, separator)
            if status != OK:
                return status, begin, field
            integers[column, row] = value
            column += 1
        elif kind == REAL:
            is_plain, real, bits, at = _parse_real(text, at, separator)
            if bits != 0:
                reals.view(np.uint64)[row] = bits
            else:
                reals[row] = real
            tokens[row] = -1 if is_plain else begin
            if not is_plain:
                at = _field_end(text, begin, separator)
        else:
            at = _field_end(text, at, separator)
        if at < 0:
            return BAD_QUOTES, begin, field
        field += 1
        at = _skip_blanks(text, at, separator)
        if at == text.size or text[at] == _NEWLINE:
            return OK, at, field
        if text[at] == separator:
            at = _skip_blanks(text, at + 1, separator)
        elif separator != _NONE:  # more text in the same field, after a blank
            if kind == INTEGER:
                return NOT_INTEGER, begin, field - 1
            if text[begin] == _QUOTE:
                return BAD_QUOTES, begin, field - 1
            tokens[row] = begin  # left to Python, which refuses it
            at = _field_end(text, begin, separator)
            if at == text.size or text[at] == _NEWLINE:
                return OK, at, field
            at = _skip_blanks(text, at + 1, separator)


@jit
def _next_row(text: _Array, at: int, marks: _Array, separator: int) -> int:
    """Return the begin of the next line that is neither empty nor a comment."""
    while at < text.size:
        at = _skip_blanks(text, at, separator)
        if at == text.size:
            break
        if text[at] == _NEWLINE:
            at += 1
        elif marks[text[at]] & COMMENT:
            while at < text.size and text[at] != _NEWLINE:
                at += 1
        else:
            break
    return at


@jit
def _scan_plain(
    text: _Array, start: int, marks: _Array, field_count: int, integers: _Array
) -> tuple[Any, Any]:
    """Fill the columns from lines of unsigned integers with one byte between fields.

    Stop at the begin of the first line that has anything else, an integer of more than
    18 digits, or no newline: the other functions read this line.

    Returns
    -------
    rows, position : int
    """
    # Unsigned indices: Numba has no branch for negative ones.
    at, size, row = np.uint64(start), np.uint64(text.size), np.uint64(0)
    one, many = np.uint64(1), np.uint64(18)
    zero, nine = np.uint64(48), np.uint64(9)
    last = np.uint64(field_count - 1)
    separator = _separator(marks)
    while True:
        begin, field = at, np.uint64(0)
        if at == size or marks[text[at]] & COMMENT:
            return np.int64(row), np.int64(begin)
        while True:
            first, value = at, np.uint64(0)
            while at < size:
                digit = np.uint64(text[at]) - zero
                if digit > nine:
                    break
                value = value * np.uint64(10) + digit
                at += one
            # Without a digit, the difference wraps around and is more than `many`.
            if at == size or at - first - one >= many:
                return np.int64(row), np.int64(begin)
            integers[field, row] = value
            end = text[at]
            at += one
            if field == last:
                break
            if not (_BLANKS[end] if separator == _NONE else end == separator):
                return np.int64(row), np.int64(begin)
            field += one
        if end == _RETURN and at < size:
            end = text[at]
            at += one
        if end != _NEWLINE:
            return np.int64(row), np.int64(begin)
        row += one


@jit
def scan_rows(
    text: _Array,
    start: int,
    marks: _Array,
    prefix: int,
    field_count: int,
    kinds: _Array,
    integers: _Array,
    reals: _Array,
    tokens: _Array,
) -> tuple[int, int, int]:
    """Fill the columns from the lines from byte `start` on.

    Parameters
    ----------
    text : ndarray of uint8
    marks : ndarray of uint8, shape (256,)
        Table of `fields.marks_of`: comments and separators, by byte.
    prefix : int
        First field of every line, a byte that is not counted; 0 for none.
    field_count : int
        Number of fields of every line.
    kinds : ndarray of int64, shape (C,)
        SKIP, INTEGER or REAL for each column; further columns are skipped.
    integers : ndarray of int64, shape (integer columns, capacity), filled
        Output with capacity for all rows.
    reals : ndarray of float64, shape (capacity,) or (0,), filled
    tokens : ndarray of int64, shape of `reals`, filled
        First byte of each field that Python must parse, or -1.

    Returns
    -------
    status, rows, position : int
        `position` is the first invalid byte, unless the status is `OK`.
    """
    at, row = start, 0
    separator = _separator(marks)
    is_plain = prefix == 0 and field_count == kinds.size and np.all(kinds == INTEGER)
    while True:
        if is_plain:
            count, at = _scan_plain(text, at, marks, field_count, integers[:, row:])
            row += count
        at = _next_row(text, at, marks, separator)
        if at >= text.size:
            return OK, row, at
        begin = at
        if prefix != 0:
            if text[at] != prefix or not _is_end(text, at + 1, separator):
                return BAD_PREFIX, row, at
            at = _skip_blanks(text, at + 1, separator)
        status, at, fields = _scan_fields(
            text, at, row, separator, kinds, integers, reals, tokens
        )
        if status != OK:
            return status, row, at
        if fields != field_count:
            status = FEWER_FIELDS if fields < field_count else MORE_FIELDS
            return status, row, begin
        row += 1


@jit
def find_row(text: _Array, start: int, marks: _Array, row: int) -> int:
    """Return the first byte of a row's line, for errors found after the scan."""
    separator = _separator(marks)
    at = _next_row(text, start, marks, separator)
    for _ in range(row):
        while at < text.size and text[at] != _NEWLINE:
            at += 1
        at = _next_row(text, at, marks, separator)
    return at


@jit
def next_line(text: _Array, at: int) -> int:
    """Return the begin of the line after that of a byte, or the end of the text."""
    while at < text.size and text[at] != _NEWLINE:
        at += 1
    return min(at + 1, text.size)


@jit
def count_lines(text: _Array) -> int:
    """Return the number of lines, an upper bound of the number of rows."""
    count = 0
    for i in range(text.size):
        if text[i] == _NEWLINE:
            count += 1
    if text.size and text[text.size - 1] != _NEWLINE:
        count += 1
    return count


# Exponents of ten outside of which numbers of 19 digits are zero or infinite.
_LEAST, _MOST = -342, 308
# Mask of the lower half of a word.
_HALF = np.uint64(0xFFFFFFFF)


def _power_of_five(exponent: int) -> int:
    """Return the 128 most significant bits; for a reciprocal, rounded up."""
    power: int = 5 ** abs(exponent)
    width = power.bit_length()
    if exponent >= 0:
        return power << (128 - width) if width <= 128 else power >> (width - 128)
    found = (1 << (width + 127)) // power + 1
    if exponent < -27:  # Lemire's table computes these with more bits, then truncates
        found = (1 << (2 * width + 128)) // power + 1
    return found >> max(found.bit_length() - 128, 0)


#: Upper and lower word of the powers of five.
_POWERS = np.array(
    [
        divmod(_power_of_five(exponent), 1 << 64)
        for exponent in range(_LEAST, _MOST + 1)
    ],
    np.uint64,
)


@jit
def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the upper and lower half of the product of two words."""
    bits = np.uint64(32)
    a_low, a_high, b_low, b_high = a & _HALF, a >> bits, b & _HALF, b >> bits
    low = a_low * b_low
    one = a_high * b_low + (low >> bits)
    other = a_low * b_high + (one & _HALF)
    high = a_high * b_high + (one >> bits) + (other >> bits)
    return high, (other << bits) | (low & _HALF)


@jit
def _leading_zeros(x: Any) -> int:
    """Return the number of zero bits before the first set bit of a word."""
    count = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if x >> np.uint64(64 - shift) == 0:
            x <<= np.uint64(shift)
            count += shift
    return count


@jit
def double_bits(digits: Any, exponent: int) -> tuple[bool, Any]:
    """Return the bits of the double nearest to ``digits * 10**exponent``.

    Parameters
    ----------
    digits : uint64
        Nonzero.
    exponent : int

    Returns
    -------
    is_found : bool
        False for subnormal and infinite doubles, and if 128 bits of the power of five
        do not determine the result.
    bits : uint64
    """
    nothing = np.uint64(0)
    if exponent < _LEAST or exponent > _MOST:
        return False, nothing
    zeros = _leading_zeros(digits)
    word = digits << np.uint64(zeros)
    upper, lower = _POWERS[exponent - _LEAST, 0], _POWERS[exponent - _LEAST, 1]
    high, low = _product(word, upper)
    # Only if all bits behind the mantissa are set may the lower word carry into it.
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _product(word, lower)
        low += more
        if low < more:
            high += np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (exponent < -27 or exponent > 55):
        return False, nothing
    top = high >> np.uint64(63)
    shift = top + np.uint64(9)
    mantissa = high >> shift
    # floor(log2(10**exponent)), and the bias of doubles.
    power = ((217706 * exponent) >> 16) + 63 + int(top) - zeros + 1023
    if power <= 0:
        return False, nothing
    # Halfway between two doubles: round to even.
    is_exact = low <= np.uint64(1) and -4 <= exponent <= 23
    if is_exact and mantissa & np.uint64(3) == 1 and mantissa << shift == high:
        mantissa &= ~np.uint64(1)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        power += 1
    if power >= 2047:
        return False, nothing
    mantissa &= np.uint64((1 << 52) - 1)
    return True, mantissa | (np.uint64(power) << np.uint64(52))


# -- pieces of whole lines, parsed by several threads


Array = NDArray[Any]
#: Least bytes of a thread's piece, which takes a few milliseconds.
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Lines:
    """The format of lines, for `scan_rows`.

    Attributes
    ----------
    marks : ndarray of uint8, shape (256,)
    prefix : int
    field_count : int
    kinds : ndarray of int64
    """

    marks: Array
    prefix: int
    field_count: int
    kinds: Array


@dataclass(frozen=True, eq=False)
class Scanned:
    """The rows before the first invalid line, and its error.

    Attributes
    ----------
    status, position : int
        `OK` or another status, and the byte of the error.
    rows : int
    integers : ndarray of int64, shape (integer columns, rows)
    reals : ndarray of float64, shape (rows,); empty if no column is real
    tokens : ndarray of int64, shape of `reals`
        First byte of each field that Python must parse, or -1.
    """

    status: int
    position: int
    rows: int
    integers: NDArray[np.int64]
    reals: NDArray[np.float64]
    tokens: NDArray[np.int64]


def scan_pieces(
    text: NDArray[np.uint8], start: int, lines: Lines, row_count: int | None
) -> Scanned:
    """Parse the lines from byte `start` on.

    Parameters
    ----------
    text : ndarray of uint8
    start : int
    lines : Lines
    row_count : int, optional
        Most rows.
    """
    most = (text.size - start) // PIECE_BYTES
    bounds = _bounds(text, start, min(_threads(), most))
    spans = list(pairwise(bounds))
    with ThreadPoolExecutor(len(spans)) as pool:
        run = map if len(spans) == 1 else pool.map
        sizes = [0, *run(lambda span: count_lines(text[slice(*span)]), spans)]
        ends = np.cumsum(sizes).tolist()
        total = ends[-1]
        integers = np.empty((np.count_nonzero(lines.kinds == INTEGER), total), np.int64)
        reals = np.empty(total if REAL in lines.kinds else 0)
        tokens = np.empty(reals.size, np.int64)

        def read(number: int) -> tuple[int, int, int]:
            some = slice(*ends[number : number + 2])
            begin, end = spans[number]
            columns = integers[:, some], reals[some], tokens[some]
            return scan_rows(
                text[:end], begin, lines.marks, lines.prefix, lines.field_count,
                lines.kinds, *columns,
            )  # fmt: skip

        found = list(run(read, range(len(spans))))
    rows, status, position = 0, OK, text.size
    for begin, (of_piece, count, at) in zip(ends, found, strict=False):
        for array in (integers, reals, tokens) if rows < begin else ():
            array[..., rows : rows + count] = array[..., begin : begin + count]
        rows += count
        if of_piece != OK:
            status, position = of_piece, at
            break
    if row_count is not None and (rows > row_count or (status and rows == row_count)):
        status, rows = TOO_MANY_ROWS, row_count
        position = find_row(text, start, lines.marks, row_count)
    return Scanned(
        status, position, rows, integers[:, :rows], reals[:rows], tokens[:rows]
    )


def _threads() -> int:
    return int(import_whole("numba").get_num_threads())


def _bounds(text: NDArray[np.uint8], start: int, count: int) -> list[int]:
    """Return the begins of pieces, at lines, and the end of the last one."""
    bounds = [start]
    for piece in range(1, count):
        goal = start + (text.size - start) * piece // count
        at = next_line(text, max(goal, bounds[-1]))
        if bounds[-1] < at < text.size:
            bounds.append(at)
    return [*bounds, text.size]

"""Text in pieces of whole lines, which several threads parse at a time.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import import_whole
from featgraph.graph.formats import scan
from featgraph.graph.formats.scan import NOT_INTEGER

__all__ = ["NOT_INTEGER", "Lines", "Scanned", "scan_pieces"]

Array = NDArray[Any]
#: Bytes that are worth a thread: a few milliseconds.
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Lines:
    """What lines are like: see `scan.scan_rows`.

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
    """The rows before the first line that is none, and what is wrong with that one.

    Attributes
    ----------
    status, position : int
        Of `scan`: `OK`, or what is wrong, and the byte where.
    rows : int
    integers : ndarray of int64, shape (integer columns, rows)
    reals : ndarray of float64, shape (rows,); empty where no column is real
    tokens : ndarray of int64, shape of `reals`
        Where a field begins that Python has to parse, or -1.
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
    """Parse the lines behind a byte.

    Parameters
    ----------
    text : ndarray of uint8
    start : int
    lines : Lines
    row_count : int, optional
        More rows are too many.
    """
    most = (text.size - start) // PIECE_BYTES
    bounds = _bounds(text, start, min(_threads(), most))
    spans = list(pairwise(bounds))
    with ThreadPoolExecutor(len(spans)) as pool:
        run = map if len(spans) == 1 else pool.map
        sizes = [0, *run(lambda span: scan.count_lines(text[slice(*span)]), spans)]
        ends = np.cumsum(sizes).tolist()
        total = ends[-1]
        integers = np.empty(
            (np.count_nonzero(lines.kinds == scan.INTEGER), total), np.int64
        )
        reals = np.empty(total if scan.REAL in lines.kinds else 0)
        tokens = np.empty(reals.size, np.int64)

        def read(number: int) -> tuple[int, int, int]:
            some = slice(*ends[number : number + 2])
            begin, end = spans[number]
            columns = integers[:, some], reals[some], tokens[some]
            return scan.scan_rows(
                text[:end], begin, lines.marks, lines.prefix, lines.field_count,
                lines.kinds, *columns,
            )  # fmt: skip

        found = list(run(read, range(len(spans))))
    rows, status, position = 0, scan.OK, text.size
    for begin, (of_piece, count, at) in zip(ends, found, strict=False):
        for array in (integers, reals, tokens) if rows < begin else ():
            array[..., rows : rows + count] = array[..., begin : begin + count]
        rows += count
        if of_piece != scan.OK:
            status, position = of_piece, at
            break
    if row_count is not None and (rows > row_count or (status and rows == row_count)):
        status, rows = scan.TOO_MANY_ROWS, row_count
        position = scan.find_row(text, start, lines.marks, row_count)
    return Scanned(
        status, position, rows, integers[:, :rows], reals[:rows], tokens[:rows]
    )


def _threads() -> int:
    return int(import_whole("numba").get_num_threads())


def _bounds(text: NDArray[np.uint8], start: int, count: int) -> list[int]:
    """Return where pieces begin, at lines, and the last one ends."""
    bounds = [start]
    for piece in range(1, count):
        goal = start + (text.size - start) * piece // count
        at = scan.next_line(text, max(goal, bounds[-1]))
        if bounds[-1] < at < text.size:
            bounds.append(at)
    return [*bounds, text.size]

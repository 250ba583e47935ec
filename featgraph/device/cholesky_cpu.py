"""Symmetric positive definite systems of many unknowns, solved by one thread.

`solve_spd` is for matrices with more unknowns than `featgraph.device.linalg` is fast
for: it processes contiguous rows by whole vectors instead of columns. The factorisation
is L D L^T, with D L^T in the upper triangle. It proceeds by panels of as many rows as a
vector has elements: a panel is factorised by itself, then its products are subtracted
from all later rows in one pass, with the sums in registers (`tiles_cpu`).
"""

from numba import njit

from featgraph.device.tiles_cpu import (
    VECTOR_BYTES,
    add_row,
    eliminate,
    padded,
    scale_row,
    subtract_panel,
)

__all__ = ["solve_spd", "work_shape"]

_njit = njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})


def work_shape(k, itemsize):
    """Return the shape of the work area for `k` unknowns: rows, right side, panel."""
    size = VECTOR_BYTES // itemsize
    return padded(k, itemsize) + 1 + size, padded(k + 1, itemsize)


@_njit
def _factorise_block(work, first, last, right, spare):
    """Eliminate rows `first` to `last` from one another and from row `right`.

    Only columns `first` to `last` are updated. Entries below the diagonal become
    invalid, and are never read. Row `spare` is overwritten.
    """
    stop = first + VECTOR_BYTES // work.itemsize
    for step in range(first, last):
        inverse = work.dtype.type(-1) / work[step, step]
        for row in range(step + 1, last):
            add_row(work, row, step, work[step, row] * inverse, first, stop)
        # `add_row` overwrites solved entries to the left too: save each in `spare`.
        work[spare, step] = work[right, step]
        add_row(work, right, step, work[right, step] * inverse, first, stop)
    scale_row(work, right, spare, work.dtype.type(1), first, stop)


@_njit
def _finish_panel(work, stop, first, last, right, panel):
    """Eliminate the rows of a factorised block in the columns after it.

    The block has all rows of a panel. The factors for `subtract_panel` are stored in
    the rows from `panel` on.
    """
    for step in range(first, last):
        below, one = panel + step - first, work.dtype.type(1)
        inverse = -one / work[step, step]
        scale_row(work, below, step, inverse, first, last)
        work[below, step] = inverse
    for column in range(last, stop, last - first):
        eliminate(work, first, right, panel, column)


@_njit
def solve_spd(work, k, diagonal):
    """Solve ``(A + diagonal I) x = b``.

    Parameters
    ----------
    work : ndarray of shape ``work_shape(k, itemsize)``, float32 or float64
        In: A in the first k rows and columns, of which the upper triangle is read; b in
        column k. Out: x in column k; the rest is overwritten. For a matrix that is not
        positive definite, the result is undefined; for a singular one, it may be inf or
        nan.
    k : int
        Number of unknowns.
    diagonal : float
        A number of the type of `work`.
    """
    size = VECTOR_BYTES // work.itemsize
    stop = (k + size - 1) // size * size
    right, panel = stop, stop + 1
    for row in range(k):
        work[right, row] = work[row, k]
        work[row, row] += diagonal
    for first in range(0, k, size):
        last = min(first + size, k)
        _factorise_block(work, first, last, right, panel)
        if last < k:
            _finish_panel(work, stop, first, last, right, panel)
            subtract_panel(work, stop, last, panel)
    for back in range(k):
        row = k - 1 - back
        solved = work[right, row]
        for column in range(row + 1, k):
            solved -= work[row, column] * work[right, column]
        solved /= work[row, row]
        work[right, row] = solved
    for row in range(k):
        work[row, k] = work[right, row]

"""Small dense systems, solved by the lanes of a group together, on both targets.

`make` builds the functions for a target. `featgraph.device.linalg_cuda` (the lanes of a
warp), `featgraph.device.linalg_thread` and `featgraph.device.linalg_cpu` (one lane
without synchronisation) export them under the same names:

====================================================  ==============================
``solve_general(work, k, diagonal, lane, lanes)``     Gauss-Jordan, partial pivots
``solve_spd(work, k, diagonal, lane, lanes)``         LDL^T; reads the lower triangle
``inverse_general(work, k, diagonal, lane, lanes)``   Gauss-Jordan, partial pivots
``inverse_spd(work, k, diagonal, lane, lanes)``       Gauss-Jordan, no pivots
====================================================  ==============================

`work` is an array in shared or global memory, float32 or float64, of at least
``(k, k + 1)`` for solve and ``(k, 2 * k)`` for inverse. In: the matrix in the first k
columns; for solve, the right-hand side in column k. Out: for solve, x in column k; for
inverse, the inverse in columns k to 2 k - 1; the rest is overwritten. `diagonal`, of
the type of `work`, is added to the matrix's diagonal first; ``float32(0)`` for none.

`lane` is this lane's number among the `lanes` that share `work`. Lane l computes rows
l, l + lanes, ...; any lane may fill or read an entry, because the functions synchronise
when they begin and before they return. The number of synchronisations depends on k
alone: every lane of the warp must call with the same k, and groups without a system
with a work area of their own.

A singular matrix gives inf or nan, never an exception. The SPD functions need a
positive definite matrix. Cost in multiply-adds per lane: k^3 / (2 lanes) for
`solve_general`, k^3 / (6 lanes) for `solve_spd`, 3 k^3 / (2 lanes) for an inverse.
Synchronisations: 3 k with pivots, k without, 2 k for `solve_spd`.
"""

from numba import uint32


def make(jit, sync):
    """Compile the functions for a target.

    Parameters
    ----------
    jit : callable
        Decorator of the target's device functions.
    sync : device function of the target, without arguments
        Waits until the writes of all lanes that share a work area are visible.

    Returns
    -------
    types.SimpleNamespace
        The functions of the module's table.
    """
    eliminate = _make_elimination(jit, sync)
    solve_spd = _make_ldlt(jit, sync)

    @jit
    def add_diagonal(work, k, diagonal, lane, lanes):
        for row in range(lane, k, lanes):
            work[uint32(row), uint32(row)] += diagonal

    @jit
    def set_identity(work, k, lane, lanes):
        for row in range(lane, k, lanes):
            for column in range(k):
                work[uint32(row), uint32(k + column)] = 1 if row == column else 0

    @jit
    def solve_general(work, k, diagonal, lane, lanes):
        sync()
        add_diagonal(work, k, diagonal, lane, lanes)
        eliminate(work, k, k + 1, True, lane, lanes)

    @jit
    def inverse_general(work, k, diagonal, lane, lanes):
        sync()
        add_diagonal(work, k, diagonal, lane, lanes)
        set_identity(work, k, lane, lanes)
        eliminate(work, k, 2 * k, True, lane, lanes)

    @jit
    def inverse_spd(work, k, diagonal, lane, lanes):
        sync()
        add_diagonal(work, k, diagonal, lane, lanes)
        set_identity(work, k, lane, lanes)
        eliminate(work, k, 2 * k, False, lane, lanes)

    @jit
    def solve_spd_shifted(work, k, diagonal, lane, lanes):
        sync()
        add_diagonal(work, k, diagonal, lane, lanes)
        solve_spd(work, k, lane, lanes)

    return {
        "solve_general": solve_general,
        "solve_spd": solve_spd_shifted,
        "inverse_general": inverse_general,
        "inverse_spd": inverse_spd,
    }


def _make_elimination(jit, sync):
    """Compile Gauss-Jordan elimination for a target."""

    @jit
    def swap_in_pivot(work, k, columns, step, lane, lanes):
        # Every lane searches: reading a column is cheaper than agreeing on its maximum.
        pivot_row = step
        largest = abs(work[uint32(step), uint32(step)])
        for row in range(step + 1, k):
            size = abs(work[uint32(row), uint32(step)])
            if size > largest:
                largest = size
                pivot_row = row
        sync()
        for column in range(lane, columns, lanes):
            upper = work[uint32(step), uint32(column)]
            work[uint32(step), uint32(column)] = work[uint32(pivot_row), uint32(column)]
            work[uint32(pivot_row), uint32(column)] = upper
        sync()

    @jit
    def eliminate(work, k, columns, pivoting, lane, lanes):
        sync()
        for step in range(k):
            if pivoting:
                swap_in_pivot(work, k, columns, step, lane, lanes)
            pivot = work[uint32(step), uint32(step)]
            for row in range(lane, k, lanes):
                if row != step:
                    factor = work[uint32(row), uint32(step)] / pivot
                    # Columns up to the step are never read again: not cleared.
                    for column in range(step + 1, columns):
                        work[uint32(row), uint32(column)] -= (
                            factor * work[uint32(step), uint32(column)]
                        )
            sync()
        for row in range(lane, k, lanes):
            pivot = work[uint32(row), uint32(row)]
            for column in range(k, columns):
                work[uint32(row), uint32(column)] /= pivot
        sync()

    return eliminate


def _make_ldlt(jit, sync):
    """Compile the solution by L D L^T for a target."""

    @jit
    def solve_spd(work, k, lane, lanes):
        sync()
        # Column `step` keeps L * D unscaled: no lane writes it while others read it, so
        # one synchronisation per step is enough, and no square root is taken.
        for step in range(k):
            pivot = work[uint32(step), uint32(step)]
            right = work[uint32(step), uint32(k)]
            for row in range(lane, k, lanes):
                if row > step:
                    factor = work[uint32(row), uint32(step)] / pivot
                    for column in range(step + 1, row + 1):
                        work[uint32(row), uint32(column)] -= (
                            factor * work[uint32(column), uint32(step)]
                        )
                    work[uint32(row), uint32(k)] -= factor * right
            sync()
        for back in range(k):
            step = k - 1 - back
            pivot = work[uint32(step), uint32(step)]
            solved = work[uint32(step), uint32(k)] / pivot
            for row in range(lane, step, lanes):
                work[uint32(row), uint32(k)] -= work[uint32(step), uint32(row)] * solved
            sync()
        for row in range(lane, k, lanes):
            work[uint32(row), uint32(k)] /= work[uint32(row), uint32(row)]
        sync()

    return solve_spd

"""Systems that are solved by straight-line text over named elements."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from featgraph.fold.analysis.gathers import is_only_solved
from featgraph.fold.operations.systems import solve_lines

ENTRIES = st.integers(-9, 9).map(float)


def solved(matrix: np.ndarray, right: np.ndarray, spd: bool) -> np.ndarray:
    k = len(right)
    names = {
        f"a_{i}_{f}": np.float64(matrix[i, f])
        for i in range(k)
        for f in range(i + 1 if spd else k)
    }
    names |= {f"a_{i}_{k}": np.float64(right[i]) for i in range(k)}
    text = "\n".join(solve_lines("a", "factor", k, spd))
    exec(text, {"abs": abs}, names)  # noqa: S102
    return np.array([names[f"a_{i}_{k}"] for i in range(k)])


@pytest.mark.parametrize("k", [1, 2, 4, 6])
@given(st.data())
def test_general_systems_with_pivots(k: int, data: st.DataObject) -> None:
    matrix = data.draw(arrays(np.float64, (k, k), elements=ENTRIES))
    matrix += np.roll(40.0 * np.eye(k), 1, axis=0)  # large, but not on the diagonal
    right = data.draw(arrays(np.float64, k, elements=ENTRIES))
    if np.linalg.cond(matrix) > 1e6:
        return
    wanted = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(solved(matrix, right, False), wanted, 1e-7, 1e-7)


@pytest.mark.parametrize("k", [1, 2, 4, 6])
@given(st.data())
def test_positive_definite_systems(k: int, data: st.DataObject) -> None:
    rows = data.draw(arrays(np.float64, (k + 2, k), elements=ENTRIES))
    matrix = rows.T @ rows + np.eye(k)  # condition at most 1 + 8 * 6 * 81
    right = data.draw(arrays(np.float64, k, elements=ENTRIES))
    wanted = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(solved(matrix, right, True), wanted, 1e-9, 1e-9)


def test_no_pivot_is_zero_where_rows_can_be_exchanged() -> None:
    matrix = np.array([[0.0, 1, 2], [1, 0, 1], [3, 0, 0]])
    right = np.array([3.0, 2, 3])
    np.testing.assert_allclose(solved(matrix, right, False), [1, 1, 1])


def test_a_singular_matrix_gives_no_exception() -> None:
    with np.errstate(all="ignore"):
        for spd in (False, True):
            found = solved(np.ones((3, 3)), np.arange(3.0), spd)
            assert not np.isfinite(found).all()


def test_what_reads_nothing_solves_nothing() -> None:
    assert not is_only_solved("a", ast.parse("x = 1").body)

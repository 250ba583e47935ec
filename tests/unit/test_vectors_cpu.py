"""Vectors of the CPU target, next to NumPy; and how rows are cut into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from featgraph.device import vectors_cpu as vectors
from featgraph.fold.passes.bodies.vectorized import pieces
from featgraph.program.signature import Real


@njit(error_model="numpy")
def _use_all(x, y, out, flags, matrix, rows):  # type: ignore[no-untyped-def]
    a, b = vectors.load_4(x, (1, 2)), vectors.load_4(y, 3)
    two = vectors.spread_4(x.dtype.type(2))
    vectors.store_4(out, (0, 0), a + b * two)
    vectors.store_4(out, (1, 0), (a - 1) / b)
    vectors.store_4(out, (2, 0), -a)
    vectors.store_4(out, (3, 0), vectors.absolute(a))
    vectors.store_4(out, (4, 0), vectors.where(a < b, a, 3))
    held = a
    held += b
    held *= 2
    vectors.store_4(out, (5, 0), held)
    out[6, 0] = vectors.total(b)
    flags[0] = vectors.any_of(a > 1)
    flags[1] = vectors.all_of(a > 1)
    flags[2] = vectors.all_of(vectors.is_finite(a))
    flags[3] = vectors.all_of(vectors.is_finite(b))
    flags[4] = vectors.any_of(vectors.both(a == a, b <= 0))
    flags[5] = vectors.all_of(vectors.either(a != 0, b != b))
    flags[6] = vectors.any_of(vectors.negated(b == b))
    vectors.multiply(matrix, rows, 0, 1, matrix.shape[1])
    vectors.multiply_turned(matrix, rows, 0, 2, matrix.shape[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operations_are_those_of_numpy(dtype: Any) -> None:
    """One compilation for all of them; products have rows and columns left over."""
    rng = np.random.default_rng(1)
    k = 64 + 16 + 7
    x = rng.normal(size=(3, 8)).astype(dtype)
    x[1, 2:6] = [np.inf, 0.0, -2.5, np.nan]
    y = rng.uniform(0.5, 1.0, 8).astype(dtype)
    matrix = rng.normal(size=(k, k)).astype(dtype)
    rows = np.zeros((3, k), dtype)
    rows[0] = rng.normal(size=k)
    out, flags = np.zeros((7, 4), dtype), np.zeros(7, np.bool_)
    _use_all(x, y, out, flags, matrix, rows)
    a, b = x[1, 2:6], y[3:7]
    expected = [
        a + b * 2, (a - 1) / b, -a, np.abs(a), np.where(a < b, a, 3), (a + b) * 2
    ]  # fmt: skip
    np.testing.assert_allclose(out[:6], expected, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(out[6, 0], b.sum(), rtol=4 * np.finfo(dtype).eps)
    assert flags.tolist() == [True, False, False, True, False, False, False]
    for turned, found in ((matrix, rows[1]), (matrix.T, rows[2])):
        product = turned.astype(np.float64) @ rows[0]
        slack = k * np.finfo(dtype).eps * (np.abs(turned) @ np.abs(rows[0]))
        assert (np.abs(found - product) <= slack).all()


def test_nan_differs_from_everything() -> None:
    """``a != 0`` holds for it, and an element of `b` can be found with another."""
    x = np.zeros((3, 8), np.float32)
    x[1, 2:6] = [1.0, -1.0, np.nan, 2.0]
    out, flags = np.zeros((7, 4), np.float32), np.zeros(7, np.bool_)
    y = np.full(8, -1, np.float32)
    rows, matrix = np.ones((2, 1), np.float32), np.full((1, 1), 3, np.float32)
    _use_all(x, y, out, flags, matrix, rows)
    assert flags.tolist() == [True, False, False, True, True, True, False]
    assert rows[1, 0] == 3


@pytest.mark.parametrize("real", list(Real))
def test_pieces_cover_every_feature_once(real: Real) -> None:
    for width in range(1, 130):
        cut = pieces(width, real)
        covered = [f for first, size in cut for f in range(first, first + size)]
        assert covered == list(range(width))
        assert all(size in vectors.SIZES for _, size in cut)
        assert len(cut) <= width // (64 // real.itemsize) + 4

"""Checks of callers' arrays run where the arrays are, with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.graph.inputs.device import DeviceArray
from featgraph.graph.inputs.given import ROWS_OF_A_PART, HostArray
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu

TYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "float32", "float64"]
SHAPES = [(5,), (1,), (4, 3), (3, 1), (2, 2, 3), (1, 3, 1)]
EDGES = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 5e-324, 1e-45, 1.0]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


def strided(values: Any, stride: int) -> Any:
    """Return the same values with rows that are apart, or in another order."""
    if stride == 0:
        return np.asfortranarray(values)
    return np.repeat(values, stride, axis=0)[::stride]


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """Draw an array of any type, shape and strides."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    elements: Any = arrays.from_dtype(dtype)
    if dtype.kind == "f":
        own = [np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, *EDGES]
        own = [x for x in own if np.isnan(x) or float(dtype.type(x)) == float(x)]
        elements |= st.sampled_from([float(x) for x in own])
    elif dtype.kind != "b":
        elements |= st.integers(0, 5)
    shape = draw(st.sampled_from(SHAPES))
    values = draw(arrays.arrays(dtype, shape, elements=elements))
    return strided(values, draw(st.integers(0, 2)))


RANGES = ["finite", "positive", "natural", "number", "below inf", "class"]


def limits(array: fg.GivenArray, name: str) -> tuple[Any, Any]:
    """Return the least and the largest value of a range."""
    greatest, inf = array.greatest, float("inf")
    return {
        "finite": (-greatest if array.dtype.kind in "if" else 0, greatest),
        "positive": (array.least_positive, greatest),
        "natural": (0, inf),
        "number": (-inf, inf),
        "below inf": (-inf, greatest),
        "class": (-1, 3),
    }[name]


@given(cases(), st.sampled_from(RANGES))
def test_the_first_value_out_of_a_range_is_found(
    gpu: Gpu, values: Any, name: str
) -> None:
    here, there = fg.given_array(values), fg.given_array(Foreign(values))
    assert isinstance(here, HostArray)
    assert isinstance(there, DeviceArray)
    assert (there.shape, there.dtype) == (here.shape, here.dtype)
    least, most = limits(here, name)
    fits = np.array(
        [least <= x <= most for x in values.ravel().tolist()]  # as Python compares
    )
    expected = None if fits.all() else int(np.argmin(fits))
    inside = int(np.argmax(fits)) if fits.any() else None
    width = int(np.prod(values.shape[1:]))
    for array in (here, there):
        assert array.first_outside(least, most) == expected
        row = array.first_row_outside(least, most)
        assert row == (None if expected is None else expected // width)
        row = array.first_row_inside(least, most)
        assert row == (None if inside is None else inside // width)
    for at in range(len(values)):
        np.testing.assert_array_equal(there.row(at), here.row(at), strict=True)


@given(cases())
def test_what_follows_has_the_same_bits(gpu: Gpu, values: Any) -> None:
    if values.dtype.kind == "f":
        values = np.nan_to_num(np.abs(values), posinf=3.0)
        values = np.minimum(values, values.dtype.type(1e30))
    for made in (np.float64, np.float32, values.dtype):
        rounded = [fg.given_array(x).astype(made) for x in (values, Foreign(values))]
        same(*rounded)
        pair = [taken(x, made) for x in (values, Foreign(values))]
        if isinstance(pair[0], str):
            assert pair[0] == pair[1]
            pair = rounded
        same(*pair)
        same(*(x.matrix() for x in pair))
        if values.ndim > 1:
            same(*(x.column(values.shape[1] - 1) for x in pair))
    pair = fg.given_array(values), fg.given_array(Foreign(values))
    if values.dtype.kind != "b":
        lost = [x.first_row_without(values.dtype.type(1)) for x in pair]
        assert lost[0] == lost[1]
        largest = [x.matrix().largest_of_columns() for x in pair]
        np.testing.assert_array_equal(*largest, strict=True)
    reals = [x.astype(np.float64) for x in pair]
    reals[0] = HostArray(np.abs(reals[0].on_host()))
    reals[1] = fg.given_array(Foreign(reals[0].on_host()))
    if values.ndim > 1:
        same(*(x.rows_divided() for x in reals))
        large = np.where(reals[0].on_host() > 0, 1.7e308, 0)
        pair = fg.given_array(large), fg.given_array(Foreign(large))
        same(*(x.rows_divided() for x in pair))
    same(*(x.logs() for x in reals), ulps=1)
    same(*(x.exps(2.0) for x in reals), ulps=1)
    sums = [x.matrix().sums_of_columns() for x in reals]
    np.testing.assert_array_equal(*sums, strict=True)
    by = sums[0] + 0.5
    same(*(x.matrix().columns_divided(by) for x in reals))
    if values.ndim == 1:
        same(*(x.matrix().widened(3) for x in reals))


def taken(values: Any, dtype: Any) -> Any:
    """Return an array in a type, or the error about a value that it does not hold."""
    try:
        return fg.given_array(values, dtype, "values")
    except fg.GraphInputError as error:
        return str(error)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1e-50, "float32"),
        (1e39, "float32"),
        (-1e-50, "float32"),
        (0.5, "int32"),
        (3e9, "int32"),
        (-1, "uint8"),
        (2, "bool"),
    ],
)
def test_a_value_that_a_type_does_not_hold_is_refused_there_as_here(
    gpu: Gpu, value: float, dtype: str
) -> None:
    values = np.array([[0, 1], [1, value]])
    messages = [taken(x, dtype) for x in (values, Foreign(values))]
    assert messages[0] == messages[1]
    for part in ("values, index [1, 1]", repr(values[1, 1].item()), dtype):
        assert part in messages[0]
    values[1, 1] = 1
    same(*(taken(x, dtype) for x in (values, Foreign(values))))


def same(here: fg.GivenArray, there: fg.GivenArray, ulps: int = 0) -> None:
    """See that two have the same values, of which one is on the GPU."""
    assert isinstance(there, DeviceArray)
    assert (here.shape, here.dtype) == (there.shape, there.dtype)
    if ulps:  # the emulator has the logs of Python
        np.testing.assert_array_max_ulp(here.on_host(), there.on_host(), ulps)
    else:
        np.testing.assert_array_equal(here.on_host(), there.on_host())


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0, 1e-300, float("inf")])
def test_one_value_is_found_among_many(
    gpu: Gpu, rng: np.random.Generator, value: float
) -> None:
    values = np.ones((2 * ROWS_OF_A_PART + 7, 1))
    for row in (0, *rng.integers(1, len(values), 2).tolist(), len(values) - 1):
        values[row] = value
        there = fg.given_array(Foreign(values))
        assert there.first_row_outside(0.5, 1) == row
        assert there.first_row_outside(-1, there.greatest) == (
            None if abs(value) <= 1 else row
        )
        assert there.first_row_inside(5e-324, 0.5) == (row if value == 1e-300 else None)
        assert there.first_row_inside(-2, -0.5) == (row if value == -1 else None)
        assert there.first_row_inside(2, 3) is None
        values[row] = 1
        ones = fg.given_array(Foreign(values))
        assert ones.first_row_outside(1, 1) is None
        values[row] = 2
        assert fg.given_array(ones).first_row_outside(1, 1) == row
        values[row] = 1


def test_what_is_checked_takes_one_wait(gpu: Gpu) -> None:
    there, waits = fg.given_array(Foreign(np.arange(9.0))), len(gpu.downloads)
    assert there.first_not_finite() is None
    assert there.first_row_outside(0, 8) is None
    assert there.first_row_inside(there.least_positive, 0.5) is None
    assert there.first_row_inside(9, there.greatest) is None
    assert len(gpu.downloads) == waits + 1


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 700, 4097])
def test_sums_of_many_rows_are_taken_in_parts(
    gpu: Gpu, rng: np.random.Generator, rows: int
) -> None:
    values = rng.random((rows, 2)) * 10.0 ** rng.integers(-9, 9, (rows, 2))
    here, there = fg.given_array(values), fg.given_array(Foreign(values))
    sums = here.sums_of_columns()
    np.testing.assert_array_equal(there.sums_of_columns(), sums)
    rounding = ROWS_OF_A_PART * np.finfo(np.float64).eps
    np.testing.assert_allclose(sums, values.sum(axis=0), rtol=2 * rounding)
    np.testing.assert_array_equal(there.largest_of_columns(), values.max(axis=0))


@given(
    arrays.arrays(
        np.float64,
        st.sampled_from([(4, 1), (5, 3)]),
        elements=st.sampled_from([0.5, -2.0, float("nan"), float("inf")]),
    )
)
def test_held_rows_are_distinguished_from_free_ones(gpu: Gpu, values: Any) -> None:
    here, there = (x.held() for x in (fg.given_array(values),
                                      fg.given_array(Foreign(values))))  # fmt: skip
    assert (here.first_bad, here.count) == (there.first_bad, there.count)
    same(here.is_held, there.is_held)
    same(here.values, there.values)
    row = np.arange(values.shape[1]) + 0.5
    same(*(x.values.with_rows(x.is_held, row) for x in (here, there)))


def test_what_no_kernel_reads_is_looked_at_by_the_host(gpu: Gpu) -> None:
    for values in (np.zeros((0, 3)), np.array(2.0), np.zeros(4, np.float16)):
        found = fg.given_array(Foreign(values), where="x")
        assert isinstance(found, HostArray)
        np.testing.assert_array_equal(found.on_host(), values)


def test_what_is_on_another_gpu_is_refused(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featgraph.cuda import foreign

    monkeypatch.setattr(foreign, "device_of", lambda array: 1)
    with pytest.raises(fg.StateError, match="weights: the array is on another GPU"):
        fg.given_array(Foreign(np.ones(3)), where="weights")

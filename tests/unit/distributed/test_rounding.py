"""Reals in 16 bits: the nearest ones, whatever the bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featgraph.base.errors import DivergenceError
from featgraph.ranks.exchange.row_loops import TYPES, round_rows, widen
from featgraph.ranks.exchange.row_messages import (
    SendList,
    choose,
    decode,
    encode,
    packing_of,
)
from tests.strategies import seeds

#: All that 16 bits can be.
EVERY = np.arange(1 << 16, dtype=np.uint16)


def rounded(values: Any, wire_dtype: str) -> Any:
    """Return the bits of values, and the place of one that is too large."""
    out = np.empty((values.size, 1), np.uint16)
    places = np.arange(values.size)
    return out[:, 0], round_rows(values[:, None], places, places, out, wire_dtype)


def hard(dtype: str, wire_dtype: str) -> Any:
    """Return all that 16 bits can be, the middles between, and their neighbors."""
    finite = widen(EVERY, np.float64, wire_dtype)
    finite = np.sort(finite[np.isfinite(finite)])
    middles = (finite[1:] / 2 + finite[:-1] / 2).astype(dtype)
    exact = finite.astype(dtype)
    down = [np.nextafter(a, np.array(-np.inf, dtype)) for a in (middles, exact)]
    up = [np.nextafter(a, np.array(np.inf, dtype)) for a in (middles, exact)]
    return np.concatenate([middles, exact, *down, *up])


def nearest(values: Any, wire_dtype: str) -> Any:
    """Return the bits of the nearest, ties to even, by comparing distances."""
    bits = EVERY[: 1 << 15]
    sizes = widen(bits, np.float64, wire_dtype)
    sizes = sizes[np.isfinite(sizes)]  # ascending, as their bits are
    # The number behind the largest, if exponents went on.
    beyond = sizes[-1] + (sizes[-1] - sizes[-2])
    sizes = np.append(sizes, beyond)
    wide = np.abs(values.astype(np.float64))
    above = np.minimum(np.searchsorted(sizes, wide), sizes.size - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = sizes[above] - wide, wide - sizes[below]
    goes_up = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    found = np.where(goes_up | (above == 0), above, below).astype(np.uint16)
    return found | (np.signbit(values).astype(np.uint16) << 15)


@pytest.mark.parametrize("wire_dtype", TYPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_to_nearest_even(wire_dtype: str, dtype: str) -> None:
    values = hard(dtype, wire_dtype)
    values = values[np.isfinite(values)]
    found, too_large = rounded(values, wire_dtype)
    np.testing.assert_array_equal(found, nearest(values, wire_dtype))
    is_infinite = np.isinf(widen(found, np.float64, wire_dtype))
    assert (too_large >= 0) == is_infinite.any()
    if wire_dtype == "float16":
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                found.view(np.float16), values.astype(np.float16)
            )


@pytest.mark.parametrize("wire_dtype", TYPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_16_bits_hold_stays(wire_dtype: str, dtype: Any) -> None:
    wide = widen(EVERY, dtype, wire_dtype)
    found, too_large = rounded(wide, wire_dtype)
    is_nan = np.isnan(wide)
    np.testing.assert_array_equal(found[~is_nan], EVERY[~is_nan])
    assert np.isnan(widen(found[is_nan], dtype, wire_dtype)).all()
    assert too_large == -1  # infinite ones are infinite there


@given(seeds, st.sampled_from(sorted(TYPES)), st.sampled_from(["float32", "float64"]))
def test_any_bits_are_rounded(seed: int, wire_dtype: str, dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    bits = np.random.default_rng(seed).integers(0, 256, (500, size), np.uint8)
    values = bits.view(dtype)[:, 0]
    values = values[np.isfinite(values)]
    if wire_dtype == "float16":  # most are beyond it
        few = (values.view(f"u{size}") % 4000).astype(dtype)
        values = np.concatenate([values, few / 64])
    found, _ = rounded(values, wire_dtype)
    np.testing.assert_array_equal(found, nearest(values, wire_dtype))


ROWS = [("f4", (3,)), ("?", ()), ("f8", ()), ("i4", (2,)), ("f4", ())]


@given(
    seeds,
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(["auto", "all", "ms", "vr", "vr-list"]),
    st.lists(st.sampled_from(ROWS), max_size=4),
)
def test_messages_have_reals_in_16_bits(
    seed: int, wire_dtype: str, form: str, rows: list[Any]
) -> None:
    rng = np.random.default_rng(seed)
    own = int(rng.integers(1, 80))
    numbers = np.flatnonzero(rng.random(own) < 0.6).astype(np.int32)
    link, words = SendList(numbers, own), rng.integers(0, 1 << 32, 3, np.uint32)
    sent = [
        rng.normal(0, 100, (own + 1, *shape)).astype(dtype) for dtype, shape in rows
    ]
    packing = packing_of(sent, wire_dtype)
    for part in packing.parts:
        dtype, shape = rows[part.which]
        item = 2 if dtype[0] == "f" else np.dtype(dtype).itemsize
        assert part.row == item * int(np.prod(shape, dtype=int))
    chosen = choose(link, link.changed(words), packing.row, form)
    message = encode(link, chosen, packing, sent)
    assert message.size == chosen.nbytes
    arrived = decode(link, message, packing)
    places = numbers[chosen.positions]
    for array, brought in zip(sent, arrived.rows, strict=True):
        meant = array[places]
        if array.dtype.kind == "f":
            bits = nearest(meant.reshape(-1), wire_dtype)
            meant = widen(bits, array.dtype, wire_dtype).reshape(meant.shape)
        assert brought.dtype == array.dtype
        assert brought.tobytes() == meant.tobytes()


@pytest.mark.parametrize(
    ("wire_dtype", "dtype", "value"),
    [("float16", "f4", 65520.0), ("float16", "f8", -1e300), ("bfloat16", "f8", 1e39)],
)
def test_a_value_that_does_not_fit_is_raised(
    wire_dtype: str, dtype: str, value: float
) -> None:
    values = np.array([1.0, value, np.inf], dtype)
    link = SendList(np.arange(3, dtype=np.int32), 3)
    for form in ("ms", "all"):
        packing = packing_of([values], wire_dtype)
        chosen = choose(link, link.every, packing.row, form)
        with pytest.raises(DivergenceError, match="does not fit into") as error:
            encode(link, chosen, packing, [values])
        assert str(value) in str(error.value)
    assert rounded(values[[0, 2]], wire_dtype)[1] == -1

"""Rows on a link: the same bits in every form, in hardly more bytes than needed."""

from __future__ import annotations

from contextlib import suppress
from math import lgamma, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.ranks.exchange import row_messages
from featgraph.ranks.exchange.row_messages import (
    GAP_BITS,
    SendList,
    choose,
    decode,
    encode,
    loops,
    packing_of,
    store,
)
from tests.strategies import seeds

ASKED = ("auto", "all", "ms", "vr", "vr-list")
#: Dtypes and shapes of rows: units of 1, 2, 4 and 8 bytes, and several in a row.
ROWS = [
    ("?", ()),
    ("i1", (3,)),
    ("u2", (1,)),
    ("f4", ()),
    ("f4", (2,)),
    ("f4", (3,)),
    ("i8", ()),
    ("f8", (2, 2)),
]


def bits(numbers: Any, own: int) -> Any:
    """Return a bitvector with these bits."""
    flags = np.zeros(-(-own // 32) * 32, bool)
    flags[numbers] = True
    return np.packbits(flags, bitorder="little").view(np.uint32)


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype == "?":
        return rng.random(shape) < 0.5
    data = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return data.view(dtype)[..., 0].copy()


def drawn_link(rng: np.random.Generator, index: str = "i4") -> SendList:
    own = int(rng.choice([1, 7, 32, 33, 100, 1000, 1000]))
    numbers = np.flatnonzero(rng.random(own) < rng.choice([0, 0.1, 0.7, 0.9, 1]))
    return SendList(numbers.astype(index), own)


@given(
    seeds,
    st.sampled_from(["i4", "i8"]),
    st.sampled_from([0.3, 0.03, 0.002, 0, 1]),
    st.just(ROWS) | st.lists(st.sampled_from(ROWS), max_size=4),
)
def test_every_form_brings_the_same_bits(
    seed: int, index: str, density: float, rows: list[Any]
) -> None:
    rng = np.random.default_rng(seed)
    link = drawn_link(rng, index)
    changed = np.flatnonzero(rng.random(link.own) < density)
    sent = [values(rng, dtype, (link.own + 2, *shape)) for dtype, shape in rows]
    expected = np.flatnonzero(np.isin(link.numbers, changed))
    first = 3
    held = [values(rng, d, (first + link.size + 1, *shape)) for d, shape in rows]
    wanted = [array.copy() for array in held]
    for array, after in zip(sent, wanted, strict=True):
        after[first + expected] = array[link.numbers[expected]]
    packing, positions = packing_of(sent), link.changed(bits(changed, link.own))
    assert positions.tolist() == expected.tolist()
    for form in ASKED:
        chosen = choose(link, positions, packing.row, form)
        assert chosen.positions.tolist() == expected.tolist()
        message = encode(link, chosen, packing, sent)
        assert message.size == chosen.nbytes
        arrived = decode(link, message, packing)
        assert arrived.positions.tolist() == expected.tolist()
        for array, brought in zip(sent, arrived.rows, strict=True):
            assert brought.dtype == array.dtype
            assert brought.flags.aligned
            assert brought.tobytes() == array[link.numbers[expected]].tobytes()
        found = [array.copy() for array in held]
        store(arrived, found, first)
        for array, after in zip(found, wanted, strict=True):
            assert array.tobytes() == after.tobytes()


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rows_that_several_threads_copy_are_the_same(
    share: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = 1000
    numbers = np.flatnonzero(rng.random(own) < share).astype(np.int32)
    link = SendList(numbers, own)
    assert link.is_whole == (share == 1)
    sent = [values(rng, dtype, (own, *shape)) for dtype, shape in ROWS]
    changed = np.flatnonzero(rng.random(own) < 0.4)
    packing = packing_of(sent)
    chosen = choose(link, link.changed(bits(changed, own)), packing.row)
    alone = encode(link, chosen, packing, sent)
    whole = encode(link, choose(link, link.every, packing.row), packing, sent)
    monkeypatch.setattr(row_messages, "MANY_BYTES", 1)
    assert encode(link, chosen, packing, sent).tobytes() == alone.tobytes()
    arrived = decode(link, whole, packing)
    for array, brought in zip(sent, arrived.rows, strict=True):
        assert brought.tobytes() == array[numbers].tobytes()


def bound(size: int, count: int, row: int) -> float:
    """Return how many bytes a message must have, of any form."""
    ways = lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)
    return count * row + ways / log(2) / 8


def clustered(rng: np.random.Generator, size: int, density: float) -> Any:
    """Draw positions that stand in runs."""
    begins = np.flatnonzero(rng.random(size) < density / 8)
    found = np.unique(begins[:, None] + np.arange(8))
    return found[found < size]


@pytest.mark.parametrize("row", [1, 2, 4, 8, 32, 128])
def test_bytes_are_close_to_the_bound(row: int, rng: np.random.Generator) -> None:
    # Five bytes of the form, the count, and what does not fill one do not count.
    size = 1_000_000
    link = SendList(np.arange(size, dtype=np.int32), size)
    for density in np.geomspace(1e-5, 1, 26):
        positions = np.flatnonzero(rng.random(size) < density)
        chosen = choose(link, link.changed(bits(positions, size)), row)
        most = 1.2 * bound(size, positions.size, row) + 5
        assert chosen.nbytes <= most, (density, chosen.form, chosen.gap_bits)


@pytest.mark.parametrize(
    "draw", [clustered, lambda _, n, p: np.arange(0, n, int(1 / p))]
)
def test_bytes_of_rows_that_are_not_spread_at_random(
    draw: Any, rng: np.random.Generator
) -> None:
    size = 300_000
    link = SendList(np.arange(size, dtype=np.int32), size)
    for density in np.geomspace(1e-5, 1, 21):
        positions = draw(rng, size, density)
        chosen = choose(link, link.changed(bits(positions, size)), 4)
        assert chosen.nbytes <= 1.2 * bound(size, positions.size, 4) + 5


@given(seeds, st.sampled_from([0, 0.002, 0.03, 0.3, 1]), st.integers(0, 40))
def test_the_cheapest_form_is_chosen(seed: int, density: float, row: int) -> None:
    rng = np.random.default_rng(seed)
    link = drawn_link(rng)
    changed = bits(np.flatnonzero(rng.random(link.own) < density), link.own)
    positions = link.changed(changed)
    least = min(choose(link, positions, row, form).nbytes for form in ASKED[1:])
    assert choose(link, positions, row).nbytes == least


@pytest.mark.parametrize("own", [1, 31, 32, 33, 70])
def test_one_vertex_that_did_not_change_is_not_sent(own: int) -> None:
    link = SendList(np.arange(own, dtype=np.int32), own)
    for left_out in [None, *range(own)]:
        changed = np.setdiff1d(np.arange(own), [-1 if left_out is None else left_out])
        found = choose(link, link.changed(bits(changed, own)), 4)
        np.testing.assert_array_equal(found.positions, changed)


@pytest.mark.parametrize("width", GAP_BITS)
@pytest.mark.parametrize("more", [-2, -1, 0])
def test_gaps_around_each_width(width: int, more: int) -> None:
    # A vertex, a gap, two vertices, and the gap twice.
    gap = 2**width + more
    positions = np.cumsum([0, gap + 1, 1, 2 * gap + 1]).astype(np.int32)
    escapes = loops().count_escapes(positions)
    for number, bits_of in enumerate(GAP_BITS):
        data = np.zeros(-(-bits_of * int(4 + escapes[number]) // 8), np.uint8)
        loops().pack_gaps(positions, bits_of, data)
        found = np.zeros_like(positions)
        size = int(positions[-1]) + 1
        assert loops().unpack_gaps(data, bits_of, size, found)
        assert found.tolist() == positions.tolist()
        assert not loops().unpack_gaps(data, bits_of, size - 1, found)
        assert not loops().unpack_gaps(data[:-1], bits_of, size, found)


@given(seeds, st.sampled_from(ASKED), st.data())
def test_garbled_messages_are_refused_or_read_within_bounds(
    seed: int, form: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    link = drawn_link(rng)
    changed = np.flatnonzero(rng.random(link.own) < 0.1)
    sent = [values(rng, "f4", (link.own, 2)), values(rng, "?", (link.own,))]
    packing, positions = packing_of(sent), link.changed(bits(changed, link.own))
    chosen = choose(link, positions, packing.row, form)
    message = encode(link, chosen, packing, sent)
    how = data.draw(st.sampled_from(["short", "long", "flipped", "noise"]))
    if how == "short":
        message = message[: int(rng.integers(message.size + 1))]
    elif how == "long":
        message = np.append(message, rng.integers(0, 256, 3).astype(np.uint8))
    elif how == "noise":
        message = rng.integers(0, 256, int(rng.integers(1, 99))).astype(np.uint8)
    elif message.size:
        message[-int(rng.integers(1, min(9, message.size + 1)))] ^= 1 << rng.integers(8)
    with suppress(fg.DistributedError):
        arrived = decode(link, message, packing)
        positions = arrived.positions
        assert np.all(np.diff(positions) > 0)
        assert positions.size == 0 or 0 <= positions[0] <= positions[-1] < link.size
        assert [len(rows) for rows in arrived.rows] == [positions.size] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: SendList(np.arange(3.0), 3), "float64 of shape"),
        (lambda: SendList(np.zeros((2, 2), np.int32), 3), r"\(2, 2\)"),
        (lambda: SendList(np.array([0, 3]), 3), "expected: 0 to 2"),
        (lambda: SendList(np.array([-1]), 3), "-1 to -1"),
        (lambda: choose(LINK, LINK.every, 4, "none"), "vr-list"),
        (lambda: LINK.changed(np.zeros(0, np.uint32)), "1 of uint32"),
        (lambda: LINK.changed(np.zeros(1, np.int32)), "words of int32"),
        (lambda: encode(LINK, FULL, PAIRS, [np.zeros((2, 3)).T]), "ascontiguousarray"),
    ],
)
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises(fg.ArgumentError, match=text):
        call()


LINK = SendList(np.array([0, 2]), 3)
FULL = choose(LINK, LINK.changed(bits([0, 2], 3)), 16)
PAIRS = packing_of([np.zeros((3, 2))])


def test_messages_that_are_none_of_the_link() -> None:
    sent = [np.arange(3, dtype=np.int64)]
    packing, last = packing_of(sent), LINK.changed(bits([2], 3))
    message = encode(LINK, choose(LINK, last, 8, "vr"), packing, sent)
    for garbled in (message[:-1], message[1:], np.append(message, message)):
        with pytest.raises(fg.DistributedError, match="a message of rows cannot be"):
            decode(LINK, garbled, packing)
    message[-2] |= 4  # a bit behind the list's last
    with pytest.raises(fg.DistributedError, match="a message of rows cannot be"):
        decode(LINK, message, packing)
    message[-2] &= 3
    with pytest.raises(fg.DistributedError, match=r"list of 2 vertices of 3"):
        decode(LINK, message, packing_of([*sent, np.zeros(3, np.float32)]))


def test_where_nothing_changed_nothing_is_sent() -> None:
    for form in ("auto", "vr", "vr-list"):
        chosen = choose(LINK, LINK.changed(bits([1], 3)), 8, form)
        assert (chosen.form, chosen.nbytes) == ("none", 0)

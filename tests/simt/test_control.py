"""What ends a loop on the device is what would end it on the host."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph import _cuda

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.devices import cuda_control
from featgraph.runtime.loops.device_flight import find_counts
from featgraph.runtime.loops.pending import Pending, announce
from featgraph.runtime.recording.control import (
    EVERYTHING,
    OF_AN_ENTRY,
    Orders,
    log_begins,
    pack,
    unpack,
)
from tests.simt.dialect import conditions
from tests.simt.emulator import Emulator

MODULE, NODE = inspect.getsource(cuda_control), 77
VERTICES = 6


@st.composite
def loops(draw: st.DrawFn) -> tuple[Orders, int, list[int], int]:
    """Draw orders, how many supersteps run together, what they commit, and a stop."""
    turns = draw(st.integers(1, 3))
    length = turns * draw(st.integers(1, 3))
    least, largest = st.sampled_from([-1, 0, 1, 1, 3]), st.integers(-1, 2 * VERTICES)
    steps = [(i % turns, draw(least), draw(largest)) for i in range(length)]
    pending = [draw(st.integers(EVERYTHING, VERTICES)) for _ in range(turns)]
    together = length * draw(st.integers(1, 2))
    most = draw(st.integers(2, 4))
    orders = Orders(
        together * draw(st.sampled_from([most, most, 1])), 1e6,
        draw(st.sampled_from([0.0, 1e6])), VERTICES, tuple(pending), tuple(steps),
    )  # fmt: skip
    often = st.sampled_from([1, 2, 3, 4, 5, 1, 2, VERTICES, 0])
    size = together * most
    numbers = draw(st.lists(often, min_size=size, max_size=size))
    return (
        orders,
        together,
        numbers,
        draw(st.sampled_from([0, 0, draw(st.integers(1, size))])),
    )


def model(
    orders: Orders, together: int, numbers: list[int], stop: int
) -> tuple[int, list[int]]:
    """Return after how many supersteps the host would end, and what is pending then."""
    length, ends = len(orders.steps), False
    pending = [
        Pending(None if n == EVERYTHING else object(), count=n) for n in orders.pending
    ]
    for done, number in enumerate(numbers, 1):
        turn, *_ = orders.steps[(done - 1) % length]
        told = None if number == VERTICES else object()
        announce(pending, turn, told, number, lambda _, words: words)
        turn, least, largest = orders.steps[done % length]
        count = pending[turn].active_count
        fits = least <= (EVERYTHING if count is None else count) <= largest
        # The first superstep of a loop takes no time that is known.
        ends |= not fits and done > 1 and not orders.late_seconds
        ends |= count == 0 or done >= orders.limit
        is_last = done % together == 0
        ends |= stop == done and not is_last
        if is_last and ends:
            break
    left = [p.active_count for p in pending]
    return done, [EVERYTHING if n is None else n for n in left]


@settings(max_examples=60)
@given(loops())
def test_a_loop_ends_where_the_host_would_end(drawn: Any) -> None:
    orders, together, numbers, stop = drawn
    turns, length = len(orders.pending), len(orders.steps)
    first = log_begins(turns, length)
    words = np.full(first + OF_AN_ENTRY * len(numbers), -7, np.int64)
    assert pack(orders, NODE, words) == first
    emulator, total, asked = Emulator(), np.zeros(1, np.int64), np.zeros(1, np.int64)
    module = emulator.load(MODULE, "cuda_control")
    done = 0
    while done < len(numbers):
        place, number = done % length, numbers[done]
        done += 1
        total[0], asked[0] = number, stop == done
        is_last = done % together == 0
        conditions.pop(NODE, None)
        given = total, asked, words, turns, length, place, is_last
        emulator.launch(module, "control", 1, 32, given)
        assert (NODE in conditions) == is_last
        if conditions.get(NODE) == 0:
            break
    report = unpack(words, first)
    assert (done, list(words[first - 3 * length - turns : first - 3 * length])) == (
        model(orders, together, numbers, stop)
    )
    assert report.counts == numbers[:done]
    assert report.seconds[0] == 0
    assert all(seconds > 0 for seconds in report.seconds[1:])


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 999))
def test_counts_that_are_decided_alike_are_found(a: int, b: int, near: int) -> None:
    """The least and the largest, wherever the search begins."""
    least, largest = sorted((a, b))
    found = find_counts(lambda count: least <= count <= largest, near, 999)
    powers = {near, 999, *(1 << bit for bit in range(10))}
    is_found = any(least <= power <= largest for power in powers)
    assert found == ((least, largest) if is_found else (1, 0))

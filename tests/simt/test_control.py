"""Loops on the device end by the same conditions as those on the host."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.devices import cuda_arrays
from featgraph.runtime.loops.replay import find_counts
from featgraph.runtime.loops.run_state import Pending, announce
from featgraph.runtime.recording.control import (
    ABOVE,
    BELOW,
    EVERYTHING,
    HEADER,
    Nodes,
    Orders,
    Shape,
    pack,
    unpack,
)
from tests.simt.dialect import conditions
from tests.simt.emulator import Emulator

MODULE, NODE = inspect.getsource(cuda_arrays), 77
VERTICES = 6
LIMIT = 0.5
#: Values that stopping rules test.
values = st.sampled_from([0.0, 1.0, 1.0, 1.0, LIMIT, np.nan, -np.inf])


@dataclass
class Drawn:
    """A loop, its parameters, and the effects of its supersteps.

    Attributes
    ----------
    orders : Orders
    shape : Shape
    numbers : list of int
        What each commits.
    seen : list of list of float
        What each hands over.
    stop : int
        The superstep behind which the host asks for the end; 0 for none.
    """

    orders: Orders
    shape: Shape
    numbers: list[int]
    seen: list[list[float]]
    stop: int


@st.composite
def loops(draw: st.DrawFn) -> Drawn:
    """Draw a loop that ends behind any superstep, or behind some together."""
    turns = draw(st.integers(1, 3))
    length = turns * draw(st.integers(1, 3))
    count, is_exact = draw(st.integers(0, 2)), draw(st.booleans())
    least, largest = st.sampled_from([-1, 0, 1, 1, 3]), st.integers(-1, 2 * VERTICES)
    tested = st.integers(0, count if is_exact else 0)
    steps = [
        (i % turns, draw(least), draw(largest), draw(tested)) for i in range(length)
    ]
    pending = [draw(st.integers(EVERYTHING, VERTICES)) for _ in range(turns)]
    together = length * draw(st.integers(1, 2))
    most = draw(st.integers(2, 4))
    size = together * most
    limit = together * draw(st.sampled_from([most, most, 1]))
    orders = Orders(
        draw(st.integers(1, size)) if is_exact else limit, 1e6,
        draw(st.sampled_from([0.0, 1e6])), VERTICES, tuple(pending), tuple(steps),
        (draw(st.sampled_from([BELOW, ABOVE])), LIMIT),
    )  # fmt: skip
    often = st.sampled_from([1, 2, 3, 4, 5, 1, 2, VERTICES, 0])
    numbers = draw(st.lists(often, min_size=size, max_size=size))
    seen = [[draw(values) for _ in range(count)] for _ in range(size)]
    stop = draw(st.sampled_from([0, 0, draw(st.integers(1, size))]))
    return Drawn(
        orders, Shape(turns, length, together, count, is_exact), numbers, seen, stop
    )


def model(drawn: Drawn) -> tuple[int, list[int]]:
    """Return after how many supersteps the host would end, and what is pending then."""
    orders, shape, ends, is_stopped = drawn.orders, drawn.shape, False, False
    side, limit = orders.test
    pending = [
        Pending(None if n == EVERYTHING else object(), count=n) for n in orders.pending
    ]
    for done, number in enumerate(drawn.numbers, 1):
        turn, _, _, tested = orders.steps[(done - 1) % shape.length]
        committed = None if number == VERTICES else object()
        announce(pending, turn, committed, number, lambda _, words: words)
        turn, least, largest, _ = orders.steps[done % shape.length]
        count = pending[turn].active_count
        fits = least <= (EVERYTHING if count is None else count) <= largest
        # The first superstep of a loop takes no time that is known.
        ends |= not fits and done > 1 and not orders.late_seconds
        ends |= count == 0 or done >= orders.limit
        if tested:
            value = drawn.seen[done - 1][tested - 1]
            ends |= value < limit if side == BELOW else value > limit
        is_last = done % shape.together == 0
        is_stopped |= drawn.stop == done and not is_last
        if shape.is_exact:
            if ends or (is_stopped and done % shape.length == 0):
                break
        elif is_last and (ends or is_stopped):
            break
    left = [p.active_count for p in pending]
    return done, [EVERYTHING if n is None else n for n in left]


@settings(max_examples=120)
@given(loops())
def test_a_loop_ends_where_the_host_would_end(drawn: Drawn) -> None:
    shape, size = drawn.shape, len(drawn.numbers)
    nodes = Nodes(NODE, tuple(range(NODE + 1, NODE + 1 + shape.gates)))
    words = np.full(shape.log_begins + shape.entry * size, -7, np.int64)
    assert pack(drawn.orders, nodes, words) == shape.log_begins
    emulator, total, stop = Emulator(), np.zeros(3, np.int64), np.zeros(1, np.int64)
    module = emulator.load(MODULE, "cuda_control")
    conditions.update(dict.fromkeys((NODE, *nodes.gates), 1))
    done = 0
    while done < size:
        number = done % shape.together
        total[0], stop[0] = drawn.numbers[done], drawn.stop == done + 1
        total[1 : 1 + shape.seen].view(np.float64)[:] = drawn.seen[done]
        done += 1
        reals = total.view(np.float64), words.view(np.float64)
        given = shape.at(number), total, reals[0], stop, words, reals[1]
        emulator.launch(module, "control", 1, 32, given)
        is_over = conditions[NODE] == 0
        assert not is_over or shape.is_exact or number + 1 == shape.together
        if is_over:
            assert not any(conditions[gate] for gate in nodes.gates[number + 1 :])
            break
        assert all(conditions[gate] for gate in nodes.gates)
    report = unpack(words, shape)
    pending = words[HEADER : HEADER + shape.turns].tolist()
    assert (done, pending) == model(drawn)
    assert report.counts == drawn.numbers[:done]
    np.testing.assert_array_equal(report.seen, drawn.seen[:done])
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

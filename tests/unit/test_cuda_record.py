"""Which fills of a recorded superstep may come before what was asked for first."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.runtime.cuda_record import mentions, split_fills

FIRST, SIZE = 4096, 64
addresses = st.integers(0, SIZE // 4 - 1).map(lambda word: FIRST + 4 * word)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("set_words"), addresses, *[st.integers(1, 8)] * 2),
        st.tuples(st.just("copy"), addresses, addresses, st.just(4)),
        st.tuples(
            st.just("launch"), st.none(), st.just(1), st.just(32), st.just(0),
            st.lists(addresses, min_size=1, max_size=3).map(
                lambda given: np.array(given, np.int64).tobytes()
            ),
        ),
    ),
    max_size=9,
)  # fmt: skip


def run(asked: list[Any]) -> Any:
    """Return memory behind operations; a kernel adds up what its arguments point to."""
    memory = np.arange(SIZE // 4 + 8)
    for name, *arguments in asked:
        if name == "launch":
            places = (np.frombuffer(arguments[-1], np.int64) - FIRST) // 4
            memory[places[0]] = memory[places].sum() + 1
            continue
        place = (arguments[0] - FIRST) // 4
        if name == "set_words":
            memory[place : place + arguments[2]] = arguments[1]
        else:
            memory[place] = memory[(arguments[1] - FIRST) // 4]
    return memory


@settings(max_examples=400)
@given(operations)
def test_early_fills_change_no_result(asked: list[Any]) -> None:
    early, others = split_fills(asked)
    assert sorted(map(str, early + others)) == sorted(map(str, asked))
    assert all(o[0] == "set_words" for o in early)
    np.testing.assert_array_equal(run([*early, *others]), run(asked))


def test_a_fill_is_early_where_nothing_before_it_touches_its_memory() -> None:
    fill = ("set_words", FIRST, 0, 4)
    assert split_fills([("copy", FIRST + 16, FIRST + 32, 16), fill])[0] == [fill]
    assert split_fills([("copy", FIRST + 12, FIRST + 32, 4), fill])[0] == []
    packed = np.array([3, FIRST + 8], np.int64).tobytes()
    assert split_fills([("launch", None, 1, 32, 0, packed), fill])[0] == []


def test_mentioned_memory() -> None:
    assert mentions(("read", 8, FIRST, 8), FIRST, 8)
    assert not mentions(("read", 8, FIRST + 8, 8), FIRST, 8)

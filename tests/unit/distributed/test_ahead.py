"""Ranks that follow rank 0: their messages, and that they make the same calls."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks.engines import messages
from featgraph.ranks.engines.messages import led
from tests.strategies import seeds

DTYPES = ["?", "i1", "u4", "i8", "f4", "f8"]


@given(st.integers(1, 3), st.integers(1, 9), seeds)
def test_results_are_those_of_rank_0(ranks: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = [
        rng.integers(0, 2, rng.integers(0, 4, rng.integers(0, 3))).astype(
            rng.choice(DTYPES)
        )
        for _ in range(12)
    ]
    stops = rng.random(12) < 0.2

    def on_a_rank(engine: Any) -> list[Any]:
        found = []
        for number, (array, stop) in enumerate(zip(given, stops, strict=True)):
            own = array if engine.rank == 0 else np.zeros_like(array)
            leading = led(engine)  # of which there may be several
            came = leading.all_reduce(own, "max", about=f"number {number}")
            assert came.flags.writeable
            assert came is not own
            found.append((came.dtype, came.shape, came.tobytes()))
            if stop:
                found.append(engine.all_reduce(np.ones(2), "sum").tolist())
        return found

    with mock.patch.object(messages, "MOST_RESULTS", most):
        found = run_ranks(ranks, on_a_rank)
    assert found == [found[0]] * ranks
    kept = [one for one in found[0] if isinstance(one, tuple)]
    assert kept == [(a.dtype, a.shape, a.tobytes()) for a in given]


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_went_different_ways(first: int) -> None:
    def on_a_rank(engine: Any) -> None:
        leading = led(engine)
        for number in range(3):
            about = f"number {number + (engine.rank == first and number == 1)}"
            leading.all_reduce(np.zeros(1), "sum", about=about)

    with pytest.raises(fg.RankMismatchError, match=r"for number [12]; rank 1 calls"):
        run_ranks(2, on_a_rank)


def test_a_rank_that_expects_less() -> None:
    def on_a_rank(engine: Any) -> None:
        for _ in range(2 - engine.rank):
            led(engine).all_reduce(np.zeros(1), "sum")
        engine.barrier()

    with pytest.raises(fg.RankMismatchError, match="rank 1 makes another call"):
        run_ranks(2, on_a_rank)


def test_a_rank_that_expects_more() -> None:
    def on_a_rank(engine: Any) -> None:
        for _ in range(2 + engine.rank):
            led(engine).all_reduce(np.zeros(1), "sum")

    with pytest.raises(fg.RankMismatchError, match="rank 0 has come to its end"):
        run_ranks(2, on_a_rank)

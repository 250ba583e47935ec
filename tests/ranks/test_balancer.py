"""New cuts from measured work: against all cuts, and on loads that stay or wander."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from featgraph.ranks.moving.moves import (
    Balancer,
    Expected,
    Work,
    _Costs,
    _monotone,
    cut_evenly,
    joined,
)

WORD = 32
V = 64 * WORD
Reals = npt.NDArray[np.float64]


def expected(hosts: tuple[int, ...] = (0,)) -> Expected:
    places = np.arange(0, V + 1, WORD)
    return Expected(Work(places, places.astype(float)), hosts)


def even(parts: int) -> npt.NDArray[np.int64]:
    return np.arange(parts + 1) * (V // parts)


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_the_cubic_is_that_of_scipy(points: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.uniform(0.01, 5, points))
    y = np.cumsum(rng.integers(0, 3, points) * rng.random(points))
    at = np.concatenate((x, rng.uniform(x[0], x[-1], 50)))
    meant = PchipInterpolator(x, y)(at)
    np.testing.assert_allclose(_monotone(x, y, at), meant, rtol=1e-9, atol=1e-9)


@given(
    words=st.integers(1, 7),
    tail=st.integers(0, 31),
    parts=st.integers(2, 4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_no_other_cuts_are_better(
    words: int, tail: int, parts: int, seed: int, data: st.DataObject
) -> None:
    count, rng = WORD * words + tail, np.random.default_rng(seed)
    places = np.append(np.arange(0, count, WORD), count)
    before = np.concatenate(([0.0], np.cumsum(rng.integers(0, 9, places.size - 1))))
    inner = st.lists(st.integers(0, count), min_size=parts - 1, max_size=parts - 1)
    cuts = np.array([0, *sorted(data.draw(inner)), count])
    seconds = np.where(np.diff(cuts) > 0, rng.uniform(0.1, 5, parts), 0.0)
    work = Work(places, before).measured(cuts, seconds)
    np.testing.assert_allclose(work.between(cuts), seconds, rtol=1e-12, atol=1e-12)
    found = cut_evenly(work, places, parts, 0, count)
    assert found[0] == 0
    assert found[-1] == count
    assert (np.diff(found) >= 0).all()
    assert set(found.tolist()) <= set(places.tolist())
    best = min(
        work.between(np.array([0, *some, count])).max()
        for some in combinations_with_replacement(places, parts - 1)
    )
    after = work.between(found).max()
    assert best <= after + 1e-9
    assert after <= best * 1.01


def test_between_cuts_what_was_expected_interpolates() -> None:
    work = Work(np.arange(5), np.array([0.0, 2.0, 3.0, 3.0, 3.0]))
    found = work.measured(np.array([0, 2, 4]), np.array([6.0, 1.0]))
    assert found.between(np.arange(5)) == pytest.approx([4, 2, 0.5, 0.5])


def run(
    work_of: Callable[[int, npt.NDArray[np.int64]], Reals],
    balancer: Balancer,
    supersteps: int,
    noise: float = 0.0,
) -> list[tuple[int, ...]]:
    """Run supersteps of a load, and moves; return all cuts."""
    rng = np.random.default_rng(7)
    cuts = [tuple(balancer.cuts.tolist())]
    for step in range(supersteps):
        work = work_of(step, balancer.cuts)
        balancer.add((work * rng.uniform(1 - noise, 1 + noise, work.size)).tolist())
        move = balancer.proposal(min(step + 1, supersteps - step - 1))
        if move is not None:
            balancer.moved(move, 0.05)
            cuts.append(tuple(move.cuts.tolist()))
    return cuts


def of(density: Reals) -> Callable[[int, npt.NDArray[np.int64]], Reals]:
    before = np.concatenate(([0.0], np.cumsum(density)))
    return lambda _, cuts: np.diff(before[cuts])


def speed(density: Reals, cuts: tuple[int, ...]) -> float:
    """Return the speed as a share of that of ranks that take the same."""
    return float(density.sum() / (len(cuts) - 1) / of(density)(0, np.array(cuts)).max())


@pytest.mark.parametrize("skew", [2.0, 4.0])
@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("begin", [0, 13 * WORD + 5, V - V // 8])
def test_skewed_loads_are_balanced_within_four_moves(
    skew: float, parts: int, begin: int
) -> None:
    density = np.full(V, 1e-3)
    density[begin : begin + V // 8] *= skew
    found = run(of(density), Balancer(even(parts), expected, 0.05), 200, noise=0.02)
    assert len(found) - 1 <= 4
    assert speed(density, found[-1]) >= 0.9 - 1e-9


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_gets_less(parts: int, slow: int) -> None:
    factor = np.where(np.arange(parts) == slow, 2.0, 1.0)
    plain = of(np.full(V, 1e-3))
    balancer = Balancer(even(parts), expected, 0.05)
    found = run(lambda s, cuts: plain(s, cuts) * factor, balancer, 200, noise=0.02)
    assert 1 <= len(found) - 1 <= 4
    slowest = (plain(0, np.array(found[-1])) * factor).max()
    assert 1e-3 * V / (1 / factor).sum() / slowest >= 0.9


@pytest.mark.parametrize("parts", [2, 4])
def test_bad_first_cuts_are_mended(parts: int) -> None:
    cuts = np.array([*range(0, WORD * parts, WORD), V])
    density = np.full(V, 1e-3)
    found = run(of(density), Balancer(cuts, expected, 0.05), 100)
    assert 1 <= len(found) - 1 <= 4
    assert speed(density, found[-1]) >= 0.9 - 1e-9


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_balanced_load_does_not_move(noise: float) -> None:
    plain = of(np.full(V, 1e-3))
    assert len(run(plain, Balancer(even(4), expected, 0.5), 300, noise)) == 1


def test_what_is_expected_is_found_only_where_ranks_differ() -> None:
    def never() -> Expected:
        raise AssertionError

    assert len(run(of(np.full(V, 1e-3)), Balancer(even(4), never, 0.1), 50, 0.05)) == 1


@pytest.mark.parametrize("supersteps", [20, 60, 400])
def test_a_wave_is_not_chased(supersteps: int) -> None:
    def wave(step: int, cuts: npt.NDArray[np.int64]) -> Reals:
        density = np.zeros(V)
        begin, end = (s * V // supersteps for s in (step, step + 1))
        density[begin:end] = 0.1
        return of(density)(step, cuts)

    assert len(run(wave, Balancer(even(4), expected, 0.05), supersteps)) - 1 <= 3


def test_a_move_that_does_not_pay_is_looked_for_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    def found(balancer: Balancer, *_: Any) -> None:
        looks.append(balancer._added)

    monkeypatch.setattr(Balancer, "_found", found)
    balancer = Balancer(even(2), expected, 0.0)
    for _ in range(1000):
        balancer.add([1.0, 1.3])
        assert balancer.proposal(1000) is None
    assert looks[0] == 8
    assert all(4 <= after - one >= one // 8 for one, after in pairwise(looks))
    assert 10 < len(looks) < 50


@given(st.sets(st.integers(0, 90)), st.lists(st.integers(0, 100), max_size=9))
def test_joined_places_are_those_of_both(places: set[int], others: list[int]) -> None:
    both = np.array([0, *sorted(places - {0}), 100]), np.array(others, np.int64)
    np.testing.assert_array_equal(joined(*both), np.union1d(*both))


def test_no_move_pays_near_the_end() -> None:
    cuts = np.array([0, WORD, V])
    for left, pays in ((1, False), (1000, True)):
        balancer = Balancer(cuts, expected, cost_s=10.0)
        for _ in range(8):
            balancer.add([0.1, 1.9])
        assert (balancer.proposal(left) is not None) == pays


TWO_HOSTS = (0, 0, 1, 1)


def moves_of(
    density: Reals, took: dict[bool, float], supersteps: int = 100, cost_s: float = 0.0
) -> tuple[list[bool], tuple[int, ...]]:
    """Return for each move of four ranks on two hosts if it was within, and cuts."""
    balancer = Balancer(even(4), lambda: expected(TWO_HOSTS), cost_s)
    kinds = []
    for step in range(supersteps):
        balancer.add(of(density)(step, balancer.cuts).tolist())
        move = balancer.proposal(min(step + 1, supersteps - step - 1))
        if move is not None:
            assert all(a <= b for a, b in pairwise(move.cuts))
            assert move.is_within == (move.cuts[2] == balancer.cuts[2])
            balancer.moved(move, took[move.is_within])
            kinds.append(move.is_within)
    return kinds, tuple(balancer.cuts.tolist())


def test_a_load_that_hosts_can_even_out_stays_within_them() -> None:
    density = np.full(V, 1e-3)
    density[: V // 4] *= 3
    density[V // 2 : 3 * V // 4] *= 3
    kinds, cuts = moves_of(density, {True: 0.0, False: 0.0})
    assert kinds == [True] * len(kinds) != []
    assert cuts[2] == V // 2
    assert speed(density, cuts) >= 0.9


def test_what_is_skewed_between_hosts_moves_in_a_second_step() -> None:
    density = np.repeat([5e-3, 1e-3, 2e-3, 2e-3], V // 4)
    kinds, cuts = moves_of(density, {True: 0.0, False: 0.0})
    assert kinds[:2] == [True, False]
    assert speed(density, cuts) >= 0.9


@given(skew=st.integers(2, 8), first=st.integers(0, 7))
def test_ranks_of_two_hosts_are_balanced_within_four_moves(
    skew: int, first: int
) -> None:
    density = np.full(V, 1e-3)
    density[first * V // 8 : (first + 1) * V // 8] *= skew
    kinds, cuts = moves_of(density, {True: 0.0, False: 0.0}, 200)
    assert len(kinds) <= 4
    assert speed(density, cuts) >= 0.9 - 1e-9


def test_a_load_even_within_hosts_moves_between_them_at_once() -> None:
    density = np.repeat([2e-3, 1e-3], V // 2)
    kinds, cuts = moves_of(density, {True: 0.0, False: 0.0})
    assert kinds[0] is False
    assert speed(density, cuts) >= 0.9


@pytest.mark.parametrize("cost_s", [1.0, 1e4])
def test_a_move_between_hosts_must_pay_what_one_costs(cost_s: float) -> None:
    """The cost of a move is assumed at first, and measured after the first move."""
    rng = np.random.default_rng(3)
    kinds: list[bool] = []
    balancer = Balancer(even(4), lambda: expected(TWO_HOSTS), 0.0)
    for step in range(400):
        # Loads that stay for a hundred supersteps, heavy on one host and the other.
        density = np.full(V, 1e-3)
        heavy = step // 100 % 2
        density[heavy * V // 2 : (heavy + 1) * V // 2] *= 3
        work = of(density)(step, balancer.cuts) * rng.uniform(0.99, 1.01, 4)
        balancer.add(work.tolist())
        move = balancer.proposal(100)
        if move is not None:
            balancer.moved(move, 0.0 if move.is_within else cost_s)
            kinds.append(move.is_within)
    between = kinds.count(False)
    assert between >= 3 if cost_s == 1.0 else between == 1


def test_costs_of_either_kind_bound_each_other() -> None:
    costs = _Costs(5.0)
    assert [costs.of(True), costs.of(False)] == [5.0, 5.0]
    costs.note(False, 3.0)
    assert [costs.of(True), costs.of(False)] == [3.0, 3.0]
    costs.note(True, 1.0)
    assert [costs.of(True), costs.of(False)] == [1.0, 3.0]
    costs.note(True, 4.0)
    assert [costs.of(True), costs.of(False)] == [4.0, 4.0]


def test_a_move_that_brings_nothing_makes_the_next_one_wait() -> None:
    balancer = Balancer(even(2), expected, 0.0)
    waits = []
    for step in range(300):
        balancer.add([1.0, 3.0])  # whatever it owns
        move = balancer.proposal(100)
        if move is not None:
            balancer.moved(move, 0.0)
            waits.append(step)
    assert len(waits) > 2
    assert (np.diff(waits)[1:] > 2 * np.diff(waits)[:-1]).all()
    assert balancer.found_s == 0

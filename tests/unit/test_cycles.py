"""Cycles of supersteps, found in one run and known in the next."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.recording.cuda_trace import TracedDriver
from featgraph.runtime.recording.cycles import Cycles, KnownCycles, Traced


class Words:
    """A set of a pool."""


POOL = [Words() for _ in range(4)]
ELSE = Words()
ALL_DUE, SWEEPS = (True, "plain"), (False, "all")


def made(
    operations: Any, words: Words | None = None, held: Any = None, decided: Any = SWEEPS
) -> Traced:
    """Return a superstep that committed, and left behind, the set of its number."""
    words = POOL[operations] if words is None else words
    behind = id(words) if held is None else held, id(None)
    sets = [weakref.ref(words)]
    given = 0, decided, False, sets[0], sets, "pull", "-", frozenset[str]()
    return Traced(*given, operations=operations, behind=behind)


def run(
    known: KnownCycles, supersteps: Sequence[Traced]
) -> list[tuple[int, list[list[Any]]]]:
    """Return behind how many supersteps cycles are found, and their operations."""
    cycles, found = Cycles(1, known), []
    for number, one in enumerate(supersteps, 1):
        cycles.add(one)
        given = [[t.operations for t in cycle] for cycle in cycles.find()]
        if given:
            found.append((number, given))
    return found


def knowing(*cycle: int) -> KnownCycles:
    known = KnownCycles()
    begun, repeated = made("begun", ELSE), [made(n) for n in cycle * 2]
    assert run(known, [begun, *repeated]) == [(1 + 2 * len(cycle), [list(cycle)])]
    return known


def test_a_known_cycle_is_found_when_it_has_come_round_once() -> None:
    known, begun = knowing(0, 1), made("begun", ELSE)
    assert run(known, [begun, made(0), made(1)]) == [(3, [[0, 1]])]
    assert run(known, [begun, made(1), made(0)]) == [(3, [[1, 0]])]
    assert run(known, [made(0), made(1)]) == [(2, [[0, 1]])]
    assert not run(KnownCycles(), [begun, made(0), made(1)])


def test_as_many_supersteps_must_have_followed_as_a_cycle_has() -> None:
    known = knowing(0, 1, 2, 3)
    assert run(known, [made(n) for n in (2, 3, 0, 1)]) == [(4, [[2, 3, 0, 1]])]
    assert not run(known, [made("begun", POOL[3]), *map(made, (0, 2, 1, 3))])
    assert not run(known, [made(n) for n in (1, 2, 3)])
    assert not run(known, [made(0), made("else", POOL[1]), made(2), made(3)])
    apart = [made(0, held=id(POOL[1])), made("else", POOL[0]), made(1)]
    assert not run(knowing(0, 1), apart)


def test_places_are_those_of_one_cycle() -> None:
    known = knowing(0, 1)
    repeated = [made(n) for n in (2, 3, 2, 3)]
    assert run(known, repeated)
    assert not run(known, [made("begun", POOL[3]), made(0), made(3)])
    assert not run(known, [made("begun", POOL[1]), made(2), made(1)])


def test_what_is_held_behind_a_cycle_was_held_there_before() -> None:
    """There, or a cycle ago in this run."""
    known = knowing(0, 1)
    assert not run(known, [made(0), made(1, held=5)])
    supersteps = [made(1, held=5), made(0, held=6), made(1, held=5)]
    assert run(known, supersteps) == [(3, [[0, 1]])]


def test_another_set_with_the_number_of_one_that_is_gone_is_not_it() -> None:
    known, gone = knowing(0, 1), Words()
    assert not run(known, [made(0, ELSE), made(1)])
    for first in (made(0, gone), made(0)):
        again = KnownCycles()
        run(again, [first, made(1), first, made(1)])
        assert bool(run(again, [first, made(1)]))
    again = KnownCycles()
    held = made(0, gone)
    run(again, [held, made(1), held, made(1)])
    del gone
    assert not run(again, [held, made(1)])


@pytest.mark.parametrize("decided", [ALL_DUE, SWEEPS])
def test_a_first_superstep_may_be_decided_otherwise(decided: Any) -> None:
    """Where everything is due, it may do what a sweep does."""
    cycles = Cycles(1, knowing(0, 1))
    for one in (made(0, decided=decided), made(1)):
        cycles.add(one)
    (cycle,) = cycles.find()
    assert [t.decisions for t in cycle] == [SWEEPS, SWEEPS]


def test_a_run_s_own_cycle_is_given_beside_the_known_one() -> None:
    """Supersteps decided otherwise may make the same requests."""
    cycles = Cycles(1, knowing(0, 1))
    for number in (1, 0, 1):
        cycles.add(made(number, decided=ALL_DUE))
    own, known = cycles.find()
    assert [t.decisions for t in own] == [ALL_DUE, ALL_DUE]
    assert [t.decisions for t in known] == [SWEEPS, SWEEPS]


def test_a_stage_keeps_nothing_of_the_one_before() -> None:
    cycles = Cycles(1, knowing(0, 1))
    cycles.add(made(0))
    cycles.forget()
    cycles.add(made(1))
    assert not list(cycles.find())


def joined(*supersteps: Traced, turns: int = 1, is_free: bool = True) -> list[Any]:
    """Return which cycle one joins behind some supersteps, by its operations."""
    known, followers = knowing(0, 1), []
    cycles = Cycles(turns, known)
    for one in supersteps:
        cycles.add(one)
    found = cycles.find(lambda following: followers.append(following) or is_free)
    given = [[t.operations for t in cycle] for cycle in found]
    assert all(one.operations == 1 - supersteps[-1].operations for one in followers)
    return given


def test_a_known_cycle_is_joined_behind_one_superstep_like_one_of_it() -> None:
    assert joined(made(0)) == [[1, 0]]
    assert joined(made("else", ELSE), made(1)) == [[0, 1]]
    assert joined(made(0, decided=ALL_DUE)) == [[1, 0]]


@pytest.mark.parametrize(
    "change",
    [
        {"behind": (5, id(None))},
        {"stale": frozenset({("x", 5)})},
        {"everything": True},
        {"committed": weakref.ref(ELSE)},
        {"work": "kept"},
    ],
)
def test_what_has_left_something_else_joins_none(change: dict[str, Any]) -> None:
    assert joined(replace(made(0), **change)) == []


def test_sets_of_the_next_superstep_must_be_free() -> None:
    assert joined(made(0), is_free=False) == []
    assert joined(made(0), turns=2) == []


@pytest.mark.parametrize(
    "change", [{"decisions": ALL_DUE}, {"everything": True}, {"work": "patched"}]
)
def test_a_cycle_that_is_not_alike_is_not_joined(change: dict[str, Any]) -> None:
    known = KnownCycles()
    cycle = [made(0), replace(made(1), **change)]
    for place, traced in enumerate(cycle):
        known.places.put(traced.operations, (cycle, place))
    cycles = Cycles(1, known)
    cycles.add(made(0))
    assert not list(cycles.find(lambda _: True))


def behind_first(
    begun: Traced, again: Traced | None = None, is_free: bool = True, turns: int = 1
) -> list[Any]:
    """Return which cycle one joins behind a first superstep, by its operations.

    It is in none, and a run has begun with `begun` before, and gone on with a cycle.
    """
    known = knowing(0, 1)
    before = Cycles(1, known)
    for one in (begun, made(1)):
        before.add(one)
    assert [len(cycle) for cycle in before.find(lambda _: True)] == [2]
    cycles = Cycles(turns, known)
    cycles.add(begun if again is None else again)
    found = cycles.find(lambda following: is_free and following.operations == 1)
    return [[t.operations for t in cycle] for cycle in found]


def test_a_known_cycle_is_joined_behind_a_first_superstep_that_is_in_none() -> None:
    """It copies rows that others refresh, say; a like one preceded the cycle."""
    begun = made("begun", POOL[0])
    assert behind_first(begun) == [[1, 0]]
    assert behind_first(begun, made("else", POOL[0])) == []
    assert behind_first(begun, is_free=False) == []
    assert behind_first(begun, turns=2) == []
    unknown = replace(begun, operations=None)
    assert behind_first(unknown) == []


@pytest.mark.parametrize(
    "change",
    [
        {"behind": (5, id(None))},
        {"stale": frozenset({("x", 5)})},
        {"everything": True},
        {"committed": weakref.ref(ELSE)},
        {"decisions": ALL_DUE},
        {"work": "kept"},
    ],
)
def test_a_first_superstep_that_leaves_something_else_joins_none(
    change: dict[str, Any],
) -> None:
    begun = made("begun", POOL[0])
    assert behind_first(begun, replace(begun, **change)) == []
    if "decisions" in change or "everything" in change or "work" in change:
        assert behind_first(replace(begun, **change)) == []


def test_only_a_first_superstep_stands_before_a_cycle() -> None:
    known = knowing(0, 1)
    for supersteps in ((made("a", ELSE), made("b", POOL[0]), made(1)),) * 2:
        cycles = Cycles(1, known)
        for one in supersteps[:2]:
            cycles.add(one)
            assert not list(cycles.find(lambda _: True))
        cycles.add(supersteps[2])
        assert list(cycles.find(lambda _: True))


def test_free_sets_are_in_their_pool_without_owners() -> None:
    first, second = Words(), Words()
    taken = [weakref.ref(first), weakref.ref(second)]
    pools = {7: [first], 8: [second]}
    are_free = TracedDriver.are_free
    assert not are_free(taken, pools)
    del first
    assert not are_free(taken, pools)
    del second
    assert are_free(taken, pools)
    assert not are_free(taken, {7: pools[7]})
    held = pools[8][0]
    assert not are_free(taken, pools)
    del held, pools[8][0]
    assert not are_free(taken, pools)

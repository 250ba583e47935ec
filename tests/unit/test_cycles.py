"""Cycles of supersteps, found in one run and known in the next."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from featgraph.runtime.cycles import Cycles, KnownCycles, Traced


class Words:
    """A set of a pool."""


POOL = [Words(), Words(), Words()]
STARTS, SWEEPS = (True, "plain"), (False, "all")


def traced(operations: Any, words: Any, decisions: Any = SWEEPS) -> Traced:
    return Traced(
        0, decisions, False, weakref.ref(words), [weakref.ref(words)], "pull", "-",
        operations, (id(words), id(None)),
    )  # fmt: skip


def found_behind(known: KnownCycles, supersteps: list[Traced]) -> int | None:
    """Return behind how many supersteps of a run a cycle is found; None for never."""
    cycles = Cycles(1, known)
    for number, made in enumerate(supersteps, 1):
        cycles.add(made)
        if cycles.find() is not None:
            return number
    return None


@pytest.fixture
def known() -> KnownCycles:
    made = KnownCycles()
    run = [traced("first", POOL[2]), *(traced(n, POOL[n]) for n in (0, 1, 0, 1))]
    assert found_behind(made, run) == 5  # come round twice
    return made


def test_a_known_cycle_is_found_when_it_has_come_round_once(known: KnownCycles) -> None:
    begun = [traced("first", POOL[2]), traced(0, POOL[0]), traced(1, POOL[1])]
    assert found_behind(known, begun) == 3
    assert found_behind(known, begun[1:]) == 2
    assert found_behind(known, [begun[0], begun[2], begun[1]]) == 3
    assert found_behind(KnownCycles(), begun) is None


def test_other_sets_behind_a_known_cycle_must_have_been_there_before(
    known: KnownCycles,
) -> None:
    other = Words()
    run = [traced(n, w) for n, w in ((1, other), (0, POOL[0]), (1, other))]
    assert found_behind(known, run[1:]) is None
    assert found_behind(known, run) == 3


def test_a_known_cycle_tells_what_was_decided(known: KnownCycles) -> None:
    """A first superstep, where everything is due, may do what a sweep does."""
    cycles = Cycles(1, known)
    run = [traced(0, POOL[0], STARTS), traced(1, POOL[1])]
    for made in run:
        cycles.add(made)
    cycle = cycles.find()
    assert cycle is not None
    assert [t.operations for t in cycle] == [0, 1]
    assert [t.decisions for t in cycle] == [SWEEPS, SWEEPS]


def test_what_another_run_committed_is_not_what_this_one_did(
    known: KnownCycles,
) -> None:
    other = Words()
    run = [traced(0, other), traced(1, POOL[1])]
    cycles = Cycles(1, known)
    for made in run:
        cycles.add(made)
    assert cycles.find() is None


def test_supersteps_that_do_not_follow_each_other_are_no_cycle(
    known: KnownCycles,
) -> None:
    run = [traced(0, POOL[0]), traced("else", POOL[2]), traced(1, POOL[1])]
    assert found_behind(known, run) is None

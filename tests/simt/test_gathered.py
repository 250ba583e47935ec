"""Gathered values at other features: lanes shuffle them, or find them in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

import featgraph as fg
from featgraph import reference
from tests.bank import BY_NAME, BankProgram
from tests.programs import gathered, returns
from tests.simt.case import Case, Values
from tests.simt.test_kernels import VARIANTS, Run

#: One lane, several, all of a warp, several features a lane.
WIDTHS = (2, 3, 5, 8, 17, 33, 100)


@dataclass(frozen=True)
class BankCase(Case):
    """A foldmap of a program of the bank.

    Attributes
    ----------
    bank : BankProgram
    """

    bank: BankProgram | None = None

    def values(
        self, graph: Any, k: int, rng: Any, dtype: str = "float32"
    ) -> tuple[Values, Any]:
        """Return the values as given, and their types."""
        assert self.bank is not None
        state = fg.State(graph, **self.bank.make_state(graph, k, rng))
        _, values, signature = reference.from_state(state)
        return values, dict(signature)


def case_of(program: BankProgram, place: int = 0) -> BankCase:
    functions = tuple(program.foldmaps[place].program.functions)
    return BankCase(program.name, functions, lambda *a: {}, bank=program)


def _rotated() -> Any:
    """Every variant with two foldmaps, each time with another width."""
    turn = itertools.count()
    programs = [*gathered.PROGRAMS, *returns.PROGRAMS]
    foldmaps = [(p, n) for p in programs for n in range(len(p.foldmaps))]
    for number, (program, place) in enumerate(foldmaps):
        widths = [k for k in WIDTHS if k <= (8 if program.name == "pairs" else 100)]
        for variant, options in list(VARIANTS.items())[number % 4 :: 4]:
            k = widths[next(turn) % len(widths)]
            name = f"{program.name}_{place}-{variant}-{k}"
            yield pytest.param(program, place, k, options, id=name)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("program", "place", "k", "options"), list(_rotated()))
def test_agrees_with_the_interpreter(
    program: BankProgram, place: int, k: int, options: dict[str, Any]
) -> None:
    size = (25, 60) if k <= 10 else (17, 36)
    Run(case_of(program, place), k, size=size, **options).check()


@pytest.mark.parametrize("k", [2, 3, 8, 17, 33])
def test_entries_at_constants_cost_no_kernel(k: int) -> None:
    run = Run(case_of(BY_NAME["votes"]), k, size=(17, 36))
    assert len(run.kernels.plan.phases) == 1
    shuffled = "votes_at_1 = warp.broadcast(votes"
    assert (shuffled in run.kernels.text) == (
        run.kernels.plan.phases[0].mapping.lanes_per_edge > 1
    )
    assert "d.votes" not in run.kernels.text
    run.check()

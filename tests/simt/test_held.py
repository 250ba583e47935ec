"""Matrices that a thread holds in registers, run thread by thread."""

from __future__ import annotations

from typing import Any

import pytest

from featgraph.fold.schedules.thread import MOST_HELD
from tests.simt.held_programs import HELD_CASES
from tests.simt.programs import BY_NAME
from tests.simt.test_kernels import Run

CASES = (*HELD_CASES, BY_NAME["least_squares"], BY_NAME["inverse"])
THREAD: dict[str, Any] = {"feature_parallel": False, "size": (16, 40)}


@pytest.mark.drawn(12)
@pytest.mark.parametrize("k", [1, 2, 4, MOST_HELD, MOST_HELD + 1])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_agrees_with_the_interpreter(case: Any, k: int) -> None:
    Run(case, k, **THREAD).check()


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_float64_checked_and_unfolded(case: Any) -> None:
    Run(case, 4, dtype="float64", checked=True, **THREAD).check()
    Run(case, 2, folding=False, **THREAD).check()


def test_what_stands_in_memory() -> None:
    scratch = {}
    for case in CASES:
        [entry] = Run(case, 4, **THREAD).kernels.entries
        scratch[case.name] = [area for _, area in sorted(entry.scratch.items())]
    square, work = ("float32", (4, 4)), ("float32", (4, 8))
    assert scratch == {
        "solves": [],
        "looks_up": [square, square],
        "solves_and_looks_up": [square, square],
        "least_squares": [],
        "inverse": [square, work],
    }


def test_symmetric_products_are_summed_once() -> None:
    text = Run(BY_NAME["least_squares"], 4, **THREAD).kernels.text
    assert text.count("A_1_0 += ") == 1
    assert "A_0_1 += " not in text
    wide = Run(BY_NAME["least_squares"], MOST_HELD + 1, **THREAD).kernels.text
    assert "A[i, f] += " in wide


@pytest.mark.parametrize(
    ("planted", "instead"),
    [("skew_1_0 += ", "skew_0_1 += "), ("spread_0_1 = spread_1_0", "spread_0_1 = 0.0")],
)
def test_a_wrong_element_is_seen(planted: str, instead: str) -> None:
    run = Run(HELD_CASES[0], 4, **THREAD)
    text = run.kernels.text
    assert planted in text
    with pytest.raises(AssertionError):
        run.check(text.replace(planted, instead))

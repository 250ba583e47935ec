"""Runs of several kinds over one State, in turn: cycles are known from the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.simt.gpu import Gpu
from tests.simt.test_replay import (
    VERTICES,
    gpu,
    halves,
    labels,
    path_state,
    shares,
    shares_state,
)

__all__ = ["gpu"]

ALL: dict[str, Any] = {"change_driven": False}
KEPT: dict[str, Any] = {"change_driven": True}
FEW: dict[str, Any] = {"active": [1, 2]}
KINDS: dict[str, tuple[Any, str, list[tuple[Any, dict[str, Any]]]]] = {
    "shares": (shares_state, "share", [
        (shares, ALL), (shares, {}), (halves(shares), {}), (shares, KEPT),
        (shares, FEW), (shares.on(np.arange(VERTICES) % 3 > 0), {}),
    ]),
    "labels": (path_state, "label", [
        (labels, FEW), (halves(labels), FEW), (labels, ALL), (labels, KEPT),
        (halves(labels), ALL), (labels, {}),
    ]),
}  # fmt: skip
#: Limits of supersteps of runs that are ended, and leave something due.
LIMITS = [1000, 1000, 7, 1000, 1000, 8, 1000]


def _run_all(case: str, replays: bool) -> list[Any]:
    """Return the values after each run, and its record."""
    make_state, name, kinds = KINDS[case]
    state, left = make_state(), []
    first = np.array(state[name])
    order = [*kinds, *kinds[::-1], *kinds[::2]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "replay", replays)
        for number, (steps, options) in enumerate(order):
            limit = LIMITS[number % len(LIMITS)]
            if limit == 1000:  # else it goes on
                state[name] = first
            done = fg.iterate(
                steps, state, target="cuda", max_supersteps=limit, **options
            )
            record = done.supersteps, done.converged, done.active_counts
            left.append((np.array(state[name]), record, done.aggregates))
    return left


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("case", KINDS)
def test_runs_of_all_kinds_are_those_of_the_host(case: str, gpu: Gpu) -> None:
    meant = _run_all(case, False)
    assert not gpu.recordings
    replayed = _run_all(case, True)
    for (values, *record), (others, *its_record) in zip(replayed, meant, strict=True):
        np.testing.assert_array_equal(values, others)
        assert record == its_record
    assert sum(r.launched for r in gpu.recordings) > 50
    assert not gpu.waiting

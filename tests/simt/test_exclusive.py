"""Exclusive functions on CUDA, lane by lane: one block, so that it waits for none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from featgraph import _cuda

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.plan import exclusive
from tests.programs.exclusive import (
    PROGRAMS,
    check_learning,
    check_run,
    graph_of,
    run,
)
from tests.reference.test_exclusive_runs import SERIAL, schedules_of
from tests.simt.gpu import emulated_gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    with emulated_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(exclusive, "RESIDENT", 1)
        yield


CASES = [
    (name, kind, schedule)
    for name in PROGRAMS
    for kind in ("directed", "undirected", "sides")
    for schedule in schedules_of(name, kind)
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("name", "kind", "schedule"), CASES)
def test_runs_are_serialisable(
    name: str, kind: str, schedule: str, rng: np.random.Generator
) -> None:
    more: dict[str, Any] = {"schedule": schedule, **schedules_of(name, kind)[schedule]}
    for k in (1, 3, 8, 10):
        graph = graph_of(kind, 9, 16, int(rng.integers(1 << 30)))
        state, told = run(name, graph, k, "cuda", **more)
        check_run(name, state, told)
        if schedule in SERIAL:
            meant, _ = run(name, graph, k, "cuda", schedule="serial")
            np.testing.assert_array_equal(state["x"], meant["x"])


@pytest.mark.parametrize("k", [1, 4, 7, 16])
def test_learns(k: int) -> None:
    graph = graph_of("undirected", 9, 16, k)
    found = [
        check_learning(graph, k, "cuda", schedule=schedule)
        for schedule in ("serial", "levels")
    ]
    for name in ("x", "bias"):
        np.testing.assert_array_equal(found[0][name], found[1][name])

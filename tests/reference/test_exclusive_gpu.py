"""Exclusive functions on a GPU, where blocks wait for each other.

Each schedule runs a program of int64 on graphs with hubs, and the order that it records
is replayed edge by edge: the same bits must come out, of each of many runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from tests.programs.exclusive import (
    ANY,
    LEARN,
    UNORDERED,
    check_learning,
    factors_of,
    graph_of,
    order_of,
    replayed,
    run,
    schedules_of,
)

pytestmark = pytest.mark.gpu

CASES = [
    (kind, schedule, options)
    for kind in ("directed", "sides")
    for schedule, options in schedules_of("mix_all", kind, 20).items()
]
RUNS = 100


@pytest.mark.parametrize("k", [1, 16])
@pytest.mark.parametrize(("kind", "schedule", "options"), CASES)
def test_replays_on_large_graphs(
    kind: str, schedule: str, options: dict[str, Any], k: int
) -> None:
    graph = graph_of(kind, 2_000, 20_000, 7)
    state, _ = run("mix_all", graph, k, "cuda", **options)
    assert state["runs"].tolist() == [1] * graph.edge_count
    meant = replayed(graph, k, order_of(graph, state["turn"]))
    for name, values in meant.items():
        np.testing.assert_array_equal(state[name], values, err_msg=name)


@pytest.mark.parametrize(("kind", "schedule", "options"), CASES)
def test_replays_again_and_again(
    kind: str, schedule: str, options: dict[str, Any]
) -> None:
    graph = graph_of(kind, 200, 2_000, 3)
    first = None
    for _ in range(RUNS):
        state, _ = run("mix_all", graph, 16, "cuda", **options)
        turns = state["turn"]
        if first is None or schedule in UNORDERED:
            meant = replayed(graph, 16, order_of(graph, turns))
            first = turns
        np.testing.assert_array_equal(turns, turns if schedule in UNORDERED else first)
        for name, values in meant.items():
            np.testing.assert_array_equal(state[name], values, err_msg=name)


@pytest.mark.parametrize("schedule", ["levels", "ticketed"])
def test_has_the_bits_of_serial(schedule: str) -> None:
    graph = graph_of("directed", 500, 5_000, 5)
    found = []
    for each in ("serial", schedule):
        state = factors_of(graph, 32)
        for _ in range(3):
            LEARN(state, target="cuda", schedule=each)
        found.append(state)
    for name in ("x", "bias"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("schedule", [*ANY, "blocks", "node_locked", "hybrid"])
def test_learns(schedule: str) -> None:
    graph = graph_of("sides", 300, 2_000, 9)
    check_learning(graph, 16, "cuda", schedule=schedule)


def test_rows_agree_with_the_cpu() -> None:
    graph = graph_of("sides", 2_000, 20_000, 4)
    found = [run("mix_targets", graph, 8, target)[0] for target in ("cpu", "cuda")]
    for name in ("x", "n", "runs", "turn"):
        np.testing.assert_array_equal(found[0][name], found[1][name])

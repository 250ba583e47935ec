"""The bench of the backend: what it records, and the sizes that it concludes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from _featgraph_networkx.claims import CLAIMS, own_arguments
from bench import run
from bench.algorithms.networkx_cpu import CALLS, difference, pays_from


def test_answers_are_compared_and_sizes_recorded(tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    argv = ["networkx-cpu", "--graph", "rmat-4-4,rmat-5-4", "--repeat", "2"]
    assert run.main([*argv, "--functions", "pagerank", "--output", str(output)]) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    timed, concluded = lines[:6], lines[6:]
    assert [line["contender"] for line in timed[:3]] == [
        "networkx",
        "converting",
        "converted",
    ]
    assert all(line["checks"]["ok"] and len(line["trials_ms"]) == 2 for line in timed)
    assert timed[0]["size"] < timed[3]["size"]
    assert [line["contender"] for line in concluded] == [
        "converting pays",
        "converted pays",
    ]


def test_every_function_has_the_arguments_that_it_needs() -> None:
    assert set(CALLS) <= set(CLAIMS)
    for name, claimed in CLAIMS.items():
        arguments = own_arguments(name, (object(),), CALLS.get(name, (True, {}))[1])
        assert set(arguments) <= set(claimed.parameters)


@pytest.mark.parametrize(
    ("ratios", "size"),
    [
        ({100: 0.5, 10_000: 2.0}, 1000),
        ({100: 2.0, 10_000: 3.0}, 100),
        ({100: 2.0, 10_000: 0.5}, None),
        ({100: 2.0, 1000: 0.5, 100_000: 2.0}, 10_000),
        ({}, None),
    ],
)
def test_a_function_pays_where_it_stays_ahead(
    ratios: dict[int, float], size: int | None
) -> None:
    assert pays_from({n: (ratio, 1.0) for n, ratio in ratios.items()}) == size


def test_answers_differ_by_values_and_by_form() -> None:
    inf = float("inf")
    assert difference({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.5}) == 0.5
    assert difference({"b": 2.0, "a": 1.0}, {"a": 1.0, "b": 2.0}) == inf
    assert difference([{1}, {2}], [{1}, {3}]) == inf
    assert difference(({"a": 1}, [0.5]), ({"a": 1}, [0.25])) == 0.25

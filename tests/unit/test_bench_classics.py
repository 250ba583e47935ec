"""The benches of the classics work, and their checks find what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import run
from bench.classics import checks, gpu
from bench.graphs import make_graph


@pytest.mark.slow
def test_every_cell_of_the_gpu_table_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "classics.jsonl"
    graphs = "kron-6,rmat-6-4"  # the second is directed, with edges repeated
    argv = ["classics-gpu", "--graph", graphs, "--target", "cpu", "--repeat", "1"]
    assert run.main([*argv, "--output", str(file)]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["program"] for line in lines} == set(gpu.DEFAULTS["programs"])
    calls = [line for line in lines if line["contender"] == "featgraph"]
    assert 2 * len(calls) == len(lines)
    assert all(line["checks"]["ok"] for line in calls)


def wrong(program: str, answer: Any) -> None:
    """Change an answer a little."""
    if program == "bfs":
        answer.levels[np.argmax(answer.levels)] += 1
    elif program == "sssp":
        finite = np.flatnonzero(np.isfinite(answer.distances))
        answer.distances[finite[-1]] += 0.25
    elif program == "connected_components":
        answer.labels[:] = 0
    elif program == "pagerank":
        answer.ranks[0] += 0.1
    elif program == "triangle_count":
        object.__setattr__(answer, "total", answer.total + 1)
    else:
        answer.dependencies[0] += 0.5


@pytest.mark.drawn(2)
@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize("program", gpu.DEFAULTS["programs"])
def test_a_wrong_answer_is_found(program: str) -> None:
    problem = gpu.Problem(make_graph("kron-6"), "cpu")
    call, check = problem.calls()[program]
    answer = call()
    assert check(answer)["ok"]
    wrong(program, answer)
    assert not check(answer)["ok"]


def test_triangles_are_counted_as_by_networkx() -> None:
    import networkx as nx

    named = make_graph("kron-6")
    rows = gpu.Problem(named, "cpu").rows
    graph = nx.Graph(
        zip(named.graph.sources.tolist(), named.graph.targets.tolist(), strict=True)
    )
    expected = sum(nx.triangles(graph).values()) // 3
    assert checks.triangles_checks(rows, expected) == {
        "ok": True,
        "triangles": expected,
    }

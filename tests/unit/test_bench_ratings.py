"""The benches of SGD work, on ratings too few to measure anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from bench import run
from bench.sgd import accuracy, convergence, cpu
from bench.sgd.shapes import SHAPES, Shape, ratings_of
from featgraph.fold.schedules.exclusive import is_exclusive
from featgraph.fold.schedules.table import SCHEDULES

#: Schedules of functions that write at both ends.
EXCLUSIVE = {n for n, s in SCHEDULES.items() if is_exclusive(s)} - {"rows"}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", Shape(60, 25, 400, 40, 15))


def lines_of(path: Path, *argv: str, code: int = 0) -> list[dict[str, Any]]:
    """Run a bench twice; the second run adds no line that is measured again."""
    output = path / "results.jsonl"
    found: list[list[dict[str, Any]]] = []
    for _ in range(2):
        assert run.main([*argv, "--output", str(output)]) == code
        found.append([json.loads(line) for line in output.read_text().splitlines()])
        code = 0 if argv[0] == "sgd-convergence" else code
    first, second = found
    added = {line["contender"] for line in second[len(first) :]}
    assert added <= {"held out"}
    return first


def test_drawn_ratings_can_be_learned() -> None:
    drawn = ratings_of("", "small")
    assert drawn.shape == (60, 25)
    assert drawn.nnz == 400
    assert set(np.unique(drawn.data)) <= {1, 2, 3, 4, 5}
    assert drawn.data.std() > 0.5


def test_convergence_is_checked_beside_serial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few epochs, so that every order is near that of the others."""
    monkeypatch.setattr(convergence, "EPOCHS", 3)
    monkeypatch.setattr(convergence, "SEEDS", 2)
    argv = ("sgd-convergence", "--graph", "small", "--k", "2", "--data", "")
    lines = lines_of(tmp_path, *argv)
    assert {*convergence.BOUNDS} == EXCLUSIVE
    assert [line["schedule"] for line in lines] == 2 * [*convergence.BOUNDS]
    for line in lines:
        assert len(line["curve"]) == 3
        if line["schedule"] in {"levels", "ticketed"}:
            assert line["checks"]["ok"]
            assert line["far"] == 0
    curves = [line["curve"] for line in lines if line["schedule"] == "serial"]
    assert curves[0] != curves[1]


def test_an_order_that_is_far_off_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convergence, "BOUNDS", {"serial": 0.0, "blocks": 0.0})
    monkeypatch.setattr(convergence, "EPOCHS", 2)
    monkeypatch.setattr(convergence, "SEEDS", 1)
    argv = ("sgd-convergence", "--graph", "small", "--k", "2", "--data", "")
    lines = lines_of(tmp_path, *argv, code=1)
    assert not lines[1]["checks"]["ok"]


def test_accuracy_is_tuned_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "PARAMETERS", ((0.02, 0.0, 0.1), (0.0, 0.0, 0.1)))
    monkeypatch.setattr(accuracy, "EPOCHS", 4)
    page = tmp_path / "page.md"
    argv = ("sgd-accuracy", "--graph", "small", "--k", "2", "--data", "")
    lines = lines_of(tmp_path, *argv, "--page", str(page))
    assert [line["contender"] for line in lines] == ["tuned", "tuned", "held out"]
    best = min(lines[:2], key=lambda line: line["rmse"])
    assert (lines[2]["rate"], lines[2]["epochs"]) == (best["rate"], best["epochs"])
    text = page.read_text()
    assert text.count(f"{lines[2]['rmse']:.4f} |") == 1
    assert text.count("| small | 2 |") == 3


def test_updates_are_timed_beside_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "FEW", 1)
    monkeypatch.setattr(cpu, "MANY", 5)
    argv = ("sgd-cpu", "--graph", "small", "--k", "16", "--data", "", "--repeat", "1")
    only = ("blocks", "serial", "levels", "racy")
    lines = lines_of(tmp_path, *argv, "--only", *only)
    found = [(line["contender"], line["threads"]) for line in lines]
    assert sorted(found) == sorted((name, n) for name in only for n in (1, 2))
    assert all(np.isfinite(line["m_updates_per_cpu_s"]) for line in lines)

"""The study of schedules of exclusive functions: cells, predictions and tables."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from bench import run as runner
from bench.graphs import NamedGraph
from bench.record import ROOT, Recorder
from bench.sgd import counters, shapes, sweeps
from bench.sgd.report import tables


def run(target: str, output: Path, **given: Any) -> list[dict[str, Any]]:
    arguments = SimpleNamespace(**{**sweeps.DEFAULTS, "target": target, **given})
    recorder = Recorder("sgd-sweeps", ["sgd-sweeps"], str(output))
    sweeps.run(arguments, recorder)
    return recorder.lines


def test_a_run_goes_on_from_its_cells(tmp_path: Path) -> None:
    output = tmp_path / "lines"
    names = ["edge_locked", "edge_locked, as given", "levels", "racy"]
    first = run("cpu", output, schedules=names[:3], repeat=2)
    assert [line["schedule"] for line in first] == names[:3]
    assert [line["prepare_ms"] > 0 for line in first] == [True] * 3
    assert [line["groups"] for line in first] == [1, 1, first[2]["groups"]]
    assert first[2]["groups"] >= first[2]["shape"]["degree"]
    assert all(line["checks"]["ok"] for line in first)
    [more] = run("cpu", output, schedules=names, repeat=2)
    assert more["schedule"] == "racy"
    text = tables(map(json.loads, output.read_text().splitlines()))
    assert "| E | d | edge_locked | edge_locked, as given | levels | racy |" in text
    assert "over the larger" not in text  # a GPU's


def test_no_cell_begins_without_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run("cpu", tmp_path / "lines", schedules=["levels"], budget=-1.0)
    assert "no time left for small | levels" in capsys.readouterr().out


def test_cells_that_take_too_long_have_the_reason(tmp_path: Path) -> None:
    names = ["edge_locked", "diagonal"]
    found = run("cuda", tmp_path / "lines", schedules=names, cell=0.0)
    assert [line["schedule"] for line in found] == names
    for line in found:
        assert line["trials_ms"] == []
        expected = f"predicted {line['predicted_ms'] / 1e3:.3g} s a sweep"
        assert line["reason"] == expected
    # 2,499 diagonals have entries or not; each has a barrier and an update.
    assert 1.0 < found[1]["predicted_ms"] < 2499 * 2.2e-3


RESULTS = sorted((ROOT / "bench/results").glob("sgd-*.jsonl"))


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.stem)
def test_commands_of_kept_lines_can_be_run(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each option that a line was made with, and names of cells that are known."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for command in {line["command"] for line in lines}:
        name, *argv = shlex.split(command.removeprefix("python -m bench.run "))
        assert name == results.stem
        module = importlib.import_module(runner.BENCHES[name])
        monkeypatch.setattr(module, "run", lambda arguments, recorder: None)
        assert runner.main([name, *argv]) == 0


def line_of(shape: str, schedule: str, ms: float, **more: Any) -> dict[str, Any]:
    kind = "road" if shape == "way" else "scale-free"
    described = {"name": shape, "kind": kind, "edges": 10**6, "degree": 7}
    given = {"chain_ms": 0.1, "prepare_ms": 5.0, "predicted_ms": 3.0} | more
    return {
        "bench": "sgd-sweeps", "device": "a GPU", "cpu": "", "target": "cuda", "k": 16,
        "shape": described, "schedule": schedule, "trials_ms": [ms, 2 * ms], **given,
    }  # fmt: skip


def test_tables() -> None:
    lines = [
        line_of("way", "edge_locked", 99.0),  # of an earlier run
        line_of("way", "edge_locked", 4.0),
        line_of("way", "levels", 2.0, prepare_ms=15.0),
        line_of("way", "racy", 0.01),
        line_of("star", "edge_locked", 4.0),
        line_of("star", "levels", 1.0),
        line_of("hub", "edge_locked", 1.0),
        line_of("hub", "levels", 4.0),
        line_of("hub", "diagonal", 1.0, reason="too long") | {"trials_ms": []},
    ]
    rows = [line[2:-2].split(" | ") for line in tables(lines).splitlines()]
    assert ["way", "1M", "7", "4 (1.00)", "2 (0.50)", "0.01 (0.00)", ""] in rows
    assert ["hub", "1M", "7", "1 (1.00)", "4 (4.00)", "", "not run"] in rows
    means = {row[0]: row for row in rows if row[0].startswith("geometric")}
    assert means["geometric mean, road"][3:5] == ["1", "0.5"]
    assert means["geometric mean, scale-free"][3:5] == ["1", "1"]
    detail, _ = (row for row in rows if row[:2] == ["way", "levels"])
    assert detail[2:6] == ["2", "", "15", "5"]  # (15 - 5) / (4 - 2) sweeps
    assert detail[-2:] == ["3", "1.5"]
    # 268 MB at 4,257 GB/s, and a chain of 0.1 ms.
    assert ["way", "levels", "2", "0.06296", "0.1", "20"] in rows


def test_named_graphs_are_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    square = fg.Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 2], vertex_count=3)
    named = NamedGraph("square", square, "", 0.0)
    monkeypatch.setattr(shapes, "make_graph", lambda name: named)
    shape, graph = shapes.make_matrix("square")
    assert shape == {
        "name": "square", "kind": "road", "rows": 3, "columns": 3, "edges": 4,
        "degree": 2, "diagonals": 3,
    }  # fmt: skip
    assert graph.sides == (3, 3)
    pairs = zip(graph.sources, graph.targets - 3, strict=True)
    assert sorted(pairs) == [(0, 1), (1, 2), (2, 0), (2, 2)]
    assert np.array_equal(graph.in_degree, [0, 0, 0, 1, 1, 2])


def test_counters_are_over_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    sectors, barrier = "lts__t_sectors_op_atom.sum", "stalled_barrier"
    rows = [
        ["ID", "Kernel Name", sectors, counters.METRICS[barrier]],
        ["", "", "sector", ""],
        ["0", "bench_marker", "1", "0"], ["1", "fill", "7", "0"],
        ["2", "exclusive_phase_0", "1,200", "0.5"],
        ["3", "bench_marker", "1", "0"], ["4", "exclusive_phase_0", "40", "n/a"],
    ]  # fmt: skip
    report = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    monkeypatch.setattr(counters, "profile", lambda line, limit: f"==PROF==\n{report}")
    monkeypatch.setattr(counters, "SCHEDULES", ["hybrid", "levels"])
    assert counters.counted([], 1.0, 100) == {
        "hybrid": {"atomic_sectors": 12.0, barrier: 0.5},
        "levels": {"atomic_sectors": 0.4},
    }
    monkeypatch.setattr(counters, "SCHEDULES", ["hybrid", "levels", "racy"])
    with pytest.raises(RuntimeError, match="ncu saw 2 of 3"):
        counters.counted([], 1.0, 100)

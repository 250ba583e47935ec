"""The bench runner works, on graphs too small to measure anything."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from bench import report, run
from bench.compile.parts import Parts, _name
from bench.graphs import make_graph
from bench.programs import Problem, step
from bench.record import Recorder, repeatable_command
from bench.schedules import mapping_gpu


def run_bench(tmp_path: Path, *argv: str) -> list[dict[str, Any]]:
    output = tmp_path / "kept" / "results.jsonl"
    assert run.main([*argv, "--output", str(output)]) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    for line in lines:
        assert line["command"] == " ".join(["python -m bench.run", *argv])
        assert {"commit", "device", "cpu", "versions"} <= set(line)
        assert line["median_ms"] == pytest.approx(np.median(line["trials_ms"]))
    return lines


def test_superstep_is_checked_and_recorded(tmp_path: Path) -> None:
    argv = ("superstep-cpu", "--graph", "rmat-7-4", "--k", "4", "--repeat", "3")
    lines = run_bench(tmp_path, *argv, "--threads", "1")
    assert {line["contender"] for line in lines} == {
        "featgraph",
        "by hand (Numba)",
        "SciPy product alone",
        "SciPy + NumPy",
    }
    digest = make_graph("rmat-7-4").graph.digest
    for line in lines:
        assert len(line["trials_ms"]) == 3
        assert line["checks"]["ok"]
        assert line["graph"]["digest"] == digest


def test_forecasts_are_counted_and_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    argv = ["forecasts", "--graph", "rmat-6-4", "--ranks", "2,4", "--k", "1"]
    output = tmp_path / "lines.jsonl"
    assert run.main([*argv, "--markdown", str(page), "--output", str(output)]) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["contender"] for line in lines] == ["2 ranks", "4 ranks"]
    assert all(line["ms_rows"] <= line["all_rows"] for line in lines)
    assert "## rmat-6-4" in page.read_text()


def test_parts_of_a_superstep_are_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--k", "4", "--repeat", "2")
    run_bench(tmp_path, "overhead", "--target", "cpu", *size)
    assert "fg.iterate" in capsys.readouterr().out


def test_change_driven_runs_end_alike(tmp_path: Path) -> None:
    size = ("--graph", "rmat-6-4", "--k", "4", "--repeat", "1")
    lines = run_bench(tmp_path, "change-driven", *size)
    whole = {line["contender"] for line in lines if line["active"] == "whole run"}
    assert whole == {"every vertex", "due vertices", "patched", "auto"}
    assert all(line["checks"]["ok"] for line in lines)


def test_runs_in_any_order_end_alike(tmp_path: Path) -> None:
    size = ("--graph", "rmat-6-4", "--repeat", "1")
    lines = run_bench(tmp_path, "any-order", *size)
    ways = {line["contender"].partition(",")[0] for line in lines}
    assert ways == {"synchronous", "asynchronous", "near_far", "both"}
    assert all(line["checks"]["ok"] for line in lines)
    assert all(line["edges_evaluated"] > 0 for line in lines)


def test_mappings_are_checked_on_a_sample_and_fit() -> None:
    problem = Problem(make_graph("rmat-8-8").graph, 8)
    sample = mapping_gpu.Sample(problem)
    step(problem.state, target="cpu")
    labels = np.array(problem.state["label"])
    assert sample.check(labels)["ok"]
    assert sample.check_aggregate(problem.aggregate)["ok"]
    labels[sample.vertices[0], 3] += 0.5
    assert not sample.check(labels)["ok"]
    for k in (4, 12, 128):
        for mean in (4, 40):
            listed = mapping_gpu.candidates(k, mean)
            assert listed.pop("chosen") == {}
            names = [mapping_gpu.name_of(fields) for fields in listed.values()]
            assert names == list(listed)
            for fields in listed.values():
                step.fold(k=k, target="cuda", _mapping=fields)


def test_wrong_answer_is_found() -> None:
    problem = Problem(make_graph("grid4").graph, 3)
    moved, change = problem.expected
    committed = change > 1e-4
    assert problem.check(moved, committed)["ok"]
    assert not problem.check(moved * 1.001, committed)["ok"]
    assert not problem.check(moved, ~committed)["ok"]
    assert not problem.check(np.full_like(moved, np.nan), committed)["ok"]


KEPT = sorted((Path(report.__file__).parent / "results").rglob("*.jsonl"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_results_have_tables(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    report.print_report(lines)
    shown = capsys.readouterr().out
    benches = {line["bench"] for line in lines}
    assert lines
    assert all(f"{bench}: " in shown for bench in benches)


def test_the_index_lists_every_experiment() -> None:
    text = Path(report.__file__).with_name("README.md").read_text()
    text = text.partition("Commands of the figures")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall("`([a-z-]+)`", row)]
    assert sorted(listed) == sorted(run.BENCHES)


@pytest.mark.parametrize("name", run.BENCHES)
def test_options_are_the_entries_of_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(run.BENCHES[name])
    found: list[argparse.Namespace] = []
    monkeypatch.setattr(module, "run", lambda given, recorder: found.append(given))
    assert run.main([name]) == 0
    for option, value in module.DEFAULTS.items():
        assert getattr(found[0], option) == value
        if isinstance(value, float | str) and option != "target":
            assert run.main([name, f"--{option.replace('_', '-')}", "7"]) == 0
            assert getattr(found[-1], option) == type(value)("7")


def test_failures_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder("superstep-cpu", ["superstep-cpu"], None)
    recorder.attempt("broken", lambda: 1 / 0, k=4)
    recorder.add("wrong", [1.0, 2.0], k=4, checks={"ok": False, "error": 1.0})
    assert recorder.has_failures
    report.print_report(recorder.lines)
    printed = capsys.readouterr().out
    assert "ZeroDivisionError" in printed
    assert "RAISED" in printed
    assert "WRONG" in printed


def test_cells_are_measured_until_they_have_a_line(tmp_path: Path) -> None:
    recorder = Recorder("compile", ["compile"], str(tmp_path / "lines"))
    assert recorder.measure("a", lambda k: 1 / 0, 4, k=4) == {}
    found = recorder.measure("a", lambda k: ([1.0, 3.0], {"of": 2 * k}), 4, k=4)
    assert (found["contender"], found["k"], found["of"]) == ("a", 4, 8)
    assert found["median_ms"] == 2.0
    assert recorder.measure("a", lambda k: 1 / 0, 4, k=4)["of"] == 8
    assert len(recorder.kept()) == 2


def test_command_is_kept_without_its_output() -> None:
    argv = ["compile", "--output", "there", "--k", "8", "--output=here", "--out", "up"]
    assert repeatable_command(argv) == "python -m bench.run compile --k 8"
    named = repeatable_command(["sgd-sweeps", "--schedules", "edge_locked, as given"])
    assert shlex.split(named)[-1] == "edge_locked, as given"


def test_kron_is_simple_and_the_same_for_any_thread_count() -> None:
    graph = make_graph("kron-8").graph
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert make_graph("kron-8").graph.digest == graph.digest
    finally:
        numba.set_num_threads(threads)
    pairs = set(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    assert len(pairs) == graph.given_edge_count
    assert all(u < v for u, v in pairs)
    mixed = make_graph("kron-8-mixed").graph
    assert mixed.digest != graph.digest
    assert sorted(mixed.in_degree) == sorted(graph.in_degree)


def test_unknown_graph() -> None:
    with pytest.raises(SystemExit, match="no graph is named"):
        make_graph("kron")


def test_parts_of_compiling_count_a_part_within_itself_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0, 8.0])
    monkeypatch.setattr("bench.compile.parts.time.perf_counter", lambda: next(times))

    class Compiler:
        def compile(self, depth: int) -> int:
            return depth and self.compile(depth - 1)

    spent: dict[str, float] = {"front_end": 0.5}
    Parts._time(Compiler, "compile", lambda *_: (spent, "front_end"))
    assert Compiler().compile(3) == 0
    assert spent == {"front_end": 7.5}


def test_kernels_are_named_without_digests() -> None:
    def sweep() -> None: ...

    sweep.__module__ = f"featgraph_kernel_settle_{'0a' * 16}"
    assert _name(sweep) == "settle.sweep"

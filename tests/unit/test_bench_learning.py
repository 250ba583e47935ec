"""The benches of the learning algorithms work, on graphs of no size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import run
from bench.baselines import handwritten
from bench.graphs import make_graph
from bench.learning import atomics, bounds_gpu, variants_gpu
from bench.learning.by_hand import Sweep
from bench.learning.problems import LearningProblem, make_problem
from featgraph.fold.plan.traits import GraphTraits

SMALL = ("--target", "cpu", "--repeat", "1")


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_variants_agree_and_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "variants.jsonl"
    argv = ["variants-gpu", "--graph", "kron-6", "--programs", "MMR", *SMALL]
    argv += ["--output", str(file), "--contenders", "NFA/NCD"]
    assert run.main(argv) == 0
    assert run.main([*argv, "FA/NCD"]) == 0
    lines = lines_of(file)
    # The first cell was not measured again.
    assert [line["contender"] for line in lines] == ["NFA/NCD", "FA/NCD"]
    assert all(line["converged"] and line["checks"]["ok"] for line in lines)
    assert lines[0]["active_counts"] == lines[1]["active_counts"]
    assert lines[0]["active_counts"][-1] == 0

    # A process that died in a cell is not started in it once more.
    with open(file.with_suffix(".started"), "a", encoding="utf-8") as started:
        started.write("kron-6 | MMR | 4 | auto\n")
    assert run.main([*argv, "auto"]) == 1
    assert "ended in it" in lines_of(file)[-1]["error"]
    capsys.readouterr()


def test_a_wrong_variant_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, found = iter([0.0, 1.0]), iter([0, 5])
    comparable = LearningProblem.comparable
    monkeypatch.setattr(
        LearningProblem,
        "comparable",
        lambda self, values: comparable(self, values) + next(answers),
    )
    monkeypatch.setattr(variants_gpu.Sweep, "movers", lambda *given: next(found))
    argv = ["variants-gpu", "--graph", "kron-5", "--programs", "MMR", *SMALL]
    argv += ["--output", str(tmp_path / "v.jsonl"), "--contenders", "NFA/NCD", "FA/NCD"]
    assert run.main(argv) == 1
    assert [line["checks"]["ok"] for line in lines_of(tmp_path / "v.jsonl")] == [
        True,
        False,
    ]


@pytest.mark.parametrize("name", ["LP", "ALS", "BP", "MMR", "MML"])
def test_a_superstep_by_hand_finds_what_has_not_settled(name: str) -> None:
    if not handwritten.has_host_compiler():
        pytest.skip("needs a C++ compiler")
    problem = make_problem(name, make_graph("kron-6").graph, 4)
    sweep = Sweep(problem, handwritten.Host())
    assert sweep.iterate(500)[1]
    values = sweep.values()
    assert sweep.movers(values, 2 * problem.epsilon) == 0
    moved = values[problem.result]
    moved[np.flatnonzero(problem.graph.in_degree)[-1]] += 1
    assert sweep.movers(values, 2 * problem.epsilon) > 0


def test_bounds_are_those_given(tmp_path: Path) -> None:
    file = tmp_path / "bounds.jsonl"
    argv = ["bounds-gpu", "--graph", "kron-6", "--programs", "MML", *SMALL]
    assert run.main([*argv, "--blocks", "8", "--output", str(file)]) == 0
    lines = [line for line in lines_of(file) if "resident" in line]
    assert [line["contender"] for line in lines] == [
        f"{mapping} {bound}" for mapping in ("NFA", "FA") for bound in ("chosen", 8)
    ]
    forced = [line["options"].get("_mapping") for line in lines]
    assert forced == [None, {"resident": 8}] * 2
    assert all(line["checks"]["ok"] for line in lines)


def test_blocks_of_hubs_have_bounds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = GraphTraits(has_hubs=True)
    monkeypatch.setattr(bounds_gpu, "graph_traits", lambda _: traits)
    file = tmp_path / "bounds.jsonl"
    argv = ["bounds-gpu", "--graph", "kron-6", "--programs", "MML", *SMALL]
    argv += ["--blocks", "--hub-blocks", "0", "2", "--output", str(file)]
    assert run.main(argv) == 0
    lines = [line for line in lines_of(file) if "resident" in line]
    assert [(line["contender"], line["options"].get("_mapping")) for line in lines] == [
        ("NFA chosen", None),
        ("FA chosen", None),
        ("FA hubs 0", {"hub_resident": 0}),
        ("FA hubs 2", {"hub_resident": 2}),
    ]


def test_no_cell_starts_out_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "none.jsonl"
    argv = ["folding-gpu", "--graph", "kron-5", *SMALL, "--budget", "0"]
    assert run.main([*argv, "--output", str(output)]) == 0
    assert "no time left for kron-5 | LP | 4 | folded" in capsys.readouterr().out
    assert not output.exists()


def test_transactions_are_counted_between_markers() -> None:
    metrics = ("red.sum", "sectors.sum")
    head = (
        '"ID","Process Name","Kernel Name","red.sum","sectors.sum"\n"","","","inst",""'
    )

    def row(number: int, kernel: str, *values: str) -> str:
        return ",".join(f'"{x}"' for x in (number, "python", kernel, *values))

    kernels = [
        row(0, "fill", "7", "7"),
        row(1, "bench_marker(Array)", "0", "0"),
        row(2, "fill", "0", "0"),
        row(3, "push", "1,200", "30"),
        row(4, "bench_marker(Array)", "0", "0"),
        row(5, "push", "4,800.0", "40"),
        row(6, "hubs", "5", "1"),
    ]
    report = "\n".join(["==PROF== Connected", head, *kernels, "==PROF== Disconnected"])
    fa, nfa = atomics.parse(report, [8], metrics)
    assert (fa["k"], fa["mapping"], fa["kernels"]) == (8, "FA", 2)
    assert fa["counts"] == {"red.sum": 1200, "sectors.sum": 30}
    assert nfa["counts"] == {"red.sum": 4805, "sectors.sum": 41}
    with pytest.raises(RuntimeError, match="2 of 4 markers"):
        atomics.parse(report, [8, 16], metrics)
    line = " ".join(atomics.command("kron-9", [4, 8], metrics))
    assert "--clock-control none" in line
    assert "--metrics red.sum,sectors.sum" in line


@pytest.mark.slow
def test_algorithms_agree_with_their_peers(tmp_path: Path) -> None:
    file = tmp_path / "cpu.jsonl"
    argv = ["algorithms-cpu", "--graph", "kron-6", "--points", "300", "--repeat", "1"]
    assert run.main([*argv, "--output", str(file)]) == 0
    lines = lines_of(file)
    assert {line["program"] for line in lines} == {"LP", "PageRank", "BP", "MMR", "MML"}
    peers = {line["contender"] for line in lines}
    assert peers == {
        "featgraph",
        "scikit-learn",
        "networkx",
        "SciPy products",
        "SciPy + NumPy",
    }


def test_planar_graphs_and_meshes_are_as_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATGRAPH_BENCH_CACHE", str(tmp_path))
    for name, low, high, largest in (
        ("road40", 2.05, 2.2, 4),
        ("delaunay10", 5.8, 6.0, 30),
        ("bricks40", 2.9, 3.0, 3),
        ("mesh-9-26", 20.0, 22.0, 26),
    ):
        graph = make_graph(name).graph
        assert (tmp_path / f"{name}.npz").exists()
        assert make_graph(name).graph.digest == graph.digest  # as kept
        pairs = set(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
        assert len(pairs) == graph.given_edge_count
        assert all(u < v for u, v in pairs)
        degree = graph.in_degree
        assert low <= degree.mean() <= high
        assert degree.max() <= largest
    # Streets have chains of vertices: most have two neighbors.
    assert np.mean(make_graph("road40").graph.in_degree == 2) > 0.6
    monkeypatch.delenv("FEATGRAPH_BENCH_CACHE")
    monkeypatch.setenv("FEATGRAPH_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="set FEATGRAPH_DATA"):
        make_graph("web-NotreDame")

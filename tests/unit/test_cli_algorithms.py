"""``featgraph run`` of any algorithm, and ``featgraph list``."""

from __future__ import annotations

import csv
import inspect
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms
from featgraph.cli.flags import ALGORITHMS, UNDIRECTED
from featgraph.cuda import dialect
from tests.unit.test_cli import run

#: Ids with gaps, as files have them: three in a circle and one behind.
EDGES = "10 20 1\n20 30 2\n30 10 1\n30 40 1\n"


@pytest.fixture
def edges(tmp_path: Path) -> str:
    path = tmp_path / "edges.txt"
    path.write_text(EDGES)
    return str(path)


def rows_of(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def test_every_algorithm_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    functions = [
        name
        for name in algorithms.__all__
        if inspect.isfunction(getattr(algorithms, name))
    ]
    assert [name.replace("-", "_") for name in ALGORITHMS] == functions
    status, out, err = run(capsys, "list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_lists_its_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "run", name, "--help")
    assert (status, err) == (0, "")
    assert f"usage: featgraph run {name}" in out
    assert "--output" in out
    assert "--format" in out


def test_vertices_have_the_ids_of_the_file(
    edges: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("run", "bfs", "--graph", edges, "--sources", "20", "--target", "cpu")
    status, out, err = run(capsys, *command)
    assert status == 0
    assert "supersteps on cpu" in err
    assert rows_of(out) == [
        {"vertex": "10", "levels": "2", "parents": "30"},
        {"vertex": "20", "levels": "0", "parents": "20"},
        {"vertex": "30", "levels": "1", "parents": "20"},
        {"vertex": "40", "levels": "2", "parents": "30"},
    ]


def test_formats(
    edges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("run", "triangle-count", "--graph", edges, "--target", "cpu", "--quiet")
    expected = [1, 1, 1, 0]
    status, out, err = run(capsys, *command, "--format", "tsv")
    assert (status, err) == (0, "")
    assert [int(row["triangles"]) for row in rows_of(out, "\t")] == expected
    for suffix in ("csv", "tsv", "json", "npy"):
        output = tmp_path / f"out.{suffix}"
        assert run(capsys, *command, "--output", str(output)) == (0, "", "")
        if suffix == "json":
            found = json.loads(output.read_text())
            assert found["total"] == 1
            assert found["vertex"] == [10, 20, 30, 40]
            assert found["triangles"] == expected
        elif suffix == "npy":
            assert np.load(output).tolist() == expected
        else:
            table = rows_of(output.read_text(), "\t" if suffix == "tsv" else ",")
            assert [int(row["triangles"]) for row in table] == expected
    assert {path.name for path in tmp_path.iterdir()} == {
        "edges.txt", "out.csv", "out.tsv", "out.json", "out.npy",
    }  # fmt: skip
    status, _, err = run(capsys, *command, "--format", "npy")
    assert status == 2
    assert "needs --output" in err


def test_json_has_no_nan(edges: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "sssp", "--graph", edges, "--sources", "40", "--target", "cpu")
    status, out, _ = run(capsys, *command, "--format", "json", "--quiet")
    assert status == 0
    assert json.loads(out)["distances"] == [None, None, None, 0.0]


def test_values_of_vertices_and_edges(
    edges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voltages = tmp_path / "voltages.txt"
    voltages.write_text("10 3\n40 0\n")
    status, out, _ = run(
        capsys, "run", "circuit-simulation", "--graph", edges, "--target", "cpu",
        "--voltages", str(voltages), "--quiet",
    )  # fmt: skip
    assert status == 0
    found = [float(row["voltages"]) for row in rows_of(out)]
    # A triangle with resistors of one (its weights are not read), and one to 40.
    assert found == pytest.approx([3, 2.4, 1.8, 0], abs=1e-3)
    status, out, _ = run(
        capsys, "run", "k-truss", "--graph", edges, "--target", "cpu", "--quiet"
    )
    assert [list(row.values()) for row in rows_of(out)] == [
        ["10", "20", "3"], ["20", "30", "3"], ["30", "10", "3"], ["30", "40", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["als", "gradient-factorization", "sgd-factorization"])
def test_ratings(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratings = tmp_path / "ratings.csv"
    ratings.write_text("0,0,5\n0,1,3\n1,1,4\n")
    status, out, _ = run(
        capsys, "run", name, "--ratings", str(ratings), "--factors", "2",
        "--target", "cpu", "--quiet",
    )  # fmt: skip
    assert status == 0
    sides = [(row["side"], row["id"]) for row in rows_of(out)]
    assert sides == [("user", "0"), ("user", "1"), ("item", "0"), ("item", "1")]
    has_biases = name == "sgd-factorization"
    assert ("bias" in rows_of(out)[0]) is has_biases


def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.uai"
    model.write_text("MARKOV\n1\n2\n1\n1 0\n2\n1 3\n")
    status, out, _ = run(
        capsys, "run", "factor-propagation", "--model", str(model), "--target", "cpu",
        "--quiet",
    )  # fmt: skip
    assert status == 0
    found = [float(row["probability"]) for row in rows_of(out)]
    assert found == pytest.approx([0.25, 0.75], abs=1e-6)


def test_errors_name_wrong_arguments(
    edges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("10 warm\n")
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY")
    heat = ("run", "heat-simulation", "--graph", edges, "--temperatures")
    bfs = ("run", "bfs", "--graph", edges, "--sources")
    for command, part in (
        (("run", "page-rank"), "did you mean 'pagerank'?"),
        (("run", "nonsense!"), "featgraph list"),
        ((*bfs, "99"), "no such vertex"),
        ((*bfs, "a"), "not ids of vertices"),
        ((*heat, "nowhere.txt"), "no such file"),
        ((*heat, str(words)), "a value is no number"),
        ((*heat, str(broken)), "not a .npy file"),
        ((*bfs, "10", "--output", "/nowhere/out.csv"), "no such folder"),
    ):
        status, out, err = run(capsys, *command)
        assert (status, out) == (2, "")
        assert part in err
        assert "Traceback" not in err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_for_terminals(
    edges: str,
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def pagerank(graph: fg.Graph, **options: Any) -> Any:
        seen.append(options)
        raise fg.PlanError("seen")

    monkeypatch.setattr(algorithms, "pagerank", pagerank)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert run(capsys, "run", "pagerank", "--graph", edges)[0] == 2
    assert run(capsys, "run", "pagerank", "--graph", edges, "--quiet")[0] == 2
    assert [options.get("progress", False) for options in seen] == [is_terminal, False]


def test_lines_are_taken_both_ways_where_they_have_to_be(
    edges: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("k-truss", "pagerank"):
        function = name.replace("-", "_")
        seen: list[fg.Graph] = []

        def watch(graph: fg.Graph, _seen: list[fg.Graph] = seen, **options: Any) -> Any:
            _seen.append(graph)
            raise fg.PlanError("seen")

        monkeypatch.setattr(algorithms, function, watch)
        run(capsys, "run", name, "--graph", edges)
        assert seen[0].directed == (name not in UNDIRECTED)


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "featgraph", "list"]
    assert "pagerank" in subprocess.check_output(command, text=True)


def test_ptx_without_parts_of_the_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dialect.is_installed():
        pytest.skip("needs numba-cuda: pip install 'featgraph[cu13]'")

    class DynamicLibNotFoundError(RuntimeError):
        """As NVIDIA's loader raises it."""

    def compile_(*arguments: Any, **options: Any) -> Any:
        raise DynamicLibNotFoundError('Failure finding "libnvrtc.so.13"')

    monkeypatch.setattr(dialect._dialect(), "compile", compile_)
    status, out, err = run(capsys, "show", "pagerank", "--at", "ptx")
    assert (status, out) == (2, "")
    assert "libnvrtc.so.13" in err
    assert 'pip install "featgraph[cu13]"' in err


@pytest.mark.parametrize(
    ("name", "vertices"),
    [("multi-manifold-ranking", "--query"), ("multimodal-learning", "--given")],
)
def test_edges_with_several_weights(
    name: str,
    vertices: str,
    edges: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, weights = str(tmp_path / "rows.npy"), str(tmp_path / "weights.npy")
    np.save(rows, np.eye(4, 2, dtype=np.float32))
    np.save(weights, np.ones((4, 2), np.float32))
    given = ["run", name, "--graph", edges, "--target", "cpu", "--quiet", vertices]
    status, out, err = run(capsys, *given, rows, "--edge-weights", weights)
    assert (status, err) == (0, "")
    assert [row["vertex"] for row in rows_of(out)] == ["10", "20", "30", "40"]
    status, out, err = run(capsys, *given, rows, "--edge-weights", edges)
    assert (status, out) == (2, "")
    assert "no .npy" in err

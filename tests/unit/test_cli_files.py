"""Files on the command line: words, weights, flags in errors, outputs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.cli.flags import in_flags
from tests.unit.test_cli import PATH_MTX, run
from tests.unit.test_cli_algorithms import rows_of

WORDS = 'source,target,weight\n"Lee, Ann",bob,2.5\nbob,cid,1.5\ncid,eva,1\n'
COMPONENTS = ("run", "connected-components", "--target", "cpu", "--graph")


@pytest.fixture
def words(tmp_path: Path) -> str:
    path = tmp_path / "words.csv"
    path.write_text(WORDS)
    return str(path)


def test_words_are_vertices_of_commands_and_results(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("run", "sssp", "--target", "cpu", "--graph")
    status, out, err = run(capsys, *command, words, "--sources", '"Lee, Ann"')
    assert status == 0, err
    assert "weights: column weight; --no-weights" in err
    expected = [
        {"vertex": "Lee, Ann", "distances": "0.0", "predecessors": "Lee, Ann"},
        {"vertex": "bob", "distances": "2.5", "predecessors": "Lee, Ann"},
        {"vertex": "cid", "distances": "4.0", "predecessors": "bob"},
        {"vertex": "eva", "distances": "5.0", "predecessors": "cid"},
    ]
    assert rows_of(out) == expected
    folder = str(tmp_path / "new" / "words.fgs")
    status, out, err = run(capsys, "convert", words, folder)
    assert (status, err) == (0, "")
    assert "4 vertices, 3 edges given, directed, float64 weights" in out
    status, out, _ = run(capsys, *command, folder, "--sources", '"Lee, Ann"')
    assert (status, rows_of(out)) == (0, expected)
    status, _, err = run(capsys, *command, words, "--sources", "dan")
    assert status == 2
    assert "no such vertex" in err
    assert "one of 4 names, such as Lee, Ann" in err


def test_weights_are_left_out_by_an_option(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("run", "sssp", "--target", "cpu", "--graph", words, "--sources", "bob")
    status, out, err = run(capsys, *command, "--no-weights")
    assert (status, "column weight" in err) == (0, False)
    assert [row["distances"] for row in rows_of(out)] == ["inf", "0.0", "1.0", "2.0"]


def test_labels_of_words(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("node,label\nbob,red\neva,blue\n")
    status, out, err = run(
        capsys, "run", "label-propagation", "--graph", words, "--labels", str(labels),
        "--target", "cpu", "--undirected", "--quiet",
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = {row["vertex"]: row["label"] for row in rows_of(out)}
    assert found == {"Lee, Ann": "red", "bob": "red", "cid": "red", "eva": "blue"}
    labels.write_text("0 red\ndan blue\n")
    status, _, err = run(
        capsys, "run", "label-propagation", "--graph", words, "--labels", str(labels)
    )
    assert status == 2
    assert "labels.csv:2" in err


#: Text of Python programs: an option with its value, a call, a module.
CODE = re.compile(r"[a-z_]+=|\w\(|\bfg\.|Graph\.|[a-z]_[a-z]")

#: A file, its content, arguments, and parts of the error.
FAULTS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "repeats": ("a.txt", "0 1\n0 1\n", ("--duplicates", "error"),
                ("fix:      choose --duplicates keep,",)),
    "words later": ("a.txt", "0 1\nx 1\n", (), ("pass --names",)),
    "far ids": ("a.txt", "0 1\n0 2147483000\n", ("--no-names",),
                ("--names to renumber", "--vertex-count to trust")),
    "high id": ("a.txt", "0 5\n", ("--vertex-count", "3"),
                ("a larger --vertex-count, or --names to",)),
    "names and count": ("a.txt", "7 5\n", ("--vertex-count", "9", "--names"),
                        ("--vertex-count: --vertex-count contradicts", "--names")),
    "no edges": ("a.txt", "# none\n", (), ("--vertex-count and --no-names",)),
    "too large": ("a.txt", "0 1\n" * 9, ("--max-bytes", "9"), ("pass --max-bytes",)),
    "many vertices": ("a.mtx", PATH_MTX.replace("6 6", "99999999 99999999"), (),
                      ("pass --max-bytes",)),
    "header or edge": ("a.txt", "a b\nc d\n", (), ("pass --header or --no-header",)),
    "bad separator": ("a.txt", "0 1\n", ("--separator", "|"), ("--separator",)),
    "bad column": ("a.txt", "0 1\n", ("--columns", "0,0"), ("--columns, --weights",)),
    "no such option": ("a.mtx", PATH_MTX, ("--weights", "2"),
                       ("--weights", "--max-bytes")),
    "both ways": ("a.mtx", PATH_MTX.replace("symmetric", "general"),
                  ("--undirected",), ("--undirected",)),
    "dense": ("a.mtx", "%%MatrixMarket matrix array real general\n1 1\n1\n", (),
              ("not a coordinate matrix",)),
    "decimal comma": ("a.csv", "0;1;2,5\n", ("--weights", "2"), ("2.5 for 2,5",)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("command", ["run", "convert", "forecast"])
def test_errors_have_flags_and_no_python(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, more, parts = FAULTS[name]
    path = tmp_path / file
    path.write_text(content)
    given = {
        "run": (*COMPONENTS, str(path)),
        "convert": ("convert", str(path), str(tmp_path / "a.fgs")),
        "forecast": ("forecast", str(path), "--ranks", "2", "--machine", "none"),
    }
    status, out, err = run(capsys, *given[command], *more)
    assert (status, out) == (2, "")
    text = err.replace(str(tmp_path), "")
    assert not CODE.search(text), text
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("algorithm", "content", "more", "part"),
    [
        ("clustering", "0 1\n0 1\n", (), "--duplicates first"),
        ("katz-centrality", "0 1\n1 0\n", ("--alpha", "-1"), "alpha"),
        ("pagerank", "0 1\n", ("--alpha", "2"), "alpha"),
        ("sssp", "0 1 -1\n", ("--weights", "2", "--sources", "0"), "scale"),
    ],
)
def test_errors_of_algorithms_have_flags(
    algorithm: str,
    content: str,
    more: tuple[str, ...],
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    status, _, err = run(capsys, "run", algorithm, "--graph", str(path), *more)
    assert status == 2
    assert part in err
    assert not CODE.search(err.replace(str(tmp_path), "")), err


def test_what_users_gave_is_not_changed() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--names", action=argparse.BooleanOptionalAction)
    error = fg.FileFormatError(
        "x", where="f", got="'names=True'", fix="np.array(names)"
    )
    changed = in_flags(error, parser)
    assert (changed.got, changed.fix) == ("'names=True'", None)


@pytest.mark.parametrize("output", ["folder", "missing/out.csv", "pipe"])
@pytest.mark.parametrize("command", ["run", "demo"])
def test_outputs_are_checked_before_the_run(
    output: str,
    command: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreached(*_: Any, **__: Any) -> Any:
        raise AssertionError("this is the work")

    monkeypatch.setattr("featgraph.cli.algorithms.read_given_graph", unreached)
    monkeypatch.setattr("featgraph.cli.demo.load_graph_of_digits", unreached)
    monkeypatch.setattr("featgraph.cli.demo._require_packages", lambda: None)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    given = (*COMPONENTS, words) if command == "run" else ("demo",)
    status, _, err = run(capsys, *given, "--output", str(tmp_path / output))
    assert status == 2
    assert "no such folder" in err or "not a file" in err
    if output != "folder":
        under = str(tmp_path / "pipe" / "a.fgs")
        assert "no such folder" in run(capsys, "convert", words, under)[2]
    if command == "run":
        assert "--output" in run(capsys, *given, "--format", "npy")[2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_may_not_be_written(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    status, _, err = run(capsys, *COMPONENTS, words, "--output", f"{closed}/a.csv")
    assert status == 2
    assert "may not be written" in err


def test_a_file_is_replaced(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    output.write_text("older")
    status, _, _ = run(capsys, *COMPONENTS, words, "--output", str(output), "--quiet")
    assert status == 0
    assert output.read_text().startswith("vertex,")


def test_flags_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("! 1\nbob|ann eva 1\nann eva|cid 2\n".replace("|", "\t"))
    more = ("--separator", "blank", "--columns", "0,2", "--comments", "!")
    status, out, err = run(capsys, *COMPONENTS, str(path), *more, "--no-header")
    assert status == 0, err
    assert [row["vertex"] for row in rows_of(out)] == ["bob", "eva", "ann", "cid"]

"""Saved States as files: whole or not there, whatever fails; refused if altered."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base import files
from featgraph.program import saved
from tests.unit.test_saving import make, paths, run, same


@pytest.fixture
def graph() -> fg.Graph:
    rng = np.random.default_rng(5)
    return fg.Graph.from_edges(
        *rng.integers(0, 40, (2, 90)), vertex_count=40, directed=False
    )


@pytest.fixture
def state(graph: fg.Graph) -> fg.State:
    made = make(graph, 8)
    run(paths, made, 1, active=[1, 2])
    return made


def test_a_folder_of_plain_files(
    state: fg.State, graph: fg.Graph, tmp_path: Path
) -> None:
    state.save(tmp_path / "kept")
    manifest = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("featgraph state", 1)
    assert manifest["graph"] == graph.digest
    row = next(row for row in manifest["properties"] if row["name"] == "x")
    loaded = np.load(tmp_path / "kept" / row["array"]["file"], allow_pickle=False)
    assert np.array_equal(loaded, state["x"])
    row = next(row for row in manifest["properties"] if row["name"] == "given")
    loaded = np.load(tmp_path / "kept" / row["array"]["file"], allow_pickle=False)
    assert np.array_equal(loaded, state["given"]), "edges in the order they were given"
    state.save(str(tmp_path / "kept"))
    files = {path.name for path in (tmp_path / "kept").iterdir()}
    assert len(files) == 1 + sum("array" in r for r in manifest["properties"]) + sum(
        (r["words"] is not None) + (r["left"] is not None) for r in manifest["pending"]
    )
    assert [p.name for p in tmp_path.iterdir()] == ["kept"], "nothing is left beside"


def test_odd_values_come_back(tmp_path: Path) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=3)
    odd = [np.nan, -0.0, np.inf]
    given = {"a": -np.inf, "b": float("nan"), "c": -0.0, "d": 5e-324, "n": -(2**63)}
    state = fg.State(
        graph, x=fg.vertex_property(odd), m=np.eye(3), w=fg.edge_property(1.0), **given
    )
    state.save(tmp_path / "odd")
    again = fg.State.load(tmp_path / "odd", graph)
    same(state, again)
    assert again["n"] == -(2**63)


def test_something_else_is_there(state: fg.State, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(fg.StateError, match="other files"):
            state.save(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    state.save(tmp_path / "empty")
    same(fg.State.load(tmp_path / "empty", state.graph), state)
    (tmp_path / "empty" / "notes.txt").write_text("mine")
    state.save(tmp_path / "empty")
    assert (tmp_path / "empty" / "notes.txt").exists()


@pytest.mark.skipif(os.name != "posix", reason="no locks")
def test_a_file_system_without_locks(
    state: fg.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        state.save(tmp_path / "kept")
    same(fg.State.load(tmp_path / "kept", state.graph), state)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_the_old_or_the_new_one_loads(
    over: bool,
    cut: bool,
    state: fg.State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each write, sync and rename fails, one at a time; or the process ends there."""
    path, old = tmp_path / "kept", state.copy()
    if over:
        old.save(path)
    run(paths, state, 1)
    plain = {name: getattr(files, name) for name in ("_write", "_sync", "_rename")}
    calls, wanted = 0, 0

    class Ended(BaseException):
        """Nothing cleans up behind it."""

    def failing(name: str) -> Any:
        def call(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= wanted and cut:
                if name == "_write":
                    os.write(given[0], given[1][: len(given[1]) // 2])
                raise Ended
            if calls == wanted:
                raise OSError(28, "No space left on device")
            return plain[name](*given)

        return call

    for name in plain:
        monkeypatch.setattr(files, name, failing(name))
    if cut:  # an end of the process removes nothing
        monkeypatch.setattr(Path, "unlink", lambda self, **given: None)
        monkeypatch.setattr(files.shutil, "rmtree", lambda *given, **options: None)
    while True:
        calls, wanted = 0, wanted + 1
        try:
            state.save(path)
        except (OSError, Ended):
            new = None
        else:
            new = state
        try:
            found = fg.State.load(path, state.graph)
        except fg.FileFormatError:
            assert not over, "there was an old one"
            assert new is None
        else:
            expected = new or (state if found.superstep == state.superstep else old)
            same(found, expected)
        if new is not None:
            break
        if not over and path.exists():  # renamed; what failed came behind that
            break
    assert wanted > 8


def test_a_killed_writer_leaves_one_that_loads(state: fg.State, tmp_path: Path) -> None:
    code = (
        "import sys, featgraph as fg, numpy as np\n"
        "g = fg.Graph.from_edges([0, 1], [1, 2])\n"
        "s = fg.State(g, x=fg.vertex_property(0.0, shape=(2000,)), n=0)\n"
        "print('ready', flush=True)\n"
        "for n in range(100000):\n"
        "    s['n'] = n; s['x'] = float(n); s.save(sys.argv[1])\n"
    )
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "kept")],
            stdout=subprocess.PIPE,
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            seen = set()
            while len(seen) < 3:  # while it writes, too
                try:
                    found = fg.State.load(tmp_path / "kept", graph)
                except fg.FileFormatError:
                    assert not seen
                    continue
                assert (found["x"] == found["n"]).all()
                seen.add(found["n"])
            writer.kill()
        found = fg.State.load(tmp_path / "kept", graph)
        assert (found["x"] == found["n"]).all()


# Altered files


def change(path: Path, alter: Callable[[Any], Any], sign: bool = True) -> None:
    """Alter a manifest, and make its checksum right again, as anyone can."""
    body = json.loads((path / "manifest.json").read_text())
    body.pop("sha256")
    body = alter(body) or body
    checksum = hashlib.sha256(saved._text(body)).hexdigest() if sign else "0"
    (path / "manifest.json").write_bytes(saved._text({**body, "sha256": checksum}))


def first_array(body: Any) -> Any:
    return next(row for row in body["properties"] if "array" in row)


def scalar_row(body: Any, name: str) -> Any:
    return next(row for row in body["properties"] if row["name"] == name)


ALTERED: dict[str, Callable[[Any], Any]] = {
    "another format": lambda b: b.update(format="x"),
    "no version": lambda b: b.pop("version") and None,
    "version of a string": lambda b: b.update(version="1"),
    "another key": lambda b: b.update(more=1),
    "no list": lambda b: b.update(properties={}),
    "a number for a property": lambda b: b["properties"].append(7),
    "twice": lambda b: b["properties"].append(b["properties"][0]),
    "superstep -1": lambda b: b.update(superstep=-1),
    "superstep True": lambda b: b.update(superstep=True),
    "reserved name": lambda b: first_array(b).update(name="superstep"),
    "no name": lambda b: first_array(b).update(name="a b"),
    "long name": lambda b: first_array(b).update(name="a" * 1000),
    "no kind": lambda b: first_array(b).update(kind="face"),
    "kind of a list": lambda b: first_array(b).update(kind=[]),
    "object": lambda b: first_array(b).update(dtype="object"),
    "dtype of a list": lambda b: first_array(b).update(dtype=["f4"]),
    "other dtype": lambda b: first_array(b).update(dtype="int64"),
    "many features": lambda b: first_array(b).update(item_shape=[10**15]),
    "no features": lambda b: first_array(b).update(item_shape=[0]),
    "negative": lambda b: first_array(b).update(item_shape=[-2]),
    "three axes": lambda b: first_array(b).update(item_shape=[1, 1, 2]),
    "shape of text": lambda b: first_array(b).update(item_shape="22"),
    "huge integers": lambda b: first_array(b).update(item_shape=[10**400]),
    "path": lambda b: first_array(b)["array"].update(file="../../etc/passwd"),
    "absolute": lambda b: first_array(b)["array"].update(file="/etc/passwd"),
    "the manifest": lambda b: first_array(b)["array"].update(file="manifest.json"),
    "not there": lambda b: first_array(b)["array"].update(file="0" * 16 + "-7.npy"),
    "sum": lambda b: first_array(b)["array"].update(sha256="0" * 64),
    "sum of a number": lambda b: first_array(b)["array"].update(sha256=3),
    "flags": lambda b: first_array(b).update(iterated=1),
    "per direction": lambda b: first_array(b).update(per_direction=True),
    "shared": lambda b: first_array(b).update(shared=True),
    "int of a float": lambda b: scalar_row(b, "steps").update(value=1.5),
    "int of a bool": lambda b: scalar_row(b, "steps").update(value=True),
    "wide int": lambda b: scalar_row(b, "steps").update(value=2**64),
    "float of a float": lambda b: scalar_row(b, "rate").update(value=0.5),
    "float of text": lambda b: scalar_row(b, "rate").update(value="__import__('os')"),
    "big float": lambda b: scalar_row(b, "rate").update(value="0x1p99999"),
    "pending": lambda b: b.update(pending=[1]),
    "program": lambda b: b["pending"][0].update(program=1),
    "scalars": lambda b: b["pending"][0].update(scalars=[["a"]]),
    "no digits": lambda b: b["pending"][0].update(scalars=[["a", "xyz"]]),
    "words": lambda b: b["pending"][0].update(words={"file": "x"}),
    "deep": lambda b: b.update(pending=_deep()),
}


def _deep() -> Any:
    made: Any = []
    for _ in range(200):
        made = [made]
    return made


@pytest.mark.parametrize("name", ALTERED)
def test_altered_manifests(name: str, state: fg.State, tmp_path: Path) -> None:
    state.save(tmp_path / "kept")
    change(tmp_path / "kept", ALTERED[name])
    with pytest.raises(fg.FileFormatError, match="altered"):
        fg.State.load(tmp_path / "kept", state.graph)


MANIFESTS = {
    "empty": b"",
    "text": b"hello",
    "number": b"1",
    "list": b"[]",
    "null": b"null",
    "pickle": b"cos\nsystem\n(S'touch canary'\ntR.",
    "deep": b"[" * 100_000,
    "digits": b'{"a": ' + b"9" * 10_000 + b"}",
    "bytes": bytes(range(256)),
    "surrogates": b'{"format": "\\ud800"}',
    "large": b" " * (saved.STATES.most_bytes + 1),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_other_manifests(name: str, state: fg.State, tmp_path: Path) -> None:
    state.save(tmp_path / "kept")
    (tmp_path / "kept" / "manifest.json").write_bytes(MANIFESTS[name])
    with pytest.raises(fg.FileFormatError, match="altered"):
        fg.State.load(tmp_path / "kept", state.graph)


def test_every_byte_counts(state: fg.State, tmp_path: Path) -> None:
    state.save(tmp_path / "kept")
    rng = np.random.default_rng(3)
    for path in sorted((tmp_path / "kept").iterdir()):
        whole = path.read_bytes()
        places = {0, len(whole) - 1, *rng.integers(0, len(whole), 12).tolist()}
        changed = [whole[:-1], whole + b"\0", whole[: len(whole) // 2], b""]
        changed += [
            whole[:at] + bytes([whole[at] ^ 1 << rng.integers(0, 8)]) + whole[at + 1 :]
            for at in places
        ]
        for content in changed:
            path.write_bytes(content)
            with pytest.raises((fg.FileFormatError, fg.StateError)):
                fg.State.load(tmp_path / "kept", state.graph)
        path.write_bytes(whole)
    same(fg.State.load(tmp_path / "kept", state.graph), state)


def test_other_graphs_and_newer_versions(
    state: fg.State, graph: fg.Graph, tmp_path: Path
) -> None:
    path = tmp_path / "kept"
    state.save(path)
    other = fg.Graph.from_edges(
        graph.sources[::-1].copy(), graph.targets[::-1].copy(), vertex_count=40,
        directed=False,
    )  # fmt: skip
    with pytest.raises(fg.StateError, match="another graph") as caught:
        fg.State.load(path, other)
    for part in (graph.digest, other.digest, "same edges in the same order"):
        assert part in str(caught.value)
    with pytest.raises(fg.StateError, match="belongs to a graph"):
        fg.State.load(path, "graph")  # type: ignore[arg-type]
    change(path, lambda body: body.update(version=2, anything=3))
    with pytest.raises(fg.FileFormatError, match="newer featgraph") as newer:
        fg.State.load(path, graph)
    assert "install a newer featgraph" in str(newer.value)


def test_nothing_is_there(graph: fg.Graph, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "no", tmp_path / "file"):
        with pytest.raises(fg.FileFormatError, match="not a saved State"):
            fg.State.load(path, graph)
    with pytest.raises(fg.FileFormatError, match="no NUL"):
        fg.State.load("with\0nul", graph)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_that_are_none(kind: str, state: fg.State, tmp_path: Path) -> None:
    state.save(tmp_path / "kept")
    for path in list((tmp_path / "kept").iterdir())[:2]:
        path.rename(tmp_path / path.name)
        if kind == "link":
            path.symlink_to(tmp_path / path.name)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        with pytest.raises(fg.FileFormatError, match="not a saved State"):
            fg.State.load(tmp_path / "kept", state.graph)
        if kind == "folder":
            path.rmdir()
        else:
            path.unlink()
        (tmp_path / path.name).rename(path)


def test_no_memory_for_what_is_claimed(state: fg.State, tmp_path: Path) -> None:
    """A file of a petabyte without contents has the size that is claimed."""
    path = tmp_path / "kept"
    state.save(path)
    features = 1 << 34

    def claim(body: Any) -> None:
        row = scalar_row(body, "x")
        row["item_shape"] = [features]
        shape = (state.graph.vertex_count, features)
        dtype = np.dtype(row["dtype"])
        header = saved._header(dtype, shape)
        with open(path / row["array"]["file"], "r+b") as file:
            file.write(header)
            try:
                file.truncate(len(header) + shape[0] * features * dtype.itemsize)
            except OSError:
                pytest.skip("no sparse files here")

    change(path, claim)
    with pytest.raises(fg.FileFormatError, match=r"altered|memory"):
        fg.State.load(path, state.graph)


def test_no_pickles_are_read() -> None:
    text = Path(saved.__file__).read_text()
    assert not re.search(r"import .*pickle|np\.load|allow_pickle", text)

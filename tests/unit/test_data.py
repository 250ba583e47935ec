"""Data sets fetched by name, from a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.cli import data
from featgraph.cli.data import (
    DATA_SETS,
    DataSet,
    RemoteFile,
    data_folder,
    fetch_data,
)
from tests.unit.test_cli import run

pytest.importorskip("pooch")

TEXT, OTHER = b"0 1\n1 2\n" * 100, b"source,target\n3,4\n"


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("inner/edges.txt", TEXT)
        archive.writestr("inner/other.csv", OTHER)
    return target.getvalue()


@pytest.fixture
def served() -> Iterator[dict[str, bytes]]:
    """Return files of a server by path; "requests" counts them, "address" is a URL."""
    content: dict[str, bytes] = {}
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            body = content.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    content["address"] = f"http://127.0.0.1:{server.server_port}".encode()
    content["requests"] = requests  # type: ignore[assignment]
    yield content
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def known(
    served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """Have three data sets that are there, and a folder of their own."""
    at = served["address"].decode()

    def file(name: str, path: str, body: bytes, member: str = "") -> RemoteFile:
        checksum = hashlib.sha256(body).hexdigest()
        return RemoteFile(name, at + path, len(body), checksum, member)

    sets = {
        "plain": (file("edges.txt", "/edges.txt", TEXT),),
        "packed": (file("edges.txt", "/edges.txt.gz", TEXT),),
        "archive": (
            file("edges.txt", "/all.zip", TEXT, "inner/edges.txt"),
            file("other.csv", "/all.zip", OTHER, "inner/other.csv"),
        ),
    }
    made = {name: DataSet(name, "us", "CC0", files) for name, files in sets.items()}
    monkeypatch.setattr(data, "DATA_SETS", made)
    monkeypatch.setattr("featgraph.cli.data.DATA_SETS", made)
    monkeypatch.setenv("FEATGRAPH_DATA", str(tmp_path / "data"))
    served |= {
        "/edges.txt": TEXT,
        "/edges.txt.gz": gzip.compress(TEXT, mtime=0),
        "/all.zip": zipped(),
    }  # fmt: skip
    return served


@pytest.mark.parametrize("name", ["plain", "packed", "archive"])
def test_files_are_fetched_once(
    name: str, known: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(fg.FeatGraphError, match=f"featgraph data {name}"):
        data_folder(name)
    status, out, err = run(capsys, "data", name)
    assert (status, err) == (0, "")
    assert "licence:   CC0" in out
    folder = data_folder(name)
    assert str(folder / "edges.txt") in out.splitlines()
    assert (folder / "edges.txt").read_bytes() == TEXT
    assert fg.read_graph(folder / "edges.txt").given_edge_count == 200
    assert run(capsys, "data", name) == (0, out, "")
    assert len(known["requests"]) == 1
    # An altered file is fetched again.
    (folder / "edges.txt").write_bytes(TEXT[:-1] + b"x")
    assert fetch_data(name) == folder
    assert (folder / "edges.txt").read_bytes() == TEXT
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("plain", "/edges.txt", TEXT + b"3 4\n"),
        ("plain", "/edges.txt", b""),
        ("packed", "/edges.txt.gz", gzip.compress(b"0 1\n" * 10**7, mtime=0)),
        ("packed", "/edges.txt.gz", gzip.compress(TEXT, mtime=0)[:-9]),
        ("packed", "/edges.txt.gz", b"<html>"),
        ("archive", "/all.zip", zipped()[:-30]),
        ("archive", "/all.zip", zipped().replace(b"inner/edges", b"outer/edges")),
    ],
)
def test_what_is_not_the_published_file_is_refused(
    name: str,
    path: str,
    body: bytes,
    known: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    known[path] = body
    status, out, err = run(capsys, "data", name)
    assert (status, out) == (2, "")
    assert "is not the file that was published" in err
    assert "expected: SHA-256" in err
    with pytest.raises(fg.FeatGraphError, match="has not been fetched"):
        data_folder(name)


def test_without_network_pooch_or_such_a_name(
    known: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del known["/edges.txt"]
    status, _, err = run(capsys, "data", "plain")
    assert (status, "cannot be fetched" in err) == (2, True)
    assert "404" in err
    status, _, err = run(capsys, "data", "plane")
    assert (status, "plain, packed, archive" in err) == (2, True)
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    status, _, err = run(capsys, "data", "plain")
    assert (status, 'pip install "featgraph[data]"' in err) == (2, True)


def test_the_table_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "data")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(DATA_SETS)
    for known in DATA_SETS.values():
        assert known.licence
        assert known.publisher
        for file in known.files:
            assert file.address.startswith("https://")
            assert len(bytes.fromhex(file.sha256)) == 32
            assert Path(file.name).name == file.name


def test_data_sets_lie_in_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEATGRAPH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(fg.FeatGraphError) as caught:
        data_folder("wiki-vote")
    assert caught.value.where == str(tmp_path / "featgraph" / "data" / "wiki-vote")

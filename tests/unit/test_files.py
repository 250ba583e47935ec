"""One way to open and to write files: no links, no devices, no more than they claim."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base import files


@pytest.mark.parametrize("kind", ["fifo", "link", "device", "folder"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "other").write_bytes(b"other")
    {
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to("other"),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
    }[kind]()
    for read in (files.digest_of, lambda p: files.read_file(p, 100)):
        with pytest.raises(files.NotPlainError):
            read(path)
    if kind == "link":  # that a user names
        assert files.read_file(path, 100, follows=True) == b"other"
        return
    with pytest.raises(files.NotPlainError):
        files.read_file(path, 100, follows=True)
    with pytest.raises(fg.FileFormatError, match="not a regular file"):
        fg.read_arrays(path)


def test_files_are_no_longer_than_they_may_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, more than 4"):
        files.read_file(path, 4)
    with pytest.raises(OSError, match="null byte"):
        files.read_file(Path("a\0b"), 4)
    with pytest.raises(ValueError, match="too deep"):
        files.load_json("[" * 100_000)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_bytes(b"precious")
    path.symlink_to(precious)
    with pytest.raises(FileExistsError):
        files.write_file(path, [b"new"])
    files.replace_private(path, [b"new"])
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.symlink_to(precious)
    fg.write_arrays(path, {"a": [1]})
    assert fg.read_arrays(path)["a"].tolist() == [1]
    assert precious.read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 2


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.array("text"),
    np.zeros((0, 4), np.float32),
    np.array([True, False]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_arrays_come_back(array: Any, tmp_path: Path) -> None:
    fg.write_arrays(tmp_path / "a.npz", {"one": array, "other": [1, 2]})
    found = fg.read_arrays(tmp_path / "a.npz")
    assert found.keys() == {"one", "other"}
    assert found["one"].dtype == array.dtype
    np.testing.assert_array_equal(found["one"], array)
    with pytest.raises(fg.ArgumentError, match="objects"):
        fg.write_arrays(tmp_path / "b.npz", {"one": [None]})
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def archive(path: Path, text: str, data: bytes, how: int) -> None:
    """Write an archive of one array with any header."""
    padded = text.encode().ljust(117) + b"\n"
    begin = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little")
    with zipfile.ZipFile(path, "w", how) as file:
        file.writestr("a.npy", begin + padded + data)


def header(shape: str, descr: str = "<f8") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"


HEADERS = {
    "a large shape": header("(1099511627776,)"),
    "a negative one": header("(-1, -2)"),
    "a formula": header("(1 << 40,)"),
    "objects": header("(2,)", "|O"),
    "no header": "()",
    "deep": "(" * 100,
}


@pytest.mark.parametrize("what", [*HEADERS, "compressed"])
def test_archives_that_claim_what_they_do_not_have(what: str, tmp_path: Path) -> None:
    path, right = tmp_path / "a.npz", header("(2,)")
    archive(path, right, bytes(16), zipfile.ZIP_STORED)
    assert fg.read_arrays(path)["a"].tolist() == [0, 0]
    how = zipfile.ZIP_DEFLATED if what == "compressed" else zipfile.ZIP_STORED
    archive(path, HEADERS.get(what, right), bytes(16), how)
    with pytest.raises(fg.FileFormatError, match="not a file of arrays"):
        fg.read_arrays(path)


def test_every_byte_of_an_archive_counts_or_is_harmless(tmp_path: Path) -> None:
    path, stream = tmp_path / "a.npz", io.BytesIO()
    np.savez(stream, a=np.arange(3.0))
    whole = stream.getvalue()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 0x81
        path.write_bytes(changed)
        try:
            found = fg.read_arrays(path)
        except fg.FileFormatError:
            continue
        assert sum(array.nbytes for array in found.values()) <= len(whole)

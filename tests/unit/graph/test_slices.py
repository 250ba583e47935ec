"""Folders of slices: how they are written, beside what there is, and named errors."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base import files
from featgraph.cuda import values
from featgraph.distributed import run_ranks
from featgraph.graph.building.kernels import order_of
from featgraph.graph.formats import convert as converting
from featgraph.graph.formats.convert import convert, write_graph
from featgraph.graph.slices import files as manifests
from featgraph.graph.slices import write
from featgraph.graph.slices.read import map_slices
from featgraph.graph.slices.sums import checksum
from tests.altered import GRAPHS, require_refused, sign_again, write_sound

RING = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])


def test_nothing_half_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "graph.fgs"
    for module, name in (
        (write, "write_manifest"),
        (write, "_write_array"),
        (files, "_sync"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(OSError, match=r"No space .*graph\.fgs"):
                write_graph(RING, path)
        assert not list(tmp_path.iterdir())
    write_graph(RING, path)
    with pytest.raises(fg.GraphInputError, match="already"):
        write_graph(RING, path)
    assert fg.read_graph(path).digest == RING.digest


def test_edges_that_are_altered_while_they_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(self: write.Sorter) -> Iterator[Any]:
        for records in found(self):
            records["u"] = records["u"][::-1]
            yield records

    found = write.Sorter.sorted
    monkeypatch.setattr(write.Sorter, "sorted", swapped)
    with pytest.raises(fg.FileFormatError, match="not those that were"):
        write_graph(RING, tmp_path / "graph.fgs", order="locality")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weights", [None, "int32", "float64"])
def test_rows_of_a_graph_are_what_is_sorted_of_its_edges(
    tmp_path: Path, rng: np.random.Generator, directed: bool, weights: Any
) -> None:
    for count in (1, 31, 400):
        u, v = rng.integers(0, 40, (2, count))
        w = None if weights is None else rng.integers(0, 9, count).astype(weights)
        given: dict[str, Any] = {"vertex_count": 65, "directed": directed}
        whole = fg.Graph.from_edges(u, v, weights=w, **given)
        path, beside = tmp_path / f"{count}.fgs", tmp_path / f"{count}"
        write_graph(whole, path)
        beside.mkdir()
        edges = write.Edges(lambda: iter([(u, v, w)]), 65, directed, weights)  # noqa: B023
        write.write_slices(beside, edges)
        for one in beside.iterdir():
            assert one.read_bytes() == (path / one.name).read_bytes(), one.name
        assert len(list(path.iterdir())) == len(list(beside.iterdir()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "ef46db3751d8e999"),
        (b"abc", "44bc2cf5ad770999"),
        (b"Nobody inspects the spammish repetition", "fbcea83c8a378bf1"),
    ],
)
def test_checksums_are_those_of_others(text: bytes, expected: str) -> None:
    assert checksum(np.frombuffer(text, np.uint8)) == expected


def test_checksums_see_every_bit_and_byte() -> None:
    data = np.arange(77, dtype=np.uint8)
    found = {checksum(data[:size]) for size in range(78)}
    for at in range(77):
        for bit in range(8):
            other = data.copy()
            other[at] ^= 1 << bit
            found.add(checksum(other))
    assert len(found) == 78 + 8 * 77


def test_orders_of_integers(rng: np.random.Generator) -> None:
    for highest in (1, 5, 3000, 2**33, 2**62):
        keys = rng.integers(0, highest, 500)
        assert np.array_equal(order_of(keys), np.argsort(keys, kind="stable"))
    places = rng.permutation(500).astype(np.int32)
    assert np.array_equal(order_of(places), np.argsort(places))
    for keys in ([0, 0, 2], [3, 1, 3, 1], [2, -1, 0]):  # are no permutations
        found = order_of(np.array(keys))
        assert sorted(found.tolist()) == list(range(len(keys)))
        if min(keys) >= 0:
            assert np.array_equal(found, np.argsort(keys, kind="stable"))
    assert order_of(np.empty(0, np.int32)).size == 0


def test_a_graph_has_what_its_slices_hold_and_makes_the_rest(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    for directed in (True, False):
        u, v = rng.integers(0, 40, (2, 300))
        weights = rng.random(300)
        options: dict[str, Any] = {"vertex_count": 47, "directed": directed}
        whole = fg.Graph.from_edges(u, v, weights=weights, **options)
        write_graph(whole, tmp_path / f"{directed}.fgs")
        made = fg.read_graph(tmp_path / f"{directed}.fgs")
        assert "sources" not in vars(made._edges)
        for name in ("in_degree", "out_degree", "given_index", "sources", "targets",
                     "weights", "self_loops"):  # fmt: skip
            assert np.array_equal(getattr(made, name), getattr(whole, name)), name
            assert getattr(made, name).dtype == getattr(whole, name).dtype, name
            assert not getattr(made, name).flags.writeable or name == "self_loops"
        for name in ("in_edges", "out_edges", "incident_edges"):
            for field in ("row_offsets", "column_indices", "edge_ids"):
                mine, theirs = (getattr(getattr(g, name), field) for g in (made, whole))
                assert np.array_equal(mine, theirs), (name, field)
        again = pickle.loads(pickle.dumps(made))
        assert (again.digest, again.weights_digest) == (
            whole.digest, whole.weights_digest,
        )  # fmt: skip


@pytest.mark.parametrize("directed", [True, False])
def test_a_single_edge(tmp_path: Path, directed: bool) -> None:
    for u, v in ((1, 1), (1, 0), (0, 1)):
        one = fg.Graph.from_edges([u], [v], vertex_count=3, directed=directed)
        write_graph(one, tmp_path / f"{u}{v}.fgs")
        assert fg.read_graph(tmp_path / f"{u}{v}.fgs").targets.tolist() == [v]


@pytest.mark.parametrize("order", ["given", "locality"])
def test_sides_are_kept(tmp_path: Path, order: str) -> None:
    whole = fg.Graph.from_edges(
        [0, 1], [2, 4], vertex_count=5, sides=(2, 3), directed=False
    )
    write_graph(whole, tmp_path / "sides.fgs", order=order)
    again = fg.read_graph(tmp_path / "sides.fgs")
    assert again.sides == pickle.loads(pickle.dumps(again)).sides == (2, 3)

    def on_a_rank(engine: Any) -> Any:
        return fg.read_graph(tmp_path / "sides.fgs", partition="edges").sides

    assert run_ranks(2, on_a_rank) == [(2, 3)] * 2
    write_graph(RING, tmp_path / "ring.fgs")
    assert fg.read_graph(tmp_path / "ring.fgs").sides is None


@pytest.mark.parametrize("order", ["given", "locality"])
def test_edges_within_a_side_are_found_in_slices(tmp_path: Path, order: str) -> None:
    forged = fg.Graph.from_edges([0, 1, 3], [2, 4, 4], directed=False)
    forged._edges.sides = (2, 3)
    write_graph(forged, tmp_path / "sides.fgs", order=order)

    def on_a_rank(engine: Any) -> None:
        with pytest.raises(fg.FileFormatError, match="an edge within a side"):
            fg.read_graph(tmp_path / "sides.fgs", partition="edges")

    run_ranks(2, on_a_rank)
    for read in (fg.read_graph, map_slices):
        with pytest.raises(fg.FileFormatError, match=r"an edge within a side"):
            read(tmp_path / "sides.fgs")


def test_what_killed_writers_have_left_goes_and_what_others_write_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "graph.fgs"
    abandoned = tmp_path / "graph.fgs.0123abcd.part"
    of_another = tmp_path / "other.fgs.0123abcd.part"
    kept = tmp_path / "graph.fgs.notes.part"
    for folder in (abandoned, of_another, kept):
        folder.mkdir()
        (folder / "sources.bin").write_bytes(bytes(4))
    with pytest.raises(fg.GraphInputError, match="already"):  # noqa: PT012, SIM117
        with write.writing(path) as slow:
            assert not abandoned.exists()
            with write.writing(path) as fast:
                assert slow.is_dir()
                (fast / "mine").touch()
    found = sorted(entry.name for entry in tmp_path.iterdir())
    assert found == sorted([path.name, of_another.name, kept.name])


def test_a_second_writer_does_not_replace_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "graph.fgs"
    with pytest.raises(fg.GraphInputError, match="already"):  # noqa: SIM117
        with write.writing(path):
            path.mkdir()
    assert list(tmp_path.iterdir()) == [path]
    path.rmdir()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(fg.GraphInputError, match="already"):
        write_graph(RING, path)


def test_a_name_that_is_taken_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "graph.fgs").mkdir()
    for order in ("given", "locality"):
        with pytest.raises(fg.GraphInputError, match="already"):
            convert(tmp_path / "no.txt", tmp_path / "graph.fgs", order=order)


def test_what_convert_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ring.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    matrix = tmp_path / "ring.mtx"
    other = tmp_path / "ring.zip"
    other.write_bytes(b"0 1\n1 0\n")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: convert(other, tmp_path / "a.fgs"), "suffix"),
        (lambda: convert(matrix, tmp_path / "a.fgs", weights=2), "no such option"),
        (lambda: convert(path, tmp_path / "a.fgs", order="spread", parts=0), "parts"),
        (lambda: convert(path, tmp_path / "a.fgs", order="curve"), "no such order"),
        (lambda: convert(path, tmp_path / "a.fgs", vertex_count=2**31), "vertex_count"),
    ]  # fmt: skip
    for call, text in calls:
        with pytest.raises(fg.FeatGraphError, match=text):
            call()
    assert not list(tmp_path.glob("a.fgs*"))


def test_names_are_merged_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "_CHUNK", 3)
    monkeypatch.setattr("featgraph.graph.formats.layout.BLOCK_BYTES", 40)
    path, rng = tmp_path / "names.txt", np.random.default_rng(5)
    rows = rng.integers(-50, 50, (200, 2)) * 2**40
    path.write_text("".join(f"{u} {v}\n" for u, v in rows.tolist()))
    convert(path, tmp_path / "names.fgs")
    whole, again = fg.read_graph(path), fg.read_graph(tmp_path / "names.fgs")
    assert again.digest == whole.digest
    assert np.array_equal(again.vertex_names, whole.vertex_names)


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": []},
        {"arrays": {"sources": 3}},
        {"vertex_count": "3"},
        {"directed": "no"},
        {"digest": 5},
        {"sides": [1, 1]},
        {"given_count": None},
    ],
)
def test_a_manifest_of_other_types(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "graph.fgs"
    write_graph(RING, path)
    body = json.loads((path / "manifest.json").read_text())
    body |= change
    del body["checksum"]
    body["checksum"] = manifests._checksum(body)
    (path / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(fg.FileFormatError, match="manifest"):
        fg.read_graph(path)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("sources", [0, 3, 1], "a number out of range"),
        ("sources", [0, -1, 1], "a number out of range"),
        ("rows", [0, 1, 3], "a number out of range"),
        ("offsets", [0, 2, 1, 3], "rows that do not follow"),
        ("offsets", [0, 1, 2, 2], "rows that do not follow"),
        ("offsets", [1, 1, 2, 3], "rows that do not follow"),
    ],
)
def test_numbers_that_are_of_no_graph_under_their_own_checksums(
    tmp_path: Path, name: str, values: list[int], text: str
) -> None:
    path = tmp_path / "graph.fgs"
    write_graph(RING, path)
    sign_again(path, name, np.array(values))
    with pytest.raises(fg.FileFormatError, match=text):
        fg.read_graph(path)
    with pytest.raises(fg.FileFormatError, match=text):
        run_ranks(2, lambda engine: fg.read_graph(path, partition="edges"))


#: Arrays of a path and a triangle with a self-loop, each of which fits no other.
UNFIT = {
    "rows": "rows that are not those|do not lead both ways",
    "sources": "do not lead both ways",
    "outs": "out-degrees that are not",
    "words": "counts of in-edges",
    "order": "each vertex once",
    "starts": "first edges",
    "names": "do not ascend",
}


@pytest.mark.parametrize("order", ["given", "locality"])
@pytest.mark.parametrize("directed", [True, False])
def test_arrays_that_do_not_fit_each_other_are_refused(
    tmp_path: Path, directed: bool, order: str
) -> None:
    """Each number of each array is altered; only weights may be what they like."""
    path, ends = tmp_path / "graph.fgs", ([1, 5, 5, 9, 9], [5, 9, 1, 9, 7])
    graph = fg.Graph.from_edges(*ends, weights=[1, 2, 3, 4, 5], directed=directed)
    write_graph(graph, path, order=order)
    manifest = manifests.read_manifest(path)
    assert set(manifest.arrays) - set(UNFIT) == {"offsets", "weights"}
    for name, text in UNFIT.items():
        array = manifest.arrays.get(name)
        if array is None or (name == "sources" and directed):
            continue
        whole = np.fromfile(path / f"{name}.bin", array.dtype)
        for place in range(whole.size):
            values = whole.copy()
            values[place] = values[place - 1] if name != "outs" else values[place] + 1
            if np.array_equal(values, whole):
                continue
            sign_again(path, name, values)
            with pytest.raises(fg.FileFormatError, match=text):
                fg.read_graph(path)
        sign_again(path, name, whole)
    assert np.array_equal(fg.read_graph(path).sources, graph.sources)


#: Arrays that are not needed, by the reader.
UNREAD = {"whole": set(), "mapped": {"weights", "names", "letters"}}


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("kind", "order"), GRAPHS)
@pytest.mark.parametrize("reader", UNREAD)
@pytest.mark.parametrize("is_large", [False, True])
def test_arrays_that_were_altered_and_signed_again(
    reader: str, kind: str, order: str, is_large: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if is_large:  # threads go through pieces, and kernels through blocks of slots
        monkeypatch.setattr(values, "_FEW_BYTES", 1)
    write_sound(tmp_path / "graph.fgs", kind, order)
    read = fg.read_graph if reader == "whole" else map_slices
    require_refused(tmp_path / "graph.fgs", read, frozenset(UNREAD[reader]))


@pytest.mark.parametrize("read", [fg.read_graph, map_slices])
def test_many_slots_are_added_up_block_by_block(read: Any, tmp_path: Path) -> None:
    """Rows end within blocks of slots, at their ends, and go through several."""
    rng = np.random.default_rng(2)
    for directed in (True, False):
        u, v = rng.integers(0, 50, (2, 9000))
        v[:5000], path = 7, tmp_path / f"{directed}.fgs"
        whole = fg.Graph.from_edges(u, v, weights=rng.random(9000), directed=directed)
        write_graph(whole, path)
        assert fg.Graph(read(path)).digest if read is map_slices else read(path)
        stored = np.fromfile(path / "sources.bin", "<i4")
        for place in rng.integers(0, stored.size - 1, 20):
            some = stored[place : place + 2]
            if some[0] != some[1]:
                other = stored.copy()
                other[place : place + 2] = some[::-1]
                sign_again(path, "sources", other)
                with pytest.raises(fg.FileFormatError, match=r"sources\.bin"):
                    read(path)


@pytest.mark.parametrize("name", ["part0", "spool1"])
@pytest.mark.parametrize("moment", ["before", "while"])
def test_scratch_files_are_not_those_of_others(
    name: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links that stand in their places are neither written through nor read."""
    path, kept = tmp_path / "ring.txt", tmp_path / "kept"
    path.write_text("0 1\n1 2\n2 0\n")
    kept.write_bytes(bytes(99))
    found = {"part0": write.Sorter, "spool1": converting._Spool}[name]
    made: Any = found.__init__

    def place(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.symlink_to(kept)

    def init(self: Any, *given: Any) -> None:
        folder = next(g for g in given if isinstance(g, Path))
        if moment == "before":
            place(folder / name)
        made(self, *given)
        if moment == "while":
            place(folder / name)

    monkeypatch.setattr(found, "__init__", init)
    with pytest.raises(OSError, match=r"exists|a link"):
        convert(path, tmp_path / "graph.fgs")
    assert kept.read_bytes() == bytes(99)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "ring.txt"]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_slices_that_are_no_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "graph.fgs"
    write_graph(RING, path)
    make = {
        "fifo": os.mkfifo,
        "link": lambda file: os.symlink("/dev/zero", file),
        "folder": os.mkdir,
    }[kind]
    for file in sorted(path.iterdir()):
        kept = file.rename(tmp_path / "kept")
        make(file)
        with pytest.raises(fg.FileFormatError) as caught:
            fg.read_graph(path)
        assert "a link" in str(caught.value) or "not a regular" in str(caught.value)
        os.rmdir(file) if kind == "folder" else os.unlink(file)
        kept.rename(file)
    assert fg.read_graph(path).edge_count == 3


def test_a_folder_is_as_readable_as_any(tmp_path: Path) -> None:
    write_graph(RING, tmp_path / "new" / "graph.fgs")
    (tmp_path / "other").mkdir()
    modes = [os.stat(tmp_path / name).st_mode for name in ("new/graph.fgs", "other")]
    assert modes[0] == modes[1]

"""Folders of slices of which arrays were altered, and their checksums made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.graph.formats.convert import write_graph
from featgraph.graph.slices import files as manifests
from featgraph.graph.slices.files import SliceWriter

__all__ = ["GRAPHS", "require_refused", "sign_again", "write_sound"]


def sign_again(path: Path, name: str, values: Any) -> None:
    """Replace an array of a folder, and have all checksums be those of the new one."""
    manifest = manifests.read_manifest(path)
    (path / f"{name}.bin").unlink()
    with SliceWriter(path, name, manifest.arrays[name].dtype) as writer:
        writer.write(np.array(values))
        manifest.arrays[name] = writer.finish()
    (path / "manifest.json").unlink()
    manifests.write_manifest(path, manifest)


#: Directed or not, with sides or not, and the order in which vertices are stored.
GRAPHS = [
    (kind, order)
    for kind in ("directed", "undirected", "sides")
    for order in ("given", "locality")
]


def write_sound(path: Path, kind: str, order: str) -> fg.Graph:
    """Write a graph of 80 vertices, with weights and, but for sides, with names."""
    rng = np.random.default_rng(7)
    ends = rng.integers(0, 40, (2, 150))
    ends[1] += 40 * (kind == "sides")
    ends[1, :120] += 40 * (kind != "sides")
    more: dict[str, Any] = {"vertex_count": 80, "sides": (40, 40)}
    if kind != "sides":
        ends[0, :80] = ends[1, -80:] = np.arange(80)
        ends, more = 3 * ends + 5, {"names": True}
    weights = rng.random(150) + 0.5
    graph = fg.Graph.from_edges(
        *ends, weights=weights, directed=kind == "directed", **more
    )
    write_graph(graph, path, order=order)
    return graph


def _altered(whole: Any) -> Iterator[tuple[str, Any]]:
    """Yield arrays with other elements, and what was done."""
    limit: Any = np.finfo if whole.dtype.kind == "f" else np.iinfo
    middle = whole.size // 2
    other = int(np.argmax(whole != whole[middle]))
    alone = {
        "raised": whole[middle] + 1,
        "lowered": whole[middle] - 1,
        "below zero": -1 if whole.dtype.kind != "u" else 255,
        "largest": limit(whole.dtype).max,
        "smallest": limit(whole.dtype).min,
        "repeated": whole[other],
    }
    for kind, value in alone.items():
        made = whole.copy()
        made[middle] = value
        yield kind, made
    made = whole.copy()
    made[[middle, other]] = whole[[other, middle]]
    yield "exchanged", made
    yield "reversed", whole[::-1].copy()
    yield "rolled", np.roll(whole, 1)
    yield "zero", np.zeros_like(whole)


def require_refused(
    folder: Path,
    read: Callable[[Path], Any],
    not_read: frozenset[str] = frozenset(),
    kinds: frozenset[str] | None = None,
) -> None:
    """Hold a reader to refuse all alterations, or some, of the arrays that it reads.

    Names may be any that ascend; nothing else in a folder says which they are.
    """
    read(folder)
    manifest = manifests.read_manifest(folder)
    count, accepted = 0, []
    for name, array in manifest.arrays.items():
        whole = np.fromfile(folder / f"{name}.bin", array.dtype)
        for kind, values in _altered(whole):
            if np.array_equal(values, whole) or kind not in (kinds or {kind}):
                continue
            if name == "names" and (values[1:] > values[:-1]).all():
                continue
            other = folder.with_name("altered.fgs")
            shutil.rmtree(other, ignore_errors=True)
            shutil.copytree(folder, other)
            sign_again(other, name, values)
            if name in not_read:
                read(other)
                continue
            count += 1
            try:
                read(other)
            except fg.FileFormatError as error:
                text = str(error)
                assert name in text.replace(str(other), ""), (name, kind, text)
                assert str(other) in text, (name, kind, text)
            else:
                accepted.append((name, kind))
    assert count >= (4 * len(kinds) if kinds else 26)
    assert not accepted

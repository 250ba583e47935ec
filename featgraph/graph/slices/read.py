"""A graph read from all of its slices, and a rank's range of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import FileFormatError
from featgraph.graph._structure import structure_digest
from featgraph.graph.building.arguments import require_path
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.manifest import read_manifest

__all__ = ["edges_into", "open_slices", "read_slices"]

Array = NDArray[Any]


def open_slices(path: object) -> Slices:
    """Return the slices of a folder; its manifest is read."""
    folder = Path(require_path(path))
    return Slices(folder, read_manifest(folder))


def edges_into(
    slices: Slices, first: int, last: int
) -> tuple[Array, Array, Array, Array | None]:
    """Return the edges into the vertices at some places: ends, rows and weights.

    Raises
    ------
    FileFormatError
        Slices that are missing or altered, or contradict each other.
    """
    manifest = slices.manifest
    offsets = slices.read("offsets", first, last + 1)
    begin, end = int(offsets[0]), int(offsets[-1])
    if not 0 <= begin <= end <= manifest.given_count or (np.diff(offsets) < 0).any():
        raise FileFormatError(
            "offsets that do not ascend", where="offsets.bin", got=f"{begin} to {end}"
        )
    sources = slices.read("sources", begin, end)
    rows = slices.read("rows", begin, end)
    for array, bound in (
        (sources, manifest.vertex_count),
        (rows, manifest.given_count),
    ):
        if array.size and not (array.min() >= 0 and array.max() < bound):
            raise FileFormatError(
                "a number out of range", where="sources.bin or rows.bin",
                expected=f"0 to {bound - 1}",
            )  # fmt: skip
    weights = None
    if "weights" in manifest.arrays:
        weights = slices.read("weights", begin, end)
    own = np.arange(first, last, dtype=np.int32)
    return sources, np.repeat(own, np.diff(offsets)), rows, weights


def read_slices(path: object) -> EdgeList:
    """Read a whole graph, its edges in given order.

    Raises
    ------
    FileFormatError
        As `edges_into`, or where the slices are not those of the manifest's graph.
    """
    from featgraph.graph.building import digests  # loads Numba

    slices = open_slices(path)
    manifest = slices.manifest
    u, v, rows, weights = edges_into(slices, 0, manifest.vertex_count)
    slices.read("words")  # altered ones are not for ranks alone to find
    if "order" in manifest.arrays:
        order = slices.read("order")
        u, v = order[u], order[v]
    sources, targets = np.empty_like(u), np.empty_like(v)
    sources[rows], targets[rows] = u, v
    if weights is not None:
        given = np.empty_like(weights)
        given[rows] = weights
        weights = given
    sums = digests.no_sums()
    digests.add_ends(sums, 0, sources, targets)
    text = digests.text_of(sums)
    found = structure_digest(manifest.vertex_count, manifest.directed, text)
    if found != manifest.digest:
        raise FileFormatError(
            "the slices are of another graph",
            where=require_path(path),
            got=f"digest {found}",
            expected=manifest.digest,
        )
    names = slices.read("names") if "names" in manifest.arrays else None
    return EdgeList(
        sources, targets, weights, manifest.vertex_count, manifest.directed, names
    )

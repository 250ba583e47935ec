"""Readers of whole graphs from slices, and of the rows of a range of vertices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_path
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FileFormatError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.adjacency import Adjacency
from featgraph.graph.building.edges import EdgeList, freeze
from featgraph.graph.building.row_edges import RowEdges
from featgraph.graph.slices.checks import (
    read_words,
    require_in_range,
    require_order,
    require_sums,
    require_words,
    row_bound,
    sums_of_edges,
    sums_of_vertices,
    word_ends,
)
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.manifest import Manifest, read_manifest
from featgraph.graph.slices.names import read_names

__all__ = [
    "PlacedRows",
    "StoredRows",
    "joined",
    "map_slices",
    "open_slices",
    "ranges_of_sides",
    "read_slices",
    "require_between_sides",
    "require_offsets",
    "within_a_side",
]

Array = NDArray[Any]
#: Sources that are compared at once, which bounds temporaries.
_LOOKED_AT = 1 << 20


def open_slices(path: object) -> Slices:
    """Read the manifest of a folder; return its slices."""
    folder = Path(require_path(path))
    return Slices(folder, read_manifest(folder))


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """The edges into the vertices at some places, on the host or on the GPU.

    Attributes
    ----------
    slices : Slices
    ranges : sequence of (int, int)
        First and last place of each range.
    spans : list of (int, int)
        The edges of each range.
    """

    slices: Slices
    ranges: Sequence[tuple[int, int]]
    spans: list[tuple[int, int]]

    @property
    def size(self) -> int:
        """The number of edges."""
        return sum(end - begin for begin, end in self.spans)

    def vertices(self, name: str) -> Array:
        """Return a stored array of these vertices, on the host."""
        return joined([self.slices.read(name, *own) for own in self.ranges])


@dataclass(frozen=True, eq=False)
class StoredRows(PlacedRows):
    """The edges into the vertices at some places, on the host.

    Attributes
    ----------
    offsets : ndarray of int64
        The offsets of rows, and the end of the last one, for concatenated ranges.
    """

    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, slices: Slices, ranges: Sequence[tuple[int, int]]) -> StoredRows:
        """Return the rows of the places in some ranges."""
        parts = [_offsets_of(slices, *places) for places in ranges]
        spans = [(int(part[0]), int(part[-1])) for part in parts]
        if len(parts) == 1:
            if spans[0][0]:
                parts[0] -= spans[0][0]
            return cls(slices, ranges, spans, parts[0])
        degrees = [np.diff(part) for part in parts]
        offsets = np.zeros(sum(part.size for part in degrees) + 1, np.int64)
        np.cumsum(np.concatenate(degrees), out=offsets[1:])
        return cls(slices, ranges, spans, offsets)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The offset of each row in the stored arrays."""
        sizes = [last - first for first, last in self.ranges]
        before = np.cumsum([0, *(end - begin for begin, end in self.spans)])
        shifts = [span[0] - at for span, at in zip(self.spans, before, strict=False)]
        found: NDArray[np.int64] = self.offsets[:-1] + np.repeat(shifts, sizes)
        return found

    def in_degrees(self) -> Array:
        """Return the number of edges of each row."""
        return np.diff(self.offsets)

    def at_words(self) -> Array:
        """Return the offsets at words of vertices, for a single range."""
        return self.offsets[word_ends(self.offsets.size - 1)]

    def read(self, name: str, out: Array | None = None) -> Array:
        """Return "sources", "rows" or "weights" of the edges, in `out` if given.

        Raises
        ------
        FileFormatError
            If slices are missing or altered, or numbers are out of range.
        """
        found = self._read(name, out)
        if name != "weights":
            require_in_range(self.slices, name, found)
        return found

    def _read(self, name: str, out: Array | None) -> Array:
        if len(self.spans) == 1:
            return self.slices.read(name, *self.spans[0], out)
        if out is None:
            out = np.empty(self.size, self.slices.manifest.arrays[name].dtype)
        at = 0
        for begin, end in self.spans:
            self.slices.read(name, begin, end, out[at : at + end - begin])
            at += end - begin
        return out


def joined(parts: Sequence[Array]) -> Array:
    """Concatenate arrays; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _offsets_of(slices: Slices, first: int, last: int) -> NDArray[np.int64]:
    """Return the offsets of the rows of some places, and the end of the last one."""
    offsets = slices.read("offsets", first, last + 1)
    span = int(offsets[0]), int(offsets[-1])
    ascends = bool((offsets[1:] >= offsets[:-1]).all())
    require_offsets(slices, (first, last), span, ascends)
    return offsets


def require_offsets(
    slices: Slices, places: tuple[int, int], span: tuple[int, int], ascends: bool
) -> None:
    """Raise FileFormatError unless the rows of some places are consecutive.

    Parameters
    ----------
    slices : Slices
    places : (int, int)
        First and last place.
    span : (int, int)
        The begin of the first row, and the end of the last one.
    ascends : bool
        Whether the offsets between them ascend.
    """
    manifest, (first, last), (begin, end) = slices.manifest, places, span
    is_sound = ascends and 0 <= begin <= end <= manifest.edge_count
    is_sound &= begin == 0 if first == 0 else True
    is_sound &= end == manifest.edge_count if last == manifest.vertex_count else True
    if not is_sound:
        raise FileFormatError(
            "rows that do not follow each other",
            where=str(slices.folder / "offsets.bin"),
            got=f"offsets {begin} to {end}",
            expected=f"ascending ones of {manifest.edge_count} edges",
        )


def ranges_of_sides(manifest: Manifest) -> list[tuple[int, int]]:
    """Return first and last place of each side, or of all vertices without sides."""
    sides = manifest.sides or (manifest.vertex_count,)
    return list(pairwise((0, *accumulate(sides))))


def require_between_sides(
    slices: Slices,
    spans: Sequence[tuple[int, int]],
    has_inside: Callable[[int, int, int, int], Any],
) -> None:
    """Raise FileFormatError unless each edge of a whole folder joins two sides.

    Parameters
    ----------
    slices : Slices
    spans : sequence of (int, int)
        The range of each side in the array of sources.
    has_inside : callable
        ``has_inside(begin, end, low, high)``: whether a source from index `begin` to
        `end` is a vertex from `low` to `high`.
    """
    if slices.manifest.sides is None:
        return
    ranges = ranges_of_sides(slices.manifest)
    for span, of_side in zip(spans, ranges, strict=True):
        if has_inside(*span, *of_side):
            raise within_a_side(slices)


def within_a_side(slices: Slices) -> FileFormatError:
    """Return the error for an edge within a side."""
    return FileFormatError(
        "an edge within a side",
        where=str(slices.folder / "sources.bin"),
        got="one, by where rows begin in offsets.bin",
        expected=f"edges that join two of the sides {slices.manifest.sides}",
        fix="convert again",
    )


def _require_sides(slices: Slices, offsets: Array, sources: Array) -> None:
    """Check sources on the host by `require_between_sides`."""

    def has_inside(begin: int, end: int, low: int, high: int) -> bool:
        pieces = (
            sources[first : min(first + _LOOKED_AT, end)]
            for first in range(begin, end, _LOOKED_AT)
        )
        return any(bool(((p >= low) & (p < high)).any()) for p in pieces)

    places = ranges_of_sides(slices.manifest)
    spans = [(int(offsets[low]), int(offsets[high])) for low, high in places]
    require_between_sides(slices, spans, has_inside)


def _all_rows(path: object) -> tuple[StoredRows, Array]:
    """Return all rows of a folder, and their offsets in the dtype of a graph."""
    slices = open_slices(path)
    manifest = slices.manifest
    stored = StoredRows.of(slices, [(0, manifest.vertex_count)])
    require_words(slices, stored.at_words(), read_words(slices))
    return stored, stored.offsets.astype(offset_dtype(manifest.edge_count), copy=False)


def _require_edges(
    stored: StoredRows, edges: tuple[Array, Array, Array | None]
) -> tuple[Array | None, Array | None]:
    """Check all edges, vertices and sides of a folder; return outs and order.

    Parameters
    ----------
    stored : StoredRows
        All rows.
    edges : tuple of ndarray
        Sources, rows in given order, and weights or None.
    """
    slices, order, starts = stored.slices, None, None
    arrays = slices.manifest.arrays
    if "order" in arrays:
        order = slices.read("order")
        require_order(slices, order)
        starts = slices.read("starts"), np.diff(stored.offsets), order
    outs = slices.read("outs") if "outs" in arrays else None
    _require_sides(slices, stored.offsets, edges[0])
    found = sums_of_edges(slices, (stored.offsets, *edges), 0, order)
    require_sums(slices, found + sums_of_vertices(slices, outs, starts))
    return outs, order


def map_slices(path: object) -> EdgeList:
    """Return the edges of a folder by place, with only offsets in memory.

    Sources are memory-mapped, for callers that process rows in sequence. Vertices are
    numbered by place. The checks are those of `read_slices`, except for weights and
    names, which are not read; they read sources and rows twice.

    Raises
    ------
    FileFormatError
        If slices are missing or altered, or contradict each other.
    """
    stored, offsets = _all_rows(path)
    slices, manifest = stored.slices, stored.slices.manifest
    sources, rows = (np.asarray(slices.mapped(name)) for name in ("sources", "rows"))
    for name, numbers in (("sources", sources), ("rows", rows)):
        require_in_range(slices, name, numbers)
    _require_edges(stored, (sources, rows, None))
    in_edges = Adjacency(freeze(offsets), sources, None)
    degrees = np.diff(offsets)
    name = "in_degree" if manifest.directed else "degree"
    ends = in_edges, None, None, manifest.given_count, manifest.directed
    edges = RowEdges(*ends, known={name: degrees, "digest": manifest.digest})
    edges.sides, edges.given_count = manifest.sides, manifest.given_count
    return edges


def read_slices(path: object) -> EdgeList:
    """Read a whole graph with the checks that `checks` lists.

    Raises
    ------
    FileFormatError
        If slices are missing or altered, or contradict each other.
    """
    stored, offsets = _all_rows(path)
    slices, manifest = stored.slices, stored.slices.manifest
    sources = stored.read("sources")
    rows = np.empty(stored.size, offset_dtype(row_bound(manifest)))
    stored.read("rows", rows)
    weights = stored.read("weights") if "weights" in manifest.arrays else None
    outs, order = _require_edges(stored, (sources, rows, weights))
    in_edges = Adjacency(freeze(offsets), freeze(sources), None)
    names = read_names(slices)
    if order is not None:
        at = RowEdges(in_edges, rows, weights, manifest.given_count, manifest.directed)
        ends = order[at.sources], order[at.targets]
        count = manifest.vertex_count
        return EdgeList(
            *ends, at.weights, count, manifest.directed, names, manifest.sides
        )
    known = {
        "digest": manifest.digest,
        "weights_digest": manifest.weights_digest,
        "given_index": rows,
    }
    degrees = np.diff(offsets)
    if outs is not None:
        outs = outs.astype(degrees.dtype, copy=False)
        known |= {"in_degree": degrees, "out_degree": outs}
    else:
        known["degree"] = degrees
    edges = RowEdges(
        in_edges, rows, weights, manifest.given_count, manifest.directed, names, known
    )
    edges.sides = manifest.sides
    return edges

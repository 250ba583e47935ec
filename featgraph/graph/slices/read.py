"""Readers of whole graphs from slices, and of the rows of a range of vertices.

`PlacedRows` is the interface for rows of some ranges of vertices, on the host
(`StoredRows`) or on a GPU (`on_gpu.RowsOnGpu`). `read_slices` reads a whole graph to
the host; ranks read their own ranges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_path
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FileFormatError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze
from featgraph.graph.building.names import VertexNames
from featgraph.graph.building.row_edges import RowEdges
from featgraph.graph.slices.checks import (
    read_words,
    require_in_range,
    require_names,
    require_order,
    require_sums,
    require_words,
    row_bound,
    sums_of_edges,
    sums_of_vertices,
    word_ends,
)
from featgraph.graph.slices.files import Slices, read_manifest

__all__ = [
    "PlacedRows",
    "StoredRows",
    "map_slices",
    "open_slices",
    "read_names",
    "read_rows",
    "read_slices",
    "require_edges",
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
class PlacedRows(ABC):
    """The edges into the vertices at some places, on the host or on the GPU.

    Arrays of edges may be longer than the number of edges: callers append others.

    Attributes
    ----------
    slices : Slices
    ranges : sequence of (int, int)
        First and last place of each range.
    spans : list of (int, int)
        Begin and end of the edges of each range, in the stored arrays.
    offsets, degrees : array
        Begin of each row, and end of the last one; the number of edges of each row.
    """

    slices: Slices
    ranges: Sequence[tuple[int, int]]
    spans: list[tuple[int, int]]

    @property
    def size(self) -> int:
        """The number of edges."""
        return sum(end - begin for begin, end in self.spans)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The begin of each row in the stored arrays, on the host."""
        sizes = [last - first for first, last in self.ranges]
        before = np.cumsum([0, *(end - begin for begin, end in self.spans)])
        shifts = [span[0] - at for span, at in zip(self.spans, before, strict=False)]
        degrees = self.in_degrees().astype(np.int64, copy=False)
        before = np.cumsum(degrees) - degrees
        found: NDArray[np.int64] = before + np.repeat(shifts, sizes)
        return found

    def vertices(self, name: str) -> Array:
        """Return a stored array of these vertices, on the host."""
        parts = [self.slices.read(name, *own) for own in self.ranges]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def has_edge_within_a_side(self, sources: Any) -> bool:
        """Whether an edge joins two vertices of one side, by its source."""
        sides = self.slices.manifest.sides
        if sides is None:
            return False
        at, bounds = 0, np.cumsum([0, *sides])
        for (place, _), (begin, end) in zip(self.ranges, self.spans, strict=True):
            side = int(np.searchsorted(bounds, place, "right")) - 1
            of_side = int(bounds[side]), int(bounds[side + 1])
            if self.count_inside(sources, (at, at + end - begin), *of_side):
                return True
            at += end - begin
        return False

    @abstractmethod
    def in_degrees(self) -> Array:
        """Return the number of edges of each row, on the host."""

    @abstractmethod
    def at_words(self) -> Array:
        """Return the offsets at words of all vertices, on the host."""

    @abstractmethod
    def read(self, name: str, more: int = 0, dtype: Any = None) -> Any:
        """Return "sources", "rows" or "weights" of the edges.

        Parameters
        ----------
        name : str
        more : int, optional
            Number of further elements that the array has room for.
        dtype : dtype, optional
            The dtype on the host. Default: that of the file.

        Raises
        ------
        FileFormatError
            If slices are missing or altered, or numbers are out of range.
        """

    @abstractmethod
    def sums(
        self,
        edges: tuple[Any, Any, Any | None],
        first: int = 0,
        vertices: NDArray[np.int32] | None = None,
    ) -> NDArray[np.uint64]:
        """Return the sums over the edges, for `require_sums`.

        Parameters
        ----------
        edges : tuple of array
            Sources, rows in given order, and weights or None.
        first : int
            The number of the first row.
        vertices : ndarray of int32, optional
            The vertex of each number. Default: numbers are vertices.
        """

    @abstractmethod
    def count_inside(
        self, sources: Any, span: tuple[int, int], low: int, high: int
    ) -> int:
        """Count the sources of a range of edges that are from `low` to `high`."""

    @abstractmethod
    def renumbered(self, sources: Any, numbers: NDArray[np.int32]) -> Any:
        """Return ``numbers[sources]``."""


@dataclass(frozen=True, eq=False)
class StoredRows(PlacedRows):
    """The edges into the vertices at some places, on the host."""

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
    def degrees(self) -> Array:
        """The number of edges of each row."""
        return np.diff(self.offsets)

    def in_degrees(self) -> Array:
        """Return the number of edges of each row, on the host."""
        return self.degrees

    def at_words(self) -> Array:
        """Return the offsets at words of all vertices, on the host."""
        return self.offsets[word_ends(self.offsets.size - 1)]

    def read(self, name: str, more: int = 0, dtype: Any = None) -> Array:
        """Return "sources", "rows" or "weights" of the edges."""
        if dtype is None:
            dtype = np.dtype(self.slices.manifest.arrays[name].dtype).newbyteorder("=")
        made, at = np.empty(self.size + more, dtype), 0
        for begin, end in self.spans:
            self.slices.read(name, begin, end, made[at : at + end - begin])
            at += end - begin
        if name != "weights":
            require_in_range(self.slices, name, made[:at])
        return made

    def sums(
        self,
        edges: tuple[Array, Array, Array | None],
        first: int = 0,
        vertices: NDArray[np.int32] | None = None,
    ) -> NDArray[np.uint64]:
        """Return the sums over the edges, for `require_sums`."""
        return sums_of_edges(self.slices, (self.offsets, *edges), first, vertices)

    def count_inside(
        self, sources: Array, span: tuple[int, int], low: int, high: int
    ) -> int:
        """Count the sources of a range of edges that are from `low` to `high`."""
        found = 0
        for begin in range(*span, _LOOKED_AT):
            part = sources[begin : min(begin + _LOOKED_AT, span[1])]
            found += int(np.count_nonzero((part >= low) & (part < high)))
        return found

    def renumbered(self, sources: Array, numbers: NDArray[np.int32]) -> Array:
        """Return ``numbers[sources]``."""
        return numbers[sources]


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
            expected=f"offsets that ascend from 0 to {manifest.edge_count}",
        )


def within_a_side(slices: Slices) -> FileFormatError:
    """Return the error for an edge within a side."""
    return FileFormatError(
        "an edge within a side",
        where=str(slices.folder / "sources.bin"),
        got="an edge whose source is in the side of its row in offsets.bin",
        expected=f"edges that join two of the sides {slices.manifest.sides}",
        fix="convert again",
    )


def read_rows(slices: Slices, kind: type[Any]) -> Any:
    """Return all rows of a folder as a subclass of `PlacedRows`, one range per side."""
    manifest = slices.manifest
    sides = manifest.sides or (manifest.vertex_count,)
    rows = kind.of(slices, list(pairwise((0, *accumulate(sides)))))
    require_words(slices, rows.at_words(), read_words(slices))
    return rows


def require_edges(
    rows: PlacedRows, edges: tuple[Any, Any, Any | None]
) -> tuple[Array | None, Array | None]:
    """Check all edges, vertices and sides of a folder; return outs and order.

    Parameters
    ----------
    rows : PlacedRows
        All rows.
    edges : tuple of array
        Sources, rows in given order, and weights or None.
    """
    slices, order, starts = rows.slices, None, None
    arrays = slices.manifest.arrays
    if "order" in arrays:
        order = slices.read("order")
        require_order(slices, order)
        starts = slices.read("starts"), rows.in_degrees(), order
    outs = slices.read("outs") if "outs" in arrays else None
    if rows.has_edge_within_a_side(edges[0]):
        raise within_a_side(slices)
    found = rows.sums(edges, 0, order)
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
    slices = open_slices(path)
    manifest, stored = slices.manifest, read_rows(slices, StoredRows)
    offsets = stored.offsets.astype(offset_dtype(manifest.edge_count), copy=False)
    sources, rows = (np.asarray(slices.mapped(name)) for name in ("sources", "rows"))
    for name, numbers in (("sources", sources), ("rows", rows)):
        require_in_range(slices, name, numbers)
    require_edges(stored, (sources, rows, None))
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
    slices = open_slices(path)
    manifest, stored = slices.manifest, read_rows(slices, StoredRows)
    offsets = stored.offsets.astype(offset_dtype(manifest.edge_count), copy=False)
    sources = stored.read("sources")
    rows = stored.read("rows", dtype=offset_dtype(row_bound(manifest)))
    weights = stored.read("weights") if "weights" in manifest.arrays else None
    outs, order = require_edges(stored, (sources, rows, weights))
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


def read_names(slices: Slices, *, maps: bool = False) -> VertexNames | None:
    """Return the names of all vertices; None if there are none.

    Parameters
    ----------
    slices : Slices
    maps : bool, optional
        Whether to memory-map integers.

    Raises
    ------
    FileFormatError
        If integers do not ascend, or letters are not V different names.
    """
    arrays = slices.manifest.arrays
    if "names" in arrays:
        numbers = slices.mapped("names") if maps else slices.read("names")
        require_names(slices, numbers)
        return numbers
    if "letters" not in arrays:
        return None
    try:
        *names, rest = slices.read("letters").tobytes().decode().split("\0")
    except UnicodeDecodeError as error:
        names, rest = [], str(error)
    count = slices.manifest.vertex_count
    if rest or len(names) != count or len(set(names)) != count:
        raise FileFormatError(
            "letters that are not the names of vertices",
            where=str(slices.folder / "letters.bin"),
            got=rest or f"{len(set(names))} different names",
            expected=f"{count}",
            fix="make the folder again: featgraph convert",
        )
    return tuple(names)

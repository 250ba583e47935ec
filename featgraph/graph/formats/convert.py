"""Conversion of graph files to folders of slices, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.files import create_file, open_file
from featgraph.graph.building.check import checked_count
from featgraph.graph.building.edges import named_count
from featgraph.graph.formats.layout import Layout, Seen, read_blocks
from featgraph.graph.formats.readers import (
    SLICES,
    read_graph,
    read_layout,
    require_options,
    suffix_of,
)
from featgraph.graph.formats.text import GZIP_MAGIC
from featgraph.graph.graph import Graph
from featgraph.graph.partition.choose import checked_parts, choose_order
from featgraph.graph.partition.cuts import Balance, side_bounds
from featgraph.graph.slices.files import Manifest
from featgraph.graph.slices.write import (
    Edges,
    Rows,
    require_free,
    stored_names,
    write_rows,
    write_slices,
    writing,
)
from featgraph.graph.views.structure import require_fixed

__all__ = ["convert", "write_graph"]

Array = NDArray[Any]
#: Edges that are written at once.
_CHUNK = 1 << 18


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    directed: bool | None = None,
    *,
    order: str = "given",
    parts: int = 16,
    **options: Any,
) -> Manifest:
    """Make a folder of slices of a graph in a file.

    Parameters
    ----------
    source, target : str or path
        A file for `read_graph`; the folder, whose name should end in ``.fgs``.
    directed : bool, optional
    order : {"given", "spread", "locality", "metis"}
        Order in which vertices are stored; ranks read ranges of it. Users see the
        numbers of the file.
    parts : int
        Number of ranks for which "spread" and "metis" are computed.
    **options
        Options of the format's reader.

    Returns
    -------
    Manifest

    Raises
    ------
    FileFormatError
        If the format's reader raises it.
    GraphInputError
        If the folder's name exists already.

    Notes
    -----
    Text is read in pieces, twice, and sorted on disk, with memory for two counts per
    vertex and 0.3 GB. Other orders, ``duplicates=``, ids that are words and compressed
    files need the whole graph in memory.
    """
    folder = Path(target)
    require_options(source, options)
    require_free(folder)
    is_whole = order != "given" or options.get("duplicates", "keep") != "keep"
    if is_whole or suffix_of(source) == SLICES or _is_compressed(source):
        graph = read_graph(source, directed, **options)
        return write_graph(graph, folder, order=order, parts=parts)
    options.pop("duplicates", None)
    layout = read_layout(source, directed, options)
    if layout.are_words or options.get("names") is True:
        graph = read_graph(source, directed, **options)
        return write_graph(graph, folder, parts=parts)
    with writing(folder) as made:
        spool = _Spool(layout, made)
        try:
            return write_slices(made, spool.edges())
        finally:
            spool.remove()


def write_graph(
    graph: Graph, target: str | os.PathLike[str], *, order: str = "given",
    parts: int = 16,
) -> Manifest:  # fmt: skip
    """Make a folder of slices of a graph; see `convert`."""
    require_fixed(graph, "slices of a graph")
    require_free(Path(target))
    names = stored_names(graph.vertex_names)
    ordered = choose_order(graph, order, checked_parts(parts), Balance()).order
    if ordered is not None and graph.sides is not None:
        # Group the order by side, since ranks read a range of each side.
        side_of = np.searchsorted(side_bounds(graph.sides), ordered, "right")
        ordered = ordered[np.argsort(side_of, kind="stable")]
    if ordered is None:
        with writing(Path(target)) as made:
            return write_rows(made, _rows_of(graph, names))
    u, v, weights = graph.sources, graph.targets, graph.weights

    def chunks() -> Iterator[tuple[Array, Array, Array | None]]:
        for begin in range(0, u.size, _CHUNK):
            some = slice(begin, begin + _CHUNK)
            yield u[some], v[some], None if weights is None else weights[some]

    dtype = None if weights is None else weights.dtype
    edges = Edges(
        chunks, graph.vertex_count, graph.directed, dtype, names, ordered, graph.sides
    )
    with writing(Path(target)) as made:
        return write_slices(made, edges)


def _rows_of(graph: Graph, names: Array | None) -> Rows:
    """Return the edges of a graph by target, with its counts and digests."""
    weights = graph.weights
    return Rows(
        graph.in_edges,
        graph.given_index,
        None if weights is None else graph.expand_edge_values(weights),
        None if not graph.directed else np.asarray(graph.out_degree),
        names,
        graph.given_edge_count,
        graph.digest,
        graph.weights_digest,
        graph.sides,
    )


def _is_compressed(path: Any) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == GZIP_MAGIC


class _Spool:
    """The edges of a text file as arrays on disk, so that text is parsed once.

    Ids are stored unchanged until it is known whether they are names. Weights are
    stored as integers until one is not, and converted to reals when they are read.
    """

    def __init__(self, layout: Layout, folder: Path) -> None:
        self._layout, self._seen = layout, Seen(layout)
        self._paths = [folder / f"spool{i}" for i in range(3)]
        self._integers: int | None = None
        self._names, self._new = np.empty(0, np.int64), list[Array]()
        begin, end = layout.range_of(0, 1)
        with ExitStack() as stack:
            streams = [
                stack.enter_context(os.fdopen(create_file(path), "wb"))
                for path in self._paths
            ]
            for block in read_blocks(layout, begin, end):
                self._seen.add(block)
                arrays = (block.sources, block.targets, block.weights)
                for stream, array in zip(streams, arrays, strict=True):
                    if array is not None:
                        stream.write(np.ascontiguousarray(array).data)
                is_real = block.weights is not None and block.weights.dtype.kind == "f"
                if is_real and self._integers is None:
                    self._integers = self._seen.count - block.sources.size
                if layout.are_names:
                    self._note(block.sources, block.targets)
        if layout.are_names:
            self._merge_names()
        self._seen.check(self._seen.count, (self._seen.above, self._seen.below))

    def _note(self, *ends: Array) -> None:
        """Collect names; merge when there are as many new as known ones: O(E log E)."""
        self._new += map(np.unique, ends)
        if sum(names.size for names in self._new) >= max(self._names.size, _CHUNK):
            self._merge_names()

    def _merge_names(self) -> None:
        self._names = np.unique(np.concatenate([self._names, *self._new]))
        self._new.clear()

    def remove(self) -> None:
        """Remove its files."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def edges(self) -> Edges:
        """Return the edges, with names replaced by vertex numbers."""
        layout, names = self._layout, None
        count = layout.vertex_count
        if self._names.size:
            names = self._names
            is_plain = bool(names[0] == 0 and names[-1] == names.size - 1)
            size, names = names.size, None if is_plain else names
            count = named_count(size, names, count)
        elif count is None:
            count = self._seen.highest + 1
        dtype = layout.weights_dtype(self._seen.count, self._integers is not None)
        return Edges(
            lambda: self._chunks(names, dtype),
            checked_count(count),
            layout.directed,
            dtype,
            names,
        )

    def _chunks(
        self, names: Array | None, dtype: Any
    ) -> Iterator[tuple[Array, Array, Array | None]]:
        for begin in range(0, self._seen.count, _CHUNK):
            u, v = (self._piece(path, np.int64, begin) for path in self._paths[:2])
            if names is not None:
                u, v = np.searchsorted(names, u), np.searchsorted(names, v)
            weights = None if dtype is None else self._weights(begin, u.size, dtype)
            yield u.astype(np.int32), v.astype(np.int32), weights

    def _weights(self, begin: int, size: int, dtype: Any) -> Array:
        found = self._piece(self._paths[2], np.int64, begin)
        if dtype == np.int64:
            return found
        first = 0 if "r" in self._layout.kinds else self._integers or 0
        integers = min(max(first - begin, 0), size)
        reals = found.view(np.float64)
        reals[:integers] = found[:integers].astype(np.float64)
        return reals

    def _piece(self, path: Path, dtype: Any, begin: int) -> Array:
        with os.fdopen(open_file(path)[0], "rb") as stream:
            return np.fromfile(stream, dtype, _CHUNK, offset=8 * begin)

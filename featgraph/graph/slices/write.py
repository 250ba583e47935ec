"""A folder of slices, written of edges that come in given order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.graph._structure import structure_digest
from featgraph.graph.slices.files import SliceWriter
from featgraph.graph.slices.manifest import Manifest, SliceArray, write_manifest
from featgraph.graph.slices.sorting import Sorter

__all__ = ["Edges", "write_slices"]

Array = NDArray[Any]
#: What sorting may take.
MEMORY_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges that can be gone through again and again.

    Attributes
    ----------
    chunks : callable
        Returns an iterator over sources, targets and weights, in given order.
    vertex_count : int
    directed : bool
    weights_dtype : dtype or None
    names : ndarray of integers or None
    order : ndarray of int32 or None
        The vertex at each place.
    """

    chunks: Callable[[], Iterator[tuple[Array, Array, Array | None]]]
    vertex_count: int
    directed: bool
    weights_dtype: Any
    names: Array | None = None
    order: Array | None = None


def write_slices(folder: Path, edges: Edges, memory: int = MEMORY_BYTES) -> Manifest:
    """Write arrays and manifest into a folder that is there.

    Parameters
    ----------
    folder : Path
    edges : Edges
    memory : int
        Bytes that sorting takes, about. Beside that there are two counts a vertex.
    """
    counted = _Counted(edges)
    scratch = folder / "parts"
    scratch.mkdir()
    places = _places(edges.order)
    # A record, its place in a sorted order, and its copy there.
    most = memory // 64
    in_counts = counted.given_in
    if edges.order is not None:
        in_counts = in_counts[edges.order]
    sorter = Sorter(scratch, in_counts, edges.weights_dtype, most)
    try:
        stored = _fill(sorter, edges, places)
        arrays = _write_edges(folder, sorter, edges.weights_dtype)
    finally:
        sorter.close()
    scratch.rmdir()
    arrays |= _write_vertices(folder, edges, counted, in_counts)
    manifest = Manifest(
        edges.vertex_count,
        counted.given,
        int(counted.all_in.sum()),
        edges.directed,
        structure_digest(edges.vertex_count, edges.directed, counted.ends_text),
        counted.weights_text,
        stored,
        arrays,
    )
    write_manifest(folder, manifest)
    return manifest


class _Counted:
    """What is known of all edges: how many lead into each vertex, and digests.

    Attributes
    ----------
    given : int
    given_in : ndarray of int64, shape (V,)
        Edges as given into each vertex.
    all_in : ndarray of int64, shape (V,)
        Twins, too.
    """

    def __init__(self, edges: Edges) -> None:
        from featgraph.graph.building import digests, kernels  # loads Numba

        self.given = 0
        self.given_in = np.zeros(edges.vertex_count, np.int64)
        self.all_in = self.given_in
        if not edges.directed:
            self.all_in = np.zeros(edges.vertex_count, np.int64)
        ends, values = digests.no_sums(), digests.no_sums()
        for u, v, weights in edges.chunks():
            kernels.count_one(v, self.given_in)
            if not edges.directed:
                kernels.count_both(u, v, self.all_in)
            digests.add_ends(ends, self.given, u, v)
            if weights is not None:
                digests.add_values(values, self.given, weights)
            self.given += u.size
        self.ends_text = digests.text_of(ends)
        dtype = edges.weights_dtype
        text = digests.text_of(values)
        self.weights_text = "" if dtype is None else f"{np.dtype(dtype)} {text}"


def _places(order: Array | None) -> Array | None:
    if order is None:
        return None
    places = np.empty_like(order)
    places[order] = np.arange(order.size, dtype=order.dtype)
    return places


def _fill(sorter: Sorter, edges: Edges, places: Array | None) -> str:
    """Hand all edges to a sorter, by places; return their digest as stored."""
    from featgraph.graph.building import digests  # loads Numba

    sums, row = digests.no_sums(), 0
    for source, target, weights in edges.chunks():
        u, v = source, target
        if places is not None:
            u, v = places[u], places[v]
        digests.add_ends(sums, row, u, v)
        sorter.add(u, v, row, weights)
        row += u.size
    return digests.text_of(sums)


def _write_edges(folder: Path, sorter: Sorter, dtype: Any) -> dict[str, SliceArray]:
    fields = {"sources": ("u", "<i4"), "rows": ("row", "<i8")}
    if dtype is not None:
        fields["weights"] = ("w", dtype)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(SliceWriter(folder, name, kind))
            for name, (_, kind) in fields.items()
        }
        for records in sorter.sorted():
            for name, writer in writers.items():
                writer.write(records[fields[name][0]])
        return {name: writer.finish() for name, writer in writers.items()}


def _write_vertices(
    folder: Path, edges: Edges, counted: _Counted, given_in: Array
) -> dict[str, SliceArray]:
    all_in, order = counted.all_in, edges.order
    arrays: dict[str, Array] = {}
    if order is not None:
        starts = np.cumsum(all_in) - all_in
        arrays |= {"order": order, "starts": starts[order]}
        all_in = all_in[order]
    begins = np.arange(0, edges.vertex_count, 32)
    arrays["offsets"] = np.concatenate(([0], np.cumsum(given_in)))
    arrays["words"] = np.add.reduceat(all_in, begins)
    if edges.names is not None:
        arrays["names"] = edges.names
    found = {}
    for name, array in arrays.items():
        with SliceWriter(folder, name, array.dtype) as writer:
            writer.write(array)
            found[name] = writer.finish()
    return found

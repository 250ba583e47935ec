"""Arrays of a graph that was built on the GPU, by their names in generated code.

`built_array` returns the array of a name, made of `GpuEdges`. `longest_first`,
`parts_of_rows` and `joined_parts` make the lists of hubs that schedules sweep; the host
uses them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda import arrays, sorting
from featgraph.fold.plan.traits import (
    HUB_DEGREE,
    HUB_PART,
    JOINED_PART,
    LONG_ROW,
    REVERSED,
    Rows,
    hub_degree_of,
    rows_along,
    rows_with,
    windows_of,
)
from featgraph.graph import Graph
from featgraph.graph.building import gpu_edge_kernels as kernels
from featgraph.graph.building.gpu_edges import GpuEdges, marked
from featgraph.graph.views.structure import (
    gpu_edges,
    gpu_oriented,
    has_degrees_of_whole,
)

__all__ = [
    "built_array", "joined_parts", "longest_first", "oriented_array", "parts_of_rows",
]  # fmt: skip

Array = Any
#: A function that makes a list of hubs from ascending rows and their lengths.
Listing = Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[np.int32]]

#: Beginnings, up to "_", of the names of arrays of the oriented graph.
_ORIENTED = frozenset({"upper", "lower", "both", "order", "degree"})


def built_array(graph: Graph, name: str) -> Array | None:
    """Return an array of a graph, on the GPU; None if the host has to build it.

    It equals the array that the host builds of the same edges, bit for bit.
    """
    if name in {"in_degree", "out_degree"} and has_degrees_of_whole(graph):
        return None
    edges = gpu_edges(graph)
    made = _makers(edges).get(name)
    if made is not None:
        return made()
    found = oriented_array(graph, name)
    if found is not None:
        return found
    of, windows = rows_with(name), windows_of(name)
    if of is not None and hub_degree_of(name):
        listed = joined_parts if name.startswith(of.joined_parts) else longest_first
        return _find_hubs(edges, _along(of), listed, hub_degree_of(name))
    if windows is None:
        return None
    rows, vertices, most = windows
    along = _along(rows)
    return _cut_windows(_offsets(edges, along), vertices, most)


def _makers(edges: GpuEdges) -> dict[str, Callable[[], Array]]:
    """Return a dictionary: name of an array -> function that builds it."""
    made: dict[str, Callable[[], Array]] = {
        "in_degree": partial(edges.degrees, "in", np.int32),
        "out_degree": partial(edges.degrees, "out", np.int32),
        "edge_twin": partial(edges.edge_ids, "out"),
        "edge_is_twin": partial(_is_twin, edges),
    }
    for along in REVERSED:
        names = rows_along(along)
        made |= {
            names.offsets: partial(_offsets, edges, along),
            names.ends: partial(_ends, edges, along),
            names.hubs: partial(_find_hubs, edges, along, longest_first),
            names.hub_parts: partial(_find_hubs, edges, along, parts_of_rows),
            names.joined_parts: partial(_find_hubs, edges, along, joined_parts),
        }
        if names.edges:
            made[names.edges] = partial(edges.edge_ids, along)
    return made


def oriented_array(graph: Graph, name: str) -> Array | None:
    """Return an array of the oriented graph; None for names of other arrays."""
    rows, _, array = name.partition("_")
    if rows not in _ORIENTED:
        return None
    oriented = gpu_oriented(graph)
    if name == "upper_hubs":
        return arrays.upload(longest_first(*oriented.long_rows(LONG_ROW)))
    if rows == "order":
        return oriented.vertices
    if rows == "degree":
        return oriented.degree_order
    return getattr(getattr(oriented, rows), {"positions": "edges"}.get(array, array))


def _offsets(edges: GpuEdges, along: str) -> Array:
    return edges.rows(along).offsets


def _ends(edges: GpuEdges, along: str) -> Array:
    return edges.rows(along).ends


def _is_twin(edges: GpuEdges) -> Array:
    """Return for each edge id whether the edge is a twin: a bool array."""
    given = edges.given_index
    made = arrays.empty(given.shape, np.bool_)
    bits = made.view(np.uint8)
    arrays.launch_over(kernels.is_twin, given.size, given, edges.given_count, bits)
    return made


def _along(rows: Rows) -> str:
    """Return the direction of rows: "in", "out" or "both"."""
    return next(a for a in REVERSED if rows_along(a) == rows)


def _find_hubs(
    edges: GpuEdges, along: str, listed: Listing, least: int | None = None
) -> Array:
    """Return the list of rows with at least `least` edges (default `HUB_DEGREE`).

    A kernel finds the rows, and the host sorts them and makes the list.
    """
    rows, least = edges.rows(along), least or HUB_DEGREE
    count = arrays.filled((1,), 0, np.int32)
    # At most this many rows can be that long.
    found = arrays.empty((rows.ends.size // least + 1, 2), np.int64)
    arrays.launch_over(
        kernels.find_hubs, edges.vertex_count, rows.offsets, least, found, count
    )
    hubs = arrays.read(found)[: arrays.read(count)[0]]
    hubs = hubs[np.argsort(hubs[:, 0])]
    return arrays.upload(listed(hubs[:, 0], hubs[:, 1]))


def longest_first(
    rows: npt.NDArray[Any], length: npt.NDArray[Any]
) -> npt.NDArray[np.int32]:
    """Sort ascending rows by descending length; equal ones keep their order."""
    return rows[np.argsort(-length, kind="stable")].astype(np.int32)


def parts_of_rows(
    rows: npt.NDArray[Any], length: npt.NDArray[Any]
) -> npt.NDArray[np.int32]:
    """Cut rows into parts of `HUB_PART` edges, as triples (row, begin, end).

    Begin and end count from the start of the row. The parts of a row are consecutive.
    """
    counts = -(-length // HUB_PART)
    part = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    last = np.minimum((part + 1) * HUB_PART, np.repeat(length, counts))
    parts = np.stack([np.repeat(rows, counts), part * HUB_PART, last], axis=1)
    return parts.astype(np.int32).ravel()


def joined_parts(
    rows: npt.NDArray[Any], length: npt.NDArray[Any]
) -> npt.NDArray[np.int32]:
    """Cut rows into equal parts of about `JOINED_PART` edges.

    A part has five numbers: its row; its begin and end, counted from the start of the
    row; the index of the row's first part; and the number of its parts. Rows are in
    descending order of their length, as `longest_first` returns them.
    """
    order = np.argsort(-length, kind="stable")
    rows, length = rows[order], length[order].astype(np.int64)
    counts = np.maximum((length + JOINED_PART // 2) // JOINED_PART, 1)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    part, of = np.arange(counts.sum()) - firsts, np.repeat(counts, counts)
    whole = np.repeat(length, counts)
    begins, ends = part * whole // of, (part + 1) * whole // of
    parts = np.stack([np.repeat(rows, counts), begins, ends, firsts, of], axis=1)
    return parts.astype(np.int32).ravel()


def _cut_windows(offsets: Array, vertices: int, edges: int) -> Array:
    """Return the first vertex of each window, as `cut_windows` does on the host."""
    count = offsets.size - 1
    short = arrays.empty((count,), np.int64)
    arrays.launch_over(kernels.short_degrees, count, offsets, HUB_DEGREE, short)
    before, total = sorting.scanned(short)
    is_first = arrays.empty((count + 1,), np.int32)
    arrays.launch_over(
        kernels.mark_windows, count + 1, before, total, vertices, edges, is_first
    )
    return marked(is_first)

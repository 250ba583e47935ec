"""Arrays of a graph built on the host, by their names in generated code.

`host_graph_array` returns the array of a name: rows of edges, the oriented graph,
windows, or cuts into chunks. The other functions make the cuts by which kernels divide
words, rows or edges between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.interrupts import import_whole
from featgraph.fold.plan.traits import (
    HUB_DEGREE,
    NUMBER,
    SUM_BLOCK,
    rows_along,
    rows_with,
    windows_of,
)
from featgraph.graph import Graph
from featgraph.graph.views.structure import incident_columns, out_columns
from featgraph.program.active import word_count
from featgraph.runtime.devices.cpu_sweeps import CHUNKS_PER_THREAD, SMALLEST_CHUNK

__all__ = [
    "REDUCE_CHUNKS",
    "cut_blocks",
    "cut_words",
    "edge_chunks",
    "host_graph_array",
    "oriented_array",
    "row_chunks",
]


#: Most chunks of a reduce over all vertices, for any number of threads: enough for 32
#: threads, and few enough that their cost is negligible.
REDUCE_CHUNKS = 512


#: `along` -> function that returns the rows of edges of all vertices.
_ADJACENCIES: dict[str, Callable[[Graph], Any]] = {
    "in": lambda graph: graph.in_edges,
    "out": lambda graph: graph.out_edges,
    "both": lambda graph: graph.incident_edges,
}


#: The same for rows without edge ids, if these take less work to build.
_COLUMNS: dict[str, Callable[[Graph], Any]] = {
    "out": out_columns,
    "both": incident_columns,
}


def host_graph_array(graph: Graph, name: str) -> npt.NDArray[Any]:
    """Return a host array of the graph by its name in generated code."""
    for along, adjacency in _ADJACENCIES.items():
        rows = rows_along(along)
        if name == rows.edges:
            return adjacency(graph).edge_ids  # type: ignore[no-any-return]
        columns = _COLUMNS.get(along, adjacency)
        if name == rows.offsets:
            return columns(graph).row_offsets  # type: ignore[no-any-return]
        if name == rows.ends:
            return columns(graph).column_indices  # type: ignore[no-any-return]
    if name == "edge_twin":
        return graph.twins
    if name.startswith(("upper_", "lower_", "both_", "order_", "degree_")):
        return oriented_array(graph.oriented, name)
    if name == "triangle_chunks":
        return row_chunks(graph.oriented.work)
    if name == "edge_chunks":
        return edge_chunks(graph.edge_count)
    if name == "edge_word_chunks":
        return edge_chunks(word_count(graph.edge_count), _LEAST_EDGES // 32)
    if name == "word_chunks":
        return np.arange(word_count(graph.vertex_count) + 1)
    if name == "vertex_blocks":
        return cut_blocks(cut_words(graph.vertex_count))
    if name == "edge_is_twin":
        return np.asarray(graph.given_index >= graph.given_edge_count, np.bool_)
    if name == NUMBER:
        return np.array(graph.vertex_numbers)
    if name in {"in_degree", "out_degree"}:
        return np.ascontiguousarray(getattr(graph, name), np.int32)
    windows = windows_of(name)
    if windows is not None:
        rows, *limits = windows
        return cut_windows(np.diff(host_graph_array(graph, rows.offsets)), *limits)
    return _chunks(graph, name)


def cut_windows(
    degree: npt.NDArray[Any], vertices: int, edges: int, hub_degree: int | None = None
) -> npt.NDArray[np.int32]:
    """Cut vertices into windows; return the first vertex of each window, and the end.

    Each run of `vertices` consecutive vertices is one window, or several with about
    `edges` edges each. Edges of hubs do not count, since blocks sweep them; these have
    at least `hub_degree` edges (default `HUB_DEGREE`).
    """
    hub_degree = hub_degree or HUB_DEGREE
    count = degree.size
    begins = np.arange(0, count, vertices)
    before = np.zeros(count + 1, np.int64)
    np.cumsum(np.where(degree >= hub_degree, 0, degree), out=before[1:])
    first, total = before[begins], np.diff(before[np.append(begins, count)])
    parts = np.maximum((total + edges // 2) // edges, 1)
    of = np.arange(count) // vertices
    share = (before[:count] - first[of]) * parts[of] // np.maximum(total, 1)[of]
    is_first = np.append(True, share[1:] != share[:-1])[:count]
    is_first[begins] = True
    return np.append(np.flatnonzero(is_first), count).astype(np.int32)


def oriented_array(oriented: Any, name: str) -> npt.NDArray[Any]:
    """Return an array of an oriented graph by its name: see `Oriented`."""
    rows, _, array = name.partition("_")
    if name in {"order_vertex", "degree_order"}:
        found: npt.NDArray[Any] = (
            oriented.vertices if name == "order_vertex" else oriented.degree_order
        )
        return found
    adjacency = getattr(oriented, rows)  # upper, lower or both
    arrays: dict[str, Any] = {
        "offsets": adjacency.row_offsets,
        "orders": adjacency.column_indices,
        "edges": adjacency.edge_ids,
        "positions": adjacency.edge_ids,
    }
    return arrays[array]  # type: ignore[no-any-return]


#: Fewest edges of a chunk of equal size.
_LEAST_EDGES = 4096


def edge_chunks(count: int, least: int = _LEAST_EDGES) -> npt.NDArray[np.int64]:
    """Return cuts of edge ids, or words of them, into chunks of equal size."""
    threads = import_whole("numba").get_num_threads()
    chunks = max(1, min(threads * CHUNKS_PER_THREAD, count // least))
    return np.linspace(0, count, chunks + 1).astype(np.int64)


def row_chunks(work: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return cuts of oriented rows into chunks of about equal work."""
    threads = import_whole("numba").get_num_threads()
    total = np.concatenate([[0], np.cumsum(work)])
    # Each chunk clears an array over all vertices first.
    smallest = max(SMALLEST_CHUNK, work.size)
    most = threads * CHUNKS_PER_THREAD
    count = max(1, min(most, int(total[-1]) // smallest))
    cuts = np.searchsorted(total, np.linspace(0, total[-1], count + 1)[1:-1])
    return np.unique(np.concatenate([[0], cuts, [work.size]])).astype(np.int64)


def _chunks(graph: Graph, name: str) -> npt.NDArray[np.int64]:
    """Return indices of words that cut the vertices into chunks of about equal work.

    For names that end in " blocks", chunks are cut at blocks of a reduce, and the
    indices are those of blocks.
    """
    of = rows_with(name)
    edges_before = None if of is None else host_graph_array(graph, of.offsets)
    cuts = cut_words(graph.vertex_count, edges_before)
    if not name.endswith(" blocks"):
        return cuts
    blocks = host_graph_array(graph, "vertex_blocks")
    inner = np.unique(np.searchsorted(blocks[:-1], cuts[1:-1]))
    last = blocks.size - 1
    return np.array([0, *inner[(inner > 0) & (inner < last)], last])


def cut_blocks(chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return cuts of the chunks of a reduce into blocks, in which reals are summed.

    All chunks have the same number of blocks, a power of two; the last ones may be
    empty. Blocks can so be added up in pairs of neighbors, without regard to chunks.
    """
    block = SUM_BLOCK // 32
    most = -(-int(np.diff(chunks).max()) // block)
    count = 1 << max(most - 1, 0).bit_length()
    begins = chunks[:-1, None] + block * np.arange(count)
    return np.append(np.minimum(begins, chunks[1:, None]), chunks[-1])


def cut_words(
    count: int, edges_before: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.int64]:
    """Return cuts of the words of `count` vertices into chunks of about equal work.

    Parameters
    ----------
    count : int
    edges_before : ndarray, optional
        Offsets of rows, shape (V + 1,). Without it the cuts are those of a reduce, the
        same for any number of threads.
    """
    words = word_count(count)
    work = np.full(words, 32, np.int64)
    most = min(words, import_whole("numba").get_num_threads() * CHUNKS_PER_THREAD)
    if edges_before is None:  # a reduce: same bits for any number of threads
        most = min(words, REDUCE_CHUNKS)
    else:
        ends = np.minimum(np.arange(words + 1) * 32, count)
        work += np.diff(edges_before[ends]).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(work)])
    chunks = max(1, min(most, int(total[-1]) // SMALLEST_CHUNK))
    cuts = np.searchsorted(total, np.linspace(0, total[-1], chunks + 1)[1:-1])
    inner = np.unique(np.concatenate([[0], cuts])).astype(np.int64)
    # Without vertices there is one chunk: a reduce stores its identity.
    return np.append(inner[inner < max(words, 1)], words)

"""Quick checks of answers on graphs with tens of millions of edges.

They follow from the definition of an answer, as in the GAP benchmark, and share
nothing with the framework: the graph is (offsets, neighbors), rows of in-edges, with
both directions of every edge where it has none. Each returns what a result's ``checks``
hold, with ``ok``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

__all__ = [
    "betweenness_checks",
    "bfs_checks",
    "components_checks",
    "pagerank_checks",
    "sssp_checks",
    "triangles_checks",
]

Array = Any
Rows = tuple[Array, Array]


def bfs_checks(rows: Rows, source: int, levels: Array, parents: Array) -> Any:
    """Check that edges lead at most one level on, and that parents are one level up."""
    wrong = int(_wrong_levels(*rows, source, levels, parents).sum())
    return {"ok": wrong == 0, "wrong": wrong, "reached": int((levels >= 0).sum())}


@njit(parallel=True)
def _wrong_levels(offsets, neighbors, source, levels, parents):  # type: ignore[no-untyped-def]
    wrong = np.zeros(offsets.size - 1, np.bool_)
    for v in prange(wrong.size):
        has_parent = levels[v] < 0 or v == source
        bad = (levels[v] == 0) != (v == source)
        for slot in range(offsets[v], offsets[v + 1]):
            u = neighbors[slot]
            if levels[u] >= 0 and (levels[v] < 0 or levels[v] > levels[u] + 1):
                bad = True
            if u == parents[v] and levels[u] == levels[v] - 1:
                has_parent = True
        wrong[v] = bad or not has_parent
    return wrong


def sssp_checks(
    rows: Rows, weights: Array, source: int, distances: Array, predecessors: Array
) -> Any:
    """Check that no edge shortens a path, and that a last edge gives each distance."""
    found = _wrong_distances(*rows, weights, source, distances, predecessors)
    wrong, reached = int(found.sum()), int(np.isfinite(distances).sum())
    return {"ok": wrong == 0, "wrong": wrong, "reached": reached}


@njit(parallel=True)
def _wrong_distances(offsets, neighbors, weights, source, distances, predecessors):  # type: ignore[no-untyped-def]
    wrong = np.zeros(offsets.size - 1, np.bool_)
    for v in prange(wrong.size):
        is_tight = v == source or np.isinf(distances[v])
        bad = (distances[v] == 0) != (v == source)
        for slot in range(offsets[v], offsets[v + 1]):
            through = distances[neighbors[slot]] + weights[slot]
            if distances[v] > through:
                bad = True
            if neighbors[slot] == predecessors[v] and distances[v] == through:
                is_tight = True
        wrong[v] = bad or not is_tight
    return wrong


def components_checks(rows: Rows, labels: Array) -> Any:
    """See that labels are equal along edges, smallest, and as many as components."""
    count = int(_components(*rows))
    roots = np.unique(labels)
    is_right = (
        not _unequal_along_edges(*rows, labels).any()
        and bool((labels <= np.arange(labels.size)).all())
        and bool((labels[roots] == roots).all())
        and roots.size == count
    )
    return {"ok": is_right, "components": count}


@njit(parallel=True)
def _unequal_along_edges(offsets, neighbors, labels):  # type: ignore[no-untyped-def]
    wrong = np.zeros(offsets.size - 1, np.bool_)
    for v in prange(wrong.size):
        for slot in range(offsets[v], offsets[v + 1]):
            if labels[neighbors[slot]] != labels[v]:
                wrong[v] = True
    return wrong


@njit
def _components(offsets, neighbors):  # type: ignore[no-untyped-def]
    """Count components by union and find."""
    above = np.arange(offsets.size - 1)
    count = above.size
    for v in range(above.size):
        for slot in range(offsets[v], offsets[v + 1]):
            a, b = v, neighbors[slot]
            while above[a] != a:
                above[a] = above[above[a]]
                a = above[a]
            while above[b] != b:
                above[b] = above[above[b]]
                b = above[b]
            if a != b:
                above[max(a, b)] = min(a, b)
                count -= 1
    return count


def pagerank_checks(
    rows: Rows, degree: Array, ranks: Array, alpha: float, iterations: int
) -> Any:
    """Iterate as often in float64; `degree` is that of out-edges."""
    x = np.full(degree.size, 1 / degree.size)
    for _ in range(iterations):
        lost = alpha * x[degree == 0].sum() + (1 - alpha) * x.sum()
        x = alpha * _inflow(*rows, x / np.maximum(degree, 1)) + lost / x.size
    apart = float(np.abs(ranks - x).sum())
    return {"ok": apart < 1e-4, "l1_apart": apart}


@njit(parallel=True)
def _inflow(offsets, neighbors, sent):  # type: ignore[no-untyped-def]
    found = np.zeros(sent.size)
    for v in prange(sent.size):
        total = 0.0
        for slot in range(offsets[v], offsets[v + 1]):
            total += sent[neighbors[slot]]
        found[v] = total
    return found


def triangles_checks(rows: Rows, total: int) -> Any:
    """Count as many in an undirected graph by looking up neighbors of neighbors."""
    counted = int(_triangles(*rows, _PARTS))
    return {"ok": counted == total, "triangles": counted}


#: Vertices are dealt out to so many, each with a bit for every vertex.
_PARTS = 1024


@njit(parallel=True)
def _triangles(offsets, neighbors, parts):  # type: ignore[no-untyped-def]
    count = offsets.size - 1
    degree = offsets[1:] - offsets[:-1]
    # Out-neighbors: of larger (degree, id). A vertex has few of them.
    starts = np.zeros(count + 1, np.int64)
    for v in prange(count):
        more = 0
        for slot in range(offsets[v], offsets[v + 1]):
            u = neighbors[slot]
            if degree[u] > degree[v] or (degree[u] == degree[v] and u > v):
                more += 1
        starts[v + 1] = more
    for v in range(count):
        starts[v + 1] += starts[v]
    ends = np.empty(starts[count], np.int32)
    for v in prange(count):
        place = starts[v]
        for slot in range(offsets[v], offsets[v + 1]):
            u = neighbors[slot]
            if degree[u] > degree[v] or (degree[u] == degree[v] and u > v):
                ends[place] = u
                place += 1
    found = np.zeros(parts, np.int64)
    for part in prange(parts):
        is_mine = np.zeros(count // 32 + 1, np.uint32)
        here = 0
        for v in range(part, count, parts):
            for slot in range(starts[v], starts[v + 1]):
                is_mine[ends[slot] >> 5] |= np.uint32(1 << (ends[slot] & 31))
            for slot in range(starts[v], starts[v + 1]):
                u = ends[slot]
                for other in range(starts[u], starts[u + 1]):
                    w = ends[other]
                    here += (is_mine[w >> 5] >> (w & 31)) & 1
            for slot in range(starts[v], starts[v + 1]):
                is_mine[ends[slot] >> 5] = 0
        found[part] = here
    return found.sum()


def betweenness_checks(dependencies: Array, levels: list[Array]) -> Any:
    """Add up: dependencies of a source are the levels of the others less one."""
    inner = sum(float((x[x > 0] - 1).sum()) for x in levels)
    total = float(np.sum(dependencies))
    relative = abs(total - inner) / max(inner, 1.0)
    is_right = relative < 1e-9 and bool((np.asarray(dependencies) >= 0).all())
    return {"ok": is_right, "relative": relative}

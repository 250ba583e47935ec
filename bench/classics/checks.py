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
from scipy import sparse
from scipy.sparse import csgraph

Array = Any
Rows = tuple[Array, Array]


def _targets(rows: Rows) -> Array:
    """Return the target of each edge; ``rows[1]`` has the sources."""
    return np.repeat(np.arange(rows[0].size - 1, dtype=np.int32), np.diff(rows[0]))


def _marked(count: int, vertices: Array) -> Array:
    """Return the mask of some vertices, which may be repeated."""
    mask = np.zeros(count, np.bool_)
    mask[vertices] = True
    return mask


def _matrix(rows: Rows) -> Any:
    """Return a CSR matrix of ones, row v the in-edges of v."""
    count = rows[0].size - 1
    parts = np.ones(rows[1].size), rows[1], rows[0]
    return sparse.csr_array(parts, shape=(count, count))


def bfs_checks(rows: Rows, source: int, levels: Array, parents: Array) -> Any:
    """Check that edges lead at most one level on, and that parents are one level up."""
    u, v, count = rows[1], _targets(rows), levels.size
    is_source = np.arange(count) == source
    is_late = (levels[u] >= 0) & ((levels[v] < 0) | (levels[v] > levels[u] + 1))
    from_parent = (u == parents[v]) & (levels[u] == levels[v] - 1)
    found = ((levels == 0) != is_source) | _marked(count, v[is_late])
    found |= ~(_marked(count, v[from_parent]) | (levels < 0) | is_source)
    wrong = int(found.sum())
    return {"ok": wrong == 0, "wrong": wrong, "reached": int((levels >= 0).sum())}


def sssp_checks(
    rows: Rows, weights: Array, source: int, distances: Array, predecessors: Array
) -> Any:
    """Check that no edge shortens a path, and that a last edge gives each distance."""
    u, v, count = rows[1], _targets(rows), distances.size
    is_source, through = np.arange(count) == source, distances[u] + weights
    is_last = (u == predecessors[v]) & (distances[v] == through)
    found = ((distances == 0) != is_source) | _marked(count, v[distances[v] > through])
    found |= ~(_marked(count, v[is_last]) | np.isinf(distances) | is_source)
    wrong, reached = int(found.sum()), int(np.isfinite(distances).sum())
    return {"ok": wrong == 0, "wrong": wrong, "reached": reached}


def components_checks(rows: Rows, labels: Array) -> Any:
    """See that labels are equal along edges, smallest, and as many as components."""
    count = int(csgraph.connected_components(_matrix(rows), directed=False)[0])
    roots = np.unique(labels)
    is_right = (
        np.array_equal(labels[rows[1]], labels[_targets(rows)])
        and bool((labels <= np.arange(labels.size)).all())
        and bool((labels[roots] == roots).all())
        and roots.size == count
    )
    return {"ok": is_right, "components": count}


def pagerank_checks(
    rows: Rows, degree: Array, ranks: Array, alpha: float, iterations: int
) -> Any:
    """Iterate as often in float64; `degree` is that of out-edges."""
    x, matrix = np.full(degree.size, 1 / degree.size), _matrix(rows)
    for _ in range(iterations):
        lost = alpha * x[degree == 0].sum() + (1 - alpha) * x.sum()
        x = alpha * (matrix @ (x / np.maximum(degree, 1))) + lost / x.size
    apart = float(np.abs(ranks - x).sum())
    return {"ok": apart < 1e-4, "l1_apart": apart}


def triangles_checks(rows: Rows, total: int) -> Any:
    """Count as many in an undirected graph by looking up neighbors of neighbors."""
    u, v, degree = rows[1], _targets(rows), np.diff(rows[0])
    # Out-neighbors: of larger (degree, id). A vertex has few of them.
    is_out = (degree[u] > degree[v]) | ((degree[u] == degree[v]) & (u > v))
    begins = np.append(0, np.cumsum(np.bincount(v[is_out], minlength=degree.size)))
    counted = int(_triangles(begins, u[is_out], _PARTS))
    return {"ok": counted == total, "triangles": counted}


#: Vertices are dealt out to so many, each with a bit for every vertex.
_PARTS = 1024


@njit(parallel=True)
def _triangles(begins, ends, parts):  # type: ignore[no-untyped-def]
    count = begins.size - 1
    found = np.zeros(parts, np.int64)
    for part in prange(parts):
        is_mine = np.zeros(count // 32 + 1, np.uint32)
        here = 0
        for v in range(part, count, parts):
            own = ends[begins[v] : begins[v + 1]]
            for u in own:
                is_mine[u >> 5] |= np.uint32(1 << (u & 31))
            for u in own:
                for w in ends[begins[u] : begins[u + 1]]:
                    here += (is_mine[w >> 5] >> (w & 31)) & 1
            for u in own:
                is_mine[u >> 5] = 0
        found[part] = here
    return found.sum()


def betweenness_checks(dependencies: Array, levels: list[Array]) -> Any:
    """Add up: dependencies of a source are the levels of the others less one."""
    inner = sum(float((x[x > 0] - 1).sum()) for x in levels)
    total = float(np.sum(dependencies))
    relative = abs(total - inner) / max(inner, 1.0)
    is_right = relative < 1e-9 and bool((np.asarray(dependencies) >= 0).all())
    return {"ok": is_right, "relative": relative}

"""The source's own form: pages, locks and a queue, with a thread for each update.

A page has 64 bytes: 15 neighbors, and the number of the next page. An update locks its
row, walks all of its pages for the edge, and appends it, or moves the last edge into
the gap. Freed pages wait in a ring; a page is taken from there, or else from a counter.
No device code of featgraph is used. (``NUMBA_ENABLE_CUDASIM=1`` runs it on a host.)

All updates of a hub wait for its lock, and each walks its whole chain: batches to one
hub take hours.

By `STRATEGIES`, a thread or a warp takes a row (a chain of pages) or a page of an
undirected graph. PageRank pulls, and drops the ranks of vertices without edges. A
triangle v > u > w is found in the row of v; the row of u is searched for w.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from bench.dynamic.contenders import Edges, Holder, cuda_array

#: Neighbors of a page, threads of a block, and damping of PageRank.
HELD, THREADS, ALPHA = 15, 256, 0.85
#: Neighbors of a row or a page that are taken at a time, and by how many threads.
STRATEGIES = {
    "naive": (2**30, 1), "page": (HELD, 1), "warp": (2**30, 32), "both": (HELD, 32)
}  # fmt: skip
#: Pages for the edges of ten batches of a million.
ROOM = 10_000_000 // HELD
#: Counters: pages that wait, the first of them in the ring, the place behind the last,
#: and pages that were taken from the counter.
WAITING, HEAD, TAIL, NEXT = range(4)


@cuda.jit
def update(rows, ends, inserts, vertices, pages, ring, counters):  # type: ignore[no-untyped-def]
    """Add edges that are not there yet, or take edges out."""
    first, degree, locks = vertices[0], vertices[1], vertices[2]
    i = cuda.grid(1)
    waits = i < rows.size
    while waits:
        v, u = rows[i], ends[i]
        if cuda.atomic.cas(locks, v, 0, 1) != 0:
            continue
        cuda.threadfence()
        count, page, holder, slot = degree[v], first[v], -1, 0
        for k in range(count):
            if k % HELD == 0 and k > 0:
                page = pages[page, HELD]
            if pages[page, k % HELD] == u:
                holder, slot = page, k % HELD
        if inserts and holder < 0:
            if count % HELD == 0:
                if cuda.atomic.sub(counters, WAITING, 1) > 0:
                    fresh = ring[cuda.atomic.add(counters, HEAD, 1) % ring.size]
                else:
                    cuda.atomic.add(counters, WAITING, 1)
                    fresh = cuda.atomic.add(counters, NEXT, 1)
                if count == 0:
                    first[v] = fresh
                else:
                    pages[page, HELD] = fresh
                page = fresh
            pages[page, count % HELD] = u
            degree[v] = count + 1
        elif holder >= 0 and not inserts:
            pages[holder, slot] = pages[page, (count - 1) % HELD]
            degree[v] = count - 1
            if count % HELD == 1:
                ring[cuda.atomic.add(counters, TAIL, 1) % ring.size] = page
                cuda.atomic.add(counters, WAITING, 1)
        cuda.threadfence()
        cuda.atomic.exch(locks, v, 0)
        waits = False


@cuda.jit
def cut(vertices, pages, size, pieces, counter):  # type: ignore[no-untyped-def]
    """List pieces of rows: vertex, page, and number of neighbors."""
    first, degree = vertices[0], vertices[1]
    v = cuda.grid(1)
    if v < first.size and degree[v] > 0:
        count, page = (degree[v] + size - 1) // size, first[v]
        place = cuda.atomic.add(counter, 0, count)
        for k in range(count):
            pieces[0, place + k], pieces[1, place + k] = v, page
            pieces[2, place + k] = min(size, degree[v] - k * size)
            page = pages[page, HELD]


@cuda.jit
def share(degree, sums, shares):  # type: ignore[no-untyped-def]
    """Share the rank of each vertex among its neighbors."""
    v = cuda.grid(1)
    if v < sums.size:
        rank = np.float32((1 - ALPHA) / sums.size + ALPHA * sums[v])
        shares[v], sums[v] = rank / max(degree[v], 1), 0


@cuda.jit
def pull(pieces, count, lanes, pages, shares, sums):  # type: ignore[no-untyped-def]
    """Add the shares of the neighbors in each piece to the sum of its vertex."""
    i, lane = cuda.grid(1) // lanes, cuda.grid(1) % lanes
    if i < count and lane < pieces[2, i]:
        total, page, at = np.float32(0), pieces[1, i], 0
        for k in range(lane, pieces[2, i], lanes):
            while at < k // HELD:
                page, at = pages[page, HELD], at + 1
            total += shares[pages[page, k % HELD]]
        cuda.atomic.add(sums, pieces[0, i], total)


@cuda.jit(device=True)
def holds(pages, page, count, w, is_sorted):  # type: ignore[no-untyped-def]
    """Return whether a chain of pages has a neighbor."""
    for k in range(count):
        if k % HELD == 0 and k > 0:
            page = pages[page, HELD]
        other = pages[page, k % HELD]
        if other == w or (is_sorted and other > w):
            return other == w
    return False


@cuda.jit
def count_triangles(pieces, count, lanes, vertices, pages, is_sorted, counts):  # type: ignore[no-untyped-def]
    """Count triangles at all of their corners. Sorted rows are left early."""
    first, degree = vertices[0], vertices[1]
    i, lane = cuda.grid(1) // lanes, cuda.grid(1) % lanes
    if i < count:
        v, page, at = pieces[0, i], pieces[1, i], 0
        for k in range(lane, pieces[2, i], lanes):
            while at < k // HELD:
                page, at = pages[page, HELD], at + 1
            u, own = pages[page, k % HELD], first[v]
            for m in range(degree[v] if u < v else 0):
                if m % HELD == 0 and m > 0:
                    own = pages[own, HELD]
                w = pages[own, m % HELD]
                if w < u and holds(pages, first[u], degree[u], w, is_sorted):
                    for corner in (v, u, w):
                        cuda.atomic.add(counts, corner, 1)
                if w >= u and is_sorted:
                    break


class Pages(Holder):
    """Rows of pages on a GPU, without weights; the host lays the first ones out."""

    is_there = True

    def __init__(self, edges: Any, vertex_count: int, target: str = "cuda") -> None:
        rows, ends = (array.copy_to_host() for array in edges)
        degree = np.bincount(rows, minlength=vertex_count).astype(np.int32)
        counts = -(-degree // HELD)
        begins = np.cumsum(counts) - counts
        order = np.argsort(rows, kind="stable")
        place = np.arange(rows.size) - np.repeat(np.cumsum(degree) - degree, degree)
        size = 2 * int(counts.sum()) + vertex_count + ROOM
        pages = np.zeros((size, HELD + 1), np.int32)
        pages[:, HELD] = np.arange(1, size + 1)
        pages[begins[rows[order]] + place // HELD, place % HELD] = ends[order]
        counters = np.array([0, 0, 0, counts.sum()], np.int32)
        vertices = np.stack([begins.astype(np.int32), degree, 0 * degree])
        parts = vertices, pages, np.zeros(size, np.int32), counters
        self.arrays = [cuda_array(part) for part in parts]

    @classmethod
    def place(cls, edges: Edges) -> Any:
        """Return rows and other ends on the GPU."""
        return cuda_array(edges.targets), cuda_array(edges.sources)

    def insert(self, batch: Any, inserts: bool = True) -> None:
        """Add edges."""
        blocks = -(-batch[0].size // THREADS)
        update[blocks, THREADS](*batch, inserts, *self.arrays)

    def delete(self, batch: Any) -> None:
        """Take edges out."""
        self.insert(batch, inserts=False)

    def rows(self) -> tuple[Any, float]:
        """Return the length of each row."""
        return self.arrays[0].copy_to_host()[1], np.nan

    def pieces(self, strategy: str) -> tuple[Any, int, int]:
        """Return the pieces of a strategy, their number, and the threads of each."""
        vertices, pages, _, counters = self.arrays
        size, lanes = STRATEGIES[strategy]
        pieces = cuda.device_array((3, int(counters[NEXT])), np.int32)
        blocks, counter = -(-vertices.shape[1] // THREADS), cuda_array(np.zeros(1, int))
        cut[blocks, THREADS](vertices, pages, size, pieces, counter)
        return pieces, int(counter[0]), lanes

    def ranks(self, pieces: tuple[Any, int, int], sweeps: int) -> Any:
        """Return PageRank, before it is scaled to sum one."""
        vertices, pages, *_ = self.arrays
        degree, count = vertices[1], vertices.shape[1]
        sums = cuda_array(np.full(count, 1 / count, np.float32))
        shares = cuda.device_array_like(sums)
        blocks = -(-pieces[1] * pieces[2] // THREADS)
        for _ in range(sweeps):
            share[-(-count // THREADS), THREADS](degree, sums, shares)
            pull[blocks, THREADS](*pieces, pages, shares, sums)
        return (1 - ALPHA) / count + ALPHA * sums.copy_to_host()

    def triangles(self, pieces: tuple[Any, int, int], is_sorted: bool) -> Any:
        """Return the number of triangles at each vertex."""
        vertices, pages, *_ = self.arrays
        counts = cuda_array(np.zeros(vertices.shape[1], np.int32))
        blocks = -(-pieces[1] * pieces[2] // THREADS)
        count_triangles[blocks, THREADS](*pieces, vertices, pages, is_sorted, counts)
        return counts.copy_to_host()

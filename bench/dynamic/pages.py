"""The source's own form: pages, locks and a queue, with a thread for each update.

A page has 64 bytes: 15 neighbors, and the number of the next page. An update locks its
row, walks all of its pages for the edge, and appends it, or moves the last edge into
the gap. Freed pages wait in a ring; a page is taken from there, or else from a counter.
No device code of featgraph is used. (``NUMBA_ENABLE_CUDASIM=1`` runs it on a host.)

All updates of a hub wait for its lock, and each walks its whole chain: batches to one
hub take hours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from bench.dynamic.contenders import Edges, Holder, cuda_array

#: Neighbors of a page, and threads of a block.
HELD, THREADS = 15, 256
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
        size = 2 * int(counts.sum()) + vertex_count
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

"""A check of all invariants of an `EdgeStore`, in O(E log E) on the host.

The rows of each direction are compared with the rows that the given edges along "in"
imply. Slots, queues, counts and vertices are compared with what the rows imply.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import StateError
from featgraph.dynamic.batches import on_host
from featgraph.dynamic.pools import RowPool, numba_kernels
from featgraph.dynamic.rows import HUB, living_slots
from featgraph.dynamic.store import EdgeStore

__all__ = ["audit"]

Array = NDArray[Any]
#: Rows, ends and numbers of edges, then their columns and ids.
_Edges = list[Array]


def audit(store: EdgeStore) -> None:
    """Raise StateError unless all invariants of a store hold.

    Each slot is owned by one row, is free, or is counted as lost. Queues have no
    repeats. Rows have their edges in the order of insertion. Each edge is in the rows
    of all directions, with equal columns and ids. Lengths, hubs, counts, and the sets
    of used and free ids are right.
    """
    store = copy(store)
    store.pools = {along: pool.on_host() for along, pool in store.pools.items()}
    listed = {along: _audit_rows(store, pool) for along, pool in store.pools.items()}
    numbers = listed["in"][2]
    given = [array[numbers & 1 == 0] for array in listed["in"]]
    known = store.given_count, store.edge_count
    _require_same((given[2].size, numbers.size), known, "counts of edges", "in")
    for along, pool in store.pools.items():
        _audit_memory(pool, store.vertex_count)
        expected = given if along == "in" else _turned(given, 0)
        if along == "both" or not store.directed:
            twins = _turned([a[given[0] != given[1]] for a in given], 1)
            expected = [np.append(*pair, 0) for pair in zip(given, twins, strict=True)]
        order = np.lexsort((expected[2], expected[0]))
        for found, array in zip(listed[along], expected, strict=True):
            _require_same(found, array[order], "rows that differ", along)
    _audit_vertices(store)


def _turned(edges: _Edges, number: int) -> _Edges:
    """Return edges with rows and ends exchanged, and `number` added to the numbers."""
    rows, ends, numbers, *values = edges
    return [ends, rows, numbers + number, *values]


def _require(is_right: Any, what: str, where: str) -> None:
    """Raise StateError unless all entries of a mask are true."""
    wrong = np.flatnonzero(~np.atleast_1d(is_right))
    if wrong.size:
        got = f"{wrong.size} wrong, the first at {wrong[0]}"
        _require_same(got, "none", what, where)


def _require_same(got: Any, expected: Any, what: str, where: str) -> None:
    """Raise StateError unless two values or arrays are equal."""
    if not np.array_equal(got, expected):
        raise StateError(
            f"the graph is damaged: {what}", where=where, got=got, expected=expected,
            fix="this is an error of featgraph: please report it",
        )  # fmt: skip


def _audit_memory(pool: RowPool, vertex_count: int) -> None:
    """Check that each slot is in one run or free, or is counted as lost."""
    where, sizes_of = pool.along, numba_kernels().SIZES
    classes, starts = pool.classes, pool.starts.astype(np.int64)
    _require(classes[vertex_count:] == 0, "runs of vertices that are none", where)
    has_run = classes > 0
    runs = [np.stack([starts[has_run], sizes_of[classes[has_run]]])]
    for size, waiting in enumerate(pool.queues.listed()):
        _require(size > 0 or waiting.size == 0, "free runs without a slot", where)
        runs.append(np.stack([waiting, np.full(waiting.size, sizes_of[size])]))
    for start, stop in (pool.region, (pool.top, pool.slots)):
        runs.append(np.array([[start], [stop - start]]))
    begins, sizes = np.concatenate(runs, axis=1)
    begins, sizes = begins[sizes > 0], sizes[sizes > 0]
    order = np.argsort(begins)
    begins, behind = begins[order], (begins + sizes)[order]
    _require(begins[1:] >= behind[:-1], "slots that are owned or free twice", where)
    _require(behind <= pool.slots, "runs behind the pool", where)
    total = int(sizes.sum()) + pool.lost
    _require_same(total, pool.slots, "slots that are neither owned nor free", where)


def _audit_rows(store: EdgeStore, pool: RowPool) -> _Edges:
    """Check the arrays of a pool's rows, and return its edges by row."""
    kernels, where, count = numba_kernels(), pool.along, store.vertex_count
    lengths = (pool.stops - pool.starts).astype(np.int64)
    _require(lengths >= 0, "rows that end before they begin", where)
    _require(lengths <= kernels.SIZES[pool.classes], "rows beyond their runs", where)
    _require((lengths == 0) == (pool.classes == 0), "runs without an edge", where)
    _require((pool.starts >= 0) & (pool.starts < pool.slots), "starts", where)
    _require(lengths[count:] == 0, "edges of vertices that are none", where)
    _require((pool.ends >= 0) & (pool.ends < max(count, 1)), "ends", where)
    slots = living_slots(pool, count)
    rows, ends = np.repeat(np.arange(count), lengths[:count]), pool.ends[slots]
    if pool.out_degrees.size:
        degrees = np.bincount(ends, minlength=pool.out_degrees.size)
        _require_same(pool.out_degrees, degrees, "out-degrees", where)
        longest = degrees.max(initial=0)
        _require_same(pool.longest_out, longest, "the highest out-degree", where)
    counted = np.bincount(np.minimum(lengths[:count], HUB), minlength=HUB + 1)
    _require_same(pool.length_counts, counted, "counts of lengths", where)
    _require_same(pool.hubs, np.flatnonzero(lengths >= HUB), "hubs", where)
    numbers = pool.numbers[slots].astype(np.int64)
    _require(numbers < 2 * store.next_number, "numbers of insertions to come", where)
    _require(np.diff(np.sort(numbers)) > 0, "numbers that repeat", where)
    if store.turned is not None:
        dead = store.turned < 0
        _require(~dead[ends], "edges of dead vertices", where)
        _require(lengths[dead] == 0, "rows of dead vertices", where)
    values = [column[slots] for column in pool.columns.values()]
    if pool.ids is not None and store.directed:  # twins have ids of their own
        values.append(pool.ids[slots])
    return [rows, ends, numbers, *values]


def _audit_vertices(store: EdgeStore) -> None:
    """Check that each id of a vertex and of an edge is either used or free."""
    queue, count = store.free_vertices, store.vertex_count
    turned = np.zeros(count) if store.turned is None else store.turned
    _require(turned[count:] == 0, "vertices to come", "turned")
    living = turned[:count] >= 0
    dead = np.sort(on_host(queue.next(len(queue))))
    _require_same(dead, np.flatnonzero(~living), "the queue of ids", "vertices")
    _require_same(store.living_count, living.sum(), "living_count", "vertices")
    pool, free = store.pools["in"], store.free_ids
    _require((free is None) == (pool.ids is None), "ids", "edges")
    if free is not None and pool.ids is not None:
        used = pool.ids[living_slots(pool, count)]
        every = np.sort(np.concatenate([used, on_host(free.next(len(free)))]))
        _require_same(every, np.arange(store.next_id), "ids", "edges")
        _require(store.next_id <= store.id_room, "ids beyond their room", "edges")

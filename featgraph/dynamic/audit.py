"""A check of all that an `EdgeStore` keeps, in O(E log E) on the host."""

from __future__ import annotations

from copy import copy
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.dynamic.batches import on_host
from featgraph.dynamic.pools import RowPool
from featgraph.dynamic.store import EdgeStore, living_slots
from featgraph.errors import StateError

__all__ = ["audit"]

Array: TypeAlias = NDArray[Any]


def audit(store: EdgeStore) -> None:
    """Raise StateError unless a store is as it must be.

    Each slot is owned by one row, is free, or is counted as lost; queues have no
    repeats; rows have their edges in the order of insertion; directions are mutual,
    with equal columns and ids; lengths, hubs, counts and vertices are right.
    """
    store = copy(store)
    store.pools = {along: pool.on_host() for along, pool in store.pools.items()}
    for pool in store.pools.values():
        _audit_memory(pool, store.vertex_count)
        _audit_rows(store, pool)
    _audit_counts(store)
    _audit_vertices(store)
    _audit_ids(store)
    listed = {along: _Listed(store, pool) for along, pool in store.pools.items()}
    one_way = listed["in"]
    if not store.directed:
        there = ~one_way.is_loop & (one_way.numbers & 1 == 0)
        twins = one_way.numbers & 1 == 1
        _require_equal(one_way, there, one_way, twins, 1, "twins")
    for along in listed.keys() - {"in"}:
        rows = listed[along]
        leaves = rows.numbers & 1 == 1 if along == "both" else rows.numbers >= 0
        there = ~one_way.is_loop if along == "both" else one_way.numbers >= 0
        number = 1 if along == "both" else 0
        _require_equal(one_way, there, rows, leaves, number, f"rows along {along!r}")
        if along == "both":
            every = one_way.numbers >= 0
            _require_equal(one_way, every, rows, ~leaves, None, "rows along 'both'")


def _fail(what: str, where: str, got: object, expected: object) -> NoReturn:
    raise StateError(
        f"the graph is damaged: {what}",
        where=where,
        got=got,
        expected=expected,
        fix="this is an error of featgraph: please report it",
    )


def _require(is_right: Any, what: str, where: str) -> None:
    found = np.asarray(is_right)
    if not found.all():
        wrong = np.flatnonzero(~np.atleast_1d(found))
        _fail(what, where, f"{wrong.size} wrong, the first at {wrong[0]}", "none")


def _audit_memory(pool: RowPool, vertex_count: int) -> None:
    from featgraph.dynamic.kernels_cpu import SIZES  # loads Numba

    where = f"rows along {pool.along!r}"
    classes, starts = pool.classes, pool.starts.astype(np.int64)
    _require(classes[vertex_count:] == 0, "runs of vertices that are none", where)
    has_run = classes > 0
    runs = [np.stack([starts[has_run], SIZES[classes[has_run]]])]
    for size, queue in enumerate(pool.queues):
        waiting = on_host(queue.next(len(queue)))
        _require(size > 0 or waiting.size == 0, "free runs without a slot", where)
        runs.append(np.stack([waiting, np.full(waiting.size, SIZES[size])]))
    for start, stop in (pool.region, (pool.top, pool.slots)):
        runs.append(np.array([[start], [stop - start]]))
    begins, sizes = np.concatenate(runs, axis=1)
    begins, sizes = begins[sizes > 0], sizes[sizes > 0]
    order = np.argsort(begins)
    begins, behind = begins[order], (begins + sizes)[order]
    _require(begins[1:] >= behind[:-1], "slots that are owned or free twice", where)
    _require(behind <= pool.slots, "runs behind the pool", where)
    total = int(sizes.sum()) + pool.lost
    if total != pool.slots:
        _fail("slots that are neither owned nor free", where, total, pool.slots)


def _audit_rows(store: EdgeStore, pool: RowPool) -> None:
    from featgraph.dynamic.kernels_cpu import HUB, SIZES  # loads Numba

    where, count = f"rows along {pool.along!r}", store.vertex_count
    lengths = (pool.stops - pool.starts).astype(np.int64)
    _require(lengths >= 0, "rows that end before they begin", where)
    _require(lengths <= SIZES[pool.classes], "rows longer than their runs", where)
    _require((lengths == 0) == (pool.classes == 0), "runs without an edge", where)
    _require((pool.starts >= 0) & (pool.starts < pool.slots), "starts", where)
    _require(lengths[count:] == 0, "edges of vertices that are none", where)
    _require((pool.ends >= 0) & (pool.ends < max(count, 1)), "ends", where)
    if pool.out_degrees.size:
        ends = pool.ends[living_slots(pool, count)]
        degrees = np.bincount(ends, minlength=pool.out_degrees.size)
        _require(degrees == pool.out_degrees, "out-degrees", where)
        if pool.longest_out != degrees.max(initial=0):
            _fail("the highest out-degree", where, pool.longest_out, degrees.max())
    counted = np.bincount(np.minimum(lengths[:count], HUB), minlength=HUB + 1)
    _require(counted == pool.length_counts, "counts of lengths", where)
    hubs = np.flatnonzero(lengths >= HUB)
    if not np.array_equal(hubs, pool.hubs):
        _fail("hubs", where, pool.hubs, hubs)
    slots = living_slots(pool, count)
    numbers, rows = pool.numbers[slots].astype(np.int64), _rows_of(pool, count)
    follows = numbers[1:] > numbers[:-1]
    _require(follows | (rows[1:] != rows[:-1]), "the order of insertion", where)
    _require(numbers < 2 * store.next_number, "numbers of insertions to come", where)
    if np.unique(numbers).size != numbers.size:
        _fail("numbers", where, "repeats", "each once")


def _audit_counts(store: EdgeStore) -> None:
    slots = living_slots(store.pools["in"], store.vertex_count)
    numbers = store.pools["in"].numbers[slots]
    counts = int(np.count_nonzero(numbers & 1 == 0)), slots.size
    known = store.given_count, store.edge_count
    if counts != known:
        _fail("counts of edges", "given_count, edge_count", known, counts)


def _audit_vertices(store: EdgeStore) -> None:
    queue = store.free_vertices
    dead = np.sort(on_host(queue.next(len(queue))))
    living = np.ones(store.vertex_count, np.bool_)
    if store.living is not None:
        living = store.living[: store.vertex_count]
        _require(~store.living[store.vertex_count :], "vertices to come", "living")
    if not np.array_equal(dead, np.flatnonzero(~living)):
        _fail("the queue of ids", "vertices", dead, np.flatnonzero(~living))
    if store.living_count != np.count_nonzero(living):
        _fail("living_count", "vertices", store.living_count, living.sum())
    for pool in store.pools.values():
        used = pool.ends[living_slots(pool, store.vertex_count)]
        _require(living[used], "edges of dead vertices", f"rows along {pool.along!r}")
        has_edges = pool.lengths(store.vertex_count) > 0
        _require(living | ~has_edges, "rows of dead vertices", "vertices")


def _audit_ids(store: EdgeStore) -> None:
    pool, queue = store.pools["in"], store.free_ids
    if (queue is None) != (pool.ids is None):
        _fail("ids", "edges", pool.ids, queue)
    if queue is None or pool.ids is None:
        return
    used = pool.ids[living_slots(pool, store.vertex_count)]
    every = np.sort(np.concatenate([used, on_host(queue.next(len(queue)))]))
    if not np.array_equal(every, np.arange(store.next_id)):
        _fail("ids", "edges", every, f"each below {store.next_id} once")
    if store.next_id > store.id_capacity:
        _fail("ids", "edges", store.next_id, f"at most {store.id_capacity}")


class _Listed:
    """The edges of a pool, by row."""

    def __init__(self, store: EdgeStore, pool: RowPool) -> None:
        slots = living_slots(pool, store.vertex_count)
        self.rows, self.ends = _rows_of(pool, store.vertex_count), pool.ends[slots]
        self.numbers = pool.numbers[slots].astype(np.int64)
        self.is_loop = self.rows == self.ends
        self.values = [column[slots] for column in pool.columns.values()]
        if pool.ids is not None and store.directed:  # twins have ids of their own
            self.values.append(pool.ids[slots])


def _rows_of(pool: RowPool, vertex_count: int) -> Array:
    return np.repeat(np.arange(vertex_count), pool.lengths(vertex_count))


def _require_equal(
    one: _Listed,
    these: Array,
    other: _Listed,
    those: Array,
    number: int | None,
    what: str,
) -> None:
    """Require that edges are others; turned around unless `number` is None."""
    left = [one.rows, one.ends, one.numbers + (number or 0)]
    right = [other.rows, other.ends, other.numbers]
    if number is not None:
        right[:2] = right[1::-1]
    left += one.values
    right += other.values
    a, b = np.argsort(left[2][these]), np.argsort(right[2][those])
    if a.size != b.size:
        _fail("edges that are in one row alone", what, a.size, b.size)
    for first, second in zip(left, right, strict=True):
        _require(first[these][a] == second[those][b], "rows that differ", what)

"""The edges of a dynamic graph: rows by direction, edge ids, vertices, and a log.

`EdgeStore` owns a `RowPool` for each direction in use, the queues of free vertices and
free edge ids, and the log of changes. Rows along "in" exist always. Rows along "out" or
"both", and edge ids, are made when they are first used, and batches keep them up to
date.

`EdgeStore.apply` makes a `_Step` of a batch, and `_Step.run` applies it:

1. `RowPool.plan` on each pool. Outcomes of the updates come from the rows along "in".
   Errors of policies are raised here.
2. `RowPool.fit`; or `RowPool.refit`, if the batch is large compared with the graph, if
   E / 4 updates were applied since the last time, or if there is no room.
3. `_Step._finish` allocates all that is left to allocate, and then writes rows, queues,
   counts and the log with interrupts deferred.

Any error leaves the store as it was. The first edges of a graph on the host are no
batch: `RowPool.filled` lays them out. A graph on a GPU has `GpuRowPool`s; this module
is the same for both targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from featgraph.base.arguments import require_integer
from featgraph.base.cached import cached_property
from featgraph.base.errors import DeviceMemoryError, GraphInputError
from featgraph.base.interrupts import deferred_interrupts
from featgraph.cuda.values import is_on_gpu
from featgraph.dynamic.batches import (
    Batch,
    Changes,
    Log,
    Record,
    UpdateResult,
    checked_batch,
    checked_columns,
    on_host,
    require_choice,
)
from featgraph.dynamic.inputs import argument_of, require
from featgraph.dynamic.pools import NoOtherPool, Plan, RowPool, Updates, numba_kernels
from featgraph.dynamic.rows import (
    ALONE,
    NONE,
    Array,
    Queues,
    Spec,
    Threads,
    grown,
    lengths_of,
    living_slots,
    ranges,
)
from featgraph.graph.building.check import MAX_VERTEX_COUNT, require_real
from featgraph.graph.building.edges import POLICIES, edges_on_host, freeze
from featgraph.graph.inputs.numbers import number_array

__all__ = ["EdgeStore", "living_slots"]

#: All rows are laid out anew by a batch of E / 4 updates, and after E / 4 in all. Where
#: a batch finds no room before half of those, its pool grows: 100,000 insertions into
#: the 2M edges of coAuthorsDBLP, laid out each time, took 34 ms on a CPU, and 14 then.
MERGE_SHARE, COMPACT_SHARE = 4, 4
#: The bound of insertion numbers; then edges are renumbered. Twice the next number is a
#: uint32 in each batch, also in one without an update.
NUMBERS = 2**31 - 1
#: The bound of `capacity=`, above all sizes of memory.
_MOST_SLOTS = 2**44
#: The least room of the log, in changes.
_LOG = 4096
#: More first edges than these are inserted on a GPU before repeats are looked for.
FEWEST_TRIED = 4096
_CHOICES = {"all": 0, "first": 1, "last": 2}
#: Reason to refuse an update -> the fault, the expected value, and the fix.
_REFUSED = {
    "missing": (
        "there is no such edge", "an edge of the graph (missing='error')",
        "delete with missing='ignore'"),
    "loop": (
        "a loop", "edges between two vertices (loops='error')",
        "drop it, or make the graph with loops='drop' or 'keep'"),
    "repeat": (
        "an edge is given more than once", "every edge once (duplicates='error')",
        "make the graph with another `duplicates`"),
}  # fmt: skip


class EdgeStore:
    """The edges and vertices of a graph that changes in batches.

    Parameters
    ----------
    vertex_count : int
    directed : bool
    duplicates, loops : str
        See `DynamicGraph`.
    columns : Spec
        Types of the columns of edge values.
    capacity : int, optional
        The number of slots of each pool. Default: pools grow.
    target : {"cpu", "cuda"}
        Where the rows are.

    Attributes
    ----------
    policy : int
        The code of `kernels_cpu` for insertions of present edges.
    vertex_count, vertex_capacity : int
        The number of vertex ids, and the length of arrays over vertices.
    given_count, edge_count : int
        The number of edges without and with the twins of undirected ones.
    turned : ndarray of int64, (vertex capacity,), or None
        The version in which each vertex was last inserted, or minus the version in
        which it was deleted; 0 for vertices from before the first deletion. None until
        a vertex is deleted.
    living_count : int
        The number of vertices that are not deleted.
    version : int
        The number of batches that have changed the graph.
    moves : int
        The number of batches that replaced arrays.
    next_number : int
        The number of the next insertion; it orders edges by time.
    numberings : int
        How often all edges were renumbered because numbers had reached `NUMBERS`.
    known : ndarray of int64
        The numbers of the edges before the last renumbering, ascending: ``known[i]``
        became i.
    next_id, id_capacity : int
        All edge ids are below `next_id`; arrays over ids have at least the capacity.
    by_id : weak set
        The owners of values by edge id. If there are none, a batch that lays out all
        rows drops ids.
    pools : dict of str to RowPool
        By direction: "in", and "out" and "both" once they are used. An undirected graph
        has "in" only, whose rows hold all edges.
    free_vertices, free_ids : Queues
        Ids of deleted vertices and edges, which are given out again first. `free_ids`
        is None while edges have no ids.
    """

    sides: None = None

    def __init__(
        self, vertex_count: int = 0, *, directed: bool = True, duplicates: str = "keep",
        loops: str = "keep", columns: Spec | None = None, capacity: int | None = None,
        target: str = "cpu",
    ) -> None:  # fmt: skip
        self.directed, self.target = directed, target
        self.duplicates = require_choice(duplicates, POLICIES, "duplicates")
        self.loops = require_choice(loops, ("keep", "drop", "error"), "loops")
        self.columns: Spec = dict(columns or {})
        if duplicates in {"sum", "min", "max"} and set(self.columns) - {"weight"}:
            raise GraphInputError(
                "only weights can be combined", where="duplicates",
                got=f"{duplicates!r} with the columns {', '.join(self.columns)}",
                expected="'keep', 'error', 'first' or 'last'",
            )  # fmt: skip
        kernels, combines = numba_kernels(), self.columns and duplicates != "first"
        rule = kernels.COMBINE if combines else kernels.IGNORE
        policies = {"keep": kernels.KEEP, "error": kernels.REFUSE}
        self.policy: int = policies.get(duplicates, rule)
        self.vertex_count, self.vertex_capacity = vertex_count, _padded(vertex_count)
        if capacity is not None:
            capacity = require_integer("capacity", capacity, 0, _MOST_SLOTS)
        self.capacity, self.living_count = capacity, vertex_count
        self.turned: Array | None = None
        self.given_count = self.edge_count = self.version = self.moves = 0
        with _HOST_MEMORY:
            pool = self._empty("in", not directed, capacity or 0)
            pool.length_counts[0] = pool.vertex_count = vertex_count
            if directed and target == "cpu":  # a GPU counts them at their first use
                pool.out_degrees = np.zeros(self.vertex_capacity, np.int32)
        self.pools = {"in": pool}
        self.next_number = self.numberings = 0
        self.known = np.empty(0, np.int64)
        #: The number of updates since all rows were laid out.
        self._aged = 0
        self._log = Log()
        self.free_vertices = Queues(np.int32)
        self.free_ids: Queues | None = None
        self.next_id = self.id_capacity = 0
        self.by_id: WeakSet[Any] = WeakSet()

    @classmethod
    def from_edges(
        cls, sources: Any, targets: Any, columns: Mapping[str, object] | None = None, *,
        vertex_count: int | None, **options: Any,
    ) -> EdgeStore:  # fmt: skip
        """Make a store with edges in the order of insertion, at version 0.

        Parameters
        ----------
        sources, targets : array_like of integers, shape (E,)
        columns : mapping of str to array, (E,) or (E, width), optional
        vertex_count : int or None
            None: the highest id plus one.
        **options
            Of `EdgeStore`.

        Raises
        ------
        GraphInputError
        """
        given, spec = _typed(columns or {}, options.get("duplicates", "keep"))
        is_there = options.get("target") == "cuda" and is_on_gpu(sources)
        if not is_there or vertex_count is None:  # an id may be wrong
            ends = sources, targets
            sources, targets, _, vertex_count = edges_on_host(
                ends, None, vertex_count, None
            )
        begin = partial(cls, vertex_count or 0, columns=spec, **options)
        store = begin()
        if store.target == "cuda":
            batch = store.checked(sources, targets, True, given, store.vertex_count)
            if store.duplicates != "keep" and batch.sources.size > FEWEST_TRIED:
                if store._holds_apart(batch):
                    return store
                del store  # before memory for the same edges is taken
                store = begin()
        else:  # the ends are checked
            u, v = (np.array(ends, np.int32) for ends in (sources, targets))
            kinds = np.ones(u.size, np.uint8)
            batch = Batch(u, v, kinds, checked_columns(given, spec, kinds), u.size)
        if batch.sources.size:
            insert = store.apply if store.target == "cuda" else store._insert_first
            insert(batch)
            store._begin_log()
        return store

    def _holds_apart(self, batch: Batch) -> bool:
        """Insert first edges on a GPU as they are; return whether none is repeated.

        This takes a third of the time of a batch that is compared with itself.
        """
        from featgraph.dynamic.gpu_memory import has_copies  # imports the dialect

        policy, self.policy = self.policy, numba_kernels().KEEP
        with suppress(GraphInputError):  # raised under the policy of the graph
            self.apply(batch)
            self._begin_log()
        self.policy, pool = policy, self.pools["in"]
        return pool.top > 0 and not has_copies(pool, self.vertex_count)

    def _begin_log(self) -> None:
        """Begin at version 0."""
        self.version = 0
        self._log.add(None, 0)

    def _insert_first(self, batch: Batch) -> None:
        """Insert edges into an empty store of the host as `RowPool.filled` does.

        Edges are numbered as in a batch: with gaps where edges repeat or loops drop.
        """
        sources, targets, columns = batch.sources, batch.targets, batch.columns or {}
        pool, numbers, is_loop = self.pools["in"], None, sources == targets
        if self.loops == "drop" and is_loop.any():
            kept = np.flatnonzero(~is_loop)
            sources, targets = sources[kept], targets[kept]
            columns = {name: values[kept] for name, values in columns.items()}
            numbers = (2 * kept).astype(np.uint32)
        if sources.size and not (self.loops == "error" and is_loop.any()):
            with suppress(GraphInputError), _HOST_MEMORY:
                self.pools["in"] = filled = pool.filled(
                    sources, targets, numbers, columns, None, self.vertex_count,
                    partial(self._slots_for, pool), duplicates=self.duplicates,
                )  # fmt: skip
                self.moves, self.next_number = 1, batch.sources.size
                self.edge_count = int(lengths_of(filled, self.vertex_count).sum())
                twins = int(np.count_nonzero(filled.numbers & 1))
                self.given_count = self.edge_count - twins
                return
        self.apply(batch)  # no edge is left, or this raises the error

    def checked(
        self, sources: Any, targets: Any, kinds: Any, columns: Any, vertex_count: int,
        *, by_host: bool = False, **options: Any,
    ) -> Batch:  # fmt: skip
        """Return checked copies of updates: see `checked_batch`.

        Arrays on a GPU are checked and copied there if that is where the graph is,
        unless the host has to check them.
        """
        require_choice(options.get("copies", "all"), tuple(_CHOICES), "copies")
        require_choice(options.get("missing", "ignore"), ("ignore", "error"), "missing")
        given = sources, targets, kinds, columns, self.columns
        if self.target == "cuda" and not by_host:
            from featgraph.dynamic.gpu_pools import gpu_batch  # imports the dialect

            if (found := gpu_batch(*given, **options)) is not None:
                return found
        made = checked_batch(*given, vertex_count, **options)
        if not made.births:  # those take ids of dead ones
            self.require_living(made.sources, "sources")
            self.require_living(made.targets, "targets")
        return made

    def _empty(self, along: str, is_twice: bool, slots: int) -> RowPool:
        """Return an empty pool of the target."""
        kind: Any = RowPool
        if self.target == "cuda":
            from featgraph.dynamic.gpu_pools import GpuRowPool as kind  # loads Numba
        return kind(along, is_twice, slots, self.vertex_capacity, self.columns)  # type: ignore[no-any-return]

    def pool(self, along: str) -> RowPool:
        """Return the rows along "in", "out" or "both"; make them if they do not exist.

        An undirected graph has one pool for all directions.
        """
        along = along if self.directed else "in"
        if along in self.pools:
            return self.pools[along]
        targets, slots = self._slots()
        sources, numbers, columns, ids = self.pools["in"].edges_at(slots)
        with _HOST_MEMORY:
            empty = self._empty(along, along == "both", 0)
            self.pools[along] = made = empty.filled(
                sources, targets, numbers, columns, ids, self.vertex_count,
                partial(self._slots_for, empty),
            )  # fmt: skip
        return made

    def _slots(self, twins: bool = False) -> tuple[Any, Any]:
        """Return row and slot along "in" of given edges, or twins, by insertion."""
        pool = self.pools["in"]
        return pool.given_slots(self.vertex_count, self.next_number, twins)

    def given_ids(self, per_direction: bool) -> list[Any]:
        """Return the ids of edges in the order of insertion, and those of twins."""
        self.give_ids()
        pool, (rows, slots) = self.pools["in"], self._slots()
        ids = pool.entries_at("ids", slots)
        if not per_direction:
            return [ids]
        twins = pool.entries_at("ids", self._slots(twins=True)[1])
        if twins.size == ids.size:
            return [ids, twins]
        every = on_host(ids).copy()  # a loop is its own twin
        is_loop = on_host(rows) == on_host(pool.entries_at("ends", slots))
        every[~is_loop] = on_host(twins)
        return [ids, every]

    def sample(self, name: str, most: int) -> Array:
        """Return up to `most` values of a column, of edges in evenly spaced rows.

        Nothing of the size of the graph is copied, unless these rows have no edge.
        """
        pool = self.pools["in"]
        for stride in (self.vertex_count // most + 1, 1):
            rows = np.arange(0, self.vertex_count, stride)
            slots = ranges(*pool.spans(rows))
            if slots.size:
                break
        some = slots[:: slots.size // most + 1].astype(pool.starts.dtype)
        return on_host(pool.column_at(name, pool.memory.placed(some)))

    def give_ids(self) -> None:
        """Give each edge an id from 0 on, in the order of rows, unless edges have ids.

        An edge has the same id in all pools. The twin of an undirected edge has an id
        of its own.
        """
        if self.free_ids is not None:
            return
        ready: dict[str, Any] = {}
        for along, pool in self.pools.items():  # "in" comes first
            made = np.zeros(pool.slots, np.uint32)
            slots = living_slots(pool, self.vertex_count)
            numbers = on_host(pool.entries_at("numbers", slots))
            own = np.arange(slots.size)
            if along == "in":
                at, by_number = slots, numbers
                order = np.argsort(numbers) if len(self.pools) > 1 else own
            else:
                wanted = numbers & ~np.uint32(1)
                own = order[np.searchsorted(by_number, wanted, sorter=order)]
            made[slots] = own
            ready[along] = pool.memory.placed(made)
        free_ids = Queues(np.uint32, self.pools["in"].memory)
        with deferred_interrupts():
            self.next_id, self.free_ids = at.size, free_ids
            for along, ids in ready.items():
                self.pools[along].put("ids", ids)

    @property
    def id_room(self) -> int:
        """The length of arrays over edge ids."""
        return max(self.id_capacity, self.pools["in"].slots)

    def changes(self, since: int) -> Changes | None:
        """Return the changes since a version; None if the log begins later."""
        return self._log.since(since, self.version)

    def next_vertices(self, count: int) -> Array:
        """Return the ids that the next inserted vertices get: free ones, then V on."""
        if not count:
            return NONE
        freed = self.free_vertices.next(count)
        more = np.arange(count - freed.size, dtype=np.int32) + self.vertex_count
        return np.concatenate([freed, more.astype(np.int32)])

    def require_living(self, ids: Array, role: str) -> None:
        """Raise GraphInputError if one of the vertices is deleted."""
        if self.turned is not None and (is_dead := self.turned[ids] < 0).any():
            first = int(np.argmax(is_dead))
            raise GraphInputError(
                "the vertex is dead", where=f"{role}[{first}]", got=int(ids[first]),
                expected="a vertex that was not deleted",
                fix="insert_vertices gives its id out again",
            )  # fmt: skip

    def apply(self, batch: Batch) -> UpdateResult:
        """Apply a batch as a whole; any error leaves the store as it was.

        Raises
        ------
        GraphInputError
            An edge or a loop that a policy refuses, an absent edge with
            ``missing="error"``, or too many vertices.
        DeviceMemoryError
            A pool would grow above `capacity`, or memory is exhausted.
        """
        with _HOST_MEMORY:
            if batch.deaths.size:
                dead, out = batch.deaths, self.pools.get("out")
                given = self.pools["in"].edges_with(dead, out, self.vertex_count)
                batch = Batch(*given, deaths=dead, rename=batch.rename)
            if self.next_number + batch.sources.size > NUMBERS:
                self._renumber()
            return _Step(self, batch).run()

    def compact(self) -> None:
        """Lay out all rows in order, each in the shortest run for its length."""
        with _HOST_MEMORY:
            _Step(self, Batch()).run(compacts=True)

    def pack(self) -> None:
        """Lay out all rows in order, in pools of a GPU without memory for others."""
        from featgraph.dynamic.gpu_pools import pack  # loads Numba

        self._aged, self.moves = 0, self.moves + 1
        for pool in self.pools.values():
            pack(pool)  # type: ignore[arg-type]

    def _slots_for(self, pool: RowPool, needed: int, grows: bool = False) -> int:
        """Return the size for a pool whose rows need so many slots.

        `grows` is whether there was no room for a batch that lays out all rows now.
        """
        if self.capacity is None:
            if needed + needed // 16 <= pool.slots and not grows:
                return pool.slots
            # A pool that grows has 1.5 slots per edge then.
            return max(pool.slots, needed + needed * (5 if pool.top else 2) // 16)
        if needed > max(self.capacity, pool.slots):
            raise DeviceMemoryError(
                "the pool of edges is full", where=f"rows along {pool.along!r}",
                got=f"{needed} slots are needed",
                expected=f"at most {self.capacity} (capacity=)",
                fix="give a larger capacity, or none: the pool then grows",
            )  # fmt: skip
        return max(self.capacity, pool.slots)

    def _renumber(self) -> None:
        """Renumber edges from 0 on, in the order of insertion, and clear the log."""
        _, slots = self._slots()
        known = on_host(self.pools["in"].entries_at("numbers", slots)) >> 1
        made = {}
        for along, pool in self.pools.items():
            numbers = pool.on_host().numbers
            now = np.searchsorted(known, numbers >> 1).astype(np.uint32)
            made[along] = pool.memory.placed(2 * now + (numbers & 1))
        with deferred_interrupts():
            for along, numbers in made.items():
                self.pools[along].put("numbers", numbers)
            self.next_number = known.size
            self.numberings += 1
            self.known = known.astype(np.int64)
            self._log.add(None, 0)

    def turned_since(self, version: int) -> Array:
        """Return vertices that were deleted, or inserted again, since a version."""
        if self.turned is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.abs(self.turned[: self.vertex_count]) > version)

    @cached_property
    def living(self) -> Array | None:
        """False for deleted vertices, (V,), read-only; None until one is deleted.

        A batch that changes the set of vertices drops it.
        """
        if self.turned is None:
            return None
        return freeze(self.turned[: self.vertex_count] >= 0)

    def copy(self) -> EdgeStore:
        """Return an independent store with the same edges, version and log."""
        made = copy(self)
        made.pools = {along: pool.copy() for along, pool in self.pools.items()}
        for name in ("turned", "free_ids", "free_vertices", "_log"):
            if (own := getattr(self, name)) is not None:
                setattr(made, name, own.copy())
        return made

    def memory(self) -> dict[str, int]:
        """Return slots and used slots of each pool, and the bytes of all pools."""
        found = {}
        for along, pool in self.pools.items():
            found[f"{along}_slots"], found[f"{along}_used"] = pool.slots, pool.top
        arrays = [array for pool in self.pools.values() for array in pool.arrays()]
        found["bytes"] = sum(a.size * a.dtype.itemsize for a in arrays)
        return found


class _Step:
    """The application of one batch to a store.

    Attributes
    ----------
    updates : Updates
        The batch as pools read it. Dropped loops have negative ends.
    vertices : int32
        The ids of the vertices that the batch inserts.
    freed : int
        How many of them come from the queue of free ids.
    room : (int, int)
        The number of vertices and the vertex capacity after the batch.
    bad : list of int
        Updates that policies refuse.
    dropped : int
        The number of loops that are dropped.
    counts : list of int
        Counts of outcomes, and the number of deleted edges.
    """

    def __init__(self, store: EdgeStore, batch: Batch) -> None:
        self.store, self.batch, self.kernels = store, batch, numba_kernels()
        self.vertices = store.next_vertices(batch.births)
        self.freed = batch.births and min(batch.births, len(store.free_vertices))
        count = store.vertex_count + batch.births - self.freed
        if count > MAX_VERTEX_COUNT:
            raise GraphInputError(
                "too many vertices", got=count, expected=f"at most {MAX_VERTEX_COUNT}",
            )  # fmt: skip
        capacity = store.vertex_capacity
        if count > capacity:
            capacity = _padded(max(count, min(2 * capacity, MAX_VERTEX_COUNT)))
        self.room = count, capacity
        self.bad: list[int] = []
        kernels = self.kernels
        sources, targets, self.dropped = batch.sources, batch.targets, 0
        # The plan of a batch on a GPU looks for loops.
        is_here = isinstance(sources, np.ndarray)
        if store.loops != "keep" and is_here:
            is_loop = (sources == targets) & (batch.kinds == 1)
            self.dropped = int(np.count_nonzero(is_loop))
            if self.dropped and store.loops == "error":
                self.bad.append(int(np.argmax(is_loop)))
            sources, targets = (np.where(is_loop, -1, e) for e in (sources, targets))
        policy = store.policy
        copies = _CHOICES[batch.copies] if policy == kernels.KEEP else kernels.ALL
        deletes = batch.insertions < sources.size
        self.updates = Updates(
            sources, targets, batch.columns or {}, batch.kinds, deletes, policy, copies,
            deletes or policy != kernels.KEEP, store.next_number, store.duplicates,
            is_checked=is_here, no_loops=store.loops != "keep",
            turned=(self.vertices, batch.deaths),
        )  # fmt: skip

    def run(self, compacts: bool = False) -> UpdateResult:
        """Apply the batch. `compacts` lays out all rows, also without any update."""
        store, size = self.store, self.updates.sources.size
        if size > 0 and (
            size * MERGE_SHARE >= max(store.edge_count, 1)
            or (store._aged + size) * COMPACT_SHARE > store.edge_count
        ):
            with suppress(MemoryError):  # else rows are updated in place
                return self._run(True)
        try:
            return self._run(compacts, compacts)
        except NoOtherPool:
            store.pack()
        try:
            return self._run(False, compacts)
        except NoOtherPool as error:
            raise error.__cause__ from None  # type: ignore[misc]  # DeviceMemoryError

    def _run(self, dense: bool, compacts: bool = False) -> UpdateResult:
        store, updates = self.store, self.updates
        plans: dict[str, Plan] = {}
        work = updates.sources.size + (store.edge_count if dense else 0)
        with ALONE if store.target == "cuda" else Threads(work) as threads:
            for along, pool in store.pools.items():
                plan = pool.plan(updates, threads, *self.room, dense=dense)
                if plan.is_bad:
                    return self._on_host()
                if along == "in":
                    made = self._result(plan)
                    if made.version == store.version and not compacts:
                        return made
                grows = not dense and not pool.fit(plan)
                if grows:
                    plan = pool.plan(updates, threads, *self.room, dense=True)
                    grows = 2 * store._aged * COMPACT_SHARE < store.edge_count
                if plan.is_dense:
                    pool.refit(plan, partial(store._slots_for, pool, grows=grows))
                plans[along] = plan
            self._finish(plans, made.version)
            return made

    def _on_host(self) -> UpdateResult:
        """Check a batch of a GPU on the host, and apply it if no error is raised."""
        store, given = self.store, self.batch
        columns = {name: on_host(a) for name, a in (given.columns or {}).items()}
        kinds = given.kinds == 1 if given.kinds.size else given.insertions > 0
        return store.apply(store.checked(
            on_host(given.sources), on_host(given.targets), kinds, columns,
            self.room[0], by_host=True, copies=given.copies, missing=given.missing,
        ))  # fmt: skip

    def _result(self, plan: Any) -> UpdateResult:
        """Count outcomes; raise GraphInputError for refused updates."""
        kernels, outcomes = self.kernels, self.updates.outcomes
        batch, size = self.batch, self.batch.sources.size
        self.counts = counts = plan.tally[: kernels.CAME].tolist()
        if not self.updates.looks:
            counts[kernels.INSERTED] = size - self.dropped
        counts[kernels.IGNORED] = 0
        counts[kernels.IGNORED] = size - sum(counts[: kernels.EDGES])
        refused = kernels.REPEATED, kernels.MISSING
        for outcome in refused[: 1 + (batch.missing == "error")]:
            if counts[outcome]:
                self.bad.append(int(np.argmax(on_host(outcomes) == outcome)))
        if self.bad:
            self._refuse(min(self.bad))
        if batch.deaths.size:  # an edge between two deaths is deleted twice
            counts[kernels.MISSING], outcomes = 0, np.empty(0, np.uint8)
        made = counts[kernels.INSERTED] + counts[kernels.REPLACED] + batch.births
        is_changed = bool(made + counts[kernels.EDGES] + batch.deaths.size)
        version = self.store.version + is_changed
        return UpdateResult(version, counts, outcomes, self.vertices)

    def _refuse(self, first: int) -> None:
        """Raise GraphInputError for an update that a policy refuses."""
        batch, kind = self.batch, "repeat"
        u, v = (int(on_host(e)[first]) for e in (batch.sources, batch.targets))
        if not batch.insertions or (batch.kinds.size and not batch.kinds[first]):
            kind = "missing"
        elif u == v and self.store.loops == "error":
            kind = "loop"
        what, expected, fix = _REFUSED[kind]
        where = f"sources[{first}], targets[{first}]"
        raise GraphInputError(
            what, where=where, got=f"{u}, {v}", expected=expected, fix=fix
        )

    def _finish(self, plans: dict[str, Plan], version: int) -> None:
        """Do all that can fail, then write the plans, queues, counts and the log."""
        store, batch, updates = self.store, self.batch, self.updates
        pool, plan, free_ids = store.pools["in"], plans["in"], store.free_ids
        came, gone, births = plan.came, plan.left, batch.births
        given = self.counts[self.kernels.INSERTED] - self.counts[self.kernels.EDGES]
        room = max(store.edge_count // 8, _LOG)
        is_logged = came + gone + births <= room
        (left, left_ids), taken = pool.list_left(plan, is_logged), came
        next_id, capacity = store.next_id, store.id_capacity
        if free_ids is not None:
            free, size = free_ids.next(came), 2 * updates.sources.size
            updates.ids, taken = pool.ids_for(plan, free, next_id, size), int(free.size)
            free_ids.reserve(gone)
            if next_id + came - taken > store.id_room:
                capacity = _padded(max(next_id + came - taken, 2 * store.id_room))
        next_id += came - taken
        moved = capacity != store.id_capacity or self.room[1] != store.vertex_capacity
        for along, own in store.pools.items():
            own.prepare(plans[along], updates)
            moved |= plans[along].fresh is not None
        record = self._record(plan, left) if is_logged else None
        turned = grown(store.turned, self.room[1])
        if batch.deaths.size:
            turned = np.zeros(self.room[1], np.int64) if turned is None else turned
            store.free_vertices.reserve(batch.deaths.size)
        with deferred_interrupts():
            store.pools = {
                along: own.apply(plans[along]) for along, own in store.pools.items()
            }
            store.vertex_count, store.vertex_capacity = self.room
            store.turned = turned
            if turned is not None:
                turned[self.vertices], turned[batch.deaths] = version, -version
            if births or batch.deaths.size:
                store.living_count += births - batch.deaths.size
                store.free_vertices.drop(self.freed)
                store.free_vertices.put(batch.deaths)
                vars(store).pop("living", None)
            if free_ids is not None:
                free_ids.drop(taken)
                free_ids.put(left_ids)
            # Arrays over ids that are cached for a version stay right.
            if plan.is_dense and not store.by_id and version != store.version:
                store.free_ids, next_id = None, 0
                for own in store.pools.values():
                    own.put("ids", None)
            store.next_id, store.id_capacity = next_id, capacity
            store.given_count += given
            store.edge_count += came - gone
            store.next_number += int(batch.sources.size)
            store._aged = 0 if plan.is_dense else store._aged + batch.sources.size
            store.moves += moved
            if version != store.version:
                store.version = version
                store._log.add(record, room)
                if batch.rename is not None:
                    batch.rename()

    def _record(self, plan: Any, left: Any) -> Record:
        """Return the record of the batch; `left` is that of `RowPool.list_left`."""
        store, batch, updates = self.store, self.batch, self.updates
        kernels, counts, other, changed = self.kernels, self.counts, None, 0
        if counts[kernels.REPLACED]:
            other, changed = store.pools["in"].list_changed(plan, updates)
        inserted = counts[kernels.INSERTED]
        born = int(plan.tally[kernels.BORN]) if updates.looks else inserted
        gone = born - (inserted - counts[kernels.EDGES])
        return Record(
            store.next_number, self.vertices, batch.deaths, plan.given, plan.entries,
            plan.shift, left, other, (born, gone, changed),
        )  # fmt: skip


def _padded(count: int) -> int:
    """Return a capacity of whole 64-bit words, as sets of vertices or edges have."""
    return max(-(-count // 64), 1) * 64


def _typed(columns: Mapping[str, Any], duplicates: str) -> tuple[dict[str, Any], Spec]:
    """Return columns as arrays, host or device, and their types; sums have 64 bits."""
    arrays, spec = {}, Spec()
    for name, given in columns.items():
        where, is_weight = argument_of(name), name == "weight"
        if not is_on_gpu(given):
            given = number_array(given, where)
        require_real(np.dtype(given.dtype), where, "fiu" if is_weight else "fiub")
        require(
            len(given.shape) <= 2 - is_weight and 0 not in given.shape[1:],
            "one dimension is needed" if is_weight else "not a row for each edge",
            where, f"shape {tuple(given.shape)}",
            "shape (E,)" if is_weight else "shape (E,), or (E, K) with K >= 1",
        )  # fmt: skip
        arrays[name], dtype = given, given.dtype.newbyteorder("=")
        if name == "weight" and duplicates == "sum" and dtype.kind in "iu":
            dtype = np.dtype(f"{dtype.kind}8")
        spec[name] = dtype, None if len(given.shape) < 2 else int(given.shape[1])
    return arrays, spec


class _HostMemoryErrors(AbstractContextManager[None]):
    """Raise DeviceMemoryError in place of MemoryError."""

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, MemoryError) and not isinstance(error, DeviceMemoryError):
            raise DeviceMemoryError(
                "the host has not enough memory for the edges",
                got=str(error) or None, expected="the graph is as before",
                fix="give smaller batches",
            ) from error  # fmt: skip


_HOST_MEMORY = _HostMemoryErrors()

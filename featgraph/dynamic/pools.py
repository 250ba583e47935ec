"""Rows in a pool of slots, and what a batch does to them.

A row is one run of consecutive slots, which has room behind its last edge. `RowPool` is
the pool of one direction. A batch takes these steps, each on all pools; nothing that
lives is written before the last one, which cannot fail:

`RowPool.plan`     sort the updates by row, and find what becomes of each row
`RowPool.fit`      find room in free runs and behind them; False where there is too
                   little
`RowPool.refit`    lay all rows out anew, in order, in other arrays
`RowPool.apply`    write the rows

Freed runs wait in one queue a class of sizes. From 4,096 slots on they are cut into
shorter runs: a *region* is free memory that rows are laid into one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from featgraph.dynamic.rows import (
    SHARED,
    Array,
    HostRows,
    Queue,
    Spec,
    Threads,
    numba_kernels,
)
from featgraph.errors import GraphInputError

__all__ = [
    "Plan",
    "RowPool",
    "Updates",
    "fewest_slots",
    "wide_slots",
]

_NONE = np.empty(0, np.int32)
_FEWEST_SLOTS = 64
#: The length from which on rows are in the list of hubs, `kernels_cpu.HUB`.
FEWEST_LISTED = 2048


def wide_slots(slots: int) -> type[np.integer[Any]]:
    """Return the type of slot numbers; a row may be walked past its end."""
    return np.int64 if slots >= 2**31 - 1024 else np.int32


def fewest_slots(slots: int) -> int:
    """Return the slots of a pool that is to have some."""
    return max(slots, _FEWEST_SLOTS)


class Order:
    """A stable order of rows: a radix sort, whose passes other arrays follow.

    Parameters
    ----------
    keys : int32
        Rows, below `bound`.
    bound : int
    threads : Threads

    Attributes
    ----------
    keys : int32
        The rows in order.
    """

    def __init__(self, keys: Array, bound: int, threads: Threads) -> None:
        kernels = numba_kernels()
        self._threads, count = threads, keys.size
        bits = max(int(bound - 1).bit_length(), 1)
        passes = -(-bits // kernels.BITS)
        each = -(-bits // passes)
        parts = threads.count if count >= SHARED else 1
        self._bounds = [count * part // parts for part in range(parts + 1)]
        self._passes: list[tuple[Array, int, Array]] = []
        for shift in range(0, passes * each if count > 1 else 0, each):
            at = np.zeros((parts, 1 << each), np.int64)
            threads.share(
                self._bounds,
                lambda part, *of, keys=keys, shift=shift, at=at: kernels.count_digits(
                    *of, keys, shift, at[part]
                ),
            )
            kernels.begin_digits(at)
            self._passes.append((keys, shift, at))
            keys = self._follow(keys, self._passes[-1:])
        self.keys = keys

    def carried(self, values: Array) -> Array:
        """Return values in this order."""
        return self._follow(values, self._passes)

    def _follow(self, values: Array, passes: list[tuple[Array, int, Array]]) -> Array:
        kernels = numba_kernels()
        width = 1 if values.ndim == 1 else values.shape[1]
        for keys, shift, at in passes:
            to, now = np.empty_like(values), at.copy()
            arrays = _bits_of(values), _bits_of(to), width
            self._threads.share(
                self._bounds,
                lambda part, *of, given=(keys, shift), now=now, arrays=arrays: (
                    kernels.carry(*of, *given, now[part], *arrays)
                ),
            )
            values = to
        return values


@dataclass(frozen=True, eq=False)
class Updates:
    """The updates of a batch, as pools take them.

    Attributes
    ----------
    sources, targets : int32, (M,)
        Negative for an update without effect.
    kinds : uint8, (M,)
        1: it inserts.
    policy, copies : int
        See `kernels_cpu`.
    looks : bool
        Whether anything depends on the edges that are there.
    number : int
        The number of the first insertion.
    rule : {"first", "last", "sum", "min", "max"}
    columns : dict of arrays, (M,) or (M, width)
    outcomes : uint8, (M,)
    has_twins : bool
    numbers, ids : uint32, (M,) and (2 M,), optional
        Numbers in place of consecutive ones; ids by number of entry.
    deletes : bool
        Whether there may be deletions.
    """

    sources: Array
    targets: Array
    kinds: Array
    policy: int
    copies: int
    looks: bool
    number: int
    rule: str
    columns: dict[str, Array]
    outcomes: Array
    has_twins: bool
    numbers: Array | None = None
    ids: Array | None = None
    deletes: bool = True


@dataclass(eq=False)
class Plan:
    """What a batch does to a pool.

    Attributes
    ----------
    rows, first : touched rows, and their first entries
    sort : the order of entries
    order : uint32, number of each entry in the batch
    ends : uint32, by entry
    fates, heads, places : by entry
    lengths, gone : by row: edges afterwards, and those that leave
    bits_at, bits : which edges leave
    tally : int64, (8,): updates by outcome, and edges deleted
    starts, stops, classes : the rows as they are, with room for all vertices
    chosen, targets : class and first slot of each row's run afterwards
    listed : the update of each entry before the sort; None: entry i has update i
    vertex_count, born : all vertices, and those that are new
    writes : arrays as they are and will be, values, and the value of each entry
    """

    threads: Threads
    rows: Array
    first: Array
    sort: Order
    order: Array
    ends: Array
    fates: Array
    heads: Array
    places: Array
    lengths: Array
    gone: Array
    bits_at: Array
    bits: Array
    tally: Array
    starts: Array
    stops: Array
    classes: Array
    is_dense: bool
    chosen: Array = field(default_factory=_NONE.copy)
    targets: Array = field(default_factory=_NONE.copy)
    hubs: Array = field(default_factory=_NONE.copy)
    listed: Array | None = None
    vertex_count: int = 0
    born: int = 0
    writes: list[tuple[Any, ...]] = field(default_factory=list)
    fresh: RowPool | None = None
    puts: list[tuple[int, Any]] = field(default_factory=list)
    drops: list[tuple[int, int]] = field(default_factory=list)
    region: tuple[int, int] = (0, 0)
    top: int = 0
    lost: int = 0

    @property
    def came(self) -> int:
        """How many edges come."""
        return int(np.count_nonzero(self.fates == numba_kernels().APPENDS))

    @property
    def left(self) -> int:
        """How many edges leave."""
        return int(self.gone.sum())

    def by_entry(self, values: Array) -> Array:
        """Return values of updates by entry."""
        if self.order.size < SHARED:
            by_entry: Array = values[self.order >> 1]
            return by_entry
        return self.sort.carried(values if self.listed is None else values[self.listed])

    def share(self, kernel: Any, *arguments: Any) -> None:
        """Run a kernel over the touched rows."""
        bounds = self.threads.bounds(self.rows.size, self.first)
        self.threads.share(bounds, lambda _, *part: kernel(*part, *arguments))


class RowPool(HostRows):
    """The rows of one direction, in one pool of slots.

    Parameters
    ----------
    along : {"in", "out", "both"}
    is_twice : bool
        Whether an edge stands at both of its ends.
    slots, vertex_capacity : int
    spec : Spec

    Attributes
    ----------
    starts, stops : int32 or int64, (vertex capacity,)
        The first slot of each row, and the slot behind its last edge.
    classes : uint8, (vertex capacity,)
        The class of each row's run; 0: none.
    ends : int32, (slots,)
        The vertex at the other end. Slots without an edge have some vertex, too.
    numbers : uint32, (slots,)
        ``2 i`` for insertion i, and ``2 i + 1`` where the edge leaves the row's vertex
        in a pool where edges stand twice.
    columns : dict of str to array, (slots,) or (slots, width)
    ids : uint32, (slots,), or None
    length_counts : int64, (2049,)
        How many vertices below the vertex count have 0, 1, ... 2,047 edges, and more.
    hubs : int32
        Vertices with 2,048 edges or more, ascending.
    """

    def __init__(
        self, along: str, is_twice: bool, slots: int, vertex_capacity: int, spec: Spec
    ) -> None:
        kernels = numba_kernels()
        slots = fewest_slots(slots)
        self.along, self.is_twice, self.spec = along, is_twice, spec
        dtype = wide_slots(slots)
        self.starts = np.zeros(vertex_capacity, dtype)
        self.stops = np.zeros(vertex_capacity, dtype)
        self.classes = np.zeros(vertex_capacity, np.uint8)
        self.ends = np.zeros(slots, np.int32)
        self.numbers = np.zeros(slots, np.uint32)
        self.columns = {
            name: np.zeros(slots if width is None else (slots, width), dtype)
            for name, (dtype, width) in spec.items()
        }
        self.ids: Array | None = None
        #: Rows that are counted; more have room.
        self.vertex_count = 0
        self.length_counts = np.zeros(kernels.HUB + 1, np.int64)
        self.hubs = np.empty(0, np.int32)
        self.queues = [Queue(np.int64) for _ in range(kernels.CLASS_COUNT)]
        #: Free memory that rows are laid into next, and where nothing has been yet.
        self.region, self.top = (0, 0), 0
        #: Slots that are too few for a run; compaction gains them back.
        self.lost = 0

    @property
    def slots(self) -> int:
        """The slots of the pool."""
        return int(self.ends.size)

    @property
    def is_sided(self) -> bool:
        """Whether rows have edges of both directions of a directed graph."""
        return self.along == "both"

    def plan(self, updates: Updates, threads: Threads, *room: int, dense: bool) -> Plan:
        """Find what a batch does to the rows.

        Parameters
        ----------
        updates : Updates
        threads : Threads
        *room : int
            The number of vertices and their capacity, once the batch is applied.
        dense : bool
            Whether all rows count as touched.
        """
        kernels = numba_kernels()
        at, other = updates.targets, updates.sources
        if self.along == "out":
            at, other = other, at
        most = at.size * (1 + self.is_twice)
        given = np.empty(most, np.int32), *np.empty((2, most), np.uint32)
        count = kernels.list_entries(at, other, self.is_twice, *given)
        order = Order(given[0][:count], room[0], threads)
        if dense:
            rows = np.arange(room[0], dtype=np.int32)
            first = np.empty(room[0] + 1, np.int64)
            kernels.find_rows(order.keys, first)
        else:
            rows, first = np.empty(count, np.int32), np.empty(count + 1, np.int64)
            touched = kernels.list_rows(order.keys, rows, first)
            rows, first = rows[:touched], first[: touched + 1]
        starts, stops = _grown(self.starts, room[1]), _grown(self.stops, room[1])
        classes = _grown(self.classes, room[1])
        looks = updates.looks
        combines = updates.policy == kernels.COMBINE
        places = np.empty(count if combines else 0, np.int64)
        lengths, gone, bits_at = np.zeros((3, rows.size), np.int64)
        words = 0
        if not updates.kinds.all():
            words = kernels.measure_rows(rows, starts, stops, bits_at)
        plan = Plan(
            threads, rows, first, order,
            order.carried(given[1][:count]), order.carried(given[2][:count]),
            np.full(count, kernels.APPENDS, np.uint8),
            np.empty(places.size, np.int32), places,
            lengths, gone, bits_at, np.zeros(words, np.uint64), np.zeros(8, np.int64),
            starts, stops, classes, dense,
        )  # fmt: skip
        if self.is_twice or count < at.size:
            plan.listed = given[1][:count] >> 1
        plan.vertex_count = room[0]
        plan.born = room[0] if dense else room[0] - self.vertex_count
        if looks:
            self._plan_rows(plan, updates)
        else:
            plan.share(kernels.plan_appends, rows, first, starts, stops, lengths)
        return plan

    def _plan_rows(self, plan: Plan, updates: Updates) -> None:
        """Match the entries of each row with its edges."""
        kernels = numba_kernels()
        is_new = np.full(plan.order.size, updates.kinds[:1].any(), np.uint8)
        if updates.kinds.any() and not updates.kinds.all():
            is_new = plan.by_entry(updates.kinds)
        keys = plan.ends
        if self.is_sided:
            keys = plan.ends << 1 | plan.order & 1
        bounds = plan.threads.bounds(plan.rows.size, plan.first)
        tallies = np.zeros((len(bounds), plan.tally.size), np.int64)
        plan.threads.share(
            bounds,
            lambda part, low, high: kernels.plan_rows(
                low, high, plan.rows, plan.first, plan.order, keys, is_new,
                plan.starts, plan.stops, self.ends, self.numbers, self.is_sided,
                updates.policy, updates.copies, plan.bits_at, plan.bits,
                plan.places, plan.fates, plan.heads, updates.outcomes, plan.lengths,
                plan.gone, tallies[part],
            ),
        )  # fmt: skip
        plan.tally[:] = tallies.sum(axis=0)

    def fit(self, plan: Plan) -> bool:
        """Find room for the rows that grow or shrink; return whether there is any."""
        kernels = numba_kernels()
        counts = np.zeros((4, kernels.CLASS_COUNT + 1), np.int64)
        wanted, freed = counts[:2, :-1]
        plan.chosen = np.empty(plan.rows.size, np.uint8)
        plan.targets = np.empty(plan.rows.size, plan.starts.dtype)
        has_other_hubs = kernels.choose_runs(
            plan.rows, plan.lengths, plan.starts, plan.stops, plan.classes, plan.chosen,
            wanted, freed,
        )  # fmt: skip
        taken = [np.empty(0, np.int64)]
        used: dict[int, int] = {}
        short = 0
        for size in wanted.nonzero()[0].tolist():
            taken.append(self.queues[size].next(int(wanted[size])))
            used[size] = taken[-1].size
            short += int(wanted[size] - used[size]) * int(kernels.SIZES[size])
            counts[2, size + 1] = used[size]
        counts[3, 1:] = freed
        taken_at, freed_at = counts[2:].cumsum(axis=1)
        regions = self._regions(short, used)
        places = np.empty(int(freed_at[-1]), np.int64)
        passed = kernels.place_runs(
            plan.rows, plan.starts, plan.classes, plan.chosen, np.concatenate(taken),
            taken_at, regions, plan.targets, places, freed_at,
        )  # fmt: skip
        if passed < 0:
            return False
        plan.drops = list(used.items())
        plan.puts = [
            (size, places[freed_at[size] : freed_at[size + 1]])
            for size in freed.nonzero()[0].tolist()
        ]
        self._leave(plan, regions, passed)
        for size, numbers in plan.puts:
            self.queues[size].reserve(len(numbers))
        plan.hubs = self.hubs
        if has_other_hubs:
            kept = np.setdiff1d(self.hubs, plan.rows, assume_unique=True)
            found = np.append(kept, plan.rows[plan.lengths >= kernels.HUB])
            plan.hubs = np.sort(found).astype(np.int32)
        return True

    def _leave(self, plan: Any, regions: Array, passed: int) -> None:
        """Keep the free memory behind the rows that were laid into a region.

        What rows have passed by, and what they have not come to, goes to the queues.
        """
        behind = len(regions) - 1
        plan.region, plan.top = (0, 0), self.top
        if passed < behind:
            plan.region = int(regions[passed, 0]), int(regions[passed, 1])
        else:
            plan.top = int(regions[behind, 0])
        for region in range(behind):
            if region != passed:
                start, stop = regions[region].tolist()
                plan.lost += self._split(start, stop, plan.puts)

    def _regions(self, short: int, used: dict[int, int]) -> Array:
        """Return free regions with so many slots, the end of the pool behind them.

        Long runs that are taken from their queues are added to `used`.
        """
        kernels, regions = numba_kernels(), [self.region]
        room = self.region[1] - self.region[0]
        for size in range(kernels.LONG_CLASS, kernels.CLASS_COUNT):
            if room >= short:
                break
            slots = int(kernels.SIZES[size])
            while room < short and used.get(size, 0) < len(self.queues[size]):
                (start,) = self.queues[size].next(1, used.get(size, 0)).tolist()
                regions.append((start, start + slots))
                used[size] = used.get(size, 0) + 1
                room += slots
        return np.array([*regions, (self.top, self.slots)], np.int64)

    @staticmethod
    def _split(start: int, stop: int, puts: list[tuple[int, Any]]) -> int:
        """Cut free memory into runs for the queues; return how many slots are lost."""
        sizes = numba_kernels().SIZES
        while stop - start >= sizes[1]:
            size = int(np.searchsorted(sizes, stop - start, "right")) - 1
            puts.append((size, [int(start)]))
            start += sizes[size]
        return int(stop - start)

    def refit(self, plan: Plan, slots_for: Callable[[int], int]) -> None:
        """Lay out all rows in order, in arrays of their own.

        Parameters
        ----------
        plan : Plan
            One of all rows.
        slots_for : callable
            Takes the slots that rows need, and returns those of the new pool.
        """
        kernels = numba_kernels()
        plan.chosen = np.empty(plan.rows.size, np.uint8)
        needed = kernels.classes_of(plan.lengths, plan.chosen)
        slots = slots_for(needed)
        capacity = plan.starts.size
        fresh = RowPool(self.along, self.is_twice, slots, capacity, self.spec)
        if self.ids is not None:
            fresh.ids = np.zeros(fresh.slots, np.uint32)
        plan.targets = np.empty(plan.rows.size, fresh.starts.dtype)
        kernels.place_all(plan.chosen, plan.targets)
        fresh.top = plan.top = needed
        plan.fresh = fresh
        plan.hubs = plan.rows[plan.lengths >= kernels.HUB]

    def prepare(self, plan: Plan, updates: Updates) -> None:
        """Find what is written, so that `apply` takes no memory.

        Raises
        ------
        GraphInputError
            Values without a sum.
        """
        kernels = numba_kernels()
        new = self if plan.fresh is None else plan.fresh
        sources = _NONE
        numbers = plan.order
        if updates.numbers is None and updates.number:
            numbers = plan.order + np.uint32(2 * updates.number)
        elif updates.numbers is not None:
            numbers = updates.numbers[plan.order >> 1] + (plan.order & 1)
        if updates.policy == kernels.COMBINE and updates.rule == "last":
            sources = np.arange(plan.order.size, dtype=np.int32)
            kernels.take_last(plan.heads, sources)
        plan.writes = [
            (self.ends, new.ends, plan.ends, _NONE, False),
            (self.numbers, new.numbers, numbers, _NONE, False),
        ]
        for name, column in self.columns.items():
            values = column[:0]
            if name in updates.columns:
                values = plan.by_entry(updates.columns[name])
                if updates.policy == kernels.COMBINE and updates.rule != "last":
                    values = self._combined(plan, column, values, updates.rule)
            plan.writes.append((column, new.columns[name], values, sources, True))
        if self.ids is not None and updates.ids is not None:
            is_shared = np.uint32(not updates.has_twins)  # at both ends
            ids = updates.ids[plan.order & ~is_shared]
            plan.writes.append((self.ids, new.ids, ids, _NONE, False))

    @staticmethod
    def _combined(plan: Plan, column: Array, values: Array, policy: str) -> Array:
        """Return sums, least or greatest values by entry."""
        kernels = numba_kernels()
        rule = ("sum", "min", "max").index(policy)
        kind = column.dtype.kind
        wide = {"i": np.int64, "u": np.uint64, "f": np.float64}[kind]
        count = plan.order.size
        there, totals = np.zeros((2, count), wide)
        rough = np.zeros(count)
        at = np.flatnonzero(plan.fates & kernels.REPLACES)
        there[at] = column[plan.places[at]]
        given = values.astype(wide)
        kernels.combine(rule, plan.fates, plan.heads, given, there, totals, rough)
        # A wrapped sum is off by a multiple of 2**64: half of it cannot be rounding.
        bad = np.isnan(rough) | (np.abs(totals - rough) > 2.0**62 if kind != "f" else 0)
        if bad.any():
            entry = np.flatnonzero(bad)
            update = int(plan.order[entry[np.argmin(plan.order[entry])]] >> 1)
            raise GraphInputError(
                "the weights of a repeated edge have no sum",
                where=f"weights[{update}]",
                got=f"a sum near {rough[entry[0]]}",
                expected="a finite or infinite number that fits the column's dtype",
                fix="give the weights as float64, or choose another `duplicates`",
            )
        with np.errstate(over="ignore"):
            return totals.astype(column.dtype)

    def apply(self, plan: Plan) -> RowPool:
        """Write the rows, and return the pool that has them now; it cannot fail."""
        kernels = numba_kernels()
        new = self if plan.fresh is None else plan.fresh
        for old, to, values, sources, replaces in plan.writes:
            width = 1 if old.ndim == 1 else old.shape[1]
            plan.share(
                kernels.write_values, plan.rows, plan.first, plan.fates, plan.places,
                plan.starts, plan.stops, plan.targets, plan.gone, plan.bits_at,
                plan.bits, _bits_of(old), _bits_of(to), width, new is not self,
                _bits_of(values), sources, replaces,
            )  # fmt: skip
        if new is self:
            self.starts, self.stops = plan.starts, plan.stops
            self.classes = plan.classes
        new.length_counts[0] += plan.born
        new.vertex_count = plan.vertex_count
        kernels.finish_rows(
            plan.rows, plan.targets, plan.lengths, plan.chosen, new.starts, new.stops,
            new.classes, new.length_counts,
        )  # fmt: skip
        new.hubs = plan.hubs
        if new is self:
            for size, count in plan.drops:
                self.queues[size].drop(count)
            for size, starts in plan.puts:
                self.queues[size].put(starts)
            self.region, self.top = plan.region, plan.top
            self.lost += plan.lost
        return new

    def arrays(self) -> list[Array]:
        """Return all arrays over slots and vertices."""
        by_row = [self.starts, self.stops, self.classes]
        ids = [] if self.ids is None else [self.ids]
        return [*by_row, self.ends, self.numbers, *self.columns.values(), *ids]

    def copy(self) -> RowPool:
        """Return a pool with the same rows in the same places."""
        made = copy(self)
        for name in ("starts", "stops", "classes", "ends", "numbers", "length_counts"):
            setattr(made, name, getattr(self, name).copy())
        made.columns = {name: column.copy() for name, column in self.columns.items()}
        made.ids = None if self.ids is None else self.ids.copy()
        made.queues = [queue.copy() for queue in self.queues]
        return made


def _grown(array: Array, size: int) -> Array:
    """Return an array, or a longer copy of it."""
    if array.size >= size:
        return array
    made = np.zeros(size, array.dtype)
    made[: array.size] = array
    return made


def _bits_of(array: Array) -> Array:
    """Return an array as flat unsigned integers."""
    flat = array.reshape(-1)
    return flat.view(f"u{array.dtype.itemsize}")

"""Rows in a pool of slots, and the changes that a batch makes to them.

A row is one run of consecutive slots, which has room behind its last edge. `RowPool` is
the pool of one direction. A batch takes these steps, each on all pools; nothing that
lives is written before the last one, which cannot fail:

`RowPool.plan`     sort the updates by row, and find the new state of each row
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
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass, field
from featgraph.cuda.values import offset_dtype
from featgraph.dynamic.rows import (
    SHARED,
    Array,
    HostRows,
    Queue,
    Spec,
    Threads,
    numba_kernels,
)
from featgraph.graph.building.edges import combine

__all__ = [
    "Plan",
    "RowPool",
    "Updates",
    "combined",
    "grown",
    "wide_slots",
]

_NONE = np.empty(0, np.int32)
_FEWEST_SLOTS = 64
#: The length from which on rows are in the list of hubs, `kernels_cpu.HUB`.
FEWEST_LISTED = 2048


def wide_slots(slots: int) -> type[np.integer[Any]]:
    """Return the type of slot numbers; a row may be walked past its end."""
    return np.int64 if slots >= 2**31 - 1024 else np.int32


@dataclass(eq=False)
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
    is_checked : bool
        Whether the ids are those of vertices; else a plan counts those that are not.
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
    is_checked: bool = True


@dataclass(eq=False)
class Plan:
    """The changes that a batch makes to a pool.

    Attributes
    ----------
    rows, first : touched rows, and their first entries
    order : uint32, number of each entry in the batch
    ends : uint32, by entry
    fates, heads, places : by entry
    lengths, gone : by row: edges afterwards, and those that leave
    bits_at, bits : which edges leave
    tally : int64: see `kernels_cpu`
    came, left : int, edges that come to rows, and that leave
    runs : how many runs of each class are taken, and freed
    starts, stops, classes : the rows as they are, with room for all vertices
    chosen, targets : class and first slot of each row's run afterwards
    vertex_count, born : all vertices, and those that are new
    left_ends : other ends of edges that leave, where degrees go by them
    degrees, out_degrees, out_counts : those of the pool, with room for all
    writes : arrays as they are and will be, values, and the value of each entry
    """

    threads: Threads
    bounds: list[int]
    rows: Array
    first: Array
    order: Array
    ends: Array
    fates: Array
    heads: Array
    places: Array
    lengths: Array
    gone: Array
    bits_at: Array
    bits: Array
    starts: Array
    stops: Array
    classes: Array
    chosen: Array
    is_dense: bool
    vertex_count: int
    born: int
    tally: Array = field(default_factory=lambda: _NONE)
    came: int = 0
    left: int = 0
    runs: Array = field(default_factory=lambda: _NONE)
    targets: Array = field(default_factory=lambda: _NONE)
    hubs: Array = field(default_factory=lambda: _NONE)
    left_ends: Array = field(default_factory=lambda: _NONE)
    degrees: Array = field(default_factory=lambda: _NONE)
    out_degrees: Array = field(default_factory=lambda: _NONE)
    out_counts: Array = field(default_factory=lambda: _NONE)
    writes: list[tuple[Any, ...]] = field(default_factory=list)
    fresh: RowPool | None = None
    puts: list[tuple[int, Any]] = field(default_factory=list)
    drops: list[tuple[int, int]] = field(default_factory=list)
    region: tuple[int, int] = (0, 0)
    top: int = 0
    lost: int = 0

    def count(self, tally: Array) -> None:
        """Store counts of outcomes, edges and runs."""
        kernels, self.tally = numba_kernels(), tally
        self.came, self.left = int(tally[kernels.CAME]), int(tally[kernels.GONE])
        self.runs = tally[kernels.WANTED :].reshape(2, -1)

    def share(self, kernel: Any, *arguments: Any) -> None:
        """Run a kernel over the touched rows."""
        self.threads.share(self.bounds, kernel, *arguments)


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
        self.slots = slots = max(slots, _FEWEST_SLOTS)
        self.along, self.is_twice, self.spec = along, is_twice, spec
        #: Whether rows have edges of both directions of a directed graph.
        self.is_sided = along == "both"
        dtype = wide_slots(slots)
        self.starts = self.zeros(vertex_capacity, dtype)
        self.stops = self.zeros(vertex_capacity, dtype)
        self.classes = self.zeros(vertex_capacity, np.uint8)
        self.ends = self.zeros(slots, np.int32)
        self.numbers = self.zeros(slots, np.uint32)
        self.columns = {name: self.zeros(slots, *kind) for name, kind in spec.items()}
        self.ids: Array | None = None
        #: Rows that are counted; more have room.
        self.vertex_count = 0
        self.length_counts = np.zeros(kernels.HUB + 1, np.int64)
        self.hubs = np.empty(0, np.int32)
        #: Lengths of rows where they have been asked for, degrees at other ends where
        #: `EdgeStore` counts them, and how many vertices have each but 0.
        self.degrees = self.out_degrees = self.out_counts = _NONE
        self.longest_out = 0
        self.queues = [Queue(np.int64) for _ in range(kernels.CLASS_COUNT)]
        #: Free memory that rows are laid into next, and where nothing has been yet.
        self.region, self.top = (0, 0), 0
        #: Slots that are too few for a run; compaction gains them back.
        self.lost = 0

    def plan(self, updates: Updates, threads: Threads, *room: int, dense: bool) -> Plan:
        """Plan the changes of a batch to the rows.

        Parameters
        ----------
        updates : Updates
        threads : Threads
        *room : int
            The number of vertices and their capacity, once the batch is applied.
        dense : bool
            Whether all rows count as touched.
        """
        from featgraph.graph.building import kernels as building  # loads Numba

        kernels = numba_kernels()
        at, other = updates.targets, updates.sources
        if self.along == "out":
            at, other = other, at
        keys = np.empty(at.size << self.is_twice, np.int64)
        count = kernels.list_entries(at, other, self.is_twice, keys)
        keys = keys[:count]
        if count < SHARED:
            keys.sort()
        else:
            keys = building.sorted_keys(keys, 32, room[0])
        size = room[0] if dense else count
        rows, first = np.arange(size, dtype=np.int32), np.empty(size + 1, np.int64)
        touched = kernels.list_rows(keys, rows, first, dense)
        if not dense:
            rows, first = rows[:touched], first[: touched + 1]
        order, ends = np.empty((2, count), np.uint32)
        fates = np.empty(count, np.uint8)
        threads.share(
            threads.bounds(count), kernels.read_entries, keys, at, other, updates.kinds,
            order, ends, fates,
        )  # fmt: skip
        combines = count if updates.policy == kernels.COMBINE else 0
        lengths, gone, bits_at = np.zeros((3, rows.size), np.int64)
        plan = Plan(
            threads, threads.bounds(rows.size, first), rows, first, order, ends, fates,
            np.empty(combines, np.int32), np.empty(combines, np.int64),
            lengths, gone, bits_at, np.empty(0, np.uint64),
            grown(self.starts, room[1]), grown(self.stops, room[1]),
            grown(self.classes, room[1]), np.empty(rows.size, np.uint8), dense,
            room[0], room[0] if dense else room[0] - self.vertex_count,
        )  # fmt: skip
        if not updates.kinds.all():
            words = (plan.stops[rows].astype(np.int64) - plan.starts[rows] + 63) >> 6
            np.cumsum(words[:-1], out=bits_at[1:])
            plan.bits = np.zeros(int(words.sum()), np.uint64)
        keys = ends << 1 | order & 1 if self.is_sided else ends
        tallies = np.zeros((len(plan.bounds), kernels.TALLY), np.int64)
        threads.share(
            plan.bounds, kernels.plan_rows, rows, first, order, keys, plan.starts,
            plan.stops, plan.classes, self.ends, self.numbers, self.is_sided, dense,
            updates.looks, updates.policy, updates.copies, bits_at, plan.bits,
            plan.places, fates, plan.heads, updates.outcomes, lengths, gone,
            plan.chosen, tallies,
        )  # fmt: skip
        plan.count(tallies.sum(axis=0))
        return plan

    def filled(
        self, sources: Array, targets: Array, numbers: Array | None,
        columns: dict[str, Array], ids: Array | None, vertex_count: int,
        slots_for: Callable[[int], int],
    ) -> RowPool:  # fmt: skip
        """Return a pool of edges, given in the order of insertion; this one has none.

        Loops of static graphs sort them into rows, which have spare slots here.

        Parameters
        ----------
        numbers : uint32, optional
            Twice the numbers of their insertions. Default: 0, 2, 4, ...
        ids : uint32, optional
            By edge; one that stands twice has the same id at both ends.
        slots_for : callable
            As for `refit`.
        """
        from featgraph.graph.building import kernels as building  # loads Numba

        sizes, hub, count = numba_kernels().SIZES, numba_kernels().HUB, sources.size
        ends = (sources, targets) if self.along == "out" else (targets, sources)
        by_row: tuple[Array, ...] = ends[:1]
        loops = "count_one", "fill_columns", "fill_given"
        if self.is_twice:
            ends = by_row = sources, targets
            loops = "count_both", "fill_columns_both", "fill_given_both"
        count_rows, fill, fill_given = (getattr(building, name) for name in loops)
        lengths = np.zeros(self.starts.size, offset_dtype(2 * count))
        count_rows(*by_row, lengths)
        classes = np.searchsorted(sizes, lengths)
        behind = np.cumsum(sizes[classes])
        slots, top = slots_for(int(behind[-1])), int(behind[-1])
        new = RowPool(self.along, self.is_twice, slots, lengths.size, self.spec)
        new.top, new.vertex_count, new.classes[:] = top, vertex_count, classes
        new.starts[:] = np.where(classes, behind - sizes[classes], 0)
        new.stops[:] = new.starts + lengths
        given = np.zeros(new.slots, lengths.dtype)
        fill(*ends, new.stops.copy(), new.ends)
        fill_given(*by_row, new.stops.copy(), given)
        if self.is_twice:
            new.numbers += given >= count
            given[given >= count] -= count
        if count:
            own = 2 * given if numbers is None else numbers[given]
            np.add(new.numbers, own, out=new.numbers, casting="unsafe")
            new.columns = {name: values[given] for name, values in columns.items()}
        if ids is not None:
            new.ids = ids[given] if count else np.zeros(new.slots, np.uint32)
        if self.out_degrees.size:
            new.out_degrees = np.zeros(lengths.size, np.int32)
            building.count_one(sources, new.out_degrees)
            new.out_counts = np.bincount(new.out_degrees).astype(np.int32)
            new.longest_out = new.out_counts.size - 1
        counted = np.minimum(lengths[:vertex_count], hub)
        new.length_counts = np.bincount(counted, minlength=hub + 1)
        new.hubs = np.flatnonzero(lengths >= hub).astype(np.int32)
        return new

    def fit(self, plan: Plan) -> bool:
        """Find room for the rows that grow or shrink; return whether there is any."""
        kernels = numba_kernels()
        plan.region, plan.top = self.region, self.top
        self._find_hubs(plan)
        if not plan.runs.any():
            plan.targets = plan.starts[plan.rows]
            return True
        plan.runs[:, 0] = 0  # rows without edges have no run
        wanted, freed = plan.runs
        plan.targets = np.empty(plan.rows.size, plan.starts.dtype)
        counts = np.zeros((2, kernels.CLASS_COUNT + 1), np.int64)
        taken = [np.empty(0, np.int64)]
        used: dict[int, int] = {}
        short = 0
        for size in wanted.nonzero()[0].tolist():
            taken.append(self.queues[size].next(int(wanted[size])))
            counts[0, size + 1] = used[size] = taken[-1].size
            short += int(wanted[size] - used[size]) * int(kernels.SIZES[size])
        counts[1, 1:] = freed
        taken_at, freed_at = counts.cumsum(axis=1)
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
        self._leave(plan, regions.tolist(), passed)
        for size, numbers in plan.puts:
            self.queues[size].reserve(len(numbers))
        return True

    def _leave(self, plan: Any, regions: list[Any], passed: int) -> None:
        """Keep the free memory behind the rows that were laid into a region.

        Slots that rows have skipped, or have not reached, are appended to the queues.
        """
        behind = len(regions) - 1
        plan.region, plan.top = (0, 0), self.top
        if passed < behind:
            plan.region = regions[passed][0], regions[passed][1]
        else:
            plan.top = regions[behind][0]
        for region in range(behind):
            if region != passed:
                start, stop = regions[region]
                plan.lost += _split(start, stop, plan.puts)

    def _find_hubs(self, plan: Any) -> None:
        kernels, plan.hubs = numba_kernels(), self.hubs
        if plan.is_dense or plan.tally[kernels.HUBS]:
            kept = np.setdiff1d(self.hubs, plan.rows, assume_unique=True)
            found = np.append(kept, plan.rows[plan.lengths >= kernels.HUB])
            plan.hubs = np.sort(found).astype(np.int32)

    def _regions(self, short: int, used: dict[int, int]) -> Array:
        """Return free regions with so many slots, the end of the pool behind them.

        Long runs that are taken from their queues are added to `used`.
        """
        kernels, regions = numba_kernels(), [self.region]
        room = self.region[1] - self.region[0]
        for size in range(kernels.LONG_CLASS, kernels.CLASS_COUNT):
            if room >= short:
                break
            while room < short and used.get(size, 0) < len(self.queues[size]):
                slots = int(kernels.SIZES[size])
                (start,) = self.queues[size].next(1, used.get(size, 0)).tolist()
                regions.append((start, start + slots))
                used[size] = used.get(size, 0) + 1
                room += slots
        return np.array([*regions, (self.top, self.slots)], np.int64)

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
        needed = int(plan.runs[0] @ kernels.SIZES)
        slots = slots_for(needed)
        capacity = plan.starts.size
        fresh = RowPool(self.along, self.is_twice, slots, capacity, self.spec)
        if self.ids is not None:
            fresh.ids = np.zeros(fresh.slots, np.uint32)
        plan.targets = np.empty(plan.rows.size, fresh.starts.dtype)
        none = np.zeros(kernels.CLASS_COUNT + 1, np.int64)
        kernels.place_runs(
            plan.rows, fresh.starts, fresh.classes, plan.chosen, none, none,
            np.array([[0, needed]]), plan.targets, none, none,
        )  # fmt: skip
        fresh.top = plan.top = needed
        plan.fresh = fresh
        self._find_hubs(plan)

    def prepare(self, plan: Plan, updates: Updates) -> None:
        """Prepare all writes, so that `apply` allocates no memory.

        Raises
        ------
        GraphInputError
            Values without a sum.
        """
        kernels = numba_kernels()
        new = self if plan.fresh is None else plan.fresh
        plan.degrees = grown(self.degrees, self.degrees.size and plan.starts.size)
        if self.out_degrees.size:
            plan.out_degrees = grown(self.out_degrees, plan.starts.size)
            room = self.longest_out + plan.came + 1
            if room > self.out_counts.size:
                room = 2 * room
            plan.out_counts = grown(self.out_counts, room)
        numbers = plan.order
        if updates.numbers is None and updates.number:
            numbers = plan.order + np.uint32(2 * updates.number)
        elif updates.numbers is not None:
            numbers = updates.numbers[plan.order >> 1] + (plan.order & 1)
        sources, own = plan.order >> 1, plan.order[:0]
        plan.writes = [
            (self.ends, new.ends, plan.ends, own, False),
            (self.numbers, new.numbers, numbers, own, False),
        ]
        if updates.policy == kernels.COMBINE and updates.rule == "last":
            given = np.flatnonzero(plan.heads >= 0)
            sources[plan.heads[given]] = sources[given]  # the last of several counts
        for name, column in self.columns.items():
            values, of = updates.columns.get(name, column[:0]), sources
            if values.size and plan.heads.size and updates.rule != "last":
                values, of = combined(plan, column, values[of], updates.rule), own
            plan.writes.append((column, new.columns[name], values, of, True))
        if self.ids is not None and updates.ids is not None:
            is_shared = np.uint32(not updates.has_twins)  # at both ends
            ids = updates.ids[plan.order & ~is_shared]
            plan.writes.append((self.ids, new.ids, ids, own, False))

    def apply(self, plan: Plan) -> RowPool:
        """Write the rows, and return the pool that has them now; it cannot fail."""
        kernels = numba_kernels()
        new = self if plan.fresh is None else plan.fresh
        new.degrees, new.out_degrees = plan.degrees, plan.out_degrees
        new.out_counts = plan.out_counts
        longest_out = plan.threads.beside(
            kernels.count_ends, plan.ends, plan.fates, plan.left_ends, new.out_degrees,
            new.out_counts, self.longest_out,
        )  # fmt: skip
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
            new.classes, new.length_counts, new.degrees,
        )  # fmt: skip
        new.longest_out = longest_out()
        new.hubs = plan.hubs
        if new is self:
            for size, count in plan.drops:
                self.queues[size].drop(count)
            for size, starts in plan.puts:
                self.queues[size].put(starts)
            self.region, self.top = plan.region, plan.top
            self.lost += plan.lost
        return new

    def degrees_of(self, side: str, vertex_count: int) -> Array:
        """Return degrees by vertex that batches keep: "in" of rows, or "out"; int32."""
        if side == "in" and not self.degrees.size:
            self.degrees = (self.stops - self.starts).astype(np.int32)
        return self.degrees if side == "in" else self.out_degrees

    def by_slot(self) -> list[Any]:
        """Return all arrays over slots."""
        ids = [] if self.ids is None else [self.ids]
        return [self.ends, self.numbers, *self.columns.values(), *ids]

    def arrays(self) -> list[Any]:
        """Return all arrays over slots and vertices."""
        by_row = self.starts, self.stops, self.classes, self.degrees, self.out_degrees
        return [*(a for a in by_row if a is not None), *self.by_slot()]

    def copy(self) -> RowPool:
        """Return a pool with the same rows in the same places."""
        made = copy(self)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(made, name, array.copy())
        made.columns = {name: column.copy() for name, column in self.columns.items()}
        made.queues = [queue.copy() for queue in self.queues]
        return made


def _split(start: int, stop: int, puts: list[tuple[int, Any]]) -> int:
    """Cut free memory into runs for the queues; return how many slots are lost."""
    sizes = numba_kernels().SIZES
    while stop - start >= sizes[1]:
        size = int(np.searchsorted(sizes, stop - start, "right")) - 1
        puts.append((size, [int(start)]))
        start += sizes[size]
    return int(stop - start)


def combined(plan: Any, column: Array, values: Array, policy: str) -> Array:
    """Return sums, least or greatest values by entry, with those of the graph's edges.

    Static graphs combine the weights of repeated edges in the same way.
    """
    from featgraph.graph.building import kernels as building  # loads Numba

    replaces = np.flatnonzero(plan.fates & numba_kernels().REPLACES)
    places = np.append(replaces, np.flatnonzero(plan.heads >= 0))
    groups = np.append(replaces, plan.heads[places[replaces.size :]])
    every = np.append(column[plan.places[replaces]], values[places[replaces.size :]])
    order = building.order_of(groups)
    groups = groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    totals = np.zeros(plan.order.size, column.dtype)
    totals[groups[starts]] = combine(
        every, order, starts, policy, plan.order[places] >> 1
    )
    return totals


def grown(array: Array, size: int) -> Array:
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

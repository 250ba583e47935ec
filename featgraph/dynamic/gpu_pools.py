"""Rows in a pool of the GPU's memory, and batches on them.

`GpuRowPool` takes the steps of `RowPool` by the kernels of `kernels_cuda`, to equal
rows. The host reads two small arrays in a batch: how many rows and pairs there are, and
what becomes of them. What else it needs of rows it downloads: `GpuRowPool.on_host`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from featgraph.arrays import edge_kernels, memory, sorting
from featgraph.arrays.edges import marked, taken
from featgraph.arrays.padding import stored_shape
from featgraph.dynamic import kernels_cpu as kernels
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import reads_cuda as reads
from featgraph.dynamic.gpu_queues import (
    GpuQueue,
    GpuRuns,
    bits_of,
    part_of,
    read_back,
    width_of,
)
from featgraph.dynamic.kernels_cpu import CLASS_COUNT, COMBINE, HUB, KEEP, SIZES
from featgraph.dynamic.pools import RowPool, Updates, fewest_slots, wide_slots
from featgraph.dynamic.rows import Array, Queue, Spec, Threads, edges_of

__all__ = ["GpuPlan", "GpuRowPool"]

#: Most blocks of a kernel that counts: 8 a multiprocessor of an H200.
_COUNTING_BLOCKS = 1056


@dataclass(eq=False)
class GpuPlan:
    """What a batch does to a pool on the GPU; arrays are named as in `Plan`.

    Attributes
    ----------
    count, entries : int
        Touched rows, and entries.
    order, row_of : the place and the row of each entry
    ends : other end by place
    appended : how many entries before each append an edge
    at, marks, before : see `kernels_cuda`
    copied_at : the same as `at`, of slots that are copied
    summary : ndarray of int64
        What the host has read.
    """

    updates: Updates
    sides: int
    is_dense: bool
    starts: Any
    stops: Any
    classes: Any
    rows: Any
    first: Any
    row_of: Any
    order: Any
    ends: Any
    count: int = 0
    entries: int = 0
    total: int = 0
    fates: Any = None
    heads: Any = None
    places: Any = None
    sources: Any = None
    appended: Any = None
    at: Any = None
    marks: Any = None
    before: Any = None
    lengths: Any = None
    chosen: Any = None
    copied_at: Any = None
    targets: Any = None
    runs: tuple[Any, Any] = (None, None)
    hub_list: tuple[Any, Any] = (None, None)
    summary: Array = field(default_factory=lambda: np.zeros(passes.SUMMARY, np.int64))
    hubs: Array = field(default_factory=lambda: np.empty(0, np.int32))
    hub_lengths: Array = field(default_factory=lambda: np.empty(0, np.int64))
    vertex_count: int = 0
    born: int = 0
    writes: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    tables: tuple[Any, Any] = (None, None)
    degrees: tuple[Any, ...] = (None, None)
    fresh: GpuRowPool | None = None
    freed: Any = None
    drops: Any = 0
    puts: list[tuple[int, Any]] = field(default_factory=list)
    region: tuple[int, int] = (0, 0)
    top: int = 0
    lost: int = 0

    @property
    def tally(self) -> Array:
        """How many updates had each outcome, and edges deleted."""
        return self.summary[: passes.BORN]

    @property
    def came(self) -> int:
        """How many edges come."""
        return int(self.summary[passes.CAME])

    @property
    def left(self) -> int:
        """How many edges leave."""
        return int(self.summary[passes.GONE])

    @property
    def marked(self) -> tuple[Any, ...]:
        """What tells edges that leave, and whether there are any."""
        return self.at, self.marks, self.before, self.left > 0


class GpuRowPool(RowPool):
    """The rows of one direction in memory of the GPU: see `RowPool`.

    `length_counts`, `hubs` and `hub_lengths` are on the host.
    """

    def __init__(
        self, along: str, is_twice: bool, slots: int, vertex_capacity: int, spec: Spec
    ) -> None:
        slots = fewest_slots(slots)
        self.along, self.is_twice, self.spec = along, is_twice, spec
        dtype = wide_slots(slots)
        self.starts = memory.filled((vertex_capacity,), 0, dtype)
        self.stops = memory.filled((vertex_capacity,), 0, dtype)
        self.classes = memory.filled((vertex_capacity,), 0, np.uint8)
        self.ends = memory.filled((slots,), 0, np.int32)
        self.numbers = memory.filled((slots,), 0, np.uint32)
        self.columns = {
            name: _zeros(slots, dtype, width) for name, (dtype, width) in spec.items()
        }
        self.ids = None
        self.vertex_count = 0
        self.length_counts = np.zeros(HUB + 1, np.int64)
        self.hubs = np.empty(0, np.int32)
        self.hub_lengths = np.empty(0, np.int64)
        self.queues: Any = GpuRuns()
        self.region, self.top, self.lost = (0, 0), 0, 0
        self._host: RowPool | None = None
        #: Lengths of rows, and degrees at other ends, where they have been asked for.
        self.degrees: Any = None
        self.out_degrees: Any = None

    def longest(self, vertex_count: int, has_out: bool, bound: int) -> tuple[int, int]:
        """Return the highest degree, and that below a bound; out-degrees if asked."""
        counts = self.length_counts
        most, below = kernels.top_of(counts, HUB), kernels.top_of(counts, bound - 1)
        most = max(most, int(self.hub_lengths.max(initial=0)))
        if has_out:
            degrees = self.degrees_of("out", vertex_count)
            out = _highest(degrees, vertex_count, bound)
            most, below = max(most, out[0]), max(below, out[1])
        return most, below

    def lengths(self, vertex_count: int) -> Array:
        """Return the number of edges of each vertex, on the host."""
        starts, stops = (part_of(a, 0, vertex_count) for a in (self.starts, self.stops))
        return read_back(stops) - read_back(starts)

    def taken_at(self, name: str, places: Array) -> Array:
        """Return some entries of an array by its name, on the host."""
        return read_back(taken(getattr(self, name), memory.upload(places)))

    def rows_at(self, rows: Array, vertex_count: int) -> tuple[Array, Array, Array]:
        """Return starts, stops and ends on the host, of some rows alone."""
        ends, of = edges_of(self, rows)
        stops = np.zeros(vertex_count, np.int64)
        lengths = np.bincount(of, minlength=vertex_count)
        stops[rows] = np.cumsum(lengths[rows])
        return stops - lengths, stops, ends

    def given_slots(
        self, vertex_count: int, bound: int, is_undirected: bool
    ) -> tuple[Any, Any]:
        """Return rows and slots of edges as given, in the order of insertion.

        Insertions are numbered below `bound`.
        """
        lengths = memory.filled((vertex_count + 1,), 0, np.int32)
        memory.launch_over(
            reads.measure_all, vertex_count, self.starts, self.stops,
            part_of(lengths, 0, vertex_count),
        )  # fmt: skip
        at, found = sorting.scanned(lengths)
        total = int(memory.read(found)[0])
        rows, keys, flags = (memory.empty((total,), np.int32) for _ in range(3))
        slots = memory.empty((total,), self.starts.dtype)
        memory.launch_over(
            reads.list_slots, total, total, at, vertex_count, self.starts,
            self.numbers, is_undirected, rows, slots, keys, flags,
        )  # fmt: skip
        if is_undirected and total:
            given = marked(flags)
            rows, slots, keys = (taken(a, given) for a in (rows, slots, keys))
        _, order = sorting.sort_stably(keys, max(bound, 1))
        return taken(rows, order), taken(slots, order)

    def edges_at(self, slots: Any) -> tuple[Any, Any, dict[str, Any], Any]:
        """Return ends, numbers, columns and ids of edges by slot, on the GPU."""
        columns = {}
        for name, (_, width) in self.spec.items():
            column = self.columns[name]
            shape = (slots.size,) if width is None else (slots.size, width)
            columns[name] = memory.empty(shape, column.dtype)
            bits = bits_of(columns[name])
            memory.launch_over(
                reads.take_rows, bits.size, bits_of(column), width_of(column), slots,
                bits, width or 1,
            )  # fmt: skip
        ids = None if self.ids is None else taken(self.ids, slots)
        return taken(self.ends, slots), taken(self.numbers, slots), columns, ids

    def edges_from(self, is_in_set: Array, vertex_count: int) -> tuple[Array, Array]:
        """Return other ends and rows of edges whose other ends are in a set."""
        given = (
            self.starts,
            self.stops,
            self.ends,
            memory.upload(is_in_set * np.uint8(1)),
        )
        counts = memory.filled((vertex_count,), 0, np.int32)
        memory.launch_over(
            reads.count_from, 32 * vertex_count, vertex_count, *given, counts
        )
        before, total = sorting.scanned(counts)
        count = int(memory.read(total)[0])
        ends, rows = (memory.empty((count,), np.int32) for _ in range(2))
        if count:
            memory.launch_over(
                reads.list_from, 32 * vertex_count, vertex_count, *given, before, ends,
                rows,
            )  # fmt: skip
        return read_back(ends), read_back(rows)

    def on_host(self) -> RowPool:
        """Return a copy of the pool on the host, made once a version."""
        if self._host is None:
            made = RowPool(self.along, self.is_twice, 0, 0, self.spec)
            for name in ("starts", "stops", "classes", "ends", "numbers"):
                setattr(made, name, read_back(getattr(self, name)))
            made.columns = {
                name: read_back(self.columns[name])[:, :width]
                if width is not None
                else read_back(self.columns[name])
                for name, (_, width) in self.spec.items()
            }
            made.ids = None if self.ids is None else read_back(self.ids)
            made.length_counts, made.hubs = self.length_counts, self.hubs
            made.vertex_count = self.vertex_count
            made.queues = self.queues.on_host()
            made.region, made.top, made.lost = self.region, self.top, self.lost
            self._host = made
        return self._host

    @staticmethod
    def queue(dtype: Any) -> Queue:
        """Return a queue in that memory."""
        return GpuQueue(dtype)

    @staticmethod
    def placed(array: Array) -> Any:
        """Return an array in the memory where the pool is."""
        return memory.upload(array)

    def put(self, name: str, array: Any) -> None:
        """Write a `placed` array over that with a name, or have it where none is."""
        self._host = None
        if getattr(self, name) is None:
            setattr(self, name, array)
        else:
            memory.copy(getattr(self, name), array)

    def taken(self, updates: Updates) -> Updates:
        """Return updates with all arrays on the GPU."""
        numbers = updates.numbers
        return replace(
            updates,
            sources=_uploaded(updates.sources),
            targets=_uploaded(updates.targets),
            kinds=_uploaded(updates.kinds),
            outcomes=_uploaded(updates.outcomes),
            numbers=None if numbers is None else _uploaded(numbers),
            columns={name: _uploaded(a) for name, a in updates.columns.items()},
            ids=None if updates.ids is None else _uploaded(updates.ids),
        )

    # -- plan

    def plan(  # type: ignore[override]
        self, updates: Updates, threads: Threads, *room: int, dense: bool
    ) -> GpuPlan:
        """Find what a batch does to the rows: see `RowPool.plan`."""
        del threads
        at, other = updates.targets, updates.sources
        if self.along == "out":
            at, other = other, at
        sides, none = int(self.is_twice), room[0]
        most = at.size << sides
        keys, ends = (memory.empty((most,), np.int32) for _ in range(2))
        memory.launch_over(
            passes.list_entries, at.size, at, other, sides, none, keys, ends
        )
        by_row, order = sorting.sort_stably(keys, none + 1)
        limit = none if dense else min(most, none)
        counts = memory.filled((4,), 0, np.int64)
        plan = GpuPlan(
            updates, sides, dense, _grown(self.starts, room[1]),
            _grown(self.stops, room[1]), _grown(self.classes, room[1]),
            memory.empty((limit,), np.int32), memory.empty((limit + 1,), np.int64),
            memory.empty((most,), np.int32), order, ends,
        )  # fmt: skip
        plan.at = plan.before = plan.places = counts
        plan.marks = self.numbers
        plan.vertex_count = none
        plan.born = none if dense else none - self.vertex_count
        entry_of = self._list_rows(plan, by_row, none, counts)
        pairs: tuple[Any, ...] = ()
        if updates.looks and most:
            pairs = self._list_pairs(plan, keys, by_row, none, counts)
            lengths = memory.empty((limit + 1,), np.int64)
            memory.launch_over(
                passes.measure_rows, limit + 1, plan.rows, counts, plan.first,
                plan.starts, plan.stops, lengths,
            )  # fmt: skip
            plan.at, total = sorting.scanned(lengths)
            memory.launch(passes.note, 1, total, 0, counts, 3)
        found = [0, none if dense else 0, 0, 0]
        if most:
            found = memory.read(counts).tolist()
        plan.entries, plan.count, pair_count, plan.total = found
        plan.fates = memory.filled((plan.entries,), kernels.APPENDS, np.uint8)
        plan.summary = memory.filled((passes.SUMMARY,), 0, np.int64)
        plan.sources = memory.empty((plan.entries,), np.int32)
        if pairs:
            self._decide(plan, pairs, pair_count, entry_of)
        else:
            plan.appended = memory.empty((plan.entries + 1,), np.int64)
            memory.launch_over(passes.count_up, plan.entries + 1, plan.appended)
            memory.launch_over(
                passes.list_updates,
                plan.entries,
                plan.entries,
                order,
                sides,
                plan.sources,
            )
        self._measure(plan)
        return plan

    def _list_rows(self, plan: GpuPlan, by_row: Any, none: int, counts: Any) -> Any:
        """List touched rows; return the entry of each place."""
        most = by_row.size
        entry_of = memory.empty((most,), np.int32)
        known = plan.row_of, plan.order, entry_of, counts
        if plan.is_dense:
            memory.launch_over(passes.count_up, none, plan.rows)
            memory.launch_over(edge_kernels.begin_rows, none + 1, by_row, plan.first)
            memory.launch_over(
                passes.list_all_rows, most, by_row, none, plan.first, *known
            )
            return entry_of
        flags = memory.empty((most,), np.int32)
        memory.launch_over(passes.mark_rows, most, by_row, none, flags)
        sums, _ = sorting.scanned(flags)
        memory.launch_over(
            passes.list_rows, most, by_row, none, flags, sums, plan.rows, plan.first,
            *known,
        )  # fmt: skip
        return entry_of

    def _list_pairs(
        self, plan: GpuPlan, keys: Any, by_row: Any, none: int, counts: Any
    ) -> tuple[Any, ...]:
        """Sort by row and other end; return the order, sums, and lists of the pairs."""
        most, order, by_end = keys.size, None, plan.ends
        if self.is_sided:
            side = memory.empty((most,), np.int32)
            memory.launch_over(passes.list_sides, most, most, side)
            _, order = sorting.sort_stably(side, 2)
            by_end = taken(plan.ends, order)
        _, order = sorting.sort_stably(by_end, max(none, 1), order)
        _, order = sorting.sort_stably(taken(keys, order), none + 1, order)
        flags = memory.empty((most,), np.int32)
        given = by_row, none, plan.ends, order, self.is_sided, flags
        memory.launch_over(passes.mark_pairs, most, *given)
        sums, _ = sorting.scanned(flags)
        first, pair_keys = (memory.empty((most + 1,), np.int64) for _ in range(2))
        rows = memory.empty((most,), np.int32)
        memory.launch_over(
            passes.list_pairs, most, *given, sums, plan.row_of, first, pair_keys, rows,
            counts,
        )  # fmt: skip
        return order, sums, first, pair_keys, rows

    def _decide(
        self, plan: GpuPlan, pairs: tuple[Any, ...], count: int, entry_of: Any
    ) -> None:
        """Match pairs with edges, and take the updates of each one by one."""
        updates, sides = plan.updates, plan.sides
        order, sums, first, pair_keys, pair_rows = pairs
        has_copies = updates.policy == KEEP
        need, found = (memory.filled((count,), 0, np.int32) for _ in range(2))
        places = memory.empty((0 if has_copies else count,), np.int64)
        plan.marks = memory.filled((plan.total // 32 + 1,), 0, np.uint32)
        kinds = updates.kinds
        memory.launch_over(
            passes.count_needs, count, count, first, order, sides, kinds,
            updates.copies, need,
        )  # fmt: skip
        slots = plan.rows, plan.starts, self.ends, self.numbers, self.is_sided
        memory.launch_over(
            passes.match, -(-plan.total // passes.STEPS), plan.total, plan.at,
            plan.count, *slots, plan.first, plan.entries, sums, count, pair_keys, need,
            has_copies, found, places, plan.marks,
        )  # fmt: skip
        if has_copies and updates.copies != kernels.ALL:
            memory.launch_over(
                passes.mark_copies, 32 * count, count, pair_rows, pair_keys, need,
                found, updates.copies == kernels.LAST, plan.at, *slots, plan.marks,
            )  # fmt: skip
        bits = memory.empty(plan.marks.shape, np.int32)
        memory.launch_over(passes.count_bits, bits.size, plan.marks, bits)
        plan.before, _ = sorting.scanned(bits)
        plan.heads = memory.empty((plan.entries,), np.int32)
        into = plan.fates, plan.heads, plan.sources
        left = updates.outcomes, plan.summary
        if has_copies:
            _launch_few(
                passes.decide_copies, count, count, first, order, plan.order, sides,
                entry_of, kinds, updates.copies, found, *into, *left,
            )  # fmt: skip
        else:
            plan.places = memory.empty((plan.entries,), np.int64)
            _launch_few(
                passes.decide_single, count, count, first, order, sides, entry_of,
                kinds, updates.policy, found, places, *into, plan.places, *left,
            )  # fmt: skip
        flags = memory.empty((plan.entries + 1,), np.int32)
        memory.launch_over(passes.mark_appends, flags.size, plan.fates, flags)
        plan.appended, _ = sorting.scanned(flags)

    def _measure(self, plan: GpuPlan) -> None:
        """Find lengths and classes of rows, and read what the batch comes to."""
        count, has_marks = plan.count, plan.marks is not self.numbers
        most_hubs = self.hubs.size + (self.slots + plan.entries) // HUB + 1
        plan.lengths = memory.empty((count,), np.int64)
        plan.chosen = memory.empty((count,), np.uint8)
        copied = memory.empty((count + 1,), np.int64)
        taken_from, freed = (memory.empty((count,), np.int32) for _ in range(2))
        hubs = [memory.empty((min(most_hubs, count),), np.int64) for _ in range(2)]
        _launch_few(
            passes.plan_rows, count + 1, plan.rows, count, plan.first, plan.starts,
            plan.stops, plan.classes, plan.appended, plan.entries, plan.at, plan.marks,
            plan.before, has_marks, plan.is_dense, plan.lengths, plan.chosen, copied,
            taken_from, freed, *hubs, plan.summary,
        )  # fmt: skip
        plan.copied_at, total = sorting.scanned(copied)
        memory.launch(passes.note, 1, total, 0, plan.summary, passes.COPIED)
        plan.runs, plan.hub_list = (taken_from, freed), (hubs[0], hubs[1])
        plan.summary = memory.read(plan.summary)

    # -- scan

    def fit(self, plan: GpuPlan) -> bool:  # type: ignore[override]
        """Find room for the rows that grow or shrink; return whether there is any."""
        wanted, freed = _by_class(plan, passes.TAKEN), _by_class(plan, passes.FREED)
        counts = np.minimum(wanted, self.queues.counts)
        short = int(((wanted - counts) * SIZES)[1:].sum())
        used = {size: int(counts[size]) for size in np.flatnonzero(counts).tolist()}
        regions = self._regions(short, used)
        sizes = self._begin_targets(plan, plan.starts.dtype)
        if counts.any():
            by_class, order = sorting.sort_stably(plan.runs[0], CLASS_COUNT + 1)
            begins = np.cumsum(wanted) - wanted
            table = np.stack([begins, counts, self.queues.table[0]])
            memory.launch_over(
                passes.take_runs, plan.count, plan.count, by_class, order,
                memory.upload(table), self.queues.runs, plan.targets, sizes,
            )  # fmt: skip
        cuts = self._lay(plan, sizes, short, regions)
        if cuts is None:
            return False
        passed, behind = int(np.searchsorted(cuts, short)), len(regions) - 1
        regions[:, 0] += np.diff(cuts, prepend=0)
        plan.region, plan.top = (0, 0), self.top
        if passed < behind:
            plan.region = int(regions[passed, 0]), int(regions[passed, 1])
        else:
            plan.top = int(regions[behind, 0])
        for region in range(behind):
            if region != passed:
                start, stop = regions[region].tolist()
                plan.lost += self._split(start, stop, plan.puts)
        plan.drops = np.zeros(CLASS_COUNT, np.int64)
        plan.drops[list(used)] = list(used.values())
        plan.freed, more = freed, freed.copy()
        for size, _ in plan.puts:
            more[size] += 1
        self.queues.reserve(more)
        if freed.any():
            plan.runs = sorting.sort_stably(plan.runs[1], CLASS_COUNT + 1)
        self._find_hubs(plan)
        return True

    def _begin_targets(self, plan: GpuPlan, dtype: Any) -> Any:
        """Begin with rows that stay; return how many slots the others need."""
        plan.targets = memory.empty((plan.count,), dtype)
        sizes = memory.empty((plan.count + 1,), np.int64)
        memory.launch_over(
            passes.begin_targets, plan.count + 1, plan.rows, plan.count, plan.starts,
            plan.classes, plan.chosen, plan.is_dense, plan.targets, sizes,
        )  # fmt: skip
        return sizes

    @staticmethod
    def _lay(plan: GpuPlan, sizes: Any, short: int, regions: Array) -> Array | None:
        """Lay rows into regions; return how many slots they need up to each.

        None where they do not fit.
        """
        cuts = np.zeros(len(regions), np.int64)
        if not short:
            return cuts
        laid, _ = sorting.scanned(sizes)
        room = regions[:, 1] - regions[:, 0]
        cuts[-1], into = short, memory.upload(regions)
        if room[:-1].any():
            found = memory.empty(cuts.shape, np.int64)
            memory.launch(passes.cut_regions, 1, plan.count, laid, into, found)
            cuts = memory.read(found)
            if cuts[-1] < short:
                return None
        elif short > room[-1]:
            return None
        memory.launch_over(
            passes.lay_rows, plan.count, plan.count, sizes, laid, into,
            memory.upload(cuts), plan.targets,
        )  # fmt: skip
        return cuts

    def _find_hubs(self, plan: GpuPlan) -> None:
        count = int(plan.summary[passes.HUBS])
        rows, lengths = (read_back(part_of(a, 0, count)) for a in plan.hub_list)
        is_kept = np.zeros(self.hubs.size, np.bool_)
        if not plan.is_dense:
            is_kept = ~np.isin(self.hubs, rows)
        is_hub = lengths >= HUB
        hubs = np.append(self.hubs[is_kept], rows[is_hub]).astype(np.int32)
        lengths = np.append(self.hub_lengths[is_kept], lengths[is_hub])
        order = np.argsort(hubs)
        plan.hubs, plan.hub_lengths = hubs[order], lengths[order]

    def refit(  # type: ignore[override]
        self, plan: GpuPlan, slots_for: Callable[[int], int]
    ) -> None:
        """Lay out all rows in order, in arrays of their own: see `RowPool.refit`."""
        needed = int((_by_class(plan, passes.TAKEN) * SIZES).sum())
        slots, capacity = slots_for(needed), plan.starts.size
        fresh = GpuRowPool(self.along, self.is_twice, slots, capacity, self.spec)
        if self.ids is not None:
            fresh.ids = memory.filled((fresh.slots,), 0, np.uint32)
        sizes = self._begin_targets(plan, fresh.starts.dtype)
        self._lay(plan, sizes, needed, np.array([[0, needed]], np.int64))
        fresh.top = plan.top = needed
        plan.fresh = fresh
        self._find_hubs(plan)

    # -- apply

    def prepare(self, plan: GpuPlan, updates: Updates) -> None:  # type: ignore[override]
        """Find what is written, so that `apply` takes no memory: see `RowPool`."""
        new = self if plan.fresh is None else plan.fresh
        plan.updates = updates
        plan.degrees = tuple(
            None if a is None else _grown(a, plan.starts.size)
            for a in (self.degrees, self.out_degrees)
        )
        for old, to in zip(self._by_slot(), new._by_slot(), strict=True):
            kept = to
            if plan.fresh is None and plan.left:
                size = int(plan.summary[passes.COPIED]) * width_of(old)
                kept = memory.empty((size,), old.dtype)
            plan.writes.append(
                (bits_of(old), width_of(old), bits_of(to), bits_of(kept))
            )
        for name, column in new.columns.items():
            values, sources = updates.columns.get(name), plan.sources
            if values is None or not plan.entries:
                continue
            if updates.policy == COMBINE and updates.rule != "last":
                values, sources = self._combine(plan, self.columns[name], values)
            given = sources, bits_of(values), width_of(values)
            plan.values.append((*given, bits_of(column), width_of(column)))
        if plan.fresh is None:
            before = self.queues.table[1] + plan.freed
            puts = np.empty((len(plan.puts), 2), np.int64)
            for k, (queue, (start,)) in enumerate(plan.puts):
                puts[k], before[queue] = (before[queue], start), before[queue] + 1
            begins = np.cumsum(plan.freed) - plan.freed
            plan.tables = (
                memory.upload(np.stack([begins, self.queues.table[1]])),
                memory.upload(puts),
            )

    def _count_out(self, plan: GpuPlan) -> None:
        """Have out-degrees follow, where they are those of other ends."""
        degrees = plan.degrees[1]
        if degrees is None:
            return
        memory.launch_over(
            reads.count_came, plan.entries, plan.fates, plan.order, plan.ends, degrees
        )
        if plan.left:
            memory.launch_over(
                reads.count_left, plan.total, plan.total, plan.at, plan.count,
                plan.rows, plan.starts, self.ends, plan.marks, degrees,
            )  # fmt: skip

    def degrees_of(self, side: str, vertex_count: int) -> Any:
        """Return degrees by vertex that batches keep: "in" of rows, or "out"; int32."""
        capacity = self.starts.size
        if side == "in" and self.degrees is None:
            self.degrees = memory.empty((capacity,), np.int32)
            memory.launch_over(
                reads.measure_all, capacity, self.starts, self.stops, self.degrees
            )
        if side == "out" and self.out_degrees is None:
            self.out_degrees = memory.filled((capacity,), 0, np.int32)
            memory.launch_over(
                reads.count_ends, 32 * vertex_count, vertex_count, self.starts,
                self.stops, self.ends, self.out_degrees,
            )  # fmt: skip
        return self.degrees if side == "in" else self.out_degrees

    def _by_slot(self) -> list[Any]:
        """Return all arrays over slots."""
        ids = [] if self.ids is None else [self.ids]
        return [self.ends, self.numbers, *self.columns.values(), *ids]

    @staticmethod
    def _combine(plan: GpuPlan, column: Any, values: Any) -> tuple[Any, Any]:
        """Return sums, least or greatest values by entry, and the number of each.

        The host computes them, so that they have the bits and the errors of the CPU.
        """
        there = memory.empty((plan.entries,), column.dtype)
        memory.launch_over(
            reads.take_values, plan.entries, plan.fates, plan.places, bits_of(column),
            bits_of(there),
        )  # fmt: skip
        places = read_back(part_of(plan.order, 0, plan.entries)).astype(np.uint32)
        made = SimpleNamespace(
            order=places << (1 - plan.sides), fates=read_back(plan.fates),
            heads=read_back(plan.heads), places=np.arange(plan.entries),
        )  # fmt: skip
        given = read_back(values)[places >> plan.sides]
        found = RowPool._combined(made, read_back(there), given, plan.updates.rule)  # type: ignore[arg-type]
        numbers = memory.empty((plan.entries,), np.int32)
        memory.launch_over(passes.count_up, plan.entries, numbers)
        return memory.upload(found), numbers

    def apply(self, plan: GpuPlan) -> GpuRowPool:  # type: ignore[override]
        """Write the rows; return the pool that has them now: see `RowPool.apply`."""
        new = self if plan.fresh is None else plan.fresh
        total, count = int(plan.summary[passes.COPIED]), plan.count
        self._count_out(plan)
        # Ends and numbers at once, then columns.
        (*first, to, kept), (*_, more_to, more_kept), *others = plan.writes
        both = bits_of(self.numbers), more_to, more_kept
        writes = [(*first, to, kept, *both, True)]
        writes += [(*write, *both, False) for write in others]
        for is_back in (False, True) if plan.fresh is None and plan.left else (False,):
            for write in writes:
                memory.launch_over(
                    passes.copy_rows, -(-total // passes.STEPS), total, plan.copied_at,
                    count, plan.rows, plan.starts, plan.targets, *plan.marked,
                    new is not self, is_back, *write,
                )  # fmt: skip
        self._write(plan, new)
        if new is self:
            by_class, order = plan.runs
            moves, puts = plan.tables
            if plan.freed.any():
                memory.launch_over(
                    passes.free_runs, count, count, by_class, order, moves, plan.rows,
                    plan.starts, self.queues.runs,
                )  # fmt: skip
            memory.launch_over(passes.put_runs, puts.shape[0], puts, self.queues.runs)
            self.starts, self.stops = plan.starts, plan.stops
            self.classes = plan.classes
            self.queues.table[0] += plan.drops
            self.queues.table[1] += plan.freed
            for size, _ in plan.puts:
                self.queues.table[1, size] += 1
            self.region, self.top = plan.region, plan.top
            self.lost += plan.lost
        new.degrees, new.out_degrees = plan.degrees
        memory.launch_over(
            passes.finish_rows, count, plan.rows, count, plan.targets, plan.lengths,
            plan.chosen, new.starts, new.stops, new.classes,
            plan.rows if new.degrees is None else new.degrees, new.degrees is not None,
        )  # fmt: skip
        changes = plan.summary[passes.LENGTHS :][: HUB + 1]
        new.length_counts = new.length_counts + changes
        new.length_counts[0] += 0 if plan.is_dense else plan.born
        new.vertex_count = plan.vertex_count
        new.hubs, new.hub_lengths, new._host = plan.hubs, plan.hub_lengths, None
        return new

    @staticmethod
    def _write(plan: GpuPlan, new: GpuRowPool) -> None:
        """Write edges that are inserted, and values that are replaced."""
        updates = plan.updates
        has_ids = new.ids is not None and updates.ids is not None
        spare = new.numbers
        memory.launch_over(
            passes.append_edges, plan.entries, plan.fates, plan.order, plan.sides,
            plan.row_of, plan.targets, plan.lengths, plan.appended, plan.first,
            plan.ends, spare if updates.numbers is None else updates.numbers,
            updates.numbers is not None, updates.number, new.ends, new.numbers,
            updates.ids if has_ids else spare, has_ids, int(updates.has_twins),
            new.ids if has_ids else spare,
        )  # fmt: skip
        for sources, values, value_width, column, width in plan.values:
            memory.launch_over(
                passes.write_values, plan.entries, plan.fates, sources, plan.row_of,
                plan.rows, plan.starts, plan.targets, plan.lengths, plan.appended,
                plan.first, plan.places, *plan.marked, values, value_width, column,
                width,
            )  # fmt: skip

    def arrays(self) -> list[Any]:
        """Return all arrays over slots and vertices."""
        by_row = self.starts, self.stops, self.classes, self.degrees, self.out_degrees
        return [*(a for a in by_row if a is not None), *self._by_slot()]

    def copy(self) -> GpuRowPool:
        """Return a pool with the same rows in the same places."""
        made = copy(self)
        for name in ("starts", "stops", "classes", "ends", "numbers"):
            setattr(made, name, memory.copy_of(getattr(self, name)))
        made.columns = {n: memory.copy_of(a) for n, a in self.columns.items()}
        made.ids = None if self.ids is None else memory.copy_of(self.ids)
        made.length_counts = self.length_counts.copy()
        made.queues, made.degrees, made.out_degrees = self.queues.copy(), None, None
        return made


def _launch_few(kernel: Any, count: int, *arguments: Any) -> None:
    """Launch a kernel whose blocks add up what they have counted, in few blocks."""
    if count:
        blocks = min(-(-count // memory.BLOCK), _COUNTING_BLOCKS)
        memory.launch(kernel, blocks, *arguments)


def _uploaded(array: Any) -> Any:
    return memory.upload(array) if isinstance(array, np.ndarray) else array


def _zeros(slots: int, dtype: Any, width: int | None) -> Any:
    """Return a column, whose rows are as long as kernels load them."""
    shape = (slots,) if width is None else stored_shape((slots, width), dtype)
    made = memory.filled((math.prod(shape),), 0, f"u{dtype.itemsize}")
    return made.view(dtype).reshape(shape)


def _grown(array: Any, size: int) -> Any:
    """Return an array, or a longer copy of it."""
    if array.size >= size:
        return array
    made = memory.filled((size,), 0, array.dtype)
    memory.copy(made, array)
    return made


def _by_class(plan: GpuPlan, begin: int) -> Array:
    return plan.summary[begin : begin + CLASS_COUNT]


def _highest(degrees: Any, count: int, bound: int) -> tuple[int, int]:
    """Return the highest of some degrees, and of those below a bound."""
    most = memory.filled((2,), 0, np.int32)
    memory.launch_over(reads.survey_degrees, count, degrees, count, bound, most)
    top, below = memory.read(most).tolist()
    return top, below

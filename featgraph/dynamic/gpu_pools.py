"""Rows in a pool of the GPU's memory, and batches on them.

`gpu_batch` checks a batch that is given there. `GpuRowPool` takes the steps of
`RowPool` by the kernels of `kernels_cuda`, to equal rows. The host reads two small
arrays in a batch: the numbers of rows and pairs, and their new places.
`GpuRowPool.on_host` downloads other rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from featgraph.base.errors import DeviceMemoryError
from featgraph.base.interrupts import deferred_interrupts
from featgraph.cuda import arrays as memory
from featgraph.cuda import sorting
from featgraph.dynamic import kernels_cpu as kernels
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import rows_cuda as reads
from featgraph.dynamic import sorts_cuda
from featgraph.dynamic.batches import Batch, on_host
from featgraph.dynamic.gpu_memory import (
    GpuMemory,
    begins_of,
    bits_of,
    moved,
    part_of,
    pieces,
    uploaded,
    zeros,
)
from featgraph.dynamic.kernels_cpu import CLASS_COUNT, COMBINE, HUB
from featgraph.dynamic.kernels_cuda import FEW, FEW_THREADS, Passes
from featgraph.dynamic.pools import (
    NONE_LEFT,
    NoOtherPool,
    Plan,
    RowPool,
    Updates,
    combined,
    settle,
)
from featgraph.dynamic.rows import ALONE, Array, HostMemory, Spec, grown, width_of
from featgraph.graph.building.gpu_edge_kernels import find_nan
from featgraph.graph.building.gpu_edges import copied_ends, copied_values, marked, taken

__all__ = ["GpuPlan", "GpuRowPool", "gpu_batch", "pack"]

#: Threads of the blocks that plan a batch, and of those that copy edges.
THREADS, COPY_THREADS = sorts_cuda.THREADS, sorts_cuda.COPY_THREADS
#: Most blocks of a launch without barriers: 8 for each multiprocessor of an H200.
_MOST_BLOCKS = 1056
#: One block alone plans a small batch on a pool of up to so many slots.
LEAST_SHARED = 4096
#: Arrays of a batch, 222 bytes an entry, stay with the pool up to this share of the
#: GPU's memory. There is one set of arrays a power of two; up to `FEW` entries, with 18
#: bytes for each of page-locked memory.
_KEPT_SHARE, _ENTRY = 256, 222
#: Most slots of the memory through which edges are copied that stays with the pool.
_MOST_SPARE = 1 << 20


def gpu_batch(
    sources: Any, targets: Any, kinds: Any, columns: Mapping[str, Any], spec: Spec,
    **options: Any,
) -> Batch | None:  # fmt: skip
    """Return a batch of updates that are in memory of the GPU, or are `moved` there.

    Return None if they are few on the host, or if the host has to check them;
    `checked_batch` has the parameters. The plan of the batch checks the values of ids
    and weights.
    """
    is_mask = isinstance(kinds, np.ndarray) and kinds.dtype == np.bool_
    if not (is_mask or isinstance(kinds, bool | np.bool_)):
        return None
    inserts = bool(kinds.any() if is_mask else kinds)
    if inserts and set(columns) ^ set(spec):
        return None
    if isinstance(sources, np.ndarray):
        sources, targets = moved(sources), moved(targets)
    ends = copied_ends(sources, targets, is_shared=True)
    if ends is None:
        return None
    count, made, marks = ends[0].size, {}, np.empty(0, np.uint8)
    insertions = count if inserts else 0
    if is_mask:
        marks, insertions = kinds.astype(np.uint8), int(np.count_nonzero(kinds))
        if kinds.shape != (count,):
            return None
    for name, (dtype, width) in spec.items() if inserts else ():
        given = moved(columns[name])
        values = copied_values(given, count) if width is None else None
        if values is None or values.dtype != dtype:
            return None
        made[name] = values
    return Batch(*ends, marks, made, insertions, **options)


class GpuPlan(Plan):
    """The plan of a batch for a pool on the GPU.

    Attributes
    ----------
    d : Passes
        The arguments of the kernels.
    ends : pair of arrays
        Ends of the updates at rows, and the other ones.
    scratch : _Scratch
    is_few, is_idle : bool
        Whether one block lists the updates and finds runs; whether there are none.
    count : int
        The number of entries.
    summary, sums : ndarray of int64, list of int
        Counts read by the host, and the first of them.
    hub_lengths : int64
        Those of `hubs`.
    writes : for each array, its bits now, the width of a row, and where they will be
    values : for each column, the arguments of `write_values`
    entries : functions that return places and fates of entries
    gone : uint32, (3 or 4, edges), where the edges that leave are listed; or empty
    numbers : `Updates.numbers`, or empty
    dead, turned : `GpuRowPool.dead`, and vertices that lose and get its mark
    """

    degrees: tuple[Any, ...] = (None, None)
    hub_lengths: Any = None
    dead: Any = None
    turned: Any = ()

    def __init__(
        self, updates: Updates, d: Passes, ends: Any, scratch: _Scratch, is_few: bool,
        *sizes: int,
    ) -> None:  # fmt: skip
        super().__init__(sizes[0], sizes[1], bool(d.is_dense))
        self.updates, self.d, self.ends, self.is_few = updates, d, ends, is_few
        self.scratch, self.shift, self.starts = scratch, 1 - d.sides, d.starts
        self.gone, self.numbers = scratch.none["gone"], scratch.none["given"]
        self.is_idle = d.most == 0 and not self.is_dense

    def read(self, is_first: bool) -> None:
        """Read the counts; store functions that return arrays to later readers.

        Those of the first pool of a store are called after the batch, too.
        """
        scratch, updates, tail = self.scratch, self.updates, np.empty(0, np.uint8)
        summary = np.zeros(passes.SUMMARY, np.int64)
        if not self.is_idle:
            summary, tail = scratch.read(self.is_few, is_first)
        self.summary, self.tally = summary, summary[: passes.BORN + 1]
        self.sums = sums = summary[: passes.HUB_LIST].tolist()
        self.came, self.left = sums[passes.CAME], sums[passes.GONE]
        self.is_bad = sums[passes.BAD] > 0
        count = self.count = sums[passes.ENTRIES]
        size = updates.sources.size
        self.wanted, self.freed = summary[passes.TAKEN : passes.LENGTHS].reshape(2, -1)
        self.moves = sums[passes.COMING] + sums[passes.LEAVING]
        stored = partial(_stored, tail, scratch.begins)
        self.entries = partial(stored, "order", count), partial(stored, "fates", count)
        self.given = partial(stored, "other", size), partial(stored, "at", size)
        updates.outcomes = partial(stored, "outcomes", size)

    def over_entries(self, kernel: Any, *arguments: Any) -> None:
        """Launch a kernel that goes over entries."""
        memory.launch_over(kernel, self.count, self.d, *arguments)


class GpuRowPool(RowPool):
    """The rows of one direction in memory of the GPU: see `RowPool`.

    `length_counts`, `hubs` and `hub_lengths` are on the host.
    """

    memory = GpuMemory
    hub_lengths: Array = np.empty(0, np.int64)

    def __init__(
        self, along: str, is_twice: bool, slots: int, vertex_capacity: int, spec: Spec
    ) -> None:
        super().__init__(along, is_twice, slots, vertex_capacity, spec)
        #: Turns a pair around where rows are those of the sources of edges.
        self.turned = slice(None, None, -1 if along == "out" else 1)
        #: The most blocks that can wait for each other, and the most entries of a batch
        #: whose arrays stay.
        self.most_blocks = memory.multiprocessors()
        self.most_kept = max(memory.memory_bytes() // _KEPT_SHARE // _ENTRY, FEW)
        #: By vertex: 1 if it is deleted; None until one is. Along "in" alone.
        self.dead: Any = None
        #: Lengths of rows, and degrees at other ends, where they have been asked for.
        self.degrees: Any = None
        self.out_degrees: Any = None

    def entries_at(self, name: str, places: Any) -> Any:
        """Return entries on the GPU: see `RowPool.entries_at`."""
        if isinstance(places, int):
            return part_of(getattr(self, name), 0, places)
        return taken(getattr(self, name), uploaded(places))

    def column_at(self, name: str, slots: Any) -> Any:
        """Return the values of a column in some slots, on the GPU."""
        column, width = self.columns[name], self.spec[name][1]
        shape = (slots.size,) if width is None else (slots.size, width)
        made = memory.empty(shape, column.dtype)
        bits = bits_of(made)
        memory.launch_over(
            reads.take_rows, bits.size, bits_of(column), width_of(column), slots, bits,
            width or 1,
        )  # fmt: skip
        return made

    def given_slots(
        self, vertex_count: int, bound: int, twins: bool = False
    ) -> tuple[Any, Any]:
        """Return rows and slots of edges as given, or of twins, in order of insertion.

        Insertions are numbered below `bound`.
        """
        at, total = begins_of(self, vertex_count)
        rows, keys, flags = (memory.empty((total,), np.int32) for _ in range(3))
        slots = memory.empty((total,), self.starts.dtype)
        memory.launch_over(
            reads.list_slots, total, total, at, vertex_count, self.starts,
            self.numbers, int(twins) if self.is_twice else -1, rows, slots, keys, flags,
        )  # fmt: skip
        if self.is_twice and total:
            given = marked(flags)
            rows, slots, keys = (taken(a, given) for a in (rows, slots, keys))
        _, order = sorting.sort_stably(keys, max(bound, 1))
        return taken(rows, order), taken(slots, order)

    def edges_with(
        self, dead: Array, out: RowPool | None, vertex_count: int
    ) -> tuple[Any, Any, Array]:
        """Return deletions of all edges of some vertices: see `RowPool.edges_with`."""
        rows, is_in_set = memory.upload(dead), self.classes  # read by a sweep alone
        passes_over: list[tuple[Any, ...]] = [(self, rows.size, False, 0)]
        if out is not None:
            passes_over.append((out, rows.size, False, 1))
        elif not self.is_twice:
            is_in_set = memory.filled((vertex_count,), 0, np.uint8)
            memory.launch_over(reads.mark_rows, rows.size, rows, 1, is_in_set)
            passes_over.append((self, vertex_count, True, 0))
        guess = FEW + 4 * rows.size * self.top // vertex_count
        count, room = min(guess, 2 * self.top + 1), 0
        while count > room:
            found, room = memory.filled((1,), 0, np.int64), count
            listed = memory.empty((2, room), np.int32)
            for pool, size, *how in passes_over:
                memory.launch_over(
                    reads.list_edges, 32 * size, size, rows, *how, is_in_set,
                    pool.starts, pool.stops, pool.ends, found, listed,
                )  # fmt: skip
            count = int(memory.read(found)[0])
        ends = part_of(listed, 0, count), part_of(listed, room, count)
        return *ends, np.empty(0, np.uint8)

    def on_host(self) -> Any:
        """Return a copy of the pool on the host, made once a version."""
        if self._host is None:
            made = RowPool(self.along, self.is_twice, 0, 0, self.spec)
            for name in ("starts", "stops", "classes", "ends", "numbers", "ids"):
                if getattr(self, name) is not None:
                    setattr(made, name, on_host(getattr(self, name)))
            for name, (_, width) in self.spec.items():
                column = on_host(self.columns[name])
                made.columns[name] = column if width is None else column[:, :width]
            for name in ("length_counts", "hubs", "vertex_count", "slots"):
                setattr(made, name, getattr(self, name))
            made.queues = self.queues.copy(HostMemory)
            made.region, made.top, made.lost = self.region, self.top, self.lost
            self._host = made
        return self._host

    # -- plan

    def plan(self, updates: Updates, threads: Any, *room: int, dense: bool) -> GpuPlan:
        """Plan the changes of a batch to the rows: see `RowPool.plan`."""
        del threads
        plan = self._begun(updates, *room, dense=dense)
        d, is_some = plan.d, updates.deletes and updates.copies != kernels.ALL
        if plan.is_few and not plan.is_idle:
            meet = updates.looks and self.slots > LEAST_SHARED
            memory.launch(
                passes.plan_batch, self.most_blocks if meet else 1, d, *plan.ends,
                is_some, threads=min(THREADS, FEW_THREADS),
            )  # fmt: skip
        elif not plan.is_idle:
            memory.launch(passes.list_batch, d.blocks, d, *plan.ends, threads=THREADS)
            if updates.looks:
                blocks = min(self.slots // 2048 + 1, _MOST_BLOCKS)
                for marks_copies in (False, True)[: 1 + is_some]:
                    memory.launch(passes.match, blocks, d, marks_copies)
            memory.launch(passes.find_runs, d.blocks, d, threads=THREADS)
        weights = None if updates.is_checked else updates.columns.get("weight")
        # The host reads columns of float16: the dialect stores no kernels of them.
        if weights is not None and weights.dtype in (np.float32, np.float64):
            memory.launch_over(find_nan, weights.size, weights, plan.scratch.bad)
        plan.read(self.along == "in")
        return plan

    def filled(  # type: ignore[override]  # a batch finds repeats among first edges
        self, sources: Any, targets: Any, numbers: Any, columns: dict[str, Any],
        ids: Any, vertex_count: int, slots_for: Callable[[int], int],
    ) -> GpuRowPool:  # fmt: skip
        """Return a pool of edges, given in the order of insertion: see `RowPool`."""
        if ids is not None:
            ids = memory.upload(np.repeat(on_host(ids), 2))
            self.put("ids", memory.filled((self.slots,), 0, np.uint32))
        updates = Updates(
            sources, targets, columns, numbers=numbers, ids=ids, is_checked=False
        )
        room = vertex_count, self.starts.size
        plan = self.plan(updates, ALONE, *room, dense=True)
        self.refit(plan, slots_for)
        self.prepare(plan, updates)
        return self.apply(plan)

    def _begun(self, updates: Updates, *room: int, dense: bool) -> GpuPlan:
        """Return a plan with room for all that the passes write."""
        sides, none = int(self.is_twice), room[0]
        most = updates.sources.size << sides
        limit = none if dense else min(most, none)
        is_few = not dense and most <= FEW
        scratch = _scratch_of(self, max(most, limit))
        arrays, given, behind = scratch.arrays, {"kinds": updates.kinds}, "at"
        ends: Any = (updates.targets, updates.sources)[self.turned]
        regions = self.region, (self.top, self.slots)
        _table_of(self, regions, scratch.staged["table"])
        if updates.is_checked:  # on the host
            given |= {"at": ends[0], "other": ends[1]}
            ends, behind = (arrays["at"], arrays["other"]), "order"
        for name, values in given.items():
            if scratch.is_whole:
                scratch.staged[name][: values.size] = values
            elif values.size:
                memory.write(arrays[name], values)
        is_staged = scratch.is_whole and updates.kinds.size > 0
        scratch.mirror.write(scratch.begins[behind if is_staged else "summary"])
        rows = {"starts": self.starts, "stops": self.stops, "classes": self.classes}
        if self.starts.size < room[1]:
            rows = {n: grown(array, room[1], GpuMemory) for n, array in rows.items()}
        begins, stops = self.queues.table[:2]
        has_runs = int(begins.tobytes() != stops.tobytes())
        return GpuPlan(
            updates,
            Passes(
                sides, none, most, limit, 2, updates.policy, updates.copies,
                int(self.is_sided), int(dense), int(updates.looks),
                int(updates.deletes), has_runs,
                0 if updates.is_checked else 2 if updates.kinds.size else 1,
                int(self.dead is not None), int(updates.no_loops),
                1 if is_few else self.most_blocks, **rows,
                dead=self.classes if self.dead is None else self.dead, ends=self.ends,
                numbers=self.numbers, runs=self.queues.runs, **arrays,
                **self._kept["marks"],
            ),
            ends, scratch, is_few, none, none if dense else none - self.vertex_count,
        )  # fmt: skip

    # -- scan

    def _lay(self, plan: GpuPlan, counts: Array, regions: Array, short: int) -> int:
        """Lay rows into free regions, which kernels have done where there are two."""
        del counts
        cuts, is_fresh = [plan.sums[passes.CUT], short], plan.fresh is not None
        if len(regions) != 2:  # kernels take the first and the last alone
            table = memory.upload(_table_of(self, regions))
            d = plan.d = plan.d._replace(table=table, regions=len(regions))
            memory.launch(passes.lay_rows, d.blocks, d, not is_fresh, threads=THREADS)
            if is_fresh:
                return 0
            cuts = memory.read(table)[passes.CUTS, : len(regions)].tolist()
        regions[:, 0] += np.diff(cuts, prepend=0)
        if cuts[-1] < short or regions[-1, 0] > regions[-1, 1]:
            return -1
        return bisect_left(cuts, short)

    def _find_hubs(self, plan: Any) -> None:
        count = plan.sums[passes.HUBS]
        if count == 0 and not plan.is_dense:
            plan.hubs, plan.hub_lengths = self.hubs, self.hub_lengths
            return
        found = plan.summary[passes.HUB_LIST : passes.TAKEN][:count]
        if count > found.size:
            first = passes.HUB_ROWS * plan.d.wide.shape[1]
            found = on_host(part_of(plan.d.wide, first, count))
        rows, lengths = found >> passes.HUB_BITS, found & (2**passes.HUB_BITS - 1)
        if not plan.is_dense and lengths.min() >= HUB and self.hubs.size:
            at = np.minimum(np.searchsorted(self.hubs, rows), self.hubs.size - 1)
            if (self.hubs[at] == rows).all():  # the same hubs have other lengths
                plan.hubs, plan.hub_lengths = self.hubs, self.hub_lengths.copy()
                plan.hub_lengths[at] = lengths
                return
        is_kept = np.isin(self.hubs, rows, invert=True)  # a dense plan lists all hubs
        is_hub = lengths >= HUB
        hubs = np.append(self.hubs[is_kept], rows[is_hub]).astype(np.int32)
        lengths = np.append(self.hub_lengths[is_kept], lengths[is_hub])
        order = np.argsort(hubs)
        plan.hubs, plan.hub_lengths = hubs[order], lengths[order]

    def refit(self, plan: Any, slots_for: Callable[[int], int]) -> None:
        """Lay out all rows in another pool; raise NoOtherPool if none can be made."""
        slots = slots_for(int(plan.wanted @ kernels.SIZES))
        try:
            super().refit(plan, lambda needed: slots)
        except DeviceMemoryError as error:
            raise NoOtherPool from error
        plan.fresh._kept, plan.fresh.dead = self._kept, self.dead

    # -- apply

    def list_left(self, plan: GpuPlan, is_logged: bool) -> tuple[Any, Any]:
        """Return where `apply` lists the edges that leave: see `RowPool.list_left`."""
        rows = 3 + (self.ids is not None)
        count = plan.left if is_logged or self.ids is not None else 0
        if not count:
            return NONE_LEFT, NONE_LEFT[0]
        plan.gone = memory.empty((rows, count), np.uint32)
        ids = part_of(plan.gone, 3 * count, count) if rows > 3 else NONE_LEFT[0]
        return plan.gone, ids

    def ids_for(self, plan: GpuPlan, free: Any, next_id: int, room: int) -> Any:
        """Return ids for edges that come, by entry: see `RowPool.ids_for`."""
        if not plan.count:
            return None
        ids = memory.filled((room,), 0, np.uint32)
        plan.over_entries(reads.give_ids, free, free.size, next_id, ids)
        return ids

    def list_changed(self, plan: GpuPlan, updates: Updates) -> tuple[Any, int]:
        """List and count edges that get other values: see `RowPool.list_changed`."""
        out = memory.empty((4, plan.count), np.uint32)
        for value, old in zip(plan.values, self._bits()[2:], strict=False):
            given = *value[:3], self.has_twins, value is plan.values[0], out
            plan.over_entries(reads.list_changed, *old, *given)
        at = plan.scratch.begins["summary"] + 8 * passes.CHANGED
        plan.scratch.mirror.read(at, at + 8)
        count = int(plan.summary[passes.CHANGED])
        return out if count else None, count

    def prepare(self, plan: GpuPlan, updates: Updates) -> None:
        """Prepare all writes, so that `apply` allocates no memory: see `RowPool`."""
        new = self if plan.fresh is None else plan.fresh
        plan.updates, capacity = updates, plan.d.starts.size
        plan.degrees = self.degrees, self.out_degrees
        if capacity > self.starts.size:
            plan.degrees = tuple(grown(a, capacity, GpuMemory) for a in plan.degrees)
        if new is self and self.queues.runs is not plan.d.runs:  # the queues moved
            table = memory.upload(_table_of(self, [self.region]))
            plan.d = plan.d._replace(runs=self.queues.runs, table=table)
        born, deaths = updates.turned
        is_new = deaths.size > 0 or (self.dead is not None and born.size > 0)
        if is_new and self.along == "in":
            dead = zeros(capacity, np.uint8) if self.dead is None else self.dead
            plan.dead = grown(dead, capacity, GpuMemory)
            plan.turned = [memory.upload(ids) for ids in updates.turned]
        if updates.numbers is not None:
            plan.numbers = uploaded(updates.numbers)
        bits = to = kept = self._bits()
        if new is not self:
            to = kept = new._bits()
        elif plan.left and plan.sums[passes.IS_SHARED]:
            kept = _spare(self._kept, bits, plan.sums[passes.COPIED])
        for old, there, spare in zip(bits, to, kept, strict=True):
            plan.writes.append((*old, there[0], spare[0]))
        if not updates.columns or not plan.count:
            return
        updates.columns = {name: uploaded(a) for name, a in updates.columns.items()}
        for name, column in zip(self.columns, to[2:], strict=False):
            values, sources = updates.columns[name], plan.scratch.sources
            if updates.policy == COMBINE and updates.rule != "last":
                values, sources = _combine(plan, self.columns[name], values)
            plan.values.append((bits_of(values), width_of(values), sources, *column))

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

    def apply(self, plan: GpuPlan) -> GpuRowPool:
        """Write the rows; return the pool that has them now: see `RowPool.apply`."""
        new = self if plan.fresh is None else plan.fresh
        d, updates, ids = plan.d, plan.updates, plan.updates.ids
        (*_, ends, kept), (*_, numbers, more_kept), *others = plan.writes
        # Edges of long rows and inserted edges go where others are not read yet.
        waits = plan.came > 0 or plan.sums[passes.IS_SHARED] > 0
        turns = 1 + (new is self and plan.left > 0 and waits)
        launches: Any = () if plan.is_idle else ((0, 1), (1, 2))[:turns]
        work = max(plan.sums[passes.COPIED] // reads.HELD, d.most, 1)
        blocks = min(-(-work // COPY_THREADS), _MOST_BLOCKS)
        if plan.is_few and turns > 1:  # blocks meet between the turns
            launches, blocks = ((0, 2),), self.most_blocks
        to, none = d if new is self else new, plan.scratch.none["degrees"]
        degrees, out_degrees = plan.degrees
        more = (
            new is not self, ends, kept, numbers, more_kept, plan.gone,
            numbers if self.ids is None else self.ids,
            none if out_degrees is None else out_degrees, plan.numbers, updates.number,
            to.starts, to.stops, to.classes, none if degrees is None else degrees,
            new is self and plan.sums[passes.LEAVING] > 0,
        )  # fmt: skip
        for turn in launches:
            given = *turn, turn[1] == turns, *more
            memory.launch(reads.apply_batch, blocks, d, *given, threads=COPY_THREADS)
        for write in others:
            for turn in launches:
                given = *turn, new is not self, *write
                memory.launch(reads.copy_rows, blocks, d, *given, threads=COPY_THREADS)
        for value in plan.values:
            plan.over_entries(reads.write_values, *value)
        if new.ids is not None and ids is not None:
            sides = int(self.has_twins)
            plan.over_entries(reads.write_ids, ids, sides, new.ids)
        if new is self:
            self.starts, self.stops, self.classes = d.starts, d.stops, d.classes
            self.queues.table[1] += plan.freed
        new.degrees, new.out_degrees = plan.degrees
        if plan.turned:
            new.dead = plan.dead
            for mark, ids in enumerate(plan.turned):
                memory.launch_over(reads.mark_rows, ids.size, ids, mark, new.dead)
        changes = plan.summary[passes.LENGTHS :][: HUB + 1]
        new.length_counts = new.length_counts + changes
        new.length_counts[0] += 0 if plan.is_dense else plan.born
        new.hub_lengths, new._host = plan.hub_lengths, None
        settle(self, plan, new)
        return new


class _Scratch:
    """Memory of the passes of a batch.

    Parameters
    ----------
    size : int
        The most entries, and the most touched rows.
    blocks : int
        `GpuRowPool.most_blocks`.
    stays : bool
        Whether later batches use the memory, too.

    Attributes
    ----------
    arrays : dict
        The arrays of `Passes` by name.
    begins : dict
        The first bytes of those that the host writes or reads, in one block. The tail
        of the block, from "kinds" on, has those that later readers need.
    mirror : Mirror
        Of the block (`is_whole`), or of "table" and "summary" alone.
    staged : dict
        Views of its bytes on the host, by name.
    none : dict
        Empty arrays by name: arguments of `apply_batch` that a batch does not need.
    """

    def __init__(self, size: int, blocks: int, stays: bool) -> None:
        self.stays, self.is_whole = stays, stays and size <= FEW
        room = (-(-size // 8) * 8,)
        block, made = pieces({
            "gate": ((1,), np.int64), "table": ((5, CLASS_COUNT), np.int64),
            "summary": ((passes.SUMMARY,), np.int64), "kinds": (room, np.uint8),
            "at": (room, np.int32), "other": (room, np.int32),
            "order": (room, np.int32), "fates": (room, np.uint8),
            "outcomes": (room, np.uint8),
        })  # fmt: skip
        self.begins = {n: a.address - made["gate"].address for n, a in made.items()}
        first = self.begins["kinds"]
        # Page-locked memory takes half a ms a MB to make, if it is not there yet.
        self.mirror = memory.Mirror(block, block.size if self.is_whole else first)
        self.staged = {
            n: self.mirror.bytes[at:][: prod(made[n].shape) * made[n].dtype.itemsize]
            .view(made[n].dtype).reshape(made[n].shape)
            for n, at in self.begins.items() if at < self.mirror.bytes.size
        }  # fmt: skip
        self.tail = memory.piece_of(block, first, block.size - first, 1)
        self.bad = part_of(made["summary"].view(np.int32), 2 * passes.BAD, 1)
        self.staged["gate"][0] = 0  # and on the GPU, before each batch
        self.arrays = made | pieces({
            "degrees": ((0,), np.int32), "given": ((0,), np.uint32),
            "gone": ((0, 1), np.uint32), "work": ((passes.WORK, size + 1), np.int32),
            "wide": ((passes.WIDE, size + 2), np.int64),
            "totals": ((blocks,), np.int64),
            "digits": ((sorts_cuda.DIGITS, blocks + 1), np.int64),
        })[1]  # fmt: skip
        absent = "degrees", "given", "gone"
        self.none = {name: self.arrays.pop(name) for name in absent}
        first = passes.SOURCE * (size + 1)
        self.sources = part_of(self.arrays["work"], first, size)

    def read(self, is_few: bool, is_kept: bool) -> tuple[Array, Any]:
        """Return the summary, and the tail: a copy if `is_kept` beyond the batch."""
        first, stop = self.begins["summary"], self.begins["kinds"]
        self.mirror.read(first, self.mirror.bytes.size if is_few else stop)
        tail: Any = self.mirror.bytes[stop:] if is_few else self.tail
        if is_kept and self.stays:
            tail = tail.copy() if is_few else memory.copy_of(tail)
        return self.staged["summary"], tail


def _scratch_of(pool: GpuRowPool, size: int) -> _Scratch:
    """Return memory for a batch on a pool; up to `most_kept` entries, it stays."""
    kept, key = pool._kept, max(size - 1, 63).bit_length()
    if kept.get("slots") != pool.slots:  # bits and their counts: one for each slot
        words = (pool.slots // 32 + 1,)
        shapes: Any = {"before": (words, np.int64), "marks": (words, np.uint32)}
        kept |= {"slots": pool.slots, "marks": pieces(shapes)[1]}
    if 1 << key > (pool.most_kept if pool.top else FEW):  # first edges are many
        return _Scratch(size, pool.most_blocks, False)
    if key not in kept:
        kept[key] = _Scratch(1 << key, pool.most_blocks, True)
    return kept[key]  # type: ignore[no-any-return]


def _stored(tail: Any, begins: dict[str, int], name: str, count: int) -> Array:
    """Return the first entries of an array in the tail of a block, on the host."""
    dtype = np.dtype(np.uint8 if name in {"fates", "outcomes"} else np.int32)
    begin, size = begins[name] - begins["kinds"], count * dtype.itemsize
    if isinstance(tail, np.ndarray):
        return tail[begin : begin + size].view(dtype)
    return on_host(memory.piece_of(tail, begin, size, dtype.itemsize).view(dtype))


def pack(pool: GpuRowPool) -> None:
    """Lay out all rows of a pool in order in its own slots, on the host.

    Each is in the shortest run then, as in a pool of `GpuRowPool.refit`.
    """
    host, none = pool.on_host(), Updates()
    room = pool.vertex_count, pool.starts.size
    plan = host.plan(none, ALONE, *room, dense=True)
    host.refit(plan, lambda needed: pool.slots)
    host.prepare(plan, none)
    made = host.apply(plan)
    with deferred_interrupts():
        for name in ("starts", "stops", "classes", "ends", "numbers", "ids"):
            if getattr(pool, name) is not None:
                memory.write(getattr(pool, name), getattr(made, name))
        for name, (_, width) in pool.spec.items():
            to, column = pool.columns[name], made.columns[name]
            if width is not None:  # rows are padded
                column = np.zeros(to.shape, to.dtype)
                column[:, :width] = made.columns[name]
            memory.write(bits_of(to), HostMemory.bits_of(column))
        pool.region, pool.top, pool.lost = made.region, made.top, made.lost
        pool.queues.table[1] = pool.queues.table[0]  # no run is free
        pool._host = None


def _spare(
    kept: dict[Any, Any], bits: list[tuple[Any, int]], edges: int
) -> list[tuple[Any, int]]:
    """Return arrays through which edges are copied; small ones stay in `kept`."""
    size, made = kept.get("spare", (0, ()))
    if size < edges or len(made) != len(bits):
        size = 2 * edges if edges <= _MOST_SPARE else edges
        shapes: Any = {k: ((size * w,), a.dtype) for k, (a, w) in enumerate(bits)}
        made = [(array, 1) for array in pieces(shapes)[1].values()]
        if edges <= _MOST_SPARE:
            kept["spare"] = size, made
    return made  # type: ignore[no-any-return]


def _combine(plan: GpuPlan, column: Any, values: Any) -> tuple[Any, Any]:
    """Return sums, least or greatest values by entry, and the number of each.

    The host computes them, so that they have the bits and the errors of the CPU.
    """
    current = memory.empty((plan.count,), column.dtype)
    plan.over_entries(reads.take_values, bits_of(column), bits_of(current))
    order, fates = map(on_host, plan.entries)
    places = order.astype(np.uint32)
    heads = part_of(plan.d.work, passes.HEAD * plan.d.work.shape[1], plan.count)
    made = SimpleNamespace(
        order=places << (1 - plan.d.sides), heads=on_host(heads),
        fates=fates, places=np.arange(plan.count),
    )  # fmt: skip
    given = on_host(values)[places >> plan.d.sides]
    found = combined(made, on_host(current), given, plan.updates.rule)
    numbers = np.arange(plan.count, dtype=np.int32)
    return memory.upload(found), memory.upload(numbers)


def _table_of(pool: GpuRowPool, regions: Any, table: Any = None) -> Array:
    """Write the queues and free regions, as kernels read them, to a table."""
    if table is None:
        table = np.zeros((5, max(CLASS_COUNT, len(regions))), np.int64)
    table[:2, :CLASS_COUNT] = pool.queues.table[:2]
    for number, region in enumerate(regions):
        table[2:4, number] = region
    return table  # type: ignore[no-any-return]

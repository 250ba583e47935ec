"""Rows in a pool of the GPU's memory, and batches on them.

`GpuRowPool` takes the steps of `RowPool` by the kernels of `kernels_cuda`, to equal
rows. The host reads two small arrays in a batch: how many rows and pairs there are, and
what becomes of them. What else it needs of rows it downloads: `GpuRowPool.on_host`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass, field
from featgraph.base.padding import stored_shape
from featgraph.cuda import arrays as memory
from featgraph.cuda import foreign, sorting
from featgraph.dynamic import kernels_cpu as kernels
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import rows_cuda as reads
from featgraph.dynamic import sorts_cuda
from featgraph.dynamic.gpu_queues import (
    GpuQueue,
    GpuRuns,
    bits_of,
    part_of,
    read_back,
    width_of,
)
from featgraph.dynamic.kernels_cpu import CLASS_COUNT, COMBINE, HUB, KEEP, SIZES
from featgraph.dynamic.kernels_cuda import FEW, Passes
from featgraph.dynamic.pools import RowPool, Updates, combined
from featgraph.dynamic.rows import Array, Spec, Threads, edges_of
from featgraph.graph.building.gpu_edges import marked, taken

__all__ = ["GpuPlan", "GpuRowPool"]

#: Threads of the blocks of a plan.
THREADS = sorts_cuda.THREADS
#: Most blocks that do not meet: 8 a multiprocessor of an H200.
_MOST_BLOCKS = 1056
#: Most slots by way of which edges go in memory that stays.
_MOST_SPARE = 1 << 20
#: Where the sizes of a batch are: edges that come and leave, and entries.
_SIZES = [passes.CAME, passes.GONE, passes.ENTRIES]
#: How many rows come to runs and leave them, and slots that they need in the region.
_MOVES = [passes.COMING, passes.LEAVING, passes.CUT]


@dataclass(eq=False)
class GpuPlan:
    """The plan of a batch for a pool on the GPU.

    Attributes
    ----------
    d : Passes
        The arguments of the kernels.
    is_few : bool
        Whether one block takes most passes, and arrays stay with the pool.
    came, left, entries : int
        Edges that come, edges that leave, and entries.
    summary, tally : ndarray of int64
        Counts read by the host; of these, the number of updates with each outcome.
    wanted, freed : ndarray of int64
        How many runs of each class rows come to and leave.
    writes : for each array, its bits now, the width of a row, and where they will be
    values : for each column, the arguments of `write_values`
    listed : places and fates of entries
    gone : uint32, where the edges that leave are listed; None: nowhere
    """

    updates: Updates
    d: Passes
    vertex_count: int
    born: int
    is_few: bool
    came: int = 0
    left: int = 0
    entries: int = 0
    hubs: Array = field(default_factory=lambda: np.empty(0, np.int32))
    hub_lengths: Array = field(default_factory=lambda: np.empty(0, np.int64))
    writes: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    degrees: tuple[Any, ...] = (None, None)
    listed: tuple[Any, ...] = ()
    summary: Any = None
    tally: Any = None
    gone: Any = None
    wanted: Any = None
    freed: Any = None
    fresh: GpuRowPool | None = None
    drops: Any = 0
    puts: list[tuple[int, Any]] = field(default_factory=list)
    region: tuple[int, int] = (0, 0)
    top: int = 0
    lost: int = 0

    def read(self, summary: Array, *listed: Any) -> None:
        """Store the counts that the host has read."""
        self.summary, self.tally = summary, summary[: passes.BORN]
        self.came, self.left, self.entries = map(int, summary[_SIZES])
        self.wanted, self.freed = summary[passes.TAKEN : passes.LENGTHS].reshape(2, -1)
        self.listed = tuple(part_of(a, 0, self.entries) for a in listed)

    @property
    def is_dense(self) -> bool:
        """Whether all rows are laid out anew."""
        return bool(self.d.is_dense)

    def run(self, kernel: Any, blocks: int, *arguments: Any) -> None:
        """Launch a kernel whose blocks may meet."""
        memory.launch(kernel, blocks, self.d, *arguments, threads=THREADS)

    def over_entries(self, kernel: Any, *arguments: Any) -> None:
        """Launch a kernel that goes over entries."""
        memory.launch_over(kernel, self.entries, self.d, *arguments)

    def row(self, number: int, count: int) -> Any:
        """Return some entries of a row of `Passes.work`."""
        return part_of(self.d.work, number * self.d.work.shape[1], count)


#: Arrays of a small batch that the host reads in one copy: name, size and type.
_BLOCK: tuple[tuple[str, int, Any], ...] = (
    ("summary", passes.SUMMARY, np.int64), ("order", FEW, np.int32),
    ("fates", FEW, np.uint8), ("outcomes", FEW, np.uint8),
)  # fmt: skip


class GpuRowPool(RowPool):
    """The rows of one direction in memory of the GPU: see `RowPool`.

    `length_counts`, `hubs` and `hub_lengths` are on the host.
    """

    queue, placed = GpuQueue, staticmethod(memory.upload)

    def __init__(
        self, along: str, is_twice: bool, slots: int, vertex_capacity: int, spec: Spec
    ) -> None:
        super().__init__(along, is_twice, slots, vertex_capacity, spec)
        self.hub_lengths = np.empty(0, np.int64)
        self.queues: Any = GpuRuns()
        self._host: RowPool | None = None
        #: Arrays of the passes of small batches, which stay.
        self._kept: dict[str, Any] = {}
        self._flat: list[tuple[Any, int]] | None = None
        #: Lengths of rows, and degrees at other ends, where they have been asked for.
        self.degrees: Any = None
        self.out_degrees: Any = None

    def longest(self, vertex_count: int, has_out: bool, bound: int) -> tuple[int, int]:
        """Return the greatest length of a row, and that below a bound.

        Out-degrees count from when out-rows exist: others take a pass over vertices.
        """
        counts = self.length_counts
        most, below = kernels.top_of(counts, HUB), kernels.top_of(counts, bound - 1)
        return max(most, int(self.hub_lengths.max(initial=0))), below

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
        rows = (
            self.starts,
            self.stops,
            self.ends,
            memory.upload(is_in_set * np.uint8(1)),
        )
        count, room = 1 << 12, 0
        while count > room:
            found, room = memory.filled((1,), 0, np.int64), count
            listed = memory.empty((room,), np.int64)
            memory.launch_over(
                reads.list_from, 32 * vertex_count, vertex_count, *rows, found, listed
            )
            count = int(memory.read(found)[0])
        edges = np.sort(read_back(part_of(listed, 0, count)))
        return edges & 0xFFFFFFFF, edges >> 32

    def on_host(self) -> RowPool:
        """Return a copy of the pool on the host, made once a version."""
        if self._host is None:
            made = RowPool(self.along, self.is_twice, 0, 0, self.spec)
            for name in ("starts", "stops", "classes", "ends", "numbers", "ids"):
                if getattr(self, name) is not None:
                    setattr(made, name, read_back(getattr(self, name)))
            for name, (_, width) in self.spec.items():
                column = read_back(self.columns[name])
                made.columns[name] = column if width is None else column[:, :width]
            for name in ("length_counts", "hubs", "vertex_count", "slots"):
                setattr(made, name, getattr(self, name))
            made.queues = self.queues.on_host()
            made.region, made.top, made.lost = self.region, self.top, self.lost
            self._host = made
        return self._host

    @staticmethod
    def zeros(size: int, dtype: Any, width: int | None = None) -> Any:
        """Return an array, or one whose rows are as long as kernels load them."""
        dtype, shape = np.dtype(dtype), (size,)
        if width is not None:
            shape = stored_shape((size, width), dtype)  # type: ignore[assignment]
        made = memory.filled((math.prod(shape),), 0, f"u{dtype.itemsize}")
        return made.view(dtype).reshape(shape)

    def put(self, name: str, array: Any) -> None:
        """Write a `placed` array over one with a name; replace None, or by None."""
        self._host = self._flat = None
        if array is None or getattr(self, name) is None:
            setattr(self, name, array)
        else:
            memory.copy(getattr(self, name), array)

    def taken(self, updates: Updates) -> Updates:
        """Return updates with arrays on the GPU, but for those that `plan` brings."""
        for name in ("numbers", "ids"):
            if getattr(updates, name) is not None:
                setattr(updates, name, _uploaded(getattr(updates, name)))
        updates.columns = {name: _uploaded(a) for name, a in updates.columns.items()}
        updates.deletes = not updates.kinds.all()
        return updates

    # -- plan

    def plan(  # type: ignore[override]
        self, updates: Updates, threads: Threads, *room: int, dense: bool
    ) -> GpuPlan:
        """Plan the changes of a batch to the rows: see `RowPool.plan`."""
        del threads
        plan = self._begun(updates, *room, dense=dense)
        d, looks, most = plan.d, updates.looks, _blocks()
        if plan.is_few or not looks:
            blocks = most if looks else d.blocks
            plan.run(passes.plan_batch, blocks, True, looks, True)
        else:
            plan.run(passes.plan_batch, most, True, False, False)
            blocks = min(self.slots // 2048 + 1, _MOST_BLOCKS)
            is_some = updates.policy == KEEP and updates.copies != kernels.ALL
            for marks_copies in (False, True)[: 1 + bool(updates.deletes and is_some)]:
                memory.launch(passes.match, blocks, d, marks_copies)
            plan.run(passes.plan_batch, most, False, False, True)
        parts, begin = [], 0
        if not plan.is_few:
            parts = [memory.read(d.summary), d.order, d.fates, d.outcomes]
        else:
            found = memory.read(self._kept["block"])
            for _, size, dtype in _BLOCK:
                parts.append(found[begin:][: size * dtype().itemsize].view(dtype))
                begin += size * dtype().itemsize
            parts[3] = parts[3][: updates.sources.size].copy()
        updates.outcomes = parts.pop()
        plan.read(*parts)
        return plan

    def filled(
        self, sources: Any, targets: Any, numbers: Any, columns: dict[str, Any],
        ids: Any, vertex_count: int, slots_for: Callable[[int], int],
    ) -> GpuRowPool:  # fmt: skip
        """Return a pool of edges, given in the order of insertion: see `RowPool`."""
        if ids is not None:
            ids = np.repeat(read_back(ids), 2)
            self.put("ids", memory.filled((self.slots,), 0, np.uint32))
        given = Updates(
            sources, targets, np.ones(sources.size, np.uint8), 0, 0, False, 0, "keep",
            columns, np.zeros(0, np.uint8), False, numbers, ids,
        )  # fmt: skip
        updates, none = self.taken(given), Threads(0)
        plan = self.plan(updates, none, vertex_count, self.starts.size, dense=True)
        self.refit(plan, slots_for)
        self.prepare(plan, updates)
        return self.apply(plan)

    def _begun(self, updates: Updates, *room: int, dense: bool) -> GpuPlan:
        """Return a plan with room for all that the passes write."""
        sides, none = int(self.is_twice), room[0]
        most = updates.sources.size << sides
        limit = none if dense else min(most, none)
        is_few = not dense and most <= FEW
        marks = updates.looks and updates.deletes
        arrays = self._arrays(FEW if is_few else max(most, limit), is_few, marks)
        given = updates.targets, updates.sources
        if self.along == "out":
            given = given[::-1]
        table = _table_of(self, (self.region, (self.top, self.slots)))
        if is_few and isinstance(given[0], np.ndarray):  # one copy of all
            staged, begin = self._kept["staged"], table.size * 2
            staged[:begin] = table.reshape(-1).view(np.int32)
            for k, array in enumerate(given):
                staged[begin + k * FEW :][: array.size] = array
            memory.write(self._kept["given"], staged)
            memory.write(arrays["kinds"], updates.kinds)
        else:
            at, other, kinds = map(_uploaded, (*given, updates.kinds))
            arrays |= {"at": at, "other": other, "kinds": kinds}
            ends = (at, other) if self.along == "out" else (other, at)
            (updates.sources, updates.targets), updates.kinds = ends, kinds
            if is_few:
                memory.write(arrays["table"], table)
            else:
                arrays["table"] = memory.upload(table)
        if not is_few:
            arrays["order"] = memory.empty((most,), np.int32)
            arrays["fates"] = memory.empty((most,), np.uint8)
            arrays["outcomes"] = memory.empty((updates.kinds.size,), np.uint8)
        has_runs = int(self.queues.counts.any())
        return GpuPlan(
            updates,
            Passes(
                sides, none, most, limit, 2, updates.policy, updates.copies,
                int(self.is_sided), int(dense), int(updates.looks),
                int(updates.deletes), has_runs, int(not updates.is_checked),
                1 if is_few else _blocks(),
                starts=_grown(self.starts, room[1]), stops=_grown(self.stops, room[1]),
                classes=_grown(self.classes, room[1]), ends=self.ends,
                numbers=self.numbers, runs=self.queues.runs, **arrays,
            ),
            none, none if dense else none - self.vertex_count, is_few,
        )  # fmt: skip

    def _arrays(self, size: int, is_few: bool, deletes: bool) -> dict[str, Any]:
        """Return arrays that the passes of a batch write, by name."""
        kept: dict[str, Any] = self._kept
        if "gate" not in kept:
            kept["gate"] = memory.filled((1,), 0, np.int64)
            kept["list"] = memory.empty((1, 1), np.uint32)
        if is_few and "block" in kept and kept["slots"] == self.slots:
            return {name: kept[name] for name in kept if name in Passes._fields}
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "work": ((passes.WORK, size + 1), np.int32),
            "wide": ((passes.WIDE, size + 2), np.int64),
            "totals": ((_blocks(),), np.int64),
            "digits": ((_blocks(), sorts_cuda.DIGITS), np.int64),
        }
        made = {"gate": kept["gate"]}
        if is_few:
            block, pieces = _pieces({name: ((n,), t) for name, n, t in _BLOCK})
            kept |= {"block": block, "slots": self.slots, **pieces}
            table, ends = ((5, CLASS_COUNT), np.int64), ((size,), np.int32)
            given = _pieces({"table": table, "at": ends, "other": ends})
            kept["given"], pieces = given
            kept["staged"] = np.zeros(kept["given"].size // 4, np.int32)
            shapes["kinds"] = (size,), np.uint8
            kept |= pieces
        else:
            shapes["summary"] = (passes.SUMMARY,), np.int64
        if is_few or deletes:
            words = self.slots // 32 + 1
            shapes |= {"before": ((words,), np.int64), "marks": ((words,), np.uint32)}
        made |= _pieces(shapes)[1]
        if not is_few:
            return {"marks": self.numbers, "before": made["totals"], **made}
        kept |= made
        return self._arrays(size, is_few, deletes)

    # -- scan

    def fit(self, plan: GpuPlan) -> bool:  # type: ignore[override]
        """Find room for the rows that grow or shrink; return whether there is any."""
        plan.region, plan.top = self.region, self.top
        self._find_hubs(plan)
        coming, leaving, cut = plan.summary[_MOVES].tolist()
        if not (coming or leaving):
            return True
        counts, free = np.minimum(plan.wanted, self.queues.counts), [self.region]
        short = int((plan.wanted - counts) @ SIZES)
        used = {size: int(counts[size]) for size in np.flatnonzero(counts).tolist()}
        free.append((self.top, self.slots))
        if self.queues.counts[kernels.LONG_CLASS :].any():
            free = self._regions(short, used).tolist()
        cuts = [cut, short]
        if len(free) > 2:  # kernels know the first and the last alone
            table = memory.upload(_table_of(self, free))
            plan.d = plan.d._replace(table=table, regions=len(free))
            plan.run(passes.lay_rows, plan.d.blocks, True)
            cuts = memory.read(table)[passes.CUTS, : len(free)].tolist()
        sizes = [cuts[0], *(b - a for a, b in pairwise(cuts))]
        if cuts[-1] < short or sizes[-1] > free[-1][1] - free[-1][0]:
            return False
        regions = [[b + n, e] for (b, e), n in zip(free, sizes, strict=True)]
        self._leave(plan, regions, bisect_left(cuts, short))
        plan.drops, more = counts, plan.freed
        plan.drops[list(used)] = list(used.values())
        for size, _ in plan.puts:
            more = more.copy() if more is plan.freed else more
            more[size] += 1
        self.queues.reserve(more)
        if self.queues.runs is not plan.d.runs:
            table = memory.upload(_table_of(self, regions))
            plan.d = plan.d._replace(runs=self.queues.runs, table=table)
        return True

    def _find_hubs(self, plan: Any) -> None:
        count = int(plan.summary[passes.HUBS])
        if count == 0 and not plan.is_dense:
            plan.hubs, plan.hub_lengths = self.hubs, self.hub_lengths
            return
        found = plan.summary[passes.HUB_LIST : passes.TAKEN][:count]
        if count > found.size:
            first = passes.HUB_ROWS * plan.d.wide.shape[1]
            found = read_back(part_of(plan.d.wide, first, count))
        rows, lengths = found >> passes.HUB_BITS, found & (2**passes.HUB_BITS - 1)
        if not plan.is_dense and lengths.min() >= HUB and self.hubs.size:
            at = np.minimum(np.searchsorted(self.hubs, rows), self.hubs.size - 1)
            if (self.hubs[at] == rows).all():  # the same hubs have other lengths
                plan.hubs, plan.hub_lengths = self.hubs, self.hub_lengths.copy()
                plan.hub_lengths[at] = lengths
                return
        is_kept = np.full(self.hubs.size, not plan.is_dense)
        if not plan.is_dense:
            is_kept = np.isin(self.hubs, rows, invert=True)
        is_hub = lengths >= HUB
        hubs = np.append(self.hubs[is_kept], rows[is_hub]).astype(np.int32)
        lengths = np.append(self.hub_lengths[is_kept], lengths[is_hub])
        order = np.argsort(hubs)
        plan.hubs, plan.hub_lengths = hubs[order], lengths[order]

    def refit(  # type: ignore[override]
        self, plan: GpuPlan, slots_for: Callable[[int], int]
    ) -> None:
        """Lay out all rows in order, in arrays of their own: see `RowPool.refit`."""
        needed = int((plan.wanted * SIZES).sum())
        slots, capacity = slots_for(needed), plan.d.starts.size
        fresh = GpuRowPool(self.along, self.is_twice, slots, capacity, self.spec)
        if self.ids is not None:
            fresh.ids = memory.filled((fresh.slots,), 0, np.uint32)
        plan.d = plan.d._replace(
            table=memory.upload(_table_of(self, [(0, needed)])), regions=1
        )
        plan.run(passes.lay_rows, plan.d.blocks, False)
        fresh.top = plan.top = needed
        plan.fresh = fresh
        self._find_hubs(plan)

    # -- apply

    def prepare(self, plan: GpuPlan, updates: Updates) -> None:  # type: ignore[override]
        """Prepare all writes, so that `apply` allocates no memory: see `RowPool`."""
        new = self if plan.fresh is None else plan.fresh
        plan.updates = updates
        plan.degrees = tuple(
            None if a is None else _grown(a, plan.d.starts.size)
            for a in (self.degrees, self.out_degrees)
        )
        for (old, width), (to, _) in zip(self._bits(), new._bits(), strict=True):
            kept = to
            if plan.fresh is None and plan.left:
                size = int(plan.summary[passes.COPIED]) * width
                kept = self._spare(len(plan.writes), size, old.dtype)
            plan.writes.append((old, width, to, kept))
        source = plan.row(passes.SOURCE, plan.entries)
        for name, column in new.columns.items():
            values, sources = updates.columns.get(name), source
            if values is None or not plan.entries:
                continue
            if updates.policy == COMBINE and updates.rule != "last":
                values, sources = self._combine(plan, self.columns[name], values)
            given = bits_of(values), width_of(values), sources
            plan.values.append((*given, bits_of(column), width_of(column)))

    def _spare(self, number: int, size: int, dtype: Any) -> Any:
        """Return memory for edges on their way; that of a few stays."""
        name = f"spare {number}"
        if name not in self._kept or self._kept[name].size < size:
            made = memory.empty((2 * size,), dtype)
            if size > _MOST_SPARE:
                return made
            self._kept[name] = made
        return self._kept[name]

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

    def _bits(self) -> list[tuple[Any, int]]:
        """Return all arrays over slots as unsigned integers, and widths of rows."""
        if self._flat is None:
            self._flat = [(bits_of(a), width_of(a)) for a in self.by_slot()]
        return self._flat

    @staticmethod
    def _combine(plan: GpuPlan, column: Any, values: Any) -> tuple[Any, Any]:
        """Return sums, least or greatest values by entry, and the number of each.

        The host computes them, so that they have the bits and the errors of the CPU.
        """
        current = memory.empty((plan.entries,), column.dtype)
        plan.over_entries(reads.take_values, bits_of(column), bits_of(current))
        order, fates = map(read_back, plan.listed)
        places = order.astype(np.uint32)
        heads = plan.row(passes.HEAD, plan.entries)
        made = SimpleNamespace(
            order=places << (1 - plan.d.sides), heads=read_back(heads),
            fates=fates, places=np.arange(plan.entries),
        )  # fmt: skip
        given = read_back(values)[places >> plan.d.sides]
        found = combined(made, read_back(current), given, plan.updates.rule)
        numbers = np.arange(plan.entries, dtype=np.int32)
        return memory.upload(found), memory.upload(numbers)

    def apply(self, plan: GpuPlan) -> GpuRowPool:  # type: ignore[override]
        """Write the rows; return the pool that has them now: see `RowPool.apply`."""
        new = self if plan.fresh is None else plan.fresh
        d, updates, ids = plan.d, plan.updates, plan.updates.ids
        (*_, ends, kept), (*_, numbers, more_kept), *others = plan.writes
        turns = 1 + (new is self and plan.left > 0)
        launches = [(turn, turn + 1) for turn in range(turns)]
        work = max(int(plan.summary[passes.COPIED]) // passes.STEPS, d.most, 1)
        blocks = min(-(-work // THREADS), _MOST_BLOCKS)
        if plan.is_few and turns > 1:  # blocks meet between the turns
            launches, blocks = [(0, turns)], _blocks()
        spare, to = d.order, d if new is self else new
        given = (
            new is not self, ends, kept, numbers, more_kept,
            self._kept["list"] if plan.gone is None else plan.gone,
            0 if plan.gone is None else plan.gone.shape[0],
            numbers if self.ids is None else self.ids,
            spare if plan.degrees[1] is None else plan.degrees[1],
            plan.degrees[1] is not None,
            numbers if updates.numbers is None else updates.numbers,
            updates.numbers is not None, updates.number, to.starts, to.stops,
            to.classes, spare if plan.degrees[0] is None else plan.degrees[0],
            plan.degrees[0] is not None, new is self and bool(plan.freed.any()),
        )  # fmt: skip
        for first, last in launches:
            is_last = last == turns
            plan.run(reads.apply_batch, blocks, first, last, is_last, *given)
        for write in others:
            for turn in launches:
                plan.run(reads.copy_rows, blocks, *turn, new is not self, *write)
        for value in plan.values:
            plan.over_entries(reads.write_values, *value)
        if new.ids is not None and ids is not None:
            sides = int(updates.has_twins)
            plan.over_entries(reads.write_ids, ids, sides, new.ids)
        if new is self:
            self.starts, self.stops, self.classes = d.starts, d.stops, d.classes
            self.queues.table[0] += plan.drops
            self.queues.table[1] += plan.freed
            for size, (start,) in plan.puts:
                to = part_of(self.queues.runs, self.queues.table[1, size], 1)
                memory.write(to, np.array([start]))
                self.queues.table[1, size] += 1
            self.region, self.top = plan.region, plan.top
            self.lost += plan.lost
        new.degrees, new.out_degrees = plan.degrees
        changes = plan.summary[passes.LENGTHS :][: HUB + 1]
        new.length_counts = new.length_counts + changes
        new.length_counts[0] += 0 if plan.is_dense else plan.born
        new.vertex_count = plan.vertex_count
        new.hubs, new.hub_lengths, new._host = plan.hubs, plan.hub_lengths, None
        return new

    def copy(self) -> GpuRowPool:
        """Return a pool with the same rows in the same places."""
        made = copy(self)
        for name in ("starts", "stops", "classes", "ends", "numbers"):
            setattr(made, name, memory.copy_of(getattr(self, name)))
        made.columns = {n: memory.copy_of(a) for n, a in self.columns.items()}
        made.ids = None if self.ids is None else memory.copy_of(self.ids)
        made.length_counts = self.length_counts.copy()
        made.queues, made._kept, made._flat = self.queues.copy(), {}, None
        made.degrees = made.out_degrees = None
        return made


def _pieces(
    shapes: dict[str, tuple[tuple[int, ...], Any]],
) -> tuple[Any, dict[str, Any]]:
    """Return new memory, and arrays in it by name: wide elements first."""
    made, begin = {}, 0
    sizes = {n: math.prod(s) * np.dtype(t).itemsize for n, (s, t) in shapes.items()}
    block = memory.empty((sum(-(-size // 8) * 8 for size in sizes.values()),), np.uint8)
    for name, (shape, dtype) in shapes.items():
        item = np.dtype(dtype).itemsize
        piece = memory.piece_of(block, begin, sizes[name], item).view(dtype)
        if len(shape) > 1:
            piece = foreign.strided(piece, shape, (item * shape[1], item))
        made[name], begin = piece, begin + -(-sizes[name] // 8) * 8
    return block, made


def _blocks() -> int:
    """Return how many blocks may meet."""
    return int(memory.multiprocessors())


def _uploaded(array: Any) -> Any:
    return memory.upload(array) if isinstance(array, np.ndarray) else array


def _table_of(pool: GpuRowPool, regions: Any) -> Array:
    """Return the queues and free regions as kernels read them."""
    table = np.zeros((5, max(CLASS_COUNT, len(regions))), np.int64)
    table[:2, :CLASS_COUNT] = pool.queues.table[:2]
    table[2:4, : len(regions)] = np.transpose(regions)
    return table


def _grown(array: Any, size: int) -> Any:
    """Return an array, or a longer copy of it."""
    if array.size >= size:
        return array
    made = memory.filled((size,), 0, array.dtype)
    memory.copy(made, array)
    return made

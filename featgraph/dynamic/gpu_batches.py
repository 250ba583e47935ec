"""Batches on the GPU: arrays in its memory, ids, and records for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays
from featgraph.dynamic import kernels_cpu as kernels
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import rows_cuda as reads
from featgraph.dynamic.batches import Array, Batch, Spec, checked_batch, require_choice
from featgraph.dynamic.gpu_queues import bits_of, part_of, read_back
from featgraph.dynamic.kernels_cpu import KEEP
from featgraph.dynamic.pools import Updates
from featgraph.graph.building.gpu_edges import checked_ends, checked_values, copied_ends

__all__ = ["OnGpu", "gpu_batch"]


@dataclass(frozen=True, eq=False)
class _GpuBatch(Batch):
    """Updates in memory of the GPU; those of loops are counted."""

    loop_count: int = 0
    is_new: bool | None = None

    @property
    def insertions(self) -> int:
        """How many updates insert an edge: all or none."""
        return self.sources.size if self.is_new else 0

    def on_host(self) -> Batch:
        """Return the same batch on the host."""
        return Batch(
            read_back(self.sources), read_back(self.targets), read_back(self.kinds),
            {name: read_back(a) for name, a in (self.columns or {}).items()},
            copies=self.copies, missing=self.missing,
        )  # fmt: skip


def gpu_batch(
    sources: Any, targets: Any, kinds: Any, columns: Mapping[str, Any], spec: Spec,
    vertex_count: int, loops: str, **options: Any,
) -> Batch | None:  # fmt: skip
    """Check updates that are in memory of the GPU, and copy them on it.

    None where they are not, or where the host has to look at them; `checked_batch` has
    the parameters. The ids are checked when the batch is planned, but where `loops` are
    not kept: these are counted before.
    """
    if not isinstance(kinds, bool | np.bool_) or (set(columns) ^ set(spec) and kinds):
        return None
    for name, choices in (("copies", ("all", "first", "last")), ("missing", _MISSING)):
        if name in options:
            require_choice(options[name], choices, name)
    ends, loop_count = copied_ends(sources, targets), 0
    if ends is not None and loops != "keep" and kinds:
        known = checked_ends(*ends, vertex_count, True)
        ends, loop_count = (None, 0) if known is None else (ends, known.loop_count)
    if ends is None:
        return None
    count, made = ends[0].size, {}
    for name, (dtype, width) in spec.items() if kinds else ():
        values = checked_values(columns[name], count) if width is None else None
        if values is None or values.dtype != dtype:
            return None
        made[name] = values
    return _GpuBatch(
        *ends, arrays.filled((count,), int(kinds), np.uint8), made,
        loop_count=loop_count, is_new=bool(kinds), **options,
    )  # fmt: skip


_MISSING = ("ignore", "error")


class OnGpu:
    """Mixin for `store._Step`: the steps of a batch that differ on the GPU."""

    store: Any
    batch: Any
    updates: Updates
    vertices: Array
    counts: list[int]
    _policy: Any

    def _updates(self) -> Updates:
        store, batch = self.store, self.batch
        if not isinstance(batch, _GpuBatch):
            return super()._updates()  # type: ignore[misc,no-any-return]
        if store.loops != "keep" and batch.loop_count and batch.is_new:
            self.batch = batch.on_host()
            return super()._updates()  # type: ignore[misc,no-any-return]
        self.dropped = 0
        policy, copies = self._policy()
        return Updates(
            batch.sources, batch.targets, batch.kinds, policy, copies,
            policy != KEEP or not batch.is_new, store.next_number, store.duplicates,
            batch.columns or {}, np.empty(0, np.uint8), not store.directed,
            deletes=not batch.is_new, is_checked=False,
        )  # fmt: skip

    def _counts(self, plan: Any) -> list[int]:
        if plan.summary[passes.BAD]:  # raises
            ends = read_back(self.batch.sources), read_back(self.batch.targets)
            checked_batch(*ends, False, {}, {}, self.store.vertex_count)
        return super()._counts(plan)  # type: ignore[misc,no-any-return]

    def _refuse(self, first: int) -> None:
        if isinstance(self.batch, _GpuBatch):
            self.batch = self.batch.on_host()
        super()._refuse(first)  # type: ignore[misc]

    def _left(self, plan: Any, is_logged: bool) -> tuple[Any, ...]:
        """Return rows, ends, numbers and ids of edges that leave, for `apply`."""
        pool: Any = self.store.pools["in"]
        has_ids = pool.ids is not None
        count = plan.left if is_logged or has_ids else 0
        if not count:
            return tuple(np.empty(0, dtype) for dtype in (*_TRIPLE, np.uint32))
        gone = plan.gone = arrays.empty((3 + has_ids, count), np.uint32)
        left = [part_of(gone, k * count, count) for k in range(3 + has_ids)]
        rows, ends, *others = left
        return rows.view(np.int32), ends.view(np.int32), *others, np.empty(0, np.uint32)

    def _ids(self, plan: Any, came: int) -> tuple[Any, int]:
        """Return ids by entry, and how many are from the queue."""
        store = self.store
        if store.free_ids is None:
            return None, came
        free, ids = store.free_ids.next(came), None
        if plan.entries:
            ids = arrays.filled((2 * self.updates.sources.size,), 0, np.uint32)
            given = free, free.size, store.next_id, ids
            plan.over_entries(reads.give_ids, *given)
        return ids, int(free.size)

    def _record(self, plan: Any, left: tuple[Any, ...]) -> Any:
        """Return the changes of the batch; they stay on the GPU until they are read."""
        store, updates = self.store, self.updates
        pool: Any = store.pools["in"]
        changed: tuple[Any, ...] = ()
        count = 0
        if self.counts[kernels.REPLACED]:
            found = arrays.filled((1,), 0, np.int32)
            out = [arrays.filled((plan.entries,), 0, t) for t in (np.uint8, *_TRIPLE)]
            for (values, value_width, sources, _, width), column in zip(
                plan.values, pool.columns.values(), strict=True
            ):
                plan.over_entries(
                    reads.list_changed, bits_of(column), width, values, value_width,
                    sources, updates.has_twins, *out, found,
                )  # fmt: skip
            count, changed = int(arrays.read(found)[0]), tuple(out)
        given = int(plan.summary[passes.BORN])
        if not updates.looks:
            given = int(self.counts[kernels.INSERTED])
        gone = given - int(self.counts[kernels.INSERTED] - self.counts[kernels.EDGES])
        births, deaths = self.vertices, self.batch.deaths
        return _GpuRecord(
            store.version, store.next_number, births, deaths,
            (updates.sources, updates.targets), updates.has_twins,
            plan.listed, left, changed if count else (),
            given + gone + count + births.size + deaths.size,
        )  # fmt: skip


_TRIPLE = np.int32, np.int32, np.uint32


@dataclass(eq=False)
class _GpuRecord:
    """The changes of one batch, on the GPU until the host reads them: see `Record`."""

    version: int
    number: int
    births: Array
    deaths: Array
    ends: tuple[Any, Any]
    has_twins: bool
    entries: tuple[Any, ...]
    left: tuple[Any, ...]
    listed: tuple[Any, ...]
    size: int

    @cached_property
    def sources(self) -> Array:
        """Where updates begin."""
        return read_back(self.ends[0])

    @cached_property
    def targets(self) -> Array:
        """Where they end."""
        return read_back(self.ends[1])

    @cached_property
    def born(self) -> Array:
        """Numbers of the entries that inserted an edge."""
        order, fates = map(read_back, self.entries)
        order = order.astype(np.uint32) << (1 - self.has_twins)
        born: Array = order[(fates == kernels.APPENDS) & (order & 1 == 0)]
        return born

    @cached_property
    def gone(self) -> tuple[Array, Array, Array]:
        """Sources, targets and numbers of edges that were deleted."""
        rows, ends, numbers = map(read_back, self.left[:3])
        if self.has_twins:
            is_given = numbers & 1 == 0
            rows, ends, numbers = rows[is_given], ends[is_given], numbers[is_given]
        return ends, rows, numbers

    @cached_property
    def changed(self) -> tuple[Array, Array, Array]:
        """The same of edges that got other values."""
        if not self.listed:
            return tuple(np.empty(0, dtype) for dtype in _TRIPLE)  # type: ignore[return-value]
        flags, rows, ends, numbers = map(read_back, self.listed)
        at = np.flatnonzero(flags)
        return ends[at], rows[at], numbers[at]

"""Adjacency rows of one direction in a pool of slots, and batches on them.

A *slot* is an index into the arrays of a pool: it has room for one edge of one row. A
row has a *run* of consecutive slots: its edges are in the first ones, in the order of
insertion, and the others are spare. Runs have 72 sizes, their *classes*: 4, 5, 6, 7, 8,
10, 12, 14, 16 slots and so on.

Example: vertex 5 has edges from 2, 9 and 4, in a run of 4 slots from slot 12 on::

    starts[5] = 12, stops[5] = 15, classes[5] = 1     ends[12:16] = 2 9 4 -

A batch that deletes (9, 5) and inserts (7, 5) and (8, 5) leaves ``2 4 7 8`` there. One
more insertion needs a run of 5 slots: the edges are copied to it, and the slots from 12
on wait in the queue of free runs of class 1.

A batch takes these steps, each on all pools of a store. Arrays that readers use are
written in the last step only, which cannot fail; so a batch is applied as a whole:

`RowPool.plan`     sort the updates by row, and find the length and run of each row
`RowPool.fit`      take runs from queues and free regions; False if they are too few
`RowPool.refit`    if so, or if many rows change: lay out all rows in another pool
`RowPool.prepare`  allocate and compute all that the last step writes
`RowPool.apply`    write rows, columns, ids and queues

A *region* is a range of free slots that rows are laid into one behind the other. Free
runs of 4,096 slots or more are used as regions; what is left of a region is split into
runs again. `gpu_pools.GpuRowPool` overrides the steps with kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, partial
from typing import Any

import numpy as np

from featgraph.cuda.values import offset_dtype, taken
from featgraph.dynamic.rows import (
    HUB,
    NONE,
    Array,
    HostMemory,
    HostPlan,
    Plan,
    Queues,
    Spec,
    Threads,
    Updates,
    edges_of,
    grown,
    ranges,
    width_of,
)
from featgraph.graph.building.edges import combine, merged, raise_repeated

__all__ = [
    "NONE_LEFT", "Plan", "RowPool", "Updates", "combined", "numba_kernels",
    "wide_slots",
]  # fmt: skip

_FEWEST_SLOTS = 64
#: Edges are put in the order of insertion by their numbers, without a sort, where there
#: were at most so many insertions an edge since the first.
SPARSEST = 4
#: The result of `RowPool.list_left` where no edge leaves.
NONE_LEFT = np.empty((3, 0), np.uint32)


@cache
def numba_kernels() -> Any:
    """Return the module `kernels_cpu`; the first call imports Numba."""
    from featgraph.dynamic import kernels_cpu

    return kernels_cpu


def wide_slots(slots: int) -> type[np.integer[Any]]:
    """Return the type of slot indices. Kernels may step past the end of a row."""
    return np.int64 if slots >= 2**31 - 1024 else np.int32


class NoOtherPool(MemoryError):
    """No memory for another pool: `gpu_pools.pack` lays rows out without one."""


class RowPool:
    """The rows of one direction, in one pool of slots.

    Parameters
    ----------
    along : {"in", "out", "both"}
        The direction in which rows list edges; "both" lists in- and out-edges.
    is_twice : bool
        Whether each edge is in the rows of both of its ends: along "both", and in
        undirected graphs. A loop is in one row once.
    slots, vertex_capacity : int
        Lengths of the arrays.
    spec : Spec
        Types of the columns.

    Attributes
    ----------
    starts, stops : int32 or int64, (vertex capacity,)
        The first slot of each row, and the slot behind its last edge.
    classes : uint8, (vertex capacity,)
        The size class of each row's run; 0 for a row without edges, which has no run.
    ends : int32, (slots,)
        The vertex at the other end of each edge. Spare slots have any vertex, so that
        a kernel may load from them.
    numbers : uint32, (slots,)
        ``2 i`` for the edge of insertion i, in the order of all insertions. Where
        `is_twice`, ``2 i + 1`` in the row of the edge's source.
    columns : dict of str to array, (slots,) or (slots, width)
        Values of edges.
    ids : uint32, (slots,), or None
        Edge ids, once `EdgeStore.give_ids` has made them.
    length_counts : int64, (2049,)
        How many rows have 0, 1, ... 2,047 edges; the last entry counts longer ones.
    hubs : int32
        Vertices with 2,048 edges or more, ascending.
    degrees : int32, (vertex capacity,), or empty
        Lengths of rows, once `degrees_of` has made them.
    out_degrees, out_counts, longest_out : int32 arrays, int
        Of the host's pool along "in" of a directed graph: how often each vertex is in
        `ends`, how many vertices have each such degree above 0, and the highest one.
    queues : Queues
        First slots of free runs, by class.
    region, top : (int, int), int
        The region that rows are laid into next, and the first slot never used.
    lost : int
        Free slots in pieces too short for a run; the next `refit` regains them.
    """

    memory: Any = HostMemory
    #: The result of `_bits`, and a host copy of a GPU's pool; None after arrays change.
    _flat: list[tuple[Any, int]] | None = None
    _host: Any = None

    def __init__(
        self, along: str, is_twice: bool, slots: int, vertex_capacity: int, spec: Spec
    ) -> None:
        kernels = numba_kernels()
        self.slots = slots = max(slots, _FEWEST_SLOTS)
        self.along, self.is_twice, self.spec = along, is_twice, spec
        #: Whether an entry of a row needs its direction besides its other end.
        self.is_sided = along == "both"
        #: Whether both entries of an edge have an id: the graph is undirected.
        self.has_twins = is_twice and not self.is_sided
        dtype = wide_slots(slots)
        zeros = self.memory.zeros
        self.starts, self.stops = (zeros(vertex_capacity, dtype) for _ in range(2))
        self.classes = zeros(vertex_capacity, np.uint8)
        self.ends, self.numbers = zeros(slots, np.int32), zeros(slots, np.uint32)
        self.columns = {name: zeros(slots, *kind) for name, kind in spec.items()}
        self.ids: Array | None = None
        #: Rows that `length_counts` counts.
        self.vertex_count = 0
        self.length_counts = np.zeros(HUB + 1, np.int64)
        self.hubs = np.empty(0, np.int32)
        self.degrees = self.out_degrees = self.out_counts = NONE
        self.longest_out = 0
        self.queues = Queues(np.int64, self.memory, kernels.CLASS_COUNT)
        #: Arrays of the batches of a GPU's pool, which stay.
        self._kept: dict[Any, Any] = {}
        self.region, self.top, self.lost = (0, 0), 0, 0

    @property
    def hub_lengths(self) -> Array:
        """The number of edges of each hub."""
        return self.stops[self.hubs] - self.starts[self.hubs]  # type: ignore[no-any-return]

    def longest(self) -> tuple[int, int]:
        """Return the highest degree, and the highest one below that of a hub.

        Out-degrees count as well where `out_degrees` are kept.
        """
        counts = self.length_counts[:HUB], self.out_counts[:HUB]
        below = max(int(c.nonzero()[0].max(initial=0)) for c in counts)
        of_hubs = int(self.hub_lengths.max(initial=0))
        return max(below, of_hubs, self.longest_out), below

    def entries_at(self, name: str, places: Any) -> Any:
        """Return entries of the array with this name: the first ones, or at places."""
        at = slice(places) if isinstance(places, int) else places
        return getattr(self, name)[at]

    def column_at(self, name: str, slots: Any) -> Any:
        """Return the values of a column in some slots, on the target."""
        return self.columns[name][slots]

    def given_slots(
        self, vertex_count: int, bound: int, twins: bool = False
    ) -> tuple[Array, Array]:
        """Return row and slot of each given edge along "in", in order of insertion.

        Twins of an undirected graph are left out, or are returned alone. Insertions are
        numbered below `bound`.
        """
        kernels, held = numba_kernels(), (*self.spans(vertex_count), self.numbers)
        count = int((held[1] - held[0]).sum())
        parity = int(twins) if self.is_twice else -1
        least, most = kernels.number_range(*held, bound)
        span = max(most - least + 1, 0)
        if span <= SPARSEST * count:
            rows = np.full(span, -1, np.int32)
            slots = np.empty(rows.size, self.starts.dtype)
            kernels.place_slots(*held, parity, least, rows, slots)
            is_there = rows >= 0
            return rows[is_there], slots[is_there]
        from featgraph.graph.building.kernels import order_of  # loads Numba

        slots = ranges(*held[:2])
        rows = np.arange(vertex_count, dtype=np.int32).repeat(held[1] - held[0])
        if parity >= 0:
            is_meant = self.numbers[slots] & 1 == parity
            rows, slots = rows[is_meant], slots[is_meant]
        order = order_of(((self.numbers[slots] >> 1) - least).astype(np.int32))
        return rows[order], slots[order]

    def edges_at(self, slots: Any) -> tuple[Any, Any, dict[str, Any], Any]:
        """Return ends, numbers, columns and ids of edges by slot, on the target."""
        columns = {name: self.column_at(name, slots) for name in self.spec}
        ids = None if self.ids is None else self.entries_at("ids", slots)
        ends, numbers = (self.entries_at(name, slots) for name in ("ends", "numbers"))
        return ends, numbers, columns, ids

    def edges_with(
        self, dead: Array, out: RowPool | None, vertex_count: int
    ) -> tuple[Any, Any, Array]:
        """Return sources, targets and kinds of deletions of all edges of some vertices.

        `out` has the rows along "out", if there are any. An edge of two of the vertices
        is listed twice. A batch on a GPU has no kinds.
        """
        pairs = [edges_of(self, dead)]
        if out is not None:
            pairs.append(edges_of(out, dead)[::-1])
        elif not self.is_twice:
            is_dead = np.zeros(self.starts.size, np.bool_)
            is_dead[dead] = True
            count = int(self.out_degrees[is_dead].sum())
            targets, sources = np.empty((2, count), np.int32)
            rows = self.starts[:vertex_count], self.stops, self.ends
            numba_kernels().find_ends(*rows, is_dead, targets, sources)
            pairs.append((sources, targets))
        sources, targets = (
            np.concatenate(e).astype(np.int32) for e in zip(*pairs, strict=True)
        )
        return sources, targets, np.zeros(sources.size, np.uint8)

    def on_host(self) -> Any:
        """Return this pool, which the host can read; a GPU's pool returns a copy."""
        return self

    def put(self, name: str, array: Any) -> None:
        """Overwrite an attribute's array, or set the attribute from or to None."""
        self._host = self._flat = None
        if array is None or getattr(self, name) is None:
            setattr(self, name, array)
        else:
            self.memory.copy(getattr(self, name), array)

    def spans(self, rows: int | Array) -> tuple[Array, Array]:
        """Return starts and stops on the host: of the first rows, or of these rows."""
        read, entries_at = self.memory.read, self.entries_at
        return read(entries_at("starts", rows)), read(entries_at("stops", rows))

    def plan(self, updates: Updates, threads: Threads, *room: int, dense: bool) -> Any:
        """Find the outcomes of a batch, and the new length and run of each row.

        Parameters
        ----------
        updates : Updates
            Its `outcomes` are set.
        threads : Threads
        *room : int
            The number of vertices after the batch, and the vertex capacity.
        dense : bool
            Plan all rows, as `refit` needs, not only those that have updates.
        """
        kernels = numba_kernels()
        at, other = updates.targets, updates.sources
        if self.along == "out":
            at, other = other, at
        keys = np.empty(at.size << self.is_twice, np.int64)
        updates.outcomes = np.empty(at.size, np.uint8)
        count = kernels.list_entries(at, other, self.is_twice, keys, updates.outcomes)
        keys = keys[:count]
        keys.sort()
        if dense:
            rows = np.arange(room[0], dtype=np.int32)
            first = np.append(0, np.bincount(keys >> 32, minlength=room[0]).cumsum())
        else:
            rows, first = np.empty(count, np.int32), np.empty(count + 1, np.int64)
            touched = kernels.list_rows(keys, rows, first)
            rows, first = rows[:touched], first[: touched + 1]
        born = room[0] if dense else room[0] - self.vertex_count
        combines = updates.policy == kernels.COMBINE
        plan: Any = HostPlan(
            threads, rows, first, count, combines, room[0], born, dense
        )
        plan.given = updates.sources, updates.targets
        for name in ("starts", "stops", "classes"):
            setattr(plan, name, grown(getattr(self, name), room[1]))
        if updates.deletes:  # there is room for all edges of the rows
            lengths = plan.stops[rows] - plan.starts[rows]
            plan.gone_at = lengths.cumsum(dtype=np.int64) - lengths
            plan.gone_places = np.empty(int(lengths.sum()), np.int32)
        tallies = np.zeros((len(plan.bounds), kernels.TALLY), np.int64)
        plan.share(
            kernels.plan_rows, rows, first, keys, at, other, updates.kinds, plan.starts,
            plan.stops, plan.classes, self.ends, self.numbers, self.is_sided, dense,
            updates.looks, updates.policy, updates.copies, plan.order, plan.ends,
            plan.gone_at, plan.gone_places, plan.places, plan.fates, plan.heads,
            updates.outcomes, plan.lengths, plan.gone, plan.chosen, tallies,
        )  # fmt: skip
        plan.tally = tally = np.add.reduce(tallies)
        plan.came, plan.left = int(tally[kernels.CAME]), int(tally[kernels.GONE])
        plan.wanted, plan.freed = tally[kernels.WANTED :].reshape(2, -1)
        plan.moves = int(tally[kernels.MOVES])
        return plan

    def filled(
        self, sources: Array, targets: Array, numbers: Array | None,
        columns: dict[str, Array], ids: Array | None, vertex_count: int,
        slots_for: Callable[[int], int], *, duplicates: str = "keep",
    ) -> RowPool:  # fmt: skip
        """Return a pool with these edges in the order of insertion; this one is empty.

        The loops that build static graphs write the rows, with spare slots between, and
        find repeated edges.

        Parameters
        ----------
        sources, targets : int32, (E,)
        numbers : uint32, (E,), optional
            Even entries of `numbers`. Default: 0, 2, 4, ...
        columns : dict of str to array, (E,) or (E, width)
        ids : uint32, (E,), optional
            Both entries of an edge in a pool with `is_twice` get the same id.
        vertex_count : int
        slots_for : callable
            As for `refit`.
        duplicates : str
            The policy for repeated edges. An edge has the number of its first one.

        Raises
        ------
        GraphInputError
            If the policy refuses an edge, or weights have no sum.
        """
        from featgraph.graph.building import kernels as building  # loads Numba

        sizes, count = numba_kernels().SIZES, sources.size
        ends = (sources, targets) if self.along == "out" else (targets, sources)
        by_row: tuple[Array, ...] = ends[:1]
        loops = "count_one", "fill_columns", "fill_given"
        if self.is_twice:
            ends = by_row = sources, targets
            loops = "count_both", "fill_columns_both", "fill_given_both"
        count_rows, fill, fill_given = (getattr(building, name) for name in loops)
        lengths = np.zeros(self.starts.size, offset_dtype(2 * count))
        count_rows(*by_row, lengths)

        def fill_rows(stops: Array, row_ends: Array, given: Array) -> None:
            fill(*ends, stops.copy(), row_ends)
            fill_given(*by_row, stops.copy(), given)

        repeats = np.empty(0, np.int64)
        if duplicates != "keep":  # runs are chosen after repeats are known
            rows, groups = building.find_repeats(lengths, fill_rows, count)
            repeats = np.delete(*groups)
            if duplicates == "error" and repeats.size:
                raise_repeated(sources, targets, *groups)
            columns = {n: merged(c, *groups, duplicates) for n, c in columns.items()}
        classes = np.searchsorted(sizes, lengths)
        behind = np.cumsum(sizes[classes])
        slots, top = slots_for(int(behind[-1])), int(behind[-1])
        new = RowPool(self.along, self.is_twice, slots, lengths.size, self.spec)
        new.top, new.vertex_count, new.classes[:] = top, vertex_count, classes
        new.starts[:] = np.where(classes, behind - sizes[classes], 0)
        new.stops[:] = new.starts + lengths
        given = np.zeros(new.slots, lengths.dtype)
        if duplicates == "keep":
            fill_rows(new.stops, new.ends, given)
        else:
            building.take_firsts(new.starts, new.ends, given, *rows)
            del rows  # 12 bytes an edge
        if self.is_twice:
            new.numbers += given >= count
            given[given >= count] -= count
        if count:
            own = 2 * given if numbers is None else numbers[given]
            new.numbers += own.astype(np.uint32)
            new.columns = {n: taken(c, given) for n, c in columns.items()}
        if ids is not None:
            new.ids = ids[given] if count else np.zeros(new.slots, np.uint32)
        if self.out_degrees.size:
            new.out_degrees = np.zeros(lengths.size, np.int32)
            building.count_one(sources, new.out_degrees)
            new.out_degrees -= np.bincount(sources[repeats], minlength=lengths.size)
            new.out_counts = np.bincount(new.out_degrees).astype(np.int32)
            new.longest_out = new.out_counts.size - 1
        counted = np.minimum(lengths[:vertex_count], HUB)
        new.length_counts = np.bincount(counted, minlength=HUB + 1)
        new.hubs = np.flatnonzero(lengths >= HUB).astype(np.int32)
        return new

    def fit(self, plan: Any) -> bool:
        """Choose the runs of rows that change class; return False if there is no room.

        Free runs of the class come first, then regions: `self.region`, long free runs,
        and the slots from `top` on.
        """
        plan.region, plan.top = self.region, self.top
        self._find_hubs(plan)
        if not plan.moves:
            return True
        counts = np.minimum(plan.wanted, self.queues.counts)
        short, used = int((plan.wanted - counts) @ numba_kernels().SIZES), counts.copy()
        regions = _regions(self, short, used)
        passed = self._lay(plan, counts, regions, short)
        if passed < 0:
            return False
        # Rows go on in the region that they ended in. The others are split into runs.
        *free, (plan.top, _) = regions.tolist()
        plan.region = tuple(free.pop(passed)) if passed < len(free) else (0, 0)
        for start, stop in free:
            plan.lost += _split(start, stop, plan.puts)
        plan.drops, sizes = used, [size for size, _ in plan.puts]
        self.queues.reserve(plan.freed + np.bincount(sizes, minlength=used.size))
        return True

    def _lay(self, plan: Any, counts: Array, regions: Array, short: int) -> int:
        """Set the targets of rows: `counts` runs of each class, then parts of regions.

        Bounds of `regions` become those of the free slots that are left. Return the
        number of regions that rows have gone past; -1 if the rows do not fit. `short`
        is how many slots the regions must provide.
        """
        old = plan if plan.fresh is None else plan.fresh
        plan.targets = np.empty(plan.rows.size, old.starts.dtype)
        return numba_kernels().place_runs(  # type: ignore[no-any-return]
            plan.rows, old.starts, old.classes, plan.chosen, self.queues.runs,
            self.queues.table[0], counts, regions, plan.targets,
        )  # fmt: skip

    def _find_hubs(self, plan: Any) -> None:
        kernels, plan.hubs = numba_kernels(), self.hubs
        if plan.is_dense or plan.tally[kernels.HUBS]:
            kept = np.setdiff1d(self.hubs, plan.rows, assume_unique=True)
            found = np.append(kept, plan.rows[plan.lengths >= HUB])
            plan.hubs = np.sort(found).astype(np.int32)

    def refit(self, plan: Any, slots_for: Callable[[int], int]) -> None:
        """Lay out all rows in order in another pool, `plan.fresh`.

        Parameters
        ----------
        plan : Plan
            A dense one.
        slots_for : callable
            Returns the size of the new pool for the number of slots that rows need.
        """
        needed = int(plan.wanted @ numba_kernels().SIZES)
        slots, capacity = slots_for(needed), plan.starts.size
        fresh = type(self)(self.along, self.is_twice, slots, capacity, self.spec)
        if self.ids is not None:
            fresh.ids = self.memory.zeros(fresh.slots, np.uint32)
        fresh.top = plan.top = needed
        plan.fresh = fresh
        self._lay(plan, np.zeros_like(plan.wanted), np.array([[0, needed]]), needed)
        self._find_hubs(plan)

    def _bits(self) -> list[tuple[Any, int]]:
        """Return arrays over slots as flat unsigned integers, with elements per slot.

        The kernels that copy edges are then compiled once per size of an element.
        """
        if self._flat is None:
            bits_of = self.memory.bits_of
            self._flat = [(bits_of(array), width_of(array)) for array in self.by_slot()]
        return self._flat

    def list_left(self, plan: Any, is_logged: bool) -> tuple[Any, Any]:
        """Return the edges that the batch deletes, for the log and the queue of ids.

        Returns
        -------
        left : uint32, (3 or 4, plan.left)
            Rows, ends and numbers, in the order of rows. May be empty unless
            `is_logged`, or edges have ids.
        ids : uint32, (plan.left,); empty unless edges have ids
        """
        if not plan.left:
            return NONE_LEFT, NONE_LEFT[0]
        ids = NONE_LEFT[0] if self.ids is None else self.ids
        left = np.empty((3 + (ids.size > 0), plan.left), np.uint32)
        plan.share(
            numba_kernels().list_gone, plan.rows, plan.starts, plan.gone, plan.gone_at,
            plan.gone_places, plan.gone.cumsum() - plan.gone, self.ends, self.numbers,
            ids, left,
        )  # fmt: skip
        plan.left_ends = left[1].view(np.int32)
        return left, left[3] if ids.size else NONE_LEFT[0]

    def ids_for(self, plan: Any, free: Any, next_id: int, room: int) -> Any:
        """Return ids of inserted edges, by number of entry.

        In the order of rows, edges get the ids in `free`, then those from `next_id` on.
        """
        ids = np.empty(room, np.uint32)
        at = plan.order[plan.fates == numba_kernels().APPENDS]
        more = np.arange(at.size - free.size) + next_id
        ids[at] = np.concatenate([free, more])
        return ids

    def list_changed(self, plan: Any, updates: Updates) -> tuple[Any, int]:
        """Return `Record.other`, and how many edges get another value."""
        entries = np.flatnonzero(plan.fates == numba_kernels().REPLACES)
        slots = plan.places[entries]
        is_given = self.numbers[slots] & 1 == 0  # not a twin
        entries, slots = entries[is_given], slots[is_given]
        is_other = np.zeros(entries.size, np.bool_)
        for old, (values, sources) in zip(
            self.columns.values(), plan.values, strict=True
        ):
            at = sources[entries] if sources.size else entries
            differs = old[slots] != values[at]
            is_other |= differs if differs.ndim == 1 else differs.any(axis=1)
        rows = plan.rows[np.searchsorted(plan.first, entries, "right") - 1]
        found = is_other, rows, self.ends[slots], self.numbers[slots]
        return found, int(np.count_nonzero(is_other))

    def prepare(self, plan: Any, updates: Updates) -> None:
        """Allocate and compute all that `apply` writes.

        Raises
        ------
        GraphInputError
            If weights to be added have no sum in their type.
        """
        new, order = self if plan.fresh is None else plan.fresh, plan.order
        if plan.targets is None:  # no row moves
            plan.targets = plan.starts[plan.rows]
        is_last = updates.rule == "last"
        plan.degrees = grown(self.degrees, self.degrees.size and plan.starts.size)
        plan.out_degrees, plan.out_counts = self.out_degrees, self.out_counts
        if self.out_degrees.size:
            plan.out_degrees = grown(self.out_degrees, plan.starts.size)
            room = self.longest_out + plan.came + 1
            if room > self.out_counts.size:
                plan.out_counts = grown(self.out_counts, 2 * room)
        numbers = order + np.uint32(2 * updates.number)
        sources, own = order >> 1, order[:0]
        if plan.heads.size and is_last and updates.columns:
            given = np.flatnonzero(plan.heads >= 0)
            sources[plan.heads[given]] = sources[given]  # the last value is written
        for name, column in self.columns.items():
            values, of = updates.columns.get(name, column[:0]), sources
            if values.size and plan.heads.size and not is_last:
                values, of = combined(plan, column, values[of], updates.rule), own
            plan.values.append((values, of))
        written = [(plan.ends, own), (numbers, own), *plan.values]
        if self.ids is not None:
            is_shared = np.uint32(not self.has_twins)  # one id for both entries
            written.append((updates.ids[order & ~is_shared], own))
        last = 2 + len(self.columns)
        for k, ((old, width), (to, _), (values, of)) in enumerate(
            zip(self._bits(), new._bits(), written, strict=False)
        ):
            bits = self.memory.bits_of(values)
            plan.writes.append((old, to, width, bits, of, 2 <= k < last))

    def apply(self, plan: Any) -> RowPool:
        """Write the planned rows; return this pool, or `plan.fresh`. Cannot fail."""
        kernels = numba_kernels()
        new = self if plan.fresh is None else plan.fresh
        new.degrees, new.out_degrees = plan.degrees, plan.out_degrees
        new.out_counts = plan.out_counts
        longest_out = plan.threads.beside(
            kernels.count_ends, plan.ends, plan.fates, plan.left_ends, new.out_degrees,
            new.out_counts, self.longest_out,
        )  # fmt: skip
        for old, to, width, values, sources, replaces in plan.writes:
            plan.share(
                kernels.write_values, plan.rows, plan.first, plan.fates, plan.places,
                plan.starts, plan.stops, plan.targets, plan.gone, plan.gone_at,
                plan.gone_places, old, to, width, new is not self, values, sources,
                replaces,
            )  # fmt: skip
        if new is self:
            self.starts, self.stops = plan.starts, plan.stops
            self.classes = plan.classes
        new.length_counts[0] += plan.born
        kernels.finish_rows(
            plan.rows, plan.targets, plan.lengths, plan.chosen, new.starts, new.stops,
            new.classes, new.length_counts, new.degrees, new.queues.runs,
            new.queues.table[1],
        )  # fmt: skip
        new.longest_out = longest_out()
        settle(self, plan, new)
        return new

    def degrees_of(self, side: str, vertex_count: int) -> Any:
        """Return int32 degrees that batches keep: lengths of rows ("in"), or "out"."""
        if side == "in" and not self.degrees.size:
            self.degrees = (self.stops - self.starts).astype(np.int32)
        return self.degrees if side == "in" else self.out_degrees

    def by_slot(self) -> list[Any]:
        """Return the arrays over slots: ends, numbers, columns, and ids if any."""
        ids = [] if self.ids is None else [self.ids]
        return [self.ends, self.numbers, *self.columns.values(), *ids]

    def arrays(self) -> list[Any]:
        """Return all arrays over slots and vertices."""
        by_row = self.starts, self.stops, self.classes, self.degrees, self.out_degrees
        return [*(a for a in by_row if a is not None), *self.by_slot()]

    def copy(self) -> RowPool:
        """Return a pool with the same rows in the same slots."""
        made, copies = copy(self), partial(_copy_of, self.memory)
        for name, array in vars(self).items():
            if hasattr(array, "dtype") and array.size:
                setattr(made, name, copies(array))
        made.columns = {name: copies(column) for name, column in self.columns.items()}
        made.queues, made._kept, made._flat = self.queues.copy(), {}, None
        return made


def _regions(pool: RowPool, short: int, used: Array) -> Array:
    """Return bounds of free regions: the pool's, long free runs, and the pool's end.

    Long runs are taken until the regions before the end have `short` slots. They are
    counted in `used`, (classes,).
    """
    kernels, regions = numba_kernels(), [pool.region]
    room, counts = pool.region[1] - pool.region[0], pool.queues.counts
    for size in counts[kernels.LONG_CLASS :].nonzero()[0] + kernels.LONG_CLASS:
        while room < short and used[size] < counts[size]:
            slots = int(kernels.SIZES[size])
            found = pool.queues.next(int(used[size]) + 1, size)
            *_, start = pool.memory.read(found).tolist()
            regions.append((start, start + slots))
            used[size] += 1
            room += slots
    return np.array([*regions, (pool.top, pool.slots)], np.int64)


def settle(pool: RowPool, plan: Any, new: RowPool) -> None:
    """Store hubs, queues and free memory of a plan in the pool `new`.

    A fresh pool, which is not `pool`, has the right queues and regions already.
    """
    new.vertex_count, new.hubs = plan.vertex_count, plan.hubs
    if new is pool:
        pool.queues.table[0] += plan.drops
        for size, start in plan.puts:
            pool.queues.put(np.array([start]), size)
        pool.region, pool.top = plan.region, plan.top
        pool.lost += plan.lost


def _copy_of(memory: Any, array: Any) -> Any:
    """Return a copy of an array in its own memory: of the host, or of a pool."""
    return array.copy() if isinstance(array, np.ndarray) else memory.copy_of(array)


def _split(start: int, stop: int, puts: list[tuple[int, int]]) -> int:
    """Append runs that fill a range of slots to `puts`; return how many slots remain.

    The longest run that fits comes first, so that fewer than 4 slots remain.
    """
    sizes = numba_kernels().SIZES
    while stop - start >= sizes[1]:
        size = int(np.searchsorted(sizes, stop - start, "right")) - 1
        puts.append((size, int(start)))
        start += sizes[size]
    return int(stop - start)


def combined(plan: Any, column: Array, values: Array, policy: str) -> Array:
    """Return the value that each entry writes under "sum", "min" or "max".

    The value at an entry combines those of all entries with this head, and of the edge
    that it replaces, by the function that combines repeated edges of static graphs.

    Parameters
    ----------
    plan : Plan
        Its `order`, `fates`, `heads` and `places`, by entry.
    column : array, (slots,)
        Values of the graph's edges, before the batch.
    values : array, (entries,)
    policy : str
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

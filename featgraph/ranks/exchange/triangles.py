"""Triangle functions on ranks, a batch of fetched rows at a time.

`TriangleSweeps.over` runs a phase batch by batch. Kernels are those of a single rank.
They take the arrays of a part with the oriented rows of a batch (`BatchArrays`), and
read copies of edge properties that have the batch's edges, too; owners send the entries
that have changed since the last superstep. Kernels update properties in outboxes, which
are combined at the owners after a batch. Arrays of edges are on the host or on the GPU,
where the kernels run (`HostMemory`, `GpuMemory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.cuda.values import name_of
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.traits import LONG_ROW
from featgraph.program.signature import PropertyKind
from featgraph.ranks.exchange.remote_entries import RemoteEntries, empty_outbox
from featgraph.ranks.exchange.transport import EdgeTransport
from featgraph.ranks.exchange.triangle_parts import Batch, TrianglePart
from featgraph.ranks.exchange.vertex_sets import packed
from featgraph.runtime.devices.host_arrays import (
    edge_chunks,
    oriented_array,
    row_chunks,
)
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.bound import SET

__all__ = ["DeviceTriangles", "TriangleSweeps"]

Array = Any
Marks = Any
Given = Mapping[str, Any]
#: (source of a field, property) -> array for a kernel.
Fields = dict[tuple[str, str], Array]


class TriangleSweeps:
    """Runs of the triangle functions of a plan, a batch of rows at a time.

    Parameters
    ----------
    plan : FoldPlan
    device : Device
    find : callable
        Returns the batches of this rank.
    """

    def __init__(
        self, plan: FoldPlan, device: Device, find: Callable[[], DeviceTriangles]
    ) -> None:
        self._halos = [halo.triangles for halo in plan.facts.halos]
        signature = plan.analysis.signature
        self._of_edges = {
            name for name, t in signature.items() if t.kind is PropertyKind.EDGE
        }
        self._device, self._find_batches = device, find
        is_on_host = device.name == "cpu"
        self._memory = HostMemory() if is_on_host else GpuMemory(device)
        #: Numbers of a phase and of a kept batch -> the arrays of the batch, and the
        #: entries of the phase that are bound to them.
        self._bound: dict[tuple[int, int], tuple[Any, list[Any]]] = {}

    def over(
        self, buffers: Buffers, own: Any, given: Given, fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Given]]:
        """Yield the entries and arguments of a phase for each batch of rows."""
        halo, batches = self._halos[own.number], self._find_batches()
        whole: dict[str, Array] = {}
        for number in range(batches.part.rounds):
            on = batches.batch(number)
            room = _Room(buffers, on, self._device)
            arrays = on.arrays(buffers.graph, not own.phase.from_edges)
            read = self._read(room, halo, given.get("edge_state"), fields)
            read["builtin", "edge_twin"] = arrays["edge_twin"]
            if number == 0:  # all batches add to the same outboxes of vertices
                count = batches.part.vertices.count
                whole = self._boxes(room, halo, count, of_edges=False)
            boxes = whole | self._boxes(room, halo, room.count, of_edges=True)
            read |= {("property", name): box for name, box in boxes.items()}
            of = ((field.name, (field.source, field.of)) for field in fields)
            in_data = {name: read[key] for name, key in of if key in read}
            given_now = {**given, "d": given["d"]._replace(**in_data)}
            if "edge_state" in given:
                given_now["edge_state"] = state = read["edge_state", ""]
                if own.phase.from_edges:
                    given_now |= self._memory.listed(
                        state, arrays["edge_twin"], room.numbers
                    )
            yield self._entries(own, on, arrays), given_now
            is_last = number == batches.part.rounds - 1
            for name, operation in halo.updates:
                if is_last or name in self._of_edges:
                    update = name, operation
                    reached = self._deliver(room, batches, update, boxes[name])
                    if name in own.phase.marks:
                        twins, count = arrays["edge_twin"], on.batch.lists.own
                        self._memory.note(reached, twins, count, given[SET])

    def _entries(self, own: Any, on: DeviceBatch, arrays: Any) -> Any:
        """Return the entries of a phase with the arrays of a batch."""
        if not on.batch.stays:
            return own.entries_on(arrays)
        key = own.number, on.batch.number
        known = self._bound.get(key)
        if known is None or known[0] is not arrays:
            self._bound[key] = known = arrays, own.entries_on(arrays)("plain")
        entries = known[1]
        return lambda form: entries

    def _read(self, room: _Room, halo: Any, state: Any, fields: Any) -> Fields:
        """Return the edge arrays that a phase reads, extended by the batch's edges."""
        found: Fields = {}
        shared: list[Any] = []
        changed: list[Marks] = []
        transport = room.on.transport
        for source, names in (("property", halo.reads), ("next", halo.reads_next)):
            for name in names:
                wide, marks = room.renewed(source, name, self._memory)
                found[source, name] = wide
                shared.append(room.buffers.held(name, wide))
                changed.append(marks)
        if state is not None:
            wide = room.array("edge_state", "uint8", (room.count,))
            found["edge_state", ""] = wide
            shared.append(self._device.rows.held(wide, (room.count,)))
            also = reduce(transport.union, changed) if changed else None
            changed = [transport.passed(state, wide, also)]
        if shared:
            marks = reduce(transport.union, changed)
            transport.share(shared, marks, [None] * len(shared))
        for field in fields:
            if field.of == "edge_is_twin":
                found[field.source, field.of] = room.constant(field.of, self._memory)
        return found

    def _boxes(
        self, room: _Room, halo: Any, count: int, of_edges: bool
    ) -> dict[str, Array]:
        """Return empty outboxes of `count` rows for updated edge or vertex values."""
        return {
            name: room.outbox(name, operation, count)
            for name, operation in halo.updates
            if (name in self._of_edges) == of_edges
        }

    def _deliver(
        self, room: _Room, batches: DeviceTriangles, update: tuple[str, str], box: Array
    ) -> Any:
        """Combine the outboxes of all ranks at the owners, in the order of ranks.

        Returns the own edges or vertices for which entries have arrived.
        """
        (name, operation), buffers = update, room.buffers
        both = buffers.held(name, box), buffers.held(name, buffers.property(name))
        known = buffers.unsent.get(name)
        if name in self._of_edges:
            reached = room.on.transport.deliver(*both, operation)
            buffers.unsent[name] = batches.edges.marked(reached, known)
        else:
            reached = batches.vertices.deliver(*both, operation)
            sets = self._device.sets
            buffers.unsent[name] = (
                reached if known is None else sets.union(known, reached)
            )
        return reached


class _Room:
    """Memory of a State for the edges of a batch.

    For a kept batch it is kept, too, as a record of the entries sent last.

    Parameters
    ----------
    buffers : Buffers
    on : DeviceBatch
    device : Device

    Attributes
    ----------
    count : int
        Number of edges of the part and the batch.
    """

    def __init__(self, buffers: Buffers, on: DeviceBatch, device: Device) -> None:
        self.buffers, self.on, self._device = buffers, on, device
        self.count = on.batch.lists.count

    def array(self, use: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return memory for some use, the same each time for a kept batch."""
        if self.on.batch.stays:
            return self.buffers.temporary(f"triangles: {use}", dtype, shape)
        return self._device.working_memory(shape, dtype)

    def numbers(self, use: str, count: int) -> Array:
        """Return an int32 array of `count` entries, at least one."""
        return self.array(use, "int32", (max(count, 1),))

    def outbox(self, name: str, operation: str, count: int) -> Array:
        """Return an empty outbox of a property, with `count` rows."""
        values = self.buffers.property(name)
        shape, dtype = (count, *values.shape[1:]), name_of(values.dtype)
        box = self.array(f"outbox of {name}", dtype, shape)
        empty_outbox(self._device, box, operation)
        return box

    def renewed(self, source: str, name: str, memory: Any) -> tuple[Array, Marks]:
        """Copy own entries of a property to memory with the batch's edges, too.

        Returns that memory, and marks of own entries that have changed since the last
        copy. The caller must send them: the copy records them as sent.
        """
        buffers, transport = self.buffers, self.on.transport
        of = buffers.property if source == "property" else buffers.next_of
        values = of(name)
        shape, dtype = (self.count, *values.shape[1:]), name_of(values.dtype)
        use = f"{source} {name} of batch {self.on.batch.number}"
        is_known = (f"triangles: {use}", dtype, shape) in buffers.temporaries
        wide = self.array(use, dtype, shape)
        now, before = buffers.held(name, values), buffers.held(name, wide)
        marks = transport.all()
        if is_known:
            marks = transport.that_differ(marks, now, before)
        memory.copy(now, self.on.batch.lists.own, before)
        return wide, marks

    def constant(self, name: str, memory: Any) -> Array:
        """Return a constant edge array, extended by the batch's edges."""
        constants, transport = self.on.constants, self.on.transport
        if name not in constants:
            values = self.buffers.graph[name]
            wide = self._device.working_memory((self.count,), name_of(values.dtype))
            held = self._device.rows.held
            now, extended = held(values, tuple(values.shape)), held(wide, (self.count,))
            memory.copy(now, self.on.batch.lists.own, extended)
            transport.share([extended], transport.all(), [None])
            constants[name] = wide
        return constants[name]


class HostMemory:
    """Operations on edge arrays of the host."""

    def copy(self, source: Any, own: int, target: Any) -> None:
        """Copy the rows of own edges."""
        target[:own] = source[:own]

    def listed(self, wide: Array, twins: Array, edges: Any) -> dict[str, Array]:
        """Return no arguments: kernels of the host take no list of passed edges."""
        return {}

    def note(self, reached: Any, twins: Array, own: int, changed: Any) -> None:
        """Do nothing: kernels of the host use no set of changed edges."""


class GpuMemory(HostMemory):
    """Operations on edge arrays of a GPU.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: Device) -> None:
        # The dialect is imported only if there is a GPU.
        from featgraph.ranks.exchange import gpu_kernels, gpu_messages

        self._device, self._kernels = device, gpu_kernels
        self._entries, self._links = gpu_messages.Entries, gpu_messages
        self._launch: Any = device.launches  # type: ignore[attr-defined]

    def copy(self, source: Any, own: int, target: Any) -> None:
        """Copy the rows of own edges."""
        both = self._entries.of(source).array, self._entries.of(target).array
        self._over(self._kernels.copy_rows, own, (both[0], np.int32(own), both[1]))

    def listed(self, wide: Array, twins: Array, edges: Any) -> dict[str, Array]:
        """Return the list of the edges that passed, and their number, as arguments."""
        listed, count = edges("passed_edges", wide.size), edges("passed_count", 1)
        self._device.fill(count, 0)
        self._over(self._kernels.list_passed, wide.size, (wide, twins, listed, count))
        return {"passed_edges": listed, "passed_count": count}

    def note(self, reached: Any, twins: Array, own: int, changed: Any) -> None:
        """Add the own edges whose entries have changed, or their twins', to a set."""
        given = reached, twins, np.int32(own), changed
        self._over(self._kernels.note_changed, own, given)

    def _over(self, kernel: Any, size: int, given: tuple[Any, ...]) -> None:
        """Launch a kernel over `size` entries."""
        if size:
            blocks = self._links.blocks_for(size)
            self._launch(kernel, blocks, self._links.BLOCK, given)


#: ``over(lists, stays)`` returns the exchange of the entries of some lists.
Over = Callable[[RemoteEntries, bool], EdgeTransport]


class DeviceBatch:
    """A batch on a device; kept with the part, or for one superstep.

    Parameters
    ----------
    batch : Batch
    over : callable
        Makes exchanges of entries; all ranks call it.
    device : Device

    Attributes
    ----------
    transport : EdgeTransport
        The exchange of entries of edges, of the part and of the batch.
    """

    def __init__(self, batch: Batch, over: Over, device: Device) -> None:
        self.batch, self._device = batch, device
        self.transport = over(batch.lists, batch.stays)
        self._arrays: dict[bool, BatchArrays] = {}
        #: Constant edge arrays, for all entries that this rank has.
        self.constants: dict[str, Any] = {}

    def arrays(self, part: Mapping[str, Any], sweeps_rows: bool) -> BatchArrays:
        """Return the arrays for kernels, based on those of the part."""
        found = self._arrays.get(sweeps_rows)
        if found is None or found.part is not part:
            found = BatchArrays(part, self.batch, self._device, sweeps_rows)
            self._arrays[sweeps_rows] = found
        return found


class DeviceTriangles:
    """The batches of a part on a device.

    Parameters
    ----------
    part : TrianglePart
    edges : EdgeTransport
        The exchange of entries of the part's edges.
    over : callable
        Makes exchanges of entries; all ranks call it.
    device : Device

    Attributes
    ----------
    part : TrianglePart
    edges : EdgeTransport
    vertices : EdgeTransport
        The exchange of rows of vertices.
    """

    def __init__(
        self, part: TrianglePart, edges: EdgeTransport, over: Over, device: Device
    ) -> None:
        self.part, self.edges = part, edges
        self._over, self._device = over, device
        self.vertices = over(part.vertices, True)
        self._kept: dict[int, DeviceBatch] = {}

    def batch(self, number: int) -> DeviceBatch:
        """Return a batch; all ranks call it."""
        found = self._kept.get(number)
        if found is None:
            batch = self.part.batch(number)
            found = DeviceBatch(batch, self._over, self._device)
            if batch.stays:
                self._kept[number] = found
        return found


#: Prefixes of the names of arrays that the batch replaces.
_OF_BATCH = frozenset({"upper", "lower", "both", "order", "degree", "triangle"})
#: Names of the arrays over edges, which have those of the batch, too.
_OF_EDGES = frozenset({"edge_twin", "in_sources", "edge_chunks"})


class BatchArrays(Mapping[str, Any]):
    """The arrays of a part, with oriented rows, ends and twins of a batch.

    Kernels of a GPU sweep all rows, so for them the order has each vertex twice: the
    first copies have the rows of own vertices, which are swept; the second copies have
    the rows of middle vertices, and all ends refer to them.

    Parameters
    ----------
    part : mapping
        The arrays of the graph on the device.
    batch : Batch
    device : Device
    sweeps_rows : bool
        Whether kernels sweep rows; else they sweep edges that passed.
    """

    def __init__(
        self, part: Mapping[str, Any], batch: Batch, device: Device, sweeps_rows: bool
    ) -> None:
        self.part, self._batch, self._device = part, batch, device
        self._is_doubled = sweeps_rows and device.name != "cpu"
        self._uploaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name.partition("_")[0] not in _OF_BATCH and name not in _OF_EDGES:
            return self.part[name]
        if name not in self._uploaded:
            made = np.ascontiguousarray(self._made(name))
            self._uploaded[name] = self._device.upload(made)
        return self._uploaded[name]

    def _made(self, name: str) -> Array:
        batch, rows = self._batch, self._batch.rows
        if self._is_doubled and name in self._doubled:
            return self._doubled[name]
        if name == "edge_twin":
            return batch.twins
        if name == "in_sources":
            return batch.sources
        if name == "edge_chunks":
            return edge_chunks(batch.lists.count)
        if name == "triangle_chunks":
            return row_chunks(rows.work)
        sets = {"triangle_begins": rows.is_own, "triangle_middles": rows.is_middle}
        if name in sets:
            return packed(sets[name][rows.degree_order])
        return oriented_array(rows, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.part)

    def __len__(self) -> int:
        return len(self.part)

    @cached_property
    def _doubled(self) -> dict[str, Array]:
        """By name, the arrays of an order that has each vertex twice."""
        rows = self._batch.rows
        edges: Any = rows.upper.edge_ids
        places: Any = rows.lower.edge_ids
        offsets, count = rows.upper.row_offsets, rows.vertices.size
        sizes = np.diff(offsets)
        sizes = np.concatenate([sizes * rows.is_own, sizes * rows.is_middle])
        begins = np.concatenate([[0], np.cumsum(sizes)])
        first = np.concatenate([offsets[:-1], offsets[:-1]])
        slots = np.arange(begins[-1]) + np.repeat(first - begins[:-1], sizes)
        ends = rows.upper.column_indices
        below, low = rows.lower.row_offsets, rows.lower.column_indices
        long_rows = count + np.flatnonzero(sizes[count:] >= LONG_ROW)
        longest = long_rows[np.argsort(-sizes[long_rows], kind="stable")]
        positions = places - offsets[low] + begins[low]
        return {
            "order_vertex": np.concatenate([rows.vertices, rows.vertices]),
            "upper_offsets": begins.astype(offsets.dtype),
            "upper_orders": (ends[slots] + count).astype(ends.dtype),
            "upper_edges": edges[slots],
            "upper_hubs": longest.astype(np.int32),
            "lower_offsets": np.concatenate([np.zeros(count, below.dtype), below]),
            "lower_orders": low,
            "lower_positions": positions.astype(offsets.dtype),
        }

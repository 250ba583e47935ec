"""Triangle functions on ranks: what they read of others' edges, and what they add.

Kernels are those of one rank. What they read of edges is a copy here, with entries of
the batch's edges, too: of it, owners send what is not what they sent last. A property
that they update is an outbox, which is combined at the owners behind a batch.

Arrays of edges are on the host or on a GPU, where kernels have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np

from featgraph.arrays.values import name_of
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind
from featgraph.ranks.edge_ghosts import EdgeCarrier
from featgraph.ranks.triangles.here import BatchHere, TrianglesHere
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.changed_edges import SET

__all__ = ["TriangleTurns"]

Array = Any
Marks = Any
Given = Mapping[str, Any]
#: What a kernel is given, by where it comes from and the property.
Fields = dict[tuple[str, str], Array]


class TriangleTurns:
    """Runs the triangle functions of a plan, a batch of rows at a time.

    Parameters
    ----------
    plan : FoldPlan
    device : Device
    here : callable
        Returns the batches of this rank.
    """

    def __init__(
        self, plan: FoldPlan, device: Device, here: Callable[[], TrianglesHere]
    ) -> None:
        self._halos = [halo.triangles for halo in plan.facts.halos]
        signature = plan.analysis.signature
        self._of_edges = {
            name for name, t in signature.items() if t.kind is PropertyKind.EDGE
        }
        self._device, self._find_here = device, here
        self._memory = memory_of(device)
        #: What runs a phase on a batch that stays, by the numbers of both.
        self._bound: dict[tuple[int, int], tuple[Any, list[Any]]] = {}

    def over(
        self, buffers: Buffers, own: Any, given: Given, fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Given]]:
        """Give what runs a phase on each batch: see `Ghosts.turns`."""
        halo, here = self._halos[own.number], self._find_here()
        whole: dict[str, Array] = {}
        for number in range(here.part.rounds):
            on = here.batch(number)
            room = _Room(buffers, on, self._device)
            arrays = on.arrays(buffers.graph, not own.phase.from_edges)
            read = self._read(room, halo, given.get("edge_state"), fields)
            read["builtin", "edge_twin"] = arrays["edge_twin"]
            boxes = self._boxes(room, halo) | whole
            if number == 0:
                boxes |= (whole := self._boxes_of_vertices(room, here, halo))
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
            is_last = number == here.part.rounds - 1
            for name, operation in halo.updates:
                if is_last or name in self._of_edges:
                    reached = self._deliver(room, here, (name, operation), boxes[name])
                    if name in own.phase.marks:
                        twins, count = arrays["edge_twin"], on.batch.lists.own
                        self._memory.note(reached, twins, count, given[SET])

    def _entries(self, own: Any, on: BatchHere, arrays: Any) -> Any:
        """Return the entries of a phase with the arrays of a batch in place."""
        if not on.batch.stays:
            return own.entries_on(arrays)
        key = own.number, on.batch.number
        known = self._bound.get(key)
        if known is None or known[0] is not arrays:
            self._bound[key] = known = arrays, own.entries_on(arrays)("plain")
        entries = known[1]
        return lambda form: entries

    def _read(self, room: _Room, halo: Any, state: Any, fields: Any) -> Fields:
        """Return what is read of edges, with entries of the batch's."""
        found: Fields = {}
        shared: list[Any] = []
        changed: list[Marks] = []
        carrier = room.on.carrier
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
            also = reduce(carrier.union, changed) if changed else None
            changed = [carrier.passed(state, wide, also)]
        if shared:
            marks = reduce(carrier.union, changed)
            carrier.share(shared, marks, [None] * len(shared))
        for field in fields:
            if field.of == "edge_is_twin":
                found[field.source, field.of] = room.constant(field.of, self._memory)
        return found

    def _boxes(self, room: _Room, halo: Any) -> dict[str, Array]:
        """Return outboxes of what is updated at edges, in which there is nothing."""
        carrier, updates = room.on.carrier, halo.updates
        of_edges = [each for each in updates if each[0] in self._of_edges]
        return {
            name: room.outbox(name, operation, carrier, room.count)
            for name, operation in of_edges
        }

    def _boxes_of_vertices(
        self, room: _Room, here: TrianglesHere, halo: Any
    ) -> dict[str, Array]:
        """Return the same at vertices, for all batches."""
        carrier, count = here.vertices, here.part.vertices.count
        of_vertices = [each for each in halo.updates if each[0] not in self._of_edges]
        return {
            name: room.outbox(name, operation, carrier, count)
            for name, operation in of_vertices
        }

    def _deliver(
        self, room: _Room, here: TrianglesHere, update: tuple[str, str], box: Array
    ) -> Any:
        """Combine what ranks have of a property at its owners, in their order.

        Returns where anything has come.
        """
        (name, operation), buffers = update, room.buffers
        both = buffers.held(name, box), buffers.held(name, buffers.property(name))
        known = buffers.unsent.get(name)
        if name in self._of_edges:
            reached = room.on.carrier.deliver(*both, operation)
            buffers.unsent[name] = here.edges.marked(reached, known)
        else:
            reached = here.vertices.deliver(*both, operation)
            sets = self._device.sets
            buffers.unsent[name] = (
                reached if known is None else sets.union(known, reached)
            )
        return reached


class _Room:
    """Memory of a State for the edges of a batch.

    Of a batch that stays it does, too: what ranks have been sent is known from it.

    Parameters
    ----------
    buffers : Buffers
    on : BatchHere
    device : Device

    Attributes
    ----------
    count : int
        How many edges there are, of the part and of the batch.
    """

    def __init__(self, buffers: Buffers, on: BatchHere, device: Device) -> None:
        self.buffers, self.on, self._device = buffers, on, device
        self.count = on.batch.lists.count

    def array(self, use: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return memory for some use."""
        if self.on.batch.stays:
            return self.buffers.temporary(f"triangles: {use}", dtype, shape)
        return self._device.working_memory(shape, dtype)

    def numbers(self, use: str, count: int) -> Array:
        """Return memory for so many numbers, at least one."""
        return self.array(use, "int32", (max(count, 1),))

    def outbox(
        self, name: str, operation: str, carrier: EdgeCarrier, count: int
    ) -> Array:
        """Return an outbox of a property, with so many rows."""
        values = self.buffers.property(name)
        shape, dtype = (count, *values.shape[1:]), name_of(values.dtype)
        box = self.array(f"outbox of {name}", dtype, shape)
        carrier.empty_outbox(self.buffers.held(name, box), operation)
        return box

    def renewed(self, source: str, name: str, memory: Any) -> tuple[Array, Marks]:
        """Return entries of a property, and which of them owners have to send.

        They are sent by who calls this: then others have what there is now.
        """
        buffers, carrier = self.buffers, self.on.carrier
        of = buffers.property if source == "property" else buffers.next_of
        values = of(name)
        shape, dtype = (self.count, *values.shape[1:]), name_of(values.dtype)
        use = f"{source} {name} of batch {self.on.batch.number}"
        is_known = (f"triangles: {use}", dtype, shape) in buffers.temporaries
        wide = self.array(use, dtype, shape)
        now, before = buffers.held(name, values), buffers.held(name, wide)
        marks = carrier.all()
        if is_known:
            marks = carrier.that_differ(marks, now, before)
        memory.copy(now, self.on.batch.lists.own, before)
        return wide, marks

    def constant(self, name: str, memory: Any) -> Array:
        """Return an array of edges of the part, with those of the batch."""
        constants, carrier = self.on.constants, self.on.carrier
        if name not in constants:
            values = self.buffers.graph[name]
            wide = self._device.working_memory((self.count,), name_of(values.dtype))
            held = self._device.rows.held
            now, there = held(values, tuple(values.shape)), held(wide, (self.count,))
            memory.copy(now, self.on.batch.lists.own, there)
            carrier.share([there], carrier.all(), [None])
            constants[name] = wide
        return constants[name]


class HostMemory:
    """Arrays of the host."""

    def copy(self, source: Any, own: int, target: Any) -> None:
        """Copy the rows of own edges."""
        target[:own] = source[:own]

    def listed(self, wide: Array, twins: Array, edges: Any) -> dict[str, Array]:
        """Return what kernels are given of the edges that passed besides: nothing."""
        return {}

    def note(self, reached: Any, twins: Array, own: int, changed: Any) -> None:
        """Do nothing: no kernel of the host goes by a set of changed edges."""


class GpuMemory(HostMemory):
    """Arrays of a GPU.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: Device) -> None:
        # The dialect is imported where there is a GPU.
        from featgraph.ranks.gpu import edge_kernels, links, messages

        self._device, self._kernels = device, edge_kernels
        self._entries, self._links = messages.Entries, links
        self._launch: Any = device.launches  # type: ignore[attr-defined]

    def copy(self, source: Any, own: int, target: Any) -> None:
        """Copy the rows of own edges."""
        both = self._entries.of(source).array, self._entries.of(target).array
        self._over(self._kernels.copy_rows, own, (both[0], np.int32(own), both[1]))

    def listed(self, wide: Array, twins: Array, edges: Any) -> dict[str, Array]:
        """Return a list of the edges that passed, and how many they are."""
        listed, count = edges("passed_edges", wide.size), edges("passed_count", 1)
        self._device.fill(count, 0)
        self._over(self._kernels.list_passed, wide.size, (wide, twins, listed, count))
        return {"passed_edges": listed, "passed_count": count}

    def note(self, reached: Any, twins: Array, own: int, changed: Any) -> None:
        """Note the own edges of which something has changed, in either direction."""
        given = reached, twins, np.int32(own), changed
        self._over(self._kernels.note_changed, own, given)

    def _over(self, kernel: Any, size: int, given: tuple[Any, ...]) -> None:
        """Launch a kernel over entries."""
        if size:
            blocks = self._links.blocks_for(size)
            self._launch(kernel, blocks, self._links.BLOCK, given)


def memory_of(device: Device) -> HostMemory:
    """Return what is done with arrays of a device."""
    return HostMemory() if device.name == "cpu" else GpuMemory(device)

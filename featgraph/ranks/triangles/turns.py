"""Triangle functions on ranks: what they read of others' edges, and what they add.

Kernels are those of one rank. A property that they update is an outbox here, with a row
for each vertex or edge of the part and of the batch. Behind a batch, those of its edges
go to the rank that has sent them; behind the last one, those of ghosts go to owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph.partition.shard import Shard
from featgraph.program.signature import PropertyKind
from featgraph.ranks.edge_ghosts import EdgeCarrier
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.members import packed
from featgraph.ranks.outboxes import combine_rows, identity, in_outbox
from featgraph.ranks.triangles.memory import memory_of
from featgraph.ranks.triangles.parts import Batch, TrianglePart
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["TriangleTurns"]

Array = npt.NDArray[Any]
Given = Mapping[str, Any]


class TriangleTurns:
    """Runs the triangle functions of a plan, a batch of rows at a time.

    Parameters
    ----------
    plan : FoldPlan
    shard : Shard
    edges : PartEdges
    carrier : EdgeCarrier
        What hands over entries of these.
    device : Device
    part : callable
        Returns the oriented edges of this rank.
    engine : Engine
    """

    def __init__(
        self,
        plan: FoldPlan,
        shard: Shard,
        edges: PartEdges,
        carrier: EdgeCarrier,
        device: Device,
        part: Callable[[], TrianglePart],
        engine: Engine,
    ) -> None:
        self._halos = [halo.triangles for halo in plan.facts.halos]
        signature = plan.analysis.signature
        self._of_edges = {
            name for name, t in signature.items() if t.kind is PropertyKind.EDGE
        }
        self._shard, self._edges, self._carrier = shard, edges, carrier
        self._engine, self._device, self._part = engine, device, part
        self._memory = memory_of(device)

    def over(
        self, buffers: Buffers, own: Any, given: Given, fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Given]]:
        """Give what runs a phase on each batch: see `Ghosts.turns`."""
        halo, part = self._halos[own.number], self._part()
        memory = self._memory
        memory.begin()
        state = memory.state(given.get("edge_state"), self._carrier)
        told = {} if state is None else {("edge_state", ""): state}
        # What is asked of edges themselves.
        of_graph = {
            (field.source, field.of): memory.plain(buffers.graph[field.of])
            for field in fields
            if field.of == "edge_is_twin"
        }
        values = {
            name: memory.values(buffers, name, buffers.property(name))
            for name, _ in halo.updates
        }
        boxes = {
            name: np.full_like(values[name], identity(op, values[name].dtype))
            for name, op in halo.updates
        }
        for number in range(part.rounds):
            batch = part.batch(number)
            wide = self._wide(buffers, halo, boxes, {**of_graph, **told}, batch)
            made = {name: memory.put(array) for name, array in wide.items()}
            in_data = {
                field.name: made[field.source, field.of]
                for field in fields
                if (field.source, field.of) in made
            }
            given_now = {**given, "d": given["d"]._replace(**in_data)}
            if state is not None:
                given_now["edge_state"] = made["edge_state", ""]
            yield own.entries_on(memory.arrays(buffers.graph, batch)), given_now
            for name, op in halo.updates:
                box = memory.back(made["property", name], wide["property", name])
                if name in self._of_edges:
                    box = self._returned(box, op, batch)
                boxes[name] = box
        for name, op in halo.updates:
            self._deliver(buffers, name, op, boxes[name], values[name])
            memory.store(values[name], buffers.property(name))

    def _wide(
        self,
        buffers: Buffers,
        halo: Any,
        boxes: Mapping[str, Array],
        others: Mapping[tuple[str, str], Array],
        batch: Batch,
    ) -> dict[tuple[str, str], Array]:
        """Return arrays with rows for the edges of a batch, by source and property."""
        found = dict(others)
        for source, names in (("property", halo.reads), ("next", halo.reads_next)):
            of = buffers.property if source == "property" else buffers.next_of
            found |= {
                (source, name): self._memory.values(buffers, name, of(name))
                for name in names
            }
        wide = dict(zip(found, self._fetched(list(found.values()), batch), strict=True))
        wide["builtin", "edge_twin"] = batch.twins
        for name, op in halo.updates:
            box = boxes[name]
            if name in self._of_edges:
                shape = (2 * batch.kept.size, *box.shape[1:])
                more = np.full(shape, identity(op, box.dtype), box.dtype)
                box = np.concatenate([box[: self._edges.count], more])
            wide["property", name] = box
        return wide

    def _fetched(self, arrays: list[Array], batch: Batch) -> list[Array]:
        """Return arrays of edges with the entries of a batch's behind them."""
        twins, count = batch.twins, self._edges.count
        messages = [
            np.concatenate(
                [np.empty(0, np.uint8)]
                + [_bytes(array[ids]) for array in arrays for ids in (e, twins[e])]
            )
            for e in batch.sent
        ]
        received = self._engine.all_to_allv(messages, about="edges of triangles")
        parts: list[list[Array]] = [[] for _ in range(2 * len(arrays))]
        for message, size in zip(received, batch.counts, strict=True):
            at = 0
            for which, array in enumerate(arrays):
                for direction in range(2):
                    shape = (size, *array.shape[1:])
                    end = at + size * array.itemsize * int(np.prod(shape[1:]))
                    rows = message[at:end].copy().view(array.dtype).reshape(shape)
                    parts[2 * which + direction].append(rows)
                    at = end
        return [
            np.concatenate(
                [array[:count]]
                + [np.concatenate(parts[2 * n + d])[batch.kept] for d in range(2)]
            )
            for n, array in enumerate(arrays)
        ]

    def _returned(self, wide: Array, operation: str, batch: Batch) -> Array:
        """Send what was combined at a batch's edges to those who have sent them."""
        count, extra = self._edges.count, batch.kept.size
        nothing, messages = identity(operation, wide.dtype), []
        both = [wide[count : count + extra], wide[count + extra :]]
        all_of = np.full((2, sum(batch.counts), *wide.shape[1:]), nothing, wide.dtype)
        for rows, own in zip(all_of, both, strict=True):
            rows[batch.kept] = own
        ends = np.cumsum([0, *batch.counts])
        for begin, end in pairwise(ends):
            messages.append(in_outbox(np.concatenate(all_of[:, begin:end]), operation))
        received = self._engine.all_to_allv(messages, about="edges of triangles")
        box = wide[:count]
        for message, e in zip(received, batch.sent, strict=True):
            ids = np.concatenate([e, batch.twins[e]])
            rows = box[ids]
            combine_rows(message, rows, operation)
            box[ids] = rows
        return box

    def _deliver(
        self, buffers: Buffers, name: str, operation: str, box: Array, values: Array
    ) -> None:
        """Combine what ranks have of a property at its owners, in their order."""
        given, taken, own = self._of(name)
        messages = [in_outbox(box[rows], operation) for rows in given]
        received = self._engine.all_to_allv(messages, about="sums of triangles")
        reached = np.zeros(own, np.bool_)
        for message, ids in zip(received, taken, strict=True):
            rows = values[ids]
            changed = combine_rows(message, rows, operation)
            values[ids] = rows
            reached[ids[changed]] = True
        known = buffers.unsent.get(name)
        if name in self._of_edges:
            marks = self._carrier.marked(reached)
            union = self._carrier.union
        else:
            everyone = np.zeros(self._shard.numbers.size, np.bool_)
            everyone[:own] = reached
            marks = self._device.sets.upload(packed(everyone))
            union = self._device.sets.union
        buffers.unsent[name] = marks if known is None else union(known, marks)

    def _of(self, name: str) -> tuple[list[slice], list[Array], int]:
        """Return the rows that go to each rank, what these are there, and own ones."""
        rank, shard, edges = self._engine.rank, self._shard, self._edges
        if name in self._of_edges:
            own = edges.own
            given = [slice(b, b + t.numbers.size) for b, t in edges.taken]
            taken: list[Array] = [link.numbers for link in edges.links]
        else:
            own, begins = shard.own, shard.ghosts
            given = [slice(b, e) for b, e in pairwise(begins)]
            taken = list(shard.send_lists)
        given[rank], taken[rank] = slice(0, own), np.arange(own)
        return given, taken, own


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)

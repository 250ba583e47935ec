"""A State that goes to other owners: values, sets, and what is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._interrupts import deferred_interrupts
from featgraph.arrays.values import Filled
from featgraph.program.active import ActiveSet
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind
from featgraph.program.snapshot import Left
from featgraph.program.state import State
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.members import packed, unpacked
from featgraph.ranks.moving.recut import Mover, with_ghost_edges, with_ghosts
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["StateMover"]

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]


class StateMover:
    """Moves what belongs to vertices and edges of one graph in parts to another one.

    All ranks call the same methods in the same order. What owners have is moved;
    ghosts are sent by their new owners.

    Parameters
    ----------
    before, after : DistributedGraph
        The same graph between different cuts.
    """

    def __init__(self, before: DistributedGraph, after: DistributedGraph) -> None:
        self._before, self._after, self._engine = before, after, after.engine
        cuts = before.shard.partition, after.shard.partition
        self._mover = Mover(after.engine, *cuts)

    def move(self, state: State) -> None:
        """Have a State be of the other graph; it is unchanged if anything fails."""
        types = state.signature.items()
        columns = {name: self._column(state, name, type_.kind) for name, type_ in types}
        moment, entries = state.left
        if moment != state.moment:
            entries = {}
        # Others than the run's, which does not know of them.
        lefts = {key: self.left(known.on_host()) for key, known in entries.items()}
        with deferred_interrupts():
            if isinstance(state.residency, Buffers):
                state.residency.drop()
            state.graph, state._columns = self._after, columns
            state.left = state.moment, lefts
            for kept in list(state.bound.values()):
                kept.clear()

    def set(self, words: Words) -> Words:
        """Return a set of vertices, with ghosts."""
        own = unpacked(words)[: self._before.shard.own]
        return packed(
            with_ghosts(self._engine, self._after.shard, self._mover.rows(own))
        )

    def left(self, left: Left) -> Left:
        """Return what a foldmap has not seen."""
        words, also = (
            None if words is None else self.set(words)
            for words in (left.words, left.left)
        )
        return Left(words, also, left.scalars)

    def hand_over(self, sets: Sequence[ActiveSet], device: Device) -> None:
        """Have sets that the old graph holds on a device be with the other one."""
        old, new = (g.exchange(device).holder for g in (self._before, self._after))

        def move(words: Any) -> Any:
            return device.sets.upload(self.set(device.download(words)))

        for one in sets:
            one.hand_over(old, new, move)

    def _column(self, state: State, name: str, kind: PropertyKind) -> Column:
        column = state._columns[name]
        if kind in (PropertyKind.SCALAR, PropertyKind.VECTOR):
            values = state.stored(name)
        elif kind is PropertyKind.VERTEX:
            values = self._vertex_values(state, name, column)
        else:
            values = self._edge_values(state, name, column)
        return Column(column.type, values, column.per_direction)

    def _vertex_values(self, state: State, name: str, column: Column) -> Any:
        shard = self._after.shard
        if isinstance(column.values, Filled):  # no kernel has asked for it yet
            shape = (shard.numbers.size, *column.values.shape[1:])
            return Filled(column.values.value, shape)
        own = state.stored(name)[: self._before.shard.own]
        return with_ghosts(self._engine, shard, self._mover.rows(own))

    def _edge_values(self, state: State, name: str, column: Column) -> Any:
        values = column.values
        if isinstance(values, Filled):
            shape = (self._after.part.edge_count, *values.shape[1:])
            return Filled(values.value, shape)
        own = state.stored(name)[: self._before.edges.own]
        offsets = self._before.part.in_edges.row_offsets
        moved = self._mover.slots(np.asarray(offsets), own)
        return with_ghost_edges(self._engine, self._after.edges, moved)

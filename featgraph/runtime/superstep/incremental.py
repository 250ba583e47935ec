"""Incremental aggregates: kept between supersteps, and patched with changes.

Invariant: for every vertex that is not `stale`, the aggregate is the combine over all
edges that it gathers along of the values that the neighbors' `seen` copies contribute.
The copies follow the properties at the end of each superstep, at the vertices that had
changed before it: by then every aggregate that they reach has been patched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.fold.compiling.kernel import Kernel
from featgraph.program.active import word_count
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers, ScalarsRead

__all__ = ["Incremental"]

Words = Any


class Incremental:
    """The aggregates that one foldmap, with its ``.on``, updates on one State in a run.

    Attributes
    ----------
    stale : words
        Vertices whose aggregates must be recomputed from all edges.
    patched : words
        Vertices whose aggregates have been patched since they were last recomputed.
    changed : words or None
        The vertices that changed before the superstep in progress.
    due : words or None
        The vertices that the gathers of the superstep in progress run on.
    """

    def __init__(self, kernel: Kernel, state: State, device: Device) -> None:
        self.kernel = kernel
        self.state = state
        self.device = device
        self.stale: Words = None
        self.patched: Words = None
        self.changed: Words = None
        self.due: Words = None
        self.is_known = False
        self.scalars: tuple[Any, ...] | None = None
        self.arrays: dict[str, Any] = {}
        plan = kernel.plan
        gathers = [
            plan.incremental.gathers[n] for p in plan.phases for n in p.incremental
        ]
        #: Whether all patches are exact.
        self.is_exact = all(g.is_exact for g in gathers)
        #: Whether no aggregate changes once it has been computed.
        self.is_constant = all(g.is_constant for g in gathers)

    def forget(self) -> None:
        """Recompute all aggregates when they are next due."""
        self.is_known = False

    def begin(self, buffers: Buffers, changed: Words | None) -> bool:
        """Begin a superstep; return whether aggregates can be patched.

        All become stale if the changes are unknown, or a scalar that gathers read has
        changed.
        """
        scalars = self._scalars_read()
        holds = self.is_known and changed is not None and scalars == self.scalars
        if not holds:
            self._make_stale(buffers)
            changed = self.device.sets.empty(self.stale.size)
        self.changed, self.scalars = changed, scalars
        return holds

    def settle(self, buffers: Buffers) -> None:
        """Update the copies after the last kernel.

        The current buffers still have the values of the beginning of the superstep.
        """
        self.device.sets.settle(self.due, self.stale, self.patched)
        for field in self._fields("seen"):
            self.device.sets.refresh_vertices(
                self.changed, self.arrays[field.name], buffers.property(field.of)
            )

    def recompute(self, words: Words) -> None:
        """Have the aggregates of some vertices recomputed when they are next due."""
        self.stale = self.device.sets.union(self.stale, words)

    def _make_stale(self, buffers: Buffers) -> None:
        count = buffers.graph.vertex_count
        for field in self._fields("incremental"):
            if field.name not in self.arrays:
                shape = self.kernel.plan.item_shape(field.of)
                memory = self.device.working_memory((count, *shape), field.dtype)
                self.arrays[field.name] = memory
        for field in self._fields("seen"):
            current = buffers.property(field.of)
            if field.name not in self.arrays:
                made = self.device.empty(current.shape, field.dtype)
                self.arrays[field.name] = made
            self.device.copy(self.arrays[field.name], current)
        self.stale = self.device.sets.empty(word_count(count))
        self.device.fill(self.stale, np.uint32(0xFFFFFFFF))
        self.patched = self.device.sets.empty(word_count(count))
        self.is_known = True

    def _fields(self, source: str) -> list[Any]:
        return [f for f in self.kernel.kernel_source.fields if f.source == source]

    def _scalars_read(self) -> tuple[Any, ...]:
        """Return the scalars and vectors that incremental gathers read, as bytes."""
        names = self.kernel.plan.facts.incremental_scalars
        return ScalarsRead(self.state, names).read()

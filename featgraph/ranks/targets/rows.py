"""Rows of ghosts on a GPU, in a group of ranks of which some have none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.boundary import Boundary
from featgraph.ranks.gpu.edges import GpuEdges
from featgraph.ranks.gpu.rows import GpuRows
from featgraph.ranks.lists import Lists
from featgraph.ranks.targets.messages import HostMessages
from featgraph.runtime.devices.protocol import Device

__all__ = ["TranslatedRows"]

Words = Any


class TranslatedRows:
    """Hands rows of a GPU to ranks of any target, and takes theirs: a `Carrier`.

    Rows are packed and stored on the GPU; in between they go as ranks of the CPU send
    them. Nothing goes while others are swept, and numbers go by the host.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice

    Attributes
    ----------
    forms : Counter of str
        Messages of rows that have been sent, by their form.
    boundary : Boundary
        The vertices whose rows are sent.
    """

    together = None
    sends_behind, sent_behind = False, 0
    clock = staticmethod(time.perf_counter)

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        self.boundary = Boundary(shard, engine, device)
        self.deliver, self.empty_outbox = self._rows.deliver, self._rows.empty_outbox
        self.collect = self._rows.collect

    @cached_property
    def _rows(self) -> GpuRows:
        given = self._shard, self._engine, self._device, self.forms
        return GpuRows(*given, post=HostMessages(*given[1:]))

    def require(self, sending: Sending) -> None:
        """Do nothing: see `check_plan`, which all ranks call."""

    def wire_s(self, row_bytes: int) -> float:
        """Return 0: nothing goes while others are swept."""
        return 0.0

    def over(self, lists: Lists, stays: bool = True) -> GpuEdges:
        """Return what hands over entries of edges likewise."""
        return self._rows.over(lists)

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        return self._rows.share(values, changed, sending)

"""How ranks on GPUs hand rows and numbers over: the first way that all of them can."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.config import config
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import ArgumentError
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.gpu.edges import GpuEdges
from featgraph.ranks.gpu.rows import GpuRows
from featgraph.ranks.gpu.window_rows import WindowNumbers, WindowRows
from featgraph.ranks.gpu.windows import can_map
from featgraph.runtime.devices.protocol import Device

__all__ = ["GpuCarrier"]

Words = Any
_WAYS = ("auto", "windows", "engine", "host")
#: Engine -> what combines numbers of its ranks; None where they have no windows.
_numbers: weakref.WeakKeyDictionary[Any, WindowNumbers | None] = (
    weakref.WeakKeyDictionary()
)


def numbers_of(engine: Engine, device: Device) -> WindowNumbers | None:
    """Return what combines numbers through windows; None where there are none."""
    way = config.gpu_links
    if way not in _WAYS:
        raise ArgumentError(
            "ranks on GPUs do not hand rows over so",
            where="fg.config.gpu_links",
            got=repr(way),
            expected=", ".join(map(repr, _WAYS)),
        )
    if way in {"engine", "host"}:
        return None
    if engine not in _numbers:
        is_mapped = can_map(engine, device)
        _numbers[engine] = WindowNumbers(engine, device) if is_mapped else None
    return _numbers[engine]


class GpuCarrier:
    """Hands rows over through windows, or else as messages: a `Carrier`.

    Which it is, is found out when all ranks send something.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device

    @cached_property
    def numbers(self) -> WindowNumbers | None:
        """What combines numbers on the device; None where the host does."""
        return numbers_of(self._engine, self._device)

    @cached_property
    def _rows(self) -> WindowRows | GpuRows:
        made = GpuRows if self.numbers is None else WindowRows
        return made(self._shard, self._engine, self._device)

    def over(self, edges: PartEdges) -> GpuEdges:
        """Return what hands over entries of edges: as messages, always."""
        return GpuRows(self._shard, self._engine, self._device).over(edges)

    def share(self, values: Sequence[DeviceValues], changed: Words) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        return self._rows.share(values, changed)

    def collect(self, values: DeviceValues, mirror: DeviceValues) -> None:
        """Fill the mirror of a property with the rows that each rank owns."""
        self._rows.collect(values, mirror)

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        self._rows.empty_outbox(outbox, operation)

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`."""
        return self._rows.deliver(outbox, values, operation)

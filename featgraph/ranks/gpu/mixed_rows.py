"""Rows of ghosts on GPUs of which some reach each other: windows, and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.gpu.rows import GpuRows, lists_of
from featgraph.ranks.gpu.window_channel import Channel, Part
from featgraph.ranks.gpu.window_numbers import WindowNumbers
from featgraph.ranks.lost import lost_rank
from featgraph.runtime.devices.protocol import Device

__all__ = ["MixedRows"]

Words = Any


class MixedRows:
    """Shares rows through windows with near ranks, and as messages with the others.

    Rows for near ranks are stored first, messages go, and then is taken what near ranks
    have stored: no rank waits for one before it has given all that it has.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    near : array of bool, shape (P, P)
        See `find_near`.
    forms : Counter of str
        Where messages are counted, by their form.
    numbers : WindowNumbers
        Those of the rank: none go through these windows.
    """

    def __init__(
        self,
        shard: Shard,
        engine: Engine,
        device: Device,
        near: npt.NDArray[np.bool_],
        forms: Counter[str],
        numbers: WindowNumbers,
    ) -> None:
        self._engine, self._device = engine, device
        own = near[engine.rank]
        self._far = GpuRows(shard, engine, device, forms, (~own).tolist())
        sent, taken = lists_of(shard, own.tolist())
        about = "rows of ghosts of this host"
        self._near = Channel(sent, taken, engine, device, about, numbers)
        self._near.near = near
        #: Less than 0 where a kernel has waited in vain.
        self._told = device.upload(np.zeros(1, np.int64))

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        posted = self._near.post([Part(changed, values)], sending=sending)
        far = self._far.share(values, changed, sending)
        near = self._near.take(posted, told=self._told).first
        # Counts are told by the engine, to which that kernel says nothing.
        found = int(self._device.download(self._told)[0])
        if found < 0:
            raise lost_rank(self._engine, found)
        return self._device.sets.union(far, near)

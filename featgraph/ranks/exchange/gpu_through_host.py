"""Exchange of GPU arrays over an engine that sends memory of the host only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.config import config
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of, uuid_of_current
from featgraph.ranks.engines.protocol import (
    Beside,
    Engine,
    GpuArray,
    GpuEngine,
    bytes_of,
)
from featgraph.runtime.devices.protocol import Device

__all__ = ["ThroughHost", "gpu_sender_of"]

Bytes = npt.NDArray[np.uint8]


def gpu_sender_of(engine: Engine, device: Device) -> GpuEngine | ThroughHost:
    """Return the engine if it can send GPU arrays, else `ThroughHost`; all call it."""
    may_reach = isinstance(engine, GpuEngine) and config.gpu_links != "host"

    def make(size: int) -> GpuArray:
        return device.empty((size,), "uint8")

    if may_reach and engine.reach_gpus(uuid_of_current(), make):  # type: ignore[attr-defined]
        return engine  # type: ignore[return-value]
    return ThroughHost(engine, device)


class ThroughHost:
    """Exchange of GPU arrays through page-locked memory of the host.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._engine, self._device = engine, device
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        #: Memory for sent and for received messages.
        self._out, self._into = _Landing(), _Landing()
        self._event: Any = None

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
        beside: Beside | None = None,
    ) -> list[GpuArray | None]:
        """Send an array to each rank: see `GpuEngine`.

        Waits for the stream of `beside` (the default stream) only.
        """
        own, (stream, make) = self._engine.rank, beside or Beside(0, self._make)
        leaving = [array if r != own else None for r, array in enumerate(arrays)]
        out, aside = self._out.parts(list(map(bytes_of, leaving))), self._driver.streams
        for array, landed in zip(leaving, out, strict=True):
            if landed.size:
                address = int(landed.ctypes.data)
                aside.start_read(address, address_of(array), landed.size, stream)
        self._wait(aside, stream)  # and for the writes of the last call
        coming = [size if rank != own else 0 for rank, size in enumerate(sizes)]
        into = self._into.parts(coming)

        def write(rank: int, message: Bytes) -> None:
            message[:] = out[rank]

        def read(rank: int, message: Bytes) -> None:
            into[rank][:] = message

        counts = [landed.size for landed in out]
        self._engine.hand_bytes(counts, write, read, about=about)
        made = [make(size) if size else None for size in coming]
        for array, landed in zip(made, into, strict=True):
            if array is not None:
                address = int(landed.ctypes.data)
                aside.start_write(address_of(array), address, landed.size, stream)
        made[own] = arrays[own]
        return made

    def _make(self, size: int) -> GpuArray:
        return self._device.empty((size,), "uint8")

    def _wait(self, aside: Any, stream: int) -> None:
        """Wait on the host for a stream."""
        if self._event is None:
            self._event = aside.make_event()
        aside.mark(self._event, stream)
        aside.wait(self._event)


class _Landing:
    """Page-locked memory that grows."""

    def __init__(self) -> None:
        # The dialect makes no empty array.
        self._memory: Bytes = cuda.pinned_array(1, np.uint8)

    def parts(self, sizes: Sequence[int]) -> list[Bytes]:
        """Return memory for messages of these sizes, in bytes, aligned to 16 bytes."""
        ends = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
        if self._memory.size < ends[-1]:
            self._memory = cuda.pinned_array(ends[-1], np.uint8)
        begins = [0, *ends[:-1]]
        return [
            self._memory[begin : begin + size]
            for begin, size in zip(begins, sizes, strict=True)
        ]

"""Arrays of a GPU over an engine that knows of the host's only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cuda import cuda
from featgraph._cuda_driver import address_of, uuid_of_current
from featgraph.config import config
from featgraph.distributed.engines.protocol import (
    Engine,
    GpuArray,
    GpuEngine,
    bytes_of,
)
from featgraph.runtime.devices.protocol import Device

__all__ = ["ThroughHost", "courier_of"]


def courier_of(engine: Engine, device: Device) -> GpuEngine | ThroughHost:
    """Return what hands arrays of GPUs to other ranks; all ranks call it."""
    may_reach = isinstance(engine, GpuEngine) and config.gpu_links != "host"

    def make(size: int) -> GpuArray:
        return device.empty((size,), "uint8")

    if may_reach and engine.reach_gpus(uuid_of_current(), make):  # type: ignore[attr-defined]
        return engine  # type: ignore[return-value]
    return ThroughHost(engine, device)


class ThroughHost:
    """Hands over messages of a GPU by way of page-locked memory of the host.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._engine, self._device = engine, device
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        # The dialect makes none without bytes.
        self._landing: npt.NDArray[np.uint8] = cuda.pinned_array(1, np.uint8)

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
    ) -> list[GpuArray | None]:
        """Hand an array to each rank: see `GpuEngine`."""
        counts = [bytes_of(array) for array in arrays]
        total = sum(counts)
        if self._landing.size < total:
            self._landing = cuda.pinned_array(total, np.uint8)
        at, messages = 0, []
        for array, count in zip(arrays, counts, strict=True):
            landed = self._landing[at : at + count]
            if array is not None:
                self._driver.read(int(landed.ctypes.data), address_of(array), count)
            messages.append(landed)
            at += count
        received = self._engine.all_to_allv(messages, about=about)
        return [self._device.upload(m) if m.size else None for m in received]

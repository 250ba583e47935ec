"""Where triangle kernels have what ranks hand over: on the host, or copied to a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.ranks.edge_ghosts import EdgeCarrier
from featgraph.ranks.triangles.arrays import BatchArrays, GpuBatchArrays
from featgraph.ranks.triangles.parts import Batch
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["GpuMemory", "HostMemory", "memory_of"]

Array = npt.NDArray[Any]


class HostMemory:
    """Kernels run on what ranks hand over."""

    def begin(self) -> None:
        """Do nothing: nothing is recorded."""

    def arrays(self, part: Mapping[str, Any], batch: Batch) -> Mapping[str, Any]:
        """Return the arrays of a part with those of a batch."""
        return BatchArrays(part, batch)

    def state(self, state: Any, carrier: EdgeCarrier) -> Array | None:
        """Return what became of edges, those of other ranks, too; None without any.

        Later phases ask what own edges did, so what is given is left as it is.
        """
        if state is None:
            return None
        copied: Array = state.copy()
        carrier.share([copied], carrier.all(), [None])
        return copied

    def plain(self, array: Any) -> Array:
        """Return an array, of rows without padding, on the host."""
        return array  # type: ignore[no-any-return]

    def values(self, buffers: Buffers, name: str, array: Any) -> Array:
        """Return a buffer of a property on the host."""
        return array  # type: ignore[no-any-return]

    def put(self, array: Array) -> Any:
        """Return an array of the host where kernels are given it."""
        return array

    def back(self, there: Any, array: Array) -> Array:
        """Return what kernels have left of an array that was put there."""
        return array

    def store(self, values: Array, there: Any) -> None:
        """Store values of a property in the buffer that they are of."""


class GpuMemory(HostMemory):
    """The host hands over copies of what is on a GPU.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def begin(self) -> None:
        """Note that the host takes part, which no recording can do again."""
        # The dialect is imported where there is a GPU.
        from featgraph.runtime.recording.cuda_trace import OPAQUE

        self._device.driver.note(*OPAQUE)  # type: ignore[attr-defined]

    def arrays(self, part: Mapping[str, Any], batch: Batch) -> Mapping[str, Any]:
        """Return the arrays of a part with those of a batch, there."""
        return GpuBatchArrays(part, batch, self._device)

    def state(self, state: Any, carrier: EdgeCarrier) -> Array | None:
        """Return a copy of what became of edges, which ranks hand over there."""
        if state is None:
            return None
        copied = self.put(self.plain(state))
        held = self._device.rows.held(copied, tuple(copied.shape))
        carrier.share([held], carrier.all(), [None])
        return self.plain(copied)

    def plain(self, array: Any) -> Array:
        """Return a copy on the host."""
        return self._device.download(array)

    def values(self, buffers: Buffers, name: str, array: Any) -> Array:
        """Return a copy of a buffer, without its padding."""
        held: Any = buffers.held(name, array)
        return self._device.rows.download(held.array, held.shape)

    def put(self, array: Array) -> Any:
        """Return a copy there, rows padded as kernels have them."""
        return self._device.rows.upload(array)

    def back(self, there: Any, array: Array) -> Array:
        """Return a copy of what kernels have left."""
        return self._device.rows.download(there, array.shape)

    def store(self, values: Array, there: Any) -> None:
        """Copy values into the buffer."""
        self._device.rows.upload(np.ascontiguousarray(values), there)


def memory_of(device: Device) -> HostMemory:
    """Return the memory of a device."""
    return HostMemory() if device.name == "cpu" else GpuMemory(device)

"""What is done with arrays of edges where kernels have them: on the host, or a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.runtime.devices.protocol import Device

__all__ = ["GpuMemory", "HostMemory", "memory_of"]

Array = Any


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

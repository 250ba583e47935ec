"""How many bytes kernels have stored in the windows of other ranks (0077)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.ranks.gpu import window_kernels as kernels
from featgraph.runtime.devices.protocol import Device

__all__ = ["StoredBytes"]

#: What is counted apart, in the order in which kernels number it.
_NAMES = ("all", "ms", "vr", "vr-list", "numbers")


class StoredBytes:
    """Bytes by form and rank, counted on the device by the kernels that store them.

    So supersteps that are replayed, or run in a loop of the device, are counted, and
    nothing waits for that. Flags are not counted.

    Parameters
    ----------
    device : CudaDevice
    ranks : int

    Attributes
    ----------
    places : array of int64
        See `window_kernels`.
    """

    def __init__(self, device: Device, ranks: int) -> None:
        self._device, self._ranks = device, ranks
        shape = len(_NAMES), kernels.STRIPES, ranks
        self.places: Any = device.upload(np.zeros(np.prod(shape), np.int64))

    def read(self, rank: int) -> dict[str, npt.NDArray[np.int64]]:
        """Return the bytes for each rank, by form, from the beginning.

        What a rank stores in its own window counts for nothing. This waits for the GPU.

        Parameters
        ----------
        rank : int
            Of those who stored them.
        """
        places = self._device.download(self.places)
        found = places.reshape(len(_NAMES), kernels.STRIPES, self._ranks).sum(axis=1)
        found[:, rank] = 0
        return dict(zip(_NAMES, found, strict=True))

"""The batches of a part on a device: arrays that kernels take, and ways to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from featgraph.ranks.edge_ghosts import EdgeCarrier
from featgraph.ranks.lists import Lists
from featgraph.ranks.triangles.arrays import BatchArrays
from featgraph.ranks.triangles.parts import Batch, TrianglePart
from featgraph.runtime.devices.protocol import Device

__all__ = ["BatchHere", "TrianglesHere"]

#: Returns what hands over entries of some lists, and whether it is to stay.
Over = Callable[[Lists, bool], EdgeCarrier]


class BatchHere:
    """A batch on a device; it goes with the part, or the superstep.

    Parameters
    ----------
    batch : Batch
    over : callable
        Makes what hands over entries; all ranks call it.
    device : Device

    Attributes
    ----------
    carrier : EdgeCarrier
        Of edges of the part, and of the batch.
    """

    def __init__(self, batch: Batch, over: Over, device: Device) -> None:
        self.batch, self._device = batch, device
        self.carrier = over(batch.lists, batch.stays)
        self._arrays: dict[bool, BatchArrays] = {}
        #: What never changes: the same of all entries that this rank has.
        self.constants: dict[str, Any] = {}

    def arrays(self, part: Mapping[str, Any], sweeps_rows: bool) -> BatchArrays:
        """Return the arrays that kernels take, of those of the part."""
        found = self._arrays.get(sweeps_rows)
        if found is None or found.part is not part:
            found = BatchArrays(part, self.batch, self._device, sweeps_rows)
            self._arrays[sweeps_rows] = found
        return found


class TrianglesHere:
    """The batches of a part on a device.

    Parameters
    ----------
    part : TrianglePart
    edges : EdgeCarrier
        What hands over entries of the part's edges.
    over : callable
        Makes what hands over entries; all ranks call it.
    device : Device

    Attributes
    ----------
    part : TrianglePart
    edges : EdgeCarrier
    vertices : EdgeCarrier
        What hands over rows of vertices likewise.
    """

    def __init__(
        self, part: TrianglePart, edges: EdgeCarrier, over: Over, device: Device
    ) -> None:
        self.part, self.edges = part, edges
        self._over, self._device = over, device
        self.vertices = over(part.vertices, True)
        self._kept: dict[int, BatchHere] = {}

    def batch(self, number: int) -> BatchHere:
        """Return a batch; all ranks call it."""
        found = self._kept.get(number)
        if found is None:
            batch = self.part.batch(number)
            found = BatchHere(batch, self._over, self._device)
            if batch.stays:
                self._kept[number] = found
        return found

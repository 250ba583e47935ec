"""The batches of a part on a device: their arrays for kernels, and their exchanges.

Triangle kernels take the arrays of a part, with the oriented rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.fold.plan.traits import LONG_ROW
from featgraph.ranks.exchange.edge_ghosts import EdgeCarrier
from featgraph.ranks.exchange.lists import Lists
from featgraph.ranks.exchange.members import packed
from featgraph.ranks.exchange.triangle_parts import Batch, BatchRows, TrianglePart
from featgraph.runtime.devices.host_arrays import (
    edge_chunks,
    oriented_array,
    row_chunks,
)
from featgraph.runtime.devices.protocol import Device

__all__ = ["BatchHere", "TrianglesHere"]

#: ``over(lists, stays)`` returns the exchange of the entries of some lists.
Over = Callable[[Lists, bool], EdgeCarrier]


class BatchHere:
    """A batch on a device; kept with the part, or for one superstep.

    Parameters
    ----------
    batch : Batch
    over : callable
        Makes exchanges of entries; all ranks call it.
    device : Device

    Attributes
    ----------
    carrier : EdgeCarrier
        The exchange of entries of the part's edges and the batch's.
    """

    def __init__(self, batch: Batch, over: Over, device: Device) -> None:
        self.batch, self._device = batch, device
        self.carrier = over(batch.lists, batch.stays)
        self._arrays: dict[bool, BatchArrays] = {}
        #: Constant edge arrays, for all entries that this rank has.
        self.constants: dict[str, Any] = {}

    def arrays(self, part: Mapping[str, Any], sweeps_rows: bool) -> BatchArrays:
        """Return the arrays for kernels, based on those of the part."""
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
        The exchange of entries of the part's edges.
    over : callable
        Makes exchanges of entries; all ranks call it.
    device : Device

    Attributes
    ----------
    part : TrianglePart
    edges : EdgeCarrier
    vertices : EdgeCarrier
        The exchange of rows of vertices.
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


Array = npt.NDArray[Any]
#: Prefixes of the names of arrays that the batch replaces.
_OF_BATCH = frozenset({"upper", "lower", "both", "order", "degree", "triangle"})
_OF_EDGES = frozenset({"edge_twin", "in_sources", "edge_chunks"})


class BatchArrays(Mapping[str, Any]):
    """The arrays of a part, with oriented rows, ends and twins of a batch.

    Kernels of a GPU sweep all rows, so for them the order has each vertex twice: the
    first copies have the rows of own vertices, which are swept; the second copies have
    the rows of middle vertices, and all ends refer to them.

    Parameters
    ----------
    part : mapping
        The arrays of the graph on the device.
    batch : Batch
    device : Device
    sweeps_rows : bool
        Whether kernels sweep rows; else they sweep edges that passed.
    """

    def __init__(
        self, part: Mapping[str, Any], batch: Batch, device: Device, sweeps_rows: bool
    ) -> None:
        self.part, self._batch, self._device = part, batch, device
        self._is_doubled = sweeps_rows and device.name != "cpu"
        self._there: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name.partition("_")[0] not in _OF_BATCH and name not in _OF_EDGES:
            return self.part[name]
        if name not in self._there:
            made = np.ascontiguousarray(self._made(name))
            self._there[name] = self._device.upload(made)
        return self._there[name]

    def _made(self, name: str) -> Array:
        batch, rows = self._batch, self._batch.rows
        if self._is_doubled and name in self._doubled:
            return self._doubled[name]
        if name == "edge_twin":
            return batch.twins
        if name == "in_sources":
            return batch.sources
        if name == "edge_chunks":
            return edge_chunks(batch.lists.count)
        if name == "triangle_chunks":
            return row_chunks(rows.work)
        sets = {"triangle_begins": rows.is_own, "triangle_middles": rows.is_middle}
        if name in sets:
            return packed(sets[name][rows.degree_order])
        return oriented_array(rows, name)

    @cached_property
    def _doubled(self) -> dict[str, Array]:
        return _doubled(self._batch.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.part)

    def __len__(self) -> int:
        return len(self.part)


def _doubled(rows: BatchRows) -> dict[str, Array]:
    """Return, by name, the arrays of an order that has each vertex twice."""
    edges: Any = rows.upper.edge_ids
    places: Any = rows.lower.edge_ids
    offsets, count = rows.upper.row_offsets, rows.vertices.size
    sizes = np.diff(offsets)
    sizes = np.concatenate([sizes * rows.is_own, sizes * rows.is_middle])
    begins = np.concatenate([[0], np.cumsum(sizes)])
    first = np.concatenate([offsets[:-1], offsets[:-1]])
    slots = np.arange(begins[-1]) + np.repeat(first - begins[:-1], sizes)
    ends = rows.upper.column_indices
    below, low = rows.lower.row_offsets, rows.lower.column_indices
    long_rows = count + np.flatnonzero(sizes[count:] >= LONG_ROW)
    longest = long_rows[np.argsort(-sizes[long_rows], kind="stable")]
    return {
        "order_vertex": np.concatenate([rows.vertices, rows.vertices]),
        "upper_offsets": begins.astype(offsets.dtype),
        "upper_orders": (ends[slots] + count).astype(ends.dtype),
        "upper_edges": edges[slots],
        "upper_hubs": longest.astype(np.int32),
        "lower_offsets": np.concatenate([np.zeros(count, below.dtype), below]),
        "lower_orders": low,
        "lower_positions": (places - offsets[low] + begins[low]).astype(offsets.dtype),
    }

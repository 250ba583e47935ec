"""The arrays of a part for triangle kernels, with the oriented rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.fold.plan.traits import LONG_ROW
from featgraph.ranks.triangles.parts import Batch, BatchRows
from featgraph.runtime.devices.host_arrays import oriented_array, row_chunks
from featgraph.runtime.devices.protocol import Device

__all__ = ["BatchArrays", "GpuBatchArrays"]

Array = npt.NDArray[Any]
#: What names of arrays by degree order begin with.
_ORIENTED = frozenset({"upper", "lower", "order", "degree"})


class BatchArrays(Mapping[str, Any]):
    """The arrays of a part, but oriented rows and twins are those of a batch."""

    def __init__(self, part: Mapping[str, Any], batch: Batch) -> None:
        self._part, self._batch = part, batch

    def __getitem__(self, name: str) -> Any:
        if name == "edge_twin":
            return self._batch.twins
        if name == "triangle_chunks":
            return row_chunks(self._batch.rows.work)
        if name.partition("_")[0] in _ORIENTED:
            return oriented_array(self._batch.rows, name)
        return self._part[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._part)

    def __len__(self) -> int:
        return len(self._part)


class GpuBatchArrays(BatchArrays):
    """The same on a GPU, whose kernels sweep the rows in which triangles begin.

    These must be of own vertices, and rows in the middle those of the batch. So each
    vertex stands twice in the order: kernels sweep the first of both, which have the
    rows of own vertices; all ends are among the second, which have those of the middle.

    Parameters
    ----------
    part : mapping
        The arrays of the graph there.
    batch : Batch
    device : CudaDevice
    """

    def __init__(self, part: Mapping[str, Any], batch: Batch, device: Device) -> None:
        super().__init__(part, batch)
        self._device = device
        self._doubled = _doubled(batch.rows)
        self._there: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name.partition("_")[0] not in _ORIENTED and name != "edge_twin":
            return self._part[name]
        if name not in self._there:
            made = self._doubled.get(name)
            if made is None:
                made = super().__getitem__(name)
            self._there[name] = self._device.upload(np.ascontiguousarray(made))
        return self._there[name]


def _doubled(rows: BatchRows) -> dict[str, Array]:
    """Return arrays of an order in which each vertex stands twice, by their names."""
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

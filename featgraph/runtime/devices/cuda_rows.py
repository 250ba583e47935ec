"""Values of properties on the GPU, whose rows begin at whole loads of a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.padding import stored_shape
from featgraph.arrays.values import (
    DeviceValues,
    Entries,
    Filled,
    Reordered,
    name_of,
)
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.devices.cuda_arrays import BLOCK, CudaArrays, block_count
from featgraph.runtime.devices.protocol import Values
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["CudaRows"]

Array = Any
Shape = tuple[int, ...]
#: Blocks that copy rows.
_MOST_BLOCKS = 1 << 14


class CudaRows:
    """Values of properties in arrays of one device, whose rows may be padded.

    Padding begins as zeros, and kernels may store there; none of it reaches a result.
    """

    def __init__(self, arrays: CudaArrays) -> None:
        self._arrays = arrays

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Return an array for values of a shape, with any of them."""
        stored = stored_shape(shape, dtype)
        if stored == shape:
            return self._arrays.empty(shape, dtype)
        return self._arrays.working_memory(stored, dtype)

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array with some values, in the memory of one that is given up."""
        shape, dtype = tuple(values.shape), values.dtype
        stored = stored_shape(shape, dtype)
        if stored == shape:
            return self._arrays.upload(values, memory)
        if isinstance(values, Reordered):
            values = self._arrays.reordered(values)
        if isinstance(values, DeviceValues):
            return self._arrays.upload(DeviceValues(values.array), memory)
        if isinstance(values, Filled):
            apart = values.apart and _stored_apart(values.apart, shape[1], stored[1])
            return self._arrays.upload(Filled(values.value, stored, apart), memory)
        is_alike = memory is not None and (memory.shape, memory.dtype) == (
            stored,
            dtype,
        )
        made = memory if is_alike else self.empty(shape, name_of(dtype))
        self._copy(self._arrays.upload(values), made, shape)
        return made

    def download(self, array: Array, shape: Shape) -> npt.NDArray[Any]:
        """Return values of a shape on the host; waits for the device."""
        if tuple(array.shape) == shape:
            return self._arrays.download(array)
        dense = self._arrays.empty(shape, name_of(array.dtype))
        self._copy(array, dense, shape)
        return self._arrays.download(dense)

    def held(self, array: Array, shape: Shape) -> DeviceValues:
        """Return an array with values of a shape, for who holds or lends them."""
        return DeviceValues(array, None if tuple(array.shape) == shape else shape[1])

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of which a mark is 1."""
        count = source.shape[0]
        if source.size == 0:
            return
        shape = count, source.size // count
        rows = (a if a.ndim == 2 else a.reshape(shape) for a in (source, target))
        blocks = min(block_count(count), _MOST_BLOCKS)
        self._arrays.launches(cuda_loops.copy_rows, blocks, BLOCK, (marks, *rows))

    def _copy(self, source: Array, target: Array, shape: Shape) -> None:
        """Copy the values; one of the arrays is gone when that is asked for again."""
        self._arrays.driver.note(*OPAQUE)
        blocks = min(block_count(shape[0] * shape[1]), _MOST_BLOCKS)
        given = source, target, shape[1]
        self._arrays.launches(cuda_loops.copy_features, blocks, BLOCK, given)


def _stored_apart(entries: Entries, width: int, stride: int) -> Entries:
    """Return entries at their places in padded rows."""
    rows, features = np.divmod(entries.places, width)
    return Entries(rows * stride + features, entries.values)

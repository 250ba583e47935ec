"""Page-locked memory of the host, which kernels of a GPU read and write in place."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceMemoryError
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of

__all__ = ["PinnedArray", "array_at", "pinned_of"]

Array = Any


def array_at(
    address: int, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: Any
) -> Array:
    """Return an array of the dialect over memory that somebody else has."""
    described = {
        "data": (address, False),
        "shape": shape,
        "strides": None,
        "typestr": np.dtype(dtype).str,
        "version": 3,
    }
    return cuda.from_cuda_array_interface(described, owner=owner)


def pinned_of(array: Array) -> PinnedArray | None:
    """Return the memory of the host that an array is; None for those of a GPU."""
    return getattr(array, "pinned", None)


class PinnedArray:
    """An array in page-locked memory.

    The host writes it only while the GPU does nothing: see `Placement`.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Attributes
    ----------
    address : int
        Of its memory, for the host and the GPU.
    version : int
        How often kernels may have written it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        #: Bytes of a row; the array has one more, which lanes without an edge may read.
        self.row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        self.byte_count = self.row_bytes * shape[0]
        whole = self.byte_count + max(self.row_bytes, 1)
        try:
            self._memory = cuda.mapped_array((whole,), np.uint8)
        except Exception as error:
            if "MEMORY" not in str(error).upper():
                raise
            raise DeviceMemoryError(
                "the host has not enough memory that can be page-locked",
                got=f"{whole / 1e9:.2f} GB for edges that do not fit the GPU",
                fix="raise the limit of locked memory (ulimit -l), or use ranks",
            ) from error
        self._memory[self.byte_count :] = np.zeros(whole - self.byte_count, np.uint8)
        self.address = address_of(self._memory)
        self.version = 0
        self._rows: dict[tuple[int, int], Array] = {}

    def whole(self) -> Array:
        """Return it as kernels get it; `pinned_of` finds this by what it returns."""
        made = array_at(self.address, self.shape, self.dtype, self._memory)
        made.pinned = self
        return made

    def rows(self, begin: int, end: int) -> Array:
        """Return some rows as kernels get them; of none, there is one all the same."""
        found = self._rows.get((begin, end))
        if found is None:
            shape = (max(end - begin, 1), *self.shape[1:])
            place = self.address + begin * self.row_bytes
            found = array_at(place, shape, self.dtype, self._memory)
            self._rows[begin, end] = found
        return found

    @property
    def host(self) -> npt.NDArray[Any]:
        """The array, as the host has it."""
        raw: Any = (ctypes.c_uint8 * self.byte_count).from_address(self.address)
        raw.owner = self._memory
        return np.ndarray(self.shape, self.dtype, raw)

    def put(self, values: npt.NDArray[Any]) -> None:
        """Overwrite it."""
        given = np.ascontiguousarray(values, self.dtype)
        self._memory[: self.byte_count] = given.reshape(-1).view(np.uint8)

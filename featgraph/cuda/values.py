"""Values that are on the GPU or not allocated yet, and helpers for rows of arrays.

Three classes stand for arrays: `Filled` for a constant with few exceptions, `Reordered`
for rows of a host array in another order, and `DeviceValues` for an array on the GPU.
`host_values` makes a host array of each. Importing this module loads neither the
dialect nor Numba.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass

__all__ = [
    "DLPACK_CUDA",
    "DeviceValues",
    "Entries",
    "Filled",
    "LostValue",
    "Reordered",
    "Rows",
    "host_values",
    "in_pieces",
    "is_on_gpu",
    "name_of",
    "offset_dtype",
    "present_bytes",
    "taken",
]

#: Fewest bytes that several threads copy, and most of these threads.
_FEW_BYTES, _MOST_THREADS = 1 << 20, 8
#: The DLPack device type of CUDA.
DLPACK_CUDA = 2


class LostValue(Exception):
    """A value that a storage dtype cannot represent, with its index in the array."""

    def __init__(self, index: int, value: Any) -> None:
        super().__init__(index, value)
        self.index, self.value = index, value


@dataclass(eq=False)
class Entries:
    """Single entries of an array, by index.

    Attributes
    ----------
    places : ndarray of int64, shape (N,)
        Distinct indices in C order.
    values : ndarray of shape (N,)
    """

    places: npt.NDArray[np.int64]
    values: npt.NDArray[Any]


@dataclass(eq=False)
class Filled:
    """An array of one value, except for a few entries; not yet allocated.

    Attributes
    ----------
    value : numpy scalar
    shape : tuple of int
    apart : Entries or None
        The entries with other values, of the same dtype.
    """

    value: Any
    shape: tuple[int, ...]
    apart: Entries | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the value."""
        return self.value.dtype  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * int(self.value.dtype.itemsize)


@dataclass(eq=False)
class DeviceValues:
    """An array on the GPU, possibly with padded rows.

    Attributes
    ----------
    array : array
        The array on the GPU, in C order; owned by this object.
    width : int or None
        K, if rows of the array are padded (`base.padding.stored_shape`); else None.
    """

    array: Any
    width: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        shape = tuple(self.array.shape)
        return shape if self.width is None else (shape[0], self.width)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self.array.dtype  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Rows:
    """An order of rows: for each row of an array, the index of the source row.

    Indices count modulo the number of source rows.

    Attributes
    ----------
    of : object
        The owner of the order; a copy of the order on the GPU is cached while it lives.
    count : int
        Number of rows.
    on_host : callable
        Returns the order, an ndarray of integers.
    on_gpu : callable or None
        Returns the order on the GPU. None: the host's order is uploaded.
    """

    of: Any
    count: int
    on_host: Callable[[], npt.NDArray[Any]]
    on_gpu: Callable[[], Any] | None = None


@dataclass(eq=False)
class Reordered:
    """Rows of a host array in another order; not yet copied.

    Attributes
    ----------
    array : ndarray
        The source, in C order, of a storage dtype; read-only.
    rows : Rows
        The order of rows.
    is_shared : bool
        Whether the array is constant and belongs to the owner of the order, so that all
        States share one copy on a device.
    """

    array: npt.NDArray[Any]
    rows: Rows
    is_shared: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the reordered array."""
        return self.rows.count, *self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self.array.dtype

    def on_host(self) -> npt.NDArray[Any]:
        """Return the rows in their order, in a new array."""
        return taken(self.array, self.rows.on_host())

    def sample(self, most: int) -> npt.NDArray[Any]:
        """Return up to `most` rows, evenly spaced in the source."""
        return self.array[:: len(self.array) // most + 1]


def in_pieces(count: int, size: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(first, last)`` for ranges of rows, on threads if `size` is large.

    Parameters
    ----------
    count : int
        Number of rows.
    size : int
        Approximate number of bytes that `work` copies in all.
    work : callable
        A function that releases the GIL most of the time.
    """
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    if size < _FEW_BYTES or threads == 1:
        work(0, count)
        return
    step = -(-count // (4 * threads))
    with ThreadPoolExecutor(threads, "featgraph-rows") as pool:
        ranges = [(first, min(first + step, count)) for first in range(0, count, step)]
        for done in [pool.submit(work, *each) for each in ranges]:
            done.result()


def taken(array: npt.NDArray[Any], order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``array[order % len(array)]``, on several threads if it is large."""
    made = np.empty((len(order), *array.shape[1:]), array.dtype)

    def take(first: int, last: int) -> None:
        part = made[first:last]
        np.take(array, order[first:last], axis=0, out=part, mode="wrap")

    if len(array):
        in_pieces(len(order), made.nbytes, take)
    return made


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype; cached, since NumPy computes it each time."""
    return dtype.name


def offset_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the dtype for offsets into, or ids of, `count` items.

    int64 from ``2**31 - 1`` on, since a generated loop may step past the last offset.
    """
    return np.int32 if count < 2**31 - 1 else np.int64


def host_values(values: Any) -> npt.NDArray[Any]:
    """Return values as a host array; a host array is returned unchanged."""
    if isinstance(values, Filled):
        made = np.full(values.shape, values.value, values.dtype)
        if values.apart is not None:
            made.ravel()[values.apart.places] = values.apart.values
        return made
    if isinstance(values, Reordered):
        return values.on_host()
    if isinstance(values, DeviceValues):
        from featgraph.cuda.download import read  # imports the dialect

        return read(values.array, values.width)
    return values  # type: ignore[no-any-return]


def is_on_gpu(values: Any) -> bool:
    """Whether a caller's array is in the memory of a GPU, by its interfaces."""
    if isinstance(values, np.ndarray | list | tuple | int | float):
        return False
    try:
        if hasattr(values, "__cuda_array_interface__"):
            return True
        device = getattr(values, "__dlpack_device__", None)
        return callable(device) and int(device()[0]) == DLPACK_CUDA
    except (RuntimeError, TypeError):  # a PyTorch tensor that cannot be exported
        return bool(getattr(values, "is_cuda", False))


@functools.cache
def present_bytes() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

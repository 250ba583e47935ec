"""Values that are not in an array of the host, or not yet."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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

#: Fewer bytes are moved by one thread; and threads that move more, at most.
_FEW_BYTES, _MOST_THREADS = 1 << 20, 8
#: The kind of a device, as the DLPack protocol numbers it.
DLPACK_CUDA = 2


class LostValue(Exception):
    """A value that a storage type cannot hold: its index in the array, and itself."""

    def __init__(self, index: int, value: Any) -> None:
        super().__init__(index, value)
        self.index, self.value = index, value


@dataclass(eq=False)
class Entries:
    """Some entries of an array.

    Attributes
    ----------
    places : ndarray of int64, shape (N,)
        Where they are in C order; none comes twice.
    values : ndarray of shape (N,)
    """

    places: npt.NDArray[np.int64]
    values: npt.NDArray[Any]


@dataclass(eq=False)
class Filled:
    """One value everywhere, a few entries apart: an array that whoever needs it makes.

    Attributes
    ----------
    value : numpy scalar
    shape : tuple of int
    apart : Entries or None
        Entries with other values, of the same type.
    """

    value: Any
    shape: tuple[int, ...]
    apart: Entries | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the value."""
        return self.value.dtype  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """How many bytes the array would have."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(eq=False)
class DeviceValues:
    """An array on the GPU that belongs to its holder, as kernels read it.

    Attributes
    ----------
    array : array of the dialect
        In C order.
    width : int or None
        K, where rows of the array are longer (`stored_shape`).
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
    """Which row of an array each row of another one is, modulo the rows of that.

    Attributes
    ----------
    of : object
        Whoever has these numbers; while it lives, they stay on the GPU.
    count : int
        How many there are.
    on_host : callable
        Returns them, an array of integers.
    on_gpu : callable or None
        Returns them on the GPU, an array of the dialect; None: they are uploaded.
    """

    of: Any
    count: int
    on_host: Callable[[], npt.NDArray[Any]]
    on_gpu: Callable[[], Any] | None = None


@dataclass(eq=False)
class Reordered:
    """Rows of a host array in another order: an array that whoever needs it makes.

    Attributes
    ----------
    array : ndarray
        In C order, of a storage type; only read.
    rows : Rows
        Which of its rows each row is.
    is_shared : bool
        Whether the array belongs to whom the rows belong to, which never changes it: a
        device makes one for all States.
    """

    array: npt.NDArray[Any]
    rows: Rows
    is_shared: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that is made."""
        return self.rows.count, *self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self.array.dtype

    def on_host(self) -> npt.NDArray[Any]:
        """Return the rows in their order, in a new array."""
        return taken(self.array, self.rows.on_host())


def in_pieces(count: int, size: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(first, last)`` for ranges of rows, on several threads if it pays.

    Parameters
    ----------
    count : int
        How many rows there are.
    size : int
        About how many bytes are moved.
    work : callable
        Lets go of the interpreter for most of its time.
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
    """Return rows of an array by their numbers, modulo how many it has."""
    made = np.empty((len(order), *array.shape[1:]), array.dtype)

    def take(first: int, last: int) -> None:
        part = made[first:last]
        np.take(array, order[first:last], axis=0, out=part, mode="wrap")

    if len(array):
        in_pieces(len(order), made.nbytes, take)
    return made


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type, which NumPy makes up anew each time."""
    return dtype.name


def offset_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the width for offsets into, or ids of, `count` things.

    int64 from ``2**31 - 1`` on: a generated loop may step one past the last offset.
    """
    return np.int32 if count < 2**31 - 1 else np.int64


def host_values(values: Any) -> npt.NDArray[Any]:
    """Return values as an array of the host; a host array is returned itself."""
    if isinstance(values, Filled):
        made = np.full(values.shape, values.value, values.dtype)
        if values.apart is not None:
            made.ravel()[values.apart.places] = values.apart.values
        return made
    if isinstance(values, Reordered):
        return values.on_host()
    if isinstance(values, DeviceValues):
        from featgraph.arrays.landing import read  # imports the dialect

        return read(values.array, values.width)
    return values  # type: ignore[no-any-return]


def is_on_gpu(values: Any) -> bool:
    """Whether what a caller gives says that it lies in the memory of a GPU."""
    if isinstance(values, np.ndarray | list | tuple | int | float):
        return False
    try:
        if hasattr(values, "__cuda_array_interface__"):
            return True
        device = getattr(values, "__dlpack_device__", None)
        return callable(device) and int(device()[0]) == DLPACK_CUDA
    except (RuntimeError, TypeError):  # a PyTorch tensor that does not give itself away
        return bool(getattr(values, "is_cuda", False))


@functools.cache
def present_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Numbers that are to be combined with those of all ranks, on the device.

They wait until something is posted: an exchange carries all that is known by then.

Kernels count the bytes that they have stored in the windows of other ranks (0077).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph._cuda_driver import address_of
from featgraph.ranks.gpu import window_kernels as kernels
from featgraph.ranks.gpu.window_kernels import KINDS
from featgraph.runtime.devices.protocol import Device

__all__ = ["MOST_NUMBERS", "NumbersSent", "WindowNumbers"]

Array = Any
#: Bytes of a result that is combined on the device; larger ones go by the host.
MOST_NUMBERS = 1 << 16
#: Tables of arrays that are kept.
_MOST_TABLES = 64
#: In a slot, numbers stand at multiples of so many bytes.
_ALIGNMENT = 16
_OPERATORS = ("sum", "product", "min", "max")


class NumbersSent(NamedTuple):
    """Numbers of one exchange.

    Attributes
    ----------
    table : array of int64
        See `window_kernels`.
    arrays : int
        How many these are.
    room : int
        Bytes that they take of a slot.
    """

    table: Array
    arrays: int
    room: int


class WindowNumbers:
    """Arrays that wait to be combined with those of other ranks.

    Parameters
    ----------
    device : CudaDevice
    own : int
        How many vertices this rank owns, which come first where a set is counted.
    beside : WindowNumbers, optional
        Those of another channel of the rank, of which kernels tell the same host.

    Attributes
    ----------
    own : int64
    notes : array of int64
        What kernels tell the host: see `window_kernels`.
    total : array of int64
        Where a count is left: where the device leaves those of the thread at hand.
    """

    def __init__(
        self, device: Device, own: int = 0, beside: WindowNumbers | None = None
    ) -> None:
        self.own = np.int64(own)
        self.notes: Array = (
            device.upload(np.zeros(3, np.int64)) if beside is None else beside.notes
        )
        self._device, self._beside = device, beside
        self._stored: StoredBytes | None = None
        self._waiting: list[tuple[Array, int, int]] = []
        self._behind: list[Callable[[], None]] = []
        self._tables: OrderedDict[Any, NumbersSent] = OrderedDict()
        self._as_bytes: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def total(self) -> Array:
        """Where a count is left."""
        return self._device.own.total  # type: ignore[attr-defined]

    def stored(self, ranks: int) -> StoredBytes:
        """Return what is counted of the bytes that kernels store at other ranks."""
        if self._beside is not None:
            return self._beside.stored(ranks)
        if self._stored is None:
            self._stored = StoredBytes(self._device, ranks)
        return self._stored

    @property
    def any_wait(self) -> bool:
        """Whether any array waits."""
        return bool(self._waiting)

    def can_combine(self, array: Array, operator: str) -> bool:
        """Whether an array of one axis is combined here."""
        size = array.size * array.dtype.itemsize
        if array.dtype == np.bool_:
            return operator in {"or", "and"} and 0 < size <= MOST_NUMBERS
        is_known = operator in _OPERATORS and array.dtype.name in KINDS
        return is_known and 0 < size <= MOST_NUMBERS

    def add(
        self,
        array: Array,
        operator: str,
        count: int | None = None,
        behind: Callable[[], None] | None = None,
    ) -> None:
        """Have the first entries of an array combined in place; default all.

        What is launched `behind` that is asked for when they have been.
        """
        if behind is not None:
            self._behind.append(behind)
        if array.dtype == np.bool_:
            operator = {"or": "max", "and": "min"}[operator]
            flags = self._as_bytes.get(array)
            if flags is None:
                self._as_bytes[array] = flags = array.view(np.uint8)
            array = flags
        entries = int(array.size) if count is None else count
        self._waiting.append((array, entries, _OPERATORS.index(operator)))

    def forget(self) -> None:
        """Have no array wait."""
        self._waiting.clear()
        self._behind.clear()

    def take_behind(self) -> Sequence[Callable[[], None]]:
        """Return what is launched behind all that wait, once."""
        behind, self._behind = self._behind, []
        return behind

    def send(self, counts: bool) -> NumbersSent:
        """Return all that wait, behind `total` if it `counts`; none waits any more."""
        waiting = [(self.total, 1, 0)] * counts + self._waiting
        self._waiting = []
        key = tuple(
            (address_of(array), entries, array.dtype.name, operator)
            for array, entries, operator in waiting
        )
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = self._table(key)
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return known

    def _table(self, key: tuple[tuple[int, int, str, int], ...]) -> NumbersSent:
        rows, begin = [], 0
        for address, entries, dtype, operator in key:
            item = np.dtype(dtype).itemsize
            rows.append((address, entries, item, KINDS.index(dtype), operator, begin))
            begin += -(-entries * item // _ALIGNMENT) * _ALIGNMENT
        # Kernels take no array without entries.
        table = self._device.upload(np.array(rows or [(0,) * 6], np.int64))
        return NumbersSent(table, len(rows), begin)


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

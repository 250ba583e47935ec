"""Arrays combined over all ranks on the device, and counters of stored bytes.

Combines are deferred until the next post of their channel, which sends them all.
Kernels count the bytes that they have stored in the windows of other ranks (0077).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.cuda.driver import address_of
from featgraph.ranks.exchange import window_kernels as kernels
from featgraph.ranks.exchange.window_kernels import KINDS
from featgraph.runtime.devices.protocol import Device

__all__ = ["MOST_NUMBERS", "NumbersSent", "WindowNumbers"]

Array = Any
#: Most bytes of a result combined on the device; larger ones go through the host.
MOST_NUMBERS = 1 << 16
#: Most tables of arrays that are kept.
_MOST_TABLES = 64
#: Alignment of numbers in a slot, in bytes.
_ALIGNMENT = 16
_OPERATORS = ("sum", "product", "min", "max")


class NumbersSent(NamedTuple):
    """The numbers of one exchange.

    Attributes
    ----------
    table : array of int64
        See `window_kernels`.
    arrays : int
        Number of arrays.
    room : int
        Their bytes in a slot.
    """

    table: Array
    arrays: int
    room: int


class WindowNumbers:
    """Arrays whose combine over all ranks is deferred until the next post.

    Parameters
    ----------
    device : CudaDevice
    own : int
        Number of vertices that this rank owns, the first ones of a set.
    beside : WindowNumbers, optional
        Numbers of another channel of the rank, whose notes and counters are shared.

    Attributes
    ----------
    own : int64
    notes : array of int64
        Values that kernels set for the host: see `window_kernels`.
    total : array of int64
        The count of the device for the current thread.
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
        """The count of the device for the current thread: int64, on the GPU."""
        return self._device.own.total  # type: ignore[attr-defined]

    def stored(self, ranks: int) -> StoredBytes:
        """Return the counters of the bytes that kernels store at other ranks."""
        if self._beside is not None:
            return self._beside.stored(ranks)
        if self._stored is None:
            self._stored = StoredBytes(self._device, ranks)
        return self._stored

    @property
    def any_wait(self) -> bool:
        """Whether any combine is deferred."""
        return bool(self._waiting)

    def can_combine(self, array: Array, operator: str) -> bool:
        """Whether a one-dimensional array can be combined on the device."""
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
        """Defer the in-place combine of the first `count` entries; default all.

        `behind` is called after the exchange that combines them.
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
        """Drop all deferred combines."""
        self._waiting.clear()
        self._behind.clear()

    def take_behind(self) -> Sequence[Callable[[], None]]:
        """Return the calls to make after the deferred combines, and clear them."""
        behind, self._behind = self._behind, []
        return behind

    def send(self, counts: bool) -> NumbersSent:
        """Return the deferred numbers, after `total` with `counts`, and clear them."""
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
        # Kernels take no empty array.
        table = self._device.upload(np.array(rows or [(0,) * 6], np.int64))
        return NumbersSent(table, len(rows), begin)


#: Names of the forms, in the order in which kernels number them.
_NAMES = ("all", "ms", "vr", "vr-list", "numbers")


class StoredBytes:
    """Bytes by form and rank, counted on the device by the kernels that store them.

    This counts supersteps that are replayed or run in a loop on the device, without a
    wait of the host. Flags are not counted.

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
        """Return the bytes stored at each rank since the start, by form.

        Bytes in the rank's own window do not count. Waits for the GPU.

        Parameters
        ----------
        rank : int
            The storing rank.
        """
        places = self._device.download(self.places)
        found = places.reshape(len(_NAMES), kernels.STRIPES, self._ranks).sum(axis=1)
        found[:, rank] = 0
        return dict(zip(_NAMES, found, strict=True))

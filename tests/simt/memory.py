"""Arrays of the emulator: indices are checked, shared memory is watched for races."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.simt.lanes import Block, Lane, MemoryFault, RaceError, current_lane

__all__ = ["GuardedArray", "SharedRecord", "padded", "poisoned", "wrap_integer"]

Stamp = tuple[int, int, int]  # lane, barriers and warp barriers passed


def wrap_integer(value: Any, dtype: np.dtype[Any]) -> int:
    """Cast to an integer type as the hardware does.

    Parameters
    ----------
    value : int or float
        Integers wrap around; floats are cut off and saturate, NaN gives 0.
    dtype : numpy.dtype
        An integer type.

    Returns
    -------
    int
        The value.
    """
    least, most = LIMITS[dtype.char]
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return most if value > 0 else least
        return min(max(int(value), least), most)
    return (int(value) - least) % (most - least + 1) + least


def _limits(code: str) -> tuple[int, int]:
    limits = np.iinfo(code)
    return int(limits.min), int(limits.max)


#: The least and the largest number of each integer type, by its code.
LIMITS = {code: _limits(code) for code in np.typecodes["AllInteger"]}


def poisoned(shape: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Make an array of memory that has not been written."""
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "b":
        return np.full(shape, True, dtype)
    return np.full(shape, np.iinfo(dtype).max - 77, dtype)


def padded(values: np.ndarray[Any, Any], stride: int) -> np.ndarray[Any, Any]:
    """Return rows so far apart, with what was never written between them."""
    made = poisoned((len(values), stride), values.dtype)
    made[:, : values.shape[1]] = values
    return made


class SharedRecord:
    """Which lanes touched which entry of a block's shared memory, and when."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._writers: dict[int, Stamp] = {}
        self._readers: dict[int, dict[int, Stamp]] = {}
        self._updaters: dict[int, dict[int, Stamp]] = {}

    def _stamp(self, lane: Lane) -> Stamp:
        block = self._block
        return lane.number, block.barriers, block.warp_barriers[lane.warp]

    def _check(self, earlier: Stamp, lane: Lane, what: str) -> None:
        number, barriers, warp_barriers = earlier
        if number == lane.number or self._block.barriers > barriers:
            return
        same_warp = self._block.lanes[number].warp == lane.warp
        if same_warp and self._block.warp_barriers[lane.warp] > warp_barriers:
            return
        raise RaceError(
            f"threads {number} and {lane.number} {what} an entry of shared memory "
            "with no barrier between"
        )

    def read(self, address: int) -> None:
        """Record a read by the current lane."""
        lane = current_lane()
        if address in self._writers:
            self._check(self._writers[address], lane, "wrote and read")
        for earlier in self._updaters.get(address, {}).values():
            self._check(earlier, lane, "updated and read")
        self._readers.setdefault(address, {})[lane.number] = self._stamp(lane)

    def write(self, address: int) -> None:
        """Record a write by the current lane."""
        lane = current_lane()
        if address in self._writers:
            self._check(self._writers[address], lane, "both wrote")
        for earlier in self._readers.pop(address, {}).values():
            self._check(earlier, lane, "read and wrote")
        for earlier in self._updaters.pop(address, {}).values():
            self._check(earlier, lane, "updated and wrote")
        self._writers[address] = self._stamp(lane)

    def update(self, address: int) -> None:
        """Record an atomic update by the current lane; such do not race each other."""
        lane = current_lane()
        if address in self._writers:
            self._check(self._writers[address], lane, "wrote and updated")
        for earlier in self._readers.get(address, {}).values():
            self._check(earlier, lane, "read and updated")
        self._updaters.setdefault(address, {})[lane.number] = self._stamp(lane)


class GuardedArray:
    """An array as a kernel sees it.

    Parameters
    ----------
    data : numpy.ndarray
        The memory; shared, not copied.
    record : SharedRecord, optional
        For shared memory.
    """

    def __init__(
        self, data: np.ndarray[Any, Any], record: SharedRecord | None = None
    ) -> None:
        self._data = data
        self._record = record
        self._address = data.__array_interface__["data"][0]
        self.shape = data.shape
        self.ndim = data.ndim
        self.size = data.size
        self.dtype = data.dtype
        self.strides = data.strides
        # Of one dimension, which most have; what has others has no entry at an integer.
        is_flat = self.ndim == 1
        self._length, self._step = (len(data), data.strides[0]) if is_flat else (0, 0)
        #: Integers without a width: Numba computes in 64 bits, not in the array's type.
        self._is_whole = data.dtype.kind in "iub"

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def view(self, dtype: Any) -> GuardedArray:
        """Return the same memory as another type."""
        # The dialect's types have a name, NumPy's classes are accepted as they are.
        name = getattr(dtype, "name", dtype)
        return GuardedArray(self._data.view(np.dtype(name)), self._record)

    def _checked(self, index: Any) -> tuple[Any, ...]:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > self.ndim:
            raise MemoryFault(f"{len(indices)} indices into {self.ndim} dimensions")
        checked: list[Any] = []
        for each, bound in zip(indices, self.shape, strict=False):
            if isinstance(each, slice):
                ends = [end for end in (each.start, each.stop) if end is not None]
                if not all(0 <= operator.index(end) <= bound for end in ends):
                    raise MemoryFault(f"slice {each} is out of range for {bound}")
                checked.append(each)
                continue
            if isinstance(each, bool | float | np.floating):
                raise MemoryFault(f"index {each!r} is no integer")
            if not 0 <= each < bound:
                raise MemoryFault(f"index {each} is out of range for {bound}")
            checked.append(operator.index(each))
        return tuple(checked)

    def _is_element(self, index: tuple[Any, ...]) -> bool:
        return len(index) == self.ndim and not any(
            isinstance(each, slice) for each in index
        )

    def _address_of(self, index: tuple[Any, ...]) -> int:
        offsets = (at * step for at, step in zip(index, self.strides, strict=True))
        return int(self._address + sum(offsets))

    def _entry_at(self, index: Any) -> int | None:
        """Return the address of an entry; None where `_checked` must look at the index.

        Most are plain integers.
        """
        if type(index) is int:
            if 0 <= index < self._length:
                entry: int = self._address + index * self._step
                return entry
            return None
        if type(index) is not tuple or len(index) != self.ndim:
            return None
        address: int = self._address
        for at, bound, step in zip(index, self.shape, self.strides, strict=True):
            if type(at) is not int or not 0 <= at < bound:
                return None
            address += at * step
        return address

    def peek(self, index: Any) -> Any:
        """Read an entry without recording it: atomics."""
        if self._entry_at(index) is None:
            index = self._checked(index)
        return self._data.item(index) if self._is_whole else self._data[index]

    def poke(self, index: Any, value: Any) -> None:
        """Write an entry without recording it: atomics."""
        if self._entry_at(index) is None:
            index = self._checked(index)
        if self.dtype.kind in "iu":
            value = wrap_integer(value, self.dtype)
        self._data[index] = value

    def touch(self, index: Any) -> None:
        """Record an atomic update of an entry."""
        if self._record is not None:
            self._record.update(self._address_of(self._checked(index)))

    def __getitem__(self, index: Any) -> Any:
        address = self._entry_at(index)
        if address is None:
            index = self._checked(index)
            if not self._is_element(index):
                return GuardedArray(self._data[index], self._record)
            address = self._address_of(index)
        if self._record is not None:
            self._record.read(address)
        return self._data.item(index) if self._is_whole else self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        address = self._entry_at(index)
        if address is None:
            index = self._checked(index)
            if not self._is_element(index):
                part = self[index]
                for position in np.ndindex(part.shape):
                    is_array = isinstance(value, GuardedArray)
                    part[position] = value[position] if is_array else value
                return
            address = self._address_of(index)
        if self._record is not None:
            self._record.write(address)
        if self.dtype.kind in "iu":
            value = wrap_integer(value, self.dtype)
        self._data[index] = value

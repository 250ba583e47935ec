"""Arrays of other libraries on the GPU: views, checked copies, and the reverse."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import StateError
from featgraph.base.interrupts import import_whole
from featgraph.base.padding import stored_shape
from featgraph.cuda import arrays, dialect, elements
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of, device_of
from featgraph.cuda.memory import Strided, lend
from featgraph.cuda.values import (
    DLPACK_CUDA,
    DeviceValues,
    LostValue,
    Rows,
    name_of,
)

__all__ = [
    "Foreign",
    "as_numbers",
    "copied_to_host",
    "described",
    "dlpack_capsule",
    "dlpack_device",
    "finish",
    "flat",
    "foreign_array",
    "lent",
    "reshaped",
    "strided",
    "three_axes",
]

#: The default stream, as the DLPack protocol numbers it.
_DEFAULT_STREAM = 1


@dataclass(frozen=True, eq=False)
class Foreign:
    """A read-only array of another library on the GPU.

    Attributes
    ----------
    array : Strided, or array of the dialect
        A view of its memory with its strides.
    """

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.array.dtype  # type: ignore[no-any-return]

    def copied(self, dtype: np.dtype[Any], rows: Rows | None = None) -> DeviceValues:
        """Return a copy on the GPU in a storage dtype.

        Asynchronous: the source must not be written before `finish` returns.

        Parameters
        ----------
        dtype : numpy.dtype
        rows : Rows, optional
            The row of this array for each row of the copy. Default: unchanged.

        Raises
        ------
        LostValue
            If the dtype cannot hold a value.
        DeviceMemoryError
            If the GPU has not enough memory.
        """
        shape = (self.shape[0] if rows is None else rows.count, *self.shape[1:])
        made = arrays.empty(stored_shape(shape, dtype), dtype)
        as_it_is = rows is None and dtype == self.dtype and made.shape == shape
        if as_it_is and self.array.is_c_contiguous():
            arrays.copy(made, self.array)
        else:
            self._place(made, rows)
        return DeviceValues(made, None if made.shape == shape else shape[1])

    def cast(self, dtype: np.dtype[Any], *, is_checked: bool = False) -> Any:
        """Return a GPU array of the values converted to a dtype, rounded.

        Raises
        ------
        LostValue
            If `is_checked`, and the dtype cannot hold a value.
        """
        made = arrays.empty(self.shape, dtype)
        self._place(made, None, is_checked)
        return made

    def _place(self, made: Any, rows: Rows | None, is_checked: bool = True) -> None:
        source, target = as_numbers(self.array), as_numbers(made)
        check, low, high = elements.ANY, 0, 0
        if is_checked:
            check, low, high = _limits(self.dtype, made.dtype)
        low, high = (np.dtype(source.dtype).type(limit) for limit in (low, high))
        lost = arrays.place_found()
        order = lost if rows is None else _order(rows)
        arrays.launch_over(
            elements.place_rows, made.size, three_axes(source), order,
            rows is not None, check, low, high, flat(target),
            math.prod(made.shape[1:]), lost,
        )  # fmt: skip
        if check == elements.ANY:
            return
        index = arrays.read_found()
        if index != elements.NONE_LOST:
            raise LostValue(index, _element(self.array, index))


def finish() -> None:
    """Wait for all copies of callers' arrays, which may be written afterwards."""
    arrays.synchronize()


#: Owner of a row order -> the order on the GPU.
_orders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _order(rows: Rows) -> Any:
    if rows.on_gpu is not None:
        return rows.on_gpu()
    found = _orders.get(rows.of)
    if found is None:
        _orders[rows.of] = found = arrays.upload(rows.on_host())
    return found


def foreign_array(values: Any, where: str) -> Foreign | None:
    """Return a view of an array on the GPU; None for everything else.

    None also for scalars, empty arrays, dtypes and shapes that kernels cannot read, and
    if there is no GPU: these are left to the host.

    Raises
    ------
    StateError
        If it is on another GPU, or its library does not export it.
    """
    try:
        made = _view(values)
    except Exception as error:  # whatever a foreign property or __dlpack__ raises
        raise StateError(
            "the array on the GPU cannot be read",
            where=where,
            got=f"{type(values).__name__}: {error}",
            expected="__cuda_array_interface__ without a mask, or __dlpack__",
            fix="give a plain array (a PyTorch tensor with gradient: .detach())",
        ) from error
    if made is None or made.size == 0 or not made.shape:
        return None
    if len(made.shape) > elements.AXES or name_of(made.dtype) not in _READ:
        return None
    own, theirs = arrays.current_gpu(), device_of(made)
    if own != theirs:
        raise StateError(
            "the array is on another GPU",
            where=where,
            got=f"GPU {theirs}",
            expected=f"GPU {own}, where kernels run",
            fix=f"copy it to GPU {own} first",
        )
    return Foreign(made)


#: Dtypes that kernels read.
_READ = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"bool", "float32", "float64"}
)


def _view(values: Any) -> Any:
    """Return a view of another library's array; waits for its writes."""
    if isinstance(values, Strided):
        return values
    described = getattr(values, "__cuda_array_interface__", None)
    if not dialect.is_available():
        return None
    if described is not None:
        return _seen(described, values)
    views: Any = import_whole("cuda.core.utils").StridedMemoryView
    view = views.from_dlpack(values, stream_ptr=_DEFAULT_STREAM)
    size = view.dtype.itemsize
    described = {
        "data": (view.ptr, True),
        "shape": tuple(view.shape),
        "strides": view.strides and tuple(size * step for step in view.strides),
        "typestr": view.dtype.str,
        "version": 3,
    }
    return _seen(described, view)


def copied_to_host(values: Any) -> npt.NDArray[Any]:
    """Return a copy on the host of an array with the CUDA array interface."""
    dialect.require()
    return np.asarray(dialect.cuda.as_cuda_array(values).copy_to_host())


def _seen(described: dict[str, Any], owner: Any) -> Strided:
    """Return a view of the memory of a CUDA array interface; waits for its stream."""
    if described.get("mask") is not None:
        raise NotImplementedError("masked arrays are not supported")
    dtype, shape = np.dtype(described["typestr"]), tuple(described["shape"])
    address, _ = described["data"]
    stream = described.get("stream")
    if stream is not None:
        arrays.wait_for_stream(int(stream))
    steps = described.get("strides")
    if steps is None:
        ends = range(1, len(shape) + 1)
        steps = [dtype.itemsize * math.prod(shape[end:]) for end in ends]
    return Strided(owner, int(address or 0), shape, tuple(steps), dtype)


def lent(values: DeviceValues) -> Any:
    """Return a view of the values without padding of rows.

    Indexing of the dialect would take time for each row.
    """
    array = values.array
    if values.width is None:
        return array
    described = dict(array.__cuda_array_interface__)
    described |= {"shape": values.shape, "strides": tuple(array.strides)}
    return cuda.from_cuda_array_interface(described, owner=array, sync=False)


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return a view of a lent array in another shape; padded rows stay rows.

    Raises
    ------
    ValueError
        If padded rows would be joined.
    """
    if array.is_c_contiguous():
        if not isinstance(array, Strided):
            return array.reshape(shape)
        item = array.dtype.itemsize
        ends = range(1, len(shape) + 1)
        return strided(array, shape, tuple(item * math.prod(shape[n:]) for n in ends))
    if shape[:1] != array.shape[:1] or math.prod(shape) != math.prod(array.shape):
        raise ValueError(
            f"rows that are apart keep their number: {array.shape}, {shape}"
        )
    steps = [math.prod(shape[axis + 1 :]) for axis in range(1, len(shape))]
    described = dict(array.__cuda_array_interface__)
    inner = tuple(step * array.dtype.itemsize for step in steps)
    described |= {"shape": shape, "strides": (array.strides[0], *inner)}
    return cuda.from_cuda_array_interface(described, owner=array, sync=False)


def as_numbers(array: Any) -> Any:
    """Return an array of numbers: a view of booleans as uint8, others unchanged."""
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def flat(array: Any) -> Any:
    """Return a one-dimensional view of an array in C order."""
    if len(array.shape) == 1:
        return array
    return strided(array, (array.size,), (array.dtype.itemsize,))


def three_axes(array: Any) -> Any:
    """Return a view with three axes; new ones are inserted before the last one."""
    first, last = min(len(array.shape), 1), max(len(array.shape), 1)
    more = elements.AXES - len(array.shape)
    shape = (*array.shape[:first], *(1,) * more, *array.shape[first:last])
    strides = (*array.strides[:first], *(0,) * more, *array.strides[first:last])
    return strided(array, shape, strides)


def strided(
    array: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0
) -> Any:
    """Return a strided view of an array's memory, from byte `offset` on."""
    return Strided(array, address_of(array) + offset, shape, strides, array.dtype)


def _element(array: Any, index: int) -> Any:
    """Return an element by its index in C order."""
    at = np.unravel_index(index, array.shape)
    offset = sum(int(i) * step for i, step in zip(at, array.strides, strict=True))
    one = strided(array, (1,), (array.dtype.itemsize,), offset)
    return arrays.read(one)[0].item()


def _limits(given: np.dtype[Any], wanted: np.dtype[Any]) -> tuple[int, Any, Any]:
    """Return the check of each value, and the least and largest values that fit."""
    if given == np.bool_ or np.can_cast(given, wanted, "safe"):
        return elements.ANY, 0, 0
    if wanted.kind == "f":
        if given.kind != "f":
            return elements.ANY, 0, 0  # rounds, as every float does
        # Values half a step above the largest round to infinity.
        step = np.finfo(wanted).max - np.nextafter(np.finfo(wanted).max, 0)
        most = np.nextafter(given.type(np.finfo(wanted).max) + given.type(step) / 2, 0)
        return elements.FINITE, -most, most
    least, most = (0, 1) if wanted.kind == "b" else _range(wanted)
    if given.kind == "f":
        if most > 2:
            # most + 1 is a power of two, which floats hold.
            most = np.nextafter(given.type(most + 1), given.type(0))
        return elements.WHOLE, least, most
    own_least, own_most = _range(given)
    return elements.RANGE, max(least, own_least), min(most, own_most)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


# -- our arrays, for other libraries


def described(array: Any) -> dict[str, Any]:
    """Return the CUDA array interface of an array of the default stream.

    Its memory counts as lent from then on.
    """
    found = dict(array.__cuda_array_interface__)
    address, _ = found["data"]
    lend(address)
    # PyTorch takes no array that is read-only.
    return found | {"data": (address, False), "stream": _DEFAULT_STREAM, "version": 3}


def dlpack_device(array: Any) -> tuple[int, int]:
    """Return the DLPack device of an array: (type, id)."""
    return DLPACK_CUDA, device_of(array)


def dlpack_capsule(view: Any, **asked: Any) -> Any:
    """Return a view as a DLPack capsule.

    Waits for the default stream, so that no consumer has to.
    """
    cuda.synchronize()
    asked.pop("stream", None)
    views: Any = import_whole("cuda.core.utils").StridedMemoryView
    return views.from_cuda_array_interface(view, stream_ptr=-1).__dlpack__(**asked)

"""GPU arrays of other libraries: views, checked copies, and exports of our arrays.

`foreign_array` returns a `Foreign` for any object with the CUDA array interface or
DLPack, such as CuPy arrays and PyTorch tensors; its methods copy and convert on the
GPU, and check that values fit. `unpadded`, `reshaped`, `flat`, `three_axes` and
`strided` make views without a copy. `array_interface` and `dlpack_capsule` export our
arrays.
"""

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
from featgraph.cuda.memory import Strided, expose
from featgraph.cuda.values import (
    DLPACK_CUDA,
    DeviceValues,
    LostValue,
    Rows,
    name_of,
)

__all__ = [
    "Foreign",
    "array_interface",
    "as_numbers",
    "copied_to_host",
    "dlpack_capsule",
    "dlpack_device",
    "finish",
    "flat",
    "foreign_array",
    "reshaped",
    "strided",
    "three_axes",
    "unpadded",
]

#: The default stream, as the DLPack protocol numbers it.
_DEFAULT_STREAM = 1


@dataclass(frozen=True, eq=False)
class Foreign:
    """A read-only GPU array of another library.

    Attributes
    ----------
    array : Strided, or array of the dialect
        View of its memory, with its strides.
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
            Order of rows of the copy. Default: unchanged.

        Raises
        ------
        LostValue
            If the dtype cannot represent a value.
        DeviceMemoryError
            If the GPU has too little free memory.
        """
        shape = (self.shape[0] if rows is None else rows.count, *self.shape[1:])
        if self.array.size:
            made = arrays.empty(stored_shape(shape, dtype), dtype)
            self.copy_to(made, rows)
        else:  # rows of edge ids that no edge has: there is no value to copy
            made = arrays.filled(stored_shape(shape, dtype), 0, dtype)
        return DeviceValues(made, None if made.shape == shape else shape[1])

    def copy_to(self, made: Any, rows: Rows | None = None) -> None:
        """Copy the values to an array without gaps; see `copied`."""
        is_alike = (made.dtype, tuple(made.shape)) == (self.dtype, self.shape)
        if is_alike and rows is None and self.array.is_c_contiguous():
            arrays.copy(made, self.array)
        else:
            self._place(made, rows)

    def cast(self, dtype: np.dtype[Any], *, is_checked: bool = False) -> Any:
        """Return a GPU array of the values converted to a dtype, rounded.

        Raises
        ------
        LostValue
            If `is_checked`, and the dtype cannot represent a value.
        """
        made = arrays.empty(self.shape, dtype)
        self._place(made, None, is_checked)
        return made

    def _place(self, made: Any, rows: Rows | None, is_checked: bool = True) -> None:
        """Convert and reorder values into `made`; raise LostValue as `copied` does."""
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
    """Wait for all copies from callers' arrays, which may then be overwritten."""
    arrays.synchronize()


#: Owner of a row order -> the order on the GPU.
_orders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _order(rows: Rows) -> Any:
    """Return a row order on the GPU, uploaded once."""
    if rows.on_gpu is not None:
        return rows.on_gpu()
    found = _orders.get(rows.of)
    if found is None:
        _orders[rows.of] = found = arrays.upload(rows.on_host())
    return found


def foreign_array(values: Any, where: str) -> Foreign | None:
    """Return a view of an array on the GPU; None for all other values.

    None also for scalars, empty arrays, dtypes and shapes that kernels cannot read, and
    without a GPU: the caller treats these as host arrays.

    Raises
    ------
    StateError
        If the array is on another GPU, or its library fails to export it.
    """
    try:
        made = _view(values)
    except Exception as error:  # any error of a foreign property or __dlpack__
        raise StateError(
            "the array on the GPU cannot be read",
            where=where,
            got=f"{type(values).__name__}: {error}",
            expected="__cuda_array_interface__ without a mask, or __dlpack__",
            fix="pass a plain array (a PyTorch tensor with gradient: .detach())",
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
    """Return a view of another library's array, after work on its stream has ended.

    None for values that are not arrays on a GPU.
    """
    if isinstance(values, Strided):
        return values
    is_ours = getattr(values, "__cuda_ndarray__", False)  # an array of the dialect
    if is_ours and not values.stream and values.is_c_contiguous():
        return values
    interface = getattr(values, "__cuda_array_interface__", None)
    if not dialect.is_available():
        return None
    if interface is not None:
        return _view_of(interface, values)
    views: Any = import_whole("cuda.core.utils").StridedMemoryView
    view = views.from_dlpack(values, stream_ptr=_DEFAULT_STREAM)
    size = view.dtype.itemsize
    interface = {
        "data": (view.ptr, True),
        "shape": tuple(view.shape),
        "strides": view.strides and tuple(size * step for step in view.strides),
        "typestr": view.dtype.str,
        "version": 3,
    }
    return _view_of(interface, view)


def copied_to_host(values: Any) -> npt.NDArray[Any]:
    """Return a host copy of an array with the CUDA array interface."""
    dialect.require()
    return np.asarray(dialect.cuda.as_cuda_array(values).copy_to_host())


def _view_of(interface: dict[str, Any], owner: Any) -> Strided:
    """Return a view of the memory that a CUDA array interface describes.

    Waits for the stream of the interface.
    """
    if interface.get("mask") is not None:
        raise NotImplementedError("masked arrays are not supported")
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    address, _ = interface["data"]
    stream = interface.get("stream")
    if stream is not None:
        arrays.wait_for_stream(int(stream))
    steps = interface.get("strides")
    if steps is None:
        ends = range(1, len(shape) + 1)
        steps = [dtype.itemsize * math.prod(shape[end:]) for end in ends]
    return Strided(owner, int(address or 0), shape, tuple(steps), dtype)


def unpadded(values: DeviceValues) -> Any:
    """Return a view of the values without the padding of rows.

    Slicing an array of the dialect would take time in proportion to its rows.
    """
    array = values.array
    if values.width is None:
        return array
    interface = dict(array.__cuda_array_interface__)
    interface |= {"shape": values.shape, "strides": tuple(array.strides)}
    return cuda.from_cuda_array_interface(interface, owner=array, sync=False)


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return a view in another shape of an array from `unpadded`.

    Raises
    ------
    ValueError
        If rows are padded, and the shape does not keep their number.
    """
    if array.is_c_contiguous():
        if not isinstance(array, Strided):
            return array.reshape(shape)
        item = array.dtype.itemsize
        ends = range(1, len(shape) + 1)
        return strided(array, shape, tuple(item * math.prod(shape[n:]) for n in ends))
    if shape[:1] != array.shape[:1] or math.prod(shape) != math.prod(array.shape):
        raise ValueError(
            f"padded rows cannot be joined or split: {array.shape}, {shape}"
        )
    steps = [math.prod(shape[axis + 1 :]) for axis in range(1, len(shape))]
    interface = dict(array.__cuda_array_interface__)
    inner = tuple(step * array.dtype.itemsize for step in steps)
    interface |= {"shape": shape, "strides": (array.strides[0], *inner)}
    return cuda.from_cuda_array_interface(interface, owner=array, sync=False)


def as_numbers(array: Any) -> Any:
    """Return an array of numbers: a view of booleans as uint8, others unchanged."""
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def flat(array: Any) -> Any:
    """Return a one-dimensional view of an array in C order."""
    if len(array.shape) == 1:
        return array
    return strided(array, (array.size,), (array.dtype.itemsize,))


def three_axes(array: Any) -> Any:
    """Return a view with three axes; new axes are inserted before the last one.

    They have the strides that make the view of a contiguous array contiguous, since
    kernels of strided arrays are compiled apart.
    """
    first, last = min(len(array.shape), 1), max(len(array.shape), 1)
    more, inner = elements.AXES - len(array.shape), array.dtype.itemsize
    for size, step in zip(array.shape[first:], array.strides[first:], strict=True):
        inner = size * step
    shape = (*array.shape[:first], *(1,) * more, *array.shape[first:last])
    strides = (*array.strides[:first], *(inner,) * more, *array.strides[first:last])
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


def _limits(source: np.dtype[Any], wanted: np.dtype[Any]) -> tuple[int, Any, Any]:
    """Return the check of each value, and the least and largest values that fit."""
    if source == np.bool_ or np.can_cast(source, wanted, "safe"):
        return elements.ANY, 0, 0
    if wanted.kind == "f":
        if source.kind != "f":
            return elements.ANY, 0, 0  # integers are rounded
        # Values half a unit in the last place above the largest round to infinity.
        largest = np.finfo(wanted).max
        step = largest - np.nextafter(largest, 0)
        most = np.nextafter(source.type(largest) + source.type(step) / 2, 0)
        return elements.FINITE, -most, most
    least, most = (0, 1) if wanted.kind == "b" else _range(wanted)
    if source.kind == "f":
        if most > 2:
            # most + 1 is a power of two, which floats represent exactly.
            most = np.nextafter(source.type(most + 1), source.type(0))
        return elements.WHOLE, least, most
    own_least, own_most = _range(source)
    return elements.RANGE, max(least, own_least), min(most, own_most)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest number of an integer dtype."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


# -- exports of our arrays


def array_interface(array: Any) -> dict[str, Any]:
    """Return the CUDA array interface of an array, with the default stream.

    Other libraries may use the memory on other streams from then on (`memory.expose`).
    """
    found = dict(array.__cuda_array_interface__)
    address, _ = found["data"]
    expose(address)
    # PyTorch refuses read-only arrays.
    return found | {"data": (address, False), "stream": _DEFAULT_STREAM, "version": 3}


def dlpack_device(array: Any) -> tuple[int, int]:
    """Return the DLPack device of an array: (type, id)."""
    return DLPACK_CUDA, device_of(array)


def dlpack_capsule(view: Any, **options: Any) -> Any:
    """Return a view as a DLPack capsule; takes the options of ``__dlpack__``.

    Waits for the default stream, so that no consumer has to.
    """
    cuda.synchronize()
    options.pop("stream", None)
    views: Any = import_whole("cuda.core.utils").StridedMemoryView
    return views.from_cuda_array_interface(view, stream_ptr=-1).__dlpack__(**options)

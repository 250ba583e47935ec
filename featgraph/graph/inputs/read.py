"""Bring what callers give to the host as a NumPy array, without changing it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph._interrupts import import_whole
from featgraph.errors import GraphInputError

__all__ = ["host_array"]

# Device types of the DLPack standard whose memory the host can read in place.
_DLPACK_HOST_DEVICES = frozenset({1, 3, 11, 13})


def host_array(values: object, role: str = "values") -> NDArray[Any]:
    """Return the values as a NumPy array in host memory.

    Parameters
    ----------
    values : array_like
        A NumPy array, nested lists of numbers, or an object with ``__array__``,
        ``__dlpack__`` or ``__cuda_array_interface__``. Device memory is copied through
        CuPy or Numba, whichever is importable.
    role : str
        What the values are; errors name it.

    Returns
    -------
    numpy.ndarray
        Any dtype and shape. It may share memory with `values`: copy before keeping or
        writing it.

    Raises
    ------
    GraphInputError
        The values cannot be read as an array, have masked entries, or are in device
        memory that no importable package can copy.
    """
    _refuse_hidden(values, role)
    if isinstance(values, np.ndarray):
        return np.asarray(values)
    if _attribute(values, "__cuda_array_interface__") is not None:
        return _from_cuda(values, role)
    try:
        if _library(values) == "pandas" and hasattr(values, "ndim"):
            return _from_pandas(values)
        if _attribute(values, "__dlpack__") is not None:
            return _from_dlpack(values)
        return np.asarray(values)
    except GraphInputError:
        raise
    except Exception as error:  # whatever a foreign __array__ or __dlpack__ raises
        _refuse_ragged(values, role, error)
        raise GraphInputError(
            "cannot be read as an array",
            where=role,
            got=f"{type(values).__name__}: {error}",
            expected="a NumPy array, a flat list of numbers, or an object with "
            "__array__, __dlpack__ or __cuda_array_interface__",
            fix="convert it to a NumPy array first (a PyTorch tensor with gradient: "
            ".detach())",
        ) from error


def _refuse_ragged(values: object, role: str, error: Exception) -> None:
    """Raise if the values are rows of different lengths, naming the first such row."""
    if not isinstance(values, list | tuple) or not values:
        return
    lengths = [len(x) if isinstance(x, list | tuple) else 0 for x in values]
    odd = next((i for i, x in enumerate(lengths) if x != lengths[0]), None)
    if odd is not None:
        raise GraphInputError(
            "rows of different lengths make no array",
            where=f"{role}, row {odd}",
            got=f"{values[odd]!r:.60} behind {values[0]!r:.60}",
            expected="numbers, or rows of as many numbers each",
        ) from error


def _library(values: object) -> str:
    return type(values).__module__.partition(".")[0]


def _refuse_hidden(values: Any, role: str) -> None:
    """Raise where entries are masked or missing: conversions would make them values.

    NaN is a value of floats; what a library keeps beside the values, a mask or a bitmap
    of nulls, is not.
    """
    if isinstance(values, np.ndarray):
        if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
            raise GraphInputError(
                "masked entries have no value",
                where=role,
                got=f"{np.count_nonzero(values.mask)} masked of {values.size}",
                expected="an array without masked entries",
                fix="drop them with .compressed() or give them a value with .filled(x)",
            )
        return
    if isinstance(values, list | tuple):
        # Types first: one pass in C over what are mostly numbers.
        if any(_may_hide(kind) for kind in set(map(type, values))):
            for item in values:
                _refuse_hidden(item, role)
        return
    columns = [values]
    is_frame = len(getattr(values, "shape", ())) == 2
    if is_frame and _library(values) in ("pandas", "polars"):
        columns = [_column(values, i) for i in range(values.shape[1])]
    for column in columns:
        count = _missing_count(column)
        if count:
            fill = (
                "fill_null" if _library(values) in ("polars", "pyarrow") else "fillna"
            )
            raise GraphInputError(
                "missing entries have no value",
                where=role,
                got=f"{count} missing of {len(column)}"
                + (f" in column {column.name!r}" if len(columns) > 1 else ""),
                expected="no missing entries",
                fix=f"give them a value with .{fill}(x), or drop the rows",
            )


def _may_hide(kind: type) -> bool:
    return not issubclass(kind, bool | int | float | str | bytes | np.generic) and (
        kind is not np.ndarray
    )


def _column(frame: Any, i: int) -> Any:
    return frame.iloc[:, i] if _library(frame) == "pandas" else frame.to_series(i)


def _missing_count(values: Any) -> int:
    """Return how many entries a column says are missing; 0 where it cannot say."""
    if _library(values) == "pandas":
        is_plain = isinstance(getattr(values, "dtype", None), np.dtype)
        # Of plain columns, NaN is a float's value and None an object that is refused.
        if is_plain or not hasattr(values, "isna"):
            return 0
        return int(np.count_nonzero(values.isna()))
    count = _attribute(values, "null_count")  # polars, pyarrow
    count = count() if callable(count) else count
    return count if isinstance(count, int) else 0


def _from_pandas(values: Any) -> NDArray[Any]:
    """Return a column, or a frame of columns, none of them with missing entries."""
    if values.ndim == 2:
        if not values.shape[1]:
            return np.empty(values.shape)
        columns = [_from_pandas(_column(values, i)) for i in range(values.shape[1])]
        return np.stack(columns, axis=1)
    # Nullable columns become objects unless they are told not to.
    return np.asarray(values.to_numpy(dtype=getattr(values.dtype, "numpy_dtype", None)))


def _attribute(values: object, name: str) -> object:
    # PyTorch's host tensors *raise* AttributeError subclasses or TypeError from the
    # __cuda_array_interface__ property, so plain hasattr is not enough everywhere.
    try:
        return getattr(values, name, None)
    except (RuntimeError, TypeError):
        return None


def _from_dlpack(values: Any) -> NDArray[Any]:
    device_of = _attribute(values, "__dlpack_device__")
    device = values.__dlpack_device__()[0] if callable(device_of) else 1
    if int(device) in _DLPACK_HOST_DEVICES:
        try:
            return np.from_dlpack(values)
        except (BufferError, TypeError):
            # dtypes that NumPy's DLPack does not take (bfloat16, gradients): the
            # object's own conversion, where it has one, knows more.
            if _attribute(values, "__array__") is None:
                raise
            return np.asarray(values)
    return np.from_dlpack(values, device="cpu", copy=True)


def _from_cuda(values: Any, role: str) -> NDArray[Any]:
    failures = []
    for library, copy in (("cupy", _copy_by_cupy), ("numba-cuda", _copy_by_dialect)):
        try:
            return copy(values)
        except Exception as error:  # no driver, wrong device, not installed
            failures.append(f"{library}: {error}")
    raise GraphInputError(
        "the array is in device memory and cannot be copied to the host",
        where=role,
        got=f"{type(values).__name__} ({'; '.join(failures)})",
        expected="host memory, or an installed cupy or numba-cuda with a device",
        fix="copy it first: cupy.asnumpy(x), tensor.cpu(), array.copy_to_host()",
    )


def _copy_by_cupy(values: object) -> NDArray[Any]:
    cupy = import_whole("cupy")
    return np.asarray(cupy.asnumpy(cupy.asarray(values)))


def _copy_by_dialect(values: object) -> NDArray[Any]:
    from featgraph.arrays.foreign import copied_to_host

    return copied_to_host(values)

"""Arrays of numbers: the rules for every array that a caller passes.

Conversions change no value, except for rounding of floats. Text, dates, complex numbers
and objects raise an error, and so do values that the requested dtype cannot represent:
integers and bools that become other numbers, finite numbers that become infinite, and
nonzero numbers that become zero. Errors have the position of the first one.

`host_array` copies an array to the host, and raises for masks, missing entries and
ragged rows; `number_array` raises for anything but numbers. The same rules apply to
arrays that stay on the GPU (`featgraph.cuda.foreign`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import FeatGraphError, GraphInputError
from featgraph.base.interrupts import import_whole

__all__ = [
    "NUMBERS",
    "STORAGE_DTYPES",
    "converted",
    "host_array",
    "lost_value",
    "number_array",
    "range_of",
    "shortened",
]

Array = npt.NDArray[Any]

#: Kinds of NumPy dtypes that are accepted as numbers: bool, int, uint, float.
NUMBERS = "biuf"

#: Storage dtypes of properties; no uint64, which has no common type with signed
#: integers in generated code.
STORAGE_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float32",
    "float64",
)

#: Elements that are compared with their casts at once: temporaries stay in a cache.
_CHUNK = 1 << 15

#: Kinds of dtypes that are not numbers, and how to convert them.
_FIXES = {
    "c": "give the real part (.real) or the magnitude (numpy.abs)",
    "m": "divide by a unit: values / numpy.timedelta64(1, 's')",
    "M": "subtract a date and divide by a unit: (values - first) / "
    "numpy.timedelta64(1, 's')",
    "S": "convert the text with .astype(numpy.float64)",
    "U": "convert the text with .astype(numpy.float64)",
}


def number_array(
    values: Any, where: str, error: type[FeatGraphError] = GraphInputError
) -> Array:
    """Return values as an array of bools, integers or floats on the host.

    Parameters
    ----------
    values : array_like
        It may share memory with the result: copy before keeping or writing it.
    where : str
        The argument; errors name it.
    error : type, optional
        The class of the errors.

    Raises
    ------
    error
        If the values are ragged, masked, missing, or no numbers.
    """
    if type(values) is np.ndarray and values.dtype.kind in NUMBERS:
        return values
    try:
        array = host_array(values, where)
    except GraphInputError as found:
        if error is GraphInputError:
            raise
        raise error(
            found.what,
            where=where,
            got=found.got,
            expected=found.expected,
            fix=found.fix,
        ) from found
    if array.dtype.kind == "O":
        array = _from_objects(array, where, error)
    if array.dtype.kind not in NUMBERS:
        first = f", first value {array.flat[0]!r:.60}" if array.size else ""
        raise error(
            "the values are not an array of numbers",
            where=where,
            got=f"dtype {array.dtype}{first}",
            expected="bools, integers or floats",
            fix=_FIXES.get(array.dtype.kind),
        )
    return array


def _from_objects(array: Array, where: str, error: type[FeatGraphError]) -> Array:
    """Return an array of numbers from an array of objects."""
    flat = array.ravel().tolist()
    for i, item in enumerate(flat):
        if not isinstance(item, bool | int | float | np.bool_ | np.number):
            raise error(
                "the values are not an array of numbers",
                where=_place(where, i, array.shape),
                got=f"{item!r:.60} ({type(item).__name__})",
                expected="numbers; replace missing values by numbers"
                if array.ndim
                else "an array of numbers",
                fix="give .toarray()" if hasattr(item, "toarray") else None,
            )
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            shown = shortened(item)
            raise lost_value(error, where, i, array.shape, shown, "64 bits")
    return np.array(flat).reshape(array.shape)


def converted(
    array: Array,
    wanted: np.dtype[Any],
    where: str,
    error: type[FeatGraphError] = GraphInputError,
) -> Array:
    """Return a contiguous copy of an array of numbers in another dtype.

    Raises
    ------
    error
        If the dtype cannot represent a value, with the position of the first one.
    """
    if array.dtype == wanted:
        return np.array(array, order="C", copy=True)
    with np.errstate(all="ignore"):
        cast = np.array(array, dtype=wanted, order="C", copy=True)
    if np.can_cast(array.dtype, wanted, "safe"):
        return cast
    if wanted.kind == "f" and array.dtype.kind != "f":
        return cast  # integers are rounded like floats
    flat, made = array.reshape(-1), cast.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        is_lost = _differ(flat[part], made[part])
        if is_lost.any():
            i = begin + int(np.argmax(is_lost))
            shown = repr(flat[i].item())
            raise lost_value(error, where, i, array.shape, shown, wanted.name)
    return cast


def _differ(array: Array, cast: Array) -> Array:
    """Return a mask of numbers that a cast changes, except by rounding of floats."""
    if cast.dtype.kind == "f":
        is_infinite = np.isinf(cast) & np.isfinite(array)
        return np.asarray(is_infinite | ((cast == 0) & (array != 0)))
    if cast.dtype.kind == "b":
        return np.asarray((array != 0) & (array != 1))
    limits = np.iinfo(cast.dtype)
    if array.dtype.kind == "f":
        # 2**n is exact as a float; NaN fails every comparison.
        inside = (array >= float(limits.min)) & (array < float(limits.max + 1))
        return np.asarray(~(inside & (np.floor(array) == array)))
    # NumPy compares integers of any two dtypes exactly, like Python.
    return np.asarray((array < limits.min) | (array > limits.max))


def lost_value(
    error: type[FeatGraphError],
    where: str,
    i: int,
    shape: tuple[int, ...],
    shown: str,
    wanted: str,
) -> FeatGraphError:
    """Return the error for a value that a dtype cannot represent; `i` is in C order."""
    fixes = {
        "bool": "give values != 0, or an integer dtype",
        "float16": "give dtype=np.float32 or np.float64",
        "float32": "give dtype=np.float64, or scale the values",
        "float64": "scale the values",
        "64 bits": "give the values as floats",
    }
    return error(
        f"a value does not fit {wanted}",
        where=_place(where, i, shape),
        got=shown,
        expected=range_of(wanted),
        fix=fixes.get(wanted, "round the values, or give a dtype that holds them"),
    )


def range_of(wanted: str) -> str:
    """Return a description of the numbers that a dtype can represent."""
    if wanted == "bool":
        return "True, False, 0 or 1"
    if wanted.startswith("float"):
        limits = np.finfo(wanted)
        least, most = float(limits.smallest_subnormal), float(limits.max)
        return f"0, or a magnitude from {least:.2g} to {most:.2g}"
    bounds = np.iinfo("int64" if wanted == "64 bits" else wanted)
    return f"an integer in [{bounds.min}, {bounds.max}]"


def _place(where: str, i: int, shape: tuple[int, ...]) -> str:
    if not shape:
        return where
    return f"{where}, index {[int(part) for part in np.unravel_index(i, shape)]}"


def shortened(number: int) -> str:
    """Return an integer as text; Python does not print more than 4,300 digits."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"an integer of {bits} bits"


# -- arrays of other libraries, copied to the host

#: DLPack device types whose memory the host can read in place.
_DLPACK_HOST_DEVICES = frozenset({1, 3, 11, 13})


def host_array(values: object, role: str = "values") -> Array:
    """Return the values as a NumPy array in host memory.

    Parameters
    ----------
    values : array_like
        A NumPy array, nested lists of numbers, or an object with ``__array__``,
        ``__dlpack__`` or ``__cuda_array_interface__``. Device memory is copied through
        CuPy or Numba, if one of them is importable.
    role : str
        Name of the values in errors.

    Returns
    -------
    numpy.ndarray
        An array of any dtype and shape. It may share memory with `values`: copy it
        before storing or writing it.

    Raises
    ------
    GraphInputError
        If the values cannot be read as an array, have masked entries, or are in device
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
    except Exception as error:  # any error of a foreign __array__ or __dlpack__
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
    """Raise if the values are rows of different lengths, with the first such row."""
    if not isinstance(values, list | tuple) or not values:
        return
    lengths = [len(x) if isinstance(x, list | tuple) else 0 for x in values]
    odd = next((i for i, x in enumerate(lengths) if x != lengths[0]), None)
    if odd is not None:
        raise GraphInputError(
            "rows of different lengths make no array",
            where=f"{role}, row {odd}",
            got=f"{values[odd]!r:.60} after {values[0]!r:.60}",
            expected="numbers, or rows of equal length",
        ) from error


def _library(values: object) -> str:
    return type(values).__module__.partition(".")[0]


def _refuse_hidden(values: Any, role: str) -> None:
    """Raise if entries are masked or missing, since conversion would give them values.

    NaN is a valid float. Missing entries are marked in a mask or a bitmap of nulls,
    which a library stores beside the values.
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
        # The set of types first, in one pass in C: usually all entries are numbers.
        if any(_may_hide(kind) for kind in set(map(type, values))):
            for item in values:
                _refuse_hidden(item, role)
        return
    columns = [values]
    is_frame = len(getattr(values, "shape", None) or ()) == 2
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
    """Return the number of missing entries of a column; 0 if unknown."""
    if _library(values) == "pandas":
        is_plain = isinstance(getattr(values, "dtype", None), np.dtype)
        # In plain columns, NaN is a valid float, and None an object that is refused.
        if is_plain or not hasattr(values, "isna"):
            return 0
        return int(np.count_nonzero(values.isna()))
    count = _attribute(values, "null_count")  # polars, pyarrow
    count = count() if callable(count) else count
    return count if isinstance(count, int) else 0


def _from_pandas(values: Any) -> Array:
    """Return a column, or a frame of columns, without missing entries."""
    if values.ndim == 2:
        if not values.shape[1]:
            return np.empty(values.shape)
        columns = [_from_pandas(_column(values, i)) for i in range(values.shape[1])]
        return np.stack(columns, axis=1)
    # Nullable columns become objects unless a dtype is passed.
    return np.asarray(values.to_numpy(dtype=getattr(values.dtype, "numpy_dtype", None)))


def _attribute(values: object, name: str) -> object:
    # The __cuda_array_interface__ property of PyTorch's host tensors raises subclasses
    # of AttributeError or TypeError, and hasattr catches only the former.
    try:
        return getattr(values, name, None)
    except (RuntimeError, TypeError):
        return None


def _from_dlpack(values: Any) -> Array:
    device_of = _attribute(values, "__dlpack_device__")
    device = values.__dlpack_device__()[0] if callable(device_of) else 1
    if int(device) in _DLPACK_HOST_DEVICES:
        try:
            return np.from_dlpack(values)
        except (BufferError, TypeError):
            # NumPy's DLPack does not support the dtype (bfloat16) or gradients: try the
            # object's own conversion.
            if _attribute(values, "__array__") is None:
                raise
            return np.asarray(values)
    return np.from_dlpack(values, device="cpu", copy=True)


def _from_cuda(values: Any, role: str) -> Array:
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


def _copy_by_cupy(values: object) -> Array:
    cupy = import_whole("cupy")
    return np.asarray(cupy.asnumpy(cupy.asarray(values)))


def _copy_by_dialect(values: object) -> Array:
    from featgraph.cuda.foreign import copied_to_host

    return copied_to_host(values)

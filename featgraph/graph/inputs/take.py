"""Conversion of callers' arrays on the host or GPU, and of values of a State.

`given_array` is for arrays passed to algorithms, `storage_values` and `storage_array`
are for properties of a State, and `scalar_of_type` for scalars. The rules are those of
`featgraph.graph.inputs.numbers`; errors for a State are `StateError`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import ArgumentError, DeviceMemoryError, StateError
from featgraph.cuda.values import (
    DeviceValues,
    Filled,
    LostValue,
    Rows,
    is_on_gpu,
    name_of,
    present_bytes,
)
from featgraph.graph.inputs.given import GivenArray, HostArray
from featgraph.graph.inputs.numbers import (
    NUMBERS,
    STORAGE_DTYPES,
    converted,
    lost_value,
    number_array,
    range_of,
    shortened,
)

if TYPE_CHECKING:
    from featgraph.cuda.foreign import Foreign

__all__ = [
    "Borrowed",
    "borrowed_array",
    "filled",
    "given_array",
    "plain_scalar",
    "require_item_shape",
    "scalar_of_type",
    "storage_array",
    "storage_dtype",
    "storage_values",
]

Array = npt.NDArray[Any]

#: Types of single numbers that are stored without conversion.
_STORED_AS = frozenset({bool, *(np.dtype(name).type for name in STORAGE_DTYPES)})
#: The largest number of features: kernels count them in int32.
_MOST_FEATURES = 2**31 - 1


def given_array(
    values: Any, dtype: npt.DTypeLike | None = None, where: str = "values"
) -> GivenArray:
    """Wrap an array of a caller, on the host or on the GPU, without a copy.

    Parameters
    ----------
    values : array_like
        An array on the host, or one with ``__cuda_array_interface__`` or ``__dlpack__``
        in the memory of the current GPU. Arrays that kernels cannot read are copied to
        the host: those without axes, without elements, or of float16.
    dtype : dtype, optional
        The dtype of the result, which must be able to represent the values; floats are
        rounded. Default: unchanged.
    where : str, optional
        Name of the argument in errors.

    Returns
    -------
    GivenArray

    Raises
    ------
    GraphInputError
        If `values` is not an array of bools, integers or floats: text, dates, complex
        numbers, objects, or rows of different lengths; if entries are masked or
        missing; or if `dtype` cannot represent a value: a finite number becomes
        infinite, a nonzero one zero, or a fraction an integer.
    StateError
        If the array is on another GPU, or its library does not export it.

    Examples
    --------
    >>> import featgraph as fg
    >>> weights = fg.given_array([1.0, -2.0, float("nan")])
    >>> weights.first_row_outside(0, weights.greatest), weights.row(1).item()
    (1, -2.0)
    """
    found: GivenArray
    if isinstance(values, GivenArray):
        kind: Any = type(values)
        found = kind(values.values)  # values may have changed: drop cached results
    elif is_on_gpu(values):
        found = _on_gpu(values, where)
    else:
        found = HostArray(number_array(values, where))
    return found if dtype is None else found.astype(np.dtype(dtype), where)


def _on_gpu(values: Any, where: str) -> GivenArray:
    from featgraph.cuda.foreign import foreign_array  # imports the dialect
    from featgraph.graph.inputs.device import DeviceArray  # likewise

    foreign = foreign_array(values, where)
    if foreign is None:
        return HostArray(number_array(values, where))
    return DeviceArray(foreign.array)


def require_item_shape(shape: object) -> tuple[int, ...] | None:
    """Return the shape of an entry: (), (K,) or (K, K)."""
    if shape is None:
        return None
    if _is_width(shape):
        return shape  # type: ignore[return-value]
    try:
        parts: Any = shape if isinstance(shape, tuple | list) else (shape,)
        if any(isinstance(part, bool | np.bool_) for part in parts):
            raise TypeError
        sizes = tuple(operator.index(part) for part in parts)
    except TypeError:
        raise ArgumentError(
            "not the shape of an entry",
            where="shape=",
            got=f"{shape!r} ({type(shape).__name__})",
            expected="(), (K,) or (K, K), integers",
        ) from None
    if any(not 1 <= size <= _MOST_FEATURES for size in sizes):
        raise StateError(
            "not the shape of an entry",
            where="shape=",
            got=sizes,
            expected=f"(), (K,) or (K, K) with 1 <= K <= {_MOST_FEATURES}",
        )
    return sizes


def _is_width(shape: object) -> bool:
    """Whether a shape is ``(K,)`` with an int K in range."""
    if type(shape) is not tuple or len(shape) != 1:
        return False
    return type(shape[0]) is int and 1 <= shape[0] <= _MOST_FEATURES


def storage_dtype(dtype: Any, where: str) -> np.dtype[Any] | None:
    """Return the requested storage type; None if none is requested."""
    if dtype is None:
        return None
    try:
        found: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except Exception as error:  # NumPy raises several types for an invalid dtype
        raise StateError(
            "not a dtype",
            where=where,
            got=f"{dtype!r} ({type(dtype).__name__})",
            expected=", ".join(STORAGE_DTYPES),
        ) from error
    if name_of(found) not in STORAGE_DTYPES:
        raise _not_stored(found, where)
    return found


def _not_stored(dtype: np.dtype[Any], where: str) -> StateError:
    fits = "np.int64" if dtype.kind == "u" else "np.float32"
    return StateError(
        "this dtype cannot be stored",
        where=where,
        got=dtype,
        expected=", ".join(STORAGE_DTYPES),
        fix=f"give dtype={fits}, or convert the array",
    )


def filled(name: str, value: Array, shape: tuple[int, ...]) -> Filled:
    """Return an array of `shape` filled with one value, to be allocated later.

    Raises
    ------
    DeviceMemoryError
        If the array is larger than the memory of the machine. Where the system
        overcommits memory, the process would be killed instead.
    """
    made, present = Filled(value[()], shape), present_bytes()
    if made.nbytes > present:
        raise DeviceMemoryError(
            "the property does not fit into memory",
            where=f"property {name!r}",
            got=f"shape {shape} of {value.dtype}, {made.nbytes:,} bytes",
            expected=f"less than the {present:,} bytes of this machine",
        )
    return made


class Borrowed:
    """A caller's array on the GPU, which will be copied there in a storage dtype."""

    def __init__(self, foreign: Foreign, dtype: np.dtype[Any], where: str) -> None:
        self._foreign, self._where = foreign, where
        self.dtype, self.shape, self.ndim = dtype, foreign.shape, foreign.ndim

    def copied(self, rows: Rows | None = None) -> DeviceValues:
        """Return a copy of all rows, or of `rows`.

        Raises
        ------
        StateError
            If the storage dtype cannot represent a value.
        """
        try:
            return self._foreign.copied(self.dtype, rows)
        except LostValue as lost:
            shown, wanted = repr(lost.value), self.dtype.name
            raise lost_value(
                StateError, self._where, lost.index, self.shape, shown, wanted
            ) from None

    def rows(self, rows: Rows) -> DeviceValues:
        """Return a copy of some rows, and check the values of all rows.

        Raises
        ------
        StateError
            If the storage dtype cannot represent a value of any row.
        """
        if self._foreign.dtype == self.dtype:
            return self.copied(rows)
        from featgraph.cuda.foreign import Foreign, unpadded  # imports the dialect

        return Foreign(unpadded(self.copied())).copied(self.dtype, rows)


def storage_values(name: str, values: Any, dtype: Any = None) -> Array | Borrowed:
    """Return values in a storage dtype: an array on the host, or a `Borrowed` array.

    Parameters
    ----------
    name, values, dtype
        As for `storage_array`.
    """
    own = type(values)
    if own in _STORED_AS and (dtype is None or np.dtype(own) == dtype):
        return np.array(values)
    where, foreign = f"property {name!r}", None
    if is_on_gpu(values):
        from featgraph.cuda.foreign import foreign_array  # imports the dialect

        foreign = foreign_array(values, where)
    if foreign is None:
        return storage_array(name, values, dtype)
    wanted = storage_dtype(dtype, where) or foreign.dtype.newbyteorder("=")
    if name_of(wanted) not in STORAGE_DTYPES:
        raise _not_stored(wanted, where)
    return Borrowed(foreign, wanted, where)


def borrowed_array(values: Any, dtype: Any) -> Array | None:
    """Return a caller's array if it can be stored without a copy; else None."""
    if not _is_stored(values) or values.ndim == 0:
        return None
    flags = values.flags
    is_plain = flags.c_contiguous and flags.aligned
    is_plain = is_plain and (dtype is None or values.dtype == dtype)
    return values if is_plain else None


def storage_array(name: str, values: Any, dtype: Any = None) -> Array:
    """Return a contiguous native copy of `values` with a storage dtype.

    Parameters
    ----------
    name : str
        Name of the property in errors.
    values : array_like
        Arrays and data frames keep their dtype. Lists and Python numbers become bool,
        int64, or float32 for floats.
    dtype : dtype, optional
        Another storage dtype.

    Raises
    ------
    StateError
        If values are not numbers, are masked or missing, or cannot be represented in
        the storage dtype.
    """
    if _is_stored(values) and (dtype is None or values.dtype == dtype):
        return np.array(values, order="C")
    where = f"property {name!r}"
    wanted = storage_dtype(dtype, where)
    array = number_array(values, where, StateError)
    if wanted is None:
        is_plain = isinstance(values, list | tuple | range | float)
        is_float = array.dtype == np.float64 and not isinstance(values, np.float64)
        wanted = np.dtype(np.float32) if is_plain and is_float else array.dtype
        wanted = wanted.newbyteorder("=")
        if name_of(wanted) not in STORAGE_DTYPES:
            raise _not_stored(wanted, where)
    return converted(array, wanted, where, StateError)


def _is_stored(values: Any) -> bool:
    """Whether values are a host array of a storage dtype."""
    if type(values) is not np.ndarray:
        return False
    dtype = values.dtype
    return dtype.isnative and name_of(dtype) in STORAGE_DTYPES


def plain_scalar(value: Any) -> bool | int | float | None:
    """Return a number as Python's bool, int or float; None for anything else.

    NumPy scalars, and arrays with one number or without axes, count as numbers.
    """
    is_of_numpy = isinstance(value, np.ndarray | np.generic)  # np.float64 is a float
    if isinstance(value, bool | int | float) and not is_of_numpy:
        return value
    if is_of_numpy:
        if value.size != 1 or value.dtype.kind not in NUMBERS or np.ma.is_masked(value):
            return None
        found = value.item()
        return found if isinstance(found, bool | int | float) else float(found)
    # Arrays of other libraries, with one number only.
    item = getattr(value, "item", None)
    is_one = getattr(value, "ndim", None) == 0 or getattr(value, "size", None) == 1
    if not (is_one and callable(item)):
        return None
    try:
        found = item()
    except Exception:  # any error of a foreign item()
        return None
    return found if isinstance(found, bool | int | float) else None


def scalar_of_type(where: str, value: Any, dtype: str) -> bool | int | float:
    """Return a scalar as ``"bool"``, ``"int64"`` or ``"real"``, or raise StateError.

    Integers are accepted as real numbers; there are no other conversions.
    """
    plain = plain_scalar(value)
    kinds: dict[str, Any] = {"bool": bool, "int64": int, "real": float}
    fits = isinstance(plain, kinds[dtype]) or (
        dtype == "real" and isinstance(plain, int)
    )
    if plain is None or not fits or (dtype == "int64" and isinstance(plain, bool)):
        raise StateError(
            "a scalar keeps its type",
            where=where,
            got=type(value).__name__,
            expected=kinds[dtype].__name__,
        )
    if dtype == "int64" and not -(2**63) <= plain < 2**63:
        raise StateError(
            "a value does not fit 64 bits",
            where=where,
            got=shortened(int(plain)),
            expected=range_of("64 bits"),
            fix="give it as a float",
        )
    try:
        return kinds[dtype](plain)  # type: ignore[no-any-return]
    except OverflowError:
        raise StateError(
            "a value does not fit a float",
            where=where,
            got=shortened(int(plain)),
            expected="a magnitude of at most 1.8e308",
        ) from None

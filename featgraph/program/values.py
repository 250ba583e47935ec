"""Values as callers give them, turned into arrays of a storage type, or refused.

A value is never changed on the way in, rounding of floats apart: what an integer or a
bool cannot hold exactly, what overflows float32, what is missing and what is hidden by
a mask are errors that name the position.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import (
    DeviceValues,
    Filled,
    LostValue,
    Rows,
    is_on_gpu,
    name_of,
    present_bytes,
)
from featgraph.errors import (
    ArgumentError,
    DeviceMemoryError,
    GraphInputError,
    StateError,
)
from featgraph.graph.building.host import host_array
from featgraph.program.signature import STORAGE_DTYPES

if TYPE_CHECKING:
    from featgraph.arrays.foreign import Foreign

__all__ = [
    "Borrowed",
    "filled",
    "lent_array",
    "plain_scalar",
    "require_item_shape",
    "scalar_of_type",
    "storage_array",
    "storage_dtype",
    "storage_values",
]

Array = npt.NDArray[Any]

#: Kinds of NumPy dtypes that are numbers of ours: bool, int, uint, float.
_NUMBERS = "biuf"
#: Types of single values that are stored as they are.
_STORED_AS = frozenset({bool, *(np.dtype(name).type for name in STORAGE_DTYPES)})
#: What a kernel's loops over features count in.
_MOST_FEATURES = 2**31 - 1


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
    """Whether a shape is that of features, as it is mostly given."""
    if type(shape) is not tuple or len(shape) != 1:
        return False
    return type(shape[0]) is int and 1 <= shape[0] <= _MOST_FEATURES


def storage_dtype(dtype: Any, where: str) -> np.dtype[Any] | None:
    """Return the storage type that is asked for, None where none is."""
    if dtype is None:
        return None
    try:
        found: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except Exception as error:  # NumPy raises what it likes for what is no dtype
        raise StateError(
            "not a dtype",
            where=where,
            got=f"{dtype!r} ({type(dtype).__name__})",
            expected=", ".join(STORAGE_DTYPES),
        ) from error
    if name_of(found) not in STORAGE_DTYPES:
        raise _not_stored(found, where)
    return found


def _not_stored(dtype: Any, where: str) -> StateError:
    return StateError(
        "this dtype cannot be stored",
        where=where,
        got=dtype,
        expected=", ".join(STORAGE_DTYPES),
        fix="give dtype=np.float32, or convert the array",
    )


def filled(name: str, value: Array, shape: tuple[int, ...]) -> Filled:
    """Return one value everywhere, as an array of `shape` that is made later.

    Raises
    ------
    DeviceMemoryError
        If the machine has not that much memory. A system that promises more than it
        has ends the process instead.
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
    """An array of the caller's on the GPU, to be copied there in a storage type."""

    def __init__(self, foreign: Foreign, dtype: np.dtype[Any], where: str) -> None:
        self._foreign, self._where = foreign, where
        self.dtype, self.shape, self.ndim = dtype, foreign.shape, foreign.ndim

    def copied(self, rows: Rows | None = None) -> DeviceValues:
        """Return a copy; with `rows`, of these rows of it.

        Raises
        ------
        StateError
            If the storage type cannot hold a value.
        """
        try:
            return self._foreign.copied(self.dtype, rows)
        except LostValue as lost:
            shown, wanted = repr(lost.value), self.dtype.name
            raise _out_of_range(
                self._where, lost.index, self.shape, shown, wanted
            ) from None

    def rows(self, rows: Rows) -> DeviceValues:
        """Return a copy of some rows, if the storage type can hold all of them.

        Raises
        ------
        StateError
            If it cannot: whoever takes other rows is refused, too.
        """
        if self._foreign.dtype == self.dtype:
            return self.copied(rows)
        from featgraph.arrays.foreign import Foreign, lent  # imports the dialect

        return Foreign(lent(self.copied())).copied(self.dtype, rows)


def storage_values(name: str, values: Any, dtype: Any = None) -> Array | Borrowed:
    """Return values with a storage type: a host array, or what is on the GPU.

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
        from featgraph.arrays.foreign import foreign_array  # imports the dialect

        foreign = foreign_array(values, where)
    if foreign is None:
        return storage_array(name, values, dtype)
    wanted = storage_dtype(dtype, where) or foreign.dtype.newbyteorder("=")
    if name_of(wanted) not in STORAGE_DTYPES:
        raise _not_stored(wanted, where)
    return Borrowed(foreign, wanted, where)


def lent_array(values: Any, dtype: Any) -> Array | None:
    """Return an array of the caller's if it is as one that is stored; else None."""
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
        The property's; errors say it.
    values : array_like
        Anything with a dtype keeps it, a data frame as well as an array. Lists and
        Python numbers: bool, int64, or float32 for floats.
    dtype : dtype, optional
        The storage type instead.

    Raises
    ------
    StateError
        Values that are no numbers, are masked or missing, or that the storage type
        cannot hold.
    """
    if _is_stored(values) and (dtype is None or values.dtype == dtype):
        return np.array(values, order="C")
    where = f"property {name!r}"
    wanted = storage_dtype(dtype, where)
    try:
        array = host_array(values, where)
    except GraphInputError as error:
        raise StateError(
            error.what,
            where=where,
            got=error.got,
            expected=error.expected,
            fix=error.fix,
        ) from error
    if array.dtype.kind == "O":
        array = _from_objects(array, where)
    if array.dtype.kind not in _NUMBERS:
        raise _not_stored(array.dtype, where)
    if wanted is None:
        is_plain = isinstance(values, list | tuple | range | float)
        is_float = array.dtype == np.float64 and not isinstance(values, np.float64)
        wanted = np.dtype(np.float32) if is_plain and is_float else array.dtype
        wanted = wanted.newbyteorder("=")
        if name_of(wanted) not in STORAGE_DTYPES:
            raise _not_stored(wanted, where)
    return _cast(array, wanted, where)


def _is_stored(values: Any) -> bool:
    """Whether values are an array of the host whose type is stored as it is."""
    if type(values) is not np.ndarray:
        return False
    dtype = values.dtype
    return dtype.isnative and name_of(dtype) in STORAGE_DTYPES


def _from_objects(array: Array, where: str) -> Array:
    """Return an array of numbers from one of objects that are numbers."""
    flat = array.ravel().tolist()
    for i, item in enumerate(flat):
        if not isinstance(item, bool | int | float | np.bool_ | np.number):
            raise StateError(
                "the values are not an array of numbers",
                where=_place(where, i, array.shape),
                got=f"{item!r:.60} ({type(item).__name__})",
                expected="numbers; a value that is missing has to be given one",
                fix="give .toarray()" if hasattr(item, "toarray") else None,
            )
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise _out_of_range(where, i, array.shape, _shortened(item), "64 bits")
    return np.array(flat).reshape(array.shape)


def _cast(array: Array, wanted: np.dtype[Any], where: str) -> Array:
    """Return a copy in the wanted type, of the same values."""
    with np.errstate(all="ignore"):
        cast = np.array(array, dtype=wanted, order="C", copy=True)
    if np.can_cast(array.dtype, wanted, "safe") or array.size == 0:
        return cast
    if wanted.kind == "f":
        if array.dtype.kind != "f":
            return cast  # rounds, as every float does
        is_lost = np.isinf(cast) & np.isfinite(array)
    else:
        is_lost = _differ(array, cast)
    if is_lost.any():
        i = int(np.argmax(is_lost))
        raise _out_of_range(
            where, i, array.shape, repr(array.ravel()[i].item()), wanted.name
        )
    return cast


def _differ(array: Array, cast: Array) -> Array:
    """Say which numbers are others as integers or bools."""
    if cast.dtype.kind == "b":
        return np.asarray((array != 0) & (array != 1))
    limits = np.iinfo(cast.dtype)
    if array.dtype.kind == "f":
        # 2**n is a float exactly; NaN fails every comparison.
        inside = (array >= float(limits.min)) & (array < float(limits.max + 1))
        return np.asarray(~(inside & (np.floor(array) == array)))
    # Compared as Python compares: NumPy does, with integers of any two types.
    return np.asarray((array < limits.min) | (array > limits.max))


def _out_of_range(
    where: str, i: int, shape: tuple[int, ...], shown: str, wanted: str
) -> StateError:
    fixes = {
        "bool": "give values != 0, or an integer dtype",
        "float32": "give dtype=np.float64",
        "64 bits": "give the values as floats",
    }
    return StateError(
        f"a value does not fit {wanted}",
        where=_place(where, i, shape),
        got=shown,
        expected=_range(wanted),
        fix=fixes.get(wanted, "round the values, or give a dtype that holds them"),
    )


def _range(wanted: str) -> str:
    if wanted == "bool":
        return "True, False, 0 or 1"
    if wanted == "float32":
        return "a magnitude of at most 3.4e38"
    limits = np.iinfo("int64" if wanted == "64 bits" else wanted)
    return f"an integer in [{limits.min}, {limits.max}]"


def _place(where: str, i: int, shape: tuple[int, ...]) -> str:
    if not shape:
        return where
    return f"{where}, index {[int(part) for part in np.unravel_index(i, shape)]}"


def _shortened(number: int) -> str:
    """Return an integer as text; Python refuses to print more than 4,300 digits."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"an integer of {bits} bits"


def plain_scalar(value: Any) -> bool | int | float | None:
    """Return a number as Python's bool, int or float; None where it is none.

    NumPy's scalars, arrays without an axis and arrays of one number count.
    """
    is_of_numpy = isinstance(value, np.ndarray | np.generic)  # np.float64 is a float
    if isinstance(value, bool | int | float) and not is_of_numpy:
        return value
    if is_of_numpy:
        if (
            value.size != 1
            or value.dtype.kind not in _NUMBERS
            or np.ma.is_masked(value)
        ):
            return None
        found = value.item()
        return found if isinstance(found, bool | int | float) else float(found)
    # Arrays of other libraries: only those that say that they hold one number.
    item = getattr(value, "item", None)
    is_one = getattr(value, "ndim", None) == 0 or getattr(value, "size", None) == 1
    if not (is_one and callable(item)):
        return None
    try:
        found = item()
    except Exception:  # whatever a foreign item() raises
        return None
    return found if isinstance(found, bool | int | float) else None


def scalar_of_type(where: str, value: Any, dtype: str) -> bool | int | float:
    """Return a scalar as ``"bool"``, ``"int64"`` or ``"real"``, or refuse it.

    An integer is a real number, too; nothing else changes its type.
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
            got=_shortened(int(plain)),
            expected=_range("64 bits"),
            fix="give it as a float",
        )
    try:
        return kinds[dtype](plain)  # type: ignore[no-any-return]
    except OverflowError:
        raise StateError(
            "a value does not fit a float",
            where=where,
            got=_shortened(int(plain)),
            expected="a magnitude of at most 1.8e308",
        ) from None

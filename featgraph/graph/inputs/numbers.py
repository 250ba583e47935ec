"""Arrays of numbers: the rules that hold for every array that a caller passes.

A value is never changed on the way in, rounding of floats apart. Text, dates, complex
numbers and objects are refused, and so is a value that the wanted type turns into
another one: an integer or a bool that it cannot hold exactly, a finite number that
becomes infinite, and a number that becomes zero. Errors name the position.

`featgraph.graph.inputs.read` brings the array to the host and refuses masks, missing
entries and ragged rows. The same rules hold for arrays that stay on the GPU
(`featgraph.arrays.foreign`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.errors import FeatGraphError, GraphInputError
from featgraph.graph.inputs.read import host_array

__all__ = [
    "NUMBERS",
    "STORAGE_DTYPES",
    "converted",
    "lost_value",
    "number_array",
    "range_of",
    "shortened",
]

Array = npt.NDArray[Any]

#: Kinds of NumPy dtypes that are numbers of ours: bool, int, uint, float.
NUMBERS = "biuf"

#: Storage types of properties. uint64 has no common type with the signed ones in
#: generated code.
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

#: Kinds of dtypes that are no numbers, and what makes numbers of them.
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
    """Return an array of numbers from one of objects that are numbers."""
    flat = array.ravel().tolist()
    for i, item in enumerate(flat):
        if not isinstance(item, bool | int | float | np.bool_ | np.number):
            raise error(
                "the values are not an array of numbers",
                where=_place(where, i, array.shape),
                got=f"{item!r:.60} ({type(item).__name__})",
                expected="numbers; a value that is missing has to be given one"
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
    """Return a contiguous copy of an array of numbers in a type that holds its values.

    Raises
    ------
    error
        If the type cannot hold a value; it names the first one.
    """
    with np.errstate(all="ignore"):
        cast = np.array(array, dtype=wanted, order="C", copy=True)
    if np.can_cast(array.dtype, wanted, "safe"):
        return cast
    if wanted.kind == "f" and array.dtype.kind != "f":
        return cast  # integers are rounded, as floats are
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
    """Return which numbers are others in another type, rounding of floats apart."""
    if cast.dtype.kind == "f":
        is_infinite = np.isinf(cast) & np.isfinite(array)
        return np.asarray(is_infinite | ((cast == 0) & (array != 0)))
    if cast.dtype.kind == "b":
        return np.asarray((array != 0) & (array != 1))
    limits = np.iinfo(cast.dtype)
    if array.dtype.kind == "f":
        # 2**n is a float exactly; NaN fails every comparison.
        inside = (array >= float(limits.min)) & (array < float(limits.max + 1))
        return np.asarray(~(inside & (np.floor(array) == array)))
    # Compared as Python compares: NumPy does, with integers of any two types.
    return np.asarray((array < limits.min) | (array > limits.max))


def lost_value(
    error: type[FeatGraphError],
    where: str,
    i: int,
    shape: tuple[int, ...],
    shown: str,
    wanted: str,
) -> FeatGraphError:
    """Return the error about a value, by its place in C order, that a type changes."""
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
    """Return in words which numbers a type holds."""
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
    """Return an integer as text; Python refuses to print more than 4,300 digits."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"an integer of {bits} bits"

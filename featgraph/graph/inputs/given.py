"""Arrays of callers, checked on the host or on the GPU.

`GivenArray` is the interface, `HostArray` an array on the host, and
`inputs.device.DeviceArray` an array on the GPU. Their results are bitwise equal: both
sum in the same order (`ROWS_OF_A_PART`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.graph.inputs.numbers import converted

__all__ = ["ROWS_OF_A_PART", "GivenArray", "Held", "HostArray"]

Array = npt.NDArray[Any]

#: Rows per part of a sum over rows; the sums of parts are summed in the same way. With
#: 64 rows, a GPU takes 33 us for 10**5 numbers and 262 us for 10**8; with 256 rows, 76
#: and 383 us (H200, 2026).
ROWS_OF_A_PART = 64
#: Factor by which rows of finite values are scaled if a sum overflows; it is a power of
#: two, so that scaling does not round.
_TO_ADD_UP = 2.0**-64


@dataclass(frozen=True, eq=False)
class Held:
    """Rows of numbers, separated from rows of nan.

    Attributes
    ----------
    values : GivenArray
        The array with zero for nan.
    is_held : GivenArray of bool, shape (N,)
        Whether a row has numbers.
    count : int
        The number of rows of numbers.
    first_bad : int or None
        The first row with an infinite value, or with both numbers and nan.
    """

    values: GivenArray
    is_held: GivenArray
    count: int
    first_bad: int | None

    @property
    def width(self) -> int:
        """K."""
        return self.values.shape[1]


class GivenArray(ABC):
    """An array of a caller, on the host or on the GPU; made by `given_array`.

    It is read-only. Methods that return another array compute it on the same device.
    Results of checks on the GPU are cached: wrap an array again if it has changed.
    `values` can be passed as a property.

    Attributes
    ----------
    shape : tuple of int
        One to three axes, or none on the host.
    dtype : numpy.dtype
    values : array
        The array itself: a NumPy array, or one with ``__cuda_array_interface__``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: Any

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def greatest(self) -> Any:
        """The largest finite number of the dtype."""
        if self.dtype.kind == "f":
            return np.finfo(self.dtype).max
        return True if self.dtype.kind == "b" else np.iinfo(self.dtype).max

    @property
    def least_positive(self) -> Any:
        """The smallest positive number of the dtype."""
        if self.dtype.kind == "f":
            return np.finfo(self.dtype).smallest_subnormal
        return 1

    def __len__(self) -> int:
        return self.shape[0]

    def first_row_inside(self, least: Any, most: Any) -> int | None:
        """Return the first row with a value in [least, most]; None without one."""
        return self._row_of(self._first(least, most, is_inside=True))

    def first_row_outside(self, least: Any, most: Any) -> int | None:
        """Return the first row with a value outside of [least, most], or with nan.

        Parameters
        ----------
        least, most : number
            The range [-`greatest`, `greatest`] has all finite numbers.

        Returns
        -------
        int or None
            None without such a row.
        """
        return self._row_of(self.first_outside(least, most))

    def first_not_finite(self) -> int | None:
        """Return the first row with a value that is not finite."""
        return self.first_row_outside(-self.greatest, self.greatest)

    def first_outside(self, least: Any, most: Any) -> int | None:
        """Return the index in C order of the first value outside of a range."""
        return self._first(least, most, is_inside=False)

    def _row_of(self, place: int | None) -> int | None:
        return None if place is None else place // math.prod(self.shape[1:])

    @abstractmethod
    def _first(self, least: Any, most: Any, *, is_inside: bool) -> int | None:
        """Return the first index of a value that is in a range, or is not."""

    @abstractmethod
    def first_row_without(self, bound: Any) -> int | None:
        """Return the first row that has no value above a bound."""

    @abstractmethod
    def row(self, index: int) -> Any:
        """Return a row, or an element of a one-dimensional array, on the host."""

    @abstractmethod
    def on_host(self) -> Array:
        """Return the array as a NumPy array; an array on the GPU is copied."""

    @abstractmethod
    def astype(
        self, dtype: np.dtype[Any] | type[Any], where: str | None = None
    ) -> GivenArray:
        """Return the values rounded to a dtype; `self` if they have this dtype.

        Parameters
        ----------
        dtype : dtype
        where : str, optional
            Name of the argument, for the error if the dtype cannot represent a value: a
            finite number becomes infinite, a nonzero one zero, or an integer wraps.
            None: values are not checked.

        Raises
        ------
        GraphInputError
        """

    @abstractmethod
    def column(self, index: int) -> GivenArray:
        """Return the values at an index of the second axis."""

    @abstractmethod
    def matrix(self) -> GivenArray:
        """Return the array with two axes: all axes but the first are flattened."""

    @abstractmethod
    def widened(self, width: int) -> GivenArray:
        """Return the array repeated from (N, 1) to (N, width); itself if that wide."""

    @abstractmethod
    def largest_of_columns(self) -> Array:
        """Return the largest value of each column of (N, K), on the host; N > 0."""

    @abstractmethod
    def sums_of_columns(self) -> Array:
        """Return the sum of each column of (N, K), on the host."""

    @abstractmethod
    def columns_divided(self, by: Array) -> GivenArray:
        """Return the array with each column divided by a number."""

    @abstractmethod
    def rows_divided(self) -> GivenArray:
        """Return the array divided by its sums along the last axis, unless 0."""

    @abstractmethod
    def held(self) -> Held:
        """Separate rows of numbers from rows of nan, in (N, K) of float64."""

    @abstractmethod
    def with_rows(self, is_kept: GivenArray, row: Array) -> GivenArray:
        """Return the array with all rows that are not kept replaced by one row."""

    @abstractmethod
    def logs(self) -> GivenArray:
        """Return the logarithms of float64 values >= 0; -inf for zero."""

    @abstractmethod
    def exps(self, shift: float) -> GivenArray:
        """Return exp(x - shift) of float64; 0 for -inf."""


class HostArray(GivenArray):
    """An array of a caller on the host."""

    def __init__(self, values: Array) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def _first(self, least: Any, most: Any, *, is_inside: bool) -> int | None:
        """Return the first index of a value that is in a range, or is not."""
        x: Array = self.values
        if is_inside:
            # Usually no value is inside, which minimum and maximum show without a
            # temporary array.
            if not x.size or bool(x.min() > most) or bool(x.max() < least):
                return None
            found = (least <= x) & (x <= most)
            return int(np.argmax(found)) if found.any() else None
        # The minimum of an array with nan is nan, which is in no range.
        fits = not x.size or bool(least <= x.min())
        if fits and (not x.size or most == np.inf or bool(x.max() <= most)):
            return None
        return int(np.argmin((least <= x) & (x <= most)))

    def first_row_without(self, bound: Any) -> int | None:
        """Return the first row that has no value above a bound."""
        largest = self.values.max(axis=tuple(range(1, self.ndim)))
        lost = np.asarray(~(largest > bound))
        return int(np.argmax(lost)) if lost.any() else None

    def row(self, index: int) -> Any:
        """Return a row, or an element of one axis, on the host."""
        return self.values[index]

    def on_host(self) -> Array:
        """Return the array as a NumPy array, without a copy."""
        return self.values  # type: ignore[no-any-return]

    def astype(
        self, dtype: np.dtype[Any] | type[Any], where: str | None = None
    ) -> GivenArray:
        """Return the values rounded to a dtype; `self` if they have this dtype."""
        wanted = np.dtype(dtype)
        if wanted == self.dtype:
            return self
        if where is not None:
            return HostArray(converted(self.values, wanted, where))
        with np.errstate(over="ignore", under="ignore"):
            return HostArray(self.values.astype(wanted))

    def column(self, index: int) -> GivenArray:
        """Return the values at an index of the second axis."""
        return HostArray(self.values[:, index])

    def matrix(self) -> GivenArray:
        """Return the array with two axes: all axes but the first are flattened."""
        rows = len(self)
        return HostArray(self.values.reshape(rows, -1 if rows else 1))

    def widened(self, width: int) -> GivenArray:
        """Return the array repeated from (N, 1) to (N, width); itself if that wide."""
        if self.shape[1] == width:
            return self
        return HostArray(np.broadcast_to(self.values, (len(self), width)))

    def largest_of_columns(self) -> Array:
        """Return the largest value of each column of (N, K), on the host; N > 0."""
        return np.asarray(self.values.max(axis=0))

    def sums_of_columns(self) -> Array:
        """Return the sum of each column of (N, K), on the host."""
        x: Array = self.values
        # In the order of the GPU kernel: row i of the result sums the rows i + k parts.
        while len(x) > 1:
            parts = -(-len(x) // ROWS_OF_A_PART)
            total = x[:parts].copy()
            for first in range(parts, len(x), parts):
                more = x[first : first + parts]
                total[: len(more)] += more
            x = total
        return x.sum(axis=0)  # type: ignore[no-any-return]

    def columns_divided(self, by: Array) -> GivenArray:
        """Return the array with each column divided by a number."""
        return HostArray(self.values / by)

    def rows_divided(self) -> GivenArray:
        """Return the array divided by its sums along the last axis, unless 0."""
        x: Array = self.values
        total = _sums_of_rows(x)
        if np.isinf(total).any():
            x = np.where(np.isinf(total), x * _TO_ADD_UP, x)
            total = _sums_of_rows(x)
        return HostArray(np.divide(x, total, out=np.zeros_like(x), where=total != 0))

    def held(self) -> Held:
        """Separate rows of numbers from rows of nan, in (N, K) of float64."""
        x: Array = self.values
        is_free = np.isnan(x)
        is_held: Array = np.asarray(~is_free.any(axis=1))
        bad = np.isinf(x).any(axis=1) | ~(is_held | is_free.all(axis=1))
        return Held(
            HostArray(np.where(is_free, 0.0, x)),
            HostArray(is_held),
            int(np.count_nonzero(is_held)),
            int(np.argmax(bad)) if bad.any() else None,
        )

    def with_rows(self, is_kept: GivenArray, row: Array) -> GivenArray:
        """Return the array with all rows that are not kept replaced by one row."""
        return HostArray(np.where(is_kept.on_host()[:, None], self.values, row))

    def logs(self) -> GivenArray:
        """Return the logarithms of float64 values >= 0; -inf for zero."""
        with np.errstate(divide="ignore"):
            return HostArray(np.log(self.values))

    def exps(self, shift: float) -> GivenArray:
        """Return exp(x - shift) of float64; 0 for -inf."""
        with np.errstate(over="ignore", under="ignore"):
            return HostArray(np.exp(self.values - shift))


def _sums_of_rows(x: Array) -> Array:
    """Return the sums along the last axis, as an axis of length one."""
    total = x[..., 0].copy()
    with np.errstate(over="ignore"):
        for feature in range(1, x.shape[-1]):
            total += x[..., feature]
    return total[..., None]

"""Arrays as callers give them, where they are: what they have to be is found there.

The host looks at its own arrays with NumPy, a GPU at those in its memory with kernels.
Both give the same bits: sums are taken in an order that is stated here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ROWS_OF_A_PART", "TO_ADD_UP", "GivenArray", "Held"]

Array = npt.NDArray[Any]

#: Rows of one part of a sum over rows. Parts are summed in the same way. A GPU takes
#: 33 and 262 us for 10**5 and 10**8 numbers, 76 and 383 us with 256 rows (H200, 2026).
ROWS_OF_A_PART = 64
#: What rows are multiplied by whose sums of finite values are infinite.
TO_ADD_UP = 2.0**-64


@dataclass(frozen=True, eq=False)
class Held:
    """Rows of numbers among rows of nan.

    Attributes
    ----------
    values : GivenArray
        The array with zero for nan.
    is_held : GivenArray of bool, shape (N,)
        Whether a row has numbers.
    count : int
        How many rows have.
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
    """An array that a caller gave, on the host or on the GPU; made by `given_array`.

    It is only read. Methods that return another one leave its values where they are.
    What is found of values on the GPU is kept: take an array anew that has changed.
    A property takes `values`.

    Attributes
    ----------
    shape : tuple of int
        One to three axes, or none on the host.
    dtype : numpy.dtype
    values : array
        The array itself: of NumPy, or one with ``__cuda_array_interface__``.
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
        """The largest finite number of the type."""
        if self.dtype.kind == "f":
            return np.finfo(self.dtype).max
        return True if self.dtype.kind == "b" else np.iinfo(self.dtype).max

    @property
    def least_positive(self) -> Any:
        """The smallest number of the type above zero."""
        if self.dtype.kind == "f":
            return np.finfo(self.dtype).smallest_subnormal
        return 1

    def __len__(self) -> int:
        return self.shape[0]

    def first_row_inside(self, least: Any, most: Any) -> int | None:
        """Return the first row with a value in [least, most]; None if there is none."""
        return self._row_of(self._first(least, most, is_inside=True))

    def first_row_outside(self, least: Any, most: Any) -> int | None:
        """Return the first row with a value outside of [least, most], or with nan.

        Parameters
        ----------
        least, most : number
            Finite numbers are those in [-`greatest`, `greatest`].

        Returns
        -------
        int or None
            None if there is none.
        """
        return self._row_of(self.first_outside(least, most))

    def first_not_finite(self) -> int | None:
        """Return the first row with a value that is not finite."""
        return self.first_row_outside(-self.greatest, self.greatest)

    def first_outside(self, least: Any, most: Any) -> int | None:
        """Return the place in C order of the first value that is not in a range."""
        return self._first(least, most, is_inside=False)

    def _row_of(self, place: int | None) -> int | None:
        return None if place is None else place // math.prod(self.shape[1:])

    @abstractmethod
    def _first(self, least: Any, most: Any, *, is_inside: bool) -> int | None:
        """Return the first place where a value is in a range, or is not."""

    @abstractmethod
    def first_row_without(self, bound: Any) -> int | None:
        """Return the first row that has no value above a bound."""

    @abstractmethod
    def row(self, index: int) -> Any:
        """Return a row, or an element of one axis, on the host."""

    @abstractmethod
    def on_host(self) -> Array:
        """Return the array as one of NumPy; one on the GPU is copied."""

    @abstractmethod
    def astype(
        self, dtype: np.dtype[Any] | type[Any], where: str | None = None
    ) -> GivenArray:
        """Return the values rounded to a type; itself if it has that type.

        Parameters
        ----------
        dtype : dtype
        where : str, optional
            The argument, for an error where the type turns a value into another one: a
            finite number becomes infinite, or another one zero, or an integer wraps.
            None: only ratios to a known scale count, and no value is compared.

        Raises
        ------
        GraphInputError
        """

    @abstractmethod
    def column(self, index: int) -> GivenArray:
        """Return what is at an index of the second axis."""

    @abstractmethod
    def matrix(self) -> GivenArray:
        """Return it with two axes: a row has all that belongs to one."""

    @abstractmethod
    def widened(self, width: int) -> GivenArray:
        """Return (N, width) of (N, 1); itself if it is as wide."""

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
        """Return it divided by its sums along the last axis, where they are not 0."""

    @abstractmethod
    def held(self) -> Held:
        """Tell rows of numbers, in (N, K) of float64, from rows of nan."""

    @abstractmethod
    def with_rows(self, is_kept: GivenArray, row: Array) -> GivenArray:
        """Return the array with one row in place of those that are not kept."""

    @abstractmethod
    def logs(self) -> GivenArray:
        """Return the logs of float64 that is not negative; -inf for zero."""

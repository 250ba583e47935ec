"""Arrays of callers in the memory of the GPU, checked and converted there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.errors import GraphInputError
from featgraph.cuda import arrays, elements
from featgraph.cuda.foreign import Foreign, as_numbers, flat, strided, three_axes
from featgraph.cuda.values import LostValue
from featgraph.graph.inputs.given import ROWS_OF_A_PART, GivenArray, Held
from featgraph.graph.inputs.numbers import lost_value

__all__ = ["DeviceArray"]

Array = npt.NDArray[Any]


class DeviceArray(GivenArray):
    """An array on the GPU: a caller's, or one derived from it.

    Parameters
    ----------
    array : array of the dialect
        An array with any strides; derived ones are contiguous. Its values must not
        change while this object is used, since results of checks are cached.
    """

    def __init__(self, array: Any) -> None:
        self.values, self.shape, self.dtype = array, tuple(array.shape), array.dtype

    def _found(self, kernel: Any, count: int, *arguments: Any) -> int | None:
        """Return the smallest index that a kernel finds; None if it finds none."""
        found = arrays.place_found()
        arrays.launch_over(kernel, count, _seen(self.values), *arguments, found)
        first = arrays.read_found()
        return None if first == elements.NONE_LOST else first

    def _first(self, least: Any, most: Any, *, is_inside: bool) -> int | None:
        """Return the first index of a value inside a range, or outside of it."""
        low, high, positive, _ = self._of_columns
        seen = low.dtype
        if seen.kind != "f":
            limits = np.iinfo(seen)
            least, most = max(least, limits.min), min(most, limits.max)
            if least > most:
                return None if is_inside else 0
        least, most = seen.type(least), seen.type(most)
        fits = (least <= low) & (high <= most)
        if is_inside:
            # No value of a column is in the range: all are below it or above it.
            fits = (most < low) | (high < least) | ((least > 0) & (most < positive))
        if fits.all():
            return None
        return self._found(elements.find_in_range, self.size, least, most, is_inside)

    def first_row_without(self, bound: Any) -> int | None:
        """Return the first row that has no value above a bound."""
        limit = np.dtype(self.dtype).type(bound)
        return self._found(elements.find_rows_without, len(self), limit)

    def row(self, index: int) -> Any:
        """Return a row, or an element of one axis, on the host."""
        offset = index * int(self.values.strides[0])
        if self.ndim == 1:
            one = strided(self.values, (1,), (self.dtype.itemsize,), offset)
            return DeviceArray(one).on_host()[0]
        shape, steps = self.shape[1:], tuple(self.values.strides[1:])
        return DeviceArray(strided(self.values, shape, steps, offset)).on_host()

    def on_host(self) -> Array:
        """Return the array as a NumPy array, copied to the host."""
        return arrays.read(_copy(self.values, self.dtype))

    def astype(
        self, dtype: np.dtype[Any] | type[Any], where: str | None = None
    ) -> GivenArray:
        """Return the values rounded to a dtype; `self` if they have this dtype."""
        wanted = np.dtype(dtype)
        if wanted == self.dtype:
            return self
        try:
            made = Foreign(self.values).cast(wanted, is_checked=where is not None)
        except LostValue as lost:
            place, shown = (lost.index, self.shape), repr(lost.value)
            raise lost_value(
                GraphInputError, str(where), *place, shown, wanted.name
            ) from None
        return DeviceArray(made)

    def column(self, index: int) -> GivenArray:
        """Return the values at an index of the second axis."""
        shape, steps = self.shape, self.values.strides
        part = (shape[0], *shape[2:]), (steps[0], *steps[2:])
        return DeviceArray(strided(self.values, *part, index * int(steps[1])))

    def matrix(self) -> GivenArray:
        """Return the array with two axes: all axes but the first are flattened."""
        if self.ndim == 2:
            return self
        if self.ndim == 1:
            steps = (int(self.values.strides[0]), self.dtype.itemsize)
            return DeviceArray(strided(self.values, (len(self), 1), steps))
        shape = (len(self), math.prod(self.shape[1:]))
        return DeviceArray(_copy(self.values, self.dtype).reshape(shape))

    def widened(self, width: int) -> GivenArray:
        """Return the array broadcast from (N, 1) to (N, width)."""
        if self.shape[1] == width:
            return self
        steps = (int(self.values.strides[0]), 0)
        return DeviceArray(strided(self.values, (len(self), width), steps))

    def largest_of_columns(self) -> Array:
        """Return the largest value of each column of (N, K), on the host; N > 0."""
        return np.asarray(self._of_columns[1])

    def sums_of_columns(self) -> Array:
        """Return the sum of each column of (N, K), on the host."""
        return np.asarray(self._of_columns[3])

    @cached_property
    def _of_columns(self) -> Any:
        """Least, largest and least positive value and sum of each column, (4, K).

        One computation serves all checks, with one synchronization.
        """
        source, columns, rows = _seen(self.values), math.prod(self.shape[1:]), len(self)
        shape, steps = source.shape, (0, *source.strides)
        while True:
            source = strided(source, (4, *shape), steps)
            rows = -(-rows // ROWS_OF_A_PART)
            made = arrays.empty((4, rows, columns), source.dtype)
            arrays.launch_over(elements.fold_columns, rows * columns, source, made)
            if rows == 1:
                return arrays.read(made)[:, 0]
            source, shape = made, (rows, 1, columns)
            steps = (made.strides[0], made.strides[1], 0, made.strides[2])

    def _derived(self, kernel: Any, count: int, *before: Any) -> DeviceArray:
        """Return an array that a kernel computes: same dtype and shape, in C order."""
        made = arrays.empty(self.shape, self.dtype)
        arrays.launch_over(kernel, count, _seen(self.values), *before, flat(made))
        return DeviceArray(made)

    def columns_divided(self, by: Array) -> GivenArray:
        """Return the array with each column divided by a number."""
        return self._derived(elements.scale_columns, self.size, arrays.upload(by))

    def rows_divided(self) -> GivenArray:
        """Return the array divided by its sums along the last axis, unless 0."""
        return self._derived(elements.scale_rows, self.size // self.shape[-1])

    def held(self) -> Held:
        """Separate rows of numbers from rows of nan, in (N, K) of float64."""
        values = arrays.empty(self.shape, self.dtype)
        is_held = arrays.empty((len(self),), "bool")
        found = arrays.upload(np.array([elements.NONE_LOST, 0]))
        arrays.launch_over(
            elements.part_held, len(self), _seen(self.values),
            flat(values), as_numbers(is_held), found,
        )  # fmt: skip
        first, count = arrays.read(found).tolist()
        bad = None if first == elements.NONE_LOST else first
        return Held(DeviceArray(values), DeviceArray(is_held), count, bad)

    def with_rows(self, is_kept: GivenArray, row: Array) -> GivenArray:
        """Return the array with all rows that are not kept replaced by one row."""
        made = _copy(self.values, self.dtype)
        kept, wanted = as_numbers(is_kept.values), arrays.upload(row)
        arrays.launch_over(elements.fill_rows, self.size, flat(made), kept, wanted)
        return DeviceArray(made)

    def logs(self) -> GivenArray:
        """Return the logarithms of float64 values >= 0; -inf for zero."""
        return _replaced(self.values, elements.take_logs)

    def exps(self, shift: float) -> GivenArray:
        """Return exp(x - shift) of float64 values; 0 for -inf."""
        return _replaced(self.values, elements.take_exps, np.float64(shift))


def _replaced(values: Any, kernel: Any, *arguments: Any) -> DeviceArray:
    """Return the results of a kernel for each value of a float64 array."""
    made = DeviceArray(_copy(values, np.dtype(np.float64)))
    arrays.launch_over(kernel, made.size, flat(made.values), *arguments)
    return made


def _seen(array: Any) -> Any:
    """Return a view for kernels: numbers, with three axes."""
    return three_axes(as_numbers(array))


def _copy(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return a copy in C order, rounded to a dtype."""
    return Foreign(array).cast(dtype)

"""Kernels that fill arrays, and copy those of other libraries."""

import math

from featgraph._cuda import cuda, kernel

__all__ = [
    "ANY",
    "AXES",
    "FINITE",
    "NONE_LOST",
    "RANGE",
    "WHOLE",
    "fill",
    "place_rows",
]

#: Axes of what it reads.
AXES = 3
#: What is checked: nothing; that a value is in a range; that it is whole, too; that it
#: is in the range if it is finite.
ANY, RANGE, WHOLE, FINITE = range(4)
#: Stands for no index.
NONE_LOST = (1 << 63) - 1


@kernel(cache=True)
def fill(array, value):  # type: ignore[no-untyped-def]
    """Set every element of a one-dimensional array."""
    for place in range(cuda.grid(1), array.size, cuda.gridsize(1)):
        array[place] = value


@kernel(cache=True)
def place_rows(source, order, is_ordered, check, low, high, target, stride, lost):  # type: ignore[no-untyped-def]
    """Set row i of `target` to row ``order[i]`` of `source`, modulo its rows.

    Rows of `target` are `stride` elements long; what is left of them is zero. The
    smallest index of a value that does not fit goes to ``lost[0]``.
    """
    features = source.shape[1] * source.shape[2]
    for place in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        row, feature = place // stride, place % stride
        if feature >= features:
            target[place] = 0
            continue
        if is_ordered:
            row = order[row] % source.shape[0]
        value = source[row, feature // source.shape[2], feature % source.shape[2]]
        if check != ANY:
            inside = low <= value and value <= high
            if check == WHOLE:
                inside = inside and math.floor(value) == value
            elif check == FINITE:
                inside = inside or value - value != 0
            if not inside:
                cuda.atomic.min(lost, 0, row * features + feature)
        target[place] = value

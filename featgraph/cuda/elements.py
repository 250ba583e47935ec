"""Kernels over elements: fill arrays, and copy and check arrays of other libraries.

Arrays of callers have three axes here (`foreign.three_axes`), so that each kernel is
compiled for one rank. Kernels that look for a value lower an int64 to the smallest
index at which they find one (`arrays.place_found`).
"""

import math

from featgraph.cuda.dialect import cuda, kernel

#: Number of axes of source arrays.
AXES = 3
#: Checks of values by `place_rows`: none; in a range; in a range and integral; in the
#: range if finite, and not rounded to zero.
ANY, RANGE, WHOLE, FINITE = range(4)
#: Stands for no index: larger than any index, and eight equal bytes, so that the driver
#: can set it without a kernel.
NONE_LOST = 0x7F7F_7F7F_7F7F_7F7F


@kernel(cache=True)
def fill(array, value):  # type: ignore[no-untyped-def]
    """Set every element of a one-dimensional array."""
    for place in range(cuda.grid(1), array.size, cuda.gridsize(1)):
        array[place] = value


@kernel(cache=True)
def add_one(array):  # type: ignore[no-untyped-def]
    """Add one to the first element, by one thread."""
    if cuda.grid(1) == 0:
        array[0] += 1


@kernel(cache=True)
def place_rows(source, order, is_ordered, check, low, high, target, stride, lost):  # type: ignore[no-untyped-def]
    """Set row i of `target` to row ``order[i]`` of `source`, modulo its rows.

    Rows of `target` have `stride` elements, padded with zeros. ``lost[0]`` is lowered
    to the smallest index of a value that does not fit.
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
        target[place] = value
        if check != ANY:
            inside = low <= value and value <= high
            if check == WHOLE:
                inside = inside and math.floor(value) == value
            elif check == FINITE:
                inside = inside or value - value != 0
                inside = inside and (target[place] != 0 or value == 0)
            if not inside:
                cuda.atomic.min(lost, 0, row * features + feature)


# -- checks and transforms of callers' arrays with three axes. `graph/inputs/given.py`
# computes the same on the host; results are bitwise equal.


@kernel(cache=True)
def find_in_range(source, low, high, is_inside, found):  # type: ignore[no-untyped-def]
    """Lower ``found[0]`` to the first index of a value in a range.

    Without `is_inside`, of a value outside of it.
    """
    features = source.shape[1] * source.shape[2]
    for place in range(cuda.grid(1), source.size, cuda.gridsize(1)):
        row, feature = place // features, place % features
        value = source[row, feature // source.shape[2], feature % source.shape[2]]
        if (low <= value and value <= high) == is_inside:
            cuda.atomic.min(found, 0, place)


@kernel(cache=True)
def find_rows_without(source, bound, found):  # type: ignore[no-untyped-def]
    """Lower ``found[0]`` to the first row without a value above a bound."""
    for row in range(cuda.grid(1), source.shape[0], cuda.gridsize(1)):
        has_one = False
        for i in range(source.shape[1]):
            for j in range(source.shape[2]):
                has_one = has_one or source[row, i, j] > bound
        if not has_one:
            cuda.atomic.min(found, 0, row)


@kernel(cache=True)
def fold_columns(source, target):  # type: ignore[no-untyped-def]
    """Find the least, largest and least positive value and the sum of each column.

    The first axis of both arrays is for these four; for plain values, its stride is 0.
    Row p of `target`, which has P rows, folds rows p, p + P, p + 2 P, ... of the
    source, in this order. The least value of a column with nan is nan; the third number
    is not positive if no value is.
    """
    _, parts, columns = target.shape
    for place in range(cuda.grid(1), parts * columns, cuda.gridsize(1)):
        part, column = place // columns, place % columns
        i, j = column // source.shape[3], column % source.shape[3]
        least, largest = source[0, part, i, j], source[1, part, i, j]
        positive, total = source[2, part, i, j], source[3, part, i, j]
        for row in range(part + parts, source.shape[1], parts):
            value = source[0, row, i, j]
            if least == least and not least <= value:
                least = value
            value = source[1, row, i, j]
            if value > largest:
                largest = value
            value = source[2, row, i, j]
            if value > 0 and not 0 < positive <= value:
                positive = value
            total += source[3, row, i, j]
        target[0, part, column], target[1, part, column] = least, largest
        target[2, part, column], target[3, part, column] = positive, total


@kernel(cache=True)
def scale_columns(source, sums, target):  # type: ignore[no-untyped-def]
    """Divide each column by its number in `sums`."""
    columns = sums.size
    for place in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        row, column = place // columns, place % columns
        i, j = column // source.shape[2], column % source.shape[2]
        target[place] = source[row, i, j] / sums[column]


@kernel(cache=True)
def scale_rows(source, target):  # type: ignore[no-untyped-def]
    """Divide the values along the last axis by their sum; a sum of 0 gives 0."""
    width = source.shape[2]
    count = source.shape[0] * source.shape[1]
    for place in range(cuda.grid(1), count, cuda.gridsize(1)):
        row, i = place // source.shape[1], place % source.shape[1]
        total = source[row, i, 0]
        for j in range(1, width):
            total += source[row, i, j]
        scale = 1.0
        if math.isinf(total):  # finite values overflow: sum them scaled down
            scale = 5.421010862427522e-20  # 2**-64
            total = source[row, i, 0] * scale
            for j in range(1, width):
                total += source[row, i, j] * scale
        for j in range(width):
            value = source[row, i, j] * scale
            target[place * width + j] = value / total if total != 0 else 0


@kernel(cache=True)
def part_held(source, values, is_held, found):  # type: ignore[no-untyped-def]
    """Copy rows to `values`, flag those of finite numbers, and set rows of nan to zero.

    ``found[0]`` is lowered to the first row that is neither all finite nor all nan; the
    number of flagged rows is added to ``found[1]``.
    """
    columns = source.shape[1] * source.shape[2]
    held = 0
    for row in range(cuda.grid(1), source.shape[0], cuda.gridsize(1)):
        missing = infinite = 0
        for column in range(columns):
            value = source[row, column // source.shape[2], column % source.shape[2]]
            is_missing = value != value
            missing += is_missing
            infinite += not is_missing and value - value != 0
            values[row * columns + column] = 0 if is_missing else value
        is_held[row] = missing == 0
        held += missing == 0
        if infinite > 0 or (missing > 0 and missing < columns):
            cuda.atomic.min(found, 0, row)
    if held > 0:
        cuda.atomic.add(found, 1, held)


@kernel(cache=True)
def fill_rows(values, is_kept, row_values):  # type: ignore[no-untyped-def]
    """Set the rows that are not kept to `row_values`."""
    columns = row_values.size
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        if not is_kept[place // columns]:
            values[place] = row_values[place % columns]


@kernel(cache=True)
def take_logs(values):  # type: ignore[no-untyped-def]
    """Replace each nonnegative value by its logarithm, -inf for zero."""
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        value = values[place]
        values[place] = math.log(value) if value > 0 else -math.inf


@kernel(cache=True)
def take_exps(values, shift):  # type: ignore[no-untyped-def]
    """Replace each value by exp(value - shift); -inf by 0."""
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        values[place] = math.exp(values[place] - shift)

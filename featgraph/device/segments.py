"""Segmented rows: a warp processes the edges of several short rows side by side.

A warp has 32 / `width` groups of `width` lanes, and each group has the row of a vertex.
The edges of all rows, one row after another, have *places* 0, 1, ...; `row_of` finds
the row of a place by binary search over the lanes. `begin` is the place of the first
edge of a group's row. As in `featgraph.device.warp`, every lane of the warp takes part
in every call, and `width` is a literal.

======================================================  ================================
``places_before(count, width)``                         place of the first edge of the
                                                        group's row, and number of edges
                                                        of all rows
``row_of(begin, place, width)``                         group whose row has the edge at
                                                        a place
``rows_with_edges(count, width)``                       bits of the first lanes of the
                                                        groups with edges
``first_row(bits, width)``                              group of the lowest bit
``without_first(bits)``                                 the bits without the lowest
``of_row(x, row, width)``                               x of the group `row`, feature by
                                                        feature
``row_at(begins, first, last, place)``                  row of a list that has the edge
                                                        at a place
``from_left(x, lanes)``                                 x of the lane `lanes` before, or
                                                        x of this lane without one
======================================================  ================================
"""

from featgraph.cuda.dialect import cuda, device_function, int32, uint32
from featgraph.device.memory import trailing_zeros

#: Mask of all lanes of a warp.
FULL_WARP = 0xFFFFFFFF


@device_function
def places_before(count, width):
    """Return the number of edges of earlier groups' rows, and of all rows."""
    total = int32(count)
    own = total
    offset = int32(width)
    while offset < 32:
        lower = cuda.shfl_up_sync(FULL_WARP, total, offset)
        if cuda.laneid >= offset:
            total = int32(total + lower)
        offset += offset
    return int32(total - own), cuda.shfl_sync(FULL_WARP, total, int32(31))


@device_function
def row_of(begin, place, width):
    """Return the group whose row has the edge at a place.

    It is the last group whose row begins there or before: a row without edges begins
    where the next one does, and is skipped.
    """
    row = int32(0)
    step = int32(16 // width)
    while step > 0:
        if cuda.shfl_sync(FULL_WARP, begin, int32((row + step) * width)) <= place:
            row = int32(row + step)
        step = int32(step >> 1)
    return row


@device_function
def rows_with_edges(count, width):
    """Return the bits of the first lanes of groups whose row has edges."""
    is_first = uint32(cuda.laneid) & uint32(width - 1) == 0
    return uint32(cuda.ballot_sync(FULL_WARP, is_first and count > 0))


@device_function
def first_row(bits, width):
    """Return the group of the lowest set bit; `bits` is not 0."""
    return int32(trailing_zeros(bits) // width)


@device_function
def without_first(bits):
    """Return the bits without the lowest set one."""
    return uint32(bits & uint32(bits - uint32(1)))


@device_function
def row_at(begins, first, last, place):
    """Return the row of a list that has the edge at a place.

    Binary search in rows `first` to `last`, all of which have edges, for the last one
    that begins at the place or before.
    """
    low, high = int32(first), int32(last)
    while low < high:
        middle = int32((low + high + 1) >> 1)
        if begins[uint32(middle)] <= place:
            low = middle
        else:
            high = int32(middle - 1)
    return low


@device_function
def of_row(x, row, width):
    """Return the x of the group `row`, from its lane with the same features."""
    own = uint32(cuda.laneid) & uint32(width - 1)
    return cuda.shfl_sync(FULL_WARP, x, int32(uint32(row) * uint32(width) + own))


@device_function
def from_left(x, lanes):
    """Return the value of the lane `lanes` before this one."""
    return cuda.shfl_up_sync(FULL_WARP, x, int32(lanes))

"""Device functions of one warp: sums, votes and shuffles over groups of lanes.

A warp has 32 / `width` aligned groups of `width` lanes each (a power of two from 1 to
32). *Every lane of the warp takes part in every collective*: a lane without work clamps
its vertex and passes the identity, and never exits or branches around the call.
`width`, `lanes` and `group` should be literals at the call: the functions are inlined,
so that loops over them unroll. Values are int32, int64, float32 or float64 unless noted
otherwise, and flags are bools; every lane of a group gets the same result, bitwise.
``max`` and ``min`` of floats ignore NaN.

Within a group of lanes (features of one vertex or edge)

======================================================  ================================
``group_sum(x, width)`` ``_product`` ``_max`` ``_min``  like x
``group_any(flag, width)``, ``group_all``               bool
``group_bits(flag, width)``                             uint32; bit i is lane i's flag
``group_argmax(x, index, width)``, ``group_argmin``     (x, index); smallest index on
                                                        ties, NaN only if all are NaN
``broadcast(x, source_lane, width)``                    x of lane source_lane % width
``sum_before(x)``                                       like x; over lower lanes
======================================================  ================================

Across the `lanes / width` groups that share a vertex (each takes other edges): the
lanes with the same features are combined

======================================================  ================================
``edge_lane_sum(x, width, lanes)`` ``_product``          like x
``_max`` ``_min``
``edge_lane_sum_4(a, b, c, d, width, lanes)``            four results; `lanes` has four
``_product`` ``_max`` ``_min``                          groups or more
``edge_lane_any(flag, width, lanes)``,                   bool
``edge_lane_all``
``edge_lane_argmin(key, source, width, lanes)``,         (key, source); see `ordering`;
``edge_lane_argmax``                                    none comes with the identity
======================================================  ================================

Within a segment of the lanes of a vertex: `lane` is the index of this lane among the
`lanes` of its vertex, and a segment has the `group` lanes of the same ``lane // group``
(`group` need not be a power of two; lanes past the last whole segment are padding, and
their results are undefined)

======================================================  ================================
``segment_sum(x, lane, group, lanes)`` ``_max``         like x; lanes in ascending order
``_min``
``segment_any(flag, lane, group, lanes)``,              bool
``segment_all``
``segment_argmax(x, lane, group, lanes)``,              (x, index in the segment)
``segment_argmin``
======================================================  ================================

======================================================  ================================
``load_row(array, row, column, width, count)``          `count` entries of a row of
                                                        length `width`, by loads of 8 or
                                                        16 bytes; `column` is a multiple
                                                        of `count`; a matrix counts as
                                                        one row of all its entries
``anew(index)``                                         `index`, as a value unknown to
                                                        the compiler, which then does
                                                        not keep values loaded there in
                                                        registers across a loop
``store_row(array, row, column, width, count,           the same for stores
values)``
``select(test, a, b)``                                  a if test else b, of one type.
                                                        For a loop-invariant test, the
                                                        compiler would make two loops of
                                                        ``a if test else b``, which
                                                        lanes run one after the other
``lower_bound(row, first, stop, value)``                first place of entries >= value
                                                        in sorted entries
``sync()``                                              memory barrier of the warp
======================================================  ================================

The functions of `featgraph.device.memory` (bits, atomics, checked mode) and of
`featgraph.device.ordering` (``wins_*``, ``pack_*``, ``unpack_*``, ``sort_triangle``,
``sum_holds``, ``is_normal``) are exported here too.
"""

import operator

from featgraph.cuda.dialect import (
    anew,  # noqa: F401
    cuda,
    device_function,
    int32,
    int64,
    load_row,  # noqa: F401
    overload,
    select,  # noqa: F401
    store_row,  # noqa: F401
    uint32,
    uint64,
)
from featgraph.device import ordering
from featgraph.device.memory import (  # noqa: F401
    atomic_add,
    atomic_combine,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_product,
    bits_before,
    checked,
    copy_rows,
    count_bits,
    exchange_if,
    join_bit,
    nth_bit,
    put_bits,
    set_bit,
    set_bits,
    set_bits_from,
    test_bit,
    trailing_zeros,
    vertex_at,
    word_of_lane,
    words_a_turn,
)

#: Mask of all lanes of a warp.
FULL_WARP = 0xFFFFFFFF
PACKED_NONE_FLOAT32 = ordering.PACKED_NONE_FLOAT32
PACKED_NONE_INT32 = ordering.PACKED_NONE_INT32

_ordering = ordering.for_target(device_function)
globals().update(_ordering)


def cast_like(value, like):
    """Return the value in the type of `like`: int32 + int32 is int64 in Numba."""
    return type(like)(value)


@overload(cast_like)
def _choose_cast(value, like):
    to_type = like
    return lambda value, like: to_type(value)


@device_function
def lower_bound(row, first, stop, value):
    """Return the first place of an entry >= value in ascending entries."""
    while first < stop:
        middle = cast_like((first + stop) >> 1, first)
        if row[uint64(middle)] < value:
            first = cast_like(middle + 1, first)
        else:
            stop = cast_like(middle, stop)
    return first


@device_function
def sync():
    """Make this warp's writes to memory visible to all its lanes."""
    cuda.syncwarp()


# Butterfly reductions: in every step both partners combine the same two values, so that
# the results of all lanes are bitwise equal.


def _butterfly(pair):
    """Make a function that combines the lanes of the same index in all groups."""

    @device_function
    def edge_lanes(x, width, lanes):
        offset = int32(width)
        while offset < lanes:
            x = cast_like(pair(x, cuda.shfl_xor_sync(FULL_WARP, x, offset)), x)
            offset += offset
        return x

    return edge_lanes


def _butterfly_of_keys(wins):
    """Make the same for argmin or argmax: the best key, and its source."""

    @device_function
    def edge_lanes(key, source, width, lanes):
        source = int32(source)
        offset = int32(width)
        while offset < lanes:
            other_key = cuda.shfl_xor_sync(FULL_WARP, key, offset)
            other_source = cuda.shfl_xor_sync(FULL_WARP, source, offset)
            if wins(other_key, other_source, key, source):
                key = other_key
                source = other_source
            offset += offset
        return key, source

    return edge_lanes


edge_lane_sum = _butterfly(operator.add)
edge_lane_product = _butterfly(operator.mul)
edge_lane_max = _butterfly(max)
edge_lane_min = _butterfly(min)
edge_lane_argmin = _butterfly_of_keys(_ordering["wins_min"])
edge_lane_argmax = _butterfly_of_keys(_ordering["wins_max"])


# Four results at a time take fewer shuffles than four butterflies. In each of the first
# two steps, a lane sends half of its values to its partner and keeps the other half,
# until it has one; at the end it fetches the other three results.


@device_function
def _give(keeps_first, first, second, offset):
    """Exchange one of two values with the partner lane.

    Returns the value that this lane keeps, and the partner's value for the same sum.
    """
    kept = first if keeps_first else second
    given = second if keeps_first else first
    return kept, cuda.shfl_xor_sync(FULL_WARP, given, offset)


@device_function
def _collect(x, width):
    """Return the four results from the lanes between which `_give` has divided them."""
    own = uint32(cuda.laneid)
    first = int32(own - (own & uint32(3 * width)))
    return (
        cuda.shfl_sync(FULL_WARP, x, first),
        cuda.shfl_sync(FULL_WARP, x, int32(first + 2 * width)),
        cuda.shfl_sync(FULL_WARP, x, int32(first + width)),
        cuda.shfl_sync(FULL_WARP, x, int32(first + 3 * width)),
    )


def _by_fours(pair, edge_lanes):
    """Make a function that combines four values at once, like `_butterfly`."""

    @device_function
    def edge_lanes_4(a, b, c, d, width, lanes):
        is_low = uint32(cuda.laneid) & uint32(width) == 0
        a, other_a = _give(is_low, a, c, width)
        b, other_b = _give(is_low, b, d, width)
        a = cast_like(pair(a, other_a), a)
        b = cast_like(pair(b, other_b), b)
        is_low = uint32(cuda.laneid) & uint32(2 * width) == 0
        x, other = _give(is_low, a, b, 2 * width)
        x = cast_like(pair(x, other), x)
        return _collect(edge_lanes(x, 4 * width, lanes), width)

    return edge_lanes_4


edge_lane_sum_4 = _by_fours(operator.add, edge_lane_sum)
edge_lane_product_4 = _by_fours(operator.mul, edge_lane_product)
edge_lane_max_4 = _by_fours(max, edge_lane_max)
edge_lane_min_4 = _by_fours(min, edge_lane_min)


def _of_group(edge_lanes):
    """Make a function that combines the lanes of a group."""
    return device_function(lambda x, width: edge_lanes(x, 1, width))


group_sum = _of_group(edge_lane_sum)
group_product = _of_group(edge_lane_product)
group_max = _of_group(edge_lane_max)
group_min = _of_group(edge_lane_min)


@device_function
def sum_before(x):
    """Sum over the lanes of the warp before this one."""
    total, offset = x, int32(1)
    while offset < 32:
        lower = cuda.shfl_up_sync(FULL_WARP, total, offset)
        if cuda.laneid >= offset:
            total = cast_like(total + lower, total)
        offset += offset
    return cast_like(total - x, total)


@device_function
def _takes_place(is_better, other, other_index, x, index):
    """Return whether a pair (value, index) replaces another one."""
    # NaN loses against numbers. Equal values, and two NaNs, are ordered by index.
    if x != x:
        return other == other or other_index < index
    return is_better or (other == x and other_index < index)


def _best_of_group(is_better):
    """Make an argmax or argmin of a group; the smallest index wins ties."""

    @device_function
    def group_best(x, index, width):
        index = int32(index)
        offset = int32(1)
        while offset < width:
            other = cuda.shfl_xor_sync(FULL_WARP, x, offset)
            other_index = cuda.shfl_xor_sync(FULL_WARP, index, offset)
            if _takes_place(is_better(other, x), other, other_index, x, index):
                x = other
                index = other_index
            offset += offset
        return x, index

    return group_best


group_argmax = _best_of_group(operator.gt)
group_argmin = _best_of_group(operator.lt)


@device_function
def _first_lane(width):
    """Return the first lane of this lane's group."""
    return uint32(cuda.laneid) & uint32(32 - width)


@device_function
def group_bits(flag, width):
    """Return the flags of a group, bit i from its lane i."""
    bits = uint32(cuda.ballot_sync(FULL_WARP, flag)) >> _first_lane(width)
    return uint32(bits & (uint32(FULL_WARP) >> uint32(32 - width)))


@device_function
def group_any(flag, width):
    """Return whether the flag is set in any lane of a group."""
    return group_bits(flag, width) != 0


@device_function
def group_all(flag, width):
    """Return whether the flag is set in every lane of a group."""
    return group_bits(not flag, width) == 0


@device_function
def edge_lane_any(flag, width, lanes):
    """Return whether the flag is set in any lane with this lane's features."""
    # One bit in every `width`: 0x01010101 for groups of eight lanes.
    first_lanes = uint32(FULL_WARP // ((int64(1) << int64(width)) - int64(1)))
    own = uint32(cuda.laneid) & uint32(width - 1)
    return uint32((group_bits(flag, lanes) >> own) & first_lanes) != 0


@device_function
def edge_lane_all(flag, width, lanes):
    """Return whether the flag is set in all lanes with this lane's features."""
    return not edge_lane_any(not flag, width, lanes)


@device_function
def broadcast(x, source_lane, width):
    """Return the value of a lane of the group, counted modulo `width`."""
    # Modulo, since padding lanes may pass a feature that no lane has.
    source = _first_lane(width) + (uint32(source_lane) & uint32(width - 1))
    return cuda.shfl_sync(FULL_WARP, x, int32(source))


@device_function
def append(flag, value, row, count):
    """Append the values of lanes with a set `flag` to `row`, of length ``count[0]``."""
    bits = group_bits(flag, 32)
    if bits != 0:  # the whole warp
        leader, first = trailing_zeros(bits), int32(0)
        if cuda.laneid == leader:
            first = cuda.atomic.add(count, 0, count_bits(bits))
        first = broadcast(first, leader, 32)
        if flag:
            lower = bits & ((uint32(1) << uint32(cuda.laneid)) - uint32(1))
            row[uint32(first + count_bits(lower))] = cast_like(value, row[0])


@device_function
def _member(lane, first, i, lanes):
    """Return the lane of the warp that is number `i` of a segment from `first` on."""
    # Padding lanes may pass members past the end: they read the last lane, since a
    # shuffle needs an existing source lane.
    return int32(cuda.laneid) - int32(lane) + min(int32(first + i), int32(lanes - 1))


def _of_segment(pair):
    """Make a function that combines a segment in the order of its lanes."""

    @device_function
    def segment(x, lane, group, lanes):
        first = int32(lane) - int32(lane) % int32(group)
        total = cuda.shfl_sync(FULL_WARP, x, _member(lane, first, 0, lanes))
        for i in range(1, group):
            value = cuda.shfl_sync(FULL_WARP, x, _member(lane, first, i, lanes))
            total = cast_like(pair(total, value), x)
        return total

    return segment


def _best_of_segment(is_better):
    """Make an argmax or argmin of a segment; the smallest index wins ties."""

    @device_function
    def segment_best(x, lane, group, lanes):
        first = int32(lane) - int32(lane) % int32(group)
        best = cuda.shfl_sync(FULL_WARP, x, _member(lane, first, 0, lanes))
        index = int32(0)
        for i in range(1, group):
            value = cuda.shfl_sync(FULL_WARP, x, _member(lane, first, i, lanes))
            if _takes_place(is_better(value, best), value, int32(i), best, index):
                best = value
                index = int32(i)
        return best, index

    return segment_best


segment_sum = _of_segment(operator.add)
segment_max = _of_segment(max)
segment_min = _of_segment(min)
segment_argmax = _best_of_segment(operator.gt)
segment_argmin = _best_of_segment(operator.lt)


@device_function
def _segment_bits(flag, lane, group):
    """Return the flags of a segment, bit i from its lane i."""
    start = uint32(cuda.laneid) - uint32(lane) % uint32(group)
    bits = uint32(cuda.ballot_sync(FULL_WARP, flag)) >> uint32(start)
    return uint32(bits & (uint32(FULL_WARP) >> uint32(32 - group)))


@device_function
def segment_any(flag, lane, group, lanes):
    """Return whether the flag is set in any member of a segment."""
    return _segment_bits(flag, lane, group) != 0


@device_function
def segment_all(flag, lane, group, lanes):
    """Return whether the flag is set in every member of a segment."""
    return _segment_bits(not flag, lane, group) == 0

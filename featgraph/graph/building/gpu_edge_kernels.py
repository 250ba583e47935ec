"""Kernels that build rows from sorted ends, and check and combine lists of edges."""

from featgraph.cuda.dialect import cuda, device_function, float64, int32, int64, kernel

#: Mask of all lanes of a warp.
FULL_WARP = 0xFFFFFFFF
#: Edge id of a row in given order that has no edge: the twin of a self-loop.
NO_PLACE = -1
#: Number of counters in shared memory of `count_short`, for degrees 0 to 63.
SHORT = 64


@kernel(cache=True)
def survey(sources, targets, found):  # type: ignore[no-untyped-def]
    """Store least and highest id in ``found[0]`` and [1], and count loops in [2]."""
    least, most, loops = int32(0x7FFFFFFF), int32(-1), int32(0)
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = int32(sources[edge]), int32(targets[edge])
        least, most = min(least, u, v), max(most, u, v)
        if u == v:
            loops += int32(1)
    offset = int32(16)
    while offset > 0:
        least = min(least, cuda.shfl_xor_sync(FULL_WARP, least, offset))
        most = max(most, cuda.shfl_xor_sync(FULL_WARP, most, offset))
        loops = int32(loops + cuda.shfl_xor_sync(FULL_WARP, loops, offset))
        offset = int32(offset >> 1)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.min(found, 0, int64(least))
        cuda.atomic.max(found, 1, int64(most))
        cuda.atomic.add(found, 2, int64(loops))


@kernel(cache=True)
def side_ends(offsets, indices, first_row, first_index, bound, rows, ends):  # type: ignore[no-untyped-def]
    """Set both vertices of each entry of a compressed matrix.

    Row i is vertex ``first_row + i``, index j vertex ``first_index + j``; an index
    outside [0, bound) gives -1.
    """
    for slot in range(cuda.grid(1), indices.size, cuda.gridsize(1)):
        low, high = int64(0), int64(offsets.size - 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if offsets[middle] <= slot:
                low = middle
            else:
                high = middle
        index = int64(indices[slot])
        rows[slot] = int32(first_row + low)
        ends[slot] = int32(first_index + index if 0 <= index < bound else -1)


@kernel(cache=True)
def find_nan(values, found):  # type: ignore[no-untyped-def]
    """Set ``found[0]`` if a value is not a number."""
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        if values[place] != values[place]:
            found[0] = 1


@kernel(cache=True)
def both_ends(sources, targets, none, rows):  # type: ignore[no-untyped-def]
    """List each edge at its target, then at its source.

    The second entry of a loop is in row `none`, after the rows of all vertices.
    """
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = sources[edge], targets[edge]
        rows[2 * edge] = v
        rows[2 * edge + 1] = u if u != v else none


@kernel(cache=True)
def begin_rows(rows, offsets):  # type: ignore[no-untyped-def]
    """Set the offsets of ascending rows: shape (V + 1,)."""
    for row in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        low, high = int64(0), int64(rows.size)
        while low < high:
            middle = (low + high) >> 1
            if rows[middle] < row:
                low = middle + 1
            else:
                high = middle
        offsets[row] = low


@kernel(cache=True)
def take(values, order, out):  # type: ignore[no-untyped-def]
    """Set ``out = values[order]``."""
    for slot in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[slot] = values[order[slot]]


@kernel(cache=True)
def take_halved(values, order, out):  # type: ignore[no-untyped-def]
    """Set ``out = values[order >> 1]``: `order` has two entries per edge."""
    for slot in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[slot] = values[order[slot] >> 1]


@kernel(cache=True)
def other_ends(sources, targets, order, out):  # type: ignore[no-untyped-def]
    """Set each slot to the end of its edge that is not its row."""
    for slot in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        place = order[slot]
        edge = place >> 1
        out[slot] = sources[edge] if place & 1 == 0 else targets[edge]


@kernel(cache=True)
def number_given(order, count, given):  # type: ignore[no-untyped-def]
    """Set the row in given order of each slot; twins are numbered from `count` on."""
    for slot in range(cuda.grid(1), given.size, cuda.gridsize(1)):
        place = order[slot]
        given[slot] = (place >> 1) + (place & 1) * count


@kernel(cache=True)
def invert(order, places):  # type: ignore[no-untyped-def]
    """Set the inverse of a permutation."""
    for slot in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        places[order[slot]] = slot


@kernel(cache=True)
def find_moved(order, found):  # type: ignore[no-untyped-def]
    """Set ``found[0]`` if an entry differs from its index."""
    for slot in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        if order[slot] != slot:
            found[0] = 1


@kernel(cache=True)
def find_twins(given, places, count, twins):  # type: ignore[no-untyped-def]
    """Set the slot of each edge's twin, or its own slot if it has none."""
    for slot in range(cuda.grid(1), given.size, cuda.gridsize(1)):
        edge = given[slot]
        twin = places[edge + count] if edge < count else places[edge - count]
        twins[slot] = slot if twin == NO_PLACE else twin


@kernel(cache=True)
def is_twin(given, count, out):  # type: ignore[no-untyped-def]
    """Set flags of the slots whose edge is a twin."""
    for slot in range(cuda.grid(1), given.size, cuda.gridsize(1)):
        out[slot] = 1 if given[slot] >= count else 0


@kernel(cache=True)
def count_ends(sources, targets, is_both, counts):  # type: ignore[no-untyped-def]
    """Count the edges at each target; with `is_both` at its source, too, a loop once.

    The caller may swap sources and targets.
    """
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = sources[edge], targets[edge]
        cuda.atomic.add(counts, v, 1)
        if is_both and u != v:
            cuda.atomic.add(counts, u, 1)


@kernel(cache=True)
def list_marked(is_marked, places, out):  # type: ignore[no-untyped-def]
    """List the marked indices, at places given by a prefix sum."""
    for number in range(cuda.grid(1), is_marked.size, cuda.gridsize(1)):
        if is_marked[number] != 0:
            out[places[number]] = number


# -- properties of rows for schedules


@kernel(cache=True)
def find_most(degrees, below, found):  # type: ignore[no-untyped-def]
    """Raise ``found[0]`` to the largest degree that is less than a limit."""
    most = int64(0)
    for row in range(cuda.grid(1), degrees.size, cuda.gridsize(1)):
        degree = int64(degrees[row])
        if degree < below:
            most = max(most, degree)
    offset = int32(16)
    while offset > 0:
        most = max(most, cuda.shfl_xor_sync(FULL_WARP, most, offset))
        offset = int32(offset >> 1)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.max(found, 0, most)


@kernel(cache=True)
def count_short(degrees, counts):  # type: ignore[no-untyped-def]
    """Count the rows of each degree below ``counts.size``, at most SHORT."""
    own = cuda.shared.array(SHORT, int32)
    for degree in range(cuda.threadIdx.x, SHORT, cuda.blockDim.x):
        own[degree] = 0
    cuda.syncthreads()
    for row in range(cuda.grid(1), degrees.size, cuda.gridsize(1)):
        if degrees[row] < counts.size:
            cuda.atomic.add(own, degrees[row], 1)
    cuda.syncthreads()
    for degree in range(cuda.threadIdx.x, counts.size, cuda.blockDim.x):
        cuda.atomic.add(counts, degree, own[degree])


@kernel(cache=True)
def find_hubs(offsets, least, found, count):  # type: ignore[no-untyped-def]
    """List vertex and degree of rows with `least` or more edges, in any order."""
    for row in range(cuda.grid(1), offsets.size - 1, cuda.gridsize(1)):
        degree = offsets[row + 1] - offsets[row]
        if degree >= least:
            place = cuda.atomic.add(count, 0, 1)
            found[place, 0] = row
            found[place, 1] = degree


@kernel(cache=True)
def short_degrees(offsets, least, degrees):  # type: ignore[no-untyped-def]
    """Set the degree of each row, or 0 if it is `least` or more."""
    for row in range(cuda.grid(1), offsets.size - 1, cuda.gridsize(1)):
        degree = offsets[row + 1] - offsets[row]
        degrees[row] = degree if degree < least else 0


@kernel(cache=True)
def mark_windows(before, total, vertices, edges, is_first):  # type: ignore[no-untyped-def]
    """Mark the first vertex of each window, and the end.

    The windows are those of `featgraph.runtime.devices.host_arrays.cut_windows`.
    """
    count = before.size
    for v in range(cuda.grid(1), count + 1, cuda.gridsize(1)):
        begin = v - v % vertices
        end = begin + vertices
        if v in (count, begin):
            is_first[v] = 1
            continue
        first = before[begin]
        here = (before[end] if end < count else total[0]) - first
        parts = max((here + edges // 2) // edges, 1)
        share = (before[v] - first) * parts // max(here, 1)
        earlier = (before[v - 1] - first) * parts // max(here, 1)
        is_first[v] = 1 if share != earlier else 0


@kernel(cache=True)
def put_rows(values, given, sources, targets, first, twins_from, piece):  # type: ignore[no-untyped-def]
    """Copy rows of edges to a piece of the rows in given order, from `first` on.

    Rows have two axes. Rows of twins begin at `twins_from`, 0 without twins; a
    self-loop is its own twin.
    """
    width = values.shape[1] * values.shape[2]
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        edge, feature = place // width, place % width
        value = values[edge, feature // values.shape[2], feature % values.shape[2]]
        row = int64(given[edge])
        at = (row - first) * width + feature
        if at >= 0 and at < piece.size:
            piece[at] = value
        if row < twins_from and sources[row] == targets[row]:
            at += twins_from * width
            if at >= 0 and at < piece.size:
                piece[at] = value


# -- repeated edges

#: Policies that select one of the weights.
LAST, LEAST, MOST = range(3)
#: Difference from the float64 sum above which an integer sum has wrapped: wrapping
#: changes it by a multiple of 2**64, and rounding errors are far smaller.
_WRAPPED = 2.0**62


@kernel(cache=True)
def order_ends(sources, targets, low, high):  # type: ignore[no-untyped-def]
    """Set the lower and the higher end of each edge."""
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = sources[edge], targets[edge]
        low[edge] = min(u, v)
        high[edge] = max(u, v)


@kernel(cache=True)
def mark_first(low, high, order, is_first):  # type: ignore[no-untyped-def]
    """Mark the first edge of each group of equal edges, adjacent in `order`."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        found = int32(1)
        if place > 0:
            other = order[place - 1]
            if low[edge] == low[other] and high[edge] == high[other]:
                found = int32(0)
        is_first[edge] = found


@device_function
def _number(edge, first):  # type: ignore[no-untyped-def]
    """Return the index of an edge among the ascending first edges."""
    low, high = int64(0), int64(first.size)
    while low < high:
        middle = (low + high) >> 1
        if first[middle] < edge:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(cache=True)
def add_repeats(weights, order, is_first, first, zero, out, found):  # type: ignore[no-untyped-def]
    """Sum the weights of equal edges; set ``found[0]`` if a sum overflows or is nan."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        total, rough = zero + weights[edge], float64(weights[edge])
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            total += weights[order[other]]
            rough += float64(weights[order[other]])
            other += 1
        if total != total or abs(float64(total) - rough) > _WRAPPED:
            found[0] = 1
        out[_number(edge, first)] = total


@kernel(cache=True)
def choose_of_repeats(weights, order, is_first, first, which, out):  # type: ignore[no-untyped-def]
    """Keep the last, least or largest weight of equal edges."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        chosen = weights[edge]
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            weight = weights[order[other]]
            if (
                which == LAST
                or (which == LEAST and weight < chosen)
                or (which == MOST and weight > chosen)
            ):
                chosen = weight
            other += 1
        out[_number(edge, first)] = chosen

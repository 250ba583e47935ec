"""Kernels that build the rows of a part from streamed edges.

Edge i, ``u -> v``, has an *entry* in the row of v; in an undirected graph, also one in
the row of u, unless it is a loop. Rows and other ends are local numbers: own vertices
first, then ghosts, and `ABSENT` for all others. A part has the entries of its own
vertices and, cut along both directions, the entries of its edges at ghosts.
"""

from featgraph.cuda.dialect import cuda, device_function, int32, int64, kernel, uint64

#: Mask of all lanes of a warp.
FULL_WARP = 0xFFFFFFFF
#: The local number of vertices that are not in a part.
ABSENT = -1


@kernel(cache=True)
def count_into(sources, targets, is_directed, shift, counts):  # type: ignore[no-untyped-def]
    """Count in-edges by target, shifted right; twins count if undirected."""
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = sources[i], targets[i]
        cuda.atomic.add(counts, v >> shift, int64(1))
        if not is_directed and u != v:
            cuda.atomic.add(counts, u >> shift, int64(1))


@device_function
def _mixed(x):  # type: ignore[no-untyped-def]
    """Mix the bits of a word as `featgraph.graph.building.digests` does."""
    x = uint64((x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9))
    x = uint64((x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB))
    return x ^ (x >> uint64(31))


@device_function
def _mixed_row(row):  # type: ignore[no-untyped-def]
    return _mixed(uint64(row + uint64(0x9E3779B97F4A7C15)))


@device_function
def _first_number(row, word):  # type: ignore[no-untyped-def]
    return int64(_mixed(_mixed_row(row) ^ word))


@device_function
def _second_number(row, word):  # type: ignore[no-untyped-def]
    other = uint64(_mixed_row(row) + uint64(0xD1342543DE82EF95))
    return int64(_mixed(other ^ _mixed(word)))


@device_function
def _add_one(number, sums, at):  # type: ignore[no-untyped-def]
    """Add the sum of a number over the lanes of a warp to ``sums[at]``."""
    # One atomic a warp. All lanes take part: callers leave no loop early.
    offset = int32(16)
    while offset > 0:
        number = int64(number + cuda.shfl_xor_sync(FULL_WARP, number, offset))
        offset = int32(offset >> 1)
    if cuda.threadIdx.x % 32 == 0 and number:
        cuda.atomic.add(sums, at, number)


@device_function
def _add_up(one, two, sums):  # type: ignore[no-untyped-def]
    """Add the sums of two numbers over the lanes of a warp to ``sums[0]`` and [1]."""
    _add_one(one, sums, 0)
    _add_one(two, sums, 1)


@kernel(cache=True)
def add_ends(sources, targets, first, sums):  # type: ignore[no-untyped-def]
    """Add edges, from row `first` on, to the sums of a digest."""
    one, two = int64(0), int64(0)
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        row = uint64(first + i)
        word = (uint64(sources[i]) << uint64(32)) | uint64(targets[i])
        one = int64(one + _first_number(row, word))
        two = int64(two + _second_number(row, word))
    _add_up(one, two, sums)


@kernel(cache=True)
def add_values(values, first, sums):  # type: ignore[no-untyped-def]
    """Add values of edges, as unsigned integers of their bits, to sums of a digest."""
    one, two = int64(0), int64(0)
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        row, word = uint64(first + i), uint64(values[i])
        one = int64(one + _first_number(row, word))
        two = int64(two + _second_number(row, word))
    _add_up(one, two, sums)


@kernel(cache=True)
def count_within(sources, targets, bounds, found):  # type: ignore[no-untyped-def]
    """Count the edges with both ends in one side."""
    within = int64(0)
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = sources[i], targets[i]
        joined = int64(0)
        for side in range(bounds.size):
            if (u < bounds[side]) != (v < bounds[side]):
                joined = int64(1)
        within = int64(within + 1 - joined)
    _add_up(within, int64(0), found)


@kernel(cache=True)
def mark_part(sources, targets, first, last, is_both, is_directed, marks, degrees, out):  # type: ignore[no-untyped-def]
    """Mark the ghosts of a part, and count its entries by row.

    Parameters
    ----------
    first, last : int
        The range of own vertices.
    is_both : bool
        Whether the part has all edges at its vertices.
    marks : array of uint8, shape (V,)
    degrees : array of int32, shape (V,)
        Number of the part's entries in each row.
    out : array of int32, shape (own,)
        Out-degrees of own vertices, if directed.
    """
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = sources[i], targets[i]
        has_u, has_v = first <= u < last, first <= v < last
        if has_u and is_directed:
            cuda.atomic.add(out, u - first, 1)
        if has_v or (is_both and has_u):
            cuda.atomic.add(degrees, v, 1)
        if not is_directed and u != v and (has_u or (is_both and has_v)):
            cuda.atomic.add(degrees, u, 1)
        is_of_u = is_both or not is_directed
        # Several threads may store the same value: that needs no atomic.
        if has_v and not has_u:
            marks[u] = 1
        if has_u and not has_v and is_of_u:
            marks[v] = 1


@kernel(cache=True)
def number_own(first, ghosts, own, local):  # type: ignore[no-untyped-def]
    """Set the local numbers of own vertices, and of ghosts."""
    for place in range(cuda.grid(1), own + ghosts.size, cuda.gridsize(1)):
        if place < own:
            local[first + place] = place
        else:
            local[ghosts[place - own]] = place


@kernel(cache=True)
def list_own(first, ghosts, own, numbers):  # type: ignore[no-untyped-def]
    """Set the vertex of each local number."""
    for place in range(cuda.grid(1), numbers.size, cuda.gridsize(1)):
        numbers[place] = first + place if place < own else ghosts[place - own]


@device_function
def _entries(u, v, own, is_both, is_directed, begin, end):  # type: ignore[no-untyped-def]
    """Return whether each entry of an edge is in a range of rows; ends are local."""
    has_edge = not is_both or 0 <= u < own or 0 <= v < own
    one = has_edge and begin <= v < end
    other = has_edge and not is_directed and u != v and begin <= u < end
    return one, other


@kernel(cache=True)
def flag_entries(sources, targets, local, own, is_both, is_directed, begin, end, flags):  # type: ignore[no-untyped-def]
    """Set the number of entries of each edge in the rows from `begin` to `end`."""
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = local[sources[i]], local[targets[i]]
        one, other = _entries(u, v, own, is_both, is_directed, begin, end)
        flags[i] = (1 if one else 0) + (1 if other else 0)


@kernel(cache=True)
def emit_entries(  # type: ignore[no-untyped-def]
    sources, targets, local, own, is_both, is_directed, begin, end, places, at, first,
    given, rows, others, numbers,
):  # fmt: skip
    """List the entries of a range of rows: row minus `begin`, other end, and number.

    The entry of edge i at its target has the number ``first + i``, that at its source
    `given` more. Either of `others` and `numbers` may be empty.
    """
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = local[sources[i]], local[targets[i]]
        one, other = _entries(u, v, own, is_both, is_directed, begin, end)
        place = at + places[i]
        if one:
            rows[place] = v - begin
            if others.size:
                others[place] = u
            if numbers.size:
                numbers[place] = first + i
            place += 1
        if other:
            rows[place] = u - begin
            if others.size:
                others[place] = v
            if numbers.size:
                numbers[place] = first + i + given


@kernel(cache=True)
def emit_values(  # type: ignore[no-untyped-def]
    sources, targets, local, own, is_both, is_directed, begin, end, places, at, values,
    out,
):  # fmt: skip
    """List the edge's value for each entry of a range of rows."""
    for i in range(cuda.grid(1), targets.size, cuda.gridsize(1)):
        u, v = local[sources[i]], local[targets[i]]
        one, other = _entries(u, v, own, is_both, is_directed, begin, end)
        place = at + places[i]
        if one:
            out[place] = values[i]
            place += 1
        if other:
            out[place] = values[i]


@kernel(cache=True)
def flag_owned(sources, targets, first, last, is_both, flags):  # type: ignore[no-untyped-def]
    """Flag edges whose target, or with `is_both` source, is in a range."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        found = first <= targets[i] < last
        flags[i] = 1 if found or (is_both and first <= sources[i] < last) else 0


@kernel(cache=True)
def keep(values, begin, flags, places, out):  # type: ignore[no-untyped-def]
    """List the flagged values, from `begin` on."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        if flags[i] != 0:
            out[places[i]] = values[begin + i]


@kernel(cache=True)
def keep_numbers(first, flags, places, out):  # type: ignore[no-untyped-def]
    """List the indices of flagged entries, plus `first`."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        if flags[i] != 0:
            out[places[i]] = first + i


@kernel(cache=True)
def copy_some(values, first, out):  # type: ignore[no-untyped-def]
    """Copy values from `first` on."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = values[first + i]


@kernel(cache=True)
def put_taken(values, order, at, out):  # type: ignore[no-untyped-def]
    """Set entries of an array, from `at` on, to ``values[order]``."""
    for slot in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        out[at + slot] = values[order[slot]]


# -- rows of edges with a known CSC


@device_function
def _row_of(offsets, slot):  # type: ignore[no-untyped-def]
    """Return the last row that begins at a slot or before."""
    low, high = int64(0), int64(offsets.size - 1)
    while low < high:
        middle = (low + high + 1) >> 1
        if offsets[middle] <= slot:
            low = middle
        else:
            high = middle - 1
    return low


@kernel(cache=True)
def expand_rows(offsets, rows):  # type: ignore[no-untyped-def]
    """Set the row of each slot."""
    for slot in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        rows[slot] = _row_of(offsets, slot)


@kernel(cache=True)
def count_entries(ends, counts):  # type: ignore[no-untyped-def]
    """Count the occurrences of each vertex among ends."""
    for slot in range(cuda.grid(1), ends.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, ends[slot], 1)


@kernel(cache=True)
def count_others(ends, rows, counts):  # type: ignore[no-untyped-def]
    """Count the edges of each row, without loops."""
    for slot in range(cuda.grid(1), ends.size, cuda.gridsize(1)):
        if ends[slot] != rows[slot]:
            cuda.atomic.add(counts, rows[slot], 1)


@kernel(cache=True)
def put_at(values, at, out):  # type: ignore[no-untyped-def]
    """Set entries of an array, from `at` on."""
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        out[at + place] = values[place]


@kernel(cache=True)
def flag_sources(ends, rows, is_both, begin, end, first, flags):  # type: ignore[no-untyped-def]
    """Set the number of entries of each edge at its source, or at both ends."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        u, v = ends[first + i], rows[first + i]
        found = 1 if begin <= u < end else 0
        if is_both and u != v and begin <= v < end:
            found += 1
        flags[i] = found


@kernel(cache=True)
def list_sources(  # type: ignore[no-untyped-def]
    ends, rows, is_both, begin, end, first, flags, places, at, found, slots
):
    """List these entries: row minus `begin`, and edge id.

    An entry at the target precedes that at the source.
    """
    for i in range(cuda.grid(1), places.size, cuda.gridsize(1)):
        if flags[i] == 0:
            continue
        u, v = ends[first + i], rows[first + i]
        place = at + places[i]
        if is_both and u != v and begin <= v < end:
            found[place] = v - begin
            slots[place] = first + i
            place += 1
        if begin <= u < end:
            found[place] = u - begin
            slots[place] = first + i


@kernel(cache=True)
def other_of(ends, rows, begin, slots, found, at, out):  # type: ignore[no-untyped-def]
    """Set the other end of each entry, from `at` on."""
    for i in range(cuda.grid(1), slots.size, cuda.gridsize(1)):
        slot = slots[i]
        row = found[i] + begin
        out[at + i] = rows[slot] if ends[slot] == row else ends[slot]


@kernel(cache=True)
def find_in_rows(offsets, ends, rows, numbers, given, twins):  # type: ignore[no-untyped-def]
    """Set the slot of each edge's twin, by binary search for its number in a row."""
    for slot in range(cuda.grid(1), ends.size, cuda.gridsize(1)):
        u = ends[slot]
        if u == rows[slot]:
            twins[slot] = slot
            continue
        number = numbers[slot] % given
        low, high = int64(offsets[u]), int64(offsets[u + 1])
        while low < high:
            middle = (low + high) >> 1
            if numbers[middle] % given < number:
                low = middle + 1
            else:
                high = middle
        twins[slot] = low


@kernel(cache=True)
def keys_of(numbers, given, keys):  # type: ignore[no-untyped-def]
    """Set the sort key of each slot: the number of its given edge."""
    for slot in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        keys[slot] = int32(numbers[slot] % given)


@kernel(cache=True)
def flag_given(numbers, given, flags):  # type: ignore[no-untyped-def]
    """Flag slots of given edges, not of twins."""
    for slot in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        flags[slot] = 1 if numbers[slot] < given else 0


@kernel(cache=True)
def number_locally(flags, twins, count, given):  # type: ignore[no-untyped-def]
    """Set the row in given order of each twin, after the rows of given edges."""
    for slot in range(cuda.grid(1), given.size, cuda.gridsize(1)):
        if flags[slot] == 0:
            given[slot] = given[twins[slot]] + count


@kernel(cache=True)
def close_offsets(before, total, offsets):  # type: ignore[no-untyped-def]
    """Set offsets of shape (V + 1,) from an exclusive prefix sum and its total."""
    for row in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        offsets[row] = before[row] if row < before.size else total[0]


@kernel(cache=True)
def number_slots(slots):  # type: ignore[no-untyped-def]
    """Set each entry to its index."""
    for slot in range(cuda.grid(1), slots.size, cuda.gridsize(1)):
        slots[slot] = slot


# -- rows read from files, whose sources are numbers of a division


@kernel(cache=True)
def put_lengths(offsets, at, lengths):  # type: ignore[no-untyped-def]
    """Set the number of slots of each row, from index `at` on."""
    for row in range(cuda.grid(1), offsets.size - 1, cuda.gridsize(1)):
        lengths[at + row] = offsets[row + 1] - offsets[row]


@kernel(cache=True)
def count_descents(offsets, found):  # type: ignore[no-untyped-def]
    """Count offsets that are less than their predecessor."""
    descents = int64(0)
    for row in range(cuda.grid(1), offsets.size - 1, cuda.gridsize(1)):
        if offsets[row + 1] < offsets[row]:
            descents = int64(descents + 1)
    _add_up(descents, int64(0), found)


@kernel(cache=True)
def count_inside(values, begin, end, low, high, found, at):  # type: ignore[no-untyped-def]
    """Add the number of values from `begin` to `end` in a range to ``found[at]``."""
    inside = int64(0)
    for place in range(begin + cuda.grid(1), end, cuda.gridsize(1)):
        if low <= values[place] < high:
            inside = int64(inside + 1)
    _add_one(inside, found, at)


@kernel(cache=True)
def add_slots(offsets, ends, numbers, vertices, first, given, sums):  # type: ignore[no-untyped-def]
    """Add the sums of `featgraph.graph.slices.sums.add_slots`, without weights.

    Parameters
    ----------
    vertices : array of int32
        The vertex of each number; empty if ends are vertices.
    first : int
        The number of the first row.
    sums : array of int64
    """
    one, two, twin_one, twin_two = int64(0), int64(0), int64(0), int64(0)
    of_rows, of_sources, descents = int64(0), int64(0), int64(0)
    count = int64(offsets[offsets.size - 1])
    for slot in range(cuda.grid(1), count, cuda.gridsize(1)):
        row = _row_of(offsets, slot)
        u, v = int64(ends[slot]), int64(first + row)
        of_sources = int64(of_sources + int64(_mixed_row(uint64(u))))
        if vertices.size:
            u, v = int64(vertices[u]), int64(vertices[v])
        number = int64(numbers[slot])
        is_twin = number >= given
        edge = number % given
        if slot > offsets[row] and numbers[slot - 1] % given >= edge:
            descents = int64(descents + 1)
        source, target = (v, u) if is_twin else (u, v)
        bits, word = uint64(edge), (uint64(source) << uint64(32)) | uint64(target)
        x, y = _first_number(bits, word), _second_number(bits, word)
        if not is_twin:
            one, two = int64(one + x), int64(two + y)
            of_rows = int64(of_rows + int64(_mixed_row(bits)))
        if is_twin or u == v:
            twin_one, twin_two = int64(twin_one + x), int64(twin_two + y)
    _add_one(one, sums, 0)
    _add_one(two, sums, 1)
    _add_one(twin_one, sums, 2)
    _add_one(twin_two, sums, 3)
    _add_one(of_rows, sums, 8)
    _add_one(of_sources, sums, 9)
    _add_one(descents, sums, 11)


@kernel(cache=True)
def add_weights(offsets, ends, numbers, weights, first, given, sums):  # type: ignore[no-untyped-def]
    """Add the sums of weights, as unsigned integers of their bits."""
    one, two, twin_one, twin_two = int64(0), int64(0), int64(0), int64(0)
    count = int64(offsets[offsets.size - 1])
    for slot in range(cuda.grid(1), count, cuda.gridsize(1)):
        number = int64(numbers[slot])
        is_twin, bits = number >= given, uint64(number % given)
        word = uint64(weights[slot])
        x, y = _first_number(bits, word), _second_number(bits, word)
        if not is_twin:
            one, two = int64(one + x), int64(two + y)
        if is_twin or ends[slot] == first + _row_of(offsets, slot):
            twin_one, twin_two = int64(twin_one + x), int64(twin_two + y)
    _add_one(one, sums, 4)
    _add_one(two, sums, 5)
    _add_one(twin_one, sums, 6)
    _add_one(twin_two, sums, 7)


@kernel(cache=True)
def flag_inside(values, begin, low, high, flags):  # type: ignore[no-untyped-def]
    """Flag values, from `begin` on, in a range."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        flags[i] = 1 if low <= values[begin + i] < high else 0


@kernel(cache=True)
def keep_rows(offsets, begin, first, flags, places, out):  # type: ignore[no-untyped-def]
    """List the rows of flagged slots, plus `first`."""
    for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        if flags[i] != 0:
            out[places[i]] = first + _row_of(offsets, begin + i)


@kernel(cache=True)
def mark_others(ends, first, last, marks):  # type: ignore[no-untyped-def]
    """Mark the vertices outside of a range."""
    for slot in range(cuda.grid(1), ends.size, cuda.gridsize(1)):
        u = ends[slot]
        if not first <= u < last:
            marks[u] = 1


@kernel(cache=True)
def localize(ends, local):  # type: ignore[no-untyped-def]
    """Replace vertices by local numbers."""
    for slot in range(cuda.grid(1), ends.size, cuda.gridsize(1)):
        ends[slot] = local[ends[slot]]


@kernel(cache=True)
def lower(values, by):  # type: ignore[no-untyped-def]
    """Subtract a number from each value."""
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        values[place] = values[place] - by

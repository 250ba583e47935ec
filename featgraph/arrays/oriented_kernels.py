"""Kernels that turn edges towards the end of higher degree, and sum up rows of them."""

from featgraph._cuda import cuda, int64, kernel

__all__ = [
    "add_rows",
    "add_work",
    "begin_work",
    "cast",
    "fill_both",
    "find_long_rows",
    "find_repeated",
    "find_rows",
    "turn_upward",
]


@kernel(cache=True)
def turn_upward(  # type: ignore[no-untyped-def]
    sources, targets, order, count, degree_order, none, low, high, edge_ids
):
    """Set the places of each given edge's ends by degree, and its id from low to high.

    `order` has the given edge of each of `count` ids, times two, and one more for its
    reverse. A loop is put at row `none`, behind those of all vertices.
    """
    for slot in range(cuda.grid(1), count, cuda.gridsize(1)):
        place = order[slot]
        edge = place >> 1
        u, v = degree_order[sources[edge]], degree_order[targets[edge]]
        if place & 1 != 0:
            u, v = v, u
        if u > v:
            continue
        low[edge] = u if u < v else none
        high[edge] = v
        edge_ids[edge] = slot


@kernel(cache=True)
def find_repeated(rows, columns, found):  # type: ignore[no-untyped-def]
    """Set ``found[0]`` if a column stands in a row twice; both ascend."""
    for slot in range(cuda.grid(1) + 1, columns.size, cuda.gridsize(1)):
        if rows[slot] == rows[slot - 1] and columns[slot] == columns[slot - 1]:
            found[0] = 1


@kernel(cache=True)
def find_rows(offsets, rows):  # type: ignore[no-untyped-def]
    """Set the row of each slot."""
    for slot in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        low, high = int64(0), int64(offsets.size - 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if offsets[middle] <= slot:
                low = middle
            else:
                high = middle
        rows[slot] = low


@kernel(cache=True)
def cast(values, out):  # type: ignore[no-untyped-def]
    """Set each entry to a value of another type."""
    for place in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[place] = values[place]


@kernel(cache=True)
def add_rows(upper_offsets, lower_offsets, offsets):  # type: ignore[no-untyped-def]
    """Set where rows of both kinds begin together."""
    for row in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        offsets[row] = int64(upper_offsets[row]) + int64(lower_offsets[row])


@kernel(cache=True)
def fill_both(  # type: ignore[no-untyped-def]
    upper_offsets, upper_columns, upper_edges, upper_rows,
    lower_offsets, lower_columns, lower_slots, lower_rows, columns, edge_ids,
):  # fmt: skip
    """Fill rows of all neighbors: those below, then those above."""
    for slot in range(cuda.grid(1), upper_columns.size, cuda.gridsize(1)):
        place = lower_offsets[upper_rows[slot] + 1] + slot
        columns[place] = upper_columns[slot]
        edge_ids[place] = upper_edges[slot]
        place = upper_offsets[lower_rows[slot]] + slot
        columns[place] = lower_columns[slot]
        edge_ids[place] = upper_edges[lower_slots[slot]]


@kernel(cache=True)
def begin_work(offsets, work):  # type: ignore[no-untyped-def]
    """Set the work of each row to one, and what it has."""
    for row in range(cuda.grid(1), work.size, cuda.gridsize(1)):
        work[row] = int64(1) + int64(offsets[row + 1]) - int64(offsets[row])


@kernel(cache=True)
def add_work(offsets, columns, rows, work):  # type: ignore[no-untyped-def]
    """Add, for each row below, what that has from its place on."""
    for slot in range(cuda.grid(1), columns.size, cuda.gridsize(1)):
        cuda.atomic.add(work, columns[slot], int64(offsets[rows[slot] + 1]) - slot)


@kernel(cache=True)
def find_long_rows(offsets, work, least, found, count):  # type: ignore[no-untyped-def]
    """List rows that are long and have others to look at, in any order: row, work."""
    for row in range(cuda.grid(1), work.size, cuda.gridsize(1)):
        length = int64(offsets[row + 1]) - int64(offsets[row])
        if length >= least and work[row] > length + 1:
            place = cuda.atomic.add(count, 0, 1)
            found[place, 0] = row
            found[place, 1] = work[row]

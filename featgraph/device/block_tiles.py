"""Sums of outer products, and positive definite systems, in registers of a block.

The threads of a block hold one k x k matrix in registers: each thread has one tile of
8 x 8 entries, a tuple (`featgraph.cuda.tiles`). For a symmetric matrix, only tiles on
and below the diagonal are held. A sum of outer products stages rows in shared memory
and adds their products to all tiles (`add_products`); `solve_spd` factorises the matrix
in place, and shares one panel of tiles at a time through shared memory.

Systems that are not positive definite are solved by all threads with
`featgraph.device.linalg`.

`row` and `column` are the position of a thread's tile; -1 for a thread without one. If
a block has threads for several copies of the matrix, each copy is a *share*: it sums
some of the rows, and the shares are added at the end.
"""

from featgraph.cuda.dialect import anew, cuda, device_function, int32, uint32
from featgraph.cuda.tiles import (
    backward,
    divided,
    factored,
    load_piece,
    load_tile,
    minus_product,
    minus_turned,
    on_diagonal,
    plus_piece,
    plus_product,
    plus_tile,
    spread,
    store_piece,
    store_tile,
    turned,
)
from featgraph.device import linalg, warp

#: Side of a tile: a thread loads 2 * 8 numbers for 64 multiply-adds, and 64 sums fit
#: its registers even as float64.
SIDE = 8
#: Entries of a tile.
_ENTRIES = SIDE * SIDE


@device_function
def lower_place(thread, count, shares):
    """Return the index of a thread's share, and the row and column of its tile.

    The symmetric matrix has `count` tiles a side. Each of `shares` groups of threads
    holds all tiles, and sums a part of the rows. Tiles are numbered column by column:
    the columns that a factorisation has finished belong to whole warps, which idle.
    """
    tiles = count * (count + 1) // 2
    share, place = thread // tiles, thread % tiles
    column = 0
    while place >= count - column:
        place -= count - column
        column += 1
    if share >= shares:
        return int32(-1), int32(-1), int32(-1)
    return int32(share), int32(column + place), int32(column)


@device_function
def whole_place(thread, count, shares):
    """Return the same as `lower_place`, for a matrix that is not symmetric."""
    tiles = count * count
    share, place = thread // tiles, thread % tiles
    if share >= shares:
        return int32(-1), int32(-1), int32(-1)
    return int32(share), int32(place // count), int32(place % count)


@device_function
def zeros(zero):
    """Return a tile of zeros."""
    return spread(zero, _ENTRIES)


@device_function
def add_products(tile, rows, columns, share, count, shares, row, column):
    """Add to a tile the outer products of rows `share`, ``share + shares``, ...

    `rows` and `columns` have `count` staged rows each, of the left and right factors.
    """
    if row >= 0:
        for n in range(share, count, shares):
            a = load_piece(rows, n, row * SIDE, SIDE)
            b = load_piece(columns, n, column * SIDE, SIDE)
            tile = plus_product(tile, a, b)
    return tile


@device_function
def put_together(matrix, tile, share, shares, row, column, adds, mirrors):
    """Store the sum of all shares in a matrix; with `adds`, add it to the matrix.

    Shares are added in order, so that sums are reproducible. With `mirrors`, the upper
    triangle, which has no tiles, is filled, too. Synchronizes the block.
    """
    for turn in range(shares):
        if share == turn:
            if adds or turn > 0:
                tile = plus_tile(tile, matrix, row * SIDE, column * SIDE, SIDE)
            store_tile(matrix, row * SIDE, column * SIDE, SIDE, tile)
            if mirrors and turn == shares - 1 and row > column:
                store_tile(matrix, column * SIDE, row * SIDE, SIDE, turned(tile))
        cuda.syncthreads()


@device_function
def members(words, first, last):
    """Return the number of vertices from `first` up to `last`, excluded, in a set."""
    count = int32(0)
    for word in range(first >> 5, (last + 31) >> 5):
        left, right = max(first - (word << 5), 0), min(last - (word << 5), 32)
        bits = words[uint32(word)] >> uint32(left)
        # Two shifts, since one by all 32 bits would shift by none.
        beyond = uint32(32 - (right - left))
        bits = uint32(uint32(bits << (beyond >> 1)) << (beyond - (beyond >> 1)))
        count += int32(warp.count_bits(bits))
    return count


@device_function
def add_shares(tile, box, share, shares, place, tiles):
    """Add the tiles of all shares pairwise; the first share has the sum.

    Parameters
    ----------
    box : array of shape (shares // 2 * tiles, SIDE * SIDE)
        In shared memory.
    place, tiles : int
        The index of a thread's tile in its share, and the number of tiles.
    """
    while shares > 1:
        half = (shares + 1) >> 1
        if half <= share < shares:
            store_piece(box, (share - half) * tiles + place, 0, _ENTRIES, tile)
        cuda.syncthreads()
        if 0 <= share < shares - half:
            tile = plus_piece(tile, box, share * tiles + place, 0, _ENTRIES)
        cuda.syncthreads()
        shares = half
    return tile


@device_function
def leave_part(partials, part, tile, share, place, adds):
    """Store the tiles of a block's sum in row `part`; with `adds`, add them to it."""
    if share == 0:
        if adds:
            tile = plus_piece(tile, partials, part, place * _ENTRIES, _ENTRIES)
        store_piece(partials, part, place * _ENTRIES, _ENTRIES, tile)


@device_function
def leave_lower(reduced, k, count, entry, value):
    """Store an entry of a symmetric sum, and its mirror, in a flat k x k matrix.

    `entry` counts the entries of all tiles, tile by tile in the order of `lower_place`.
    """
    _, row, column = lower_place(entry // _ENTRIES, count, 1)
    i, f = row * SIDE + entry % _ENTRIES // SIDE, column * SIDE + entry % SIDE
    if i < k and f < k:
        reduced[uint32(i * k + f)] = value
        if row > column:
            reduced[uint32(f * k + i)] = value


@device_function
def leave_whole(reduced, k, count, entry, value):
    """Store an entry of a sum that is not symmetric: see `leave_lower`."""
    _, row, column = whole_place(entry // _ENTRIES, count, 1)
    i, f = row * SIDE + entry % _ENTRIES // SIDE, column * SIDE + entry % SIDE
    if i < k and f < k:
        reduced[uint32(i * k + f)] = value


@device_function
def plus_matrix(tile, matrix, row, column):
    """Add a padded matrix in memory: to each tile, the entries at its position."""
    if row >= 0:
        tile = plus_tile(tile, matrix, row * SIDE, column * SIDE, SIDE)
    return tile


@device_function
def plus_band(tile, panel, band, row, column):
    """Add a panel of SIDE rows in memory to the tiles of row `band`."""
    if row == band:
        tile = plus_tile(tile, panel, 0, column * SIDE, SIDE)
    return tile


@device_function
def plus_diagonal(tile, shift, one, row, column, k):
    """Add `shift` to the diagonal of a matrix, and `one` to it in the padding.

    So the padding, which is zero, becomes an identity matrix.
    """
    if row == column and row >= 0:
        left = k - row * SIDE
        tile = on_diagonal(
            tile,
            (
                shift,
                shift if left > 1 else one,
                shift if left > 2 else one,
                shift if left > 3 else one,
                shift if left > 4 else one,
                shift if left > 5 else one,
                shift if left > 6 else one,
                shift if left > 7 else one,
            ),
        )
    return tile


@device_function
def _load_along(array, row, column, down, right):
    """Return SIDE entries from a place on, each `down` rows and `right` columns on."""
    return (
        array[row, column],
        array[row + down, column + right],
        array[row + 2 * down, column + 2 * right],
        array[row + 3 * down, column + 3 * right],
        array[row + 4 * down, column + 4 * right],
        array[row + 5 * down, column + 5 * right],
        array[row + 6 * down, column + 6 * right],
        array[row + 7 * down, column + 7 * right],
    )


@device_function
def _store_along(array, row, column, down, right, values):
    """Store SIDE entries where `_load_along` loads them."""
    array[row, column] = values[0]
    array[row + down, column + right] = values[1]
    array[row + 2 * down, column + 2 * right] = values[2]
    array[row + 3 * down, column + 3 * right] = values[3]
    array[row + 4 * down, column + 4 * right] = values[4]
    array[row + 5 * down, column + 5 * right] = values[5]
    array[row + 6 * down, column + 6 * right] = values[6]
    array[row + 7 * down, column + 7 * right] = values[7]


@device_function
def _solve_rows(panel, half, place, size, thread, threads):
    """Divide the rows below the diagonal tile, and the right-hand side, by its factor.

    The panel is transposed: a row of the matrix is a column of `panel`.
    """
    for row in range(place + SIDE + thread, size + 1, threads):
        first, column, down, right = half, row, 1, 0
        if row == size:
            first, column, down, right = 2 * SIDE, place, 0, 1
        found = _load_along(panel, first, column, down, right)
        found = divided(found, panel, half, place, SIDE)
        _store_along(panel, first, column, down, right, found)


@device_function
def _take_solved(panel, half, place, size, thread, threads):
    """Subtract the products of solved unknowns from later right-hand sides."""
    for row in range(place + SIDE + thread, size, threads):
        value = panel[2 * SIDE, row]
        for n in range(SIDE):
            value -= panel[half + n, row] * panel[2 * SIDE, place + n]
        panel[2 * SIDE, row] = value


@device_function
def solve_spd(tile, panel, tiles, row, column):
    """Solve a positive definite system by Cholesky; overwrites the right-hand side.

    Each step factors a tile of the diagonal, solves the rows below it, one per thread,
    and subtracts their products from all later tiles. It takes two barriers.

    Parameters
    ----------
    tile : tuple
        The thread's tile, on or below the diagonal of the matrix.
    panel : array of shape (2 * SIDE + 1, tiles * SIDE)
        In shared memory; its last row is the right-hand side. Steps alternate between
        the two halves of the other rows.
    tiles : int
        Tiles in a row of the matrix.
    """
    right, size = 2 * SIDE, tiles * SIDE
    thread, threads = int32(cuda.threadIdx.x), int32(cuda.blockDim.x)
    for step in range(tiles):
        half, place = (step & 1) * SIDE, step * SIDE
        if column == step:
            if row == step:
                tile = factored(tile)
                store_tile(panel, half, place, SIDE, turned(tile))
            else:
                store_tile(panel, half, row * SIDE, SIDE, turned(tile))
        cuda.syncthreads()
        _solve_rows(panel, half, place, size, thread, threads)
        cuda.syncthreads()
        if column == step and row > step:
            tile = turned(load_tile(panel, half, row * SIDE, SIDE))
        if column > step:
            # `anew` keeps the loop from being unrolled: it would not fit the
            # instruction cache.
            for n in range(half, half + anew(SIDE)):
                a = load_piece(panel, n, row * SIDE, SIDE)
                b = load_piece(panel, n, column * SIDE, SIDE)
                tile = minus_product(tile, a, b)
        _take_solved(panel, half, place, size, thread, threads)
    cuda.syncthreads()
    for back in range(tiles):
        step = tiles - 1 - back
        if row == step and column == step:
            solved = load_piece(panel, right, step * SIDE, SIDE)
            store_piece(panel, right, step * SIDE, SIDE, backward(solved, tile))
        cuda.syncthreads()
        if row == step and 0 <= column < step:
            solved = load_piece(panel, right, step * SIDE, SIDE)
            left = load_piece(panel, right, column * SIDE, SIDE)
            left = minus_turned(left, tile, solved)
            store_piece(panel, right, column * SIDE, SIDE, left)
        cuda.syncthreads()


@device_function
def _sync():
    """Synchronize the block."""
    cuda.syncthreads()


_functions = linalg.make(device_function, _sync)

solve_general = _functions["solve_general"]
inverse_general = _functions["inverse_general"]
inverse_spd = _functions["inverse_spd"]

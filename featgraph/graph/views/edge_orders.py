"""Orders and groups of edges, for the schedules of exclusive edge functions.

Edges are row numbers: edge e leads from ``sources[e]`` to ``targets[e]``. Two edges
conflict if they share a vertex at an end where the function writes. `Sides` specifies
these ends: "uv" (both, which may be the same vertex), "u" (sources) or "v" (targets).
Parallel edges conflict. A self-loop has one end.

``given_order``                     the serial order of edges
``levels``                          groups that keep this order at each vertex
``matching_edges``                  maximal matchings, one after another
``matching_nodes``                  the same matchings, by blocks of T vertices
``subgraph_matching``               maximal matchings of each block by itself
``diagonal``, ``block_diagonal``    edges, or blocks of them, with equal v - u
``by_target``                       edges grouped by target
``blocks``                          S rounds of S blocks without common rows and columns
``rows``                            the edges of each vertex at the end that conflicts
``turn_rows``                       the same edges, in the order of memory
``tickets``                         the turn of each edge at its ends
``ends_of``, ``degrees_of``         both ends of each edge in an order; edges at an end
``first_backward``                  check that edges lead from the first to the second
                                    side

All but the first and the last take the edges in an *order*: an array of distinct row
numbers. Three loops over edges do the work, each in O(E): a stable counting sort
(`_sorted`), levels, and a first-fit edge coloring. Maximal matchings that are chosen
greedily in a fixed order are the colors of a first-fit coloring in that order, so one
pass finds all of them, at most 2 d - 1 for a highest degree of d.

Arguments are not checked: schedules pass those of a valid graph.

A graph with two sides has vertices below ``first`` (sources), and from ``first`` on
(targets). Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit
from featgraph.graph.building.drawing_cpu import philox
from featgraph.graph.building.kernels import count_one, fill_columns, order_of, to_ends

__all__ = [
    "EdgeGroups",
    "Sides",
    "block_diagonal",
    "blocks",
    "by_target",
    "degrees_of",
    "diagonal",
    "ends_of",
    "first_backward",
    "given_order",
    "levels",
    "matching_edges",
    "matching_nodes",
    "rows",
    "subgraph_matching",
    "tickets",
    "turn_rows",
]

_Array: TypeAlias = NDArray[Any]
#: The ends at which edges conflict.
Sides = Literal["uv", "u", "v"]

#: Purpose of random words, part of Philox's counter; `building.drawing` uses 1 to 5.
_ORDER = np.uint64(6)
_HALF, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
#: Streams of one seed: edges, and the vertices of either side.
_EDGES, _FIRST, _SECOND, _STREAMS = 0, 1, 2, 3
#: Most values per bucket of a shuffle, on average: a bucket fits an L2 cache.
_BUCKET = 1 << 15

#: Memory for bitsets of used colors, in bytes. The vertices of highest degree have one;
#: the used colors of all other vertices are lists.
_BITSET_BYTES = 1 << 29


class EdgeGroups(NamedTuple):
    """Edges in groups, and groups in rounds.

    Attributes
    ----------
    order : ndarray of int32 or int64, shape (N,)
        Edges, group by group.
    groups : ndarray of int64, shape (G + 1,)
        Group g is ``order[groups[g]:groups[g + 1]]``.
    rounds : ndarray of int64, shape (R + 1,), or None
        Round r is the groups from ``rounds[r]`` to ``rounds[r + 1]``. None: the edges
        of a group may run at once, and groups run one after another.
        `blocks`, `block_diagonal` and `rows`: the groups of a round may run at once,
        and the edges of a group run one after another. `matching_nodes` and
        `subgraph_matching`: a round is a block of T vertices; its groups run one after
        another, and the edges of a group may run at once.
    vertices : ndarray of int32, shape (V - first,), or None
        `matching_nodes` and `subgraph_matching`: the second side, where block r is
        ``vertices[r * T:(r + 1) * T]``.
    """

    order: NDArray[Any]
    groups: NDArray[np.int64]
    rounds: NDArray[np.int64] | None = None
    vertices: NDArray[np.int32] | None = None


def given_order(given_index: _Array, seed: int | None = 0) -> NDArray[Any]:
    """Order edges as they were given, followed by their twins; shuffle this order.

    Parameters
    ----------
    given_index : ndarray of int32 or int64, shape (E,)
        The position of each edge among the given ones, `Graph.given_index`; distinct.
    seed : int, optional
        0 <= seed < 2**64; None: do not shuffle.

    Returns
    -------
    ndarray of int32 or int64, shape (E,)
        Row numbers of edges.
    """
    order = order_of(given_index)
    return order if seed is None else _shuffled(order, seed, _EDGES)


def levels(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> EdgeGroups:
    """Group edges by level.

    The level of an edge is one more than the highest level of the edges before it at
    its ends. Groups are matchings (not maximal), and each vertex has its edges in the
    order. Running one group after another therefore equals running the order serially.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    order : ndarray of int32 or int64, shape (N,)
    vertex_count : int
    sides : {"uv", "u", "v"}, optional

    Returns
    -------
    EdgeGroups
        Without rounds.
    """
    level = np.empty(order.size, np.int32)
    last = np.zeros(vertex_count, np.int32)
    _find_levels(*ends_of(sources, targets, order, sides), last, level)
    return EdgeGroups(*_sorted(level, order))


def matching_edges(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> EdgeGroups:
    """Group edges into maximal matchings, each from the edges left by earlier ones.

    Matchings are chosen greedily in the order. Parameters and result are as in
    `levels`.
    """
    ends = ends_of(sources, targets, order, sides)
    colors = _colors(*ends, np.zeros(vertex_count, np.int32))
    return EdgeGroups(*_sorted(colors, order))


def matching_nodes(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    first: int,
    block_vertices: int,
) -> EdgeGroups:
    """Cut the groups of `matching_edges` by blocks of vertices of the second side.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
        Each edge leads from the first side to the second.
    order : ndarray of int32 or int64, shape (N,)
    vertex_count : int
    first : int
        The number of vertices of the first side.
    block_vertices : int
        T. Blocks are consecutive vertices.

    Returns
    -------
    EdgeGroups
        A round for each block, with `vertices`. Groups without edges are left out.
    """
    vertices = np.arange(first, vertex_count, dtype=np.int32)
    ends = ends_of(sources, targets, order)
    colors = _colors(*ends, np.zeros(vertex_count, np.int32))
    block = _take(_block_of(vertices, vertex_count, block_vertices), ends[1])
    return _in_blocks(order, block, colors, vertices, block_vertices)


def subgraph_matching(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    first: int,
    block_vertices: int,
) -> EdgeGroups:
    """Group the edges of each block of the second side into maximal matchings.

    Blocks are T vertices each, sorted by falling degree. Parameters and result are
    those of `matching_nodes`.
    """
    ends = _take(targets, order)
    degree = degrees_of(ends, vertex_count)[first:]
    falling = order_of(degree.max(initial=0) - degree)
    vertices = (first + falling).astype(np.int32)
    block = _block_of(vertices, vertex_count, block_vertices)
    by_block, _ = _sorted(_take(block, ends), order)
    u, v = ends_of(sources, targets, by_block)
    colors = _colors(u, v, block)
    of = _take(block, v)
    return _in_blocks(by_block, of, colors, vertices, block_vertices)


def diagonal(sources: _Array, targets: _Array, order: _Array) -> EdgeGroups:
    """Group edges by v - u, in falling order.

    Parallel edges are on one diagonal: the k-th of them is in its k-th group.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
        Each edge leads from the first side to the second.
    order : ndarray of int32 or int64, shape (N,)

    Returns
    -------
    EdgeGroups
        Without rounds and without empty groups.
    """
    made, _ = _sorted(_take(sources, order), order)
    u, v = ends_of(sources, targets, made)
    made, along = _by_diagonal(made, u - v)
    copies = np.zeros(made.size, np.int32)
    _count_copies(*ends_of(sources, targets, made), copies)
    if copies.any():
        places, _ = _sorted(copies, np.arange(made.size))
        places, along = _by_diagonal(places, along[places])
        made, copies = made[places], copies[places]
    return EdgeGroups(made, _begins(along, copies))


def block_diagonal(
    sources: _Array, targets: _Array, order: _Array, first: int, block_vertices: int
) -> EdgeGroups:
    """Group edges by blocks of T x T, and blocks by diagonals, in falling order.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
        Each edge leads from the first side to the second.
    order : ndarray of int32 or int64, shape (N,)
    first : int
        The number of vertices of the first side.
    block_vertices : int
        T.

    Returns
    -------
    EdgeGroups
        A round for each diagonal of blocks, a group for each block that has edges.
        Edges of one target are adjacent within their group, in the order.
    """
    made, _ = _sorted(_take(targets, order) - first, order)
    made, _ = _sorted(_take(sources, made) // block_vertices, made)
    u, v = ends_of(sources, targets, made)
    made, along = _by_diagonal(
        made, u // block_vertices - (v - first) // block_vertices
    )
    groups = _begins(along, _take(sources, made) // block_vertices)
    return EdgeGroups(made, groups, np.searchsorted(groups, _begins(along)))


def by_target(targets: _Array, order: _Array) -> _Array:
    """Return the edges grouped by target, in the given order within a target."""
    return _sorted(_take(targets, order), order)[0]


def blocks(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    first: int,
    parts: int,
    seed: int | None = 0,
) -> EdgeGroups:
    """Cut both sides into S parts, and group edges by S rounds of S blocks.

    Each side is shuffled, and cut into parts with about equal numbers of edges.
    Block i of round r has the edges from part i to part (i + r) mod S: the blocks of a
    round have no vertex in common.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
        Each edge leads from the first side to the second.
    order : ndarray of int32 or int64, shape (N,)
    vertex_count : int
    first : int
        The number of vertices of the first side.
    parts : int
        S.
    seed : int, optional
        0 <= seed < 2**64; None: the sides are not shuffled.

    Returns
    -------
    EdgeGroups
        S rounds of S groups each, which may be empty. Groups keep the order of edges.
    """
    part = np.empty(vertex_count, np.int32)
    u, v = ends_of(sources, targets, order)
    for ends, begin, end, stream in (
        (u, 0, first, _FIRST),
        (v, first, vertex_count, _SECOND),
    ):
        of = np.arange(begin, end)
        of = of if seed is None else _shuffled(of, seed, stream)
        degree = degrees_of(ends, vertex_count)[of]
        middle = np.cumsum(degree) - degree / 2
        cut = middle * (parts / max(order.size, 1))
        part[of] = np.minimum(cut, parts - 1).astype(np.int32)
    block = np.empty(order.size, np.int32)
    _find_blocks(u, v, part, parts, block)
    made, groups = _sorted(block, order, parts * parts)
    return EdgeGroups(made, groups, np.arange(0, parts * parts + 1, parts))


def rows(
    sources: _Array, targets: _Array, order: _Array, sides: Literal["u", "v"]
) -> EdgeGroups:
    """Group edges by the vertex at the end that conflicts, by falling degree.

    Each vertex keeps the order of its edges, so the result equals that of the serial
    order.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    order : ndarray of int32 or int64, shape (N,)
    sides : {"u", "v"}
        The end that conflicts.

    Returns
    -------
    EdgeGroups
        One round, with a group for each vertex that has edges.
    """
    ends = _take(sources if sides == "u" else targets, order)
    counts = degrees_of(ends, int(ends.max(initial=-1)) + 1)
    place = np.empty(counts.size, np.int32)  # vertices without edges come last
    place[order_of(counts.max(initial=0) - counts)] = np.arange(counts.size)
    made, groups = _sorted(_take(place, ends), order)
    return EdgeGroups(made, groups, np.array([0, groups.size - 1]))


def tickets(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> NDArray[np.int32]:
    """Count the earlier edges at both ends of each edge.

    If each edge waits until that number of edges has run at each of its ends, the
    result equals that of the serial order.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    order : ndarray of int32 or int64, shape (N,)
    vertex_count : int
    sides : {"uv", "u", "v"}, optional

    Returns
    -------
    ndarray of int32, shape (N, 2)
        Row i: the turns of ``order[i]`` at u and at v; -1 at an end without conflicts.
        Both turns of a self-loop are equal. Each column is contiguous in memory.
    """
    turns = np.empty((2, order.size), np.int32).T
    taken = np.zeros(vertex_count, np.int32)
    _take_tickets(*ends_of(sources, targets, order, sides), taken, turns)
    if sides != "uv":
        turns[:, "vu".index(sides)] = -1
    return turns


@jit
def turn_rows(targets: _Array, groups: _Array, order: _Array) -> None:
    """Sort the edges of each vertex, and rotate them so that the first stays first.

    Parameters
    ----------
    targets : ndarray of int32, shape (E,)
        The target of each edge; ascending.
    groups, order : ndarray
        Results of `rows` for the targets of all edges; `order` is modified.
    """
    for group in range(groups.size - 1):
        first, count = groups[group], groups[group + 1] - groups[group]
        begin = row = np.int64(order[first])
        while row > 0 and targets[row - 1] == targets[begin]:
            row -= 1
        for i in range(count):
            order[first + i] = row + (begin - row + i) % count


@jit
def first_backward(sources: _Array, targets: _Array, first: int) -> int:
    """Find the first edge that does not lead from the first side to the second.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    first : int
        The number of vertices of the first side.

    Returns
    -------
    int
        The row number of the edge; -1 without one.
    """
    for e in range(sources.size):
        if sources[e] >= first or targets[e] < first:
            return e
    return -1


def ends_of(
    sources: _Array, targets: _Array, order: _Array, sides: Sides = "uv"
) -> tuple[_Array, _Array]:
    """Return both ends of each edge in the order; for one side, that end twice."""
    u = _take(sources if "u" in sides else targets, order)
    return u, _take(targets, order) if sides == "uv" else u


def degrees_of(ends: _Array, vertex_count: int) -> NDArray[np.int64]:
    """Count the edges of each vertex at one end."""
    degree = np.zeros(vertex_count, np.int64)
    count_one(ends, degree)
    return degree


def _shuffled(values: _Array, seed: int, stream: int) -> _Array:
    """Shuffle values by buckets, each of which fits a cache.

    Random words come from Philox4x32-10, as functions of seed, stream and place only:
    the order does not depend on the version of NumPy.
    """
    made = np.empty_like(values)
    _shuffle(np.uint64(seed), stream, np.empty(values.size, np.uint32), values, made)
    return made


def _sorted(
    keys: _Array, values: _Array, key_count: int | None = None
) -> tuple[_Array, NDArray[np.int64]]:
    """Sort values stably by nonnegative keys; return them, and the begin of each key.

    The default of `key_count` is the highest key plus one.
    """
    count = int(keys.max(initial=-1)) + 1 if key_count is None else key_count
    begins = np.zeros(count + 1, np.int64)
    made = np.empty_like(values)
    count_one(keys, begins)
    to_ends(begins)
    fill_columns(keys, values, begins, made)
    return made, begins


def _by_diagonal(values: _Array, along: _Array) -> tuple[_Array, _Array]:
    """Sort values stably by integers of any sign; return both, sorted."""
    least = along.min(initial=0)
    made, begins = _sorted(along - least, values)
    return made, np.repeat(np.arange(begins.size - 1) + least, np.diff(begins))


def _begins(*keys: _Array) -> NDArray[np.int64]:
    """Return the begins of runs of equal keys, and the end of the last one."""
    is_new = np.zeros(keys[0].size, np.bool_)
    is_new[:1] = True
    for key in keys:
        is_new[1:] |= key[1:] != key[:-1]
    return np.append(np.flatnonzero(is_new), is_new.size)


def _block_of(vertices: _Array, vertex_count: int, size: int) -> NDArray[np.int32]:
    """Return the block of each vertex; 0 on the first side."""
    block = np.zeros(vertex_count, np.int32)
    block[vertices] = np.arange(vertices.size) // size
    return block


def _in_blocks(
    order: _Array, block: _Array, colors: _Array, vertices: _Array, size: int
) -> EdgeGroups:
    """Group edges by block and color, both given in the order of `order`."""
    places, _ = _sorted(colors, np.arange(order.size))
    count = -(-vertices.size // size)
    places, blocks_begin = _sorted(block[places], places, count)
    groups = _begins(block[places], colors[places])
    rounds = np.searchsorted(groups, blocks_begin)
    return EdgeGroups(order[places], groups, rounds, vertices)


def _colors(ends: _Array, others: _Array, block: _Array) -> NDArray[np.int32]:
    """Color edges first-fit, each with the least color that is unused at its ends.

    Parameters
    ----------
    ends, others : ndarray of int32, shape (N,)
        The ends of each edge, in order.
    block : ndarray of int32, shape (V,)
        The block of each vertex in `others`. Blocks are colored independently, and
        edges are in the order of blocks.
    """
    degree = degrees_of(ends, block.size) + degrees_of(others, block.size)
    # Fewer than degree(u) + degree(v) colors are used at the ends of an edge.
    bound = int((_take(degree, ends) + _take(degree, others)).max(initial=0))
    words = bound // 64 + 1
    room = min(block.size, _BITSET_BYTES // (8 * words))
    row = np.full(block.size, room, np.int32)
    row[order_of(degree.max(initial=0) - degree)[:room]] = np.arange(room)
    lists = np.append(0, np.cumsum(np.where(row == room, degree, 0)))
    colors = np.empty(ends.size, np.int32)
    _color(
        ends,
        others,
        block,
        row,
        np.zeros((room + 1, words), np.uint64),
        lists,
        np.empty(lists[-1], np.int32),
        colors,
    )
    return colors


@jit
def _draw_words(seed: Any, stream: Any, words: _Array) -> None:
    """Draw a word for each place; four adjacent words come from one counter."""
    for i in range(0, words.size, 4):
        block = np.uint64(i // 4)
        low, high = block & _MASK, block >> _HALF
        drawn = philox(low, high, stream, _ORDER, seed & _MASK, seed >> _HALF)
        for j in range(min(4, words.size - i)):
            words[i + j] = drawn[j]


@jit
def _shuffle(
    seed: Any, stream: int, words: _Array, values: _Array, made: _Array
) -> None:
    """Shuffle uniformly, up to 32 bits per word (Rao, 1961; Sandelius, 1962)."""
    buckets = 1
    while buckets * _BUCKET < values.size:
        buckets *= 2
    ends = np.zeros(buckets, np.int64)
    _draw_words(seed, np.uint64(stream), words)
    # The upper half of the product of a random word and n is a number below n.
    for i in range(values.size):
        words[i] = np.uint64(words[i]) * np.uint64(buckets) >> _HALF
        ends[words[i]] += 1
    to_ends(ends)
    for i in range(values.size - 1, -1, -1):
        ends[words[i]] -= 1
        made[ends[words[i]]] = values[i]
    for b in range(buckets):
        begin = ends[b]
        end = ends[b + 1] if b + 1 < buckets else values.size
        # New words, from a stream of the bucket: numbers of buckets have replaced the
        # first ones.
        _draw_words(seed, np.uint64(stream + _STREAMS * (b + 1)), words[begin:end])
        for i in range(end - 1, begin, -1):
            chosen = np.uint64(words[i]) * np.uint64(i - begin + 1) >> _HALF
            other = begin + np.int64(chosen)
            made[i], made[other] = made[other], made[i]


@jit
def _take(values: _Array, places: _Array) -> _Array:
    """Return ``values[places]``, in a third of the time of NumPy's indexing."""
    taken = np.empty(places.size, values.dtype)
    for i in range(places.size):
        taken[i] = values[places[i]]
    return taken


@jit
def _find_levels(ends: _Array, others: _Array, last: _Array, level: _Array) -> None:
    """Set the level of each edge; `last` has the number of levels at each vertex."""
    for i in range(level.size):
        u, v = ends[i], others[i]
        level[i] = max(last[u], last[v])
        last[u] = last[v] = level[i] + 1


@jit
def _take_tickets(ends: _Array, others: _Array, taken: _Array, turns: _Array) -> None:
    """Set the turns of each edge; `taken` counts the edges at each vertex so far."""
    for i in range(ends.size):
        u, v = ends[i], others[i]
        turns[i, 0], turns[i, 1] = taken[u], taken[v]
        taken[u] += 1
        if u != v:
            taken[v] += 1


@jit
def _find_blocks(
    ends: _Array, others: _Array, part: _Array, parts: int, block: _Array
) -> None:
    """Set the block of each edge, numbered by round, then by the part of its source."""
    for i in range(block.size):
        row = part[ends[i]]
        turn = part[others[i]] - row
        block[i] = (turn + parts if turn < 0 else turn) * parts + row


@jit
def _count_copies(sources: _Array, targets: _Array, copies: _Array) -> None:
    """Count the equal pairs directly before each pair."""
    for i in range(1, copies.size):
        if sources[i] == sources[i - 1] and targets[i] == targets[i - 1]:
            copies[i] = copies[i - 1] + 1


@jit
def _color(
    ends: _Array,
    others: _Array,
    block: _Array,
    row: _Array,
    bits: _Array,
    lists: _Array,
    used: _Array,
    colors: _Array,
) -> None:
    """Find the colors of `_colors`.

    Parameters
    ----------
    row : array of int32, shape (V,)
        The row of `bits` with the used colors of a vertex. For vertices of the last
        row, the used colors are in `used`, from ``lists[v]`` on.
    """
    last, full, one = bits.shape[0] - 1, ~np.uint64(0), np.uint64(1)
    now = np.zeros(row.size, np.int32)  # the block for which colors of v are stored
    # Number of colors in the list of v, or the first word of its row that is not full.
    state = np.zeros(row.size, np.int64)
    seen = np.full(bits.shape[1] * 64, -1, np.int64)
    for i in range(colors.size):
        pair = ends[i], others[i]
        color = 0
        for x in pair:
            if now[x] != block[pair[1]]:
                now[x], state[x] = block[pair[1]], 0
                if row[x] != last:
                    bits[row[x], :] = 0
            if row[x] != last:
                color = max(color, state[x] * 64)
            else:
                for at in range(lists[x], lists[x] + state[x]):
                    seen[used[at]] = i
        u, v, word = row[pair[0]], row[pair[1]], color >> 6
        free = ~(bits[u, word] | bits[v, word])
        while True:
            while free == 0:
                word += 1
                free = ~(bits[u, word] | bits[v, word])
            # The place of the lowest bit: frexp is exact for a power of two.
            lowest = free & (~free + one)
            color = word * 64 + math.frexp(np.float64(lowest))[1] - 1
            if seen[color] != i:
                break
            free ^= lowest
        colors[i] = color
        for x in pair:
            if row[x] == last:
                used[lists[x] + state[x]] = color
                state[x] += 1
                continue
            bits[row[x], color >> 6] |= one << np.uint64(color & 63)
            while bits[row[x], state[x]] == full:
                state[x] += 1

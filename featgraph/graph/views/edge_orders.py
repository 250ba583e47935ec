"""Orders and groups of edges, for edge functions that hold both ends of an edge.

Edges are row numbers: edge e leads from ``sources[e]`` to ``targets[e]``. Two edges
conflict if they share a vertex at an end where the function writes. `Sides` names these
ends: "uv" (both; the two ends may meet at one vertex), "u" (sources) or "v" (targets).
Parallel edges conflict. A self-loop has one end.

``given_order``, ``shuffled``       the order in which edges run serially
``levels``                          groups that keep this order at each vertex
``matching_edges``                  maximal matchings, one after another
``matching_nodes``                  the same matchings, by blocks of T vertices
``subgraph_matching``               maximal matchings of each block by itself
``diagonal``, ``block_diagonal``    edges, or blocks of them, with equal v - u
``blocks``                          S rounds of S blocks without common rows and columns
``rows``                            the edges of each vertex at the end that conflicts
``tickets``                         the turn of each edge at its ends
``first_backward``                  the check that a graph is of two sides

All but the first two take the edges of an *order*: any array of distinct row numbers.
They are made of three loops over edges, each O(E): a stable counting sort (`_sorted`),
levels, and a first-fit edge colouring. Maximal matchings that are taken greedily in a
fixed order are the colours of a first-fit colouring in that order, so one pass finds
all of them, at most 2 d - 1 for a highest degree of d.

Two sides: vertices before ``first`` (sources), and those from ``first`` on (targets).
Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.arrays.drawing_cpu import philox
from featgraph.graph.building.jit import jit
from featgraph.graph.building.kernels import count_one, fill_columns, to_ends
from featgraph.graph.building.sorting import order_of

__all__ = [
    "EdgeGroups",
    "Sides",
    "block_diagonal",
    "blocks",
    "diagonal",
    "first_backward",
    "given_order",
    "levels",
    "matching_edges",
    "matching_nodes",
    "rows",
    "shuffled",
    "subgraph_matching",
    "tickets",
]

_Array: TypeAlias = NDArray[Any]
#: The ends at which edges conflict.
Sides = Literal["uv", "u", "v"]

#: What Philox draws words for: `featgraph.arrays.drawing` has the numbers before.
_ORDER = np.uint64(6)
_HALF, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
#: Streams of one seed: edges, and the vertices of either side.
_EDGES, _FIRST, _SECOND = 0, 1, 2

#: Bytes of the bitsets of used colours, of the vertices of highest degree. The colours
#: of all other vertices are lists.
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
        `blocks`, `block_diagonal` and `rows`: the groups of a round may run at once, in
        each of them the edges one after another. `matching_nodes` and
        `subgraph_matching`: a round is a block of T vertices, whose groups run one
        after another and have edges that may run at once.
    vertices : ndarray of int32, shape (V - first,), or None
        `matching_nodes` and `subgraph_matching`: the second side, where block r is
        ``vertices[r * T:(r + 1) * T]``.
    """

    order: NDArray[Any]
    groups: NDArray[np.int64]
    rounds: NDArray[np.int64] | None = None
    vertices: NDArray[np.int32] | None = None


def given_order(given_index: _Array, seed: int | None = 0) -> NDArray[Any]:
    """Order edges as they were given, twins behind them, and shuffle this order.

    Parameters
    ----------
    given_index : ndarray of int32 or int64, shape (E,)
        The given row of each edge, as `Graph.given_index` has it: distinct numbers.
    seed : int, optional
        0 <= seed < 2**64; None: do not shuffle.

    Returns
    -------
    ndarray of int32 or int64, shape (E,)
        Row numbers of edges.
    """
    order = order_of(given_index)
    return order if seed is None else order[shuffled(order.size, seed)]


def shuffled(count: int, seed: int, stream: int = _EDGES) -> NDArray[Any]:
    """Return a permutation of the numbers below `count`.

    Numbers are sorted by random words of Philox4x32-10, which are a function of seed,
    stream and number alone: the permutation is the same with any version of NumPy.

    Parameters
    ----------
    count : int
    seed : int
        0 <= seed < 2**64.
    stream : int, optional
        Permutations of different streams are independent.

    Returns
    -------
    ndarray of int32 (int64 from 2**31 on), shape (count,)

    Notes
    -----
    Of two equal words, the smaller number comes first: with 100 million numbers, one in
    a hundred has such a neighbor.
    """
    words = np.empty(count, np.uint32)
    _draw_words(np.uint64(seed), np.uint64(stream), words)
    return order_of(words)


def levels(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> EdgeGroups:
    """Group edges by level: one more than the latest level before at their ends.

    Groups are matchings (not maximal), and each vertex has its edges in the order.
    Running one group after another therefore equals running the order serially.

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
    _find_levels(*_ends(sources, targets, sides), order, last, level)
    return EdgeGroups(*_sorted(level, order))


def matching_edges(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> EdgeGroups:
    """Take maximal matchings of the edges that are left, greedily in the order.

    Parameters and result are those of `levels`.
    """
    colors = _colors(
        *_ends(sources, targets, sides), order, np.zeros(vertex_count, np.int32)
    )
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
    colors = _colors(sources, targets, order, np.zeros(vertex_count, np.int32))
    block = _block_of(vertices, vertex_count, block_vertices)[targets[order]]
    return _in_blocks(order, block, colors, vertices, block_vertices)


def subgraph_matching(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    first: int,
    block_vertices: int,
) -> EdgeGroups:
    """Take maximal matchings of each block of vertices of the second side by itself.

    Blocks are T vertices each, sorted by falling degree. Parameters and result are
    those of `matching_nodes`.
    """
    degree = np.zeros(vertex_count, np.int64)
    count_one(targets[order], degree)
    degree = degree[first:]
    falling = order_of(degree.max(initial=0) - degree)
    vertices = (first + falling).astype(np.int32)
    block = _block_of(vertices, vertex_count, block_vertices)
    by_block = _sorted(block[targets[order]], order)[0]
    colors = _colors(sources, targets, by_block, block)
    of = block[targets[by_block]]
    return _in_blocks(by_block, of, colors, vertices, block_vertices)


def diagonal(sources: _Array, targets: _Array, order: _Array) -> EdgeGroups:
    """Group edges by v - u, in falling order.

    Of parallel edges, which are on one diagonal, the k-th is in the k-th group of it.

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
    made = _sorted(sources[order], order)[0]
    made, along = _by_diagonal(made, sources[made] - targets[made])
    copies = np.zeros(made.size, np.int32)
    _count_copies(sources[made], targets[made], copies)
    if copies.any():
        places = _sorted(copies, np.arange(made.size))[0]
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
        Those of one target are neighbors within their group.
    """
    made = _sorted(targets[order] - first, order)[0]
    made = _sorted(sources[made] // block_vertices, made)[0]
    u, v = sources[made] // block_vertices, (targets[made] - first) // block_vertices
    made, along = _by_diagonal(made, u - v)
    groups = _begins(along, sources[made] // block_vertices)
    return EdgeGroups(made, groups, np.searchsorted(groups, _begins(along)))


def blocks(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    first: int,
    parts: int,
    seed: int | None = 0,
) -> EdgeGroups:
    """Cut both sides into S parts, and take the S x S blocks in S rounds.

    Each side is shuffled, and cut where the parts have about equal numbers of edges.
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
        S rounds of S groups each; groups may be empty. The edges of one target are
        neighbors within their group, in the order.
    """
    part = np.empty(vertex_count, np.int32)
    for ends, begin, end, stream in (
        (sources, 0, first, _FIRST),
        (targets, first, vertex_count, _SECOND),
    ):
        degree = np.zeros(vertex_count, np.int64)
        count_one(ends[order], degree)
        degree = degree[begin:end]
        count = end - begin
        of = np.arange(count) if seed is None else shuffled(count, seed, stream)
        middle = np.cumsum(degree[of]) - degree[of] / 2
        cut = middle * (parts / max(order.size, 1))
        part[begin + of] = np.minimum(cut, parts - 1).astype(np.int32)
    by_target = _sorted(targets[order] - first, order)[0]
    block = np.empty(order.size, np.int32)
    _find_blocks(sources, targets, by_target, part, parts, block)
    made, groups = _sorted(block, by_target, parts * parts)
    return EdgeGroups(made, groups, np.arange(0, parts * parts + 1, parts))


def rows(
    sources: _Array, targets: _Array, order: _Array, sides: Literal["u", "v"]
) -> EdgeGroups:
    """Group edges by the end that conflicts; vertices of most edges come first.

    Each vertex has its edges in the order, so this equals running the order serially.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    order : ndarray of int32 or int64, shape (N,)
    sides : {"u", "v"}

    Returns
    -------
    EdgeGroups
        One round, with a group for each vertex that has edges.
    """
    ends = sources if sides == "u" else targets
    counts = np.bincount(ends[order])
    place = np.empty(counts.size, np.int32)
    place[order_of(counts.max(initial=0) - counts)] = np.arange(counts.size)
    made, groups = _without_empty(*_sorted(place[ends[order]], order))
    return EdgeGroups(made, groups, np.array([0, groups.size - 1]))


def tickets(
    sources: _Array,
    targets: _Array,
    order: _Array,
    vertex_count: int,
    sides: Sides = "uv",
) -> NDArray[np.int32]:
    """Count the edges before each edge at its ends.

    An edge that waits until so many have run at both ends runs as in the serial order.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    order : ndarray of int32 or int64, shape (N,)
    vertex_count : int
    sides : {"uv", "u", "v"}, optional

    Returns
    -------
    ndarray of int32, shape (N, 2)
        Turns of ``order[i]`` at u and at v; -1 at an end without conflicts. The two
        turns of a self-loop are one.
    """
    turns = np.empty((order.size, 2), np.int32)
    taken = np.zeros(vertex_count, np.int32)
    _take_tickets(*_ends(sources, targets, sides), order, taken, turns)
    if sides != "uv":
        turns[:, "vu".index(sides)] = -1
    return turns


@jit
def first_backward(sources: _Array, targets: _Array, first: int) -> int:
    """Return the first edge that does not lead from side to side; -1 if all do.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    first : int
        The number of vertices of the first side.
    """
    for e in range(sources.size):
        if sources[e] >= first or targets[e] < first:
            return e
    return -1


def _ends(sources: _Array, targets: _Array, sides: Sides) -> tuple[_Array, _Array]:
    """Return the ends that conflict; where it is one, edges are self-loops of it."""
    return (
        sources if "u" in sides else targets,
        targets if "v" in sides else sources,
    )


def _sorted(
    keys: _Array, values: _Array, key_count: int | None = None
) -> tuple[_Array, NDArray[np.int64]]:
    """Sort values stably by their keys, which are >= 0; return where each key begins.

    Where the number of keys is not given, it is one more than the highest.
    """
    count = int(keys.max(initial=-1)) + 1 if key_count is None else key_count
    begins = np.zeros(count + 1, np.int64)
    made = np.empty_like(values)
    count_one(keys, begins)
    to_ends(begins)
    fill_columns(keys, values, begins, made)
    return made, begins


def _by_diagonal(values: _Array, along: _Array) -> tuple[_Array, _Array]:
    """Sort values stably by numbers of any sign; return both sorted."""
    least = along.min(initial=0)
    made, begins = _sorted(along - least, values)
    return made, np.repeat(np.arange(begins.size - 1) + least, np.diff(begins))


def _without_empty(order: _Array, groups: _Array) -> tuple[_Array, NDArray[np.int64]]:
    """Leave out groups without edges."""
    return order, np.append(groups[:-1][np.diff(groups) > 0], groups[-1])


def _begins(*keys: _Array) -> NDArray[np.int64]:
    """Return where runs of equal keys begin, and where the last one ends."""
    is_new = np.zeros(keys[0].size, np.bool_)
    is_new[:1] = True
    for key in keys:
        is_new[1:] |= key[1:] != key[:-1]
    return np.append(np.flatnonzero(is_new), is_new.size)


def _block_of(vertices: _Array, vertex_count: int, size: int) -> NDArray[np.int32]:
    """Return the block of each vertex; 0 for those of the first side."""
    block = np.zeros(vertex_count, np.int32)
    block[vertices] = np.arange(vertices.size) // size
    return block


def _in_blocks(
    order: _Array, block: _Array, colors: _Array, vertices: _Array, size: int
) -> EdgeGroups:
    """Group edges by block and color; both are those of the places of the order."""
    places = _sorted(colors, np.arange(order.size))[0]
    count = -(-vertices.size // size)
    places, blocks_begin = _sorted(block[places], places, count)
    groups = _begins(block[places], colors[places])
    rounds = np.searchsorted(groups, blocks_begin)
    return EdgeGroups(order[places], groups, rounds, vertices)


def _colors(
    ends: _Array, others: _Array, order: _Array, block: _Array
) -> NDArray[np.int32]:
    """Color edges first-fit: each has the least color that none before has at its ends.

    Blocks of the vertices in `others` are colored by themselves. The order has the
    edges of one block behind those of the other.
    """
    degree = np.zeros(block.size, np.int64)
    count_one(ends[order], degree)
    count_one(others[order], degree)
    # Fewer than degree(u) + degree(v) edges come before one at its ends.
    bound = int((degree[ends[order]] + degree[others[order]]).max(initial=0))
    words = bound // 64 + 1
    room = min(block.size, _BITSET_BYTES // (8 * words))
    row = np.full(block.size, room, np.int32)
    row[order_of(degree.max(initial=0) - degree)[:room]] = np.arange(room)
    lists = np.append(0, np.cumsum(np.where(row == room, degree, 0)))
    colors = np.empty(order.size, np.int32)
    _color(
        ends,
        others,
        order,
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
    """Draw a word for each number; four neighbors are of one counter."""
    key = seed & _MASK, seed >> _HALF
    for i in range(0, words.size, 4):
        block = np.uint64(i // 4)
        drawn = philox(block & _MASK, block >> _HALF, stream, _ORDER, key[0], key[1])
        for j in range(min(4, words.size - i)):
            words[i + j] = drawn[j]


@jit
def _find_levels(
    ends: _Array, others: _Array, order: _Array, last: _Array, level: _Array
) -> None:
    for i in range(order.size):
        u, v = ends[order[i]], others[order[i]]
        level[i] = max(last[u], last[v])
        last[u] = last[v] = level[i] + 1


@jit
def _take_tickets(
    ends: _Array, others: _Array, order: _Array, taken: _Array, turns: _Array
) -> None:
    for i in range(order.size):
        u, v = ends[order[i]], others[order[i]]
        turns[i, 0], turns[i, 1] = taken[u], taken[v]
        taken[u] += 1
        if u != v:
            taken[v] += 1


@jit
def _find_blocks(
    sources: _Array,
    targets: _Array,
    order: _Array,
    part: _Array,
    parts: int,
    block: _Array,
) -> None:
    for i in range(order.size):
        row = part[sources[order[i]]]
        turn = part[targets[order[i]]] - row
        block[i] = (turn + parts if turn < 0 else turn) * parts + row


@jit
def _count_copies(sources: _Array, targets: _Array, copies: _Array) -> None:
    """Count the equal pairs right before each one."""
    for i in range(1, copies.size):
        if sources[i] == sources[i - 1] and targets[i] == targets[i - 1]:
            copies[i] = copies[i - 1] + 1


@jit
def _color(
    ends: _Array,
    others: _Array,
    order: _Array,
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
        The row of `bits` that has the used colors of a vertex. The last row has none:
        the colors of its vertices are in `used`, from ``lists[v]`` on.
    """
    last, full, one = bits.shape[0] - 1, ~np.uint64(0), np.uint64(1)
    now = np.zeros(row.size, np.int32)  # the block that has the colors of a vertex
    # The number of colors in a list, or the first word of a row that is not full.
    state = np.zeros(row.size, np.int64)
    seen = np.full(bits.shape[1] * 64, -1, np.int64)
    for i in range(order.size):
        pair = ends[order[i]], others[order[i]]
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
        u, v = row[pair[0]], row[pair[1]]
        while (
            (bits[u, color >> 6] | bits[v, color >> 6]) >> np.uint64(color & 63) & one
        ) or seen[color] == i:
            color += 1
        colors[i] = color
        for k in range(1 if pair[0] == pair[1] else 2):
            x = pair[k]
            if row[x] == last:
                used[lists[x] + state[x]] = color
                state[x] += 1
                continue
            bits[row[x], color >> 6] |= one << np.uint64(color & 63)
            while bits[row[x], state[x]] == full:
                state[x] += 1

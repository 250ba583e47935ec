"""Graph generators. Random graphs depend on the seed only, not on the machine.

Edge i of `rmat`, `uniform`, `grid` and `ratings` is a function of the seed and i
(`building.drawing`), so that a GPU, or each of several ranks, can draw any range of
edges. `erdos_renyi` draws on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_flag, require_real
from featgraph.base.dataclass import replace
from featgraph.base.errors import GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.cuda.values import DeviceValues
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.drawn import Drawing, DrawnRowEdges, drawn
from featgraph.graph.building.edges import MANY_EDGES, EdgeList
from featgraph.graph.graph import Graph
from featgraph.graph.partition.choose import distributed_builders, partition_request

__all__ = [
    "complete_graph",
    "cycle_graph",
    "erdos_renyi",
    "grid",
    "path_graph",
    "ratings",
    "rmat",
    "star_graph",
    "uniform",
]

#: Number of edges from which a GPU that draws them builds rows directly: storing and
#: sorting a list of edges takes three times the memory.
MANY_DRAWN = 1 << 28


def rmat(
    scale: int,
    edge_factor: int = 16,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    seed: int,
    directed: bool = True,
    duplicates: str = "keep",
    weighted: bool = False,
    target: str = "auto",
    partition: str | None = None,
    along: str = "both",
) -> Graph:
    """Draw a recursive matrix (R-MAT) graph, skewed like many real networks.

    Each edge descends `scale` times into a quadrant of the adjacency matrix: upper left
    with probability a, upper right b, lower left c, lower right 1 - a - b - c.

    Parameters
    ----------
    scale : int in [0, 30]
        V = 2**scale.
    edge_factor : int
        E_given = edge_factor * V, self-loops and repeats included.
    a, b, c : float
        Default: the values of the Graph500 benchmark. Vertices are not shuffled: low
        ids have high degrees.
    seed : int
    directed : bool
    duplicates : str
        As in `Graph.from_edges`.
    weighted : bool
        Whether to draw weights: float32, multiples of 2**-24 in (0, 1].
    target : {"auto", "cpu", "cuda"}
        The device that draws and stores the edges. Edges are the same on all devices:
        edge i is a function of seed and i. "auto" selects a GPU, if available, for many
        edges.
    partition : {None, "edges"}, optional
        "edges": a collective call, in which each rank stores its part of the graph, as
        in `Graph.from_edges`; requires ``duplicates="keep"``. A GPU needs memory for
        its part, and to sort an eighth of it.
    along : str, optional
        An option of a distributed graph: see `read_graph`.

    Returns
    -------
    Graph

    Raises
    ------
    GraphInputError
        If an argument is out of range.
    DeviceError, PlanError
        If the target is not available, or unknown.

    Notes
    -----
    O(scale * E) time, 8 bytes per edge. Each level compares 32 random bits of
    Philox4x32-10 with sums of the probabilities, rounded to multiples of 2**-32, in
    integer arithmetic, so that all machines draw the same edges.

    References
    ----------
    J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as
    easy as 1, 2, 3", SC 2011.
    D. Chakrabarti, Y. Zhan, C. Faloutsos, "R-MAT: A recursive model for graph mining",
    SDM 2004.
    """
    drawing = drawing_of_rmat(scale, edge_factor, (a, b, c), seed=seed)
    if require_flag("weighted", weighted):
        drawing = replace(drawing, weights=np.uint64(seed))
    return _drawn(drawing, target, directed, duplicates, (partition, along))


def drawing_of_rmat(
    scale: int,
    edge_factor: int,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    *,
    seed: int,
) -> Drawing:
    """Return the generator of the edges of an R-MAT graph."""
    scale = _count(scale, "scale", 0, 30)  # 2**31 vertices do not fit int32 ids
    edges = _count(edge_factor, "edge_factor", 0, 2**40) << scale
    seed = _count(seed, "seed", 0, 2**63)
    a, b, c = map(require_real, "abc", quadrants)
    if min(a, b, c) < 0 or not a + b + c <= 1 + 1e-9:
        raise GraphInputError(
            "not probabilities",
            where="a, b, c",
            got=(a, b, c),
            expected="three numbers >= 0 with a sum of at most 1",
        )
    limits = [np.uint64(round(sum_ * 2**32)) for sum_ in (a, a + b, a + b + c)]
    parameters = np.uint64(seed), scale, *limits
    return Drawing("draw_rmat", parameters, edges, 1 << scale)


def uniform(
    vertex_count: int,
    edge_count: int,
    *,
    seed: int,
    directed: bool = True,
    duplicates: str = "keep",
    weighted: bool = False,
    target: str = "auto",
    partition: str | None = None,
    along: str = "both",
) -> Graph:
    """Draw edges with independent, uniformly distributed ends.

    Parameters
    ----------
    vertex_count : int
    edge_count : int
        E_given, self-loops and repeats included.
    seed : int
    directed : bool
    duplicates : str
        As in `Graph.from_edges`.
    weighted, target, partition, along
        As for `rmat`.

    Returns
    -------
    Graph

    Raises
    ------
    GraphInputError
        Arguments out of range.

    Notes
    -----
    An end is the upper half of the product of 64 random bits and `vertex_count`. The
    probabilities of vertices differ by at most ``vertex_count / 2**64``.

    Examples
    --------
    >>> from featgraph.graph import uniform
    >>> uniform(1000, 5000, seed=1)
    Graph(1000 vertices, 5000 edges, directed)
    """
    drawing = drawing_of_uniform(vertex_count, edge_count, seed=seed)
    if require_flag("weighted", weighted):
        drawing = replace(drawing, weights=np.uint64(seed))
    return _drawn(drawing, target, directed, duplicates, (partition, along))


def drawing_of_uniform(vertex_count: int, edge_count: int, *, seed: int) -> Drawing:
    """Return the generator of the edges of a uniform graph."""
    n = _count(vertex_count, "vertex_count", 1, MAX_VERTEX_COUNT)
    edges = _count(edge_count, "edge_count", 0, 2**40)
    seed = _count(seed, "seed", 0, 2**63)
    return Drawing("draw_uniform", (np.uint64(seed), np.uint64(n)), edges, n)


def erdos_renyi(
    vertex_count: int, edge_count: int, seed: int, *, directed: bool = False
) -> Graph:
    """Draw a graph uniformly among those with `edge_count` edges, G(n, m).

    There are no self-loops and no repeated edges; edges are in random order.

    Parameters
    ----------
    vertex_count : int
    edge_count : int
        E_given: an undirected edge counts once.
    seed : int
    directed : bool

    Raises
    ------
    GraphInputError
        Arguments out of range, or more edges than pairs of vertices.

    References
    ----------
    P. Erdos, A. Renyi, "On random graphs I", Publicationes Mathematicae 6, 1959.
    """
    n = _count(vertex_count, "vertex_count", 1, MAX_VERTEX_COUNT)
    directed = require_flag("directed", directed)
    pairs = n * (n - 1) // (1 if directed else 2)
    m = _count(edge_count, "edge_count", 0, pairs)
    generator = np.random.default_rng(_count(seed, "seed", 0, 2**63))
    if 2 * m <= pairs:
        key = _draw_distinct(generator, pairs, m)
    else:
        # Drawing nearly all pairs repeats many: draw the excluded pairs instead.
        is_in = np.ones(pairs, np.bool_)
        is_in[_draw_distinct(generator, pairs, pairs - m)] = False
        key = generator.permutation(np.flatnonzero(is_in))
    if directed:
        u, rest = np.divmod(key, max(n - 1, 1))
        v = rest + (rest >= u)  # skips the diagonal
    else:
        u, v = _unrank_pair(key)
    return Graph(EdgeList(u.astype(np.int32), v.astype(np.int32), None, n, directed))


def _draw_distinct(
    generator: np.random.Generator, bound: int, count: int
) -> NDArray[np.int64]:
    """Draw integers below `bound`; return the first `count` distinct ones."""
    seen = np.empty(0, np.int64)
    while seen.size < count:
        more = generator.integers(0, bound, count - seen.size + 16)
        drawn = np.concatenate((seen, more))
        _, first = np.unique(drawn, return_index=True)
        seen = drawn[np.sort(first)]
    return seen[:count]


def _unrank_pair(key: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the pairs u < v with the keys v * (v - 1) / 2 + u."""
    v = ((1 + np.sqrt(1 + 8 * key.astype(np.float64))) / 2).astype(np.int64)
    # The root may be rounded across an integer in either direction.
    v -= v * (v - 1) // 2 > key
    v += v * (v + 1) // 2 <= key
    return key - v * (v - 1) // 2, v


def grid(
    rows: int, columns: int, *, directed: bool = False, target: str = "auto"
) -> Graph:
    """Make a rows x columns lattice; vertex i * columns + j has up to 4 neighbors.

    Edges along rows come first, then edges along columns; directed edges lead right and
    down. `target` is as in `rmat`.

    Raises
    ------
    GraphInputError
        If a side is less than 1, or there are more vertices than int32 ids.
    """
    height = _count(rows, "rows", 1, MAX_VERTEX_COUNT)
    width = _count(columns, "columns", 1, MAX_VERTEX_COUNT // height)
    edges = height * (width - 1) + (height - 1) * width
    drawing = Drawing("draw_grid", (height, width), edges, height * width)
    return _drawn(drawing, target, directed, "keep")


def ratings(
    user_count: int,
    item_count: int,
    rating_count: int,
    *,
    seed: int,
    target: str = "auto",
    partition: str | None = None,
    along: str = "both",
) -> Graph:
    """Draw ratings of items by users: a graph with two sides, like a sparse matrix.

    All users rate about the same number of items. The k-th of n items has about
    ``sqrt(n / k) / 2`` times the mean number of ratings.

    Parameters
    ----------
    user_count, item_count : int
        Users are the first vertices.
    rating_count : int
        The number of ratings, repeats included: integers from 1 to 5, float32.
    seed : int
    target, partition, along
        As for `rmat`. Each rank has a share of the users, and one of the items.

    Returns
    -------
    Graph
        Undirected, with `sides`.

    Raises
    ------
    GraphInputError
        Arguments out of range.
    DeviceError, PlanError
        If the target is not available, or unknown.

    Examples
    --------
    >>> from featgraph.graph import ratings
    >>> ratings(100, 20, 1000, seed=1)
    Graph(120 vertices, 2000 edges (1000 given), undirected, float32 weights)
    """
    users = _count(user_count, "user_count", 1, MAX_VERTEX_COUNT - 1)
    items = _count(item_count, "item_count", 1, MAX_VERTEX_COUNT - users)
    count = _count(rating_count, "rating_count", 0, 2**46)
    word = np.uint64(_count(seed, "seed", 0, 2**63))
    drawing = Drawing(
        "draw_ratings", (word, np.uint64(users), np.uint64(items)), count,
        users + items, word, "draw_stars", (users, items),
    )  # fmt: skip
    return _drawn(drawing, target, False, "keep", (partition, along))


def path_graph(vertex_count: int, *, directed: bool = False) -> Graph:
    """Make the path 0 - 1 - ... - (V - 1)."""
    n = _count(vertex_count, "vertex_count", 1, MAX_VERTEX_COUNT)
    directed = require_flag("directed", directed)
    vertex = np.arange(n, dtype=np.int32)
    return Graph(EdgeList(vertex[:-1].copy(), vertex[1:].copy(), None, n, directed))


def cycle_graph(vertex_count: int, *, directed: bool = False) -> Graph:
    """Make the cycle 0 - 1 - ... - (V - 1) - 0.

    With one vertex, this is a self-loop; with two, a double edge.
    """
    n = _count(vertex_count, "vertex_count", 1, MAX_VERTEX_COUNT)
    directed = require_flag("directed", directed)
    vertex = np.arange(n, dtype=np.int32)
    return Graph(EdgeList(vertex, np.roll(vertex, -1), None, n, directed))


def star_graph(vertex_count: int, *, directed: bool = False) -> Graph:
    """Make a star: vertex 0 has an edge to each of the V - 1 others."""
    n = _count(vertex_count, "vertex_count", 1, MAX_VERTEX_COUNT)
    directed = require_flag("directed", directed)
    leaves = np.arange(1, n, dtype=np.int32)
    return Graph(EdgeList(np.zeros(n - 1, np.int32), leaves, None, n, directed))


def complete_graph(vertex_count: int, *, directed: bool = False) -> Graph:
    """Make the graph of all pairs u != v, in both directions if directed."""
    n = _count(vertex_count, "vertex_count", 1, 1 << 20)
    directed = require_flag("directed", directed)
    u, v = np.nonzero(~np.eye(n, dtype=np.bool_)) if directed else np.triu_indices(n, 1)
    return Graph(EdgeList(u.astype(np.int32), v.astype(np.int32), None, n, directed))


def _drawn(
    drawing: Drawing,
    target: object,
    directed: object,
    duplicates: object,
    parted: tuple[object, object] = (None, "both"),
) -> Graph:
    """Make a graph of edges drawn on `target`; see `rmat`."""
    is_directed = require_flag("directed", directed)
    default = "cuda" if drawing.count >= MANY_EDGES else "cpu"
    chosen = chosen_target(target, default)
    request = partition_request(parted[0], "given", parted[1])
    is_kept = isinstance(duplicates, str) and duplicates == "keep"
    if request is not None:
        if not is_kept:
            raise GraphInputError(
                "repeated edges are found in the whole graph, which no rank has",
                where="duplicates=",
                got=repr(duplicates),
                expected="'keep'",
            )
        made = distributed_builders[0].of_drawing(request, drawing, is_directed, chosen)
        if made is not None:
            return made  # type: ignore[no-any-return]
    if chosen == "cuda" and is_kept and drawing.count >= MANY_DRAWN:
        return Graph(DrawnRowEdges(drawing, is_directed))
    u, v, weights = drawn(chosen, drawing)
    if is_kept:
        # The arrays are new, and need no copy.
        ends = u, v, weights, drawing.vertex_count, is_directed
        return Graph(EdgeList(*ends, sides=drawing.sides))
    columns = [a.array if isinstance(a, DeviceValues) else a for a in (u, v, weights)]
    return Graph.from_edges(
        *columns[:2],
        weights=columns[2],
        vertex_count=drawing.vertex_count,
        directed=is_directed,
        duplicates=duplicates,  # type: ignore[arg-type]
    )


def _count(value: object, role: str, low: int, high: int) -> int:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise GraphInputError(
            "not an integer in range",
            where=role,
            got=repr(value),
            expected=f"an integer in [{low}, {high}]",
        )
    return int(value)  # type: ignore[call-overload, no-any-return]

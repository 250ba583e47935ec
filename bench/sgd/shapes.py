"""Synthetic matrices of the shapes of a study of schedules, and smaller ones.

The shapes are those of Table II of Kaleem et al., "Synchronization Trade-offs in GPU
Implementations of Graph Algorithms". A matrix has rows (users) and columns (items) as
vertices, and an edge for each entry. The paper takes plain graphs as matrices, too,
whose rows and columns are different vertices. Scale-free shapes draw both ends of an
edge by a power law whose largest degree is that of the shape. Road-like shapes draw
entries near the diagonal. Graphs of `bench.graphs` are taken as matrices, too. Ratings
are those of MovieLens, or drawn in a shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import featgraph as fg
from bench.graphs import RATINGS, make_graph, movielens

SEED = 20261128
#: Factors that ratings are drawn from, and the deviation of the noise beside them.
FACTORS, NOISE = 4, 0.5
#: A matrix whose highest degree is below is like a road, the others are scale-free: the
#: classes of the paper.
ROAD_DEGREE = 16


@dataclass(frozen=True)
class Shape:
    """The size of a matrix.

    Attributes
    ----------
    rows, columns, edges : int
    degree : int
        The highest degree, that of a column.
    row_degree : int
        The highest degree of a row; 0 for a road-like shape.
    """

    rows: int
    columns: int
    edges: int
    degree: int
    row_degree: int = 0

    def make(self) -> fg.Graph:
        """Return the matrix as a directed graph with two sides, entries shuffled."""
        rng = np.random.default_rng(SEED)
        if self.row_degree:
            columns = _ends(rng, self.columns, self.edges, self.degree)
            rows = rng.permutation(_ends(rng, self.rows, self.edges, self.row_degree))
        else:
            rows = rng.permutation(self.edges) % np.int32(self.rows)
            near = rng.integers(-2, 3, self.edges, np.int32)
            columns = np.clip(rows + near, 0, self.columns - 1)
        return _graph(rows, columns, (self.rows, self.columns))


def _graph(rows: Any, columns: Any, sides: tuple[int, int], **more: Any) -> fg.Graph:
    """Return a matrix as a graph, which keeps the preparation of schedules."""
    return fg.Graph.from_edges(rows, columns + np.int32(sides[0]), sides=sides, **more)


def _ends(rng: np.random.Generator, count: int, edges: int, highest: int) -> np.ndarray:
    """Return ends of edges in order; shares fall as 1 / (i + c), the first is given."""
    low, high = 1e-6, 1e12
    for _ in range(60):
        middle = (low * high) ** 0.5
        shares = 1 / (np.arange(count) + middle)
        is_steep = shares[0] / shares.sum() > highest / edges
        low, high = (middle, high) if is_steep else (low, middle)
    shares /= shares.sum()
    degrees = np.floor(shares * edges).astype(np.int64)
    left = edges - int(degrees.sum())
    degrees[rng.choice(count, left, replace=left > count)] += 1
    return np.repeat(rng.permutation(count).astype(np.int32), degrees)


#: Name -> vertices, edges and highest degree of square shapes of the paper: scale-free
#: ones, and roads. Stack Overflow's edges are those of the published network.
_SQUARE = {
    "STACK": (0.6e6, 1.3e6, 6_119), "IMDB": (1.3e6, 3.7e6, 1_590),
    "WIKI": (0.1e6, 5.0e6, 100_022), "BGG": (0.1e6, 6.0e6, 43_331),
    "CITP": (7.5e6, 16.5e6, 779), "POKEC": (3.2e6, 22.3e6, 14_734),
    "LIVEJ": (9.6e6, 68.9e6, 20_293),
}  # fmt: skip
_ROADS = {
    "CAL": (3.7e6, 4.6e6, 7), "E": (7.1e6, 8.7e6, 9), "W": (12.5e6, 15.1e6, 9),
    "CTR": (28.1e6, 33.8e6, 8),
}  # fmt: skip
SHAPES = {
    name: Shape(*2 * (round(v / 2),), round(e), degree, (name in _SQUARE) * degree // 2)
    for name, (v, e, degree) in (_SQUARE | _ROADS).items()
} | {
    "NFLIX": Shape(480_189, 17_770, 99_072_112, 227_715, 17_920),
    "ml-1m-like": Shape(6_040, 3_706, 800_168, 2_750, 1_900),
    "small": Shape(2_000, 500, 20_000, 400, 120),
}


def make_matrix(name: str) -> tuple[dict[str, Any], fg.Graph]:
    """Return a description of a shape or of a named graph, and its matrix."""
    if name in SHAPES:
        graph = SHAPES[name].make()
    else:
        square = make_graph(name).graph
        edges, count = square.in_edges, square.vertex_count
        targets = np.arange(count, dtype=np.int32).repeat(np.diff(edges.row_offsets))
        graph = _graph(edges.column_indices, targets, (count, count))
    (rows, columns), degree = graph.sides, int(graph.in_degree.max(initial=0))
    along = graph.targets - graph.sources
    diagonals = np.count_nonzero(np.bincount(along - along.min(initial=0)))
    return {
        "name": name, "kind": "road" if degree < ROAD_DEGREE else "scale-free",
        "rows": rows, "columns": columns, "edges": graph.edge_count, "degree": degree,
        "diagonals": int(diagonals),
    }, graph  # fmt: skip


def ratings_of(folder: str, name: str) -> Any:
    """Return users x items; ``NAME-like`` is drawn where the file of NAME is missing.

    Drawn ratings are 1 to 5: products of factors, and noise.
    """
    if name in RATINGS and (Path(folder) / RATINGS[name][0]).exists():
        return movielens(folder, name)
    shape = SHAPES[f"{name}-like" if name in RATINGS else name]
    graph, rng = shape.make(), np.random.default_rng(SEED)
    users, items = graph.sources, graph.targets - shape.rows
    x = rng.normal(0, 0.7, (shape.rows, FACTORS))
    y = rng.normal(0, 0.7, (shape.columns, FACTORS))
    drawn = 3.5 + np.einsum("nk,nk->n", x[users], y[items])
    drawn = np.rint(drawn + rng.normal(0, NOISE, users.size)).clip(1, 5)
    return sparse.coo_matrix((drawn, (users, items)), shape=graph.sides)


def graph_of(ratings: Any) -> fg.Graph:
    """Return ratings as a graph, whose weights they are."""
    entries = ratings.tocoo()
    return _graph(entries.row, entries.col, entries.shape, weights=entries.data)

"""Ratings for the benches of matrix factorization: MovieLens, or drawn in a shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import featgraph as fg
from bench.graphs import RATINGS, movielens
from bench.sgd.shapes import SEED, SHAPES

__all__ = ["graph_of", "ratings_of"]

#: Drawn factors, and the deviation of the noise beside their products.
FACTORS, NOISE = 4, 0.5


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
    sizes = shape.rows, shape.columns
    return sparse.coo_matrix((drawn, (users, items)), shape=sizes)


def graph_of(ratings: Any) -> fg.Graph:
    """Return ratings as a graph, which keeps the preparation of schedules."""
    entries = ratings.tocoo()
    return fg.Graph.from_edges(
        entries.row,
        entries.col + np.int32(entries.shape[0]),
        weights=entries.data,
        sides=entries.shape,
    )

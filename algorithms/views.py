"""Graphs of points with several descriptions: views, modalities, or manifolds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["graph_of_views"]

Array = npt.NDArray[Any]


def graph_of_views(
    views: Sequence[npt.ArrayLike], *, n_neighbors: int = 10, directed: bool = False
) -> tuple[fg.Graph, Array]:
    """Join the nearest-neighbor graphs of several views of the same points.

    In each view a point's nearest neighbors have the weight
    ``1 / (1 + (distance / scale)^2)``, where `scale` is the mean distance of a point to
    its farthest such neighbor. Unlike those of a Gaussian, these weights and their
    inverses stay within a few orders of magnitude. The graph has every edge that one of
    the views has.

    Parameters
    ----------
    views : sequence of array_like or sparse matrix of shape (V, F_m)
        M descriptions of the same V points, each of any width.
    n_neighbors : int, optional
        Number of neighbors of a point in each view; a point is no neighbor of itself.
    directed : bool, optional
        Whether an edge leads to each point from each of its nearest neighbors. Default:
        an undirected edge joins two points if either is a nearest neighbor of the
        other.

    Returns
    -------
    graph : Graph
        Of V vertices, without weights.
    weights : ndarray of float64, shape (E, M)
        The weight of each given edge in each view; zero where the view lacks the edge.

    Raises
    ------
    GraphInputError
        If there is no view, or views differ in their numbers of points.
    ImportError
        If scikit-learn is not installed.

    Examples
    --------
    >>> from featgraph.algorithms.views import graph_of_views
    >>> heights, widths = [[0.0], [1.0], [5.0]], [[0.0], [4.0], [5.0]]
    >>> graph, weights = graph_of_views([heights, widths], n_neighbors=1)
    >>> list(zip(graph.sources.tolist(), graph.targets.tolist()))
    [(0, 1), (1, 2)]
    >>> (weights > 0).tolist()
    [[True, True], [True, True]]
    """
    from scipy.sparse import triu
    from sklearn.neighbors import NearestNeighbors

    # scikit-learn takes sparse matrices as they are; they must not become arrays.
    points_of: list[Any] = [
        view
        if hasattr(view, "tocsr")
        else fg.given_array(view, where="views").on_host()
        for view in views
    ]
    counts = [view.shape[0] if view.ndim == 2 else 0 for view in points_of]
    if not counts or min(counts) != max(counts) or min(counts) < 2:
        raise fg.GraphInputError(
            "views describe the same points, two or more",
            got=f"views of {counts} points",
            expected="arrays or sparse matrices of shape (V, F)",
        )
    matrices = []
    for view in points_of:
        near = NearestNeighbors(n_neighbors=min(n_neighbors, counts[0] - 1)).fit(view)
        matrix = near.kneighbors_graph(mode="distance")
        # The mean distance of the farthest neighbors; equal points have no distance.
        scale = matrix.data.reshape(counts[0], -1)[:, -1].mean() or 1.0
        matrix.data = 1 / (1 + (matrix.data / scale) ** 2)
        matrices.append(matrix if directed else triu(matrix.maximum(matrix.T)))
    union = sum(matrix.astype(bool) for matrix in matrices).tocoo()
    points, neighbors = union.row, union.col
    weights = [
        np.asarray(matrix.tocsr()[points, neighbors]).ravel() for matrix in matrices
    ]
    graph = fg.Graph.from_edges(
        neighbors if directed else points,
        points if directed else neighbors,
        vertex_count=counts[0],
        directed=directed,
    )
    return graph, np.stack(weights, axis=1)

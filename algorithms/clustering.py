"""Clustering: the share of pairs of a vertex's neighbors that are joined by an edge.

With ``triangles(v)`` the number of triangles of v, and ``degree(v)`` the number of its
neighbors other than itself::

    pairs(v)      = degree(v) (degree(v) - 1) / 2
    clustering(v) = triangles(v) / pairs(v), 0 without pairs
    transitivity  = sum of triangles(v) / sum of pairs(v)

One superstep counts triangles as in `triangle_count`, and a vertex function divides.
Cost, memory and determinism are those of `triangle_count`; a coefficient is a quotient
of integers.

D. J. Watts, S. H. Strogatz, "Collective Dynamics of 'Small-World' Networks", Nature
393, 1998. Conventions are those of networkx: `clustering`, `average_clustering`,
`transitivity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer
from featgraph.algorithms._verify import neighbor_counts, require, triangles_of
from featgraph.algorithms.triangle_count import add_corners, count_corners

__all__ = ["ClusteringResult", "clustering", "verify_clustering"]


@fg.gather(into="others", combine="sum")
def neighbor(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the edges at v, except for self-loops."""
    return 1 if u != v else 0


@fg.vertex
def keep_neighbors(f, v, d):  # type: ignore[no-untyped-def]
    """Store the number of neighbors."""
    d.neighbors[v] = d.others[v]
    return False


@fg.vertex
def divide(f, v, d):  # type: ignore[no-untyped-def]
    """Divide by the number of pairs; False ends the run after one superstep."""
    pairs = d.neighbors[v] * (d.neighbors[v] - 1) // 2
    d.coefficient[v] = d.triangles[v] / max(pairs, 1)
    return False


@fg.reduce(into="coefficients", combine="sum")
def add_coefficients(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the coefficients."""
    return d.coefficient[v]


@fg.reduce(into="pairs", combine="sum")
def add_pairs(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the numbers of pairs of neighbors."""
    return d.neighbors[v] * (d.neighbors[v] - 1) // 2


begin = fg.foldmap(neighbor, keep_neighbors)
step = fg.foldmap(count_corners, divide)
end = fg.foldmap(add_coefficients, add_pairs, add_corners)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusteringResult(Result):
    """Result of `clustering`.

    Attributes
    ----------
    coefficients : ndarray of shape (V,)
        The clustering coefficient of each vertex, in [0, 1].
    average : float
        The mean of the coefficients, zeros included.
    transitivity : float
        The share of all pairs of neighbors that are joined; 0 without pairs.
    triangles : ndarray of int64, shape (V,)
        The number of triangles of each vertex.
    """

    coefficients: npt.NDArray[Any] = answer()
    average: float
    transitivity: float
    triangles: npt.NDArray[np.int64] = answer()


@fg.algorithm()
def clustering(
    graph: fg.GraphLike, *, dtype: npt.DTypeLike = np.float64, **options: Any
) -> ClusteringResult:
    """Find the local clustering coefficients, their average, and the transitivity.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Undirected, without parallel edges; self-loops do not count. Weights are not
        used.
    dtype : dtype, optional
        Dtype of the coefficients: float32 or float64.
    **options
        ``target``, ``schedule``, ... as for `featgraph.iterate`.

    Returns
    -------
    ClusteringResult
        Coefficients, and the record of the run.

    Raises
    ------
    GraphInputError
        If the graph is directed, or has parallel edges.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import clustering
    >>> kite = fg.Graph.from_edges([0, 1, 2, 1, 3], [1, 2, 0, 3, 2], directed=False)
    >>> result = clustering(kite)
    >>> result.coefficients.round(2).tolist(), result.transitivity
    ([1.0, 0.67, 0.67, 1.0], 0.75)
    """
    graph = fg.as_graph(graph, directed=False)
    # Raises if the graph is directed, or has parallel edges.
    graph.orient(options.get("target", "auto"))
    where = {"target": options.get("target", "auto")}
    state = fg.State(
        graph,
        triangles=fg.vertex_property(0),
        neighbors=fg.vertex_property(0),
        coefficient=fg.vertex_property(checked_reals(dtype).type(0)),
    )
    begin(state, **where)
    run = fg.iterate(step, state, **options)
    end(state, **where)
    corners, pairs = int(state["corners"][0]), int(state["pairs"][0])
    return ClusteringResult.of(
        graph,
        run,
        coefficients=state.view("coefficient"),
        average=float(state["coefficients"][0]) / max(graph.living_count, 1),
        transitivity=corners / max(pairs, 1),
        triangles=state.view("triangles"),
    )


def verify_clustering(graph: fg.GraphLike, coefficients: npt.ArrayLike) -> None:
    """Check coefficients against a list of all triangles, made in NumPy.

    * All coefficients are in [0, 1].
    * Times the number of pairs, a coefficient is the number of triangles in the list,
      up to rounding.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `clustering`.
    coefficients : array_like of shape (V,)
        The answer of `clustering`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph, directed=False)
    given = fg.given_array(coefficients, where="coefficients").on_host()
    eps = np.finfo(given.dtype).eps
    neighbors = neighbor_counts(graph)
    pairs = neighbors * (neighbors - 1) // 2
    corners = triangles_of(graph).vertices.ravel()
    expected = np.bincount(corners, minlength=graph.vertex_count)
    require((given >= 0) & (given <= 1), "a coefficient out of [0, 1]")
    found = given.astype(np.float64) * np.maximum(pairs, 1)
    require(np.abs(found - expected) <= 4 * eps * expected, "other triangles")

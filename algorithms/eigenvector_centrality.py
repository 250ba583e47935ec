"""Eigenvector centrality: a vertex counts as much as those that point to it.

The centralities are the eigenvector of the largest eigenvalue of the adjacency matrix:
``lambda x(v)`` is the sum of ``w(u, v) x(u)`` over the edges u -> v. Power iteration
finds it; with ``|y|`` the Euclidean length and ``c > 0`` the shift::

    y(v)  = c x(v) + sum over edges u -> v of w(u, v) x(u)
    x'(v) = y(v) / |y|

The ``c x(v)`` in front makes it an iteration with c I + A. The eigenvectors are the
same, and it settles on bipartite graphs, too, where A has the eigenvalue -lambda as
well. A shift c far above lambda would leave x almost in place, converged or not. So c
is the largest weight of an undirected graph, since no entry of a symmetric matrix is
above lambda; of a directed graph, it is the smallest positive weight, since no cycle
makes lambda smaller than its weights. Then x does not depend on the scale of the
weights. Both c and w are divided by the largest weight, to keep squares of y in range.

State: ``x`` (V,), of length one from the first superstep on; ``y`` (V,); ``weight``,
one a given edge. A superstep reads E values and moves V of them four times: y, its
length, x, and how far x moved.

P. Bonacich, "Power and Centrality: A Family of Measures", American Journal of Sociology
92, 1987; R. von Mises, H. Pollaczek-Geiringer, "Praktische Verfahren der
Gleichungsaufloesung", ZAMM 9, 1929. Start and stopping rule are those of networkx,
and so is the shift where all edges count one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    given_or_own_weights,
    require_number,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import (
    Result,
    answer,
    around_of,
    iterate_recorded,
)
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import ByVertex, column_property, distributions

__all__ = [
    "EigenvectorResult",
    "eigenvector_centrality",
    "verify_eigenvector_centrality",
]

Array = npt.NDArray[Any]


@fg.gather(into="inflow", combine="sum")
def from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the centrality of the source."""
    return d.x[u]


@fg.gather(into="inflow", combine="sum")
def weighted_from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the same by weight."""
    return d.weight[e] * d.x[u]


@fg.vertex
def multiply(f, v, d):  # type: ignore[no-untyped-def]
    """Apply c I + A, divided by the scale of the weights."""
    d.y[v] = d.shift * d.x[v] + d.inflow[v] / d.scale
    return True


@fg.reduce(into="squares", combine="sum")
def squared(f, v, d):  # type: ignore[no-untyped-def]
    """Add up the squared length of y."""
    return d.y[v] * d.y[v]


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Make it a vector of length one."""
    d.x_next[v] = d.y[v] / math.sqrt(d.squares[0])
    return True


@fg.reduce(into="residual", combine="sum")
def change(f, v, d):  # type: ignore[no-untyped-def]
    """Add up how far centralities moved: the L1 norm."""
    return abs(d.x_next[v] - d.x[v])


#: weighted -> what runs.
STEPS = {
    False: fg.foldmap(from_sources, multiply, squared, scale, change),
    True: fg.foldmap(weighted_from_sources, multiply, squared, scale, change),
}
step = STEPS[False]


@fg.gather(into="weight_here", combine="max")
def weights_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the largest weight."""
    return d.weight[e]


@fg.gather(into="weight_here", combine="min")
def positive_weights_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the smallest weight of an edge that counts."""
    return d.weight[e] if d.weight[e] > 0 else np.inf


@fg.vertex
def hold_weight(f, v, d):  # type: ignore[no-untyped-def]
    """Keep it for a reduce; the first superstep overwrites y."""
    d.y[v] = d.weight_here[v]
    return True


@fg.reduce(into="heaviest", combine="max")
def largest(f, v, d):  # type: ignore[no-untyped-def]
    """Find the largest weight of the graph; -inf without edges."""
    return d.y[v]


@fg.reduce(into="lightest", combine="min")
def smallest(f, v, d):  # type: ignore[no-untyped-def]
    """Find the smallest positive weight of the graph; inf without any."""
    return d.y[v]


#: These find the scale of the weights, and the shift of a directed graph.
find_heaviest = fg.foldmap(weights_behind, hold_weight, largest)
find_lightest = fg.foldmap(positive_weights_behind, hold_weight, smallest)


@dataclass(frozen=True, eq=False, kw_only=True)
class EigenvectorResult(Result):
    """Result of `eigenvector_centrality`.

    Attributes
    ----------
    centralities : ndarray of shape (V,)
        Non-negative, of Euclidean length one.
    eigenvalue : float
        The largest one, as far as the run has come: how much longer the last superstep
        has made the vector. nan without supersteps.
    """

    centralities: Array = answer()
    eigenvalue: float

    residual_name: ClassVar[str] = "L1 change of the centralities"
    residual_fix: ClassVar[str] = ""


@fg.algorithm()
def eigenvector_centrality(
    graph: fg.GraphLike,
    *,
    weights: npt.ArrayLike | None = None,
    nstart: ByVertex | None = None,
    shift: float | None = None,
    tol: float = 1e-6,
    max_supersteps: int = 100,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> EigenvectorResult:
    """Find the eigenvector of the largest eigenvalue by power iteration.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        A vertex counts by the sources of its in-edges; give the reversed graph for the
        targets of its out-edges.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    nstart : array_like of shape (V,), or mapping, optional
        Non-negative values to begin with, in any scale. Default: all the same.
        A mapping has values for some vertices by name, or by id where
        `Graph.vertex_names` is None; others have zero.
    shift : float, optional
        The shift of the diagonal of the adjacency matrix, more than zero:
        best a little below lambda. Default: one where all edges count one; else the
        largest weight, or the smallest positive one of a directed graph. With one,
        supersteps are those of networkx, whatever the weights.
    tol : float, optional
        The run has converged when the centralities move by less than V * tol, all
        absolute changes added up. By default neither they nor the number of supersteps
        depend on the scale of the weights.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False where it ended the run. networkx raises
        an error there. On directed graphs without cycles lambda is zero, and x moves
        ever more slowly.
    dtype : dtype, optional
        float64, or float32, which does not settle to a `tol` much below 1e-7.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    EigenvectorResult
        Centralities, eigenvalue, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If `nstart` or the weights do not fit the graph, are negative or not finite, or
        a number is out of range.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    Residuals shrink by the factor ``|c + second| / (c + lambda)``, with c the shift and
    the other eigenvalue that makes it largest. Where several components share the
    largest eigenvalue, the result depends on the start. Bitwise repeatable in pull
    direction; no atomics there.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import eigenvector_centrality
    >>> star = fg.Graph.from_edges([0, 0, 0, 0], [1, 2, 3, 4], directed=False)
    >>> result = eigenvector_centrality(star)
    >>> result.centralities.round(3), round(result.eigenvalue, 3)
    (array([0.707, 0.354, 0.354, 0.354, 0.354]), 2.0)
    """
    graph = fg.as_graph(graph)
    require_number("tol", tol, tol > 0, "more than 0")
    if shift is not None:
        require_number("shift", shift, shift > 0, "more than 0")
    count, real = graph.living_count, checked_reals(dtype)
    weight = weight_properties(graph, weights, real)
    state = fg.State(
        graph,
        x=column_property(graph, "nstart", nstart, real, iterated=True),
        y=fg.vertex_property(real.type(0)),
        shift=1.0,
        scale=1.0 if shift is None else float(shift),
        **weight,
    )
    if shift is None and weight:
        _find_shift(state, **around_of(options))
    run, residuals = iterate_recorded(
        STEPS[bool(weight)],
        state,
        until=fg.below("residual", count * tol),
        max_supersteps=max_supersteps,
        **options,
    )
    centralities: Any = state.view("x")
    return EigenvectorResult(
        run=run,
        vertex_names=graph.vertex_names,
        residuals=residuals,
        centralities=centralities,
        eigenvalue=_eigenvalue(state, run, nstart),
    )


def _eigenvalue(state: fg.State, run: fg.Run, nstart: ByVertex | None) -> float:
    """Return how much longer the last superstep has made x."""
    if not run.supersteps:
        return math.nan
    length = 1.0
    if run.supersteps == 1:  # it began with a sum of one, and no length of one
        begun = distributions(state.graph, "nstart", nstart).on_host()
        length = float(np.linalg.norm(begun))
    grown = math.sqrt(state["squares"][0]) / length
    return float(state["scale"]) * (grown - float(state["shift"]))


def _find_shift(state: fg.State, **where: Any) -> None:
    """Set ``scale`` to the largest weight, and ``shift`` to its multiple."""
    find_heaviest(state, **where)
    heaviest = state["heaviest"][0]
    if not heaviest > 0:  # no edge counts: any scale does
        return
    state["scale"] = heaviest
    if state.graph.directed:
        find_lightest(state, **where)
        state["shift"] = max(
            state["lightest"][0] / heaviest, np.finfo(heaviest.dtype).tiny
        )


def verify_eigenvector_centrality(
    graph: fg.GraphLike,
    centralities: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    tol: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * No centrality is negative, and the vector has length one.
    * One more superstep, with the default shift, moves it by less than V * tol,
      rounding apart, as the last did. If the graph is directed and a few vertices have
      most of the edges, or its weights differ by orders of magnitude, it may move by
      more before it settles; check such results with a larger `tol`.

    Parameters
    ----------
    graph, weights, tol
        As given to `eigenvector_centrality`.
    centralities : array_like of shape (V,)
        Its answer.

    Raises
    ------
    AssertionError
        With the vertex at which a property fails first, or the size of the move.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(centralities, where="centralities").on_host()
    eps = np.finfo(given.dtype).eps
    x = given.astype(np.float64)
    require(x >= 0, "a negative centrality")
    edges = edges_of(graph)
    given_weights = given_or_own_weights(graph, weights)
    w = 1.0 if given_weights is None else given_weights[edges.given]
    shift, scale = 1.0, 1.0
    if given_weights is not None and (given_weights > 0).any():
        scale = given_weights.max()
        if graph.directed:
            shift = given_weights[given_weights > 0].min() / scale
    y = shift * x + sums_over_in_edges(edges, w / scale * x[edges.sources], len(x))
    degree = np.bincount(edges.targets, minlength=len(x)).max(initial=0)
    rounding = 4 * eps * (degree + math.log2(len(x) + 1) + 8)
    if abs(math.sqrt(x @ x) - 1) > rounding:
        raise AssertionError(f"the vector has length {math.sqrt(x @ x)}, not one")
    moved = float(np.abs(y / math.sqrt(y @ y) - x).sum())
    if moved >= graph.living_count * tol + rounding * x.sum():
        raise AssertionError(f"one more superstep moves it by {moved}")

"""Eigenvector centrality: a vertex is central if central vertices point to it.

The centralities are the eigenvector of the largest eigenvalue lambda of the adjacency
matrix A: ``lambda x(v)`` is the sum of ``w(u, v) x(u)`` over the edges u -> v. Power
iteration finds it; with ``|y|`` the Euclidean length and ``c > 0`` the shift::

    y(v)  = c x(v) + sum over edges u -> v of w(u, v) x(u)
    x'(v) = y(v) / |y|

The shift makes this an iteration with c I + A. The eigenvectors are the same, and it
also converges on bipartite graphs, where -lambda is an eigenvalue of A as well. A shift
far above lambda would hardly change x in a superstep. Therefore c is the largest weight
of an undirected graph, since no entry of a symmetric matrix exceeds lambda. In a
directed graph, c is the smallest positive weight, since lambda is at least the smallest
weight of any cycle. Then x does not depend on the scale of the weights. Both c and w
are divided by the largest weight, so that squares of y do not overflow.

State: ``x`` (V,), of length one from the first superstep on; ``y`` (V,); ``weight``,
one per given edge. A superstep reads E values along edges, and passes four times over V
values: for y, its length, x, and the change of x.

P. Bonacich, "Power and Centrality: A Family of Measures", American Journal of Sociology
92, 1987; R. von Mises, H. Pollaczek-Geiringer, "Praktische Verfahren der
Gleichungsaufloesung", ZAMM 9, 1929. Initial values and stopping rule are those of
networkx, and so is the shift if edges have no weights.
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
from featgraph.algorithms._result import Result, answer, around_of, iterate_recorded
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
    """Return the centrality of the source."""
    return d.x[u]


@fg.gather(into="inflow", combine="sum")
def weighted_from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the centrality of the source, times the weight."""
    return d.weight[e] * d.x[u]


@fg.vertex
def multiply(f, v, d):  # type: ignore[no-untyped-def]
    """Apply c I + A, divided by the scale of the weights."""
    d.y[v] = d.shift * d.x[v] + d.inflow[v] / d.scale
    return True


@fg.reduce(into="squares", combine="sum")
def squared(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the squares of y."""
    return d.y[v] * d.y[v]


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Divide y by its length."""
    d.x_next[v] = d.y[v] / math.sqrt(d.squares[0])
    return True


@fg.reduce(into="residual", combine="sum")
def change(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the absolute changes of centralities, the L1 norm."""
    return abs(d.x_next[v] - d.x[v])


#: Whether edges have weights -> the foldmap of a superstep.
STEPS = {
    False: fg.foldmap(from_sources, multiply, squared, scale, change),
    True: fg.foldmap(weighted_from_sources, multiply, squared, scale, change),
}
step = STEPS[False]


@fg.gather(into="weight_here", combine="max")
def weights_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the weight of an edge into v."""
    return d.weight[e]


@fg.gather(into="weight_here", combine="min")
def positive_weights_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the weight of an edge into v if it is positive."""
    return d.weight[e] if d.weight[e] > 0 else np.inf


@fg.vertex
def hold_weight(f, v, d):  # type: ignore[no-untyped-def]
    """Store the weight in y for a reduce; the first superstep overwrites y."""
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


#: Foldmaps that find the scale of the weights, and the shift of a directed graph.
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
        An estimate of the largest eigenvalue, from the growth of the vector's length in
        the last superstep; nan without supersteps.
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
        The centrality of a vertex comes from the sources of its in-edges; pass the
        reversed graph to use the targets of its out-edges.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    nstart : array_like of shape (V,), or mapping, optional
        Initial values, not negative, in any scale. Default: uniform. A mapping has
        values of some vertices by name, or by id if `Graph.vertex_names` is None; other
        vertices have zero.
    shift : float, optional
        The shift of the diagonal of the adjacency matrix, more than zero; best a little
        below lambda. Default: one without weights; otherwise the largest weight, or the
        smallest positive weight of a directed graph. With a shift of one, supersteps
        are those of networkx, for all weights.
    tol : float, optional
        The run has converged when the sum of the absolute changes of centralities is
        less than V * tol. With the default shift, neither centralities nor the number
        of supersteps depend on the scale of the weights.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run (networkx raises an
        error). On directed graphs without cycles, lambda is zero, and x changes ever
        more slowly.
    dtype : dtype, optional
        float64, or float32, which does not converge to a `tol` much below 1e-7.
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
    A superstep multiplies residuals by about ``|c + mu| / (c + lambda)``, with c the
    shift and mu the eigenvalue other than lambda that makes this largest. If several
    components have the largest eigenvalue, the result depends on the initial values.
    Bitwise repeatable in pull direction, which has no atomics.

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
    return EigenvectorResult.of(
        graph,
        run,
        residuals,
        centralities=state.view("x"),
        eigenvalue=_eigenvalue(state, run, nstart),
    )


def _eigenvalue(state: fg.State, run: fg.Run, nstart: ByVertex | None) -> float:
    """Return the eigenvalue, from the growth of the length in the last superstep."""
    if not run.supersteps:
        return math.nan
    length = 1.0
    if run.supersteps == 1:  # initial values have the sum one, not the length one
        begun = distributions(state.graph, "nstart", nstart).on_host()
        length = float(np.linalg.norm(begun))
    grown = math.sqrt(state["squares"][0]) / length
    return float(state["scale"]) * (grown - float(state["shift"]))


def _find_shift(state: fg.State, **where: Any) -> None:
    """Set ``scale`` to the largest weight, and ``shift`` relative to it."""
    find_heaviest(state, **where)
    heaviest = state["heaviest"][0]
    if not heaviest > 0:  # no positive weights: the scale has no effect
        return
    state["scale"] = heaviest
    if state.graph.directed:
        find_lightest(state, **where)
        # The quotient may underflow to zero, which is no shift: see the module.
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

    * No centrality is negative, and the vector has the length one.
    * One more superstep, with the default shift, changes it by less than V * tol, up to
      rounding. If the graph is directed and a few vertices have most of the edges, or
      weights differ by orders of magnitude, changes may grow again before they vanish;
      check such results with a larger `tol`.

    Parameters
    ----------
    graph, weights, tol
        As passed to `eigenvector_centrality`.
    centralities : array_like of shape (V,)
        The answer of `eigenvector_centrality`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex, or the size of the change.
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

"""Label propagation for several sets of labels at once.

There are P sets of C classes each, such as the topic, the language and the author of a
vertex. With ``lp_p(v)`` the distribution of vertex v over the classes of set p, one
superstep computes for all vertices, sets and classes::

    aggr_p(v) = sum over edges u -> v of w_p(u, v) * lp_p(u)
    prob      = alpha * normalize(aggr_p(v)) + (1 - alpha) * lp_p(v)
    lp_p'(v)  = normalize(prob)

where ``normalize`` divides by the sum over the classes of the set; zeros stay zero. A
vertex may be labelled in some of the sets, and keeps these labels. Items with any
number of tags are P sets of two classes: with the tag, and without it.

The P * C features of a vertex are stored set by set, and all P sets share one pass over
the graph. State: ``label`` (V, P * C); ``clamped`` (V,), vertices labelled in all sets;
``seeded`` (V, P), the sets in which a vertex is labelled; ``weight``, one or P per
given edge. A superstep reads E * P * C values and writes V * P * C.

X. Zhu and Z. Ghahramani, "Learning from Labeled and Unlabeled Data with Label
Propagation", CMU-CALD-02-107, 2002; the form with sets is from Onyx.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    UNLABELLED,
    checked_labels,
    checked_weight_vectors,
    checked_weights,
    require_number,
    scaled_weights,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded
from featgraph.algorithms._vertices import at_living
from featgraph.algorithms.label_propagation import verify_label_propagation

__all__ = [
    "LabelSetPropagationResult",
    "label_set_propagation",
    "verify_label_set_propagation",
]

Array = npt.NDArray[Any]


@fg.vertex
def be_sure(f, v, d):  # type: ignore[no-untyped-def]
    """Set the initial distribution of a set from a class, if v has one."""
    count = int(d.class_count)
    d.label_next[v, f] = 1.0 if d.given[v, f // count] == f % count else 0.0
    return True


@fg.vertex
def keep_given(f, v, d):  # type: ignore[no-untyped-def]
    """Store whether v is labelled in set f, and whether it is labelled in all sets."""
    is_given = False
    for c in range(int(d.class_count)):
        is_given = is_given or d.label[v, f * int(d.class_count) + c] > 0
    d.seeded[v, f] = is_given
    d.clamped[v] = fg.all_features(is_given)
    return True


@functools.cache
def step_for(class_count: int, weight_per_set: bool, with_residual: bool) -> fg.FoldMap:
    """Return the foldmap of a superstep; the number of classes is a constant in it."""

    @fg.gather(into="aggr", combine="sum")
    def labels_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Return feature f of the source, times the weight of the edge."""
        return d.weight[e] * d.label[u, f]

    @fg.gather(into="aggr", combine="sum")
    def weighted_in_each_set(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Return feature f of the source, times the weight of its set."""
        return d.weight[e, f // class_count] * d.label[u, f]

    @fg.vertex
    def relax(f, v, d):  # type: ignore[no-untyped-def]
        """Move all sets without a label of v towards the mean of the sources."""
        if d.clamped[v]:
            return False
        mean = fg.normalize(d.aggr[v, f], group=class_count)
        p = d.alpha * mean + (1 - d.alpha) * d.label[v, f]
        p = fg.normalize(p, group=class_count)
        p = d.label[v, f] if d.seeded[v, f // class_count] else p
        d.label_next[v, f] = p
        return fg.any_feature(abs(p - d.label[v, f]) > d.epsilon)

    @fg.reduce(into="residual", combine="max")
    def largest_change(f, v, d):  # type: ignore[no-untyped-def]
        """Return the change of the probability of feature f."""
        return abs(d.label_next[v, f] - d.label[v, f])

    gather = weighted_in_each_set if weight_per_set else labels_of_neighbors
    return fg.foldmap(gather, relax, *([largest_change] if with_residual else []))


@fg.vertex
def decide(f, v, d):  # type: ignore[no-untyped-def]
    """Store the most likely class of set f; -1 for zeros."""
    best = UNLABELLED
    most = 0.0
    for c in range(int(d.class_count)):
        p = d.label[v, f * int(d.class_count) + c]
        if p > most:
            best = c
            most = p
    d.best[v, f] = best
    return True


begin, keep, end = fg.vertexmap(be_sure), fg.vertexmap(keep_given), fg.vertexmap(decide)


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelSetPropagationResult(Result):
    """Result of `label_set_propagation`.

    Attributes
    ----------
    distributions : ndarray of shape (V, P, C)
        Rows sum to one, or are zero if no path from a vertex labelled in the set leads
        there.
    labels : ndarray of int64, shape (V, P)
        The most likely class of each set, the smallest on ties; -1 for a row of zeros.
    """

    distributions: Array = answer()
    labels: npt.NDArray[np.int64] = answer()

    residual_name: ClassVar[str] = "largest change"


@fg.algorithm()
def label_set_propagation(
    graph: fg.GraphLike,
    labels: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    alpha: float = 0.85,
    epsilon: float = 1e-3,
    max_supersteps: int = 1000,
    clamp: bool = True,
    class_count: int | None = None,
    history: bool = True,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> LabelSetPropagationResult:
    """Spread several sets of labels from some vertices to all others.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Labels spread along ``u -> v``, in both directions if the graph is undirected.
    labels : array_like of int, shape (V, P), or of float, shape (V, P, C)
        For each set the class, 0 to C - 1, or -1 for vertices that are not labelled in
        the set; or distributions, with rows of zeros for unlabelled vertices.
    weights : array_like of shape (E,) or (E, P), optional
        Non-negative, in the order in which the edges were given; for all sets, or a
        column for each. Default: the weights of the graph, or one.
    alpha, epsilon, max_supersteps, clamp, history, dtype
        As for `label_propagation`. A vertex is announced if the probability of any
        class in any set changes by more than `epsilon`.
    class_count : int, optional
        C, for integer labels. Default: the largest label plus one.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    LabelSetPropagationResult
        Distributions, labels, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If labels or weights do not fit the graph, a set has no labelled vertex, or
        alpha is out of range.

    Notes
    -----
    After convergence, one more superstep would change no entry by more than `epsilon`.
    Bitwise repeatable in pull direction, which has no atomics. A kernel is compiled for
    each number of classes and of sets.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import label_set_propagation
    >>> path = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], directed=False)
    >>> labels = [[0, 1], [-1, -1], [-1, -1], [-1, 0], [1, -1]]
    >>> label_set_propagation(path, labels).labels.T.tolist()
    [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]]
    """
    graph = fg.as_graph(graph)
    require_number("alpha", alpha, 0 < alpha <= 1, "0 < alpha <= 1")
    real = checked_reals(dtype)
    given, classes = _checked_sets(graph, labels, class_count)
    set_count = given.shape[1]
    of_sets = _weights(graph, weights, set_count)
    properties = {"weight": fg.edge_property(real.type(1))}
    if of_sets is None:
        properties |= weight_properties(graph, weights, real, ratios=True)
    else:
        w = scaled_weights(graph, weights, of_sets, real)
        w = of_sets.astype(real, "weights") if w is None else w
        properties["weight"] = fg.edge_property(w.values, copy=False)
    if given.ndim == 2:
        width = (set_count * classes,)
        properties |= {
            "label": fg.vertex_property(real.type(0), shape=width, iterated=True),
            "given": fg.vertex_property(given.values, dtype=np.int32),
        }
    else:
        rows = given.matrix().astype(real).values
        properties["label"] = fg.vertex_property(rows, iterated=True)
    state = fg.State(
        graph,
        seeded=fg.vertex_property(False, shape=(set_count,)),
        clamped=fg.vertex_property(False),
        best=fg.vertex_property(
            np.int64(UNLABELLED), shape=(set_count,), fill=UNLABELLED
        ),
        class_count=classes,
        alpha=float(alpha),
        epsilon=float(epsilon),
        **properties,
    )
    where = {"target": options.get("target", "auto")}
    if given.ndim == 2:
        begin(state, **where)
    if clamp:  # otherwise no vertex is clamped, and no set is seeded
        keep(state, **where)
    recorded = iterate_recorded(
        step_for(classes, of_sets is not None, history),
        state,
        history=history,
        max_supersteps=max_supersteps,
        **options,
    )
    end(state, **where)
    found = state.view("label")
    return LabelSetPropagationResult.of(
        graph,
        *recorded,
        distributions=found.reshape(len(found), set_count, classes),
        labels=state.view("best"),
    )


def verify_label_set_propagation(
    graph: fg.GraphLike,
    labels: npt.ArrayLike,
    distributions: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    alpha: float = 0.85,
    epsilon: float = 1e-3,
    class_count: int | None = None,
) -> None:
    """Check the answer of a converged, clamped run, in float64.

    * Each set has the properties that `verify_label_propagation` lists.

    Parameters
    ----------
    graph, labels, weights, alpha, epsilon, class_count
        As passed to `label_set_propagation`.
    distributions : array_like of shape (V, P, C)
        The answer of `label_set_propagation`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such set and vertex.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(distributions, where="distributions").on_host()
    found, classes = _checked_sets(graph, labels, class_count)
    sets = found.on_host()
    of_sets = _weights(graph, weights, sets.shape[1])
    w = (checked_weights(graph, weights) if of_sets is None else of_sets).on_host()
    for p in range(sets.shape[1]):
        try:
            verify_label_propagation(
                graph,
                sets[:, p],
                given[:, p],
                weights=w if of_sets is None else w[:, p],
                alpha=alpha,
                epsilon=epsilon,
                class_count=classes,
            )
        except AssertionError as error:
            raise AssertionError(f"set {p}, {error}") from None


def _checked_sets(
    graph: fg.Graph, labels: npt.ArrayLike, class_count: int | None
) -> tuple[fg.GivenArray, int]:
    """Return checked labels, (V, P), or distributions, (V, P, C); and C."""
    given = fg.given_array(labels, where="labels")
    if given.ndim not in {2, 3} or 0 in given.shape[1:]:
        raise fg.GraphInputError(
            "labels have an axis for one set or more",
            got=f"shape {given.shape}",
            expected="(V, P), or (V, P, C) for distributions",
        )
    given = at_living(graph, given, UNLABELLED if given.ndim == 2 else 0)
    # All sets have as many classes: they are features of one width.
    if given.ndim == 2 and class_count is None and given.size:
        class_count = int(given.largest_of_columns().max()) + 1
    classes = 0
    for p in range(given.shape[1]):
        try:
            _, classes = checked_labels(graph, given.column(p), class_count)
        except fg.GraphInputError as error:
            inside = f", {error.where}" if error.where else ""
            raise error.at(f"set {p}{inside}") from None
    if given.ndim == 3:
        given = given.astype(np.float64, "labels").rows_divided()
    return given, classes


def _weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, set_count: int
) -> fg.GivenArray | None:
    """Return checked weights (E, P) if sets have their own weights; else None."""
    if weights is None or fg.given_array(weights, where="weights").ndim != 2:
        return None
    w = checked_weight_vectors(graph, weights)
    if w.shape[1] != set_count:
        raise fg.GraphInputError(
            "one column of weights for each set is needed",
            got=f"{w.shape[1]} columns",
            expected=f"{set_count}, or one weight an edge",
        )
    return w

"""Label propagation: class distributions spread from labelled vertices along edges.

A superstep computes, with ``lp(v)`` the distribution of vertex v over K classes::

    aggr(v) = sum over edges u -> v of w(u, v) * lp(u)
    prob    = alpha * normalize(aggr(v)) + (1 - alpha) * lp(v)
    lp'(v)  = normalize(prob)

where ``normalize`` divides by the sum over the classes; a row of zeros stays zero.

State: ``label`` (V, K), zeros where nothing is known yet; ``clamped`` (V,), labelled
vertices, which keep their row; ``weight``, one per given edge. A superstep reads E * K
values and writes V * K. At a fixpoint, ``lp(v)`` is ``normalize(aggr(v))``, the mean of
the sources; alpha only determines the speed. Updates keep a tree of paths: `reach`.

X. Zhu and Z. Ghahramani, "Learning from Labeled and Unlabeled Data with Label
Propagation", CMU-CALD-02-107, 2002; the damped form for single classes is from Onyx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    UNLABELLED,
    checked_labels,
    checked_weights,
    initial_distributions,
    normalize_rows,
    require_number,
    weight_properties,
)
from featgraph.algorithms._following import (
    Following,
    Update,
    are_column,
    ends_of,
    spread,
)
from featgraph.algorithms._paths import FEW_SUPERSTEPS, checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded
from featgraph.algorithms._verify import Edges, edges_of, require, sums_over_in_edges
from featgraph.algorithms.sswp import ways, widen

__all__ = ["LabelPropagationResult", "label_propagation", "verify_label_propagation"]

Array = npt.NDArray[Any]


@fg.vertex
def be_sure(f, v, d):  # type: ignore[no-untyped-def]
    """Set the initial distribution from a class; v is clamped if it has one."""
    d.label_next[v, f] = 1.0 if d.given[v] == f else 0.0
    d.clamped[v] = d.clamp and d.given[v] >= 0
    return True


@fg.vertex
def be_clamped(f, v, d):  # type: ignore[no-untyped-def]
    """Clamp v if it has an initial distribution."""
    d.clamped[v] = d.clamp and fg.any_feature(d.label[v, f] > 0)
    return True


@fg.gather(into="aggr", combine="sum")
def labels_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the probability of class f at the source, times the weight."""
    return d.weight[e] * d.label[u, f]


@fg.vertex
def relax(f, v, d):  # type: ignore[no-untyped-def]
    """Move towards the mean of the sources; announce changes above epsilon."""
    if d.clamped[v]:
        return False
    p = d.alpha * fg.normalize(d.aggr[v, f]) + (1 - d.alpha) * d.label[v, f]
    p = fg.normalize(p)
    d.label_next[v, f] = p
    return fg.any_feature(abs(p - d.label[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of the probability of class f."""
    return abs(d.label_next[v, f] - d.label[v, f])


step = fg.foldmap(labels_of_neighbors, relax)
step_with_residual = fg.foldmap(labels_of_neighbors, relax, largest_change)


@fg.vertex
def decide(f, v, d):  # type: ignore[no-untyped-def]
    """Store the most likely class; -1 for a row of zeros."""
    best = fg.argmax(d.label[v, f])
    d.best[v] = best if fg.any_feature(d.label[v, f] > 0) else UNLABELLED
    return True


#: Number of axes of the labels -> the foldmap that sets initial values.
begin = {1: fg.vertexmap(be_sure), 2: fg.vertexmap(be_clamped)}
end = fg.vertexmap(decide)


@fg.gather(into="aggr", combine="sum")
def labels_along_edges(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the probability of class f at the source, for edges without weights."""
    return d.label[u, f]


@fg.gather(into="way", combine="argmax", sources="active")
def ways_along_edges(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the width of the path through the source, for edges without weights."""
    return d.width[u, f]


#: Whether edges have weights -> the superstep of updates, and that of their tree.
#: ``width`` is the least positive number where labels arrive along positive weights and
#: 0 elsewhere; ``predecessor`` is the source from which they first arrived.
follow_labels = {False: fg.foldmap(labels_along_edges, relax), True: step}
reach = {False: fg.foldmap(ways_along_edges, widen), True: fg.foldmap(ways, widen)}
#: An update begins anew after changes of more than 1 / SHARE of the edges.
SHARE = 8
#: The first update makes the tree and evaluates all vertices once. It begins anew if
#: the call has evaluated all edges fewer times than this: it took up to 1.45 times as
#: long as a call (131,000 to 139,000 vertices, two cores, 2026-11-30). On a GPU, where
#: edges are not counted, it begins anew below `FEW_SUPERSTEPS`, which is measured for
#: paths alone.
LEAST_EVALUATED = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelPropagationResult(Result):
    """Result of `label_propagation`.

    Attributes
    ----------
    distributions : ndarray of shape (V, K)
        Rows sum to one, or are zero if no path from a labelled vertex leads there.
    labels : ndarray of int64, shape (V,)
        The most likely class, the smallest on ties; -1 for a row of zeros.
    """

    distributions: Array = answer()
    labels: npt.NDArray[np.int64] = answer()

    def _resume(self, following: Following) -> Update | str:
        """Evaluate vertices whose edges changed, and spread what that changes.

        The change that one more superstep makes at v depends on the row of v, the rows
        of its sources, and its in-edges. When v was last evaluated, it was at most
        epsilon, or v took the new row and was evaluated again. v is due again as soon
        as one of the three differs: a batch makes the ends of its edges and new
        vertices due, and a row that is taken or put makes its readers due. In the first
        update, all vertices are due.

        Rows that no label reaches any more are set to zero, since rows of a cycle would
        sustain each other. These are the rows of vertices that `fg.trim` resets in the
        tree and that `reach` does not reach again. In the end, all vertices in the tree
        have rows: where the source of v has one, the next row of v has an entry of at
        least 1 / K, which v takes if epsilon is less.
        """
        changes, arguments = following.changes(SHARE), following.arguments
        if isinstance(changes, str):
            return changes
        if not (arguments["clamp"] and self.converged):
            return "labels are not clamped, or the run has not converged"
        graph, real = following.graph, checked_reals(arguments["dtype"])
        known, evaluated = vars(self).get("_known"), self.run.evaluated
        few = self.supersteps < FEW_SUPERSTEPS
        if evaluated is not None:  # it is None on a GPU
            few = evaluated < LEAST_EVALUATED * graph.edge_count
        if few and known is None:
            return "a call takes less than the first update"
        labels = graph, arguments["labels"], arguments["class_count"]
        given, width = checked_labels(*labels)
        weights = weight_properties(graph, arguments["weights"], real, ratios=True)
        if not are_column(graph, weights):
            return "the weights are of another type"
        now = np.array(given.on_host())
        if known is None:
            if self.distributions.shape[1] != width:
                return "labels have changed"
            rows, before = initial_distributions(*labels, real), self.distributions
            tree, state, supersteps, edges = _begun(before, rows, weights, following)
        else:
            then, tree, state = known
            stays = np.arange(len(now)) < len(then)
            stays[changes.born] = stays[changes.dead] = False
            is_same = np.array_equal(now[stays], then[stays[: len(then)]])
            if not is_same or state.signature["label"].item_shape != (width,):
                return "labels have changed"
            if changes.born.size:
                rows = initial_distributions(*labels, real)
                came = changes.born[rows[changes.born].any(axis=1)]
                tree.put("width", came, np.finfo(real).tiny)
                state.put("clamped", came, True)
                state.put("label", came, rows[came])
            supersteps, edges = _cut_off(tree, state, changes, following.target)
        run = fg.iterate(
            follow_labels[bool(weights)], state,
            max_supersteps=arguments["max_supersteps"], **arguments["options"],
        )  # fmt: skip
        self._take(
            _known=(now, tree, state), distributions=lambda _: state["label"],
            labels=_most_likely, run=run, residuals=np.empty(0),
            vertex_names=graph.vertex_names,
        )  # fmt: skip
        edges = None if edges is None else edges + (run.evaluated or 0)
        return Update(changes.version, "", supersteps + run.supersteps, edges)

    residual_name: ClassVar[str] = "largest change"


def _begun(
    before: Array, rows: Array, weights: dict[str, Any], following: Following
) -> tuple[fg.State, fg.State, int, int | None]:
    """Return the tree and the State of updates, supersteps, and evaluated edges.

    `rows` has the rows of labelled vertices, which do not change, and gets those of an
    earlier version at all others that labels reach.
    """
    graph, arguments = following.graph, following.arguments
    fixed: Array = np.asarray(rows.any(axis=1))
    wide = (np.finfo(rows.dtype).tiny * fixed).astype(rows.dtype)[:, None]
    none = fg.vertex_property(np.int32(-1), shape=(1,), iterated=True, fill=-1)
    width = fg.vertex_property(wide, iterated=True)
    tree = fg.State(graph, width=width, predecessor=none, **weights)
    run = fg.iterate(
        reach[bool(weights)], tree, active=np.flatnonzero(fixed),
        max_supersteps=graph.vertex_count + 1, target=following.target,
    )  # fmt: skip
    kept = np.flatnonzero((tree["width"][: len(before), 0] > 0) & ~fixed[: len(before)])
    rows[kept] = before[kept]
    state = fg.State(
        graph,
        label=fg.vertex_property(rows, iterated=True),
        clamped=fg.vertex_property(fixed),
        alpha=float(arguments["alpha"]),
        epsilon=float(arguments["epsilon"]),
        **weights,
    )
    return tree, state, run.supersteps, run.evaluated


def _cut_off(
    tree: fg.State, state: fg.State, changes: Any, target: str
) -> tuple[int, int | None]:
    """Update the tree, set rows that are cut off to zero; return supersteps, edges."""
    weighted = "weight" in tree
    reset = {"width": 0}
    lost = fg.trim(tree, "predecessor", reset=reset, values=weighted, target=target)
    due = ends_of(tree, "width", changes, lost, rises=True)
    done = spread(reach[weighted], tree, due, lost, target)
    if lost.size:
        state.put("label", lost[tree["width"][lost, 0] == 0], 0)
    return done


def _most_likely(result: LabelPropagationResult) -> npt.NDArray[np.int64]:
    """Return the most likely class of each vertex; -1 for a row of zeros."""
    rows = result.distributions
    return np.where(rows.any(axis=1), rows.argmax(axis=1), UNLABELLED)


@fg.algorithm()
def label_propagation(
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
) -> LabelPropagationResult:
    """Spread the labels of some vertices to all others.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Labels spread along ``u -> v``, in both directions if the graph is undirected.
    labels : array_like of int, shape (V,), or of float, shape (V, K)
        Classes 0 to K - 1, and -1 for unlabelled vertices; or a distribution for each
        vertex, and a row of zeros for unlabelled ones.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    alpha : float, optional
        Weight of the mean of the sources in the new distribution, in (0, 1].
    epsilon : float, optional
        A new distribution is dropped if no probability changes by more than this.
    max_supersteps : int, optional
        The limit; ``result.run.converged`` is False if it ended the run.
    clamp : bool, optional
        Whether labelled vertices keep their labels. Otherwise all distributions drift
        towards one another.
    class_count : int, optional
        K, for integer labels. Default: the largest label plus one.
    history : bool, optional
        Record the largest change of each superstep, in a pass over the vertices.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    LabelPropagationResult
        Distributions, labels, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If labels or weights do not fit the graph, no vertex is labelled, or alpha is
        out of range.

    Notes
    -----
    After convergence, one more superstep would change no entry by more than `epsilon`.
    Bitwise repeatable in pull direction, which has no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import label_propagation
    >>> path = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], directed=False)
    >>> label_propagation(path, [0, -1, -1, -1, 1]).labels.tolist()
    [0, 0, 0, 1, 1]
    """
    graph = fg.as_graph(graph)
    require_number("alpha", alpha, 0 < alpha <= 1, "0 < alpha <= 1")
    real = checked_reals(dtype)
    given, width = checked_labels(graph, labels, class_count)
    properties = {"weight": fg.edge_property(real.type(1))}
    properties |= weight_properties(graph, weights, real, ratios=True)
    if given.ndim == 1:
        properties |= {
            "label": fg.vertex_property(real.type(0), shape=(width,), iterated=True),
            "given": fg.vertex_property(given.values, dtype=np.int64),
        }
    else:
        rows = given.astype(real).values
        properties["label"] = fg.vertex_property(rows, iterated=True)
    state = fg.State(
        graph,
        best=fg.vertex_property(np.int64(UNLABELLED), fill=UNLABELLED),
        clamped=fg.vertex_property(False),
        clamp=bool(clamp),
        alpha=float(alpha),
        epsilon=float(epsilon),
        **properties,
    )
    where = {"target": options.get("target", "auto")}
    begin[given.ndim](state, **where)
    recorded = iterate_recorded(
        step_with_residual if history else step,
        state,
        history=history,
        max_supersteps=max_supersteps,
        **options,
    )
    end(state, **where)
    return LabelPropagationResult.of(
        graph, *recorded, distributions=state.view("label"), labels=state.view("best")
    )


def verify_label_propagation(
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

    * A row is non-negative and sums to one, or is zero.
    * A labelled vertex has the given distribution.
    * A row is zero if and only if no path of edges of positive weight leads there from
      a labelled vertex.
    * One more superstep changes no entry of an unlabelled vertex by more than
      `epsilon`, up to rounding.

    Parameters
    ----------
    graph, labels, weights, alpha, epsilon, class_count
        As passed to `label_propagation`.
    distributions : array_like of shape (V, K)
        The answer of `label_propagation`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(distributions, where="distributions").on_host()
    rounding = np.finfo(given.dtype).eps
    x = given.astype(np.float64)
    w = checked_weights(graph, weights).astype(np.float64).on_host()
    expected = initial_distributions(graph, labels, class_count, given.dtype)
    clamped: Array = np.asarray(expected.any(axis=1))
    sums: Array = x.sum(axis=1)
    margin = 4 * rounding * x.shape[1]
    require((x >= 0).all(axis=1), "negative entries")
    require((sums == 0) | (np.abs(sums - 1) <= margin), "the row does not sum to one")
    require(~clamped | (given == expected).all(axis=1), "a label was changed")

    edges, count = edges_of(graph), len(x)
    of_edges = w[edges.given]
    contributions = of_edges[:, None] * x[edges.sources]
    aggr = sums_over_in_edges(edges, contributions, count)
    in_degree = np.bincount(edges.targets, minlength=count)
    reached = _reached(clamped, edges, of_edges > 0)
    require(
        reached == (sums > 0), "the row is zero though labels reach it, or not zero"
    )

    moved = normalize_rows(alpha * normalize_rows(aggr) + (1 - alpha) * x)
    change = np.abs(moved - x).max(axis=1)
    settled = change <= epsilon + 8 * rounding * (in_degree + x.shape[1])
    require(settled | clamped, "one more superstep changes it")


def _reached(start: Array, edges: Edges, is_open: Array) -> Array:
    reached = start.copy()
    count = -1
    while count != (count := int(reached.sum())):
        reached[edges.targets[is_open & reached[edges.sources]]] = True
    return reached

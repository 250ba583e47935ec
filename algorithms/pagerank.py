"""PageRank: how often a surfer following edges at random is found at each vertex.

With ``pr(v)`` the rank of vertex v, ``p`` the distribution of jumps, and ``q`` that of
moves from vertices without out-edges (*dangling* ones), all summing to one::

    lost   = sum over dangling vertices u of pr(u)
    pr'(v) = (1 - alpha) p(v)
           + alpha (sum over edges u -> v of w(u, v) pr(u) / out(u) + lost q(v))

where ``out(u)`` is the sum of the weights of u's out-edges, or their number. All k
columns of p, one for each set of seeds, are computed at once.

The iterated property is ``share(u) = pr(u) / out(u)``, sent along an edge of weight
one. An edge then costs one read of its source and no division; a vertex without
out-edges sends nothing, and its share is its rank. A superstep reads E * k shares and
moves V * k of them, twice where the residual is computed. `begin` computes ``out`` and
the first shares; with weights, also whether any vertex is dangling. `end` turns the
last shares into ranks. Both run on the target, in the dtype of the shares, so that a
rank is rounded once more than its share. On the CPU, NumPy multiplies in place of
`end`, unless ranks are scaled.

If the mass of dangling vertices is dropped (``dangling="renormalize"``),
``y' = (1 - alpha) p + alpha M y`` has the fixpoint
``y = (1 - alpha) (I - alpha M)^-1 p``. PageRank with q = p solves
``(I - alpha M) pr = c p`` for some number c, so ``pr = y / sum(y)``, exactly. No global
value like `lost` then changes between supersteps, and vertices whose sources have
settled are skipped.

L. Page, S. Brin, R. Motwani, T. Winograd, "The PageRank Citation Ranking: Bringing
Order to the Web", Stanford InfoLab, 1999; A. N. Langville, C. D. Meyer, "Google's
PageRank and Beyond: The Science of Search Engine Rankings", Princeton, 2006. Stopping
rule and treatment of dangling vertices are those of networkx.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    given_or_own_weights,
    out_weights,
    require_held,
    weight_properties,
)
from featgraph.algorithms._following import Following, Update, are_column, is_on_gpu
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import (
    Result,
    answer,
    around_of,
    iterate_recorded,
    values_on_host,
)
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import (
    ByVertex,
    columns_property,
    distributions,
    given_values,
    only_living,
    width_of,
)

__all__ = ["PageRankResult", "pagerank", "verify_pagerank"]

Array = npt.NDArray[Any]

RENORMALIZE = "renormalize"


def sent(out: Any) -> Any:
    """Return the divisor of a rank; 1 for a vertex without out-edges."""
    return out if out > 0 else 1.0


@fg.vertex
def count_out_edges(f, v, d):  # type: ignore[no-untyped-def]
    """Store the out-degree as out(v), for edges without weights."""
    d.out[v] = d.out_degree[v]
    return True


@fg.gather(into="total", combine="sum", along="out")
def weights_of_out_edges(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum the weights of the out-edges."""
    return d.weight[e]


@fg.vertex
def weigh_out_edges(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum of the weights as out(v)."""
    d.out[v] = d.total[v]
    return True


@fg.vertex
def share_out(f, v, d):  # type: ignore[no-untyped-def]
    """Divide the initial rank, which `share` holds, by out(v)."""
    d.share_next[v, f] = d.share[v, f] / sent(d.out[v])
    return True


@fg.reduce(into="dangling", combine="any")
def any_dangling(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether the weights of the out-edges of v sum to zero."""
    return d.out[v] == 0


@fg.reduce(into="sinks", combine="any")
def any_sink(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether v has no out-edges."""
    return d.out_degree[v] == 0


#: Whether edges have weights -> the foldmap before the first superstep.
begin = {
    False: fg.foldmap(count_out_edges, share_out),
    True: fg.foldmap(weights_of_out_edges, weigh_out_edges, share_out, any_dangling),
}
#: Finds out whether a graph without weights has dangling vertices, if `out` is not on
#: the host. It runs on a State of its own: the answer belongs to the graph, and a
#: checkpoint of the run must not depend on whether this foldmap has run.
look = fg.foldmap(any_sink)


@fg.reduce(into="lost", combine="sum")
def mass_of_dangling(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the ranks of vertices without out-edges, which no edge passes on."""
    rank = d.share[v, f]  # read in any case, so that the load waits for no branch
    return rank if d.out[v] == 0 else 0.0


@fg.gather(into="inflow", combine="sum")
def shares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the share of the source."""
    return d.share[u, f]


@fg.gather(into="inflow", combine="sum")
def weighted_shares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the share of the source times the weight of the edge."""
    return d.weight[e] * d.share[u, f]


@fg.vertex
def surf(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the rank; the mass of dangling vertices jumps by `personal`."""
    followed = d.inflow[v, f] + d.lost[f] * d.personal[v, f]
    rank = (1 - d.alpha) * d.personal[v, f] + d.alpha * followed
    d.share_next[v, f] = rank / sent(d.out[v])
    return fg.any_feature(abs(rank - d.share[v, f] * sent(d.out[v])) > d.epsilon)


@fg.vertex
def surf_and_land(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the rank; the mass of dangling vertices jumps by `landing`."""
    followed = d.inflow[v, f] + d.lost[f] * d.landing[v, f]
    rank = (1 - d.alpha) * d.personal[v, f] + d.alpha * followed
    d.share_next[v, f] = rank / sent(d.out[v])
    return fg.any_feature(abs(rank - d.share[v, f] * sent(d.out[v])) > d.epsilon)


@fg.vertex
def surf_without_dangling(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the rank where no vertex is dangling, or their mass is dropped."""
    rank = (1 - d.alpha) * d.personal[v, f] + d.alpha * d.inflow[v, f]
    d.share_next[v, f] = rank / sent(d.out[v])
    return fg.any_feature(abs(rank - d.share[v, f] * sent(d.out[v])) > d.epsilon)


@fg.reduce(into="residual", combine="sum")
def change(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the absolute changes of the ranks: their L1 norm.

    Where dangling mass is dropped, this is the change of y. The sum s of y is at least
    1 - alpha, and the change of the ranks y / s is at most 2 / s times that of y.
    """
    return abs(d.share_next[v, f] - d.share[v, f]) * sent(d.out[v])


#: (whether edges have weights, the property by which the mass of dangling vertices
#: jumps, or "", whether the residual is computed) -> the foldmap of a superstep.
STEPS = {
    (weighted, lands, residual): fg.foldmap(
        *([mass_of_dangling] if lands else []),
        weighted_shares if weighted else shares,
        move,
        *([change] if residual else []),
    )
    for weighted in (False, True)
    for lands, move in (
        ("", surf_without_dangling),
        ("personalization", surf),
        ("dangling", surf_and_land),
    )
    for residual in (False, True)
}
step = STEPS[False, "personalization", True]


@fg.vertex
def rank(f, v, d):  # type: ignore[no-untyped-def]
    """Multiply the last share by out(v): the rank."""
    d.share_next[v, f] = d.share[v, f] * sent(d.out[v])
    return True


@fg.reduce(into="mass", combine="sum")
def mass(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the ranks."""
    return d.share[v, f] * sent(d.out[v])


@fg.vertex
def rank_by_mass(f, v, d):  # type: ignore[no-untyped-def]
    """Store the rank divided by the sum of all ranks."""
    d.share_next[v, f] = d.share[v, f] * sent(d.out[v]) / d.mass[f]
    return True


#: Whether ranks are scaled to sum one -> the foldmap after the last superstep.
end = {False: fg.foldmap(rank), True: fg.foldmap(mass, rank_by_mass)}


@fg.vertex
def surf_from_one(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the rank with the same jump at each vertex, whatever the number of them.

    After out(v) has changed, v keeps its share if that still gives a rank within
    epsilon of the new one.
    """
    rank = d.jump + d.alpha * d.inflow[v, f]
    d.share_next[v, f] = rank / sent(d.out[v])
    return abs(rank - d.share[v, f] * sent(d.out[v])) > d.epsilon


#: Whether edges have weights -> the superstep of updates from one version of the graph
#: to the next, with the residual, and without it if `tol` is None. A vertex whose edges
#: came or went is due. `weigh` renews ``out`` with weights; `add_ranks` sums all ranks
#: on a GPU.
follow_ranks = {
    False: fg.foldmap(count_out_edges, shares, surf_from_one, change),
    True: fg.foldmap(weighted_shares, surf_from_one, change),
}
spread_ranks = {
    False: fg.foldmap(count_out_edges, shares, surf_from_one),
    True: fg.foldmap(weighted_shares, surf_from_one),
}
weigh = fg.foldmap(weights_of_out_edges, weigh_out_edges)
add_ranks = fg.foldmap(mass, mass_of_dangling)
#: `pagerank` runs anew if more than a share of 1 / SHARE of the edges changed; with
#: epsilon, more than MOST_CHANGES * epsilon * V of them, if that is less: an update
#: would take as many supersteps.
SHARE, MOST_CHANGES = 8, 60
#: On a GPU, updates of graphs with fewer edges begin anew. On an H200, they took 1.5 to
#: 2 times as long as calls at 3.1M given edges, and .6 to .9 times at 42M.
LEAST_ON_GPU = 1 << 24
#: The time of an edge in an update on the CPU over that in a call: in graphs of at most
#: `FEW_VERTICES`, whose values stay in the cache, and in larger ones, of which updates
#: read values here and there.
EDGE_COSTS, FEW_VERTICES = (1.2, 2), 1 << 16
#: The time of a superstep of an update without and with a residual, and what calls and
#: updates take besides supersteps, in evaluations of an edge for each vertex. Updates
#: by 1 to 1,500 edges that took .3 of a call or more took .5 to 2 times as long as
#: estimated (33,000 to 131,000 vertices, two cores of an AMD EPYC, 2026-11-30).
STEP_COSTS, FIXED_COST = (0.5, 2), 4
#: An update keeps its jump if that is off by at most this many epsilon.
BALANCE = 0.5
#: The error of an update is bounded for ranks whose sum is at least this part of the
#: sum before. Where the sum falls below, the update goes on with smaller bounds.
COUNTED_ON = 0.9


@dataclass(frozen=True, eq=False, kw_only=True)
class PageRankResult(Result):
    """Result of `pagerank`.

    Attributes
    ----------
    ranks : ndarray of shape (V,) or (V, k)
        Non-negative; each column sums to one.
    """

    ranks: Array = answer()

    def _resume(self, following: Following) -> Update | str:
        """Update ranks from those of the version before, dropping dangling mass.

        With p one at each vertex, ``F(y) = 1 - alpha + alpha M y`` has no term that
        depends on the number of vertices. Ranks are y, scaled when they are read, and
        ``|y / s - z / t| <= 2 |y - z| / s`` for the sums s and t of y and z. A vertex
        keeps its y where that would change by epsilon at most, and the run ends where
        the changes of a superstep sum to less than c; without `tol`, c is 0, and the
        run ends where no vertex is due. Then ``|F(y) - y|`` is at most
        ``alpha c + V epsilon``, and the error of the ranks at most
        ``2 / (s (1 - alpha))`` times that.
        """
        graph, arguments = following.graph, following.arguments
        is_small = not arguments["epsilon"] or graph.given_edge_count < LEAST_ON_GPU
        if is_on_gpu(graph) and is_small:
            return "few supersteps of all edges take less on a GPU"
        share, where = SHARE, {"target": following.target}
        if arguments["epsilon"]:
            most = MOST_CHANGES * arguments["epsilon"] * max(graph.living_count, 1)
            share = max(SHARE, int(1 / most))
        changes = following.changes(share)
        if isinstance(changes, str):
            return changes
        for name in ("personalization", "dangling", "nstart"):
            if arguments[name] is not None and not isinstance(arguments[name], str):
                return f"{name}= was given"
        if arguments["alpha"] == 1 or not graph.living_count:
            return "ranks have no scale"
        real = checked_reals(arguments["dtype"])
        weights = weight_properties(graph, arguments["weights"], real, ratios=True)
        if not are_column(graph, weights):
            return "the weights are of another type"
        state: Any = vars(self).get("_shares")
        is_first = state is None
        if is_first:
            following.call_work = _work(self.run, graph)
            state = _begun(graph, self.ranks, arguments, weights, where)
        weighted = bool(weights)
        if weighted:
            _weigh(state, changes, where)
        limit = max(arguments["max_supersteps"], 1000)
        _balance(state, vars(self).get("_sums"))
        has_tol = arguments["tol"] is not None
        step = (follow_ranks if has_tol else spread_ranks)[weighted]
        while True:
            until = fg.below("residual", float(state["least"])) if has_tol else None
            run = fg.iterate(step, state, until=until, max_supersteps=limit, **where)
            sums = _sums(state, where)
            if sums[0] >= state["counted_on"]:
                break
            _count_on(state, COUNTED_ON * sums[0], arguments)
        if following.call_work:
            costs = EDGE_COSTS[graph.vertex_count > FEW_VERTICES], STEP_COSTS[has_tol]
            took = _work(run, graph, *costs) / following.call_work
            following.weigh(changes, took, is_first=is_first)
        self._take(
            _shares=state, _sums=sums, ranks=_scaled, run=run,
            residuals=np.empty(0), vertex_names=graph.vertex_names,
        )  # fmt: skip
        return Update(changes.version, "", run.supersteps, run.evaluated)

    residual_name: ClassVar[str] = "L1 change of the ranks"
    residual_fix: ClassVar[str] = "run with tol=0, which compares residuals"


def _work(
    run: fg.Run, graph: fg.Graph, edge_cost: float = 1, step_cost: float = 2
) -> float:
    """Estimate the time of a run on the CPU, in evaluations of edges; 0 on a GPU.

    A superstep of a call passes over all vertices, each of which takes the time of two
    edges.
    """
    if run.evaluated is None:
        return 0
    each = step_cost * run.supersteps + FIXED_COST
    return edge_cost * run.evaluated + each * graph.vertex_count


def _begun(
    graph: fg.Graph, ranks: Array, arguments: dict[str, Any], weights: dict[str, Any],
    where: dict[str, Any],
) -> fg.State:  # fmt: skip
    """Return a State whose shares are those of the ranks of an earlier version.

    The ranks are scaled to the sum s of y, which solves
    ``s = (1 - alpha) V + alpha s (1 - lost)``, where `lost` is the sum of the given
    ranks of vertices without out-edges.
    """
    real, alpha = checked_reals(arguments["dtype"]), float(arguments["alpha"])
    start = np.zeros((graph.vertex_count, 1), real)
    start[: ranks.size, 0] = ranks
    state = fg.State(
        graph,
        share=fg.vertex_property(start, iterated=True),
        out=fg.vertex_property(real.type(0)),
        alpha=alpha,
        jump=1 - alpha,
        **dict.fromkeys(("epsilon", "least", "counted_on"), 0.0),
        **weights,
    )
    begin[bool(weights)](state, **where)
    lost = float(start[state["out"] == 0].sum(dtype=np.float64))
    mass = graph.living_count * (1 - alpha) / (1 - alpha * (1 - lost))
    state["share"] = state["share"] * real.type(mass)
    _count_on(state, COUNTED_ON * mass, arguments)
    return state


def _weigh(state: fg.State, changes: Any, where: dict[str, Any]) -> None:
    """Renew out(v) where out-edges of v came, went or have other weights."""
    pairs = changes.inserted, changes.deleted, changes.changed
    sides = (0,) if state.graph.directed else (0, 1)
    ids = np.unique(np.concatenate([pair[side] for pair in pairs for side in sides]))
    ids = only_living(state.graph, ids)
    weigh.on(ids)(state, **where)  # they read `out`, so its change makes them due


def _sums(state: fg.State, where: dict[str, Any]) -> tuple[float, float]:
    """Return the sums of the ranks of all vertices, and of dangling ones.

    On the CPU, NumPy takes a quarter of the time of the two reduces of `add_ranks`.
    """
    if is_on_gpu(state.graph):
        add_ranks(state, **where)
        return float(state["mass"][0]), float(state["lost"][0])
    share, out = state.stored("share")[:, 0], state.stored("out")
    lost = float(share[out == 0].sum())
    return float((share * out).sum()) + lost, lost


def _balance(state: fg.State, sums: tuple[float, float] | None) -> None:
    """Set the jump so that the sum of the ranks stays, unless it nearly does already.

    The jump only scales y, so the ranks do not depend on it. With another jump the sum
    of y would have to change, which takes the most supersteps.
    """
    if sums is None:
        return
    alpha, (mass, lost) = state["alpha"], sums
    jump = float((1 - alpha) * mass + alpha * lost) / state.graph.living_count
    if abs(jump - state["jump"]) > state["epsilon"] * BALANCE:
        state["jump"] = jump


def _count_on(state: fg.State, mass: float, arguments: dict[str, Any]) -> None:
    """Set bounds so that the error is within `tol` if ranks sum to at least `mass`.

    Without `epsilon`, one half of `tol` is for the changes that vertices do not make,
    and one for the residual at which the run ends.
    """
    epsilon, tol = arguments["epsilon"], arguments["tol"]
    least = -1.0 if tol is None else state.graph.living_count * tol * mass / 2
    if epsilon is None:
        epsilon, least = arguments["alpha"] * tol / 2, least / 2
    share = mass / 2
    # With "renormalize", a given epsilon bounds changes of y before scaling, as in
    # `pagerank`.
    if None not in (arguments["epsilon"], arguments["dangling"]):
        share = max(share, COUNTED_ON * state.graph.living_count)
    state["counted_on"], state["epsilon"] = mass, epsilon * share
    state["least"] = least


def _sent(out: Array) -> Array:
    return out + (out == 0)


def _scaled(result: PageRankResult) -> Array:
    """Return the ranks of the State of updates, scaled to sum one.

    Ranks that updates have left within the tolerance below what jumps bring get that.
    """
    state = vars(result)["_shares"]
    ranks = state["share"][:, 0] * _sent(state["out"])
    ranks /= ranks.dtype.type(ranks.sum(dtype=np.float64))
    graph, living = state.graph, state.graph.living
    least = ranks.dtype.type((1 - state["alpha"]) / max(graph.living_count, 1))
    found: Array = np.maximum(ranks, least, out=ranks)
    if living is not None:
        found[~living] = 0
    return found


@fg.algorithm()
def pagerank(
    graph: fg.GraphLike,
    *,
    alpha: float = 0.85,
    personalization: ByVertex | None = None,
    dangling: ByVertex | str | None = None,
    weights: npt.ArrayLike | None = None,
    nstart: ByVertex | None = None,
    tol: float | None = 1e-6,
    epsilon: float | None = None,
    max_supersteps: int = 100,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> PageRankResult:
    """Rank the vertices of a graph, for one or many sets of seeds.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        A surfer follows ``u -> v``, in both directions if the graph is undirected.
    alpha : float, optional
        Probability of following an edge rather than jumping, in [0, 1].
    personalization : array_like of shape (V,) or (V, k), or mapping, optional
        The distribution of jumps: non-negative, in any scale. Each column is a set of
        seeds; all k are computed in one run. Default: all vertices equally. A mapping
        has values of some vertices by name, as in networkx, or by id where
        `Graph.vertex_names` is None; the value of other vertices is zero.
    dangling : array_like of shape (V,) or (V, k), mapping, or "renormalize", optional
        The distribution of moves from a vertex without out-edges. Default: as
        `personalization`. "renormalize" has the same fixpoint as the default, computed
        in another way: the ranks of these vertices are dropped in each superstep, and
        the result is scaled to sum one.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    nstart : array_like of shape (V,) or (V, k), or mapping, optional
        Initial ranks, in any scale. Default: uniform.
    tol : float, optional
        The run has converged when the absolute changes of a superstep sum to less than
        V * tol in every column. None: when no vertex is due.
    epsilon : float, optional
        A vertex whose rank changes by no more than this is not active afterwards, and
        a vertex without active sources is skipped. Default: every vertex is computed
        in every superstep.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    PageRankResult
        Ranks, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If a distribution or the weights do not fit the graph, are negative or not
        finite, a column of a distribution is zero, or a number is out of range.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    The distance to the fixpoint, in the L1 norm, is at most alpha / (1 - alpha) times
    the last residual, and V * epsilon / (1 - alpha) more.

    Vertices are skipped only on graphs without dangling vertices, or with
    ``dangling="renormalize"``: otherwise `lost` changes in every superstep, and all
    vertices depend on it. ``tol=None`` with an `epsilon` saves the pass that sums the
    residual.

    Ranks are bitwise repeatable in pull direction, which has no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import pagerank
    >>> star = fg.Graph.from_edges([1, 2, 3, 0], [0, 0, 0, 1])
    >>> pagerank(star).ranks.round(2)
    array([0.48, 0.45, 0.04, 0.04], dtype=float32)
    """
    graph = fg.as_graph(graph)
    _check_numbers(alpha, tol, epsilon, dangling)
    real, renormalize = checked_reals(dtype), isinstance(dangling, str)
    require_held("alpha", alpha, real)
    vectors: dict[str, Any] = {
        "nstart": nstart,
        "personalization": personalization,
        "dangling": None if renormalize else dangling,
    }
    given = {
        name: None if values is None else given_values(graph, name, values, 0.0)
        for name, values in vectors.items()
    }
    columns = {
        name: None if values is None else distributions(graph, name, values)
        for name, values in given.items()
    }
    width = width_of(columns)
    properties = weight_properties(graph, weights, real, ratios=True)
    is_weighted = bool(properties)
    if columns["dangling"] is not None:
        landing = columns_property(graph, columns["dangling"], width, real)
        properties["landing"] = landing
    state = fg.State(
        graph,
        share=columns_property(graph, columns["nstart"], width, real, iterated=True),
        personal=columns_property(graph, columns["personalization"], width, real),
        out=fg.vertex_property(real.type(0)),
        alpha=float(alpha),
        # Every change is above -1: all vertices stay active.
        epsilon=-1.0 if epsilon is None else float(epsilon),
        **properties,
    )
    where = around_of(options)
    begin[is_weighted](state, **where)
    lands = ""
    if not renormalize and _dangles(graph, state, is_weighted, where):
        lands = "personalization" if columns["dangling"] is None else "dangling"
    limit = None if tol is None else graph.living_count * tol
    if limit is not None and renormalize:
        limit *= (1 - alpha) / 2  # so that it holds for the scaled ranks: see `change`
    run, residuals = iterate_recorded(
        STEPS[is_weighted, lands, limit is not None],
        state,
        history=limit is not None,
        until=None if limit is None else fg.below("residual", limit),
        max_supersteps=max_supersteps,
        **options,
    )
    out = None if renormalize else values_on_host(state, "out")
    if out is None:
        end[renormalize](state, **where)
    ranks = state.view("share")
    if out is not None:
        np.asarray(ranks)[:] *= _sent(out)[:, None]
    if all(values is None or values.ndim < 2 for values in given.values()):
        ranks = ranks.reshape(len(ranks))
    return PageRankResult.of(graph, run, residuals, ranks=ranks)


def verify_pagerank(
    graph: fg.GraphLike,
    ranks: npt.ArrayLike,
    *,
    alpha: float = 0.85,
    personalization: ByVertex | None = None,
    dangling: ByVertex | str | None = None,
    weights: npt.ArrayLike | None = None,
    tol: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * No rank is below ``(1 - alpha) p``, and none negative.
    * Each column sums to one.
    * One more superstep changes no column by V * tol or more, up to rounding.

    Parameters
    ----------
    graph, alpha, personalization, dangling, weights, tol
        As passed to `pagerank`.
    ranks : array_like of shape (V,) or (V, k)
        The answer of `pagerank`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex or column.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(ranks, where="ranks").on_host()
    eps = np.finfo(given.dtype).eps
    x = given.astype(np.float64).reshape(graph.vertex_count, -1)
    personal = distributions(graph, "personalization", personalization).on_host()
    given_weights = given_or_own_weights(graph, weights, ratios=True)
    out = out_weights(graph, given_weights)
    edges = edges_of(graph)
    landing = personal
    if dangling is not None and not isinstance(dangling, str):
        landing = distributions(graph, "dangling", dangling).on_host()
    tol *= graph.living_count
    degree = np.bincount(edges.targets, minlength=len(x)).max(initial=0)
    # A superstep rounds a sum of positive values; ranks inherit 1 / (1 - alpha) of it.
    rounding = 4 * eps * (degree + 8) / max(1 - alpha, eps)
    floor = (1 - alpha) * personal * (1 - rounding)
    require((x >= floor).all(axis=1), "less rank than jumps bring")
    sums = x.sum(axis=0)
    require(np.abs(sums - 1) <= rounding + tol, "does not sum to one", "column")

    sent = x / np.where(out == 0, 1.0, out)[:, None]
    w = 1.0 if given_weights is None else given_weights[edges.given][:, None]
    inflow = sums_over_in_edges(edges, w * sent[edges.sources], len(x))
    lost = x[out == 0].sum(axis=0)
    moved = (1 - alpha) * personal + alpha * (inflow + lost * landing)
    change = np.abs(moved - x).sum(axis=0)
    require(change < tol + rounding, "one more superstep moves it", "column")


#: Version of a graph -> whether any vertex has no out-edges.
_has_sinks: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def _dangles(
    graph: fg.Graph, state: fg.State, is_weighted: bool, where: dict[str, Any]
) -> bool:
    """Return whether any vertex has no out-edges of positive weight.

    Without weights, the answer is stored for the version of the graph.
    """
    if is_weighted:
        return bool(state["dangling"][0])
    known = _has_sinks.get(version := graph.stamps.version)
    if known is None:
        out = values_on_host(state, "out")
        if out is None:
            own = fg.State(graph)
            look(own, **where)
            known = bool(own["sinks"][0])
        else:
            known = not out.all()
        _has_sinks[version] = known
    return known


def _check_numbers(
    alpha: float, tol: float | None, epsilon: float | None, dangling: Any
) -> None:
    limits = {"alpha": (alpha, 0 <= alpha <= 1, "0 <= alpha <= 1")}
    if tol is not None:
        limits["tol"] = (tol, tol >= 0, "0 or more")
    if epsilon is not None:
        limits["epsilon"] = (epsilon, epsilon >= 0, "0 or more")
    for name, (value, is_right, expected) in limits.items():
        if not is_right:
            raise fg.GraphInputError(
                f"{name} out of range", got=value, expected=expected
            )
    if tol is None and epsilon is None:
        raise fg.GraphInputError(
            "nothing ends the run", got="tol=None, epsilon=None", fix="give one of them"
        )
    if isinstance(dangling, str) and (dangling != RENORMALIZE or alpha == 1):
        raise fg.GraphInputError(
            "not a treatment of dangling vertices",
            where="dangling=",
            got=f"{dangling!r}, alpha={alpha}",
            expected=f"{RENORMALIZE!r} with alpha < 1, a distribution, or None",
        )

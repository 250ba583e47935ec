"""Betweenness centrality: the share of shortest paths that run through a vertex.

With ``sigma(s, t)`` the number of shortest paths from s to t, and ``sigma(s, t, v)``
the number of these through v, the betweenness of v is the sum of ``sigma(s, t, v) /
sigma(s, t)`` over all s and t other than v. Brandes' algorithm sums the contributions
of each source s. Forwards, level by level, paths are counted::

    sigma(s, v) = sum over edges u -> v from the level before of sigma(s, u)

and backwards, from the last level to the first, with u the vertices of the next level::

    share(s, v) = 1 / sigma(s, v) + sum over edges v -> u of share(s, u)
    delta(s, v) = sigma(s, v) share(s, v) - 1

``delta(s, v)`` is the contribution of s. The sums need no test of levels: sigma is zero
at vertices that are not reached yet, share is zero at vertices that are not computed
yet, and no edge leads forward by more than one level.

The number of paths may overflow: on a grid of n x n, it is up to ``2**(2 n)``. If sigma
overflows, the run begins anew in a form with exponents: ``sigma B**exponent`` is the
number of paths, and ``share B**-exponent`` the share, with ``B = 2**512``. A sum of
paths is relative to the largest exponent of its terms. A sum of shares is relative to
the exponent of v, which has no more paths than the vertices of the next level. If
nothing overflows, both forms have the same bits.

For edges with lengths, `_weighted_betweenness` computes the same sums.

State: ``level``, ``sigma`` and ``share`` (V, k), and ``exponent``, a column for each of
the k sources of a run; ``dependency`` (V,), the sum over all runs. The run forwards
records the vertices reached at each level, and the run backwards visits these sets in
reverse. Forwards, a vertex reads its in-edges in a superstep if some source has just
reached a neighbor but not the vertex; backwards, it reads its out-edges once for each
of its levels.

U. Brandes, "A Faster Algorithm for Betweenness Centrality", Journal of Mathematical
Sociology 25, 2001. For samples of sources: U. Brandes, C. Pich, "Centrality Estimation
in Large Networks", International Journal of Bifurcation and Chaos 17, 2007. Scales are
those of networkx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms import _weighted_betweenness as weighted
from featgraph.algorithms._paths import NO_VERTEX, require_lengths, searches_per_run
from featgraph.algorithms._result import Result, answer, called_with, joined
from featgraph.algorithms._verify import Edges, distances_from, edges_of, require
from featgraph.algorithms._vertices import checked_vertices, living_vertices

__all__ = [
    "BetweennessResult",
    "betweenness_centrality",
    "verify_betweenness_centrality",
]

Array = npt.NDArray[Any]

#: Bytes of a vertex in each column of a run: two buffers of level, sigma and share.
COLUMN_BYTES = 40
#: Up to this number of sources, k is the next power of two, unless the graph is small.
FEW = 4
#: Most vertices plus edges of a small graph: unused columns cost less than compiling
#: kernels of another width.
SMALL = 2**15
#: Supersteps forwards between checks for an overflow of sigma. If each vertex has two
#: in-neighbors on its paths, sigma overflows after about 1024 levels.
STAGE = 1536
#: Numbers of paths from BASE on get a larger exponent; UNIT is 1 / BASE.
BASE, UNIT = 2.0**512, 2.0**-512


@fg.vertex
def begin(f, v, d):  # type: ignore[no-untyped-def]
    """Reset the values of earlier sources, and begin at the new ones."""
    is_source = v == d.source[f]
    d.level_next[v, f] = 0 if is_source else -1
    d.sigma_next[v, f] = 1.0 if is_source else 0.0
    d.share_next[v, f] = 0.0
    return True


@fg.vertex
def unseen(f, v, d):  # type: ignore[no-untyped-def]
    """Return True for vertices that a source has not reached."""
    return d.level[v, f] < 0


@fg.gather(into="paths", combine="sum")
def paths_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the number of paths to an in-neighbor; 0 if it is not reached."""
    return d.sigma[u, f]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Store the level and the number of paths of a vertex reached now."""
    if d.level[v, f] >= 0 or d.paths[v, f] == 0:
        return False
    d.level_next[v, f] = d.superstep - d.begun + 1
    d.sigma_next[v, f] = d.paths[v, f]
    return True


@fg.reduce(into="overflows", combine="any")
def too_many(f, v, d):  # type: ignore[no-untyped-def]
    """Test whether the number of paths has overflown."""
    return not d.sigma[v, f] < np.inf


@fg.vertex
def begin_exponents(f, v, d):  # type: ignore[no-untyped-def]
    """Set the exponents of sources to 0, and of other vertices to -1."""
    d.exponent_next[v, f] = 0 if v == d.source[f] else -1
    return True


@fg.gather(into="largest", combine="max")
def exponents_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the exponent of an in-neighbor; -1 if it is not reached."""
    return d.exponent[u, f]


@fg.gather(into="paths", combine="sum")
def scaled_paths_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the number of paths to an in-neighbor, for the largest exponent."""
    below = d.largest[v, f] - d.exponent[u, f]
    return d.sigma[u, f] * (1.0 if below == 0 else UNIT if below == 1 else 0.0)


@fg.vertex
def settle_scaled(f, v, d):  # type: ignore[no-untyped-def]
    """Store level, number of paths and exponent of a vertex reached now."""
    if d.level[v, f] >= 0 or d.paths[v, f] == 0:
        return False
    is_larger = d.paths[v, f] >= BASE
    d.level_next[v, f] = d.superstep - d.begun + 1
    d.sigma_next[v, f] = d.paths[v, f] * (UNIT if is_larger else 1.0)
    d.exponent_next[v, f] = d.largest[v, f] + (1 if is_larger else 0)
    return True


@fg.gather(into="beyond", combine="sum", along="out")
def scaled_shares_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the share of an out-neighbor, relative to the exponent of v."""
    above = d.exponent[u, f] - d.exponent[v, f]
    return d.share[u, f] * (1.0 if above <= 0 else UNIT if above == 1 else 0.0)


@fg.gather(into="beyond", combine="sum", along="out")
def shares_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the share of an out-neighbor; 0 unless it is in the next level."""
    return d.share[u, f]


@fg.vertex
def depend(f, v, d):  # type: ignore[no-untyped-def]
    """Store the share at its level, and add to the contributions of the sources."""
    is_turn = d.level[v, f] == d.last - d.superstep
    delta = d.sigma[v, f] * d.beyond[v, f] + d.at_ends
    share = 1 / d.sigma[v, f] + d.beyond[v, f] if is_turn else d.share[v, f]
    d.share_next[v, f] = share
    total = fg.feature_sum(delta if is_turn else 0.0)
    if f == 0:
        d.dependency[v] = d.dependency[v] + total
    return True


@fg.reduce(into="reached", combine="sum")
def count_reached(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices that a source has reached, without the source."""
    return 1 if d.level[v, f] > 0 else 0


@fg.reduce(into="overflown", combine="any")
def no_number(f, v, d):  # type: ignore[no-untyped-def]
    """Test whether a number of paths has overflown in a contribution."""
    return not d.dependency[v] < np.inf


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Multiply the contributions by the initial value of `centrality`."""
    d.centrality[v] = d.centrality[v] * d.dependency[v]
    return True


start = fg.foldmap(begin)
forwards = fg.foldmap(unseen, paths_of_neighbors, settle)
backwards = fg.foldmap(shares_of_neighbors, depend)
start_scaled = fg.foldmap(begin, begin_exponents)
forwards_scaled = fg.foldmap(
    unseen, exponents_of_neighbors, scaled_paths_of_neighbors, settle_scaled
)
backwards_scaled = fg.foldmap(scaled_shares_of_neighbors, depend)
look = fg.foldmap(too_many)
count = fg.foldmap(count_reached, weighted.add_ends)
finish = fg.foldmap(no_number, scale)
step = backwards


@dataclass(frozen=True, eq=False, kw_only=True)
class BetweennessResult(Result):
    """Result of `betweenness_centrality`.

    `run` has the supersteps of all runs in order, forwards and backwards.

    Attributes
    ----------
    centralities : ndarray of float64, shape (V,)
        Non-negative. With a single source and without endpoints, nan at the source,
        where nothing is known.
    dependencies : ndarray of float64, shape (V,)
        The sum of the contributions of the sources, before scaling.
    sources : ndarray of int64
        The sources of the paths.
    """

    centralities: npt.NDArray[np.float64] = answer()
    dependencies: npt.NDArray[np.float64] = answer()
    sources: npt.NDArray[np.int64]


@fg.algorithm("max_supersteps", "record_active")
def betweenness_centrality(
    graph: fg.GraphLike,
    *,
    sources: npt.ArrayLike | None = None,
    samples: int | None = None,
    seed: int | np.random.Generator | None = None,
    weights: npt.ArrayLike | None = None,
    normalized: bool = True,
    endpoints: bool = False,
    batch: int | None = None,
    **options: Any,
) -> BetweennessResult:
    """Compute the share of shortest paths that run through each vertex.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Paths follow ``u -> v``, in both directions if the graph is undirected. Paths
        along different multi-edges are different.
    sources : array_like of int or str, optional
        The sources of paths, as ids or as names that are text; all different. The
        result is scaled to estimate that of all sources. Default: all vertices.
    samples : int, optional
        Number of sources to draw at random, in place of `sources`.
    seed : int or Generator, optional
        Seed for drawing sources.
    weights : array_like of shape (E,), optional
        Lengths of the edges, positive and finite, in the order in which they were
        given. A length must not be lost in the rounding of a path's length: it must
        exceed 2**-53 times the sum of all lengths, or of V times the longest if that is
        less. Default: one, also if the graph has weights.
    normalized : bool, optional
        Whether the result is a share of all pairs, between zero and one. Otherwise it
        is a number of pairs; pairs of an undirected graph count once.
    endpoints : bool, optional
        Whether a path also counts at its ends.
    batch : int, optional
        Number of sources per run; each takes 40 bytes per vertex. Default: 32, or down
        to 8 on large graphs, so that they take no more than 512 MiB; the number of
        sources if it is at most four and the graph is not small.
    **options
        ``target``, ``direction``, ``deterministic``, ... as for calling a foldmap.

    Returns
    -------
    BetweennessResult
        Centralities, the sources, and the record of the runs.

    Raises
    ------
    GraphInputError
        If sources are not vertices or not different, weights do not fit the graph, are
        not positive or could be lost in rounding, or a number is out of range.
    DivergenceError
        With weights, if there are more shortest paths between two vertices than float64
        can hold.

    Notes
    -----
    Values are float64. Bitwise repeatable in pull direction, which has no atomics. Two
    paths have equal lengths if their sums, rounded edge by edge from the source on, are
    equal. For weights that are not exact in binary, such as 0.1, paths that should be
    equal may differ by rounding.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import betweenness_centrality
    >>> path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    >>> betweenness_centrality(path, normalized=False).centralities
    array([0., 2., 2., 0.])
    """
    graph = fg.as_graph(graph)
    chosen = _sources(graph, sources, samples, seed)
    width = _width(graph, batch, len(chosen))
    others, own = _scales(
        graph, len(chosen), normalized=normalized, endpoints=endpoints
    )
    apart: dict[str, Any] = {}
    if len(chosen) < graph.living_count:
        apart = {"at": chosen, "entries": own}
    properties = {
        "dependency": fg.vertex_property(np.float64(0)),
        "centrality": fg.vertex_property(others if apart else own, **apart),
        "source": np.full(width, NO_VERTEX),
        "at_ends": float(endpoints),
    }
    if weights is None:
        state, turn = _state(graph, width, properties | {"is_scaled": False}), _run
    else:
        lengths = require_lengths(graph, weights, positive=True)
        state, turn = weighted.state(graph, width, lengths, properties), weighted.run
    runs: list[fg.Run] = []
    for first in fg.rounds(range(0, len(chosen), width), state, runs):
        some = chosen[first : first + width]
        state["source"] = np.append(some, np.full(width - len(some), NO_VERTEX))
        runs += turn(state, some, options)
    finish(state, target=options.get("target", "auto"))
    if state["overflown"][0]:
        raise fg.DivergenceError(
            "more shortest paths than float64 can hold",
            where=f"vertex {int(np.argmin(np.isfinite(state['dependency'])))}",
            expected="less than 1.8e308 of them between any two vertices",
        )
    return BetweennessResult.of(
        graph,
        joined(runs),
        centralities=state.view("centrality"),
        dependencies=state.view("dependency"),
        sources=chosen,
    )


def _width(graph: fg.Graph, batch: int | None, sources: int) -> int:
    """Return k, one of few widths, so that few kernels are compiled."""
    width = searches_per_run(graph, batch, COLUMN_BYTES)
    fitting = 1 << (sources - 1).bit_length()  # the next power of two
    if batch is not None:
        return min(width, fitting)
    is_small = graph.vertex_count + graph.edge_count < SMALL
    return fitting if sources <= FEW and not is_small else width


def _state(graph: fg.Graph, width: int, properties: dict[str, Any]) -> fg.State:
    return fg.State(
        graph,
        level=fg.vertex_property(np.int32(-1), shape=(width,), iterated=True),
        sigma=fg.vertex_property(np.float64(0), shape=(width,), iterated=True),
        share=fg.vertex_property(np.float64(0), shape=(width,), iterated=True),
        begun=0,
        last=0,
        **properties,
    )


def _run(state: fg.State, some: Array, options: dict[str, Any]) -> list[fg.Run]:
    """Add the contributions of some sources."""
    runs: list[fg.Run] = []
    if not state["is_scaled"]:
        plain = start, forwards, backwards
        if _both_ways(state, some, options, plain, STAGE, runs):
            return runs
        state["is_scaled"] = True
    properties = {
        "dependency": fg.vertex_property(state.view("dependency")),
        "exponent": fg.vertex_property(
            np.int32(-1), shape=state["source"].shape, iterated=True
        ),
        "source": state["source"], "at_ends": state["at_ends"],
    }  # fmt: skip
    scaled = start_scaled, forwards_scaled, backwards_scaled
    longest = state.graph.vertex_count + 1
    own = _state(state.graph, len(state["source"]), properties)
    _both_ways(own, some, options, scaled, longest, runs)
    state["dependency"] = own.view("dependency")
    return runs


def _both_ways(
    state: fg.State,
    some: Array,
    options: dict[str, Any],
    form: tuple[fg.FoldMap, ...],
    stage: int,
    runs: list[fg.Run],
) -> bool:
    """Run forwards and backwards; return False, adding nothing, if sigma overflows."""
    begin, out, back = form
    begin(state, **called_with(options))
    sets: list[fg.ActiveSet] = []
    active: Any = some
    has_ended = False
    while not has_ended:
        state["begun"] = state.superstep - len(sets)
        run = fg.iterate(
            out, state, active=active, record_active=True, supersteps=stage, **options
        )
        # The way back needs the sets of all stages; the record of the run does not.
        recorded, run.active_sets = run.active_sets or [], None
        sets += [one for one, n in zip(recorded, run.active_counts, strict=True) if n]
        runs.append(run)
        if out is forwards:
            look(state, **called_with(options))
            if state["overflows"].any():
                return False
        active, has_ended = recorded[-1] if recorded else active, run.converged
    state["last"] = state.superstep + len(sets)
    runs.append(fg.iterate(back, state, due=sets[::-1], **called_with(options)))
    if state["at_ends"]:
        count(state, **called_with(options))
    return True


def _sources(
    graph: fg.Graph,
    sources: npt.ArrayLike | None,
    samples: int | None,
    seed: int | np.random.Generator | None,
) -> npt.NDArray[np.int64]:
    vertices = graph.living_count
    if samples is not None:
        if sources is not None or not 1 <= samples <= vertices:
            raise fg.GraphInputError(
                "not a number of samples",
                got=f"samples={samples}"
                + (", sources=" if sources is not None else ""),
                expected=f"1 to {vertices} of them, and no sources=",
            )
        drawn = np.random.default_rng(seed).choice(vertices, samples, replace=False)
        return living_vertices(graph)[np.sort(drawn)].astype(np.int64)
    if sources is None:
        return living_vertices(graph)
    given = checked_vertices(graph, sources, "sources=", is_row=True)
    again = np.ones(given.size, np.bool_)
    again[np.unique(given, return_index=True)[1]] = False
    if again.any():
        place = int(np.argmax(again))
        raise fg.GraphInputError(
            "sources are different vertices",
            where=f"sources[{place}]",
            got=int(given[place]),
            expected="each vertex once",
        )
    return given


def _scales(
    graph: fg.Graph, count: int, *, normalized: bool, endpoints: bool
) -> tuple[np.float64, np.float64]:
    """Return the factors that scale the sum: at other vertices, and at a source.

    A vertex lies between the ends of a path, or with `endpoints` also at an end. Hence
    n vertices can be one end, and n - 1 the other; paths from c sources represent the
    paths from all n.
    """
    n = graph.living_count - (not endpoints)
    if n < 2:
        return np.float64(1), np.float64(1)
    pairs = 1 / (n - 1) if normalized else n / (1 if graph.directed else 2)
    own = count - (not endpoints)
    return np.float64(pairs / count), np.float64(pairs / own if own else np.nan)


def verify_betweenness_centrality(
    graph: fg.GraphLike,
    centralities: npt.ArrayLike,
    *,
    sources: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    normalized: bool = True,
    endpoints: bool = False,
) -> None:
    """Check betweenness against a recurrence over distances, in NumPy.

    * Betweenness is the sum of the dependencies of all sources, each computed from
      distances and numbers of paths, up to the rounding of sums.
    * The sum of the dependencies of a source is the number of inner vertices of its
      shortest paths: the mean number of edges minus one, summed over all targets.

    Parameters
    ----------
    graph, sources, weights, normalized, endpoints
        As passed to `betweenness_centrality`; for samples, ``result.sources``.
    centralities : array_like of shape (V,)
        The answer of `betweenness_centrality`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex or source.
    """
    graph = fg.as_graph(graph)
    answer = fg.given_array(centralities, np.float64, "centralities").on_host()
    chosen = _sources(graph, sources, None, None)
    edges = edges_of(graph)
    lengths = np.ones(len(edges.given))
    if weights is not None:
        lengths = require_lengths(graph, weights, positive=True).on_host()[edges.given]
    degree = np.bincount(edges.targets, minlength=len(answer)).max(initial=0)
    degree = max(degree, np.bincount(edges.sources).max(initial=0))
    expected, deepest = np.zeros(len(answer)), 0.0
    for source in chosen:
        hops, delta = _dependencies(edges, lengths, source, len(answer))
        deepest = max(deepest, hops.max())
        others = (hops > 0) & (np.arange(len(answer)) != source)
        inner = (hops[others] - 1).sum()
        # Each path of n edges has n - 1 inner vertices, so that both sums are equal.
        if abs(delta[others].sum() - inner) > 1e-9 * (inner + 1):
            raise AssertionError(f"source {source}: paths and distances disagree")
        expected[others] += delta[others] + endpoints
        expected[source] += others.sum() * endpoints
    scales = _scales(graph, len(chosen), normalized=normalized, endpoints=endpoints)
    expected *= np.where(np.isin(np.arange(len(expected)), chosen), *scales[::-1])
    # All terms are positive: relative rounding errors add up, edge by edge, forwards
    # and backwards. With weights, a path may have more edges than the mean.
    edges_of_a_path = deepest if weights is None else min(2 * deepest, len(answer))
    eps = np.finfo(np.float64).eps
    rounding = 4 * eps * (2 * (edges_of_a_path + 1) * (degree + 4) + len(chosen))
    same = np.abs(answer - expected) <= rounding * expected
    require(same | (np.isnan(answer) & np.isnan(expected)), "another betweenness")


def _dependencies(
    edges: Edges, lengths: Array, source: int, count: int
) -> tuple[Array, Array]:
    """Return mean numbers of edges of paths from a source, and its dependencies."""
    u, v = edges.sources, edges.targets
    distance = distances_from(source, u, v, lengths, count)
    last = np.flatnonzero(
        (distance[u] < distance[v]) & (distance[u] + lengths == distance[v])
    )
    last = last[np.argsort(distance[v[last]], kind="stable")]
    turns = np.split(last, np.flatnonzero(np.diff(distance[v[last]])) + 1)
    # On platforms where longdouble has a wider exponent, more paths fit.
    sigma, hops = np.zeros((2, count), np.longdouble)
    sigma[source] = 1
    for edge in turns:
        a, b = u[edge], v[edge]
        np.add.at(sigma, b, sigma[a])
        np.add.at(hops, b, sigma[a] * (hops[a] + 1))
        reached = np.unique(b)
        hops[reached] /= sigma[reached]
    delta = np.zeros(count)
    for edge in reversed(turns):
        a, b = u[edge], v[edge]
        np.add.at(delta, a, sigma[a] / sigma[b] * (1 + delta[b]))
    return hops.astype(np.float64), delta

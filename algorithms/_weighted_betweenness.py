"""Supersteps of `betweenness_centrality` on edges with lengths.

With ``d(s, v)`` the distance from a source s, an edge ``u -> v`` is the *last edge* of
a shortest path to v if ``d(s, u) + w(u, v) = d(s, v)``. Last edges have no cycle, since
lengths are positive. Paths are counted along last edges, and shares against them::

    d(s, v)     = min over edges u -> v of d(s, u) + w(u, v)
    sigma(s, v) = sum over last edges u -> v of sigma(s, u)
    after(s, v) = sum over last edges v -> u of 1 / sigma(s, u) + after(s, u)

and s contributes ``sigma(s, v) after(s, v)`` to v. Vertices have no levels that could
be computed one after another, as in unweighted graphs. So each of the three sums is
recomputed at a vertex whenever an input has changed, until nothing changes; a value is
final once all values that it depends on are. All k sources of a run are columns.

State: ``distance``, ``sigma`` and ``after`` (V, k); ``dependency`` (V,), the sum over
all runs; ``weight``, one per given edge. Each sum takes as many supersteps as the
longest of the shortest paths has edges, and reads the edges of due vertices.

U. Brandes, "A Faster Algorithm for Betweenness Centrality", Journal of Mathematical
Sociology 25, 2001, section 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._result import called_with

__all__ = ["add_ends", "run", "state"]

Array = npt.NDArray[Any]


@fg.vertex
def begin(f, v, d):  # type: ignore[no-untyped-def]
    """Reset the values of earlier sources, and begin at the new ones."""
    is_source = v == d.source[f]
    d.distance_next[v, f] = 0.0 if is_source else np.inf
    d.sigma_next[v, f] = 1.0 if is_source else 0.0
    d.after_next[v, f] = 0.0
    return True


@fg.gather(into="way", combine="min", sources="active")
def ways(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the length of the path that ends with the edge."""
    return d.distance[u, f] + d.weight[e]


@fg.vertex
def shorten(f, v, d):  # type: ignore[no-untyped-def]
    """Store the shortest distance, if it is below the known one."""
    d.distance_next[v, f] = min(d.way[v, f], d.distance[v, f])
    return d.way[v, f] < d.distance[v, f]


@fg.gather(into="paths", combine="sum")
def paths_before(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the number of paths to the source of a last edge."""
    near = d.distance[u, f]
    far = d.distance[v, f]
    return d.sigma[u, f] if near < far and near + d.weight[e] == far else 0.0


@fg.vertex
def count_paths(f, v, d):  # type: ignore[no-untyped-def]
    """Store the number of shortest paths; at a source it stays 1."""
    paths = d.sigma[v, f] if d.distance[v, f] == 0 else d.paths[v, f]
    d.sigma_next[v, f] = paths
    return paths != d.sigma[v, f]


@fg.gather(into="beyond", combine="sum", along="out")
def shares_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the share of the target of a last edge."""
    near = d.distance[v, f]
    far = d.distance[u, f]
    is_last = near < far and near + d.weight[e] == far
    return 1 / d.sigma[u, f] + d.after[u, f] if is_last else 0.0


@fg.vertex
def take_shares(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum of shares."""
    d.after_next[v, f] = d.beyond[v, f]
    return d.beyond[v, f] != d.after[v, f]


@fg.vertex
def depend(f, v, d):  # type: ignore[no-untyped-def]
    """Add the contributions of the sources at the vertices that they reach."""
    delta = d.sigma[v, f] * d.after[v, f] + d.at_ends
    is_inner = d.distance[v, f] > 0 and d.distance[v, f] < np.inf
    total = fg.feature_sum(delta if is_inner else 0.0)
    if f == 0:
        d.dependency[v] = d.dependency[v] + total
    return True


@fg.reduce(into="reached", combine="sum")
def count_reached(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices that a source has reached, without the source."""
    return 1 if d.distance[v, f] > 0 and d.distance[v, f] < np.inf else 0


@fg.vertex
def add_ends(f, v, d):  # type: ignore[no-untyped-def]
    """Add the paths of a source that end at it."""
    own = d.reached[f] if v == d.source[f] else 0
    total = fg.feature_sum(own)
    if f == 0:
        d.dependency[v] = d.dependency[v] + total
    return True


start = fg.foldmap(begin)
measure = fg.foldmap(ways, shorten)
forwards = fg.foldmap(paths_before, count_paths)
backwards = fg.foldmap(shares_behind, take_shares)
finish = fg.foldmap(depend)
count = fg.foldmap(count_reached, add_ends)


def state(
    graph: fg.Graph, width: int, lengths: fg.GivenArray, properties: dict[str, Any]
) -> fg.State:
    """Return the State for runs of `width` sources, which are in ``source``."""
    return fg.State(
        graph,
        distance=fg.vertex_property(np.float64(0), shape=(width,), iterated=True),
        sigma=fg.vertex_property(np.float64(0), shape=(width,), iterated=True),
        after=fg.vertex_property(np.float64(0), shape=(width,), iterated=True),
        weight=fg.edge_property(lengths.values, copy=False),
        **properties,
    )


def run(state: fg.State, some: Array, options: dict[str, Any]) -> list[fg.Run]:
    """Add the contributions of some sources."""
    limit = state.graph.vertex_count + 2  # above the number of edges of any path
    start(state, **called_with(options))
    runs = [
        fg.iterate(step, state, active=active, max_supersteps=limit, **options)
        for step, active in ((measure, some), (forwards, some), (backwards, None))
    ]
    finish(state, **called_with(options))
    if state["at_ends"]:
        count(state, **called_with(options))
    return runs

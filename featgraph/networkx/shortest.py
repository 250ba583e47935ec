"""Shortest paths from, to and between nodes, with the results of NetworkX.

`shortest_path` takes one node, two or none: NetworkX has a different search for each.
Kernels compute distances. The choice among several shortest paths, and their order, are
derived from the rows of NetworkX's dictionaries (`paths`, `dijkstra`). Paths to a node
are searched in the reversed graph.

Between two nodes, NetworkX searches from both ends. For numbers of edges, its result
follows from the layers of both searches. For weights, its choice among several shortest
paths depends on a queue, so a path is returned only if no other one is as short, within
rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from featgraph.algorithms.bfs import bfs
from featgraph.algorithms.sssp import sssp
from featgraph.networkx.dijkstra import (
    Found,
    addable,
    entries_of,
    found_by,
    found_by_levels,
    lengths_of_paths,
    paths_of,
    require_exact,
    search,
)
from featgraph.networkx.graph import NetworkXGraph
from featgraph.networkx.paths import lengths_of, levels_from, met_in_order

__all__ = ["shortest_path", "shortest_path_length"]

Array = npt.NDArray[Any]

#: Number of sources of a run in a search of all pairs.
BATCH = 32


def shortest_path(
    G: NetworkXGraph,
    source: Hashable | None = None,
    target: Hashable | None = None,
    weight: Any = None,
    method: Any = "dijkstra",
) -> Any:
    """Find paths from, to, or between nodes; `networkx.shortest_path`."""
    _check(method)
    if source is None and target is None:
        return ((n, paths_of(G, found)) for n, found in _all_pairs(G, weight))
    if target is None:
        return paths_of(G, _from(G, source, weight))
    if source is None:
        paths = paths_of(G.reversed, _from(G.reversed, target, weight))
        return {node: path[::-1] for node, path in paths.items()}
    _require_both(G, source, target)
    if source == target:
        return [source]
    s, t = G.index[source], G.index[target]
    path = _meeting(G, s, t) if weight is None else _only(G, s, t, weight)
    if path is None:
        raise nx.NetworkXNoPath(f"No path between {source} and {target}.")
    return G.named(np.array(path))


def shortest_path_length(
    G: NetworkXGraph,
    source: Hashable | None = None,
    target: Hashable | None = None,
    weight: Any = None,
    method: Any = "dijkstra",
) -> Any:
    """Return distances from, to, or between nodes; `networkx.shortest_path_length`."""
    _check(method)
    if source is None and target is None:
        return ((n, lengths_of_paths(G, found)) for n, found in _all_pairs(G, weight))
    if source is None or target is None:
        graph, node = (G, source) if target is None else (G.reversed, target)
        what = "Source {} is not in G"  # NetworkX's text differs from that for paths
        return lengths_of_paths(graph, _from(graph, node, weight, what))
    if weight is None:
        _require_both(G, source, target)
    elif source not in G:
        raise nx.NodeNotFound(f"Node {source} not found in graph")
    if source == target:
        return 0
    length = None if target not in G else _length(G, source, target, weight)
    if length is None and weight is None:
        raise nx.NetworkXNoPath(f"No path between {source} and {target}.")
    if length is None:
        raise nx.NetworkXNoPath(f"Node {target} not reachable from {source}")
    return length


def _check(method: Any) -> None:
    if method not in ("dijkstra", "bellman-ford"):
        raise ValueError(f"method not supported: {method}")


def _require_both(graph: NetworkXGraph, source: Hashable, target: Hashable) -> None:
    for node, what in ((source, "Source"), (target, "Target")):
        if node not in graph:
            raise nx.NodeNotFound(f"{what} {node} is not in G")


def _from(
    graph: NetworkXGraph,
    node: Hashable,
    weight: Any,
    missing: str = "Source {} not in G",
) -> Found:
    """Search all nodes that a node reaches."""
    if node not in graph:
        what = missing if weight is None else "Node {} not found in graph"
        raise nx.NodeNotFound(what.format(node))
    start = np.array([graph.index[node]])
    if weight is None:
        return _found(graph, levels_from(graph, start, None), start)
    return search(graph, start, weight, None)


def _found(graph: NetworkXGraph, levels: Array, start: Array) -> Found:
    """Return the result of a breadth-first search, from levels.

    The only tight edge into a vertex is that along which NetworkX discovers it.
    """
    layers, rows = zip(*met_in_order(graph, levels, start), strict=True)
    order = np.concatenate(layers)
    before = np.concatenate(rows)
    return Found(order, levels[order].tolist(), (before[1:], order[1:]))


def _all_pairs(graph: NetworkXGraph, weight: Any) -> Iterator[tuple[Hashable, Found]]:
    """Return an iterator over the searches from all nodes.

    Declines calls at once: once the first item is yielded, NetworkX cannot take over.
    """
    weights = graph.weights_of(weight)
    if weights is not None:
        addable(weights, weight)
        lengths_of(graph, weight)
        if not (weights.values > 0).all():
            raise NotImplementedError(f"values of {weight!r} that are zero")
    return _each(graph, weight)


def _each(graph: NetworkXGraph, weight: Any) -> Iterator[tuple[Hashable, Found]]:
    """Yield each node with the result of its search; a run has `BATCH` sources."""
    weights = graph.weights_of(weight)
    for first in range(0, len(graph), BATCH):
        some = np.arange(first, min(first + BATCH, len(graph)))
        # The last run is padded to the width of the others, to use the same kernels.
        sources = np.append(some, np.zeros(BATCH - some.size, np.int64))
        if weights is None:
            known = bfs(graph.topology, sources).levels
        else:
            values = weights.values
            run = sssp(graph.topology, sources, weights=values, dtype=np.float64)
            known = run.distances
        for column, vertex in enumerate(some.tolist()):
            start = np.array([vertex])
            if weights is not None:
                found = found_by(graph, start, weights, known[:, column], weight)
            elif weight is None:
                found = _found(graph, known[:, column], start)
            else:  # in the order of Dijkstra's algorithm
                found = found_by_levels(graph, start, known[:, column])
            yield graph.nodes[vertex], found


def _length(
    graph: NetworkXGraph, source: Hashable, target: Hashable, weight: Any
) -> Any:
    """Return the length of a shortest path between two nodes; None without a path."""
    start, t = np.array([graph.index[source]]), graph.index[target]
    weights = graph.weights_of(weight)
    if weights is None:
        level = int(levels_from(graph, start, None)[t])
        return None if level < 0 else level
    values = addable(weights, weight)
    run = sssp(graph.topology, start, weights=values, together=True, dtype=np.float64)
    require_exact(weights, run.distances)
    distance = float(run.distances[t])
    if not np.isfinite(distance):
        return None
    return int(distance) if weights.are_integers else distance


def _meeting(graph: NetworkXGraph, s: int, t: int) -> list[int] | None:
    """Return the path on which searches from both ends meet, or None.

    The end with the smaller frontier advances. Its first new vertex that the other end
    has visited is on the path.
    """
    levels = levels_from(graph, np.array([s]), None)
    if levels[t] < 0:
        return None
    back = levels_from(graph.reversed, np.array([t]), int(levels[t]))
    searches = [
        met_in_order(graph, levels, np.array([s])),
        met_in_order(graph.reversed, back, np.array([t])),
    ]
    before = np.full((2, len(graph)), -1)
    layers = []
    for side in (0, 1):
        layer, rows = next(searches[side])
        before[side, layer] = rows
        layers.append(layer)
    while True:
        side = int(layers[0].size > layers[1].size)
        layers[side], rows = next(searches[side])
        before[side, layers[side]] = rows
        known = before[1 - side, layers[side]] >= 0
        if known.any():
            break
    middle = int(layers[side][np.argmax(known)])
    ends = [_chain(before[side], middle) for side in (0, 1)]
    return ends[0][::-1] + ends[1][1:]


def _chain(before: Array, vertex: int) -> list[int]:
    """Return a vertex and its predecessors, up to one that is its own predecessor."""
    chain = [vertex]
    while before[chain[-1]] != chain[-1]:
        chain.append(int(before[chain[-1]]))
    return chain


def _only(graph: NetworkXGraph, s: int, t: int, weight: Any) -> list[int] | None:
    """Return the shortest path by weight; None without one.

    Raises
    ------
    NotImplementedError
        If another path is as short, within rounding.
    """
    weights = graph.weights_of(weight)
    if weights is None:
        values = np.ones(graph.number_of_edges())
        distances = np.full(len(graph), np.inf)
        levels = levels_from(graph, np.array([s]), None)
        distances[levels >= 0] = levels[levels >= 0]
    else:
        values = addable(weights, weight)
        start = np.array([s])
        run = sssp(graph.topology, start, weights=values, together=True, dtype=float)
        require_exact(weights, run.distances)
        distances = run.distances
    if not np.isfinite(distances[t]):
        return None
    u, v, edge = entries_of(graph)
    # The length of a path is rounded once for each edge, in sums from either end.
    rounding = 4 * np.finfo(float).eps * len(graph) * distances[t]
    near = np.flatnonzero(distances[u] + values[edge] <= distances[v] + rounding)
    near = near[(u[near] != v[near]) & (v[near] != s)]
    by_end = near[np.argsort(v[near], kind="stable")]
    cuts = np.searchsorted(v[by_end], np.arange(len(graph) + 1))
    path = [t]
    while path[-1] != s:
        before = np.unique(u[by_end[cuts[path[-1]] : cuts[path[-1] + 1]]])
        if before.size != 1 or len(path) > len(graph):
            raise NotImplementedError("several shortest paths: NetworkX chooses one")
        path.append(int(before[0]))
    return path[::-1]

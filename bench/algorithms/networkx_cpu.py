"""NetworkX's functions by NetworkX, and by featgraph behind its dispatching.

From the call of ``nx.FUNCTION`` to its answer. "converting" makes arrays of the graph
in every trial, "converted" finds them in NetworkX's cache. R-MAT graphs of a thousand
to a million edges without repeats, whose nodes are strings and whose edges have
weights.

"pays" is the size, nodes and edges, from which featgraph is faster on every larger
graph, too: where the two lines cross between the sizes measured, on a logarithmic
scale. `featgraph.networkx` has these sizes as ``pays_from`` and ``converted``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.networkx.backend import CLAIMS

DEFAULTS = {
    "graph": [f"rmat-{scale}-8" for scale in (7, 9, 11, 13, 15, 17)],
    "k": [1],
    "repeat": 5,
    "functions": [],
    "limit": 20.0,
}


@dataclass
class Graphs:
    """One graph as NetworkX graphs, directed and undirected.

    Attributes
    ----------
    directed, undirected : networkx graph
    hub : str
        The node with most edges: where searches begin.
    described : dict
        The `graph` field of results.
    """

    directed: Any
    undirected: Any
    hub: str
    described: dict[str, Any]

    def arguments(self, name: str) -> tuple[Any, dict[str, Any]]:
        """Return the graph and the arguments that a function is called with."""
        directed, arguments = CALLS.get(name, (True, {}))
        hub = {"hub": self.hub, "hubs": [self.hub]}
        filled = {k: hub.get(v, v) for k, v in arguments.items()}
        return self.directed if directed else self.undirected, filled


#: Function -> whether on the directed graph, and its arguments.
CALLS: dict[str, tuple[bool, dict[str, Any]]] = {
    **dict.fromkeys(
        ("average_clustering", "clustering", "transitivity", "triangles"), (False, {})
    ),
    "betweenness_centrality": (False, {"k": 32, "seed": 0}),
    "bfs_layers": (False, {"sources": "hub"}),
    "closeness_centrality": (True, {"u": "hub"}),
    "connected_components": (False, {}),
    "descendants_at_distance": (False, {"source": "hub", "distance": 2}),
    "eigenvector_centrality": (False, {}),
    "is_connected": (False, {}),
    "katz_centrality": (False, {"alpha": 0.001}),
    "multi_source_dijkstra_path_length": (True, {"sources": "hubs"}),
    "node_connected_component": (False, {"n": "hub"}),
    "number_connected_components": (False, {}),
    "shortest_path": (True, {"source": "hub"}),
    "shortest_path_length": (True, {"source": "hub"}),
    "single_source_dijkstra": (True, {"source": "hub"}),
    "single_source_dijkstra_path": (True, {"source": "hub"}),
    "single_source_dijkstra_path_length": (True, {"source": "hub"}),
    "single_source_shortest_path_length": (False, {"source": "hub"}),
}


def make_graphs(name: str) -> Graphs:
    named = make_graph(name)
    rng = np.random.default_rng(0)
    ends = np.unique(
        np.stack([named.graph.sources, named.graph.targets], axis=1), axis=0
    )
    ends = ends[ends[:, 0] != ends[:, 1]]
    weights = rng.random(len(ends)).tolist()
    directed = nx.DiGraph()
    directed.add_nodes_from(f"v{i}" for i in range(named.graph.vertex_count))
    rng.shuffle(ends)
    for (u, v), weight in zip(ends.tolist(), weights, strict=True):
        directed.add_edge(f"v{u}", f"v{v}", weight=weight)
    undirected = directed.to_undirected()
    hub = max(undirected.degree, key=lambda pair: pair[1])[0]
    return Graphs(directed, undirected, hub, named.describe())


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure every function on every graph, and record the size from which it pays."""
    nx.config.warnings_to_ignore.add("cache")
    names = arguments.functions or sorted(CLAIMS)
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in names}
    for graph_name in arguments.graph:
        graphs = make_graphs(graph_name)
        for name in names:
            slowest = [max(times.values()) for times in found[name].values()]
            if slowest and max(slowest) > arguments.limit * 1e3 / 4:
                continue  # the next graph has four times as many edges
            graph, _ = graphs.arguments(name)
            size = graph.number_of_nodes() + graph.number_of_edges()
            given = name, graphs, size, arguments.repeat, recorder
            medians = recorder.attempt(name, _measure, *given)
            if medians:
                found[name][size] = medians
    for name, sizes in found.items():
        for contender in ("converting", "converted"):
            pays = pays_from(
                {s: (t["networkx"], t[contender]) for s, t in sizes.items()}
            )
            recorder.add(f"{contender} pays", [], function=name, size=pays)


def _measure(
    name: str, graphs: Graphs, size: int, repeat: int, recorder: Recorder
) -> dict[str, float]:
    graph, arguments = graphs.arguments(name)
    function = getattr(nx, name)  # with its decorators, which read a seed

    def call(backend: str) -> Any:
        answer = function(graph, **arguments, backend=backend)
        return list(answer) if isinstance(answer, Iterator) else answer

    ours, theirs = partial(call, "featgraph"), partial(call, "networkx")
    contenders = [
        Contender("networkx", theirs),
        Contender("converting", ours, graph.__networkx_cache__.clear),
        Contender("converted", ours),
    ]
    interleave(contenders, repeat, warm_up=1)
    for one in contenders:
        apart = difference(one.answer, contenders[0].answer)
        recorder.add(
            one.name, one.trials, function=name, size=size, graph=graphs.described,
            checks={"apart": apart, "ok": apart < 1e-6},
        )  # fmt: skip
    return {one.name: float(np.median(one.trials)) for one in contenders}


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two answers; inf where the form differs."""
    if isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return math.inf
        return difference(list(ours.values()), list(theirs.values()))
    if isinstance(theirs, tuple | list) and len(ours) == len(theirs):
        pairs = zip(ours, theirs, strict=True)
        return max((difference(one, other) for one, other in pairs), default=0.0)
    if isinstance(theirs, float):
        return abs(ours - theirs)
    return 0.0 if ours == theirs else math.inf


def pays_from(times: dict[int, tuple[float, float]]) -> int | None:
    """Return the size from which the second time is below the first; None for never."""
    crossing: int | None = None
    previous: tuple[int, float] | None = None
    for size, (theirs, ours) in sorted(times.items()):
        ahead = math.log(theirs / ours)
        if ahead <= 0:
            crossing = None
        elif crossing is None:
            crossing = size
            if previous is not None:
                before, behind = previous
                share = -behind / (ahead - behind)
                crossing = round(before * (size / before) ** share)
        previous = size, ahead
    return crossing

"""Calls that featgraph declines after it has read the values: NetworkX runs them."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from _featgraph_networkx import backend
from tests.networkx.test_answers import answer, require_same

INF = float("inf")


def road(*lengths: Any) -> Any:
    """Return 0 -> 1 -> 2 ... with these weights, and a way back of weight 2.5."""
    graph = nx.DiGraph()
    for u, length in enumerate(lengths):
        graph.add_edge(u, u + 1, weight=length)
    graph.add_edge(len(lengths), 0, weight=type(lengths[0])(2))
    return graph


#: Two paths of which the sums differ by rounding: 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1.
TWO_WAYS = nx.Graph()
TWO_WAYS.add_weighted_edges_from(
    [(0, 1, 0.1), (1, 2, 0.2), (2, 3, 0.3), (0, 4, 0.3), (4, 5, 0.2), (5, 3, 0.1)]
)

LENGTH = "single_source_dijkstra_path_length"


@pytest.mark.parametrize(
    ("name", "graph", "arguments"),
    [
        (LENGTH, road(1, 2.5), {"source": 0}),
        (LENGTH, road(1.5, 0.0), {"source": 0}),
        (LENGTH, road(1e20, 1.0), {"source": 0}),
        (LENGTH, road(1.5, INF), {"source": 0}),
        (LENGTH, road(1, -2), {"source": 0}),
        (LENGTH, road(2**52, 2**52), {"source": 0}),
        (LENGTH, road(1, 2), {"source": 0, "weight": lambda u, v, d: None}),
        ("single_source_dijkstra", road(1, 2), {"source": 0, "target": 1}),
        ("pagerank", road(1.0, -2.0), {}),
        ("pagerank", road(1.0, 2.0), {"personalization": {0: -1, 1: 5}}),
        ("pagerank", road(1.0, 2.0), {"nstart": {0: INF}}),
        ("pagerank", road(1.0, 2.0), {"alpha": 1.5}),
        ("pagerank", road(1.0, 2.0), {"max_iter": 0}),
        ("katz_centrality", road(1.0, -2.0), {"weight": "weight"}),
        ("katz_centrality", road(1.0, 2.0), {"nstart": {0: 1, 1: 1, 2: 1}}),
        ("katz_centrality", road(1.0, 2.0), {"beta": INF}),
        ("katz_centrality", road(1.0, 2.0), {"alpha": -0.1}),
        ("eigenvector_centrality", road(1.0, -0.5), {"weight": "weight"}),
        ("eigenvector_centrality", road(1.0, 2.0), {"tol": -1.0}),
        ("betweenness_centrality", road(1, 0), {"weight": "weight"}),
        ("betweenness_centrality", road(1.0, INF), {"weight": "weight"}),
        ("betweenness_centrality", road(1, 2**52), {"weight": "weight"}),
        ("betweenness_centrality", road(1.0, 1e-17), {"weight": "weight"}),
        ("betweenness_centrality", road(1, 2), {"weight": lambda u, v, d: 1}),
        ("closeness_centrality", road(1, -2), {"distance": "weight"}),
        ("closeness_centrality", road(1, 2**52), {"distance": "weight"}),
        ("closeness_centrality", road(1, 2), {"distance": lambda u, v, d: 1}),
        ("shortest_path", road(1, 2), {"weight": lambda u, v, d: 1}),
        ("shortest_path", road(1, 2.5), {"weight": "weight", "source": 0}),
        ("shortest_path", road(1, 2), {"weight": "weight", "method": "bellman-ford"}),
        ("shortest_path", TWO_WAYS, {"weight": "weight", "source": 0, "target": 3}),
        ("shortest_path", road(1, 0), {"weight": "weight"}),
        ("shortest_path_length", road(1, 2**52), {"weight": "weight"}),
        ("shortest_path_length", road(1, -2), {"weight": "weight", "source": 0}),
        ("betweenness_centrality", nx.cycle_graph(9), {"k": 0}),
        ("betweenness_centrality", nx.MultiGraph([(0, 1), (0, 1), (1, 2)]), {}),
        ("clustering", nx.complete_graph(4), {"nodes": [0, 2]}),
        ("clustering", nx.complete_graph(4), {"weight": "weight"}),
        ("clustering", nx.complete_graph(4, nx.DiGraph), {}),
        ("triangles", nx.MultiGraph(nx.complete_graph(4)), {}),
        ("triangles", nx.complete_graph(4), {"nodes": 0}),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy in NetworkX
def test_what_is_declined_is_networkx_s(
    name: str,
    graph: Any,
    arguments: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = getattr(nx, name)
    with pytest.raises(NotImplementedError):
        function(graph, **arguments, backend="featgraph")
    # Where the graph is large enough to be tried, NetworkX's answer comes.
    monkeypatch.setattr(backend, "should_run", lambda *_: True)
    theirs = answer(name, graph, arguments, "networkx")
    graph.__networkx_cache__.clear()
    with nx.config(backend_priority=["featgraph"]):
        ours = answer(name, graph, arguments, None)
    require_same(ours, theirs, 0)


def test_starts_of_the_eigenvector_are_in_the_order_given() -> None:
    graph = nx.complete_graph(4)
    graph.add_edge(0, 4)
    start = {4: 1, 2: 2, 0: 1, 1: 5, 3: 1}
    arguments = {"nstart": start, "tol": 1e-10, "max_iter": 500}
    ours = answer("eigenvector_centrality", graph, arguments, "featgraph")
    require_same(
        ours, answer("eigenvector_centrality", graph, arguments, "networkx"), 1e-8
    )
    assert list(ours) == list(start)
    for bad in ({0: 0, 1: 0}, {0: 1, 1: 1}):
        theirs = answer("eigenvector_centrality", graph, {"nstart": bad}, "networkx")
        if bad[0]:
            assert isinstance(theirs, KeyError)
            with pytest.raises(NotImplementedError):
                nx.eigenvector_centrality(graph, nstart=bad, backend="featgraph")
        else:
            ours = answer("eigenvector_centrality", graph, {"nstart": bad}, "featgraph")
            require_same(ours, theirs, 0)

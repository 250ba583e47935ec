"""Graphs to arrays and back: order, attributes, kinds, and what is declined."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.networkx import NetworkXGraph, convert_from_nx, convert_to_nx

KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]
NAMES = ["abc", "x", 7, 0, (1, 2), None.__class__, 2.5, frozenset({1}), -3, "0"]


@st.composite
def networkx_graphs(draw: st.DrawFn) -> Any:
    """Draw a graph of any kind: loops, repeats, names of several types, attributes."""
    kind = draw(st.sampled_from(KINDS))
    count = draw(st.integers(1, 9))
    nodes = list(range(count)) if draw(st.booleans()) else NAMES[:count]
    graph = kind()
    graph.add_nodes_from(draw(st.permutations(nodes)))
    node = st.sampled_from(nodes)
    weights = st.none() | st.integers(-5, 5)
    for u, v, w in draw(st.lists(st.tuples(node, node, weights), max_size=25)):
        data = {} if w is None else {"weight": w}
        graph.add_edge(u, v, **data, note=str(w))
    for u in draw(st.lists(node, max_size=3)):
        graph.nodes[u]["colour"] = 1
    graph.graph["name"] = "drawn"
    return graph


def edges_of(graph: NetworkXGraph) -> list[tuple[Any, Any]]:
    ends = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return [(graph.nodes[u], graph.nodes[v]) for u, v in ends]


@given(graph=networkx_graphs())
def test_edges_come_in_the_order_of_networkx_with_its_default_weight(
    graph: Any,
) -> None:
    made = convert_from_nx(graph, edge_attrs={"weight": 3})
    assert made.nodes == list(graph)
    wanted = list(graph.edges(data="weight", default=3))
    assert edges_of(made) == [(u, v) for u, v, _ in wanted]
    found = made.weights_of("weight")
    values = [1] * len(wanted) if found is None else found.values.tolist()
    assert values == [w for _, _, w in wanted]
    assert made.is_directed() == graph.is_directed()
    assert made.is_multigraph() == graph.is_multigraph()
    assert len(made) == len(graph)
    assert made.number_of_edges() == graph.number_of_edges()
    topology = made.topology
    loops = 0 if graph.is_directed() else nx.number_of_selfloops(graph)
    twice = 1 if graph.is_directed() else 2
    assert topology.edge_count == twice * graph.number_of_edges() - loops


@given(graph=networkx_graphs())
def test_there_and_back_is_the_same_graph(graph: Any) -> None:
    made = convert_from_nx(
        graph,
        preserve_edge_attrs=True,
        preserve_node_attrs=True,
        preserve_graph_attrs=True,
    )
    back = convert_to_nx(made)
    assert type(back) is type(graph)
    assert list(back) == list(graph)
    assert back.graph == graph.graph
    assert dict(back.nodes(data=True)) == dict(graph.nodes(data=True))
    assert back.adj == graph.adj
    plain = convert_to_nx(convert_from_nx(graph, edge_attrs={"weight": 1}))
    wanted = [w for _, _, w in graph.edges(data="weight", default=1)]
    assert [w for _, _, w in plain.edges(data="weight", default=1)] == wanted


def test_a_changed_copy_does_not_change_the_original() -> None:
    graph = nx.Graph([(0, 1, {"weight": 2})])
    back = convert_to_nx(convert_from_nx(graph, preserve_edge_attrs=True))
    back[0][1]["weight"] = 5
    assert graph[0][1]["weight"] == 2


@pytest.mark.parametrize("view", ["subgraph", "reverse", "to_undirected"])
def test_views_are_converted_and_not_cached(view: str) -> None:
    graph = nx.gnp_random_graph(20, 0.2, seed=1, directed=True)
    seen = {
        "subgraph": lambda: graph.subgraph(range(15)),
        "reverse": lambda: graph.reverse(copy=False),
        "to_undirected": lambda: graph.to_undirected(as_view=True),
    }[view]()
    assert edges_of(convert_from_nx(seen)) == list(seen.edges)
    assert seen.__networkx_cache__ is None


@pytest.mark.parametrize(
    "value", ["2", None, 1j, [1], float("nan"), np.nan, 2**70, {}], ids=repr
)
def test_values_that_are_no_numbers_are_declined(value: Any) -> None:
    graph = nx.Graph([(0, 1, {"weight": 1.0}), (1, 2, {"weight": value})])
    if value == 2**70:
        graph[0][1]["weight"] = 1
    with pytest.raises(NotImplementedError, match="'weight'"):
        convert_from_nx(graph, edge_attrs={"weight": 1})
    assert convert_from_nx(graph).number_of_edges() == 2


@pytest.mark.parametrize(
    ("values", "dtype", "is_mixed"),
    [
        ([2, 3], np.int64, False),
        ([True, 3], np.int64, False),
        ([2.0, 3.5], np.float64, False),
        ([2, 3.5], np.float64, True),
        ([np.float64(2), 1.0], np.float64, True),
        ([np.int32(2), 1], np.float64, True),
    ],
)
def test_weights_keep_their_first_type(
    values: list[Any], dtype: Any, is_mixed: bool
) -> None:
    graph = nx.path_graph(3)
    for (u, v), value in zip(graph.edges, values, strict=True):
        graph[u][v]["weight"] = value
    found = convert_from_nx(graph, edge_attrs={"weight": 1}).weights_of("weight")
    assert found is not None
    assert found.values.dtype == dtype
    assert found.values.tolist() == values
    assert found.is_mixed is is_mixed


@pytest.mark.parametrize("directed", [False, True])
def test_a_graph_of_featgraph_is_taken_as_it_is(directed: bool) -> None:
    graph = fg.Graph.from_edges(
        ["a", "b", "c"],
        ["b", "c", "c"],
        names=True,
        directed=directed,
        weights=[1, 2, 3],
    )
    ours = NetworkXGraph.from_graph(graph)
    ranks = nx.pagerank(ours)
    assert ranks == pytest.approx(nx.pagerank(graph.to_networkx()), abs=1e-6)
    assert list(ranks) == ["a", "b", "c"]
    assert not ours.is_multigraph()
    twice = fg.Graph.from_edges([0, 1], [1, 0], directed=directed)
    assert NetworkXGraph.from_graph(twice).is_multigraph() is not directed


def test_turned_round_it_is_what_networkx_turns_round() -> None:
    """Rows of predecessors are in the order in which edges were added."""
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(2, 0, 5), (1, 0, 3), (0, 2, 7), (2, 1, 4)])
    turned = convert_from_nx(graph, edge_attrs={"weight": 1}).reversed
    offsets, neighbors = turned.neighbors
    rows = np.split(np.array(turned.named(neighbors)), offsets[1:-1])
    assert [row.tolist() for row in rows] == [list(graph.pred[n]) for n in graph]
    assert edges_of(turned) == list(graph.reverse(copy=False).edges)
    assert turned.weights["weight"].values.tolist() == [
        length for *_, length in graph.reverse(copy=False).edges(data="weight")
    ]
    both = convert_from_nx(nx.path_graph(3))
    assert both.reversed is both


def test_without_its_graph_it_cannot_be_turned_round() -> None:
    graph = nx.DiGraph([(0, 1)])
    made = convert_from_nx(graph)
    copied = pickle.loads(pickle.dumps(made))
    assert edges_of(copied) == edges_of(made)
    with pytest.raises(NotImplementedError, match="is gone"):
        _ = copied.reversed
    del graph
    gc.collect()
    with pytest.raises(NotImplementedError, match="is gone"):
        _ = made.reversed
    roads = fg.Graph.from_edges([0, 1, 1], [1, 2, 0])
    assert edges_of(NetworkXGraph.from_graph(roads).reversed) == [
        (0, 1),
        (1, 0),
        (2, 1),
    ]

"""Every served function against NetworkX: values, types, order of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.networkx.backend import CLAIMS
from tests.strategies import seeds

LENGTHS: list[dict[str, Any]] = [
    {"source": "v0", "weight": None},
    {"source": "v1", "weight": "length"},
    {"source": "v0", "weight": "steps"},
    {"source": "v0", "weight": "steps", "cutoff": 4},
    {"source": "v0", "weight": None, "cutoff": 1.5},
    {"source": "v0", "weight": "length", "cutoff": -1},
    {"source": "absent", "weight": "steps"},
]
#: Arguments of shortest paths; between two nodes by weight, one path may be several.
BETWEEN: list[dict[str, Any]] = [
    {**ends, "weight": weight}
    for weight in (None, "length", "steps", "none has it")
    for ends in ({}, {"source": "v0"}, {"target": "v1"})
]
BETWEEN += [
    {"source": "v0", "target": "v1"},
    {"source": "v2", "target": "v3", "method": "bellman-ford"},
    {"source": "v4", "target": "v4"},
    {"source": "v4", "target": "v4", "weight": "length"},
    {"source": "absent", "target": "v4"},
    {"source": "v4", "target": "absent"},
    {"source": "absent"},
    {"source": "absent", "weight": "length"},
    {"target": "absent"},
    {"source": "absent", "target": "v1", "weight": "length"},
    {"source": "v1", "target": "v2", "method": "unknown"},
]
UNIQUE: list[dict[str, Any]] = [
    {"source": "v0", "target": "v1", "weight": "odd"},
    {"source": "v3", "target": "v2", "weight": "odd"},
]
TIED: list[dict[str, Any]] = [
    {"source": "v0", "target": "v1", "weight": weight}
    for weight in ("length", "steps", "tenths", "none has it")
]
#: Function -> arguments to call it with, beside the graph.
CALLS: dict[str, list[dict[str, Any]]] = {
    "average_clustering": [{}, {"count_zeros": False}],
    "betweenness_centrality": [
        {},
        {"normalized": False},
        {"endpoints": True},
        {"k": 6, "seed": 5},
        {"k": 5, "seed": 5, "endpoints": True, "normalized": False},
        {"k": 100, "seed": 5},
        {"k": 1, "seed": 5},
        {"k": 3, "seed": 7, "weight": "steps"},
        {"weight": "steps"},
        {"weight": "length", "endpoints": True},
        {"weight": "tenths", "normalized": False},
    ],
    "bfs_layers": [{"sources": "v0"}, {"sources": ["v2", "v1", "v2"]}],
    "descendants_at_distance": [
        {"source": "v0", "distance": distance} for distance in (2, 0, 40, -1)
    ],
    "closeness_centrality": [
        {},
        {"wf_improved": False},
        {"u": "v1"},
        {"distance": "steps"},
        {"distance": "tenths", "wf_improved": False},
        {"distance": "length", "u": "v0"},
        {"u": "absent"},
        {"u": "absent", "distance": "steps"},
    ],
    "clustering": [{}],
    "connected_components": [{}],
    "core_number": [{}],
    "eigenvector_centrality": [
        {"max_iter": 2000},
        {"max_iter": 2000, "weight": "length", "tol": 1e-9},
    ],
    "is_connected": [{}],
    "is_strongly_connected": [{}],
    "is_weakly_connected": [{}],
    "katz_centrality": [
        {"alpha": 0.02},
        {"alpha": 0.01, "weight": "length", "beta": 0.5, "normalized": False},
        {"alpha": 10.0, "max_iter": 400},
        {"beta": {"v0": 1.0}},
    ],
    "multi_source_dijkstra_path_length": [
        {"sources": ["v2", "v0", "v2"], "weight": "length"},
        {"sources": ("v1", "v0"), "weight": "steps"},
        {"sources": ["v1", "v0"], "weight": "none has it"},
        {"sources": {}},
    ],
    "node_connected_component": [{"n": "v0"}, {"n": "absent"}],
    "number_connected_components": [{}],
    "number_strongly_connected_components": [{}],
    "number_weakly_connected_components": [{}],
    "pagerank": [
        {},
        {"alpha": 0.5, "weight": None},
        {"weight": "length", "tol": 1e-10},
        {"personalization": {"v1": 2, "v0": 1, "unknown": 3}},
        {"dangling": {"v0": 1.5}, "nstart": {"v0": 1, "v2": 2}},
    ],
    "shortest_path": [*BETWEEN, *UNIQUE],
    "shortest_path_length": [*BETWEEN, *UNIQUE, *TIED],
    "single_source_dijkstra": LENGTHS,
    "single_source_dijkstra_path": LENGTHS,
    "single_source_dijkstra_path_length": LENGTHS,
    "single_source_shortest_path_length": [
        {"source": "v0", "cutoff": cutoff} for cutoff in (None, 2, 0, 1.5, -1)
    ],
    "transitivity": [{}],
    "triangles": [{}],
    "weakly_connected_components": [{}],
}
#: The kinds of graphs that NetworkX's function takes; all, if not named here.
KINDS: dict[str, list[Any]] = {
    "average_clustering": [nx.Graph],
    "betweenness_centrality": [nx.Graph, nx.DiGraph],
    "clustering": [nx.Graph],
    "connected_components": [nx.Graph, nx.MultiGraph],
    "core_number": [nx.Graph, nx.DiGraph],
    "eigenvector_centrality": [nx.Graph, nx.DiGraph],
    "is_connected": [nx.Graph, nx.MultiGraph],
    "is_strongly_connected": [nx.DiGraph, nx.MultiDiGraph],
    "is_weakly_connected": [nx.DiGraph, nx.MultiDiGraph],
    "katz_centrality": [nx.Graph, nx.DiGraph],
    "node_connected_component": [nx.Graph, nx.MultiGraph],
    "number_connected_components": [nx.Graph, nx.MultiGraph],
    "number_strongly_connected_components": [nx.DiGraph, nx.MultiDiGraph],
    "number_weakly_connected_components": [nx.DiGraph, nx.MultiDiGraph],
    "transitivity": [nx.Graph],
    "triangles": [nx.Graph],
    "weakly_connected_components": [nx.DiGraph, nx.MultiDiGraph],
}
ALL_KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


def random_graph(kind: Any, seed: int) -> Any:
    """Return a graph with dangling and isolated nodes, loops or not, attributes."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(6, 30))
    edges = rng.integers(0, count, (int(rng.integers(0, 4 * count)), 2))
    if seed % 2:
        edges = edges[edges[:, 0] != edges[:, 1]]
    graph = kind()
    graph.add_nodes_from(f"v{i}" for i in rng.permutation(count))
    for u, v in edges.tolist():
        numbers = rng.integers(1, 9, 3).tolist()
        data = {"length": numbers[0] / 4, "steps": numbers[1]}
        data |= {"tenths": numbers[2] / 10, "odd": 1 + float(rng.random())}
        if rng.random() < 0.5:
            data["weight"] = numbers[2]
        graph.add_edge(f"v{u}", f"v{v}", **data)
    return graph


def require_same(ours: Any, theirs: Any, tol: float) -> None:
    """Hold two answers against each other: types, order, integers, and floats."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, Exception):
        assert str(ours) == str(theirs)
    elif isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        require_same(list(ours.values()), list(theirs.values()), tol)
    elif isinstance(theirs, Sequence) and not isinstance(theirs, str):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            require_same(one, other, tol)
    elif isinstance(theirs, Iterator):
        require_same(list(ours), list(theirs), tol)
    elif isinstance(theirs, float) and theirs == theirs:
        assert ours == pytest.approx(theirs, rel=tol, abs=tol)
    else:
        assert isinstance(theirs, Set | int | str | float)
        assert ours == theirs or (ours != ours and theirs != theirs)  # nan


def answer(
    name: str, graph: Any, arguments: dict[str, Any], backend: str | None
) -> Any:
    """Return the answer of a backend, or the exception that it raises."""
    function = getattr(nx, name)
    try:
        result = function(graph, **arguments, backend=backend)
        return list(result) if isinstance(result, Iterator) else result
    except (nx.NetworkXException, ArithmeticError, LookupError, ValueError) as error:
        return error


def test_every_claim_is_called() -> None:
    assert set(CALLS) == set(CLAIMS)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", sorted(CALLS))
@settings(max_examples=settings().max_examples // 3)
@given(seed=seeds, data=st.data())
def test_answers_are_those_of_networkx(name: str, seed: int, data: Any) -> None:
    kind = data.draw(st.sampled_from(KINDS.get(name, ALL_KINDS)))
    graph = random_graph(kind, seed)
    for arguments in CALLS[name]:
        ours = answer(name, graph, arguments, "featgraph")
        # Sums of positive values, rounded in another order: a few hundred of 1e-16.
        require_same(ours, answer(name, graph, arguments, "networkx"), 1e-9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in sorted(CALLS) for kind in KINDS.get(name, ALL_KINDS)],
)
def test_a_graph_without_nodes(name: str, kind: Any) -> None:
    ours = answer(name, kind(), CALLS[name][0], "featgraph")
    require_same(ours, answer(name, kind(), CALLS[name][0], "networkx"), 0)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_on_the_target(name: str, run_on: str) -> None:
    graph = random_graph(KINDS.get(name, ALL_KINDS)[0], 7)
    arguments = CALLS[name][0]
    ours = answer(name, graph, arguments, "featgraph")
    require_same(ours, answer(name, graph, arguments, "networkx"), 1e-9)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_between_two_nodes_the_same_path_is_taken(kind: Any) -> None:
    """Of many that are shortest: which end goes on, and where both meet."""
    graph = nx.grid_2d_graph(3, 4, create_using=kind)
    graph.add_edges_from([((0, 0), (2, 3)), ((2, 1), (0, 3))])
    for source in graph:
        for target in graph:
            arguments = {"source": source, "target": target}
            ours = answer("shortest_path", graph, arguments, "featgraph")
            assert ours == answer("shortest_path", graph, arguments, "networkx")

"""Every public algorithm runs once on a small graph, and its verifier takes the answer.

An environment that is not the usual one (another Python, another NumPy) is tried with
this file: see `.ci/run`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms
from tests.algorithms.enumeration import joint_of, marginals_of

SOURCES, TARGETS = np.array(nx.karate_club_graph().edges).T
GRAPH = fg.Graph.from_edges(SOURCES, TARGETS, directed=False)
ARCS = fg.Graph.from_edges(SOURCES, TARGETS)
V, E = GRAPH.vertex_count, len(SOURCES)

GENERATOR = np.random.default_rng(0)
LENGTHS = GENERATOR.integers(1, 9, E)
TWO_WEIGHTS = GENERATOR.random((E, 2))
RATINGS = sparse.csr_array(GENERATOR.integers(0, 6, (V, 9)).astype(float))
UNARY = GENERATOR.random((V, 2)) + 1
ALIKE = np.array([[2.0, 1.0], [1.0, 2.0]])

#: Two vertices have a class or a value; the others have none.
ENDS = np.array([0, V - 1])
LABELS = np.full(V, -1)
LABELS[ENDS] = 0, 1
HELD = np.full(V, np.nan)
HELD[ENDS] = 5, 0
ONE_HOT = np.zeros((V, 2))
ONE_HOT[ENDS] = np.eye(2)


class Case(NamedTuple):
    """Arguments of an algorithm, and those of its verifier, from the result."""

    given: tuple[Any, ...]
    claimed: Callable[[Any], tuple[Any, ...]]
    options: dict[str, Any] = {}  # noqa: RUF012


CASES = {
    "als": Case(
        (RATINGS,), lambda r: (RATINGS, r.user_factors, r.item_factors), {"factors": 3}
    ),
    "belief_propagation": Case(
        (GRAPH, UNARY, ALIKE), lambda r: (GRAPH, UNARY, ALIKE, r)
    ),
    "betweenness_centrality": Case((GRAPH,), lambda r: (GRAPH, r.centralities)),
    "bfs": Case((ARCS, 0), lambda r: (ARCS, 0, r.levels, r.parents)),
    "circuit_simulation": Case((GRAPH, HELD), lambda r: (GRAPH, r.voltages, HELD)),
    "closeness_centrality": Case((ARCS,), lambda r: (ARCS, r)),
    "clustering": Case((GRAPH,), lambda r: (GRAPH, r.coefficients)),
    "connected_components": Case((ARCS,), lambda r: (ARCS, r.labels)),
    "eigenvector_centrality": Case((GRAPH,), lambda r: (GRAPH, r.centralities)),
    "gradient_factorization": Case(
        (RATINGS,), lambda r: (RATINGS, r.user_factors, r.item_factors), {"factors": 3}
    ),
    "heat_simulation": Case((GRAPH, UNARY), lambda r: (GRAPH, r, UNARY)),
    "hits": Case((ARCS,), lambda r: (ARCS, r.hubs, r.authorities)),
    "k_core": Case((GRAPH,), lambda r: (GRAPH, r.core_numbers)),
    "k_truss": Case((GRAPH,), lambda r: (GRAPH, r.trussness)),
    "katz_centrality": Case(
        (ARCS,), lambda r: (ARCS, r.centralities), {"normalized": False}
    ),
    "label_propagation": Case(
        (GRAPH, LABELS), lambda r: (GRAPH, LABELS, r.distributions)
    ),
    "label_set_propagation": Case(
        (GRAPH, np.stack([LABELS, LABELS], 1)),
        lambda r: (GRAPH, np.stack([LABELS, LABELS], 1), r.distributions),
    ),
    "multi_manifold_ranking": Case(
        (GRAPH, ONE_HOT[:, 0]),
        lambda r: (GRAPH, ONE_HOT[:, 0], r.scores),
        {"weights": TWO_WEIGHTS},
    ),
    "multimodal_learning": Case(
        (GRAPH, ONE_HOT),
        lambda r: (GRAPH, ONE_HOT, r.values),
        {"weights": TWO_WEIGHTS},
    ),
    "neural_network": Case((ARCS, HELD), lambda r: (ARCS, r.outputs, HELD)),
    "pagerank": Case((ARCS,), lambda r: (ARCS, r.ranks)),
    "pagerank_push": Case(
        (ARCS,), lambda r: (ARCS, r), {"personalization": ONE_HOT[:, 0]}
    ),
    "sgd_factorization": Case((RATINGS,), lambda r: (RATINGS, r), {"factors": 3}),
    "sssp": Case(
        (ARCS, 0),
        lambda r: (ARCS, 0, r.distances, r.predecessors),
        {"weights": LENGTHS},
    ),
    "sswp": Case(
        (ARCS, 0), lambda r: (ARCS, 0, r.widths, r.predecessors), {"weights": LENGTHS}
    ),
    "strongly_connected_components": Case((ARCS,), lambda r: (ARCS, r.labels)),
    "triangle_count": Case((GRAPH,), lambda r: (GRAPH, r.triangles)),
}


def test_every_algorithm_has_a_case() -> None:
    public = {
        name
        for name in algorithms.__all__
        if inspect.isfunction(getattr(algorithms, name))
    }
    assert set(CASES) | {"factor_propagation"} == public


@pytest.mark.drawn(9)
@pytest.mark.parametrize("name", CASES)
def test_the_verifier_takes_the_answer(name: str, target: str) -> None:
    case = CASES[name]
    function = getattr(algorithms, name)
    result = function(*case.given, **case.options, target=target)
    verify = getattr(sys.modules[function.__module__], f"verify_{name}")
    shared = inspect.signature(verify).parameters.keys() & case.options.keys()
    verify(*case.claimed(result), **{name: case.options[name] for name in shared})


def test_beliefs_of_a_tree_are_its_marginals(target: str) -> None:
    tables = [([0, 1], ALIKE), ([1, 2], ALIKE + np.eye(2)), ([0], np.array([3.0, 1]))]
    model = fg.FactorGraph(dict.fromkeys("abc", 2), tables)
    result = algorithms.factor_propagation(model, target=target)
    expected = marginals_of(joint_of((2, 2, 2), tables))
    found = list(result.marginals.values())
    np.testing.assert_allclose(found, expected, atol=1e-5)

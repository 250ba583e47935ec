"""Shortest and widest paths against SciPy and networkx, and their verifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csgraph

import featgraph as fg
from featgraph.algorithms._verify import edges_of
from featgraph.algorithms.sssp import sssp, verify_sssp
from featgraph.algorithms.sswp import sswp, verify_sswp
from tests.strategies import OPTION_SETS, graphs, seeds

Array = npt.NDArray[Any]


class Paths(NamedTuple):
    """One of the two algorithms."""

    find: Callable[..., Any]
    verify: Callable[..., None]
    values: str
    oracle: Callable[[fg.Graph, Array, Array], Array]
    nowhere: float


def lengths_by_scipy(graph: fg.Graph, weights: Array, sources: Array) -> Array:
    """Return (V, k) of Dijkstra's algorithm; zeros and parallel edges count."""
    edges = edges_of(graph)
    dense = np.full((graph.vertex_count,) * 2, np.inf)
    np.minimum.at(dense, (edges.sources, edges.targets), weights[edges.given])
    matrix = csgraph.csgraph_from_dense(dense, null_value=np.inf)
    return np.asarray(csgraph.dijkstra(matrix, indices=sources)).T


def widths_by_closure(graph: fg.Graph, weights: Array, sources: Array) -> Array:
    """Return (V, k): the max-min closure of the matrix, one vertex after another."""
    edges = edges_of(graph)
    width = np.full((graph.vertex_count,) * 2, -np.inf)
    np.maximum.at(width, (edges.sources, edges.targets), weights[edges.given])
    np.fill_diagonal(width, np.inf)
    for w in range(len(width)):
        width = np.maximum(width, np.minimum(width[:, w, None], width[w]))
    return width[sources].T


BOTH = {
    "sssp": Paths(sssp, verify_sssp, "distances", lengths_by_scipy, np.inf),
    "sswp": Paths(sswp, verify_sswp, "widths", widths_by_closure, -np.inf),
}

#: One search, or three of them under all options; widest paths under some.
CASES = [(1, {}), *((3, options) for options in OPTION_SETS)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", BOTH)
@given(graphs(max_edges=100), st.data(), st.booleans(), seeds)
def test_values_are_those_of_the_oracle(
    target: str,
    name: str,
    graph: fg.Graph,
    data: st.DataObject,
    together: bool,
    seed: int,
) -> None:
    k, options = data.draw(st.sampled_from(CASES if name == "sssp" else CASES[:3]))
    paths, rng = BOTH[name], np.random.default_rng(seed)
    sources = rng.integers(0, graph.vertex_count, k)
    # Few different ones: ties, zeros, and closed edges.
    weights = rng.choice([0, 0, 1, 2, 5, np.inf], graph.given_edge_count)
    if name == "sswp":
        weights = -weights
    expected = paths.oracle(graph, weights, sources)
    if together:
        expected = (expected.min if name == "sssp" else expected.max)(axis=1)
    result = paths.find(
        graph, sources, weights=weights, together=together, target=target, **options
    )
    assert result.converged
    found = getattr(result, paths.values)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    paths.verify(
        graph, sources, found, result.predecessors, weights=weights, together=together
    )


@pytest.mark.parametrize("name", BOTH)
def test_reals_are_within_rounding(
    name: str, target: str, rng: np.random.Generator
) -> None:
    paths = BOTH[name]
    graph = fg.Graph.from_edges(*rng.integers(0, 300, (2, 1500)), vertex_count=320)
    weights = rng.random(1500)
    result = paths.find(graph, 7, weights=weights, dtype=np.float64, target=target)
    found = getattr(result, paths.values)
    exact = paths.oracle(graph, weights, np.array([7]))[:, 0]
    assert found.dtype == np.float64
    # A sum of at most V terms, in whatever order; what is only compared is not rounded.
    margin = 320 * np.finfo(np.float64).eps if name == "sssp" else 0
    assert np.array_equal(found == paths.nowhere, exact == paths.nowhere)
    finite = np.isfinite(exact)
    assert (np.abs(found[finite] - exact[finite]) <= margin * exact[finite]).all()
    paths.verify(graph, 7, found, result.predecessors, weights=weights)


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.Graph, nx.MultiDiGraph])
def test_networkx_gives_the_same(
    kind: Any, target: str, rng: np.random.Generator
) -> None:
    network = kind()
    network.add_nodes_from(range(65))
    for u, v in rng.integers(0, 60, (150, 2)).tolist():
        network.add_edge(u, v, weight=int(rng.integers(0, 4)))
    network.add_edge(3, 3, weight=0)
    graph = fg.Graph.from_networkx(network, weight="weight")
    for source in (0, 3, 64):
        found = sssp(graph, source, target=target).distances
        theirs = nx.single_source_dijkstra_path_length(network, source)
        finite = {v: x for v, x in enumerate(found.tolist()) if np.isfinite(x)}
        assert finite == theirs


@pytest.mark.parametrize("name", BOTH)
def test_circles_of_ties_have_no_circle_of_predecessors(name: str, target: str) -> None:
    # All on the circle are as near: the first one leads the others.
    ring = np.arange(40)
    graph = fg.Graph.from_edges(
        [*ring, *((ring + 1) % 40), 40], [*((ring + 1) % 40), *ring, 20]
    )
    weights = np.zeros(81) if name == "sssp" else np.full(81, 2.0)
    paths = BOTH[name]
    found = paths.find(graph, 40, weights=weights, target=target)
    values = getattr(found, paths.values)
    assert (values[:40] == weights[0]).all()
    paths.verify(graph, 40, values, found.predecessors, weights=weights)


def test_weights_come_from_the_graph_unless_given(target: str) -> None:
    ends = [0, 0, 1], [1, 2, 2]
    graph = fg.Graph.from_edges(*ends, weights=[1.0, 4.0, 2.0])
    assert sssp(graph, 0, target=target).distances.tolist() == [0, 1, 3]
    ones = sssp(graph, 0, weights=np.ones(3), target=target)
    assert ones.distances.tolist() == [0, 1, 1]
    plain = fg.Graph.from_edges(*ends)
    assert sssp(plain, 0, target=target).distances.tolist() == [0, 1, 1]


BAD = {
    "negative": (sssp, {"weights": [1, -1, 1]}, "edge 1, 1 -> 2"),
    "nan": (sssp, {"weights": [1, 1, np.nan]}, "edge 2, 2 -> 3"),
    "nan wide": (sswp, {"weights": [np.nan, 1, 1]}, "edge 0, 0 -> 1"),
    "shape": (sssp, {"weights": [1, 1]}, r"shape \(2,\)"),
    "dtype": (sswp, {"dtype": np.int32}, "int32"),
    "source": (sssp, {"sources": 9}, r"sources\[0\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    find, options, expected = BAD[case]
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    with pytest.raises(fg.GraphInputError, match=expected):
        find(graph, **{"sources": 0, **options})


#: On 0 -2-> 1 -2-> 2, 0 -1-> 2, 2 -0-> 3 -0-> 2, 4 alone: what is changed and said.
FAULTS: dict[str, tuple[str, dict[int, float], dict[int, int], str]] = {
    "longer": ("sssp", {1: 3}, {}, "vertex 1: an edge makes the path shorter"),
    "shorter": ("sssp", {1: 1}, {}, "vertex 1: no edge leads here"),
    "lost": ("sssp", {1: np.inf}, {1: -1}, "vertex 1: an edge makes"),
    "nan": ("sssp", {4: np.nan}, {}, "vertex 4: nan"),
    "source": ("sssp", {0: 1}, {}, "vertex 0: a source"),
    "circle": ("sssp", {}, {2: 3, 3: 2}, "vertex 2: its predecessors go round"),
    "far circle": ("sssp", {2: 0.5, 3: 0.5}, {2: 3, 3: 2}, "vertex 2: its predecess"),
    "of no vertex": ("sssp", {}, {4: 0}, "vertex 4: has a predecessor"),
    "narrower": ("sswp", {2: 1}, {2: 0}, "vertex 2: an edge makes the path wider"),
    "wider": ("sswp", {1: 3}, {}, "vertex 1: no edge leads here"),
    "not infinite": ("sswp", {0: 9}, {}, "vertex 0: a source"),
    "wide circle": ("sswp", {2: 9, 3: 9}, {}, "vertex 2: no edge leads here"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    name, values, parents, expected = FAULTS[fault]
    paths, last = BOTH[name], 0.0 if FAULTS[fault][0] == "sssp" else 5.0
    graph = fg.Graph.from_edges([0, 1, 0, 2, 3], [1, 2, 2, 3, 2], vertex_count=5)
    weights = np.array([2, 2, 1, last, last])
    found = paths.find(graph, 0, weights=weights, target="cpu")
    known = getattr(found, paths.values)
    paths.verify(graph, 0, known, found.predecessors, weights=weights)
    known[list(values)] = list(values.values())
    found.predecessors[list(parents)] = list(parents.values())
    with pytest.raises(AssertionError, match=expected):
        paths.verify(graph, 0, known, found.predecessors, weights=weights)

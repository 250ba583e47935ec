"""Answers of results: where they are, when they are copied, and what pickles have."""

from __future__ import annotations

import copy
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms import (
    als,
    belief_propagation,
    betweenness_centrality,
    bfs,
    circuit_simulation,
    closeness_centrality,
    clustering,
    connected_components,
    eigenvector_centrality,
    gradient_factorization,
    heat_simulation,
    hits,
    k_core,
    k_truss,
    katz_centrality,
    label_propagation,
    label_set_propagation,
    multi_manifold_ranking,
    multimodal_learning,
    neural_network,
    pagerank,
    pagerank_push,
    sssp,
    sswp,
    strong_components,
    strongly_connected_components,
    triangle_count,
)
from featgraph.cuda import dialect
from featgraph.runtime.devices import host_arrays
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.worklist import WorklistLoop
from featgraph.runtime.superstep.superstep import Superstep

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.simt.gpu import Gpu, emulated_gpu

V = 40
ENDS = np.arange(V - 1)
GRAPH = fg.Graph.from_edges(ENDS, ENDS + 1, weights=np.arange(1.0, V))
#: Attribute -> what has it.
RUNS: dict[str, Callable[..., Any]] = {
    "levels": lambda **o: bfs(GRAPH, 3, **o),
    "parents": lambda **o: bfs(GRAPH, [3, 5, 3], **o),
    "distances": lambda **o: sssp(GRAPH, [3, 5], together=True, **o),
    "predecessors": lambda **o: sssp(GRAPH, 3, **o),
    "labels": lambda **o: connected_components(GRAPH, **o),
    "widths": lambda **o: sswp(GRAPH, [3, 5], **o),
    "ranks": lambda **o: pagerank(GRAPH, tol=1e-3, **o),
}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


@pytest.mark.drawn(5)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RUNS)
def test_an_answer_is_copied_once(gpu: Gpu, name: str, where: str) -> None:
    result = RUNS[name](target=where, max_supersteps=V)
    lent = result.view(name)
    found = getattr(result, name)
    assert type(found) is np.ndarray
    assert getattr(result, name) is found
    assert found.flags.writeable
    assert found.flags.c_contiguous
    assert (found.shape, found.dtype) == (lent.shape, lent.dtype)
    np.testing.assert_array_equal(np.asarray(lent), found)
    if where == "cpu":
        assert not np.shares_memory(np.asarray(lent), found)
    again = result.view(name)
    assert hasattr(again, "__cuda_array_interface__") == (where == "cuda")
    np.testing.assert_array_equal(np.asarray(again), found)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RUNS)
def test_copies_have_arrays(gpu: Gpu, name: str, where: str) -> None:
    result = RUNS[name](target=where)
    for other in (
        pickle.loads(pickle.dumps(result)),
        copy.copy(result),
        copy.deepcopy(result),
        replace(result, vertex_names=None),
    ):
        names = {field.name for field in fields(result)}
        assert set(vars(other)) == names
        assert type(other.view(name)) is np.ndarray
        np.testing.assert_array_equal(getattr(other, name), getattr(result, name))
    assert f"\n  {name}: {getattr(result, name).dtype} of shape" in repr(result)


def test_results_are_frozen_and_list_their_fields() -> None:
    result = bfs(GRAPH, 3, target="cpu")
    with pytest.raises(FrozenInstanceError):
        result.levels = np.zeros(V)  # type: ignore[misc]
    for name in ("run", "missing", "_levels_source"):
        with pytest.raises(fg.FeatGraphError, match="no such array"):
            result.view(name)
    assert not hasattr(type(result), "levels")  # a field without a default


def test_the_number_of_components_needs_no_labels() -> None:
    result = connected_components(GRAPH, method="propagate", target="cpu")
    assert "labels" not in vars(result)
    assert result.count == 1
    assert result.labels.tolist() == [0] * V
    assert set(vars(result)) == {field.name for field in fields(result)}


def test_what_a_callback_kept_may_be_used_again() -> None:
    kept: list[fg.State] = []
    result = bfs(GRAPH, 3, target="cpu", callback=lambda _, state: kept.append(state))
    assert kept[0]["level"][-1, 0] == V - 4
    levels = result.levels.tolist()
    kept[0]["level"] = kept[0]["parent"] = 0
    assert result.levels.tolist() == levels
    with pytest.raises(fg.StateError, match=r"result\.parents: .* overwritten"):
        _ = result.parents


# -- what a call makes and moves

#: A potential for all edges.
ALIKE = np.array([[2.0, 1.0], [1.0, 2.0]])

#: Algorithm -> a call of it, on a graph that is warm.
CALLS: dict[str, Callable[..., Any]] = {
    "triangles": lambda g, **o: triangle_count(simple(g), **o),
    "clustering": lambda g, **o: clustering(simple(g), **o),
    "bfs": lambda g, **o: bfs(g, [3, 5], **o),
    "sssp": lambda g, **o: sssp(g, [3, 5], **o),
    "sswp": lambda g, **o: sswp(g, 3, **o),
    "link": lambda g, **o: connected_components(g, method="link", **o),
    "propagate": lambda g, **o: connected_components(g, method="propagate", **o),
    "pagerank": lambda g, **o: pagerank(g, max_supersteps=3, tol=0.0, **o),
    "push": lambda g, **o: pagerank_push(g, max_supersteps=3, **o),
    "push weighted": lambda g, **o: pagerank_push(
        weighted(g), max_supersteps=3, history=True, **o
    ),
    "renormalized": lambda g, **o: pagerank(
        g, max_supersteps=3, tol=0.0, dangling="renormalize", **o
    ),
    "betweenness": lambda g, **o: betweenness_centrality(
        g, sources=[3, 5], batch=2, endpoints=True, **o
    ),
    "closeness": lambda g, **o: closeness_centrality(g, [3, 5], batch=2, **o),
    "eigenvector": lambda g, **o: eigenvector_centrality(g, max_supersteps=3, **o),
    "hits": lambda g, **o: hits(g, max_iter=2, **o),
    "trusses": lambda g, **o: k_truss(simple(g), max_supersteps=40, **o),
    "label propagation": lambda g, **o: label_propagation(
        g, seeds(g), max_supersteps=3, **o
    ),
    "label sets": lambda g, **o: label_set_propagation(
        g, np.stack([seeds(g), seeds(g)[::-1]], axis=1), max_supersteps=3, **o
    ),
    "manifolds": lambda g, **o: multi_manifold_ranking(
        g, seeds(g), weights=of_modalities(g), max_supersteps=3, **o
    ),
    "modalities": lambda g, **o: multimodal_learning(
        g, seeds(g), weights=of_modalities(g), max_supersteps=3, **o
    ),
    "neurons": lambda g, **o: neural_network(
        weighted(g), sources(g), bias=0.1, max_supersteps=3, **o
    ),
    "beliefs": lambda g, **o: belief_propagation(
        simple(g), potentials(g), ALIKE, max_supersteps=3, **o
    ),
    "beliefs by edges": lambda g, **o: belief_propagation(
        simple(g), potentials(g), potentials_of_edges(simple(g)), max_supersteps=3, **o
    ),
    "heat": lambda g, **o: heat_simulation(
        g, seeds(g), duration=3.0, dt=0.01, dtype="float32", **o
    ),
    "circuit": lambda g, **o: circuit_simulation(
        simple(g), sources(g), max_supersteps=3, history=True, **o
    ),
    "strong components": lambda g, **o: strongly_connected_components(g, **o),
    "strong components of rings": lambda g, **o: strongly_connected_components(
        rings(g), **o
    ),
    "cores": lambda g, **o: k_core(simple(g), max_supersteps=40, **o),
    "katz": lambda g, **o: katz_centrality(g, max_supersteps=3, **o),
}
#: Algorithm -> bytes a vertex, or edge, of what a call of it is given: the host checks
#: that, and uploads it once.
GIVEN: dict[str, list[int]] = {
    "label propagation": [8],
    "label sets": [8],
    "manifolds": [8, 8],
    "modalities": [4, 8],
    "neurons": [4, 1],
    "heat": [4],
    "circuit": [8, 1],
    "beliefs": [16],
    "beliefs by edges": [16],
}
#: Algorithm -> bytes an edge of what else a call is given, of a simple graph.
GIVEN_OF_EDGES = {"beliefs by edges": [16, 16]}  # logs, and weights made of them
#: Algorithm -> bytes an edge of its answer.
OF_EDGES = {"trusses": 4, "circuit": 8, "beliefs": 8, "beliefs by edges": 8}


#: Algorithm -> why no call of it is counted as others are.
APART = {
    "AlternatingLeastSquares": "an estimator around als",
    "LabelPropagation": "an estimator around label_propagation",
    "als": "ratings are a graph of their own: test_factors_are_moved_once",
    "factor_propagation": "a FactorGraph has tables of Python, and answers have names",
    "gradient_factorization": "as als",
    "MatrixFactorization": "an estimator around sgd_factorization",
    "sgd_factorization": "as als",
}


def given_bytes(name: str, graph: fg.Graph) -> list[int]:
    """Return how many bytes there are of each array that a call is given."""
    of_vertices = [graph.vertex_count * size for size in GIVEN.get(name, [])]
    edges = simple(graph).given_edge_count
    return of_vertices + [edges * size for size in GIVEN_OF_EDGES.get(name, [])]


class Watch:
    """Notes what is allocated outside supersteps, on the CPU.

    Attributes
    ----------
    taken : list of int
        The most bytes that were held at any time before each superstep, or several that
        ran in one go, since the one before it; at last, behind them.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken: list[int] = []
        self._depth = 0
        for owner in (Superstep, HostLoop, WorklistLoop):
            patch.setattr(owner, "run", self._watched(owner.run))

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._note()
            self._depth += 1
            try:
                return function(*arguments)
            finally:
                self._depth -= 1
                self._begin()

        return call

    def _begin(self) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def _note(self) -> None:
        if self._depth == 0:
            taken = tracemalloc.get_traced_memory()[1] - self._before
            self.taken.append(taken)

    def run(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""
        tracemalloc.start()
        try:
            self._begin()
            result = call()
            self._note()
        finally:
            tracemalloc.stop()
        return result


@cache
def simple(graph: fg.Graph) -> fg.Graph:
    """Return a graph without directions, parallel edges and self-loops."""
    ends = np.sort([graph.sources, graph.targets], axis=0)
    ends = ends[:, ends[0] != ends[1]]
    count = graph.vertex_count
    return fg.Graph.from_edges(
        *np.unique(ends, axis=1), vertex_count=count, directed=False
    )


@cache
def rings(graph: fg.Graph) -> fg.Graph:
    """Return rings of four vertices, in rows of sixteen, each pointing to the next."""
    vertices = np.arange(graph.vertex_count // 4 * 4)
    after = vertices + 1 - 4 * (vertices % 4 == 3)
    first = vertices[(vertices % 4 == 0) & (vertices % 64 > 0)]
    sources = np.concatenate([vertices, first - 1])
    targets = np.concatenate([after, first])
    return fg.Graph.from_edges(sources, targets, vertex_count=graph.vertex_count)


@cache
def seeds(graph: fg.Graph) -> Any:
    """Return labels of four classes, of some vertices; small, since they are given."""
    labels = np.random.default_rng(5).integers(-9, 4, graph.vertex_count)
    return np.maximum(labels, -1).astype(np.int8)


@cache
def potentials(graph: fg.Graph) -> Any:
    """Return those of the two states of each vertex."""
    return np.random.default_rng(8).random((graph.vertex_count, 2)) + 0.1


@cache
def potentials_of_edges(graph: fg.Graph) -> Any:
    """Return those of each edge."""
    return np.random.default_rng(9).random((graph.given_edge_count, 2, 2)) + 0.5


@cache
def of_modalities(graph: fg.Graph) -> Any:
    """Return two weights for each edge."""
    return 1 + np.random.default_rng(7).random((graph.given_edge_count, 2))


@cache
def sources(graph: fg.Graph) -> Any:
    """Return voltages of a third of the vertices, and of those without neighbors."""
    held = np.random.default_rng(6).random(graph.vertex_count) < 0.3
    labels = connected_components(simple(graph), target="cpu").labels
    voltages = np.full(graph.vertex_count, np.nan)
    held[labels] = True
    voltages[held] = np.flatnonzero(held) % 7
    return voltages


@cache
def weighted(graph: fg.Graph) -> fg.Graph:
    """Return a graph with weights."""
    weights = np.random.default_rng(4).random(graph.given_edge_count)
    return fg.Graph.from_edges(
        graph.sources,
        graph.targets,
        vertex_count=graph.vertex_count,
        weights=weights,
        directed=graph.directed,
    )


def drawn_graph(count: int, directed: bool = True) -> fg.Graph:
    """Return a graph of so many vertices, some without out-edges, and edges."""
    ends = np.random.default_rng(3).integers(0, count, (2, count))
    return fg.Graph.from_edges(*ends, vertex_count=count, directed=directed)


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.drawn(20)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_over_the_vertices_is_made_on_the_host(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    count = 1 << 18
    # One chunk of all: a kernel of many takes three times as long to compile.
    monkeypatch.setattr(host_arrays, "SMALLEST_CHUNK", 1 << 40)
    # The CPU stands for a GPU, where no depth-first search of the host takes part, and
    # ranks are made of shares by a kernel.
    monkeypatch.setattr(strong_components._Search, "goes_deep", lambda search: False)
    of_pagerank = sys.modules["featgraph.algorithms.pagerank"]
    monkeypatch.setattr(of_pagerank, "values_on_host", lambda state, name: None)
    graph = drawn_graph(count)
    CALLS[name](graph, target="cpu")
    watch = Watch(monkeypatch)
    watch.run(lambda: CALLS[name](graph, target="cpu"))
    assert len(watch.taken) > 1
    large = [taken for taken in watch.taken if taken >= count]
    if name in GIVEN:  # is checked at first, and copied before it is written
        assert sum(large) - watch.taken[0] <= 1.01 * sum(given_bytes(name, graph))
    else:
        assert not large, watch.taken


def test_every_algorithm_is_called() -> None:
    called = {name for call in CALLS.values() for name in call.__code__.co_names}
    assert called & {*APART} == set()
    assert {*algorithms.__all__} - called == {*APART}


def test_a_watch_sees_what_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.run(lambda: (np.ones(1 << 18).sum(), bfs(GRAPH, 3, target="cpu")))
    assert watch.taken[0] >= 8 << 18


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_over_the_vertices_is_moved(gpu: Gpu, name: str) -> None:
    graph = drawn_graph(3 * V)
    CALLS[name](graph, target="cuda")
    del gpu.uploads[:], gpu.downloads[:]
    result = CALLS[name](graph, target="cuda")
    # Its way back has two numbers for the set of each superstep.
    places = 16 * (1 + result.run.supersteps) if name == "betweenness" else 0
    large = [size for size in gpu.uploads if size >= 3 * V and size > places]
    assert sorted(large) == sorted(given_bytes(name, graph)), gpu.uploads
    assert max(gpu.downloads) < 3 * V, gpu.downloads
    del gpu.uploads[:], gpu.downloads[:]
    read = [getattr(result, field.name) for field in fields(result)]
    again = [getattr(result, field.name) for field in fields(result)]
    assert all(a is b for a, b in zip(read, again, strict=True))
    arrays = [a for a in read if isinstance(a, np.ndarray) and len(a) == 3 * V]
    expected = [a.nbytes for a in arrays]
    if name in OF_EDGES:  # in both directions
        expected.append(simple(graph).edge_count * OF_EDGES[name])
    assert sorted(gpu.downloads) == sorted(expected)
    assert expected or name == "closeness"  # of the vertices that were asked for
    assert not gpu.uploads


@pytest.mark.drawn(4)
@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize(
    "name",
    ["pagerank", "hits", "eigenvector", "katz", "manifolds", "modalities", "heat"],
)
def test_supersteps_may_run_without_the_host(gpu: Gpu, name: str) -> None:
    """No function of Python looks at each, and no other foldmap has a turn."""
    run = CALLS[name](drawn_graph(3 * V), target="cuda").run
    assert "replay" not in run.refused, run.explain()
    assert len(run.kernels) == 1


@pytest.mark.parametrize("factorise", [als, gradient_factorization])
def test_factors_are_moved_once(gpu: Gpu, factorise: Any) -> None:
    """Ratings are a graph of their own in each call; factors and errors stay there."""
    options: dict[str, Any] = {"factors": 2, "iterations": 1, "history": True}
    rng = np.random.default_rng(11)
    ratings = sp.random(8 * V, 7 * V, density=0.01, random_state=rng, format="csr")
    del gpu.downloads[:]
    result = factorise(ratings, target="cuda", **options)
    # Fewer bytes than there are users, or items: counts of degrees are the most.
    assert max(gpu.downloads) < 7 * V, gpu.downloads
    del gpu.downloads[:]
    users = result.user_factors
    assert np.shares_memory(users, result.factors)
    assert gpu.downloads == [result.factors.nbytes]
    alike = factorise(ratings, target="cpu", **options)
    np.testing.assert_allclose(result.residuals, alike.residuals, rtol=1e-5)

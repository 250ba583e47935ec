"""PageRank against NumPy in float64, the linear system, networkx and SciPy."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.pagerank import pagerank, verify_pagerank
from tests.strategies import OPTION_SETS, examples, graphs, seeds

Array = npt.NDArray[Any]

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def matrix_of(graph: fg.Graph, weights: Array | None = None) -> Array:
    """Return dense (V, V): at [v, u] the weights of u -> v, added up."""
    w = np.ones(graph.given_edge_count) if weights is None else weights
    matrix = np.zeros((graph.vertex_count, graph.vertex_count))
    np.add.at(matrix, (graph.targets, graph.sources), w)
    if not graph.directed:
        twins = graph.sources != graph.targets
        np.add.at(matrix, (graph.sources[twins], graph.targets[twins]), w[twins])
    return matrix


def shares_of(x: Any) -> Array:
    columns = np.asarray(x, np.float64).reshape(len(x), -1)
    return columns / columns.sum(axis=0)


def recurrence(
    matrix: Array,
    supersteps: int,
    *,
    alpha: float = 0.85,
    personal: Array | None = None,
    landing: Array | None = None,
    start: Array | None = None,
) -> Array:
    """Return (V, k) after so many supersteps, as the module's docstring has it."""
    count = len(matrix)
    uniform = np.ones((count, 1))
    p = shares_of(uniform if personal is None else personal)
    q = p if landing is None else shares_of(landing)
    x = shares_of(uniform if start is None else start)
    out = matrix.sum(axis=0)
    for _ in range(supersteps):
        lost = x[out == 0].sum(axis=0)
        sent = matrix @ (x / np.where(out == 0, 1, out)[:, None])
        x = (1 - alpha) * p + alpha * (sent + lost * q)
    return x


def margin(matrix: Array, supersteps: int, dtype: Any = np.float32) -> float:
    """Return c * eps * (degree + 8) once a superstep; ranks are at most one."""
    degree = (matrix != 0).sum(axis=1).max(initial=0)
    return float(4 * np.finfo(dtype).eps * (degree + 8) * supersteps)


# -- the recurrence


#: One column, unweighted; or four of them and weights, under all options.
CASES = [(1, {}), *((4, options) for options in OPTION_SETS)]


@limit_is_meant
@examples(12, 1000)
@given(graphs(max_edges=100), st.sampled_from(CASES), st.data())
def test_supersteps_are_those_of_the_recurrence(
    target: str, graph: fg.Graph, case: tuple[int, dict[str, Any]], data: st.DataObject
) -> None:
    k, options = case
    rng = np.random.default_rng(data.draw(seeds))
    count = graph.vertex_count
    given_values: dict[str, Any] = {"alpha": data.draw(st.sampled_from([0.5, 0.85]))}
    weights = None
    if k > 1:
        # A third of them zero: vertices with edges can be dangling, too.
        weights = rng.integers(0, 3, graph.given_edge_count).astype(np.float64)
        given_values["personalization"] = rng.random((count, k)) + 0.01
        if data.draw(st.booleans()):
            given_values["dangling"] = rng.integers(0, 3, (count, k)) + 0.0
            given_values["dangling"][0] = 1
        if data.draw(st.booleans()):
            given_values["nstart"] = rng.random(count) + 0.01
    for supersteps in (1, 3):
        result = pagerank(
            graph,
            weights=weights,
            tol=0.0,
            max_supersteps=supersteps,
            target=target,
            **given_values,
            **options,
        )
        matrix = matrix_of(graph, weights)
        expected = recurrence(
            matrix,
            supersteps,
            alpha=given_values["alpha"],
            personal=given_values.get("personalization"),
            landing=given_values.get("dangling"),
            start=given_values.get("nstart"),
        )
        ranks = result.ranks.reshape(count, -1)
        assert np.abs(ranks - expected).max() <= margin(matrix, supersteps)


@pytest.mark.drawn(3)
@limit_is_meant
@pytest.mark.parametrize("k", [1, 8, 33])
def test_residuals_are_the_l1_change(
    k: int, target: str, rng: np.random.Generator
) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 40, (2, 90)), vertex_count=40)
    personal = rng.random((40, k)) + 0.01
    result = pagerank(
        graph, personalization=personal, tol=0.0, max_supersteps=5, target=target
    )
    steps = [
        recurrence(matrix_of(graph), n, personal=personal, start=np.ones((40, k)))
        for n in range(6)
    ]
    expected = [np.abs(b - a).sum(axis=0).max() for a, b in pairwise(steps)]
    assert result.residuals == pytest.approx(expected, abs=1e-5)
    assert result.ranks == pytest.approx(steps[5], abs=1e-5)


# -- the fixpoint


@given(graphs(max_edges=100), st.sampled_from([{}, {"dangling": "renormalize"}]))
def test_any_converged_answer_has_the_properties(
    target: str, graph: fg.Graph, options: dict[str, Any]
) -> None:
    result = pagerank(graph, max_supersteps=1000, target=target, **options)
    assert result.converged
    verify_pagerank(graph, result.ranks, **options)


@given(graphs(max_edges=100), st.booleans(), st.data())
def test_renormalised_is_the_solution_with_dangling_mass(
    target: str, graph: fg.Graph, is_weighted: bool, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(seeds))
    personal = rng.integers(0, 4, graph.vertex_count) + 0.0
    personal[-1] = 1
    weights = rng.random(graph.given_edge_count) if is_weighted else None
    result = pagerank(
        graph,
        personalization=personal,
        weights=weights,
        dangling="renormalize",
        tol=1e-12,
        dtype=np.float64,
        max_supersteps=1000,
        target=target,
    )
    matrix = matrix_of(graph, weights)
    p, out = shares_of(personal)[:, 0], matrix.sum(axis=0)
    walk = matrix / np.where(out == 0, 1, out)
    walk[:, out == 0] = p[:, None]
    system = np.eye(len(p)) - 0.85 * walk
    exact = np.linalg.solve(system, 0.15 * p)
    distance = 1e-12 * len(p) / 0.15 + 100 * np.finfo(float).eps * len(p)
    assert np.abs(result.ranks - exact).sum() <= distance


def test_silent_vertices_are_skipped_and_the_answer_stands(
    target: str, rng: np.random.Generator
) -> None:
    # A long tail: ranks along it settle one vertex after the other.
    ends = np.arange(300)
    graph = fg.Graph.from_edges(ends, ends + 1)
    epsilon = 1e-6
    result = pagerank(
        graph,
        dangling="renormalize",
        tol=None,
        epsilon=epsilon,
        dtype=np.float64,
        max_supersteps=1000,
        target=target,
    )
    assert result.converged
    assert result.residuals.size == 0
    assert result.run.active_counts[-1] == 0
    assert sum(result.run.active_counts) < 0.5 * 301 * result.supersteps
    exact = recurrence(matrix_of(graph), 1000)[:, 0]
    assert np.abs(result.ranks - exact).sum() <= 301 * epsilon / 0.15


# -- the oracles


def random_network(kind: Any, rng: np.random.Generator) -> Any:
    """Return a network with loops, repeated edges and vertices without out-edges."""
    network = kind()
    network.add_nodes_from(range(35))
    for u, v in rng.integers(0, 30, (90, 2)).tolist():
        network.add_edge(u, v, weight=float(rng.integers(1, 5)))
    network.add_edge(3, 3, weight=2.0)
    network.add_edge(4, 5, weight=1.0)
    network.add_edge(4, 5, weight=3.0)
    return network


def as_array(ranks: dict[Any, float]) -> Array:
    return np.array([ranks[v] for v in range(len(ranks))])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", [nx.DiGraph, nx.Graph, nx.MultiDiGraph, nx.MultiGraph])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_networkx_gives_the_same(
    kind: Any, weight: str | None, target: str, rng: np.random.Generator
) -> None:
    network = random_network(kind, rng)
    graph = fg.Graph.from_networkx(network, weight=weight)
    personal = rng.random(35) * (rng.random(35) < 0.4) + 0.01
    landing = rng.random(35) + 0.01
    start = rng.random(35) + 0.01
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        (
            {"personalization": dict(enumerate(personal)), "alpha": 0.6},
            {"personalization": personal, "alpha": 0.6},
        ),
        (
            {"dangling": dict(enumerate(landing)), "nstart": dict(enumerate(start))},
            {"dangling": landing, "nstart": start},
        ),
    ]
    for theirs, ours in cases:
        expected = as_array(nx.pagerank(network, weight=weight, tol=1e-9, **theirs))
        result = pagerank(graph, tol=1e-9, dtype=np.float64, target=target, **ours)
        assert result.converged
        # The same iterates, and the same rule of when to stop.
        assert result.ranks == pytest.approx(expected, abs=1e-14)


def test_the_limit_is_that_of_networkx(target: str, rng: np.random.Generator) -> None:
    network = random_network(nx.DiGraph, rng)
    graph = fg.Graph.from_networkx(network)
    enough = pagerank(graph, dtype=np.float64, target=target).supersteps
    nx.pagerank(network, weight=None, max_iter=enough)
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.pagerank(network, weight=None, max_iter=enough - 1)
    with pytest.warns(fg.ConvergenceWarning):
        result = pagerank(
            graph, dtype=np.float64, max_supersteps=enough - 1, target=target
        )
    assert not result.converged


def test_columns_are_runs_of_their_own(target: str, rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 65, (2, 200)), vertex_count=65)
    personal = np.eye(65)[:, :4]
    together = pagerank(
        graph, personalization=personal, tol=1e-9, dtype=np.float64, target=target
    )
    assert together.ranks.shape == (65, 4)
    for column in range(4):
        alone = pagerank(
            graph,
            personalization=personal[:, column],
            tol=1e-9,
            dtype=np.float64,
            target=target,
        )
        assert alone.ranks.shape == (65,)
        assert together.ranks[:, column] == pytest.approx(alone.ranks, abs=1e-7)
    # One column that has settled does not end the run of the others.
    begun = np.ones((65, 4))
    begun[:, 0] = together.ranks[:, 0]
    again = pagerank(
        graph,
        personalization=personal,
        nstart=begun,
        tol=1e-9,
        dtype=np.float64,
        target=target,
    )
    assert again.residuals[-1] < 65e-9
    verify_pagerank(graph, again.ranks, personalization=personal, tol=1e-9)


def test_real_pages_rank_as_with_scipy(target: str, data_dir: Path) -> None:
    graph = fg.read_graph(data_dir / "small" / "wiki-Vote.txt.gz")
    result = pagerank(graph, tol=1e-9, dtype=np.float64, target=target)
    verify_pagerank(graph, result.ranks, tol=1e-9)
    matrix = graph.to_scipy().astype(np.float64).T.tocsr()
    matrix.data[:] = 1
    out = np.asarray(matrix.sum(axis=0)).ravel()
    count = graph.vertex_count
    x = np.full(count, 1 / count)
    for _ in range(result.supersteps):
        sent = matrix @ (x / np.where(out == 0, 1, out))
        x = 0.15 / count + 0.85 * (sent + x[out == 0].sum() / count)
    assert result.ranks == pytest.approx(x, abs=1e-15)
    rough = pagerank(graph, target=target)
    distance = 0.85 / 0.15 * (rough.residuals[-1] + result.residuals[-1])
    assert np.abs(rough.ranks - x).sum() <= distance + margin(matrix, 1)


# -- what is left


def test_pull_repeats_bit_by_bit(target: str, rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 200, (2, 2000)), vertex_count=210)
    runs = [pagerank(graph, direction="pull", target=target) for _ in range(2)]
    assert np.array_equal(runs[0].ranks, runs[1].ranks)
    assert np.array_equal(runs[0].residuals, runs[1].residuals)


def test_weights_come_from_the_graph_unless_given(target: str) -> None:
    graph = fg.Graph.from_edges([0, 0], [1, 2], weights=[3.0, 1.0])
    plain = fg.Graph.from_edges([0, 0], [1, 2])
    of_graph = pagerank(graph, target=target).ranks
    assert of_graph == pytest.approx(
        pagerank(plain, weights=[3, 1], target=target).ranks
    )
    assert of_graph[1] > of_graph[2]


SOME = [0.5, 0.5, 0, 0]
BAD = {
    "alpha": ({"alpha": 1.5}, "alpha"),
    "alpha nan": ({"alpha": np.nan}, "alpha"),
    "tol": ({"tol": -1.0}, "tol"),
    "epsilon": ({"epsilon": np.nan}, "epsilon"),
    "no end": ({"tol": None}, "nothing ends the run"),
    "dangling": ({"dangling": "drop"}, "'renormalize'"),
    "dangling, alpha": ({"dangling": "renormalize", "alpha": 1.0}, "alpha < 1"),
    "too short": ({"personalization": [1, 2]}, r"shape \(2,\)"),
    "negative": ({"personalization": [1, -1, 0, 0]}, "vertex 1"),
    "nan": ({"nstart": [1, 1, np.nan, 0]}, "vertex 2"),
    "inf": ({"dangling": [1, 1, 1, np.inf]}, "vertex 3"),
    "zero": ({"personalization": [[1, 0]] * 4}, "column 1"),
    "widths": (
        {"personalization": np.ones((4, 2)), "nstart": np.ones((4, 3))},
        "numbers of columns",
    ),
    "weights": ({"weights": [1.0, -1.0, 1.0]}, "edge 1"),
    "infinite weights": ({"weights": [1.0, 1.0, np.inf]}, "edge 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    with pytest.raises(fg.GraphInputError, match=expected):
        pagerank(graph, **options)


FAULTS = {
    "negative": (lambda x: x.__setitem__(2, -x[2]), "vertex 2: less rank"),
    "nan": (lambda x: x.__setitem__(2, np.nan), "vertex 2: less rank"),
    "scaled": (lambda x: x.__imul__(1.1), "column 0: does not sum to one"),
    "exchanged": (lambda x: x.__setitem__([1, 3], x[[3, 1]]), "one more superstep"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    plant, expected = FAULTS[fault]
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    ranks = pagerank(graph, target="cpu").ranks
    verify_pagerank(graph, ranks)
    plant(ranks)
    with pytest.raises(AssertionError, match=expected):
        verify_pagerank(graph, ranks)

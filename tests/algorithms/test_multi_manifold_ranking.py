"""Multi-manifold ranking against NumPy in float64 and against linear systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.multi_manifold_ranking import (
    multi_manifold_ranking,
    verify_multi_manifold_ranking,
)
from featgraph.algorithms.views import graph_of_views
from tests.algorithms.dense import dense
from tests.strategies import OPTION_SETS, graphs, seeds

Array = npt.NDArray[Any]

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def walks(graph: fg.Graph, weights: Array, normalization: str) -> Array:
    """Return (k, V, V): M of each manifold, as the module's docstring has it."""
    found = []
    for w in weights.T:
        inverse = np.divide(1, w, out=np.zeros_like(w), where=w > 0)
        if normalization == "hadamard":
            haggr = dense(graph, inverse).sum(axis=1)
        else:
            total = dense(graph, w).sum(axis=1)
            haggr = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        found.append(haggr[:, None] * dense(graph, w))
    return np.array(found)


def some_weights(rng: np.random.Generator, graph: fg.Graph, k: int) -> Array:
    """Return (E, k), about a third of them zero."""
    shape = graph.given_edge_count, k
    return rng.uniform(0.5, 2, shape) * (rng.random(shape) < 0.7)


@pytest.mark.drawn(2)
@limit_is_meant
@pytest.mark.parametrize(
    ("k", "normalization"),
    [(1, "hadamard"), (2, "hadamard"), (64, "hadamard"), (2, "mean")],
)
@given(data=st.data())
def test_supersteps_are_those_of_the_recurrence(
    k: int, normalization: str, target: str, data: st.DataObject
) -> None:
    all_options = (k, normalization) == (2, "hadamard")
    options = data.draw(
        st.sampled_from(OPTION_SETS if all_options else OPTION_SETS[:1])
    )
    graph = data.draw(graphs(max_edges=64))
    rng = np.random.default_rng(data.draw(seeds))
    weights = some_weights(rng, graph, k)
    query = rng.uniform(-1, 1, (graph.vertex_count, k))
    alpha = data.draw(st.sampled_from([0.0, 0.01, 0.9]))
    matrices = walks(graph, weights, normalization)
    # Sums of absolute values, and not of values, bound the rounding.
    x, size = query, np.abs(query)
    history = data.draw(st.booleans()) if k == 1 else True
    for supersteps in (1, 2):
        result = multi_manifold_ranking(
            graph,
            query,
            weights=weights,
            alpha=alpha,
            normalization=normalization,
            epsilon=0.0,
            max_supersteps=supersteps,
            history=history,
            target=target,
            **options,
        )
        x = alpha * np.einsum("kvu,uk->vk", matrices, x) + (1 - alpha) * query
        size = alpha * np.einsum("kvu,uk->vk", matrices, size) + np.abs(query)
        degree = dense(graph, np.ones(graph.given_edge_count)).sum(axis=1)[:, None]
        eps = np.finfo(np.float32).eps
        margin = 8 * eps * (degree.max(initial=0) + 4) * supersteps * size
        assert (np.abs(result.scores - x) <= margin).all()
        assert result.residuals.size == history * result.supersteps


@pytest.mark.drawn(2)
@pytest.mark.parametrize("normalization", ["hadamard", "mean"])
@given(graphs(max_edges=64), seeds)
def test_any_converged_answer_solves_the_system(
    normalization: str, target: str, graph: fg.Graph, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = some_weights(rng, graph, 2)
    query = rng.random(graph.vertex_count)
    result = multi_manifold_ranking(
        graph,
        query,
        weights=weights,
        normalization=normalization,
        epsilon=1e-9,
        dtype=np.float64,
        target=target,
    )
    assert result.converged
    verify_multi_manifold_ranking(
        graph,
        query,
        result.scores,
        weights=weights,
        normalization=normalization,
        epsilon=1e-9,
    )
    for f, walk in enumerate(walks(graph, weights, normalization)):
        system = np.eye(len(query)) - result.alpha * walk
        exact = np.linalg.solve(system, (1 - result.alpha) * query)
        # In the norm in which rows of alpha M sum to 0.85 at most.
        assert np.abs(result.scores[:, f] - exact).max() <= 1e-9 / 0.15 + 1e-12


def test_an_edge_of_weight_zero_is_no_edge_of_that_manifold(
    target: str, rng: np.random.Generator
) -> None:
    ends = rng.integers(0, 33, (2, 120))
    weights = some_weights(rng, fg.Graph.from_edges(*ends, vertex_count=33), 2)
    query = rng.random(33)
    together = multi_manifold_ranking(
        fg.Graph.from_edges(*ends, vertex_count=33),
        query,
        weights=weights,
        alpha=0.01,
        target=target,
    )
    for f in range(2):
        kept = weights[:, f] > 0
        alone = multi_manifold_ranking(
            fg.Graph.from_edges(*ends[:, kept], vertex_count=33),
            query,
            weights=weights[kept, f : f + 1],
            alpha=0.01,
            target=target,
        )
        assert together.scores[:, f] == pytest.approx(alone.scores[:, 0], abs=1e-5)


def test_scaling_the_weights_into_a_vertex_changes_nothing(
    target: str, rng: np.random.Generator
) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 33, (2, 120)), vertex_count=33)
    weights = some_weights(rng, graph, 2)
    scale = rng.uniform(0.1, 10, 33)[graph.targets]
    query = rng.random(33)
    for normalization in ("hadamard", "mean"):
        options: dict[str, Any] = {"normalization": normalization, "target": target}
        plain = multi_manifold_ranking(graph, query, weights=weights, **options)
        scaled = multi_manifold_ranking(
            graph, query, weights=weights * scale[:, None], **options
        )
        assert scaled.alpha == pytest.approx(plain.alpha)
        assert scaled.scores == pytest.approx(plain.scores, abs=1e-5)


@pytest.mark.parametrize("history", [True, False])
def test_divergence_is_raised(history: bool, target: str) -> None:
    ends = np.arange(32)
    ring = fg.Graph.from_edges(ends, (ends + 1) % 32, directed=False)
    weights = np.ones((32, 1))
    # Two edges a vertex: M has a spectral radius of 4.
    with pytest.raises(fg.DivergenceError, match="alpha"):
        multi_manifold_ranking(
            ring, ends + 1.0, weights=weights, alpha=0.5, history=history, target=target
        )
    result = multi_manifold_ranking(
        ring, ends + 1.0, weights=weights, history=history, target=target
    )
    assert result.alpha == pytest.approx(0.85 / 4)
    assert result.converged


def read_view(data_dir: Path, name: str) -> tuple[Array, Array]:
    path = data_dir / "small" / "mfeat" / f"mfeat-{name}.csv.gz"
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    view = table[:, :-1]
    spread = view.std(axis=0)
    return (view - view.mean(axis=0)) / np.where(spread > 0, spread, 1), table[:, -1]


def test_digits_are_found_by_all_views(target: str, data_dir: Path) -> None:
    pytest.importorskip("sklearn")
    names = ("fac", "fou", "kar", "mor", "pix", "zer")
    views, truth = zip(*(read_view(data_dir, name) for name in names), strict=True)
    digits = truth[0]
    graph, weights = graph_of_views(views, directed=True)
    for normalization in ("hadamard", "mean"):
        alone, together = precisions(graph, weights, digits, normalization, target)
        assert together > alone.max()


def precisions(
    graph: fg.Graph, weights: Array, digits: Array, normalization: str, target: str
) -> tuple[Array, float]:
    """Return the share of right digits in the first 100: of each view, and of all."""
    precision = np.zeros((10, 7))
    for digit in range(10):
        example = int(np.flatnonzero(digits == digit)[0])
        query = np.zeros(2000)
        query[example] = 1
        options: dict[str, Any] = {"weights": weights, "normalization": normalization}
        result = multi_manifold_ranking(graph, query, target=target, **options)
        verify_multi_manifold_ranking(graph, query, result.scores, **options)
        orders = [*np.argsort(-result.scores, axis=0, kind="stable").T, result.ranking]
        for place, order in enumerate(orders):
            others = order[order != example][:100]
            precision[digit, place] = np.mean(digits[others] == digit)
    print(precision.mean(axis=0).round(3))
    return precision[:, :6].mean(axis=0), float(precision[:, 6].mean())


def test_pull_repeats_bit_by_bit(target: str, rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 200, (2, 2000)), vertex_count=210)
    weights = some_weights(rng, graph, 2)
    runs = [
        multi_manifold_ranking(
            graph, np.ones(210), weights=weights, direction="pull", target=target
        )
        for _ in range(2)
    ]
    assert np.array_equal(runs[0].scores, runs[1].scores)


BAD = {
    "normalization": ({"normalization": "sum"}, "'hadamard', 'mean'"),
    "alpha": ({"alpha": 1.0}, "alpha"),
    "alpha nan": ({"alpha": np.nan}, "alpha"),
    "epsilon": ({"epsilon": -1.0}, "epsilon"),
    "weights of one manifold": ({"weights": [1.0, 1.0]}, r"\(2, M\)"),
    "negative": ({"weights": [[1, 1], [1, -1]]}, "edge 1"),
    "nan": ({"weights": [[np.nan, 1], [1, 1]]}, "edge 0"),
    "tiny": ({"weights": [[1, 1], [1, 1e-45]]}, "too small .*\n.*\n.*set it to 0"),
    "short query": ({"query": [1, 0]}, r"shape \(2,\)"),
    "infinite query": ({"query": [1, np.inf, 0]}, "vertex 1"),
    "wide query": ({"query": np.ones((3, 3))}, "3 columns, 2 weights"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    arguments = {"query": [1, 0, 0], "weights": np.ones((2, 2)), **options}
    with pytest.raises(fg.GraphInputError, match=expected):
        multi_manifold_ranking(graph, **arguments)


FAULTS = {
    "nan": (lambda x: x.__setitem__((1, 0), np.nan), "vertex 1: .* not finite"),
    "from nowhere": (lambda x: x.__setitem__((3, 1), 1), "vertex 3: .* from nowhere"),
    "not settled": (lambda x: x.__setitem__((2, 0), 0.5), "one more superstep"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    plant, expected = FAULTS[fault]
    graph = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=4)
    query, weights = [1, 0, 0, 0], np.ones((2, 2))
    scores = multi_manifold_ranking(graph, query, weights=weights, target="cpu").scores
    verify_multi_manifold_ranking(graph, query, scores, weights=weights)
    plant(scores)
    with pytest.raises(AssertionError, match=expected):
        verify_multi_manifold_ranking(graph, query, scores, weights=weights)

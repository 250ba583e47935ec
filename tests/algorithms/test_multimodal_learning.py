"""Multimodal learning against NumPy in float64 and against linear systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.multimodal_learning import (
    multimodal_learning,
    verify_multimodal_learning,
)
from featgraph.algorithms.views import graph_of_views
from tests.algorithms.dense import dense
from tests.strategies import OPTION_SETS, graphs, seeds

Array = npt.NDArray[Any]

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def modalities(graph: fg.Graph, weights: Array, normalization: str | None) -> Array:
    """Return (M, V, V): the normalised weights of each modality."""
    found = []
    for w in weights.T:
        matrix = dense(graph, w)
        into = matrix.sum(axis=1)[:, None]
        if normalization == "symmetric":
            into = np.sqrt(into * matrix.sum(axis=0)[None, :])
        if normalization is not None:
            matrix = np.divide(
                matrix, into, out=np.zeros_like(matrix), where=matrix > 0
            )
        found.append(matrix)
    return np.array(found)


def some_weights(rng: np.random.Generator, graph: fg.Graph, m: int) -> Array:
    """Return (E, M), about a third of them zero."""
    shape = graph.given_edge_count, m
    return rng.uniform(0.1, 2, shape) * (rng.random(shape) < 0.7)


@pytest.mark.drawn(3)
@limit_is_meant
@pytest.mark.parametrize("k", [1, 4, 33])
@given(data=st.data())
def test_supersteps_are_those_of_the_recurrence(
    k: int, target: str, data: st.DataObject
) -> None:
    options = data.draw(st.sampled_from(OPTION_SETS if k == 4 else OPTION_SETS[:1]))
    graph = data.draw(graphs(max_edges=64))
    normalization = data.draw(st.sampled_from(["symmetric", "mean", None]))
    rng = np.random.default_rng(data.draw(seeds))
    m = data.draw(st.integers(1, 5))
    weights = some_weights(rng, graph, m)
    alpha = rng.dirichlet(np.ones(m)) * data.draw(st.sampled_from([0.0, 0.3, 0.95]))
    start = rng.uniform(-1, 1, (graph.vertex_count, k))
    matrices = modalities(graph, weights, normalization)
    x, size = start, np.abs(start)
    history = data.draw(st.booleans()) if k == 1 else True
    for supersteps in (1, 2):
        result = multimodal_learning(
            graph,
            start,
            weights=weights,
            alpha=alpha,
            normalization=normalization,
            epsilon=0.0,
            max_supersteps=supersteps,
            history=history,
            target=target,
            **options,
        )
        aggr = np.einsum("mvu,uk->vmk", matrices, x)  # the whole matrix, as written
        x = np.einsum("m,vmk->vk", alpha, aggr) + (1 - alpha.sum()) * start
        size = np.einsum("m,mvu,uk->vk", alpha, matrices, size) + np.abs(start)
        degree = dense(graph, np.ones(graph.given_edge_count)).sum(axis=1)
        eps = np.finfo(np.float32).eps
        margin = 8 * eps * (degree.max(initial=0) + m + 4) * supersteps * size
        assert (np.abs(result.values - x) <= margin).all()
        assert result.residuals.size == history * result.supersteps


@given(graphs(max_edges=64), st.sampled_from(["symmetric", "mean"]), seeds)
def test_any_converged_answer_solves_the_system(
    target: str, graph: fg.Graph, normalization: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = some_weights(rng, graph, 3)
    start = rng.random((graph.vertex_count, 4))
    options: dict[str, Any] = {"weights": weights, "normalization": normalization}
    result = multimodal_learning(
        graph, start, epsilon=1e-10, dtype=np.float64, target=target, **options
    )
    assert result.converged
    verify_multimodal_learning(graph, start, result.values, epsilon=1e-10, **options)
    matrices = modalities(graph, weights, normalization)
    fused = 0.3 * matrices.sum(axis=0)
    # "symmetric" and "mean" bound the 2-norm and the largest row sum by one.
    norm = 2 if normalization == "symmetric" else np.inf
    assert all(np.linalg.norm(one, norm) <= 1 + 1e-12 for one in matrices)
    exact = np.linalg.solve(np.eye(len(start)) - fused, 0.1 * start)
    distance = np.sqrt(len(start)) * 1e-10 / 0.1
    assert np.abs(result.values - exact).max() <= distance + 1e-12


def test_a_modality_that_counts_nothing_is_not_there(
    target: str, rng: np.random.Generator
) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 33, (2, 90)), directed=False)
    weights = some_weights(rng, graph, 3)
    start = rng.random((graph.vertex_count, 4))
    both = multimodal_learning(
        graph, start, weights=weights, alpha=[0.5, 0, 0.3], target=target
    )
    only = multimodal_learning(
        graph, start, weights=weights[:, ::2], alpha=[0.5, 0.3], target=target
    )
    assert both.values == pytest.approx(only.values, abs=1e-5)


@pytest.mark.parametrize("history", [True, False])
def test_divergence_is_raised(history: bool, target: str) -> None:
    ends = np.arange(32)
    ring = fg.Graph.from_edges(ends, (ends + 1) % 32, directed=False)
    options: dict[str, Any] = {"weights": np.full((32, 2), 9.0), "history": history}
    with pytest.raises(fg.DivergenceError, match="normalization='symmetric'"):
        multimodal_learning(
            ring, ends / 32, normalization=None, target=target, **options
        )
    assert multimodal_learning(ring, ends / 32, target=target, **options).converged


def read_view(data_dir: Path, name: str) -> tuple[Array, Array]:
    path = data_dir / "small" / "mfeat" / f"mfeat-{name}.csv.gz"
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    view = table[:, :-1]
    spread = view.std(axis=0)
    return (view - view.mean(axis=0)) / np.where(spread > 0, spread, 1), table[:, -1]


def test_modalities_together_are_better_than_each(
    target: str, data_dir: Path, rng: np.random.Generator
) -> None:
    pytest.importorskip("sklearn")
    # Poor views that differ. Beside a good one (pixels: 0.95) they would not help.
    names = ("fou", "mor", "zer")
    views, truths = zip(*(read_view(data_dir, name) for name in names), strict=True)
    truth = truths[0].astype(int)
    graph, weights = graph_of_views(views)
    each = [rng.permutation(np.flatnonzero(truth == digit))[:5] for digit in range(10)]
    seeded = np.concatenate(each)
    start = np.zeros((2000, 10))
    start[seeded, truth[seeded]] = 1
    free = np.setdiff1d(np.arange(2000), seeded)

    def accuracy(alpha: Any) -> float:
        options: dict[str, Any] = {"weights": weights, "alpha": alpha}
        result = multimodal_learning(graph, start, target=target, **options)
        verify_multimodal_learning(graph, start, result.values, **options)
        return float(np.mean(result.labels[free] == truth[free]))

    alone = [accuracy(0.9 * np.eye(3)[m]) for m in range(3)]
    together = accuracy(None)
    print(np.round(alone, 3), round(together, 3))
    assert together > max(alone)


def test_pull_repeats_bit_by_bit(target: str, rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 200, (2, 2000)), vertex_count=210)
    weights = some_weights(rng, graph, 2)
    start = rng.random((210, 4))
    runs = [
        multimodal_learning(
            graph, start, weights=weights, direction="pull", target=target
        )
        for _ in range(2)
    ]
    assert np.array_equal(runs[0].values, runs[1].values)


BAD = {
    "normalization": ({"normalization": "sum"}, "'symmetric', 'mean', None"),
    "alpha of one": ({"alpha": [0.5, 0.5]}, "below one"),
    "alpha negative": ({"alpha": [0.5, -0.1]}, "0 or more"),
    "alpha nan": ({"alpha": [0.5, np.nan]}, "below one"),
    "alpha short": ({"alpha": [0.5]}, "for 2 modalities"),
    "epsilon": ({"epsilon": np.nan}, "epsilon"),
    "weights of one modality": ({"weights": [1.0, 1.0]}, r"\(2, M\)"),
    "negative": ({"weights": [[1, 1], [1, -1]]}, "edge 1"),
    "inf": ({"weights": [[np.inf, 1], [1, 1]]}, "edge 0"),
    "short": ({"given": [1, 0]}, r"shape \(2,\)"),
    "nan": ({"given": [1, np.nan, 0]}, "vertex 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    arguments = {"given": [1, 0, 0], "weights": np.ones((2, 2)), **options}
    with pytest.raises(fg.GraphInputError, match=expected):
        multimodal_learning(graph, **arguments)


@pytest.mark.parametrize("value", [np.nan, 0.5])
def test_verifier_finds_a_planted_fault(value: float) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=4)
    start, weights = [1, 0, 0, 0], np.ones((2, 2))
    values = multimodal_learning(graph, start, weights=weights, target="cpu").values
    verify_multimodal_learning(graph, start, values, weights=weights)
    values[2] = value
    with pytest.raises(AssertionError, match="vertex 2"):
        verify_multimodal_learning(graph, start, values, weights=weights)

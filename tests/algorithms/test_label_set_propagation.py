"""Propagation of several label sets against NumPy, scikit-learn, and each set alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.label_propagation import label_propagation
from featgraph.algorithms.label_set_propagation import (
    label_set_propagation,
    verify_label_set_propagation,
)
from tests.algorithms.dense import dense
from tests.strategies import OPTION_SETS, graphs, seeds

Array = npt.NDArray[Any]

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def normalize(x: Array) -> Array:
    total = x.sum(axis=-1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def recurrence(
    matrices: Array, labels: Array, class_count: int, alpha: float, supersteps: int
) -> Array:
    """Return (V, P, C) after so many supersteps; matrices (P, V, V)."""
    x = (labels[:, :, None] == np.arange(class_count)).astype(np.float64)
    given_ones = (labels >= 0)[:, :, None]
    for _ in range(supersteps):
        aggr = np.einsum("pvu,upc->vpc", matrices, x)
        moved = normalize(alpha * normalize(aggr) + (1 - alpha) * x)
        x = np.where(given_ones, x, moved)
    return x


def some_labels(rng: np.random.Generator, v: int, p: int, c: int) -> Array:
    """Return (V, P): two thirds unlabelled, apart in each set; all classes occur."""
    labels = np.where(rng.random((v, p)) < 0.3, rng.integers(0, c, (v, p)), -1)
    labels[rng.integers(0, v, p), np.arange(p)] = c - 1
    return labels


#: (P, C): one set, groups of a power of two and not, one lane each, loops.
SETS = [(2, 2), (1, 4), (11, 3), (4, 1), (39, 2)]


@pytest.mark.drawn(5)
@limit_is_meant
@pytest.mark.parametrize(("set_count", "class_count"), SETS)
@given(data=st.data())
def test_supersteps_are_those_of_the_recurrence(
    set_count: int, class_count: int, target: str, data: st.DataObject
) -> None:
    few = OPTION_SETS if set_count == 2 else OPTION_SETS[:1]
    options = data.draw(st.sampled_from(few))
    graph = data.draw(graphs(max_edges=64))
    rng = np.random.default_rng(data.draw(seeds))
    labels = some_labels(rng, graph.vertex_count, set_count, class_count)
    # A third of the weights zero; for each set apart where there are few sets.
    shape = (graph.given_edge_count, set_count if set_count == 11 else 1)
    weights = rng.uniform(0.1, 2, shape) * (rng.random(shape) < 0.7)
    alpha = data.draw(st.sampled_from([0.3, 1.0]))
    each = np.broadcast_to(weights, (len(weights), set_count)).T
    matrices = np.array([dense(graph, w) for w in each])
    for supersteps in (1, 3):
        result = label_set_propagation(
            graph,
            labels,
            class_count=class_count,
            weights=weights if shape[1] > 1 else weights[:, 0],
            alpha=alpha,
            epsilon=0.0,
            max_supersteps=supersteps,
            target=target,
            **options,
        )
        expected = recurrence(matrices, labels, class_count, alpha, supersteps)
        degree = dense(graph, np.ones(len(weights))).sum(axis=1).max(initial=0)
        eps = np.finfo(np.float32).eps
        margin = 8 * eps * (degree + class_count) * supersteps
        assert np.abs(result.distributions - expected).max() <= margin


@given(graphs(max_edges=64), seeds)
def test_any_converged_answer_has_the_properties(
    target: str, graph: fg.Graph, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = some_labels(rng, graph.vertex_count, 2, 2)
    result = label_set_propagation(graph, labels, max_supersteps=100_000, target=target)
    assert result.converged
    verify_label_set_propagation(graph, labels, result.distributions)


@pytest.mark.parametrize("clamp", [True, False])
def test_each_set_is_as_if_it_were_alone(
    clamp: bool, target: str, rng: np.random.Generator
) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 65, (2, 300)), directed=False)
    labels = some_labels(rng, graph.vertex_count, 11, 3)
    weights = rng.uniform(0.1, 2, (300, 11))
    options: dict[str, Any] = {"epsilon": 1e-6, "clamp": clamp, "target": target}
    result = label_set_propagation(graph, labels, weights=weights, **options)
    for p in range(11):
        alone = label_propagation(
            graph, labels[:, p], weights=weights[:, p], class_count=3, **options
        )
        assert result.distributions[:, p] == pytest.approx(
            alone.distributions, abs=1e-3
        )


def test_distributions_can_be_given_and_history_left_out(
    target: str, rng: np.random.Generator
) -> None:
    graph = fg.Graph.from_edges(*rng.integers(0, 33, (2, 90)), directed=False)
    labels = some_labels(rng, graph.vertex_count, 2, 2)
    rows = (labels[:, :, None] == np.arange(2)) * 3.0
    of_labels = label_set_propagation(graph, labels, target=target)
    of_rows = label_set_propagation(graph, rows, history=False, target=target)
    assert np.array_equal(of_labels.distributions, of_rows.distributions)
    assert of_labels.residuals.size == of_labels.supersteps == of_rows.supersteps
    assert of_rows.residuals.size == 0


def test_scikit_learn_finds_the_same_in_each_set(
    target: str, data_dir: Path, rng: np.random.Generator
) -> None:
    reference = pytest.importorskip("sklearn.semi_supervised")
    graph = fg.read_graph(data_dir / "tiny" / "football.mtx.gz")
    vertices, of_vertex = fg.read_labels(data_dir / "tiny" / "football.labels.gz")
    truth = np.empty(graph.vertex_count, np.int64)
    truth[vertices] = of_vertex
    tags = np.stack([truth % 2, truth // 6], axis=1)
    labels = np.where(rng.random(tags.shape) < 0.3, tags, -1)
    matrix = dense(graph, np.ones(graph.given_edge_count))
    result = label_set_propagation(
        graph, labels, epsilon=1e-6, max_supersteps=10_000, target=target
    )
    for p in range(2):
        model = reference.LabelPropagation(
            kernel=lambda x, y: matrix.copy(), tol=1e-7, max_iter=10_000
        ).fit(np.zeros((len(truth), 1)), labels[:, p])
        assert result.distributions[:, p] == pytest.approx(
            model.label_distributions_, abs=1e-3
        )


def test_groups_of_bloggers_are_found(
    target: str, data_dir: Path, rng: np.random.Generator
) -> None:
    graph = fg.read_graph(data_dir / "small" / "blogcatalog.mtx.gz")
    members = np.loadtxt(data_dir / "small" / "blogcatalog.labels.gz", dtype=np.int64)
    truth = np.zeros((graph.vertex_count, 39), np.int64)
    truth[members[:, 0], members[:, 1]] = 1
    known = rng.random(graph.vertex_count) < 0.5
    labels = np.where(known[:, None], truth, -1)
    result = label_set_propagation(
        graph, labels, epsilon=1e-2, max_supersteps=500, target=target
    )
    assert result.converged
    verify_label_set_propagation(graph, labels, result.distributions, epsilon=1e-2)
    hidden = ~known & truth.any(axis=1)
    member = result.distributions[hidden, :, 1]
    # A blogger's best guess, against the largest group for everybody.
    hit = truth[hidden, member.argmax(axis=1)].mean()
    largest = truth[hidden][:, truth[known].sum(axis=0).argmax()].mean()
    print(f"{hit:.3f}, largest group {largest:.3f}")
    assert hit > 1.2 * largest


BAD = {
    "one set only": ({"labels": [0, 1, -1]}, r"\(V, P\)"),
    "too short": ({"labels": [[0, 1]]}, r"set 0: one label"),
    "nothing labelled": ({"labels": [[0, -1]] * 3}, "set 1: no vertex is labelled"),
    "not a label": ({"labels": [[0, 0], [0, -2], [0, 0]]}, "set 1, vertex 1"),
    "above C": ({"class_count": 1}, "set 1, vertex 0"),
    "alpha": ({"alpha": 0.0}, "alpha"),
    "weights": ({"weights": [1.0]}, r"\(2,\)"),
    "columns": ({"weights": np.ones((2, 3))}, "3 columns"),
    "nan": ({"weights": [[1, 1], [1, np.nan]]}, "edge 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    arguments = {"labels": [[0, 1], [-1, -1], [0, -1]], **options}
    with pytest.raises(fg.GraphInputError, match=expected):
        label_set_propagation(graph, **arguments)


def test_verifier_names_the_set() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    labels = [[0, 1], [-1, -1], [0, -1]]
    answer = label_set_propagation(graph, labels, target="cpu").distributions
    verify_label_set_propagation(graph, labels, answer)
    answer[1, 1] = [1, 0]
    with pytest.raises(AssertionError, match="set 1, vertex 1: one more superstep"):
        verify_label_set_propagation(graph, labels, answer)

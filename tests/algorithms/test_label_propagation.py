"""Label propagation against NumPy, a linear system, and scikit-learn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.label_propagation import (
    label_propagation,
    verify_label_propagation,
)

Array = npt.NDArray[Any]

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def path(length: int, **options: Any) -> fg.Graph:
    ends = np.arange(length)
    return fg.Graph.from_edges(ends[:-1], ends[1:], directed=False, **options)


def adjacency(graph: fg.Graph, weights: Array | None = None) -> Array:
    """Return dense (V, V): at [v, u] the sum of the weights of u -> v."""
    given_weights = graph.weights if weights is None else weights
    w = np.ones(graph.given_edge_count) if given_weights is None else given_weights
    matrix = np.zeros((graph.vertex_count, graph.vertex_count))
    np.add.at(matrix, (graph.targets, graph.sources), w)
    if not graph.directed:
        twins = graph.sources != graph.targets
        np.add.at(matrix, (graph.sources[twins], graph.targets[twins]), w[twins])
    return matrix


def normalize(x: Array) -> Array:
    total = x.sum(axis=1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def recurrence(
    matrix: Array, labels: Array, alpha: float, supersteps: int, clamp: bool = True
) -> Array:
    """Return (V, K) after so many supersteps, with nothing dropped (epsilon = 0)."""
    x = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
    clamped = (labels >= 0) & clamp
    for _ in range(supersteps):
        moved = normalize(alpha * normalize(matrix @ x) + (1 - alpha) * x)
        x = np.where(clamped[:, None], x, moved)
    return x


def margin(matrix: Array, x: Array, supersteps: int, dtype: Any = np.float32) -> float:
    """Return c * eps * (degree + K), once for each superstep."""
    degree = int((matrix != 0).sum(axis=1).max(initial=0))
    return float(8 * np.finfo(dtype).eps * (degree + x.shape[1]) * supersteps)


def test_a_path_between_two_labels_is_a_ramp(target: str) -> None:
    labels = [0, -1, -1, -1, 1]
    result = label_propagation(path(5), labels, epsilon=1e-6, target=target)
    expected = np.array([1, 0.75, 0.5, 0.25, 0])
    assert result.distributions[:, 0] == pytest.approx(expected, abs=2e-5)
    assert result.distributions[:, 1] == pytest.approx(1 - expected, abs=2e-5)
    assert result.run.converged
    assert result.run.target == target


def test_labels_travel_along_the_edge_only(target: str) -> None:
    graph = fg.Graph.from_edges([0, 1, 3], [1, 2, 2])
    result = label_propagation(graph, [-1, 0, -1, -1], target=target)
    assert result.labels.tolist() == [-1, 0, 0, -1]
    assert not result.distributions[[0, 3]].any()


def test_weights_come_from_the_graph_unless_given(target: str) -> None:
    graph = fg.Graph.from_edges([0, 1], [2, 2], weights=[3.0, 1.0])
    labels = [0, 1, -1]
    of_graph = label_propagation(graph, labels, epsilon=1e-6, target=target)
    assert of_graph.distributions[2] == pytest.approx([0.75, 0.25], abs=1e-4)
    given_weights = label_propagation(
        graph, labels, weights=[1, 9], epsilon=1e-6, target=target
    )
    assert given_weights.distributions[2] == pytest.approx([0.1, 0.9], abs=1e-4)


def test_multi_edges_count_as_many_and_loops_once(target: str) -> None:
    graph = fg.Graph.from_edges([0, 0, 1, 2], [2, 2, 2, 2], directed=False)
    result = label_propagation(graph, [0, 1, -1], epsilon=1e-6, target=target)
    assert result.distributions[2] == pytest.approx([2 / 3, 1 / 3], abs=1e-4)


def test_distributions_can_be_given(target: str) -> None:
    given_rows = np.array([[6.0, 2.0], [0, 0], [0, 0]])
    result = label_propagation(path(3), given_rows, epsilon=1e-6, target=target)
    assert result.distributions == pytest.approx(
        np.tile([0.75, 0.25], (3, 1)), abs=1e-3
    )


def test_class_count_adds_classes_that_no_vertex_has(target: str) -> None:
    result = label_propagation(path(3), [1, -1, -1], class_count=5, target=target)
    assert result.distributions.shape == (3, 5)
    assert result.labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_labels_have_any_integer_type(dtype: Any, target: str) -> None:
    labels = np.array([0, 0, 0, 1, 1], dtype)
    assert label_propagation(path(5), labels, target=target).labels.tolist() == [
        0, 0, 0, 1, 1,
    ]  # fmt: skip


def test_one_class_and_no_edges(target: str) -> None:
    alone = fg.Graph.from_edges([], [], vertex_count=3)
    result = label_propagation(alone, [-1, 0, -1], target=target)
    assert result.labels.tolist() == [-1, 0, -1]
    assert result.run.converged


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_that_of_the_answer(dtype: Any, target: str) -> None:
    result = label_propagation(path(3), [0, -1, 1], dtype=dtype, target=target)
    assert result.distributions.dtype == dtype


@pytest.mark.drawn(8)
@limit_is_meant
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("alpha", [0.3, 0.85, 1.0])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("class_count", [1, 2, 5, 17])
def test_supersteps_are_those_of_the_recurrence(
    class_count: int,
    directed: bool,
    alpha: float,
    clamp: bool,
    target: str,
    rng: np.random.Generator,
) -> None:
    ends = rng.integers(0, 40, (2, 150))
    graph = fg.Graph.from_edges(
        *ends, weights=rng.uniform(0.1, 2, 150), vertex_count=40, directed=directed
    )
    labels = np.where(rng.random(40) < 0.3, rng.integers(0, class_count, 40), -1)
    labels[0] = class_count - 1
    for supersteps in (1, 2, 7):
        result = label_propagation(
            graph,
            labels,
            alpha=alpha,
            epsilon=0.0,
            clamp=clamp,
            max_supersteps=supersteps,
            target=target,
        )
        expected = recurrence(adjacency(graph), labels, alpha, supersteps, clamp)
        tolerance = margin(adjacency(graph), expected, supersteps)
        assert np.abs(result.distributions - expected).max() <= tolerance


@st.composite
def labelled_graphs(draw: st.DrawFn) -> tuple[fg.Graph, Array]:
    """Small graphs with loops, multi-edges and isolated vertices, and some labels."""
    count = draw(st.integers(1, 12))
    vertices = st.integers(0, count - 1)
    edges = draw(
        st.lists(st.tuples(vertices, vertices, st.integers(0, 5)), max_size=40)
    )
    sources, targets, weights = np.array(edges, np.int64).reshape(-1, 3).T
    labels = draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    labels[draw(vertices)] = draw(st.integers(0, 3))
    graph = fg.Graph.from_edges(
        sources,
        targets,
        weights=weights.astype(np.float64),
        vertex_count=count,
        directed=draw(st.booleans()),
    )
    return graph, np.array(labels)


@given(labelled_graphs())
def test_any_converged_answer_has_the_properties(case: tuple[fg.Graph, Array]) -> None:
    graph, labels = case
    result = label_propagation(graph, labels, max_supersteps=100_000, target="cpu")
    assert result.run.converged
    verify_label_propagation(graph, labels, result.distributions)


TINY = ["karate", "football", "polbooks"]


def tiny_graph(data_dir: Path, name: str) -> tuple[fg.Graph, Array]:
    graph = fg.read_graph(data_dir / "tiny" / f"{name}.mtx.gz")
    vertices, of_vertex = fg.read_labels(data_dir / "tiny" / f"{name}.labels.gz")
    truth = np.empty(graph.vertex_count, np.int64)
    truth[vertices] = of_vertex
    return graph, truth


def keep_some(truth: Array, share: float, rng: np.random.Generator) -> Array:
    """Return the labels with all but `share` of them, and one a class, taken away."""
    keep = rng.random(truth.size) < share
    keep[np.unique(truth, return_index=True)[1]] = True
    return np.where(keep & (truth >= 0), truth, -1)


@pytest.mark.parametrize("name", TINY)
def test_real_graphs_match_the_linear_system(
    name: str, target: str, data_dir: Path, rng: np.random.Generator
) -> None:
    graph, truth = tiny_graph(data_dir, name)
    labels = keep_some(truth, 0.1, rng)
    epsilon = 1e-7
    result = label_propagation(
        graph,
        labels,
        epsilon=epsilon,
        max_supersteps=10_000,
        dtype=np.float64,
        target=target,
    )
    assert result.run.converged
    verify_label_propagation(graph, labels, result.distributions, epsilon=epsilon)
    # At the fixpoint of a connected graph x_u = D_u^-1 (W_uu x_u + W_ul y_l).
    matrix = adjacency(graph)
    free = labels < 0
    seeds = (labels[:, None] == np.arange(truth.max() + 1)).astype(np.float64)
    system = np.diag(matrix.sum(axis=1))[free][:, free] - matrix[np.ix_(free, free)]
    exact = np.linalg.solve(system, matrix[np.ix_(free, ~free)] @ seeds[~free])
    # The distance to the solution is at most what one superstep moves, over 1 - rho.
    walk = matrix[np.ix_(free, free)] / matrix.sum(axis=1)[free, None]
    rho = np.abs(np.linalg.eigvals(walk)).max()
    tolerance = 4 * np.sqrt(free.sum()) * epsilon / (0.85 * (1 - rho))
    assert np.abs(result.distributions[free] - exact).max() <= tolerance


def test_scikit_learn_finds_the_same_labels(
    target: str, data_dir: Path, rng: np.random.Generator
) -> None:
    reference = pytest.importorskip("sklearn.semi_supervised")
    graph, truth = tiny_graph(data_dir, "football")
    labels = keep_some(truth, 0.2, rng)
    matrix = adjacency(graph)
    model = reference.LabelPropagation(
        kernel=lambda x, y: matrix.copy(), tol=1e-7, max_iter=10_000
    ).fit(np.zeros((len(truth), 1)), labels)
    result = label_propagation(
        graph, labels, epsilon=1e-6, max_supersteps=10_000, target=target
    )
    assert result.distributions == pytest.approx(model.label_distributions_, abs=1e-3)


# Not karate: with one or two labels a class a fixpoint of weighted means is nearly the
# same everywhere, and label spreading, which never reaches one, is better (0.83, 0.57).
@pytest.mark.parametrize("name", ["football", "polbooks"])
def test_accuracy_is_not_below_label_spreading(
    name: str, target: str, data_dir: Path
) -> None:
    reference = pytest.importorskip("sklearn.semi_supervised")
    graph, truth = tiny_graph(data_dir, name)
    matrix = adjacency(graph)
    ours, theirs = [], []
    for seed in range(5):
        labels = keep_some(truth, 0.1, np.random.default_rng(seed))
        free = labels < 0
        result = label_propagation(graph, labels, target=target)
        model = reference.LabelSpreading(kernel=lambda x, y: matrix, max_iter=200)
        model.fit(np.zeros((len(truth), 1)), labels)
        ours.append(np.mean((result.labels == truth)[free]))
        theirs.append(np.mean((model.transduction_ == truth)[free]))
    print(f"{name}: {np.mean(ours):.4f}, label spreading {np.mean(theirs):.4f}")
    assert np.mean(ours) >= np.mean(theirs) - 0.01


def test_citations_have_the_properties(target: str, data_dir: Path) -> None:
    folder = data_dir / "small" / "cora"
    graph = fg.read_graph(folder / "cora.mtx.gz")
    vertices, of_vertex = fg.read_labels(folder / "cora.labels.csv.gz")
    _, part = fg.read_labels(folder / "cora.labels.csv.gz", column="planetoid_split")
    truth = np.empty(graph.vertex_count, np.int64)
    truth[vertices] = of_vertex
    labels = np.full(graph.vertex_count, -1, np.int64)
    labels[vertices[part == "train"]] = of_vertex[part == "train"]
    result = label_propagation(graph, labels, max_supersteps=20_000, target=target)
    assert result.run.converged
    verify_label_propagation(graph, labels, result.distributions)
    test = vertices[part == "test"]
    # 0.68 to 0.71 is what the literature reports for label propagation on this split.
    assert np.mean(result.labels[test] == truth[test]) > 0.65


OPTIONS = [
    {"direction": "pull"},
    {"direction": "push"},
    {"feature_parallel": False},
    {"folding": False},
    {"deterministic": True},
]


@pytest.mark.drawn(3)
@limit_is_meant
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_do_not_change_the_answer(
    options: dict[str, Any], target: str, rng: np.random.Generator
) -> None:
    ends = rng.integers(0, 60, (2, 240))
    graph = fg.Graph.from_edges(*ends, vertex_count=60, directed=False)
    labels = np.where(rng.random(60) < 0.2, rng.integers(0, 6, 60), -1)
    labels[0] = 5
    matrix = adjacency(graph)
    for supersteps in (1, 4):
        kept = {"epsilon": 0.0, "max_supersteps": supersteps, "target": target}
        result = label_propagation(graph, labels, **kept, **options)
        expected = recurrence(matrix, labels, 0.85, supersteps)
        tolerance = margin(matrix, expected, supersteps)
        assert np.abs(result.distributions - expected).max() <= tolerance
    result = label_propagation(graph, labels, target=target, **options)
    verify_label_propagation(graph, labels, result.distributions)


def test_pull_repeats_bit_by_bit(target: str, rng: np.random.Generator) -> None:
    ends = rng.integers(0, 200, (2, 2000))
    graph = fg.Graph.from_edges(*ends, vertex_count=200)
    labels = np.where(rng.random(200) < 0.2, rng.integers(0, 3, 200), -1)
    runs = [
        label_propagation(graph, labels, direction="pull", target=target)
        for _ in range(2)
    ]
    assert np.array_equal(runs[0].distributions, runs[1].distributions)
    assert runs[0].run.active_counts == runs[1].run.active_counts


def test_history_is_the_largest_change_and_changes_nothing(target: str) -> None:
    labels = [0, -1, -1, -1, 1]
    result = label_propagation(path(5), labels, target=target)
    ramps = [
        recurrence(adjacency(path(5)), np.array(labels), 0.85, n) for n in range(4)
    ]
    expected = [np.abs(b - a).max() for a, b in pairwise(ramps)]
    assert result.residuals[:3] == pytest.approx(expected, abs=1e-6)
    assert result.residuals.size == result.supersteps
    plain = label_propagation(path(5), labels, history=False, target=target)
    assert plain.residuals.size == 0
    assert np.array_equal(plain.distributions, result.distributions)
    assert plain.run.active_counts == result.run.active_counts


def test_what_was_given_stays_as_it_was(target: str) -> None:
    labels, weights = np.array([0, -1, 1]), np.array([1.0, 2.0])
    label_propagation(path(3), labels, weights=weights, target=target)
    assert labels.tolist() == [0, -1, 1]
    assert weights.tolist() == [1.0, 2.0]


BAD = {
    "labels too short": ({"labels": [0, 1]}, r"shape \(2,\)"),
    "labels not integers": ({"labels": [0.0, 1.0, -1.0]}, "integers"),
    "a label below -1": ({"labels": [0, -2, 1]}, "vertex 1"),
    "a label above K": ({"labels": [0, 5, 1], "class_count": 2}, "vertex 1"),
    "nothing labelled": ({"labels": [-1, -1, -1]}, "no vertex is labelled"),
    "a negative share": ({"labels": [[1, 0], [-1, 2], [0, 0]]}, "vertex 1"),
    "a share that is nan": ({"labels": [[1, 0], [0, 0], [np.nan, 0]]}, "vertex 2"),
    "alpha of zero": ({"alpha": 0.0}, "alpha"),
    "alpha above one": ({"alpha": 1.5}, "alpha"),
    "weights too short": ({"weights": [1.0]}, r"\(2,\)"),
    "a negative weight": ({"weights": [1.0, -1.0]}, "edge 1"),
    "an infinite weight": ({"weights": [np.inf, 1.0]}, "edge 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    given_options, expected = BAD[case]
    options = {"labels": [0, -1, 1], **given_options}
    with pytest.raises(fg.GraphInputError, match=expected):
        label_propagation(path(3), **options)


FAULTS = {
    "negative": (lambda x: x.__setitem__((2, 0), -x[2, 0]), "vertex 2: negative"),
    "no distribution": (lambda x: x.__setitem__(1, x[1] * 0.9), "vertex 1: .* sum"),
    "a changed label": (lambda x: x.__setitem__(0, [0.5, 0.5]), "vertex 0: a label"),
    "not reached": (lambda x: x.__setitem__(3, 0), "vertex 3: the row is zero"),
    "reached from nowhere": (lambda x: x.__setitem__(5, [1, 0]), "vertex 5: the row"),
    "not settled": (lambda x: x.__setitem__(2, [0.6, 0.4]), "one more superstep"),
    "nan": (lambda x: x.__setitem__((2, 0), np.nan), "vertex 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    plant, expected = FAULTS[fault]
    graph, labels = path(5, vertex_count=6), [0, -1, -1, -1, 1, -1]
    result = label_propagation(graph, labels, epsilon=1e-6)
    verify_label_propagation(graph, labels, result.distributions, epsilon=1e-6)
    broken = result.distributions.copy()
    plant(broken)
    with pytest.raises(AssertionError, match=expected):
        verify_label_propagation(graph, labels, broken, epsilon=1e-6)

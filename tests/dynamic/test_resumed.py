"""Results that go on equal those of new calls, behind each of many drawn batches."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import (
    _following,
    bfs,
    connected_components,
    label_propagation,
    pagerank,
    sssp,
    sswp,
    triangle_count,
)
from featgraph.algorithms._following import Following
from featgraph.algorithms.label_propagation import verify_label_propagation
from tests.dynamic.reached import verify

#: Vertices, of which the first ones stay; and batches of each graph.
VERTICES, STAY = 60, 4
COUNT = hypothesis.settings().max_examples // 2
ALPHA = 0.85


def lengths(rng: np.random.Generator, weighted: bool, count: int) -> dict[str, Any]:
    values = rng.integers(1, 9, count).astype(np.float32)
    return {"weights": values} if weighted else {}


def drawn(rng: np.random.Generator, weighted: bool, edges: int = 90) -> Any:
    return fg.DynamicGraph.from_edges(
        *rng.integers(0, VERTICES, (2, edges)), vertex_count=VERTICES,
        directed=bool(rng.integers(2)), target="cpu",
        duplicates=["keep", "last"][int(rng.integers(2))],
        **lengths(rng, weighted, edges),
    )  # fmt: skip


def living(graph: fg.Graph) -> Any:
    count = graph.vertex_count
    return np.arange(count) if graph.living is None else np.flatnonzero(graph.living)


def change(rng: Any, graph: fg.DynamicGraph, weighted: bool, most: int = 4) -> None:
    """Apply batches: edges, hubs, copies, other weights and vertices."""
    count = int(rng.integers(0, most))
    if count:
        ends = rng.choice(living(graph), (2, count))
        ends[0, 0] = rng.choice([ends[0, 0], 2])  # a hub
        graph.insert_edges(*ends, **lengths(rng, weighted, count))
    sources, targets, _ = graph.edges()
    if len(sources) and rng.random() < 0.7:
        some = rng.integers(0, len(sources), int(rng.integers(1, most)))
        graph.delete_edges(sources[some], targets[some])
    if rng.random() < 0.2:
        graph.insert_vertices(int(rng.integers(1, 3)))
    if rng.random() < 0.2 and graph.living_count > STAY:
        graph.delete_vertices(rng.choice(living(graph)[STAY:], 2))


def run(
    seed: int, call: Callable[[Any], Any], answer: str, compare: Callable[..., None],
    edges: int = 90,
) -> None:  # fmt: skip
    """Update a result behind batches, and compare it with the result of a new call."""
    rng = np.random.default_rng(seed)
    weighted = bool(seed % 2)
    graph = drawn(rng, weighted, edges)
    result = call(graph)
    for _ in range(COUNT):
        before = getattr(result, answer).copy()
        for _ in range(int(rng.choice([1, 1, 3]))):
            change(rng, graph, weighted)
        equal(getattr(result, answer), before)
        done = result.update()
        assert done.began_anew == ""
        assert done.version == graph.version
        compare(graph, result, call(graph))


def equal(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found, wanted, strict=True)


def row(verb: Any, seeds: Any, *answers: str, edges: int = 90, **options: Any) -> Any:
    """Return call, first answer, verifier, number of edges and seeds."""

    def check(graph: Any, result: Any) -> None:
        claimed = {name: getattr(result, name) for name in answers}
        verify(verb.__name__, options | claimed, graph)

    return partial(verb, **options), answers[0], check, edges, seeds


#: Results with one right answer. Odd seeds draw weights.
EXACT = {
    "components": row(connected_components, range(4), "labels", edges=40),
    "levels": row(bfs, range(4), "levels", "parents", sources=1),
    "distances": row(sssp, (0, 1), "distances", "predecessors", sources=1),
    "distances together": row(
        sssp, (2, 3), "distances", "predecessors", sources=[1, 3], together=True),
    "widths": row(sswp, (1,), "widths", "predecessors", sources=1),
    "widths together": row(
        sswp, (3,), "widths", "predecessors", sources=[1, 3], together=True),
}  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, row in EXACT.items() for seed in row[-1]]
)
def test_exact_answers(name: str, seed: int) -> None:
    call, answer, check, edges, _ = EXACT[name]

    def compare(graph: Any, result: Any, fresh: Any) -> None:
        equal(getattr(result, answer), getattr(fresh, answer))
        assert getattr(result, "count", 0) == getattr(fresh, "count", 0)
        check(graph, result)

    run(seed, call, answer, compare, edges)


def exact(graph: fg.Graph) -> Any:
    """Return the fixpoint of PageRank in float64."""
    rows, count = graph.in_edges, graph.vertex_count
    targets = np.repeat(np.arange(count), np.diff(rows.row_offsets))
    sources = np.asarray(rows.column_indices)
    w = np.ones(len(sources))
    if graph.weights is not None:
        w = np.asarray(graph.weights, float)[graph.given_index % graph.given_edge_count]
    out = np.bincount(sources, w, count)
    moves = np.zeros((count, count))
    np.add.at(moves, (targets, sources), w / out[sources])
    jumps = np.isin(np.arange(count), living(graph)) * (1 - ALPHA)
    y = np.linalg.solve(np.eye(count) - ALPHA * moves, jumps)
    return y / y.sum()


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {}), (1, {"tol": 1e-4}), (2, {"epsilon": 1e-4, "tol": None}),
        (3, {"dangling": "renormalize"}), (1, {"dtype": np.float64}),
    ],
)  # fmt: skip
def test_ranks(seed: int, options: dict[str, Any]) -> None:
    epsilon = options.get("epsilon", ALPHA * (options.get("tol", 1e-6) or 0))
    dtype = options.get("dtype", np.float32)
    rounding = 1e-9 if dtype == np.float64 else 1e-6

    def compare(graph: Any, result: Any, fresh: Any) -> None:
        bound = graph.living_count * epsilon / (1 - ALPHA)
        assert np.abs(result.ranks - exact(graph)).sum() <= bound + rounding
        assert result.ranks.dtype == dtype
        assert abs(result.ranks.sum() - 1) < 1e-5
        assert result.converged

    run(seed, lambda graph: pagerank(graph, alpha=ALPHA, **options), "ranks", compare,
        120)  # fmt: skip


def test_tolerance_holds_for_scaled_ranks() -> None:
    """Most vertices have no edges, so that scaling makes all errors larger."""
    graph = fg.DynamicGraph.from_edges(
        [0, 2, 0, 2, 1, 2, 0, 2, 1], [1, 0, 0, 0, 0, 0, 0, 0, 1], directed=False,
        target="cpu",
    )  # fmt: skip
    result = pagerank(graph, dangling="renormalize", dtype=np.float64)
    for batch in (
        lambda: graph.insert_edges([0], [2]),
        lambda: graph.insert_edges([2, 1], [0, 1]),
        lambda: graph.insert_vertices(57),
        lambda: graph.update([2, 2, 2, 0, 31], [0, 0, 0, 0, 38],
                             [False] * 4 + [True], copies="first"),
    ):  # fmt: skip
        batch()
        assert result.update().began_anew == ""
        RANKS.verify_pagerank(graph, result.ranks, dangling="renormalize")


@pytest.mark.parametrize("directed", [True, False])
def test_ranks_are_at_least_what_jumps_bring(directed: bool) -> None:
    rng = np.random.default_rng(1)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 300, (2, 600)), vertex_count=300, directed=directed,
        target="cpu",
    )  # fmt: skip
    result = pagerank(graph, tol=1e-4)
    for _ in range(6):
        graph.update(*rng.integers(3, 300, (2, 9)), rng.random(9) < 0.6)
        assert result.update().began_anew == ""
        RANKS.verify_pagerank(graph, result.ranks, tol=1e-4)
    graph.delete_vertices([0, 1, 2])
    assert result.update().began_anew == ""
    RANKS.verify_pagerank(graph, result.ranks, tol=1e-4)
    assert not result.ranks[:3].any()


def test_shares_follow_out_degrees() -> None:
    """Edges out of a vertex are due where they lead, and so is the vertex."""
    path = np.arange(VERTICES - 1)
    graph = fg.DynamicGraph.from_edges(path, path + 1, target="cpu")
    result = pagerank(graph, alpha=ALPHA)
    for first, last in ((10, 12), (20, 30)):
        graph.insert_edges(np.zeros(last - first, int), np.arange(first, last))
        done = result.update()
        assert done.began_anew == ""
        assert done.edges > 0
        bound = VERTICES * ALPHA * 1e-6 / (1 - ALPHA) + 1e-6
        assert np.abs(result.ranks - exact(graph)).sum() <= bound


@pytest.mark.parametrize(("tol", "is_summed"), [(None, False), (1e-6, True)])
def test_updates_sum_ranks_alone(tol: float | None, is_summed: bool) -> None:
    """Both targets sum the same; residuals are summed where `tol` ends the run."""
    graph = drawn(np.random.default_rng(5), True)
    result = pagerank(graph, alpha=ALPHA, epsilon=1e-4, tol=tol)
    graph.insert_edges([0, 1], [30, 2], weights=[2.0, 3.0])
    assert result.update().began_anew == ""
    state, sums = (vars(result)[name] for name in ("_shares", "_sums"))
    assert ("residual" in state) == is_summed
    assert sums[1] > 0
    RANKS.add_ranks(state)
    found = state["mass"][0], state["lost"][0]
    np.testing.assert_allclose(sums, found, rtol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ends", [(7, 30), (3, 4)])
def test_new_weights_are_checked(directed: bool, ends: tuple[int, int]) -> None:
    """Few rows have new weights, which are checked without the others."""
    path = np.arange(VERTICES - 1)
    graph = fg.DynamicGraph.from_edges(
        path, path + 1, weights=np.ones(path.size, np.float32), directed=directed,
        duplicates="last", target="cpu",
    )  # fmt: skip
    result = pagerank(graph, alpha=ALPHA)
    graph.insert_edges([9], [40], weights=[2.0])
    assert result.update().began_anew == ""
    bound = VERTICES * ALPHA * 1e-6 / (1 - ALPHA) + 1e-6
    assert np.abs(result.ranks - exact(graph)).sum() <= bound
    version = graph.version
    graph.insert_edges(*np.array([ends]).T, weights=[-1.0])
    for _ in range(2):
        with pytest.raises(fg.GraphInputError, match="not negative"):
            result.update()
    assert result._following.version == version
    graph.delete_edges(*np.array([ends]).T)
    assert "ended in an error" in result.update().began_anew


@pytest.mark.parametrize(("usual", "other"), [(1e10, 3e38), (1e-11, 1e-37)])
def test_weights_that_need_a_scale_begin_anew(usual: float, other: float) -> None:
    """Sums of such weights, and shares divided by them, leave the range of the type."""
    path = np.arange(VERTICES - 1)
    graph = fg.DynamicGraph.from_edges(
        path, path + 1, weights=np.full(path.size, usual, np.float32),
        duplicates="last", target="cpu",
    )  # fmt: skip
    results = pagerank(graph, alpha=ALPHA), spread_labels(graph)
    for weight, why in ((usual, ""), (other, "the weights are of another type")) * 2:
        graph.insert_edges([5, 5, 5, 9], [6, 20, 30, 40], weights=[weight] * 4)
        assert [result.update().began_anew for result in results] == [why] * 2
        bound = VERTICES * ALPHA * 1e-6 / (1 - ALPHA) + 1e-6
        assert np.abs(results[0].ranks - exact(graph)).sum() <= bound
        require_labels(graph, results[1], spread_labels(graph))


RANKS = importlib.import_module("featgraph.algorithms.pagerank")
LABELS = importlib.import_module("featgraph.algorithms.label_propagation")


class Seeds:
    """Labels of one vertex in seven, or distributions, for all ids that a graph has."""

    def __init__(self, graph: fg.Graph, are_rows: bool = False) -> None:
        self.graph, self.are_rows = graph, are_rows

    def __array__(self, *_: Any, **__: Any) -> Any:
        ids = np.arange(self.graph.vertex_count)
        labels = np.where(ids % 7 == 0, ids % 3, -1)
        rows = (labels[:, None] == range(3)) + (labels[:, None] >= 0) * 0.5
        return rows if self.are_rows else labels


def require_labels(
    graph: fg.Graph, result: Any, fresh: Any, labels: Any = None, **given: Any
) -> None:
    """Check distributions of an update beside those of a call."""
    rows = result.distributions
    labels = Seeds(graph) if labels is None else labels
    verify_label_propagation(graph, labels, rows, class_count=3, **given)
    assert rows.dtype == fresh.distributions.dtype
    assert result.labels.dtype == fresh.labels.dtype
    found = np.where(rows.any(axis=1), rows.argmax(axis=1), -1)
    np.testing.assert_array_equal(result.labels, found)
    np.testing.assert_array_equal(rows.any(axis=1), fresh.distributions.any(axis=1))
    assert result.converged


def spread_labels(graph: fg.Graph, labels: Any = None, **given: Any) -> Any:
    labels = Seeds(graph) if labels is None else labels
    return label_propagation(graph, labels, class_count=3, **given)


@pytest.mark.parametrize("seed", range(4))
def test_labels(seed: int) -> None:
    options: dict[str, Any] = [
        {}, {"epsilon": 1e-5}, {"alpha": 1.0, "direction": "push"},
        {"epsilon": 0.03, "dtype": np.float64},
    ][seed]  # fmt: skip
    bounds = {n: options[n] for n in ("alpha", "epsilon") if n in options}
    are_rows = seed > 1

    def compare(graph: Any, result: Any, fresh: Any) -> None:
        require_labels(graph, result, fresh, Seeds(graph, are_rows), **bounds)

    def call(graph: Any) -> Any:
        return spread_labels(graph, Seeds(graph, are_rows), **options)

    run(seed, call, "labels", compare)


@pytest.mark.parametrize("directed", [False, True])
def test_labels_leave_a_cycle_that_is_cut_off(directed: bool) -> None:
    """Rows of a cycle would sustain each other; so would rows along zero weights."""
    graph = fg.DynamicGraph.from_edges(
        [0, 1, 2, 3], [1, 2, 3, 1], weights=np.ones(4, np.float32), directed=directed,
        duplicates="last", target="cpu",
    )  # fmt: skip
    results = [spread_labels(graph), spread_labels(graph, epsilon=1e-5)]
    edge: Any = [0], [1]
    for batch in (
        lambda: graph.delete_edges(*edge),
        lambda: graph.insert_edges(*edge, weights=[0.0]),
        lambda: graph.insert_edges(*edge, weights=[2.0]),
        lambda: graph.insert_edges(*edge, weights=[0.0]),
    ):
        batch()
        is_open = graph.contains(*edge)[0] and graph.weights[-1] > 0
        for result, epsilon in zip(results, (1e-3, 1e-5), strict=True):
            assert result.update().began_anew == ""
            require_labels(graph, result, spread_labels(graph), epsilon=epsilon)
            assert result.labels.tolist() == [0, *[0 if is_open else -1] * 3]


def test_labels_of_vertices_are_those_of_a_call() -> None:
    """An id that is given out again has the label of the array, as in a call."""
    graph = fg.DynamicGraph.from_edges([7, 7, 0], [8, 0, 9], target="cpu")
    given = [2, 2, *[-1] * 8]
    result = spread_labels(graph, given)
    given[:] = [0, *[-1] * 6, 1, -1, -1]  # before the first update
    graph.insert_edges([9], [8])
    assert result.update().began_anew == ""
    require_labels(graph, result, spread_labels(graph, given), given)
    graph.delete_edges([9], [8])
    graph.insert_vertices(1)
    with pytest.raises(fg.GraphInputError, match="one label, or one distribution"):
        result.update()
    given.append(2)
    graph.insert_edges([10], [6])
    assert result.update().began_anew == "an update ended in an error"
    assert result.labels.tolist() == [0, *[-1] * 5, 2, 1, 1, 0, 2]
    graph.delete_vertices([7])
    result.update()
    assert result.labels.tolist() == [0, *[-1] * 5, 2, -1, -1, 0, 2]
    assert graph.insert_vertices(1).vertices.tolist() == [7]
    graph.insert_edges([7], [8])
    done = result.update()
    assert done.began_anew == ""
    assert result.labels.tolist() == [0, *[-1] * 5, 2, 1, 1, 0, 2]
    require_labels(graph, result, spread_labels(graph, given), given)
    given[0] = 1
    graph.insert_edges([8], [1])
    assert "labels have changed" in result.update().began_anew
    require_labels(graph, result, spread_labels(graph, given), given)


@pytest.mark.parametrize(
    ("call", "least", "why"),
    [
        (spread_labels, "LEAST_EVALUATED", "a call takes less than the first update"),
        (connected_components, "LEAST_FOLLOWED", "takes one thread less time"),
    ],
)
def test_updates_of_small_graphs_begin_anew(
    call: Any, least: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], directed=False, target="cpu")
    result = call(graph)
    monkeypatch.setattr(LABELS if call is spread_labels else COMPONENTS, least, 4)
    graph.insert_edges([0], [2])
    assert why in result.update().began_anew


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda g: pagerank(g, personalization={0: 1.0}), "personalization= was given"),
        (lambda g: pagerank(g, alpha=1.0), "ranks have no scale"),
        (pagerank, "the weights are of another type"),
        (lambda g: sssp(g, [0, 1]), "several searches"),
        (lambda g: bfs(g, 0, max_depth=2), "max_depth"),
        (lambda g: bfs(g, 0, max_supersteps=1), "the call has not converged"),
        (lambda g: bfs(g, 0, callback=lambda *_: None), "callback= was given"),
        (lambda g: spread_labels(g, clamp=False, epsilon=0.1), "not clamped"),
        (lambda g: spread_labels(g, max_supersteps=1), "has not converged"),
        (lambda g: spread_labels(g, callback=lambda *_: None), "callback= was given"),
        (spread_labels, "the weights are of another type"),
    ],
)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_what_does_not_go_on_begins_anew(call: Any, why: str) -> None:
    rng = np.random.default_rng(0)
    graph = drawn(rng, True)
    if "type" in why:  # wider than that of the ranks
        ends, weights = (graph.sources, graph.targets), graph.weights
        wide = np.asarray(weights, np.float64)
        graph = fg.DynamicGraph.from_edges(*ends, weights=wide, target="cpu")
    result = call(graph)
    change(rng, graph, True)
    assert why in result.update().began_anew


LIMITED = [
    (bfs, "levels", {"sources": 0}),
    (sssp, "distances", {"sources": 0}),
    (connected_components, "labels", {"method": "propagate"}),
    (connected_components, "labels", {"method": "link"}),
]


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize(("call", "answer", "options"), LIMITED)
@pytest.mark.parametrize("limit", [1, 4, 200])
def test_limits_of_supersteps_hold_in_updates(
    call: Any, answer: str, options: dict[str, Any], limit: int
) -> None:
    graph = fg.DynamicGraph.from_edges(
        [0, 1, 9], [1, 2, 8], vertex_count=12, directed=False, target="cpu"
    )
    result = call(graph, max_supersteps=limit, **options)
    for u in range(2, 7):
        graph.insert_edges([u], [u + 1])
        assert (result.update().began_anew == "") == (limit == 200)
        fresh = call(graph, max_supersteps=limit, **options)
        equal(getattr(result, answer), getattr(fresh, answer))
        assert result.converged == fresh.converged


@pytest.mark.parametrize(
    ("call", "answer"),
    [(triangle_count, "triangles"), (lambda graph: bfs(graph, 0), "levels")],
)
def test_views_end_at_updates(call: Any, answer: str) -> None:
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], directed=False, target="cpu")
    result = call(graph)
    view = result.view(answer)
    graph.insert_edges([0], [2])
    assert result.update().began_anew == ""
    with pytest.raises(fg.StateError, match="the view has ended"):
        np.asarray(view)
    equal(getattr(result, answer), getattr(call(graph), answer))


@pytest.mark.parametrize("turned", ["born", "dead"])
def test_views_end_where_vertices_come_and_go(turned: str) -> None:
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], vertex_count=9, target="cpu")
    graph.delete_vertices([8])
    state = fg.State(graph, x=fg.vertex_property(np.arange(9), fill=7))
    view = state.view("x")
    graph.delete_vertices([4]) if turned == "dead" else graph.insert_vertices(1)
    equal(np.asarray(view), np.where(np.arange(9) == 8, 7, np.arange(9)))
    state.follow()
    with pytest.raises(fg.StateError, match="the view has ended"):
        np.asarray(view)


def test_triangles_follow_vertices_without_being_read() -> None:
    graph = fg.DynamicGraph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    result = triangle_count(graph)
    for _ in range(3):
        graph.delete_vertices([1])
        graph.insert_vertices(1)
        graph.insert_edges([1], [0])
        assert result.update().began_anew == ""
    assert (result.triangles.tolist(), result.total) == ([0, 0, 0], 0)


@pytest.mark.parametrize("is_read", [False, True])
def test_triangles_stay_where_an_update_raises(is_read: bool) -> None:
    ends = np.array([0, 1, 2, 3, 4, 5]), np.array([1, 2, 0, 4, 5, 3])
    graph = fg.DynamicGraph.from_edges(*ends, directed=False, target="cpu")
    result = triangle_count(graph)
    assert not is_read or result.triangles.tolist() == [1] * 6
    graph.delete_vertices([5])
    graph.insert_vertices(2)
    graph.insert_edges([0], [1])
    with pytest.raises(fg.GraphInputError, match="parallel edges"):
        result.update()
    assert result.triangles.tolist() == [1] * 6
    graph.delete_edges([0], [1], copies="first")
    assert "ended in an error" in result.update().began_anew
    assert (result.triangles.tolist(), result.total) == ([1] * 3 + [0] * 4, 1)


def set_few(patch: pytest.MonkeyPatch, *modules: str) -> None:
    """Have updates take no changes for few."""
    for module in modules:
        patched = importlib.import_module(f"featgraph.algorithms.{module}")
        patch.setattr(patched, "FEW", 0)


def test_large_changes_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    set_few(monkeypatch, "_following", "_paths", "connected_components")
    chain = np.arange(199)
    broom = np.minimum(chain, 4)
    graph = fg.DynamicGraph.from_edges(broom, chain + 1, directed=False, target="cpu")
    parts, levels = connected_components(graph), bfs(graph, 0)
    graph.delete_edges([3], [4])
    assert "along edges that went" in levels.update().began_anew
    assert parts.update().began_anew == ""  # it has looked for the first time
    graph.insert_edges([3], [4])
    assert parts.update().began_anew == ""
    graph.delete_edges([3], [4])
    assert "196 vertices had their labels" in parts.update().began_anew
    equal(parts.labels, connected_components(graph).labels)
    levels.update()
    equal(levels.levels, bfs(graph, 0).levels)


COMPONENTS = importlib.import_module("featgraph.algorithms.connected_components")


@pytest.mark.parametrize(("leaves", "least"), [(0, 6), (99, 64)])
def test_deep_graphs_begin_anew(
    leaves: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most labels come along six edges, at once; else after more of them."""
    set_few(monkeypatch, "_following")
    chain = np.arange(199)
    both = np.append(chain, np.zeros(leaves, int)), np.arange(1, 200 + leaves)
    graph = fg.DynamicGraph.from_edges(*both, directed=False, target="cpu")
    parts, levels = connected_components(graph), bfs(graph, 0)
    graph.delete_edges([150], [151])
    assert "along 200 edges each" in levels.update().began_anew
    assert f"along more than {least} edges" in parts.update().began_anew
    equal(parts.labels, connected_components(graph).labels)
    equal(levels.levels, bfs(graph, 0).levels)
    monkeypatch.setattr(COMPONENTS, "_planted", None)  # it does not look again
    graph.delete_edges([160], [161])
    assert f"along more than {least} edges" in parts.update().began_anew
    graph.insert_edges([160], [161])
    assert parts.update().began_anew == ""
    equal(parts.labels, connected_components(graph).labels)


# -- faults


def test_updates_need_trimming_and_degrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = np.zeros(0, np.int64)
    with monkeypatch.context() as patch:
        patch.setattr(fg, "trim", lambda state, *_, **__: none)
        patch.setattr(
            "featgraph.runtime.loops.run_state.warn_of_losses", lambda *_: None
        )
        for name in ("components", "levels", "distances"):
            with pytest.raises(AssertionError):
                test_exact_answers(name, 1)
        with pytest.raises(AssertionError, match="the row is zero though labels"):
            test_labels(1)
    with monkeypatch.context() as patch:
        found = "featgraph.runtime.superstep.catch_up._add_edges"
        patch.setattr(found, lambda *_: None)
        with pytest.raises(AssertionError, match="one more superstep changes it"):
            test_labels(1)
    with monkeypatch.context() as patch:
        found = "featgraph.runtime.superstep.catch_up._with_other_degree"
        patch.setattr(found, lambda *_: none)
        with pytest.raises(AssertionError):
            test_shares_follow_out_degrees()


def test_updates_that_took_longer_are_followed_by_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each, twice as many updates of as many changes begin anew."""
    set_few(monkeypatch, "_paths")
    monkeypatch.setattr(_following, "LEAST_WEIGHED", 0)
    monkeypatch.setattr(_following, "PAUSES", (1, 2))
    vertices = np.arange(1, 72)
    before = np.where(vertices == 32, 0, vertices - 1)  # paths of 31 and 40 edges
    graph = fg.DynamicGraph.from_edges(before, vertices, target="cpu")
    result = sssp(graph, 0)

    def without(v: int) -> str:
        """Delete the edge to v and insert it again; return why the first began anew."""
        whys = []
        for insert in (False, True):
            graph.update([v - 1], [v], insert=[insert])
            whys.append(result.update().began_anew)
            equal(result.distances, sssp(graph, 0).distances)
        assert whys[1] == ""  # insertions are counted apart
        return str(whys[0])

    begun = "31 vertices had their paths along edges that went"
    paused = "1 changes took longer than a call"
    assert [without(v) for v in (1, 71)] == [begun, paused]
    # The next one was shorter, so that the next pause is as short as the first.
    assert [without(v) for v in (71, 1, 71)] == ["", begun, paused]
    # This one is not, and the pause is twice as long.
    assert [without(v) for v in (1, 71, 71, 71)] == [begun, paused, paused, ""]


@pytest.mark.parametrize(
    ("call", "most"),
    [(lambda graph: bfs(graph, 4096), 1), (partial(pagerank, epsilon=1e-6), 0.05)],
)
def test_work_of_updates_is_compared_with_that_of_the_call(
    call: Any, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge near the root of a tree changes all vertices, one near a leaf few."""
    shares: list[float] = []
    note = lambda _, __, share, **first: shares.append(share)  # noqa: E731
    monkeypatch.setattr(Following, "weigh", note)
    vertices = np.arange(1, 4096)
    graph = fg.DynamicGraph.from_edges(
        (vertices - 1) // 2, vertices, directed=False, target="cpu"
    )
    path = graph.insert_vertices(3).vertices  # before the root
    graph.insert_edges(path, [4097, 4098, 0])
    result = call(graph)
    for ends in [(0, 9), (path[0], 0), (2000, 3000), (2001, 3001)]:
        graph.insert_edges(*np.array([ends]).T)
        assert result.update().began_anew == ""
    assert max(shares[:2]) > most
    assert max(shares[2:]) < 0.1

"""Results that follow a graph: behind each update they are those of a new call."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import signal
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms import (
    _following,
    _paths,
    bfs,
    closeness_centrality,
    connected_components,
    k_truss,
    pagerank,
    sssp,
    triangle_count,
)
from featgraph.algorithms._following import EDGE_VALUES, Following, Update
from featgraph.algorithms._result import Result
from tests.dynamic.test_resumed import require_labels, spread_labels
from tests.strategies import examples

PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=25)


def drawn(rng: np.random.Generator, count: int, vertex_count: int = 12) -> Any:
    return rng.integers(0, vertex_count, (2, count))


def undirected(sources: Any, targets: Any, **options: Any) -> fg.DynamicGraph:
    return fg.DynamicGraph.from_edges(
        sources, targets, directed=False, duplicates="last", target="cpu", **options
    )


def require_equal(result: Any, other: Any) -> None:
    np.testing.assert_array_equal(result.triangles, other.triangles, strict=True)
    assert result.total == other.total
    assert type(result.total) is type(other.total)


@given(
    first=PAIRS,
    batches=st.lists(
        st.tuples(PAIRS, PAIRS, st.integers(0, 3)), min_size=1, max_size=6
    ),
)
def test_triangles_follow_batches(first: Any, batches: Any) -> None:
    graph = undirected(*np.array(first, int).reshape(-1, 2).T, vertex_count=12)
    result = triangle_count(graph)
    for number, (came, went, vertices) in enumerate(batches):
        if vertices == 2:
            graph.delete_vertices([number, 11])
        if vertices:  # ids are given out again, or new ones
            graph.insert_vertices(2)
        if came:
            graph.insert_edges(*np.array(came).T)
        if went:
            graph.delete_edges(*np.array(went).T)
        if number % 2:  # over one version, or several
            assert result.update().began_anew == ""
            require_equal(result, triangle_count(graph))
    result.update()
    require_equal(result, triangle_count(graph))
    require_equal(result, triangle_count(graph.freeze()))
    graph.delete_vertices([0, 5])
    result.update()
    require_equal(result, triangle_count(graph))


def test_edges_get_ids_where_a_kernel_reads_them_alone() -> None:
    """Ids that edges get behind the first triangles fit arrays that exist then."""
    graph = undirected(*drawn(np.random.default_rng(3), 200, 30), loops="drop")
    graph.insert_edges([1, 2, 3], [7, 8, 9])
    require_equal(triangle_count(graph), triangle_count(graph.freeze()))
    assert graph._store.free_ids is None
    for _ in range(2):
        found, expected = (k_truss(g).trussness for g in (graph, graph.freeze()))
        assert found.tolist() == expected.tolist()
        assert graph._store.free_ids is not None
        graph.delete_edges([1], [7])


def test_triangles_begin_anew_where_changes_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    graph = undirected(*drawn(rng, 40))
    result = triangle_count(graph)
    monkeypatch.setattr(_following, "FEW", 0)
    graph.insert_edges(*drawn(rng, 20))
    done = result.update()
    assert "changes are more than 1 / 32 of the edges" in done.began_anew
    assert done.edges is None
    require_equal(result, triangle_count(graph))
    monkeypatch.setattr(graph, "changes", lambda since: None)
    graph.insert_edges(*drawn(rng, 20))
    assert "the log of changes begins after version 1" in result.update().began_anew
    require_equal(result, triangle_count(graph))


def test_copies_of_edges_are_refused_as_by_a_call() -> None:
    graph = fg.DynamicGraph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    result = triangle_count(graph)
    graph.insert_edges([1], [0])
    with pytest.raises(fg.GraphInputError) as of_update:
        result.update()
    with pytest.raises(fg.GraphInputError) as of_call:
        triangle_count(graph)
    assert str(of_update.value) == str(of_call.value)
    assert result.total == 1
    graph.delete_edges([1], [0], copies="last")
    result.update()
    assert result.total == 1


def test_updates_begin_anew_in_place() -> None:
    rng = np.random.default_rng(0)
    graph = undirected(*drawn(rng, 20))
    hops, levels = closeness_centrality(graph), bfs(graph, [0, 3])
    before, old = levels.levels, hops.centralities
    assert levels.update() == Update(graph.version, edges=0)
    assert levels.levels is before
    for _ in range(3):
        graph.insert_vertices(1)
        new = graph.vertex_count - 1
        graph.insert_edges([new, new], rng.integers(0, new, 2))
        done = hops.update()
        assert done.version == graph.version
        assert done.began_anew == "the algorithm has no incremental form"
        assert done.supersteps == hops.supersteps
        assert levels.update().began_anew == "paths are those of several searches"
        fresh = bfs(graph, [0, 3])
        assert (levels.levels == fresh.levels).all()
        assert (levels.parents == fresh.parents).all()
        expected = closeness_centrality(graph).centralities
        np.testing.assert_allclose(hops.centralities, expected, rtol=1e-6)
    assert levels.levels is not before
    assert len(old) == new - 2


@examples(6, 300)
@given(
    seed=st.integers(0, 2**32 - 1),
    directed=st.booleans(),
    duplicates=st.sampled_from(["last", "keep"]),
    length=st.sampled_from([5, 20]),
)
def test_results_follow_a_window(
    seed: int, directed: bool, duplicates: str, length: int
) -> None:
    rng = np.random.default_rng(seed)
    ends = (rng.random((2, 90)) ** 2 * 25).astype(int)
    events = fg.TemporalEdges(*ends, rng.integers(0, 40, 90))
    window = events.window(length=length, step=4)
    graph = window.graph(
        directed=directed, duplicates=duplicates, loops="drop", target="cpu"
    )
    made = [pagerank, connected_components, spread_labels]
    made += [triangle_count] * (duplicates == "last" and not directed)
    results = [function(graph) for function in made]
    for batch in window:
        graph.update(batch)
        for function, result in zip(made, results, strict=True):
            result.update()
            fresh = function(graph)
            if function is pagerank:  # both are so near to the fixpoint, or nearer
                error = np.abs(result.ranks - fresh.ranks).sum()
                bound = 2 * 0.85 / 0.15 * 1e-6 * graph.vertex_count
                assert error <= bound + 1e-5  # and a sum of float32
            elif function is connected_components:
                assert (result.labels == fresh.labels).all()
                assert result.count == fresh.count
            elif function is spread_labels:
                require_labels(graph, result, fresh)
            else:
                require_equal(result, fresh)
    result.update()


def test_names_follow() -> None:
    graph = fg.DynamicGraph.from_edges(
        ["a", "b"], ["b", "c"], names=True, directed=False, target="cpu"
    )
    result, triangles = connected_components(graph), triangle_count(graph)
    graph.insert_edges(["d"], ["a"])
    result.update()
    triangles.update()
    for one in (result, triangles):
        assert list(one.vertex_names) == ["a", "b", "c", "d"]
    assert len(result.to_frame()) == len(triangles.to_frame()) == 4


def test_columns_and_values_for_all_edges_are_followed() -> None:
    graph = undirected([0, 1], [1, 2], columns={"length": [1.0, 5.0]})
    lengths = sssp(graph, 0, weights=graph.column("length"))
    potentials = np.array([[2.0, 1.0], [1.0, 2.0]])
    unary = np.array([[9.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    for_all = algorithms.belief_propagation(graph, unary, potentials)
    for_each = algorithms.belief_propagation(graph, unary, [potentials] * 2)
    graph.insert_edges([0], [2], columns={"length": [2.5]})
    lengths.update()
    assert lengths.distances.tolist() == [0, 1, 2.5]
    for_all.update()
    fresh = algorithms.belief_propagation(graph, unary, potentials)
    assert (for_all.marginals == fresh.marginals).all()
    with pytest.raises(fg.StateError, match="leave pairwise out"):
        for_each.update()
    other = undirected([0, 1], [1, 2], columns={"length": [1.0, 5.0]})
    with pytest.raises(fg.StateError, match="leave weights out"):
        sssp(other.copy(), 0, weights=other.column("length")).update()


def test_answers_that_are_replaced_have_no_other_view() -> None:
    levels = bfs(undirected([0, 1], [1, 2]), 0)
    levels._take(levels=np.zeros(3, np.int32))
    assert not np.asarray(levels.view("levels")).any()


def test_what_follows_nothing_is_refused() -> None:
    graph = undirected([0, 1], [1, 2])
    of_static = pagerank(graph.freeze())
    result = pagerank(graph)
    given_weights = pagerank(graph, weights=[1.0, 2.0])
    copies = [copy.copy(result), copy.deepcopy(result)]
    for one in (of_static, *copies, pickle.loads(pickle.dumps(result))):
        with pytest.raises(fg.StateError, match="follows no graph"):
            one.update()
    with pytest.raises(fg.StateError, match="leave weights out"):
        given_weights.update()
    graph.insert_edges([2], [0])
    with pytest.raises(fg.StateError, match="leave weights out"):
        given_weights.update()
    result.update()
    assert len(copies[0].ranks) == 3
    made = bfs(graph, 0), connected_components(graph), triangle_count(graph)
    for one in (result, *made):
        one.update()
        graph.update([0], [1], insert=[not graph.contains([0], [1])[0]])
        one.update()
        taken = pickle.loads(pickle.dumps(one))
        assert repr(taken) == repr(copy.deepcopy(one)) == repr(one)


def test_answers_that_are_computed_late_are_of_one_version() -> None:
    graph = undirected([0, 1, 2], [1, 2, 0])
    core = algorithms.k_truss(graph)
    graph.insert_edges([3 - 1], [1])
    read = algorithms.k_truss(graph)
    assert read.trussness is not None
    graph.delete_edges([0], [1])
    assert read.trussness is not None
    with pytest.raises(fg.StateError, match="has changed since"):
        _ = core.trussness
    core.update()
    assert (core.trussness == algorithms.k_truss(graph).trussness).all()


def test_an_update_that_fails_leaves_the_result() -> None:
    graph = undirected([0, 1], [1, 2])
    seeds = np.array([1.0, 0, 0])
    result = pagerank(graph, personalization=seeds)
    before = result.ranks.copy()
    graph.insert_vertices(1)
    with pytest.raises(fg.GraphInputError, match="personalization"):
        result.update()
    assert (result.ranks == before).all()
    assert isinstance(result._following, Following)


LABELS = importlib.import_module("featgraph.algorithms.label_propagation")


@pytest.mark.parametrize(
    ("call", "answer", "module"),
    [
        (triangle_count, "triangles", None), (connected_components, "labels", None),
        (partial(bfs, sources=0), "levels", None),
        (partial(bfs, sources=0), "levels", _paths), (spread_labels, "labels", LABELS),
    ],
)  # fmt: skip
def test_an_update_that_fails_is_made_up_for(
    call: Any, answer: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fg.trim` resets vertices once, though the update may end behind it."""
    take, graph = Result._take, undirected(np.arange(30), np.arange(1, 31))
    result = call(graph)

    def interrupt(self: Any, **answers: Any) -> None:
        take(self, **answers)
        raise KeyboardInterrupt

    graph.insert_edges([0, 5], [2, 9])
    assert result.update().began_anew == ""
    graph.delete_edges([27, 28], [28, 29])
    with monkeypatch.context() as patch:
        if module is None:
            patch.setattr(Result, "_take", interrupt)
        else:
            patch.setattr(module, "spread", None)
        with pytest.raises(TypeError if module else KeyboardInterrupt):
            result.update()
    for reason in ("an update ended in an error", ""):
        assert result.update().began_anew == reason
        np.testing.assert_array_equal(
            getattr(result, answer), getattr(call(graph), answer)
        )
        graph.insert_edges([7], [9])


@pytest.mark.usefixtures("interruptible")
def test_arrays_of_a_version_are_dropped_whatever_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = undirected([0, 1], [1, 2])
    levels, arrays = bfs(graph, 0), fg.runtime.memory.graph_arrays.GraphArrays
    forget = arrays.forget

    def interrupt(self: Any, *stamps: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        forget(self, *stamps)

    graph.insert_vertices(400)
    graph.insert_edges(np.arange(2, 300), np.arange(3, 301))
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "forget", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bfs(graph, 0)
    levels.update()
    for found in (levels, bfs(graph, 0)):
        assert found.levels.tolist() == [*range(301), *[-1] * 102]


def test_edge_values_are_found_by_their_names() -> None:
    """Every argument with a value for each edge is one that updates refuse."""
    for name in algorithms.__all__:
        function = getattr(algorithms, name)
        if not inspect.isfunction(function):
            continue
        for line in inspect.getdoc(function).splitlines():  # type: ignore[union-attr]
            argument, found, kind = line.partition(" : array_like")
            if found and "(E" in kind:
                assert argument in EDGE_VALUES, f"{name}: {argument}"

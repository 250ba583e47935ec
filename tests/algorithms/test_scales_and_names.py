"""Values that a type does not hold, scales that play no part, and values by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import (
    LabelPropagation,
    als,
    belief_propagation,
    betweenness_centrality,
    bfs,
    circuit_simulation,
    closeness_centrality,
    heat_simulation,
    hits,
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
)
from featgraph.algorithms._checks import weight_properties
from featgraph.algorithms._vertices import given_values
from featgraph.algorithms.label_propagation import verify_label_propagation
from featgraph.algorithms.pagerank import verify_pagerank

RING = fg.Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2])
SINKS = fg.Graph.from_edges([0], [1], vertex_count=3)
CHAIN = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
WEIGHTS = np.array([1.0, 2.0, 1.0, 3.0])
ON_CPU: dict[str, Any] = {"target": "cpu"}


def ranks_by(name: str) -> Callable[[Any], Any]:
    graph = SINKS if name == "dangling" else RING
    return lambda x: pagerank(graph, **{name: x}, **ON_CPU).ranks


#: Calls whose answer is the same in any scale of an array of these values.
SCALE_FREE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "pagerank(weights)": (WEIGHTS, ranks_by("weights")),
    "pagerank(personalization)": (WEIGHTS[:3], ranks_by("personalization")),
    "pagerank(dangling)": (WEIGHTS[:3], ranks_by("dangling")),
    "pagerank(nstart)": (WEIGHTS[:3], ranks_by("nstart")),
    "pagerank_push(weights)": (
        WEIGHTS,
        lambda x: pagerank_push(RING, weights=x, **ON_CPU).ranks,
    ),
    "pagerank_push(personalization)": (
        WEIGHTS[:3],
        lambda x: pagerank_push(RING, personalization=x, **ON_CPU).ranks,
    ),
    "hits(weights)": (WEIGHTS, lambda x: hits(RING, weights=x, **ON_CPU).hubs),
    "hits(nstart)": (WEIGHTS[:3], lambda x: hits(RING, nstart=x, **ON_CPU).hubs),
    "label_propagation(weights)": (
        WEIGHTS[:3],
        lambda x: (
            label_propagation(CHAIN, [0, -1, -1, 1], weights=x, **ON_CPU).distributions
        ),
    ),
    "label_propagation(labels)": (
        np.array([[1.0, 3], [0, 0], [0, 0], [2, 1]]),
        lambda x: label_propagation(CHAIN, x, **ON_CPU).distributions,
    ),
    "label_set_propagation(weights)": (
        WEIGHTS[:3, None] * [1, 2],
        lambda x: (
            label_set_propagation(
                CHAIN, [[0, 1], [-1, -1], [-1, -1], [1, 0]], weights=x, **ON_CPU
            ).distributions
        ),
    ),
    "multimodal_learning(weights)": (
        WEIGHTS[:3, None] * [1, 2],
        lambda x: multimodal_learning(CHAIN, [1, 0, 0, 0], weights=x, **ON_CPU).values,
    ),
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", SCALE_FREE)
def test_a_scale_plays_no_part(name: str) -> None:
    values, call = SCALE_FREE[name]
    right = np.array(call(values))
    # Powers of two, so that ratios stay what they are to the last bit.
    scales = [2.0**-1070, 2.0**-160, 2.0**-50, 2.0**50, 2.0**160, 2.0**1021]
    for scale in scales:
        np.testing.assert_allclose(call(values * scale), right, rtol=1e-6, atol=0)
    most = np.where(values > 0, np.finfo(float).max, 0)
    ones = np.where(values > 0, 1.0, 0)
    np.testing.assert_allclose(call(most), np.array(call(ones)), rtol=1e-6, atol=0)


def test_a_scale_of_a_graphs_own_weights_plays_no_part() -> None:
    right = pagerank(RING, weights=WEIGHTS, **ON_CPU).ranks
    for scale in (2.0**-1070, 2.0**-160, 2.0**160):
        ends = [0, 1, 2, 0], [1, 2, 0, 2]
        graph = fg.Graph.from_edges(*ends, weights=WEIGHTS * scale)
        for _ in range(2):  # the second call remembers that it has looked
            found = pagerank(graph, **ON_CPU).ranks
            np.testing.assert_allclose(found, right, rtol=1e-6)
        verify_pagerank(graph, right)
    # Of integers, too, which a sum in float32 would not hold.
    graph = fg.Graph.from_edges(*ends, weights=WEIGHTS.astype(np.int64) << 60)
    np.testing.assert_allclose(pagerank(graph, **ON_CPU).ranks, right, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "large", "small"), [("f4", 1.0, 1e-60), ("f8", 1e300, 1e-320)]
)
def test_weights_that_differ_by_more_than_a_type_holds_are_refused(
    dtype: str, large: float, small: float
) -> None:
    weights = [large, small, small, large]
    for algorithm in (pagerank, pagerank_push, hits):
        with pytest.raises(fg.GraphInputError, match="differ by more than") as caught:
            algorithm(RING, weights=weights, dtype=dtype, **ON_CPU)
        error = caught.value
        assert error.where == "edge 1"
        assert str(small) in str(error.got)
        assert ("float64" in str(error.fix)) == (dtype == "f4")
    # Zeros are no small weights.
    assert weight_properties(RING, [large, 0, 0, large], np.dtype(dtype), ratios=True)


#: Calls whose arrays keep their scale: a value is held, or refused.
HELD: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sssp": ("weights", lambda x: sssp(RING, 0, weights=[1, x, 1, 1], **ON_CPU)),
    "sswp": ("weights", lambda x: sswp(RING, 0, weights=[1, x, 1, 1], **ON_CPU)),
    "katz(weights)": (
        "weights",
        lambda x: katz_centrality(
            RING, weights=[1, x, 1, 1], dtype=np.float32, **ON_CPU
        ),
    ),
    "katz(beta)": (
        "beta",
        lambda x: katz_centrality(RING, beta=[1, x, 1], dtype=np.float32, **ON_CPU),
    ),
    "heat": (
        "temperatures",
        lambda x: heat_simulation(CHAIN, [1, x, 1, 1], dtype=np.float32, **ON_CPU),
    ),
    "heat(conductivities)": (
        "conductivities",
        lambda x: heat_simulation(
            CHAIN, [1, 1, 1, 1], conductivities=[1, x, 1], dtype=np.float32, **ON_CPU
        ),
    ),
    "circuit": (
        "voltages",
        lambda x: circuit_simulation(CHAIN, [1, x, 1, 1], dtype=np.float32, **ON_CPU),
    ),
    "circuit(conductances)": (
        "conductances",
        lambda x: circuit_simulation(
            CHAIN, [1, 1, 1, 1], conductances=[1, x, 1], dtype=np.float32, **ON_CPU
        ),
    ),
    "circuit(currents)": (
        "currents",
        lambda x: circuit_simulation(
            CHAIN, [1, 1, 1, 1], currents=[1, x, 1, 1], dtype=np.float32, **ON_CPU
        ),
    ),
    "multimodal": (
        "given",
        lambda x: multimodal_learning(
            CHAIN, [1, x, 0, 0], weights=np.ones((3, 1)), **ON_CPU
        ),
    ),
    "multimodal(weights)": (
        "weights",
        lambda x: multimodal_learning(
            CHAIN,
            [1, 0, 0, 0],
            weights=[[1], [x], [1]],
            normalization=None,
            **ON_CPU,
        ),
    ),
    "ranking": (
        "query",
        lambda x: multi_manifold_ranking(
            CHAIN, [1, x, 0, 0], weights=np.ones((3, 1)), dtype=np.float32, **ON_CPU
        ),
    ),
    "ranking(weights)": (
        "weights",
        lambda x: multi_manifold_ranking(
            CHAIN,
            [1, 0, 0, 0],
            weights=[[1], [x], [1]],
            normalization="mean",
            dtype=np.float32,
            **ON_CPU,
        ),
    ),
    "neural_network": (
        "bias",
        lambda x: neural_network(
            RING, [1, np.nan, np.nan], bias=[0, x, 0], dtype=np.float32, **ON_CPU
        ),
    ),
    "als(initial)": (
        "initial",
        lambda x: als(
            sparse.csr_array(np.eye(2)),
            factors=1,
            initial=([[1], [x]], [[1], [1]]),
            **ON_CPU,
        ),
    ),
    "als": (
        "",
        lambda x: als(sparse.csr_array(np.diag([1, x])), factors=1, **ON_CPU),
    ),
    "weights_as": (
        "weights",
        lambda x: fg.Graph.from_edges([0, 1], [1, 0], weights=[1, x]).weights_as("f4"),
    ),
    "State": (
        "'x'",
        lambda x: fg.State(
            RING, x=fg.vertex_property(np.array([1, x, 1]), dtype=np.float32)
        ),
    ),
    "State(list)": ("'x'", lambda x: fg.State(RING, x=fg.vertex_property([1, x, 1]))),
}


@pytest.mark.parametrize("name", HELD)
def test_a_value_that_the_type_does_not_hold_is_refused(name: str) -> None:
    where, call = HELD[name]
    for value in (1e-50, 1e39):
        kind = fg.StateError if name.startswith("State") else fg.GraphInputError
        with pytest.raises(kind) as caught:
            call(value)
        error = caught.value
        assert "does not fit float32" in error.what
        assert where in str(error.where)
        assert "1" in str(error.where)  # the place
        assert float(str(error.got).removeprefix("np.float64(").rstrip(")")) == value
        assert "float64" in str(error.fix)


def test_sums_of_weights_that_a_type_does_not_hold_are_refused() -> None:
    weights = [3e38, 3e38, 1]
    own = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], weights=weights, directed=False)
    given = {"dtype": np.float32, **ON_CPU}
    for call in (
        lambda: circuit_simulation(
            CHAIN, [1, np.nan, np.nan, 0], conductances=weights, **given
        ),
        lambda: katz_centrality(CHAIN, weights=weights, **given),
        lambda: heat_simulation(own, [1, 1, 1, 1], **given),
    ):
        with pytest.raises(fg.GraphInputError, match="add up to more") as caught:
            call()
        assert caught.value.where == "vertex 1"
        assert "float64" in str(caught.value.fix)
    # Weights whose every sum stays below are taken, though all together are above.
    pairs = fg.Graph.from_edges([0, 2], [1, 3], directed=False)
    assert weight_properties(pairs, [2e38, 2e38], np.dtype(np.float32))


def test_a_path_that_is_longer_than_a_type_holds_is_no_missing_path() -> None:
    path = fg.Graph.from_edges([0, 1, 3], [1, 2, 3], vertex_count=5)
    weights = [3e38, 3e38, 1.0]
    with pytest.raises(fg.GraphInputError, match="a path is longer") as caught:
        sssp(path, 0, weights=weights, **ON_CPU)
    assert caught.value.where == "vertex 2, reached from 1"
    assert "float64" in str(caught.value.fix)
    found = sssp(path, 0, weights=weights, dtype=np.float64, **ON_CPU)
    assert found.distances.tolist() == [0, 3e38, 6e38, np.inf, np.inf]
    assert found.predecessors.tolist() == [0, 0, 1, -1, -1]
    own = fg.Graph.from_edges([0, 1], [1, 2], weights=[1e308, 1e308])
    for _ in range(2):
        with pytest.raises(fg.GraphInputError, match="a path is longer"):
            sssp(own, 0, dtype=np.float64, **ON_CPU)

    def shown(first: list[float]) -> Any:
        return np.float32([*first, np.inf, np.inf])

    # Long edges that no path adds up, and closed edges.
    found = sssp(path, 1, weights=weights, **ON_CPU)
    assert (
        found.distances.tolist()
        == np.float32([np.inf, 0, 3e38, np.inf, np.inf]).tolist()
    )
    weights[1] = np.inf
    found = sssp(path, 0, weights=weights, **ON_CPU)
    assert (
        found.distances.tolist()
        == np.float32([0, 3e38, np.inf, np.inf, np.inf]).tolist()
    )
    for function in (closeness_centrality, betweenness_centrality):
        with pytest.raises(fg.GraphInputError, match="could add up to more"):
            function(path, weights=[1e308, 1e308, 1.0], **ON_CPU)


def test_a_share_that_a_type_rounds_to_one_is_refused() -> None:
    with pytest.raises(fg.GraphInputError, match="alpha is 1 in float32") as caught:
        pagerank(RING, alpha=1 - 1e-9, **ON_CPU)
    assert "float64" in str(caught.value.fix)
    for algorithm, alpha in ((pagerank_push, 1 - 1e-9), (katz_centrality, 1e-50)):
        with pytest.raises(fg.GraphInputError, match=r"alpha is \d in float32"):
            algorithm(RING, alpha=alpha, dtype=np.float32, **ON_CPU)


@pytest.mark.parametrize("value", [-1e39, 1e300])
def test_a_log_that_is_infinite_in_a_type_is_refused(value: float) -> None:
    unary, pairwise = np.zeros((4, 2)), np.zeros((3, 2, 2))
    for what, array in (("unary", unary), ("pairwise", pairwise)):
        array[1, 0] = value
        with pytest.raises(fg.GraphInputError, match="does not fit float32") as caught:
            belief_propagation(CHAIN, unary, pairwise, is_log=True, **ON_CPU)
        assert caught.value.where == f"{what}, row 1"
        assert caught.value.got == value
        array[1, 0] = -np.inf if what == "unary" else 0


def named(names: Any) -> tuple[nx.DiGraph, fg.Graph]:
    ring = nx.DiGraph(
        [(names[0], names[1]), (names[1], names[2]), (names[2], names[0])]
    )
    ring.add_edge(names[0], names[2])
    return ring, fg.Graph.from_networkx(ring)


@pytest.mark.parametrize(
    "names", [["c", "a", "b"], [30, 10, 20], [(0, 1), (1, 1), "x"]]
)
def test_a_mapping_has_values_by_name(names: list[Any]) -> None:
    theirs, ours = named(names)
    chosen = {names[2]: 2.0, names[0]: 1}
    index = [ours.vertex_index(name) for name in names]
    row = np.zeros(3)
    row[index[2]], row[index[0]] = 2, 1
    for argument in ("personalization", "nstart"):
        found = pagerank(ours, **{argument: chosen}, **ON_CPU)
        by_array = pagerank(ours, **{argument: row}, **ON_CPU)
        np.testing.assert_array_equal(found.ranks, by_array.ranks)
    found = pagerank(ours, personalization=chosen, tol=1e-7, **ON_CPU)
    right = nx.pagerank(theirs, personalization=chosen, tol=1e-9, backend="networkx")
    for name, place in zip(names, index, strict=True):
        assert found.ranks[place] == pytest.approx(right[name], abs=1e-5)
    beta = dict(zip(names, [1.0, 2.0, 3.0], strict=True))
    shown = given_values(ours, "beta", beta).on_host()
    np.testing.assert_array_equal(shown[index], [1, 2, 3])
    with pytest.raises(fg.GraphInputError, match="a value for every vertex") as caught:
        katz_centrality(ours, beta=chosen, **ON_CPU)
    assert repr(names[1]) in str(caught.value.got)


def test_a_mapping_of_a_graph_without_names_has_ids() -> None:
    found = pagerank(RING, personalization={1: 3}, **ON_CPU).ranks
    row = pagerank(RING, personalization=[0, 3, 0], **ON_CPU).ranks
    np.testing.assert_array_equal(found, row)
    for bad, what in (
        ({3: 1.0}, "no names"),
        ({-1: 1.0}, "no names"),
        ({"a": 1.0}, "no names"),
        ({0: "x"}, "no number"),
        ({0: None}, "no number"),
        ({0: [1, 2]}, "one number for each"),
        ({}, "zero everywhere"),
    ):
        with pytest.raises(fg.GraphInputError, match=what) as caught:
            pagerank(RING, personalization=bad, **ON_CPU)
        assert "personalization" in str(caught.value)


def test_unknown_names_are_listed() -> None:
    _, graph = named(["c", "a", "b"])
    for call in (
        lambda: pagerank(graph, personalization={"a": 1, "zz": 1, "yy": 1}, **ON_CPU),
        lambda: bfs(graph, ["a", "zz", "yy"], **ON_CPU),
    ):
        with pytest.raises(fg.GraphInputError, match="these names") as caught:
            call()
        assert caught.value.got == "'zz', 'yy'"
        assert "'c', 'a', 'b'" in str(caught.value.expected)


def test_sources_are_ids_or_names_that_are_text() -> None:
    _, graph = named(["c", "a", "b"])
    for names in ("a", ["a", "b"], np.array(["a", "b"]), ("b",)):
        found = bfs(graph, names, **ON_CPU)
        ids = [graph.vertex_index(name) for name in np.atleast_1d(names).tolist()]
        right = bfs(graph, ids[0] if isinstance(names, str) else ids, **ON_CPU)
        np.testing.assert_array_equal(found.levels, right.levels, strict=True)
        np.testing.assert_array_equal(found.parents, right.parents, strict=True)
    for call in (
        lambda: sssp(graph, ["b", "no"], **ON_CPU),
        lambda: sswp(graph, ["b", "no"], **ON_CPU),
        lambda: closeness_centrality(graph, vertices=["b", "no"], **ON_CPU),
        lambda: betweenness_centrality(graph, sources=["b", "no"], **ON_CPU),
    ):
        with pytest.raises(fg.GraphInputError, match="these names") as caught:
            call()
        assert caught.value.got == "'no'"
    # Integers are ids, also where names are integers.
    _, numbered = named([30, 10, 20])
    assert bfs(numbered, 1, **ON_CPU).levels[1] == 0
    with pytest.raises(fg.GraphInputError, match="this id") as caught:
        bfs(numbered, 10, **ON_CPU)
    assert "vertex_index" in str(caught.value.fix)
    for bad in (None, 1.5, [], [[0]], [True, False, True], {0: 1}, "a"):
        with pytest.raises(fg.GraphInputError, match="sources"):
            bfs(RING, bad, **ON_CPU)


def test_the_mark_of_no_label_stays_a_number_beside_text() -> None:
    path = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], directed=False)
    given = ["a", -1, -1, -1, "b"]
    for labels in (given, tuple(given), np.array(given, object)):
        model = LabelPropagation(target="cpu").fit(path, labels)
        assert model.transduction_.tolist() == ["a", "a", "a", "b", "b"]
        assert model.classes_.tolist() == ["a", "b"]
        assert model.score(path, ["a", "a", "a", "b", "b"]) == 1
        points = LabelPropagation(target="cpu", n_neighbors=1)
        points.fit([[0.0], [0.1], [0.2], [5.1], [5.0]], labels)
        assert points.transduction_.tolist() == ["a", "a", "a", "b", "b"]
    for bad, place in (
        (np.array(["a", "-1", "-1", "-1", "b"]), "y[1]"),
        (["a", "-1", -1, -1, "b"], "y[1]"),
        (["a", None, -1, -1, "b"], "y[1]"),
        (["a", -1, 7, -1, "b"], "y[2]"),
        ([0.0, np.nan, -1, -1, 1], "y[1]"),
    ):
        with pytest.raises(fg.GraphInputError) as caught:
            LabelPropagation(target="cpu").fit(path, bad)
        assert caught.value.where == place


def test_small_parts_of_a_distribution_may_vanish() -> None:
    # Beside one they are nothing; the vertex keeps its label.
    rows = [[1, 1e-60], [0, 0], [0, 0], [1e-60, 1]]
    found = label_propagation(CHAIN, rows, **ON_CPU).distributions
    verify_label_propagation(CHAIN, rows, found)
    assert found[0].tolist() == [1, 0]
    ranks = pagerank(RING, personalization=[1, 1e-60, 0], **ON_CPU).ranks
    right = pagerank(RING, personalization=[1, 0, 0], **ON_CPU).ranks
    np.testing.assert_array_equal(ranks, right)

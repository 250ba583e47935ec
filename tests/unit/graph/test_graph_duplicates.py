"""Policies for repeated edges against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph.building.edges import FEW

COMBINE = {
    "sum": sum,
    "min": min,
    "max": max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


def model(pairs, values, directed, policy):
    merged = {}
    for (u, v), value in zip(pairs, values, strict=True):
        key = (u, v) if directed else (min(u, v), max(u, v))
        merged.setdefault(key, ((u, v), []))[1].append(value)
    edges = [pair for pair, _ in merged.values()]
    return edges, [COMBINE[policy](group) for _, group in merged.values()]


PAIRS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-50, 50)), max_size=40
)


@settings(max_examples=200, deadline=None)
@given(PAIRS, st.booleans(), st.sampled_from(sorted(COMBINE)), st.booleans())
def test_policies_equal_the_model(rows, directed, policy, is_weighted):
    pairs = [row[:2] for row in rows]
    values = [row[2] for row in rows]
    graph = Graph.from_edges(
        [u for u, _ in pairs],
        [v for _, v in pairs],
        weights=values if is_weighted else None,
        vertex_count=5,
        directed=directed,
        duplicates=policy,
    )
    edges, combined = model(pairs, values, directed, policy)
    assert list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)) == (
        edges
    )
    if is_weighted:
        assert graph.weights.tolist() == combined
    else:
        assert graph.weights is None


def test_keep_is_the_default_and_keeps_all():
    graph = Graph.from_edges([0, 0, 0], [1, 1, 1], weights=[1, 2, 3])
    assert graph.given_edge_count == 3
    assert graph.weights.tolist() == [1, 2, 3]


def test_error_names_the_first_repeat_and_what_it_repeats():
    with pytest.raises(GraphInputError) as caught:
        Graph.from_edges(
            [0, 1, 2, 1, 1], [1, 2, 1, 1, 1], directed=False, duplicates="error"
        )
    message = str(caught.value)
    assert "edge 2" in message
    assert "(2, 1), as edge 1 (2 repeats in all)" in message
    assert Graph.from_edges([0, 1], [1, 0], duplicates="error").given_edge_count == 2


def test_sums_of_small_integers_do_not_wrap():
    weights = np.full(1000, 100, np.int8)
    graph = Graph.from_edges(
        np.zeros(1000, int), np.ones(1000, int), weights=weights, duplicates="sum"
    )
    assert graph.weights.tolist() == [100_000]
    assert graph.weights.dtype == np.int64


@pytest.mark.parametrize(
    "weights",
    [
        np.array([2**62, 2**62]),
        np.array([-(2**62), -(2**62) - 1]),
        np.array([2**63, 2**63], np.uint64),
        np.array([np.inf, -np.inf]),
    ],
)
def test_sums_that_do_not_exist_are_refused(weights):
    with pytest.raises(GraphInputError, match="no sum"):
        Graph.from_edges([0, 0], [1, 1], weights=weights, duplicates="sum")


def test_largest_sum_is_right():
    weights = np.array([2**62, 2**62 - 1])
    graph = Graph.from_edges([0, 0], [1, 1], weights=weights, duplicates="sum")
    assert graph.weights.tolist() == [2**63 - 1]


def test_ids_near_the_limit_are_distinguished():
    top = 2**31 - 2
    graph = Graph.from_edges([0, top, top], [top, 0, 0], duplicates="first")
    assert graph.sources.tolist() == [0, top]
    assert graph.vertex_count == 2**31 - 1


@pytest.mark.parametrize("directed", [True, False])
def test_many_edges_are_merged_as_few_are(directed):
    """Short rows, a long one, and ids that have no room for a row each."""
    rng = np.random.default_rng(5)
    count = FEW + 1000
    u, v = rng.integers(0, 3000, (2, count))
    u[:5000], v[:5000] = 7, rng.integers(0, 400, 5000)
    weights = rng.integers(-9, 9, count)
    key = np.stack([u, v] if directed else [np.minimum(u, v), np.maximum(u, v)])
    kept = np.sort(np.unique(key, axis=1, return_index=True)[1])
    lasts = count - 1 - np.unique(key[:, ::-1], axis=1, return_index=True)[1]
    order = np.argsort(np.unique(key, axis=1, return_index=True)[1])
    for far in (0, 2**31 - 3001):
        graph = Graph.from_edges(
            u + far, v + far, weights=weights, directed=directed, duplicates="last"
        )
        assert np.array_equal(graph.sources, (u + far)[kept])
        assert np.array_equal(graph.targets, (v + far)[kept])
        assert np.array_equal(graph.weights, weights[lasts[order]])

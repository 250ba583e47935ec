"""Betweenness centrality against networkx and sums over all pairs."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.betweenness_centrality import (
    betweenness_centrality,
    verify_betweenness_centrality,
)
from featgraph.graph.generators import rmat
from tests.strategies import examples, graphs, seeds

Array = npt.NDArray[Any]


def simple(graph: fg.Graph) -> tuple[fg.Graph, nx.Graph]:
    """Return a graph without multi-edges and loops, which networkx leaves out."""
    made = nx.DiGraph() if graph.directed else nx.Graph()
    made.add_nodes_from(range(graph.vertex_count))
    ends = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    made.add_edges_from((u, v) for u, v in ends if u != v)
    pairs = np.array(list(made.edges), np.int64).reshape(-1, 2).T
    return (
        fg.Graph.from_edges(
            *pairs, vertex_count=graph.vertex_count, directed=graph.directed
        ),
        made,
    )


def values(of: dict[int, float]) -> Array:
    return np.array([of[v] for v in range(len(of))])


@examples(6, 10)
@given(graphs(max_edges=100), st.booleans(), st.booleans(), seeds)
def test_it_is_that_of_networkx(
    target: str, graph: fg.Graph, normalized: bool, endpoints: bool, seed: int
) -> None:
    graph, peer = simple(graph)
    given_values = {"normalized": normalized, "endpoints": endpoints}
    batch = 8 if len(peer) > 4 else 1  # two kernels
    result = betweenness_centrality(graph, batch=batch, target=target, **given_values)
    theirs = values(nx.betweenness_centrality(peer, **given_values))
    assert result.centralities == pytest.approx(theirs, rel=1e-12, abs=1e-14)
    verify_betweenness_centrality(graph, result.centralities, **given_values)
    # networkx draws its sources so.
    k = random.Random(seed).randint(min(5, len(peer)), len(peer))
    chosen = random.Random(seed).sample(list(peer), k)
    some = betweenness_centrality(
        graph, sources=chosen, batch=batch, target=target, **given_values
    )
    theirs = values(nx.betweenness_centrality(peer, k, seed=seed, **given_values))
    assert some.centralities == pytest.approx(theirs, rel=1e-12, abs=1e-14, nan_ok=True)
    verify_betweenness_centrality(
        graph, some.centralities, sources=some.sources, **given_values
    )


@examples(6, 10)
@given(graphs(max_edges=100), st.booleans(), st.booleans(), seeds)
def test_with_lengths_it_is_that_of_networkx(
    target: str, graph: fg.Graph, normalized: bool, endpoints: bool, seed: int
) -> None:
    """Lengths of which many sums are equal, and others of which few are."""
    graph, peer = simple(graph)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, graph.given_edge_count) * (0.5 if seed % 2 else 0.1)
    for (u, v), length in zip(peer.edges, lengths.tolist(), strict=True):
        peer.edges[u, v]["length"] = length
    given_values = {"normalized": normalized, "endpoints": endpoints}
    result = betweenness_centrality(
        graph, weights=lengths, target=target, **given_values
    )
    theirs = values(nx.betweenness_centrality(peer, weight="length", **given_values))
    assert result.centralities == pytest.approx(theirs, rel=1e-12, abs=1e-14)
    verify_betweenness_centrality(
        graph, result.centralities, weights=lengths, **given_values
    )


def test_few_sources_have_lengths_too(target: str, rng: np.random.Generator) -> None:
    """More sources than a run takes, and the last run is not full."""
    graph = rmat(7, 4, seed=1)
    lengths = rng.integers(1, 9, graph.given_edge_count) / 4
    sources = rng.permutation(graph.vertex_count)[:11]
    result = betweenness_centrality(
        graph, sources=sources, weights=lengths, batch=8, target=target
    )
    verify_betweenness_centrality(
        graph, result.centralities, sources=sources, weights=lengths
    )
    with pytest.raises(AssertionError, match="another betweenness"):
        verify_betweenness_centrality(graph, result.centralities, sources=sources)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_however_small_it_is(target: str, count: int, is_weighted: bool) -> None:
    peer = nx.path_graph(count)
    graph = fg.Graph.from_networkx(peer)
    weights = np.ones(graph.given_edge_count) if is_weighted else None
    result = betweenness_centrality(graph, weights=weights, target=target)
    assert result.centralities == pytest.approx(values(nx.betweenness_centrality(peer)))


@examples(6, 10)
@given(graphs(max_edges=100), st.sampled_from(["pull", "push"]))
def test_batches_and_options_do_not_show(
    target: str, graph: fg.Graph, direction: str
) -> None:
    assume(graph.vertex_count > 4)
    sources = np.arange(0, graph.vertex_count, 1 + graph.vertex_count // 8)
    one = betweenness_centrality(graph, sources=sources, batch=1, target=target)
    eight = betweenness_centrality(
        graph, sources=sources, batch=8, target=target, direction=direction
    )
    assert eight.centralities == pytest.approx(one.centralities, rel=1e-12, nan_ok=True)
    verify_betweenness_centrality(graph, eight.centralities, sources=sources)


def test_backwards_only_the_vertices_of_a_level_run(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share changes where it is the turn of a level."""
    module = sys.modules[betweenness_centrality.__module__]
    due: list[list[int]] = []
    shares: list[Any] = []

    def iterate(step: Any, state: fg.State, **options: Any) -> fg.Run:
        if step is module.backwards:
            due.extend(one.vertices.tolist() for one in options["due"])
            shares.append(state["share"])
            options["callback"] = lambda _, state: shares.append(state["share"])
        return run(step, state, **options)

    run = fg.iterate
    monkeypatch.setattr(fg, "iterate", iterate)
    tree = nx.balanced_tree(3, 3, nx.DiGraph)
    graph = fg.Graph.from_edges(*np.array(tree.edges).T)
    sources = [0, 1, 2, 5, 17]
    betweenness_centrality(graph, sources=sources, batch=8, target=target)
    levels = [nx.single_source_shortest_path_length(tree, s) for s in sources]
    expected = [
        sorted({v for of in levels for v, level in of.items() if level == turn})
        for turn in (3, 2, 1)
    ]
    changed = (a != b for a, b in itertools.pairwise(shares))
    assert [np.flatnonzero(c.any(1)).tolist() for c in changed] == due == expected


def test_samples_are_drawn_once_each() -> None:
    ring = fg.Graph.from_edges(np.arange(30), (np.arange(30) + 1) % 30)
    first = betweenness_centrality(ring, samples=10, seed=3, batch=8)
    again = betweenness_centrality(ring, samples=10, seed=3, batch=8)
    assert len(set(first.sources.tolist())) == 10
    assert first.centralities.tolist() == again.centralities.tolist()
    assert first.run.supersteps == len(first.run.active_counts)
    # Of a directed ring, every vertex is on the paths of all pairs alike.
    assert first.centralities == pytest.approx(np.full(30, 0.5), abs=0.2)


def test_more_paths_with_lengths_than_float64_holds_are_refused(target: str) -> None:
    # A chain of 1,030 pairs of multi-edges has 2 ** 1030 paths.
    ends = np.repeat(np.arange(1030), 2)
    chain = fg.Graph.from_edges(ends, ends + 1)
    with pytest.raises(fg.DivergenceError, match="more shortest paths than float64"):
        betweenness_centrality(
            chain, sources=[0], batch=1, target=target, weights=np.ones(2060)
        )


def layers(count: int, seed: int) -> tuple[Array, Array, int]:
    """Return edges of layers of four vertices, and of one path beside all of them.

    There are some 2 ** (5 count) paths from vertex 0, and one along that path.
    """
    rng = np.random.default_rng(seed)
    first = 1 + 4 * np.arange(count)
    sources, targets = [np.zeros(8, int)], [1 + np.repeat(np.arange(4), 2)]
    for layer in first[:-1]:
        times = rng.integers(0, 20, 16)
        sources.append(np.repeat(layer + np.arange(16) // 4, times))
        targets.append(np.repeat(layer + 4 + np.arange(16) % 4, times))
    beside, end = 1 + 4 * count + np.arange(count), 1 + 5 * count
    sources += [np.append(0, beside), first[-1] + np.arange(4)]
    targets += [np.append(beside, end), np.full(4, end)]
    return np.concatenate(sources), np.concatenate(targets), end + 1


def exact_dependencies(
    sources: Array, targets: Array, count: int, directed: bool, source: int
) -> Array:
    """Return dependencies of a source, of integers and their exact ratios."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for u, v in zip(sources.tolist(), targets.tolist(), strict=True):
        rows[u].append(v)
        if not directed:
            rows[v].append(u)
    level, order, paths = {source: 0}, [source], [0] * count
    paths[source] = 1
    for u in order:
        for v in rows[u]:
            if v not in level:
                level[v] = level[u] + 1
                order.append(v)
            if level[v] == level[u] + 1:
                paths[v] += paths[u]
    delta = np.zeros(count)
    for u in reversed(order):
        for v in rows[u]:
            if level[v] == level[u] + 1:
                delta[u] += paths[u] / paths[v] * (1 + delta[v])
    delta[source] = 0
    return delta


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("batch", [1, 4])
def test_more_paths_than_float64_holds(target: str, directed: bool, batch: int) -> None:
    """Numbers of one level are 2 ** 1400 apart; one source has few paths."""
    *ends, count = layers(280, 1)
    graph = fg.Graph.from_edges(*ends, directed=directed)
    chosen = [0, count - 2, 600]
    options = {"sources": chosen, "batch": batch, "target": target}
    found = betweenness_centrality(graph, **options)
    exact = sum(exact_dependencies(*ends, count, directed, s) for s in chosen)
    assert found.dependencies == pytest.approx(exact, rel=1e-12, abs=1e-130)
    verify_betweenness_centrality(graph, found.centralities, sources=chosen)
    ends_too = betweenness_centrality(graph, endpoints=True, **options)
    verify_betweenness_centrality(
        graph, ends_too.centralities, sources=chosen, endpoints=True
    )


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("lengths", "lost"),
    [
        ([1e16, 0.5, 1.0], 1),
        ([1.0, 0.5, 1e16], 0),
        ([1e9, 1e-8, 1.0], 1),
        ([2.0**53, 2.0, 2.0], None),
        ([2.0**52, 1.0, 1.0], None),
        ([1.0, 2.0**-53, 1.0], 1),  # a tie, which is rounded to even
        ([1e-300, 1e-310, 1e-300], None),
        ([5e-324, 5e-324, 5e-324], None),
        ([4e307, 1.0, 1.0], 1),
    ],
)
def test_a_length_lost_in_rounding_is_refused(
    lengths: list[float], lost: int | None, directed: bool, target: str
) -> None:
    """There is one path between two vertices, whatever the lengths are."""
    path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=directed)
    options: dict[str, Any] = {"weights": lengths, "normalized": False}
    right = np.array([0.0, 2.0, 2.0, 0.0])
    if lost is None:
        found = betweenness_centrality(path, target=target, **options)
        assert found.centralities.tolist() == right.tolist()
        verify_betweenness_centrality(path, right, **options)
        return
    for refuse in (
        lambda: betweenness_centrality(path, target=target, **options),
        lambda: verify_betweenness_centrality(path, right, **options),
    ):
        with pytest.raises(fg.GraphInputError, match=f"edge {lost}, .* lost in the"):
            refuse()


def test_the_verifier_sees_what_is_wrong() -> None:
    path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    right = np.array([0, 2 / 3, 2 / 3, 0])
    verify_betweenness_centrality(path, right)
    for wrong in (right + np.array([0, 0, 1e-12, 0]), 2 * right, right[[1, 0, 2, 3]]):
        with pytest.raises(AssertionError, match="another betweenness"):
            verify_betweenness_centrality(path, wrong)


def test_bad_input_is_refused() -> None:
    path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    for bad, message in (
        ({"sources": [0, 4]}, r"sources\[1\]: no vertex"),
        ({"sources": [2, 0, 2]}, r"sources\[2\]: sources are different"),
        ({"sources": []}, "vertices are integer ids"),
        ({"sources": [0.5]}, "vertices are integer ids"),
        ({"samples": 5}, "1 to 4 of them"),
        ({"samples": 1, "sources": [1]}, "no sources="),
        ({"batch": 0}, "batch out of range"),
        ({"weights": [1, 2]}, "one weight per given edge"),
        ({"weights": [1, 0, 2]}, "edge 1, 1 -> 2"),
        ({"weights": [1, 1, np.inf]}, "positive and finite"),
    ):
        with pytest.raises(fg.GraphInputError, match=message):
            betweenness_centrality(path, **bad)

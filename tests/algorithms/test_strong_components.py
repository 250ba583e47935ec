"""Strong components against networkx and SciPy, and their verifier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph

import featgraph as fg
from featgraph.algorithms import strong_components as module
from featgraph.algorithms.strong_components import (
    strongly_connected_components,
    verify_strongly_connected_components,
)
from tests.strategies import examples, graphs, seeds

Array = npt.NDArray[Any]
GOES_DEEP = module._Search.goes_deep


@pytest.fixture(autouse=True, scope="module")
def colours_on_all_targets() -> Iterator[None]:
    """Make the CPU use the GPU's searches for components, unless a test disables it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Search, "goes_deep", lambda search: False)
        yield


def scipys(graph: fg.Graph) -> Array:
    """Return the smallest vertex of each vertex's component."""
    labels = csgraph.connected_components(graph.to_scipy(), connection="strong")[1]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


@examples(6, 1000)
@given(graphs(max_edges=200))
def test_scipy_finds_the_same(target: str, graph: fg.Graph) -> None:
    expected = scipys(graph)
    found = strongly_connected_components(graph, target=target)
    assert found.labels.dtype == np.int32
    assert np.array_equal(found.labels, expected)
    assert found.count == np.unique(expected).size
    verify_strongly_connected_components(graph, found.labels)


def test_networkx_finds_the_same(target: str, rng: np.random.Generator) -> None:
    network = nx.MultiDiGraph()
    network.add_nodes_from(range(200))
    network.add_edges_from(rng.integers(0, 190, (330, 2)).tolist())
    network.add_edges_from([(7, 7), (7, 7)])
    graph = fg.Graph.from_networkx(network)
    found = strongly_connected_components(graph, target=target)
    for component in nx.strongly_connected_components(network):
        assert set(found.labels[sorted(component)]) == {min(component)}


def rings(sizes: list[int], rng: np.random.Generator) -> fg.Graph:
    """Return rings in a row, each pointing to the next, numbered in any order."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    sources = np.arange(ends[-1])
    targets = sources + 1
    targets[ends - 1] = starts
    sources = np.concatenate([sources, starts[:-1]])
    targets = np.concatenate([targets, starts[1:]])
    names = rng.permutation(ends[-1])
    return fg.Graph.from_edges(names[sources], names[targets])


def in_row(size: int, count: int) -> fg.Graph:
    """Return rings in a row, numbered as they follow each other."""
    first = np.arange(size * count)
    last = first % size == size - 1
    sources = np.concatenate([first, first[size::size] - 1])
    targets = np.concatenate([first + 1 - size * last, first[size::size]])
    return fg.Graph.from_edges(sources, targets)


def test_rings_in_a_row_take_all_three_ways(
    target: str, rng: np.random.Generator
) -> None:
    """Trimmed vertices before and behind; one ring by its pivot; others by colour.

    Of several rings and vertices between them, each numbering makes other ones roots.
    """
    for _ in range(8):
        graph = rings([1, 1, 9, 4, 1, 6, 30, 5, 1, 7, 1, 4, 1], rng)
        found = strongly_connected_components(graph, target=target)
        assert found.count == 13
        assert found.rounds > 0
        assert np.array_equal(found.labels, scipys(graph))
        verify_strongly_connected_components(graph, found.labels)


def test_without_cycles_all_is_trimmed(target: str) -> None:
    ends = np.arange(50)
    graph = fg.Graph.from_edges(ends, ends + 1)
    found = strongly_connected_components(graph, target=target)
    assert found.labels.tolist() == list(range(51))
    assert (found.rounds, found.count) == (0, 51)
    # One end after the other: a superstep has the edges of one vertex.
    assert found.supersteps <= 52


@pytest.mark.parametrize("sweeps", [1, 8])
def test_loops_repeated_edges_and_the_rest_of_a_spread(
    target: str, sweeps: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEPS", sweeps)
    for _ in range(4):
        graph = rings([1, 9, 40, 5, 3, 1, 3, 25, 4, 1, 1, 2, 7, 60, 2, 2], rng)
        loops = rng.integers(0, graph.vertex_count, 9)
        graph = fg.Graph.from_edges(
            np.concatenate([graph.sources, loops, graph.sources[::7]]),
            np.concatenate([graph.targets, loops, graph.targets[::7]]),
        )
        found = strongly_connected_components(graph, target=target)
        assert np.array_equal(found.labels, scipys(graph))
        verify_strongly_connected_components(graph, found.labels)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.booleans(), seeds)
def test_without_atomics_and_passes_the_same(
    sizes: list[int], is_reversed: bool, seed: int
) -> None:
    """Rings in a row, and edges that skip some, either way."""
    rng = np.random.default_rng(seed)
    row = rings(sizes, rng)
    ends = np.sort(rng.integers(0, row.vertex_count, (2, 5)), axis=0)
    ends = np.concatenate([[row.sources, row.targets], ends], axis=1)
    graph = fg.Graph.from_edges(*(ends[::-1] if is_reversed else ends))
    found = strongly_connected_components(graph, target="cpu", deterministic=True)
    assert np.array_equal(found.labels, scipys(graph))


@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize("size", [2, 4])
def test_rounds_are_few_however_many_rings_follow_each_other(
    target: str, order: str, size: int, rng: np.random.Generator
) -> None:
    """Colours that were numbers would take one round for each of them."""
    count = 64 if target == "cuda" else 2048
    graph = rings([size] * count, rng)
    names = np.arange(size * count)
    if order != "any":
        graph = in_row(size, count)
    if order == "descending":
        names = names[::-1]
    ends = names[graph.sources], names[graph.targets]
    found = strongly_connected_components(fg.Graph.from_edges(*ends), target=target)
    assert found.count == count
    assert found.rounds <= 3 * np.log2(count)
    _, sizes = np.unique(found.labels, return_counts=True)
    assert (sizes == size).all()


@given(st.integers(1, 2**31 - 1), seeds)
def test_an_order_has_each_place_once(count: int, seed: int) -> None:
    bits = max(count - 1, 1).bit_length()
    mask, half = (1 << bits) - 1, (bits + 1) // 2
    rng = np.random.default_rng(seed)
    factor = 1 | int(rng.integers(mask + 1))
    vertices = rng.integers(0, count, 50)
    places = module.place(vertices, half, mask, factor)
    assert places.min() >= 0
    assert places.max() <= mask
    inverse = pow(factor, -1, mask + 1)
    again = module.at_place(places, half, mask, inverse)
    assert again.tolist() == vertices.tolist()


@settings(max_examples=10)
@given(graphs(max_edges=60), seeds)
def test_the_verifier_finds_faults(graph: fg.Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = strongly_connected_components(graph, target="cpu").labels
    verify_strongly_connected_components(graph, labels)
    v = int(rng.integers(graph.vertex_count))
    for wrong in (graph.vertex_count, -1, (labels[v] + 1) % (graph.vertex_count + 1)):
        broken = labels.copy()
        broken[v] = wrong
        with pytest.raises(AssertionError):
            verify_strongly_connected_components(graph, broken)


def test_the_verifier_names_what_is_wrong() -> None:
    graph = fg.Graph.from_edges([0, 1, 2, 3, 1], [1, 0, 3, 2, 2])
    for labels, message in (
        ([0, 0, 2, 3], "vertex 2: its component reaches one that reaches it"),
        ([0, 1, 2, 2], "vertex 0: its component reaches one that reaches it"),
        ([0, 0, 0, 0], "vertex 2: the vertex that its label names is not reached"),
        ([0, 0, 2, 0], "vertex 3: the vertex that its label names does not reach"),
        ([1, 1, 2, 2], "vertex 0: the label is no smaller vertex"),
    ):
        with pytest.raises(AssertionError, match=message):
            verify_strongly_connected_components(graph, np.array(labels))


def test_a_real_network(target: str, data_dir: Path) -> None:
    given_graph = fg.read_graph(data_dir / "small" / "facebook_combined.txt.gz")
    graph = fg.Graph.from_edges(given_graph.sources, given_graph.targets)
    found = strongly_connected_components(graph, target=target)
    assert np.array_equal(found.labels, scipys(graph))


@examples(60, 1000)
@given(graphs(max_edges=200), seeds)
def test_a_depth_first_search_finds_the_same(graph: fg.Graph, seed: int) -> None:
    """Also what is left where some components have been found."""
    expected = scipys(graph)
    found = graph.strong_components()
    assert found is not None
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)
    is_known = np.random.default_rng(seed).random(graph.vertex_count) < 0.5
    known = np.where(is_known[expected], expected, -1)
    assert np.array_equal(graph.strong_components(known), expected)


@pytest.mark.parametrize("threads", [1, 1 << 30])
def test_a_depth_first_search_is_for_all_or_for_the_rest(
    threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Search, "goes_deep", GOES_DEEP)
    monkeypatch.setattr(module, "MANY_THREADS", threads)
    for _ in range(4):
        graph = rings([1, 1, 9, 4, 1, 6, 30, 5, 1, 7, 1, 4, 1], rng)
        found = strongly_connected_components(graph, target="cpu")
        assert np.array_equal(found.labels, scipys(graph))
        assert (found.count, found.rounds, found.run.target) == (13, 0, "cpu")
        assert (found.supersteps > 0) == (threads == 1)
        verify_strongly_connected_components(graph, found.labels)


def test_long_paths_and_known_labels_of_a_depth_first_search() -> None:
    ends = np.arange(200_000)
    ring = fg.Graph.from_edges(ends, (ends + 1) % ends.size)
    assert not np.any(ring.strong_components())
    assert ring.strong_components(fewer_threads=1) is None
    for labels in ([0, 1], np.zeros(ends.size)):
        with pytest.raises(fg.GraphInputError, match="a label for each vertex"):
            ring.strong_components(labels)


@pytest.mark.parametrize("directed", [True, False])
def test_a_graph_that_changes_is_searched_as_its_frozen_copy(
    monkeypatch: pytest.MonkeyPatch, directed: bool
) -> None:
    monkeypatch.setattr(module._Search, "goes_deep", GOES_DEEP)
    monkeypatch.setattr(module, "MANY_THREADS", 99)
    rng = np.random.default_rng(4)
    graph = fg.DynamicGraph.from_edges(vertex_count=90, directed=directed)
    for _ in range(5):
        graph.update(*rng.integers(0, 90, (2, 40)), rng.random(40) < 0.8)
        wanted = graph.freeze().strong_components()
        np.testing.assert_array_equal(graph.strong_components(), wanted)
    assert 1 < np.unique(wanted).size < 80
    graph.delete_vertices([0, 7])
    assert graph.strong_components()[[0, 7]].tolist() == [-1, -1]
    found = strongly_connected_components(graph)
    assert (found.supersteps, found.labels[7]) == (0, -1)

"""Graphs whose vertices have sides, and how these are cut."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import featgraph as fg
from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph


def test_a_matrix_of_one_side_by_the_other_is_a_graph() -> None:
    matrix = sparse.coo_array(([1.5, 2.5, 0.0], ([0, 1, 1], [2, 0, 2])), shape=(2, 3))
    for given_ in (matrix, matrix.tocsr(), matrix.tocsc()):
        graph = Graph.from_biadjacency(given_)
        assert graph.sides == (2, 3)
        assert (graph.vertex_count, graph.given_edge_count) == (5, 3)
        both = graph.to_scipy().toarray()
        np.testing.assert_array_equal(both[:2, 2:], matrix.toarray())
        np.testing.assert_array_equal(both, both.T)
        assert pickle.loads(pickle.dumps(graph)).sides == (2, 3)
    assert Graph.from_biadjacency(matrix.astype(bool)).weights is None


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Graph.from_biadjacency(np.ones((2, 2))), "not a SciPy sparse"),
        (lambda: Graph.from_biadjacency(sparse.csr_array((0, 3))), "rows and columns"),
        (lambda: Graph.from_edges([0], [1], sides=2), "not the sides"),
        (lambda: Graph.from_edges([0], [1], sides=(1, 0)), "out of range"),
        (lambda: Graph.from_edges([0], [1], sides=(1, 1), vertex_count=3), "add up"),
        (lambda: Graph.from_edges([0], [2], sides=(1, 1)), "2"),
        (lambda: Graph.from_edges([0, 1], [2, 0], sides=(2, 2)),
         r"sources\[1\], targets\[1\]: an edge within a side\n"
         r".* 1 and 0, both of side 0: the vertices from 0 to 1\n"),
        (lambda: Graph.from_edges([4, 3], [0, 3], sides=(2, 1, 2), directed=False,
                                  duplicates="first"), "3 and 3, both of side 2"),
        (lambda: Graph.from_edges([0], [1], sides=(2,)), "both of side 0"),
        (lambda: Graph.from_edges([0], [1], sides=(1, 1)).partition(
            parts=2, balance=(1, 8, 1)), "ghost"),
    ],
)  # fmt: skip
def test_what_are_no_sides_is_refused(make: Any, what: str) -> None:
    with pytest.raises(GraphInputError, match=what):
        make()


def test_a_matrix_with_columns_beyond_its_shape_is_refused() -> None:
    matrix = sparse.csr_array(np.ones((2, 2)))
    for wrong in (-1, 2):
        matrix.indices[1] = wrong
        with pytest.raises(GraphInputError, match="columns of the matrix"):
            Graph.from_biadjacency(matrix)


@given(st.data())
def test_sides_are_cut_each_by_itself(data: st.DataObject) -> None:
    sides = tuple(data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=3)))
    count, parts = sum(sides), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ends = rng.integers(0, count, (2, data.draw(st.integers(0, 900))))
    of_sources, of_targets = np.searchsorted(np.cumsum(sides), ends, "right")
    ends = ends[:, of_sources != of_targets]
    graph = Graph.from_edges(*ends, sides=sides, directed=data.draw(st.booleans()))
    order: Any = data.draw(st.sampled_from(["given", "locality", "spread", "own"]))
    if order == "own":
        order = rng.permutation(count)
    balance = data.draw(st.sampled_from([None, (1, 8, 0), (0, 1, 0)]))
    shards = graph.partition(order, parts, balance=balance)
    begins = np.cumsum([0, *sides])
    edge, vertex, _ = balance or (1, 0, 0)
    work = edge * np.asarray(graph.in_degree) + float(vertex)
    for begin, end in pairwise(begins.tolist()):
        own = [s.numbers[: s.own] for s in shards]
        own = [n[(begin <= n) & (n < end)] for n in own]
        assert sorted(np.concatenate(own)) == list(range(begin, end))
        shares = [work[n].sum() for n in own]
        # Each cut is at the nearest vertex.
        mean, most = work[begin:end].sum() / parts, work[begin:end].max()
        slack = most + 0.02 * mean * (balance is None)
        assert mean - slack <= min(shares) <= max(shares) <= mean + slack


@pytest.mark.parametrize("order", ["given", "spread", "locality"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_ranks_have_equal_edges_of_each_side(order: str, is_sorted: bool) -> None:
    """Where few users and items have many ratings, and the first ones, if sorted."""
    rng, sides = np.random.default_rng(0), (6000, 900)
    users = (sides[0] * rng.random(60_000) ** 2).astype(np.int64)
    items = (sides[1] * rng.random(60_000) ** 1.5).astype(np.int64)
    if not is_sorted:
        users, items = (
            rng.permutation(n)[x] for n, x in zip(sides, (users, items), strict=True)
        )
    graph = Graph.from_edges(users, sides[0] + items, directed=False, sides=sides)
    for parts in (2, 3, 4, 8):
        owner = graph.partition(order, parts)[0].partition.owner
        for side in (np.arange(6000), np.arange(6000, 6900)):
            edges = np.bincount(owner(side), graph.in_degree[side], parts)
            assert (abs(edges - edges.mean()) <= 0.1 * edges.mean()).all()


@fg.gather(into="total", combine="sum")
def total_of_others(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_total(f, v, d):
    d.x_next[v] = d.total[v]
    return True


@pytest.mark.parametrize(
    ("vertices", "is_independent"),
    [([0], True), ([0, 1], True), ([2, 4], True), ([], True), ([1, 2], False)],
)
def test_vertices_of_a_side_need_no_look_at_edges(
    vertices: list[int], is_independent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = sparse.csr_array(np.ones((2, 3)))
    graph = fg.Graph.from_biadjacency(matrix)
    state = fg.State(graph, x=fg.vertex_property(np.arange(5.0), iterated=True))
    step = fg.foldmap(total_of_others, take_total).on(vertices)
    if is_independent:
        monkeypatch.setattr(type(graph), "in_edges", property(None))  # not to be asked
    assert step.is_independent(state) == is_independent
    same = fg.Graph.from_edges([3], [1], vertex_count=5, sides=(2, 3))
    state = fg.State(same, x=fg.vertex_property(np.arange(5.0), iterated=True))
    assert step.is_independent(state) == is_independent or vertices == [1, 2]

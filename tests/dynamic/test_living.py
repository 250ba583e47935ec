"""Dead vertices: they are in no set, no reduce, and nothing counts them (S12)."""

from __future__ import annotations

import numpy as np

import featgraph as fg
from tests.dynamic.doubles import with_dead


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.vertex
def count_all(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v] = d.living_count * 100 + d.vertex_count
    return True


@fg.reduce(into="total", combine="sum")
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v]


@fg.reduce(into="number", combine="sum")
def count(f, v, d):  # type: ignore[no-untyped-def]
    return 1


counted = fg.foldmap(count_all, add_up, count)


def path() -> fg.Graph:
    """Return 0 - 2 - 3 - 5 of 70 ids, of which 9 and 66 are living, too."""
    graph = fg.Graph.from_edges([0, 2, 3], [2, 3, 5], vertex_count=70, directed=False)
    living = np.zeros(70, np.bool_)
    living[[0, 2, 3, 5, 9, 66]] = True
    return with_dead(graph, living)


def test_counts() -> None:
    graph = path()
    assert (graph.vertex_count, graph.living_count) == (70, 6)
    assert fg.Graph.from_edges([0], [1]).living_count == 2
    assert len(fg.ActiveSet(graph, "all")) == 6


def test_reduces_and_commits_are_over_the_living() -> None:
    graph = path()
    state = fg.State(graph, x=fg.vertex_property(np.full(70, 5)))
    assert state["x"].sum() == 30
    passed = counted(state, target="cpu")
    assert passed.vertices.tolist() == [0, 2, 3, 5, 9, 66]
    x = np.where(graph.living, 670, 0)
    np.testing.assert_array_equal(state["x"], x)
    assert state["total"].tolist() == [x.sum()]
    assert state["number"].tolist() == [6]
    given = np.ones(70, np.bool_)
    assert len(counted(state, active_in=given, target="cpu")) == 6
    some = counted.on([1, 2, 9])
    assert some(state, target="cpu").vertices.tolist() == [2, 9]
    assert state["number"].tolist() == [2]

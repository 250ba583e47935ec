"""Causes that make all vertices due, and functions that wait for all vertices."""

from __future__ import annotations

import warnings

import numpy as np

import featgraph as fg
from featgraph import reference


@fg.vertex
def tell(f, v, d):
    fg.atomic.add(d.heard, d.to[v], 1)
    return True


def test_an_atomic_elsewhere_reads_nothing(target: str) -> None:
    """S6: only a read at another vertex makes a function due everywhere."""
    graph = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=9)
    state = fg.State(
        graph,
        heard=fg.vertex_property(np.zeros(9, np.int32)),
        to=fg.vertex_property(np.arange(9, dtype=np.int32)[::-1].copy()),
    )
    step = fg.foldmap(tell)
    given = reference.from_state(state)
    expected = reference.superstep(step.program, *given, active=[2, 5])
    committed = step(state, active_in=[2, 5], target=target)
    assert committed.vertices.tolist() == [2, 5]
    np.testing.assert_array_equal(state["heard"], expected.values["heard"])
    assert "everywhere" not in step.explain(state, target=target)


@fg.edge
def lower(f, u, v, e, d):
    fg.atomic.min(d.sum, u, 1)
    return True


@fg.edge
def count(f, u, v, e, d):
    fg.atomic.add(d.sum, u, d.w[e])
    return True


@fg.edge
def count_again(f, u, v, e, d):
    fg.atomic.add(d.sum, u, 10 * d.w[e])
    return True


def test_updates_that_do_not_commute_are_done_one_after_the_other(target: str) -> None:
    """S2: the order of functions is that of their atomics."""
    graph = fg.Graph.from_edges([0, 0, 0, 1], [1, 2, 0, 0])
    state = fg.State(
        graph,
        sum=fg.vertex_property(np.full(3, 99, np.int32)),
        w=fg.edge_property(np.array([1, 2, 4, 8], np.int32)),
    )
    step = fg.foldmap(lower, count, count_again)
    step(state, target=target)
    assert state["sum"].tolist() == [1 + 77, 1 + 88, 99]
    phases = [p.functions for p in step.fold(state, target=target).plan.phases]
    assert len(phases) == 2, "additions commute and share a kernel"


@fg.reduce(into="total", combine="sum")
def add_up(f, v, d):
    return d.x[v]


@fg.vertex
def visit(f, v, d):
    d.visits[v] = d.visits[v] + 1
    d.x_next[v] = d.total[0]
    return d.x[v] < d.least


def test_what_a_reduce_first_gives_has_not_changed(target: str) -> None:
    """S7: a run begins at its active set; changes of a reduce are due afterwards."""
    state = fg.State(
        fg.Graph.from_edges([0, 1], [1, 2], vertex_count=6),
        x=fg.vertex_property(np.arange(6), iterated=True),
        visits=fg.vertex_property(np.zeros(6, np.int64)),
        least=3,
    )
    step = fg.foldmap(add_up, visit)
    given = reference.from_state(state)
    for limit in (1, 2, 3):
        expected = reference.iterate(
            step.program, *given, active=[1], max_supersteps=limit
        )
        fresh = fg.State(
            state.graph,
            x=fg.vertex_property(state["x"], iterated=True),
            visits=fg.vertex_property(state["visits"]),
            least=3,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            run = fg.iterate(
                step, fresh, active=[1], max_supersteps=limit, target=target
            )
        assert run.supersteps == expected.supersteps
        for name in ("x", "visits", "total"):
            np.testing.assert_array_equal(fresh[name], expected.values[name], name)

"""Runs whose functions read gathered values at other features, to the end.

What one superstep gives is for the agreement tests, with tests/programs/gathered.py.
Here aggregates are kept and patched, vertices commit out of turn, and supersteps over
few vertices run in one compiled loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference


@fg.gather(into="best", combine="max")
def best_of(f, u, v, e, d):
    return d.x[u, f] - d.w[e]


@fg.vertex
def rise(f, v, d):
    d.x_next[v, f] = max(d.x[v, f], d.best[v, f], d.best[v, 0] - 3, d.best[v, 1])
    return d.x_next[v, f] > d.x[v, f]


@fg.vertex
def rise_in_turn(f, v, d):
    other = d.best[v, (f + 1) % d.k]
    d.x_next[v, f] = max(d.x[v, f], d.best[v, f], other - 1)
    return d.x_next[v, f] > d.x[v, f]


@fg.vertex
def rise_by_one(f, v, d):
    d.x_next[v, f] = max(d.x[v, f], d.best[v, f])
    return d.best[v, 1] > d.x[v, 1] or d.best[v, 0] > d.x[v, 0]


@fg.gather(into="near", combine="argmin", sources="active")
def nearest(f, u, v, e, d):
    return d.x[u, f] + d.w[e]


@fg.vertex
def come_near(f, v, d):
    closer = d.near[v, 1] < d.x[v, f]
    if closer:
        d.x_next[v, f] = d.near[v, 1]
        d.via_next[v, f] = d.near_source[v, 0]
    return closer


@fg.gather(into="total", combine="sum")
def add_changing(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def settle_down(f, v, d):
    new = min(d.x[v, f] + d.total[v, 1], d.most)
    d.x_next[v, f] = new
    return new > d.x[v, f]


def grid() -> Any:
    rng = np.random.default_rng(3)
    source, target = rng.integers(0, 40, (2, 90))
    return fg.Graph.from_edges(source, target, vertex_count=44, directed=False)


def make_state(graph: Any, k: int) -> fg.State:
    rng = np.random.default_rng(k)
    v = graph.vertex_count
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 50, (v, k)), iterated=True),
        via=fg.vertex_property(np.full((v, k), -1), iterated=True),
        w=fg.edge_property(rng.integers(0, 4, graph.given_edge_count)),
        most=100,
        k=k,
    )


FOLDMAPS = {
    "constants": fg.foldmap(best_of, rise),
    "computed": fg.foldmap(best_of, rise_in_turn),
    "verdict": fg.foldmap(best_of, rise_by_one),
    "nearest": fg.foldmap(nearest, come_near),
    "sums": fg.foldmap(add_changing, settle_down),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {},
    "kept": {"change_driven": True},
    "asynchronous": {"asynchronous": True},
    "dense": {"change_driven": False},
}
CASES = [
    ("constants", "kept", 3),
    ("constants", "kept", 17),
    ("constants", "asynchronous", 17),
    ("computed", "kept", 3),
    ("computed", "kept", 17),
    ("computed", "dense", 2),
    ("nearest", "auto", 3),
    ("nearest", "auto", 17),
    ("nearest", "asynchronous", 2),
    ("sums", "kept", 3),
    ("sums", "dense", 17),
    ("verdict", "auto", 2),
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "option", "k"), CASES)
def test_runs_end_where_the_interpreter_ends(
    name: str, option: str, k: int, target: str
) -> None:
    state, foldmap = make_state(grid(), k), FOLDMAPS[name]
    expected = reference.iterate(foldmap.program, *reference.from_state(state))
    run = fg.iterate(foldmap, state, target=target, **OPTIONS[option])
    assert expected.converged
    assert run.converged
    if option != "asynchronous":
        assert run.supersteps == expected.supersteps
    names = {"x"} if option == "asynchronous" else {"x", "via"}
    for held in names:
        np.testing.assert_array_equal(state[held], expected.values[held])


def test_features_that_are_computed_need_a_second_kernel(target: str) -> None:
    with pytest.raises(fg.PlanError, match="needs a kernel of its own") as caught:
        fg.iterate(
            FOLDMAPS["computed"], make_state(grid(), 3), target=target,
            asynchronous=True,
        )  # fmt: skip
    assert "reads best at features that it computes" in str(caught.value)

"""A reduce between other functions: all of a superstep run on one due set (S7)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect

V = 6


@fg.vertex
def count_up(f, v, d):
    d.x_next[v, f] = d.x[v, f] + 1
    d.mark[v] = d.x[v, 0]
    return d.x[v, f] < 4


@fg.reduce(into="total", combine="sum")
def total_of_x(f, v, d):
    return d.x[v, f]


@fg.reduce(into="largest", combine="max")
def largest_of_next(f, v, d):
    return d.x_next[v, f]


@fg.reduce(into="largest", combine="max")
def largest_mark(f, v, d):
    return d.mark[v] + d.x[v, f]


@fg.reduce(into="largest", combine="max")
def largest_with_total(f, v, d):
    return d.total[f] % 3 + d.x[v, f]


@fg.vertex
def keep_some(f, v, d):
    d.seen[v, f] = d.total[f]
    return d.total[f] % 5 != 4


@fg.vertex
def keep_most(f, v, d):
    d.seen[v, f] = d.largest[f]
    return d.largest[f] % 3 != 1


@fg.edge
def send(f, u, v, e, d):
    d.sent[e, f] = d.sent[e, f] + 1
    return d.x[u, f] > 0


@fg.gather(into="got", combine="max")
def receive(f, u, v, e, d):
    return d.sent[e, f]


#: Name -> the functions, and whether the reduce is moved in front of all others.
FORMS: dict[str, tuple[tuple[Any, ...], bool]] = {
    "of x": ((count_up, total_of_x, keep_some), True),
    "of x_next": ((count_up, largest_of_next, keep_most), False),
    "of what is written in place": ((count_up, largest_mark, keep_most), False),
    "of a reduce": ((count_up, total_of_x, largest_with_total, keep_most), True),
    "behind edges": ((send, total_of_x, receive, count_up, keep_some), True),
    "read by a reduce alone": ((count_up, total_of_x, largest_with_total), False),
}


def make_state(graph: fg.Graph) -> fg.State:
    return fg.State(
        graph,
        x=fg.vertex_property(0, shape=(2,), iterated=True),
        mark=fg.vertex_property(0),
        seen=fg.vertex_property(0, shape=(2,)),
        sent=fg.edge_property(0, shape=(2,)),
    )


def check(name: str, target: str, limits: tuple[int, ...], **options: Any) -> None:
    step = fg.foldmap(*FORMS[name][0])
    graph = fg.Graph.from_edges([0, 1, 2, 3, 4], [1, 2, 3, 4, 2], vertex_count=V)
    for limit in limits:
        state = make_state(graph)
        given = reference.from_state(state)
        active = np.isin(np.arange(V), [0, 2])
        meant = reference.iterate(
            step.program, *given, active=active, max_supersteps=limit
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            run = fg.iterate(
                step, state, active=[0, 2], target=target, max_supersteps=limit,
                **options,
            )  # fmt: skip
        counts = [len(outcome.active_out) for outcome in meant.outcomes]
        assert (run.active_counts, run.converged) == (counts, meant.converged)
        for each, value in meant.values.items():
            np.testing.assert_array_equal(state[each], value, f"{each} after {limit}")


@pytest.mark.parametrize("name", FORMS)
def test_supersteps_have_one_due_set(name: str, target: str) -> None:
    check(name, target, (1, 2, 3, 4, 20))


@pytest.mark.parametrize("name", FORMS)
def test_reduces_that_read_nothing_new_run_first(name: str) -> None:
    functions, is_first = FORMS[name]
    state = make_state(fg.Graph.from_edges([0], [1]))
    plan = fg.foldmap(*functions).fold(state, target="cuda").plan
    assert plan.phases[0].kind.reduces == is_first
    assert plan.facts.has_late_reduce == (not is_first and "reduce alone" not in name)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
@pytest.mark.parametrize("name", FORMS)
def test_on_an_emulated_gpu(name: str) -> None:
    from tests.simt.gpu import emulated_gpu

    with emulated_gpu():
        check(name, "cuda", (3,))
        check(name, "cuda", (20,), folding=False)

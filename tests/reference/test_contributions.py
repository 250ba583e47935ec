"""Contributions of gathers, by type and width: loops, pushes and matrices.

A gather without features may make collaborative calls beside wide ones; two gathers of
one phase may leave rows of different types; matrices hold integers and truth values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import GraphTraits, make_plan
from featgraph.fold.printing.emit import emit

COUNT = 9


@fg.gather(into="low", combine="min")
def least(f, u, v, e, d):
    return d.n[u] if fg.any_feature(d.n[u] > 3) else d.n[v]


@fg.gather(into="sum_of", combine="sum")
def halves(f, u, v, e, d):
    return 1.5 * fg.feature_sum(d.n[u])


@fg.vertex
def lower(f, v, d):
    d.r[v, f] = d.low[v] + d.sum_of[v] + f
    d.n_next[v] = d.n[v] // 2
    return d.n[v] > 0


@fg.gather(into="total", combine="sum")
def reals(f, u, v, e, d):
    return fg.feature_sum(d.x[u, f]) + 0.5


@fg.gather(into="places", combine="max")
def integers(f, u, v, e, d):
    return fg.argmax(d.x[u, f]) + f


@fg.gather(into="far", combine="argmax")
def farthest(f, u, v, e, d):
    return d.x[u, f] + fg.feature_max(d.x[u, f])


@fg.vertex
def add_up(f, v, d):
    d.r[v, f] = d.total[v, f] + d.places[v, f] + d.far[v, f] + d.far_source[v, f]
    d.n_next[v] = d.n[v] // 2
    return d.n[v] > 0


@fg.gather(into="above", combine="any", along="both", matrix=True)
def is_above(i, f, u, v, e, d):
    return d.x[u, f] > d.x[v, i]


@fg.gather(into="large", combine="min", matrix=True)
def least_products(i, f, u, v, e, d):
    return d.m[u, f] * 100000007 + i


@fg.vertex
def count_above(f, v, d):
    d.o[v, f] = d.large[v, f, 0] + (1 if d.above[v, 1, f] else 0)
    return True


STEPS = {
    "scalars": fg.foldmap(least, halves, lower),
    "types": fg.foldmap(reals, integers, farthest, add_up),
    "matrices": fg.foldmap(is_above, least_products, count_above),
}
PULL: dict[str, Any] = {"direction": "pull"}
NFA: dict[str, Any] = {"direction": "pull", "feature_parallel": False}
PUSH: dict[str, Any] = {"direction": "push"}


def make_state(k: int) -> fg.State:
    rng = np.random.default_rng(5)
    ends = rng.integers(0, COUNT, (2, 16))
    graph = fg.Graph.from_edges(*ends, vertex_count=COUNT)
    quarters = rng.integers(-8, 8, (COUNT, k)) / np.float32(4)
    return fg.State(
        graph,
        n=fg.vertex_property(rng.integers(0, 9, COUNT), iterated=True),
        m=fg.vertex_property(rng.integers(-8, 8, (COUNT, k))),
        x=fg.vertex_property(quarters.astype(np.float32)),
        o=fg.vertex_property(np.zeros((COUNT, k), np.int64)),
        r=fg.vertex_property(np.zeros((COUNT, k), np.float32)),
    )


def check(name: str, k: int, target: str, *sets: dict[str, Any]) -> None:
    step = STEPS[name]
    given = reference.from_state(make_state(k))
    for options in sets:
        state = make_state(k)
        if "change_driven" in options:
            programs = [(step.program, None)]
            want = reference.iterate(programs, *given, max_supersteps=20).values
            fg.iterate(step, state, max_supersteps=20, target=target, **options)
        else:
            want = reference.superstep(step.program, *given).values
            step(state, target=target, **options)
        for each in ("r", "o", "n"):
            np.testing.assert_array_equal(state[each], want[each], str(options))


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("name", "k", "options"),
    [
        ("scalars", 3, PUSH),
        ("scalars", 17, {"change_driven": True}),
        ("types", 17, {"change_driven": True}),
        ("matrices", 3, PULL),
    ],
)
def test_contributions(name: str, k: int, options: dict[str, Any], target: str) -> None:
    check(name, k, target, options)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
@pytest.mark.parametrize("name", sorted(STEPS))
def test_contributions_on_an_emulated_gpu(name: str) -> None:
    from tests.simt.gpu import emulated_gpu

    with emulated_gpu():
        check(name, 17, "cuda", PULL, NFA)
        if name != "types":
            check(name, 3, "cuda", PUSH)
        if name != "matrices":
            options = {"change_driven": True, "feature_parallel": False}
            check(name, 17, "cuda", options)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_matrices_of_any_type_compile(feature_parallel: bool) -> None:
    options = Options(target="cuda", feature_parallel=feature_parallel)
    signature = make_state(17).signature
    traits = GraphTraits(4, False)
    kernel = Kernel(
        emit(make_plan(STEPS["matrices"].program, signature, options, traits))
    )
    assert "visible .entry" in kernel.ptx((9, 0))


@fg.gather(into="square", combine="sum", matrix=True)
def squares(i, f, u, v, e, d):
    return d.x[u, f] * d.x[u, i]


@fg.vertex
def store_square(f, v, d):
    d.r[v, f] = d.square[v]
    return True


@fg.vertex
def is_positive(f, v, d):
    return d.square[v] > 0


@fg.vertex
def store_row(f, v, d):
    d.r[v, f] = abs(d.x[v])
    return True


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ((squares, store_square), "d.square[v, i, f]"),
        ((squares, is_positive), "d.square[v, i, f]"),
        ((store_row,), "d.x[v, f]"),
    ],
)
def test_rows_and_matrices_are_no_values(functions: Any, expected: str) -> None:
    step = fg.foldmap(*functions)
    state = make_state(3)
    found = []
    with pytest.raises(fg.UserFunctionError, match="as a whole is no value") as caught:
        reference.superstep(step.program, *reference.from_state(state))
    found.append(caught.value)
    for target in ("cpu", "cuda"):
        with pytest.raises(fg.UserFunctionError) as caught:
            step.fold(state, target=target)
        found.append(caught.value)
    assert len({str(error) for error in found}) == 1
    assert str(found[0].expected).startswith(expected)

"""S5: the types of combines of one's own, on every target."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference


def make_state(x: Any, **more: Any) -> fg.State:
    """Return a State in which four vertices lead to the last, and one to the fifth."""
    graph = fg.Graph.from_edges([0, 1, 2, 3, 4], [5, 5, 5, 5, 4])
    return fg.State(graph, x=fg.vertex_property(x), **more)


def add(a, b):
    return a + b


def larger(a, b):
    return max(a, b)


def length(a, b):
    return math.sqrt(a * a + b * b)


def known(a, b):
    return b if a != a else (a if b != b else max(a, b))


def gathering(combine: fg.Combine) -> fg.FoldMap:
    @fg.gather(into="result", combine=combine)
    def take(f, u, v, e, d):
        return d.x[u]

    @fg.vertex
    def keep(f, v, d):
        d.out[v] = d.result[v]
        return True

    return fg.foldmap(take, keep)


def reducing(combine: fg.Combine) -> fg.FoldMap:
    @fg.reduce(into="out", combine=combine)
    def take(f, v, d):
        return d.x[v]

    return fg.foldmap(take)


LARGE = np.full(6, 1 << 30, np.int32)
TRUE = np.ones(6, bool)
SMALL = -np.arange(1, 7)
INF, NAN = math.inf, math.nan
#: Function, identity, contributions, results at the last two vertices, and of a reduce.
CASES: dict[str, Any] = {
    "beyond int32": (add, 0, LARGE, [1 << 30, 1 << 32], 6 << 30),
    "truth values": (add, 0, TRUE, [1, 4], 6),
    "truth values, one too many": (add, False, TRUE, [1, 4], 6),
    "an identity of -inf": (larger, -INF, SMALL, [-5, -1], None),
    "a whole identity": (larger, -9.0, SMALL, [-5, -1], -1),
    "an identity between integers": (larger, -0.5, SMALL, [-0.5, -0.5], None),
    "no number": (known, NAN, SMALL / 2, [-2.5, -0.5], -0.5),
    "real results": (length, 0, np.ones(6, np.int64), [1, 2], None),
    "real results of bool": (length, 0, TRUE, [1, 2], None),
}


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("name", CASES)
def test_gathers(name: str, direction: str, target: str) -> None:
    function, identity, x, ends, _ = CASES[name]
    step = gathering(fg.combine(function, identity=identity))
    is_whole = isinstance(identity, int) and function is not length

    def make() -> fg.State:
        out = np.zeros(6, np.int64 if is_whole else np.float64)
        return make_state(x, out=fg.vertex_property(out))

    state = make()
    step(state, target=target, direction=direction)
    meant = reference.superstep(step.program, *reference.from_state(make())).values
    wanted = [identity] * 4 + ends
    np.testing.assert_allclose(meant["out"], wanted, rtol=1e-6)
    np.testing.assert_allclose(state["out"], wanted, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][-1]])
def test_reduces(name: str, target: str) -> None:
    function, identity, x, _, whole = CASES[name]
    step = reducing(fg.combine(function, identity=identity))
    state = make_state(x)
    meant = reference.superstep(step.program, *reference.from_state(state)).values
    step(state, target=target)
    assert meant["out"].tolist() == np.asarray(state["out"]).tolist() == [whole]
    assert meant["out"].dtype == state["out"].dtype


@pytest.mark.parametrize(
    ("function", "identity"), [(length, 0), (larger, -INF), (larger, -0.5), (add, 1e30)]
)
def test_a_reduce_of_integers_is_no_real_number(
    function: Any, identity: float, target: str
) -> None:
    step = reducing(fg.combine(function, identity=identity))
    for x in (TRUE, SMALL):
        state = make_state(x)
        for run in (
            lambda state=state: reference.superstep(
                step.program, *reference.from_state(state)
            ),
            lambda state=state: step(state, target=target),
        ):
            with pytest.raises(fg.UserFunctionError, match="makes real num") as caught:
                run()
            assert "return float(...)" in (caught.value.fix or "")


@pytest.mark.parametrize("identity", [1 << 63, -(1 << 63) - 1])
def test_an_identity_has_64_bits(identity: int) -> None:
    with pytest.raises(fg.UserFunctionError, match="does not fit int64"):
        fg.combine(add, identity=identity)

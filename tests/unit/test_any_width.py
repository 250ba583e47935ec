"""Kernels for the CPU whose text serves any number of features K (0073)."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import featgraph as fg

PAGERANK = importlib.import_module("featgraph.algorithms.pagerank")
STEP = PAGERANK.step
#: Widths K: a vector of each size alone and with others, for both real types.
WIDTHS = (17, 18, 20, 24, 31, 32, 33, 63)


def texts(step: Any, width: int) -> tuple[str, str]:
    """Return the text that serves any K, and that of this K."""
    source = step.fold(k=width, target="cpu").kernel_source
    if source.shared is None:
        is_any = all(phase.any_width for phase in source.plan.phases)
        return (source.text, "") if is_any else ("", source.text)
    return source.shared.text, source.text


def reduce_of(function: Any, combine: str = "sum") -> Any:
    return fg.foldmap(fg.reduce(into="total", combine=combine)(function))


def vertex_of(function: Any) -> Any:
    return fg.foldmap(fg.vertex(function))


def test_reduces_of_a_program_share_a_text() -> None:
    (any_33, own_33), (any_70, own_70) = (texts(STEP, k) for k in (33, 70))
    assert any_33 == any_70
    assert own_33 != own_70
    assert "def sweep_0" in any_33
    assert "def sweep_2" in any_33
    assert "def sweep_1" in own_33
    assert "def sweep_0" not in own_33


def test_functions_without_features_stand_beside() -> None:
    """They write what the function behind them reads, of the same vertex."""
    begin = PAGERANK.begin[False]
    (any_33, own_33), (any_70, own_70) = texts(begin, 33), texts(begin, 70)
    assert any_33 == any_70 != ""
    assert own_33 == own_70 == ""


def test_few_features_stay_copies() -> None:
    source = STEP.fold(k=16, target="cpu").kernel_source
    assert source.shared is None
    assert not any(phase.any_width for phase in source.plan.phases)


def test_checked_kernels_have_a_text_for_each_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fg.config, "checked", True)
    source = STEP.fold(k=33, target="cpu").kernel_source
    assert source.shared is None


def difference(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.x[v, f] - d.y[v, f]) * d.s[v]


def larger(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] > d.y[v, f]


def quotient(f, v, d):  # type: ignore[no-untyped-def]
    d.z[v, f] = d.x[v, f] / d.s[v]
    return True


def local(f, v, d):  # type: ignore[no-untyped-def]
    half = d.s[v]
    both = d.x[v, f] + d.y[v, f]
    d.z[v, f] = both
    return half > 0


@pytest.mark.parametrize(
    "step",
    [
        reduce_of(difference), reduce_of(larger, "any"), reduce_of(larger),
        vertex_of(quotient), vertex_of(local),
    ],
    ids=["difference", "any", "count", "quotient", "local"],
)  # fmt: skip
def test_functions_of_one_rounding_serve_any_width(step: Any) -> None:
    (any_33, own_33), (any_70, own_70) = texts(step, 33), texts(step, 70)
    assert any_33 == any_70 != ""
    assert own_33 == own_70 == ""


def two_products(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] * d.s[v] + d.y[v, f] * d.x[v, f]


def chain(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] + d.s[v] + d.y[v, f]


def divided(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] / d.s[v]


def exponential(f, v, d):  # type: ignore[no-untyped-def]
    return math.exp(d.x[v, f])


def by_count(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] * d.feature_count


def product_and_quotient(f, v, d):  # type: ignore[no-untyped-def]
    d.z[v, f] = d.x[v, f] * d.y[v, f] / d.s[v]
    return True


def branching(f, v, d):  # type: ignore[no-untyped-def]
    if d.s[v] > 1:
        d.z[v, f] = d.x[v, f]
    return True


def voting(f, v, d):  # type: ignore[no-untyped-def]
    d.z[v, f] = d.x[v, f]
    return d.x[v, f] > 1


@pytest.mark.parametrize(
    "step",
    [
        *map(reduce_of, (two_products, chain, divided, exponential, by_count)),
        reduce_of(difference, "max"), reduce_of(difference, "product"),
        *map(vertex_of, (product_and_quotient, branching, voting)),
    ],
)  # fmt: skip
def test_functions_that_may_round_in_two_ways_have_a_text_for_each_width(
    step: Any,
) -> None:
    """The compiler chooses by the loop: one of known length keeps its bits."""
    (any_33, own_33), (any_34, own_34) = texts(step, 33), texts(step, 34)
    assert any_33 == any_34 == ""
    assert own_33 != own_34


@fg.reduce(into="apart", combine="sum")
def apart(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] - d.y[v, f]


@fg.reduce(into="found", combine="any")
def found(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] > 30


@fg.reduce(into="large", combine="sum")
def large(f, v, d):  # type: ignore[no-untyped-def]
    return d.s[v] > 1


@fg.vertex
def double(f, v, d):  # type: ignore[no-untyped-def]
    twice = d.x[v, f] * 2
    d.z_next[v, f] = twice
    return True


@fg.vertex
def divide(f, v, d):  # type: ignore[no-untyped-def]
    d.q[v, f] = d.y[v, f] / d.s[v]
    return d.s[v] > 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_feature_is_computed(width: int, dtype: str) -> None:
    """All numbers are small integers, or these by powers of two: nothing rounds."""
    rng, size = np.random.default_rng(width), 1000
    x, y = rng.integers(0, 32, (2, size, width)).astype(dtype)
    z, s = rng.integers(0, 9, (size, width)).astype(dtype), 2.0 ** (np.arange(size) % 3)
    graph = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=size)
    state = fg.State(
        graph, x=fg.vertex_property(x), y=fg.vertex_property(y),
        s=fg.vertex_property(s.astype(dtype)), q=fg.vertex_property(np.zeros_like(x)),
        z=fg.vertex_property(z, iterated=True),
    )  # fmt: skip
    step = fg.foldmap(apart, found, large, double, divide)
    assert all(p.any_width for p in step.fold(state, target="cpu").plan.phases)
    step(state, target="cpu")
    assert np.array_equal(state["apart"], (x - y).sum(axis=0))
    assert np.array_equal(state["found"], (x > 30).any(axis=0))
    assert np.array_equal(state["large"], [(s > 1).sum()])
    assert np.array_equal(state["q"], y / s[:, None].astype(dtype))
    assert np.array_equal(state["z"], np.where((s > 1)[:, None], 2 * x, z))

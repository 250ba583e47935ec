"""Functions of vertices that compare features: in loops, with the bits of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan import schedules


@fg.vertex
def choose(f: Any, v: Any, d: Any) -> bool:
    d.best[v] = fg.argmax(d.x[v, f])
    d.above[v] = fg.any_feature(d.x[v, f] > 0) and fg.all_features(d.x[v, f] > -1)
    d.scaled[v, f] = d.x[v, f] * 3.1 - d.best[v]
    return True


@fg.vertex
def choose_and_sum(f: Any, v: Any, d: Any) -> bool:
    d.best[v] = fg.argmax(d.x[v, f])
    d.spread[v] = fg.feature_sum(d.x[v, f])
    return True


@fg.vertex
def choose_and_bound(f: Any, v: Any, d: Any) -> bool:
    d.best[v] = fg.argmax(d.x[v, f])
    d.spread[v] = fg.feature_max(d.x[v, f])
    return True


@fg.vertex
def scale(f: Any, v: Any, d: Any) -> bool:
    d.scaled[v, f] = d.x[v, f] * 2.0
    return True


@fg.gather(into="most", combine="max")
def largest(f: Any, u: Any, v: Any, e: Any, d: Any) -> Any:
    return d.x[u, f]


@fg.vertex
def choose_of_neighbors(f: Any, v: Any, d: Any) -> bool:
    d.best[v] = fg.argmax(d.most[v, f])
    return True


def state(k: int) -> fg.State:
    rng = np.random.default_rng(k)
    x = rng.integers(-2, 3, (200, k)) * rng.random((200, 1))
    x[5], x[6, :2], x[7] = np.nan, np.nan, np.inf
    return fg.State(
        fg.Graph.from_edges([0], [1], vertex_count=200),
        x=fg.vertex_property(x.astype(np.float32)),
        best=fg.vertex_property(np.int64(0)),
        spread=fg.vertex_property(np.float32(0)),
        above=fg.vertex_property(False),
        scaled=fg.vertex_property(np.float32(0), shape=(k,)),
    )


@pytest.mark.parametrize("k", [1, 2, 3, 8, 16])
def test_loops_have_the_bits_of_copies(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looped, copied = state(k), state(k)
    fg.foldmap(choose)(looped, target="cpu")
    monkeypatch.setattr(schedules, "_chooses", lambda function: False)
    step = fg.foldmap(choose)
    step(copied, target="cpu")
    assert not step.fold(copied, target="cpu").plan.phases[0].mapping.is_looped
    for name in ("best", "above", "scaled"):
        assert looped[name].tobytes() == copied[name].tobytes(), name


@pytest.mark.parametrize(
    ("functions", "is_looped"),
    [
        ([choose], True),
        ([scale], False),
        ([choose_and_sum], False),
        ([choose_and_bound], False),
        ([choose, scale], False),
        ([largest, choose_of_neighbors], False),
    ],
    ids=["compares", "scales", "adds", "bounds", "with another", "gathers"],
)
def test_which_have_loops(functions: list[Any], is_looped: bool) -> None:
    """Sums and nan have other bits in loops; what compares nothing gains nothing."""
    step = fg.foldmap(*functions)
    phases = step.fold(state(8), target="cpu").plan.phases
    assert [p.mapping.is_looped for p in phases] == [is_looped]
    assert not any(
        p.mapping.is_looped for p in step.fold(k=8, target="cuda").plan.phases
    )

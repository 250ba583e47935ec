"""Functions over more than 16 features: vectors on the CPU, next to the interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference

#: Vectors of 16 (8 in float64), 4, 2 and 1 features.
K = 23


@fg.gather(into="near", combine="sum")
def weighted(f, u, v, e, d):
    near = fg.dot(d.x[u], d.y[v])
    if near > d.least:
        return d.w[e] * near * d.x[u, f]
    return -d.x[u, f] if d.w[e] > 0.5 else 0.25


@fg.gather(into="tally", combine="sum")
def counted(f, u, v, e, d):
    return d.bias[f]


@fg.vertex
def judge(f, v, d):
    if d.in_degree[v] == 0:
        return False
    x = d.x[v, f]
    near = d.near[v, f]
    inside = x > 0.25 and x <= d.limit
    odd = x > 0.9 or not math.isfinite(near) or (near == x and x != 0.5)
    spread = fg.matvec(d.psi, near - x) + fg.matvec(d.M[v], x)
    best = x if inside else -abs(near)
    if d.enabled:
        best = best / (1.0 + fg.feature_sum(abs(x)))
        scale = 2.0
    else:
        scale = fg.feature_sum(1.0)
    d.y_next[v, f] = (scale if odd else 1.0) * spread + best + d.tally[v, f]
    d.size[v] = scale * fg.norm(near)
    all_inside = fg.all_features(inside or odd)
    return all_inside or fg.any_feature(abs(near) > d.least)


judged = fg.foldmap(weighted, counted, judge)


def _values(graph: fg.Graph, rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
    count = graph.vertex_count

    def random(*shape: int) -> Any:
        return rng.uniform(0.125, 1.0, shape).astype(dtype)

    return {
        "x": fg.vertex_property(random(count, K)),
        "y": fg.vertex_property(random(count, K), iterated=True),
        "M": fg.vertex_property(random(count, K, K)),
        "size": fg.vertex_property(np.zeros(count, dtype)),
        "w": fg.edge_property(random(graph.given_edge_count)),
        "bias": random(K),
        "psi": random(K, K),
        "limit": 0.75,
        "least": float(rng.choice([1.0, K / 3, 50.0])),
        "enabled": bool(rng.random() < 0.5),
    }


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_agree_with_the_interpreter(dtype: Any, target: str) -> None:
    """Masks, choices, sums, products, uniform branches, and rows of odd length."""
    committed = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        ends = rng.integers(0, 9, (2, 30))
        graph = fg.Graph.from_edges(*ends, vertex_count=10)
        values = _values(graph, rng, dtype)
        state = fg.State(graph, **values)
        program = judged.program
        expected = reference.superstep(program, *reference.from_state(state))
        active = judged(state, target=target)
        assert set(active.vertices) == set(expected.active_out.vertices)
        committed += len(active)
        tolerance = 64 * K * np.finfo(dtype).eps
        for name in ("y", "size"):
            np.testing.assert_allclose(
                state[name], expected.values[name], rtol=tolerance,
                atol=tolerance * K, err_msg=f"{name}, seed {seed}",
            )  # fmt: skip
    assert 0 < committed < 60


@pytest.mark.parametrize(("k", "is_wide"), [(16, False), (17, True), (1024, False)])
def test_rows_of_17_to_256_features_are_vectors(k: int, is_wide: bool) -> None:
    """Fewer are named copies, more would not stay in registers."""
    source = fg.foldmap(counted, keep_count).fold(k=k, target="cpu").source
    assert ("vectors.store_" in source) == is_wide


@fg.vertex
def keep_count(f, v, d):
    d.y_next[v, f] = d.tally[v, f]
    return True


@fg.vertex
def sort_out(f, v, d):
    if d.tally[v, f] > 1.0:
        return False
    d.y_next[v, f] = math.exp(d.tally[v, f])
    return True


def test_what_does_not_fit_stays_loops() -> None:
    """Features that leave apart, and functions that have no vector form."""
    source = fg.foldmap(counted, sort_out).fold(k=20, target="cpu").source
    gather, _, vertex = source.partition("def sort_out")
    assert "vectors.load_16(d.bias, 0)" in gather
    assert "vectors." not in vertex.partition("@njit")[0]

"""Stores that wait for a verdict, and gathers not needed (CUDA, one thread)."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg
from tests.programs.common import floats

K = 4


@fg.gather(into="total", combine="sum")
def around(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def settle(f, v, d):
    if d.fixed[v] and d.level[v] > d.least:
        return False
    new = 0.5 * d.x[v, f] + d.total[v, f]
    d.x_next[v, f] = new
    moved = fg.any_feature(abs(new - d.x[v, f]) > d.least)
    return moved


@fg.vertex
def settle_and_look(f, v, d):
    new = 0.5 * d.x[v, f] + d.total[v, f]
    d.x_next[v, f] = new
    moved = fg.any_feature(abs(d.x_next[v, f] - d.x[v, f]) > d.least)
    return moved


@fg.vertex
def settle_and_rename(f, v, d):
    new = 0.5 * d.x[v, f] + d.total[v, f]
    d.x_next[v, f] = new
    new = new - d.x[v, f]
    moved = fg.any_feature(abs(new) > d.least)
    return moved


@fg.vertex
def settle_and_write(f, v, d):
    new = 0.5 * d.x[v, f] + d.total[v, f]
    moved = fg.any_feature(abs(new - d.x[v, f]) > d.least)
    d.x_next[v, f] = new + d.seen[v, f]
    d.seen[v, f] = new
    return moved


@fg.vertex
def leave_by_sum(f, v, d):
    if fg.feature_sum(d.total[v, f]) > d.least:
        return False
    d.x_next[v, f] = d.total[v, f]
    return True


@fg.vertex
def leave_with_true(f, v, d):
    if d.level[v] < d.least and d.fixed[v]:
        return True
    d.x_next[v, f] = d.total[v, f]
    return True


@fg.vertex
def leave_by_neighbor(f, v, d):
    if d.fixed[(v + 1) % d.vertex_count]:
        return False
    d.x_next[v, f] = fg.normalize(d.total[v, f])
    return True


@fg.vertex
def leave_by_feature(f, v, d):
    if d.x[v, f] > d.least:
        return False
    d.x_next[v, f] = d.total[v, f]
    return True


@fg.vertex
def leave_by_number(f, v, d):
    if f > 1:
        return False
    d.x_next[v, f] = d.total[v, f]
    return True


@fg.vertex
def keep(f, v, d):
    d.seen[v, f] = d.total[v, f]
    return True


def text_of(*functions: object, **options: object) -> str:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    rng = np.random.default_rng(0)
    state = fg.State(
        graph,
        x=fg.vertex_property(floats(rng, 3, K), iterated=True),
        seen=fg.vertex_property(floats(rng, 3, K)),
        fixed=fg.vertex_property(np.array([True, False, False])),
        level=fg.vertex_property(floats(rng, 3)),
        least=0.5,
    )
    chosen = {"feature_parallel": False, **options}
    kernel = fg.foldmap(*functions).fold(state, target="cuda", **chosen)
    return str(kernel.source)


def waits(text: str) -> bool:
    """Whether a row of x_next is stored under the verdict of its function."""
    return "    if moved_:\n        warp.store_row(d.x_next" in text


def test_a_store_waits_for_the_verdict() -> None:
    text = text_of(around, settle)
    assert waits(text)
    assert text.count("store_row(d.x_next") == 2


@pytest.mark.parametrize(
    "function", [settle_and_look, settle_and_rename, settle_and_write]
)
def test_a_store_does_not_wait_where_others_would_notice(function: object) -> None:
    text = text_of(around, function)
    assert "store_row(d.x_next" in text
    assert not waits(text)


def test_nothing_is_gathered_for_a_vertex_that_leaves_at_once() -> None:
    text = text_of(around, settle)
    kernel = text.split("def vertex_phase_0(")[1]
    condition = "alive = not (d.fixed[uint32(v)] and d.level[uint32(v)] > d.least)"
    assert condition in kernel
    walk = kernel.index("while position")
    assert kernel.index(condition) < kernel.index("if alive:") < walk
    assert walk < kernel.index("alive = settle(")


@pytest.mark.parametrize(
    "function",
    [
        leave_by_sum,
        leave_with_true,
        leave_by_neighbor,
        leave_by_feature,
        leave_by_number,
    ],
)
def test_other_vertices_gather_first(function: object) -> None:
    assert "alive = not" not in text_of(around, function)


def test_what_later_kernels_read_is_gathered_for_all() -> None:
    assert "alive = not" in text_of(around, settle, keep)
    assert "alive = not" not in text_of(around, settle, keep, folding=False)

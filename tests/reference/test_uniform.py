"""Values that are the same for all features of a vertex."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference


@fg.gather(into="best", combine="argmin")
def nearest(f, u, v, e, d):
    return d.x[u] if (d.x[u] > 2 if d.y[u, 0] > 1 else d.x[v] > 3) else -d.x[u]


@fg.vertex
def take(f, v, d):
    d.found[v] = d.best_source[v]
    return True


@fg.vertex
def widen(f, v, d):
    d.y_next[v, f] = d.y[v, f] + 1
    return True


@fg.vertex
def count(f, v, d):
    d.turns[v] = fg.feature_max(d.turns[v]) + 1
    return d.turns[v] < 2


@fg.vertex
def count_again(f, v, d):
    most = fg.feature_max(d.turns[v])
    d.turns[v] = fg.feature_min(most) + 1
    return d.turns[v] < 2


NAMES = {"argmin": "x y found", "in place": "y turns", "in place, later": "y turns"}
STEPS = {
    "argmin": fg.foldmap(nearest, take),
    "in place": fg.foldmap(widen, count),
    "in place, later": fg.foldmap(widen, count_again),
}


@pytest.mark.parametrize("name", STEPS)
def test_agrees_with_the_interpreter(name: str, target: str) -> None:
    check(name, target)


def check(name: str, target: str) -> None:
    """Compare a superstep with the interpreter's."""
    graph = fg.Graph.from_edges([0, 1, 2, 3, 0], [1, 2, 3, 0, 2], vertex_count=33)
    numbers, step = np.arange(33, dtype=np.float32), STEPS[name]
    given = {
        "x": fg.vertex_property(numbers % 6),
        "y": fg.vertex_property(np.stack([numbers % 4] * 3, axis=1), iterated=True),
        "found": fg.vertex_property(np.zeros(33, np.int32)),
        "turns": fg.vertex_property(np.arange(33, dtype=np.int32) % 4),
    }
    state = fg.State(graph, **{name: given[name] for name in NAMES[name].split()})
    meant = reference.superstep(step.program, *reference.from_state(state))
    out = step(state, target=target)
    assert out.vertices.tolist() == meant.active_out.vertices.tolist()
    for key, value in meant.values.items():
        np.testing.assert_array_equal(np.asarray(state[key]), value, err_msg=key)

"""A call that Python compiles behind each branch is one call to the interpreter."""

from __future__ import annotations

import numpy as np

import featgraph as fg
from featgraph import reference


@fg.vertex
def behind_a_choice(f, v, d):
    return fg.any_feature(d.x[v, f] > 1 if d.b[f] else False)


@fg.vertex
def behind_a_chain(f, v, d):
    return fg.any_feature(d.x[v, f] < d.x[v, 0] < 3)


def test_a_call_behind_a_choice_is_one_call(target: str) -> None:
    graph = fg.Graph.from_edges([0], [1], vertex_count=3)
    x = np.array([[2, 0, 0], [0, 5, 5], [2, 1, 4]], np.float32)
    for function, meant in ((behind_a_choice, [0, 1, 2]), (behind_a_chain, [0, 2])):
        used = {"b": np.array([True, True, False])}
        state = fg.State(
            graph,
            x=fg.vertex_property(x),
            **(used if function is behind_a_choice else {}),
        )
        step = fg.vertexmap(function)
        given = reference.from_state(state)
        assert (
            reference.superstep(step.program, *given).active_out.vertices.tolist()
            == meant
        )
        assert step(state, target=target).vertices.tolist() == meant

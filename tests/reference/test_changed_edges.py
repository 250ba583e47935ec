"""Edge functions that run on changed edges alone, against the interpreter (0069)."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from tests.programs.triangles import PROGRAMS, make_state
from tests.reference.test_triangles import simple_graphs
from tests.strategies import active_sets, seeds

PHASES = tuple(p for p in Phase if p is not Phase.shrink)
WAYS = ("some", "some", "all", "scalar", "edges", "others")


@fg.vertex
def counts(f, v, d):
    d.taken[v] = d.taken[v] + 1
    return False


@fg.edge
def adds(f, u, v, e, d):
    d.at_edge[e] = d.at_edge[e] + 1
    return True


peel = PROGRAMS["behind_changed_edges"]
others = fg.vertexmap(counts), fg.edgemap(adds)


def compare(state: fg.State, foldmap: fg.FoldMap, active: Any, target: str) -> None:
    outcome = reference.superstep(
        foldmap.program, *reference.from_state(state), active=active
    )
    assert foldmap(state, active_in=active, target=target) == outcome.active_out
    for each, value in outcome.values.items():
        np.testing.assert_array_equal(state[each], value, err_msg=each)


@pytest.mark.drawn(2)
def test_supersteps_between_writes_of_others(target: str) -> None:
    """Edges read values of the foldmap, of other foldmaps, and of the caller."""

    @settings(max_examples=15, phases=PHASES)
    @given(simple_graphs(most=20), seeds, st.data())
    def agrees(graph: fg.Graph, seed: int, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **make_state(graph, rng))
        state["at_edge"] = rng.integers(0, 9, state["at_edge"].shape, np.int32)
        for _ in range(6):
            way = data.draw(st.sampled_from(WAYS))
            if way == "scalar":
                state["limit"] = int(rng.integers(0, 15))
            if way == "edges":
                state["open"] = rng.random(state["open"].shape) < 0.9
            if way == "others":
                compare(state, others[int(rng.integers(2))], None, target)
            active = None if way == "all" else data.draw(active_sets(graph))
            compare(state, peel, active, target)

    agrees()


def test_a_run_peels_as_the_interpreter_does(target: str) -> None:
    rng = np.random.default_rng(3)
    pairs = np.argwhere(np.triu(rng.random((30, 30)) < 0.3, 1))
    graph = fg.Graph.from_edges(*pairs.T, directed=False)
    state = fg.State(graph, **make_state(graph, rng))
    supports = np.full(state["at_edge"].shape, 5, np.int32)
    supports[::7] = 0
    state["at_edge"], state["limit"] = supports, 7
    state["open"] = np.ones(supports.shape, np.bool_)
    ran = reference.iterate([peel.program], *reference.from_state(state))
    run = fg.iterate(peel, state, target=target)
    assert run.supersteps == ran.supersteps > 3
    np.testing.assert_array_equal(state["open"], ran.values["open"])
    np.testing.assert_array_equal(state["at_edge"], ran.values["at_edge"])


def test_the_next_state_on_a_graph_finds_all_edges_changed(target: str) -> None:
    """It takes up what the last one had bound, which refers to nothing of that."""
    rng = np.random.default_rng(5)
    ends = np.array(list(itertools.combinations(range(9), 2)))
    graph = fg.Graph.from_edges(*ends[rng.random(len(ends)) < 0.7].T, directed=False)
    for _ in range(3):
        state = fg.State(graph, **make_state(graph, rng))
        for active in (None, range(0, graph.vertex_count, 2)):
            compare(state, peel, active, target)
        residency: Any = state.residency
        kept = [weakref.ref(array) for array in residency.temporaries.values()]
        del state, residency
        if target == "cpu":  # a GPU keeps them for the next State
            assert kept
            assert not any(array() is not None for array in kept)

"""Triangle functions on one rank and on several, however the graph is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks.exchange import triangle_parts
from featgraph.reference import from_state, superstep
from tests.strategies import examples

V = 47


@fg.triangle
def add_up(u, v, w, e_uv, e_uw, e_vw, d):
    """Add at all corners, edges and their other directions, what stands anywhere."""
    x = d.x[u] + 3 * d.x[v] + 5 * d.x[w] + d.x[d.pick[w]]
    y = d.w[e_uv] + 3 * d.w[e_uw] + 5 * d.w[e_vw] + 7 * d.mark[fg.reverse(e_vw)]
    fg.atomic.add(d.first, u, x + y + v)
    fg.atomic.add(d.first, v, y * 2)
    fg.atomic.add(d.first, w, u + 1)
    fg.atomic.add(d.load, e_uv, x)
    fg.atomic.add(d.load, e_uw, y + d.mark[e_uw])
    fg.atomic.add(d.load, e_vw, x + y + w)
    fg.atomic.add(d.load, fg.reverse(e_vw), 1)


@fg.triangle(within="left")
def look_around(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.max(d.most, w, d.x[u] * 100 + v)
    fg.atomic.min(d.least, e_vw, d.x[u] + u)
    fg.atomic.add(d.elsewhere, d.pick[u], d.mark[e_vw])


@fg.vertex
def rise(f, v, d):
    d.x_next[v] = (d.x[v] * 3 + d.first[v]) % 101
    return d.x[v] % 3 > 0


@fg.edge
def part(f, u, v, e, d):
    d.left_next[e] = (d.mark[e] + d.x[u]) % 4 > 0
    d.mark[e] = (d.mark[e] * 2 + d.x[v]) % 31
    return d.mark[e] % 3 > 0


@fg.edge
def part_again(f, u, v, e, d):
    return d.mark[e] % 2 > 0


@fg.triangle
def lose(u, v, w, e_uv, e_uw, e_vw, d):
    lost = 1 + d.mark[e_uv] + d.left_next[e_vw]
    fg.atomic.add(d.load, e_uw, lost)
    fg.atomic.add(d.first, v, lost)


sums = fg.trianglemap(add_up)
behind = fg.foldmap(rise, look_around)
parted = fg.foldmap(part, lose)
twice = fg.foldmap(part, lose, part_again)
every = (sums, behind, parted, twice)


def make_graph(seed: int) -> fg.Graph:
    """Return a graph with hubs, loops and isolated vertices."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, V - 4, (2, 60 + 80 * seed))
    ends[1] = np.where(rng.random(ends.shape[1]) < 0.3, seed, ends[1])
    ends = np.unique(np.sort(ends, axis=0), axis=1)
    order = rng.permutation(ends.shape[1])
    return fg.Graph.from_edges(*ends[:, order], vertex_count=V, directed=False)


GRAPHS = [make_graph(seed) for seed in range(3)]


def make_state(graph: fg.Graph, seed: int) -> fg.State:
    rng, whole = np.random.default_rng(seed), GRAPHS[seed]
    count = whole.given_edge_count
    mark = rng.integers(0, 31, 2 * count)
    mark[count + whole.self_loops] = mark[whole.self_loops]
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 90, V), iterated=True),
        pick=fg.vertex_property(rng.integers(0, V, V)),
        first=fg.vertex_property(0),
        most=fg.vertex_property(-1),
        elsewhere=fg.vertex_property(0),
        w=fg.edge_property(rng.integers(0, 9, count)),
        mark=fg.edge_property(mark),
        left=fg.edge_property(True, iterated=True, per_direction=True),
        load=fg.edge_property(0, per_direction=True),
        least=fg.edge_property(10**6, per_direction=True),
    )


def run(graph: fg.Graph, seed: int, rounds: int, target: str = "cpu") -> list[Any]:
    """Return all that a user may look at behind some supersteps and a run."""
    rng, state, results = np.random.default_rng(rounds), make_state(graph, seed), []
    for number in rng.integers(0, len(every), rounds).tolist():
        active = np.flatnonzero(rng.random(V) < rng.choice([0.05, 0.5, 1.0]))
        active_in = None if active.size == V else active
        out = every[number](state, active_in=active_in, target=target)
        results += [out.mask, len(out)]
    ran = fg.iterate(
        [behind, parted], state, active=[1, 4], max_supersteps=4, target=target
    )
    results += [ran.active_counts]
    return results + [state[name] for name in state]


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert np.array_equal(one, other), f"the value at {place}"


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@examples(6, 12)
@example(seed=2, rounds=1, inner=[9, 32], order="given", batch=1280, kept=1 << 14)
@given(
    seed=st.integers(0, 2),
    rounds=st.integers(1, 4),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality"]),
    batch=st.sampled_from([64, 1280, 1 << 20]),
    kept=st.sampled_from([0, 1 << 14, 1 << 20]),
)
def test_triangles_are_the_same_on_any_number_of_ranks(
    seed: int, rounds: int, inner: list[int], order: str, batch: int, kept: int
) -> None:
    cuts, alone = [0, *inner, V], run(GRAPHS[seed], seed, rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triangle_parts, "BATCH_BYTES", batch)
        patch.setattr(triangle_parts, "KEPT_BYTES", kept)

        def on_a_rank(engine: Any) -> list[Any]:
            graph = fg.distribute(GRAPHS[seed], order=order, cuts=cuts)
            return run(graph, seed, rounds)

        for found in run_ranks(len(cuts) - 1, on_a_rank):
            require_same(found, alone)


@pytest.mark.parametrize("active", [None, np.arange(0, V, 5)])
def test_triangles_on_ranks_are_those_of_the_interpreter(active: Any) -> None:
    outcomes = [
        superstep(step.program, *from_state(make_state(GRAPHS[2], 2)), active=active)
        for step in every
    ]

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(GRAPHS[2], cuts=[0, 9, 32, V])
        for step, outcome in zip(every, outcomes, strict=True):
            state = make_state(graph, 2)
            out = step(state, active_in=active, target="cpu")
            assert np.array_equal(out.mask, outcome.active_out.mask)
            for name, value in outcome.values.items():
                np.testing.assert_array_equal(state[name], value, err_msg=name)

    run_ranks(3, on_a_rank)

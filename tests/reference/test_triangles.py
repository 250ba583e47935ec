"""Triangle functions: targets and schedules against the interpreter, and by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from tests.programs.triangles import PROGRAMS, everywhere, make_state
from tests.strategies import active_sets, seeds

#: Shrinking runs the interpreter for minutes.
PHASES = tuple(p for p in Phase if p is not Phase.shrink)
SCHEDULES = {"cpu": ("mark", "merge"), "cuda": ("mark", "search")}
#: Programs that are compiled for every schedule; one will do for the others.
IN_ALL_WAYS = {"everywhere", "filters"}


@st.composite
def simple_graphs(draw: st.DrawFn, *, most: int = 33) -> fg.Graph:
    """Draw an undirected graph without parallel edges; self-loops are there."""
    count = draw(st.sampled_from([v for v in (1, 2, 3, 8, 20, 33) if v <= most]))
    density = draw(st.sampled_from([0.1, 0.4, 1.0]))
    rng = np.random.default_rng(draw(seeds))
    pairs = np.array([*itertools.combinations(range(count), 2)], int).reshape(-1, 2)
    pairs = pairs[rng.random(len(pairs)) < density]
    turned = rng.random(len(pairs)) < 0.5
    pairs[turned] = pairs[turned, ::-1]
    loops = np.repeat(np.flatnonzero(rng.random(count) < 0.2), 2).reshape(-1, 2)
    ends = rng.permutation(np.concatenate([pairs, loops]))
    return fg.Graph.from_edges(*ends.T, vertex_count=count, directed=False)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_supersteps_in_a_row(name: str, target: str) -> None:
    """Any A in turn, every schedule; what stands at edges is committed and read."""
    foldmap = PROGRAMS[name]

    @settings(max_examples=12, phases=PHASES)
    @given(simple_graphs(), seeds, st.data())
    def agrees(graph: fg.Graph, seed: int, data: st.DataObject) -> None:
        state = fg.State(graph, **make_state(graph, np.random.default_rng(seed)))
        for _ in range(2):
            active = data.draw(active_sets(graph))
            outcome = reference.superstep(
                foldmap.program, *reference.from_state(state), active=active
            )
            ways = SCHEDULES[target][: 2 if name in IN_ALL_WAYS else 1]
            schedule = data.draw(st.sampled_from(ways))
            made = foldmap(state, active_in=active, target=target, schedule=schedule)
            assert made == outcome.active_out
            for each, value in outcome.values.items():
                np.testing.assert_array_equal(state[each], value, err_msg=each)

    agrees()


@fg.triangle
def name_all(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.at_edge, e_uv, d.number[e_uv])
    fg.atomic.add(d.at_edge, e_uw, 10 * d.number[e_uw])
    fg.atomic.add(d.at_edge, e_vw, 100 * d.number[e_vw])
    fg.atomic.add(d.first, u, 1)
    fg.atomic.add(d.last, w, 1)


def test_places_by_hand(target: str) -> None:
    """A triangle 0, 1, 2 with a tail at 1: degrees 2, 3, 2, so 0 comes before 2."""
    graph = fg.Graph.from_edges([1, 2, 0, 3, 3], [0, 1, 2, 1, 3], directed=False)
    state = fg.State(
        graph,
        number=fg.edge_property(np.arange(1, 11), per_direction=True),
        at_edge=fg.edge_property(0, per_direction=True),
        first=fg.vertex_property(0),
        last=fg.vertex_property(0),
    )
    fg.trianglemap(name_all)(state, target=target)
    assert state["first"].tolist() == [1, 0, 0, 0]
    assert state["last"].tolist() == [0, 1, 0, 0]
    # u, v, w = 0, 2, 1: the edges 0 -> 2 as given, 0 -> 1 and 2 -> 1.
    twin = graph.given_edge_count
    expected = np.zeros(10, int)
    expected[2], expected[twin + 0], expected[1] = 3, 10 * (twin + 1), 200
    assert state["at_edge"].tolist() == expected.tolist()


def state_of(graph: fg.Graph) -> fg.State:
    return fg.State(graph, **make_state(graph, np.random.default_rng(0)))


def test_graphs_without_triangles_by_definition(target: str) -> None:
    once = {"vertex_count": 3, "directed": False}
    doubled = fg.Graph.from_edges([0, 1, 1, 1], [1, 2, 0, 1], **once)
    with pytest.raises(fg.StateError, match="parallel edges") as raised:
        PROGRAMS["everywhere"](state_of(doubled), target=target)
    assert 'duplicates="first"' in str(raised.value)
    assert "between 0 and 1" in str(raised.value)
    assert "in everywhere" in str(raised.value)
    directed = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    state = fg.State(directed, triangles=fg.vertex_property(0))
    with pytest.raises(fg.StateError, match="directed=False"):
        fg.trianglemap(count)(state, target=target)
    loops = fg.Graph.from_edges([0, 1, 1, 1], [1, 2, 1, 1], **once)
    PROGRAMS["everywhere"](state_of(loops), target=target)


@fg.triangle
def count(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.triangles, u, 1)


@fg.triangle
def returns_something(u, v, w, e_uv, e_uw, e_vw, d):
    return True


@fg.triangle
def writes(u, v, w, e_uv, e_uw, e_vw, d):
    d.x[u] = 1


@fg.triangle
def reads_back(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.x, u, d.x[v])


@fg.triangle
def row(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.real, u, fg.dot(d.wide[u], d.wide[v]))


@fg.triangle
def other_edge(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.x, u, d.edge[u])


@fg.triangle
def shared(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.edge, e_uv, 1)


@fg.triangle
def gathered(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.x, u, d.near[u])


@fg.triangle(within="x")
def filtered_by_vertices(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.other, u, 1)


@fg.triangle(within="each")
def changes_its_filter(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.each, e_uv, -1)


@fg.gather(into="near", combine="sum")
def neighbors(f, u, v, e, d):
    return 1


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ((returns_something,), "decides nothing"),
        ((writes,), "use fg.atomic"),
        ((reads_back,), "updated atomically and read"),
        ((row,), "once a triangle, not once a feature"),
        ((other_edge,), "e_uv, e_uw, e_vw"),
        ((shared,), "per_direction=True"),
        ((neighbors, gathered), "known at the due vertices only"),
        ((filtered_by_vertices,), "no property of edges"),
        ((changes_its_filter,), "selects the triangles"),
    ],
)
def test_what_is_refused(functions: Any, message: str) -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    state = fg.State(
        graph,
        x=fg.vertex_property(0),
        other=fg.vertex_property(0),
        real=fg.vertex_property(0.0),
        wide=fg.vertex_property(np.zeros((3, 2), np.float32)),
        edge=fg.edge_property(0),
        each=fg.edge_property(0, per_direction=True),
    )
    with pytest.raises(fg.UserFunctionError, match=message):
        fg.foldmap(*functions)(state, target="cpu")


def test_schedules_are_for_triangles_and_targets() -> None:
    foldmap = fg.trianglemap(everywhere)
    with pytest.raises(fg.PlanError, match="'mark', 'merge'"):
        foldmap.fold(target="cpu", schedule="search")
    with pytest.raises(fg.PlanError, match="'mark', 'search'"):
        foldmap.fold(target="cuda", schedule="merge")
    near = fg.foldmap(neighbors)
    with pytest.raises(fg.PlanError, match="a triangle function"):
        near.fold(target="cpu", schedule="merge")
    with pytest.raises(fg.UserFunctionError, match="trianglemap takes triangle"):
        fg.trianglemap(neighbors)
    with pytest.raises(fg.PlanError, match="atomic"):
        foldmap.fold(target="cpu", deterministic=True)

"""Gathers that stop at the first contribution: what is printed, and what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from tests.unit.snippets import Snippet

PROGRAM = """
@fg.vertex
def wanted(f, v, d):
    return d.want[v] > 0

@fg.gather(into="best", combine="argmin", first=True)
def one(f, u, v, e, d):
    return d.key[d.where[e]]

@fg.gather(into="touched", combine="any")
def some(f, u, v, e, d):
    return d.key[d.where[e]] == 7

@fg.vertex
def keep(f, v, d):
    d.y[v] = d.best_source[v]
    return True

@fg.vertex
def keep_hit(f, v, d):
    d.y[v] = d.touched[v]
    return True

first = fg.foldmap(wanted, one, keep)
anybody = fg.foldmap(some, keep_hit)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Snippet(tmp_path_factory.mktemp("first"), PROGRAM, name="firsts").load()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fg.config, "checked", True)


def make_state(where: Any, *, want: int = 1) -> fg.State:
    """Make three edges into vertex 0; edge i looks for its key at ``where[i]``."""
    graph = fg.Graph.from_edges([3, 2, 1], [0, 0, 0])
    return fg.State(
        graph,
        key=fg.vertex_property(np.array([7, 9, 9, 9])),
        where=fg.edge_property(np.array(where)),
        want=fg.vertex_property(np.array([want, 0, 0, 0])),
        y=fg.vertex_property(-5, shape=()),
    )


#: An index that checked mode reports, if it is ever looked at.
WILD = 1000


def test_edges_behind_the_first_are_not_looked_at(
    program: Any, target: str, checked: None
) -> None:
    state = make_state([0, WILD, WILD])
    # One thread a vertex: lanes that share one look at several edges at a time.
    program.first(state, target=target, feature_parallel=False)
    assert state["y"][0] == 3
    with pytest.raises(fg.KernelFaultError, match=str(WILD)):
        program.first(state, target=target, deterministic=True)


def test_the_smallest_source_is_deterministic(program: Any, target: str) -> None:
    state = make_state([0, 0, 0])
    program.first(state, target=target, feature_parallel=False)
    assert state["y"][0] == 3
    program.first(state, target=target, deterministic=True)
    assert state["y"][0] == 1


def test_any_is_done_at_the_first_true(
    program: Any, target: str, checked: None
) -> None:
    state = make_state([1, 0, WILD])
    program.anybody(state, target=target, feature_parallel=False)
    assert state["y"].tolist() == [1, 0, 0, 0]
    with pytest.raises(fg.KernelFaultError):
        program.anybody(make_state([1, 1, WILD]), target=target)


def test_finished_vertices_look_at_no_edge(
    program: Any, target: str, checked: None
) -> None:
    state = make_state([WILD, WILD, WILD], want=0)
    program.first(state, target=target)
    assert (state["y"] == -5).all()
    assert len(program.first.fold(state, target=target).plan.phases) == 1


def test_explain_shows_what_stops(program: Any) -> None:
    assert "stops: best" in program.first.explain(target="cpu")
    assert "stops: touched" in program.anybody.explain(target="cpu")
    explained = program.first.explain(target="cpu", deterministic=True)
    assert "stops" not in explained


NEWS = """
@fg.gather(into="news", combine="sum", sources="active")
def tell(f, u, v, e, d):
    return d.x[u]

@fg.gather(into="least", combine="argmin", sources="active")
def tell_least(f, u, v, e, d):
    return d.size[u]

@fg.vertex
def hear(f, v, d):
    d.y_next[v] = d.news[v]
    d.origin_next[v] = d.least_source[v]
    return True

@fg.gather(into="all_news", combine="sum")
def tell_all(f, u, v, e, d):
    return d.x[u]

@fg.vertex
def hear_all(f, v, d):
    d.y_next[v] = d.all_news[v]
    return True

step = fg.foldmap(tell, tell_least, hear)
plain = fg.foldmap(tell_all, hear_all)
"""


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Snippet(tmp_path_factory.mktemp("news"), NEWS, name="news").load()


def news_state(rng: np.random.Generator, *, iterated: bool = False) -> fg.State:
    graph = fg.Graph.from_edges(*rng.integers(0, 60, (2, 400)), vertex_count=65)
    none = np.full(65, -7)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 9, 65), iterated=iterated),
        size=fg.vertex_property(rng.integers(0, 9, 65).astype(np.float32)),
        y=fg.vertex_property(none, iterated=True),
        **{"origin": fg.vertex_property(none.astype(np.int32), iterated=True)},
    )


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_active_sources_alone_are_combined(
    news: Any, direction: str, target: str
) -> None:
    state = news_state(np.random.default_rng(5))
    active = np.random.default_rng(6).permutation(65)[:20]
    due = news.step(state, active_in=active, direction=direction, target=target)
    graph, x, size = state.graph, state["x"], state["size"]
    expected = np.full(65, -7)
    sources = expected.copy()
    for v in due.vertices:
        into = graph.sources[graph.targets == v]
        into = np.sort(into[np.isin(into, active)])
        expected[v] = x[into].sum()
        sources[v] = into[np.argmin(size[into])] if into.size else -1
    assert np.array_equal(state["y"], expected)
    assert np.array_equal(state["origin"], sources)
    assert (sources == -1).any()  # active itself, and told nothing


def test_what_misses_news_is_refused(news: Any, target: str) -> None:
    state = news_state(np.random.default_rng(5))
    before = state["y"]
    with pytest.raises(fg.PlanError, match="tell gathers from active vertices only"):
        fg.iterate(news.step.on([1, 2]), state, target=target)
    with pytest.raises(fg.PlanError, match="gathers from active vertices only"):
        fg.iterate(news.step, state, change_driven=False, target=target)
    assert np.array_equal(state["y"], before)


def test_explain_names_active_sources(news: Any) -> None:
    text = news.step.explain(target="cpu")
    assert text.count("of active sources") == 2
    assert "combines active sources only" in text
    assert "of active sources" not in news.plain.explain(target="cpu")


def test_sources_are_all_or_active(tmp_path: Path) -> None:
    text = """
@fg.gather(into="x", sources="passive")
def bad(f, u, v, e, d):
    return d.key[u]
"""
    with pytest.raises(fg.UserFunctionError, match="all sources or the active ones"):
        Snippet(tmp_path, text).load()


@pytest.mark.parametrize(
    "given", ['combine="sum"', 'combine="min", matrix=True', "combine=own"]
)
def test_first_takes_combines_that_select(tmp_path: Path, given: str) -> None:
    matrix = "i, " * ("matrix" in given)
    text = f"""
def larger(a, b):
    return max(a, b)

own = fg.combine(larger, identity=0.0)

@fg.gather(into="x", {given}, first=True)
def bad({matrix}f, u, v, e, d):
    return d.key[u]
"""
    with pytest.raises(fg.UserFunctionError, match="first=True takes one") as caught:
        Snippet(tmp_path, text).load()
    assert "argmin" in str(caught.value)

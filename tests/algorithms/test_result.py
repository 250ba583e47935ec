"""The common base of results: residuals as they were, and their picture."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms import bfs, closeness_centrality, sssp, sswp
from featgraph.algorithms._result import Result, iterate_recorded
from featgraph.algorithms.factor_propagation import FactorPropagationResult


@fg.gather(into="mean", combine="sum")
def shares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u, f] / d.in_degree[v]


@fg.vertex
def approach(f, v, d):  # type: ignore[no-untyped-def]
    new = (d.x[v, f] + d.mean[v, f]) / 2
    d.x_next[v, f] = new
    return fg.any_feature(abs(new - d.x[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.x_next[v, f] - d.x[v, f])


plain = fg.foldmap(shares, approach)
recording = fg.foldmap(shares, approach, largest_change)


def new_state(rng: np.random.Generator, epsilon: float = 1e-3) -> fg.State:
    ends = rng.integers(0, 33, (2, 90))
    graph = fg.Graph.from_edges(*ends, vertex_count=33, directed=False)
    x = rng.random((33, 3), np.float32)
    return fg.State(
        graph, x=fg.vertex_property(x, iterated=True), epsilon=float(epsilon)
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"direction": "push"},
    {"folding": False},
    {"feature_parallel": False},
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_residual_is_what_the_superstep_committed(
    options: dict[str, Any], target: str, rng: np.random.Generator
) -> None:
    state = new_state(rng)
    before, expected = state["x"], []

    def watch(run: fg.Run, state: fg.State) -> None:
        nonlocal before
        expected.append(np.abs(state["x"] - before).max())
        before = state["x"]

    run, residuals = iterate_recorded(
        recording, state, callback=watch, target=target, **options
    )
    assert run.converged
    assert residuals.tolist() == pytest.approx(expected, rel=1e-6)
    # The last superstep proposed changes of up to epsilon, and dropped them all.
    assert residuals[-1] == 0 < residuals[-2]


def test_recording_changes_nothing(target: str, rng: np.random.Generator) -> None:
    state = new_state(rng)
    other = fg.State(
        state.graph, x=fg.vertex_property(state["x"], iterated=True), epsilon=1e-3
    )
    run, residuals = iterate_recorded(recording, state, target=target)
    same, none = iterate_recorded(plain, other, history=False, target=target)
    assert np.array_equal(state["x"], other["x"])
    assert run.active_counts == same.active_counts
    assert (residuals.size, none.size) == (run.supersteps, 0)


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_a_callback_ends_the_run_as_it_does_in_iterate(
    target: str, rng: np.random.Generator
) -> None:
    run, residuals = iterate_recorded(
        recording,
        new_state(rng),
        callback=lambda run, state: run.supersteps == 2,
        target=target,
    )
    assert (run.supersteps, residuals.size, run.converged) == (2, 2, False)


class Recorded(Result):
    residual_name = "largest change"


def result_of(residuals: list[float], supersteps: int) -> Result:
    run = fg.Run("cpu", [], supersteps=supersteps, converged=True)
    return Recorded(run=run, residuals=np.array(residuals))


def test_a_result_records_how_the_run_ended() -> None:
    result = result_of([0.5, 0.0], 2)
    assert result.converged
    assert result.supersteps == 2


def test_plot_draws_every_change_on_a_log_scale() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    result = result_of([0.5, 0.125, 0.0], 3)
    axes = result.plot()
    try:
        assert axes.get_yscale() == "log"
        (line,) = axes.get_lines()
        assert line.get_xydata().tolist() == [[1, 0.5], [2, 0.125]]
        assert axes.get_xlabel() == "superstep"
        assert axes.get_ylabel() == "largest change"
        assert result.plot(axes) is axes
        assert len(axes.get_lines()) == 2
    finally:
        pyplot.close(axes.figure)


def test_plot_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(fg.FeatGraphError, match=r"featgraph\[plot\]"):
        result_of([0.5], 1).plot()
    with pytest.raises(fg.FeatGraphError, match="history=True"):
        result_of([], 3).plot()


ROADS = fg.Graph.from_edges([0, 0, 1, 2, 4], [1, 2, 3, 3, 3], vertex_count=6)
NAMED = fg.Graph.from_edges(["a", "b", "d"], ["b", "c", "c"], names=True)


@pytest.mark.parametrize("search", ["bfs", "sssp", "sswp"])
def test_paths_lead_from_their_source(search: str) -> None:
    find = {"bfs": bfs, "sssp": sssp, "sswp": sswp}[search]
    both = find(ROADS, [0, 4], target="cpu")
    assert both.path_to(3, search=0) == [0, 1, 3]
    assert both.path_to(3, search=1) == [4, 3]
    assert both.path_to(0, search=0) == [0]
    assert both.path_to(5, search=0) == both.path_to(0, search=1) == []
    one = find(NAMED, 0, target="cpu")
    assert one.path_to("c") == one.path_to(2) == ["a", "b", "c"]
    assert one.path_to("d") == []
    for vertex, options, message in (
        (6, {"search": 0}, "0 <= vertex < 6"),
        (-1, {"search": 0}, "0 <= vertex < 6"),
        ("c", {"search": 0}, "expected: a number"),
        (True, {"search": 0}, "expected: a number"),
        (3, {}, "0 <= search < 2"),
        (3, {"search": 2}, "0 <= search < 2"),
        (3, {"search": "a"}, "0 <= search < 2"),
    ):
        with pytest.raises(fg.GraphInputError, match=message):
            both.path_to(vertex, **options)
    with pytest.raises(fg.GraphInputError, match="or a vertex name"):
        one.path_to("e")


def test_a_path_of_several_sources_together_begins_at_one_of_them() -> None:
    found = bfs(ROADS, [0, 4], together=True, target="cpu")
    assert found.path_to(3) in ([4, 3], [0, 1, 3])
    assert len(found.path_to(3)) == 1 + found.levels[3]


def test_frames_have_a_row_for_each_vertex() -> None:
    frame = bfs(NAMED, 0, target="cpu").to_frame()
    assert frame.index.tolist() == list(NAMED.vertex_names)
    assert frame.index.name == "vertex"
    assert frame.loc["c"].to_dict() == {"levels": 2, "parents": 1}
    columns = bfs(ROADS, [0, 4], target="cpu").to_frame()
    assert list(columns) == ["levels_0", "levels_1", "parents_0", "parents_1"]
    assert columns["levels_1"].tolist() == [-1, -1, -1, 1, 0, -1]
    some = closeness_centrality(NAMED, [2, 1], target="cpu").to_frame()
    assert some.index.tolist() == ["c", "b"]
    assert some.loc["c", "reaching"] == 3
    pairs = fg.Graph.from_networkx(nx.Graph([(("x", 1), ("y", 2))]))
    tuples = bfs(pairs, 0, target="cpu").to_frame()
    assert tuples.index.tolist() == [("x", 1), ("y", 2)]


def test_frames_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fg.FeatGraphError, match="no answer for each vertex"):
        result_of([0.5], 1).to_frame()
    found = bfs(NAMED, 0, target="cpu")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fg.FeatGraphError, match="pip install pandas"):
        found.to_frame()


def test_a_repr_has_ten_lines_at_most_and_reads_no_answer() -> None:
    many = fg.Graph.from_edges(np.arange(2000), np.arange(2000)[::-1])
    found = bfs(many, [0, 1], target="cpu")
    text = repr(found)
    assert text.splitlines() == [
        f"<BfsResult: {repr(found.run)[6:-1]}",
        "  residuals: float64 of shape (0,)",
        "  levels: int32 of shape (2000, 2)",
        "  parents: int32 of shape (2000, 2)>",
    ]
    assert "levels" not in vars(found)
    found.levels.sum()
    assert repr(found) == text
    for kind in every_result():
        assert len(fields(kind)) <= 10
        assert kind.__repr__ is Result.__repr__
    properties = {f"p{i}": fg.vertex_property(0.0) for i in range(50)}
    state = repr(fg.State(many, **properties)).splitlines()
    assert len(state) <= 10
    assert state[-1] == "  and 43 more"


def every_result(base: type[Result] = Result) -> list[type[Result]]:
    return [k for one in base.__subclasses__() for k in (one, *every_result(one))]


def test_a_repr_of_values_is_cut_to_a_line() -> None:
    result = FactorPropagationResult(
        run=fg.Run("cpu", [], supersteps=1, converged=True), residuals=np.zeros(1),
        marginals={name: np.zeros(2) for name in map(str, range(30))},
        states={}, log_score=0.5,
    )  # fmt: skip
    lines = repr(result).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) < 100


#: Algorithms that record residuals by themselves.
COMPARE = {"eigenvector_centrality", "hits", "katz_centrality", "pagerank"}


@pytest.mark.parametrize("name", algorithms.__all__)
def test_history_is_advised_and_taken_by_the_same_algorithms(name: str) -> None:
    function = getattr(algorithms, name)
    if inspect.isclass(function):
        return  # an estimator, whose result is that of its algorithm
    takes = "history" in inspect.signature(function).parameters
    module = sys.modules[function.__module__]
    made = getattr(module, inspect.signature(function).return_annotation)
    assert bool(made.residual_name) == (takes or name in COMPARE)
    run = fg.Run("cpu", [], supersteps=3)
    without = SimpleNamespace(run=run, supersteps=3, residuals=np.empty(0))
    for field in ("residual_name", "residual_fix"):
        setattr(without, field, getattr(made, field))
    with pytest.raises(fg.FeatGraphError) as caught:
        made.plot(without)
    assert ("history=True" in str(caught.value)) == takes
    if not takes:
        with pytest.raises(fg.ArgumentError, match="no option 'history'"):
            function(None, history=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trget": "cpu"}, "did you mean 'target'"),
        ({"until": lambda state: True}, "pagerank takes no until="),
        ({"callback": 3}, "callback="),
        ({"alpha": None}, "alpha="),
        ({"max_supersteps": 10**400}, "max_supersteps="),
    ],
)
def test_options_are_checked_before_the_graph_is(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(fg.FeatGraphError, match=message):
        algorithms.pagerank(None, **given)

"""Arrays that a schedule prepares: made once, kept as long as they hold."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.graph.views.view import Preparation
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.ordered import OrderedSchedule, added, order_of
from tests.versions import HOW, VERTICES, change, changeable, versions


@pytest.fixture
def ordered() -> Iterator[OrderedSchedule]:
    schedule = OrderedSchedule()
    with added(schedule):
        yield schedule


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u] + d.weight[e]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    d.out[v] = d.total[v]
    return True


step = fg.foldmap(add, keep)
#: Places of an order: more than any has.
ALL = 1 << 20


def state_of(graph: fg.Graph, edges: fg.Graph | None = None) -> fg.State:
    """Return a State on a graph, which may have the edges of another one by now."""
    count = graph.vertex_count
    weights = np.arange((edges or graph).given_edge_count, dtype=np.int64) % 7
    return fg.State(
        graph,
        x=fg.vertex_property(np.arange(count, dtype=np.int64)),
        weight=fg.edge_property(weights),
        out=fg.vertex_property(np.full(count, -1)),
    )


def run(state: fg.State, target: str, supersteps: int = 3, **options: Any) -> Any:
    state["out"] = np.full(state.graph.vertex_count, -1)
    return fg.iterate(
        step, state, target=target, supersteps=supersteps, schedule="ordered", **options
    )


def wanted(edges: fg.Graph, seed: int = 0, most: int = ALL) -> Any:
    """Return the expected values of a run, in NumPy: the first places of the order."""
    count = edges.given_edge_count
    contributed = edges.sources + np.arange(count) % 7
    total = np.bincount(edges.targets, contributed, edges.vertex_count).astype(int)
    out = np.full(edges.vertex_count, -1)
    first = order_of(edges, seed)[:most]
    out[first] = total[first]
    return out


def check(state: fg.State, edges: fg.Graph, seed: int = 0, most: int = ALL) -> None:
    np.testing.assert_array_equal(state["out"], wanted(edges, seed, most))


def graphs(how: str = "reshaped") -> tuple[fg.Graph, fg.Graph]:
    return versions(np.random.default_rng(8), how)


def check_once(ordered: OrderedSchedule, target: str) -> None:
    """An order is made once for a graph and a seed, and counted where it is made."""
    graph = graphs()[0]
    state = state_of(graph)
    first = run(state, target)
    check(state, graph)
    assert first.preparation.bytes == 4 * VERTICES
    assert first.preparation.seconds > 0
    assert first.seconds[0] > 0
    assert len(first.seconds) == 3
    assert run(state, target).preparation == Preparation()
    assert run(state_of(graph), target).preparation == Preparation()
    assert ordered.made == [0]
    again = run(state, target, drawn_by=5, most_places=9)
    check(state, graph, 5, 9)
    assert again.preparation.bytes == 4 * VERTICES
    assert ordered.made == [0, 5]
    assert run(state, target).preparation == Preparation()
    check(state, graph)
    assert ordered.made == [0, 5]


def check_versions(ordered: OrderedSchedule, target: str, how: str) -> None:
    """Other edges take another order; another one in its place is seen."""
    first, second = graphs(how)
    graph = changeable(copy.deepcopy(first), target, how)
    for made, edges in enumerate((first, second), 1):
        if edges is second:
            change(graph, second, target, how)
        for most in (40, 7):  # what is swept depends on the order
            state = state_of(graph, edges)
            ran = run(state, target, most_places=most)
            check(state, edges, 0, most)
            assert (ran.preparation == Preparation()) is (most == 7)
        assert ordered.made == [0] * made


def check_columns(
    ordered: OrderedSchedule, target: str, patch: pytest.MonkeyPatch
) -> None:
    """Another version of a column is copied anew; the order stays."""
    patch.setattr(OrderedSchedule, "copies_columns", True)
    graph = graphs()[0]
    state = state_of(graph)
    for _ in range(2):
        for is_first in (True, False):
            ran = run(state, target, most_places=9)
            assert (ran.preparation.bytes > 0) is is_first
        assert len(ordered.made) == 1
        weight = np.array(state["weight"])
        assert ordered.copied_values[0].max() == weight[: graph.vertex_count].max()
        state["weight"] = weight - 100
    view = graph_arrays(graph, choose_device(target))
    assert len(view._prepared) == 1


def check_compiled_once(target: str) -> None:
    """Another value of an option that kernels take is no other kernel."""
    graph = graphs()[0]
    state = state_of(graph)
    kernels = [run(state, target, most_places=n).kernels for n in (3, 2, 70)]
    assert kernels[0][0] is kernels[1][0] is kernels[2][0]


def test_orders_are_made_once(ordered: OrderedSchedule) -> None:
    check_once(ordered, "cpu")


@pytest.mark.parametrize("how", HOW)
def test_another_version_has_another_order(ordered: OrderedSchedule, how: str) -> None:
    check_versions(ordered, "cpu", how)


def test_another_column_is_copied(
    ordered: OrderedSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_columns(ordered, "cpu", monkeypatch)


def test_other_values_of_options_compile_nothing(ordered: OrderedSchedule) -> None:
    check_compiled_once("cpu")


def test_a_call_of_a_foldmap_goes_by_its_options(ordered: OrderedSchedule) -> None:
    graph = graphs()[0]
    state = state_of(graph)

    def begin(run: Any, state: fg.State) -> Any:
        if run.supersteps > 1:
            return None
        step(state, target="cpu", schedule="ordered", most_places=70)
        state["out"] = np.full(VERTICES, -1)
        return np.arange(VERTICES)

    run(state, "cpu", supersteps=1, most_places=5)
    fg.iterate(
        step, state, target="cpu", schedule="ordered", most_places=5, max_supersteps=3,
        active=[], then=begin, callback=lambda run, state: run.supersteps == 2,
    )  # fmt: skip
    check(state, graph, 0, 5)


def test_what_was_prepared_is_gone_with_the_graph(ordered: OrderedSchedule) -> None:
    graph = graphs()[0]
    state = state_of(graph)
    run(state, "cpu")
    [found] = graph_arrays(graph, choose_device("cpu"))._prepared.values()
    order = weakref.ref(found.arrays["order"])
    del found, state, graph
    gc.collect()
    assert order() is None


def test_orders_of_few_seeds_are_kept(ordered: OrderedSchedule) -> None:
    graph = graphs()[0]
    state = state_of(graph)
    for seed in [*range(9), 8, 0]:
        run(state, "cpu", supersteps=1, drawn_by=seed)
    assert ordered.made == [*range(9), 0]


def test_an_order_without_a_vertex_is_seen(
    ordered: OrderedSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(self: OrderedSchedule, mapping: Any, view: Any, *others: Any) -> Any:
        order = order_of(view.graph, 0)
        order[3] = order[4]
        return {"order": order}

    monkeypatch.setattr(OrderedSchedule, "prepare", prepare)
    graph = graphs()[0]
    state = state_of(graph)
    run(state, "cpu")
    with pytest.raises(AssertionError):
        check(state, graph)


@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None, 1 << 63])
def test_any_integer_is_an_integer(ordered: OrderedSchedule, value: Any) -> None:
    state = state_of(graphs()[0])
    run(state, "cpu")
    with pytest.raises(fg.PlanError, match="an integer, 0 or more"):
        run(state, "cpu", drawn_by=value)


def test_options_belong_to_their_schedule(ordered: OrderedSchedule) -> None:
    with pytest.raises(fg.PlanError, match="drawn_by does not belong"):
        step(state_of(graphs()[0]), target="cpu", drawn_by=3)

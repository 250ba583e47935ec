"""Arrays that a schedule prepares, on a GPU: recordings and loops follow them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.graph.views.view import Preparation
from tests.ordered import OrderedSchedule, added
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_watched_loops import have_loops
from tests.unit import test_prepared as on_cpu
from tests.versions import HOW, change, changeable


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with emulated_gpu() as made:
        have_loops(monkeypatch)
        yield made


@pytest.fixture
def ordered(gpu: Gpu) -> Iterator[OrderedSchedule]:
    schedule = OrderedSchedule()
    with added(schedule):
        yield schedule


def test_orders_are_made_once(ordered: OrderedSchedule) -> None:
    on_cpu.check_once(ordered, "cuda")


@pytest.mark.parametrize("how", HOW)
def test_another_version_has_another_order(ordered: OrderedSchedule, how: str) -> None:
    on_cpu.check_versions(ordered, "cuda", how)


def test_another_column_is_copied(
    ordered: OrderedSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu.check_columns(ordered, "cuda", monkeypatch)


def test_other_values_of_options_compile_nothing(ordered: OrderedSchedule) -> None:
    on_cpu.check_compiled_once("cuda")


@pytest.mark.parametrize("how", HOW)
def test_loops_follow(gpu: Gpu, ordered: OrderedSchedule, how: str) -> None:
    """A recording with one order or option does not run with another."""
    first, second = on_cpu.graphs(how)
    graph = changeable(copy.deepcopy(first), "cuda", how)
    state = on_cpu.state_of(graph)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cuda", how)
            state = on_cpu.state_of(graph, edges)
        for seed, most in ((0, 40), (0, 9), (3, 9), (0, 40)):
            before = sum(loop.ran for loop in gpu.loops)
            ran = on_cpu.run(state, "cuda", 14, drawn_by=seed, most_places=most)
            assert sum(loop.ran for loop in gpu.loops) > before
            on_cpu.check(state, edges, seed, most)
            assert ran.supersteps == 14
    assert ran.preparation == Preparation()
    assert ordered.made == [0, 3] * 2

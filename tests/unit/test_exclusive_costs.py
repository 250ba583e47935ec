"""Predicted times of exclusive schedules, and what `auto` takes by them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.base.errors import PlanError
from featgraph.fold.plan import schedules
from featgraph.fold.plan.traits import graph_sizes
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import EdgeSizes, EdgeSweep
from featgraph.fold.schedules.mapping import Work
from featgraph.fold.schedules.table import SCHEDULES
from tests.programs.exclusive import PROGRAMS, graph_of, state_of

NAMES = sorted(n for n, s in SCHEDULES.items() if isinstance(s, ExclusiveSchedule))
counts = st.one_of(st.integers(1, 10**8), st.integers(0, 26).map(lambda n: 2**n))


def sweep_of(edges: int = 10**6, degree: int = 1000, **more: Any) -> EdgeSweep:
    sizes = EdgeSizes(edges, (10**5, 10**4), (degree // 4, degree))
    given = {"conflicts": "uv", "two_sides": True, "width": 16, "lanes": 4} | more
    return EdgeSweep(sizes, bytes=260, **given)


def sweep_ms(name: str, sweep: EdgeSweep) -> float:
    schedule = SCHEDULES[name]
    assert isinstance(schedule, ExclusiveSchedule)
    return schedule.sweep_ms(sweep)


@pytest.mark.parametrize("name", NAMES)
@given(
    edges=counts, more=counts, degree=counts, higher=counts,
    conflicts=st.sampled_from(["uv", "u", "v", ""]),
    width=st.sampled_from([1, 16, 20, 128, 1000]),
)  # fmt: skip
def test_times_grow_with_the_graph(
    name: str, edges: int, more: int, degree: int, higher: int, conflicts: str,
    width: int,
) -> None:  # fmt: skip
    """And are never below what the bytes take.

    Of a higher degree `blocks` has fewer parts, whose barriers may have taken more than
    the longer chain. Where a vertex has a smaller share of all edges, locks are wanted
    by fewer, and more blocks run.
    """
    given = {"conflicts": conflicts, "width": width}
    least = sweep_of(edges, min(degree, edges), **given)
    edges, higher = edges + more, max(degree, higher)
    wider = replace(least, sizes=replace(least.sizes, edges=edges))
    steeper = sweep_of(edges, min(higher, edges), **given)
    sweeps = [least, wider] if name == "blocks" else [least, wider, steeper]
    blocks = SCHEDULES[name].blocks(least)
    sweeps = [sweep for sweep in sweeps if SCHEDULES[name].blocks(sweep) == blocks]
    found = [sweep_ms(name, sweep) for sweep in sweeps]
    assert found == sorted(found)
    assert found[0] >= least.bytes_ms > 0
    gb_per_s = max(least.card.gb_per_s)
    assert found[0] >= least.sizes.edges * (260 + 8) / gb_per_s * 1e-6 * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_schedule_cannot_run_is_never_taken(name: str) -> None:
    without, schedule = sweep_of(two_sides=False), SCHEDULES[name]
    assert math.isinf(sweep_ms(name, without)) == (
        schedule.needs_sides or name == "rows" or math.isinf(sweep_ms(name, sweep_of()))
    )
    assert math.isinf(schedule.cost(Work(from_sources=True, width=16)))
    sweep = sweep_of()
    cost = schedule.cost(Work(from_sources=True, width=16, sweep=sweep))
    assert cost > sweep_ms(name, sweep) or math.isinf(cost)


def test_a_barrier_costs_more_than_a_lock_where_it_is_wider() -> None:
    """By hand: d = 1000 barriers of 264 blocks, updates, and 1e6 edges of 8,448."""
    sweep = sweep_of()
    card, free = sweep.card, sweep.free_us
    bytes_ms = 1e6 * (260 + 8) / card.gb_per_s[0] * 1e-6
    assert sweep.bytes_ms == pytest.approx(bytes_ms)

    def expect(name: str, us: float, an_edge: float, groups: int = 8448) -> None:
        found = 0.12 + bytes_ms + (us + 1e6 * an_edge / groups) / 1e3
        assert sweep_ms(name, sweep) == pytest.approx(found)

    b = card.barrier_us + 264 * card.block_us
    expect("levels", 1050 * (b + free), free)
    expect("matching_edges", 1000 * (b + free + 0.8), free)
    locked = free + card.lock_us
    expect("ticketed", 1000 * locked, locked, 16896)
    expect("edge_locked", 1000 * locked, free + 3 * card.lock_us, 33792)
    expect("racy", 0.0, free, 33792)
    # Bytes move while the chain of one task runs, and while 1,056 warps share tasks.
    assert sweep_ms("serial", sweep) == pytest.approx(0.12 + 1e6 * free / 1e3)
    shared = 1e6 * sweep.held_us / 1056 / 1e3
    assert bytes_ms < shared
    rows = sweep_of(degree=100, conflicts="v")
    assert sweep_ms("rows", rows) == pytest.approx(0.12 + shared)


def test_edges_wait_for_each_other_while_a_first_pass_lasts() -> None:
    """Of a vertex with 250 edges; a warp locks other ends for 8 us."""
    held, hub = 1.4 * sweep_of().held_us, 4 * 250

    def expect(vertices: int) -> None:
        sizes = EdgeSizes(10**6, (10**5, vertices), (hub // 4, hub))
        sweep = replace(sweep_of(), sizes=sizes)
        first = vertices * 8 / 1056 + hub * held
        passes = 0.18 * 250 * (1 - math.exp(-250 * 8 / first))
        barrier = sweep.card.barrier_us + 264 * sweep.card.block_us
        found = first + passes * (vertices / 1056 + barrier)
        assert sweep_ms("node_locked", sweep) == pytest.approx(0.12 + found / 1e3)

    for vertices in (1, 10**4, 10**6):
        expect(vertices)


def test_blocks_of_vertices_do_not_reach_the_highest_degree() -> None:
    """The groups of `matching_nodes` on a road of 1.85M vertices: 50,027."""
    road = EdgeSizes(4_600_000, (1_850_000,) * 2, (3, 12))
    schedule = SCHEDULES["matching_nodes"]
    assert isinstance(schedule, ExclusiveSchedule)
    groups, _ = schedule.steps(replace(sweep_of(), sizes=road))
    assert 0.8 * 50_027 < groups < 1.25 * 50_027


def test_sizes_are_rounded_to_a_tenth() -> None:
    for size in [0, 1, 2, 3, 17, 1000, 227_715, 99_072_112]:
        sizes = EdgeSizes(size, (size, 5), (3, size)).rounded()
        assert sizes.edges == sizes.vertices[0] == sizes.degrees[1]
        assert abs(sizes.edges - size) <= 0.1 * size
    assert graph_sizes(fg.Graph.from_edges([0, 0, 1], [3, 4, 3], sides=(3, 2))) == (
        EdgeSizes(3, (3, 2), (2, 2))
    )


def chosen(monkeypatch: pytest.MonkeyPatch, costs: dict[str, float], **options: Any):
    """Return the schedule that `auto` chooses at given costs, and its explanation."""
    for name in NAMES:
        cost = costs.get(name, math.inf)
        monkeypatch.setattr(
            type(SCHEDULES[name]), "cost", lambda _, work, cost=cost: cost
        )
    program, state = PROGRAMS["mix"], state_of(graph_of("sides", 9, 20, 1), 2)
    step = fg.foldmap(*program.program.functions)  # plans are kept
    plan = step.fold(state, target="cuda", **options).plan
    return plan.phases[0].mapping.schedule, step.explain(
        state, target="cuda", **options
    )


def test_auto_takes_the_least_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    name, explained = chosen(monkeypatch, {"levels": 3.0, "blocks": 4.0, "serial": 5.0})
    assert name == "levels"
    assert (
        "levels: it has the least predicted time; its order of edges is re" in explained
    )
    assert "(NVIDIA H200): levels 3 ms, next best blocks 4 ms\n" in explained
    assert chosen(monkeypatch, {"levels": 3.0, "blocks": 2.9})[0] == "blocks"
    name, explained = chosen(
        monkeypatch, {"levels": 3.0, "blocks": 4.0}, schedule="blocks"
    )
    assert name == "blocks"
    assert "blocks 4 ms, next best levels 3 ms\n" in explained


@pytest.mark.parametrize(("locked", "name"), [(2.2, "edge_locked"), (2.4, "levels")])
def test_auto_takes_what_does_not_repeat_if_it_is_faster_by_far(
    monkeypatch: pytest.MonkeyPatch, locked: float, name: str
) -> None:
    costs = {"levels": 3.0, "edge_locked": locked}
    assert schedules.GAIN == 1.3
    assert chosen(monkeypatch, costs)[0] == name
    assert chosen(monkeypatch, costs, deterministic=True)[0] == "levels"
    assert chosen(monkeypatch, {**costs, "racy": 0.1})[0] == name
    with pytest.raises(PlanError, match="not repeatable"):
        chosen(monkeypatch, costs, deterministic=True, schedule="edge_locked")


def test_the_cpu_does_not_go_by_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(graph_of("sides", 9, 20, 1), 2)
    plan = PROGRAMS["mix"].fold(state, target="cpu").plan
    assert plan.traits.sizes is None
    explained = PROGRAMS["mix"].explain(state, target="cpu")
    assert "blocks: the graph has two sides" in explained
    assert "predicted" not in explained


@pytest.mark.parametrize("place", ["host", "device"])
def test_without_room_a_smaller_schedule_is_named(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Tickets are two more arrays; levels have no fewer than others."""
    short: MemoryError = MemoryError("no")
    if place == "device":
        short = fg.DeviceMemoryError("not enough", got="9 GB", expected="1 GB", fix="-")

    def prepare(*_: Any) -> Any:
        raise short

    for name in ("ticketed", "levels"):
        monkeypatch.setattr(type(SCHEDULES[name]), "prepare", prepare)
    state = state_of(graph_of("sides", 9, 20, 1), 2)
    before = {name: state[name].copy() for name in state}
    with pytest.raises(fg.DeviceMemoryError) as caught:
        PROGRAMS["mix"](state, target="cpu", schedule="ticketed")
    error = caught.value
    assert error.where == "schedule='ticketed'"
    assert error.got == ("9 GB" if place == "device" else "0.00 GB")
    assert error.fix is not None
    assert error.fix.startswith("use schedule='levels', which takes 0.00 GB, or")
    assert error.__cause__ is short
    with pytest.raises(MemoryError) as caught_same:
        PROGRAMS["mix"](state, target="cpu", schedule="levels")
    assert caught_same.value is short
    assert short.__cause__ is None
    for name, values in before.items():
        assert (state[name] == values).all()

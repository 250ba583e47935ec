"""Exclusive functions under every schedule: serialisable, and exact in their order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.device import cpu
from featgraph.fold.schedules import exclusive
from featgraph.fold.schedules.exclusive_groups import BlocksSchedule
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.graph.views import edge_orders
from featgraph.program.signature import EXCLUSIVE, GENERATED
from tests.programs.exclusive import (
    ANY,
    CASES,
    KINDS,
    PROGRAMS,
    SERIAL,
    TWO_SIDES,
    UNORDERED,
    check_levels,
    check_run,
    factors_of,
    graph_of,
    order_of,
    run,
    schedules_of,
    state_of,
)
from tests.strategies import active_sets, examples, seeds


@pytest.fixture(autouse=True, scope="module")
def small_turns_have_shares() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exclusive, "SMALLEST_SHARE", 4)
        yield


@pytest.mark.drawn(60)
@pytest.mark.parametrize(("name", "kind", "schedule"), CASES)
def test_runs_are_serialisable(
    name: str, kind: str, schedule: str, target: str, rng: np.random.Generator
) -> None:
    options = schedules_of(name, kind)[schedule]
    for k in (1, 5):
        graph = graph_of(kind, 33, 120, int(rng.integers(1 << 30)))
        for shuffle in (0, None):
            more = {**options, "shuffle": shuffle}
            state, told = run(name, graph, k, target, **more)
            check_run(name, state, told)
            again, _ = run(name, graph, k, target, **more)
            check_run(name, again, told)
            if schedule not in UNORDERED:
                np.testing.assert_array_equal(state["x"], again["x"])
            if schedule in SERIAL:
                more["schedule"] = "serial"
                meant, _ = run(name, graph, k, target, **more)
                np.testing.assert_array_equal(state["x"], meant["x"])


@examples(8, 200)
@given(data=st.data())
def test_random_graphs_and_active_sets(target: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    edges = data.draw(st.integers(0, 60))
    graph = graph_of(
        kind, data.draw(st.sampled_from((2, 7, 33))), edges, data.draw(seeds)
    )
    name = data.draw(st.sampled_from(sorted(PROGRAMS)))
    schedules = schedules_of(name, kind)
    schedule = data.draw(st.sampled_from(sorted(schedules)))
    active = data.draw(active_sets(graph))
    shuffle = data.draw(st.one_of(st.none(), seeds))
    more = {**schedules[schedule], "shuffle": shuffle}
    state, told = run(name, graph, 5, target, active, **more)
    check_run(name, state, told, active)


def test_auto_takes_what_fits(target: str) -> None:
    # On a GPU it takes the least predicted time: tickets spare the barriers of levels,
    # and one worker the locks, where the edges of a hub are a chain.
    hubs, none = ("serial", "ticketed") if target == "cuda" else ("levels", "levels")
    ends = np.random.default_rng(1).integers(0, 500, (2, 2000))
    without_hubs = fg.Graph.from_edges(*ends, vertex_count=500)
    directed, sides = (graph_of(kind, 500, 2000, 1) for kind in ("directed", "sides"))
    for name, graph, expected in (
        ("mix", directed, hubs), ("mix", without_hubs, none), ("mix", sides, "blocks"),
        ("mix_targets", sides, "rows"), ("mix_targets", directed, "rows"),
    ):  # fmt: skip
        kernel = PROGRAMS[name].fold(state_of(graph, 2), target=target)
        assert kernel.plan.phases[-1].mapping.schedule == expected


def test_explain_shows_how_edges_are_kept_apart(target: str) -> None:
    why = {
        ("mix", "sides", "auto"): ("blocks: the graph has two sides", "u and v"),
        ("mix_targets", "sides", "auto"): ("rows: edges conflict at one end", "v\n"),
        ("mix", "directed", "auto"): ("levels: the graph has no two", "u and v"),
        ("mix", "sides", "hybrid"): ("hybrid: asked for; its", "u and v"),
        ("mix", "sides", "edge_locked"): ("edge_locked: asked for; its", "u and v"),
    }
    for (name, kind, schedule), (reason, ends) in why.items():
        state = state_of(graph_of(kind, 9, 20, 1), 2)
        told = PROGRAMS[name].explain(state, target=target, schedule=schedule)
        if target == "cuda" and schedule == "auto":
            plan = PROGRAMS[name].fold(state, target=target).plan
            chosen = plan.phases[-1].mapping.schedule
            reason = f"{chosen}: it has the least predicted time; its"
            assert ", next best " in told
        assert f"edges conflict at: {ends}" in told
        assert f"schedule of kernel 0: {reason}" in told
        repeats = "another one in each run" if schedule in UNORDERED else "repeatable"
        assert f"its order of edges is {repeats}\n" in told
        assert "both ends of edges that returned True" in told


def test_explain_has_the_figures_of_what_is_prepared(target: str) -> None:
    graph = fg.Graph.from_edges([0, 0, 0, 1, 1], [2, 3, 4, 2, 3], sides=(2, 3))
    state, step = state_of(graph, 2), PROGRAMS["mix"]
    options = {"schedule": "levels", "shuffle": None, "target": target}
    told = step.explain(state, **options).splitlines()[-1]
    assert told.startswith("prepared for kernel 0: nothing yet")
    ran = fg.iterate(step, state, max_supersteps=1, **options)
    # Levels 1 to 3 of the hub; the other one follows by a level.
    barriers = 0 if target == "cpu" else 2  # one thread takes narrow turns in one
    told = step.explain(state, **options).splitlines()[-1]
    assert told.startswith(
        "prepared for kernel 0: groups: 3, of 1 to 2 edges; "
        f"barriers: {barriers}; {ran.preparation.bytes} bytes, in "
    )
    assert "nothing yet" in step.explain(state, **{**options, "shuffle": 1})
    assert "nothing yet" in step.explain(state, **{**options, "schedule": "serial"})


@pytest.mark.parametrize("schedule", sorted({*ANY, *TWO_SIDES} - UNORDERED))
def test_repeatable_schedules_have_the_same_bits(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 20 runs, of 1, 2 and 5 threads, each of which prepares anew."""
    more, found = schedules_of("mix_all", "sides")[schedule], set()
    most, before = numba.config.NUMBA_NUM_THREADS, numba.get_num_threads()
    for number in range(20):
        threads = (1, 2, 5)[number % 3]
        numba.set_num_threads(min(threads, most))
        graph = graph_of("sides", 60, 400, 8)
        with monkeypatch.context() as patch:
            patch.setattr(numba, "get_num_threads", lambda n=threads: n)
            state, _ = run("mix_all", graph, 5, "cpu", **more)
        found.add(b"".join(state[name].tobytes() for name in ("x", "n", "turn")))
    numba.set_num_threads(before)
    assert len(found) == 1


def test_racy_runs_each_edge_once(target: str) -> None:
    state = state_of(graph_of("directed", 2_000, 20_000, 5), 16)
    PROGRAMS["mix_all"](state, target=target, racy=True)
    assert state["runs"].tolist() == [1] * 20_000


def test_an_order_is_prepared_once(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Any] = []
    groups = BlocksSchedule.groups

    def counted(self: Any, edges: Any) -> Any:
        prepared.append(edges)
        return groups(self, edges)

    monkeypatch.setattr(BlocksSchedule, "groups", counted)
    graph, step = graph_of("sides", 33, 120, 6), PROGRAMS["mix"]
    kernels = set()
    for parts in (3, 3, 5, 3):
        state = state_of(graph, 4)
        step(state, target=target, schedule="blocks", parts=parts)
        kernel = step.fold(state, target=target, schedule="blocks", parts=parts)
        kernels.add(kernel.module)
    assert len(prepared) == 2
    assert len(kernels) == 1, "options of a schedule compile nothing"


@numba.njit
def _never(locks, v):
    return False


@fg.edge(exclusive=True)
def waiting(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    d.x[u, f] = a + 11
    d.x[v, f] = b + 13
    return True


@pytest.mark.parametrize(
    ("schedule", "name"),
    [("edge_locked", "hold"), ("node_locked", "hold"), ("hybrid", "hold"),
     ("ticketed", "wait_for")],
)  # fmt: skip
def test_threads_that_wait_for_too_long_end_with_an_error(
    schedule: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "POLLS", 4)
    monkeypatch.setattr(cpu, "LONGEST_WAIT", 10**6)
    monkeypatch.setattr(cpu, "_wait", numba.njit(cpu._wait.py_func))
    monkeypatch.setattr(cpu, "_try_lock", _never)
    monkeypatch.setattr(cpu, "_count_at", numba.njit(lambda counts, v: -1))
    monkeypatch.setattr(cpu, name, numba.njit(getattr(cpu, name).py_func))
    state = state_of(graph_of("sides", 33, 120, 1), 3)
    before = state["x"]
    with pytest.raises(fg.KernelFaultError, match="before all edges ran") as caught:
        fg.foldmap(waiting)(state, target="cpu", schedule=schedule)
    assert caught.value.where == f"schedule={schedule!r}"
    assert "waited for 60 s" in str(caught.value)
    np.testing.assert_array_equal(state["x"], before)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("edges", [[], [(0, 0)], [(1, 1), (1, 1)]])
def test_small_graphs(edges: list[tuple[int, int]], target: str) -> None:
    ends = np.array(edges, np.int64).reshape(-1, 2)
    graph = fg.Graph.from_edges(ends[:, 0], ends[:, 1], vertex_count=2)
    for schedule in ANY:
        state, told = run("mix", graph, 3, target, schedule=schedule)
        check_run("mix", state, told)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [1, 4, 16, 17, 40])
def test_learns(k: int, target: str) -> None:
    check_levels(graph_of("undirected", 33, 90, k), k, target)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("k", [1, 4, 16])
def test_large_graphs_agree_with_the_cpu(k: int, target: str) -> None:
    """Blocks of a GPU wait for each other: small graphs have work for one of them."""
    for kind in KINDS:
        graph = graph_of(kind, 3_000, 20_000, 7)
        for name in ("mix", "mix_all"):
            for schedule, more in schedules_of(name, kind, 4).items():
                if schedule == "diagonal" and target == "cpu":
                    continue
                # A GPU takes the edges of a block by their targets.
                other = target if schedule == "blocks" else "cpu"
                found = [run(name, graph, k, on, **more)[0] for on in (other, target)]
                if schedule in UNORDERED:  # to replay it edge by edge takes long
                    assert len(order_of(graph, found[1]["turn"])) == graph.edge_count
                    continue
                for of in ("x", "n", "runs", "turn"):
                    np.testing.assert_array_equal(found[0][of], found[1][of])


@fg.edge(exclusive=True)
def turned(f, u, v, e, d):
    y = fg.matvec(d.turn, d.x[u, f])
    d.x[v, f] = d.x[v, f] + y
    return True


TURNED = fg.foldmap(turned)


@pytest.mark.parametrize("k", [2, 3, 8])
def test_multiplies_by_a_matrix_of_no_vertex(k: int, target: str) -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    turn = np.arange(k * k, dtype=np.float32).reshape(k, k) % 3
    x = np.ones((3, k), np.float32)
    state = fg.State(graph, x=fg.vertex_property(x.copy()), turn=turn)
    TURNED(state, target=target, schedule="serial", shuffle=None)
    for u, v in ((0, 1), (1, 2), (2, 0)):
        x[v] += turn @ x[u]
    np.testing.assert_array_equal(state["x"], x)


@fg.edge(exclusive=True)
def held(f, u, v, e, d):
    lower = d.x[u, f]
    turn = d.x[v, f]
    d.x[u, f] = lower + turn
    d.x[v, f] = lower
    return True


def test_functions_may_be_called_as_kernels_call_theirs(target: str) -> None:
    state = state_of(fg.Graph.from_edges([0], [1]), 3)
    x = state["x"]
    for schedule in ANY:
        state["x"] = x
        fg.foldmap(held)(state, target=target, schedule=schedule)
        np.testing.assert_array_equal(state["x"], [x[0] + x[1], x[0]])


@pytest.mark.drawn(4)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("schedule", [*ANY, "blocks", "rows"])
def test_names_of_kernels_are_reserved(schedule: str, given: bool) -> None:
    if given and schedule == "rows":
        pytest.skip("mix_given has conflicts at both ends")
    name = "mix_given" if given else "mix_targets" if schedule == "rows" else "mix_all"
    step = PROGRAMS[name]
    state = state_of(graph_of("sides", 9, 20, 1), 8)
    for on in ("cpu", "cuda"):
        kernel = step.fold(state, target=on, schedule=schedule, record_order="turn")
        used: set[str] = set()
        for node in ast.parse(kernel.source).body:
            if isinstance(node, ast.FunctionDef) and node.name not in PROGRAMS:
                used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        stems = {re.sub(r"(_\d+)+$", "", name) for name in used}
        assert stems <= GENERATED | EXCLUSIVE | {
            *PROGRAMS,
            "exclusive_phase",
            "IN_A_TREE",
            *(["w_e", "near_w", "ordered_w"] if given else []),
        }


@pytest.mark.parametrize("name", ["matching_nodes", "subgraph_matching"])
def test_matchings_of_blocks_are_those_of_the_schedule(name: str) -> None:
    rng = np.random.default_rng(4)
    sources, targets = rng.integers(0, 20, 90), rng.integers(20, 50, 90)
    ends = sources.astype(np.int32), targets.astype(np.int32), np.arange(90)
    asked = exclusive.EdgesToGroup(
        *ends, 50, 20, "uv", None, on_cpu=True, options={"block_vertices": 4}
    )
    schedule = SCHEDULES[name]
    assert isinstance(schedule, exclusive.ExclusiveSchedule)
    found = schedule.groups(asked)
    meant = getattr(edge_orders, name)(*ends, 50, 20, 4)
    np.testing.assert_array_equal(found.order, meant.order)
    np.testing.assert_array_equal(found.groups, meant.groups)


@fg.edge(exclusive=True)
def add_rating(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    d.x[u, f] = a + d.rating[e]
    d.x[v, f] = b + d.rating[e]
    return True


ADD_RATING = fg.foldmap(add_rating)


@pytest.mark.parametrize("schedule", ["levels", "blocks", "edge_locked"])
def test_values_of_edges_that_change_are_copied_anew(
    schedule: str, target: str
) -> None:
    """Sums of whole numbers are exact, whatever the order of edges is."""
    graph = graph_of("sides", 30, 90, 2)
    rng = np.random.default_rng(5)
    state, meant = factors_of(graph, 4), np.zeros((graph.vertex_count, 4))
    state["x"] = meant.astype(np.float32)
    ADD_RATING(state, target=target, schedule=schedule)
    meant[:] = state["x"]
    assert meant.sum() == 4 * 2 * state["rating"].sum()
    for _ in range(2):
        state["rating"] = ratings = rng.integers(1, 100, 90).astype(np.float32)
        found = fg.iterate(
            ADD_RATING, state, supersteps=1, target=target, schedule=schedule
        )
        for ends in (graph.sources, graph.targets):
            np.add.at(meant, ends, ratings[:, None])
        np.testing.assert_array_equal(state["x"], meant)
        assert found.preparation.bytes == 4 * 90

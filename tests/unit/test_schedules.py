"""Schedules chosen by option: their mappings, and refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan import schedules as plan_schedules
from featgraph.fold.plan.options import parse_options
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.fold.schedules.exclusive import is_exclusive
from featgraph.fold.schedules.lanes import LaneSchedule
from featgraph.fold.schedules.mapping import Mapping, Work
from featgraph.fold.schedules.table import NAMES, SCHEDULES, check_target
from tests.bank import BY_NAME
from tests.ordered import added
from tests.programs.exclusive import PROGRAMS as EXCLUSIVE
from tests.programs.exclusive import graph_of, state_of
from tests.programs.triangles import PROGRAMS as TRIANGLES

LANES = (2, 4, 8, 16, 32)


def plan_of(
    program: str,
    k: int,
    traits: GraphTraits | None = None,
    number: int = 0,
    **options: Any,
) -> FoldPlan:
    bank = BY_NAME[program]
    graph = fg.Graph.from_edges(range(8), range(1, 9), directed=not bank.undirected)
    values = bank.make_state(graph, k, np.random.default_rng(0))
    traits = traits or GraphTraits(undirected=bank.undirected)
    given = parse_options("cuda", False, options)
    signature = fg.State(graph, **values).signature
    return make_plan(bank.foldmaps[number].program, signature, given, traits)


def test_names_are_those_of_the_table() -> None:
    assert all(name == schedule.name for name, schedule in SCHEDULES.items())


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "lanes of none": (
        {"schedule": "virtual_warp"},
        "the default, once called so, is now called 'lanes'",
    ),
    "lanes of another": (
        {"schedule": "lanes", "lanes_per_vertex": 8},
        "lanes_per_vertex does not belong to this schedule",
    ),
    "lanes alone": (
        {"lanes_per_vertex": 8},
        "lanes_per_vertex does not belong to this schedule",
    ),
    "lanes count": (
        {"schedule": "virtual_warp", "lanes_per_vertex": 6},
        "lanes_per_vertex cannot be 6",
    ),
    "lanes type": (
        {"schedule": "virtual_warp", "lanes_per_vertex": "8"},
        "lanes_per_vertex cannot be '8'",
    ),
    "lanes of a thread": (
        {
            "schedule": "virtual_warp",
            "lanes_per_vertex": 8,
            "feature_parallel": False,
        },
        "the virtual_warp schedule gives all features of a vertex to lanes",
    ),
}


@pytest.mark.parametrize(("options", "what"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options(options: dict[str, Any], what: str) -> None:
    step = BY_NAME["label_propagation"].foldmaps[0]
    for target in ("cpu", "cuda"):
        with pytest.raises(fg.PlanError) as caught:
            step.fold(k=3, target=target, **options)
        assert what in str(caught.value)
        assert caught.value.where
        assert caught.value.expected or caught.value.fix


# -- a fixed number of lanes


@pytest.mark.parametrize("k", [1, 3, 4, 8, 16, 17, 32])
@pytest.mark.parametrize("lanes", LANES)
def test_so_many_lanes_share_a_vertex(k: int, lanes: int) -> None:
    options = {"schedule": "virtual_warp", "lanes_per_vertex": lanes}
    plan = plan_of("label_propagation", k, **options)
    mapping = plan.phases[0].mapping
    assert mapping.schedule == "virtual_warp"
    assert (
        mapping.lanes_per_vertex
        == lanes
        == mapping.lanes_per_edge * mapping.edges_at_a_time
    )
    # Features first, edges with the lanes that are left.
    own = plan_of("label_propagation", k, schedule="lanes").phases[0].mapping
    assert mapping.lanes_per_edge == min(own.lanes_per_edge, lanes)
    assert mapping.lanes_per_edge * mapping.features_per_lane >= k
    assert mapping.stride % mapping.vector_width == 0
    if mapping.lanes_per_edge > 1:
        assert mapping.features_per_lane % mapping.vector_width == 0
    assert f"{lanes} lanes a vertex" in str(plan)
    emit(plan)


def test_features_must_fit_the_lanes() -> None:
    options = {"schedule": "virtual_warp", "lanes_per_vertex": 2}
    with pytest.raises(fg.PlanError, match="too few lanes for so many") as caught:
        plan_of("label_propagation", 64, **options)
    assert "2 lanes for K = 64, 32 features each" in str(caught.value.got)
    assert "lanes_per_vertex=4" in str(caught.value.fix)


def test_what_has_no_edges_is_left_to_lanes() -> None:
    options = {"schedule": "virtual_warp", "lanes_per_vertex": 32}
    plan = plan_of("pagerank", 8, **options)
    for phase in plan.phases:
        sweeps = any(f.kind.gathers for f in plan.functions_of(phase))
        assert (phase.mapping.schedule == "virtual_warp") == sweeps


def test_edges_of_a_combine_without_shuffles_are_not_shared() -> None:
    options = {"schedule": "virtual_warp", "lanes_per_vertex": 8}
    with pytest.raises(fg.PlanError, match="no shuffle combines") as caught:
        plan_of("product_and_custom", 3, **options)
    assert caught.value.got == "lanes_per_vertex=8"


class _SharedEdges(LaneSchedule):
    """A schedule whose choice does not look at combines."""

    name = "shared_edges"

    def choose(self, mapping: Mapping, work: Work, options: Any) -> Mapping:
        """Return a mapping of a warp to each vertex."""
        return replace(mapping, schedule=self.name, lanes_per_vertex=32)


def test_no_schedule_shares_edges_of_a_combine_without_shuffles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with added(_SharedEdges()):
        plan_of("bfs", 3, schedule="shared_edges")
        with pytest.raises(fg.PlanError, match="no shuffle combines") as caught:
            plan_of("product_and_custom", 3, schedule="shared_edges")
        assert caught.value.got == "lanes_per_vertex=32"
        with monkeypatch.context() as patch:
            patch.setattr(plan_schedules, "_require_shuffles", lambda *_: None)
            plan = plan_of("product_and_custom", 3, schedule="shared_edges")
        with pytest.raises(TypeError, match="no shuffle combines"):
            emit(plan)


def test_the_cpu_has_one_schedule() -> None:
    bank = BY_NAME["label_propagation"].foldmaps[0]
    assert "one thread a vertex" in bank.explain(k=3, target="cpu")
    for schedule in NAMES:
        targets = ("cpu", "cuda")
        if schedule != "auto":
            targets = SCHEDULES[schedule].targets
        for target in ("cpu", "cuda"):
            if target in targets:
                check_target(schedule, target)
                continue
            with pytest.raises(fg.PlanError, match="this schedule is for") as caught:
                check_target(schedule, target)
            assert repr(schedule) not in caught.value.expected


GROUPS = {s.name for s in SCHEDULES.values() if is_exclusive(s)} & set(NAMES)
FIT: dict[str, tuple[fg.FoldMap, set[str]]] = {
    "vertices": (BY_NAME["label_propagation"].foldmaps[0], set()),
    "triangles": (TRIANGLES["everywhere"], {"mark", "merge"}),
    "exclusive": (EXCLUSIVE["mix"], GROUPS),
}


@pytest.mark.parametrize("name", FIT)
def test_errors_list_the_schedules_that_run_the_functions(name: str) -> None:
    step, names = FIT[name]
    expected = ", ".join(map(repr, ["auto", *(n for n in NAMES if n in names)]))
    for refused in ("nowhere", "virtual_warp", *({"levels"} - names)):
        own = {"lanes_per_vertex": 8} if refused == "virtual_warp" else {}
        with pytest.raises(fg.PlanError, match=refused) as caught:
            step.fold(k=2, target="cpu", schedule=refused, **own)
        if refused != "levels":
            assert caught.value.expected == expected


@pytest.mark.parametrize("name", ["nowhere", "block", "search"])
def test_errors_of_runs_list_schedules_of_exclusive_functions(name: str) -> None:
    state, step = state_of(graph_of("sides", 7, 9, seed=0), 2), EXCLUSIVE["mix"]
    for target in ("cpu", "cuda"):
        calls = [step.fold, partial(fg.iterate, step)]
        for call in calls[: 2 if target == "cpu" else 1]:
            with pytest.raises(fg.PlanError) as caught:
                call(state, target=target, schedule=name)
            names = str(caught.value.expected).split(", ")
            assert set(names) == {repr(n) for n in ("auto", *GROUPS)}


@pytest.mark.parametrize("schedule", ["thread", "virtual_warp", "balanced_push"])
def test_a_schedule_of_a_gpu_is_refused_on_the_cpu(schedule: str) -> None:
    own = {"lanes_per_vertex": 4} if schedule == "virtual_warp" else {}
    program, graph = BY_NAME["label_propagation"], fg.Graph.from_edges([0, 1], [1, 2])
    step = program.foldmaps[0]
    values = program.make_state(graph, 3, np.random.default_rng(0))
    state = fg.State(graph, **values)
    before = {name: state[name] for name in state.signature}
    for call in (step, lambda s, **o: fg.iterate(step, s, **o)):
        with pytest.raises(fg.PlanError, match=f"'{schedule}', target='cpu'"):
            call(state, target="cpu", schedule=schedule, **own)
    for name, kept in before.items():
        np.testing.assert_array_equal(state[name], kept)

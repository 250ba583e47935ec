"""How features and edges are shared out to lanes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse

import featgraph as fg
from bench.learning.problems import make_problem
from bench.programs import step
from featgraph import algorithms as al
from featgraph.base.padding import row_stride
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import MANY_ROWS, GraphTraits, graph_traits
from featgraph.fold.printing.emit import emit
from featgraph.fold.schedules import thread
from featgraph.fold.schedules.mapping import Mapping
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, PropertyType, Signature
from tests.bank import BY_NAME


def signature(k: int, dtype: str = "float32") -> Signature:
    return {
        "label": PropertyType(PropertyKind.VERTEX, dtype, (k,), True, False),
        "clamped": PropertyType(PropertyKind.VERTEX, "bool", (), False, False),
        "weight": PropertyType(PropertyKind.EDGE, dtype, (), False, False),
        "alpha": PropertyType(PropertyKind.SCALAR, "real"),
        "epsilon": PropertyType(PropertyKind.SCALAR, "real"),
    }


def mapping_of(
    k: int, dtype: str = "float32", degree: int = 16, rows_of_longest: int = 0
) -> Mapping:
    options = Options(target="cuda")
    traits = GraphTraits(typical_degree=degree, rows_of_longest=rows_of_longest)
    plan = make_plan(step.program, signature(k, dtype), options, traits)
    return plan.phases[0].mapping


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("degree", [1, 4, 64])
def test_every_feature_has_a_lane_and_pieces_are_whole(dtype: str, degree: int) -> None:
    for k in (*range(1, 41), 64, 96, 100, 128, 130, 256, 257):
        mapping = mapping_of(k, dtype, degree)
        bytes_ = mapping.vector_width * (4 if dtype == "float32" else 8)
        assert bytes_ <= 16
        assert mapping.stride == row_stride(k)
        assert mapping.stride % mapping.vector_width == 0
        if mapping.lanes_per_edge == 1:  # it has all of them, and no more
            assert mapping.features_per_lane == k
        else:
            assert mapping.features_per_lane % mapping.vector_width == 0
        # No lane more than needed: half of them would not do.
        assert (
            k
            <= mapping.lanes_per_edge * mapping.features_per_lane
            < 2 * k + 2 * mapping.vector_width
        )
        assert mapping.lanes_per_vertex % mapping.lanes_per_edge == 0
        assert mapping.lanes_per_vertex in {1, 2, 4, 8, 16, 32}


def test_lanes_of_a_vertex_follow_the_typical_degree() -> None:
    assert [mapping_of(4, degree=d).edges_at_a_time for d in (1, 4, 16, 64)] == [
        1,
        1,
        4,
        8,
    ]
    assert [mapping_of(8, degree=d).edges_at_a_time for d in (1, 4, 16, 64)] == [
        1,
        1,
        2,
        4,
    ]
    assert [mapping_of(32, degree=d).edges_at_a_time for d in (1, 4, 16, 64)] == [
        1,
        1,
        1,
        1,
    ]


def test_small_matrices_of_few_edges_are_one_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread, "FEW_EDGES", 16)
    graph = fg.Graph.from_edges(range(8), range(1, 9), directed=False)

    def schedule(k: int, degree: int, **options: Any) -> str:
        traits = GraphTraits(typical_degree=degree, has_hubs=options.pop("hubs", False))
        given = Options(target="cuda", **options)
        declared = make_problem("ALS", graph, k)
        signature = declared.state.signature
        plan = make_plan(declared.steps[0].program, signature, given, traits)
        return plan.phases[0].mapping.schedule

    assert schedule(4, 16) == "thread"
    assert schedule(4, 32) == schedule(8, 16) == "lanes"
    assert schedule(4, 16, hubs=True) == "lanes"
    assert schedule(4, 16, schedule="lanes") == "lanes"


@pytest.mark.parametrize(
    ("program", "k", "options", "resident"),
    [
        ("LP", 4, {"degree": 2, "feature_parallel": False}, 0),  # few edges
        ("LP", 4, {"degree": 4, "feature_parallel": False}, 8),
        ("LP", 16, {"degree": 4, "feature_parallel": False}, 2),
        ("LP", 2, {"degree": 4, "feature_parallel": False}, 0),  # few features
        ("LP", 4, {"degree": 4}, 8),  # a lane that has the vertex to itself
        ("LP", 4, {"degree": 32}, 0),  # lanes that share it
        ("LP", 32, {"degree": 32, "hubs": True}, 8),
        ("LP", 8, {"degree": 16}, 8),  # lanes share features, too
        ("LP", 8, {"degree": 8}, 0),
        ("ALS", 4, {"degree": 4, "feature_parallel": False}, 0),
        ("ALS", 4, {"degree": 32, "hubs": True}, 4),
        ("BP", 2, {"degree": 4, "feature_parallel": False}, 8),
        ("BP", 4, {"degree": 4, "feature_parallel": False}, 4),
        ("BP", 8, {"degree": 4, "feature_parallel": False}, 2),
        ("BP", 4, {"degree": 32, "hubs": True}, 0),
    ],
)
def test_blocks_that_must_fit_bound_registers(
    program: str, k: int, options: dict[str, Any], resident: int
) -> None:
    graph = fg.Graph.from_edges(range(8), range(1, 9), directed=False)
    traits = GraphTraits(options.pop("degree"), options.pop("hubs", False))
    declared = make_problem(program, graph, k)
    given = Options(target="cuda", **options)
    signature = declared.state.signature
    plan = make_plan(declared.steps[0].program, signature, given, traits)
    assert plan.phases[0].mapping.resident == resident


@pytest.mark.parametrize(
    ("program", "k", "forced", "bounds"),
    [
        ("LP", 32, (), 512),
        ("LP", 33, (), (512, 2)),
        ("LP", 128, (), (512, 2)),
        ("LP", 129, (), 512),
        ("LP", 128, (("hub_resident", 0),), 512),
        ("MMR", 4, (), 512),
        ("ALS", 4, (), (512, 2)),
        ("MMR", 4, (("hub_resident", 1),), (512, 1)),
    ],
)
def test_blocks_of_hubs_are_bounded_for_systems_and_long_rows(
    program: str, k: int, forced: Any, bounds: Any
) -> None:
    """Unless a mapping is forced on them."""
    graph = fg.Graph.from_edges(range(8), range(1, 9), directed=False)
    declared = make_problem(program, graph, k)
    plan = make_plan(
        declared.steps[0].program,
        declared.state.signature,
        Options(target="cuda", mapping=forced),
        GraphTraits(32, has_hubs=True),
    )
    entry = next(e for e in emit(plan).entries if e.role == "hubs")
    assert entry.launch_bounds == bounds


def program_of(name: str) -> tuple[Program, Signature]:
    """Return the last foldmap that a program of Khorasani et al. iterates."""
    ring = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    both_ways = fg.Graph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    weights = np.ones(3, np.float32)
    held = np.array([0, 1, np.nan])
    few: dict[str, Any] = {"max_supersteps": 1, "change_driven": False}
    calls: dict[str, Callable[[], Any]] = {
        "BFS": lambda: al.bfs(ring, 0),
        "CS": lambda: al.circuit_simulation(both_ways, held, dtype=np.float32, **few),
        "HS": lambda: al.heat_simulation(both_ways, weights, dtype=np.float32, **few),
        "NN": lambda: al.neural_network(ring, held, **few),
        "PR": lambda: al.pagerank(ring, tol=None, epsilon=0.0, **few),
        "SSSP": lambda: al.sssp(ring, 0, weights=weights),
        "SSWP": lambda: al.sswp(ring, 0, weights=weights),
    }
    found: list[tuple[Program, Signature]] = []
    iterate = fg.iterate

    def record(steps: Any, state: fg.State, **options: Any) -> fg.Run:
        found.append((steps.program, state.signature))
        return iterate(steps, state, **options | {"target": "cpu"})

    with patch.object(fg, "iterate", record), warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        calls[name]()
    return found[-1]


def lanes_of(name: str, **traits: int) -> int:
    """Return how many lanes share a vertex in a program."""
    options = Options(target="cuda", direction="pull", schedule="lanes")
    [phase] = make_plan(*program_of(name), options, GraphTraits(**traits)).phases
    return phase.mapping.lanes_per_vertex


def test_lanes_hide_the_longest_row() -> None:
    """Few rows like the longest: more lanes take each; twice as many for sources."""
    rows = 1024, 512, 256, 128, 32
    heat = [lanes_of("HS", typical_degree=64, rows_of_longest=n) for n in rows]
    assert heat == [8, 8, 16, 32, 32]
    paths = [lanes_of("SSSP", typical_degree=64, rows_of_longest=n) for n in rows]
    assert paths == [8, 16, 32, 32, 32]
    # Neither has a graph in which all rows are short.
    assert lanes_of("SSSP", typical_degree=1) == 1


def test_searches_end_early_and_take_fewer_lanes() -> None:
    assert [lanes_of("BFS", typical_degree=d) for d in (4, 16, 64)] == [1, 2, 4]
    assert [lanes_of("SSSP", typical_degree=d) for d in (4, 16, 64)] == [1, 4, 8]


def test_scalars_go_side_by_side_where_rows_have_edges() -> None:
    """Keys with sources on long rows alone; searches and more features never."""

    def schedule(program: str, degree: int, rows: int, **options: Any) -> str:
        given = Options(target="cuda", direction="pull", **options)
        traits = GraphTraits(typical_degree=degree, rows_of_longest=rows)
        plan = make_plan(*program_of(program), given, traits)
        return plan.phases[-1].mapping.schedule

    def side_by_side(degree: int, rows: int) -> list[str]:
        programs = ("HS", "CS", "NN", "PR", "BFS", "SSSP", "SSWP")
        return [p for p in programs if schedule(p, degree, rows) == "warp_segmentation"]

    assert side_by_side(64, 512) == ["HS", "CS", "NN", "PR", "SSSP", "SSWP"]
    assert side_by_side(16, 512) == ["HS", "CS", "NN", "PR"]
    assert side_by_side(8, 512) == side_by_side(64, 256) == side_by_side(64, 0) == []
    assert schedule("HS", 64, 512, schedule="lanes") == "lanes"
    assert schedule("HS", 64, 512, mapping=(("unroll", 2),)) == "lanes"
    assert mapping_of(4, rows_of_longest=512).schedule == "lanes"
    assert mapping_of(1, rows_of_longest=512).schedule == "warp_segmentation"


def test_the_longest_row_is_none_of_a_hub() -> None:
    def rows(degree: int) -> int:
        targets = np.concatenate([np.zeros(degree, int), np.arange(4000)])
        graph = fg.Graph.from_edges(np.arange(targets.size) % 4001, targets)
        return graph_traits(graph).rows_of_longest

    assert rows(1000) == 4  # 5000 edges
    assert rows(700) == 8  # 4700, 6.7 times as many
    assert rows(500) == 8
    assert rows(60) == rows(3000) == MANY_ROWS  # short, and a hub


def test_typical_degree_is_that_of_most_edges() -> None:
    star = fg.Graph.from_edges([0] * 40, range(1, 41), directed=False)
    assert graph_traits(star).typical_degree == 32  # of the center, with half the edges
    ring = fg.Graph.from_edges(range(9), [*range(1, 9), 0])
    assert graph_traits(ring).typical_degree == 1


def test_explain_shows_how_wide_loads_are() -> None:
    text = step.explain(k=8, target="cuda")
    assert "2 lanes x 4 features in loads of 4" in text
    assert "2 lanes x 4 features in loads of 4" in step.explain(k=7, target="cuda")
    assert "in loads of" not in step.explain(k=1, target="cuda")


@pytest.mark.parametrize(
    "forced",
    [
        {"lanes_per_edge": 1},
        {"vector_width": 3},
        {"lanes_per_vertex": 24},
        {"lanes_per_vertex": 64},
    ],
)
def test_a_forced_mapping_must_fit(forced: dict[str, int]) -> None:
    with pytest.raises(fg.PlanError, match="does not fit"):
        step.fold(k=8, target="cuda", _mapping=forced)


@pytest.mark.parametrize("k", [3, 8, 33])
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_the_plan_shows_how_a_matrix_is_reduced(k: int, feature_parallel: bool) -> None:
    step = BY_NAME["implicit_least_squares"].foldmaps[0]
    kernel = step.fold(k=k, target="cuda", feature_parallel=feature_parallel)
    number = [p.into for p in kernel.plan.phases].index("gram")
    assert kernel.plan.phases[number].mapping.schedule == "share_tiles"
    assert "tiles of 8 x 8" in kernel.explain()


@fg.reduce(into="gram", combine="sum", matrix=True)
def distances(i, f, v, d):  # type: ignore[no-untyped-def]
    """No product."""
    return abs(d.x[v, i] - d.x[v, f])


@pytest.mark.parametrize("k", [3, 8, 33])
def test_a_matrix_of_no_products_is_reduced_by_elements(k: int) -> None:
    graph = fg.Graph.from_edges([0], [1])
    x = fg.vertex_property(1.0, shape=(k,))
    state = fg.State(graph, x=x, gram=np.zeros((k, k)))
    kernel = fg.foldmap(distances).fold(state, target="cuda")
    [phase] = kernel.plan.phases
    assert phase.mapping.schedule == "elements"
    assert f"mapping: one thread an element of {k} x {k}" in kernel.explain()
    body = kernel.source.partition("def reduce_phase_0(")[2].partition("\n@")[0]
    assert f"for element in range(cuda.threadIdx.x, {k * k}, " in body


@fg.gather(into="told", combine="sum")
def tell(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return fg.dot(d.x[u], d.x[v]) * d.x[u, f]


@fg.vertex
def hear(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.told[v, f]
    return True


@pytest.mark.parametrize(
    ("k", "together", "long"), [(8, 1, 0), (32, 4, 512), (128, 4, 512)]
)
def test_warps_that_meet_at_edges_leave_long_rows_to_blocks(
    k: int, together: int, long: int
) -> None:
    """Eight features are two lanes', and eight edges then half a warp's."""
    plan = fg.foldmap(tell, hear).program
    types = {"x": PropertyType(PropertyKind.VERTEX, "float32", (k,), True, False)}
    for is_long in (False, True):
        traits = GraphTraits(typical_degree=32, long_rows=is_long)
        made = make_plan(plan, types, Options(target="cuda"), traits)
        mapping = made.phases[0].mapping
        assert mapping.unroll == together
        assert mapping.threads == (32 if together > 1 else 0)
        assert mapping.hub_degree == is_long * long
        assert mapping.hubs == bool(mapping.hub_degree)


def sided(users: int, items: int) -> fg.Graph:
    """Return all ratings of some items, a row of each item; with sides."""
    ratings = scipy.sparse.csr_array(np.ones((users, items), np.float32))
    return fg.Graph.from_biadjacency(ratings)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (fg.Graph.from_edges(np.arange(1, 2049), np.zeros(2048, int)), True),
        (fg.Graph.from_edges(np.arange(1, 2048), np.zeros(2047, int)), False),
        # A row of 2,100 edges is one in 250 of those of its side, or in 400.
        (sided(2100, 250), True),
        (sided(2100, 400), False),
    ],
    ids=["star", "no hub", "few items", "many items"],
)
def test_a_giant_has_more_edges_than_a_block_is_to_take(
    graph: fg.Graph, expected: bool
) -> None:
    assert graph_traits(graph).has_giant is expected

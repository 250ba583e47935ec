"""Programs and algorithms on graphs that batches have reached, and on frozen ones.

Results have the same bits, but those of float reduces over vertices.
"""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, fields, replace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms
from featgraph.dynamic import store as stores
from featgraph.dynamic import views
from tests.algorithms.test_smoke import CASES
from tests.bank import BANK, BankProgram
from tests.dynamic.reached import batches_to, reached, verify
from tests.dynamic.test_graph import COUNTED
from tests.generated.check import check
from tests.generated.programs import generate
from tests.strategies import seeds

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
V = 61
_IS_DEEP = hypothesis.settings.get_current_profile_name() == "deep"


def require_equal(found: Any, wanted: Any, name: str) -> None:
    """Require the same bits; a NaN is any NaN."""
    np.testing.assert_array_equal(found, wanted, err_msg=name, strict=True)


def ran(
    graph: fg.Graph, program: BankProgram, k: int, **options: Any
) -> tuple[dict[str, Any], list[int]]:
    """Return values and counts of vertices after a few supersteps of a program."""
    values = program.make_state(graph, k, np.random.default_rng(5))
    state = fg.State(graph, **values)
    run = fg.iterate(program.foldmaps, state, max_supersteps=3, **options)
    return {name: state[name] for name in state}, run.active_counts


@pytest.mark.drawn(24)
@pytest.mark.parametrize("program", BANK, ids=str)
def test_programs_have_the_bits_of_the_frozen_graph(program: BankProgram) -> None:
    rng, k = np.random.default_rng(len(program.name)), program.widths[0]
    graph = reached(rng, V, directed=not program.undirected, has_ids=k % 2 == 1)
    graph.audit()
    frozen = graph.freeze()
    assert graph.digest == frozen.digest
    (found, counts), (wanted, own) = ran(graph, program, k), ran(frozen, program, k)
    assert counts == own
    for name, value in wanted.items():
        require_equal(found[name], value, name)


# -- columns of the graph, by slot and by id


def product(f, u, v, e, d):
    return d.w[e] * d.x[u]


along_in = fg.gather(into="flow", combine="sum")(product)
along_out = fg.gather(into="drain", combine="sum", along="out")(product)


@fg.gather(into="flow", combine="sum")
def along_in_of_two(f, u, v, e, d):
    return d.w[e] + d.other[e]


@fg.gather(into="flow", combine="sum", along="both")
def along_both(f, u, v, e, d):
    return d.w[e] + d.x[u]


@fg.edge
def note(f, u, v, e, d):
    d.seen[e] = d.w[e] + d.x[u]
    return True


@fg.vertex
def keep(f, v, d):
    d.y[v] = d.flow[v]
    return True


@fg.vertex
def keep_both(f, v, d):
    d.y[v] = d.flow[v] + d.drain[v]
    return True


STEPS = {
    "in": fg.foldmap(along_in, keep),
    "in of two": fg.foldmap(along_in_of_two, keep),
    "in and out": fg.foldmap(along_in, along_out, keep_both),
    "both": fg.foldmap(along_both, keep),
    "edges": fg.foldmap(note, along_in, keep),
}


def state_of_columns(graph: fg.Graph, weights: Any, **more: Any) -> fg.State:
    """Return a State of values that `STEPS` read and write."""
    return fg.State(
        graph, w=weights, y=fg.vertex_property(np.float32(0)),
        x=fg.vertex_property(np.arange(graph.vertex_count, dtype=np.float32) % 7),
        seen=fg.edge_property(np.float32(0), per_direction=not graph.directed), **more,
    )  # fmt: skip


@pytest.mark.drawn(4)
@pytest.mark.parametrize("duplicates", ["keep", "last"])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_columns_have_the_values_of_the_version(
    name: str, directed: bool, duplicates: str
) -> None:
    """In new States, and in one that runs on; kernels may go along other rows."""
    rng, step = np.random.default_rng(8), STEPS[name]
    graph = reached(rng, V, directed=directed, batches=3, duplicates=duplicates)
    column, in_place, replaced = graph.column("weight"), 0, 0
    own = fg.edge_property(np.float32(1), fill=1)
    older = state_of_columns(graph, own if "two" in name else column, other=column)
    step(older)
    for _ in range(4):
        frozen, in_order = graph.freeze(), graph.weights_as("float32")
        weights = fg.edge_property(in_order, copy=False)
        ones = fg.edge_property(np.float32(1))
        for direction in ("pull", "push") if name == "in" else ("auto",):
            pairs = [
                (older, ones if "two" in name else weights),
                (state_of_columns(graph, column, other=column), weights),
                (state_of_columns(graph, weights, other=column), weights),
            ]
            for state, own_weights in pairs:
                wanted = state_of_columns(frozen, own_weights, other=weights)
                for one in (state, wanted):
                    step(one, direction=direction)
                for key in wanted:
                    require_equal(state[key], wanted[key], key)
        moves, ends = graph.stamps.moves, rng.integers(0, V, (2, 8))
        ends[:, :4] = np.stack(graph.edges()[:2])[:, rng.integers(0, 90, 4)]
        some, values = rng.random(8) < 0.6, rng.random(8, dtype=np.float32)
        replaced += graph.update(*ends, some, weights=values).replaced
        in_place += graph.stamps.moves is moves
    assert in_place
    assert replaced or duplicates == "keep"


def test_edges_are_numbered_by_slot_where_columns_are_all() -> None:
    graph = reached(np.random.default_rng(8), V, directed=True, batches=1)
    state = {"x": fg.vertex_property(np.float32(1)), "y": fg.vertex_property(0.0)}
    own = fg.State(graph, w=fg.edge_property(np.float32(1)), **state)
    columns = fg.State(graph, w=graph.column("weight"), **state)
    assert "in_run_ids" in STEPS["in"].fold(own, target="cpu").source
    assert "in_run_ids" not in STEPS["in"].fold(columns, target="cpu").source
    pushed = STEPS["in"].fold(columns, target="cpu", direction="push").source
    assert "out_run_ends" in pushed
    assert "out_run_ids" not in pushed
    both = STEPS["in and out"].fold(columns, target="cpu").source
    assert "in_run_ids" in both
    assert "out_run_ids" in both


@pytest.mark.parametrize(
    ("values", "directed"), [("column", True), ("own", True), ("both", False)]
)
def test_a_batch_and_a_superstep_make_no_pass_over_all_edges(
    monkeypatch: pytest.MonkeyPatch, values: str, directed: bool
) -> None:
    rng, count = np.random.default_rng(11), 100_000
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, count, (2, 4 * count)), vertex_count=count, directed=directed,
        weights=np.ones(4 * count, np.float32), target="cpu",
    )  # fmt: skip
    own = fg.edge_property(graph.weights, fill=1)
    state = fg.State(
        graph, w=graph.column("weight") if values == "column" else own,
        x=fg.vertex_property(np.float32(1)), y=fg.vertex_property(np.float32(0)),
        **({"other": graph.column("weight")} if values == "both" else {}),
    )  # fmt: skip
    step = STEPS["in of two" if values == "both" else "in"]

    def change() -> None:
        ends, some = rng.integers(0, count, (2, 20)), rng.random(20) < 0.5
        graph.update(*ends, some, weights=np.ones(20, np.float32))

    def advance() -> None:
        for direction in ("pull", "push"):
            fg.iterate(step, state, max_supersteps=1, direction=direction)

    for call in (change, advance) * 3:
        call()
    for module, name in (
        (views, "living_slots"), (views.host_arrays, "host_graph_array"),
        (views.host_arrays, "cut_words"),
        (stores, "living_slots"), (stores.EdgeStore, "_slots"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, None)
    tracemalloc.start()
    try:
        # Seven sets of vertices; neither numbers of vertices nor marks of edges.
        for call, most in ((change, count // 2), (advance, 2 * count)) * 4:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            call()
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < most
    finally:
        tracemalloc.stop()
    monkeypatch.undo()
    graph.audit()
    degrees = np.asarray(graph.in_degree)
    assert state["y"].tolist() == (degrees * (1 + (values == "both"))).tolist()


@fg.gather(into="flow", combine="sum")
def named_as_arrays(f, u, v, e, d):
    in_run_starts = d.x[u]
    in_run_ids = d.w[e]
    return in_run_ids * in_run_starts


def test_locals_may_have_the_names_of_arrays() -> None:
    graph = reached(np.random.default_rng(12), V, directed=True, batches=1)
    step = fg.foldmap(named_as_arrays, keep)
    for weights in (graph.column("weight"), fg.edge_property(graph.weights)):
        found, wanted = (state_of_columns(graph, weights) for _ in range(2))
        step(found)
        STEPS["in"](wanted)
        require_equal(found["y"], wanted["y"], "y")


# -- algorithms


def test_edges_of_an_empty_graph_share_values_with_their_twins() -> None:
    graph = fg.DynamicGraph.from_edges(vertex_count=3, directed=False, target="cpu")
    one, two = (
        fg.State(graph, seen=fg.edge_property(0, per_direction=is_twice))
        for is_twice in (False, True)
    )
    graph.insert_edges([0, 1], [1, 2])
    with pytest.raises(fg.UserFunctionError, match="one value for both directions"):
        COUNTED(one)
    COUNTED(two)
    assert one["seen"].size == 2
    assert two["seen"].size == 4


def in_place(values: Any, graphs: dict[int, Any]) -> Any:
    """Return arguments with other graphs in place of some."""
    return tuple(graphs.get(id(value), value) for value in values)


def check_same(found: Any, wanted: Any) -> None:
    """Require that results have the same bits."""
    for field in fields(wanted):
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(theirs, np.ndarray | float | int | np.generic):
            require_equal(np.asarray(ours), np.asarray(theirs), field.name)


@pytest.mark.drawn(24)
@pytest.mark.parametrize("name", CASES)
def test_algorithms_have_the_answers_of_the_frozen_graph(name: str) -> None:
    case, function = CASES[name], getattr(algorithms, name)
    graphs = {
        id(value): batches_to(value, np.random.default_rng(2))
        for value in case.given
        if isinstance(value, fg.Graph)
    }
    if not graphs:
        pytest.skip("takes no graph")
    frozen = {key: graph.freeze() for key, graph in graphs.items()}
    found = function(*in_place(case.given, graphs), **case.options)
    wanted = function(*in_place(case.given, frozen), **case.options)
    check_same(found, wanted)
    verify(name, case.options, *in_place(case.claimed(found), graphs))


#: The last ones compute in float64, and the column is of float32.
WEIGHTED = (
    "sssp", "sswp", "pagerank", "label_propagation", "closeness_centrality",
    "hits", "eigenvector_centrality",
)  # fmt: skip


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", WEIGHTED)
def test_algorithms_take_the_column_of_weights(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, function = CASES[name], getattr(algorithms, name)
    graph = reached(np.random.default_rng(6), 34, directed=True)
    rest = case.given[1:]
    wanted = function(graph.freeze(), *rest)
    monkeypatch.setitem(vars(graph._edges), "weights", None)  # the host needs none
    check_same(function(graph, *rest), wanted)


# -- drawn programs


@dataclass
class Reached:
    """A graph to be made: of drawn edges that batches insert."""

    spec: Any
    seed: int

    def make(self) -> fg.Graph:
        return batches_to(self.spec.make(), np.random.default_rng(self.seed))


@pytest.mark.skipif(not _IS_DEEP, reason="compiles drawn programs: deep profile")
def test_drawn_programs_agree_with_the_interpreter() -> None:
    @settings(max_examples=60, phases=[p for p in Phase if p is not Phase.shrink])
    @given(st.integers(0, 2**32 - 1), seeds)
    def agrees(number: int, seed: int) -> None:
        case = generate(random.Random(number), work=300)
        case = replace(case, graph=Reached(case.graph, seed))
        report = check(case, "cpu")
        assert report.status != "failed", f"{report.detail}\n{case.text}"

    agrees()

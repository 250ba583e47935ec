"""Due sets after batches: resumed runs equal runs from the start (S12, rule 7)."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.runtime.loops import run_state, worklist
from featgraph.runtime.superstep import catch_up
from tests.dynamic.model import rows_of
from tests.dynamic.reached import draw_batch, living_of

BIG = 1 << 20


def sent(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return (d.y[u] * 3 + 1) % 1009


def through(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.y[u] + d.w[e]


from_sources, from_targets = (
    fg.gather(into="came", combine="sum", along=along)(sent) for along in ("in", "out")
)
lowest, nearest, nearest_active = (
    fg.gather(into="low", combine=combine, sources=sources)(through)
    for combine, sources in (("min", "active"), ("argmin", "all"), ("argmin", "active"))
)


@fg.gather(into="came", combine="sum", along="both")
def from_both(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.z[u] + 1


@fg.gather(into="came", combine="sum")
def by_weight(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e] * (d.y[u] + 1) % 1009


@fg.gather(into="came", combine="sum")
def by_degree(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.out_degree[u]


@fg.gather(into="came", combine="max", first=True)
def any_source(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return 1


@fg.vertex
def take(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = (d.came[v] + v) % 1009
    d.y_next[v] = found
    return found != d.y[v]


@fg.vertex
def take_degree(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = d.in_degree[v] * 7 + d.out_degree[v]
    d.y_next[v] = found
    return found != d.y[v]


@fg.vertex
def take_counts(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = d.vertex_count * 100 + d.edge_count
    d.y_next[v] = found
    return found != d.y[v]


@fg.reduce(into="total", combine="sum")
def add_degrees(f, v, d):  # type: ignore[no-untyped-def]
    return d.in_degree[v] * v


@fg.vertex
def take_total(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.y_next[v] = d.total[0] + v
    return d.total[0] + v != d.y[v]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.y_next[v] = min(d.y[v], d.low[v])
    return d.low[v] < d.y[v]


@fg.edge
def lower(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return fg.atomic.min(d.y, v, d.y[u] + d.w[e]) > d.y[u] + d.w[e]


@fg.edge
def show_degree(f, u, v, e, d):  # type: ignore[no-untyped-def]
    fg.atomic.max(d.y, u, d.in_degree[v])
    return False


@fg.triangle
def mark(u, v, w, e_uv, e_uw, e_vw, d):  # type: ignore[no-untyped-def]
    fg.atomic.max(d.y, u, 1)
    fg.atomic.max(d.y, v, 1)
    fg.atomic.max(d.y, w, 1)


@fg.vertex
def move(f, v, d):  # type: ignore[no-untyped-def]
    is_nearer = d.low[v] < d.y[v]
    if is_nearer:
        d.y_next[v] = d.low[v]
        d.previous_next[v] = d.low_source[v]
    return is_nearer


#: Name -> foldmap, and the batches for which its results do not depend on the past.
PROGRAMS: dict[str, tuple[Any, str]] = {
    "in": (fg.foldmap(from_sources, take), "acyclic"),
    "out": (fg.foldmap(from_targets, take), "acyclic"),
    "both": (fg.foldmap(from_both, take), "any"),
    "first": (fg.foldmap(any_source, take), "any"),
    "weights": (fg.foldmap(by_weight, take), "acyclic"),
    "far degrees": (fg.foldmap(by_degree, take), "any"),
    "own degrees": (fg.vertexmap(take_degree), "any"),
    "counts": (fg.vertexmap(take_counts), "any"),
    "reduce": (fg.foldmap(add_degrees, take_total), "any"),
    "active": (fg.foldmap(lowest, adopt), "grows"),
    "edges": (fg.edgemap(lower), "grows"),
    "degrees at edges": (fg.edgemap(show_degree), "grows"),
    "triangles": (fg.trianglemap(mark), "simple"),
    "trim all": (fg.foldmap(nearest, move), "any"),
    "trim active": (fg.foldmap(nearest_active, move), "any"),
}
#: Those whose values begin as numbers of vertices, and not as 0; those that are trimmed
#: begin with one source in eleven.
DESCENDING, TRIMMED = {"active", "edges"}, {"trim all", "trim active"}
IN_PLACE = {"edges", "degrees at edges", "triangles"}
#: Batches of each graph.
COUNT = hypothesis.settings().max_examples // 2
pytestmark = pytest.mark.filterwarnings("ignore::featgraph.StaleSourcesWarning")


def first_values(name: str, ids: Any) -> Any:
    """Return the values with which vertices begin."""
    ids = np.asarray(ids, np.int64)
    if name in TRIMMED:
        return np.where(ids % 11 == 5, 0, BIG)
    return ids * (7919 if name in DESCENDING else 0) % 10007


def make_state(name: str, graph: fg.Graph) -> fg.State:
    """Return a State with values that depend on ids alone."""
    ids, is_dynamic = np.arange(graph.vertex_count), isinstance(graph, fg.DynamicGraph)
    more = {"previous": fg.vertex_property(ids * 0 - 1, iterated=True, fill=-1)}
    first, iterated = first_values(name, ids), name not in IN_PLACE
    return fg.State(
        graph,
        y=fg.vertex_property(first, iterated=iterated, fill=BIG),
        z=fg.vertex_property(np.full(len(ids), 3), fill=3),
        runs=fg.vertex_property(np.zeros(len(ids), np.int64)),
        w=graph.column("weight") if is_dynamic else fg.edge_property(graph.weights),
        **(more if name in TRIMMED else {}),
    )


def drawn_graph(rng: np.random.Generator, name: str, way: str = "copies") -> Any:
    """Return a graph; in it copies are kept, or the last or least weight counts."""
    kind = PROGRAMS[name][1]
    directed = kind != "simple" and bool(kind == "acyclic" or rng.random() < 0.7)
    last = "last" if kind in {"any", "acyclic"} else "min"
    graph = fg.DynamicGraph.from_edges(
        [], [], weights=np.zeros(0, np.int64), directed=directed, target="cpu",
        vertex_count=int(rng.choice([1, 20, 40])),
        duplicates="keep" if way == "copies" and kind != "simple" else last,
        loops="drop" if kind in {"acyclic", "simple"} else "keep",
    )  # fmt: skip
    for _ in range(6):
        draw_batch(rng, graph, kind)
    return graph


def go_on(name: str, state: fg.State, **options: Any) -> Any:
    """Go on with what batches have made due."""
    born = np.flatnonzero((state["y"] >= BIG) & living_of(state.graph))
    if name in TRIMMED or PROGRAMS[name][1] in {"grows", "simple"}:
        state.put("y", born, first_values(name, born))
    if name in TRIMMED:
        fg.trim(state, reset={"y": BIG}, target="cpu")
    with warnings.catch_warnings():
        kind = Warning if name in TRIMMED else fg.ConvergenceWarning
        warnings.simplefilter("error", kind)
        return fg.iterate(PROGRAMS[name][0], state, target="cpu", **options)


def begin_anew(name: str, graph: Any, *, interpreted: bool = False) -> Any:
    """Return the values of a run on a separate graph, and BIG at dead vertices."""
    sources, targets, columns = graph.edges()
    fresh = fg.Graph.from_edges(
        sources, targets, weights=columns["weight"], vertex_count=graph.vertex_count,
        directed=graph.directed,
    )  # fmt: skip
    state, step = make_state(name, fresh), PROGRAMS[name][0]
    if interpreted:
        values = reference.iterate(step.program, *reference.from_state(state)).values
    else:
        fg.iterate(step, state, target="cpu")
        values = state
    return np.where(living_of(graph), values["y"], BIG)


@pytest.mark.drawn(16)
@pytest.mark.parametrize("way", ["copies", "last"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_that_go_on_equal_those_that_begin_anew(name: str, way: str) -> None:
    check_going_on(name, way=way)


def check_going_on(
    name: str, count: int = COUNT, remembers: int = 1 << 30, way: str = "copies"
) -> None:
    """Compare runs behind drawn batches, of which a log remembers some."""
    for seed in range(2 if way == "copies" else 1):
        rng = np.random.default_rng(seed + (way == "last") + 3 * (name in TRIMMED))
        graph = drawn_graph(rng, name, way)
        state, log = make_state(name, graph), graph._store._log
        go_on(name, state)
        for number in range(count):
            for _ in range(int(rng.choice([1, 1, 3]))):
                draw_batch(rng, graph, PROGRAMS[name][1])
            while len(log._records) > remembers:
                log._size -= log._records.popleft().size
            go_on(name, state)
            wanted = begin_anew(name, graph, interpreted=number == count - 1)
            np.testing.assert_array_equal(state["y"], wanted)


@pytest.mark.parametrize(
    ("name", "count"), [("active", 6), ("edges", 6), ("trim active", 3)]
)
def test_the_loop_over_few_vertices_goes_on(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklist, "SMALLEST_GRAPH", 0)
    check_going_on(name, count)


@pytest.mark.parametrize("remembers", [0, 1])
def test_all_is_due_where_the_log_is_too_old(remembers: int) -> None:
    for name in ("in", "counts", "trim all"):
        check_going_on(name, 3, remembers)


def rows_by_way(graph: Any) -> dict[str, Any]:
    """Return the edges of each row, with the numbers of their insertions."""
    for way in ("out", "both") if graph.directed else ():
        graph._store.pool(way)
    own = {way: rows_of(graph._store, way) for way in graph._store.pools}
    rows = {way: own.get(way, own["in"]) for way in ("in", "out", "both")}
    return rows | {"living": living_of(graph)}


def named_by_the_rule(name: str, now: Any, then: Any) -> set[int]:
    """Return the vertices on which one superstep runs, found row by row."""
    along, known = name if name in now else "in", len(then["in"])
    living, active = set(np.flatnonzero(now["living"]).tolist()), set()
    due = living - set(np.flatnonzero(then["living"]).tolist())
    for v in range(len(now["in"])):
        own, ins, outs = (
            (now[way][v], then[way][v] if v < known else [])
            for way in (along, "in", "out")
        )
        gained, drained = (len(rows[0]) != len(rows[1]) for rows in (ins, outs))
        if (gained or drained) if name == "own degrees" else own[0] != own[1]:
            due.add(v)
        if name == "far degrees" and drained:
            active.add(v)
        if name == "active" and set(outs[0]) - set(outs[1]):
            active.add(v)
    return living & (due | active | {t for v in active for t, *_ in now["out"][v]})


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    "name", ["in", "out", "both", "first", "weights", "far degrees", "own degrees",
             "active"],
)  # fmt: skip
def test_no_other_vertex_is_due(name: str) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        graph = drawn_graph(rng, name)
        state = make_state(name, graph)
        go_on(name, state)
        for _ in range(COUNT):
            then = rows_by_way(graph)
            draw_batch(rng, graph, PROGRAMS[name][1])
            before = state["runs"]
            fg.iterate(PROGRAMS[name][0], state, supersteps=1, target="cpu")
            found = set(np.flatnonzero(state["runs"] != before).tolist())
            assert found == named_by_the_rule(name, rows_by_way(graph), then)
            go_on(name, state)


@pytest.mark.parametrize("name", ["own degrees", "counts"])
def test_a_loop_of_an_undirected_graph_is_one_edge(name: str) -> None:
    graph = fg.DynamicGraph.from_edges(
        [3, 3, 0], [1, 2, 1], weights=[1, 1, 1], directed=False, target="cpu"
    )
    state = make_state(name, graph)
    go_on(name, state)
    for sources, targets, insert in (
        ([3, 3, 3], [1, 2, 3], [False, False, True]), ([0, 0], [1, 0], [False, True]),
    ):  # fmt: skip
        graph.update(sources, targets, insert, weights=[1] * len(sources))
        go_on(name, state)
        np.testing.assert_array_equal(state["y"], begin_anew(name, graph))


# -- writes to some entries


@fg.vertex
def take_own(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.y_next[v] = d.z[v]
    return d.z[v] != d.y[v]


@fg.edge
def lift(f, u, v, e, d):  # type: ignore[no-untyped-def]
    fg.atomic.max(d.y, u, d.z[v])
    return False


#: Name -> foldmap, and the property that is written.
WRITTEN = {
    "own": (fg.vertexmap(take_own), "z"),
    "elsewhere": (fg.foldmap(from_both, take), "z"),
    "not read": (fg.foldmap(from_sources, take), "z"),
    "edges": (fg.foldmap(by_weight, take), "w"),
    "at targets": (fg.edgemap(lift), "z"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_entries_that_are_written_make_their_readers_due(name: str) -> None:
    rng = np.random.default_rng(3)
    graph: Any = drawn_graph(rng, "in").freeze()
    step, written = WRITTEN[name]
    kind = "edges" if name == "at targets" else "in"
    state = make_state(kind, graph)
    state["y"] = 0
    fg.iterate(step, state, target="cpu")
    for _ in range(6):
        count = len(state[written])
        ids = rng.integers(0, count, int(rng.choice([0, 1, 3])))
        values = rng.integers(20, 90, len(ids))
        whole, before = state[written], state["runs"]
        whole[ids] = values
        state.put(written, ids, values)
        np.testing.assert_array_equal(state[written], whole)
        run = fg.iterate(step, state, supersteps=1, target="cpu")
        if name in {"own", "not read"}:
            ran = np.flatnonzero(state["runs"] != before).tolist()
            assert ran == (np.unique(ids).tolist() if name == "own" else [])
            assert run.supersteps == (name == "own" and len(ids) > 0)
        fg.iterate(step, state, target="cpu")
        wanted = make_state(kind, graph)
        wanted["y"], wanted["z"] = 0, state["z"]
        wanted["w"] = state["w"]
        fg.iterate(step, wanted, target="cpu")
        if name != "at targets":  # a maximum does not follow what falls
            np.testing.assert_array_equal(state["y"], wanted["y"])
        else:
            assert (state["y"] >= wanted["y"]).all()


def test_writes_to_entries_are_checked() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    state = fg.State(graph, x=fg.vertex_property([1.0, 2.0, 3.0]), alpha=0.5)
    for name, ids, values, error in (
        ("x", [3], 1.0, "out of range"), ("x", [-1], 1.0, "out of range"),
        ("x", [0.5], 1.0, "integer ids"), ("x", [0, 1], [1.0], "one value per entry"),
        ("x", [0], "a", "x"), ("alpha", [0], 1.0, "assign all of it"),
        ("y", [0], 1.0, "there is no property"),
    ):  # fmt: skip
        with pytest.raises((fg.StateError, fg.GraphInputError), match=error):
            state.put(name, ids, values)
    state.put("x", [True, False, True], 7)
    assert state["x"].tolist() == [7.0, 2.0, 7.0]
    with pytest.raises(fg.StateError, match="fill="):
        fg.State(graph, x=fg.vertex_property(0.0, fill=[1.0, 2.0]))


# -- batches within a run


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", ["in", "far degrees", "counts"])
@pytest.mark.parametrize("where", ["callback", "then"])
@pytest.mark.parametrize("change_driven", ["auto", True])
def test_batches_within_a_run_are_gone_on_with(
    name: str, where: str, change_driven: Any
) -> None:
    if change_driven is True and name == "counts":
        return  # it gathers nothing
    rng = np.random.default_rng(5)
    graph = drawn_graph(rng, name)
    state, left = make_state(name, graph), [4]

    def apply(run: Any, of: fg.State) -> Any:
        if left[0] and run.supersteps % 2:
            left[0] -= 1
            draw_batch(rng, graph, PROGRAMS[name][1])
        if where == "then":
            return [0] if left[0] else None
        return False

    options = {where: apply, "change_driven": change_driven}
    fg.iterate(PROGRAMS[name][0], state, target="cpu", **options)
    fg.iterate(PROGRAMS[name][0], state, target="cpu")
    np.testing.assert_array_equal(state["y"], begin_anew(name, graph))


def test_two_foldmaps_and_copies_keep_what_each_has_seen() -> None:
    rng = np.random.default_rng(7)
    graph = drawn_graph(rng, "in")
    state = make_state("in", graph)
    first, second = PROGRAMS["in"][0], fg.foldmap(from_sources, take)
    for step in (first, second):
        fg.iterate(step, state, target="cpu")
    for _ in range(4):
        draw_batch(rng, graph, "acyclic")
        fg.iterate(first, state, target="cpu")
        assert "due" in second.explain(state).splitlines()[-1]
        other = state.copy()
        fg.iterate(first, other, target="cpu")
        np.testing.assert_array_equal(other["y"], state["y"])
    runs = state["runs"]
    fg.iterate(second, state, target="cpu")
    assert (state["runs"] > runs).any()
    np.testing.assert_array_equal(state["y"], other["y"])


@fg.vertex
def give_up(f, v, d):  # type: ignore[no-untyped-def]
    d.y_next[v] = 1
    return d.y[v] != 1


@pytest.mark.parametrize("is_run", [False, True])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_other_foldmaps_between_runs_make_due(is_run: bool, is_fixed: bool) -> None:
    ends = np.arange(1, 8), np.arange(2, 9)
    graph: Any = fg.DynamicGraph.from_edges(*ends, vertex_count=10, target="cpu")
    graph = graph.freeze() if is_fixed else graph
    state = fg.State(
        graph,
        y=fg.vertex_property(np.arange(3, 13), iterated=True),
        w=fg.edge_property(0), runs=fg.vertex_property(0),
    )  # fmt: skip
    step, other = PROGRAMS["active"][0], fg.foldmap(give_up)
    fg.iterate(step, state, target="cpu")
    for number, expected in ((5, [3, 4, 4, 4, 4, 1, 1, 1, 1, 12]), (0, [1, *[4] * 4])):
        if is_run:
            fg.iterate(other.on([number]), state, target="cpu")
        else:
            other.on([number])(state, target="cpu")
        fg.iterate(step, state, target="cpu")
        assert state["y"].tolist()[: len(expected)] == expected
    if not is_fixed:
        graph.insert_edges([0], [1])
        step(state, target="cpu")  # a call of the foldmap itself
        fg.iterate(step, state, target="cpu")
        assert state["y"].tolist() == [1] * 9 + [12]


@pytest.mark.filterwarnings("error::featgraph.StaleSourcesWarning")
def test_extremes_that_go_on_behind_deletions_warn() -> None:
    graph = fg.DynamicGraph.from_edges(
        [5, 16, 1], [1, 1, 2], weights=np.array([1, 2, 3]), target="cpu"
    )
    state, step = make_state("trim all", graph), PROGRAMS["trim all"][0]
    fg.iterate(step, state, target="cpu")
    graph.insert_edges([2], [3], weights=[1])
    fg.iterate(step, state, target="cpu")
    graph.delete_edges([5], [1])
    with pytest.warns(fg.StaleSourcesWarning, match="through continues"):
        fg.iterate(step, state, target="cpu")
    graph.delete_edges([16], [1])
    fg.trim(state, reset={"y": BIG})
    fg.iterate(step, state, target="cpu")
    assert state["y"][[5, 1, 2, 3]].tolist() == [0, BIG, BIG, BIG]
    graph.delete_edges([1], [2])
    with pytest.warns(fg.StaleSourcesWarning):
        fg.iterate(step, state, target="cpu")


# -- faults

#: Reason -> a check that needs it.
REASONS = {
    "due: an edge was inserted": "in",
    "due: an edge was deleted": "out",
    "due: an edge was changed": "weights",
    "due: new": "in",
    "due: in_degree has changed": "own degrees",
    "read: out_degree has changed": "far degrees",
    "read: in_degree has changed": "degrees at edges",
    "active: source of an edge that was inserted": "active",
    "active: source of an edge that was changed": "active",
    "active: end of an edge that was inserted": "edges",
    "active: end of an edge that was changed": "edges",
    "everything": "counts",
    "due: y was reset": "trim all",
    "beside: in": "trim active",
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_that_is_forgotten_is_missed(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, what = reason.partition(": ")

    def find(plan: Any, state: fg.State, since: Any) -> Any:
        added = catch_up.find_due(plan, state, since)
        if what.endswith("was reset"):
            added.due = {}
        elif what:
            getattr(added, kind).pop(what, None)
        else:
            added.everything = ""
        return added

    monkeypatch.setattr(run_state, "find_due", find)
    way = "last" if "changed" in what else "copies"
    with pytest.raises(AssertionError):
        check_going_on(REASONS[reason], way=way)

"""The class `DynamicGraph`: what hosts read in each version, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms
from featgraph.dynamic import store as stores
from featgraph.fold.plan.traits import graph_traits
from featgraph.graph.building import kernels
from featgraph.graph.inputs import numbers
from featgraph.graph.views.structure import edge_rows
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.dynamic.model import kept
from tests.dynamic.reached import living_of, reached
from tests.dynamic.test_batches import failing_at, interrupted_at
from tests.dynamic.test_resumed import change, living

ATTRIBUTES = (
    "sources", "targets", "weights", "in_degree", "out_degree", "self_loops",
    "given_index", "digest", "weights_digest", "edge_count", "given_edge_count",
    "vertex_count",
)  # fmt: skip


def require_same_view(graph: fg.DynamicGraph, static: fg.Graph) -> None:
    """Require that hosts read the same of a graph and of a static one."""
    for name in ATTRIBUTES:
        found, wanted = getattr(graph, name), getattr(static, name)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
    for name in ("in_edges", "out_edges", "incident_edges"):
        for part in ("row_offsets", "column_indices", "edge_ids"):
            found, wanted = (getattr(getattr(g, name), part) for g in (graph, static))
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name}.{part}")
    if not graph.directed:
        np.testing.assert_array_equal(graph.twins, static.twins)


@pytest.mark.parametrize("directed", [True, False])
def test_hosts_read_the_present_version(directed: bool) -> None:
    rng = np.random.default_rng(2)
    graph = fg.DynamicGraph.from_edges(vertex_count=5, directed=directed, weights=[])
    graph.changing.degrees("in")
    for number in range(60):
        change(rng, graph, True, 60)
        if number % 9 == 8:
            graph.compact()
        if number % 7 == 6:
            graph = graph.copy()
        graph.audit()
        count = graph.vertex_count
        sources, targets, columns = graph.edges()
        again = fg.Graph.from_edges(
            sources, targets, weights=columns["weight"], vertex_count=count,
            directed=directed,
        )  # fmt: skip
        require_same_view(graph, again)
        for side in ("in", "out"):
            assert not graph.changing.degrees(side)[count:].any()
        if directed:
            pool = graph._store.pools["in"]
            counts = np.bincount(again.out_degree)
            assert pool.longest_out == counts.size - 1
            kept = pool.out_counts[: counts.size]
            np.testing.assert_array_equal(kept[1:], counts[1:])
        alive, frozen = living(graph), graph.freeze()
        assert alive.size == graph.living_count == frozen.vertex_count
        np.testing.assert_array_equal(alive[frozen.sources], sources)
        np.testing.assert_array_equal(alive[frozen.targets], targets)
        np.testing.assert_array_equal(frozen.weights, columns["weight"])
        names = None if alive.size == count else alive
        np.testing.assert_array_equal(frozen.vertex_names, names)
        pairs = rng.choice(alive, (2, 300))
        known = set(zip(sources.tolist(), targets.tolist(), strict=True))
        known |= set() if directed else {(v, u) for u, v in known}
        wanted = [pair in known for pair in zip(*pairs.tolist(), strict=True)]
        assert graph.contains(*pairs).tolist() == wanted
        rows, other = again.out_edges, graph.copy()  # rows along "out" are its own
        for v in alive[::9]:
            some = slice(*rows.row_offsets[v : v + 2])
            np.testing.assert_array_equal(other.neighbors(v), rows.column_indices[some])


def test_traits_rise_at_once_and_fall_past_a_factor_of_two() -> None:
    ends = np.arange(500), np.full(500, 9)
    graph = fg.DynamicGraph.from_edges(*ends, vertex_count=4000)
    assert not graph_traits(graph).long_rows
    for first, last, insert, is_long, stays in [
        (500, 513, True, True, False),
        (0, 200, False, True, True),  # 313 edges are more than half of 512
        (200, 260, False, False, False),
    ]:  # fmt: skip
        shape = graph.stamps.shape
        graph.update(np.arange(first, last), np.full(last - first, 9), insert)
        assert graph_traits(graph).long_rows is is_long
        assert (graph.stamps.shape is shape) is stays
    graph.insert_edges(np.full(2048, 3), np.arange(2048))
    assert graph_traits(graph).has_hubs  # of out-edges


def test_a_batch_in_place_ends_the_version_alone() -> None:
    rng = np.random.default_rng(3)
    graph = reached(rng, 61, directed=True, batches=1)
    step = algorithms.pagerank
    step(graph)
    view = graph_arrays(graph, choose_device("cpu"))
    held, stamps = dict(view), graph.stamps
    graph.delete_edges(graph.sources[:3], graph.targets[:3], copies="first")
    assert graph.stamps.version is not stamps.version
    assert graph.stamps.moves is stamps.moves
    assert graph.stamps.shape is stamps.shape
    step(graph)
    assert all(view[name] is array for name, array in held.items())
    graph.compact()
    assert graph.stamps.moves is not stamps.moves
    graph.audit()


def test_names_are_numbered_in_the_order_of_appearance() -> None:
    graph = fg.DynamicGraph.from_edges(["c", "a"], ["b", "c"], names=True)
    assert graph.vertex_names == ("c", "b", "a")
    result = graph.insert_edges(["a", "d"], ["e", "e"])
    assert result.vertices.tolist() == [3, 4]
    assert graph.vertex_names == ("c", "b", "a", "e", "d")
    assert graph.insert_vertices(["d", "f"]).vertices.tolist() == [5]
    assert graph.vertex_index("f") == 5
    graph.delete_vertices(["b"])
    for find in (graph.vertex_index, graph.neighbors, graph.copy().vertex_index):
        with pytest.raises(fg.GraphInputError, match="no such vertex"):
            find("b")
    assert graph.vertex_names == ("c", None, "a", "e", "d", "f")
    assert graph.freeze().vertex_names == ("c", "a", "e", "d", "f")
    assert graph.insert_edges(["g"], ["b"]).vertices.tolist() == [1, 6]
    assert graph.vertex_names[1] == "g"
    pairs = ["g", "g", "p", "a"], ["b", "a", "a", "p"]
    assert graph.contains(*pairs).tolist() == [True, False, False, False]
    graph.audit()
    graph = fg.DynamicGraph.from_edges([70, -5], [3, 70], names=True)
    assert graph.vertex_names == (70, 3, -5)
    graph.insert_edges([9], [3])
    assert [graph.vertex_index(name) for name in (3, 9)] == [1, 3]


def test_a_graph_may_begin_without_vertices() -> None:
    graph = fg.DynamicGraph.from_edges(weights=[])
    with pytest.raises(fg.GraphInputError, match="at least one vertex"):
        graph.freeze()
    assert graph.insert_vertices(0).vertices.size == graph.version == 0
    graph.insert_vertices(3)
    graph.insert_edges([0, 1], [1, 2], weights=[1.0, 2.0])
    ranks = algorithms.pagerank(graph).ranks
    np.testing.assert_array_equal(ranks, algorithms.pagerank(graph.freeze()).ranks)
    assert fg.DynamicGraph.from_edges([], [], vertex_count=0).vertex_count == 0


def test_columns_are_read_only() -> None:
    graph = fg.DynamicGraph.from_edges(
        [0, 1], [1, 2], weights=[1.0, 2.0], columns={"kind": [[1, 2], [3, 4]]}
    )
    assert np.asarray(graph.column("kind")).tolist() == [[1, 2], [3, 4]]
    state = fg.State(graph, w=graph.column("weight"))

    @fg.edge
    def write(f, u, v, e, d):
        d.w[e] = 0.0
        return True

    for call in (
        lambda: state.__setitem__("w", 1.0), lambda: state.view("w"),
        lambda: state.touch("w"), lambda: fg.edgemap(write)(state),
    ):  # fmt: skip
        with pytest.raises(fg.StateError, match="read-only"):
            call()
    assert state.copy()["w"].tolist() == [1.0, 2.0]
    graph.insert_edges([2], [0], weights=[5.0], columns={"kind": [[7, 8]]})
    assert state["w"].tolist() == [1.0, 2.0, 5.0]
    assert graph.weights_as("float64") is graph.weights


def test_copies_have_no_names_of_dead_vertices() -> None:
    graph = fg.DynamicGraph.from_edges(["a", "b"], ["b", "c"], names=True)
    graph.delete_vertices(["b", "a"])
    graph.insert_vertices(["b"])
    for other in (graph.copy(), copy.copy(graph), copy.deepcopy(graph)):
        assert [other.vertex_index("b"), other.vertex_index("c")] == [0, 2]
        assert other.insert_edges(["a"], ["b"]).vertices.tolist() == [1]
        assert other.contains(["a", "b"], ["b", "c"]).tolist() == [True, False]
        assert (graph.version, other.version) == (2, 3)
        assert (graph.living_count, other.living_count) == (2, 3)
        other.audit()
    made = fg.DynamicGraph.from_graph(graph)  # of the living vertices
    assert (made.vertex_names, made.living_count) == (("b", "c"), 2)
    assert made.insert_edges(["a"], ["b"]).vertices.tolist() == [2]


class OnGpu:
    """An array that is in the memory of a GPU, by its interface."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.dtype, self.shape = self.values.dtype, self.values.shape


def test_arrays_of_a_gpu_are_copied_to_a_graph_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numbers, "_copy_by_cupy", lambda given: given.values)
    ends = OnGpu([0, 1]), OnGpu([1, 2])
    graph = fg.DynamicGraph.from_edges(*ends, weights=OnGpu([4.0, 5.0]), target="cpu")
    graph.insert_edges(*ends, weights=OnGpu([6.0, 7.0]))
    assert graph.sources.tolist() == [0, 1, 0, 1]
    assert graph.weights.tolist() == [4.0, 5.0, 6.0, 7.0]


# -- refusals


@fg.vertex
def _stay(f, v, d):
    d.x[v] = d.x[v]
    return False


def state_of(graph: fg.Graph) -> fg.State:
    return fg.State(graph, x=fg.vertex_property(0.0))


STAY, MATRIX = fg.vertexmap(_stay), sparse.csr_array(np.eye(3))


def test_the_own_target_is_taken() -> None:
    graph = fg.DynamicGraph.from_graph(fg.Graph.from_scipy(MATRIX), target="cpu")
    assert graph.weights.tolist() == [1.0, 1.0, 1.0]
    for target in ("auto", "cpu"):
        STAY(state_of(graph), target=target)


#: Calls for a graph of three vertices, and a text of the error.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pickle": (pickle.dumps, "freeze"),
    "shards": (lambda g: g.partition(parts=2), "freeze"),
    "ranks": (fg.distribute, "freeze"),
    "checkpoint": (lambda g: fg.iterate(STAY, state_of(g), checkpoint="x"), "freeze"),
    "target": (lambda g: STAY(state_of(g), target="cuda"), "freeze"),
    "target of a run": (
        lambda g: fg.iterate(STAY, state_of(g), target="cuda"), "freeze"),
    "matrix": (lambda _: fg.DynamicGraph.from_scipy(MATRIX), "from_graph"),
    "sides": (
        lambda _: fg.DynamicGraph.from_graph(
            fg.Graph.from_edges([0], [1], sides=(1, 1))), "sides"),
    "column": (lambda g: g.column("time"), "no column of this name"),
    "version": (lambda g: g.changes(-1), "version"),
    "later": (lambda g: g.changes(1), "version"),
    "flag": (lambda g: g.changes(False), "version"),
    "text": (lambda g: g.changes("0"), "version"),
    "vertices": (lambda g: g.insert_vertices(-1), r"got: +-1\n.*\[0, 2147483647\]"),
    "vertex_count": (
        lambda _: fg.DynamicGraph.from_edges([0], [2], vertex_count=2),
        r"0 <= id < 2 .*\n.*raise vertex_cou"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_a_fixed_graph_refuses(name: str) -> None:
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], target="cpu")
    call, text = REFUSED[name]
    error = fg.DeviceError if name.startswith("target") else fg.GraphInputError
    with pytest.raises(error, match=text):
        call(graph)


#: Arguments of a batch of two updates, and a text of the error.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "ids": ({"sources": [0, 9]}, r"sources\[1\](.*\n)*.*graph\.insert_vertices"),
    "negative": ({"sources": [0, -1]}, r"sources\[1\]"),
    "targets": ({"targets": [-1, 0]}, r"targets\[0\]"),
    "floats": ({"sources": [0.5, 1.0]}, "sources"),
    "lengths": ({"targets": [1]}, "as many targets"),
    "pairs": ({"sources": [[0, 1]]}, "one dimension"),
    "no weights": ({"weights": None}, "weight"),
    "nan": ({"weights": [1, np.nan]}, r"weights\[1\]"),
    "infinite": ({"weights": [1e300, 1]}, "weights"),
    "weights": ({"weights": [1.0]}, "weights"),
    "rows": ({"weights": [[1.0], [2.0]]}, "a value for each update"),
    "column": (
        {"columns": {"time": [1, 1], "x": [1, 1]}},
        r"columns\['time'\].*\n.*weight, time, x\n.*: weight$",
    ),
    "weights twice": ({"columns": {"weight": [1.0, 1.0]}}, "given twice"),
    "mask": ({"insert": [True]}, "insert"),
    "numbers": ({"insert": [1, 0]}, "mask"),
    "copies": ({"copies": "some"}, "copies"),
    "missing": ({"missing": "no"}, "missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_change_nothing(name: str) -> None:
    weights = np.array([1, 2], np.float32)
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], weights=weights)
    before, stamps = graph.digest, graph.stamps
    changed, match = BAD[name]
    given = {"sources": [0, 1], "targets": [1, 2], "weights": [3.0, 1.0]} | changed
    with pytest.raises(fg.GraphInputError, match=match):
        graph.update(**given)
    assert (graph.digest, graph.version) == (before, 0)
    assert graph.stamps is stamps
    graph.audit()
    assert graph.update([0], [1], weights=[3.0]).inserted == 1


@pytest.mark.parametrize(
    "weights",
    [[True, False], np.ones(2, np.longdouble), [[1.0], [2.0]], [1.0], ["a", "b"],
     [1j, 2], np.ma.array([1.0, 2.0], mask=[True, False]), [np.nan, 1.0]],
    ids=str,
)  # fmt: skip
def test_weights_that_a_fixed_graph_refuses_are_refused(weights: Any) -> None:
    graph = fg.DynamicGraph.from_edges([0], [1], vertex_count=3, weights=[1.0])
    for call in (
        fg.Graph.from_edges, fg.DynamicGraph.from_edges, graph.insert_edges
    ):  # fmt: skip
        with pytest.raises(fg.GraphInputError, match="weights"):
            call([0, 1], [1, 2], weights=weights)
    assert graph.version == 0
    for shape in ((2, 0), (2, 2, 2)):
        with pytest.raises(fg.GraphInputError, match="a row for each edge"):
            fg.DynamicGraph.from_edges([0, 1], [1, 2], columns={"x": np.ones(shape)})


def test_weights_of_two_bytes_are_taken() -> None:
    ends, weights = ([0, 1, 2], [1, 2, 0]), np.array([1, 2, 3], np.float16)
    graph = fg.DynamicGraph.from_edges(*ends, weights=weights, target="cpu")
    for run in (algorithms.pagerank, partial(algorithms.sssp, sources=0)):
        found, wanted = run(graph), run(graph.freeze())
        name = "ranks" if run is algorithms.pagerank else "distances"
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    with pytest.raises(fg.StateError, match="cannot be stored"):
        fg.State(graph, w=graph.column("weight"))


def test_a_batch_waits_for_no_superstep_and_no_search_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch would write the rows that they read, also with new vertices."""
    graph = fg.DynamicGraph.from_edges([0], [1], directed=False, target="cpu")
    search, found = kernels.label_components, list[str]()

    def insert() -> None:
        for call in (
            lambda: graph.insert_edges([1], [0]), lambda: graph.insert_vertices(1)
        ):  # fmt: skip
            with pytest.raises(fg.StateError, match="another thread is at supersteps"):
                call()
        found.append("refused")

    def insert_elsewhere(*_: Any) -> None:
        thread = threading.Thread(target=insert)
        thread.start()
        thread.join()

    def look(run: Any, state: Any) -> None:
        insert_elsewhere()
        if run.supersteps == 1:
            graph.insert_vertices(1)  # in the thread that runs

    def searched(*arguments: Any) -> None:
        insert_elsewhere()
        search(*arguments)

    fg.iterate(STAY, state_of(graph), callback=look, max_supersteps=2)
    monkeypatch.setattr(kernels, "label_components", searched)
    assert graph.strong_components().tolist() == [0, 0, 2]
    assert found == ["refused"] * 3
    graph.insert_vertices(1)
    assert (graph.version, graph.vertex_count) == (2, 4)


@fg.gather(into="total", combine="sum")
def note_of_edge(f, u, v, e, d):
    return d.note[e]


@fg.vertex
def add_notes(f, v, d):
    d.found[v] = d.total[v]
    return True


@fg.edge
def count(f, u, v, e, d):
    d.seen[e] += 1
    return True


NOTES, COUNTED = fg.foldmap(note_of_edge, add_notes), fg.edgemap(count)


def require_values(state: fg.State, x: Any, notes: Any, seen: Any) -> None:
    """Require values of vertices by id, and of edges in the order of insertion."""
    directed, count = state.graph.directed, len(notes)
    assert state["note"].tolist() == [*notes.values()]
    assert state["seen"].tolist() == [*seen.values()] * (2 - directed)
    assert state["x"].tolist() == [*x.values()]
    view = state.view("note")
    order = view.order[view.order < 2 * count]  # ids without an edge
    given = np.array([*notes.values()])[order % count]
    found = np.asarray(view)[view.order < 2 * count]
    assert found.tolist() == given.tolist()
    if directed:
        own = state["note"][state.graph.own_edges]
        np.testing.assert_array_equal(state.local("note"), own)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_values_of_states_stay_with_vertices_and_edges(
    seed: int, directed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lays rows out, numbers edges or gives them ids anew in between."""
    rng, count = np.random.default_rng(seed), 14
    if seed % 3 == 0:  # the log is too short
        monkeypatch.setattr(stores, "_LOG", 0)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, count, (2, 40)), weights=np.arange(40), target="cpu",
        directed=directed,
    )  # fmt: skip
    notes, seen = dict(enumerate(range(5, 45))), dict.fromkeys(range(40), 0)
    x = {v: [1, 2] for v in range(count)}  # by id, as the others are by weight

    def made() -> fg.State:
        counts = [*seen.values()] * (2 - directed)
        return fg.State(
            graph,
            x=fg.vertex_property([*x.values()], iterated=True, fill=[5, 6]),
            note=fg.edge_property([*notes.values()], fill=-1),
            seen=fg.edge_property(counts, per_direction=not directed),
            found=fg.vertex_property(np.zeros(len(x), np.int64)),
        )

    state = made()
    if directed:  # ids are the slots of CSC
        slots = np.argsort(graph.targets, kind="stable")
        np.testing.assert_array_equal(state.view("note").order, slots)
    for turn in range(12):
        other, what = state.copy(), int(rng.integers(8))
        labels = 40 + 12 * turn + np.arange(12)
        if what == 0:
            graph._store._renumber()  # as after 2 ** 31 insertions
        elif what == 1:
            graph._store.next_number = 2**31 - 1
            one = graph.insert_vertices(1).vertices
            assert graph.delete_edges(one, one).missing == 1
            graph.audit()
        elif what == 2:
            graph.compact()
        elif what == 3:
            dead = rng.choice(np.flatnonzero(living_of(graph)), 2, replace=False)
            graph.delete_vertices(dead)
            x = {v: x[v] for v in x if v not in dead}
            graph.insert_vertices(1)
        elif what == 4:
            del state, other
            gc.collect()
            state = other = made()
        ends = rng.choice(np.flatnonzero(living_of(graph)), (2, 12))
        graph.update(*ends, rng.random(12) < 0.6, weights=labels, copies="last")
        if what == 7:
            graph._store._renumber()
        known = graph.edges()[2]["weight"].tolist()
        x = {v: x.get(v, [5, 6]) for v in range(graph.vertex_count)}
        notes = {w: notes.get(w, -1) for w in known}
        seen = {w: seen.get(w, 0) for w in known}
        for one in (state, other):
            require_values(one, x, notes, seen)
        if what == 5:
            state.save(tmp_path / "state")
            again = fg.State.load(tmp_path / "state", graph)
            for name in state:
                np.testing.assert_array_equal(again[name], state[name])
        if what == 6:
            notes = {w: n + 1 for n, w in enumerate(notes)}
            state["note"] = [*notes.values()]
        COUNTED(state)
        NOTES(state)
        seen = {w: n + 1 for w, n in seen.items()}
        values = graph.expand_edge_values(state["note"])
        at = np.repeat(np.arange(graph.vertex_count), graph.in_degree)
        sums = np.bincount(at, values, graph.vertex_count)
        np.testing.assert_array_equal(state["found"], sums)
    for _ in range(2):
        graph._store._renumber()
        one = graph.insert_vertices(1).vertices
        graph.insert_edges(one, one, weights=[0])
    with pytest.raises(fg.StateError, match="too old"):
        _ = state["note"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("fails", [failing_at, interrupted_at])
@pytest.mark.parametrize("kind", ["update", "delete_vertices"])
def test_a_graph_and_its_store_have_one_version_whatever_fails(
    kind: str, fails: Callable[[int, Callable[[], Any]], bool]
) -> None:
    rng = np.random.default_rng(3)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 30, (2, 90)), weights=rng.random(90), names=True,
        duplicates="last",
    )  # fmt: skip
    graph.neighbors(0)  # rows along "out"
    graph._store.give_ids()
    ends, weights = rng.integers(10, 40, (2, 12)), rng.random(12)

    def change(graph: fg.DynamicGraph) -> None:
        if kind == "update":
            graph.update(*ends, np.arange(12) % 3 > 0, weights=weights)
        else:
            graph.delete_vertices([5, 7])

    wanted = graph.copy()
    change(wanted)
    before, after = ([kept(g._store), g.vertex_names] for g in (graph, wanted))
    is_over, turn = False, 0
    while not is_over:
        tried = graph.copy()
        is_over = fails(turn, partial(change, tried))
        turn += 1
        assert tried.version == tried._store.version
        if tried.version == graph.version:
            assert [kept(tried._store), tried.vertex_names] == before
            change(tried)
        else:
            assert tried.delete_edges([], []).version == wanted.version
        tried.audit()
        assert [kept(tried._store), tried.vertex_names] == after
    assert turn > 20


def test_the_set_of_all_edges_follows_their_ids() -> None:
    rng = np.random.default_rng(4)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 30, (2, 400)), directed=False, target="cpu"
    )
    state = fg.State(graph, note=fg.edge_property(0))
    for _ in range(5):
        words = graph._view.all_of("edge_count").words
        found = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert found.tolist() == np.sort(graph.changing.stored_ids).tolist()
        graph.update(*rng.integers(0, 30, (2, 20)), rng.random(20) < 0.3)
    assert state["note"].size < graph.changing.stored_count


def test_rows_of_edge_ids_are_found_once_a_version():
    graph = fg.DynamicGraph.from_edges([0, 1, 2], [1, 2, 0], weights=[1.0, 2.0, 3.0])
    first, again = (edge_rows(graph).on_host() for _ in range(2))
    assert first is again
    graph.delete_edges([0], [1])
    assert edge_rows(graph).on_host() is not first
    state = fg.State(graph, w=fg.edge_property(graph.weights_as("float32"), copy=False))
    assert state["w"].tolist() == [2.0, 3.0]


def test_graphs_that_drop_loops_look_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = [0, 1, 2], [1, 2, 2]
    assert fg.DynamicGraph.from_edges(*edges).self_loops.tolist() == [2]
    graph = fg.DynamicGraph.from_edges(*edges, loops="drop")
    monkeypatch.setattr(type(graph._store), "_slots", lambda _: pytest.fail("all rows"))
    assert not graph.self_loops.size

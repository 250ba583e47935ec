"""One graph object with other edges: whatever is kept of it follows its stamps."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import eigenvector_centrality, k_core, pagerank, sssp
from featgraph.algorithms._ratings import sides_of
from featgraph.fold.plan.traits import graph_traits
from featgraph.graph.views.structure import Structure
from featgraph.graph.views.view import Sizes, Stamps, VertexSet, prefix, words_of
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops import run_state, worklist
from featgraph.runtime.memory import graph_arrays as kept
from featgraph.runtime.memory.graph_arrays import GraphArrays, graph_arrays
from featgraph.runtime.superstep.bound import BoundState
from featgraph.runtime.superstep.catch_up import Added
from featgraph.runtime.superstep.directions import most_reached
from tests.bank import BY_NAME
from tests.programs.triangles import make_state
from tests.reference.test_changed_edges import compare, peel
from tests.versions import HOW, VERTICES, change, changeable, roomy, versions

CHANGES = pytest.mark.parametrize("how", HOW)
#: A State that grows has to be given values, and degrees of a row are those of a shape.
SAME_COUNTS = pytest.mark.parametrize("how", [how for how in HOW if how != "grown"])
#: Programs of the bank that ask for arrays, sets and kernels of all kinds.
PROGRAMS = (
    "label_propagation", "bfs", "edge_atomics", "reachability", "components",
    "along_both", "along_out",
)  # fmt: skip


def run(name: str, graph: fg.Graph, edges: fg.Graph, **options: Any) -> Any:
    """Run a program for some supersteps, with values that are drawn for the edges."""
    program, rng = BY_NAME[name], np.random.default_rng(3)
    values = program.make_state(edges, program.widths[0], rng)
    state = fg.State(graph, **copy.deepcopy(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        ran = fg.iterate(
            program.foldmaps, state, target="cpu", max_supersteps=4,
            active=np.arange(0, VERTICES, 7), **options,
        )  # fmt: skip
    return state, ran.active_counts


def check_program(name: str, how: str, **options: Any) -> None:
    """Run it before and after a change; compare with a graph that never was another."""
    directed = not BY_NAME[name].undirected
    drawn = np.random.default_rng(8)
    first, second = versions(drawn, how, directed=directed)
    graph = changeable(copy.deepcopy(first), "cpu", how)
    before = run(name, graph, first, **options)  # one State stays, the other goes
    run(name, graph, first, **options)
    wanted = run(name, copy.deepcopy(first), first, **options)
    same(before, wanted)
    change(graph, second, "cpu", how)
    wanted = run(name, copy.deepcopy(second), second, **options)
    same(run(name, graph, second, **options), wanted)
    same(run(name, graph, second, **options), wanted)


def same(found: Any, wanted: Any) -> None:
    assert found[1] == wanted[1]
    for name in wanted[0]:
        np.testing.assert_array_equal(found[0][name], wanted[0][name], err_msg=name)


@CHANGES
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, how: str) -> None:
    check_program(name, how)


OPTIONS = [
    ("label_propagation", {"change_driven": True}),
    ("components", {"asynchronous": True}),
    ("reachability", {"direction": "push"}),
]


@CHANGES
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options(name: str, options: dict[str, Any], how: str) -> None:
    check_program(name, how, **options)


@pytest.mark.drawn(24)
@pytest.mark.parametrize("name", BY_NAME)
def test_room_changes_no_result(name: str) -> None:
    check_room(name)


def check_room(name: str) -> None:
    """Run a program on a graph with more room than edges, and without."""
    directed = not BY_NAME[name].undirected
    first, _ = versions(np.random.default_rng(8), "in place", directed=directed)
    found = run(name, roomy(copy.deepcopy(first), "cpu"), first)
    same(found, run(name, copy.deepcopy(first), first))


def test_sets_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklist, "SMALLEST_GRAPH", 0)
    check_sets()


def check_sets() -> None:
    """Run the loop over few vertices, and hand sets to foldmaps and back."""
    first, _ = versions(np.random.default_rng(8), "in place")
    found = []
    for graph in (roomy(copy.deepcopy(first), "cpu"), copy.deepcopy(first)):
        state, some = labelled(graph), fg.ActiveSet(VERTICES, np.arange(9, 40))
        passed = [labels.on([1, 2, 3])(state, active_in=some, target="cpu")]
        passed.append(labels(state, active_in=passed[0], target="cpu"))
        passed.append(counted(state, target="cpu"))
        assert len(passed[0].words) == len(some.words)
        ran = fg.iterate(chosen, state, active=[5, 60], target="cpu")
        # Due vertices come back, to a graph that has other room now.
        fg.iterate(labels, state, active=passed[1], max_supersteps=1, target="cpu")
        if not found:
            roomy(graph, "cpu", (VERTICES + 100, 700))
        fg.iterate(labels, state, target="cpu")
        found.append((passed, ran.active_counts, state["label"].copy()))
    (ours, counts, label), (theirs, wanted, other) = found
    assert ours == theirs
    assert counts == wanted
    np.testing.assert_array_equal(label, other)


# -- one State on all versions


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.gather(into="low", combine="min", sources="active")
def lowest_active(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.vertex
def count_edges(f, v, d):  # type: ignore[no-untyped-def]
    d.edges[v] = d.edge_count
    return True


labels, chosen = fg.foldmap(lowest, adopt), fg.foldmap(lowest_active, adopt)
counted = fg.vertexmap(count_edges)


def labelled(graph: fg.Graph) -> fg.State:
    label = np.arange(VERTICES, dtype=np.int32)
    edges = fg.vertex_property(np.zeros(VERTICES, np.int32))
    return fg.State(graph, label=fg.vertex_property(label, iterated=True), edges=edges)


def check_state(how: str) -> None:
    """Go on with what a State has, from version to version."""
    drawn = np.random.default_rng(9)
    first, second = versions(drawn, how)
    graph = changeable(copy.deepcopy(first), "cpu", how)
    state = labelled(graph)
    fg.iterate(labels, state, target="cpu")
    assert fg.iterate(labels, state, target="cpu").supersteps == 0
    change(graph, second, "cpu", how)
    other = fg.State(
        copy.deepcopy(second),
        label=fg.vertex_property(state["label"].copy(), iterated=True),
    )
    ours, theirs = (fg.iterate(labels, s, target="cpu") for s in (state, other))
    assert ours.active_counts == theirs.active_counts
    assert ours.supersteps > 0
    kernel = labels.prepare(state, choose_device("cpu"), {}).kernel
    assert kernel.plan.traits == graph_traits(graph)
    np.testing.assert_array_equal(state["label"], other["label"])


@SAME_COUNTS
def test_a_state_goes_on(how: str) -> None:
    check_state(how)


def test_counts_are_those_of_the_version() -> None:
    first, second = versions(np.random.default_rng(1), "reshaped")
    graph = changeable(copy.deepcopy(first), "cpu")
    state = labelled(graph)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", "reshaped")
        counted(state, target="cpu")
        assert set(state["edges"].tolist()) == {edges.edge_count}


def test_counts_may_be_in_the_memory_of_the_device() -> None:
    """Nothing is bound anew when they change: capacities are what they were."""
    first, _ = versions(np.random.default_rng(1), "in place")
    graph = copy.deepcopy(first)
    view, state = graph_arrays(graph, choose_device("cpu")), labelled(graph)
    counts = np.array([VERTICES, 7])
    view.advance("moves", sizes=Sizes(VERTICES, graph.edge_count, counts))
    counted(state, target="cpu")
    assert set(state["edges"].tolist()) == {7}
    stamps, counts[1] = view.stamps, 8
    view.advance("version")
    counted(state, target="cpu")
    assert set(state["edges"].tolist()) == {8}
    assert view.stamps.binds_as(stamps)
    view.advance("version", sizes=Sizes(VERTICES, graph.edge_count, (VERTICES, 9)))
    counted(state, target="cpu")
    assert set(state["edges"].tolist()) == {9}
    assert view.sizes.edges == graph.edge_count


# -- what the host reads


def check_host(how: str) -> None:
    drawn = np.random.default_rng(5)
    first, second = versions(drawn, how, directed=False)
    graph = copy.deepcopy(first)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", how)
        for name in ("in_degree", "given_index", "twins", "digest", "self_loops"):
            found, wanted = getattr(graph, name), getattr(edges, name)
            np.testing.assert_array_equal(found, wanted, err_msg=name)
        np.testing.assert_array_equal(
            graph.in_edges.column_indices, edges.in_edges.column_indices
        )
        assert most_reached(graph, "cpu") == most_reached(edges, "cpu")
        assert graph_traits(graph) == graph_traits(edges)
    assert (graph_traits(first) != graph_traits(second)) == (how == "reshaped")


@SAME_COUNTS
def test_what_the_host_reads(how: str) -> None:
    check_host(how)


def test_a_restriction_is_looked_at_again() -> None:
    pairs = [fg.Graph.from_edges([0, 2], e, vertex_count=4) for e in ([2, 0], [1, 3])]
    graph = copy.deepcopy(pairs[0])
    part, state = labels.on([0, 1]), fg.State(graph)
    assert part.is_independent(state)
    change(graph, pairs[1], "cpu", "in place")
    assert not part.is_independent(state)


def test_sides_are_counted_again() -> None:
    first, second = (
        fg.Graph.from_edges([0], [3], vertex_count=4, sides=s) for s in ((1, 3), (3, 1))
    )
    graph = copy.deepcopy(first)
    part, state = labels.on([0]), fg.State(graph)
    assert part.source_count(state) == 3
    change(graph, second, "cpu", "in place")
    assert part.source_count(state) == 1


def test_choices_of_direction_are_made_again() -> None:
    """Of a graph whose longest row is longer, and whose traits are the same."""
    ends = np.random.default_rng(4).integers(0, VERTICES, (2, 200))
    others = ends.copy()
    others[1, :25] = 7
    first, second = (
        fg.Graph.from_edges(*e, vertex_count=VERTICES) for e in (ends, others)
    )
    assert graph_traits(first) == graph_traits(second)
    graph, device = copy.deepcopy(first), choose_device("cpu")
    state = labelled(graph)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", "reshaped")
        fg.iterate(chosen, state, target="cpu")
        found = chosen.prepare(state, device, {}).traits
        assert found.most_in == edges.in_degree.max()


def test_all_edges_have_changed_in_a_version() -> None:
    rng = np.random.default_rng(5)
    ends = np.array(list(itertools.combinations(range(12), 2)))
    ends = ends[rng.random(len(ends)) < 0.6].T
    first, second = (
        fg.Graph.from_edges(*e, vertex_count=12, directed=False)
        for e in (ends, rng.permutation(12)[ends])
    )
    graph = changeable(copy.deepcopy(first), "cpu")
    state = fg.State(graph, **make_state(graph, rng))
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", "in place")
        # Whether an edge comes apart depends on its twin, and that is another one.
        for name, given in make_state(graph, rng).items():
            if state.signature[name].kind is PropertyKind.EDGE:
                state[name] = given.values
        state["at_edge"] = rng.integers(0, 9, state["at_edge"].shape, np.int32)
        compare(state, peel, None, "cpu")


# -- algorithms


def test_pagerank_finds_sinks_again() -> None:
    ring = np.arange(20)
    closed = fg.Graph.from_edges(ring, (ring + 1) % 20)
    open_ = fg.Graph.from_edges(ring[:-1], ring[1:], vertex_count=20)
    graph = copy.deepcopy(closed)
    for edges in (closed, open_):
        if edges is open_:
            change(graph, open_, "cpu", "reshaped")
        found, wanted = (
            pagerank(g, target="cpu") for g in (graph, copy.deepcopy(edges))
        )
        np.testing.assert_array_equal(found.ranks, wanted.ranks)


def test_weights_are_looked_at_again() -> None:
    ends = [0, 1, 2], [1, 2, 3]
    good, bad = (fg.Graph.from_edges(*ends, weights=w) for w in ([1.0] * 3, [-1.0] * 3))
    graph = copy.deepcopy(good)
    sssp(graph, 0, target="cpu")
    change(graph, bad, "cpu", "reshaped")
    with pytest.raises(fg.GraphInputError):
        sssp(graph, 0, target="cpu")


def test_weights_of_a_state_are_looked_at_again() -> None:
    ends = [0, 1, 2], [1, 2, 0]
    good, bad = (fg.Graph.from_edges(*ends, weights=w) for w in ([1.0] * 3, [-1.0] * 3))
    graph = copy.deepcopy(good)
    eigenvector_centrality(graph, target="cpu")
    change(graph, bad, "cpu", "reshaped")
    with pytest.raises(fg.GraphInputError):
        eigenvector_centrality(graph, target="cpu")


def test_sides_are_made_again() -> None:
    first, second = (
        fg.Graph.from_edges([0], [3], vertex_count=4, sides=s) for s in ((1, 3), (3, 1))
    )
    graph = copy.deepcopy(first)
    assert len(sides_of(graph).users) == 1
    change(graph, second, "cpu", "in place")
    assert len(sides_of(graph).users) == 3


def test_cores_are_found_again() -> None:
    first, second = (
        fg.Graph.from_edges(*np.triu(np.ones((n, n)), 1).nonzero(), vertex_count=6)
        for n in (4, 6)
    )
    graph = copy.deepcopy(first)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", "reshaped")
        found = k_core(graph, target="cpu").core_numbers
        np.testing.assert_array_equal(found, k_core(edges, target="cpu").core_numbers)


# -- values in the order of edges


@fg.gather(into="total", combine="sum")
def weighed(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.weight[e]


@fg.vertex
def keep_total(f, v, d):  # type: ignore[no-untyped-def]
    d.sum[v] = d.total[v]
    return True


sums = fg.foldmap(weighed, keep_total)


def check_weights(how: str) -> None:
    """The second version has the array of the first one's weights, for other edges."""
    drawn = np.random.default_rng(2)
    first, second = versions(drawn, "moved", weights=drawn.random(200))
    second._edges._weights = first._edges._weights
    graph = changeable(fg.Graph(first._edges), "cpu", how)

    def total(of: fg.Graph) -> Any:
        weight = fg.edge_property(of.weights_as("float64"), copy=False)
        state = fg.State(of, weight=weight, sum=fg.vertex_property(np.zeros(VERTICES)))
        sums(state, target="cpu")
        return state["sum"]

    for edges in (first, second):
        if edges is second:
            change(graph, second, "cpu", how)
        wanted = np.bincount(edges.targets, edges.weights, VERTICES)
        np.testing.assert_allclose(total(graph), wanted, rtol=1e-12)


@CHANGES
def test_shared_weights_follow_the_edges(how: str) -> None:
    check_weights(how)


def test_values_of_older_edges_are_refused() -> None:
    first, second = versions(np.random.default_rng(2), "in place")
    graph = changeable(copy.deepcopy(first), "cpu")
    weight, total = fg.edge_property(np.arange(200.0)), fg.vertex_property(np.zeros(70))
    state = fg.State(graph, weight=weight, sum=total)
    sums(state, target="cpu")
    change(graph, second, "cpu", "in place")
    for use in (
        partial(sums, state, target="cpu"), partial(fg.iterate, sums, state),
        partial(state.view, "weight"), partial(state.__getitem__, "weight"), state.copy,
    ):  # fmt: skip
        with pytest.raises(fg.StateError, match="earlier version of the graph"):
            use()
    state["sum"] = 0.0  # values of vertices stay
    state["weight"] = np.ones(200)
    for own in (state, state.copy()):
        sums(own, target="cpu")
        np.testing.assert_array_equal(own["sum"], second.in_degree)
        np.testing.assert_array_equal(own["weight"], 1)


# -- sets and stamps


def test_all_vertices_are_recognized_by_their_type() -> None:
    for count in (0, 1, 31, 32, 33, 96):
        everyone = VertexSet(prefix(count, count))
        wanted = fg.ActiveSet(count, "all").words
        np.testing.assert_array_equal(words_of(everyone), wanted)
        assert words_of(wanted) is wanted


def test_a_stamp_ends_what_was_kept() -> None:
    first, _ = versions(np.random.default_rng(0), "in place")
    view = graph_arrays(first, choose_device("cpu"))
    then = view.stamps
    view.advance("version")
    assert view.stamps.binds_as(then)
    assert view.stamps.version is not then.version
    for aspect in ("moves", "shape"):
        then = view.stamps
        view.advance(aspect)  # type: ignore[arg-type]
        assert not view.stamps.binds_as(then)
        assert view.stamps.version is then.version


# -- faults


def _never(aspect: str) -> Callable[..., Stamps]:
    """Return `Stamps.after` of stamps of which one never changes."""
    after = Stamps.after

    def without(self: Stamps, *changed: str) -> Stamps:
        return after(self, *(c for c in changed if c != aspect))  # type: ignore[arg-type]

    return without


def _keep_arrays(self: GraphArrays, then: Stamps, now: Stamps) -> None:
    self._let_go()


def _keep_kernels(self: GraphArrays, then: Stamps, now: Stamps) -> None:
    self._arrays.clear()


#: Cache that is kept too long -> the call that shows it.
FAULTS: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "no version": (Stamps, "after", _never("version"), lambda: check_host("reshaped")),
    "no moves": (
        Stamps, "after", _never("moves"), lambda: check_program("bfs", "moved"),
    ),
    "no shape": (Stamps, "after", _never("shape"), lambda: check_host("reshaped")),
    "host arrays": (
        Structure, "_cache", property(lambda self: self._found[1]),
        lambda: check_host("in place"),
    ),
    "pending vertices": (
        run_state, "find_due", lambda plan, state, since: Added(),
        lambda: check_state("in place"),
    ),
    "arrays": (
        GraphArrays, "forget", _keep_arrays, lambda: check_program("bfs", "moved"),
    ),
    "kernels": (
        GraphArrays, "forget", _keep_kernels, lambda: check_program("bfs", "moved"),
    ),
    "values of edges": (
        GraphArrays, "forget", lambda self, then, now: None,
        lambda: check_weights("in place"),
    ),
    "full sets": (
        kept, "prefix", lambda count, room: prefix(room, room), check_sets,
    ),
    "counts": (
        GraphArrays, "forget", lambda self, then, now: None,
        lambda: check_program("bfs", "grown"),
    ),
    "bound states": (
        BoundState, "fits", lambda self, buffers: True, lambda: check_state("moved"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, check = FAULTS[fault]
    check()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, planted)
        with pytest.raises((AssertionError, IndexError, ValueError)):
            check()
    gc.collect()

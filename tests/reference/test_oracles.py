"""Whole algorithms in the interpreter against networkx, SciPy and plain NumPy."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

import featgraph as fg
from featgraph import reference
from tests.bank import BY_NAME


def random_graph(
    rng: np.random.Generator, count: int, edges: int, *, directed: bool
) -> tuple[fg.Graph, Any, Any]:
    source, target = rng.integers(0, count, (2, edges))
    graph = fg.Graph.from_edges(source, target, vertex_count=count, directed=directed)
    return graph, source, target


def iterate(name: str, graph: fg.Graph, values: dict[str, Any], **options: Any) -> Any:
    programs = [foldmap.program for foldmap in BY_NAME[name].foldmaps]
    state = fg.State(graph, **values)
    return reference.iterate(programs, *reference.from_state(state), **options)


@pytest.mark.parametrize("directed", [True, False])
def test_bfs(rng: np.random.Generator, directed: bool) -> None:
    graph, source, target = random_graph(rng, 40, 60, directed=directed)
    values = BY_NAME["bfs"].make_state(graph, 4, rng)
    roots = values["level"].values.argmin(axis=0)
    run = iterate("bfs", graph, values)
    assert run.converged
    made = nx.DiGraph if directed else nx.Graph
    other = made(zip(source.tolist(), target.tolist(), strict=True))
    other.add_nodes_from(range(40))
    ends = {(u, v) for u, v in other.edges} | {(v, u) for u, v in other.edges}
    ends = set(other.edges) if directed else ends
    for f, root in enumerate(roots.tolist()):
        levels = nx.single_source_shortest_path_length(other, root)
        for v in range(40):
            level = int(run.values["level"][v, f])
            assert level == levels.get(v, 1 << 20)
            if 0 < level < 1 << 20:
                before = [u for u, w in ends if w == v and levels.get(u) == level - 1]
                assert run.values["parent"][v, f] == min(before)


def test_pagerank_with_dangling_vertices(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 30, 70, directed=True)
    values = BY_NAME["pagerank_float64"].make_state(graph, 2, rng)
    values["epsilon"] = 1e-12
    run = iterate("pagerank_float64", graph, values)
    assert run.converged
    other = nx.MultiDiGraph(zip(source.tolist(), target.tolist(), strict=True))
    other.add_nodes_from(range(30))
    for f in range(2):
        personal = dict(enumerate(values["personal"].values[:, f].tolist()))
        # Dangling mass goes by `personalization` in networkx, too.
        expected = nx.pagerank(
            other, personalization=personal, tol=1e-13, max_iter=1000
        )
        expected = [expected[v] for v in range(30)]
        np.testing.assert_allclose(run.values["rank"][:, f], expected, atol=1e-9)


def test_one_superstep_of_pagerank(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 30, 70, directed=True)
    values = BY_NAME["pagerank_float64"].make_state(graph, 3, rng)
    run = iterate("pagerank_float64", graph, values, max_supersteps=1)
    rank, personal = values["rank"].values, values["personal"].values
    out = np.bincount(source, minlength=30)
    inflow = np.zeros_like(rank)
    np.add.at(inflow, target, rank[source] / out[source][:, None])
    lost = rank[out == 0].sum(axis=0)
    expected = 0.15 * personal + 0.85 * (inflow + lost * personal)
    moved = (abs(expected - rank) > 1e-4).any(axis=1)
    np.testing.assert_allclose(
        run.values["rank"], np.where(moved[:, None], expected, rank)
    )
    np.testing.assert_array_equal(run.outcomes[0].active_out.mask, moved)
    np.testing.assert_allclose(run.values["lost"], lost)


def test_connected_components(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 80, 70, directed=False)
    run = iterate("components", graph, BY_NAME["components"].make_state(graph, 1, rng))
    assert run.converged
    matrix = scipy.sparse.coo_array((np.ones(70), (source, target)), (80, 80))
    count, labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    least = np.full(count, 80)
    np.minimum.at(least, labels, np.arange(80))
    np.testing.assert_array_equal(run.values["comp"], least[labels])


def test_label_propagation(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 25, 90, directed=True)
    values = BY_NAME["label_propagation"].make_state(graph, 3, rng)
    label = values["label"].values.astype(np.float64)
    clamped, weight = values["clamped"].values, values["weight"].values
    run = iterate("label_propagation", graph, values)
    assert run.converged
    for _ in run.outcomes:  # dense supersteps with the rule that True commits
        aggr = np.zeros_like(label)
        np.add.at(aggr, target, weight[:, None] * label[source])
        total = aggr.sum(axis=1, keepdims=True)
        share = np.divide(aggr, total, out=np.zeros_like(aggr), where=total != 0)
        new = 0.75 * share + 0.25 * label
        new /= new.sum(axis=1, keepdims=True)
        moved = (abs(new - label) > 1e-3).any(axis=1) & ~clamped
        label = np.where(moved[:, None], new, label)
    np.testing.assert_allclose(run.values["label"], label, atol=1e-5)


def test_least_squares(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 20, 60, directed=False)
    values = BY_NAME["least_squares"].make_state(graph, 3, rng)
    factor = values["factor"].values.astype(np.float64)
    rating = values["rating"].values
    run = iterate("least_squares", graph, values, max_supersteps=1)
    degree = np.bincount(source, minlength=20) + np.bincount(target, minlength=20)
    degree -= np.bincount(source[source == target], minlength=20)
    for v in range(20):
        near = [
            (int(a), float(r))
            for s, t, r in zip(source, target, rating, strict=True)
            for a, b in {(s, t), (t, s)}
            if b == v
        ]
        x = np.array([factor[u] for u, _ in near]).reshape(-1, 3)
        system = x.T @ x + 0.5 * (1 + degree[v]) * np.eye(3)
        new = np.linalg.solve(system, x.T @ np.array([r for _, r in near]))
        np.testing.assert_allclose(
            run.outcomes[0].proposed["factor"][v], new, rtol=1e-5
        )


def test_belief_propagation_is_exact_on_a_tree(rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges([0, 1, 1, 3], [1, 2, 3, 4], directed=False)
    values = BY_NAME["belief_propagation"].make_state(graph, 2, rng)
    values |= {"epsilon": 1e-7, "damp": 0.0}
    run = iterate("belief_propagation", graph, values, max_supersteps=50)
    assert run.converged
    phi = np.exp(values["phi"].values.astype(np.float64))
    psi = values["psi"].values.astype(np.float64)
    # psi[i] @ (values of u) for u < v, transposed for u > v: psi[i, x_v, x_u].
    joint = np.einsum("a,b,c,d,e->abcde", *phi)
    joint = joint * np.einsum("ba,cb,db,ed->abcde", *psi)
    for v in range(5):
        marginal = joint.sum(axis=tuple(i for i in range(5) if i != v))
        belief = np.exp(run.values["belief"][v])
        np.testing.assert_allclose(
            belief / belief.sum(), marginal / marginal.sum(), rtol=1e-5
        )


def test_weighted_sum_is_a_sparse_product(rng: np.random.Generator) -> None:
    graph, source, target = random_graph(rng, 30, 100, directed=True)
    values = BY_NAME["weighted_sum"].make_state(graph, 5, rng)
    run = iterate("weighted_sum", graph, values, max_supersteps=1)
    matrix = scipy.sparse.coo_array(
        (values["weight"].values.astype(np.float64), (target, source)), (30, 30)
    )
    np.testing.assert_allclose(run.values["y"], matrix @ values["x"].values, rtol=1e-6)


# The driver: S4's lists and restrictions, S7's scalars


@fg.gather(into="near", combine="max")
def near(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def catch_up(f, v, d):
    d.x_next[v] = max(d.x[v], d.near[v])
    return d.near[v] > d.x[v]


@fg.vertex
def up_to_the_limit(f, v, d):
    d.x_next[v] = d.x[v] + 1
    return d.x[v] < d.limit


@fg.reduce(into="most", combine="max")
def most(f, v, d):
    return d.x[v]


@fg.vertex
def one_below(f, v, d):
    d.x_next[v] = d.most[0] - 1
    return d.x[v] < d.most[0] - 1


spread = fg.foldmap(near, catch_up).program
climb = fg.foldmap(up_to_the_limit).program
follow = fg.foldmap(most, one_below).program


def path_state(count: int = 6, **values: Any) -> Any:
    graph = fg.Graph.from_edges(range(count - 1), range(1, count))
    x = np.zeros(count, np.int32)
    x[0] = 7
    return reference.from_state(
        fg.State(graph, x=fg.vertex_property(x, iterated=True), **values)
    )


def test_only_what_waits_is_run() -> None:
    run = reference.iterate(spread, *path_state(), active=[0])
    assert run.values["x"].tolist() == [7] * 6
    assert [o.active_out.vertices.tolist() for o in run.outcomes] == [
        [1], [2], [3], [4], [5], [],
    ]  # fmt: skip
    assert run.supersteps == 6
    assert run.converged


def test_a_limit_stops_a_run_that_goes_on_from_there() -> None:
    run = reference.iterate(spread, *path_state(), active=[0], max_supersteps=2)
    assert not run.converged
    assert run.values["x"].tolist() == [7, 7, 7, 0, 0, 0]


def test_vertices_left_out_by_a_restriction_stay_due() -> None:
    even, odd = [0, 2, 4], [1, 3, 5]
    run = reference.iterate([(spread, even), (spread, odd)], *path_state(), active=[0])
    assert run.values["x"].tolist() == [7] * 6
    assert run.converged
    # The first leaves vertex 1 due, and each commit the next vertex and itself.
    assert [o.active_out.vertices.tolist() for o in run.outcomes] == [
        [], [1], [2], [3], [4], [5], [], [],
    ]  # fmt: skip


def test_a_restriction_that_never_lifts_does_not_run_for_ever() -> None:
    run = reference.iterate([(spread, [1, 2])], *path_state())
    assert run.converged
    assert run.values["x"].tolist() == [7, 7, 7, 0, 0, 0]


def test_a_list_gives_each_foldmap_what_was_committed_since_it_ran() -> None:
    run = reference.iterate([climb, spread], *path_state(limit=8))
    assert run.values["x"].tolist() == [8] * 6
    assert run.converged


def test_a_changed_reduction_makes_everything_due() -> None:
    graph, values, signature = path_state()
    run = reference.iterate(follow, graph, values, signature)
    assert run.values["x"].tolist() == [7] + [6] * 5
    assert run.values["most"].tolist() == [7]
    # climb works on vertex 0 alone, but what it commits changes `most` for all.
    values = run.values | {"limit": 9}
    state = fg.State(graph, x=fg.vertex_property(values["x"], iterated=True), limit=9)
    run = reference.iterate(
        [(climb, [0]), follow], *reference.from_state(state), active=[0]
    )
    assert run.converged
    assert run.values["x"].tolist() == [9] + [8] * 5


def test_supersteps_are_counted_for_the_functions() -> None:
    @fg.vertex
    def note(f, v, d):
        d.x_next[v] = d.superstep
        return d.superstep < 5

    run = reference.iterate(fg.foldmap(note).program, *path_state(), start=3)
    assert run.values["x"].tolist() == [4] * 6
    assert run.supersteps == 3

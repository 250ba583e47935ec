"""Forecast work of ranks in the supersteps of a run, against sets and a real run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from bench.distributed.works import Parts, works_of
from featgraph.algorithms import bfs
from featgraph.graph.generators import uniform
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.forecast import Work, count_traffic

V = 90


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 50),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    gathers=st.sampled_from(["due", "active", "none"]),
    only_active=st.booleans(),
)
def test_work_is_that_of_sets(
    seed: int, inner: list[int], share: float, gathers: str, only_active: bool
) -> None:
    graph = uniform(V, 300, seed=seed)
    partition = Partition([0, *inner, V])
    rng = np.random.default_rng(seed)
    active, committed = rng.random((2, V)) < share
    parts = Parts(graph, partition)
    found = parts.work(active, committed, gathers, only_active=only_active)
    owner = partition.owner(np.arange(V)).tolist()
    sources = graph.in_edges.column_indices.tolist()
    targets = np.repeat(np.arange(V), graph.in_degree).tolist()
    edges = list(zip(sources, targets, strict=True))
    due = {v for v in range(V) if active[v]}
    if gathers != "none":
        due |= {v for u, v in edges if active[u]}
    along = {
        "due": lambda u, v: v in due,
        "active": lambda u, v: active[u],
        "none": lambda u, v: False,
    }[gathers]
    for rank in range(partition.parts):
        here = [(u, v) for u, v in edges if owner[v] == rank]
        ghosts = {u for u, _ in here if owner[u] != rank}
        looked = [u for u, v in here if along(u, v)]
        taken = [u for u in looked if active[u] or not only_active]
        assert found.edges[rank] == len(taken)
        assert found.skipped[rank] == len(looked) - len(taken)
        assert found.vertices[rank] == sum(owner[v] == rank for v in due)
        assert found.received[rank] == sum(bool(committed[u]) for u in ghosts)
        assert found.reads[rank] == owner.count(rank) + len(ghosts)
        there = {(u, owner[v]) for u, v in edges if owner[u] == rank != owner[v]}
        assert found.sent[rank] == sum(bool(committed[u]) for u, _ in there)


def test_a_whole_superstep_is_the_sum_of_counts() -> None:
    graph = uniform(1000, 8000, seed=2)
    partition = Partition([0, 300, 301, 1000])
    everyone = np.ones(1000, np.bool_)
    found = Parts(graph, partition).work(everyone, everyone, "due")
    counted = Work.whole(count_traffic(graph, partition))
    for name in ("edges", "vertices", "sent", "received", "combined", "reads"):
        assert getattr(found, name).tolist() == getattr(counted, name).tolist(), name


@fg.gather(into="low", combine="min", sources="active")
def low_x(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_low(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v]


@fg.vertex
def halve(f, v, d):
    d.x_next[v] = d.x[v] // 2
    return d.x[v] % 2 == 0 and d.x[v] > 0


def test_each_of_several_foldmaps_has_what_it_has_not_seen() -> None:
    graph = uniform(V, 300, seed=1)
    x = np.random.default_rng(1).integers(0, 1000, V)
    state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
    steps = [fg.foldmap(low_x, take_low), fg.vertexmap(halve)]
    run = fg.iterate(steps, state, record_active=True, direction="pull", target="cpu")
    assert "patched" not in run.aggregates
    assert run.supersteps > 5
    assert run.active_sets is not None
    masks = [found.mask for found in run.active_sets]
    works = works_of(graph, run, Partition([0, V]))
    for place, work in enumerate(works):
        active = masks[max(place - 2, 0) : place]
        unseen = np.any(active, axis=0) if place >= 2 else np.ones(V, np.bool_)
        leads = unseen[graph.in_edges.column_indices]
        if place % 2:
            assert (work.vertices[0], work.edges[0]) == (unseen.sum(), 0)
        else:
            assert work.edges[0] == leads.sum()
            assert work.skipped is not None
            due = unseen.copy()
            due[np.repeat(np.arange(V), graph.in_degree)[leads]] = True
            assert work.vertices[0] == due.sum()
            assert work.skipped[0] == graph.in_degree[due].sum() - leads.sum()


def test_a_recorded_search_is_counted_superstep_by_superstep() -> None:
    graph = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], vertex_count=5)
    begun = np.arange(5) == 0
    result = bfs(graph, 0, target="cpu", record_active=True)
    works = works_of(graph, result.run, Partition([0, 2, 5]), begun)
    assert len(works) == result.supersteps
    assert [w.sent.tolist() for w in works[:3]] == [[1, 0], [0, 0], [0, 0]]
    bare = bfs(graph, 0, target="cpu")
    with pytest.raises(fg.FeatGraphError, match="record_active=True"):
        works_of(graph, bare.run, Partition([0, 5]))

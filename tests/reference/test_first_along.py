"""Gathers along out-edges and both that stop at the first, or see their superstep."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from tests.reference.test_agreement import PHASES
from tests.strategies import graphs, seeds

K = 3


@fg.vertex
def unseen(f, v, d):
    return d.level[v, f] < 0


@fg.vertex
def settle(f, v, d):
    if d.level[v, f] >= 0 or d.near_source[v, f] < 0:
        return False
    d.level_next[v, f] = d.near[v, f] + 1
    d.parent_next[v, f] = d.near_source[v, f]
    return True


@fg.vertex
def adopt(f, v, d):
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


def search(along: str) -> fg.FoldMap:
    """Return a superstep of a search that looks for its sources along some edges."""

    @fg.gather(into="near", combine="argmin", along=along, first=True)
    def seen(f, u, v, e, d):
        return d.level[u, f] if d.level[u, f] >= 0 else fg.nothing

    return fg.foldmap(unseen, seen, settle)


def labels(along: str) -> fg.FoldMap:
    """Return a superstep that takes the least label along some edges."""

    @fg.gather(into="low", combine="min", along=along)
    def lowest(f, u, v, e, d):
        return d.label[u]

    return fg.foldmap(lowest, adopt)


SEARCHES = {along: search(along) for along in ("out", "both")}
LABELS = {along: labels(along) for along in ("out", "both")}


def walked(graph: fg.Graph, along: str) -> Any:
    """Return the graph whose edges lead from whom a gather along some edges reads."""
    made = nx.DiGraph()
    made.add_nodes_from(range(graph.vertex_count))
    pairs = list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    made.add_edges_from((v, u) for u, v in pairs)
    if along == "both" or not graph.directed:
        made.add_edges_from(pairs)
    return made


@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", [{}, {"feature_parallel": False}], ids=str)
@pytest.mark.parametrize("along", SEARCHES)
def test_a_search_that_stops_at_the_first(
    along: str, options: dict[str, Any], target: str
) -> None:
    @settings(max_examples=15, phases=PHASES)
    @given(graphs(max_edges=80), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        if not graph.vertex_count:
            return
        roots = np.random.default_rng(seed).integers(0, graph.vertex_count, K)
        level = np.full((graph.vertex_count, K), -1, np.int32)
        level[roots, np.arange(K)] = 0
        state = fg.State(
            graph,
            level=fg.vertex_property(level, iterated=True),
            parent=fg.vertex_property(np.full_like(level, -1), iterated=True),
        )
        fg.iterate(SEARCHES[along], state, target=target, **options)
        found, parents = state["level"], state["parent"]
        edges = walked(graph, along)
        for f, root in enumerate(roots.tolist()):
            meant = nx.single_source_shortest_path_length(edges, root)
            assert dict(enumerate(found[:, f].tolist())) == {
                v: meant.get(v, -1) for v in range(graph.vertex_count)
            }
            for v in np.flatnonzero(found[:, f] > 0).tolist():
                u = int(parents[v, f])
                assert edges.has_edge(u, v)
                assert found[u, f] == found[v, f] - 1

    agrees()


@pytest.mark.parametrize("along", LABELS)
def test_labels_that_are_seen_at_once(along: str, target: str) -> None:
    """The fixpoint is the least label that leads to a vertex."""

    @settings(max_examples=15, phases=PHASES)
    @given(graphs(max_edges=80), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        label = np.random.default_rng(seed).permutation(graph.vertex_count)
        given_label = label.astype(np.int32)
        state = fg.State(graph, label=fg.vertex_property(given_label, iterated=True))
        fg.iterate(LABELS[along], state, target=target, asynchronous=True)
        edges = walked(graph, along)
        meant = [
            min(label[u] for u in {v, *nx.ancestors(edges, v)}) for v in edges.nodes
        ]
        assert state["label"].tolist() == meant

    agrees()

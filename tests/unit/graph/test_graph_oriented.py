"""The oriented graph: degree order, rows above, below and on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph


def random_graph(rng: np.random.Generator, count: int, density: float) -> Graph:
    pairs = np.argwhere(np.triu(rng.random((count, count)) < density))
    turned = rng.random(len(pairs)) < 0.5
    pairs[turned] = pairs[turned, ::-1]
    return Graph.from_edges(*pairs.T, vertex_count=count, directed=False)


@pytest.mark.parametrize("count", [1, 2, 33, 60])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.9])
def test_rows_against_the_definition(
    count: int, density: float, rng: np.random.Generator
) -> None:
    graph = random_graph(rng, count, density)
    oriented = graph.oriented
    assert graph.oriented is oriented
    key = sorted(range(count), key=lambda v: (graph.in_degree[v], v))
    assert oriented.vertices.tolist() == key
    assert oriented.degree_order[oriented.vertices].tolist() == list(range(count))
    sources = graph.in_edges.column_indices
    targets = np.repeat(np.arange(count), np.diff(graph.in_edges.row_offsets))
    edge_of = {
        (oriented.degree_order[u], oriented.degree_order[v]): e
        for e, (u, v) in enumerate(zip(sources, targets, strict=True))
    }
    upper, lower, both = oriented.upper, oriented.lower, oriented.both
    work = np.ones(count, int)
    for r in range(count):
        above = [c for c in range(r + 1, count) if (r, c) in edge_of]
        below = [c for c in range(r) if (c, r) in edge_of]
        slots = slice(upper.row_offsets[r], upper.row_offsets[r + 1])
        assert upper.column_indices[slots].tolist() == above
        assert upper.edge_ids[slots].tolist() == [edge_of[r, c] for c in above]
        slots = slice(lower.row_offsets[r], lower.row_offsets[r + 1])
        assert lower.column_indices[slots].tolist() == below
        assert upper.column_indices[lower.edge_ids[slots]].tolist() == [r] * len(below)
        slots = slice(both.row_offsets[r], both.row_offsets[r + 1])
        assert both.column_indices[slots].tolist() == below + above
        edges = [edge_of[min(r, c), max(r, c)] for c in below + above]
        assert both.edge_ids[slots].tolist() == edges
        work[r] += len(above)
        for n, c in enumerate(above):
            work[c] += len(above) - n
    assert oriented.work.tolist() == work.tolist()
    assert not oriented.vertices.flags.writeable
    assert not oriented.both.column_indices.flags.writeable


def test_rows_are_short_where_degrees_are_high() -> None:
    star = Graph.from_edges([0] * 50, range(1, 51), directed=False)
    assert np.diff(star.oriented.upper.row_offsets).max() == 1


def test_what_cannot_be_oriented() -> None:
    with pytest.raises(GraphInputError, match="directed=False"):
        _ = Graph.from_edges([0], [1]).oriented
    twice = Graph.from_edges([0, 5, 3], [1, 3, 5], directed=False)
    with pytest.raises(GraphInputError, match=r"between (3 and 5|5 and 3)"):
        _ = twice.oriented

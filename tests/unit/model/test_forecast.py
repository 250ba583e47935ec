"""Counts of what ranks have and send, against shards and against sets of vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph import Partition, uniform
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.shard import make_shards
from featgraph.ranks.cost.forecast import (
    COLUMNS,
    block_columns,
    count_traffic,
    forecast,
)
from tests.strategies import graphs, seeds


@st.composite
def partitions(draw: st.DrawFn) -> tuple[fg.Graph, Partition]:
    """Draw a graph, and cuts anywhere in its vertices or in an order of them."""
    graph = draw(graphs())
    count, order = graph.vertex_count, None
    if draw(st.booleans()):
        order = np.random.default_rng(draw(seeds)).permutation(count)
    inner = draw(st.lists(st.integers(0, count), max_size=7))
    return graph, Partition([0, *sorted(inner), count], order)


@given(partitions())
def test_counts_are_what_shards_have(drawn: tuple[fg.Graph, Partition]) -> None:
    graph, partition = drawn
    counts, shards = count_traffic(graph, partition), make_shards(graph, partition)
    assert counts.own.tolist() == [s.own for s in shards]
    assert counts.edges.tolist() == [s.local.edge_count for s in shards]
    assert counts.ghosts.tolist() == [s.numbers.size - s.own for s in shards]
    sent = [sum(listed.size for listed in s.send_lists) for s in shards]
    assert counts.sent.tolist() == sent
    assert counts.received.tolist() == counts.ghosts.tolist()
    assert counts.rows_ms == sum(sent)
    assert counts.rows_all == (len(shards) - 1) * graph.vertex_count
    assert counts.structure_bytes.tolist() == [bytes_of(s) for s in shards]
    rows = [2 * 12 * s.numbers.size + bytes_of(s) for s in shards]
    assert counts.memory_bytes(12).tolist() == rows


def bytes_of(shard: Any) -> int:
    rows = shard.local.in_edges
    arrays = [rows.row_offsets, rows.column_indices, shard.numbers, *shard.send_lists]
    return sum(array.nbytes for array in arrays)


@given(partitions(), st.data())
def test_blocks_are_counted_as_sets(
    drawn: tuple[fg.Graph, Partition], data: st.DataObject
) -> None:
    graph, partition = drawn
    parts = partition.parts
    columns = data.draw(st.sampled_from([c for c in range(1, 9) if parts % c == 0]))
    counts = count_traffic(graph, partition, columns)
    assert (counts.rows, counts.columns) == (parts // columns, columns)
    owner = partition.owner(np.arange(graph.vertex_count))
    target = np.repeat(np.arange(graph.vertex_count), graph.in_degree)
    source = graph.in_edges.column_indices
    ghosts, partials = [], []
    for rank in range(parts):
        is_here = (owner[target] // columns == rank // columns) & (
            owner[source] % columns == rank % columns
        )
        assert counts.edges[rank] == is_here.sum()
        assert counts.own[rank] == (owner == rank).sum()
        ghosts.append({u for u in source[is_here].tolist() if owner[u] != rank})
        partials.append({v for v in target[is_here].tolist() if owner[v] != rank})
    for has, elsewhere, sets in (
        (counts.ghosts, counts.ghosts_elsewhere, ghosts),
        (counts.partials, counts.partials_elsewhere, partials),
    ):
        assert has.tolist() == [len(one) for one in sets]
        owners = [owner[v] for one in sets for v in one]
        expected = np.bincount(np.array(owners, int), minlength=parts)
        assert elsewhere.tolist() == expected.tolist()
    assert counts.sent.sum() == counts.received.sum() == counts.rows_ms
    assert counts.rows_ms <= counts.rows_all


def test_grids_are_as_square_as_they_can_be() -> None:
    found = {p: block_columns(p) for p in (1, 2, 4, 6, 7, 8, 12, 512, 1024)}
    expected = {1: 1, 2: 1, 4: 2, 6: 2, 7: 1, 8: 2, 12: 3, 512: 16, 1024: 32}
    assert found == expected


@pytest.mark.parametrize("layout", ["range", "grid"])
def test_a_forecast_has_a_row_for_each_number_of_ranks(layout: str) -> None:
    graph = uniform(1000, 8000, seed=4)
    found = forecast(graph, [1, 4, 6], layout=layout, order="spread", row_bytes=32)
    assert [counts.parts for counts in found.counts] == [1, 4, 6]
    for counts, row in zip(found.counts, found.rows(), strict=True):
        partition = choose_partition(graph, "spread", counts.parts)
        again = count_traffic(graph, partition, counts.columns)
        assert counts.ghosts.tolist() == again.ghosts.tolist()
        assert float(row["ms/V"]) == pytest.approx(counts.rows_ms / 1000, rel=0.01)
        memory = counts.memory_bytes(32).max() / 1e6
        assert float(row["MB max"]) == pytest.approx(memory, rel=0.01)
    assert found.rows()[0] | {"ghosts": "0", "ms MB": "0"} == found.rows()[0]
    assert found.rows()[1]["grid"] == {"range": "4x1", "grid": "2x2"}[layout]
    lines = found.table().split("\n")
    assert len(lines) == 4
    assert lines[0].split("  ")[0] == "ranks"
    assert all(name in lines[0] for name in COLUMNS)
    assert len({len(line) for line in lines}) == 1


def test_a_graph_without_edges_has_a_forecast() -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=10)
    assert forecast(graph, [2]).rows()[0]["uneven"] == "0.00"


def test_errors_of_bad_layouts_name_a_fix() -> None:
    graph = uniform(100, 300, seed=1)
    with pytest.raises(fg.GraphInputError, match="no such layout"):
        forecast(graph, [2], layout="blocks")
    with pytest.raises(fg.GraphInputError, match="columns=2"):
        count_traffic(graph, choose_partition(graph, parts=4), 3)
    with pytest.raises(fg.GraphInputError, match="another graph"):
        count_traffic(graph, Partition([0, 99]))
    with pytest.raises(fg.GraphInputError, match="not a number of ranks"):
        forecast(graph, [0])

"""Graphs that are drawn, counted without their edges: as the graph itself is."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg
from bench.distributed.drawn_counts import count_drawn
from featgraph.graph.generators import drawing_of_rmat
from featgraph.graph.partition.choose import choose_partition
from featgraph.ranks.cost.forecast import count_traffic


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(("scale", "factor"), [(3, 2), (9, 4), (12, 8)])
@pytest.mark.parametrize("mark_bytes", [1, 1 << 30], ids=["slices", "at once"])
def test_counts_are_those_of_the_graph(
    directed: bool, scale: int, factor: int, mark_bytes: int
) -> None:
    ranks = [1, 2, 3, 4, 16, 70]
    drawing = drawing_of_rmat(scale, factor, seed=5)
    u, v, _ = drawing.on_host(0, drawing.count)
    graph = fg.Graph.from_edges(
        u, v, vertex_count=drawing.vertex_count, directed=directed
    )
    found = count_drawn(drawing, ranks, directed=directed, mark_bytes=mark_bytes)
    for parts, (counts, partition) in zip(ranks, found, strict=True):
        meant = choose_partition(graph, "given", parts)
        np.testing.assert_array_equal(partition.cuts, meant.cuts)
        wanted = count_traffic(graph, meant)
        for name, value in vars(wanted).items():
            np.testing.assert_array_equal(vars(counts)[name], value, err_msg=name)

"""Vertices are cut into windows of about as many edges."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.fold.plan.traits import rows_along
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.runtime.devices.host_arrays import cut_windows, host_graph_array

degrees = st.lists(st.integers(0, 3) | st.integers(0, 60), max_size=100)


@given(degrees, st.sampled_from([1, 2, 8, 32]), st.sampled_from([4, 12, 40]))
def test_windows_have_all_vertices_and_few_edges(
    found: list[int], vertices: int, edges: int
) -> None:
    degree = np.array(found, np.int32)
    hub_degree = 50
    windows = cut_windows(degree, vertices, edges, hub_degree)
    counted = np.where(degree >= hub_degree, 0, degree)
    assert windows.dtype == np.int32
    assert windows[0] == 0 or not found
    assert windows[-1] == len(found)
    for first, end in pairwise(windows):
        assert first // vertices == (end - 1) // vertices  # bits of one word
        # A window that is over its share is so by its last vertex.
        assert counted[first : end - 1].sum() <= 1.5 * edges
    blocks = -(-len(found) // vertices)
    assert len(windows) - 1 <= blocks + counted.sum() // edges + blocks


def test_vertices_alike_are_not_cut() -> None:
    """One edge over the limit must not leave a window with a single vertex."""
    rng = np.random.default_rng(0)
    degree = 16 + rng.integers(-4, 5, 320).astype(np.int32)
    np.testing.assert_array_equal(cut_windows(degree, 32, 512), np.arange(0, 321, 32))
    halves: Any = cut_windows(degree, 32, 256)
    assert (np.abs(np.diff(halves) - 16) <= 2).all()


def test_an_array_of_the_graph_has_them() -> None:
    graph = fg.Graph.from_edges(np.zeros(90, int), np.arange(90) % 9, vertex_count=9)
    mapping = Mapping(8, 4, 8, False, "warp_segmentation", window=20)
    for along, first in (("in", [0, 2, 4, 6, 8, 9]), ("out", [0, 1, 4, 8, 9])):
        [windows] = SCHEDULES[mapping.schedule].arrays(mapping)
        name = windows.array.format(**vars(rows_along(along)))
        assert host_graph_array(graph, name).tolist() == first

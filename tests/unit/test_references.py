"""Kernels of the CPU that count no references to arrays, and those that make some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import triangle_count


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def put(f, v, d):
    if d.total[v, f] == 0:
        return False
    d.y[v, f] = d.total[v, f]
    return True


sums = fg.foldmap(add, put)


def summed(dtype: Any, k: int) -> str:
    ends = np.arange(40)
    graph = fg.Graph.from_edges(ends[:-1], ends[1:])
    x = np.arange(40 * k).reshape(40, k).astype(dtype)
    y = fg.vertex_property(np.zeros((40, k), dtype))
    state = fg.State(graph, x=fg.vertex_property(x), y=y)
    sums(state, target="cpu")
    assert np.array_equal(state["y"][1:], x[:-1])
    return sums.fold(state, target="cpu").source


@pytest.mark.parametrize("k", [3, 33])
def test_modules_without_reals_count_no_references(k: int) -> None:
    """Those with reals do: what stands side by side is rounded together."""
    for dtype, counts in ((np.int32, False), (np.float32, True)):
        text = summed(dtype, k)
        assert ('CODE |= {"_nrt": False}' in text) != counts
        makes_arrays = "np.empty" in text
        assert makes_arrays == (k == 33)
        assert ("{**SWEEP, '_nrt': True}" in text) == (makes_arrays and not counts)


def test_sweeps_of_triangles_make_arrays() -> None:
    ends = np.triu_indices(30, 1)
    graph = fg.Graph.from_edges(*ends, directed=False)
    found = triangle_count(graph, target="cpu", schedule="mark")
    assert found.total == 30 * 29 * 28 // 6

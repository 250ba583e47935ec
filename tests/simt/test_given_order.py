"""Values of edges are read in the order in which the edges were given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.cuda import values as array_values
from featgraph.graph.views import structure
from tests.strategies import graphs

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.graph.building import gpu_edges
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu

TYPES = ["bool", "int8", "float32", "int64", "float64"]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


@fg.edge
def negate(f, u, v, e, d):  # type: ignore[no-untyped-def]
    d.y[e, f] = -d.x[e, f]
    return True


NEGATE = fg.edgemap(negate)


def on_gpu(graph: fg.Graph) -> fg.Graph:
    """Return the same graph, with its edges on the GPU."""
    ends = (Foreign(np.array(x)) for x in (graph.sources, graph.targets))
    return fg.Graph.from_edges(
        *ends, vertex_count=graph.vertex_count, directed=graph.directed
    )


def drawn(graph: fg.Graph, dtype: str, width: int, doubled: bool, seed: int) -> Any:
    """Return values of given edges, or of both directions: alike where it is a loop."""
    count = graph.given_edge_count
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2 if dtype == "bool" else 99, (2 * count, width))
    loops = np.flatnonzero(graph.sources == graph.targets)
    values[count + loops] = values[loops]
    return values[: count * (1 + doubled)].astype(dtype)


@settings(max_examples=6)
@given(
    graphs(),
    st.sampled_from(TYPES),
    st.sampled_from([1, 3, 5]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 40, 1 << 20]),
)
def test_edges_are_brought_into_order_where_their_values_are(
    gpu: Gpu,
    graph: fg.Graph,
    dtype: str,
    width: int,
    doubled: bool,
    seed: int,
    piece: int,
) -> None:
    doubled = doubled and not graph.directed
    given_values = drawn(graph, dtype, width, doubled, seed)
    there = on_gpu(graph)
    state = fg.State(there, x=fg.edge_property(Foreign(given_values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_edges, "_PIECE_BYTES", piece)
        del gpu.downloads[:]
        found = state["x"]
        moved_for_it = list(gpu.downloads)
        if graph.given_edge_count:  # what the host would do
            patch.setattr(structure, "_put_back", None)
        lent = there.collect_edge_values(state.view("x"), doubled)
        gpu.downloads[:] = moved_for_it
    np.testing.assert_array_equal(found, given_values, strict=True)
    np.testing.assert_array_equal(lent, given_values, strict=True)
    if graph.given_edge_count:
        item = given_values.itemsize * width
        # The given values, once, in bounded pieces, and nothing of the graph.
        is_count = [size for size in gpu.downloads if size == 24]
        moved = sum(gpu.downloads) - sum(is_count)
        assert moved == given_values.nbytes or given_values.nbytes == 24
        assert max(gpu.downloads) <= max(piece, item, 24)


@settings(max_examples=6)
@given(
    graphs(),
    st.sampled_from([*TYPES, "complex128"]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_threads_bring_edges_into_order(
    graph: fg.Graph, dtype: str, width: int, doubled: bool, seed: int
) -> None:
    doubled = doubled and not graph.directed
    values = drawn(graph, dtype, width, doubled, seed)
    expected = np.take(values, graph.given_index, axis=0, mode="wrap")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_values, "_FEW_BYTES", 0)
        patch.setattr(array_values.os, "cpu_count", lambda: 3)
        stored = graph.expand_edge_values(values)
        np.testing.assert_array_equal(stored, expected, strict=True)
        found = graph.collect_edge_values(stored, doubled)
    np.testing.assert_array_equal(found, values, strict=True)
    objects = graph.collect_edge_values(stored.astype(object), doubled)
    assert objects.tolist() == values.tolist()


def test_a_superstep_in_between(gpu: Gpu) -> None:
    """Rows on the device may be padded, and are those of a buffer."""
    graph = on_gpu(fg.graph.generators.rmat(4, 3, seed=2))
    values = drawn(graph, "float32", 5, doubled=False, seed=1)
    state = fg.State(graph, x=fg.edge_property(values), y=fg.edge_property(values))
    np.testing.assert_array_equal(state["x"], values)
    NEGATE(state, target="cuda")
    np.testing.assert_array_equal(state["x"], values)
    np.testing.assert_array_equal(state["y"], -values)


def test_what_was_not_taken_over_has_the_order_still(rng: np.random.Generator) -> None:
    graph = fg.graph.generators.rmat(4, 3, seed=2)
    values = rng.random(graph.given_edge_count)
    state = fg.State(graph, x=fg.edge_property(values, copy=False))
    found = state["x"]
    np.testing.assert_array_equal(found, values)
    assert not np.shares_memory(found, values)

"""Rows of a pool on an emulated GPU: those of the CPU, and lists made from them."""

from __future__ import annotations

import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

import featgraph as fg
from featgraph.algorithms import sssp, triangle_count
from featgraph.dynamic import gpu_memory, gpu_pools
from featgraph.dynamic import store as stores
from featgraph.runtime.devices import cuda_device, gpu_arrays, host_arrays
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.dynamic.test_graph import NOTES
from tests.simt.gpu import Gpu


def test_edges_are_oriented_as_on_the_host(gpu: Gpu) -> None:
    rng = np.random.default_rng(3)
    both = [
        fg.DynamicGraph.from_edges(
            vertex_count=20, directed=False, duplicates="last", target=target
        )
        for target in ("cpu", "cuda")
    ]
    rows = ("upper", "lower", "both")
    names = ["order_vertex", "degree_order", "lower_positions", "upper_edges"]
    names += ["both_edges", *(f"{r}_{a}" for r in rows for a in ("offsets", "orders"))]
    for turn in range(4):
        ends, coming = rng.integers(0, 20, (2, 70)), rng.random(70) < 0.8
        ends[(ends == 4) | (ends == 11)] = 5
        for graph in both:
            graph.update(*ends, coming)
            if turn == 1:
                assert graph.changing.stored_count  # gives ids
            if turn == 2:
                graph.delete_vertices([4, 11])
            if turn == 3:
                graph.insert_vertices(1)
            graph.orient("auto")
        for name in names:
            given = both[0].changing.array(both[0], name)
            if given is None:
                given = host_arrays.host_graph_array(both[0], name)
            found = both[1].changing.array(both[1], name).copy_to_host()
            assert found.dtype == given.dtype, name
            np.testing.assert_array_equal(found[: given.size], given, name)
            assert (found[given.size :] == given[-1]).all(), name
    assert "oriented" not in both[1]._cache
    both[1].insert_edges([3], [5])
    assert triangle_count(both[1]).total == triangle_count(both[1].freeze()).total


def test_lists_of_hubs_are_written_in_place_where_their_sizes_stay(gpu: Gpu) -> None:
    """Of rows below `HUB`, too, which some schedules give to blocks."""
    targets = np.append(np.arange(10, 600), np.repeat([3, 5], [7, 5]))
    graph = fg.DynamicGraph.from_edges(targets * 0, targets, target="cuda")
    view, name = graph_arrays(graph, cuda_device.cuda_device()), "in_joined_parts 4"
    for targets, is_shape in (([3], True), ([5, 3], True), ([1] * 4, False)):
        then, array = graph.stamps, view[name]
        graph.insert_edges(np.full(len(targets), 9), targets)
        assert (graph.stamps.shape is then.shape) == is_shape
        assert (view[name] is array) == is_shape
        degree = np.asarray(graph.in_degree)
        hubs = np.flatnonzero(degree >= 4)
        expected = gpu_arrays.joined_parts(hubs, degree[hubs])
        np.testing.assert_array_equal(view[name].copy_to_host(), expected)


@pytest.mark.parametrize("repeats", [0, 1])
@pytest.mark.parametrize("directed", [True, False])
def test_first_edges_are_those_of_the_cpu(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, directed: bool, repeats: int
) -> None:
    monkeypatch.setattr(stores, "FEWEST_TRIED", 0)
    found, find = list[bool](), gpu_memory.has_copies

    def noted(pool: gpu_pools.GpuRowPool, count: int) -> bool:
        found.append(find(pool, count))
        return found[-1]

    monkeypatch.setattr(gpu_memory, "has_copies", noted)
    rng = np.random.default_rng(5)
    pairs = np.unique(np.sort(rng.integers(0, 12, (40, 2))), axis=0)
    pairs = rng.permutation(pairs[: pairs.shape[0]])
    ends = np.append(pairs, pairs[7 : 7 + repeats], 0).T
    weights = rng.random(ends.shape[1])
    for duplicates in ("sum", "error"):
        options = {"directed": directed, "duplicates": duplicates, "weights": weights}
        if repeats and duplicates == "error":
            for target in ("cpu", "cuda"):
                with pytest.raises(fg.GraphInputError, match="more than once"):
                    fg.DynamicGraph.from_edges(*ends, target=target, **options)
            continue
        there = fg.DynamicGraph.from_edges(*ends, target="cuda", **options)
        here = fg.DynamicGraph.from_edges(*ends, target="cpu", **options)
        for graph in (here, there):
            graph.audit()
            graph.delete_edges(*ends[:, :5])
            graph.insert_edges(*ends[:, 2:5], weights=weights[5:8])
        assert there.digest == here.digest
        assert there.version == here.version == 2
    assert found == [repeats == 1] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sample_of_a_column_is_of_living_edges(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Of some rows, so that a search does not read a whole column after each batch."""
    rng = np.random.default_rng(2)
    ends, weights = rng.integers(0, 500, (2, 3000)), rng.permutation(3000) + 1
    graph = fg.DynamicGraph.from_edges(
        *ends, weights=np.float32(weights), vertex_count=500, duplicates="last",
        target=device,
    )  # fmt: skip
    graph.delete_edges(*ends[:, :1500])
    living = np.array(graph.weights)
    graph.insert_edges([3], [4], weights=[5000.0])
    monkeypatch.setattr(type(graph._edges), "column", lambda *_: pytest.fail("all"))
    for most in (10, 100, 10_000):
        found = graph._store.sample("weight", most)
        assert 0 < found.size <= most
        assert np.isin(found, np.append(living, 5000)).all()
    assert found.size == graph.given_edge_count
    hub = fg.DynamicGraph.from_edges(
        range(500), [7] * 500, weights=np.ones(500), target=device
    )
    # The evenly spaced rows have no edge.
    assert hub._store.sample("weight", 50).size == 46
    if device == "cpu":
        assert sssp(graph, 3, near_far=fg.NearFar("distance")).distances[4] <= 5000
    hub.delete_vertices([7])
    assert not hub._store.sample("weight", 50).size


def test_values_are_given_where_edge_ids_are_left_and_no_edge(gpu: Gpu) -> None:
    """Rows of the ids were taken modulo the number of values, which is 0."""
    graph = fg.DynamicGraph.from_edges([0], [1], target="cuda")
    first = fg.State(graph, note=fg.edge_property([2.0]))  # ids stay with it
    graph.delete_edges([0], [1])
    found = fg.vertex_property(1.0)
    state = fg.State(graph, note=fg.edge_property(np.empty(0), fill=7), found=found)
    NOTES(state)
    assert state["found"].tolist() == [0, 0]
    graph.insert_edges([0, 1], [1, 0])
    assert state["note"].tolist() == [7, 7]
    assert first["note"].tolist() == [0, 0]

"""Graphs of arrays of CuPy, PyTorch and Numba, built on a GPU: the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import DeviceValues
from featgraph.fold.plan.traits import graph_traits
from featgraph.graph.building import edges as edge_lists
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.superstep.directions import most_reached
from tests.unit.test_device_values_gpu import given_by

pytestmark = pytest.mark.gpu

LIBRARIES = ["cupy", "torch", "numba", "dlpack"]


def edges_like(kind: str, count: int) -> tuple[Any, int]:
    """Return ends of edges, and how many vertices there are."""
    rng = np.random.default_rng(7)
    if kind == "skewed":
        vertices = 1 << 18
        ends = (vertices * rng.random((2, count)) ** 8).astype(np.int64)
    elif kind == "dense":
        vertices = 20_000
        ends = (vertices * rng.random((2, count)) ** 3).astype(np.int64)
    elif kind == "flat":
        vertices = 900_000
        ends = rng.integers(0, vertices, (2, count))
    elif kind == "one row":
        vertices = 70_000
        ends = rng.integers(0, 2, (2, count)) * (vertices - 1)
    else:
        vertices = 40_000_000
        ends = rng.integers(0, vertices, (2, count))
        ends[1, ::5] = ends[0, ::5]
    return ends, vertices


def long_oriented_rows(graph: fg.Graph) -> Any:
    """Return, of the host, the rows by degree order that blocks take."""
    from featgraph.runtime.devices import cuda_device  # imports the dialect

    return cuda_device.long_oriented_rows(graph)


def same(found: Any, expected: Any) -> None:
    """Compare two graphs, array by array."""
    for name in ("in_edges", "out_edges", "incident_edges"):
        rows, meant = getattr(found, name), getattr(expected, name)
        for part in ("row_offsets", "column_indices", "edge_ids"):
            np.testing.assert_array_equal(getattr(rows, part), getattr(meant, part))
    for name in ("sources", "targets", "weights", "given_index", "in_degree"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(found.out_degree, expected.out_degree)


@pytest.mark.parametrize("kind", ["skewed", "one row", "wide"])
@pytest.mark.parametrize("directed", [True, False])
def test_rows_are_those_of_the_host(kind: str, directed: bool) -> None:
    count = 100_000 if kind == "wide" else 1_000_003
    ends, vertices = edges_like(kind, count)
    there = [given_by("numba", each) for each in ends]
    options: Any = {"vertex_count": vertices, "directed": directed}
    made = fg.Graph.from_edges(*there, **options)
    assert made._edges.is_given_on_gpu
    same(made, fg.Graph.from_edges(*ends, **options))


@pytest.mark.parametrize("kind", ["dense", "flat"])
@pytest.mark.parametrize("where", ["host", "gpu"])
def test_oriented_rows_are_those_of_the_host(kind: str, where: str) -> None:
    ends, vertices = edges_like(kind, 600_000)
    options: Any = {"vertex_count": vertices, "directed": False, "duplicates": "first"}
    graph = fg.Graph.from_edges(*ends, **options)
    made = fg.Graph.from_edges(graph.sources, graph.targets, **options)
    if where == "gpu":
        there = [given_by("numba", each) for each in (graph.sources, graph.targets)]
        made = fg.Graph.from_edges(*there, **options)
    device = choose_device("cuda")
    made.orient("cuda")
    assert "oriented" not in made._cache
    oriented = graph.oriented
    expected = {
        "order_vertex": oriented.vertices,
        "degree_order": oriented.degree_order,
        "upper_hubs": long_oriented_rows(graph),
    }
    for name, numbers in {
        "upper": "edges",
        "lower": "positions",
        "both": "edges",
    }.items():
        rows = getattr(oriented, name)
        expected[f"{name}_offsets"] = rows.row_offsets
        expected[f"{name}_orders"] = rows.column_indices
        expected[f"{name}_{numbers}"] = rows.edge_ids
    for name, array in expected.items():
        found = device.graph_array(made, name).copy_to_host()
        assert found.dtype == array.dtype, name
        np.testing.assert_array_equal(found, array, err_msg=name)
    assert kind == "flat" or expected["upper_hubs"].size > 10


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", ["skewed", "one row", "wide"])
def test_traits_are_those_of_the_host(kind: str, directed: bool) -> None:
    ends, vertices = edges_like(kind, 600_000)
    options: Any = {"vertex_count": vertices, "directed": directed}
    here, there = (fg.Graph.from_edges(*ends, **options) for _ in range(2))
    assert graph_traits(there, "cuda") == graph_traits(here)
    assert most_reached(there, "cuda") == most_reached(here, "cpu")
    assert not any("degree" in name for name in there._cache)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("policy", ["keep", "sum", "first", "last", "min", "max"])
def test_edges_of_other_libraries(library: str, policy: str) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 300, (2, 50_000)).astype(np.int32)
    weights = rng.standard_normal(50_000).astype(np.float32)
    here = fg.Graph.from_edges(*ends, weights=weights, duplicates=policy)
    there = [given_by(library, each) for each in (*ends, weights)]
    made = fg.Graph.from_edges(*there[:2], weights=there[2], duplicates=policy)
    assert made._edges.is_given_on_gpu
    same(made, here)
    there[1] = given_by(library, np.full(50_000, -1, np.int64))
    with pytest.raises(GraphInputError, match=r"targets\[0\]"):
        fg.Graph.from_edges(*there[:2])


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("policy", ["sum", "last", "min", "max"])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "uint64", "float32", "float64"])
def test_weights_are_combined_as_on_the_host(
    dtype: str, policy: str, directed: bool
) -> None:
    """Also those of edges that are given 50,000 times, and hundreds of times."""
    rng = np.random.default_rng(3)
    ends = np.minimum(rng.integers(0, 40, (2, 200_000)), 20)
    weights = (rng.standard_normal(200_000) * 100).astype(np.int64).astype(dtype)
    if weights.dtype.kind == "f":
        weights = weights / np.asarray(3, dtype)
        weights[::7] = rng.choice(
            np.array([0.0, -0.0, 1e-30], dtype), weights[::7].size
        )
    elif dtype == "uint64":
        weights >>= np.uint64(40)
    options: Any = {"directed": directed, "duplicates": policy, "vertex_count": 40}
    here = fg.Graph.from_edges(*ends, weights=weights, **options)
    there = [given_by("numba", each) for each in (*ends, weights)]
    made = fg.Graph.from_edges(*there[:2], weights=there[2], **options)
    assert made._edges.is_given_on_gpu
    assert made.weights is not None
    assert here.weights is not None
    assert made.weights.dtype == here.weights.dtype
    assert made.weights.tobytes() == here.weights.tobytes()


@pytest.mark.parametrize(
    "weights",
    [np.full(3, 1 << 62), np.full(5, 1 << 62, np.uint64), np.array([np.inf, -np.inf])],
)
def test_what_has_no_sum_is_raised_as_on_the_host(weights: Any) -> None:
    ends = np.zeros((2, weights.size), np.int32)
    ends[:, 0] = 1 if weights.dtype.kind != "f" else 0
    weights = np.append(weights, weights[:1])
    ends = np.append(ends, [[0], [0]], axis=1)
    messages = []
    for there in (np.asarray, lambda values: given_by("numba", values)):
        with pytest.raises(GraphInputError, match="no sum") as caught:
            fg.Graph.from_edges(
                *map(there, ends), weights=there(weights), duplicates="sum"
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@fg.gather(into="total", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum weighted values, with the numbers of edges."""
    return d.w[e] * d.x[u, f]


@fg.vertex
def store(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the sum."""
    d.x_next[v, f] = d.total[v, f]
    return True


step = fg.foldmap(weigh, store)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("where", ["host", "gpu", "small", "uploaded"])
def test_programs_run_on_them(
    directed: bool, direction: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of whole numbers, which no order changes, over hubs and others."""
    if where != "small":
        monkeypatch.setattr(edge_lists, "MANY_EDGES", 1000)
    ends, vertices = edges_like("skewed", 200_000)
    weights = np.random.default_rng(1).integers(1, 5, 200_000).astype(np.float32)
    x = np.random.default_rng(2).integers(0, 9, (vertices, 3)).astype(np.float32)
    options: Any = {"vertex_count": vertices, "directed": directed}
    if where == "uploaded":
        graph, w = fg.Graph.from_edges(*ends, **options, target="auto"), weights
        assert graph._edges.is_given_on_gpu
    elif where == "gpu":
        there = [given_by("numba", each) for each in ends]
        graph = fg.Graph.from_edges(*there, **options)
        w = given_by("numba", weights)
    else:
        graph, w = fg.Graph.from_edges(*ends, **options), weights
    states = []
    for target in ("cpu", "cuda"):
        one = fg.Graph.from_edges(*ends, **options) if target == "cpu" else graph
        given = weights if target == "cpu" else w
        values = {"x": fg.vertex_property(x, iterated=True)}
        state = fg.State(one, w=fg.edge_property(given), **values)
        step(state, target=target, direction=direction)
        states.append(state)
    np.testing.assert_array_equal(states[0]["x"], states[1]["x"])
    np.testing.assert_array_equal(states[1]["w"], weights)


def test_what_is_given_there_stays_there() -> None:
    rng = np.random.default_rng(0)
    ends = [given_by("numba", each) for each in rng.integers(0, 999, (2, 5000))]
    graph = fg.Graph.from_edges(*ends, weights=given_by("numba", rng.random(5000)))
    assert "sources" not in vars(graph._edges)
    assert isinstance(graph._edges._weights, DeviceValues)
    assert repr(graph).endswith("directed, float64 weights)")
    assert graph.weights is not None
    assert graph.sources.size == 5000

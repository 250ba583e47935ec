"""Graphs that are built on the GPU, emulated: the host's, bit for bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

import featgraph as fg
from featgraph.base.errors import GraphInputError
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda import arrays, sorting
from featgraph.fold.plan import traits
from featgraph.fold.plan.traits import REVERSED, rows_along
from featgraph.graph import degrees
from featgraph.graph.building import build as host_build
from featgraph.graph.building import edges as edge_lists
from featgraph.graph.building import few, gpu_edge_kernels
from featgraph.graph.building import gpu_edges as gpu_edge_lists
from featgraph.graph.building.edges import POLICIES
from featgraph.runtime.devices import cuda_device, gpu_arrays, host_arrays
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.superstep.directions import most_reached
from tests.reference.test_triangles import simple_graphs
from tests.simt.foreign import Foreign
from tests.simt.gpu import DeviceArray, Gpu, emulated_gpu
from tests.simt.test_runtime import tiny_graph
from tests.strategies import graphs
from tests.unit.test_device_graphs_gpu import step

FEW = 40
ARRAYS = ("in_edges", "out_edges", "incident_edges")
MAPS = ("sources", "targets", "weights", "given_index", "in_degree", "out_degree")


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """One for all; digits are of two bits, so that few vertices take several."""
    with emulated_gpu() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "RADIX_BITS", 2)
        patch.setattr(edge_lists, "MANY_EDGES", 0)
        yield made


def on_gpu(graph: fg.Graph, **options: Any) -> fg.Graph:
    """Return a graph of the same edges, given on the GPU."""
    weights = graph.weights
    return fg.Graph.from_edges(
        Foreign(graph.sources),
        Foreign(graph.targets),
        vertex_count=graph.vertex_count,
        directed=graph.directed,
        weights=None if weights is None else Foreign(weights),
        **options,
    )


def arrays_of(graph: fg.Graph) -> dict[str, Any]:
    """Return all arrays of a graph, by name."""
    found = {}
    for name in ARRAYS:
        rows = getattr(graph, name)
        found[f"{name}.offsets"] = rows.row_offsets
        found[f"{name}.columns"] = rows.column_indices
        found[f"{name}.ids"] = rows.edge_ids
    found |= {name: getattr(graph, name) for name in MAPS}
    if not graph.directed:
        found["twins"] = graph.twins
    return found


def assert_same(found: Any, expected: Any, name: str) -> None:
    """Compare two arrays, or None, bit for bit."""
    if expected is None:
        assert found is None, name
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
    assert found.tobytes() == expected.tobytes(), name


@settings(max_examples=15)
@given(graphs(max_edges=FEW))
def test_edges_given_on_the_gpu_make_the_graph_of_the_host(
    gpu: Gpu, graph: fg.Graph
) -> None:
    made = on_gpu(graph)
    assert repr(made) == repr(graph)
    assert made._edges.is_given_on_gpu == (graph.given_edge_count > 0)
    for name, array in arrays_of(graph).items():
        found = arrays_of(made)[name]
        assert_same(found, array, name)
        assert found is None or not found.flags.writeable
    assert made.digest == graph.digest


@settings(max_examples=15)
@given(
    st.integers(1, 6), st.integers(1, 6), st.sampled_from(["csr", "csc", "coo"]),
    st.sampled_from(["float32", "float64", "int16", "bool"]), st.data(),
)  # fmt: skip
def test_a_matrix_of_two_sides_makes_the_graph_of_the_host(
    gpu: Gpu, rows: int, columns: int, form: str, dtype: str, data: st.DataObject
) -> None:
    """Entries in any order, several of one place, and pointers over none."""
    count = data.draw(st.integers(0, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    i, j = rng.integers(0, rows, count), rng.integers(0, columns, count)
    values = (rng.random(count) * 9).astype(dtype)
    matrix = sparse.coo_array((values, (i, j)), (rows, columns))
    if form != "coo":  # as they are, unsorted and not added up
        is_csr = form == "csr"
        major, minor = (i, j) if is_csr else (j, i)
        order = np.argsort(major, kind="stable")
        steps = np.bincount(major, minlength=rows if is_csr else columns)
        made = sparse.csr_array if is_csr else sparse.csc_array
        parts = values[order], minor[order], np.concatenate([[0], np.cumsum(steps)])
        matrix = made(parts, (rows, columns))
    meant = fg.Graph.from_biadjacency(matrix)
    found = fg.Graph.from_biadjacency(matrix, target="cuda")
    assert found._edges.is_given_on_gpu == (count > 0)
    assert (repr(found), found.sides) == (repr(meant), (rows, columns))
    for name, array in arrays_of(meant).items():
        assert_same(arrays_of(found)[name], array, name)


@pytest.mark.parametrize("there", [np.asarray, Foreign])
def test_weights_of_float16(gpu: Gpu, there: Any) -> None:
    """The dialect cannot store kernels of float16: the host reads such weights."""
    ends, weights = np.array([[2, 0, 1], [1, 1, 0]]), np.array([3, 1, 2], np.float16)
    meant = fg.Graph.from_edges(*ends, weights=weights)
    found = fg.Graph.from_edges(
        *map(there, ends), weights=there(weights), target="cuda"
    )
    for name, array in arrays_of(meant).items():
        assert_same(arrays_of(found)[name], array, name)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("index", [-1, 3, 4, 2**31 - 1])
def test_an_index_out_of_a_matrix_is_raised_as_on_the_host(
    gpu: Gpu, form: str, index: int
) -> None:
    matrix = getattr(sparse, f"{form}_array")(np.ones((3, 3)))
    matrix.indices[4] = index
    messages = []
    for target in (None, "cuda"):
        with pytest.raises(GraphInputError) as caught:
            fg.Graph.from_biadjacency(matrix, target=target)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def names_of(graph: fg.Graph) -> list[str]:
    """Return the arrays that kernels use."""
    names = ["in_degree", "out_degree", "in_windows 32 24", "out_windows 4 8"]
    names += ["in_hubs 3", "out_hubs 2"]  # of other degrees than hubs
    for along in REVERSED:
        rows = rows_along(along)
        names += [rows.offsets, rows.ends, rows.hubs, rows.hub_parts]
        names.append(rows.joined_parts)
    twins = ["edge_twin", "edge_is_twin"]
    return [*names, "out_edges", *(["incident_edges"] if graph.directed else twins)]


@settings(max_examples=15)
@given(graphs(max_edges=FEW), st.sampled_from(["host", "gpu"]))
def test_arrays_of_kernels_are_those_of_the_host(
    gpu: Gpu, graph: fg.Graph, where: str
) -> None:
    made = on_gpu(graph) if where == "gpu" else copied(graph)
    device, expected = choose_device("cuda"), {}
    with few_are_hubs():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edge_lists, "MANY_EDGES", 1 << 20)
            for name in names_of(graph):
                array = device.graph_array(copied(graph), name)
                expected[name] = array.copy_to_host()
        for name, array in expected.items():
            assert_same(device.graph_array(made, name).copy_to_host(), array, name)


ORIENTED = [
    "order_vertex", "degree_order", "upper_hubs",
    *(f"{rows}_{part}" for rows in ("upper", "both")
      for part in ("offsets", "orders", "edges")),
    "lower_offsets", "lower_orders", "lower_positions",
]  # fmt: skip


@settings(max_examples=15)
@given(simple_graphs(), st.sampled_from(["host", "gpu"]))
def test_oriented_arrays_are_those_of_the_host(
    gpu: Gpu, graph: fg.Graph, where: str
) -> None:
    made = on_gpu(graph) if where == "gpu" else copied(graph)
    device = choose_device("cuda")
    with pytest.MonkeyPatch.context() as patch:
        for module in (cuda_device, gpu_arrays):
            patch.setattr(module, "LONG_ROW", 2)
        expected = {}
        with pytest.MonkeyPatch.context() as on_host:
            on_host.setattr(edge_lists, "MANY_EDGES", 1 << 20)
            for name in ORIENTED:
                array = device.graph_array(copied(graph), name)
                expected[name] = array.copy_to_host()
        made.orient("cuda")
        assert "oriented" not in made._cache
        for name, array in expected.items():
            assert_same(device.graph_array(made, name).copy_to_host(), array, name)
    for name, array in oriented_arrays(graph).items():
        assert_same(oriented_arrays(made)[name], array, name)


def oriented_arrays(graph: fg.Graph) -> dict[str, Any]:
    """Return all arrays of the oriented graph on the host, by name."""
    oriented = graph.oriented
    found: dict[str, Any] = {
        name: getattr(oriented, name) for name in ("vertices", "degree_order", "work")
    }
    for name in ("upper", "lower", "both"):
        rows = getattr(oriented, name)
        found[f"{name}.offsets"] = rows.row_offsets
        found[f"{name}.columns"] = rows.column_indices
        found[f"{name}.ids"] = rows.edge_ids
    assert not any(array.flags.writeable for array in found.values())
    return found


@settings(max_examples=10)
@given(graphs(max_edges=8))
def test_what_cannot_be_oriented_is_raised_as_on_the_host(
    gpu: Gpu, graph: fg.Graph
) -> None:
    outcomes = []
    for made in (graph, copied(graph), on_gpu(graph)):
        try:
            made.orient("cpu" if made is graph else "cuda")
            outcomes.append("")
        except GraphInputError as error:
            outcomes.append(str(error))
    assert outcomes == [outcomes[0]] * 3


@settings(max_examples=15)
@given(graphs(max_edges=FEW), st.sampled_from(["host", "gpu"]))
def test_traits_are_those_of_the_host(gpu: Gpu, graph: fg.Graph, where: str) -> None:
    made = on_gpu(graph) if where == "gpu" else copied(graph)
    for side in ("in", "out"):
        found = degrees.short_counts(made, side, "cuda")
        assert found.tolist() == degrees.short_counts(graph, side, "cpu").tolist()
        for below in (None, 1, 2, 3, 4, 5, 8):
            found = degrees.most_edges(made, side, "cuda", below)
            assert found == degrees.most_edges(graph, side, "cpu", below)
    assert traits.graph_traits(made, "cuda") == traits.graph_traits(graph)
    assert most_reached(made, "cuda") == most_reached(graph, "cpu")
    if graph.given_edge_count:
        assert not any("degree" in name for name in made._cache)


@contextmanager
def few_are_hubs() -> Iterator[None]:
    """Have a vertex of five edges count as a hub."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cuda_device, gpu_arrays, host_arrays):
            patch.setattr(module, "HUB_DEGREE", 5)
        patch.setattr(gpu_arrays, "HUB_PART", 2)
        patch.setattr(gpu_arrays, "JOINED_PART", 3)
        yield


def copied(graph: fg.Graph) -> fg.Graph:
    """Return a graph of the host with nothing built."""
    return copy.deepcopy(graph)


# -- what is wrong with edges, and repeated ones

DTYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32"]


@settings(max_examples=18)
@given(st.data())
def test_errors_are_raised_as_on_the_host(gpu: Gpu, data: st.DataObject) -> None:
    """Equal graphs, or the same error in the same words."""
    given_ends = []
    for _ in range(2):
        dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
        least = 0 if dtype.kind == "u" else -1
        some: Any = st.integers(0, 7) | st.sampled_from([least, 8, 9, 2**31 - 1, 2**40])
        values = data.draw(st.lists(st.integers(0, 7) | some, min_size=1, max_size=6))
        fits = [v for v in values if dtype.kind == "f" or v <= np.iinfo(dtype).max]
        given_ends.append(np.array(fits or [0], dtype))
    shape = data.draw(st.sampled_from(["cut", "as it is", "two axes"]))
    if shape == "cut":
        size = min(map(len, given_ends))
        given_ends = [ends[:size] for ends in given_ends]
    elif shape == "two axes":
        given_ends[1] = given_ends[1].reshape(1, -1)
    weights: Any = [None, np.array([1.0, np.nan]), np.ones(3, np.int16), np.ones(2)]
    own = data.draw(st.sampled_from(weights))
    count = data.draw(st.sampled_from([None, 8, 9, 2**31, "x"]))
    directed = data.draw(st.booleans())
    sides = data.draw(st.sampled_from([None, (4, 4), (1, 8)]))
    outcomes = []
    for there, target in (
        (np.asarray, None),
        (Foreign, None),
        (Foreign, "cpu"),
        (np.asarray, "cuda"),
    ):
        try:
            made = fg.Graph.from_edges(
                *map(there, given_ends),
                vertex_count=count,
                directed=directed,
                weights=None if own is None else there(own),
                target=target,
                sides=sides,
            )
            on_gpu = target == "cuda" or (there is Foreign and target is None)
            assert made._edges.is_given_on_gpu == on_gpu
            outcomes.append((repr(made), made.digest, made.given_index.tolist()))
        except GraphInputError as error:
            outcomes.append(str(error))
    assert outcomes == [outcomes[0]] * 4


@pytest.mark.parametrize(
    ("targets", "message"), [([1, 4], "(2, 3)"), ([1, 1], "1 and 1")]
)
def test_an_edge_within_a_side_is_raised_as_on_the_host(
    gpu: Gpu, targets: list[int], message: str
) -> None:
    outcomes = []
    for there in (np.asarray, Foreign):
        try:
            made = fg.Graph.from_edges(
                there(np.array([3, 1])), there(np.array(targets)), sides=(2, 3)
            )
            outcomes.append(f"{made.sides} {made.digest}")
        except GraphInputError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert message in outcomes[0]


@settings(max_examples=18)
@given(graphs(max_edges=12), st.data())
def test_repeated_edges_become_what_they_are_on_the_host(
    gpu: Gpu, graph: fg.Graph, data: st.DataObject
) -> None:
    policy = data.draw(st.sampled_from(POLICIES))
    dtype = data.draw(st.sampled_from([None, "int8", "uint16", "float32", "float64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    u, v = graph.sources % 4, graph.targets % 4
    weights = None
    if dtype is not None:
        weights = (100 * rng.standard_normal(u.size)).astype(np.int64).astype(dtype)
        if weights.dtype.kind == "f":
            weights[::2] /= 3
            some = rng.random(u.size) < data.draw(st.sampled_from([0, 0.2, 1]))
            odd = data.draw(st.sampled_from([(0.0, -0.0), (0.0, np.inf, -np.inf)]))
            weights[some] = rng.choice(odd, np.count_nonzero(some))
    outcomes = []
    for there in (np.asarray, Foreign):
        try:
            made = fg.Graph.from_edges(
                there(u),
                there(v),
                weights=None if weights is None else there(weights),
                vertex_count=4,
                directed=graph.directed,
                duplicates=policy,
            )
        except GraphInputError as error:
            outcomes.append(str(error))
            continue
        outcomes.append(made)
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
        return
    for name, array in arrays_of(outcomes[0]).items():
        assert_same(arrays_of(outcomes[1])[name], array, name)


@pytest.mark.parametrize("policy", ["min", "max", "last", "sum"])
def test_zeros_keep_their_signs(gpu: Gpu, policy: str) -> None:
    ends = np.arange(4).repeat(2).reshape(1, -1).repeat(2, axis=0)
    weights = np.array([0.0, -0.0, -0.0, 0.0, -0.0, -0.0, 0.0, 0.0], np.float32)
    found = []
    for there in (np.asarray, Foreign):
        made = fg.Graph.from_edges(
            *map(there, ends), weights=there(weights), duplicates=policy
        )
        found.append(made.weights)
    assert_same(found[1], found[0], policy)


# -- sorting


@settings(max_examples=12)
@given(st.data())
def test_keys_are_sorted_stably(gpu: Gpu, data: st.DataObject) -> None:
    """Also by several warps, and blocks, and digits."""
    bound = data.draw(st.sampled_from([1, 2, 3, 9, 200, 5000, 2**31 - 1]))
    count = data.draw(st.sampled_from([0, 1, 31, 33, 64, 150]))
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, bound, count).astype(np.int32)
    if data.draw(st.booleans()):
        keys = np.sort(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK", data.draw(st.sampled_from([32, 64])))
        patch.setattr(sorting, "STEPS", 1)
        patch.setattr(sorting, "RADIX_BITS", 6)
        found, order = sorting.sort_stably(arrays.upload(keys), bound)
        expected = np.argsort(keys, kind="stable")
        assert order.copy_to_host().tolist() == expected.tolist()
        assert found.copy_to_host().tolist() == keys[expected].tolist()
        wide = arrays.upload(2**40 + np.arange(count)[::-1].copy())
        _, moved = sorting.sort_stably(arrays.upload(keys), bound, wide)
        assert moved.dtype == np.int64
        by_value = wide.copy_to_host()[expected]
        assert moved.copy_to_host().tolist() == by_value.tolist()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200))
def test_sums_before(gpu: Gpu, values: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "_BLOCKS", 3)
        sums, total = sorting.scanned(arrays.upload(np.array(values, np.int32)))
    before = np.cumsum([0, *values])
    assert sums.copy_to_host().tolist() == before[:-1].tolist()
    assert total.copy_to_host().tolist() == [before[-1]]


# -- where things are


@pytest.mark.parametrize("directed", [True, False])
def test_edges_given_on_the_gpu_stay_there(gpu: Gpu, directed: bool) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 50, (2, 300))
    given_ends = [Foreign(each.copy()) for each in ends]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceArray, "copy_to_host", refuse_large)
        gpu.downloads.clear()
        graph = fg.Graph.from_edges(*given_ends, vertex_count=50, directed=directed)
        for each in given_ends:
            each.data[:] = 0  # the caller's again
        gpu.uploads.clear()
        state = fg.State(graph, w=fg.edge_property(Foreign(rng.random(300))))
        device = choose_device("cuda")
        for name in ("in_offsets", "in_sources", "out_targets", "out_edges"):
            device.graph_array(graph, name)
        assert graph.edge_count >= 300
        assert max(gpu.uploads, default=0) <= 64
        assert max(gpu.downloads, default=0) <= 64
    expected = fg.Graph.from_edges(*ends, vertex_count=50, directed=directed)
    for name, array in arrays_of(expected).items():
        assert_same(arrays_of(graph)[name], array, name)
    assert state["w"].shape == (300,)


def refuse_large(array: DeviceArray) -> Any:
    assert array.size <= 8, f"{array.size} entries come to the host"
    return array.view().copy()


@pytest.mark.parametrize("directed", [True, False])
def test_states_on_them_go_through_files(
    gpu: Gpu, directed: bool, tmp_path: Path
) -> None:
    """Values of vertices and edges behind a superstep, in whole numbers: equal bits."""
    rng = np.random.default_rng(0)
    ends, w = rng.integers(0, 30, (2, 90)), rng.integers(1, 5, 90).astype(np.float32)
    graph = fg.Graph.from_edges(
        *map(Foreign, ends), weights=Foreign(w), vertex_count=30, directed=directed
    )
    x = rng.integers(0, 9, (30, 3)).astype(np.float32)
    values: Any = {"x": fg.vertex_property(Foreign(x), iterated=True)}
    state = fg.State(graph, w=fg.edge_property(Foreign(w)), **values)
    step(state, target="cuda")
    state.save(tmp_path / "state")
    again = pickle.loads(pickle.dumps(graph))
    assert not again._edges.is_given_on_gpu
    assert (again.digest, repr(again)) == (graph.digest, repr(graph))
    np.testing.assert_array_equal(again.weights, w)
    others = [
        pickle.loads(pickle.dumps(state)),
        fg.State.load(tmp_path / "state", graph),
        fg.State.load(tmp_path / "state", again),
    ]
    step(state, target="cuda")
    for other, target in zip(others, ("cpu", "cuda", "cuda"), strict=True):
        assert other.superstep == state.superstep - 1
        np.testing.assert_array_equal(other["w"], w)
        step(other, target=target)
        np.testing.assert_array_equal(other["x"], state["x"])


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("per_direction", [True, False])
def test_weights_of_the_host_are_put_in_order_on_the_gpu(
    gpu: Gpu, directed: bool, per_direction: bool
) -> None:
    graph = tiny_graph(directed)
    rows = graph.given_edge_count * (1 + (per_direction and not directed))
    values = np.arange(2 * rows, dtype=np.int16).reshape(rows, 2)
    state = fg.State(graph, w=fg.edge_property(values))
    expected = graph.expand_edge_values(values)
    np.testing.assert_array_equal(state.stored("w"), expected)
    gpu.uploads.clear()
    buffer = choose_device("cuda").upload(state._columns["w"].values)
    np.testing.assert_array_equal(buffer.copy_to_host(), expected)
    assert values.nbytes in gpu.uploads
    assert directed or per_direction or expected.nbytes not in gpu.uploads
    read = graph.collect_edge_values(expected, per_direction and not directed)
    np.testing.assert_array_equal(state["w"], read)


# -- 2^31 edges and more, by arithmetic


@settings(max_examples=5)
@given(graphs())
def test_wide_offsets_are_those_of_the_host(gpu: Gpu, graph: fg.Graph) -> None:
    """As if there were 2^31 edges: int64, on the host and on the GPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (host_build, few, gpu_edge_lists, sorting):
            patch.setattr(module, "offset_dtype", lambda count: np.int64)
        here = fg.Graph.from_edges(
            graph.sources, graph.targets, vertex_count=graph.vertex_count,
            directed=graph.directed,
        )  # fmt: skip
        patch.setattr(edge_lists, "MANY_EDGES", 1 << 62)
        expected = arrays_of(here)
        patch.setattr(edge_lists, "MANY_EDGES", 0)
        found = arrays_of(on_gpu(graph))
    for name, array in expected.items():
        if array is not None:
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["in_edges.offsets"].dtype == np.int64
    assert expected["in_edges.offsets"].dtype == np.int64


def test_numbers_of_edges_pass_2_to_the_31(gpu: Gpu) -> None:
    """Rows in given order, of 2^31 + 5 undirected edges and their twins."""
    count = 2**31 + 5
    # Edge i at its target is entry 2 i, at its source 2 i + 1.
    order = np.array([0, 1, 2**32 + 8, 2**32 + 9, 2 * count - 1], np.int64)
    given = arrays.empty((order.size,), np.int64)
    arrays.launch_over(
        gpu_edge_kernels.number_given, order.size, arrays.upload(order), count, given
    )
    expected = [n // 2 + (n % 2) * count for n in order.tolist()]
    assert arrays.read(given).tolist() == expected
    assert max(expected) == 2 * count - 1


class _Sized:
    """Stands for an array of so many elements."""

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize("count", [2**31 - 2, 2**31 - 1, 2**31 + 5])
def test_counts_and_widths_of_many_edges(gpu: Gpu, count: int) -> None:
    many: Any = _Sized(count)
    for directed in (True, False):
        edges = gpu_edge_lists.GpuEdges(many, many, 10, directed)
        edges.loop_count = 3
        assert edges.given_count == count
        assert edges.edge_count == (count if directed else 2 * count - 3)
        width = np.int32 if edges.edge_count < 2**31 - 1 else np.int64
        assert gpu_edge_lists.offset_dtype(edges.edge_count) is width

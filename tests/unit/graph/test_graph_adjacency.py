"""Adjacencies, edge ids and edge maps against plain Python and SciPy."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph, erdos_renyi, rmat, star_graph

MANY = settings(max_examples=150, deadline=None)


@st.composite
def edge_lists(draw):
    """Any graph: loops, repeats, isolated vertices, both kinds of direction."""
    count = draw(st.integers(1, 9))
    ends = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=25))
    return count, pairs, draw(st.booleans())


def make(count, pairs, directed, **options):
    flat = np.array(pairs, np.int64).reshape(-1, 2)
    return Graph.from_edges(
        flat[:, 0], flat[:, 1], vertex_count=count, directed=directed, **options
    )


def stored_edges(pairs, directed):
    """The directed edges as (source, target, row in given order), in given order."""
    edges = []
    for i, (u, v) in enumerate(pairs):
        edges.append((u, v, i))
        if not directed and u != v:
            edges.append((v, u, len(pairs) + i))
    return edges


def rows_of(adjacency):
    return np.repeat(
        np.arange(adjacency.row_offsets.size - 1), np.diff(adjacency.row_offsets)
    )


@MANY
@given(edge_lists())
def test_in_edges_are_the_stable_sort_by_target(case):
    count, pairs, directed = case
    graph = make(*case)
    # Python's sort is stable: within a target the given order stays.
    want = sorted(stored_edges(pairs, directed), key=lambda edge: edge[1])
    adjacency = graph.in_edges
    assert adjacency.edge_ids is None
    assert rows_of(adjacency).tolist() == [v for _, v, _ in want]
    assert adjacency.column_indices.tolist() == [u for u, _, _ in want]
    assert graph.given_index.tolist() == [i for _, _, i in want]
    assert adjacency.row_offsets.size == count + 1
    assert graph.edge_count == len(want)
    assert graph.given_edge_count == len(pairs)


@MANY
@given(edge_lists())
def test_out_edges_are_the_stable_sort_by_source_and_lead_to_the_csc(case):
    _, pairs, directed = case
    graph = make(*case)
    want = sorted(stored_edges(pairs, directed), key=lambda edge: edge[0])
    out = graph.out_edges
    assert rows_of(out).tolist() == [u for u, _, _ in want]
    assert out.column_indices.tolist() == [v for _, v, _ in want]
    assert graph.given_index[out.edge_ids].tolist() == [i for _, _, i in want]
    # The edge at a CSR slot and at its CSC slot is the same edge.
    assert np.array_equal(graph.in_edges.column_indices[out.edge_ids], rows_of(out))
    assert np.array_equal(rows_of(graph.in_edges)[out.edge_ids], out.column_indices)


@MANY
@given(edge_lists())
def test_incident_edges_list_each_edge_at_both_ends_once(case):
    _, pairs, directed = case
    graph = make(*case)
    want = []
    for i, (u, v) in enumerate(pairs):
        want += [(v, u, i)] if u == v else [(v, u, i), (u, v, i)]
    want.sort(key=lambda edge: edge[0])  # stable
    rows = graph.incident_edges
    assert rows_of(rows).tolist() == [v for v, _, _ in want]
    assert rows.column_indices.tolist() == [u for _, u, _ in want]
    if directed:
        given_edge = graph.given_index[rows.edge_ids]
        assert given_edge.tolist() == [i for _, _, i in want]
        # The edge of a slot ends at the row's vertex, or begins there.
        ends = np.stack([graph.in_edges.column_indices, rows_of(graph.in_edges)])
        slots = np.sort(np.stack([rows.column_indices, rows_of(rows)]), axis=0)
        assert np.array_equal(np.sort(ends[:, rows.edge_ids], axis=0), slots)
    else:
        assert rows is graph.in_edges


@MANY
@given(edge_lists())
def test_adjacencies_equal_scipys(case):
    graph = make(*case)
    edges = stored_edges(case[1], case[2])
    shape = (graph.vertex_count, graph.vertex_count)
    u = [edge[0] for edge in edges]
    v = [edge[1] for edge in edges]
    matrix = scipy.sparse.coo_array((np.ones(len(u)), (u, v)), shape=shape)
    for adjacency, want in (
        (graph.out_edges, matrix.tocsr()),
        (graph.in_edges, matrix.tocsc()),
    ):
        size = adjacency.column_indices.size
        kind = type(want)
        ours = kind(
            (np.ones(size), adjacency.column_indices, adjacency.row_offsets), shape
        )
        assert abs(ours - want).sum() == 0
    assert (graph.to_scipy() != matrix.tocsr()).nnz == 0
    assert graph.in_degree.tolist() == np.bincount(v, minlength=shape[0]).tolist()
    assert graph.out_degree.tolist() == np.bincount(u, minlength=shape[0]).tolist()


@MANY
@given(edge_lists())
def test_twins_are_an_involution_that_reverses(case):
    count, pairs, _ = case
    graph = make(count, pairs, False)
    sources, targets = graph.in_edges.column_indices, rows_of(graph.in_edges)
    twins = graph.twins
    assert np.array_equal(twins[twins], np.arange(graph.edge_count))
    assert np.array_equal(sources[twins], targets)
    assert np.array_equal(targets[twins], sources)
    is_own = twins == np.arange(graph.edge_count)
    assert np.array_equal(is_own, sources == targets)
    # A twin is of the same given edge, never of another one between the same ends.
    given_edge = graph.given_index % max(len(pairs), 1)
    assert np.array_equal(given_edge[twins], given_edge)


@MANY
@given(edge_lists(), st.sampled_from([(), (3,), (2, 2)]))
def test_edge_values_travel_to_edge_ids_and_back(case, shape):
    _, pairs, directed = case
    graph = make(*case)
    size = len(pairs)
    values = np.arange(size * int(np.prod(shape)), dtype=np.float32)
    values = values.reshape(size, *shape)
    stored = graph.expand_edge_values(values)
    assert stored.dtype == np.float32
    for e, row in enumerate(graph.given_index):
        assert np.array_equal(stored[e], values[row % size])
    assert np.array_equal(graph.collect_edge_values(stored), values)
    if directed or not size:
        return
    both = np.concatenate((values, values + 1000))
    stored = graph.expand_edge_values(both)
    for e, row in enumerate(graph.given_index):
        assert np.array_equal(stored[e], both[row])
    back = graph.collect_edge_values(stored, per_direction=True)
    loops = np.flatnonzero(graph.sources == graph.targets)
    both[size + loops] = both[loops]
    assert np.array_equal(back, both)
    assert np.array_equal(graph.collect_edge_values(stored), values)


def test_edge_values_of_a_graph_without_edges():
    graph = Graph.from_edges([], [], vertex_count=3, directed=False)
    assert graph.expand_edge_values(np.zeros((0, 4))).shape == (0, 4)
    assert graph.collect_edge_values(np.zeros((0, 4)), True).shape == (0, 4)
    assert graph.in_edges.row_offsets.tolist() == [0, 0, 0, 0]
    assert graph.out_edges.edge_ids.size == graph.twins.size == 0


def test_undirected_adjacencies_share_memory():
    graph = rmat(6, 4, seed=1, directed=False)
    assert graph.out_edges.column_indices is graph.in_edges.column_indices
    assert graph.out_edges.edge_ids is graph.twins


def test_a_hub_and_a_graph_of_many_isolated_vertices():
    star = star_graph(50_000)
    assert star.in_degree[0] == 49_999
    assert star.in_edges.column_indices[:49_999].tolist() == list(range(1, 50_000))
    lonely = Graph.from_edges([99_999], [0], vertex_count=100_000)
    assert lonely.out_degree.sum() == lonely.out_degree[99_999] == 1
    assert lonely.in_edges.row_offsets[1:].tolist() == [1] * 100_000


@pytest.mark.parametrize(
    ("count", "width"),
    [
        (0, np.int32),
        (2**31 - 2, np.int32),
        (2**31 - 1, np.int64),
        (2**31, np.int64),
        (2**31 + 1, np.int64),
        (2**63 - 1, np.int64),
    ],
)
def test_offset_width_at_the_limits(count, width):
    assert offset_dtype(count) is width


def test_dtypes_are_those_of_the_design():
    for directed in (True, False):
        graph = make(3, [(0, 1), (2, 2)], directed)
        out = graph.out_edges
        arrays = [graph.sources, graph.targets, graph.in_degree, graph.out_degree]
        arrays += [out.row_offsets, out.column_indices, out.edge_ids]
        arrays += [graph.in_edges.row_offsets, graph.given_index]
        assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_every_array_is_read_only_and_attributes_cannot_be_set():
    graph = Graph.from_edges(
        [5, 7], [7, 9], weights=[1.0, 2.0], directed=False, names=True
    )
    out = graph.out_edges
    arrays = [graph.sources, graph.targets, graph.weights, graph.vertex_names]
    arrays += [graph.in_degree, graph.given_index, graph.twins]
    arrays += [out.row_offsets, out.column_indices, out.edge_ids]
    copy = pickle.loads(pickle.dumps(graph))
    arrays += [copy.sources, copy.weights]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    for name in ("weights", "vertex_count", "in_edges", "other"):
        with pytest.raises(AttributeError):
            setattr(graph, name, None)
    assert copy.digest == graph.digest
    assert repr(copy) == repr(graph)


def test_digest_is_of_the_structure():
    pairs = [(0, 1), (1, 2), (1, 2)]
    base = make(3, pairs, True)
    assert make(3, pairs, True, weights=[1, 2, 3]).digest == base.digest
    # A change here invalidates what others keep under the old digest.
    assert base.digest == "edabcf80b761f9465cf9edc9a2237d17"
    others = [
        make(4, pairs, True),
        make(3, pairs, False),
        make(3, pairs[:2], True),
        make(3, [(1, 2), (0, 1), (1, 2)], True),
        make(3, [(1, 0), (1, 2), (1, 2)], True),
    ]
    assert len({graph.digest for graph in (*others, base)}) == 6


def test_repr():
    graph = Graph.from_edges([5, 7], [7, 7], weights=[1, 2], directed=False, names=True)
    assert repr(graph) == (
        "Graph(2 vertices, 3 edges (2 given), undirected, int64 weights, named)"
    )
    assert repr(make(3, [(0, 1)], True)) == "Graph(3 vertices, 1 edges, directed)"


def test_a_directed_graph_has_no_twins():
    with pytest.raises(GraphInputError, match="directed=False"):
        _ = make(2, [(0, 1)], True).twins


def test_importing_the_package_does_not_import_numba():
    code = "import sys, featgraph.graph; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_building_takes_at_most_three_times_the_edge_list(directed, is_weighted):
    made = erdos_renyi(1 << 16, 2_000_000 if directed else 1_000_000, 7, directed=True)
    sources, targets = made.sources, made.targets
    weights = np.ones(sources.size, np.float32) if is_weighted else None
    warm = make(2, [(0, 1)], directed)
    _ = warm.out_edges, warm.given_index  # compiled outside the measurement
    tracemalloc.start()
    graph = Graph.from_edges(
        sources, targets, weights=weights, vertex_count=1 << 16, directed=directed
    )
    _ = graph.in_edges, graph.out_edges
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The edge list of the directed edges, twins included; offsets and one cursor (V)
    # come on top, as does the noise of the interpreter.
    edge_list = graph.edge_count * (12 if is_weighted else 8)
    per_vertex = 3 * 4 * graph.vertex_count
    assert peak <= 3 * edge_list + per_vertex + (1 << 18)
    assert peak > edge_list  # the measurement sees NumPy's arrays

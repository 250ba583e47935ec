"""From and to networkx, SciPy, data frames and foreign arrays."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.graph import Graph
from featgraph.graph.inputs import numbers

MANY = settings(max_examples=100, deadline=None)
KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


def edges_of(graph, directed):
    """Multiset of (source, target, weight) of a networkx graph."""
    rows = []
    for u, v, data in graph.edges(data=True):
        ends = (u, v) if directed else tuple(sorted((u, v), key=repr))
        rows.append((*ends, data.get("weight", 1)))
    return Counter(rows)


@st.composite
def networkx_graphs(draw):
    graph = draw(st.sampled_from(KINDS))()
    names = draw(
        st.sampled_from([list(range(6)), ["a", "b", "c"], [(0, 1), 7, "x", -1]])
    )
    graph.add_nodes_from(draw(st.permutations(names)))
    ends = st.sampled_from(names)
    for u, v in draw(st.lists(st.tuples(ends, ends), max_size=15)):
        if draw(st.booleans()):
            graph.add_edge(u, v, weight=draw(st.integers(-5, 5)))
        else:
            graph.add_edge(u, v)
    return graph


@MANY
@given(networkx_graphs())
def test_networkx_round_trip(source):
    graph = Graph.from_networkx(source, weight="weight")
    back = graph.to_networkx()
    directed = source.is_directed()
    assert set(back.nodes) == set(source.nodes)
    assert back.is_directed() == directed == graph.directed
    assert edges_of(back, directed) == edges_of(source, directed)
    for name in source.nodes:
        v = graph.vertex_index(name)
        assert graph.out_degree[v] == (
            source.out_degree(name)
            if directed
            else source.degree(name) - source.number_of_edges(name, name)
        )
    # The order is networkx's own, weights with it.
    listed = list(source.edges(data="weight", default=1))
    index = graph.vertex_index
    assert graph.sources.tolist() == [index(u) for u, _, _ in listed]
    assert graph.weights.tolist() == [w for _, _, w in listed]


@MANY
@given(networkx_graphs())
def test_matrix_equals_networkxs(source):
    graph = Graph.from_networkx(source, weight="weight")
    names = graph.vertex_names or range(graph.vertex_count)
    want = nx.to_scipy_sparse_array(source, nodelist=list(names), weight="weight")
    assert abs(graph.to_scipy() - want).sum() == 0


def test_networkx_names():
    shuffled = nx.Graph([(2, 0), (0, 1)])
    graph = Graph.from_networkx(shuffled)
    assert graph.vertex_names is None
    assert graph.sources.tolist() == [2, 0]
    assert graph.weights is None
    named = Graph.from_networkx(nx.DiGraph([("b", "a")]))
    assert named.vertex_names == ("b", "a")
    assert named.vertex_index("a") == 1
    # True == 1 in Python, but it is no vertex number.
    odd = Graph.from_networkx(nx.DiGraph([(0, True)]))
    assert odd.vertex_names == (0, True)


def test_networkx_weights_keep_their_type():
    source = nx.Graph()
    source.add_edge(0, 1, w=2)
    source.add_edge(1, 2)
    assert Graph.from_networkx(source, weight="w").weights.dtype == np.int64
    source.add_edge(0, 2, w=0.5)
    graph = Graph.from_networkx(source, weight="w")
    assert graph.weights.tolist() == [2, 0.5, 1]


@st.composite
def matrices(draw):
    count = draw(st.integers(1, 7))
    ends = st.integers(0, count - 1)
    entries = st.tuples(ends, ends, st.integers(-3, 3))
    rows = draw(st.lists(entries, max_size=20))
    u, v, w = (list(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
    return scipy.sparse.coo_array(
        (np.array(w, float), (np.array(u, int), np.array(v, int))), (count, count)
    )


@MANY
@given(matrices(), st.sampled_from(["coo", "csr", "csc", "lil", "dok", "bsr"]))
def test_scipy_round_trip(matrix, form):
    matrix = matrix.asformat(form)
    graph = Graph.from_scipy(matrix)
    triples = matrix.tocoo()
    assert graph.sources.tolist() == triples.row.tolist()
    assert graph.targets.tolist() == triples.col.tolist()
    assert graph.weights.tolist() == triples.data.tolist()
    assert abs(graph.to_scipy() - matrix.tocsr()).sum() == 0


@MANY
@given(matrices())
def test_undirected_scipy_round_trip(matrix):
    matrix = (matrix + matrix.T).tocsr()
    graph = Graph.from_scipy(matrix, directed=False)
    assert np.all(graph.sources <= graph.targets)
    assert abs(graph.to_scipy() - matrix).sum() == 0
    assert graph.edge_count == matrix.nnz


def test_explicit_zeros_and_repeats_are_edges_and_bools_have_no_weight():
    zeros = scipy.sparse.csr_array(([0.0, 2.0], ([0, 1], [1, 0])), (2, 2))
    assert Graph.from_scipy(zeros).weights.tolist() == [0.0, 2.0]
    repeats = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), (2, 2))
    assert Graph.from_scipy(repeats).given_edge_count == 2
    assert Graph.from_scipy(repeats).to_scipy()[0, 1] == 3
    bools = scipy.sparse.csr_array(np.array([[False, True], [True, False]]))
    assert Graph.from_scipy(bools).weights is None
    assert Graph.from_scipy(bools, directed=False).given_edge_count == 1
    half = Graph.from_edges([0], [1], weights=np.array([0.5], np.float16))
    assert half.to_scipy()[0, 1] == 0.5


def test_pandas_and_polars():
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    for library in (pd, pl):
        frame = library.DataFrame(
            {"source": [0, 3], "target": [3, 1], "w": [0.5, 2.0], "who": ["x", "y"]}
        )
        graph = Graph.from_pandas(frame, weight="w")
        assert (graph.vertex_count, graph.vertex_names) == (4, None)
        assert graph.weights.tolist() == [0.5, 2.0]
        named = Graph.from_pandas(frame, names=True)
        assert named.vertex_names.tolist() == [0, 1, 3]
        assert named.sources.tolist() == [0, 2]
        text = library.DataFrame({"a": ["z", "y"], "b": ["y", "x"]})
        graph = Graph.from_pandas(text, "a", "b", directed=False)
        assert graph.vertex_names == ("z", "y", "x")
        assert graph.vertex_index("x") == 2
        mixed = Graph.from_pandas(frame, "source", "who")
        assert mixed.vertex_names == (0, "x", 3, "y")
    nullable = pd.DataFrame({"source": [0, 3], "target": [3, 1]}, dtype="Int64")
    assert Graph.from_pandas(nullable).vertex_names is None
    objects = pd.DataFrame({"source": [0, 3], "target": [3, 1]}, dtype=object)
    assert Graph.from_pandas(objects).sources.tolist() == [0, 3]
    bools = pd.DataFrame({"source": [True, 7], "target": [7, True]}, dtype=object)
    assert Graph.from_pandas(bools).vertex_names == (True, 7)
    dates = pd.DataFrame({"source": pd.to_datetime(["2020-01-02", "2020-01-01"])})
    dates["target"] = dates["source"][::-1].to_numpy()
    assert Graph.from_pandas(dates).sources.tolist() == [0, 1]


@MANY
@given(
    st.lists(
        st.tuples(*[st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)] * 2),
        min_size=1,
        max_size=15,
    )
)
def test_integer_names_are_a_bijection(pairs):
    u, v = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
    graph = Graph.from_edges(u, v, names=True)
    distinct = sorted({name for pair in pairs for name in pair})
    names = graph.vertex_names
    assert (list(range(len(distinct))) if names is None else names.tolist()) == distinct
    names = np.array(distinct)
    assert np.array_equal(names[graph.sources], u)
    assert np.array_equal(names[graph.targets], v)
    assert [graph.vertex_index(name) for name in distinct] == list(range(len(distinct)))


def test_names_that_are_the_numbers_are_none_and_may_be_padded():
    assert Graph.from_edges([1, 2], [0, 1], names=True).vertex_names is None
    graph = Graph.from_edges([1], [0], names=True, vertex_count=4)
    assert graph.vertex_count == 4
    big = Graph.from_edges(np.array([2**64 - 1], np.uint64), [3], names=True)
    assert big.vertex_names.tolist() == [3, 2**64 - 1]
    assert big.vertex_index(2**64 - 1) == 1
    one = Graph.from_edges([-1], [-1], names=True)
    assert one.vertex_names.tolist() == [-1]


class OnlyArray:
    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values


class OnlyDlpack(OnlyArray):
    __array__ = None

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


U, V = [0, 3, 1], [1, 2, 2]
FORMS = {
    "list": list,
    "tuple": tuple,
    "range-like": lambda x: np.array(x).tolist(),
    "__array__": OnlyArray,
    "dlpack": OnlyDlpack,
    "strided": lambda x: np.repeat(x, 2)[::2],
    "reversed": lambda x: np.array(x[::-1])[::-1],
    "column": lambda x: np.stack([x, x], axis=1)[:, 0],
    "big-endian": lambda x: np.array(x, ">i4"),
    "unaligned": lambda x: np.frombuffer(
        b"." + np.array(x, "<i8").tobytes(), "<i8", 3, 1
    ),
    "unmasked": np.ma.array,
    **{
        name: (lambda x, name=name: np.array(x, name))
        for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_array_gives_the_same_graph_and_stays_unchanged(form):
    u, v = FORMS[form](U), FORMS[form](V)
    want = Graph.from_edges(np.array(U), np.array(V)).digest
    frozen = isinstance(u, np.ndarray)
    if frozen:
        if u.flags.writeable:
            u.setflags(write=False)
        before = u.tobytes()
    graph = Graph.from_edges(u, v)
    assert graph.digest == want
    if frozen:
        assert u.tobytes() == before
        assert not np.shares_memory(u, graph.sources)


def test_nothing_is_aliased_even_where_dtypes_agree():
    u, v = np.array(U, np.int32), np.array(V, np.int32)
    w = np.ones(3)
    graph = Graph.from_edges(u, v, weights=w)
    u[:], v[:], w[:] = 0, 0, 7
    assert graph.sources.tolist() == U
    assert graph.targets.tolist() == V
    assert graph.weights.tolist() == [1, 1, 1]
    assert u.flags.writeable


class DeviceArray:
    """The interface of a device array; only a device library can read its memory."""

    def __init__(self, values):
        self.hidden = np.array(values)
        self.__cuda_array_interface__ = {"shape": self.hidden.shape}


def test_device_arrays_are_copied_by_the_first_library_that_can(monkeypatch):
    calls = []

    class Cupy:
        asarray = staticmethod(lambda x: x)

        @staticmethod
        def asnumpy(x):
            calls.append("cupy")
            return x.hidden

    def by_dialect(x):
        calls.append("numba")
        return np.asarray(x.hidden)

    modules = {"cupy": Cupy}
    monkeypatch.setattr(numbers, "import_whole", modules.__getitem__)
    monkeypatch.setattr(numbers, "_copy_by_dialect", by_dialect)
    assert Graph.from_edges(DeviceArray(U), V).sources.tolist() == U
    assert calls == ["cupy"]
    del modules["cupy"]
    assert Graph.from_edges(U, DeviceArray(V)).targets.tolist() == V
    assert calls == ["cupy", "numba"]


@pytest.mark.slow
def test_torch_tensors():
    torch = pytest.importorskip("torch")
    graph = Graph.from_edges(torch.tensor(U), torch.tensor(V))
    assert graph.sources.tolist() == U


def test_weights_keep_dtype_and_order():
    for name in ("i1", "u8", "f2", "f4", "f8", ">f4"):
        weights = np.array([3, 1, 2], name)
        graph = Graph.from_edges(U, V, weights=weights)
        assert graph.weights.tolist() == [3, 1, 2]
        assert graph.weights.dtype == np.dtype(name).newbyteorder("=")
    infinite = Graph.from_edges(U, V, weights=[np.inf, -np.inf, 0])
    assert infinite.weights.tolist() == [np.inf, -np.inf, 0]

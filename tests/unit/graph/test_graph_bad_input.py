"""Invalid graphs raise errors with place, value, expectation and fix."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from featgraph.base.errors import FeatGraphError, GraphInputError
from featgraph.graph import (
    Graph,
    complete_graph,
    cycle_graph,
    erdos_renyi,
    grid,
    path_graph,
    rmat,
    star_graph,
)

E = Graph.from_edges
NAN = float("nan")


def masked():
    return np.ma.array([0, 1], mask=[False, True])


class RaisingArray:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("requires grad")


class DeviceArray:
    """Claims device memory that cannot be copied: there is none."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (2,),
        "typestr": "<i4",
        "data": (1 << 40, False),
        "version": 3,
    }


def with_parts(kind, **parts):
    """A sparse matrix whose arrays were changed behind SciPy's back."""
    matrix = kind(np.array([[0, 1.0, 0], [2.0, 0, 3.0], [0, 4.0, 0]]))
    for name, value in parts.items():
        setattr(matrix, name, np.asarray(value))
    return matrix


def frame(**columns):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(columns)


def digraph(*edges):
    graph = nx.DiGraph()
    for u, v, w in edges:
        graph.add_edge(u, v, w=w)
    return graph


CSR, CSC = scipy.sparse.csr_array, scipy.sparse.csc_array
I32 = 2**31 - 1

# (call, parts of the message)
ROWS = {
    # ids out of range
    "negative": (lambda: E([0, -1], [0, 0]), "sources[1]", "-1", "0 <= id"),
    "negative target": (lambda: E([0, 1], [0, -7]), "targets[1]", "-7 (1 of 2"),
    "equal to V": (lambda: E([0, 5], [1, 0], vertex_count=5), "sources[1]", "< 5"),
    "above V": (
        lambda: E([0, 1, 9, 9], [1, 0, 0, 0], vertex_count=5),
        "sources[2]",
        "9 (2 of 4",
        "vertex_count",
    ),
    "target above V": (lambda: E([0], [5], vertex_count=5), "targets[0]", "5 (1 of 1"),
    "max int32": (lambda: E([0, I32], [1, 0]), "sources[1]", str(I32), "int32 limit"),
    "2**32 wraps to 0": (lambda: E([2**32], [0]), "sources[0]", str(2**32)),
    "max int64": (lambda: E([0], [2**63 - 1]), "targets[0]", str(2**63 - 1)),
    "min int64": (lambda: E([-(2**63)], [0]), "sources[0]", str(-(2**63))),
    "max uint64": (
        lambda: E(np.array([0, 2**64 - 1], np.uint64), [0, 0]),
        "sources[1]",
        str(2**64 - 1),
    ),
    "uint64 2**63": (
        lambda: E(np.array([2**63], np.uint64), [0], vertex_count=9),
        "sources[0]",
        str(2**63),
    ),
    "int8 -128": (lambda: E(np.array([-128], "i1"), [0]), "sources[0]", "-128"),
    "big-endian": (lambda: E(np.array([1, 8], ">i2"), [0, 0], vertex_count=8), "8"),
    "far back": (
        lambda: E(
            np.concatenate((np.zeros(3_000_000, np.int8), [-3])).astype(np.int8),
            np.zeros(3_000_001, np.int8),
        ),
        "sources[3000000]",
        "-3 (1 of 3000001",
    ),
    # dtypes of ids
    "float": (lambda: E([0.0, 1.0], [0, 1]), "sources", "float64", "integer"),
    "float target": (lambda: E([0], np.array([1], "f4")), "targets", "float32"),
    "nan": (lambda: E([0, NAN], [0, 1]), "sources", "float64", "astype"),
    "float16": (lambda: E(np.array([1], "f2"), [0]), "float16"),
    "bool": (lambda: E([True, False], [0, 1]), "sources", "dtype bool"),
    "complex": (lambda: E([1j], [0]), "complex128"),
    "object": (lambda: E(np.array([0, 1], object), [0, 1]), "dtype object"),
    "None": (lambda: E([0, None], [0, 1]), "dtype object"),
    "strings": (lambda: E(["a"], ["b"]), "dtype <U1", "names=True"),
    "bytes": (lambda: E([b"a"], [0]), "dtype |S1"),
    "dates": (lambda: E(np.array(["2020"], "M8[s]"), [0]), "datetime64"),
    "structured": (lambda: E(np.zeros(1, "i4,i4"), [0]), "sources", "dtype"),
    "beyond 64 bits": (lambda: E([2**70], [0]), "dtype object"),
    # shapes
    "lengths": (lambda: E([0, 1], [0]), "targets", "2 sources and 1 targets"),
    "2-D": (lambda: E([[0, 1]], [[1, 0]]), "sources", "shape (1, 2)", "(E,)"),
    "2-D target": (lambda: E([0], [[1]]), "targets", "shape (1, 1)"),
    "scalar": (lambda: E(0, 1), "sources", "shape ()"),
    "None at all": (lambda: E(None, [0]), "sources", "shape ()"),
    "generator": (lambda: E((i for i in [0]), [0]), "sources", "shape ()"),
    "set": (lambda: E({0, 1}, [0, 1]), "sources", "shape ()"),
    "ragged": (lambda: E([[0], [1, 2]], [0, 1]), "row 1", "different lengths"),
    "masked": (lambda: E(masked(), [0, 1]), "sources", "1 masked of 2", ".filled"),
    "raising": (lambda: E(RaisingArray(), [0]), "requires grad", ".detach()"),
    "device": (lambda: E(DeviceArray(), [0, 1]), "device memory", "copy_to_host"),
    # vertex_count
    "nothing": (lambda: E([], []), "at least one vertex", "give vertex_count"),
    "V 0": (lambda: E([], [], vertex_count=0), "vertex_count", "got:      0"),
    "V negative": (lambda: E([], [], vertex_count=-1), "vertex_count", "-1"),
    "V too large": (lambda: E([], [], vertex_count=2**31), str(2**31), str(I32)),
    "V float": (lambda: E([0], [0], vertex_count=3.0), "not a count", "3.0 (float)"),
    "V bool": (lambda: E([0], [0], vertex_count=True), "not a count", "True (bool)"),
    "V string": (lambda: E([0], [0], vertex_count="3"), "not a count", "'3' (str)"),
    # weights
    "weight count": (lambda: E([0], [0], weights=[1, 2]), "weights", "2 weights for 1"),
    "weight nan": (lambda: E([0, 0], [0, 0], weights=[1, NAN]), "weights[1]", "nan"),
    "weight nan half": (
        lambda: E([0], [0], weights=np.array([NAN], "f2")),
        "weights[0]",
    ),
    "weight bool": (lambda: E([0], [0], weights=[True]), "weights", "dtype bool"),
    "weight complex": (lambda: E([0], [0], weights=[1j]), "weights", "complex128"),
    "weight string": (lambda: E([0], [0], weights=["1"]), "weights", "<U1"),
    "weight None": (lambda: E([0], [0], weights=[None]), "weights, index [0]", "None"),
    "weight long": (
        lambda: E([0], [0], weights=np.ones(1, np.longdouble)),
        "weights",
        "float64",
    ),
    "weight 2-D": (lambda: E([0], [0], weights=[[1]]), "weights", "shape (1, 1)"),
    "weight scalar": (lambda: E([0], [0], weights=1.0), "weights", "shape ()"),
    # policies and names
    "policy": (lambda: E([0], [0], duplicates="mean"), "duplicates", "'mean'", "'sum'"),
    "policy None": (lambda: E([0], [0], duplicates=None), "duplicates", "None"),
    "names float": (lambda: E([0.5], [1], names=True), "sources", "float64"),
    "names bool": (lambda: E([1], [True], names=True), "targets", "bool"),
    "names None": (
        lambda: E(["a", "b"], ["b", None], names=True),
        "targets[1]",
        "None (NoneType)",
    ),
    "names nan": (
        lambda: E(np.array(["a", NAN], object), ["b", "c"], names=True),
        "sources[1]",
        "nan (float)",
    ),
    "names unhashable": (
        lambda: E(np.array([[1], "a"], object), ["b", "c"], names=True),
        "sources[0]",
        "unhashable",
        "[1] (list)",
    ),
    "names beyond 64 bits": (lambda: E([2**70], [0], names=True), "64 bits"),
    "names both ends": (
        lambda: E(np.array([2**64 - 1], np.uint64), [-1], names=True),
        "more than 64 bits",
    ),
    "names and V": (
        lambda: E([5, 7], [7, 9], names=True, vertex_count=4),
        "vertex_count",
        "4, with 3 names",
    ),
    "names and small V": (
        lambda: E([0, 1], [1, 2], names=True, vertex_count=2),
        "2, with 3 names",
    ),
    # networkx
    "not networkx": (lambda: Graph.from_networkx([(0, 1)]), "list", "networkx.Graph"),
    "networkx empty": (lambda: Graph.from_networkx(nx.Graph()), "without nodes"),
    "networkx weight": (
        lambda: Graph.from_networkx(digraph((0, 1, 1), (1, 2, "x")), weight="w"),
        "edge 1 (1, 2)",
        "'x' (str)",
        "'w'",
    ),
    "networkx bool": (
        lambda: Graph.from_networkx(digraph((0, 1, True)), weight="w"),
        "True (bool)",
    ),
    "networkx nan": (
        lambda: Graph.from_networkx(digraph((0, 1, NAN)), weight="w"),
        "weights[0]",
    ),
    "networkx huge": (
        lambda: Graph.from_networkx(digraph((0, 1, 2**70)), weight="w"),
        "weights, index [0]",
        "64 bits",
    ),
    # SciPy
    "dense": (lambda: Graph.from_scipy(np.eye(2)), "ndarray", "coo_array"),
    "rectangular": (
        lambda: Graph.from_scipy(CSR((2, 3))),
        "(2, 3)",
        "from_biadjacency",
    ),
    "V 0 matrix": (lambda: Graph.from_scipy(CSR((0, 0))), "at least one vertex"),
    "complex matrix": (lambda: Graph.from_scipy(CSR(1j * np.eye(2))), "complex128"),
    "nan matrix": (lambda: Graph.from_scipy(CSR([[0, NAN], [0, 0]])), "weights[0]"),
    "asymmetric": (
        lambda: Graph.from_scipy(CSR([[0, 1], [0, 0]]), directed=False),
        "entries [0, 1] and [1, 0]",
        "matrix + matrix.T",
    ),
    "asymmetric value": (
        lambda: Graph.from_scipy(CSR([[0, 1], [2, 0]]), directed=False),
        "[0, 1] and [1, 0]",
        "symmetric",
    ),
    "asymmetric below": (
        lambda: Graph.from_scipy(CSR([[0, 0], [2, 0]]), directed=False),
        "[0, 1] and [1, 0]",
    ),
    "pointer start": (
        lambda: Graph.from_scipy(with_parts(CSR, indptr=[1, 1, 3, 4])),
        "malformed CSR",
        "indptr[0]",
    ),
    "pointer falls": (
        lambda: Graph.from_scipy(with_parts(CSR, indptr=[0, 3, 1, 4])),
        "row 1",
        "from 3 to 1",
    ),
    "pointer end": (
        lambda: Graph.from_scipy(with_parts(CSR, indptr=[0, 1, 3, 9])),
        "indptr[-1]",
        "9, with 4",
    ),
    "pointer short": (
        lambda: Graph.from_scipy(with_parts(CSC, indptr=[0, 4])),
        "malformed CSC",
        "2 entries for 3",
    ),
    "data short": (
        lambda: Graph.from_scipy(with_parts(CSR, data=[1.0])),
        "indptr[-1]",
        "4, with 1",
    ),
    "column above V": (
        lambda: Graph.from_scipy(with_parts(CSR, indices=[1, 0, 7, 1])),
        "targets[2]",
        "7 (1 of 4",
    ),
    "row negative": (
        lambda: Graph.from_scipy(with_parts(CSC, indices=[1, 0, -2, 1])),
        "sources[2]",
        "-2",
    ),
    # data frames
    "no column": (
        lambda: Graph.from_pandas(frame(a=[0], target=[1])),
        "'source'",
        "['a', 'target']",
    ),
    "no frame": (lambda: Graph.from_pandas({"source": [0]}), "'source'", "list"),
    "no weight column": (
        lambda: Graph.from_pandas(frame(source=[0], target=[1]), weight="w"),
        "'w'",
        "no such column",
    ),
    "float column": (
        lambda: Graph.from_pandas(frame(source=[0, NAN], target=[1, 2])),
        "sources",
        "float64",
    ),
    "float column names": (
        lambda: Graph.from_pandas(frame(source=[0, NAN], target=[1, 2]), names=True),
        "missing",
        "float64",
    ),
    "missing name": (
        lambda: Graph.from_pandas(frame(source=["a", None], target=["b", "c"])),
        "sources[1]",
        "missing",
    ),
    # queries
    "index": (lambda: E([0], [1]).vertex_index(2), "no such vertex", "[0, 2)"),
    "index negative": (lambda: E([0], [1]).vertex_index(-1), "-1 (int)"),
    "index bool": (lambda: E([0], [1]).vertex_index(True), "True (bool)"),
    "index float": (lambda: E([0], [1]).vertex_index(1.0), "1.0 (float)"),
    "index name": (lambda: E([5], [9], names=True).vertex_index(7), "7 (int)"),
    "index outside": (lambda: E([5], [9], names=True).vertex_index(2**80), "names"),
    "index list": (lambda: E(["a"], ["b"], names=True).vertex_index([]), "[] (list)"),
    "values": (
        lambda: E([0], [1]).expand_edge_values([1, 2]),
        "shape (2,)",
        "first axis 1",
    ),
    "values undirected": (
        lambda: E([0], [1], directed=False).expand_edge_values([1, 2, 3]),
        "first axis 1",
        "or 2",
    ),
    "values scalar": (lambda: E([0], [1]).expand_edge_values(3), "shape ()"),
    "stored": (lambda: E([0], [1]).collect_edge_values([1, 2]), "first axis 1"),
    "per_direction": (
        lambda: E([0], [1]).collect_edge_values([1], per_direction=True),
        "per_direction",
    ),
    "constructor": (lambda: Graph([0, 1]), "list", "Graph.from_edges"),
    # generators
    "rmat scale": (lambda: rmat(31, seed=0), "scale", "31", "[0, 30]"),
    "rmat factor": (lambda: rmat(3, -1, seed=0), "edge_factor", "-1"),
    "rmat a": (lambda: rmat(3, a=0.9, b=0.2, c=0, seed=0), "a, b, c", "0.9"),
    "rmat nan": (lambda: rmat(3, a=NAN, seed=0), "a=", "nan"),
    "rmat seed": (lambda: rmat(3, seed=-1), "seed", "-1"),
    "rmat seed without edges": (lambda: rmat(3, 0, seed=None), "seed", "None"),
    "too many edges": (lambda: erdos_renyi(4, 7, 0), "edge_count", "7", "[0, 6]"),
    "grid": (lambda: grid(0, 3), "rows", "0"),
    "grid size": (lambda: grid(2**16, 2**16), "columns", "65536"),
    "path": (lambda: path_graph(0), "vertex_count", "0"),
    "cycle": (lambda: cycle_graph(1.5), "vertex_count", "1.5"),
    "star": (lambda: star_graph(True), "vertex_count", "True"),
    "complete": (lambda: complete_graph(2**30), "vertex_count", str(2**30)),
}


@pytest.mark.parametrize("name", ROWS)
def test_refused_with_a_message(name):
    call, *parts = ROWS[name]
    with pytest.raises(GraphInputError) as caught:
        call()
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert isinstance(caught.value, FeatGraphError)
    assert isinstance(caught.value, ValueError)


def test_the_first_bad_position_is_found_wherever_it_is():
    generator = np.random.default_rng(5)
    for dtype in (np.int32, np.int64):
        for bad in (-1, 100, 101, np.iinfo(dtype).max, np.iinfo(dtype).min):
            ids = generator.integers(0, 100, 50).astype(dtype)
            place = int(generator.integers(50))
            ids[place] = bad
            with pytest.raises(GraphInputError) as caught:
                E(np.zeros(50, int), ids, vertex_count=100)
            assert caught.value.where == f"targets[{place}]"
            assert str(bad) in str(caught.value.got)


def test_valid_edge_cases_are_not_refused():
    assert E([], [], vertex_count=1).edge_count == 0
    assert E([0], [0]).vertex_count == 1
    assert E([4], [4], vertex_count=5).vertex_count == 5
    assert E(np.array([], "f8"), [], vertex_count=2, weights=[]).weights.size == 0
    assert E([2**31 - 2], [0]).vertex_count == 2**31 - 1
    assert E(np.ma.array([0, 1]), [1, 0]).edge_count == 2
    assert E([0], [1], weights=np.array([2**64 - 1], np.uint64)).weights[0] == 2**64 - 1

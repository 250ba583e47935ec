"""Readers: every format, plain and gzipped, and the real files with known counts."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featgraph.base.errors import FileFormatError, GraphInputError
from featgraph.graph import (
    Graph,
    read_dimacs,
    read_edge_list,
    read_graph,
    read_labels,
    read_matrix_market,
    read_ratings,
)
from featgraph.graph.formats.readers import FORMATS

DATA = Path(
    os.environ.get("FEATGRAPH_DATA")
    or Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
)

IN_TMP = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

MTX = b"""%%MatrixMarket matrix coordinate real general
% a comment

3 3 4
1 2 0.5
2 3 -1e-3
2 3 2
3 3 inf
"""
GR = b"c comment\np sp 3 3\nc another\na 1 2 7\na 2 3 -1\na 1 2 5\n"
SNAP = b"# Nodes: 3 Edges: 3\n# From\tTo\n0\t1\n1\t2\n2\t2\n"


@pytest.fixture
def write(tmp_path):
    def write(content, name="graph.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def edges(graph):
    ends = (graph.sources.tolist(), graph.targets.tolist())
    return list(zip(*ends, strict=True))


def test_matrix_market(write):
    graph = read_matrix_market(write(MTX))
    assert graph.directed
    assert edges(graph) == [(0, 1), (1, 2), (1, 2), (2, 2)]
    assert graph.weights.tolist() == [0.5, -0.001, 2, math.inf]
    text = MTX.replace(b"real general", b"PATTERN Symmetric")
    text = b"\n".join(line.rsplit(b" ", 1)[0] for line in text.split(b"\n")[4:8])
    head = b"%%matrixmarket MATRIX Coordinate PATTERN Symmetric\n3 3 4\n"
    graph = read_matrix_market(write(head + text))
    assert not graph.directed
    assert graph.weights is None
    assert graph.edge_count == 7
    big = b"%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 "
    graph = read_matrix_market(write(big + b"9007199254740993"))
    assert graph.weights.tolist() == [2**53 + 1]
    empty = b"%%MatrixMarket matrix coordinate pattern general\n5 5 0\n"
    assert read_matrix_market(write(empty)).vertex_count == 5


def test_dimacs(write):
    graph = read_dimacs(write(GR))
    assert edges(graph) == [(0, 1), (1, 2), (0, 1)]
    assert graph.weights.tolist() == [7, -1, 5]
    assert graph.directed


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n1 2\n2 2\n",
        "0\t1\n1\t2\n2\t2",
        "0,1\n1 , 2\n2, 2\n",
        "0;1\r\n1;2\r\n\r\n2;2\r\n",
        "  0   1  \n\n1\t \t2\n%x\n2 2\n\n",
        "\ufeff# bom\n0 1\n1 2\n2 2\n",
        "source,target\n0,1\n1,2\n2,2\n",
        '"from" "to"\n0 1\n1 2\n2 2\n',
        "0 1 9.5 x\n1 2 7 y\n2 2 1 z\n",
        "+0 1\n01 2\n2 00002\n",
    ],
)
def test_edge_list_layouts(write, text):
    graph = read_edge_list(write(text))
    assert edges(graph) == [(0, 1), (1, 2), (2, 2)]
    assert graph.weights is None
    assert graph.vertex_names is None


def test_edge_list_columns_and_weights(write):
    path = write("id,a,b,w,t\n0,1,2,0.5,9\n1,2,1,3,8\n", "x.csv")
    by_name = read_edge_list(path, columns=("a", "b"), weights="w", names=False)
    by_number = read_edge_list(path, columns=(1, 2), weights=3, names=False)
    assert edges(by_name) == edges(by_number) == [(1, 2), (2, 1)]
    assert by_name.weights.tolist() == [0.5, 3]
    turned = read_edge_list(path, columns=("b", "a"), weights="t", names=False)
    assert edges(turned) == [(2, 1), (1, 2)]
    assert turned.weights.tolist() == [9, 8]
    assert turned.weights.dtype == np.int64
    first = read_edge_list(path, columns=("t", "b"), weights="id", names=False)
    assert edges(first) == [(9, 2), (8, 1)]
    assert first.weights.tolist() == [0, 1]


def test_edge_list_names(write):
    path = write("30 3\n3 -1\n")
    graph = read_edge_list(path)
    assert graph.vertex_names.tolist() == [-1, 3, 30]
    assert edges(graph) == [(2, 1), (1, 0)]
    path = write("4 1\n1 2\n")
    assert read_edge_list(path).vertex_names.tolist() == [1, 2, 4]
    assert read_edge_list(path, names=True).vertex_count == 3
    assert read_edge_list(path, names=False).vertex_count == 5
    wide = read_edge_list(path, vertex_count=9)
    assert (wide.vertex_count, wide.vertex_names) == (9, None)
    none = read_edge_list(write("# nothing\n"), vertex_count=2)
    assert none.edge_count == 0


def test_edge_list_options(write):
    path = write("0 1 5\n1 0 7\n")
    graph = read_edge_list(path, directed=False, weights=2, duplicates="max")
    assert graph.weights.tolist() == [7]
    assert read_edge_list(write("! x\n0 1\n"), comments="!").edge_count == 1


@IN_TMP
@given(st.lists(st.tuples(*[st.integers(0, 8)] * 2), min_size=1), st.booleans())
def test_edge_list_round_trip(write, pairs, directed):
    text = "".join(f"{u} {v}\n" for u, v in pairs)
    graph = read_edge_list(write(text), directed=directed, vertex_count=9)
    want = Graph.from_edges(
        [u for u, _ in pairs], [v for _, v in pairs], vertex_count=9, directed=directed
    )
    assert graph.digest == want.digest


NUMBERS = (
    st.floats(allow_nan=False).map(repr)
    | st.floats(allow_nan=False, width=32).map(lambda x: f"{x:.6f}")
    | st.integers(-(10**20), 10**20).map(str)
    | st.decimals(allow_nan=False, places=12, min_value=-(10**9), max_value=10**9)
    .map(str)
    .map(lambda word: word.lower().replace("infinity", "inf"))
    | st.sampled_from(
        [
            "0",
            "-0",
            ".5",
            "5.",
            "+1",
            "1e22",
            "1e23",
            "1E-22",
            "9007199254740993",
            "0.1e1",
            "1e308",
            "5e-324",
            "00.10",
            "123456789012345e22",
            "1e-400",
            "-inf",
            "Infinity",
        ]
    )
)


@IN_TMP
@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_weights_are_rounded_as_python_rounds(write, words):
    # The first word is no integer, so the column is read as real.
    words = ["0.5", *words]
    path = write("".join(f"0 1 {word}\n" for word in words))
    got = read_edge_list(path, weights=2).weights
    assert got.dtype == np.float64
    assert [repr(x) for x in got.tolist()] == [repr(float(word)) for word in words]


def test_long_decimals_are_rounded_once(write):
    # 17 digits: more than a double's integers hold, so a product of two rounded
    # factors would be off in the last bit every few numbers.
    values = np.random.default_rng(1).random(3000) * 1000
    path = write("".join(f"0 1 {value!r}\n" for value in values.tolist()))
    assert np.array_equal(read_edge_list(path, weights=2).weights, values)


@pytest.mark.parametrize(
    ("reader", "content"),
    [(read_matrix_market, MTX), (read_dimacs, GR), (read_edge_list, SNAP)],
)
def test_gzip_is_recognized_by_content_and_changes_nothing(write, reader, content):
    plain = reader(write(content, "plain.gz"))  # the name lies
    zipped = reader(write(gzip.compress(content), "zipped.txt"))
    parts = gzip.compress(content[:30]) + gzip.compress(content[30:])
    several = reader(write(parts, "several.gz"))
    assert plain.digest == zipped.digest == several.digest
    assert plain.edge_count >= 3


def test_read_graph_documents_each_format():
    text = read_graph.__doc__
    for found in FORMATS:
        assert f"`{found.read.__name__}`" in text
        assert all(f"``{suffix}``" in text for suffix in found.suffixes)


def test_read_graph_goes_by_suffix(write):
    assert read_graph(write(MTX, "a.mtx")).weights is not None
    assert read_graph(str(write(MTX, "a.MTX"))).vertex_count == 3
    assert read_graph(write(gzip.compress(GR), "a.gr.gz")).weights.tolist() == [
        7,
        -1,
        5,
    ]
    assert not read_graph(write(SNAP), directed=False).directed
    assert read_graph(write(SNAP)).directed
    assert read_graph(write("0,1,2\n", "a.csv"), weights=2).weights.tolist() == [2]
    assert read_graph(write(MTX, "a.mtx"), directed=True).directed
    with pytest.raises(
        GraphInputError, match="directed=False, of a graph that is dire"
    ):
        read_graph(write(MTX, "a.mtx"), directed=False)
    with pytest.raises(FileFormatError, match=r"'\.xyz'"):
        read_graph(write(MTX, "a.xyz"))


def test_labels(write):
    vertices, labels = read_labels(write("# x\n0 5\n2\t-1\n0 7\n"))
    assert vertices.tolist() == [0, 2, 0]
    assert labels.tolist() == [5, -1, 7]
    assert labels.dtype == np.int64
    table = write('node,label,name\n3,1,"a, b"\n4,0,c\n')
    vertices, labels = read_labels(table)
    assert (vertices.tolist(), labels.tolist()) == ([3, 4], [1, 0])
    assert read_labels(table, column="name")[1].tolist() == ["a, b", "c"]
    assert read_labels(write("0 red\n1 12\n"))[1].tolist() == ["red", "12"]
    assert read_labels(write(gzip.compress(b"0,1\n")))[1].tolist() == [1]


# Counts of the publishers or of an independent program, not of this one:
# vertices, given edges, directed.
REAL = {
    "tiny/karate.mtx.gz": (34, 78, False),
    "tiny/chesapeake.mtx.gz": (39, 170, False),
    "tiny/polbooks.mtx.gz": (105, 441, False),
    "tiny/football.mtx.gz": (115, 613, False),
    "tiny/rome99.gr.gz": (3353, 8870, True),
    "small/email-Eu-core.txt.gz": (1005, 25571, True),
    "small/polblogs.mtx.gz": (1490, 19090, True),
    "small/cora/cora.mtx.gz": (2708, 5278, False),
    "small/citeseer/citeseer.mtx.gz": (3327, 4552, False),
    "small/pubmed/pubmed.mtx.gz": (19717, 44324, False),
    "small/facebook_large/facebook_edges.csv.gz": (22470, 171002, False),
    "small/blogcatalog.mtx.gz": (10312, 333983, False),
    "small/wiki-Vote.txt.gz": (7115, 103689, True),
    "small/facebook_combined.txt.gz": (4039, 88234, False),
    "small/cit-HepPh.txt.gz": (34546, 421578, True),
    "small/soc-sign-bitcoinotc.csv.gz": (5881, 35592, True),
    "small/email-Eu-core-temporal.txt.gz": (986, 332334, True),
    "small/luxembourg_osm.mtx.gz": (114599, 119666, False),
    "medium/soc-Epinions1.txt.gz": (75879, 508837, True),
    "medium/web-NotreDame.txt.gz": (325729, 1497134, True),
    "medium/coAuthorsDBLP.mtx.gz": (299067, 977676, False),
    "medium/sx-mathoverflow.txt.gz": (24818, 506550, True),
}


def real(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} under {DATA} (set FEATGRAPH_DATA)")
    return path


RATED = [[4, 0], [3.5, 5]]


@pytest.mark.parametrize(
    ("text", "users", "items"),
    [
        ("1\t9\t4\t88\n7\t9\t3.5\t88\n7\t12\t5\t89\n", [1, 7], [9, 12]),
        ("7::12::5::88\r\n7::9::3.5::88\r\n1::9::4::89\r\n", [1, 7], [9, 12]),
        ("userId,movieId,rating\n1,0,4\n7,0,3.5\n7,12,5\n", [1, 7], [0, 12]),
        ("ann;9;4\nbob;9;3.5\nbob;x::y::z;5\n", ["ann", "bob"], ["9", "x::y::z"]),
        ("0 0 4\n1 0 3.5\n1 1 5\n", [0, 1], [0, 1]),
    ],
    ids=["tabs", "colons", "header", "words", "numbers"],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_ratings(write, text, users, items, pack):
    matrix, *ids = read_ratings(write(pack(text.encode()), "ratings.dat"))
    assert [one.tolist() for one in ids] == [users, items]
    assert matrix.toarray().tolist() == RATED


def test_columns_of_ratings(write):
    table = write("when,stars,film,viewer\n5,4,9,1\n6,3,9,1\n")
    matrix, users, items = read_ratings(table, columns=("viewer", "film"), weights=1)
    assert (users.tolist(), items.tolist()) == ([1], [9])
    assert matrix.data.tolist() == [4, 3]  # two entries
    assert matrix.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("restricted/ml-100k/u.data.gz", (943, 1682), 100_000),
        ("small/ml-latest-small/ratings.csv.gz", (610, 9724), 100_836),
    ],
)
def test_ratings_of_movielens(name, shape, count):
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not there")
    matrix, users, items = read_ratings(DATA / name)
    assert matrix.shape == (users.size, items.size) == shape
    assert matrix.nnz == count
    assert (np.diff(items) > 0).all()
    assert set(matrix.data) <= set(np.arange(0.5, 5.5, 0.5))


@pytest.mark.parametrize("name", REAL)
def test_real_graphs_have_the_published_counts(name):
    vertices, given_edges, directed = REAL[name]
    graph = read_graph(real(name), directed)
    assert graph.vertex_count == vertices
    assert graph.given_edge_count == given_edges
    assert graph.directed == directed


STATIC = {
    "small/email-Eu-core-temporal.txt.gz": 24929,
    "medium/sx-mathoverflow.txt.gz": 239978,
}


@pytest.mark.parametrize("name", STATIC)
def test_temporal_graphs_without_repeats_have_the_published_counts(name):
    graph = read_graph(real(name), duplicates="first")
    # mathoverflow's published static count includes self-loops, as this one does
    assert graph.given_edge_count == STATIC[name]


LOOPS = {
    "small/email-Eu-core.txt.gz": 642,
    "small/facebook_large/facebook_edges.csv.gz": 179,
    "small/cit-HepPh.txt.gz": 44,
    "medium/web-NotreDame.txt.gz": 27455,
}


@pytest.mark.parametrize("name", LOOPS)
def test_real_self_loops(name):
    graph = read_graph(real(name), directed=False)
    loops = np.flatnonzero(graph.twins == np.arange(graph.edge_count))
    assert loops.size == LOOPS[name]


@pytest.mark.parametrize(
    "name", ["tiny/karate.mtx.gz", "small/polblogs.mtx.gz", "small/cora/cora.mtx.gz"]
)
def test_real_matrices_equal_scipys_reading(name):
    path = real(name)
    with gzip.open(path) as stream:
        want = scipy.sparse.csr_array(scipy.io.mmread(stream))
    assert abs(read_graph(path).to_scipy() - want).sum() == 0


def test_real_weights():
    karate = read_graph(real("tiny/karate.mtx.gz"))
    assert set(karate.weights.tolist()) == set(range(1, 8))
    rome = read_graph(real("tiny/rome99.gr.gz"))
    once = Graph.from_edges(
        rome.sources, rome.targets, weights=rome.weights, duplicates="min"
    )
    assert rome.given_edge_count - once.given_edge_count == 11
    trust = read_graph(real("small/soc-sign-bitcoinotc.csv.gz"), weights="weight")
    assert (trust.weights.min(), trust.weights.max()) == (-10, 10)
    roads = read_edge_list(
        real("small/cal.cedge.gz"), columns=(1, 2), weights=3, directed=False
    )
    assert (roads.vertex_count, roads.given_edge_count) == (21048, 21693)
    assert roads.weights[0] == 0.002025


LABELS = {
    "tiny/karate.labels.gz": (34, 2, None),
    "tiny/polbooks.labels.gz": (105, 3, None),
    "tiny/football.labels.gz": (115, 12, None),
    "small/polblogs.labels.gz": (1490, 2, None),
    "small/email-Eu-core-department-labels.txt.gz": (1005, 42, None),
    "small/blogcatalog.labels.gz": (14476, 39, None),
    "small/cora/cora.labels.csv.gz": (2708, 7, None),
    "small/citeseer/citeseer.labels.csv.gz": (3327, 7, None),  # -1 is the seventh
    "small/pubmed/pubmed.labels.csv.gz": (19717, 3, None),
    "small/facebook_large/facebook_target.csv.gz": (22470, 4, "page_type"),
}


@pytest.mark.parametrize("name", LABELS)
def test_real_labels(name):
    count, kinds, column = LABELS[name]
    vertices, labels = read_labels(real(name), column=column)
    assert vertices.size == labels.size == count
    assert np.unique(labels).size == kinds


def test_words_among_integers_are_taken_by_an_option(write) -> None:
    path = write("1 2\nann bob\n")
    with pytest.raises(FileFormatError, match="not an integer") as caught:
        read_edge_list(path)
    assert "names=True" in str(caught.value.fix)
    assert read_edge_list(path, names=True).vertex_names == ("1", "2", "ann", "bob")

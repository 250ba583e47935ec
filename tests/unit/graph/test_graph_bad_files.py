"""Malformed, truncated and lying files: FileFormatError with line, got and expected."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featgraph.base.errors import FileFormatError, GraphInputError
from featgraph.graph import (
    read_dimacs,
    read_edge_list,
    read_labels,
    read_matrix_market,
    read_ratings,
)

HEAD = "%%MatrixMarket matrix coordinate "
PATTERN = HEAD + "pattern general\n"
REAL = HEAD + "real general\n"
SYMMETRIC = HEAD + "pattern symmetric\n"

# (content, line or None, parts of the message)
MTX = {
    "empty": ("", 1, "not a Matrix Market file"),
    "text": ("hello\n", 1, "%%MatrixMarket", "'hello'"),
    "one percent": ("%MatrixMarket matrix coordinate real general\n", 1, "not a"),
    "short banner": (
        "%%MatrixMarket matrix coordinate\n1 1 0\n",
        1,
        "malformed banner",
    ),
    "vector": (
        "%%MatrixMarket vector coordinate real general\n",
        1,
        "not a coordinate",
    ),
    "dense": ("%%MatrixMarket matrix array real general\n1 1\n1\n", 1, "mmread"),
    "complex": (HEAD + "complex general\n1 1 1\n1 1 1 1\n", 1, "kind"),
    "skew": (HEAD + "real skew-symmetric\n2 2 1\n2 1 1\n", 1, "symmetry"),
    "hermitian": (HEAD + "pattern hermitian\n1 1 0\n", 1, "symmetry"),
    "no size": (PATTERN + "% only\n", 3, "no size line"),
    "size words": (PATTERN + "1 1\n", 2, "malformed size line", "'1 1'"),
    "size float": (PATTERN + "1 1 0.0\n", 2, "malformed size line"),
    "size negative": (PATTERN + "-1 -1 0\n", 2, "malformed size line"),
    "size letters": (PATTERN + "% c\na b c\n", 3, "malformed size line"),
    "size sign": (PATTERN + "1 1 +1\n1 1\n", 2, "malformed size line"),
    "size huge": (PATTERN + f"{10**30} {10**30} 1\n1 1\n", 2, "malformed size line"),
    "rectangular": (PATTERN + "2 3 1\n1 1\n", 2, "square", "block_array"),
    "V 0": (PATTERN + "0 0 0\n", 2, "number of vertices", "2147483647"),
    "V 9e18": (PATTERN + f"{9 * 10**18} {9 * 10**18} 0\n", 2, "number of vertices"),
    "V 2**31": (PATTERN + f"{2**31} {2**31} 0\n", 2, "number of vertices"),
    "claims entries": (
        PATTERN + "5 5 10000000000000\n1 1\n",
        2,
        "more entries than the file can hold",
        "at most 1 entries in 4 bytes",
    ),
    "claims vertices": (PATTERN + "2000000000 2000000000 1\n1 1\n", 2, "max_bytes="),
    "claims 2 of 1": (
        PATTERN + "5 5 2\n1 1\n\n\n\n\n",
        8,
        "fewer entries",
        "2 entries",
    ),
    "truncated line": (PATTERN + "5 5 2\n1   1\n2", 4, "too few fields", "2 fields"),
    "truncated real": (
        REAL + "5 5 2\n1 1 1.5\n2 2\n ",
        4,
        "too few fields",
        "3 fields",
    ),
    "extra entry": (PATTERN + "5 5 1\n1 1\n2 2\n", 4, "more entries", "1 entries"),
    "extra field": (PATTERN + "5 5 1\n1 1 1\n", 3, "too many fields", "2 fields"),
    "no weight": (REAL + "5 5 1\n1 1  \n", 3, "too few fields"),
    "row 0": (PATTERN + "5 5 2\n1 1\n0 1\n", 4, "vertex out of range", "1 to 5"),
    "row above": (PATTERN + "5 5 2\n\n1 6\n1 1\n", 4, "vertex out of range", "'1 6'"),
    "row negative": (PATTERN + "5 5 1\n1 -2\n", 3, "vertex out of range"),
    "row float": (PATTERN + "5 5 1\n1.0 1\n", 3, "not an integer"),
    "row letters": (PATTERN + "5 5 1\nx 1\n", 3, "not an integer", "'x 1'"),
    "row hex": (PATTERN + "5 5 1\n0x1 1\n", 3, "not an integer"),
    "row sign": (PATTERN + "5 5 1\n- 1\n", 3, "not an integer"),
    "row huge": (PATTERN + f"5 5 1\n{10**30} 1\n", 3, "out of range", "64 bits"),
    "row 2**63": (PATTERN + f"5 5 1\n{2**63} 1\n", 3, "out of range", "64 bits"),
    "row 2**64+1": (PATTERN + f"5 5 1\n{2**64 + 1} 1\n", 3, "out of range"),
    "integer float": (HEAD + "integer general\n5 5 1\n1 1 1.5\n", 3, "not an integer"),
    "integer huge": (HEAD + f"integer general\n5 5 1\n1 1 {2**63}\n", 3, "64 bits"),
    "nan": (REAL + "5 5 2\n1 1 1\n1 1 nan\n", 4, "not a weight", "inf"),
    "1e999": (REAL + "5 5 2\n1 1 1\n1 1 -1e999\n", 4, "too large", "'1 1 -1e999'"),
    "1_0": (REAL + "5 5 1\n1 1 1_0\n", 3, "not a weight"),
    "fortran": (REAL + "5 5 1\n1 1 1d0\n", 3, "not a weight"),
    "lone point": (REAL + "5 5 1\n1 1 .\n", 3, "not a weight"),
    "lone exponent": (REAL + "5 5 1\n1 1 1e\n", 3, "not a weight"),
    "two points": (REAL + "5 5 1\n1 1 1.2.3\n", 3, "not a weight"),
    "endless number": (REAL + "5 5 1\n1 1 0." + "0" * 2000 + "\n", 3, "not a weight"),
    "NUL": (PATTERN + "5 5 1\n1\0 1\n", 3, "not an integer"),
    "old line ends": (PATTERN + "5 5 2\n1 1\r2 2\r", 3, "too many fields"),
    "both triangles": (
        SYMMETRIC + "3 3 3\n2 1\n3 3\n1 2\n",
        5,
        "both triangles",
        "'general'",
    ),
    "UTF-16": ((PATTERN + "1 1 0\n").encode("utf-16"), 1, "UTF-16"),
    "not UTF-8": (PATTERN.encode() + b"5 5 1\n\xff\xfe 1\n", 3, "not an integer"),
}

GR = {
    "empty": ("", 1, "no problem line"),
    "no problem": ("c x\na 1 2 3\n", 2, "malformed problem line", "p sp"),
    "other problem": ("p max 2 1\na 1 2 3\n", 1, "malformed problem line"),
    "float": ("p sp 2.0 1\na 1 2 3\n", 1, "malformed problem line"),
    "claims": ("p sp 2 99999999999\na 1 2 3\n", 1, "more entries than the file can"),
    "claims vertices": ("p sp 2000000000 0\n", 1, "max_bytes="),
    "V 0": ("p sp 0 0\n", 1, "number of vertices"),
    "fewer": ("p sp 2 2\na 1 2 3\nc padding\nc\n", 5, "fewer entries", "2 entries"),
    "more": ("p sp 2 1\na 1 2 3\na 1 2 3\n", 3, "more entries"),
    "no weight": ("p sp 2 1\na 1 2  \n", 2, "too few fields"),
    "real weight": ("p sp 2 1\na 1 2 3.5\n", 2, "not an integer"),
    "edge": ("p sp 2 1\ne 1 2 3\n", 2, "unknown kind of line", "'a'"),
    "glued": ("p sp 2 1\na1 1 2 3\n", 2, "unknown kind of line"),
    "second problem": ("p sp 2 1\np sp 2 1\n", 2, "unknown kind of line"),
    "vertex 0": ("c\np sp 2 2\na 1 2 3\nc\na 1 0 3\n", 5, "vertex out of range"),
    "vertex above": ("p sp 2 1\na 3 2 3\n", 2, "vertex out of range", "1 to 2"),
}

EDGES = {
    "empty": ("", 1, "no edges", "vertex_count="),
    "comments": ("# a\n% b\n", 3, "no edges"),
    "header only": ("source,target\n", 2, "no edges"),
    "one column": ("5\n", 1, "too few fields", "2 fields"),
    "shorter": ("0 1\n1\n", 2, "too few fields", "2 fields"),
    "shorter third": ("0 1 2\n0 1 2\n0 1\n", 3, "too few fields", "3 fields"),
    "longer": ("0 1\n1 2 3\n", 2, "too many fields", "2 fields"),
    "float": ("0 1\n1.5 2\n", 2, "not an integer", "'1.5 2'"),
    "word": ("0 1\n# x\nfoo 2\n", 3, "not an integer"),
    "header or edge": ("a b\nc d\n", 1, "may be a header", "header=True"),
    "narrow header": ("a b\n0 1 2\n", 1, "not as wide", "2 names", "3 fields"),
    "wide header": ("a,b,c\n0,1\n", 1, "not as wide", "3 names", "2 fields"),
    "other separator": ("0\t1\n1 2\n", 2, "not an integer", "between tabs"),
    "open quote": ('0,1,x\n1,2,"y\n', 2, "malformed quotes"),
    "behind a quote": ('0,1,x\n1,2,"y"z\n', 2, "malformed quotes"),
    "behind a quote, blanks": ('0 1 "x"\n1 2 "y"z\n', 2, "malformed quotes"),
    "a nameless vertex": ("ann bob 1\nbob '' 2\n\"\" ann 3\n", 3, "empty field"),
    "a row of words": ("ann bob\nbob\n", 2, "too few fields", "2 fields"),
    "empty field": ("0,1\n1,,2\n", 2, "empty field"),
    "last empty": ("0,1\n1,\n", 2, "empty field"),
    "first empty": ("0,1\n,1\n", 2, "empty field"),
    "quoted": ('0,1\n"1",2\n', 2, "not an integer"),
    "huge": (f"0 1\n{2**63} 2\n", 2, "out of range", "64 bits"),
    "NUL": ("0 1\n0 \0\n", 2, "not an integer"),
    "minus": ("0 1\n- 1\n", 2, "not an integer"),
    "binary": (b"\x80\x04\x95\x00\x01\n\x00\x05", 1, "not an integer"),
}

LABELS = {
    "empty": ("", 1, "no labels"),
    "word": ("0 1\nx 2\n", 2, "malformed label line", "'x | 2'"),
    "one field": ("0 1\n2\n", 2, "malformed label line", "2 fields"),
    "three fields": ("0 1\n\n2 3 4\n", 3, "malformed label line"),
    "negative": ("0 1\n-2 3\n", 2, "malformed label line"),
    "huge": (f"0 1\n{2**63} 3\n", 2, "malformed label line"),
    "no label": ("node,label\n0,1\n1,\n", 3, "malformed label line"),
    "width": ("node,label,x\n0,1,2\n1,2\n", 3, "3 fields"),
    "no column": ("node,color\n0,1\n", 1, "'label'", "['color']"),
    "open quote": ('node,label\n0,"1\n', 2, "malformed label line"),
    "not UTF-8": (b"0 1\n1 \xff\n", 2, "not UTF-8"),
}

RATINGS = {
    "two fields": ("1,2\n3,4\n", 1, "too few fields", "3 fields"),
    "a field less": ("1::2::3::4\n1::2::3\n", 2, "too few fields", "4 fields"),
    "word": ("1\t2\t3\n1\t2\tgood\n", 2, "not a weight"),
    "empty": ("", 1, "no edges"),
}

CASES = [
    pytest.param(reader, *row[:2], row[2:], id=f"{reader.__name__} {name}")
    for reader, table in (
        (read_matrix_market, MTX),
        (read_dimacs, GR),
        (read_edge_list, EDGES),
        (read_labels, LABELS),
        (read_ratings, RATINGS),
    )
    for name, row in table.items()
]


@pytest.mark.parametrize("is_zipped", [False, True])
@pytest.mark.parametrize(("reader", "content", "line", "parts"), CASES)
def test_malformed(tmp_path, reader, content, line, parts, is_zipped):
    data = content if isinstance(content, bytes) else content.encode()
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(data) if is_zipped else data)
    with pytest.raises(FileFormatError) as caught:
        reader(path)
    message = str(caught.value)
    assert caught.value.where == f"{path}:{line}"
    for part in parts:
        assert part in message
    assert caught.value.got is not None
    assert "\n  got: " in message


def write(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


OPTIONS = {
    "negative id": ("0 1\n-1 2\n", {"names": False}, 2, "0 <= id"),
    "id above": ("0 1\n1 5\n", {"vertex_count": 5}, 2, "0 <= id < 5"),
    "far id": ("0 1\n\n0 2147483000\n", {"names": False}, 3, "names=True"),
    "weight column": ("0 1\n", {"weights": 2}, 1, "too few fields"),
    "weight word": ("0 1 2\n0 1 x\n", {"weights": 2}, 2, "not a weight"),
    "weight nan": ("0 1 2\n0 1 nan\n", {"weights": 2}, 2, "not a weight"),
    "no header": ("0 1 2\n", {"weights": "w"}, 1, "no header line"),
    "no such column": ("a b\n0 1\n", {"weights": "w"}, 1, "['a', 'b']"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_edge_lists_that_contradict_the_options(tmp_path, name):
    content, options, line, part = OPTIONS[name]
    path = write(tmp_path, content)
    with pytest.raises(FileFormatError) as caught:
        read_edge_list(path, **options)
    assert caught.value.where == f"{path}:{line}"
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"columns": (0, 0)}, "twice"),
        ({"weights": 1}, "twice"),
        ({"columns": (0, -1)}, "-1"),
        ({"columns": (0, True)}, "True"),
        ({"weights": 1.5}, "1.5"),
        ({"weights": 10**9}, "1000000000"),
        ({"names": "yes"}, "'yes'"),
        ({"names": True, "vertex_count": 9}, "vertex_count"),
        ({"duplicates": "error"}, "more than once"),
        ({"duplicates": "none"}, "'none'"),
    ],
)
def test_wrong_arguments(tmp_path, options, part):
    path = write(tmp_path, "5 7 1\n5 7 1\n")
    with pytest.raises(GraphInputError, match=part):
        read_edge_list(path, **options)


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(b"0 1\n" * 5000)
    middle = len(whole) // 2
    flipped = bytearray(whole)
    flipped[-6] ^= 1
    for data in (whole[:middle], whole[:-3], whole[:12], bytes(flipped), whole[:2]):
        with pytest.raises(FileFormatError, match="damaged or truncated gzip"):
            read_edge_list(write(tmp_path, data))
    assert read_edge_list(write(tmp_path, whole)).edge_count == 5000


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_edge_list(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read_edge_list(tmp_path)
    with pytest.raises(FileFormatError, match="not a regular file"):
        read_edge_list("/dev/zero")
    odd = tmp_path / "gräph\n.txt"
    odd.write_text("0 1\nx 1\n")
    with pytest.raises(FileFormatError, match="gräph"):
        read_edge_list(odd)


def test_max_bytes(tmp_path):
    plain = write(tmp_path, "0 1\n" * 100)
    assert read_edge_list(plain, max_bytes=400).edge_count == 100
    with pytest.raises(FileFormatError, match="at most 399"):
        read_edge_list(plain, max_bytes=399)
    zipped = write(tmp_path, gzip.compress(b"0 1\n" * 100))
    assert read_edge_list(zipped, max_bytes=400).edge_count == 100
    with pytest.raises(FileFormatError, match="at most 399"):
        read_edge_list(zipped, max_bytes=399)
    many = write(tmp_path, HEAD + "pattern general\n30000000 30000000 0\n")
    assert read_matrix_market(many, max_bytes=2**28).vertex_count == 30_000_000
    with pytest.raises(FileFormatError, match="max_bytes="):
        read_matrix_market(many)


def bombs():
    """Return names and bytes; to compress them takes a second."""
    return {
        "gzip": gzip.compress(b"0 1\n" * (1 << 26)),  # 256 MiB in 260 kB
        "entries": (PATTERN + f"9 9 {10**13}\n1 1\n").encode(),
        "vertices": (PATTERN + "2000000000 2000000000 1\n1 1\n").encode(),
        "far id": b"0 2000000000\n",
    }


def test_bombs_are_refused_within_little_memory(tmp_path):
    names = []
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
        names.append(str(tmp_path / name))
    # Address space beyond what the imports and the compiler took already.
    code = """
import resource, sys
from featgraph.base.errors import FileFormatError
from featgraph.graph import read_edge_list, read_matrix_market
small = sys.argv.pop()
for read in (read_edge_list, read_matrix_market):
    try:
        read(small)
    except FileFormatError:
        pass
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
for path in sys.argv[1:]:
    reads = [read_matrix_market]
    if path.endswith(("gzip", "far id")):
        reads = [lambda p: read_edge_list(p, names=False)]
    for read in reads:
        try:
            print(path, read(path))
        except FileFormatError as error:
            print("refused")
"""
    small = tmp_path / "small"
    small.write_text("0 1\n")
    done = subprocess.run(
        [sys.executable, "-c", code, *names, str(small)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["refused"] * len(names), done.stderr


FRAGMENTS = st.sampled_from(
    [
        b"%%MatrixMarket matrix coordinate pattern general\n",
        b"%%MatrixMarket matrix coordinate real symmetric\n",
        b"p sp 3 2\n",
        b"a 1 2 3\n",
        b"3 3 2\n",
        b"1 2\n",
        b"2 1 .5\n",
        b"0 1\n",
        b"source,target\n",
        b"# x\n",
        b"\n",
        b"-",
        b",",
        b"\r",
        b"1e5",
        b"99999999999",
        b"\x1f\x8b",
    ]
)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(FRAGMENTS | st.binary(max_size=6), max_size=8), st.booleans())
def test_arbitrary_bytes_are_a_graph_or_refused(tmp_path, parts, has_names):
    path = write(tmp_path, b"".join(parts))
    names = "auto" if has_names else False
    readers = {
        "matrix": lambda: read_matrix_market(path),
        "dimacs": lambda: read_dimacs(path),
        "edges": lambda: read_edge_list(path, names=names),
        "weights": lambda: read_edge_list(path, weights=2, names=names),
    }
    for read in readers.values():
        try:
            graph = read()
        except FileFormatError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        ids = np.concatenate((graph.sources, graph.targets))
        assert ids.size == 0 or (ids.min() >= 0 and ids.max() < graph.vertex_count)
        assert graph.weights is None or not np.isnan(graph.weights).any()
    try:
        vertices, labels = read_labels(path)
    except FileFormatError:
        return
    assert vertices.size == labels.size > 0

"""Separators, quotes, headers and words: never a field for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph.formats.convert import convert, write_graph
from featgraph.graph.formats.fields import separator_of, split_fields
from featgraph.graph.formats.layout import read_blocks
from featgraph.graph.formats.readers import read_layout


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "edges.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def edges(graph: fg.Graph) -> list[tuple[Any, ...]]:
    """Return source and target by name, and the weight if there is one."""
    names = graph.vertex_names
    called = [*(range(graph.vertex_count) if names is None else names)]
    ends = [
        (called[u], called[v])
        for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    ]
    weights = graph.weights
    if weights is None:
        return ends
    return [(*pair, w) for pair, w in zip(ends, weights.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("line", "separator"),
    [
        ("0 1", " "),
        ("0\t1", "\t"),
        ("0, 1", ","),
        ("0;1;2,5", ";"),
        ("source\ttarget\tweight, kg", "\t"),
        ("from id\tto id", "\t"),
        ("1 2\t1\t1082", " "),
        ("0 1 2,5", " "),
        ('"a;b" c', " "),
        ('"a, b"\t5', "\t"),
    ],
)
def test_the_first_line_shows_the_separator(line: str, separator: str) -> None:
    assert separator_of(line) == separator


@pytest.mark.parametrize(
    ("line", "separator", "fields"),
    [
        ('"a, b",c', ",", ['"a, b"', "c"]),
        ("a,,c,", ",", ["a", "", "c", ""]),
        (' "a" , b ', ",", ['"a"', "b"]),
        ('"say ""no""",x', ",", ['"say ""no"""', "x"]),
        ('\t"a\tb"\tc\t', "\t", ["", '"a\tb"', "c", ""]),
        ('  "a b"   c', " ", ['"a b"', "c"]),
        ('x 5" y', " ", ["x", '5"', "y"]),
        ("New York\tOslo", "\t", ["New York", "Oslo"]),
    ],
)
def test_fields_keep_what_is_in_quotes(
    line: str, separator: str, fields: list[str]
) -> None:
    assert split_fields(line, separator) == fields


@pytest.mark.parametrize("line", ['"a', 'b,"a', '"a"b,c', '"'])
def test_quotes_that_do_not_end_with_their_field_are_refused(line: str) -> None:
    for separator in ", ":
        with pytest.raises(ValueError, match="quotes"):
            split_fields(line.replace(",", separator), separator)


# Tables whose columns of source, target and weight stand for 7 -> 8 and 8 -> 9.
RIGHT = [(7, 8, 2.5), (8, 9, 3.5)]
TABLES = {
    "semicolons": "source;target;weight\n7;8;2.5\n8;9;3.5\n",
    "index of pandas": ",source,target,weight\n1,7,8,2.5\n2,8,9,3.5\n",
    "the same with tabs": "\tsource\ttarget\tweight\n1\t7\t8\t2.5\n2\t8\t9\t3.5\n",
    "blanks in names": "from id\tsource\ttarget\tweight\n1\t7\t8\t2.5\n2\t8\t9\t3.5\n",
    "other columns first": 'who,source,target,weight\n"a, 1",7,8,2.5\n,8,9,3.5\n',
    "quoted header": '"source" "target" "weight"\n7 8 2.5\n8 9 3.5\n',
    "quoted numbers": '"source","target","weight"\n"7","8",2.5\n"8","9",3.5\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_those_of_the_header(name: str, write: Any, tmp_path: Path) -> None:
    path = write(TABLES[name])
    chosen = {"columns": ("source", "target"), "weights": "weight"}
    for options in (chosen, {"weights": "auto"}):
        assert edges(fg.read_edge_list(path, **options)) == RIGHT
    assert edges(fg.as_graph(path)) == RIGHT
    convert(path, tmp_path / "a.fgs", None, **chosen)
    assert edges(fg.read_graph(tmp_path / "a.fgs")) == RIGHT


def test_a_column_called_weight_is_used_as_of_a_data_frame(write: Any) -> None:
    path = write("weight,target,source\n2.5,b,a\n1.0,a,c\n")
    frame = fg.as_graph(pd.read_csv(path))
    assert edges(fg.as_graph(path)) == edges(frame) == [("a", "b", 2.5), ("c", "a", 1)]
    assert fg.read_graph(path).weights is None


DECIMALS = {
    "semicolons": "0;1;2,5\n1;2;3,5\n",
    "with a header": "source;target;weight\n0;1;2,5\n1;2;3,5\n",
    "tabs": "source\ttarget\tweight\n0\t1\t2,5\n1\t2\t3,5\n",
    "blanks": "0 1 2,5\n1 2 3,5\n",
    "blanks with a header": "source target weight\n0 1 2,5\n1 2 3,5\n",
}


@pytest.mark.parametrize("name", DECIMALS)
def test_decimal_commas_are_refused_with_their_line(name: str, write: Any) -> None:
    path = write(DECIMALS[name])
    line = 2 if "source" in DECIMALS[name] else 1
    with pytest.raises(fg.FileFormatError, match=rf":{line}: not a weight") as caught:
        fg.read_graph(path, weights=2)
    assert "2.5 for 2,5" in str(caught.value.fix)
    # Ranges of the file are read alike.
    layout = read_layout(path, None, {"weights": 2})
    with pytest.raises(fg.FileFormatError, match=rf":{line}: not a weight"):
        list(read_blocks(layout, *layout.range_of(0, 1)))
    # Without weights, the column does not matter, and is still one.
    assert edges(fg.read_graph(path)) == [(0, 1), (1, 2)]


def test_row_names_without_a_name_are_refused(write: Any) -> None:
    path = write("source target weight\n1 7 8 2.5\n2 8 9 3.5\n", "r.txt")
    for options in ({}, {"weights": "weight"}, {"columns": (1, 2)}):
        with pytest.raises(fg.FileFormatError, match=":1: the header is not as wide"):
            fg.read_graph(path, **options)
        with pytest.raises(fg.FileFormatError, match=":1: the header is not as wide"):
            read_layout(path, None, options)


def test_a_name_that_two_columns_have_chooses_none(write: Any) -> None:
    path = write("a,b,b\n0,1,2\n")
    with pytest.raises(fg.FileFormatError, match="two columns"):
        fg.read_graph(path, columns=("a", "b"))


def test_separator_and_header_may_be_given(write: Any) -> None:
    path = write("0,5 1,5\n1,5 2,5\n", "odd.txt")
    with pytest.raises(fg.FileFormatError, match="not an integer"):
        fg.read_graph(path, separator=",")
    assert fg.read_graph(write("0\t1\n1 2\n", "b.txt"), separator=" ").edge_count == 2
    numbers = write("0,1\n5,6\n")
    assert fg.read_graph(numbers).edge_count == 2
    assert edges(fg.read_graph(numbers, header=True)) == [(5, 6)]
    words = write("ann bob\nbob cid\n", "w.txt")
    assert edges(fg.read_graph(words, header=True)) == [("bob", "cid")]
    for option in ({"separator": "|"}, {"header": "maybe"}):
        with pytest.raises(fg.FeatGraphError, match=f"{next(iter(option))}="):
            fg.read_graph(words, **option)


WORDS = {
    "an edge": ("ann bob\nbob cid\n", [("ann", "bob"), ("bob", "cid")]),
    "one edge": ("ann bob\n", [("ann", "bob")]),
    "a header": ("source,target\nann,bob\n", [("ann", "bob")]),
    "of numbers": ("who,whom,since\nann,bob,1999\n", [("ann", "bob")]),
    "quotes": ('"Lee, Ann",bob\nbob,"Lee, Ann"\n', [("Lee, Ann", "bob"),
                                                 ("bob", "Lee, Ann")]),
    "blanks": ("New York\tOslo\nOslo\tSan José\n", [("New York", "Oslo"),
                                                  ("Oslo", "San José")]),
    "addresses": ("10.0.0.1 10.0.0.2\n10.0.0.2 ::1\n", [("10.0.0.1", "10.0.0.2"),
                                                       ("10.0.0.2", "::1")]),
    "comments": ("# x\nann bob\n\n# y\r\nbob cid\r\n", [("ann", "bob"),
                                                      ("bob", "cid")]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_words_are_names_of_vertices(name: str, write: Any, tmp_path: Path) -> None:
    text, expected = WORDS[name]
    path = write(text, "words.txt")
    graph = fg.as_graph(path)
    assert edges(graph) == expected
    convert(path, tmp_path / "w.fgs")
    stored = fg.read_graph(tmp_path / "w.fgs")
    assert edges(stored) == expected
    assert stored.vertex_names == graph.vertex_names
    assert stored.vertex_index(expected[0][1]) == 1


def test_words_have_weights(write: Any) -> None:
    path = write("ann bob 3\nbob ann 4\n", "w.txt")
    weights = fg.read_graph(path, weights=2).weights
    assert weights is not None
    assert weights.dtype == np.int64
    path = write("ann bob 3\nbob ann 2,5\n", "w.txt")
    with pytest.raises(fg.FileFormatError, match=":2: not a weight"):
        fg.read_graph(path, weights=2)


def test_ranges_of_words_are_refused(write: Any) -> None:
    assert read_layout(write("ann bob\n"), None, {}).are_words


@pytest.mark.parametrize("name", [(1, 2), "a\0b", "\ud800"])
def test_slices_refuse_names_that_are_no_text(name: Any, tmp_path: Path) -> None:
    graph = fg.Graph.from_networkx(nx.Graph([(name, "b")]))
    with pytest.raises(fg.GraphInputError, match="cannot store"):
        write_graph(graph, tmp_path / "n.fgs")


@pytest.mark.parametrize("letters", [b"a\0b\0c\0d", b"a\0a\0c\0", b"ab\0\xff\0c\0"])
def test_letters_are_the_different_names_of_all_vertices(
    letters: bytes, write: Any, tmp_path: Path
) -> None:
    stored = np.frombuffer(letters, np.uint8)
    folder = tmp_path / "w.fgs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featgraph.graph.formats.convert.stored_names", lambda _: stored)
        convert(write("a b\nb c\n", "w.txt"), folder)
    with pytest.raises(fg.FileFormatError, match=r"letters\.bin"):
        fg.read_graph(folder)


def test_labels_have_one_separator_and_words(write: Any) -> None:
    vertices, labels = fg.read_labels(write("node;label\n3;1,5\n4;2,5\n"))
    assert (vertices.tolist(), labels.tolist()) == ([3, 4], ["1,5", "2,5"])
    for text in (
        "ann,red\nbob,dark blue\n",
        "vertex\tlabel\nann\tred\nbob\tdark blue\n",
    ):
        vertices, labels = fg.read_labels(write(text))
        assert vertices.tolist() == ["ann", "bob"]
        assert labels.tolist() == ["red", "dark blue"]
    with pytest.raises(fg.FileFormatError, match="2 fields"):
        fg.read_labels(write("node label\n1 7 red\n2 8 blue\n"))


FIELDS = st.sampled_from(["0", "12", "-3", '"x, 1;2"', "a b", "", '"say ""x"""'])
ROWS = st.lists(st.tuples(FIELDS, *[st.integers(0, 20)] * 2, FIELDS), min_size=1)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ROWS, st.sampled_from([",", ";", "\t"]), st.integers(1, 4))
def test_readers_divide_lines_alike(
    tmp_path: Path, rows: list[tuple[Any, ...]], separator: str, parts: int
) -> None:
    path = tmp_path / "rows.csv"
    header = separator.join(("w", "source", "target", "z"))
    lines = [header, *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    whole = fg.read_edge_list(path, names=False)
    expected = [(u, v) for _, u, v, _ in rows]
    assert edges(whole) == expected
    assert [split_fields(line, separator)[1:3] for line in lines[1:]] == [
        [str(u), str(v)] for u, v in expected
    ]
    layout = read_layout(path, None, {})
    blocks = [
        pair
        for part in range(parts)
        for block in read_blocks(layout, *layout.range_of(part, parts))
        for pair in zip(block.sources.tolist(), block.targets.tolist(), strict=True)
    ]
    assert blocks == expected

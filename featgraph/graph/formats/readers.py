"""Readers of graphs, labels and ratings: text, plain or gzipped, and slices.

`read_graph` selects the format by the suffix, from `FORMATS`. Files are untrusted:
malformed or truncated files, and headers that do not match them, raise
`FileFormatError` with path, line, the text found and the text expected.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.activity import loading
from featgraph.base.arguments import require_flag, require_path
from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import ArgumentError, FileFormatError, GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.graph.building.edges import MANY_EDGES, EdgeList
from featgraph.graph.formats.dimacs import dimacs_layout
from featgraph.graph.formats.edge_list import (
    EdgeListOptions,
    divided,
    edge_list_layout,
    is_word,
    parse_edge_list,
)
from featgraph.graph.formats.fields import separator_of, unquoted
from featgraph.graph.formats.layout import Layout, read_edges
from featgraph.graph.formats.matrix_market import matrix_market_layout
from featgraph.graph.formats.text import Text, read_head, read_text
from featgraph.graph.graph import Graph
from featgraph.graph.partition.choose import distributed_builders, partition_request
from featgraph.graph.slices.read import open_slices, read_slices

__all__ = [
    "EDGE_LISTS",
    "FORMATS",
    "SLICES",
    "formats_in_words",
    "read_dimacs",
    "read_edge_list",
    "read_graph",
    "read_labels",
    "read_layout",
    "read_matrix_market",
    "read_ratings",
    "require_no_options",
    "require_options",
    "suffix_of",
]

_Path: TypeAlias = str | os.PathLike[str]

#: Suffix of folders of slices.
SLICES = ".fgs"


def suffix_of(path: _Path) -> str:
    """Return the suffix that defines the format, in lower case, without ``.gz``."""
    name = PurePath(require_path(path))
    suffix = PurePath(name.stem).suffix if name.suffix == ".gz" else name.suffix
    return suffix.lower()


@loading
def read_matrix_market(path: _Path, *, max_bytes: int | None = None) -> Graph:
    """Read a square coordinate Matrix Market file.

    Entry (i, j) is the edge i - 1 -> j - 1. ``symmetric`` files are undirected graphs,
    ``general`` ones directed; ``pattern`` files have no weights, ``integer`` ones
    integer weights. Repeated entries are multi-edges.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        Most bytes of text, and of memory allocated by the size line. Default: 100 times
        the file, at least 64 MiB.

    Returns
    -------
    Graph

    Raises
    ------
    FileFormatError
        If the file is malformed, truncated, rectangular, dense, complex or
        skew-symmetric, or symmetric with entries of both triangles.
    OSError
        If the file is missing or cannot be read.
    """
    return _read(matrix_market_layout, path, max_bytes)


@loading
def read_dimacs(path: _Path, *, max_bytes: int | None = None) -> Graph:
    """Read a DIMACS shortest path file (``.gr``): directed, integer weights.

    Lines are ``c`` for comments, one ``p sp V E``, then E arcs ``a u v w`` with
    vertices from 1. Repeated arcs are multi-edges.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_matrix_market`.

    Returns
    -------
    Graph

    Raises
    ------
    FileFormatError
        If the file is malformed or truncated.
    OSError
        If the file is missing or cannot be read.
    """
    return _read(dimacs_layout, path, max_bytes)


def _read(
    layout_of: Callable[[Text], Layout], path: _Path, max_bytes: int | None
) -> Graph:
    """Read a whole file, plain or compressed."""
    text = read_text(path, max_bytes)
    return Graph(read_edges(layout_of(text), text))


@loading
def read_edge_list(
    path: _Path,
    *,
    directed: bool = True,
    columns: tuple[int | str, int | str] | None = None,
    weights: int | str | None = None,
    comments: str = "#%",
    names: bool | str = "auto",
    vertex_count: int | None = None,
    duplicates: str = "keep",
    separator: str = "auto",
    header: bool | str = "auto",
    max_bytes: int | None = None,
) -> Graph:
    r"""Read a text file with one edge per line, as published by SNAP and many others.

    A file has one separator, and every line has as many fields as the first row. A
    field that begins with a quote (``"``) ends with the next one.

    Parameters
    ----------
    path : str or path
    directed : bool
        False: each line is an undirected edge.
    columns : pair of int or str, optional
        Columns of source and target, from 0 or by their name in the header. Default:
        columns named ``source`` and ``target``, else the first two.
    weights : int or str, optional
        Column of the weight; if all are integers, they stay integers. "auto": the
        column named ``weight``, if there is one. Default: no weights; further columns
        are often times.
    comments : str
        A line that begins with one of these characters is skipped.
    names : {"auto", True, False}
        The meaning of ids. "auto" and True: names of the vertices that occur. Integers
        are numbered in ascending order; unless they are exactly 0..V-1,
        `Graph.vertex_names` has them. Words are numbered in order of appearance. Ids
        are words if the first row has words; with True, also if a later row does.
        False: vertex numbers, so that gaps are isolated vertices; "auto" means this if
        `vertex_count` is given.
    vertex_count : int, optional
    duplicates : str
        As in `Graph.from_edges`.
    separator : {"auto", ",", ";", "\t", " "}
        Separator of fields, which blanks may surround. " ": any blanks. "auto": a
        semicolon if the first line (header or row) has one, else a tab, else a comma,
        else blanks; also blanks if that line has numbers between tabs *and* spaces.
    header : {"auto", True, False}
        Whether the first line has the names of columns, one per field of the rows.
        "auto": True if it has no number, and a column is chosen by name, or it has the
        names ``source`` and ``target``, or there are numbers below it. A line of words
        is an edge if one of its vertices has another edge.
    max_bytes : int, optional
        As for `read_matrix_market`.

    Returns
    -------
    Graph

    Raises
    ------
    FileFormatError
        If a line is not an edge, the header has another number of fields, the first
        line may be a header or an edge, or the file is damaged or has no edges.
    GraphInputError
        If arguments contradict each other, or an edge is repeated with
        duplicates="error".
    OSError
        If the file is missing or cannot be read.
    """
    list_options = EdgeListOptions(
        columns, weights, comments, names, vertex_count, separator, header
    )
    text = read_text(path, max_bytes)
    return Graph(
        parse_edge_list(text, list_options, directed=directed, duplicates=duplicates)
    )


@loading
def read_graph(
    path: _Path,
    directed: bool | None = None,
    *,
    partition: str | None = None,
    order: str = "given",
    along: str = "both",
    ranks: int | None = None,
    target: str | None = None,
    **options: Any,
) -> Graph:
    """Read a graph in the format given by the suffix, apart from a final ``.gz``.

    Parameters
    ----------
    path : str or path
        ``.mtx``, ``.mm``: `read_matrix_market`; ``.gr``: `read_dimacs`; ``.txt``,
        ``.tsv``, ``.csv``, ``.edges``, ``.edgelist``, ``.el``: `read_edge_list`.
        ``.fgs``: a folder made by ``featgraph convert``.
    directed : bool, optional
        Default: defined by the file, and True if the format does not define it.
    partition : {None, "edges"}, optional
        "edges": a collective call, in which each rank reads a range of the file and
        stores its part of the graph. No rank has the whole graph. Text must not be
        compressed, and vertices must be numbers, not names.
    order : {"given"}, optional
        Other orders need the whole graph: ``featgraph convert --order`` stores them.
    along : {"both", "in"}, optional
        The edges at its vertices that a rank stores: see `distribute`.
    ranks : int, optional
        The number of ranks that get vertices: see `distribute`.
    target : {None, "auto", "cpu", "cuda"}, optional
        Where to store the rows of a ``.fgs`` folder. "cuda": on the GPU, read piece by
        piece, and copied to the host where it needs them; "auto": on the GPU from
        262,144 edges on, if there is one. Default: on the host, from which runs on a
        GPU upload them. Other formats are read on the host.
    **options
        Options of the format's reader.

    Returns
    -------
    Graph
        With `partition`, a `DistributedGraph`; on a single rank, a `Graph`.

    Raises
    ------
    FileFormatError
        If the suffix is unknown, or the format's reader raises it; on all ranks.
    GraphInputError
        If `directed` contradicts the file, or the order needs the whole graph.
    DeviceError
        If the target is "cuda" and CUDA is not available or out of memory.
    DistributedError
        If `partition` is set without ``fg.distributed.init()``.
    OSError
        If the file is missing or cannot be read.
    """
    suffix = suffix_of(path)
    if directed is not None:
        directed = require_flag("directed", directed)
    request = partition_request(partition, order, along, ranks)
    require_options(path, options)
    if target is not None and suffix != SLICES:
        raise ArgumentError(
            "only folders of slices are read to a GPU",
            where="target=",
            got=repr(str(PurePath(path))),
            expected=f"a {SLICES} folder",
            fix="leave target out, or make one: featgraph convert",
        )
    if request is not None:
        made = distributed_builders[0].of_file(request, path, directed, options, target)
        if made is not None:
            return made  # type: ignore[no-any-return]
    if suffix == SLICES:
        graph = Graph(_of_slices(path, target))
        require_no_options(path, graph.directed, directed, options)
        return graph
    found = _format_of(path)
    graph = found.read(path, **_with_direction(found, directed, options))
    _require_direction(path, graph.directed, directed)
    return graph


def _of_slices(path: _Path, target: object) -> EdgeList:
    """Return the edges of a folder of slices, on the host or on the GPU.

    Folders with an order are read on the host, which restores given order.
    """
    if target is not None:
        slices = open_slices(path)
        manifest = slices.manifest
        default = "cuda" if manifest.edge_count >= MANY_EDGES else "cpu"
        is_there = chosen_target(target, default) == "cuda"
        if is_there and "order" not in manifest.arrays:
            from featgraph.graph.slices.on_gpu import read_on_gpu  # imports the dialect

            return read_on_gpu(slices)
    return read_slices(path)


@dataclass(frozen=True)
class TextFormat:
    """A format of text files with an edge on each line.

    Attributes
    ----------
    title : str
        Name in help texts.
    suffixes : tuple of str
    read : callable
        ``read(path, **options)`` returns the graph of a whole file.
    layout : callable
        ``layout(text, **options)`` returns the `Layout` of a file from its first lines.
        Ranks pass no more than two that are neither empty nor comments.
    comments : str
        First characters of comment lines.
    options : tuple of str
        Options of `layout`; `read` has also ``duplicates`` and ``max_bytes``. With
        ``directed``, the file does not define whether edges are directed.
    """

    title: str
    suffixes: tuple[str, ...]
    read: Callable[..., Graph]
    layout: Callable[..., Layout]
    comments: str
    options: tuple[str, ...] = ()


#: Suffixes of edge lists.
EDGE_LISTS = (".txt", ".tsv", ".csv", ".edges", ".edgelist", ".el")
#: The formats of text that `read_graph` reads, in the order of help texts.
FORMATS = (
    TextFormat(
        "Matrix Market", (".mtx", ".mm"), read_matrix_market, matrix_market_layout, "%",
    ),
    TextFormat("DIMACS", (".gr",), read_dimacs, dimacs_layout, "c"),
    TextFormat(
        "edge list", EDGE_LISTS, read_edge_list, edge_list_layout, "#%",
        ("directed", "columns", "weights", "comments", "names", "vertex_count",
         "duplicates", "separator", "header"),
    ),
)  # fmt: skip


def formats_in_words() -> str:
    """Return the formats of text with their suffixes, for help texts."""
    shown = [f"{found.title} ({', '.join(found.suffixes)})" for found in FORMATS]
    return f"{', '.join(shown[:-1])} or {shown[-1]}"


def _format_of(path: _Path) -> TextFormat:
    suffix = suffix_of(path)
    return next(found for found in FORMATS if suffix in found.suffixes)


def _with_direction(
    found: TextFormat, directed: bool | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options for a format's reader, with `directed` if it takes it."""
    if "directed" in found.options:
        return options | {"directed": directed is not False}
    return dict(options)


def read_layout(path: _Path, directed: bool | None, options: dict[str, Any]) -> Layout:
    """Read the layout of a text file from its first lines.

    Parameters
    ----------
    path : path
    directed : bool or None
    options : dict
        Options of the format's reader, except ``duplicates``: see `require_options`.

    Raises
    ------
    FileFormatError
        If the file has another format, or is compressed.
    """
    found = _format_of(path)
    options = _with_direction(found, directed, options)
    comments = options.get("comments")
    text = read_head(
        path,
        comments if isinstance(comments, str) else found.comments,
        options.pop("max_bytes", None),
    )
    layout = found.layout(text, **options)
    _require_direction(path, layout.directed, directed)
    return layout


def require_options(path: _Path, options: dict[str, Any]) -> None:
    """Raise for a suffix without a format, or options that its reader does not have."""
    suffix = suffix_of(path)
    known = [*(suffix for found in FORMATS for suffix in found.suffixes), SLICES]
    if suffix not in known:
        raise FileFormatError(
            "no format has this suffix",
            where=require_path(path),
            got=repr(suffix),
            expected=", ".join(known),
            fix="call " + ", ".join(found.read.__name__ for found in FORMATS),
        )
    if suffix == SLICES:  # `require_no_options` raises for slices
        return
    takes = ("max_bytes", *_format_of(path).options)
    others = [name for name in options if name not in takes]
    if others:
        raise ArgumentError(
            "the reader of this format has no such option",
            where=f"{require_path(path)}, {', '.join(others)}=",
            expected=", ".join(takes),
        )


def require_no_options(
    path: _Path, is_directed: bool, directed: bool | None, options: dict[str, Any]
) -> None:
    """Raise for options that a folder of slices does not have or contradicts."""
    if options:
        raise ArgumentError(
            "slices have no options",
            where=", ".join(options),
            expected="no options: they were applied when the slices were made",
            fix="give the options to featgraph convert",
        )
    _require_direction(path, is_directed, directed)


def _require_direction(path: _Path, is_directed: bool, directed: bool | None) -> None:
    """Raise GraphInputError if `directed` contradicts a file."""
    if directed is not None and directed != is_directed:
        raise GraphInputError(
            "directed= contradicts the file",
            where=require_path(path),
            got=f"directed={directed}, of a graph that is "
            + ("directed" if is_directed else "undirected"),
            fix="leave directed out; of a whole graph g, Graph.from_edges(g.sources, "
            "g.targets, weights=g.weights, vertex_count=g.vertex_count, "
            f"directed={directed}), with duplicates= where both directions are listed",
        )


@loading
def read_labels(
    path: _Path, *, column: str | None = None, max_bytes: int | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read vertex labels: lines ``vertex label``, or a CSV table with a header.

    Parameters
    ----------
    path : str or path
        A file with one separator, found as in `read_edge_list`; ``#`` and ``%`` begin
        comment lines. The first column is the vertex.
    column : str, optional
        Column of labels in a table; default "label".
    max_bytes : int, optional
        As for `read_matrix_market`.

    Returns
    -------
    vertices : ndarray of int64, or of str if the first is a word, shape (N,)
        In the order of the file; a vertex with several labels has several rows. If the
        graph has names, `Graph.vertex_index` returns their vertices.
    labels : ndarray of int64, or of str if one is not an integer, shape (N,)

    Raises
    ------
    FileFormatError
        If a line is malformed, or there is no such column, or no label.
    OSError
        If the file is missing or cannot be read.
    """
    return parse_labels(read_text(path, max_bytes), column)


@loading
def read_ratings(
    path: _Path,
    *,
    columns: tuple[int | str, int | str] = (0, 1),
    weights: int | str = 2,
    separator: str = "auto",
    header: bool | str = "auto",
    max_bytes: int | None = None,
) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    r"""Read ratings: one line per rating, with a user, an item and the rating.

    Examples are the files of MovieLens: ``u.data``, ``ratings.dat``, ``ratings.csv``.

    Parameters
    ----------
    path : str or path
    columns : pair of int or str, optional
        Columns of user and item, from 0 or by their name in the header.
    weights : int or str, optional
        Column of the rating.
    separator, header : optional
        As for `read_edge_list`. "auto" also finds ``::``.
    max_bytes : int, optional
        As for `read_matrix_market`.

    Returns
    -------
    matrix : scipy.sparse.coo_matrix of shape (U, I)
        Integers stay integers. An item rated twice by a user has two entries.
    users : ndarray of int64, or of str, shape (U,)
        The user of each row. Integers ascend, and may have gaps; words are in order of
        appearance. If users or items are words, both are.
    items : ndarray of int64, or of str, shape (I,)
        The item of each column.

    Raises
    ------
    FileFormatError
        If a line is not a rating, or the file is damaged or has no ratings.
    GraphInputError
        If arguments contradict each other.
    OSError
        If the file is missing or cannot be read.

    Examples
    --------
    >>> import pathlib, featgraph as fg
    >>> path = pathlib.Path("ratings.dat")
    >>> _ = path.write_text("7::20::4.5::978300760\n9::20::3.0::978300761\n")
    >>> matrix, users, items = fg.read_ratings(path)
    >>> matrix.toarray().tolist(), users.tolist(), items.tolist()
    ([[4.5], [3.0]], [7, 9], [20])
    >>> path.unlink()
    """
    from scipy.sparse import coo_matrix

    if weights is None:
        raise GraphInputError(
            "ratings have a column",
            where="weights=",
            expected="its number, or its name",
        )
    text = read_text(path, max_bytes)
    is_auto = isinstance(separator, str) and separator == "auto"
    if is_auto and text.data.partition(b"\n")[0].count(b"::") > 1:
        text, separator = replace(text, data=text.data.replace(b"::", b"\t")), "\t"
    list_options = EdgeListOptions(
        columns, weights, names=True, separator=separator, header=header
    )
    edges = parse_edge_list(text, list_options, directed=True, duplicates="keep")
    names = range(edges.vertex_count) if edges.names is None else edges.names
    users, rows = np.unique(edges.sources, return_inverse=True)
    items, places = np.unique(edges.targets, return_inverse=True)
    values: Any = edges.weights
    matrix = coo_matrix((values, (rows, places)), (users.size, items.size))
    ids = np.array(names)
    return matrix, ids[users], ids[items]


#: Largest id of a labelled vertex: int64.
_MAX_ID = 2**63 - 1


def parse_labels(text: Text, column: str | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read vertices and their labels; see `read_labels`."""
    try:
        content = text.data.decode("utf-8")
    except UnicodeDecodeError as error:
        text.fail("not UTF-8 text", error.start)
    rows = _rows(text, content)
    if not rows:
        text.fail("no labels", len(text.data), got="the end of the file")
    place, width = 1, 2
    header = _header(text, rows, column)
    if header is not None:
        place, width = header.index(column or "label", 1), len(header)
    are_words = bool(rows) and is_word(rows[0][1][0])
    is_name = bool if are_words else _is_id
    vertices, labels = [], []
    for line, fields in rows:
        if len(fields) != width or not is_name(fields[0]) or not fields[place]:
            _fail_row(text, line, fields, width, are_words)
        vertices.append(fields[0] if are_words else int(fields[0]))
        labels.append(fields[place])
    return np.array(vertices, None if are_words else np.int64), _as_array(labels)


def _header(
    text: Text, rows: list[tuple[int, list[str]]], column: str | None
) -> list[str] | None:
    """Remove and return the header; None if the first row is a labelled vertex."""
    first = rows[0][1]
    if _is_id(first[0]):
        if column is not None:
            text.fail("no such column", 0, got=repr(column), expected="a header line")
        return None
    wanted = "label" if column is None else column
    if wanted in first[1:]:
        return rows.pop(0)[1]
    has_ids = any(_is_id(fields[0]) for _, fields in rows)
    if column is not None or has_ids or not is_word(first[0]):
        text.fail(
            "no such column",
            0,
            got=repr(wanted),
            expected=f"one of {first[1:]}",
            fix="pass column=",
        )
    return None


def _rows(text: Text, content: str) -> list[tuple[int, list[str]]]:
    """Return (line, fields) of every line that is neither empty nor a comment."""
    first = next(
        (line for line in content.splitlines() if line.strip() and line[0] not in "#%"),
        "",
    )
    separator, rows = separator_of(first), []
    if separator == " ":
        at = 0
        for number, line in enumerate(content.split("\n"), 1):
            if line.strip() and line[0] not in "#%":
                fields = divided(text, at, line.rstrip("\r"), separator)
                rows.append((number, [unquoted(field) for field in fields]))
            at += len(line.encode()) + 1
        return rows
    # Fields in quotes may span several lines.
    reader = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=separator,
        skipinitialspace=separator != "\t",
        strict=True,
    )
    try:
        for fields in reader:
            if fields and not fields[0].startswith(("#", "%")):
                rows.append((reader.line_num, [field.strip() for field in fields]))
    except csv.Error as error:
        _fail_row(text, reader.line_num, [str(error)], 2)
    return rows


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word[:20]) <= _MAX_ID


def _as_array(labels: list[str]) -> NDArray[Any]:
    try:
        if any("_" in label for label in labels):
            raise ValueError
        return np.array([int(label) for label in labels], np.int64)
    except (ValueError, OverflowError):
        return np.array(labels)


def _fail_row(
    text: Text, line: int, fields: list[str], width: int, are_words: bool = False
) -> None:
    starts = [begin for begin, _, _ in text.lines()]
    vertex = "a vertex (its name)" if are_words else "a vertex (an integer >= 0)"
    text.fail(
        "malformed label line",
        starts[min(line, len(starts)) - 1] if starts else 0,
        got=repr(" | ".join(fields))[:80],
        expected=f"{width} fields: {vertex}, its label"
        + (", and others" if width > 2 else ""),
    )

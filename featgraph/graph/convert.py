"""Conversion of networkx graphs, SciPy sparse matrices and data frames, both ways."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_flag, shown
from featgraph.base.errors import GraphInputError
from featgraph.base.interrupts import import_whole
from featgraph.graph.building.check import (
    MAX_VERTEX_COUNT,
    checked_weights,
    require_ids,
)
from featgraph.graph.building.edges import EdgeList, edge_list, edges_of_sides
from featgraph.graph.building.names import VertexNames, are_integers
from featgraph.graph.inputs.numbers import host_array

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = [
    "from_biadjacency",
    "from_frame",
    "from_networkx",
    "from_scipy",
    "to_networkx",
    "to_scipy",
]


def from_networkx(source: Any, weight: str | None) -> EdgeList:
    """Read the edges of any networkx graph in its order; see `Graph.from_networkx`."""
    if not (hasattr(source, "is_directed") and hasattr(source, "is_multigraph")):
        raise GraphInputError(
            "not a networkx graph",
            got=type(source).__name__,
            expected="networkx.Graph, DiGraph, MultiGraph or MultiDiGraph",
            fix="from_edges takes arrays, from_scipy a matrix, from_pandas a frame",
        )
    if weight is not None and not isinstance(weight, Hashable):
        raise GraphInputError(
            "not the name of an edge attribute", where="weight=", got=shown(weight)
        )
    nodes: list[Hashable] = list(source.nodes)
    if not nodes:
        raise GraphInputError(
            "a graph needs at least one vertex",
            got="a networkx graph without nodes",
            fix="add its nodes first",
        )
    number: dict[Hashable, int] | None = {name: v for v, name in enumerate(nodes)}
    if _are_own_numbers(nodes):
        number = None
    ends: list[tuple[Any, Any]] = []
    values: list[Any] = []
    for u, v, data in source.edges(data=True):
        ends.append((u, v) if number is None else (number[u], number[v]))
        if weight is not None:
            values.append(data.get(weight, 1))
    flat = np.array(ends, np.int32).reshape(len(ends), 2)
    return EdgeList(
        flat[:, 0].copy(),
        flat[:, 1].copy(),
        None if weight is None else _attribute_weights(values, ends, weight),
        len(nodes),
        bool(source.is_directed()),
        None if number is None else tuple(nodes),
    )


def _are_own_numbers(nodes: list[Hashable]) -> bool:
    """Whether the names are 0..V-1 in any order, so that a name is a vertex."""
    # Names are distinct: V of them in the range [0, V) are all its numbers.
    return all(type(name) is int and 0 <= name < len(nodes) for name in nodes)


def _attribute_weights(
    values: list[Any], ends: list[tuple[Any, Any]], weight: str
) -> NDArray[Any]:
    for i, value in enumerate(values):
        is_number = isinstance(value, int | float | np.integer | np.floating)
        if not is_number or isinstance(value, bool):
            raise GraphInputError(
                f"edge attribute {weight!r} is not a number",
                where=f"edge {i} {ends[i]}",
                got=f"{value!r} ({type(value).__name__})",
                expected="an int or a float; edges without the attribute weigh 1",
            )
    try:
        array = np.array(values) if values else np.empty(0, np.int64)
    except OverflowError:
        array = np.array(values, dtype=object)
    return checked_weights(array, len(values))


def from_scipy(matrix: Any, directed: bool) -> EdgeList:
    """Read entry [i, j] as the edge i -> j; see `Graph.from_scipy`."""
    _require_sparse(matrix)
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphInputError(
            "an adjacency matrix is square",
            got=f"shape {tuple(matrix.shape)}",
            expected="shape (V, V)",
            fix="Graph.from_biadjacency makes a graph of two sides, M + N vertices, of "
            "an (M, N) matrix",
        )
    count = int(matrix.shape[0])
    if count > MAX_VERTEX_COUNT:
        raise GraphInputError(
            "too many vertices",
            got=f"shape {tuple(matrix.shape)}",
            expected=f"at most {MAX_VERTEX_COUNT}: vertex ids are int32",
        )
    directed = require_flag("directed", directed)
    rows, columns, values = _entries(matrix)
    weights = None if values.dtype.kind == "b" else values
    if not directed:
        rows, columns, weights = _one_triangle(rows, columns, weights)
    return edge_list(
        rows,
        columns,
        weights=weights,
        vertex_count=count or None,
        directed=directed,
    )


def from_biadjacency(matrix: Any, target: object = None) -> EdgeList:
    """Read entry [i, j] as the edge of i and M + j; see `Graph.from_biadjacency`."""
    _require_sparse(matrix)
    sides = tuple(int(count) for count in matrix.shape)
    if len(sides) != 2 or not all(sides):
        raise GraphInputError(
            "a matrix of one side by the other has rows and columns",
            got=f"shape {sides}",
            expected="shape (M, N)",
        )
    made = _sides_on_gpu(matrix, (sides[0], sides[1]), target)
    if made is not None:
        return made
    rows, columns, values = _entries(matrix)
    require_ids(rows, "rows of the matrix", sides[0])
    require_ids(columns, "columns of the matrix", sides[1])
    count = sum(sides)
    # Ids stay in the narrower dtype of the matrix if it holds M + N.
    fits = columns.dtype.kind == "i" and count <= np.iinfo(columns.dtype).max
    made = edge_list(
        rows,
        np.add(columns, sides[0], dtype=columns.dtype if fits else np.int64),
        weights=None if values.dtype.kind == "b" else values,
        vertex_count=count,
        directed=False,
        target=target,
    )
    made.sides = sides  # rows are one side, columns the other
    return made


def _sides_on_gpu(
    matrix: Any, sides: tuple[int, int], target: object
) -> EdgeList | None:
    """Return the edges of two sides, if a GPU builds them from a compressed matrix."""
    if target is None or matrix.format not in ("csr", "csc"):
        return None
    offsets = _checked_pointer(matrix)
    count = int(offsets[-1])
    indices, values = (np.asarray(a)[:count] for a in (matrix.indices, matrix.data))
    weights = None if values.dtype.kind == "b" else values
    is_by_column = matrix.format == "csc"
    return edges_of_sides(offsets, indices, weights, sides, is_by_column, target)


def _require_sparse(matrix: Any) -> None:
    if hasattr(matrix, "tocoo") and hasattr(matrix, "shape"):
        return
    raise GraphInputError(
        "not a SciPy sparse matrix",
        got=type(matrix).__name__,
        expected="a sparse array or matrix of any format",
        fix="a dense matrix: scipy.sparse.coo_array(matrix)",
    )


def _entries(matrix: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rows, columns and values in storage order, explicit zeros included.

    CSR and CSC are expanded here and not by SciPy, whose compiled loops do not check
    the row pointer: a malformed one would read out of bounds.
    """
    if matrix.format in ("csr", "csc"):
        major = _expand_pointer(matrix)
        minor = np.asarray(matrix.indices)[: major.size]
        values = np.asarray(matrix.data)[: major.size]
        ends = (major, minor) if matrix.format == "csr" else (minor, major)
        return ends[0], ends[1], values
    triples = matrix.tocoo()
    return np.asarray(triples.row), np.asarray(triples.col), np.asarray(triples.data)


def _expand_pointer(matrix: Any) -> NDArray[np.int64]:
    """Return the row of each entry of CSR, or its column of CSC."""
    steps = np.diff(_checked_pointer(matrix))
    return np.repeat(np.arange(steps.size), steps)


def _checked_pointer(matrix: Any) -> NDArray[np.int64]:
    """Return the checked row pointer of CSR, or the column pointer of CSC.

    Raises
    ------
    GraphInputError
        If the pointer does not begin at 0, descends, or exceeds the stored entries.
    """
    pointer = np.asarray(matrix.indptr).astype(np.int64)
    stored = min(len(matrix.indices), len(matrix.data))
    steps = np.diff(pointer)
    where, got = None, None
    axis, lines = (0, "rows") if matrix.format == "csr" else (1, "columns")
    if pointer.size != matrix.shape[axis] + 1:
        where, got = (
            "indptr",
            f"{pointer.size} entries for {matrix.shape[axis]} {lines}",
        )
    elif pointer[0] != 0:
        where, got = "indptr[0]", str(pointer[0])
    elif np.any(steps < 0):
        row = int(np.flatnonzero(steps < 0)[0])
        where = f"row {row}"
        got = f"indptr goes from {pointer[row]} to {pointer[row + 1]}"
    elif pointer[-1] > stored:
        where, got = "indptr[-1]", f"{pointer[-1]}, with {stored} stored entries"
    if where is not None:
        raise GraphInputError(
            f"malformed {matrix.format.upper()} matrix",
            where=where,
            got=got,
            expected="V + 1 entries that start at 0, never fall, and end at the "
            "number of stored entries",
        )
    return pointer


def _one_triangle(
    rows: NDArray[Any], columns: NDArray[Any], weights: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Keep the upper triangle of a symmetric matrix: each undirected edge once."""
    upper, lower = rows < columns, rows > columns
    value = np.ones(rows.size, np.int8) if weights is None else weights

    def in_order(part: NDArray[np.bool_], i: NDArray[Any], j: NDArray[Any]) -> Any:
        order = np.lexsort((value[part], j[part], i[part]))
        return i[part][order], j[part][order], value[part][order]

    # The sorted entries of both triangles of a symmetric matrix are equal.
    above, below = in_order(upper, rows, columns), in_order(lower, columns, rows)
    shared = min(above[0].size, below[0].size)
    differs = np.zeros(shared, np.bool_)
    for a, b in zip(above, below, strict=True):
        differs |= a[:shared] != b[:shared]
    if differs.any() or above[0].size != below[0].size:
        at = int(np.flatnonzero(differs)[0]) if differs.any() else shared
        i, j, w = next(
            (side[0][at], side[1][at], side[2][at])
            for side in (above, below)
            if at < side[0].size
        )
        raise GraphInputError(
            "the matrix of an undirected graph is symmetric",
            where=f"entries [{i}, {j}] and [{j}, {i}]",
            got=f"{w} has no equal counterpart",
            expected="every entry [i, j] stored at [j, i] too, with the same value",
            fix="directed=True, or give matrix + matrix.T if one triangle is stored",
        )
    kept = rows <= columns
    return rows[kept], columns[kept], None if weights is None else weights[kept]


def from_frame(
    frame: Any,
    source: Hashable,
    target: Hashable,
    weight: Hashable,
    *,
    names: bool,
    **options: Any,
) -> EdgeList:
    """Read two or three columns of a data frame; see `Graph.from_pandas`."""
    names = require_flag("names", names)
    sources, targets = _column(frame, source), _column(frame, target)
    weights = None if weight is None else _column(frame, weight)
    kinds = sources.dtype.kind + targets.dtype.kind
    if not names and are_integers(sources) and are_integers(targets):
        # Nullable integer columns arrive as objects.
        if sources.size and "O" in kinds:
            sources, targets = sources.astype(np.int64), targets.astype(np.int64)
    elif not set(kinds) & set("fcb"):
        names = True
    return edge_list(sources, targets, weights=weights, names=names, **options)


def _column(frame: Any, name: Hashable) -> NDArray[Any]:
    try:
        column = frame[name]
    except Exception as error:  # data frame libraries raise different classes
        raise GraphInputError(
            "no such column",
            where=repr(name),
            got=f"a frame with columns {list(getattr(frame, 'columns', []))!r}",
            fix="name the columns with source=, target= and weight=",
        ) from error
    if not hasattr(column, "to_numpy"):
        raise GraphInputError(
            "not a data frame column",
            where=repr(name),
            got=type(column).__name__,
            expected="a column with to_numpy(), as in pandas and polars",
            fix="from_edges takes arrays and lists",
        )
    return host_array(column.to_numpy(), repr(name))


def to_networkx(graph: Structure) -> Any:
    """Return a networkx graph; see `Graph.to_networkx`."""
    networkx = import_whole("networkx")
    u, v = graph.sources, graph.targets
    low, high = (u, v) if graph.directed else (np.minimum(u, v), np.maximum(u, v))
    has_repeats = np.unique((low.astype(np.int64) << 32) | high).size != u.size
    kind = ("Multi" if has_repeats else "") + ("DiGraph" if graph.directed else "Graph")
    result = getattr(networkx, kind)()
    names = graph.vertex_names
    labels = range(graph.vertex_count) if names is None else _plain(names)
    living = graph.living
    is_living = np.ones(len(labels), np.bool_) if living is None else living
    result.add_nodes_from(labels[v] for v in np.flatnonzero(is_living).tolist())
    ends = ((labels[i], labels[j]) for i, j in zip(u.tolist(), v.tolist(), strict=True))
    if graph.weights is None:
        result.add_edges_from(ends)
    else:
        pairs = zip(ends, graph.weights.tolist(), strict=True)
        result.add_edges_from((i, j, {"weight": w}) for (i, j), w in pairs)
    return result


def _plain(names: VertexNames) -> Sequence[Hashable]:
    return names.tolist() if isinstance(names, np.ndarray) else names


def to_scipy(graph: Structure) -> Any:
    """Return a SciPy CSR array; see `Graph.to_scipy`."""
    sparse = import_whole("scipy.sparse")
    u, v, weights = graph.sources, graph.targets, graph.weights
    if weights is None:
        weights = np.ones(u.size, np.float64)
    elif weights.dtype == np.float16:  # unsupported by SciPy's sparse kernels
        weights = weights.astype(np.float32)
    if not graph.directed:
        is_paired = u != v
        u, v = (
            np.concatenate((u, v[is_paired])),
            np.concatenate((v, u[is_paired])),
        )
        weights = np.concatenate((weights, weights[is_paired]))
    shape = (graph.vertex_count, graph.vertex_count)
    return sparse.coo_array((weights, (u, v)), shape=shape).tocsr()

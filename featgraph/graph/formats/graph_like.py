"""Conversion of an algorithm's graph argument, of any supported type, to `Graph`."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeAlias

import numpy as np

from featgraph.base.errors import GraphInputError
from featgraph.graph.formats.readers import EDGE_LISTS, read_graph, suffix_of
from featgraph.graph.graph import Graph

__all__ = ["GraphLike", "as_graph"]


class _Sparse(Protocol):
    """A SciPy sparse array or matrix."""

    def tocoo(self, *args: Any, **kwargs: Any) -> Any: ...


class _Networkx(Protocol):
    """A networkx graph of any kind."""

    def is_multigraph(self) -> Any: ...


class _Frame(Protocol):
    """A pandas or polars data frame."""

    @property
    def columns(self) -> Any: ...


#: Types that algorithms accept as a graph; see `as_graph` for each.
GraphLike: TypeAlias = Graph | _Sparse | _Networkx | _Frame | str | os.PathLike[str]

#: The expected types in errors.
_TAKEN = (
    "a featgraph.Graph, a SciPy sparse array or matrix, a networkx graph, a data frame "
    "with columns source and target, or the path of a file"
)


def as_graph(source: GraphLike, *, directed: bool | None = None) -> Graph:
    """Convert an object or a file to a graph, as algorithms do.

    Parameters
    ----------
    source : Graph, SciPy sparse, networkx graph, data frame, str or path
        A Graph is returned unchanged. A matrix is read by `Graph.from_scipy`, with its
        entries as weights; a networkx graph by `Graph.from_networkx`, with the edge
        attribute ``weight`` if an edge has it; a data frame of pandas or polars by
        `Graph.from_pandas`, with columns ``source``, ``target`` and, if present,
        ``weight``; and a path by `read_graph`, where an edge list with a header is
        like a data frame with these columns.
    directed : bool, optional
        Whether edges of a matrix, a data frame or an edge list are directed. Default:
        True. A matrix with ``directed=False`` must be symmetric. A Graph, a networkx
        graph and other files define it themselves.

    Returns
    -------
    Graph
        Vertices are in the order of the source: row i of a matrix is vertex i. Nodes
        named 0..V-1 are the vertices of these numbers; other nodes are numbered in
        order, and `Graph.vertex_names` has their names.

    Raises
    ------
    GraphInputError
        If `source` has another type, or the constructor raises it.
    FileFormatError
        If `read_graph` raises it.
    OSError
        If the file is missing or cannot be read.

    Examples
    --------
    >>> import featgraph as fg
    >>> from scipy.sparse import csr_array
    >>> fg.as_graph(csr_array([[0, 2.0], [0, 0]]))
    Graph(2 vertices, 1 edges, directed, float64 weights)
    """
    given: Any = source
    if isinstance(given, Graph):
        return given
    if isinstance(given, str | os.PathLike):
        return _read(given, directed)
    # A class has the same methods as its instances, but no edges.
    if not isinstance(given, type):
        if hasattr(given, "is_directed") and hasattr(given, "is_multigraph"):
            return Graph.from_networkx(given, weight=_weight_attribute(given))
        if hasattr(given, "tocoo") and hasattr(given, "shape"):
            return Graph.from_scipy(given, directed=directed is not False)
        if hasattr(given, "columns") and hasattr(given, "__getitem__"):
            has_weight = "weight" in list(given.columns)
            return Graph.from_pandas(
                given,
                weight="weight" if has_weight else None,
                directed=directed is not False,
            )
    raise GraphInputError(
        "not a graph",
        got=f"{type(given).__module__}.{type(given).__qualname__}",
        expected=_TAKEN,
        fix=_fix(given),
    )


def _read(path: Any, directed: bool | None) -> Graph:
    """Read a file; only edge lists do not define whether edges are directed."""
    if suffix_of(path) not in EDGE_LISTS:
        return read_graph(path)
    return read_graph(path, directed, weights="auto")


def _weight_attribute(source: Any) -> str | None:
    """Return "weight" if any edge of a networkx graph has this attribute."""
    has_weight = any("weight" in data for _, _, data in source.edges(data=True))
    return "weight" if has_weight else None


def _fix(given: Any) -> str:
    shape = np.shape(given) if isinstance(given, np.ndarray) else ()
    if len(shape) == 2 and shape[0] == shape[1]:
        return "featgraph.Graph.from_scipy(scipy.sparse.coo_array(matrix))"
    if isinstance(given, tuple | list | np.ndarray):
        return "featgraph.Graph.from_edges(sources, targets), of two flat arrays"
    return "featgraph.Graph.from_edges, from_scipy, from_networkx or from_pandas"

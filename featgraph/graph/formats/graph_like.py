"""The border of the algorithms: whatever holds a graph, as a `Graph`."""

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


#: What algorithms take for a graph; `as_graph` says how each is read.
GraphLike: TypeAlias = Graph | _Sparse | _Networkx | _Frame | str | os.PathLike[str]

_TAKEN = (
    "a featgraph.Graph, a SciPy sparse array or matrix, a networkx graph, a data frame "
    "with columns source and target, or the path of a file"
)


def as_graph(source: GraphLike, *, directed: bool | None = None) -> Graph:
    """Return the graph that an object or a file holds, as algorithms read it.

    Parameters
    ----------
    source : Graph, SciPy sparse, networkx graph, data frame, str or path
        A Graph is returned as it is. A matrix: `Graph.from_scipy`, its entries are the
        weights. A networkx graph: `Graph.from_networkx`, with the edge attribute
        ``weight`` where an edge has one. A data frame, of pandas or polars:
        `Graph.from_pandas`, columns ``source`` and ``target``, and ``weight`` where
        there is one. A path: `read_graph`; an edge list with a header like a data frame
        with these columns.
    directed : bool, optional
        Whether an edge ``u -> v`` of a matrix, a data frame or an edge list leads one
        way. Default: it does. A matrix that is read with ``directed=False`` has to be
        symmetric. A Graph, a networkx graph and other files say it themselves.

    Returns
    -------
    Graph
        Vertices in the order of the source: row i of a matrix is vertex i; nodes that
        are called 0..V-1 are the vertices of these numbers, others are numbered as they
        come, and `Graph.vertex_names` keeps their names.

    Raises
    ------
    GraphInputError
        Anything else, by the name of its type, or what the constructor refuses.
    FileFormatError
        What `read_graph` refuses.
    OSError
        The file is missing or may not be read.

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
    # Classes have the methods, too, but no edges.
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
    """Read a file; only an edge list leaves open what its edges mean."""
    if suffix_of(path) not in EDGE_LISTS:
        return read_graph(path)
    return read_graph(path, directed, weights="auto")


def _weight_attribute(source: Any) -> str | None:
    """Return "weight" where an edge of a networkx graph has that attribute."""
    has_weight = any("weight" in data for _, _, data in source.edges(data=True))
    return "weight" if has_weight else None


def _fix(given: Any) -> str:
    shape = np.shape(given) if isinstance(given, np.ndarray) else ()
    if len(shape) == 2 and shape[0] == shape[1]:
        return "featgraph.Graph.from_scipy(scipy.sparse.coo_array(matrix))"
    if isinstance(given, tuple | list | np.ndarray):
        return "featgraph.Graph.from_edges(sources, targets), of two flat arrays"
    return "featgraph.Graph.from_edges, from_scipy, from_networkx or from_pandas"

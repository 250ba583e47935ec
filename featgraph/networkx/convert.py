"""Conversion between NetworkX's dictionaries and arrays.

A conversion spends most of its time on reading the dictionaries: about 100 ns per
entry. They are read once, by iterators that run in C (`chain`, `map`, `compress`,
`numpy.fromiter`), and numbered and filtered as arrays. An undirected edge is in the
dictionaries of both ends. The entry of the end that comes first in the order of nodes
is used, which gives the order of ``G.edges``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from itertools import chain, compress
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from featgraph.networkx.graph import NetworkXGraph, Weights

__all__ = ["convert_from_nx", "convert_to_nx"]

Array = npt.NDArray[Any]


def convert_from_nx(
    graph: Any,
    *,
    edge_attrs: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, Any] | None = None,
    preserve_edge_attrs: bool = False,
    preserve_node_attrs: bool = False,
    preserve_graph_attrs: bool = False,
    name: str | None = None,
    graph_name: str | None = None,
) -> NetworkXGraph:
    """Convert a NetworkX graph of any kind to arrays; called by NetworkX.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph, MultiDiGraph, or a view of one
    edge_attrs : dict of str to number, optional
        Edge attributes to read, with the default for edges without them.
    node_attrs : dict, optional
        If not empty, all attributes of nodes are stored.
    preserve_edge_attrs, preserve_node_attrs, preserve_graph_attrs : bool, optional
        Whether to store all attributes, for `convert_to_nx`.
    name, graph_name : str, optional
        The called function and its argument; unused.

    Returns
    -------
    NetworkXGraph

    Raises
    ------
    NotImplementedError
        If values of an edge attribute are not numbers, not 64-bit integers, or nan.
        NetworkX then runs its own function.

    Notes
    -----
    A view is not informed of changes of its graph, so its conversion is not cached.
    """
    if hasattr(graph, "_graph"):
        graph.__networkx_cache__ = None
    nodes = list(graph)
    rows = [row for _, row in graph.adjacency()]
    directed, multigraph = graph.is_directed(), graph.is_multigraph()
    sources, targets, degrees = _ends(nodes, rows)
    neighbors = np.concatenate([[0], np.cumsum(degrees)]), targets
    kept = np.ones(len(sources), bool) if directed else sources <= targets
    entries: Iterable[Any] = chain.from_iterable(row.values() for row in rows)
    if not directed:
        sources, targets = sources[kept], targets[kept]
        entries = compress(entries, kept.tolist())
    keys = None
    if multigraph:
        between = list(entries)  # for each pair of ends, its edges by key
        repeats = np.fromiter(map(len, between), np.int64, len(between))
        sources, targets = np.repeat(sources, repeats), np.repeat(targets, repeats)
        keys = list(chain.from_iterable(between))
        entries = chain.from_iterable(edges.values() for edges in between)
    made = NetworkXGraph(
        nodes, sources, targets, directed=directed, multigraph=multigraph
    )
    made.rows, made.edge_keys = neighbors, keys
    # Weak: NetworkX caches the converted graph in the original.
    made.original = weakref.ref(graph)
    if preserve_edge_attrs or edge_attrs:
        data = list(entries)
        for attribute, default in (edge_attrs or {}).items():
            weights = _weights(attribute, [d.get(attribute, default) for d in data])
            if weights is not None:
                made.weights[attribute] = weights
        if preserve_edge_attrs:
            made.edge_data = data
    if preserve_node_attrs or node_attrs:
        made.node_data = [graph.nodes[node] for node in nodes]
    if preserve_graph_attrs:
        made.graph = dict(graph.graph)
    return made


def _ends(nodes: list[Any], rows: list[Any]) -> tuple[Array, Array, Array]:
    """Return both ends of every entry of all rows, and the length of each row."""
    degrees = np.fromiter(map(len, rows), np.int64, len(rows))
    count = int(degrees.sum())
    neighbors: Iterable[Any] = chain.from_iterable(rows)
    is_own_number = nodes == list(range(len(nodes))) and {*map(type, nodes)} <= {int}
    if not is_own_number:
        number = dict(zip(nodes, range(len(nodes)), strict=True))
        neighbors = map(number.__getitem__, neighbors)
    targets = np.fromiter(neighbors, np.int32, count)
    sources = np.repeat(np.arange(len(nodes), dtype=np.int32), degrees)
    return sources, targets, degrees


def _weights(attribute: str, values: list[Any]) -> Weights | None:
    """Return values as numbers; None if all are the integer one."""
    types = {*map(type, values)}
    for kind in types:
        if not issubclass(kind, int | float | np.integer | np.floating):
            raise NotImplementedError(
                f"values of {attribute!r} of type {kind.__name__}: only numbers"
            )
    if all(issubclass(kind, int) for kind in types):
        try:
            integers = np.array(values, np.int64)
        except OverflowError as error:
            raise NotImplementedError(
                f"values of {attribute!r} of more than 64 bits"
            ) from error
        return None if (integers == 1).all() else Weights(integers)
    reals = np.array(values, np.float64)
    if np.isnan(reals).any():
        raise NotImplementedError(f"values of {attribute!r} that are nan")
    return Weights(reals, is_mixed=types != {float})


def convert_to_nx(result: Any, *, name: str | None = None) -> Any:
    """Convert a graph of this backend to a networkx graph; return other values as is.

    Parameters
    ----------
    result : Any
        The result of a function.
    name : str, optional
        The called function; unused.
    """
    if not isinstance(result, NetworkXGraph):
        return result
    kind = ("Multi" if result.is_multigraph() else "") + (
        "DiGraph" if result.is_directed() else "Graph"
    )
    made = getattr(nx, kind)()
    made.graph.update(result.graph)
    if result.node_data is None:
        made.add_nodes_from(result.nodes)
    else:
        made.add_nodes_from(zip(result.nodes, result.node_data, strict=True))
    named = result.nodes.__getitem__
    ends: list[Iterable[Any]] = [
        map(named, a.tolist()) for a in (result.sources, result.targets)
    ]
    if result.edge_keys is not None:
        ends.append(result.edge_keys)
    made.add_edges_from(zip(*ends, _edge_data(result), strict=True))
    return made


def _edge_data(graph: NetworkXGraph) -> list[dict[Any, Any]]:
    if graph.edge_data is not None:
        return graph.edge_data
    data: list[dict[Any, Any]] = [{} for _ in range(graph.number_of_edges())]
    for attribute, weights in graph.weights.items():
        for entry, value in zip(data, weights.values.tolist(), strict=True):
            entry[attribute] = value
    return data

"""The graph type of this backend, which NetworkX passes to its functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass

__all__ = ["NetworkXGraph", "Weights"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Weights:
    """One attribute of all edges.

    Attributes
    ----------
    values : ndarray of shape (E_given,)
        int64 if all are integers, else float64.
    is_mixed : bool
        Whether values are float64, but not all were Python floats: the type of a sum in
        NetworkX then depends on its terms.
    """

    values: Array
    is_mixed: bool = False

    @property
    def are_integers(self) -> bool:
        """Whether all values are integers."""
        return self.values.dtype.kind == "i"

    def finite(self, attribute: Any) -> Array:
        """Return the values in float64; decline those that are infinite or negative."""
        values = self.values.astype(np.float64)
        if not (np.isfinite(values) & (values >= 0)).all():
            what = f"values of {attribute!r} that are infinite or < 0"
            raise NotImplementedError(what)
        return values


def _gone() -> None:
    """Return None: this replaces the weak reference to the original in copies."""


class NetworkXGraph:
    """Nodes in NetworkX's order, edges as arrays, and the requested attributes.

    `featgraph.networkx.convert_from_nx` makes one, and NetworkX caches it in
    ``G.__networkx_cache__`` until G changes. `from_graph` wraps a featgraph graph,
    which NetworkX's functions then accept without a conversion.

    Parameters
    ----------
    nodes : list
        ``nodes[v]`` is the node of vertex v.
    sources, targets : ndarray of int32, shape (E_given,)
        Edges; an undirected edge is listed once.
    directed, multigraph : bool
        Kind of the NetworkX graph.

    Attributes
    ----------
    nodes : list
    sources, targets : ndarray of int32
    weights : dict of str to Weights
        By attribute; a missing attribute is 1 for all edges.
    graph : dict
        Attributes of the graph.
    node_data, edge_data : list of dict, or None
        All attributes for `convert_to_nx`, if requested.
    edge_keys : list or None
        Keys of a multigraph's edges for `convert_to_nx`, if requested.
    rows : tuple of ndarray
        Offsets (V + 1,) and neighbors, in the order of NetworkX's dictionaries:
        undirected edges at both ends, repeated edges once.
    original : callable
        Returns the converted graph, or None if it was deleted; None itself for a graph
        of featgraph.
    """

    __networkx_backend__ = "featgraph"

    def __init__(
        self,
        nodes: list[Hashable],
        sources: Array,
        targets: Array,
        *,
        directed: bool,
        multigraph: bool = False,
    ) -> None:
        self.__networkx_cache__: dict[str, Any] = {}
        self.nodes = nodes
        self.sources, self.targets = sources, targets
        self.weights: dict[str, Weights] = {}
        self.graph: dict[Any, Any] = {}
        self.node_data: list[dict[Any, Any]] | None = None
        self.edge_data: list[dict[Any, Any]] | None = None
        self.edge_keys: list[Hashable] | None = None
        self.rows: tuple[Array, Array] | None = None
        self.original: Callable[[], Any] | None = None
        self._reversed: NetworkXGraph | None = None
        self._directed, self._multigraph = directed, multigraph

    @classmethod
    def from_graph(cls, graph: fg.Graph, *, weight: str = "weight") -> NetworkXGraph:
        """Wrap a featgraph graph; nodes are its vertex names, or 0..V-1.

        Parameters
        ----------
        graph : Graph
            Of one that changes, the living vertices and edges as they are now.
        weight : str, optional
            Name of the attribute for its weights, if it has any.
        """
        graph = graph.freeze() if isinstance(graph, fg.DynamicGraph) else graph
        names = graph.vertex_names
        nodes = list(range(graph.vertex_count) if names is None else names)
        if isinstance(names, np.ndarray):
            nodes = names.tolist()
        sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
        directed = graph.directed
        low, high = sources, targets
        if not directed:
            low, high = np.minimum(low, high), np.maximum(low, high)
        # Both ends are below 2**31: one int64 has the pair, and sorts like it.
        pairs = low.astype(np.int64) << 32 | high
        repeats = bool(np.unique(pairs).size < pairs.size)
        made = cls(nodes, sources, targets, directed=directed, multigraph=repeats)
        if graph.weights is not None:
            is_integer = graph.weights.dtype.kind in "iu"
            values = graph.weights.astype(np.int64 if is_integer else np.float64)
            made.weights[weight] = Weights(values)
        return made

    def __getstate__(self) -> dict[str, Any]:
        # A weak reference cannot be pickled or copied.
        return self.__dict__ | {"original": self.original and _gone}

    def __repr__(self) -> str:
        kind = "directed" if self._directed else "undirected"
        return f"<NetworkXGraph: {len(self)} nodes, {self.sources.size} edges, {kind}>"

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.nodes)

    def __contains__(self, node: object) -> bool:
        try:
            return node in self.index
        except TypeError:  # not hashable
            return False

    def is_directed(self) -> bool:
        """Return whether edges have a direction."""
        return self._directed

    def is_multigraph(self) -> bool:
        """Return whether edges may repeat."""
        return self._multigraph

    def number_of_nodes(self) -> int:
        """Return V."""
        return len(self.nodes)

    def number_of_edges(self) -> int:
        """Return the number of given edges; undirected ones count once."""
        return int(self.sources.size)

    @cached_property
    def index(self) -> dict[Hashable, int]:
        """Node -> vertex; built at the first use."""
        return dict(zip(self.nodes, range(len(self.nodes)), strict=True))

    @property
    def neighbors(self) -> tuple[Array, Array]:
        """`rows`; for a wrapped featgraph graph, its rows of out-edges (CSR)."""
        if self.rows is None:
            out = self.topology.out_edges
            self.rows = np.asarray(out.row_offsets), np.asarray(out.column_indices)
        return self.rows

    @property
    def reversed(self) -> NetworkXGraph:
        """The graph with all edges reversed; the same graph if it is undirected.

        Rows list predecessors, in the order of NetworkX's dictionaries, which are read
        from the converted graph at the first use.

        Raises
        ------
        NotImplementedError
            If the converted graph was deleted.
        """
        if not self._directed:
            return self
        if self._reversed is None:
            self._reversed = self._turned()
        return self._reversed

    def _turned(self) -> NetworkXGraph:
        """Return the graph with all edges reversed, and rows of predecessors."""
        offsets, neighbors = self._predecessors()
        sources, targets, count = self.targets, self.sources, self.sources.size
        order = np.arange(count)
        if neighbors.size == count:
            # No edge is repeated: edges are in the order of rows, like converted ones.
            rows = np.repeat(np.arange(len(self)), np.diff(offsets))
            key = sources.astype(np.int64) << 32 | targets
            by_key = np.argsort(key, kind="stable")
            wanted = rows.astype(np.int64) << 32 | neighbors
            order = by_key[np.searchsorted(key, wanted, sorter=by_key)]
        made = NetworkXGraph(
            self.nodes, sources[order], targets[order],
            directed=True, multigraph=self._multigraph,
        )  # fmt: skip
        made.rows, made.index = (offsets, neighbors), self.index
        made.weights = {
            name: Weights(held.values[order], held.is_mixed)
            for name, held in self.weights.items()
        }
        return made

    def _predecessors(self) -> tuple[Array, Array]:
        """Return offsets and predecessors, in the order of NetworkX's dictionaries."""
        if self.original is None:
            into = self.topology.in_edges
            return np.asarray(into.row_offsets), np.asarray(into.column_indices)
        graph = self.original()
        if graph is None:
            raise NotImplementedError("the graph that was converted is gone")
        before = graph.pred
        rows = [before[node] for node in self.nodes]
        degrees = np.fromiter(map(len, rows), np.int64, len(rows))
        ends = map(self.index.__getitem__, chain.from_iterable(rows))
        neighbors = np.fromiter(ends, np.int32, int(degrees.sum()))
        return np.concatenate([[0], np.cumsum(degrees)]), neighbors

    @cached_property
    def topology(self) -> fg.Graph:
        """The featgraph graph without weights, built at the first use; V > 0."""
        return fg.Graph.from_edges(
            self.sources,
            self.targets,
            vertex_count=len(self.nodes),
            directed=self._directed,
        )

    def weights_of(self, attribute: str | None) -> Weights | None:
        """Return an edge attribute; None if all edges have weight one."""
        return None if attribute is None else self.weights.get(attribute)

    def named(self, vertices: Array) -> list[Hashable]:
        """Return the nodes of vertices."""
        return list(map(self.nodes.__getitem__, vertices.tolist()))

    def column(self, values: Mapping[Hashable, Any]) -> Array:
        """Return the value of each node, or zero, as float64 of shape (V,)."""
        value_of = values.get
        return np.array([value_of(node, 0) for node in self.nodes], np.float64)

    def by_node(self, values: Array) -> dict[Hashable, Any]:
        """Return a dict of node -> Python number, in the order of nodes."""
        return dict(zip(self.nodes, values.tolist(), strict=True))

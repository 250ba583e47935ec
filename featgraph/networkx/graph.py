"""The graph that NetworkX hands to the functions of this backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.base.dataclass import dataclass

__all__ = ["NetworkXGraph", "Weights"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Weights:
    """One attribute of all edges.

    Attributes
    ----------
    values : ndarray of shape (E_given,)
        int64 where all are integers, else float64.
    is_mixed : bool
        Whether it is float64, and not all values were Python floats: then the type of
        a sum in NetworkX depends on what is added up.
    """

    values: Array
    is_mixed: bool = False


def _gone() -> None:
    """Stand for the graph that was converted, where it is not to be had."""


class NetworkXGraph:
    """Nodes in NetworkX's order, edges as arrays, and what attributes were asked for.

    It is what `featgraph.networkx.convert_from_nx` makes, and what NetworkX keeps in
    ``G.__networkx_cache__`` until G is changed. `from_graph` makes one of a featgraph
    graph: NetworkX's functions take it without a conversion.

    Parameters
    ----------
    nodes : list
        Vertex v is ``nodes[v]``.
    sources, targets : ndarray of int32, shape (E_given,)
        An undirected edge stands once.
    directed, multigraph : bool
        As of the NetworkX graph.

    Attributes
    ----------
    nodes : list
    sources, targets : ndarray of int32
    weights : dict of str to Weights
        By attribute; a missing one weighs 1 everywhere.
    graph : dict
        Attributes of the graph.
    node_data, edge_data : list of dict, or None
        All attributes, where they were asked for; for `convert_to_nx`.
    edge_keys : list or None
        Keys of a multigraph's edges, likewise.
    rows : tuple of ndarray
        Offsets (V + 1,) and neighbors, as the rows of NetworkX's dictionaries have
        them: in their order, undirected edges at both ends, repeats once.
    original : callable
        Returns the graph that was converted, or None where it is gone; it is None
        itself for a graph of featgraph.
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
        self._index: dict[Hashable, int] | None = None
        self._topology: fg.Graph | None = None

    @classmethod
    def from_graph(cls, graph: fg.Graph, *, weight: str = "weight") -> NetworkXGraph:
        """Wrap a featgraph graph; nodes are its vertex names, or 0..V-1.

        Parameters
        ----------
        graph : Graph
        weight : str, optional
            The attribute that its weights are, if it has any.
        """
        names = graph.vertex_names
        nodes = list(range(graph.vertex_count) if names is None else names)
        if isinstance(names, np.ndarray):
            nodes = names.tolist()
        sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
        directed = graph.directed
        low, high = sources, targets
        if not directed:
            low, high = np.minimum(low, high), np.maximum(low, high)
        pairs = low.astype(np.int64) << 32 | high
        repeats = bool(np.unique(pairs).size < pairs.size)
        made = cls(nodes, sources, targets, directed=directed, multigraph=repeats)
        if graph.weights is not None:
            is_integer = graph.weights.dtype.kind in "iu"
            values = graph.weights.astype(np.int64 if is_integer else np.float64)
            made.weights[weight] = Weights(values)
        return made

    def __getstate__(self) -> dict[str, Any]:
        # A weak reference cannot be pickled, nor copied with what it refers to.
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
        """Return how many edges were given; undirected ones count once."""
        return int(self.sources.size)

    @property
    def index(self) -> dict[Hashable, int]:
        """From node to vertex; built when first asked for."""
        if self._index is None:
            self._index = dict(zip(self.nodes, range(len(self.nodes)), strict=True))
        return self._index

    @property
    def neighbors(self) -> tuple[Array, Array]:
        """`rows`, or those of the topology for a graph of featgraph."""
        if self.rows is None:
            out = self.topology.out_edges
            self.rows = np.asarray(out.row_offsets), np.asarray(out.column_indices)
        return self.rows

    @property
    def reversed(self) -> NetworkXGraph:
        """The same with all edges turned round; itself if it is undirected.

        Rows are those of the predecessors, which are in an order of their own. They are
        read of the graph that was converted, when they are first asked for.

        Raises
        ------
        NotImplementedError
            If that graph is gone.
        """
        if not self._directed:
            return self
        if self._reversed is None:
            self._reversed = self._turned()
        return self._reversed

    def _turned(self) -> NetworkXGraph:
        offsets, neighbors = self._predecessors()
        sources, targets, count = self.targets, self.sources, self.sources.size
        order = np.arange(count)
        if neighbors.size == count:
            # No edge repeats: edges in the order of the rows, as those converted are.
            rows = np.repeat(np.arange(len(self)), np.diff(offsets))
            key = sources.astype(np.int64) << 32 | targets
            by_key = np.argsort(key, kind="stable")
            wanted = rows.astype(np.int64) << 32 | neighbors
            order = by_key[np.searchsorted(key, wanted, sorter=by_key)]
        made = NetworkXGraph(
            self.nodes, sources[order], targets[order],
            directed=True, multigraph=self._multigraph,
        )  # fmt: skip
        made.rows, made._index = (offsets, neighbors), self._index
        made.weights = {
            name: Weights(held.values[order], held.is_mixed)
            for name, held in self.weights.items()
        }
        return made

    def _predecessors(self) -> tuple[Array, Array]:
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

    @property
    def topology(self) -> fg.Graph:
        """The featgraph graph without weights; built when first asked for, V > 0."""
        if self._topology is None:
            self._topology = fg.Graph.from_edges(
                self.sources,
                self.targets,
                vertex_count=len(self.nodes),
                directed=self._directed,
            )
        return self._topology

    def weights_of(self, attribute: str | None) -> Weights | None:
        """Return an edge attribute, or None where all edges weigh one."""
        return None if attribute is None else self.weights.get(attribute)

    def named(self, vertices: Array) -> list[Hashable]:
        """Return the nodes of vertices."""
        return list(map(self.nodes.__getitem__, vertices.tolist()))

    def column(self, values: Mapping[Hashable, Any]) -> Array:
        """Return (V,) in float64: the value given for each node, or zero."""
        given = values.get
        return np.array([given(node, 0) for node in self.nodes], np.float64)

    def by_node(self, values: Array) -> dict[Hashable, Any]:
        """Return {node: value} in the order of the nodes, of Python numbers."""
        return dict(zip(self.nodes, values.tolist(), strict=True))

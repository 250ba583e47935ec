"""The public class `Graph`: immutable, on the host or on a GPU.

Its constructors check a caller's edges (`building.edges`, `convert`), or build a
distributed graph with other ranks. Attributes are in the base class, `views.structure`.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError
from featgraph.base.interrupts import import_whole
from featgraph.graph import convert
from featgraph.graph.building.edges import edge_list
from featgraph.graph.partition.choose import (
    choose_partition,
    distributed_builders,
    partition_request,
)
from featgraph.graph.partition.shard import Shard, make_shards
from featgraph.graph.views.structure import Structure, out_columns, require_fixed

__all__ = ["Graph"]


class Graph(Structure):
    """A directed or undirected graph with V vertices; multi-edges and loops allowed.

    Graphs are made by `from_edges`, `from_networkx`, `from_scipy`, `from_pandas`, a
    reader or a generator. All returned arrays are read-only. Adjacencies and edge maps
    are built at the first use, and cached.

    An undirected edge u, v that is no self-loop counts as two directed edges: the edge
    as given, u -> v, and its *twin*, v -> u. A self-loop is its own twin.

    An *edge id* is the slot of the edge in `in_edges` (the CSC).

    Edges given on a GPU are checked, sorted and stored there. An attribute is copied to
    the host, as a NumPy array, at its first use.

    Notes
    -----
    An adjacency is built by a counting sort on the host or a radix sort on a GPU, in
    O(V + E). The sort is stable: slots of a row keep the given order. All arrays of a
    directed graph together take at most three times the memory of its edge list, plus
    offsets.
    """

    __slots__ = ()

    @classmethod
    def from_edges(
        cls,
        sources: object,
        targets: object = None,
        *,
        weights: object = None,
        vertex_count: int | None = None,
        directed: bool = True,
        duplicates: str = "keep",
        names: bool = False,
        target: str | None = None,
        sides: tuple[int, ...] | None = None,
        partition: str | None = None,
        order: str = "given",
        along: str = "both",
        ranks: int | None = None,
    ) -> Graph:
        """Make a graph from two arrays of vertex ids.

        Parameters
        ----------
        sources, targets : array_like of integers, shape (E_given,)
            Lists, NumPy arrays, or objects with ``__array__``, ``__dlpack__`` or
            ``__cuda_array_interface__``. They are copied, on a GPU if both are there,
            and never modified.
        weights : array_like, shape (E_given,), optional
            float16 to float64 or integers, in their dtype; infinities, but no NaN.
        vertex_count : int, optional
            Default: the highest id plus one.
        directed : bool
            False: each given edge also has a twin in the opposite direction.
        duplicates : {"keep", "sum", "min", "max", "first", "last", "error"}
            Treatment of repeated edges. "keep": keep them as multi-edges. The others
            combine the weights into one edge at the place of the first (without weights
            they all drop repeats); integers are summed with 64 bits. In an undirected
            graph, (u, v) and (v, u) are the same edge.
        names : bool
            Whether ids are names: integers of any sign, strings or other hashables.
            Vertices are numbered on the host; `vertex_names` has the names.
        target : {"auto", "cpu", "cuda"}, optional
            The device that checks ids, stores edges and builds adjacencies. Default:
            the device of sources and targets. "auto" selects a GPU, if available, for
            many edges. The graph is the same.
        sides : tuple of int, optional
            The number of vertices of each side, such as users and items, by increasing
            id: see `from_biadjacency`. Each edge joins two sides, in either direction.
            Programs run on one side at a time (``.on``), and each side is divided
            equally among ranks.
        partition : {None, "edges"}, optional
            "edges": a collective call, in which each rank passes any part of the edges
            and stores its part of the graph. Given order is rank by rank. Requires
            ``fg.distributed.init()``, no `names`, and ``duplicates="keep"``.
        order, along, ranks : optional
            Options of a distributed graph: see `read_graph`.

        Returns
        -------
        Graph
            With `partition`, a `DistributedGraph`; on a single rank, a `Graph`.

        Raises
        ------
        DeviceError, PlanError
            If the target is not available, or unknown.
        GraphInputError
            If ids are not integers, negative or >= vertex_count; arrays have different
            lengths or are not flat; weights are NaN or not real numbers; there is no
            vertex; an edge is within a side; or an edge is repeated with
            duplicates="error".

        Examples
        --------
        >>> Graph.from_edges([0, 0, 1], [1, 2, 2], directed=False)
        Graph(3 vertices, 6 edges (3 given), undirected)
        """
        if targets is None:
            raise GraphInputError(
                "edges are two arrays, of sources and of targets",
                where="targets=",
                got=f"{shown(sources)}, and no targets",
                fix="for a list of pairs: Graph.from_edges(*zip(*edges))",
            )
        options: dict[str, Any] = {
            "weights": weights,
            "vertex_count": vertex_count,
            "directed": directed,
            "duplicates": duplicates,
            "names": names,
            "target": target,
            "sides": sides,
        }
        request = partition_request(partition, order, along, ranks)
        if request is not None:
            made = distributed_builders[0].of_edges(
                request, sources, targets, **options
            )
            if made is not None:
                return made  # type: ignore[no-any-return]
        return cls(edge_list(sources, targets, **options))

    @classmethod
    def from_networkx(cls, source: Any, *, weight: str | None = None) -> Graph:
        """Make a graph from a networkx graph of any kind, edges in its order.

        Parameters
        ----------
        source : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
            Nodes 0..V-1 (in any order) are the vertices of that number; other nodes
            are numbered in order and kept in `vertex_names`.
        weight : str, optional
            Edge attribute; edges without it weigh 1, as in networkx.

        Raises
        ------
        GraphInputError
            If there are no nodes, `source` is not a networkx graph, or an attribute is
            not a number.
        """
        return cls(convert.from_networkx(source, weight))

    @classmethod
    def from_scipy(cls, matrix: Any, *, directed: bool = True) -> Graph:
        """Make a graph with an edge i -> j for each stored entry [i, j], its weight.

        Explicit zeros are edges, and repeated entries (COO) multi-edges. A matrix of
        bools has no weights.

        Parameters
        ----------
        matrix : scipy.sparse array or matrix, shape (V, V)
        directed : bool
            False: the matrix must be symmetric; the given edges are its upper triangle.

        Raises
        ------
        GraphInputError
            If the matrix is rectangular, malformed or not symmetric, or has weights
            that `from_edges` refuses.
        """
        return cls(convert.from_scipy(matrix, directed))

    @classmethod
    def from_biadjacency(
        cls,
        matrix: Any,
        *,
        target: str | None = None,
        partition: str | None = None,
        along: str = "both",
        ranks: int | None = None,
    ) -> Graph:
        """Make an undirected graph of two sides from an (M, N) matrix.

        Row i is vertex i, column j is vertex ``M + j``, and each stored entry is the
        weight of an edge. Explicit zeros are edges, and repeated entries (COO)
        multi-edges. A matrix of bools has no weights.

        Parameters
        ----------
        matrix : scipy.sparse array or matrix, shape (M, N)
        target : {None, "auto", "cpu", "cuda"}, optional
            As for `from_edges`. A GPU expands the pointers of CSR and CSC.
        partition : {None, "edges"}, optional
            "edges": a collective call, in which each rank passes a matrix of the whole
            shape with any part of the entries, and stores its part of the graph: a
            range of each side. See `from_edges`.
        along, ranks : optional
            Options of a distributed graph: see `read_graph`.

        Returns
        -------
        Graph
            With `partition`, a `DistributedGraph`; on a single rank, a `Graph`.

        Raises
        ------
        DeviceError, PlanError
            If the target is not available, or unknown.
        GraphInputError
            If the matrix is malformed, has no rows or no columns, or has weights that
            `from_edges` refuses.

        Examples
        --------
        >>> import scipy.sparse
        >>> Graph.from_biadjacency(scipy.sparse.csr_array([[5.0, 0.0, 3.0]])).sides
        (1, 3)
        """
        request = partition_request(partition, "given", along, ranks)
        if request is not None:
            made = distributed_builders[0].of_matrix(request, matrix, target)
            if made is not None:
                return made  # type: ignore[no-any-return]
        return cls(convert.from_biadjacency(matrix, target))

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        source: Hashable = "source",
        target: Hashable = "target",
        *,
        weight: Hashable = None,
        vertex_count: int | None = None,
        directed: bool = True,
        duplicates: str = "keep",
        names: bool = False,
    ) -> Graph:
        """Make a graph from columns of a data frame (pandas, polars, ...).

        Integer columns are vertex ids unless names=True; strings and other hashables
        are names, numbered in order of appearance. Other parameters are as for
        `from_edges`.

        Raises
        ------
        GraphInputError
            If a column is missing, or `from_edges` raises it.
        """
        return cls(
            convert.from_frame(
                frame,
                source,
                target,
                weight,
                names=names,
                vertex_count=vertex_count,
                directed=directed,
                duplicates=duplicates,
            )
        )

    def partition(
        self,
        order: object = "given",
        parts: int | None = None,
        *,
        cuts: object = None,
        balance: object = None,
        along: str = "in",
    ) -> list[Shard]:
        """Cut the graph into shards: ranges of vertices, with all edges into them.

        Parameters
        ----------
        order : {"given", "spread", "locality", "metis"} or array_like, shape (V,)
            The order that is cut into ranges. "given": by vertex id. "spread": high
            degrees are spread evenly over the ranges. "locality": breadth-first, for
            graphs of large diameter, such as meshes and road networks. "metis": the
            parts of METIS (the extra ``featgraph[metis]``). An array: the vertex at
            each place.
        parts : int
            P, the number of shards. With more than ``V / 32``, some have no vertices.
        cuts : array_like of integers, shape (P + 1,), optional
            Instead of `parts`: range r has the places ``cuts[r]`` to ``cuts[r + 1]``.
        balance : tuple of 3 float, optional
            Weights of an in-edge, a vertex and a ghost. Cuts are chosen at multiples of
            32, so that all parts have about the same weight. Default: (1, 3, 0). Each
            of a graph's `sides` is cut separately, at any vertex, and a part has a
            range of each, except with order="metis". Ghosts then have no weight, and by
            default only in-edges count, which are equal within a few percent.
        along : {"in", "both"}, optional
            "both": shards also have all edges out of their vertices, which are the
            twins in an undirected graph.

        Returns
        -------
        list of Shard
            In the order of ranks.

        Raises
        ------
        GraphInputError
            If `order` is unknown or not a permutation; `cuts` are invalid or do not fit
            the graph; or `parts`, `balance` or `along` is invalid.
        FeatGraphError
            If ``order="metis"`` and pymetis is not installed.

        Notes
        -----
        O(V + E) time, about 16 times as much if ghosts have a weight.

        Examples
        --------
        >>> ring = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
        >>> ring.partition(cuts=[0, 2, 4])[1].numbers
        array([2, 3, 1], dtype=int32)
        """
        require_fixed(self, "Graph.partition")
        partition = choose_partition(self, order, parts, cuts=cuts, balance=balance)
        if not isinstance(along, str) or along not in {"in", "both"}:
            raise GraphInputError(
                "shards are cut along in-edges, or along all edges",
                where="along=",
                got=shown(along),
                expected="'in' or 'both'",
            )
        return make_shards(self, partition, along)

    def strong_components(
        self, labels: Any = None, *, fewer_threads: int | None = None
    ) -> NDArray[np.int32] | None:
        """Label each vertex with the smallest vertex of its strong component.

        One thread of the host runs a depth-first search, in O(V + E). For an undirected
        graph, it finds the connected components by joining the ends of edges.

        Parameters
        ----------
        labels : array_like of int, optional
            Shape (V,): labels of complete components that are known, and -1 elsewhere.
        fewer_threads : int, optional
            Return None if CPU kernels run on this number of threads or more.

        Returns
        -------
        ndarray of int32, shape (V,)
            -1 for dead vertices.

        Raises
        ------
        GraphInputError
            If the graph is on ranks, or labels have another shape.
        StateError
            If another thread applies a batch to a dynamic graph.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.Graph.from_edges([3, 2, 1, 1, 4], [2, 1, 3, 0, 1])
        >>> graph.strong_components().tolist()
        [0, 1, 1, 1, 4]
        """
        where = "Graph.strong_components"
        if self.ranks is not None:
            raise GraphInputError(
                "no rank has the whole graph",
                where=where,
                got=repr(self),
                fix="use featgraph.algorithms.strongly_connected_components",
            )
        changing = self.changing
        with nullcontext() if changing is None else changing.turns.read(where):
            found = np.full(self.vertex_count, -1, np.int32)
            if labels is not None:
                known = np.asarray(labels)
                if known.shape != found.shape or known.dtype.kind not in "iu":
                    raise GraphInputError(
                        "a label for each vertex",
                        where=f"{where}, labels=",
                        got=f"{known.dtype} of shape {known.shape}",
                        expected=f"integers of shape {found.shape}",
                    )
                found[:] = known
            if fewer_threads is not None:
                threads = import_whole("numba").get_num_threads()
                if threads >= fewer_threads:
                    return None
            if changing is not None:  # in-edges yield the same components
                pool = changing.in_rows.on_host()
                rows = pool.starts, pool.stops, pool.ends
            else:
                csr = out_columns(self)
                rows = csr.row_offsets[:-1], csr.row_offsets[1:], csr.column_indices
            search = import_whole("featgraph.graph.building.kernels")
            joins = not self.directed and labels is None
            label = search.label_components if joins else search.label_strong_components
            label(*rows, found)
            if self.living is not None:
                found[~self.living] = -1
            return found

    def to_networkx(self) -> Any:
        """Return a networkx graph; nodes are names, and "weight" the edge attribute.

        A Graph or DiGraph, or the Multi variant if an edge is repeated.
        """
        return convert.to_networkx(self)

    def to_scipy(self) -> Any:
        """Return the (V, V) adjacency as a scipy.sparse.csr_array, [u, v] for u -> v.

        Multi-edges are *summed*, as in SciPy; without weights, an entry counts edges
        (float64). Undirected edges are stored in both directions, self-loops once.
        """
        return convert.to_scipy(self)

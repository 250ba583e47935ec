"""Base class of graphs: counts, adjacencies and edge maps.

`Structure` has the attributes of every kind of graph; arrays are built at the first use
and cached until the stamp of the version changes. The functions below the class are for
the package itself. Those with `gpu_` in the name return arrays on the GPU, and need
one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from featgraph.base.arguments import require_flag
from featgraph.base.errors import GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.cuda.values import DeviceValues, Rows, host_values, in_pieces, taken
from featgraph.graph.building.edges import Adjacency, EdgeList
from featgraph.graph.building.names import VertexNames, find_vertex
from featgraph.graph.building.oriented import Oriented, orient
from featgraph.graph.inputs.numbers import converted, host_array
from featgraph.graph.views.view import Stamp, Stamps

if TYPE_CHECKING:
    from featgraph.graph.building.gpu_edges import GpuEdges
    from featgraph.graph.building.gpu_oriented import GpuOriented

__all__ = [
    "Structure",
    "collect_by_id",
    "edge_rows",
    "gpu_edges",
    "gpu_oriented",
    "gpu_weights",
    "has_degrees_of_whole",
    "in_offsets",
    "incident_columns",
    "is_built_on_gpu",
    "is_given_on_gpu",
    "is_in_given_order",
    "out_columns",
    "owns",
    "require_fixed",
    "set_degrees",
    "stored_count",
    "structure_digest",
    "with_out_edges",
]


_T = TypeVar("_T")


class Structure:
    """Base class of `Graph` and other graphs: their read-only attributes."""

    __slots__ = ("__weakref__", "_edges", "_found", "stamps")

    _edges: EdgeList
    #: The stamp of a version of the graph, and the arrays built for this version.
    _found: tuple[Stamp, dict[str, Any]]
    #: Replaced by another object when the graph changes: see `GraphView`.
    stamps: Stamps
    #: `RunArrays` of a graph that changes in batches; None for other graphs.
    changing: Any = None
    #: Collective operations with other ranks; None on one rank.
    ranks: Any = None

    def __init__(self, edges: EdgeList) -> None:
        if not isinstance(edges, EdgeList):
            raise GraphInputError(
                "Graph is not made by calling it",
                got=type(edges).__name__,
                fix="Graph.from_edges(sources, targets), from_networkx, from_scipy or "
                "from_pandas",
            )
        self._edges = edges
        self._begin(edges.known())

    def _begin(self, found: dict[str, Any]) -> None:
        """Initialize the stamps, and the cache with known arrays."""
        self.stamps = Stamps()
        self._found = self.stamps.version, found

    @property
    def _cache(self) -> dict[str, Any]:
        """Arrays and other values derived from this version of the graph, by name.

        Entries are added at the first use, except for those known with the edge list.
        Two threads may both build an entry; they store equal arrays.
        """
        version, found = self._found
        if version is not self.stamps.version:
            found = self._edges.known()
            self._found = self.stamps.version, found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls EdgeList, whose constructor makes the arrays read-only again.
        edges = self._edges
        # Host arrays: the unpickling process may have no GPU.
        arrays = edges.sources, edges.targets, edges.weights
        more = edges.vertex_count, edges.directed, edges.names, edges.sides
        return _rebuild, (type(self), *arrays, *more)

    def __repr__(self) -> str:
        parts = [f"{self.vertex_count} vertices", f"{self.edge_count} edges"]
        if not self.directed:
            parts[1] += f" ({self.given_edge_count} given)"
        parts.append("directed" if self.directed else "undirected")
        if self._edges.weights_dtype is not None:
            parts.append(f"{self._edges.weights_dtype} weights")
        if self._edges.names is not None:
            parts.append("named")
        return f"Graph({', '.join(parts)})"

    @property
    def part(self) -> Any:
        """The graph whose rows this rank's kernels sweep: the graph itself."""
        return self

    @property
    def vertex_numbers(self) -> NDArray[np.int32]:
        """The number of each vertex in the whole graph, int32, (V,)."""
        return _cached(
            self, "vertex_numbers", lambda: np.arange(self.vertex_count, dtype=np.int32)
        )

    def local_rows(self, values: Any) -> Any:
        """Return the rows of vertex values that kernels of this rank use: all rows."""
        return values

    def collect_vertex_values(self, stored: Any) -> Any:
        """Gather values of all vertices from all ranks; one rank returns `stored`."""
        return stored

    @property
    def own_vertices(self) -> NDArray[np.int64]:
        """Numbers of the vertices that this rank owns: all of them, int64."""
        return np.arange(self.vertex_count)

    @property
    def own_edges(self) -> NDArray[Any]:
        """Rows in given order of the edges that this rank owns, in kernel order."""
        return self.given_index

    @property
    def vertex_count(self) -> int:
        """V, the number of ids; in a dynamic graph, ids of dead vertices included."""
        return self._edges.vertex_count

    @property
    def living(self) -> NDArray[np.bool_] | None:
        """Mask of ids whose vertex is not dead, (V,); None if all are alive.

        It is replaced by another object when vertices are inserted or deleted.
        """
        return None

    @property
    def living_count(self) -> int:
        """The number of vertices that are not dead; V if none was ever deleted."""
        return self._edges.vertex_count

    @property
    def given_edge_count(self) -> int:
        """E_given, the number of edges given, after `duplicates` was applied."""
        return self._edges.given_count

    @property
    def edge_count(self) -> int:
        """E, the number of directed edges: twins of an undirected graph count too."""
        return self._edges.edge_count

    @property
    def directed(self) -> bool:
        """Whether edges are directed; if not, every edge has a twin."""
        return self._edges.directed

    @property
    def sides(self) -> tuple[int, ...] | None:
        """The number of vertices of each side; None without sides.

        Each edge joins two sides.
        """
        return self._edges.sides

    @property
    def sources(self) -> NDArray[np.int32]:
        """Sources in given order, (E_given,)."""
        return self._edges.sources

    @property
    def targets(self) -> NDArray[np.int32]:
        """Targets in given order, (E_given,)."""
        return self._edges.targets

    @property
    def self_loops(self) -> NDArray[np.int64]:
        """Rows in given order of the edges from a vertex to itself."""
        return _cached(
            self, "self_loops", lambda: np.flatnonzero(self.sources == self.targets)
        )

    @property
    def weights(self) -> NDArray[Any] | None:
        """Weights in given order, (E_given,), float or integer; None without."""
        return self._edges.weights

    def weights_as(self, dtype: DTypeLike) -> NDArray[Any] | None:
        """Return the weights in another dtype: the same read-only array each time.

        With ``fg.edge_property(graph.weights_as("float32"), copy=False)``, all States
        that do not write the property share one copy on each device.

        Parameters
        ----------
        dtype : dtype

        Returns
        -------
        ndarray or None
            In given order, (E_given,); None without weights.

        Raises
        ------
        GraphInputError
            If the dtype cannot represent a weight: a finite one becomes infinite, or a
            nonzero one zero.
        """
        weights, wanted = self.weights, np.dtype(dtype)
        if weights is None or weights.dtype == wanted:
            return weights
        casts: dict[str, NDArray[Any]] = self._cache.setdefault("casts", {})
        if wanted.name not in casts:
            cast = converted(weights, wanted, "weights")
            cast.flags.writeable = False
            casts[wanted.name] = cast
        return casts[wanted.name]

    @property
    def vertex_names(self) -> VertexNames | None:
        """Name of each vertex: ascending integers, a tuple, or None for 0..V-1."""
        return self._edges.names

    def vertex_index(self, name: object) -> int:
        """Return the vertex with this name, or this number if there are no names.

        Raises
        ------
        GraphInputError
            If no vertex has the name.
        """
        return find_vertex(self._edges.names, name, self.vertex_count, self._cache)

    @property
    def in_edges(self) -> Adjacency:
        """CSC: row v lists the sources of its in-edges; the slots are the edge ids."""

        def build() -> Adjacency:
            return _builder(self).build_in_edges(self._edges)  # type: ignore[no-any-return]

        return _cached(self, "in_edges", build)

    @property
    def out_edges(self) -> Adjacency:
        """CSR: row u lists the targets of its out-edges, with their edge ids.

        For an undirected graph, it shares the arrays of `in_edges`, and `edge_ids` is
        `twins`.
        """
        return _cached(self, "out_edges", lambda: _out_edges(self))

    @property
    def incident_edges(self) -> Adjacency:
        """Rows along all edges: row v lists their other ends, a self-loop once.

        For an undirected graph, this is `in_edges`; otherwise `edge_ids` are set.
        """
        if not self.directed:
            return self.in_edges
        return _cached(self, "incident_edges", lambda: _incident_edges(self))

    @property
    def given_index(self) -> NDArray[Any]:
        """Row in given order of each edge id, (E,); twin of i: given_edge_count + i."""
        edges, csc = self._edges, lambda: self.in_edges
        return _cached(
            self, "given_index", lambda: _builder(self).build_given_index(edges, csc)
        )

    @property
    def twins(self) -> NDArray[Any]:
        """Edge id of each edge's reverse, (E,); GraphInputError if directed."""
        if self.directed:
            raise GraphInputError(
                "a directed graph has no twins",
                got="directed=True",
                fix="make the graph with directed=False",
            )
        edges, csc = self._edges, lambda: self.in_edges
        return _cached(self, "twins", lambda: _builder(self).build_twins(edges, csc))

    def orient(self, target: object = "auto") -> None:
        """Orient the edges on a target, which checks that triangles are defined.

        Parameters
        ----------
        target : {"auto", "cpu", "cuda"}, optional
            The target of triangle functions.

        Raises
        ------
        GraphInputError
            If the graph is directed, or has parallel edges.
        """
        if not self.directed and self._edges.is_oriented_on_gpu:
            is_there = chosen_target(target) == "cuda"
            if is_there and not self._edges.on_gpu_oriented.is_repeated:
                return
        _ = self.oriented  # raises the error

    @property
    def oriented(self) -> Oriented:
        """The graph with edges from lower to higher (degree, id), on the host.

        GraphInputError if it is directed or has parallel edges.
        """
        return _cached(self, "oriented", lambda: orient(self))

    @property
    def in_degree(self) -> NDArray[Any]:
        """In-edges of each vertex, (V,), int32 (int64 where E needs it)."""
        return self._degree("in")

    @property
    def out_degree(self) -> NDArray[Any]:
        """Out-edges of each vertex, (V,), int32 (int64 where E needs it)."""
        return self._degree("out")

    def _degree(self, side: str) -> NDArray[Any]:
        key = f"{side}_degree" if self.directed else "degree"
        # Counted without an adjacency: out-degrees must not cause a CSR to be built,
        # which pull kernels do not need.
        return _cached(
            self, key, lambda: _builder(self).build_degree(self._edges, side)
        )

    @property
    def digest(self) -> str:
        """Hash of the structure: V, directed, and the edges in given order.

        It excludes weights and names, and is equal on all machines.
        """
        if "digest" not in self._cache:
            from featgraph.graph.building import digests  # loads Numba

            found = digests.text_of(self._edges.sum_ends())
            self._cache["digest"] = structure_digest(
                self.vertex_count, self.directed, found
            )
        return str(self._cache["digest"])

    @property
    def weights_digest(self) -> str:
        """Hash of the weights in given order and of their dtype; "" without."""
        if self._edges.weights_dtype is None:
            return ""
        if "weights_digest" not in self._cache:
            from featgraph.graph.building import digests  # loads Numba

            found = digests.text_of(self._edges.sum_weights())
            dtype = self._edges.weights_dtype
            self._cache["weights_digest"] = f"{dtype} {found}"
        return str(self._cache["weights_digest"])

    def expand_edge_values(self, values: object) -> NDArray[Any]:
        """Reorder values of given edges by edge id.

        Parameters
        ----------
        values : array_like, first axis E_given
            Twins get the same value. For undirected graphs, the first axis may be
            2 * E_given, with the value of the twin of edge i in row E_given + i (not
            read for self-loops).

        Returns
        -------
        ndarray, first axis E
            A new array of the same dtype.

        Raises
        ------
        GraphInputError
            If the first axis has another length.
        """
        array = host_array(values, "values")
        given = self.given_edge_count
        length = array.shape[0] if array.ndim else -1
        if length == given or (length == 2 * given and not self.directed):
            # Of E_given values, row given + i of a twin wraps around to row i.
            return taken(array, self.given_index)
        expected = f"first axis {given}, one entry for each given edge"
        if not self.directed:
            expected += (
                f", or {2 * given}, one for each direction (twin of i: {given} + i)"
            )
        raise GraphInputError(
            "edge values do not fit the graph",
            where="values",
            got=f"shape {array.shape}",
            expected=expected,
            fix="give the values in the order in which the edges were given",
        )

    def collect_edge_values(
        self, stored: object, per_direction: bool = False
    ) -> NDArray[Any]:
        """Reorder values by edge id back to given order.

        Parameters
        ----------
        stored : array_like, first axis E
            Values on the host or on the GPU; they are reordered on the GPU if it stores
            the edges.
        per_direction : bool
            For undirected graphs, whether to return the value of the twin of edge i as
            well, in row E_given + i (for a self-loop, the same value again).

        Returns
        -------
        ndarray, first axis E_given, or 2 * E_given with `per_direction`

        Raises
        ------
        GraphInputError
            If the first axis has another length, or `per_direction` is set for a
            directed graph.
        """
        # A view of a property (`program.view`) includes the rows of unused edge ids.
        has_unused = self.changing is not None and hasattr(type(stored), "order")
        on_gpu = _on_gpu(stored)
        if on_gpu is None and not isinstance(stored, DeviceValues):
            stored = host_array(stored, "stored")
        shape: tuple[int, ...] = tuple(stored.shape)  # type: ignore[attr-defined]
        count = stored_count(self) if has_unused else self.edge_count
        if not shape or shape[0] != count:
            raise GraphInputError(
                "values in edge-id order do not fit the graph",
                where="stored",
                got=f"shape {shape}",
                expected=f"first axis {count}, one entry for each edge id",
            )
        per_direction = require_flag("per_direction", per_direction)
        if per_direction and self.directed:
            raise GraphInputError(
                "a directed graph has one value for each given edge",
                where="per_direction",
                got=True,
                expected="False",
            )
        if has_unused:
            return collect_by_id(self, stored, per_direction)
        if on_gpu is not None and self._edges.is_built_on_gpu:
            return gpu_edges(self).in_given_order(on_gpu, per_direction)
        if on_gpu is not None and not isinstance(stored, DeviceValues):
            from featgraph.cuda.download import read  # imports the dialect

            stored = read(on_gpu)
        return _put_back(self, host_values(stored), per_direction)


def require_fixed(graph: Structure, where: str) -> None:
    """Raise GraphInputError if a graph is dynamic."""
    if getattr(graph, "changing", None) is not None:
        raise GraphInputError(
            "the graph changes in batches",
            where=where,
            got=repr(graph),
            expected="a graph that does not change",
            fix="give graph.freeze()",
        )


def _rebuild(kind: type[Structure], *fields: Any) -> Structure:
    return kind(EdgeList(*fields))


def structure_digest(vertex_count: int, directed: bool, edges: str) -> str:
    """Return the digest of a graph from the sums of its edges: see `digests`."""
    text = f"featgraph graph 2 {vertex_count} {directed} {edges}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def owns(graph: Structure, array: object) -> bool:
    """Whether an array is the weights of this rank's edges, or a cached cast of it."""
    part: Structure = graph.part
    casts = part._cache.get("casts", {})
    is_held: bool = part._edges.holds(array)
    return is_held or any(array is cast for cast in casts.values())


def is_in_given_order(graph: Structure) -> bool:
    """Whether given order is the order of edge ids."""

    def is_same() -> bool:
        if graph._edges.is_given_on_gpu:
            return gpu_edges(graph).is_in_given_order()
        order = graph.given_index
        return bool((order == np.arange(order.size)).all())

    return _cached(graph, "is_in_given_order", is_same)


def _cached(graph: Structure, name: str, make: Callable[[], _T]) -> _T:
    """Return an entry of `Structure._cache`, which `make` returns at the first use."""
    cache = graph._cache
    if name not in cache:
        cache[name] = make()
    found: _T = cache[name]
    return found


def _builder(graph: Structure) -> Any:
    """Return the module that builds a graph's arrays on the host."""
    if graph._edges.is_given_on_gpu:
        from featgraph.graph.building import fetch

        return fetch
    if graph._edges.is_few:
        from featgraph.graph.building import few

        return few
    from featgraph.graph.building import build  # loads Numba

    return build


def is_built_on_gpu(graph: Structure) -> bool:
    """Whether rows for a GPU are built on the GPU, rather than uploaded."""
    return graph._edges.is_built_on_gpu


def is_given_on_gpu(graph: Structure) -> bool:
    """Whether the edges of a graph were given on the GPU."""
    return graph._edges.is_given_on_gpu


def gpu_edges(graph: Structure) -> GpuEdges:
    """Return the edges of a graph on the GPU; needs one."""
    return graph._edges.on_gpu


def gpu_oriented(graph: Structure) -> GpuOriented:
    """Return the oriented edges of an undirected graph on the GPU; needs one."""
    return graph._edges.on_gpu_oriented


def gpu_weights(graph: Structure, array: object) -> Any:
    """Return the GPU's copy, by edge id, of a host array of weights.

    None unless the array is the weights of the graph, and the GPU stores them.
    """
    return graph._edges.there(array)


def edge_rows(graph: Structure) -> Rows:
    """Return the row in given order of each edge id, as a lazy `Rows`."""
    on_gpu = None
    if graph._edges.is_built_on_gpu:

        def on_gpu() -> Any:
            return gpu_edges(graph).given_index

    version, count = graph.stamps.version, stored_count(graph)
    if graph.changing is not None:  # given order changes with the version
        index = graph._cache.get("edge_rows")
        if index is None:
            given = graph.given_edge_count
            index = np.full(count, 2 * given, np.int64)
            lists = graph.changing.given_ids(not graph.directed)
            for turn, ids in reversed([*enumerate(lists)]):  # a loop is its own twin
                index[host_values(ids)] = np.arange(turn * given, (turn + 1) * given)
            graph._cache["edge_rows"] = index
        return Rows(version, count, lambda: index)
    return Rows(version, count, lambda: graph.given_index, on_gpu)


def collect_by_id(graph: Structure, values: Any, per_direction: bool) -> NDArray[Any]:
    """Return values by edge id of a graph that changes, on the host, in given order.

    Values on a GPU are reordered there. With `per_direction`, the twins' are behind
    them.
    """
    key, changing = f"given_ids_{per_direction}", graph.changing
    lists = _cached(graph, key, lambda: changing.given_ids(per_direction))
    on_gpu = _on_gpu(values)
    if on_gpu is None:
        held = host_values(values)
        made = [taken(held, host_values(ids)) for ids in lists]
    else:
        from featgraph.cuda.foreign import Foreign  # imports the dialect

        there, made = Foreign(on_gpu), []
        for ids in lists:
            read = partial(host_values, ids), partial(getattr, ids, "array")
            rows = Rows(None, ids.shape[0], *read)
            made.append(host_values(there.copied(np.dtype(on_gpu.dtype), rows)))
    return made[0] if len(made) == 1 else np.concatenate(made)


def stored_count(graph: Structure) -> int:
    """Return the length of edge properties, unused edge ids included."""
    changing = graph.changing
    return int(graph.part.edge_count if changing is None else changing.stored_count)


def _out_edges(graph: Structure) -> Adjacency:
    """Return the CSR with edge ids."""
    rows = out_columns(graph)
    if not graph.directed:
        return Adjacency(rows.row_offsets, rows.column_indices, graph.twins)
    ids = _builder(graph).build_out_ids(graph._edges, lambda: graph.in_edges, rows)
    return Adjacency(rows.row_offsets, rows.column_indices, ids)


def in_offsets(graph: Structure) -> NDArray[Any]:
    """Return the row offsets of in-edges, without building rows on the host."""
    if "in_edges" in graph._cache or not graph._edges.is_given_on_gpu:
        return graph.in_edges.row_offsets

    def fetched() -> NDArray[Any]:
        return host_values(DeviceValues(gpu_edges(graph).rows("in").offsets))

    return _cached(graph, "in_offsets", fetched)


def set_degrees(
    graph: Structure, in_degree: NDArray[Any], out_degree: NDArray[Any]
) -> None:
    """Set the degrees of a part's vertices to those in the whole graph."""
    cache = graph._cache
    cache["has_degrees_of_whole"] = True
    if graph.directed:
        cache["in_degree"], cache["out_degree"] = in_degree, out_degree
    else:
        cache["degree"] = in_degree


def has_degrees_of_whole(graph: Structure) -> bool:
    """Whether degrees are those in the whole graph, not those in the part."""
    return "has_degrees_of_whole" in graph._cache


def with_out_edges(graph: Structure, rows: Adjacency) -> Structure:
    """Return a graph whose rows of out-edges are replaced, for sweeps over some edges.

    Everything else is shared with `graph`, including the counts.
    """
    made = object.__new__(type(graph))
    made._edges = graph._edges
    made._begin({**graph._cache, "out_columns": rows, "out_edges": rows})
    return made


def out_columns(graph: Structure) -> Adjacency:
    """Return the CSR without edge ids."""
    if not (graph.directed or "out_columns" in graph._cache):  # see `with_out_edges`
        return graph.in_edges

    def build() -> Adjacency:
        return _builder(graph).build_out_columns(graph._edges)  # type: ignore[no-any-return]

    return _cached(graph, "out_columns", build)


def _incident_edges(graph: Structure) -> Adjacency:
    """Return the incident edges of a directed graph, with edge ids."""
    rows, build = incident_columns(graph), _builder(graph)
    ids = build.build_incident_ids(graph._edges, lambda: graph.in_edges, rows)
    return Adjacency(rows.row_offsets, rows.column_indices, ids)


def incident_columns(graph: Structure) -> Adjacency:
    """Return `incident_edges` without edge ids, with half the memory and no CSC."""
    if not graph.directed:
        return graph.in_edges

    def build() -> Adjacency:
        return _builder(graph).build_incident_columns(graph._edges)  # type: ignore[no-any-return]

    return _cached(graph, "incident_columns", build)


def _on_gpu(stored: object) -> Any:
    """Return an array of the dialect over values on the GPU; None for host values."""
    if isinstance(stored, DeviceValues):
        from featgraph.cuda.foreign import unpadded  # imports the dialect

        return unpadded(stored)
    if isinstance(stored, np.ndarray) or not hasattr(
        stored, "__cuda_array_interface__"
    ):
        return None
    from featgraph.cuda.foreign import foreign_array  # imports the dialect

    found = foreign_array(stored, "stored")
    return None if found is None else found.array


def _put_back(
    graph: Structure, array: NDArray[Any], per_direction: bool
) -> NDArray[Any]:
    """Reorder host values back to given order, on several threads."""
    from featgraph.graph.building.kernels import put_rows  # imports Numba

    given, order = graph.given_edge_count, graph.given_index
    rows = given * (1 + per_direction)
    result = np.empty((rows, *array.shape[1:]), array.dtype)
    if array.dtype.hasobject:
        has_row = order < rows
        result[order[has_row]] = array[has_row]
    elif result.size:
        # Views as integers: one compiled function per item size, not per dtype.
        word = math.gcd(array.dtype.itemsize, 8)
        plain, out = (
            x.reshape(len(x), -1).view(f"u{word}")
            for x in (np.ascontiguousarray(array), result)
        )

        def put(first: int, last: int) -> None:
            put_rows(plain, order, first, last, out)

        in_pieces(len(plain), plain.nbytes, put)
    if per_direction and graph.edge_count < rows:
        loops = np.flatnonzero(graph.sources == graph.targets)
        result[given + loops] = result[loops]
    return result

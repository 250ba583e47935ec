"""Checked edge lists, from which graphs build their rows.

`edge_list` checks the arrays of a caller, on the host or on a GPU, applies the policy
for repeated edges, and returns an `EdgeList`. `Adjacency` has rows: the edges of a
graph, grouped by vertex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_flag, shown
from featgraph.base.cached import cached_property
from featgraph.base.config import config
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.cuda.values import DeviceValues, host_values, is_on_gpu
from featgraph.graph.building.check import (
    checked_count,
    checked_sides,
    checked_weights,
    flat_array,
    paired_arrays,
    require_between_sides,
    require_ids,
)
from featgraph.graph.building.names import VertexNames, factorise

if TYPE_CHECKING:
    from featgraph.graph.building.gpu_edges import GpuEdges, Repeats
    from featgraph.graph.building.gpu_oriented import GpuOriented

__all__ = [
    "FEW",
    "MANY_EDGES",
    "Adjacency",
    "EdgeList",
    "combine",
    "edge_list",
    "edges_of_sides",
    "edges_on_gpu",
    "edges_on_host",
    "ends_on_gpu",
    "freeze",
    "merged",
    "named_count",
    "raise_repeated",
]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The edges of every vertex: its in-edges, its out-edges, or both.

    The type of `Graph.in_edges` (CSC), `Graph.out_edges` (CSR) and
    `Graph.incident_edges`. Slots ``row_offsets[v]`` to ``row_offsets[v + 1]`` belong to
    vertex v, in the order in which the edges were given. All arrays are read-only.

    Attributes
    ----------
    row_offsets : ndarray of int32 or int64, shape (V + 1,)
        int64 only where the number of slots is 2**31 - 1 or more.
    column_indices : ndarray of int32, one a slot
        The vertex at the other end: the source in the CSC, the target in the CSR.
    edge_ids : ndarray, dtype of the CSC's `row_offsets`, one a slot, or None
        The edge id of each slot. None in the CSC, whose slots *are* the edge ids.
    """

    row_offsets: NDArray[Any]
    column_indices: NDArray[np.int32]
    edge_ids: NDArray[Any] | None


Values: TypeAlias = NDArray[Any] | DeviceValues

#: Number of edges given on the host from which a GPU builds the rows itself. The host
#: takes 1 to 3 ms for fewer edges, and the kernels of a GPU must be compiled once.
MANY_EDGES = 1 << 18
#: Most edges, and most vertices, of graphs whose rows are built by NumPy, in about a
#: millisecond; larger ones use compiled loops. `few` relies on ids of 16 bits.
FEW = 1 << 16
#: GPU memory for building the rows of both directions, in bytes per directed edge:
#: edges, rows, and temporary arrays of sorts.
_BUILT_BYTES = 48


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array that this package owns read-only, and return it."""
    array.setflags(write=False)
    return array


class EdgeList:
    """Edges in given order; owns its arrays and makes them read-only.

    Arrays on the GPU stay there, and are copied to the host at the first read there.

    Parameters
    ----------
    sources, targets : ndarray of int32, or DeviceValues, shape (E_given,)
        Both on the GPU, or none of them.
    weights : ndarray or DeviceValues, shape (E_given,), or None
    vertex_count : int
    directed : bool
    names : ndarray of int64 or uint64 (ascending), tuple, or None; length V
    sides : tuple of int, or None
        The number of vertices of each side, V in all. Each edge is known to join two
        sides.
    """

    def __init__(
        self,
        sources: Values,
        targets: Values,
        weights: Values | None,
        vertex_count: int,
        directed: bool,
        names: VertexNames | None = None,
        sides: tuple[int, ...] | None = None,
    ) -> None:
        self.vertex_count, self.directed = vertex_count, directed
        self.names, self.sides = names, sides
        self.is_given_on_gpu = isinstance(sources, DeviceValues)
        self.given_count = int(sources.shape[0])
        self.weights_dtype = None if weights is None else weights.dtype
        self._ends, self._weights = (sources, targets), weights
        for array in (sources, targets, weights, names):
            if isinstance(array, np.ndarray):
                freeze(array)

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """Sources in given order, on the host."""
        return freeze(host_values(self._ends[0]))

    @cached_property
    def targets(self) -> NDArray[np.int32]:
        """Targets in given order, on the host."""
        return freeze(host_values(self._ends[1]))

    @cached_property
    def weights(self) -> NDArray[Any] | None:
        """Weights in given order, on the host; None without."""
        return None if self._weights is None else freeze(host_values(self._weights))

    def known(self) -> dict[str, Any]:
        """Return attributes of the graph that need not be computed, by name."""
        return {}

    def holds(self, array: object) -> bool:
        """Whether a host array is the array of weights itself."""
        if self._weights is None:
            return False
        return array is self._weights or array is vars(self).get("weights")

    def there(self, array: object) -> Any:
        """Return the GPU's copy, by edge id, of host weights; None for other arrays."""
        return None

    def weights_on_gpu(self) -> Any:
        """Return the weights in given order, uploaded if on the host; None without."""
        from featgraph.cuda import arrays as memory

        given = self._weights
        if isinstance(given, DeviceValues):
            return given.array
        return None if given is None else memory.upload(given)

    def sum_ends(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of ends: uint64, shape (2,)."""
        if self.is_given_on_gpu:
            from featgraph.graph.building import gpu_parts  # imports the dialect

            return gpu_parts.sums_of_ends(self.on_gpu.sources, self.on_gpu.targets)
        from featgraph.graph.building import digests  # loads Numba

        sums = digests.no_sums()
        digests.add_ends(sums, 0, self.sources, self.targets)
        return sums

    def sum_weights(self) -> NDArray[np.uint64]:
        """Return the sums for the digest of weights: uint64, shape (2,)."""
        if self.is_given_on_gpu:
            from featgraph.graph.building import gpu_parts  # imports the dialect

            return gpu_parts.sums_of_values(self.weights_on_gpu())
        from featgraph.graph.building import digests  # loads Numba

        sums = digests.no_sums()
        if self.weights is not None:
            digests.add_values(sums, 0, self.weights)
        return sums

    @property
    def is_few(self) -> bool:
        """Whether NumPy builds the rows: compiling loops would take longer."""
        return max(self.given_count, self.vertex_count) <= FEW

    @property
    def is_built_on_gpu(self) -> bool:
        """Whether a GPU builds the rows that it needs itself.

        The host builds the rows of few edges, and of more than the memory limit allows.
        """
        return self.is_given_on_gpu or _pays_on_gpu(self.given_count, self.directed)

    @property
    def is_oriented_on_gpu(self) -> bool:
        """Whether a GPU orients the edges for triangles."""
        return self.is_built_on_gpu

    @cached_property
    def on_gpu(self) -> GpuEdges:
        """The edges on the GPU, uploaded if they are on the host."""
        from featgraph.cuda import arrays as memory
        from featgraph.graph.building import gpu_edges as edges

        def uploaded(values: Values) -> Any:
            if isinstance(values, DeviceValues):
                return values.array
            return memory.upload(values)

        ends = uploaded(self._ends[0]), uploaded(self._ends[1])
        return edges.GpuEdges(*ends, self.vertex_count, self.directed)

    @cached_property
    def on_gpu_oriented(self) -> GpuOriented:
        """The undirected edges on the GPU, oriented towards the higher degree."""
        from featgraph.graph.building import gpu_oriented

        return gpu_oriented.orient_edges(self.on_gpu)

    @cached_property
    def edge_count(self) -> int:
        """Number of directed edges: given edges, and twins of all but self-loops."""
        if self.directed:
            return self.given_count
        if self.is_given_on_gpu:
            return self.on_gpu.edge_count
        return self.given_count + int(np.count_nonzero(self.sources != self.targets))


def _pays_on_gpu(given_count: int, directed: bool) -> bool:
    """Whether a GPU builds rows of so many edges faster, within the memory limit."""
    limit = config.memory_limit_bytes
    needed = _BUILT_BYTES * given_count * (1 if directed else 2)
    return given_count >= MANY_EDGES and (limit is None or needed <= limit)


def edges_of_sides(
    offsets: NDArray[np.int64],
    indices: NDArray[Any],
    weights: NDArray[Any] | None,
    sides: tuple[int, int],
    is_by_column: bool,
    target: object,
) -> EdgeList | None:
    """Return the edges of the entries of a compressed matrix, built on the GPU.

    None if the host must build them: because it is the target, there are few entries,
    or an entry is invalid, for which the host's checks raise the error.
    """
    count = int(indices.size)
    is_large = count > 0 and _pays_on_gpu(count, directed=False)
    if target is None or not is_large or indices.dtype.kind not in "iu":
        return None
    if chosen_target(target, "cuda") == "cpu":
        return None
    from featgraph.graph.building import gpu_edges as edges

    checked_count(sum(sides), "sum(sides)")
    found = edges.ends_of_sides(offsets, indices, sides, is_by_column)
    if found is None:
        return None
    own = None if weights is None else checked_weights(weights, count)
    ends = DeviceValues(found.sources), DeviceValues(found.targets)
    made = EdgeList(*ends, own, found.vertex_count, False, sides=sides)
    made.on_gpu = found
    return made


def edge_list(
    sources: object,
    targets: object,
    *,
    weights: object = None,
    vertex_count: object = None,
    directed: bool = True,
    duplicates: str = "keep",
    names: bool = False,
    target: object = None,
    sides: object = None,
) -> EdgeList:
    """Check the edges of a caller, and copy them; see `Graph.from_edges`."""
    counts = None if sides is None else checked_sides(sides, vertex_count)
    if counts is not None:
        vertex_count = sum(counts)
    directed, names = require_flag("directed", directed), require_flag("names", names)
    if not isinstance(duplicates, str) or duplicates not in POLICIES:
        raise GraphInputError(
            "unknown policy for repeated edges",
            where="duplicates",
            got=shown(duplicates),
            expected="one of " + ", ".join(map(repr, POLICIES)),
        )
    count = None if vertex_count is None else checked_count(vertex_count)
    ends = None if names else ends_on_gpu(sources, targets, target)
    if ends is not None:
        found_on_gpu = edges_on_gpu(ends, weights, count, directed, counts)
        made = None
        if found_on_gpu is not None:
            made = _on_gpu(*found_on_gpu, duplicates, counts)
        if made is not None:
            return made
    own_names: VertexNames | None = None
    if names:
        sources, targets, own_names = factorise(*paired_arrays(sources, targets))
    ends, bound = (sources, targets), None if names else count
    u, v, own, found = edges_on_host(ends, weights, bound, counts)
    count = named_count(found, own_names, count) if names else found
    if count == 0:
        raise GraphInputError(
            "a graph needs at least one vertex",
            got="no edges and no vertex_count",
            fix="give vertex_count: vertices without edges are allowed",
        )
    if not names:
        u, v = (np.array(end, np.int32, order="C") for end in (u, v))
    if duplicates != "keep":
        u, v, own = merge_duplicates(u, v, own, directed=directed, policy=duplicates)
    return EdgeList(u, v, own, count, directed, own_names, counts)


def edges_on_host(
    ends: tuple[object, object],
    weights: object,
    count: int | None,
    sides: tuple[int, ...] | None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, int]:
    """Return checked edges on the host.

    Parameters
    ----------
    ends : (array_like, array_like)
        Sources and targets.
    weights : array_like or None
    count : int or None
        The number of vertices. None: one more than the highest id.
    sides : tuple of int, or None

    Returns
    -------
    sources, targets : ndarray of integers
        They may alias `ends`.
    weights : ndarray or None
        A copy.
    count : int
    """
    u, v = paired_arrays(*ends)
    most = max(require_ids(u, "sources", count), require_ids(v, "targets", count))
    if not u.size:  # an empty list becomes float64
        u, v = np.empty(0, np.int32), np.empty(0, np.int32)
    count = most + 1 if count is None else count
    if sides is not None:
        require_between_sides(u, v, sides)
    return u, v, None if weights is None else checked_weights(weights, u.size), count


def ends_on_gpu(
    sources: object, targets: object, target: object
) -> tuple[object, object] | None:
    """Return ends on the GPU, uploaded if it is the target; None to use the host."""
    given = [(sources, "sources"), (targets, "targets")]
    there = [is_on_gpu(ends) for ends, _ in given]
    if target is None:
        return (sources, targets) if all(there) else None
    arrays = [
        None if is_there else flat_array(*ends)
        for ends, is_there in zip(given, there, strict=True)
    ]
    is_large = any(a is None or a.size >= MANY_EDGES for a in arrays)
    if chosen_target(target, "cuda" if is_large else "cpu") == "cpu":
        return None
    if any(a is not None and a.dtype.kind not in "iu" for a in arrays):
        return None
    from featgraph.cuda import arrays as memory

    u, v = arrays
    return (
        sources if u is None else memory.upload(u),
        targets if v is None else memory.upload(v),
    )


def edges_on_gpu(
    ends: tuple[object, object],
    weights: object,
    count: int | None,
    directed: bool,
    sides: tuple[int, ...] | None,
) -> tuple[GpuEdges, Values | None] | None:
    """Return a checked copy of edges whose ends are on the GPU, and their weights.

    None if the GPU cannot read the ends, or they are invalid: `edges_on_host`, which
    has the same parameters, then reads them or raises the error.
    """
    from featgraph.graph.building import gpu_edges as edges
    from featgraph.graph.building import gpu_parts

    found = edges.checked_ends(*ends, count, directed)
    if found is None:
        return None
    own = found.sources, found.targets
    if sides is not None and gpu_parts.count_within(*own, sides):
        return None
    if weights is None:
        return found, None
    array = edges.checked_values(weights, found.given_count)
    if array is None:
        return found, checked_weights(weights, found.given_count)
    return found, DeviceValues(array)


def _on_gpu(
    found: GpuEdges, own: Values | None, duplicates: str, sides: tuple[int, ...] | None
) -> EdgeList | None:
    """Return the edge list of checked edges, with repeated ones combined.

    None if the policy is "error" and an edge is repeated, or weights have no sum: the
    host then raises the error.
    """
    from featgraph.graph.building.gpu_edges import first_of_each

    repeated = None if duplicates == "keep" else first_of_each(found)
    if repeated is not None:
        merged = None
        if duplicates != "error":
            merged = _merged(found, repeated, own, duplicates)
        if merged is None:
            return None
        found, own = merged
    ends = DeviceValues(found.sources), DeviceValues(found.targets)
    made = EdgeList(*ends, own, found.vertex_count, found.directed, sides=sides)
    made.on_gpu = found
    return made


def _merged(
    edges: GpuEdges, repeats: Repeats, weights: Values | None, policy: str
) -> tuple[GpuEdges, Values | None] | None:
    """Return the first edge of each group of equal edges, and the combined weights.

    None if weights have no sum.
    """
    own: Values | None = None
    if isinstance(weights, DeviceValues):
        found = repeats.combined(weights.array, policy)
        if found is None:
            return None
        own = DeviceValues(found)
    elif weights is not None:
        order = repeats.order.copy_to_host()
        starts = np.flatnonzero(repeats.is_first.copy_to_host()[order])
        own = merged(weights, order, starts, policy)[repeats.first.copy_to_host()]
    return edges.chosen(repeats.first), own


def named_count(named: int, names: object, vertex_count: int | None) -> int:
    """Return V of a graph whose edges have `named` distinct vertex names.

    With names 0..n-1 (`names` is None), a larger `vertex_count` adds isolated vertices.
    With other names, it raises GraphInputError: these vertices would have no name.
    """
    if vertex_count is None or vertex_count == named:
        return named
    if names is None and vertex_count > named:
        return vertex_count
    raise GraphInputError(
        "vertex_count contradicts the vertex names",
        where="vertex_count",
        got=f"{vertex_count}, with {named} names among the edges",
        expected=f"{named}, or none",
        fix="leave vertex_count out: with names=True the edges name all vertices",
    )


#: Values of `duplicates`: see `Graph.from_edges`.
POLICIES = ("keep", "sum", "min", "max", "first", "last", "error")

_Ids: TypeAlias = NDArray[np.int32]


def merge_duplicates(
    sources: _Ids,
    targets: _Ids,
    weights: NDArray[Any] | None,
    *,
    directed: bool,
    policy: str,
) -> tuple[_Ids, _Ids, NDArray[Any] | None]:
    """Keep one edge for each (source, target), at the place of its first occurrence.

    For an undirected graph (u, v) and (v, u) are the same edge; it keeps the direction
    in which it was first given.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    weights : ndarray, shape (E,), or None
        Sums of integers are int64 (uint64 for unsigned ones).
    directed : bool
    policy : str
        One of `POLICIES`, not "keep".

    Returns
    -------
    sources, targets, weights
        The arguments themselves where nothing repeats.

    Raises
    ------
    GraphInputError
        policy="error" and an edge repeats; or a sum overflows or becomes NaN.

    Notes
    -----
    O(V + E) time; about 16 bytes of temporaries per edge.
    """
    if sources.size < 2:
        return sources, targets, weights
    low = sources if directed else np.minimum(sources, targets)
    high = targets if directed else np.maximum(sources, targets)
    order, starts = _repeated_edges(low, high)
    if not starts.size:
        return sources, targets, weights
    if policy == "error":
        raise_repeated(sources, targets, order, starts)
    is_first = np.ones(sources.size, np.bool_)
    is_first[order] = False
    is_first[order[starts]] = True
    if weights is not None:
        weights = merged(weights, order, starts, policy)[is_first]
    return sources[is_first], targets[is_first], weights


def _repeated_edges(low: _Ids, high: _Ids) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the edges with equal ends, by group, and where groups begin."""
    is_dense = low.max() <= 8 * low.size  # a counting sort has an entry for each id
    if low.size > FEW and is_dense:
        from featgraph.graph.building import kernels  # loads Numba

        return kernels.repeated_edges(low, high)
    key = (low.astype(np.int64) << 32) | high
    order = np.argsort(key, kind="stable")
    is_first = np.diff(key[order], prepend=-1) != 0
    is_repeated = ~(is_first & np.append(is_first[1:], True))
    return order[is_repeated], np.flatnonzero(is_first[is_repeated])


def merged(
    values: NDArray[Any], order: NDArray[Any], starts: NDArray[np.int64], policy: str
) -> NDArray[Any]:
    """Return the values of all edges, with that of a group at its first edge.

    Parameters
    ----------
    values : ndarray, shape (E,) or (E, width)
    order, starts : ndarray of int
        Groups of equal edges: see `combine`. Edges that nothing repeats may be left
        out.
    policy : str
        One of `POLICIES`. "error": there are no groups.
    """
    if policy in {"first", "error"} or not (starts.size or policy == "sum"):
        return values
    combined = combine(values, order, starts, policy)
    made = values.astype(combined.dtype)
    if policy == "sum":
        made += 0  # a sum begins with 0, so that -0.0 becomes 0.0
    made[order[starts]] = combined
    return made


def combine(
    weights: NDArray[Any], order: NDArray[Any], starts: NDArray[np.int64],
    policy: str, edges: NDArray[Any] | None = None,
) -> NDArray[Any]:  # fmt: skip
    """Combine the weights of each group, ``order[starts[i]:starts[i + 1]]``.

    Weights are combined one after another in given order, as on the GPU, so that sums
    have equal bits. `edges` has the number of each weight's edge for errors; default:
    the weight's index.
    """
    if policy == "last":
        ends = np.append(starts[1:], order.size)
        return np.asarray(weights[order[ends - 1]])
    from featgraph.graph.building import kernels  # loads Numba

    # Numba's loops take no float16.
    own = weights.astype(np.float32) if weights.dtype == np.float16 else weights
    if policy == "sum":
        edges = order[starts] if edges is None else edges[order[starts]]
        return _sum(own, order, starts, weights.dtype, edges)
    chosen = np.empty(starts.size, own.dtype)
    kernels.choose_of_repeats(own, order, starts, policy == "min", chosen)
    return chosen.astype(weights.dtype, copy=False)


def _sum(
    weights: NDArray[Any],
    order: NDArray[Any],
    starts: NDArray[np.int64],
    dtype: np.dtype[Any],
    edges: NDArray[Any],
) -> NDArray[Any]:
    """Sum each group in 64 bits; sums of floats are rounded once, to `dtype`."""
    from featgraph.graph.building import kernels  # loads Numba

    wide = {"i": np.int64, "u": np.uint64, "f": np.float64}[weights.dtype.kind]
    sums, rough = np.empty(starts.size, wide), np.empty(starts.size)
    kernels.add_repeats(weights, order, starts, sums, rough)
    with np.errstate(all="ignore"):
        # `rough` is the float64 sum. An integer sum that has wrapped differs from it by
        # about a multiple of 2**64, and rounding errors are far less than 2**62.
        bad = np.isnan(sums) | (np.abs(sums - rough) > 2.0**62)
        rounded = sums.astype(dtype) if dtype.kind == "f" else sums
    if np.any(bad):
        groups = np.flatnonzero(bad)
        group = int(groups[np.argmin(edges[groups])])
        raise GraphInputError(
            "the weights of a repeated edge have no sum",
            where=f"weights[{int(edges[group])}]",
            got=f"a sum near {rough[group]}",
            expected="a finite or infinite number that fits the weights' dtype",
            fix="give the weights as float64, or choose another `duplicates`",
        )
    return rounded


def raise_repeated(
    sources: _Ids,
    targets: _Ids,
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> None:
    """Raise GraphInputError for the first repeat in groups: see `combine`."""
    is_repeat = np.ones(order.size, np.bool_)
    is_repeat[starts] = False
    position = int(order[is_repeat].min())
    group = int(np.flatnonzero(order == position)[0])
    start = int(starts[np.searchsorted(starts, group, side="right") - 1])
    raise GraphInputError(
        "an edge is given more than once",
        where=f"edge {position}",
        got=f"({sources[position]}, {targets[position]}), as edge {int(order[start])} "
        f"({order.size - starts.size} repeats in all)",
        expected="every edge once (duplicates='error')",
        fix="choose duplicates='keep', 'sum', 'min', 'max', 'first' or 'last'",
    )

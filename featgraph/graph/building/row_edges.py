"""Edge lists whose CSC is known, on the host or on a GPU.

`RowEdges` and `GpuRowEdgeList` store edges by target, as kernels use them. Sources,
targets and weights in given order are derived at the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
from featgraph.cuda.values import DeviceValues, host_values
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze
from featgraph.graph.building.names import VertexNames

__all__ = ["GpuRowEdgeList", "RowEdges"]

if TYPE_CHECKING:
    from featgraph.graph.building.gpu_edges import GpuEdges
    from featgraph.graph.building.gpu_oriented import GpuOriented
    from featgraph.graph.building.gpu_part_edges import GpuRowEdges
    from featgraph.graph.building.gpu_parts import Part


class _TargetOrder(EdgeList):
    """Edges stored by target, with known attributes of their graph."""

    _known: dict[str, Any]

    def known(self) -> dict[str, Any]:
        """Return attributes of the graph that need not be computed, by name."""
        return dict(self._known)

    def holds(self, array: object) -> bool:
        """Whether a host array is `weights`."""
        return array is not None and array is vars(self).get("weights")

    @cached_property
    def on_gpu_oriented(self) -> GpuOriented:
        """The undirected edges on the GPU, oriented towards the higher degree."""
        from featgraph.graph.building import gpu_oriented

        edges: GpuRowEdges = self.on_gpu  # type: ignore[assignment]
        return gpu_oriented.orient_edges(edges.as_given())


class RowEdges(_TargetOrder):
    """Edges whose CSC is on the host; owns its arrays and makes them read-only.

    Parameters
    ----------
    in_edges : Adjacency
        The CSC: within a row, edges have the order in which they were given.
    rows : ndarray of integers, shape (E,), or None
        For each edge id, a number that increases in given order; None if edge ids are
        in given order. Numbers of twins are `bound` or more.
    weights : ndarray, shape (E,), or None
        By edge id.
    bound : int
        An upper bound, exclusive, of the numbers of given edges.
    directed : bool
    names : as in `EdgeList`
    known : mapping, optional
        Known attributes of the graph, by name.

    Attributes
    ----------
    by_id : ndarray, or None
        Weights by edge id.
    """

    def __init__(
        self,
        in_edges: Adjacency,
        rows: NDArray[Any] | None,
        weights: NDArray[Any] | None,
        bound: int,
        directed: bool,
        names: VertexNames | None = None,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.vertex_count, self.directed = in_edges.row_offsets.size - 1, directed
        self.names, self.sides, self.is_given_on_gpu = names, None, False
        self.in_edges, self._rows, self._bound = in_edges, rows, bound
        self.by_id, self._known = weights, {**(known or {}), "in_edges": in_edges}
        self.weights_dtype = None if weights is None else weights.dtype
        self.given_count = in_edges.column_indices.size
        if not directed and rows is not None:
            self.given_count = int(np.count_nonzero(rows < bound))
        for array in (rows, weights, names, *self._known.values()):
            if isinstance(array, np.ndarray):
                freeze(array)

    @property
    def edge_count(self) -> int:
        """Directed edges, twins among them."""
        return int(self.in_edges.column_indices.size)

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """Sources in given order."""
        return self._in_given_order(self.in_edges.column_indices)

    @cached_property
    def targets(self) -> NDArray[np.int32]:
        """Targets in given order."""
        degrees = np.diff(self.in_edges.row_offsets)
        targets = np.repeat(np.arange(degrees.size, dtype=np.int32), degrees)
        return freeze(self._in_given_order(targets))

    @cached_property
    def weights(self) -> NDArray[Any] | None:
        """Weights in given order; None without."""
        return None if self.by_id is None else self._in_given_order(self.by_id)

    @cached_property
    def on_gpu(self) -> GpuEdges:
        """The edges on the GPU, uploaded as rows; needs a GPU."""
        from featgraph.cuda import arrays
        from featgraph.graph.building.gpu_part_edges import GpuRowEdges

        rows, order = self.in_edges, self._rows
        bound = self._bound
        if order is None:  # edge ids are in given order
            bound = self.edge_count
        return GpuRowEdges(
            arrays.upload(rows.row_offsets),
            arrays.upload(rows.column_indices),
            self.directed,
            None if order is None else lambda: arrays.upload(order),
            max(bound, 1),
        )

    @property
    def _ends(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:  # type: ignore[override]
        return self.sources, self.targets

    def _in_given_order(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._rows is None else freeze(values[self._order])

    @cached_property
    def _order(self) -> NDArray[Any]:
        """The edge ids of given edges, in given order."""
        from featgraph.graph.building import kernels  # loads Numba

        rows = np.asarray(self._rows)
        if self.directed:
            return kernels.order_of(rows)
        given = np.flatnonzero(rows < self._bound)
        found: NDArray[Any] = given[kernels.order_of(rows[given])]
        return found


class GpuRowEdgeList(_TargetOrder):
    """Edges whose CSC is on the GPU; host arrays are copied at the first use.

    Parameters
    ----------
    on_gpu : GpuRowEdges
    weights : array of the dialect, shape (E,), or None
        By edge id.
    known : mapping, optional
        Known attributes of the graph, by name.
    as_given : callable, optional
        Returns the weights on the host, in given order.

    Attributes
    ----------
    by_id : array, or None
        Weights on the GPU, by edge id.
    """

    def __init__(
        self,
        on_gpu: GpuRowEdges,
        weights: Any,
        known: Mapping[str, Any] | None = None,
        as_given: Callable[[], NDArray[Any] | None] | None = None,
    ) -> None:
        self.vertex_count, self.directed = on_gpu.vertex_count, on_gpu.directed
        self.names, self.sides, self.is_given_on_gpu = None, None, True
        self.on_gpu = on_gpu
        self.by_id, self._known = weights, dict(known or {})
        self._as_given = as_given
        self.weights_dtype = None if weights is None else weights.dtype

    @classmethod
    def of_part(
        cls,
        part: Part,
        dtype: Any,
        numbers: Callable[[], Any] | None = None,
        known: Mapping[str, Any] | None = None,
        as_given: Callable[[], NDArray[Any] | None] | None = None,
    ) -> GpuRowEdgeList:
        """Return the edges of a part, with weights in a dtype.

        Parameters
        ----------
        part : Part
        dtype : dtype or None
        numbers : callable, optional
            Returns the number of the edge of each slot. Default: `Part.numbers`, which
            streams all edges at each use.
        known : mapping, optional
            Known attributes, if the part is the whole graph. Given order is then that
            of edge numbers; without `known`, it is the order of rows.
        as_given : callable, optional
        """
        from featgraph.graph.building.gpu_part_edges import GpuRowEdges

        ends, weights = part.rows(dtype)
        wanted = part.wanted
        rows = GpuRowEdges(
            part.offsets,
            ends,
            wanted.directed or not wanted.is_both,
            (numbers or part.numbers) if wanted.is_both else None,
            max(wanted.given_count, 1),
            is_by_slot=known is None,
        )
        known = {**(known or {}), "in_offsets": part.on_host}
        return cls(rows, weights, known, as_given)

    @property
    def given_count(self) -> int:  # type: ignore[override]
        """Number of given edges."""
        return self.on_gpu.given_count

    @property
    def edge_count(self) -> int:
        """Directed edges, twins among them."""
        return self.on_gpu.edge_count

    @property
    def _ends(self) -> tuple[Any, Any]:  # type: ignore[override]
        ends = self.on_gpu.sources, self.on_gpu.targets
        return DeviceValues(ends[0]), DeviceValues(ends[1])

    @cached_property
    def weights(self) -> NDArray[Any] | None:
        """Weights on the host, in given order; None without."""
        if self.by_id is None:
            return None
        made = None if self._as_given is None else self._as_given()
        if made is not None:
            return freeze(made)
        if self.on_gpu.is_in_given_order():
            return freeze(host_values(DeviceValues(self.by_id)))
        return freeze(self.on_gpu.in_given_order(self.by_id, per_direction=False))

    def weights_on_gpu(self) -> Any:
        """Return the weights on the GPU, in given order; None without."""
        from featgraph.cuda import arrays

        if self.by_id is None or self.on_gpu.is_in_given_order():
            return self.by_id
        return arrays.upload(np.asarray(self.weights))

    def there(self, array: object) -> Any:
        """Return the GPU's copy, by edge id, of host weights; None for other arrays."""
        return self.by_id if self.holds(array) else None

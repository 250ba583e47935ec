"""Edges that a GPU alone has, by target, as kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
from featgraph.cuda.values import DeviceValues, host_values
from featgraph.graph.building.edges import EdgeList, freeze

if TYPE_CHECKING:
    from featgraph.graph.building.gpu_oriented import GpuOriented
    from featgraph.graph.building.gpu_part_edges import GpuRowEdges

__all__ = ["GpuRowEdgeList"]


class GpuRowEdgeList(EdgeList):
    """Edges whose CSC is on the GPU; the host has what it asks for.

    Parameters
    ----------
    on_gpu : GpuRowEdges
    weights : array of the dialect, shape (E,), or None
        By edge id.
    known : mapping, optional
        What else is known of the graph, by the names of its attributes.
    as_given : callable, optional
        Returns the weights on the host, in given order.
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
        self._by_id, self._known = weights, dict(known or {})
        self._as_given = as_given
        self.weights_dtype = None if weights is None else weights.dtype

    def known(self) -> dict[str, Any]:
        """Return what is known of their graph, by the names of its attributes."""
        return dict(self._known)

    @property
    def given_count(self) -> int:  # type: ignore[override]
        """How many edges were given."""
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
        """Their weights on the host, in given order; None without."""
        if self._by_id is None:
            return None
        made = None if self._as_given is None else self._as_given()
        if made is not None:
            return freeze(made)
        if self.on_gpu.is_in_given_order():
            return freeze(host_values(DeviceValues(self._by_id)))
        return freeze(self.on_gpu.in_given_order(self._by_id, per_direction=False))

    def holds(self, array: object) -> bool:
        """Whether an array of the host is that of the weights."""
        return array is not None and array is vars(self).get("weights")

    def weights_on_gpu(self) -> Any:
        """Return the weights on the GPU, in given order; None without."""
        from featgraph.cuda import arrays

        if self._by_id is None or self.on_gpu.is_in_given_order():
            return self._by_id
        return arrays.upload(np.asarray(self.weights))

    @property
    def there_by_id(self) -> Any:
        """The weights on the GPU, by edge id; None without."""
        return self._by_id

    def there(self, array: object) -> Any:
        """Return an array of the host by edge id, if the GPU has it; else None."""
        return self._by_id if self.holds(array) else None

    @cached_property
    def on_gpu_oriented(self) -> GpuOriented:
        """The undirected edges, turned towards the end of higher degree."""
        from featgraph.graph.building import gpu_oriented

        edges: GpuRowEdges = self.on_gpu  # type: ignore[assignment]
        return gpu_oriented.GpuOriented(edges.as_given())

"""Places of edge values of a State under a memory limit: GPU or host memory (0063)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from featgraph.base.dataclass import replace
from featgraph.cuda.values import Reordered
from featgraph.fold.printing.module import KernelSource
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.protocol import Values
from featgraph.runtime.streaming.needs import needs_of, shared_use, use_of

if TYPE_CHECKING:
    from featgraph.runtime.streaming.placement import Placement

__all__ = ["EDGE_STATE", "Places"]

Array = Any
#: Working memory with an entry for each edge.
EDGE_STATE = "edge_state"


class Places:
    """Memory for edge values of one State, under a memory limit if there is one.

    Methods return None or False where the values are on the device without a limit.

    Parameters
    ----------
    buffers : Buffers
        The buffers of the State.
    """

    def __init__(self, buffers: Any) -> None:
        self._buffers = weakref.proxy(buffers)  # `buffers` refers to this object
        self._placement: Placement | None = buffers.graph.placement

    def of(self, name: str) -> Placement | None:
        """Return the placement of a property of edges; None without a limit."""
        place = self._placement
        if place is None:
            return None
        column = self._buffers.state._columns[name]
        return place if column.type.kind is PropertyKind.EDGE else None

    def reserve(self, source: KernelSource) -> None:
        """Reserve the memory that a kernel needs.

        Raises
        ------
        DeviceMemoryError
            If it does not fit even with all edges streamed.
        """
        place = self._placement
        if place is None:
            return
        state = self._buffers.state
        needs = needs_of(source, state.signature, state.graph.part)
        edges = {self._counted_as(n): size for n, size in needs.edges.items()}
        needs = replace(needs, edges=edges)
        if not place.reserve(self, needs):
            raise place.shortage(needs)

    def _counted_as(self, use: str) -> str:
        """Return the use that edge values count for; the graph's may be shared."""
        column = self._buffers.state._columns.get(use.removeprefix(use_of("")))
        values = None if column is None else column.values
        if isinstance(values, Reordered) and values.is_shared:
            return shared_use(values)
        return use

    def move_edges(self) -> None:
        """Move edge values to host memory that kernels can read in place."""
        own = self._buffers
        for arrays in (own.current, own.next, own.outdated):
            for name, array in list(arrays.items()):
                place = self.of(name)
                if place is not None:
                    arrays[name] = place.pinned_copy(array)
        for key in [k for k in own.temporaries if k[0] == EDGE_STATE]:
            del own.temporaries[key]

    def upload(self, name: str, values: Values, memory: Array | None) -> Array | None:
        """Return an array with values of a property; `memory` may be reused for it."""
        place = self.of(name)
        return place and place.upload(self, use_of(name), values, memory)

    def next_of(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Return memory for next values of a property."""
        place = self.of(name)
        return place and place.empty(self, use_of(f"{name}_next"), shape, dtype)

    def another(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Return other memory for values of a property."""
        place = self.of(name)
        return place and place.empty(self, use_of(name), shape, dtype)

    def working_memory(
        self, name: str, shape: tuple[int, ...], dtype: str
    ) -> Array | None:
        """Return working memory of edges."""
        place = self._placement if name == EDGE_STATE else None
        return place and place.empty(self, use_of(name), shape, dtype)

    def on_host(self, name: str, array: Array, shape: tuple[int, ...]) -> Any | None:
        """Return values of a property that are in host memory."""
        place = self.of(name)
        return place and place.held(array, shape)

    def touched(self, array: Array) -> None:
        """Count a write to an array by the caller: copies of it are outdated."""
        if self._placement is not None:
            self._placement.touched(array)

    def copy(self, target: Array, source: Array) -> bool:
        """Copy values to another array."""
        place = self._placement
        return place is not None and place.copy(target, source)

    def clear(self, memory: Array) -> bool:
        """Set all elements of working memory to zero."""
        place = self._placement
        return place is not None and place.fill(memory, 0)

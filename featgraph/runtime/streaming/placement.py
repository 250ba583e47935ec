"""Placement of the arrays of a graph and its States: on the GPU, or in host memory.

Values of vertices and offsets of rows are always on the GPU. Arrays of edges are there,
too, as long as all arrays fit the memory limit. Otherwise they move to page-locked host
memory: kernels read and write it in place, or sweep slices that are copied to buffers
(`ring`, `slices`).

A `Placement` belongs to one graph. It accounts for the bytes of the graph and its
States by *use* (a name such as ``d.weight``) before they are allocated: begin with
`Placement.reserve`.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceMemoryError
from featgraph.base.padding import stored_shape
from featgraph.cuda.driver import address_of
from featgraph.cuda.values import DeviceValues, Filled, Reordered, host_values
from featgraph.graph import Graph
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.devices.protocol import Device, Values
from featgraph.runtime.streaming.needs import (
    Needs,
    buffers_in,
    is_of_edges,
    least_room,
    shown,
)
from featgraph.runtime.streaming.ring import PinnedArray, Ring, pinned_of
from featgraph.runtime.streaming.slices import SlicedSweeps

__all__ = ["Placement"]

Array = Any
#: All placements of the process, which share one limit.
_all: weakref.WeakSet[Placement] = weakref.WeakSet()


class Placement:
    """Decides where arrays of one graph, and edge values of its States, are placed.

    Parameters
    ----------
    arrays : GraphArrays
        The arrays of the graph.
    device : Device
        A GPU.
    limit : int
        Most bytes on the GPU of all graphs and States of the process together.

    Attributes
    ----------
    is_streamed : bool
        Whether new arrays of edges are in host memory.
    """

    def __init__(self, arrays: Any, device: Device, limit: int) -> None:
        self._arrays = weakref.ref(arrays)
        self.device, self.limit = device, limit
        self.is_streamed = False
        #: `Places` of a State -> use -> bytes on the GPU.
        self._holders: weakref.WeakKeyDictionary[Any, dict[str, int]] = (
            weakref.WeakKeyDictionary()
        )
        #: Use -> bytes on the GPU of arrays of the graph.
        self._of_graph: dict[str, int] = {}
        #: Uses, in either, that are arrays of edges.
        self._in_edges: set[str] = set()
        self._ring: Ring | None = None
        self._ring_bytes = 0
        _all.add(self)

    # -- accounting

    @property
    def taken(self) -> int:
        """Bytes on the GPU of the graph, its States and the buffers."""
        held = [*list(self._holders.values()), self._of_graph]
        return self._ring_bytes + sum(sum(each.values()) for each in held)

    def _room(self) -> int:
        """Return the number of bytes that the limit leaves."""
        return self.limit - sum(placement.taken for placement in list(_all))

    def reserve(self, holder: Any, needs: Needs) -> bool:
        """Reserve the memory that a kernel needs for a State; False if it cannot fit.

        If the arrays of edges do not fit, all of the graph and its States move to host
        memory. No array is allocated on the GPU here.

        Parameters
        ----------
        holder : Places
            The owner of the State's values, which count while it lives.
        needs : Needs
        """
        own, of_graph = self._holders.setdefault(holder, {}), self._of_graph
        stays, edges = (_missing(n, own, of_graph) for n in (needs.stays, needs.edges))
        if not self.is_streamed and self._lacks(stays, edges):
            self._make_room()
            if self._lacks(stays, edges):
                self._stream()
        if self.is_streamed:
            edges = {}
            # Sweeps of slices need offsets within a slice: see `CutRows.rebased`.
            size = 4 * (self._graph.vertex_count + 1)
            rows = {f"{n} of slices": size for n in stays | of_graph if _is_offsets(n)}
            stays |= _missing(rows, of_graph)
            if self._lacks(stays):
                self._make_room()
            if self._lacks(stays, least_room() * (self._ring is None)):
                return False
        self._in_edges |= edges.keys()
        for name, size in (stays | edges).items():
            (of_graph if _is_of_graph(name) else own)[name] = size
        return True

    def _stream(self) -> None:
        """Move all arrays of edges to host memory, and place new ones there.

        Kernel entries that are bound to the arrays on the GPU are dropped.
        """
        self.is_streamed = True
        arrays = self._arrays()
        if arrays is not None:
            arrays.move_edges()
        for holder in list(self._holders):
            if holder is not arrays:
                holder.move_edges()
        for counted in [self._of_graph, *self._holders.values()]:
            for name in self._in_edges & counted.keys():
                del counted[name]
        gc.collect()

    def shortage(self, needs: Needs) -> DeviceMemoryError:
        """Return the error to raise if `reserve` has returned False."""
        stays = sum(needs.stays.values())
        taken = self.limit - self._room()
        return DeviceMemoryError(
            "values of vertices and offsets of rows do not fit the memory limit",
            where="fg.config.memory_limit",
            got=f"{shown(stays)} for them and {shown(least_room())} for buffers, "
            f"beside {shown(taken)} that other States and graphs have",
            expected=f"at most {shown(self.limit)}",
            fix="raise the limit, use a narrower dtype, fewer features or ranks, or "
            "target='cpu'",
        )

    def _lacks(self, *sizes: dict[str, int] | int) -> bool:
        """Whether the limit leaves less memory than all of these sizes together."""
        wanted = sum(s if isinstance(s, int) else sum(s.values()) for s in sizes)
        return wanted > self._room()

    def _make_room(self) -> None:
        """Release the buffers of all graphs, and States that are garbage."""
        for placement in list(_all):
            placement.release_buffers()
        gc.collect()

    def forget_graph(self) -> None:
        """Release buffers and accounts of the graph, whose arrays have changed."""
        self.release_buffers()
        self._of_graph.clear()

    def release_buffers(self) -> None:
        """Release the buffers; the next sweep allocates new ones."""
        if self._ring is not None:
            self.device.synchronize()
            self._ring, self._ring_bytes = None, 0

    def _fits(self, counted: dict[str, int], name: str, size: int) -> bool:
        """Whether an array of edges is placed on the GPU; if so, count its bytes."""
        if self.is_streamed:
            return False
        if name not in counted:
            if self._lacks(size):
                return False
            counted[name] = size
        self._in_edges.add(name)
        return True

    # -- arrays of the graph

    @property
    def _graph(self) -> Graph:
        arrays = self._arrays()
        if arrays is None:
            raise ReferenceError("the arrays of the graph have been deleted")
        return arrays.graph  # type: ignore[no-any-return]

    def graph_array(self, name: str) -> Array:
        """Return a new array of the graph, on the GPU or page-locked.

        `name` is its name in generated code.
        """
        graph = self._graph
        if not is_of_edges(name):
            # Offsets that were not reserved are read by the search for due vertices
            # only, which may read host memory.
            is_counted = name in self._of_graph or not _is_offsets(name)
            size = 8 * (graph.vertex_count + 1)
            if self.is_streamed and not is_counted and 4 * size > self._room():
                return self._pin(host_graph_array(graph, name))
            made = self.device.graph_array(graph, name)
            self._of_graph[name] = made.size * made.dtype.itemsize
            return made
        several = 2 if name.startswith("incident") else 1
        size = several * graph.edge_count * 8
        if self._fits(self._of_graph, name, size):
            return self.device.graph_array(graph, name)
        return self._pin(host_graph_array(graph, name))

    # -- values of edges

    def upload(
        self, holder: Any, name: str, values: Values, memory: Array | None = None
    ) -> Array:
        """Return an array with values of edges, on the GPU or page-locked.

        `memory` is reused if it is on the GPU and fits. `name` is the use of the array.
        """
        shape, dtype = tuple(values.shape), values.dtype
        stored = stored_shape(shape, dtype)
        size = math.prod(stored) * dtype.itemsize
        if self._fits(self._counted(holder, name), name, size):
            is_there = memory is not None and pinned_of(memory) is None
            return self.device.rows.upload(values, memory if is_there else None)
        given = _on_host(values)
        if stored != shape:
            padded = np.zeros(stored, dtype)
            padded[:, : shape[1]] = given
            given = padded
        return self._pin(given)

    def empty(
        self, holder: Any, name: str, shape: tuple[int, ...], dtype: str
    ) -> Array:
        """Return an array for values of edges: on the GPU, or page-locked zeros."""
        stored = stored_shape(shape, dtype)
        size = math.prod(stored) * np.dtype(dtype).itemsize
        if self._fits(self._counted(holder, name), name, size):
            return self.device.rows.empty(shape, dtype)
        return self._pin(np.zeros(stored, dtype))

    def _counted(self, holder: Any, name: str) -> dict[str, int]:
        """Return the account, by use, in which an array of edges counts."""
        if _is_of_graph(name):
            return self._of_graph
        return self._holders.setdefault(holder, {})

    def pinned_copy(self, array: Array) -> Array:
        """Return a page-locked copy of an array; a page-locked array itself."""
        if pinned_of(array) is not None:
            return array
        return self._pin(self.device.download(array))

    def _pin(self, values: npt.NDArray[Any]) -> Array:
        """Return a page-locked copy of host values, as an array for kernels."""
        made = PinnedArray(tuple(values.shape), values.dtype)
        made.put(values)
        return made.whole()

    def held(self, array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
        """Return a host view of edge values in host memory; None for those on the GPU.

        Waits for the device.
        """
        pinned = pinned_of(array)
        if pinned is None:
            return None
        self.device.synchronize()
        host = pinned.host
        return host if pinned.shape == shape else host[:, : shape[1]]

    def touched(self, array: Array) -> None:
        """Advance the version of values of edges that the caller has written.

        Slices of them in buffers are outdated.
        """
        pinned = pinned_of(array)
        if pinned is not None:
            pinned.version += 1

    def copy(self, target: Array, source: Array) -> bool:
        """Copy values of edges; return False if both arrays are on the GPU."""
        to, of = pinned_of(target), pinned_of(source)
        if to is None and of is None:
            return False
        size = source.size * source.dtype.itemsize
        streams = self.device.recorder.streams  # type: ignore[union-attr]
        streams.copy_any(address_of(target), address_of(source), size)
        if to is not None:
            to.version += 1
        return True

    def clear(self, array: Array) -> bool:
        """Set all elements to zero; return False if the array is on the GPU."""
        pinned = pinned_of(array)
        if pinned is None:
            return False
        self.device.synchronize()
        pinned.put(np.zeros(pinned.shape, pinned.dtype))
        return True

    # -- slices

    def sliced_sweeps(self, bound: Any) -> SlicedSweeps:
        """Return the sliced sweeps of a kernel's phases on a State."""
        return SlicedSweeps(bound, self.device, self)

    def forget(self) -> None:
        """Mark the buffers as empty, after waiting for copies to them."""
        if self._ring is not None:
            self.device.synchronize()
            self._ring.forget()

    def ring(self) -> Ring:
        """Return the buffers, allocated in the memory that the limit leaves."""
        if self._ring is None:
            size, count = buffers_in(self._room())
            memories = [self.device.empty((size,), "uint8") for _ in range(count)]
            for memory in memories:  # lanes without an edge load entries they drop
                self.device.fill(memory, 0)
            self._ring = Ring(self.device.recorder, memories)
            self._ring_bytes = size * (count + 1)
        return self._ring


def _missing(wanted: Mapping[str, int], *known: Mapping[str, int]) -> dict[str, int]:
    """Return the entries of `wanted` that are in none of the others."""
    return {n: s for n, s in wanted.items() if not any(n in each for each in known)}


def _is_of_graph(name: str) -> bool:
    """Whether a use belongs to the graph, and not to one State."""
    shared = name.startswith("shared ") or name.endswith(" of slices")
    return shared or _is_offsets(name) or is_of_edges(name)


def _is_offsets(name: str) -> bool:
    """Whether an array has the offsets of rows."""
    return name.endswith("_offsets")


def _on_host(values: Values) -> npt.NDArray[Any]:
    """Return values of any kind as a host array."""
    if isinstance(values, Filled):
        made = np.full(values.shape, values.value)
        if values.apart is not None:
            made.reshape(-1)[values.apart.places] = values.apart.values
        return made
    if isinstance(values, Reordered):
        return values.on_host()
    if isinstance(values, DeviceValues):
        return np.asarray(host_values(values))
    return values

"""The CUDA target: arrays of graphs, and launches of folded kernels.

`CudaDevice.launch` finds the grid of an entry, allocates its scratch memory and calls
the driver. `CudaRows` copies values of properties to and from rows that are padded to
whole vector loads of a lane.

Kernels of schedules that divide edges evenly sweep a list of vertices with a prefix sum
of their degrees. Three small kernels build the list on the device, in the order of
vertices (`CudaDevice._list_rows`): one counts vertices and edges a warp, `add_up` scans
the counts, and one writes the list. The first and the last sweep rows, and are printed
by the folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.padding import stored_shape
from featgraph.cuda.dialect import cuda, int32, int64, kernel, uint32
from featgraph.cuda.foreign import strided
from featgraph.cuda.values import DeviceValues, Entries, Filled, Reordered, name_of
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import HUB_DEGREE, LONG_ROW, hub_degree_of, rows_with
from featgraph.fold.schedules.mapping import REDUCE_THREADS, LaunchSizes
from featgraph.graph import Graph
from featgraph.graph.views.structure import is_built_on_gpu
from featgraph.program.active import word_count
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.devices.cuda_arrays import BLOCK, CudaArrays, block_count
from featgraph.runtime.devices.cuda_sets import CudaKeys, CudaSets
from featgraph.runtime.devices.cuda_trees import CudaTrees
from featgraph.runtime.devices.fixed_trees import Subtree
from featgraph.runtime.devices.gpu_arrays import (
    built_array,
    joined_parts,
    longest_first,
    parts_of_rows,
)
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.devices.protocol import (
    BoundEntry,
    DeviceGraph,
    GraphSize,
    Values,
)
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["CudaDevice", "cuda_device"]

Shape = tuple[int, ...]
#: Blocks that copy rows.
_MOST_BLOCKS = 1 << 14


class CudaRows:
    """Values of properties in arrays of a GPU, the rows of which may be padded.

    Padding starts as zeros. Kernels may write to it, and no result depends on it.
    """

    def __init__(self, arrays: CudaArrays) -> None:
        self._arrays = arrays

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Return an uninitialized array for values of a shape."""
        stored = stored_shape(shape, dtype)
        if stored == shape:
            return self._arrays.empty(shape, dtype)
        return self._arrays.working_memory(stored, dtype)

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array with these values, in `memory` if it fits."""
        shape, dtype = tuple(values.shape), values.dtype
        stored = stored_shape(shape, dtype)
        if stored == shape:
            return self._arrays.upload(values, memory)
        if isinstance(values, Reordered):
            values = self._arrays.reordered(values)
        if isinstance(values, DeviceValues):
            return self._arrays.upload(DeviceValues(values.array), memory)
        if isinstance(values, Filled):
            apart = values.apart and _stored_apart(values.apart, shape[1], stored[1])
            return self._arrays.upload(Filled(values.value, stored, apart), memory)
        is_alike = memory is not None and (memory.shape, memory.dtype) == (
            stored,
            dtype,
        )
        made = memory if is_alike else self.empty(shape, name_of(dtype))
        self._copy(self._arrays.upload(values), made, shape)
        return made

    def extended(self, values: Values, room: int, memory: Array | None = None) -> Array:
        """Return an array of `room` rows, the first of which have these values."""
        shape = (room, *values.shape[1:])
        if isinstance(values, Filled):
            return self.upload(Filled(values.value, shape, values.apart), memory)
        stored = stored_shape(shape, values.dtype)
        if memory is None or (memory.shape, memory.dtype) != (stored, values.dtype):
            memory = self._arrays.working_memory(stored, name_of(values.dtype))
        if values.shape[0]:
            self.upload(values, _first(memory, values.shape[0]))
        return memory

    def download(self, array: Array, shape: Shape) -> npt.NDArray[Any]:
        """Return values of a shape on the host; wait for the device."""
        array = _first(array, shape[0])
        if tuple(array.shape) == shape:
            return self._arrays.download(array)
        dense = self._arrays.empty(shape, name_of(array.dtype))
        self._copy(array, dense, shape)
        return self._arrays.download(dense)

    def held(self, array: Array, shape: Shape) -> DeviceValues:
        """Return an array in the shape of its values, without a copy."""
        array = _first(array, shape[0])
        return DeviceValues(array, None if tuple(array.shape) == shape else shape[1])

    def put(self, array: Array, ids: Any, values: Any) -> None:
        """Write some rows; those of repeated indices have the last values."""
        width = tuple(array.shape[1:])
        if width:
            width = np.shape(values)[-1:] or width
        rows, last = np.unique(np.asarray(ids, np.int64)[::-1], return_index=True)
        given = np.broadcast_to(values, (len(ids), *width))[::-1][last]
        places = rows * array.shape[1] if width else rows
        if width:
            places = (places[:, None] + np.arange(*width)).ravel()
        given = np.ascontiguousarray(given, array.dtype).ravel()
        self._arrays.place(array, Entries(places, given))

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of `source` with a mark of 1 to `target`."""
        count = source.shape[0]
        if source.size == 0:
            return
        shape = count, source.size // count
        rows = (a if a.ndim == 2 else a.reshape(shape) for a in (source, target))
        blocks = min(block_count(count), _MOST_BLOCKS)
        self._arrays.launches(cuda_loops.copy_rows, blocks, BLOCK, (marks, *rows))

    def _copy(self, source: Array, target: Array, shape: Shape) -> None:
        """Copy values between padded and dense rows; the superstep is not recorded."""
        self._arrays.driver.note(*OPAQUE)
        blocks = min(block_count(shape[0] * shape[1]), _MOST_BLOCKS)
        given = source, target, shape[1]
        self._arrays.launches(cuda_loops.copy_features, blocks, BLOCK, given)


def _first(array: Array, count: int) -> Array:
    """Return a view of the first rows of an array."""
    rows, *item = array.shape
    if rows == count:
        return array
    return strided(array, (count, *item), array.strides)


def _stored_apart(entries: Entries, width: int, stride: int) -> Entries:
    """Return entries with flat indices into padded rows of `stride` elements."""
    rows, features = np.divmod(entries.places, width)
    return Entries(rows * stride + features, entries.values)


#: Most blocks of the counting and the listing kernel; each warp scans a range of words.
MOST_BLOCKS = 1024
#: Threads of the single block of `add_up`.
THREADS = 256


@kernel(cache=True)
def add_up(counts, edges, warps, share_begins, share_count):  # type: ignore[no-untyped-def]
    """Replace two arrays of counts by their exclusive prefix sums; one block.

    `counts` and `edges` have the numbers of vertices and edges of each of the `warps`.
    The total of vertices goes to ``share_count[0]``, the total of edges to the end of
    `share_begins`.
    """
    thread = uint32(cuda.threadIdx.x)
    box_count = cuda.shared.array(THREADS, int32)
    box_edges = cuda.shared.array(THREADS, int64)
    # Each thread sums the counts of consecutive warps.
    each = (warps + THREADS - 1) // THREADS
    first = min(int64(thread) * each, warps)
    last = min(first + each, warps)
    count, total = int32(0), int64(0)
    for place in range(first, last):
        count += counts[uint32(place)]
        total += edges[uint32(place)]
    box_count[thread] = count
    box_edges[thread] = total
    cuda.syncthreads()
    # Inclusive prefix sums over the threads, in log2(THREADS) steps.
    offset = uint32(1)
    while offset < THREADS:
        more, further = int32(0), int64(0)
        if thread >= offset:
            more = box_count[uint32(thread - offset)]
            further = box_edges[uint32(thread - offset)]
        cuda.syncthreads()
        box_count[thread] += more
        box_edges[thread] += further
        cuda.syncthreads()
        offset = uint32(offset + offset)
    if thread == THREADS - 1:
        all_rows = box_count[thread]
        share_count[0] = all_rows
        share_begins[uint32(all_rows)] = box_edges[thread]
    # Sums over all earlier threads; the counts of this thread follow one by one.
    count = int32(box_count[thread] - count)
    total = box_edges[thread] - total
    for place in range(first, last):
        own_count, own_edges = counts[uint32(place)], edges[uint32(place)]
        counts[uint32(place)] = count
        edges[uint32(place)] = total
        count += own_count
        total += own_edges


Array = Any
Words = Any
#: Most blocks that combine partial results of a reduce: 16 for each of the 132
#: multiprocessors of an H100 or H200, which all run at a time.
_FINISHING_BLOCKS = 2112
#: Vertices are packed if at most one in this many is due: for one lane per vertex, and
#: for several. A road-like graph of 4M vertices with one in 32 due took 31 us packed
#: and 53 us plain, with one in 8 the same. With eight lanes per vertex packing saves
#: only the blocks that have no work, 20 us on 4M vertices (NVIDIA H200).
_PACKED_ALONE, _PACKED_SHARED = 16, 512
#: The same for the sources of a push: without packing, a push from ten of 8.8M and
#: 15.6M vertices with 16 lanes each took 360 and 820 us (NVIDIA H100).
_PACKED_SOURCES = 64
#: Foldmaps restricted to at most this fraction of the vertices sweep a list of them.
_LISTED = 3 / 4
#: Names of source sets among the arguments of a kernel.
_SOURCES = ("sources", "active_sources")


def _one_in(phase: Phase) -> int:
    """Return n: a phase packs vertices if it sweeps at most one in n."""
    if phase.kind.pushes:
        return _PACKED_SOURCES
    return _PACKED_ALONE if phase.mapping.lanes_per_vertex == 1 else _PACKED_SHARED


def _most_swept(phase: Phase, graph: GraphSize, count: int) -> float:
    """Return an upper estimate of the number of vertices that a phase sweeps.

    A push sweeps the active vertices. With hubs the number is unknown: inf.
    """
    if phase.kind.pushes:
        return count
    if phase.mapping.hubs:
        return math.inf
    # A rank may have no vertices.
    return count * (1 + graph.edge_count / max(graph.vertex_count, 1))


class CudaDevice(CudaArrays):
    """The CUDA target: arrays of numba-cuda, launches by the driver."""

    name = "cuda"
    is_scarce = True

    def __init__(self) -> None:
        super().__init__()
        self.sets, self.rows = CudaSets(self), CudaRows(self)
        self.keys = CudaKeys(self, self.sets)
        self.trees = CudaTrees(self)
        # Kernels of hubs and of all other vertices run concurrently. Both streams are
        # blocking ones, which the default stream orders against all other work.
        self._streams = {"hubs": cuda.stream(), "main": cuda.stream()}

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code, on the device."""
        if is_built_on_gpu(graph):
            found = built_array(graph, name)
            if found is not None:
                return found
        if name == "upper_hubs":
            return self.upload(long_oriented_rows(graph))
        of = rows_with(name)
        kind = name.split(" ")[0]
        if of is not None and kind in {of.hubs, of.hub_parts, of.joined_parts}:
            degree = np.diff(host_graph_array(graph, of.offsets))
            hubs = np.flatnonzero(degree >= (hub_degree_of(name) or HUB_DEGREE))
            listed = {of.hubs: longest_first, of.hub_parts: parts_of_rows}
            cut = listed.get(kind, joined_parts)
            return self.upload(cut(hubs, degree[hubs]))
        return self.upload(host_graph_array(graph, name))

    def reduce_rows(self, graph: DeviceGraph, phase: Phase) -> int:
        """Return the number of rows for partial results: blocks, or nodes of a tree."""
        if phase.in_a_tree:
            words = word_count(graph.vertex_count)
            return max(Subtree(0, words, words).row_count, 1)
        size = graph.vertex_count, graph.edge_count, REDUCE_THREADS
        sizes = LaunchSizes(*size, dict[str, Any]().__getitem__, reduces=True)
        return phase.schedule.grid(phase.mapping, sizes)

    def frontier_form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: GraphSize,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return the frontier form of the kernel for a phase."""
        if count is not None and plan.can_take("packed", phase):
            one_in = _one_in(phase)
            if _most_swept(phase, graph, count) * one_in <= graph.vertex_count:
                return "packed"
        return "listed" if is_listed and plan.can_take("listed", phase) else "plain"

    def list_vertices(
        self, vertices: npt.NDArray[np.int32], count: int
    ) -> Array | None:
        """Return some of `count` vertices on the GPU; None if they are none or many."""
        is_short = 0 < vertices.size <= _LISTED * count
        return self.upload(vertices) if is_short else None

    def launch(self, bound: BoundEntry, given: Mapping[str, Any]) -> None:
        """Launch one entry of a kernel, without waiting for it."""
        values = bound.fill(given)
        if bound.grid is not None:
            function, blocks, block, stream = bound.grid
            if blocks:
                self.launches(function, blocks, block, values, stream)
            return
        entry, mapping = bound.entry, bound.phase.mapping
        block = entry.block or BLOCK
        blocks = self._grid(bound, values, block)
        areas = entry.scratch or entry.parts
        is_fixed = bound.has_fixed_grid and not areas
        if blocks == 0:
            bound.grid = (None, 0, 0, 0) if is_fixed else None
            return
        if bound.lists:
            self._list_rows(bound, values)
        for name, (dtype, shape) in entry.scratch.items():
            groups = blocks * block // mapping.lanes_per_vertex
            # Kernels of hubs run concurrently with those of other vertices: each has
            # memory of its own.
            own = f"{name} of {entry.role}"
            memory = self._scratch_area(own, (groups, *shape), dtype)
            values[bound.place[name]] = memory
        for name, (dtype, shape) in entry.parts.items():
            [parts] = entry.arrays
            count = int(values[bound.place[parts.name]].size) // parts.each
            memory = self.own.area(name, (count, *shape), dtype, self.working_memory)
            values[bound.place[name]] = memory
        stream = self._streams[entry.role] if mapping.hubs else 0
        self.launches(bound.function, blocks, block, values, stream)
        if is_fixed:
            bound.grid = bound.function, blocks, block, stream

    def _grid(self, bound: BoundEntry, values: list[Any], block: int) -> int:
        """Return the number of blocks of an entry; 0 if there is nothing to sweep."""
        entry, phase = bound.entry, bound.phase
        if entry.schedule is None:
            entries = int(values[bound.place["partials"]].shape[1])
            return min(entries, _FINISHING_BLOCKS)
        is_reduce = phase.kind.reduces and not phase.in_a_tree
        sizes = LaunchSizes(
            bound.vertex_count, bound.edge_count,
            REDUCE_THREADS if is_reduce else block,
            lambda name: values[bound.place[name]],
            bound.kernel.plan.frontier_form, entry.role, is_reduce,
            entry.strides, entry.scratch.values(), self.multiprocessors,
        )  # fmt: skip
        return entry.schedule.grid(phase.mapping, sizes)

    def _list_rows(self, bound: BoundEntry, values: list[Any]) -> None:
        """List the sources that an entry sweeps, with prefix sums of their degrees.

        The arrays become arguments of the entry.
        """
        words = [values[bound.place[n]] for n in _SOURCES if n in bound.place]
        count = bound.vertex_count
        offset = "int64" if bound.kernel.plan.traits.wide_offsets else "int32"
        rows = self._scratch_area("share_rows", (max(count, 1),), "int32")
        begins = self._scratch_area("share_begins", (count + 1,), offset)
        size = self._scratch_area("share_count", (1,), "int32")
        blocks = min(block_count(count), MOST_BLOCKS)
        warps = blocks * BLOCK // 32
        counts = self._scratch_area("share counts", (warps,), "int32")
        edges = self._scratch_area("share edges", (warps,), "int64")
        # If all vertices are sources, the kernels read no set: any array will do.
        own = (words or [values[bound.place["due"]]])[0], not words, count
        sums, (counting, listing) = (counts, edges), bound.lists
        counted = (*own, *sums, *counting.rows)
        self.launches(counting.function, blocks, BLOCK, counted)
        totals = (*sums, np.int64(warps), begins, size)
        self.launches(add_up, 1, THREADS, totals)
        listed = (*own, *sums, rows, begins, *listing.rows)
        self.launches(listing.function, blocks, BLOCK, listed)
        for name, array in (
            ("share_rows", rows),
            ("share_begins", begins),
            ("share_count", size),
        ):
            values[bound.place[name]] = array

    def _scratch_area(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return uninitialized memory of this thread, at least of a shape."""
        return self.own.area(name, shape, dtype, self.empty)

    @cached_property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of the GPU."""
        return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)

    def synchronize(self) -> None:
        """Wait for launched work."""
        cuda.synchronize()


def long_oriented_rows(graph: Graph) -> npt.NDArray[np.int32]:
    """Return the long rows of the oriented graph, which blocks sweep, longest first."""
    length, work = np.diff(graph.oriented.upper.row_offsets), graph.oriented.work
    rows = np.flatnonzero((length >= LONG_ROW) & (work > length + 1))
    return longest_first(rows, work[rows])


@cache
def cuda_device() -> CudaDevice:
    """Return the device of this process."""
    return CudaDevice()

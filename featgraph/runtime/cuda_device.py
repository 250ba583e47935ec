"""The CUDA target's arrays, bitvectors and launches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cuda import cuda, launcher
from featgraph.errors import DeviceError, DeviceMemoryError
from featgraph.fold.choose import PIECE_BYTES
from featgraph.fold.emit import Entry
from featgraph.fold.kernel import Kernel
from featgraph.fold.plan import Phase
from featgraph.graph import Graph
from featgraph.program.active import word_count
from featgraph.runtime import cuda_loops
from featgraph.runtime.device import host_graph_array

__all__ = ["CudaDevice", "cuda_device"]

Array = Any
Words = Any
_BLOCK = 256
#: Scratch areas in global memory are kept below this; fewer blocks run then.
_SCRATCH_BYTES = 1 << 29
#: Blocks of a reduce: fixed, so that its result does not depend on the device.
_REDUCE_BLOCKS = 256


def _blocks(threads: int, block: int = _BLOCK) -> int:
    return max(1, -(-threads // block))


def _aligned(array: Array) -> Array:
    """Return a new array, which kernels load pieces of rows from.

    The driver aligns what it allocates to 256 bytes; a memory manager that somebody has
    put in its place might not.
    """
    if array.size and array.__cuda_array_interface__["data"][0] % PIECE_BYTES:
        raise DeviceError(
            "memory of the device is not aligned",
            expected=f"addresses that are multiples of {PIECE_BYTES}",
            fix="use the memory manager that numba-cuda comes with",
        )
    return array


class CudaDevice:
    """Device arrays of numba-cuda, all work on the default stream."""

    name = "cuda"

    def __init__(self) -> None:
        self._total = cuda.to_device(np.zeros(1, np.int64))
        self._scratch: dict[str, Array] = {}
        self._pools: dict[int, list[Words]] = {}
        # Hubs and all other vertices run side by side. Both streams wait for the
        # default one and it for them.
        self._streams = {"hubs": cuda.stream(), "main": cuda.stream()}

    # -- arrays

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """Copy a host array to the device."""
        try:
            made = cuda.to_device(np.ascontiguousarray(array))
        except Exception as error:
            raise self._memory_error(array.nbytes, error) from error
        return _aligned(made)

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a device array to the host."""
        return array.copy_to_host()  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""
        try:
            return _aligned(cuda.device_array(shape, dtype))
        except Exception as error:
            raise self._memory_error(
                int(np.prod(shape)) * np.dtype(dtype).itemsize, error
            ) from error

    def _memory_error(self, wanted: int, error: Exception) -> Exception:
        if "MEMORY" not in str(error).upper():
            return error
        free, total = cuda.current_context().get_memory_info()
        return DeviceMemoryError(
            "the device has not enough memory",
            got=f"{wanted / 1e9:.2f} GB asked for",
            expected=f"at most {free / 1e9:.2f} GB, of {total / 1e9:.0f} GB",
            fix="use a narrower dtype, fewer features, or target='cpu'",
        )

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        flat = array.reshape(array.size) if array.ndim > 1 else array
        blocks = min(_blocks(flat.size), 1 << 12)
        launcher(cuda_loops.fill, blocks, _BLOCK)(
            flat, np.dtype(array.dtype).type(value)
        )

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""
        target.copy_to_device(source)

    # -- bitvectors

    def _words(self, count: int) -> Words:
        """Return a bitvector that nobody else holds.

        Freeing device memory waits for the device, so bitvectors are kept for the next
        superstep.
        """
        pool = self._pools.setdefault(count, [])
        for words in pool:
            if sys.getrefcount(words) == 3:  # the pool, this name, the call
                return words
        pool.append(cuda.device_array(count, np.uint32))
        return pool[-1]

    def empty_words(self, count: int) -> Words:
        """Return a bitvector of no vertices."""
        words = self._words(count)
        self.fill(words, 0)
        return words

    def _combine(self, function: Any, a: Words, b: Words) -> Words:
        out = self._words(a.size)
        launcher(function, _blocks(a.size), _BLOCK)(a, b, out)
        return out

    def words_or(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""
        return self._combine(cuda_loops.words_or, a, b)

    def words_and(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""
        return self._combine(cuda_loops.words_and, a, b)

    def words_without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""
        return self._combine(cuda_loops.words_without, a, b)

    def count(self, words: Words) -> int:
        """Return the number of set bits; waits for the device."""
        self.fill(self._total, 0)
        launcher(cuda_loops.count_bits, _blocks(words.size), _BLOCK)(words, self._total)
        return int(self._total.copy_to_host()[0])

    def expand(self, active: Words, arrays: Mapping[str, Array]) -> Words:
        """Return `active` with the targets of its out-edges."""
        due = self._words(active.size)
        due.copy_to_device(active)
        offsets, targets = arrays["out_offsets"], arrays["out_targets"]
        count = offsets.size - 1
        blocks = min(_blocks(count * 32), 1 << 16)
        launcher(cuda_loops.expand, blocks, _BLOCK)(
            active, due, offsets, targets, count
        )
        return due

    def targets(self, edge_state: Array, arrays: Mapping[str, Array]) -> Words:
        """Return the targets of the edges that passed last."""
        offsets = arrays["in_offsets"]
        count = offsets.size - 1
        words = self.empty_words(word_count(count))
        launcher(cuda_loops.collect_targets, _blocks(count), _BLOCK)(
            edge_state, offsets, words, count
        )
        return words

    def refresh_vertices(self, words: Words, next_: Array, current: Array) -> None:
        """Copy the rows of the vertices in `words`."""
        rows = (current.shape[0], current.size // max(current.shape[0], 1))
        blocks = min(_blocks(current.size), 1 << 14)
        launcher(cuda_loops.refresh_vertices, blocks, _BLOCK)(
            words, next_.reshape(rows), current.reshape(rows)
        )

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, arrays: Mapping[str, Array]
    ) -> None:
        """Copy the rows of the out-edges of the vertices in `words`."""
        if current.size == 0:
            return
        rows = (current.shape[0], current.size // current.shape[0])
        offsets = arrays["out_offsets"]
        count = offsets.size - 1
        blocks = min(_blocks(count * 32), 1 << 16)
        launcher(cuda_loops.refresh_edges, blocks, _BLOCK)(
            words,
            next_.reshape(rows),
            current.reshape(rows),
            offsets,
            arrays["out_edges"],
            count,
        )

    # -- graphs and launches

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code, on the device."""
        if name in {"in_hubs", "out_hubs"}:
            from featgraph.runtime.launcher import HUB_DEGREE

            degree = graph.in_degree if name == "in_hubs" else graph.out_degree
            hubs = np.flatnonzero(degree >= HUB_DEGREE)
            longest_first = np.argsort(-degree[hubs], kind="stable")
            return self.upload(hubs[longest_first].astype(np.int32))
        return self.upload(host_graph_array(graph, name))

    def reduce_rows(self, entry: Entry, graph: Graph) -> int:
        """Return how many partial results a reduce leaves."""
        return _REDUCE_BLOCKS

    def launch(
        self, kernel: Kernel, entry: Entry, graph: Graph, arguments: dict[str, Any]
    ) -> None:
        """Launch one entry of a kernel; does not wait for it."""
        phase = kernel.plan.phases[entry.phase]
        block = entry.block or _BLOCK
        stream = self._streams[entry.role] if phase.mapping.hubs else 0
        blocks = self._grid(entry, phase, graph, arguments, block)
        if blocks == 0:
            return
        groups = (
            blocks
            * block
            // (phase.mapping.span if phase.mapping.schedule != "thread" else 1)
        )
        for name, shape in entry.scratch.items():
            arguments[name] = self._scratch_area(
                name, (groups, *shape), kernel.plan.real
            )
        launcher(kernel.function(entry), blocks, block, stream)(
            *(arguments[name] for name in entry.arguments)
        )

    def _grid(
        self,
        entry: Entry,
        phase: Phase,
        graph: Graph,
        arguments: dict[str, Any],
        block: int,
    ) -> int:
        if entry.role == "hubs":
            return int(arguments["hubs"].size)
        if entry.role == "finish":
            return _blocks(phase.width, block)
        if phase.kind == "reduce":
            return _REDUCE_BLOCKS
        span = 1 if phase.mapping.schedule == "thread" else phase.mapping.span
        blocks = _blocks(graph.vertex_count * span, block)
        if entry.scratch:
            item = 8
            each = sum(int(np.prod(s)) for s in entry.scratch.values()) * item
            blocks = max(
                1, min(blocks, _SCRATCH_BYTES // max(each * (block // span), 1))
            )
        return min(blocks, (1 << 31) - 1)

    def _scratch_area(self, name: str, shape: tuple[int, ...], real: str) -> Array:
        key = f"{name} {shape[1:]} {real}"
        held = self._scratch.get(key)
        if held is None or held.shape[0] < shape[0]:
            self._scratch[key] = held = self.empty(shape, real)
        return held

    def synchronize(self) -> None:
        """Wait for launched work."""
        cuda.synchronize()


@cache
def cuda_device() -> CudaDevice:
    """Return the device of this process."""
    return CudaDevice()

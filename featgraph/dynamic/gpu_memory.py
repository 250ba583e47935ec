"""Memory of the GPU, as pools, queues and batches of a dynamic graph use it.

`GpuMemory` has the functions of `rows.HostMemory`. `has_copies` and `orient_rows` pass
over all edges of a pool. `own_kernels` lists the kernels of batches, which ``featgraph
warm`` stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from featgraph.base.padding import stored_shape
from featgraph.cuda import arrays as memory
from featgraph.cuda import foreign, sorting
from featgraph.cuda.driver import address_of
from featgraph.cuda.memory import Strided
from featgraph.cuda.values import offset_dtype
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import rows_cuda as reads
from featgraph.dynamic import triangles_cuda as corners
from featgraph.dynamic.batches import on_host
from featgraph.dynamic.rows import HostMemory
from featgraph.graph.building.gpu_edge_kernels import take
from featgraph.graph.building.gpu_edges import marked, taken
from featgraph.graph.building.gpu_oriented import GpuOriented, as_type

__all__ = [
    "GpuMemory", "begins_of", "bits_of", "extended", "has_copies", "moved",
    "orient_rows", "own_kernels", "part_of", "pieces", "uploaded", "zeros",
]  # fmt: skip

#: The GPU checks host arrays from this length on: they have to go there anyway.
LEAST_MOVED = 1 << 14


def uploaded(array: Any) -> Any:
    """Return a copy of a host array on the GPU, or a GPU array itself."""
    return memory.upload(array) if isinstance(array, np.ndarray) else array


def moved(values: Any) -> Any:
    """Return a copy on the GPU of a long host array of numbers; else the values."""
    is_plain = type(values) is np.ndarray and values.dtype.kind in "iuf"
    if not is_plain or not values.dtype.isnative or values.size < LEAST_MOVED:
        return values
    return memory.upload(np.ascontiguousarray(values))


def part_of(array: Any, first: int, count: int) -> Any:
    """Return `count` entries from `first` on: a view of a GPU array, a host copy."""
    if isinstance(array, np.ndarray):
        return array[first : first + count].copy()
    item = array.dtype.itemsize
    return foreign.strided(array, (int(count),), (item,), int(first) * item)


def bits_of(array: Any) -> Any:
    """Return an array as flat unsigned integers."""
    item = array.dtype.itemsize
    return memory.piece_of(array, 0, array.size * item, item)


def zeros(size: int, dtype: Any, width: int | None = None) -> Any:
    """Return an array of zeros; with `width`, of rows padded as kernels load them."""
    dtype, shape = np.dtype(dtype), (size,)
    if width is not None:
        shape = stored_shape((size, width), dtype)  # type: ignore[assignment]
    made = memory.filled((prod(shape),), 0, f"u{dtype.itemsize}")
    return made.view(dtype).reshape(shape)


def extended(values: Any, size: int) -> Any:
    """Return values with the last one up to a size."""
    made = memory.empty((size if values.size else 0,), values.dtype)
    memory.launch_over(reads.extend, made.size, values, values.size, made)
    return made


class GpuMemory(HostMemory):
    """Memory of the GPU; calls are asynchronous but for `read`."""

    spare, growth = 1024, 4  # each queue that moves is a copy
    empty: Any = staticmethod(lambda size, dtype: memory.empty((size,), dtype))
    zeros: Any = staticmethod(zeros)
    part: Any = staticmethod(part_of)
    copy: Any = staticmethod(memory.copy)
    write: Any = staticmethod(memory.write)
    copy_of: Any = staticmethod(memory.copy_of)
    placed: Any = staticmethod(uploaded)
    read: Any = staticmethod(on_host)
    bits_of: Any = staticmethod(bits_of)


def pieces(
    shapes: dict[str, tuple[tuple[int, ...], Any]],
) -> tuple[Any, dict[str, Any]]:
    """Return new memory and arrays in it by name, in the order of `shapes`."""
    made, begin = {}, 0
    sizes = {n: prod(s) * np.dtype(t).itemsize for n, (s, t) in shapes.items()}
    block = memory.empty((sum(-(-size // 8) * 8 for size in sizes.values()),), np.uint8)
    for name, (shape, dtype) in shapes.items():
        typed, at = np.dtype(dtype), address_of(block) + begin
        strides = (typed.itemsize * shape[-1], typed.itemsize)[-len(shape) :]
        made[name] = Strided(block, at, shape, strides, typed)
        begin += -(-sizes[name] // 8) * 8
    return block, made


def begins_of(pool: Any, vertex_count: int) -> tuple[Any, int]:
    """Return how many edges are in the rows before each, (V + 1,), and in all."""
    lengths = memory.filled((vertex_count + 1,), 0, np.int32)
    memory.launch_over(
        reads.measure_all, vertex_count, pool.starts, pool.stops,
        part_of(lengths, 0, vertex_count),
    )  # fmt: skip
    at, found = sorting.scanned(lengths)
    return at, int(memory.read(found)[0])


def has_copies(pool: Any, vertex_count: int) -> bool:
    """Return whether a row of a pool has the same other end twice."""
    at, total = begins_of(pool, vertex_count)
    table = memory.filled((2 * total,), -1, np.int32)
    found = memory.filled((1,), 0, np.int32)
    memory.launch_over(
        reads.find_copies, -(-total // reads.TOGETHER), total, at, vertex_count,
        pool.starts, pool.ends, table, found,
    )  # fmt: skip
    return bool(memory.read(found)[0])


def orient_rows(pool: Any, vertex_count: int) -> GpuOriented:
    """Return the undirected edges of a pool, oriented towards the higher degree.

    Edges without ids have those of CSC: how many edges are before them by row.
    """
    at, total = begins_of(pool, vertex_count)
    degrees = part_of(pool.degrees_of("in", vertex_count), 0, vertex_count)

    def list_upward(places: Any) -> tuple[Any, Any, Any, int]:
        low, high, flags = (memory.empty((total,), np.int32) for _ in range(3))
        slots = memory.empty((total,), pool.starts.dtype)
        memory.launch_over(
            reads.list_upward, total, total, at, vertex_count, pool.starts, pool.ends,
            places, low, high, slots, flags,
        )  # fmt: skip
        numbers = marked(flags)
        low, high, slots = (taken(a, numbers) for a in (low, high, slots))
        ids = numbers if pool.ids is None else taken(pool.ids, slots)
        return low, high, as_type(ids, np.int64), ids.size

    return GpuOriented(degrees, pool.longest()[0], offset_dtype(total), list_upward)


def own_kernels() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the kernels of batches, with the types that first batches compile them for.

    These are those of graphs with less than 2**31 slots, and columns of 4 or 8 bytes.
    """
    from numba import types

    n, flag, u8, i32 = types.int64, types.boolean, types.uint8[::1], types.int32[::1]
    i64, u32, u64 = types.int64[::1], types.uint32[::1], types.uint64[::1]
    pairs, listed = types.int32[:, ::1], types.uint32[:, ::1]
    of_name = {
        "kinds": u8, "outcomes": u8, "classes": u8, "dead": u8, "fates": u8,
        "numbers": u32, "marks": u32, "work": pairs, "wide": types.int64[:, ::1],
        "table": types.int64[:, ::1], "digits": types.int64[:, ::1], "before": i64,
        "totals": i64, "summary": i64, "runs": i64, "gate": i64,
    }  # fmt: skip
    names = passes.Passes._fields
    first = names.index("at")  # numbers are before it
    arrays = [of_name.get(name, i32) for name in names[first:]]
    d = types.NamedTuple([n] * first + arrays, passes.Passes)
    yield passes.list_batch, (d, i32, i32)
    yield passes.match, (d, flag)
    yield passes.find_runs, (d,)
    yield passes.plan_batch, (d, i32, i32, flag)
    yield passes.lay_rows, (d, flag)
    rows = u32, i32, u32, n, i32, i32, u8, i32, flag
    yield reads.apply_batch, (d, n, n, flag, flag, *[u32] * 4, listed, *rows)
    yield reads.write_ids, (d, u32, n, u32)
    yield reads.give_ids, (d, u32, n, n, u32)
    for bits in (u32, u64):
        yield reads.copy_rows, (d, n, n, flag, bits, n, bits, bits)
        yield reads.write_values, (d, bits, n, i32, bits, n)
        yield reads.list_changed, (d, bits, n, bits, n, i32, flag, flag, listed)
        yield reads.take_values, (d, bits, bits)
        yield reads.take_rows, (bits, n, i32, bits, n)
    yield reads.list_slots, (n, i64, n, i32, u32, n, i32, i32, i32, i32)
    yield take, (u32, i32, u32)
    yield take, (i32, i64, i32)
    yield reads.list_upward, (n, i64, n, i32, i32, i32, i32, i32, i32, i32)
    yield reads.extend, (i32, n, i32)
    yield reads.find_copies, (n, i64, n, i32, i32, i32, i32)
    yield reads.measure_all, (i32, i32, i32)
    yield reads.count_ends, (n, i32, i32, i32, i32)
    for marks in (u8, i64):
        yield reads.mark_rows, (i32, n, marks)
    yield corners.add_reads, (i64, i32, i32, i64)
    yield corners.count_corners, (i64, i64, i64, *[n] * 4, i32, i32, i32, i64, i64)
    yield reads.list_edges, (n, i32, flag, n, u8, i32, i32, i32, i64, pairs)

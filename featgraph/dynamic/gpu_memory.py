"""Memory of the GPU, as pools and queues use it, and batches that are given in it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from featgraph.base.padding import stored_shape
from featgraph.cuda import arrays, foreign
from featgraph.dynamic.batches import Batch, on_host, require_choice
from featgraph.dynamic.rows import HostMemory, Spec
from featgraph.graph.building.gpu_edges import checked_ends, checked_values, copied_ends

__all__ = [
    "GpuMemory", "bits_of", "gpu_batch", "part_of", "uploaded", "width_of",
]  # fmt: skip


def uploaded(array: Any) -> Any:
    """Return a copy of an array of the host on the GPU, or one that is there."""
    return arrays.upload(array) if isinstance(array, np.ndarray) else array


def part_of(array: Any, first: int, count: int) -> Any:
    """Return some entries of an array, in the same memory."""
    if isinstance(array, np.ndarray):
        return array[first : first + count].copy()
    item = array.dtype.itemsize
    return foreign.strided(array, (int(count),), (item,), int(first) * item)


def width_of(array: Any) -> int:
    """Return how many elements a row of an array has."""
    return 1 if array.ndim == 1 else int(array.shape[1])


def bits_of(array: Any) -> Any:
    """Return an array as flat unsigned integers."""
    item = array.dtype.itemsize
    return arrays.piece_of(array, 0, array.size * item, item)


def _empty(size: int, dtype: Any) -> Any:
    return arrays.empty((size,), dtype)


def _zeros(size: int, dtype: Any, width: int | None = None) -> Any:
    """Return an array, or one whose rows are as long as kernels load them."""
    dtype, shape = np.dtype(dtype), (size,)
    if width is not None:
        shape = stored_shape((size, width), dtype)  # type: ignore[assignment]
    made = arrays.filled((prod(shape),), 0, f"u{dtype.itemsize}")
    return made.view(dtype).reshape(shape)


class GpuMemory(HostMemory):
    """Memory of the GPU; calls are asynchronous but for `read`."""

    spare = 1024
    empty: Any = staticmethod(_empty)
    zeros: Any = staticmethod(_zeros)
    part: Any = staticmethod(part_of)
    copy: Any = staticmethod(arrays.copy)
    write: Any = staticmethod(arrays.write)
    copy_of: Any = staticmethod(arrays.copy_of)
    placed: Any = staticmethod(uploaded)
    read: Any = staticmethod(on_host)
    bits_of: Any = staticmethod(bits_of)


class _GpuBatch(Batch):
    """Updates in memory of the GPU: all insert, or all delete."""

    def on_host(self) -> Batch:
        """Return the same batch on the host."""
        return Batch(
            on_host(self.sources), on_host(self.targets), on_host(self.kinds),
            {name: on_host(a) for name, a in (self.columns or {}).items()},
            self.insertions, copies=self.copies, missing=self.missing,
        )  # fmt: skip


def gpu_batch(
    sources: Any, targets: Any, kinds: Any, columns: Mapping[str, Any], spec: Spec,
    vertex_count: int, loops: str, **options: Any,
) -> Batch | None:  # fmt: skip
    """Check updates that are in memory of the GPU, and copy them on it.

    None where they are not, or where the host has to look at them; `checked_batch` has
    the parameters. The ids are checked when the batch is planned, but where `loops` are
    not kept: these are counted before, and the host looks at a batch that has some.
    """
    if not isinstance(kinds, bool | np.bool_) or (set(columns) ^ set(spec) and kinds):
        return None
    for name, choices in (("copies", ("all", "first", "last")), ("missing", _MISSING)):
        if name in options:
            require_choice(options[name], choices, name)
    ends, loop_count = copied_ends(sources, targets), 0
    if ends is not None and loops != "keep" and kinds:
        known = checked_ends(*ends, vertex_count, True)
        ends, loop_count = (None, 0) if known is None else (ends, known.loop_count)
    if ends is None:
        return None
    count, made = ends[0].size, {}
    for name, (dtype, width) in spec.items() if kinds else ():
        values = checked_values(columns[name], count) if width is None else None
        if values is None or values.dtype != dtype:
            return None
        made[name] = values
    batch = _GpuBatch(
        *ends, arrays.filled((count,), int(kinds), np.uint8), made,
        count if kinds else 0, **options,
    )  # fmt: skip
    return batch.on_host() if loop_count else batch


_MISSING = ("ignore", "error")

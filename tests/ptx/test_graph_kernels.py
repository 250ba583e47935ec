"""Kernels that draw, build, stream graphs compile without a GPU; no spills, no f64."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.cuda import elements, sorting
from featgraph.graph.building import (
    drawing_cuda,
    gpu_edge_kernels,
    gpu_oriented,
)
from featgraph.graph.building import gpu_part_kernels as parts
from featgraph.runtime.streaming import slices as streaming

I32, I64 = (types.Array(t, 1, "C") for t in (types.int32, types.int64))
F32 = types.Array(types.float32, 1, "C")
ANY_F32 = types.Array(types.float32, 3, "A")
BYTES = types.Array(types.uint8, 1, "C")
PAIRS = types.Array(types.int64, 2, "C")
N, YES, WORD = types.int64, types.boolean, types.uint64

WORDS = types.Array(types.uint64, 1, "C")
U32 = types.Array(types.uint32, 1, "C")

#: Arguments that select the entries of edges in some rows.
ENTRIES = (I32, I32, I32, N, YES, YES, N, N)

SIGNATURES = [
    (elements.fill, (I32, N)),
    (sorting.count_digits, (I32, N, N, N, I32)),
    (sorting.add_chunks, (I32, N, I64)),
    (sorting.scan_few, (I32, I64, I64)),
    (sorting.scan_few, (I64, I64, I64)),
    (sorting.scan_chunks, (I32, N, I64, I64)),
    (sorting.scatter, (I32, I32, YES, N, N, N, I64, I32, I32)),
    (sorting.scatter, (I32, I64, YES, N, N, N, I64, I32, I64)),
    (gpu_edge_kernels.survey, (I32, I32, I64)),
    (gpu_edge_kernels.find_nan, (F32, I32)),
    (gpu_edge_kernels.both_ends, (I32, I32, N, I32)),
    (gpu_edge_kernels.begin_rows, (I32, I32)),
    (gpu_edge_kernels.begin_rows, (I32, I64)),
    (gpu_edge_kernels.take, (I32, I32, I32)),
    (gpu_edge_kernels.take, (I32, I64, I32)),
    (gpu_edge_kernels.take_halved, (I32, I32, I32)),
    (gpu_edge_kernels.other_ends, (I32, I32, I64, I32)),
    (gpu_edge_kernels.number_given, (I32, N, I32)),
    (gpu_edge_kernels.invert, (I32, I32)),
    (gpu_edge_kernels.find_moved, (I32, I32)),
    (gpu_edge_kernels.find_twins, (I32, I32, N, I32)),
    (gpu_edge_kernels.is_twin, (I32, N, BYTES)),
    (gpu_edge_kernels.count_ends, (I32, I32, YES, I32)),
    (gpu_edge_kernels.count_ends, (I32, I32, YES, I64)),
    (gpu_edge_kernels.order_ends, (I32, I32, I32, I32)),
    (gpu_edge_kernels.mark_first, (I32, I32, I64, I32)),
    (gpu_edge_kernels.choose_of_repeats, (F32, I32, I32, I32, N, F32)),
    (gpu_edge_kernels.choose_of_repeats, (I64, I64, I32, I64, N, I64)),
    (gpu_edge_kernels.list_marked, (I32, I64, I32)),
    (gpu_edge_kernels.find_hubs, (I32, N, PAIRS, I32)),
    (gpu_edge_kernels.short_degrees, (I64, N, I64)),
    (gpu_edge_kernels.find_most, (I32, N, I64)),
    (gpu_edge_kernels.find_most, (I64, N, I64)),
    (gpu_edge_kernels.count_short, (I32, I32)),
    (gpu_oriented.turn_upward, (I32, I32, I32, N, I32, N, I32, I32, I32)),
    (gpu_oriented.turn_upward, (I32, I32, I64, N, I32, N, I32, I32, I64)),
    (gpu_oriented.find_repeated, (I32, I32, I32)),
    (parts.expand_rows, (I32, I32)),
    (gpu_oriented.cast, (I32, I64)),
    (gpu_oriented.add_rows, (I32, I32, I64)),
    (gpu_oriented.fill_both, (I32,) * 10),
    (gpu_oriented.fill_both, (I64, I32, I64, I32) * 2 + (I32, I64)),
    (gpu_oriented.begin_work, (I32, I64)),
    (gpu_oriented.add_work, (I32, I32, I32, I64)),
    (gpu_oriented.find_long_rows, (I32, I64, N, PAIRS, I32)),
    (drawing_cuda.draw_rmat, (WORD, N, WORD, WORD, WORD, N, I32, I32)),
    (drawing_cuda.draw_uniform, (WORD, WORD, N, I32, I32)),
    (drawing_cuda.draw_grid, (N, N, N, I32, I32)),
    (drawing_cuda.draw_weights, (WORD, N, F32)),
    (drawing_cuda.draw_ratings, (WORD, WORD, WORD, N, I32, I32)),
    (drawing_cuda.draw_stars, (WORD, N, F32)),
    (parts.count_into, (I32, I32, YES, N, I64)),
    (parts.count_within, (I32, I32, I64, I64)),
    (parts.add_ends, (I32, I32, N, I64)),
    (parts.add_values, (U32, N, I64)),
    (parts.mark_part, (I32, I32, N, N, YES, YES, BYTES, I32, I32)),
    (parts.number_own, (N, I32, N, I32)),
    (parts.list_own, (N, I32, N, I32)),
    (parts.flag_entries, (*ENTRIES, BYTES)),
    (parts.emit_entries, (*ENTRIES, I64, N, N, N, I32, I32, I64)),
    (parts.emit_values, (*ENTRIES, I64, N, F32, F32)),
    (parts.flag_owned, (I32, I32, N, N, YES, BYTES)),
    (parts.keep, (I32, N, BYTES, I64, I32)),
    (parts.keep_numbers, (N, BYTES, I64, I64)),
    (parts.copy_some, (I32, N, I32)),
    (parts.put_taken, (I32, I32, N, I32)),
    (parts.close_offsets, (I64, I64, I32)),
    (parts.expand_rows, (I64, I32)),
    (parts.count_entries, (I32, I64)),
    (parts.count_others, (I32, I32, I64)),
    (parts.flag_sources, (I32, I32, YES, N, N, N, BYTES)),
    (
        parts.list_sources,
        (I32, I32, YES, N, N, N, BYTES, I64, N, I32, I64),
    ),
    (parts.other_of, (I32, I32, N, I64, I32, N, I32)),
    (parts.put_at, (I64, N, I64)),
    (parts.find_in_rows, (I32, I32, I32, I32, N, I32)),
    (parts.keys_of, (I64, N, I32)),
    (parts.flag_given, (I64, N, BYTES)),
    (parts.number_locally, (BYTES, I32, N, I32)),
    (parts.number_slots, (I64,)),
    (parts.put_lengths, (I32, N, I32)),
    (parts.put_lengths, (I64, N, I32)),
    (parts.count_descents, (I64, I64)),
    (parts.count_inside, (I32, N, N, N, N, I64, N)),
    (parts.add_slots, (I32, I32, I32, I32, N, N, I64)),
    (parts.add_slots, (I64, I32, I64, I32, N, N, I64)),
    (parts.add_weights, (I32, I32, I32, U32, N, N, I64)),
    (parts.add_weights, (I64, I32, I64, BYTES, N, N, I64)),
    (parts.flag_inside, (I32, N, N, N, BYTES)),
    (parts.keep, (I64, N, BYTES, I64, I64)),
    (parts.keep_rows, (I32, N, N, BYTES, I64, I32)),
    (parts.mark_others, (I32, N, N, BYTES)),
    (parts.localize, (I32, I32)),
    (parts.lower, (I32, N)),
    (parts.put_at, (I32, N, I64)),
    (gpu_edge_kernels.take, (I64, I32, I64)),
    (gpu_edge_kernels.mark_windows, (I64, I64, N, N, I32)),
    (gpu_edge_kernels.put_rows, (ANY_F32, I32, I32, I32, N, N, F32)),
    (gpu_edge_kernels.put_rows, (ANY_F32, I64, I32, I32, N, N, F32)),
    (gpu_edge_kernels.add_repeats, (F32, I32, I32, I32, types.float64, F32, I32)),
    (gpu_edge_kernels.add_repeats, (BYTES, I32, I32, I32, WORD, WORDS, I32)),
    (gpu_edge_kernels.add_repeats, (I64, I64, I32, I64, N, I64, I32)),
    (streaming.rebase, (I64, I32, N, N, N, N)),
    (streaming.number_rows, (I32, N, N)),
    (streaming.count_due, (U32, I64, I32, I64)),
]


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    assert kernel is gpu_edge_kernels.add_repeats or not re.search(r"\bf64\b", ptx)
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    # Four blocks of 256 threads a multiprocessor.
    assert found.registers <= 64
    assert found.shared_bytes <= 48 << 10

"""Kernels of batches compile without a GPU; no spills, no f64."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph import _cuda, _cuda_code

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import reads_cuda as reads

I32, I64, U8, U32 = (
    types.Array(t, 1, "C")
    for t in (types.int32, types.int64, types.uint8, types.uint32)
)
I64S = types.Array(types.int64, 2, "C")
N, YES = types.int64, types.boolean
#: Marks of edges that leave.
MARKED = (I64, U32, I64)

SIGNATURES = [
    (passes.list_entries, (I32, I32, N, N, I32, I32)),
    (passes.list_sides, (N, I32)),
    (passes.mark_rows, (I32, N, I32)),
    (passes.list_rows, (I32, N, I32, I64, I32, I64, I32, I32, I32, I64)),
    (passes.list_all_rows, (I32, N, I64, I32, I32, I32, I64)),
    (passes.count_up, (I64,)),
    (passes.list_updates, (N, I32, N, I32)),
    (passes.mark_pairs, (I32, N, I32, I32, YES, I32)),
    (
        passes.list_pairs,
        (I32, N, I32, I32, YES, I32, I64, I32, I64, I64, I32, I64),
    ),
    (passes.count_needs, (N, I64, I32, N, U8, N, I32)),
    (passes.measure_rows, (I32, I64, I64, I32, I32, I64)),
    (
        passes.match,
        (N, I64, N, I32, I32, I32, U32, YES, I64, N, I64, N, I64, I32, YES, I32, I64,
         U32),
    ),
    (
        passes.mark_copies,
        (N, I32, I64, I32, I32, YES, I64, I32, I64, I32, U32, YES, U32),
    ),
    (passes.count_bits, (U32, I32)),
    (
        passes.decide_single,
        (N, I64, I32, N, I32, U8, N, I32, I64, U8, I32, I32, I64, U8, I64),
    ),
    (
        passes.decide_copies,
        (N, I64, I32, I32, N, I32, U8, N, I32, U8, I32, I32, U8, I64),
    ),
    (passes.mark_appends, (U8, I32)),
    (
        passes.plan_rows,
        (I32, N, I64, I32, I32, U8, I64, N, *MARKED, YES, YES, I64, U8, I64, I32, I32,
         I64, I64, I64),
    ),
    (passes.note, (I64, N, I64, N)),
    (passes.begin_targets, (I32, N, I32, U8, U8, YES, I32, I64)),
    (passes.take_runs, (N, I32, I32, I64S, I64, I64, I64)),
    (passes.cut_regions, (N, I64, I64S, I64)),
    (passes.lay_rows, (N, I64, I64, I64S, I64, I32)),
    (reads.give_ids, (U8, I32, N, I64, U32, N, N, U32)),
    (
        reads.list_gone,
        (N, I64, N, I32, I64, I32, U32, U32, I64, I32, I32, U32, U32, YES, U32),
    ),
    (reads.mark_changed, (U8, I64, U32, N, U32, N, I32, U8)),
    (reads.list_changed, (U8, YES, I64, I32, I32, I32, U32, I32, I32, U32, I32)),
    (reads.take_values, (U8, I64, U32, U32)),
    (
        passes.copy_rows,
        (N, I64, N, I32, I32, I32, *MARKED, YES, YES, YES, U32, N, U32, U32, U32, U32,
         U32, YES),
    ),
    (
        passes.append_edges,
        (U8, I32, N, I32, I32, I64, I64, I64, I32, U32, YES, N, I32, U32, U32, YES, N,
         U32),
    ),
    (
        passes.write_values,
        (U8, I32, I32, I32, I64, I64, I64, I64, I64, I64, *MARKED, YES, U8, N, U8, N),
    ),
    (reads.count_came, (U8, I32, I32, I32)),
    (reads.count_left, (N, I64, N, I32, I32, I32, U32, I32)),
    (reads.list_slots, (N, I64, N, I32, U32, YES, I32, I32, I32, I32)),
    (reads.take_rows, (U32, N, I32, U32, N)),
    (reads.measure_all, (I32, I32, I32)),
    (reads.count_ends, (N, I32, I32, I32, I32)),
    (reads.count_from, (N, I32, I32, I32, U8, I32)),
    (reads.list_from, (N, I32, I32, I32, U8, I64, I32, I32)),
    (reads.survey_degrees, (I32, N, N, I32)),
    (passes.free_runs, (N, I32, I32, I64S, I32, I32, I64)),
    (passes.put_runs, (I64S, I64)),
    (passes.move_queues, (I64S, N, I64, I64)),
    (passes.finish_rows, (I32, N, I32, I64, U8, I32, I32, U8, I32, YES)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    ptx = _cuda.compile_ptx(kernel, signature, (9, 0))
    assert not re.search(r"\bf64\b", ptx)
    _, found = _cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    assert found.registers <= 64
    assert found.shared_bytes <= 48 << 10

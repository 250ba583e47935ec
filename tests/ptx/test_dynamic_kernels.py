"""Kernels of batches compile without a GPU; no spills, no f64."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic import rows_cuda as reads

I32, I64, U8, U32 = (
    types.Array(t, 1, "C")
    for t in (types.int32, types.int64, types.uint8, types.uint32)
)
U32S = types.Array(types.uint32, 2, "C")
I32S, I64S = types.Array(types.int32, 2, "C"), types.Array(types.int64, 2, "C")
N, YES = types.int64, types.boolean
#: Types of `Passes`: arrays by name, numbers else.
ARRAYS = {
    "kinds": U8, "outcomes": U8, "classes": U8, "fates": U8, "numbers": U32,
    "marks": U32, "work": I32S, "wide": I64S, "table": I64S, "before": I64,
    "totals": I64, "summary": I64, "runs": I64, "digits": I64S, "gate": I64,
}  # fmt: skip
D = types.NamedTuple(
    [
        N if number < passes.Passes._fields.index("at") else ARRAYS.get(name, I32)
        for number, name in enumerate(passes.Passes._fields)
    ],
    passes.Passes,
)

SIGNATURES = [
    (passes.list_batch, (D, I32, I32)),
    (passes.find_runs, (D,)),
    (passes.match, (D, YES)),
    (passes.plan_batch, (D, I32, I32, YES)),
    (passes.lay_rows, (D, YES)),
    (reads.copy_rows, (D, N, N, YES, U32, N, U32, U32)),
    (
        reads.apply_batch,
        (
            D, N, N, YES, YES, U32, U32, U32, U32, U32S, N, U32, I32, YES, U32, YES, N,
            I32, I32, U8, I32, YES, YES,
        ),
    ),
    (reads.write_ids, (D, U32, N, U32)),
    (reads.write_values, (D, U8, N, I32, U8, N)),
    (reads.give_ids, (D, U32, N, N, U32)),
    (
        reads.list_changed,
        (D, U32, N, U32, N, I32, YES, YES, U32S),
    ),
    (reads.take_values, (D, U32, U32)),
    (reads.list_slots, (N, I64, N, I32, U32, YES, I32, I32, I32, I32)),
    (reads.take_rows, (U32, N, I32, U32, N)),
    (reads.measure_all, (I32, I32, I32)),
    (reads.count_ends, (N, I32, I32, I32, I32)),
    (reads.mark_rows, (I32, N, U8)),
    (reads.list_edges, (N, I32, YES, N, U8, I32, I32, I32, I64, I32S)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    assert not re.search(r"\bf64\b", ptx)
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    assert found.registers * (bounds[0] if bounds else 1024) <= 1 << 16
    assert found.shared_bytes <= 48 << 10

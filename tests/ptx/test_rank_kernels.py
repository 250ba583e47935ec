"""Kernels of ranks compile for a GPU: no spills, no float64, flags of the system."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph import _cuda, _cuda_code

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.ranks.gpu import window_kernels as kernels

N, FLAG = types.int64, types.boolean
WORDS, NUMBERS, OWN = (
    types.Array(t, 1, "C") for t in (types.uint32, types.int32, types.int64)
)
TABLE = types.Array(types.int64, 2, "C")
BYTES, REALS = types.Array(types.uint8, 1, "C"), types.Array(types.float32, 1, "C")
ROWS = types.Array(types.float32, 2, "C")

LISTED = NUMBERS, NUMBERS, TABLE, N, TABLE, N
TAKEN = N, N, N, TABLE, OWN, N, FLAG
SIGNATURES = [
    (kernels.post_rows, (WORDS, *LISTED, TABLE, OWN)),
    (kernels.take_rows, (*LISTED, TABLE, WORDS, OWN, N)),
    (kernels.combine_rows, (ROWS, N, N, N, TABLE, WORDS, N, OWN, N)),
    (kernels.post_numbers, (REALS, N, N, TABLE, OWN)),
    (kernels.take_numbers, (OWN, *TAKEN)),
    (kernels.take_numbers, (REALS, *TAKEN)),
    (kernels.take_numbers, (BYTES, *TAKEN)),
]


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = _cuda.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    assert not re.search(r"\bf64\b", ptx)
    flag = "st.release.sys" if "post" in kernel.__name__ else "ld.acquire.sys"
    assert flag in ptx
    _, found = _cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    # Four blocks of 256 threads a multiprocessor.
    assert found.registers <= 64

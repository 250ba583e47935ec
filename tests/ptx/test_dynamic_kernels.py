"""Kernels of batches compile without a GPU; no spills, no f64."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from featgraph.dynamic import gpu_memory


@pytest.mark.parametrize(
    ("kernel", "signature"),
    list(gpu_memory.own_kernels()),
    ids=lambda x: getattr(x, "__name__", None),
)
def test_it_compiles(kernel: Any, signature: tuple[Any, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    assert not re.search(r"\bf64\b", ptx)
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    assert found.registers * (bounds[0] if bounds else 1024) <= 1 << 16
    assert found.shared_bytes <= 48 << 10

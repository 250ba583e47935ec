"""Kernels of triangle functions compile without a GPU: no spills, no stray float64."""

from __future__ import annotations

import re

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from tests.programs.triangles import PROGRAMS, make_state

NAMES = ("everywhere", "filters", "behind_edges", "behind_changed_edges")
#: Static shared memory of a block.
MOST_SHARED = 48 << 10


@pytest.mark.drawn(8)
@pytest.mark.parametrize("schedule", ["mark", "search"])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_compile(name: str, schedule: str) -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
    state = fg.State(graph, **make_state(graph, np.random.default_rng(0)))
    kernel = PROGRAMS[name].fold(state, target="cuda", schedule=schedule)
    compiled = kernel._compiled((9, 0), "compile_ptx")
    resources = {n: cuda_code.link_cubin(p, (9, 0))[1] for n, p in compiled.items()}
    hubs = [entry.name for entry in kernel.entries if entry.role == "hubs"]
    assert bool(hubs) == (schedule == "mark" and "behind" not in name)
    for entry, used in resources.items():
        assert used.spill_stores_bytes == used.spill_loads_bytes == 0, entry
        assert used.stack_bytes == 0, entry
        assert used.registers <= 64, entry  # 2048 threads a multiprocessor, or half
        assert (used.shared_bytes > 0) == (entry in hubs)
        assert used.shared_bytes <= MOST_SHARED
    ptx = kernel.ptx((9, 0))
    assert ".f64" not in ptx
    # A signed index is compared with zero and may be moved by the array's length.
    assert not re.search(r"shr\.s64 \t%rd\d+, %rd\d+, 63", ptx)

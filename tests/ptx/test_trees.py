"""Kernels of reduces in a tree compile for a GPU, and round what they add."""

from __future__ import annotations

import re
from typing import Any

import pytest

import featgraph as fg
from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.runtime.devices import cuda_trees
from tests.ranks.test_in_a_tree import total

N, FLAG = types.int64, types.boolean
ROWS, TABLE = (types.Array(t, 2, "C") for t in (types.float32, types.int64))
NODES, PLACES = (types.Array(t, 1, "C") for t in (types.float32, types.int64))
CHILDREN = types.Array(types.int32, 2, "C")
SIGNATURES = [
    (cuda_trees.combine_level, (ROWS, N, N, N, FLAG)),
    (cuda_trees.finish, (ROWS, TABLE, PLACES, N, FLAG, NODES)),
    (cuda_trees.finish_joined, (NODES, ROWS, CHILDREN, PLACES, N, FLAG, NODES)),
]


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    assert not re.search(r"\.f64\b", ptx)
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0


def test_what_is_added_is_rounded_before() -> None:
    """``total`` adds products: contracted, they would be other numbers elsewhere."""
    alone = fg.foldmap(total)
    for deterministic in (False, True):
        kernel = alone.fold(target="cuda", deterministic=deterministic)
        own = kernel.entries[0]
        ptx = dialect.compile_ptx(
            kernel.function(own).py_func, kernel.signature(own), (9, 0),
            launch_bounds=own.launch_bounds,
        )  # fmt: skip
        assert bool(re.search(r"\bfma\.rn\.f32", ptx)) is not deterministic
        assert ("add.rn.f32" in ptx) is deterministic
        _, found = cuda_code.link_cubin(ptx, (9, 0))
        assert found.spill_stores_bytes == found.stack_bytes == 0

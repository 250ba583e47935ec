"""Generators on the emulated GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.graph import grid, rmat, uniform
from tests.simt.gpu import emulated_gpu


@pytest.mark.parametrize("seed", [0, 2**50 + 1])
def test_generators_draw_the_same_edges_on_all_targets(seed: int) -> None:
    makers: list[Any] = [
        partial(rmat, 5, 1, seed=seed),
        partial(rmat, 4, 2, seed=seed, a=0, b=1, c=0, directed=False),
        partial(rmat, 3, 5, seed=seed, duplicates="first"),
        partial(uniform, 2**31 - 1, 20, seed=seed),
        partial(grid, 3, 5),
        partial(grid, 1, 7, directed=True),
        partial(grid, 1, 1),
    ]
    for make in makers:
        here = make(target="cpu")
        with emulated_gpu():
            there = make(target="cuda")
            assert there._edges.is_given_on_gpu
            assert not here._edges.is_given_on_gpu
            assert repr(here) == repr(there)
            assert here.digest == there.digest

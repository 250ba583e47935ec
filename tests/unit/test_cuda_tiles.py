"""The operations on tiles, compiled for the CPU, are what their emulated twins are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featgraph.cuda import dialect
from featgraph.cuda import tiles as cuda_tiles

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from numba import njit
from numba.extending import intrinsic

from tests.simt.tiles import tiles_module

SIDE = 8
TWINS = tiles_module()


def compiled(name: str) -> Any:
    return intrinsic({**cuda_tiles._ARITHMETIC, **cuda_tiles._MEMORY}[name])


def values(count: int, real: str, seed: int) -> tuple[Any, ...]:
    return tuple(np.random.default_rng(seed).standard_normal(count).astype(real))


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("plus_product", (64, 8, 8)),
        ("minus_product", (64, 8, 8)),
        ("backward", (8, 64)),
        ("minus_turned", (8, 64, 8)),
        ("on_diagonal", (64, 8)),
        ("turned", (64,)),
    ],
)
def test_arithmetic(name: str, counts: tuple[int, ...], real: str) -> None:
    operation = compiled(name)
    one = njit(lambda a: operation(a))
    two = njit(lambda a, b: operation(a, b))
    three = njit(lambda a, b, c: operation(a, b, c))
    given = [values(count, real, seed) for seed, count in enumerate(counts)]
    found = {1: one, 2: two, 3: three}[len(counts)](*given)
    wanted = TWINS[name](*given)
    assert len(found) == len(wanted)
    tolerance = 1e3 * float(np.finfo(real).eps)
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, tolerance, tolerance * scale)


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "count"), [("plus_tile", 64), ("divided", 64), ("divided", 8)]
)
def test_with_a_tile_in_memory(name: str, count: int, real: str) -> None:
    operation = compiled(name)
    run = njit(lambda tile, array: operation(tile, array, 1, 8, SIDE))
    array = np.abs(np.array(values(16 * 24, real, 5))).reshape(16, 24) + 0.5
    array = array.astype(real)
    tile = values(count, real, 6)
    wanted = TWINS[name](tile, array, 1, 8, SIDE)
    tolerance = 1e3 * float(np.finfo(real).eps)
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(run(tile, array), wanted, tolerance, tolerance * scale)


@pytest.mark.parametrize("name", ["load_piece", "load_tile"])
def test_loads_and_stores(name: str) -> None:
    load, store = compiled(name), compiled(name.replace("load", "store"))
    read = njit(lambda array: load(array, 2, 16, SIDE))

    @njit
    def write(array: Any, given: Any) -> None:
        store(array, 2, 16, SIDE, given)

    array = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    found = read(array)
    assert found == TWINS[name](array, 2, 16, SIDE)
    write(array, tuple(-x for x in found))
    assert read(array) == tuple(-x for x in found)
    assert (array < 0).sum() == len(found)

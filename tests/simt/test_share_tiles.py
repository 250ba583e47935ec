"""Sums of matrices over all vertices, in tiles: lane by lane, against NumPy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.base.padding import row_stride
from featgraph.device import block_tiles
from featgraph.fold.plan import planner
from featgraph.fold.schedules import block as schedules
from tests.simt.emulator import Emulator
from tests.simt.lanes import EmulationError
from tests.simt.superstep import words_of


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):
    return fg.outer(d.x[v], d.x[v])[i, f]


@fg.reduce(into="gram", combine="sum", matrix=True)
def weighed(i, f, v, d):
    return d.w[v] * d.x[v, i] * d.x[v, f]


@fg.reduce(into="gram", combine="sum", matrix=True)
def skew(i, f, v, d):
    return d.w[v] * d.y[v, i] * d.x[v, f]


SUMS = {"gram": gram, "weighed": weighed, "skew": skew}


@cache
def folded(name: str, k: int, dtype: str, block: int) -> Any:
    """Return the kernels of a sum, with terms in blocks of some rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "SUM_BLOCK", block)
        return fg.foldmap(SUMS[name]).fold(k=k, target="cuda", dtype=dtype)


def found_and_wanted(
    name: str,
    k: int,
    due: np.ndarray,
    *,
    dtype: str = "float32",
    grid: int = 2,
    block: int = 512,
    sources: dict[str, str] | None = None,
    text: tuple[str, str] = ("", ""),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sum over `due` vertices, NumPy's, and that of absolute terms."""
    fold, count = folded(name, k, dtype, block), len(due)
    rng = np.random.default_rng(count + k)
    rows = {n: rng.standard_normal((count, k)).astype(dtype) for n in ("x", "y")}
    w = rng.standard_normal(count).astype(dtype)
    arrays: dict[str, np.ndarray] = {"w": w}
    for n, own in rows.items():
        # Padding behind a row must not come into the sum.
        arrays[n] = np.full((count, row_stride(k)), np.nan, dtype)
        arrays[n][:, :k] = own
    emulator, mapping = Emulator(sources), fold.plan.phases[0].mapping
    module = emulator.load(fold.source.replace(*text) if text[0] else fold.source)
    data = module.Data(**{n: arrays[n] for n in module.Data._fields})
    partials = np.full((grid, mapping.part_size), np.nan, dtype)
    reduced = np.full(k * k, np.nan, dtype)
    given = (data, words_of(due), np.int32(count), partials)
    emulator.launch(module, "reduce_phase_0", grid, mapping.lanes_per_vertex, given)
    # Few parts want few threads.
    emulator.launch(module, "reduce_phase_0_finish", 1, 32, (partials, reduced))
    left = rows["y" if name == "skew" else "x"][due].astype(np.float64)
    left *= 1 if name == "gram" else w[due].astype(np.float64)[:, None]
    right = rows["x"][due].astype(np.float64)
    return reduced.reshape(k, k), left.T @ right, np.abs(left).T @ np.abs(right)


def assert_close(found: Any, wanted: Any, size: Any, dtype: str, terms: int) -> None:
    # A product of three factors is rounded twice; sums lose one rounding a term.
    bound = np.finfo(dtype).eps * (terms + 4) * size
    assert np.all(np.abs(found - wanted) <= bound + np.finfo(dtype).tiny)


#: Numbers of vertices around words of a set and batches, and patterns of due ones.
COUNTS = st.sampled_from([1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 90])
PATTERNS = ("all", "none", "one", "range", "some")


def due_of(count: int, pattern: str, seed: int) -> np.ndarray:
    rng, due = np.random.default_rng(seed), np.zeros(count, bool)
    if pattern in {"all", "some"}:
        due[:] = True if pattern == "all" else rng.random(count) < 0.4
    if pattern == "one":
        due[rng.integers(count)] = True
    if pattern == "range":
        due[slice(*sorted(rng.integers(0, count + 1, 2)))] = True
    return due


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(
    name=st.sampled_from(sorted(SUMS)),
    # Fewer than a tile, one, and one more; of shares, some threads have no tile.
    k=st.sampled_from([2, 5, 8, 9, 17, 24]),
    count=COUNTS,
    pattern=st.sampled_from(PATTERNS),
    dtype=st.sampled_from(["float32", "float64"]),
    grid=st.integers(1, 3),
    block=st.sampled_from([1, 4, 512]),
    seed=st.integers(0, 2**32 - 1),
)
@example("gram", 17, 90, "some", "float32", 2, 1, 7)
@example("skew", 9, 65, "all", "float64", 1, 4, 8)
def test_sums_are_those_of_numpy(
    name: str,
    k: int,
    count: int,
    pattern: str,
    dtype: str,
    grid: int,
    block: int,
    seed: int,
) -> None:
    due = due_of(count, pattern, seed)
    found = found_and_wanted(name, k, due, dtype=dtype, grid=grid, block=block)
    assert_close(*found, dtype, int(due.sum()))
    if name == "gram":
        np.testing.assert_array_equal(found[0], found[0].T)


def test_a_block_has_all_tiles_once_where_there_are_many() -> None:
    due = due_of(40, "some", 1)
    assert folded("gram", 96, "float32", 512).plan.phases[0].mapping.row_shares == 2
    assert folded("gram", 88, "float64", 512).plan.phases[0].mapping.row_shares == 1
    assert_close(*found_and_wanted("gram", 88, due, dtype="float64"), "float64", 40)


# -- what it takes


@pytest.mark.parametrize("name", sorted(SUMS))
@pytest.mark.parametrize("size", [4, 8])
def test_shared_memory_is_kept_to(name: str, size: int) -> None:
    """Shared memory of rows and shares fits a launch, for every K."""
    dtype = {4: "float32", 8: "float64"}[size]
    for k in (*range(2, 25, 3), *range(25, 249, 31)):
        mapping = folded(name, k, dtype, 512).plan.phases[0].mapping
        if not mapping.batch:
            continue
        tiles = mapping.part_size // schedules.SIDE**2
        padded = -(-k // schedules.SIDE) * schedules.SIDE
        rows = schedules.BUFFERS * mapping.batch * padded * (1 if name == "gram" else 2)
        box = mapping.row_shares // 2 * mapping.part_size
        assert (rows + box) * size <= schedules.SHARED_BYTES
        assert mapping.row_shares == mapping.lanes_per_vertex // tiles >= 1
        assert mapping.batch <= mapping.edges_at_a_time * mapping.unroll


@pytest.mark.parametrize(
    ("k", "dtype", "tiled"),
    [(1, "float32", False), (2, "float32", True), (248, "float32", True),
     (249, "float32", False), (176, "float64", True), (177, "float64", False)],
)  # fmt: skip
def test_what_no_block_has_threads_for_is_left_to_elements(
    k: int, dtype: str, tiled: bool
) -> None:
    mapping = folded("gram", k, dtype, 512).plan.phases[0].mapping
    assert mapping.schedule == ("share_tiles" if tiled else "elements")


@fg.reduce(into="widest", combine="max", matrix=True)
def widest(i, f, v, d):
    return d.x[v, i] - d.x[v, f]


@fg.reduce(into="spread", combine="sum", matrix=True)
def spread(i, f, v, d):
    return abs(d.x[v, i] - d.x[v, f])


@pytest.mark.parametrize("reduce", [widest, spread])
def test_what_is_no_product_is_left_to_elements(reduce: Any) -> None:
    plan = fg.foldmap(reduce).fold(k=8, target="cuda").plan
    assert plan.phases[0].mapping.schedule == "elements"


# -- faults

LIBRARY = "featgraph.device.block_tiles"
#: K, of which batches are half a word or two, terms of a block, text of the library or
#: of the kernel, and what stands in its place.
FAULTS = [
    (20, 1, LIBRARY, "min(last - (word << 5), 32)", "32"),
    (17, 1, LIBRARY, "max(first - (word << 5), 0)", "0"),
    (20, 1, LIBRARY, "0 <= share < shares - half", "0 <= share < shares - half - 1"),
    (20, 1, LIBRARY, "if i < k and f < k:", "if i < k - 1 and f < k:"),
    (20, 1, LIBRARY, "if row > column:\n", "if i < 0:\n"),
    (
        20,
        1,
        LIBRARY,
        "tile = plus_piece(tile, partials",
        "_ = plus_piece(tile, partials",
    ),
    (20, 512, "", "int32(64 - batch_row)", "int32(0)"),
    (20, 512, "", "batch_row + batch_count", "batch_row + 64"),
    (20, 512, "", "int64(cuda.blockIdx.x) * 64", "int64(0)"),
    (20, 512, "", "waits_1 = v < batch_end", "waits_1 = True"),
]


@pytest.mark.parametrize(("k", "block", "where", "text", "other"), FAULTS)
def test_planted_faults_are_found(
    k: int, block: int, where: str, text: str, other: str
) -> None:
    due = due_of(150, "some", 3)
    given: dict[str, Any] = {"block": block}
    if where:
        source = Path(block_tiles.__file__).read_text(encoding="utf-8")
        assert text in source
        given["sources"] = {where: source.replace(text, other)}
    else:
        assert text in folded("gram", k, "float32", block).source
        given["text"] = text, other
    try:
        found, wanted, size = found_and_wanted("gram", k, due, **given)
    except EmulationError:
        return
    with pytest.raises(AssertionError):
        assert_close(found, wanted, size, "float32", int(due.sum()))

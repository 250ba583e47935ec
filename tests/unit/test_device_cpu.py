"""The CPU half of the device library, on all threads and on one, against NumPy."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numba import njit

import featgraph as fg
from featgraph.algorithms.bfs import bfs
from featgraph.device import cholesky_cpu, cpu, linalg_cpu, ordering
from featgraph.fold.passes.worklists.cpu import AHEAD
from featgraph.runtime.loops import worklist
from tests.unit.test_cpu_queue import in_a_loop

COUNT = 20_000
BINS = 5
REAL = [np.float32, np.float64]
INTEGER = [np.int32, np.int64, np.uint32]


#: Atomics of a single chunk are plain reads and writes.
CHUNKS = [np.array([0, COUNT]), np.linspace(0, COUNT, 65).astype(np.int64)]


@pytest.fixture(params=CHUNKS, ids=["alone", "threads"])
def chunks(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


@pytest.fixture
def bins() -> np.ndarray:
    return np.random.default_rng(11).integers(0, BINS, COUNT)


@njit
def _combine(chunk, first, last, sums, lows, highs, bins, values):
    for i in range(first, last):
        b = bins[i]
        cpu.atomic_add(sums, (b, 1, 2), values[i])
        cpu.atomic_min(lows, b, values[i])
        cpu.atomic_max(highs, (0, b), values[i])


@njit
def _combine_all(chunks, sums, lows, highs, bins, values):
    cpu.in_parallel(_combine, chunks, (sums, lows, highs, bins, values))


@pytest.mark.parametrize("dtype", [*REAL, *INTEGER])
def test_add_min_max_under_contention(
    dtype: type, bins: np.ndarray, chunks: np.ndarray
) -> None:
    values = np.random.default_rng(1).integers(0, 100, COUNT).astype(dtype)
    if dtype is not np.uint32:
        values -= dtype(50)
    sums = np.zeros((BINS, 2, 3), dtype)
    lows = np.full(2 * BINS, 100, dtype)[::2]  # strided
    highs = np.asfortranarray(np.zeros((2, BINS), dtype))
    _combine_all(chunks, sums, lows, highs, bins, values)
    groups = [values[bins == b] for b in range(BINS)]
    np.testing.assert_array_equal(sums[:, 1, 2], [group.sum() for group in groups])
    np.testing.assert_array_equal(lows, [group.min() for group in groups])
    np.testing.assert_array_equal(highs[0], [group.max() for group in groups])
    assert np.count_nonzero(sums) == BINS
    assert not highs[1].any()


@pytest.mark.parametrize("dtype", REAL)
def test_nan_changes_neither_min_nor_max(dtype: type) -> None:
    x = np.array([1, 1], dtype)
    cpu.atomic_min(x, 0, dtype(np.nan))
    cpu.atomic_max(x, 1, dtype(np.nan))
    np.testing.assert_array_equal(x, [1, 1])


@njit(fastmath=True, error_model="numpy")
def _add_products(chunk, first, last, sums, left, right):
    for i in range(first, last):
        cpu.atomic_add(sums, i, left[i] * right[i])


@njit
def _add_all_products(chunks, sums, left, right):
    cpu.in_parallel(_add_products, chunks, (sums, left, right))


@pytest.mark.parametrize("dtype", REAL)
def test_a_product_is_rounded_before_it_is_added(
    dtype: type, chunks: np.ndarray
) -> None:
    left, right, sums = np.random.default_rng(4).random((3, COUNT)).astype(dtype)
    expected = sums + left * right
    _add_all_products(chunks, sums, left, right)
    np.testing.assert_array_equal(sums, expected)


@njit
def _larger(old, value):
    return max(old, value)


@njit
def _retry(chunk, first, last, products, highs, bins, values):
    for i in range(first, last):
        cpu.atomic_product(products, (bins[i], 0), values[i])
        cpu.atomic_combine(highs, bins[i], values[i], _larger)


@njit
def _retry_all(chunks, products, highs, bins, values):
    cpu.in_parallel(_retry, chunks, (products, highs, bins, values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_product_and_combine_under_contention(
    dtype: type, bins: np.ndarray, chunks: np.ndarray
) -> None:
    values = np.where(np.arange(COUNT) % 800 == 0, 2, -1).astype(dtype)
    products = np.ones((BINS, 2), dtype)
    highs = np.full(BINS, -9, dtype)
    _retry_all(chunks, products, highs, bins, values)
    expected = [values[bins == b].prod() for b in range(BINS)]
    np.testing.assert_array_equal(products[:, 0], expected)
    np.testing.assert_array_equal(highs, np.full(BINS, 2))


def test_a_retry_loop_ends_on_nan() -> None:
    x = np.array([np.nan], np.float32)
    cpu.atomic_product(x, 0, np.float32(2))
    assert np.isnan(x[0])


@pytest.mark.parametrize("dtype", [*REAL, *INTEGER])
def test_exchange_if(dtype: type) -> None:
    x = np.array([[3, 4]], dtype)
    assert cpu.exchange_if(x, (0, 1), dtype(4), dtype(7)) == (4, True)
    assert cpu.exchange_if(x, (0, 1), dtype(4), dtype(9)) == (7, False)
    assert x.tolist() == [[3, 7]]


@njit
def _set(chunk, first, last, words, chosen):
    for i in range(first, last):
        cpu.set_bit(words, chosen[i])


@njit
def _set_all(chunks, words, chosen):
    cpu.in_parallel(_set, chunks, (words, chosen))


def test_set_bit_test_bit_and_counts(chunks: np.ndarray) -> None:
    size = 30_000
    chosen = np.random.default_rng(2).integers(0, size, COUNT).astype(np.int32)
    words = np.zeros((size + 31) // 32, np.uint32)
    _set_all(chunks, words, chosen)
    expected = np.zeros(words.size * 32, bool)
    expected[chosen] = True
    found = [cpu.test_bit(words, v) for v in range(words.size * 32)]
    np.testing.assert_array_equal(found, expected)
    assert not cpu.test_bit(words, words.size * 32)
    assert cpu.count_set(words) == expected.sum()
    assert cpu.count_set(np.zeros(0, np.uint32)) == 0


def test_words() -> None:
    for bit in range(32):
        word = np.uint32(1 << bit)
        assert cpu.trailing_zeros(word) == bit
        assert cpu.count_bits(word) == 1
    assert cpu.trailing_zeros(np.uint32(0)) == 32
    assert cpu.count_bits(np.uint32(0xFFFFFFFF)) == 32


@njit
def _prefetch(values, index):
    cpu.prefetch(values, index)
    return values.sum()


def test_prefetch() -> None:
    """It changes nothing, and an entry behind the array is no error."""
    values = np.arange(1000, dtype=np.int32)
    for index in (0, 999, 1000, 1 << 40):
        assert _prefetch(values, index) == 499_500
    assert _prefetch(values[:0], 0) == 0
    [assembly] = _prefetch.inspect_asm().values()
    assert "prefetch" in assembly.replace("_prefetch", "")


def test_the_loop_over_few_vertices_prefetches_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A superstep asks for the row of an active vertex `AHEAD` places further on."""
    call, known = worklist.CpuQueue._call, dict[str, Any]()

    def note(self: worklist.CpuQueue, values: list[Any]) -> None:
        known.update(zip(self.queue.arguments, values, strict=True))
        call(self, values)

    monkeypatch.setattr(worklist.CpuQueue, "_call", note)
    grid = fg.graph.generators.grid(9, 7)
    with in_a_loop(1 << 20):
        graph = fg.Graph.from_edges(grid.sources, grid.targets)
        found = bfs(graph, 5, target="cpu")
    module = found.run.kernels[0].module
    for name, value in vars(module).copy().items():  # inner ones are not for Python
        monkeypatch.setattr(module, name, getattr(value, "py_func", value))
    count = 3 * AHEAD
    active = np.random.default_rng(2).permutation(63)[:count]
    known["sources"][:count] = active
    known |= {"chunk": 0, "source_count": count}
    prefetched: list[tuple[bool, int]] = []
    monkeypatch.setattr(cpu, "prefetch", lambda values, index: prefetched.append(
        (values is known["out_targets"], int(index))
    ))  # fmt: skip
    names = inspect.signature(module.superstep_0).parameters
    module.superstep_0(*(known[name] for name in names))
    places = np.minimum(np.arange(count) + AHEAD, count - 1)
    begins = known["out_offsets"][active[places]]
    assert prefetched == [(True, begin) for begin in begins.tolist()]


@njit
def _pack(chunk, first, last, packed, keys, bins):
    for i in range(first, last):
        cpu.atomic_min(packed, (bins[i], 0), cpu.pack_min_float32(keys[i], np.int32(i)))
        cpu.atomic_min(packed, (bins[i], 1), cpu.pack_max_float32(keys[i], np.int32(i)))


@njit
def _pack_all(chunks, packed, keys, bins):
    cpu.in_parallel(_pack, chunks, (packed, keys, bins))


def test_packed_keys_find_the_best_and_smallest_source(
    bins: np.ndarray, chunks: np.ndarray
) -> None:
    keys = np.random.default_rng(5).integers(-3, 3, COUNT).astype(np.float32)
    keys[::7] = np.nan
    keys[keys == 0] = np.where(np.arange(np.sum(keys == 0)) % 2, 0.0, -0.0)
    keys[bins == 2] = np.nan
    packed = np.full((BINS, 2), ordering.PACKED_NONE_FLOAT32)
    _pack_all(chunks, packed, keys, bins)
    for b in range(BINS):
        low = cpu.unpack_min_float32(packed[b, 0])
        high = cpu.unpack_max_float32(packed[b, 1])
        if b == 2:
            assert low == (np.inf, -1)
            assert high == (-np.inf, -1)
            continue
        mine = np.where(bins == b, keys, np.nan)
        assert low == (np.nanmin(mine), np.nanargmin(mine))
        assert high == (np.nanmax(mine), np.nanargmax(mine))


EDGES = [-np.inf, -3.4e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.4e38, np.inf]


@pytest.mark.parametrize("source", [0, 1, 2**31 - 1])
def test_packing_is_exact_and_keeps_the_order(source: int) -> None:
    source = np.int32(source)
    for low, high in itertools.pairwise(EDGES):
        low, high = np.float32(low), np.float32(high)
        for pack, unpack, better, worse in (
            (cpu.pack_min_float32, cpu.unpack_min_float32, low, high),
            (cpu.pack_max_float32, cpu.unpack_max_float32, high, low),
        ):
            assert unpack(pack(better, source)) == (better, source)
            if low != high:
                assert pack(better, source) < pack(worse, np.int32(0))
            assert pack(worse, source) < ordering.PACKED_NONE_FLOAT32


@pytest.mark.parametrize("key", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_packing_of_integers(key: int) -> None:
    key, source = np.int32(key), np.int32(12)
    assert cpu.unpack_min_int32(cpu.pack_min_int32(key, source)) == (key, 12)
    assert cpu.unpack_max_int32(cpu.pack_max_int32(key, source)) == (key, 12)
    none = np.int64(ordering.PACKED_NONE_INT32)
    assert cpu.pack_min_int32(key, np.int32(-1)) == none
    assert cpu.unpack_min_int32(none) == (2**31 - 1, -1)
    assert cpu.unpack_max_int32(none) == (-(2**31), -1)


def test_which_key_wins() -> None:
    one, two, nan = np.float32(1), np.float32(2), np.float32(np.nan)
    inf = np.float32(np.inf)
    assert cpu.wins_min(one, 5, two, 3)
    assert not cpu.wins_min(two, 3, one, 5)
    assert cpu.wins_max(two, 3, one, 5)
    for wins in (cpu.wins_min, cpu.wins_max):
        assert wins(one, 3, one, 5)
        assert not wins(one, 5, one, 5)
        assert wins(inf, 0, inf, -1)
        assert not wins(one, -1, two, 3)
        assert not wins(nan, 0, inf, -1)


def test_checked_records_the_first_violation_only() -> None:
    record = np.zeros(6, np.int64)
    assert cpu.checked(0, 3, 1, 2, 3, record)
    assert cpu.checked(np.uint32(2), 3, 1, 2, 3, record)
    assert not record.any()
    assert not cpu.checked(-1, 3, 7, 8, 9, record)
    assert not cpu.checked(3, 3, 1, 1, 1, record)
    assert record.tolist() == [1, 7, 8, 9, -1, 3]


@pytest.mark.drawn(7)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 10, 33])
@pytest.mark.parametrize("dtype", REAL)
def test_solve_and_inverse_agree_with_numpy(k: int, dtype: type) -> None:
    rng = np.random.default_rng(k)
    general = rng.standard_normal((k, k)).astype(dtype)
    definite = (general @ general.T / k + np.eye(k)).astype(dtype)
    right = rng.standard_normal(k).astype(dtype)
    for kind, matrix in (("general", general), ("spd", definite)):
        shifted = matrix.astype(np.float64) + 0.25 * np.eye(k)
        tolerance = 8 * k * np.finfo(dtype).eps * np.linalg.cond(shifted)
        work = np.zeros((k, 2 * k), dtype)
        work[:, :k], work[:, k] = matrix, right
        getattr(linalg_cpu, f"solve_{kind}")(work, k, dtype(0.25), 0, 1)
        expected = np.linalg.solve(shifted, right)
        np.testing.assert_allclose(
            work[:, k], expected, atol=tolerance * np.abs(expected).max()
        )
        work[:, :k] = matrix
        getattr(linalg_cpu, f"inverse_{kind}")(work, k, dtype(0.25), 0, 1)
        expected = np.linalg.inv(shifted)
        np.testing.assert_allclose(
            work[:, k:], expected, atol=tolerance * np.abs(expected).max()
        )


def test_a_zero_on_the_diagonal_is_pivoted_away() -> None:
    work = np.array([[0, 1, 2], [1, 0, 3]], np.float64)
    linalg_cpu.solve_general(work, 2, 0.0, 0, 1)
    assert work[:, 2].tolist() == [3, 2]


@pytest.mark.parametrize("method", ["solve_general", "solve_spd"])
def test_a_singular_matrix_gives_no_finite_answer(method: str) -> None:
    work = np.array([[1, 1, 1], [1, 1, 2]], np.float32)
    getattr(linalg_cpu, method)(work, 2, np.float32(0), 0, 1)
    assert not np.isfinite(work[:, 2]).all()


def test_the_cpu_half_does_not_load_the_cuda_dialect() -> None:
    script = (
        "import sys, featgraph.cuda.dialect, featgraph.device.cpu, "
        "featgraph.device.linalg_cpu\n"
        "assert 'numba.cuda' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 5, 16, 17, 40, 64])
def test_solve_by_panels(k: int, dtype: Any) -> None:
    """Whole panels, parts of one, and a padded last one, next to NumPy."""
    rng = np.random.default_rng(k)
    a = rng.normal(size=(k, k + 3))
    matrix, b = a @ a.T + np.eye(k), rng.normal(size=k)
    work = np.zeros(cholesky_cpu.work_shape(k, np.dtype(dtype).itemsize), dtype)
    work[:k, :k] = np.triu(matrix)  # the lower triangle is not read
    work[:k, k] = b
    cholesky_cpu.solve_spd(work, k, dtype(0.5))
    system = matrix + 0.5 * np.eye(k)
    expected = np.linalg.solve(system, b)
    slack = 8 * np.finfo(dtype).eps * np.linalg.cond(system) * np.abs(expected).max()
    assert np.abs(work[:k, k] - expected).max() <= slack

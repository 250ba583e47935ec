"""The device library, lane by lane, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simt.emulator import launch
from tests.simt.test_emulator import HEADER, run

WIDTHS = [1, 2, 4, 8, 16, 32]


def warp_values(dtype: type, seed: int = 7) -> np.ndarray:
    values = np.random.default_rng(seed).integers(-20, 20, 32)
    return values.astype(dtype)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_group_reductions(width: int, dtype: type) -> None:
    x = warp_values(dtype)
    groups = x.reshape(-1, width)
    expected = {
        "sum": groups.sum(axis=1),
        "max": groups.max(axis=1),
        "min": groups.min(axis=1),
        "product": (groups % 3 + 1).prod(axis=1),
    }
    for name, per_group in expected.items():
        out = (x % 3 + 1 if name == "product" else x).astype(dtype)
        run(f"a[i] = warp.group_{name}(a[i], {width})", out)
        np.testing.assert_array_equal(out, np.repeat(per_group, width))


@pytest.mark.parametrize("width", WIDTHS)
def test_group_votes_and_broadcast(width: int) -> None:
    flags = np.random.default_rng(3).random(32) < 0.3
    any_, all_ = np.zeros(32, bool), np.zeros(32, bool)
    bits, source = np.zeros(32, np.uint32), np.zeros(32, np.int32)
    body = f"""
b[i] = warp.group_any(a[i], {width})
c[i] = warp.group_all(a[i] or i < 16, {width})
d[i] = warp.group_bits(a[i], {width})
e[i] = warp.broadcast(int32(i), {2 * width - 1}, {width})
"""
    run(body, flags, any_, all_, bits, source)
    groups = flags.reshape(-1, width)
    np.testing.assert_array_equal(any_, np.repeat(groups.any(axis=1), width))
    low = (flags | (np.arange(32) < 16)).reshape(-1, width)
    np.testing.assert_array_equal(all_, np.repeat(low.all(axis=1), width))
    weights = 1 << np.arange(width, dtype=np.int64)
    np.testing.assert_array_equal(bits, np.repeat(groups @ weights, width))
    np.testing.assert_array_equal(source, np.arange(32) | (width - 1))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("best", ["max", "min"])
def test_group_arg(width: int, best: str) -> None:
    x = warp_values(np.float32) % 4
    x[[0, 5, 9, 16, 17, 18, 19]] = np.nan
    index = np.zeros(32, np.int32)
    y = x.copy()
    run(f"a[i], b[i] = warp.group_arg{best}(a[i], i % {width}, {width})", y, index)
    for start in range(0, 32, width):
        group = x[start : start + width]
        all_nan = np.isnan(group).all()
        position = 0 if all_nan else getattr(np, f"nanarg{best}")(group)
        assert (index[start : start + width] == position).all()
        np.testing.assert_array_equal(y[start : start + width], group[position])


@pytest.mark.parametrize(
    ("width", "lanes"),
    [(width, lanes) for width in WIDTHS for lanes in WIDTHS if width <= lanes],
)
def test_reductions_over_edge_lanes(width: int, lanes: int) -> None:
    x = warp_values(np.float32) % 5
    flags = x > 2
    outs = [np.zeros(32, np.float32) for _ in range(4)]
    votes = [np.zeros(32, bool) for _ in range(2)]
    names = ["sum", "max", "min", "product"]
    lines = [
        f"{out}[i] = warp.edge_lane_{name}(a[i], {width}, {lanes})"
        for out, name in zip("bcde", names, strict=True)
    ]
    lines.append(f"f[i] = warp.edge_lane_any(a[i] > float32(2), {width}, {lanes})")
    lines.append(f"g[i] = warp.edge_lane_all(a[i] > float32(2), {width}, {lanes})")
    run("\n".join(lines), x, *outs, *votes)

    def edge_lanes(values: np.ndarray) -> np.ndarray:
        return values.reshape(32 // lanes, lanes // width, width)

    def spread(values: np.ndarray) -> np.ndarray:
        shape = (32 // lanes, lanes // width, width)
        return np.broadcast_to(values[:, None], shape).reshape(32)

    reduced = [
        edge_lanes(x).sum(1),
        edge_lanes(x).max(1),
        edge_lanes(x).min(1),
        edge_lanes(x).prod(1),
    ]
    for out, per_vertex in zip(outs, reduced, strict=True):
        np.testing.assert_array_equal(out, spread(per_vertex))
    np.testing.assert_array_equal(votes[0], spread(edge_lanes(flags).any(1)))
    np.testing.assert_array_equal(votes[1], spread(edge_lanes(flags).all(1)))


@pytest.mark.parametrize(
    ("width", "lanes"), [(1, 4), (1, 32), (2, 8), (2, 32), (4, 16), (8, 32)]
)
@pytest.mark.parametrize("name", ["sum", "product", "max", "min"])
def test_reductions_over_edge_lanes_of_four(width: int, lanes: int, name: str) -> None:
    four = [warp_values(np.float32, seed) % 3 + 1 for seed in range(4)]
    outs = [x.copy() for x in four]
    values = "a[i], b[i], c[i], d[i]"
    run(f"{values} = warp.edge_lane_{name}_4({values}, {width}, {lanes})", *outs)
    reduce = {"sum": np.sum, "product": np.prod, "max": np.max, "min": np.min}[name]
    for x, out in zip(four, outs, strict=True):
        edge_lanes = x.reshape(32 // lanes, lanes // width, width)
        expected = np.broadcast_to(
            reduce(edge_lanes, axis=1, keepdims=True), edge_lanes.shape
        )
        np.testing.assert_array_equal(out, expected.reshape(32))


@pytest.mark.parametrize("best", ["min", "max"])
def test_edge_lane_arg_prefers_the_smallest_source_and_skips_none(best: str) -> None:
    identity = np.float32(np.inf if best == "min" else -np.inf)
    keys = np.full(32, identity, np.float32)
    sources = np.full(32, -1, np.int32)
    # Lane 0 of eight: equal keys from sources 9, 4, 7. Lane 1: a source whose key is
    # the identity. Lane 2: none at all.
    keys[[0, 8, 16]] = 2
    keys[24] = 3 if best == "min" else 1
    sources[[0, 8, 16, 24]] = [9, 4, 7, 1]
    sources[17] = 6
    run(f"a[i], b[i] = warp.edge_lane_arg{best}(a[i], b[i], 8, 32)", keys, sources)
    for edge_lane in range(4):
        assert (keys[8 * edge_lane], sources[8 * edge_lane]) == (2, 4)
        assert (keys[8 * edge_lane + 1], sources[8 * edge_lane + 1]) == (identity, 6)
        assert (keys[8 * edge_lane + 2], sources[8 * edge_lane + 2]) == (identity, -1)


@pytest.mark.parametrize(
    ("features", "group", "lanes"),
    [(3, 3, 4), (6, 3, 8), (10, 5, 16), (12, 4, 16), (30, 10, 32), (1, 1, 1)],
)
def test_segments(features: int, group: int, lanes: int) -> None:
    x = warp_values(np.float32) % 6
    flags = x > 2
    reals = [np.zeros(32, np.float32) for _ in range(3)]
    bools = [np.zeros(32, bool) for _ in range(2)]
    place = np.zeros(32, np.int32)
    part = f"i % {lanes}, {group}, {lanes}"
    body = f"""
b[i] = warp.segment_sum(a[i], {part})
c[i] = warp.segment_max(a[i], {part})
d[i] = warp.segment_min(a[i], {part})
e[i] = warp.segment_any(a[i] > float32(2), {part})
f[i] = warp.segment_all(a[i] > float32(2), {part})
best, g[i] = warp.segment_argmax(a[i], {part})
"""
    run(body, x, *reals, *bools, place)

    def live(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, lanes)[:, :features].reshape(-1, group)

    members = live(x)
    results = [members.sum(1), members.max(1), members.min(1)]
    results += [live(flags).any(1), live(flags).all(1), members.argmax(1)]
    for out, expected in zip([*reals, *bools, place], results, strict=True):
        np.testing.assert_array_equal(live(out), np.repeat(expected[:, None], group, 1))


def test_bits() -> None:
    words = np.zeros(3, np.uint32)
    chosen = np.array([0, 5, 31, 32, 63, 64, 69] * 5)[:32]
    run("warp.set_bit(a, b[i])", words, chosen)
    set_bits = np.unpackbits(words.view(np.uint8), bitorder="little").nonzero()[0]
    np.testing.assert_array_equal(set_bits, np.unique(chosen))
    out, counts = np.zeros(128, bool), np.zeros((2, 128), np.int32)
    body = """
b[i] = warp.test_bit(a, i)
c[0, i] = warp.count_bits(a[min(i, 2)])
c[1, i] = warp.trailing_zeros(uint32(0 if i >= 32 else 1 << i))
"""
    run(body, words, out, counts, threads=128)
    np.testing.assert_array_equal(out.nonzero()[0], np.unique(chosen))
    assert counts[0, :3].tolist() == [3, 2, 2]
    np.testing.assert_array_equal(counts[1], np.minimum(np.arange(128), 32))


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("turn", [1, 5, 32])
def test_lanes_take_the_bits_of_a_warps_words_in_order(share: float, turn: int) -> None:
    rng = np.random.default_rng(turn)
    step, first = 3, 2  # every third word from the third on is the warp's
    words = np.packbits(rng.random((100, 32)) < share, axis=1, bitorder="little")
    words = np.ascontiguousarray(words).view(np.uint32).ravel()
    before, total = np.zeros((2, 32), np.int32)
    own = words[first : first + step * turn : step].copy()
    bits = np.unpackbits(own.view(np.uint8), bitorder="little").nonzero()[0]
    wanted = (first + bits // 32 * step) * 32 + bits % 32
    found = np.full(max(bits.size, 1) + 31, -1, np.int32)
    body = f"""
word = warp.word_of_lane(a, {first} + i * {step}, {turn})
before, count = warp.bits_before(word)
b[i], c[i] = before, count
for done in range(0, d.size - 31, 32):
    nth = min(int32(done + i), int32(max(count, 1) - 1))
    d[done + i] = warp.vertex_at({first}, {step}, warp.nth_bit(word, before, nth))
"""
    run(body, words, before, total, found)
    counts = np.bitwise_count(np.append(own, np.zeros(32 - own.size, np.uint32)))
    np.testing.assert_array_equal(before, np.cumsum(counts) - counts)
    assert (total == bits.size).all()
    np.testing.assert_array_equal(found[: bits.size], wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_atomics_under_contention(dtype: type) -> None:
    x = np.zeros((4, 2, 3), dtype)
    x[2:] = 1
    body = """
warp.atomic_add(a, (0, 1, 2), i)
warp.atomic_max(a, (1, 1, 1), i)
warp.atomic_min(a, (1, 0, 0), -i)
warp.atomic_product(a, (2, 0, 1), 2 if i % 4 == 0 else 1)
warp.atomic_combine(a, (3, 0, 1), i, larger)
"""
    names = "@device_function\ndef larger(a, b):\n    return max(a, b)\n"
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    source = f"{HEADER}{names}def step(a):\n    i = cuda.grid(1)\n{lines}\n"
    launch(source, "step", 1, 64, [x])
    assert x[0, 1, 2] == 63 * 64 // 2
    assert x[1, 1, 1] == 63
    assert x[1, 0, 0] == -63
    assert x[2, 0, 1] == 2**16
    assert x[3, 0, 1] == 63


def test_packed_argmin_by_atomics() -> None:
    keys = np.array([3, 1, -0.0, 0.0, np.nan, 7, -np.inf, 2] * 4, np.float32)
    packed = np.zeros(2, np.int64)
    best, source = np.zeros(2, np.float32), np.zeros(2, np.int32)
    body = """
if i < 2:
    b[i] = warp.PACKED_NONE_FLOAT32
cuda.syncwarp()
if a[i] != -math.inf:
    warp.atomic_min(b, 0, warp.pack_min_float32(a[i], int32(100 - i)))
warp.atomic_min(b, 1, warp.pack_max_float32(a[i], int32(i)))
cuda.syncwarp()
if i == 0:
    c[0], d[0] = warp.unpack_min_float32(b[0])
    c[1], d[1] = warp.unpack_max_float32(b[1])
"""
    run(body, keys, packed, best, source)
    assert best.tolist() == [0, 7]
    assert source.tolist() == [100 - 27, 5]


def test_checked_records_the_first_violation_only() -> None:
    record = np.zeros(6, np.int64)
    inside = np.zeros(32, bool)
    run("b[i] = warp.checked(i - 1, 30, 5, i, 100 + i, a)", record, inside)
    np.testing.assert_array_equal(inside.nonzero()[0], np.arange(1, 31))
    assert record.tolist() in ([1, 5, 0, 100, -1, 30], [1, 5, 31, 131, 30, 30])


def spd(k: int, rng: np.random.Generator) -> np.ndarray:
    factor = rng.standard_normal((k, k))
    return factor @ factor.T / k + np.eye(k)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize("method", ["general", "spd"])
def test_solve_and_inverse(k: int, lanes: int, method: str) -> None:
    rng = np.random.default_rng(k)
    groups = 32 // lanes
    matrices = np.stack(
        [spd(k, rng) if method == "spd" else rng.normal(size=(k, k)) for _ in range(32)]
    )[:groups].astype(np.float32)
    rights = rng.normal(size=(groups, k)).astype(np.float32)
    x, inverses = np.zeros_like(rights), np.zeros_like(matrices)
    # The work area is shared memory, so that a missing barrier is a race. Lanes fill
    # and read columns, the functions compute rows.
    body = f"""
group, lane = i // {lanes}, i % {lanes}
works = cuda.shared.array(({groups}, {k}, {2 * k + 1}), float32)
work = works[group]
for column in range(lane, {k}, {lanes}):
    for row in range({k}):
        work[row, column] = a[group, row, column]
    work[column, {k}] = b[group, column]
linalg.solve_{method}(work, {k}, float32(0.5), lane, {lanes})
for column in range(lane, {k}, {lanes}):
    c[group, column] = work[column, {k}]
cuda.syncwarp()
for column in range(lane, {k}, {lanes}):
    for row in range({k}):
        work[row, column] = a[group, row, column]
linalg.inverse_{method}(work, {k}, float32(0.5), lane, {lanes})
for column in range(lane, {k}, {lanes}):
    for row in range({k}):
        d[group, row, column] = work[row, {k} + column]
"""
    run(body, matrices, rights, x, inverses)
    shifted = matrices.astype(np.float64) + 0.5 * np.eye(k)
    scale = np.linalg.cond(shifted).max() * np.finfo(np.float32).eps * k
    expected = np.linalg.solve(shifted, rights[..., None].astype(np.float64))[..., 0]
    np.testing.assert_allclose(x, expected, atol=4 * scale * np.abs(expected).max())
    expected = np.linalg.inv(shifted)
    np.testing.assert_allclose(
        inverses, expected, atol=4 * scale * np.abs(expected).max()
    )

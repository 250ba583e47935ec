"""The emulator catches what it is for, and the device library is right in it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.simt.emulator import (
    DivergenceError,
    EmulationError,
    Emulator,
    MemoryFault,
    RaceError,
    launch,
)

DEVICE = Path(__file__).resolve().parents[2] / "featgraph" / "device"
HEADER = """
import math
from numba import float32, float64, int32, int64, uint32
from featgraph.cuda.dialect import cuda, device_function, kernel
from featgraph.device import linalg_cuda as linalg
from featgraph.device import warp
"""


class State(NamedTuple):
    x: np.ndarray
    alpha: np.float32
    columns: int
    seen: np.ndarray


def run(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1) -> None:
    """Launch a kernel of the arrays a, b, c, ... with a given body."""
    names = ", ".join("abcdefgh"[: len(arrays)])
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    source = f"{HEADER}\n@kernel\ndef step({names}):\n    i = cuda.grid(1)\n{lines}\n"
    launch(source, "step", blocks, threads, arrays)


def test_an_ordinary_kernel_over_several_blocks() -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run("b[i] = a[i] * float32(2)", x, out, threads=32, blocks=4)
    np.testing.assert_array_equal(out, 2 * x)


def test_lanes_that_run_again_keep_nothing_of_the_kernel_before() -> None:
    for _ in range(2):  # the lanes of the first are those of the second
        given = np.zeros(64, np.float32)
        run("for k in range(3):\n    a[i] += float32(k)", given, threads=64)
        assert np.array_equal(given, np.full(64, 3))
        known = weakref.ref(given)
        del given
        gc.collect()
        assert known() is None


def test_an_early_exit_is_divergence_and_names_the_line() -> None:
    body = """
if i >= 20:
    return
a[i] = warp.group_sum(a[i], 8)
"""
    with pytest.raises(DivergenceError) as caught:
        run(body, np.ones(32, np.float32))
    message = str(caught.value)
    assert "threads 20-31: left the kernel" in message
    assert "threads 0-19: shfl_xor_sync" in message
    assert "<kernel>:13 in step" in message
    assert "warp.py" in message


def test_a_collective_under_a_divergent_branch_is_divergence() -> None:
    body = """
if i % 2 == 0:
    a[i] = warp.group_sum(a[i], 8)
else:
    a[i] = warp.group_sum(a[i], 8) + float32(1)
"""
    with pytest.raises(DivergenceError, match="wait apart"):
        run(body, np.ones(32, np.float32))


def test_two_collectives_of_one_line_are_divergence() -> None:
    sums = "warp.group_sum(a[i], 8)"
    with pytest.raises(DivergenceError, match="wait apart"):
        run(f"a[i] = {sums} if i % 2 else {sums}", np.ones(32, np.float32))


def test_a_collective_in_a_loop_of_unequal_trips_is_divergence() -> None:
    body = """
for trip in range(2 + i // 16):
    a[i] += cuda.shfl_xor_sync(0xFFFFFFFF, a[i], 1)
"""
    with pytest.raises(DivergenceError, match="left the kernel"):
        run(body, np.ones(32, np.float32))


def test_the_same_line_in_another_iteration_is_divergence() -> None:
    # Every lane calls once: the first half in the second trip, the others in the first.
    body = """
for trip in range(2):
    if trip == int(i < 16):
        a[i] += cuda.shfl_xor_sync(0xFFFFFFFF, a[i], 16)
"""
    with pytest.raises(DivergenceError) as caught:
        run(body, np.ones(32, np.float32))
    message = str(caught.value)
    assert "threads 0-15: shfl_xor_sync at <kernel>:13 in step (trip 2)" in message
    assert "threads 16-31: shfl_xor_sync at <kernel>:13 in step (trip 1)" in message


def test_loops_of_unequal_trips_before_a_collective_are_fine() -> None:
    body = """
for trip in range(i):
    b[i] += 1
a[i] = warp.group_sum(a[i], 32)
"""
    x, trips = np.ones(32, np.float32), np.zeros(32, np.int32)
    run(body, x, trips)
    np.testing.assert_array_equal(trips, np.arange(32))
    assert (x == 32).all()


def test_half_warps_with_masks_of_their_own_may_differ() -> None:
    body = """
if i < 16:
    a[i] += cuda.shfl_xor_sync(0x0000FFFF, a[i], 1)
cuda.syncwarp()
"""
    x = np.ones(32, np.float32)
    run(body, x)
    np.testing.assert_array_equal(x, [2] * 16 + [1] * 16)


def test_a_lane_outside_its_own_mask_is_divergence() -> None:
    with pytest.raises(DivergenceError, match="without itself"):
        run("cuda.ballot_sync(0x0000FFFF, True)", np.ones(1))


def test_a_shuffle_from_a_lane_out_of_range_is_an_error() -> None:
    with pytest.raises(EmulationError, match="does not take part"):
        run("a[i] = cuda.shfl_sync(0xFFFFFFFF, a[i], i + 1)", np.ones(32, np.float32))


def test_a_missing_pad_mask_gives_a_wrong_number() -> None:
    # Three features in groups of four lanes: the fourth lane must add nothing.
    right, wrong = np.zeros(8, np.float32), np.zeros(8, np.float32)
    x = np.arange(1, 25, dtype=np.float32)
    body = """
vertex, f = i // 4, i % 4
live = f < 3
value = a[vertex * 3 + min(f, 2)]
total = warp.group_sum(value if {mask} else float32(0), 4)
if f == 0:
    b[vertex] = total
"""
    run(body.format(mask="live"), x, right)
    run(body.format(mask="True"), x, wrong)
    np.testing.assert_array_equal(right, x.reshape(8, 3).sum(axis=1))
    assert not np.array_equal(wrong, right)


def test_a_missing_shuffle_step_gives_a_wrong_number() -> None:
    text = (DEVICE / "warp.py").read_text()
    planted = text.replace("while offset < lanes:", "while offset < lanes // 2:", 1)
    assert planted != text
    emulator = Emulator({"featgraph.device.warp": planted})
    source = f"{HEADER}\ndef step(a):\n    a[cuda.grid(1)] = warp.group_sum(a[0], 8)\n"
    x = np.ones(32, np.float32)
    emulator.launch(source, "step", 1, 32, [x])
    np.testing.assert_array_equal(x, np.full(32, 4))


@pytest.mark.parametrize("barrier", ["cuda.syncthreads()", "pass"])
def test_a_missing_syncthreads_is_a_race(barrier: str) -> None:
    body = f"""
box = cuda.shared.array(64, float32)
box[i] = a[i]
{barrier}
b[i] = box[63 - i]
"""
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    if barrier == "pass":
        # Thread 0 runs first and reads what thread 63 has not written: NaN. The write
        # that comes later finds out.
        with pytest.raises(RaceError):
            run(body, x, out, threads=64)
        assert np.isnan(out[0])
    else:
        run(body, x, out, threads=64)
        np.testing.assert_array_equal(out, x[::-1])


def test_syncwarp_orders_a_warp_but_not_a_block() -> None:
    body = """
box = cuda.shared.array(64, float32)
box[i] = a[i]
cuda.syncwarp()
b[i] = box[i ^ {other}]
"""
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(body.format(other=1), x, out, threads=64)
    np.testing.assert_array_equal(out, x[np.arange(64) ^ 1])
    with pytest.raises(RaceError):
        run(body.format(other=32), x, out, threads=64)


def test_threads_that_miss_a_block_barrier_are_named() -> None:
    body = """
if i != 3:
    cuda.syncthreads()
"""
    with pytest.raises(DivergenceError, match="threads 3: left the kernel"):
        run(body, np.ones(1), threads=64)


def test_unwritten_memory_is_poisoned() -> None:
    body = """
a[i] = cuda.local.array(2, float32)[1]
b[i] = cuda.shared.array(2, int32)[1]
"""
    x, n = np.zeros(32, np.float32), np.zeros(32, np.int64)
    run(body, x, n)
    assert np.isnan(x).all()
    assert (n > 1 << 30).all()


@pytest.mark.parametrize("index", ["-1", "32", "(0, 0)", "float32(1)"])
def test_an_index_out_of_range_is_a_fault(index: str) -> None:
    with pytest.raises(MemoryFault) as caught:
        run(f"a[{index}] = float32(1)", np.zeros(32, np.float32))
    assert caught.value.__notes__ == ["block (0, 0, 0), thread (0, 0, 0)"]


def test_integers_wrap_when_cast_and_stored() -> None:
    n = np.zeros(32, np.int32)
    run("a[i] = uint32(-1) if i else int32(uint32(0x80000000))", n)
    assert n[0] == -(2**31)
    assert n[1] == -1


def test_ballot_is_signed_like_the_dialects() -> None:
    n = np.zeros(32, np.int64)
    run("a[i] = cuda.ballot_sync(0xFFFFFFFF, True)", n)
    assert (n == -1).all()
    with pytest.raises(EmulationError, match="unsigned"):
        run("cuda.popc(cuda.ballot_sync(0xFFFFFFFF, True))", n)


def test_a_block_of_part_of_a_warp_is_refused() -> None:
    with pytest.raises(EmulationError, match="whole warps"):
        run("pass", np.ones(1), threads=20)


def test_a_missing_barrier_in_linalg_is_a_race() -> None:
    text = (DEVICE / "linalg.py").read_text()
    planted = text.replace("            sync()\n        for back", "        for back")
    assert planted != text
    body = """
    lane = cuda.grid(1)
    work = cuda.shared.array((4, 5), float32)
    if lane < 4:
        for column in range(5):
            work[lane, column] = float32(1 + (lane == column))
    linalg.solve_spd(work, 4, float32(0), lane, 32)
"""
    emulator = Emulator({"featgraph.device.linalg": planted})
    with pytest.raises(RaceError):
        emulator.launch(f"{HEADER}def step():\n{body}", "step", 1, 32, [])
    Emulator().launch(f"{HEADER}def step():\n{body}", "step", 1, 32, [])


def test_named_tuples_scalars_and_two_dimensions() -> None:
    source = f"""{HEADER}
from typing import NamedTuple
@kernel(cache=True)
def step(d, out):
    row, column = cuda.grid(2)
    place = row * d.columns + column
    d.seen[row, column] = True
    out[place] = d.x[place] * d.alpha + cuda.syncthreads_count(place % 2)
"""
    values = np.arange(64, dtype=np.float32)
    state = State(values, np.float32(0.5), 16, np.zeros((4, 16), bool))
    out = np.zeros(64, np.float32)
    launch(source, "step", (2, 1), (2, 16), [state, out])
    np.testing.assert_array_equal(out, values / 2 + 16)
    assert state.seen.all()


def test_functions_of_math_keep_float32_and_never_raise() -> None:
    x = np.array([-1, 0, 4] + [1] * 29, np.float32)
    out, kinds = np.zeros(32, np.float32), np.zeros(32, bool)
    run(
        "b[i] = math.log(a[i]) / math.sqrt(a[i])\nc[i] = math.isnan(b[i])",
        x,
        out,
        kinds,
    )
    assert kinds.nonzero()[0].tolist() == [0]
    assert out[1] == -np.inf
    assert out[2] == np.log(np.float32(4)) / np.float32(2)

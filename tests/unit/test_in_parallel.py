"""Sweeps of all chunks on Numba's threads: errors, interrupts, layers, the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import ir
from numba import get_num_threads, njit, types
from numba.extending import intrinsic

from featgraph.device import cpu

#: A module as the folder writes them, and a program that runs it.
_MODULE = """
from numba import njit

from featgraph.device import cpu


@njit(cache=True, nogil=True)
def sweep(chunk, first, last, seen, scale):
    for place in range(first, last):
        seen[place] += scale * (chunk + 1)


@njit(cache=True, nogil=True)
def sweep_all(chunks, seen, scale):
    cpu.in_parallel(sweep, chunks, (seen, scale))
"""
_PROGRAM = """
import os

import numpy as np
from chunked import sweep_all
from numba import threading_layer

chunks = np.arange(0, 1001, 10)


def run():
    seen = np.zeros(1000)
    sweep_all(chunks, seen, 2.0)
    return (seen == np.repeat(2.0 * np.arange(1, 101), 10)).all()


assert run()
if threading_layer() != "omp":  # which ends a forked process that starts threads
    child = os.fork()
    if child == 0:
        os._exit(0 if run() else 1)
    assert os.waitpid(child, 0)[1] == 0
print(threading_layer(), sum(sweep_all.stats.cache_hits.values()))
"""


@njit
def _count(chunk, first, last, seen, numbers):
    for place in range(first, last):
        seen[place] += 1
    numbers[chunk] += 1


@njit
def _count_all(chunks, seen, numbers):
    cpu.in_parallel(_count, chunks, (seen, numbers))


@njit
def _fail(chunk, first, last, begun, failing):
    begun[chunk] += 1
    if chunk >= failing:
        raise ValueError("a sweep fails")


@njit(nogil=True)
def _fail_all(chunks, begun, failing):
    cpu.in_parallel(_fail, chunks, (begun, failing))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_every_chunk_is_swept_once(count: int) -> None:
    chunks = np.arange(count + 1) * 7
    seen, numbers = np.zeros(7 * count, np.int64), np.zeros(count, np.int64)
    _count_all(chunks, seen, numbers)
    assert (seen == 1).all()
    assert (numbers == 1).all()


@pytest.mark.parametrize("failing", [0, 90, 99])
def test_an_error_in_a_sweep_is_raised_once_threads_have_ended(failing: int) -> None:
    begun = np.zeros(100, np.int64)
    with pytest.raises(ValueError, match="a sweep fails"):
        _fail_all(np.arange(101), begun, failing)
    # Chunks are taken in order; each thread fails once at most.
    assert (begun[: failing + 1] == 1).all()
    assert begun.sum() <= failing + get_num_threads()
    assert cpu.parallel_regions.value == 0
    _fail_all(np.arange(101), begun, 100)


@intrinsic
def _regions(typing_context):
    def generate(context, builder, signature, arguments):
        return builder.load(cpu.regions_pointer(builder))

    return types.int32(), generate


@njit
def _note(chunk, first, last, seen):
    seen[chunk] = _regions()


@njit
def _note_all(chunks, seen):
    cpu.in_parallel(_note, chunks, (seen,))


@pytest.mark.parametrize("count", [1, 2, 100])
def test_sweeps_on_several_threads_are_counted(count: int) -> None:
    seen = np.full(count, -1, np.int32)
    _note_all(np.arange(count + 1), seen)
    assert (seen == (1 if min(count, get_num_threads()) > 1 else 0)).all()
    assert cpu.parallel_regions.value == 0


def test_an_interrupt_leaves_no_chunk_out() -> None:
    class Late(Exception):
        pass

    def come(*_: object) -> None:
        raise Late

    numbers = np.zeros(1 << 10, np.int64)
    chunks = np.arange(0, (1 << 20) + 1, 1 << 10)
    seen = np.zeros(chunks[-1], np.int64)
    _count_all(chunks, seen, numbers)

    def count_until_then() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        while True:
            _count_all(chunks, seen, numbers)

    before = signal.signal(signal.SIGALRM, come)
    try:
        with pytest.raises(Late):
            count_until_then()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen[0] > 0
    assert (seen == seen[0]).all()
    assert (numbers == seen[0]).all()


def test_bounds_are_whole_numbers_of_64_bits() -> None:
    seen = np.zeros(1, np.int64)
    with pytest.raises(Exception, match="in_parallel"):
        _count_all(np.zeros(2, np.int32), seen, seen)


@pytest.mark.parametrize("layer", ["omp", "workqueue", "tbb"])
def test_threads_are_of_any_layer_and_code_may_come_from_the_store(
    tmp_path: Path, layer: str
) -> None:
    (tmp_path / "chunked.py").write_text(_MODULE)
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer}
    environment |= {"NUMBA_NUM_THREADS": "2", "NUMBA_CACHE_DIR": str(tmp_path / "c")}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _PROGRAM]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path,
            env=environment, timeout=120, check=False,
        )  # fmt: skip

    first = run()
    if "No threading layer could be loaded" in first.stderr:
        pytest.skip(f"Numba has no {layer} here")
    assert first.stdout.split() == [layer, "0"], first.stderr
    assert run().stdout.split() == [layer, "1"]


@intrinsic
def owner_of(typing_context, array):
    """Return the address of what counts references to an array; 0 if nothing does."""

    def generate(context, builder, signature, values):
        found = context.make_array(array)(context, builder, values[0])
        return builder.ptrtoint(found.meminfo, ir.IntType(64))

    return types.int64(array), generate


class Data(NamedTuple):
    """Arrays as kernels take them."""

    x: Any
    rest: Any


@njit
def note_owners(chunk, first, last, seen, d):
    seen[chunk] = owner_of(d.x) | owner_of(d.rest[0]) | owner_of(seen)


@njit
def note_all(chunks, seen, d):
    cpu.in_parallel(note_owners, chunks, (seen, d))
    return owner_of(d.x)


def test_threads_count_no_references() -> None:
    """In the loops of several threads, counting takes longer than the work."""
    seen = np.full(3, -1)
    assert note_all(np.arange(4), seen, Data(np.zeros(4), (np.ones(2), 1.0))) != 0
    assert seen.tolist() == [0, 0, 0]

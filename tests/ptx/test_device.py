"""The device library compiles without a GPU: no spills, no calls, no stray float64."""

from __future__ import annotations

import contextlib
import gc
import math
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from featgraph.base.errors import DeviceError
from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect as cuda_dialect

if not cuda_dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import float32, float64, int32, int64, types, uint32

from featgraph.cuda import elements
from featgraph.cuda.dialect import cuda
from featgraph.device import linalg_cuda, warp

CAPABILITIES = [(8, 0), (9, 0)]


def arrays(dtype: types.Type, *dimensions: int) -> tuple[types.Array, ...]:
    return tuple(types.Array(dtype, ndim, "C") for ndim in dimensions)


def groups(x, out):
    i = uint32(cuda.grid(1))
    lane = cuda.laneid & 7
    value = warp.group_sum(x[i], 8)
    value = warp.group_product(value, 8)
    value = warp.edge_lane_min(warp.group_max(value, 8), 8, 32)
    value = warp.edge_lane_sum(warp.edge_lane_product(value, 8, 32), 8, 32)
    value = warp.edge_lane_max(warp.group_min(value, 16), 16, 32)
    value, index = warp.group_argmax(value, lane, 8)
    value, index = warp.edge_lane_argmin(value, index, 8, 32)
    value, index = warp.group_argmin(value, index, 8)
    value, index = warp.edge_lane_argmax(value, index, 8, 32)
    four = warp.edge_lane_sum_4(value, x[0], x[1], x[2], 4, 32)
    four = warp.edge_lane_max_4(four[3], four[2], four[1], four[0], 2, 16)
    four = warp.edge_lane_min_4(four[3], four[2], four[1], four[0], 2, 16)
    value, _, _, _ = warp.edge_lane_product_4(four[3], four[2], four[1], four[0], 1, 32)
    out[i] = warp.broadcast(value, index & 7, 8)


def segments(x, out):
    i = uint32(cuda.grid(1))
    lane = cuda.laneid & 7
    value = warp.segment_sum(x[i], lane, 3, 8)
    value = warp.segment_max(value, lane, 3, 8)
    value = warp.segment_min(value, lane, 3, 8)
    value, index = warp.segment_argmax(value, lane, 3, 8)
    value, other = warp.segment_argmin(value, lane, 3, 8)
    if index == other:
        out[i] = value


def votes(x, out):
    i = uint32(cuda.grid(1))
    lane = cuda.laneid & 7
    flag = warp.group_any(x[i] > x[0], 8) and not warp.group_all(x[i] > x[1], 8)
    if warp.edge_lane_any(flag, 8, 32) and not warp.edge_lane_all(flag, 8, 16):
        out[i] = x[2]
    if warp.segment_any(flag, lane, 3, 8) and not warp.segment_all(flag, lane, 3, 8):
        out[i] = x[3]


def bits(words, counts, record):
    i = uint32(cuda.grid(1))
    if warp.checked(i, counts.size, 1, 2, 3, record):
        warp.set_bit(words, i)
        if warp.test_bit(words, i + uint32(1)):
            counts[i] = warp.count_bits(words[i]) + warp.trailing_zeros(words[i])


@cuda_dialect.device_function
def _larger(a, b):
    return a if a > b else b


def atomics(x, cube):
    i = uint32(cuda.grid(1))
    warp.atomic_add(cube, (i, uint32(1), uint32(2)), x[i])
    warp.atomic_min(x, i, x[0])
    warp.atomic_max(x, i, x[1])
    warp.atomic_product(cube, (i, uint32(0), uint32(2)), x[i])
    warp.atomic_combine(x, i, x[2], _larger)


def packed_float32(x, packed):
    i = uint32(cuda.grid(1))
    warp.atomic_min(packed, 0, warp.pack_min_float32(x[i], int32(i)))
    warp.atomic_min(packed, 1, warp.pack_max_float32(x[i], int32(i)))
    low, first = warp.unpack_min_float32(packed[2])
    high, second = warp.unpack_max_float32(packed[3])
    if warp.wins_min(low, first, high, second) or warp.wins_max(low, 1, high, 2):
        x[i] = low


def packed_int32(x, packed):
    i = uint32(cuda.grid(1))
    warp.atomic_min(packed, 0, warp.pack_min_int32(x[i], int32(i)))
    warp.atomic_min(packed, 1, warp.pack_max_int32(x[i], int32(i)))
    low, first = warp.unpack_min_int32(packed[2])
    high, second = warp.unpack_max_int32(packed[3])
    if warp.wins_min(low, first, high, second):
        x[i] = high


def systems(work, diagonal):
    group = uint32(cuda.grid(1) >> 3)
    lane = cuda.laneid & 7
    linalg_cuda.solve_general(work[group], 8, diagonal[0], lane, 8)
    linalg_cuda.solve_spd(work[group], 8, diagonal[0], lane, 8)
    linalg_cuda.inverse_general(work[group], 8, diagonal[0], lane, 8)
    linalg_cuda.inverse_spd(work[group], 8, diagonal[0], lane, 8)


def _cases():
    for dtype in (int32, int64, float32, float64):
        for body in (groups, segments, votes):
            yield body, arrays(dtype, 1, 1)
        yield atomics, arrays(dtype, 1, 3)
    for dtype in (float32, float64):
        yield systems, arrays(dtype, 3, 1)
    yield packed_float32, (*arrays(float32, 1), *arrays(int64, 1))
    yield packed_int32, (*arrays(int32, 1), *arrays(int64, 1))
    yield bits, (*arrays(uint32, 1), *arrays(int32, 1), *arrays(int64, 1))


@pytest.mark.drawn(7)
@pytest.mark.parametrize("cc", CAPABILITIES, ids=["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("body", "signature"),
    [
        pytest.param(*case, id=f"{case[0].__name__}-{case[1][0].dtype}")
        for case in _cases()
    ],
)
def test_compiles_without_spills_calls_or_stray_float64(body, signature, cc) -> None:
    ptx = cuda_dialect.compile_ptx(body, signature, cc)
    _, resources = cuda_code.link_cubin(ptx, cc)
    assert resources.registers > 0
    assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
    assert resources.stack_bytes == 0
    assert "call" not in ptx
    if signature[0].dtype != float64:
        assert ".f64" not in ptx


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_group_sum_of_a_literal_width_is_unrolled(width: int) -> None:
    def body(x):
        i = uint32(cuda.grid(1))
        x[i] = warp.group_sum(x[i], width)

    ptx = cuda_dialect.compile_ptx(body, arrays(float32, 1), (9, 0))
    assert ptx.count("shfl.sync") == width.bit_length() - 1
    assert "bra" not in ptx


def test_division_and_constants_keep_inf_and_nan() -> None:
    def body(x):
        i = uint32(cuda.grid(1))
        value = x[i] / x[0]
        if value == float32(math.inf) or value != value:
            x[i] = float32(0)

    ptx = cuda_dialect.compile_ptx(body, arrays(float32, 1), (9, 0))
    assert "div.rn.f32" in ptx
    assert "0f7F800000" in ptx
    assert "ftz" not in ptx


def test_a_kernel_and_the_options_of_its_decorator() -> None:
    def body(x):
        x[uint32(cuda.grid(1))] = float32(1)

    signature = arrays(float32, 1)
    assert "maxntid" not in cuda_dialect.compile_ptx(
        cuda_dialect.kernel(body), signature, (8, 0)
    )
    bounded = cuda_dialect.compile_ptx(
        cuda_dialect.kernel(lineinfo=False)(body), signature, (8, 0), launch_bounds=128
    )
    assert ".maxntid 128" in bounded


def folded_in(x, out):
    i = cuda.grid(1)
    out[i] = x.reshape((2, x.size // 2))[1, i]


@pytest.mark.parametrize("is_linked_from_ltoir", [True, False])
@pytest.mark.parametrize(("body", "links"), [(groups, []), (folded_in, [True])])
def test_ptx_is_made_for_kernels_that_are_linked_from_it_alone(
    is_linked_from_ltoir: bool,
    body: Any,
    links: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dialect finds what of its own a kernel calls without it."""
    from numba.cuda import codegen, dispatcher

    made, make = [], codegen.CUDACodeLibrary.get_asm_strs

    def get_asm_strs(own: Any, cc: Any = None) -> Any:
        made.append(own)
        return make(own, (9, 0, "a"))

    monkeypatch.setattr(codegen.CUDACodeLibrary, "get_asm_strs", get_asm_strs)
    with cuda_dialect.target_cc((9, 0)), cuda_dialect.compiling():
        kernel = dispatcher._Kernel(
            body, arrays(float32, 1, 1), lto=is_linked_from_ltoir
        )
    assert bool(made) is not is_linked_from_ltoir
    files = kernel._codelibrary._linking_files
    assert ["reshape_funcs" in str(file) for file in files] == links


def test_the_collector_is_as_it_was_behind_what_is_compiled() -> None:
    with cuda_dialect.compiling():
        with pytest.raises(ZeroDivisionError), cuda_dialect.compiling():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with cuda_dialect.compiling():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_launch_compiles_on_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the GPU of the caller, and without the collector, which is back then."""
    current: list[int] = []

    class Gpu(contextlib.nullcontext[None]):
        def __init__(self, number: int) -> None:
            super().__init__()
            current.append(number)

    class Kernel:
        def _compile_for_args(self, *arguments: int) -> Any:
            is_main = threading.current_thread() is threading.main_thread()
            return arguments, is_main, gc.isenabled(), list(current)

    dialect = SimpleNamespace(
        jit=lambda function, **options: Kernel(),
        gpus=type("Gpus", (), {"__getitem__": lambda self, number: Gpu(number)})(),
        current_context=lambda: SimpleNamespace(device=SimpleNamespace(id=3)),
    )
    monkeypatch.setattr(cuda_dialect, "_dialect", lambda: dialect)
    kernel = cuda_dialect.kernel(lambda x: None, cache=True)
    assert kernel._compile_for_args(1, 2) == ((1, 2), False, False, [3])
    assert gc.isenabled()
    current.clear()
    with cuda_dialect.compiling():  # for whose lock another thread would wait
        assert kernel._compile_for_args(1) == ((1,), True, False, [])


#: NumPy 2.5 removed a name that the dialect looks up, and has a warning for it.
NEWEST_NUMPY = """
import warnings
import numba.np.arrayobj  # knows what is gone by NumPy's version
import numpy as np

if vars(np).pop("row_stack", None):
    np.__all__.remove("row_stack")
warnings.simplefilter("error")
filters = list(warnings.filters)
from numba import types
from featgraph.cuda import dialect, elements

numbers = types.Array(types.int64, 1, "C")
assert ".entry" in dialect.compile_ptx(elements.fill, (numbers, types.int64), (9, 0))
assert "row_stack" not in vars(np)
assert warnings.filters == filters
"""


def test_kernels_compile_with_the_newest_numpy() -> None:
    run = subprocess.run(
        [sys.executable, "-c", NEWEST_NUMPY],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_resources_are_read_from_the_assemblers_report() -> None:
    log = """ptxas info : Function properties for f
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
    ptxas info : Used 40 registers, used 1 barriers, 512 bytes smem"""
    assert cuda_code.Resources.from_log(log) == cuda_code.Resources(40, 4, 8, 16, 512)


def test_the_same_code_is_reported_on_again() -> None:
    """With a driver, the linker caches its results, and reports nothing for these."""

    def body(x):
        x[uint32(cuda.grid(1))] += float32(1)

    code = cuda_dialect.compile_ltoir(body, arrays(float32, 1), (9, 0))
    first, second = (cuda_code.link_cubin(code, (9, 0))[1] for _ in range(2))
    assert first == second
    assert first.registers > 0


def test_shared_memory_is_reported() -> None:
    def body(x):
        box = cuda.shared.array(100, float32)
        box[cuda.threadIdx.x] = x[0]
        cuda.syncthreads()
        x[0] = box[cuda.threadIdx.x ^ 1]

    ptx = cuda_dialect.compile_ptx(body, arrays(float32, 1), (9, 0))
    assert cuda_code.link_cubin(ptx, (9, 0))[1].shared_bytes == 400


def test_sass_without_a_disassembler_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match="nvdisasm"):
        cuda_code.sass(b"")


def test_a_missing_dialect_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_dialect, "is_installed", lambda: False)
    with pytest.raises(DeviceError, match="pip install"):
        cuda_dialect.require()
    assert not cuda_dialect.is_available()


@pytest.mark.parametrize("wanted", ["uint8", "int16", "int64", "float32", "float64"])
@pytest.mark.parametrize("given", ["uint8", "int32", "uint64", "float32", "float64"])
def test_rows_are_placed_for_all_types(given: str, wanted: str) -> None:
    source, target = getattr(types, given), getattr(types, wanted)
    numbers = types.Array(types.int64, 1, "C")
    signature = (
        types.Array(source, 3, "A"), numbers, types.boolean, types.int64, source,
        source, types.Array(target, 1, "C"), types.int64, numbers,
    )  # fmt: skip
    cuda_dialect.compile_ptx(elements.place_rows, signature, (9, 0))


@pytest.mark.parametrize("given", ["uint8", "int64", "float32", "float64"])
def test_arrays_of_all_types_are_looked_at(given: str) -> None:
    dtype = getattr(types, given)
    source, numbers = types.Array(dtype, 3, "A"), types.Array(types.int64, 1, "C")
    columns, parts = types.Array(dtype, 4, "A"), types.Array(dtype, 3, "C")
    ranged = (source, dtype, dtype, types.boolean, numbers)
    cuda_dialect.compile_ptx(elements.find_in_range, ranged, (9, 0))
    cuda_dialect.compile_ptx(
        elements.find_rows_without, (source, dtype, numbers), (9, 0)
    )
    cuda_dialect.compile_ptx(elements.fold_columns, (columns, parts), (9, 0))


def test_what_follows_from_arrays_is_rounded_as_on_the_host() -> None:
    reals, numbers = (types.Array(t, 1, "C") for t in (types.float64, types.int64))
    source, mask = types.Array(types.float64, 3, "A"), types.Array(types.uint8, 1, "C")
    for kernel, signature in (
        (elements.scale_columns, (source, reals, reals)),
        (elements.scale_rows, (source, reals)),
        (elements.part_held, (source, reals, mask, numbers)),
        (elements.fill_rows, (reals, mask, reals)),
        (elements.take_logs, (reals,)),
        (elements.take_exps, (reals, types.float64)),
    ):
        ptx = cuda_dialect.compile_ptx(kernel, signature, (9, 0))
        if kernel in (elements.scale_columns, elements.scale_rows):
            assert "div.rn.f64" in ptx

"""The names that kernels import, emulated: the CUDA dialect, scalar types, math."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.simt.lanes import (
    WARP_SIZE,
    EmulationError,
    MemoryFault,
    call_path,
    current_lane,
    meet_block,
    meet_warp,
    pause,
)
from tests.simt.memory import (
    LIMITS,
    GuardedArray,
    SharedRecord,
    poisoned,
    wrap_integer,
)

__all__ = [
    "conditions",
    "cuda_module",
    "largest",
    "math_functions",
    "scalar_types",
    "smallest",
]

_TYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_TYPES += ["float16", "float32", "float64"]


class ScalarType:
    """A scalar type of Numba: casts when called, names a dtype elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(name)
        self._is_integer = self.dtype.kind in "iu"
        self._type = bool if self.dtype.kind == "b" else self.dtype.type
        self._least, self._most = LIMITS.get(self.dtype.char, (0, -1))

    def __call__(self, value: Any) -> Any:
        if type(value) is int and self._least <= value <= self._most:
            return value  # most are
        return (
            wrap_integer(value, self.dtype) if self._is_integer else self._type(value)
        )

    def __repr__(self) -> str:
        return self.name


def scalar_types() -> dict[str, Any]:
    """Return the members of the twin of `numba`."""
    members: dict[str, Any] = {name: ScalarType(name) for name in _TYPES}
    members["boolean"] = members["bool_"] = ScalarType("bool")
    members["intp"] = members["int64"]
    members["types"] = SimpleNamespace(**members)
    return members


def _dtype(of: Any) -> np.dtype[Any]:
    return of.dtype if isinstance(of, ScalarType) else np.dtype(of)


def smallest(*values: Any) -> Any:
    """``min`` of the GPU: NaN loses."""
    best, *others = values
    for value in others:
        if value < best or best != best:
            best = value
    return best


def largest(*values: Any) -> Any:
    """``max`` of the GPU: NaN loses."""
    best, *others = values
    for value in others:
        if value > best or best != best:
            best = value
    return best


def _to_bool(function: Callable[[Any], Any]) -> Callable[[Any], bool]:
    return lambda x: bool(function(x))


def _to_int64(function: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda x: wrap_integer(function(x), np.dtype(np.int64))


def math_functions() -> dict[str, Any]:
    """Return the members of the twin of `math`: float32 stays, nothing raises."""
    names = "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh"
    members: dict[str, Any] = {
        name: getattr(np, name)
        for name in (*names.split(), "fmod", "hypot", "copysign", "fabs")
    }
    members |= {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
    members |= {"atan2": np.arctan2, "pow": np.power}
    for name in ("isnan", "isinf", "isfinite"):
        members[name] = _to_bool(getattr(np, name))
    # Of real numbers, as the dialect has them: they stay what they are.
    members |= {"floor": np.floor, "ceil": np.ceil}
    members["trunc"] = _to_int64(np.trunc)
    members |= {"inf": float("inf"), "nan": float("nan"), "pi": np.pi, "e": np.e}
    return members


def _shuffle(name: str, source_of: Callable[[int, int], int]) -> Callable[..., Any]:
    def shuffle(mask: int, value: Any, operand: int) -> Any:
        if isinstance(value, bool | np.bool_):
            raise EmulationError(f"{name} takes numbers of 32 or 64 bits, not bools")

        def outcome(brought: dict[int, Any]) -> dict[int, Any]:
            gets = {}
            for lane, (_, operand) in brought.items():
                source = source_of(lane, int(operand))
                if source not in brought:
                    raise EmulationError(
                        f"{name}: lane {lane} reads lane {source}, "
                        "which does not take part"
                    )
                gets[lane] = brought[source][0]
            return gets

        return meet_warp(name, mask, (value, operand), outcome)

    return shuffle


def _vote(
    name: str, decide: Callable[[dict[int, bool]], Any], *, block: bool = False
) -> Callable[..., Any]:
    def outcome(brought: dict[int, Any]) -> dict[int, Any]:
        result = decide({lane: bool(flag) for lane, flag in brought.items()})
        return dict.fromkeys(brought, result)

    def vote_warp(mask: int, flag: Any) -> Any:
        return meet_warp(name, mask, flag, outcome)

    def vote_block(flag: Any) -> Any:
        return meet_block(name, flag, outcome)

    return vote_block if block else vote_warp


def _ballot(flags: dict[int, bool]) -> int:
    bits = sum(1 << lane for lane, flag in flags.items() if flag)
    # int32, like the dialect's: a shift needs a cast to uint32 first.
    return wrap_integer(bits, np.dtype(np.int32))


def _nothing(brought: dict[int, Any]) -> dict[int, Any]:
    return dict.fromkeys(brought)


def _sync_warp(mask: int = 0xFFFFFFFF) -> None:
    meet_warp("syncwarp", mask, None, _nothing)


def _sync_threads() -> None:
    meet_block("syncthreads", None, _nothing)


def _match_any(mask: int, value: Any) -> int:
    def outcome(brought: dict[int, Any]) -> dict[int, Any]:
        return {
            lane: _ballot({other: theirs == own for other, theirs in brought.items()})
            for lane, own in brought.items()
        }

    return int(meet_warp("match_any_sync", mask, value, outcome))


def _active_mask() -> int:
    lane = current_lane()
    mates = (other for other in lane.block.lanes if other.warp == lane.warp)
    return sum(1 << other.lane_id for other in mates if not other.has_left)


def _shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> GuardedArray:
    lane = current_lane()
    block = lane.block
    # The same memory in every iteration of a loop.
    site = tuple(step[:3] for step in call_path(lane))
    if site not in block.shared:
        data = poisoned(shape, _dtype(dtype))
        block.shared[site] = GuardedArray(data, SharedRecord(block))
    array: GuardedArray = block.shared[site]
    return array


def _local_array(shape: Any, dtype: Any) -> GuardedArray:
    return GuardedArray(poisoned(shape, _dtype(dtype)))


def _atomic(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def update(array: GuardedArray, index: Any, value: Any) -> Any:
        array.touch(index)
        old = array.peek(index)
        array.poke(index, combine(old, value))
        return old

    return update


def _compare_and_swap(
    array: GuardedArray, index: Any, expected: Any, desired: Any
) -> Any:
    pause()
    array.touch(index)
    old = array.peek(index)
    is_same = _bits_of(old, array.dtype) == _bits_of(expected, array.dtype)
    if is_same:
        array.poke(index, desired)
    return old


def _bits_of(value: Any, dtype: np.dtype[Any]) -> bytes:
    if dtype.kind in "iu":
        value = wrap_integer(value, dtype)
    return np.asarray(value, dtype).tobytes()


# NaN changes nothing in min and max.
_ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "min": lambda old, value: value if value < old else old,
    "max": lambda old, value: value if value > old else old,
    "and_": lambda old, value: old & value,
    "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "exch": lambda old, value: value,
}


def _word(value: int) -> int:
    if value < 0:
        raise EmulationError(f"cast {value} to an unsigned type first")
    return int(value)


def _count_leading_zeros(value: int) -> int:
    # The width is not known: numbers below 2**32 are taken as uint32.
    width = 32 if value < 1 << 32 else 64
    return width - _word(value).bit_length()


def _find_first_set(value: int) -> int:
    return (value & -value).bit_length()


def _reverse_bits(value: int) -> int:
    return int(f"{_word(value):032b}"[::-1], 2)


def _fused(a: Any, b: Any, c: Any) -> Any:
    return type(c)(np.float64(a) * np.float64(b) + np.float64(c))


class _Place:
    """``threadIdx`` and its like: a triple of the current lane."""

    def __init__(self, get: Callable[[], tuple[int, int, int]]) -> None:
        self._get = get

    x = property(lambda self: self._get()[0])
    y = property(lambda self: self._get()[1])
    z = property(lambda self: self._get()[2])


def _positions(dimensions: int) -> Any:
    lane = current_lane()
    if dimensions == 1:
        block = lane.block
        return block.index[0] * block.shape[0] + lane.thread[0]
    places = zip(lane.block.index, lane.block.shape, lane.thread, strict=True)
    found = tuple(block * size + thread for block, size, thread in places)
    return found[:dimensions]


def _extents(dimensions: int) -> Any:
    block = current_lane().block
    if dimensions == 1:
        return block.grid[0] * block.shape[0]
    found = tuple(a * b for a, b in zip(block.grid, block.shape, strict=True))
    return found[:dimensions]


class Dialect:
    """``numba.cuda``, as far as generated kernels and the device library use it."""

    warpsize = WARP_SIZE
    laneid = property(lambda self: current_lane().lane_id)
    threadIdx = _Place(lambda: current_lane().thread)
    blockIdx = _Place(lambda: current_lane().block.index)
    blockDim = _Place(lambda: current_lane().block.shape)
    gridDim = _Place(lambda: current_lane().block.grid)
    grid = staticmethod(_positions)
    gridsize = staticmethod(_extents)

    shfl_sync = staticmethod(_shuffle("shfl_sync", lambda lane, source: source))
    shfl_xor_sync = staticmethod(_shuffle("shfl_xor_sync", lambda lane, b: lane ^ b))
    shfl_up_sync = staticmethod(
        _shuffle("shfl_up_sync", lambda lane, b: lane - b if lane >= b else lane)
    )
    shfl_down_sync = staticmethod(
        _shuffle(
            "shfl_down_sync", lambda lane, b: lane + b if lane + b < WARP_SIZE else lane
        )
    )
    ballot_sync = staticmethod(_vote("ballot_sync", _ballot))
    any_sync = staticmethod(_vote("any_sync", lambda flags: any(flags.values())))
    all_sync = staticmethod(_vote("all_sync", lambda flags: all(flags.values())))
    match_any_sync = staticmethod(_match_any)
    activemask = staticmethod(_active_mask)
    syncwarp = staticmethod(_sync_warp)
    syncthreads = staticmethod(_sync_threads)
    syncthreads_or = staticmethod(
        _vote("syncthreads_or", lambda flags: int(any(flags.values())), block=True)
    )
    syncthreads_and = staticmethod(
        _vote("syncthreads_and", lambda flags: int(all(flags.values())), block=True)
    )
    syncthreads_count = staticmethod(
        _vote("syncthreads_count", lambda flags: sum(flags.values()), block=True)
    )
    threadfence = threadfence_block = threadfence_system = staticmethod(lambda: None)
    nanosleep = staticmethod(lambda nanoseconds: None)

    shared = SimpleNamespace(array=_shared_array)
    local = SimpleNamespace(array=_local_array)
    atomic = SimpleNamespace(
        cas=_compare_and_swap,
        **{name: _atomic(combine) for name, combine in _ATOMICS.items()},
    )

    popc = staticmethod(lambda value: _word(value).bit_count())
    clz = staticmethod(_count_leading_zeros)
    ffs = staticmethod(_find_first_set)
    brev = staticmethod(_reverse_bits)
    fma = staticmethod(_fused)
    selp = staticmethod(lambda test, a, b: a if test else b)

    ldca = ldcg = ldcs = ldlu = ldcv = staticmethod(lambda array, index: array[index])
    stcg = stcs = stwb = stwt = staticmethod(
        lambda array, index, value: array.__setitem__(index, value)
    )
    libdevice = SimpleNamespace(
        float_as_int=lambda x: int(np.float32(x).view(np.int32)),
        int_as_float=lambda x: np.int32(x).view(np.float32),
        double_as_longlong=lambda x: int(np.float64(x).view(np.int64)),
        longlong_as_double=lambda x: np.int64(x).view(np.float64),
        fadd_rn=lambda a, b: np.float32(a) + np.float32(b),
        dadd_rn=lambda a, b: np.float64(a) + np.float64(b),
        rsqrtf=lambda x: np.float32(1) / np.sqrt(np.float32(x)),
    )

    def __getattr__(self, name: str) -> Any:
        raise EmulationError(f"the emulator has no cuda.{name}")


def _plain(function: Any = None, **options: Any) -> Any:
    """Stand in for the decorators: the function stays as it is."""
    return (lambda decorated: decorated) if function is None else function


def _piece(
    array: GuardedArray, row: int, column: int, width: int, count: int
) -> list[tuple[int, ...]]:
    """Return the indices of a piece of a row, which must be aligned.

    A matrix of a vertex or edge is a row of all of its entries.
    """
    size = min(count * array.dtype.itemsize, 16)
    *rest, last = array.shape[1:]
    whole = math.prod([*rest, last])
    if whole != width or width % count:
        raise MemoryFault(f"pieces of {count} in rows of {whole}, not {width}")
    if column % count or size not in {8, 16}:
        raise MemoryFault(f"columns {column} and following {count} are not aligned")
    places = range(column, column + count)
    return [(row, *divmod(p, last)) if rest else (row, p) for p in places]


def _load_row(
    array: GuardedArray, row: int, column: int, width: int, count: int
) -> tuple[Any, ...]:
    return tuple(array[each] for each in _piece(array, row, column, width, count))


def _store_row(
    array: GuardedArray,
    row: int,
    column: int,
    width: int,
    count: int,
    values: tuple[Any, ...],
) -> None:
    places = _piece(array, row, column, width, count)
    for each, value in zip(places, values, strict=True):
        array[each] = value


#: Values that kernels have set at conditional nodes of graphs, by their handles.
conditions: dict[int, int] = {}


def _set_condition(handle: Any, value: Any) -> None:
    conditions[int(handle)] = int(value)


def _clock_ns() -> int:
    return time.perf_counter_ns()


#: Functions that find memory by an address: set by an emulated GPU.
memory_at: list[Callable[[int, Any], GuardedArray]] = []


def _at(address: Any, dtype: Any) -> GuardedArray:
    if not memory_at:
        raise MemoryFault("addresses mean nothing without an emulated GPU")
    typed = _dtype(dtype)
    if int(address) % typed.itemsize:
        raise MemoryFault(f"address {int(address):#x} is not aligned for {typed}")
    return memory_at[-1](int(address), typed)


def _load_at(address: Any, kind: Any) -> Any:
    return _at(address, kind)[0]


def _store_at(address: Any, value: Any, kind: Any) -> None:
    _at(address, kind)[0] = value


def _acquire_at(address: Any) -> int:
    return int(_at(address, np.int64)[0])


def _acquire(array: GuardedArray, index: Any) -> Any:
    current_lane().block.looks = True
    pause()
    return array.peek(index)


def _raise_at(address: Any, value: Any) -> None:
    _at(address, np.int64)[0] = int(value)


def cuda_module() -> dict[str, Any]:
    """Return the members of the twin of `featgraph.cuda.dialect`."""
    return {
        "acquire": _acquire,
        "acquire_at": _acquire_at,
        "anew": int,
        "clock_ns": _clock_ns,
        "cuda": Dialect(),
        "device_function": _plain,
        "fence": lambda: None,
        "kernel": _plain,
        "load_at": _load_at,
        "load_row": _load_row,
        "prefetch": lambda array, index: None,
        "raise_at": _raise_at,
        "select": lambda test, first, second: first if test else second,
        "set_condition": _set_condition,
        "store_at": _store_at,
        "store_row": _store_row,
        # The body of the overloaded function is what runs here.
        "overload": lambda stub, **options: _plain,
    }

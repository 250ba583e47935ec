"""Packed arguments and prepared launches, with a driver that only remembers."""

from __future__ import annotations

import ctypes
import gc
import math
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.cuda import dialect as cuda_dialect

if not cuda_dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.errors import DeviceError
from featgraph.cuda.arguments import (
    ArrayWords,
    OtherTypesError,
    PackedArguments,
    flatten,
    layout_of,
    point_to_words,
    tuples_of,
)
from featgraph.cuda.driver import Compiled, ParameterType
from featgraph.cuda.launch import Launches
from featgraph.runtime.recording.cuda_trace import OPAQUE

Data = namedtuple("Data", "x scale on")


class FakeArray:
    """The public attributes of a device array."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        array = np.empty(shape, dtype)
        self.address = address
        self.shape, self.strides, self.ndim = array.shape, array.strides, array.ndim
        self.size, self.dtype = array.size, array.dtype

    @property
    def device_ctypes_pointer(self) -> Any:
        return ctypes.c_void_p(self.address)


def unpack(address: int, types: list[ParameterType]) -> list[Any]:
    """Read the arguments as the driver would: through the pointers, by size."""

    def word(place: int, kind: Any) -> Any:
        pointer = ctypes.c_uint64.from_address(address + 8 * place).value
        return kind.from_address(pointer).value

    kinds = {
        "int64": ctypes.c_int64,
        "int32": ctypes.c_int32,
        "bool": ctypes.c_bool,
        "float32": ctypes.c_float,
        "float64": ctypes.c_double,
    }
    found: list[Any] = []
    place = 0
    for type_ in types:
        count = 1 if type_.rank is None else 5 + 2 * type_.rank
        kind = kinds[type_.dtype] if type_.rank is None else ctypes.c_int64
        found.append(tuple(word(place + i, kind) for i in range(count)))
        place += count
    return found


def meant(value: Any) -> tuple[Any, ...]:
    """Return the value that the kernel must receive for an argument."""
    if isinstance(value, FakeArray):
        item = value.dtype.itemsize
        strides = [item * math.prod(value.shape[i + 1 :]) for i in range(value.ndim)]
        return 0, 0, value.size, item, value.address, *value.shape, *strides
    return (value.item() if isinstance(value, np.generic) else value,)


ARRAY_WORDS = ArrayWords(lambda array: array.address)
TYPES = [
    ParameterType("uint32", 1),
    ParameterType("float32", 2),
    ParameterType("float32"),
    ParameterType("bool"),
    ParameterType("int64"),
]

addresses = st.integers(1, 4).map(lambda i: i << 40)
words = st.builds(FakeArray, addresses, st.tuples(st.integers(0, 3)), st.just("uint32"))
rows = st.builds(
    FakeArray,
    addresses,
    st.tuples(st.integers(0, 3), st.integers(1, 4)),
    st.just("float32"),
)
scalars = st.floats(width=32, allow_nan=False).map(np.float32)


class FakeDriver:
    """Remembers what each launch would have read."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def launch(
        self, handle: Any, blocks: int, threads: int, stream: Any, packed: Any
    ) -> None:
        values = unpack(packed.address, TYPES)
        words, pointers = point_to_words(packed.copy_words())
        assert unpack(int(pointers.ctypes.data), TYPES) == values
        self.seen.append((handle, blocks, threads, stream, values))
        del words

    def note(self, *operation: Any) -> None:
        assert operation == OPAQUE  # a launch through the dialect


class Dialect:
    """Stands in for the dialect: records launches and compiled kernels."""

    def __init__(self, compiled: Compiled | None) -> None:
        self.launches: list[Any] = []
        self.result = compiled

    def bind(self, kernel: Any, blocks: int, threads: int, stream: Any) -> Any:
        return lambda *arguments: self.launches.append((kernel, arguments))

    def compiled(self, kernel: Any, arguments: Any) -> Compiled | None:
        return self.result


def make(compiled: Compiled | None) -> tuple[FakeDriver, Dialect, Launches]:
    driver, dialect = FakeDriver(), Dialect(compiled)
    return driver, dialect, Launches(driver, dialect.bind, dialect.compiled)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(words, rows, scalars, st.booleans(), st.integers(-(2**60), 2**60)),
        min_size=2,
        max_size=8,
    ),
    st.data(),
)
def test_a_launch_never_sees_old_arguments(steps: list[Any], data: Any) -> None:
    """Any argument may change or stay from launch to launch."""
    driver, dialect, launch = make(Compiled("code", tuple(TYPES)))
    current = list(steps[0])
    for number, step in enumerate(steps):
        for place in data.draw(st.sets(st.integers(0, 4))):
            current[place] = step[place]
        word, row, scale, on, count = current
        launch("kernel", 7, 64, (word, Data(row, scale, on), count), "stream")
        if number == 0:
            assert len(dialect.launches) == 1
            continue
        wanted = [meant(value) for value in (word, row, scale, on, count)]
        assert driver.seen[-1] == ("code", 7, 64, "stream", wanted)
    assert len(dialect.launches) == 1
    assert len(driver.seen) == len(steps) - 1


def test_what_changes_places_is_not_packed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Buffers do so from launch to launch; what is another object is packed."""
    driver, _, launch = make(Compiled("code", tuple(TYPES)))
    word = FakeArray(1 << 40, (2,), "uint32")
    one, other, third = (FakeArray(n << 40, (2, 3), "float32") for n in (2, 3, 4))
    scale, packed = np.float32(0.5), []
    find = ArrayWords.find

    def note(self: ArrayWords, array: FakeArray) -> Any:
        packed.append(array)
        return find(self, array)

    monkeypatch.setattr(ArrayWords, "find", note)

    def packed_by_launch(row: FakeArray, scale: Any) -> list[FakeArray]:
        packed.clear()
        launch("kernel", 1, 32, (word, Data(row, scale, True), 7))
        return list(packed)

    packed_by_launch(one, scale)  # by the dialect
    assert packed_by_launch(one, scale) == [word, one]
    assert packed_by_launch(other, scale) == [word, other]
    assert packed_by_launch(one, scale) == packed_by_launch(other, scale) == []
    assert packed_by_launch(one, np.float32(0.75)) == []
    assert packed_by_launch(third, scale) == [third]
    wanted = [(other, 0.5), (one, 0.75), (third, 0.5)]
    for (row, number), (*_, values) in zip(wanted, driver.seen[-3:], strict=True):
        assert values[1:3] == [meant(row), (number,)]


def test_an_array_in_the_place_of_a_dead_one_is_packed() -> None:
    """A new array may have the identity of one that is gone."""
    type_ = ParameterType("float32", 1)
    packed = PackedArguments([type_], ARRAY_WORDS)
    for address in range(1, 50):
        array = FakeArray(address, (3,), "float32")
        packed.pack([array])
        assert unpack(packed.address, [type_])[0][4] == address
        del array  # the last reference


def test_packing_keeps_nothing_alive() -> None:
    array = FakeArray(8, (3,), "float32")
    packed = PackedArguments([ParameterType("float32", 1)], ARRAY_WORDS)
    packed.pack([array])
    assert not [r for r in gc.get_referrers(array) if r is packed.__dict__]
    found = packed._bound[0]
    del array
    assert found is not None
    assert found() is None


BAD = {
    "dtype": FakeArray(8, (3,), "float64"),
    "rank": FakeArray(8, (3, 1), "float32"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_other_types_go_through_the_dialect(bad: FakeArray) -> None:
    packed = PackedArguments([ParameterType("float32", 1)], ARRAY_WORDS)
    packed.pack([FakeArray(8, (3,), "float32")])
    with pytest.raises(OtherTypesError):
        packed.pack([bad])
    for wrong in ([], [bad, bad]):
        with pytest.raises(OtherTypesError):
            packed.pack(wrong)


def test_an_array_with_gaps_is_refused() -> None:
    packed = PackedArguments([ParameterType("float32", 2)], ARRAY_WORDS)
    array = FakeArray(8, (3, 2), "float32")
    array.strides = (16, 4)
    with pytest.raises(OtherTypesError):
        packed.pack([array])
    one = FakeArray(8, (1, 2), "float32")
    one.strides = (999, 4)  # there is no second row
    packed.pack([one])


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("int64", [3, np.int64(3)], [3.5, np.float32(1), True]),
        ("float32", [np.float32(0.5)], [0.5, 1, np.float64(2)]),
        ("float64", [0.5, np.float64(0.5)], [1, np.float32(2)]),
        ("bool", [True, np.bool_(False)], [1, 0.0]),
    ],
)
def test_scalars_of_other_types_are_refused(
    dtype: str, good: list[Any], bad: list[Any]
) -> None:
    types = [ParameterType(dtype)]
    packed = PackedArguments(types, ARRAY_WORDS)
    for value in good:
        packed.pack([value])
        assert unpack(packed.address, types) == [(value,)]
    for value in bad:
        with pytest.raises(OtherTypesError):
            packed.pack([value])


def test_a_kernel_of_several_types_is_prepared_for_each() -> None:
    driver, dialect, launch = make(Compiled("narrow", (ParameterType("float32", 1),)))
    driver.launch = lambda handle, *rest: driver.seen.append(handle)  # type: ignore[method-assign]
    narrow, wide = FakeArray(8, (2,), "float32"), FakeArray(8, (2,), "float64")
    launch("kernel", 1, 32, [narrow])
    dialect.result = Compiled("wide", (ParameterType("float64", 1),))
    for array in (narrow, wide, wide, narrow):
        launch("kernel", 1, 32, [array])
    assert len(dialect.launches) == 2
    assert driver.seen == ["narrow", "wide", "narrow"]


def test_what_the_dialect_does_not_expose_stays_with_it() -> None:
    driver, dialect, launch = make(None)
    for _ in range(3):
        launch("kernel", 1, 32, [FakeArray(8, (2,), "float32")])
    assert not launch.is_prepared("kernel")
    assert len(dialect.launches) == 3
    assert not driver.seen


def test_a_launch_that_fails_is_not_prepared() -> None:
    driver, dialect, _ = make(Compiled("code", ()))

    def failing(*_: Any) -> Any:
        raise MemoryError

    launch = Launches(driver, failing, dialect.compiled)
    with pytest.raises(MemoryError):
        launch("kernel", 1, 32, [])
    assert not launch.is_prepared("kernel")


def test_flatten_puts_fields_in_their_place() -> None:
    given = [1, Data(2, 3, 4), 5, Data(6, 7, 8)]
    assert flatten(given, tuples_of(given)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert flatten([1, 5], tuples_of([1, 5])) == [1, 5]


def test_a_gpu_that_was_found_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []
    dialect = SimpleNamespace(is_available=lambda: calls.append(True) or len(calls) > 1)
    monkeypatch.setattr(cuda_dialect, "_gpus", [])
    monkeypatch.setattr(cuda_dialect, "_has_driver", lambda: True)
    monkeypatch.setattr(cuda_dialect, "is_installed", lambda: True)
    monkeypatch.setattr(cuda_dialect, "_dialect", lambda: dialect)
    with pytest.raises(DeviceError, match="no GPU"):
        cuda_dialect.require(gpu=True)
    for _ in range(3):
        cuda_dialect.require(gpu=True)
        assert cuda_dialect.is_available()
    assert len(calls) == 2


@pytest.mark.parametrize("layout", ["C", "F", "A"])
def test_arrays_of_any_strides_are_packed_as_they_are(layout: str) -> None:
    """With a layout of the dialect: a kernel for another one is not launched."""
    whole = np.zeros((4, 6), np.float32)
    view = {"C": whole, "F": whole.T, "A": whole[::-1, ::2]}[layout]
    array = FakeArray(1 << 40, view.shape, "float32")
    array.strides = view.strides
    type_ = ParameterType("float32", 2, layout)
    packed = PackedArguments([type_], ARRAY_WORDS)
    packed.pack([array])
    words = np.frombuffer(packed.copy_words(), np.int64)
    assert words[4:].tolist() == [1 << 40, *view.shape, *view.strides]
    other = {"C": "A", "F": "C", "A": "C"}[layout]
    with pytest.raises(OtherTypesError):
        PackedArguments([ParameterType("float32", 2, other)], ARRAY_WORDS).pack([array])


@given(
    st.lists(st.integers(0, 3), max_size=3).map(tuple), st.permutations(range(3)),
    st.lists(st.sampled_from([1, 2, -1]), min_size=3, max_size=3), st.booleans(),
)  # fmt: skip
def test_layouts_are_those_of_the_dialect(
    shape: tuple[int, ...], order: list[int], steps: list[int], is_broadcast: bool
) -> None:
    array = np.zeros([3 * n for n in shape], np.int16)
    view = array[tuple(slice(None, None, s) for s in steps[: len(shape)])]
    view = view.transpose([axis for axis in order if axis < len(shape)])
    if is_broadcast and view.ndim:
        view = np.broadcast_to(view[:1], view.shape)
    layout, strides = layout_of(view.shape, view.strides, 2)
    if 0 in view.shape:
        assert layout == "C"
    elif 0 in view.strides:
        assert (layout, strides) == ("A", view.strides)
    else:
        flags = view.flags
        meant = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        assert layout == meant
        pairs = zip(view.shape, strides, view.strides, strict=True)
        assert all(n == 1 or a == b for n, a, b in pairs)

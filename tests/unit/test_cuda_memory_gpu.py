"""Memory of a GPU that is given out again and again."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.base.errors import DeviceMemoryError

pytestmark = pytest.mark.gpu


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_arrays_keep_what_they_hold_while_others_come_and_go(data: Any) -> None:
    from featgraph.cuda import arrays, elements

    held: dict[int, tuple[Any, np.ndarray[Any, Any]]] = {}
    for turn in range(data.draw(st.integers(1, 60))):
        kind = data.draw(st.sampled_from(["fill", "upload", "copy", "drop"]))
        size = data.draw(st.sampled_from([1, 7, 1 << 10, 100_003, 3 << 20]))
        if kind == "fill":
            made = arrays.empty((size,), np.int32)
            arrays.launch_over(elements.fill, size, made, turn)
            held[turn] = made, np.full(size, turn, np.int32)
        elif kind == "upload":
            values = np.arange(turn, turn + size)
            held[turn] = arrays.upload(values), values
        elif held:
            name = data.draw(st.sampled_from(sorted(held)))
            if kind == "copy":
                held[turn] = arrays.copy_of(held[name][0]), held[name][1]
            else:
                del held[name]
    for array, wanted in held.values():
        np.testing.assert_array_equal(array.copy_to_host(), wanted)


def test_the_first_call_of_a_process_may_be_an_allocation() -> None:
    script = "from featgraph.cuda import arrays; print(arrays.empty((3,), 'i4').shape)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "(3,)\n", done.stderr


def test_what_is_given_back_is_given_out_again() -> None:
    """Other tests of the process may leave pieces that fit, too."""
    from featgraph.cuda import arrays
    from featgraph.cuda.memory import unused_bytes

    made = arrays.empty((5, 1 << 20), np.float64)
    assert (made.shape, made.strides) == ((5, 1 << 20), (8 << 20, 8))
    before = unused_bytes()
    del made
    unused = unused_bytes()
    assert unused >= before + (40 << 20)
    again = arrays.empty((5 << 20,), np.float64)
    assert again.size == 5 << 20
    assert unused_bytes() <= unused - (40 << 20)


@fg.vertex
def double(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v] = 2 * d.x[v]
    return True


def test_another_stream_may_still_read_what_was_dropped() -> None:
    cupy = pytest.importorskip("cupy")
    from featgraph.cuda import arrays

    size = 1 << 24
    graph = fg.Graph.from_edges([0], [1], vertex_count=size)
    state = fg.State(graph, x=fg.vertex_property(1.0, dtype=np.float32))
    fg.foldmap(double)(state, target="cuda")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        slow = cupy.ones((4096, 4096), cupy.float32)
        for _ in range(30):
            slow = slow @ slow / 4096
        lent = cupy.asarray(state.view("x"))
        total = (lent + 0 * slow.ravel()[0]).sum()
    del lent, state
    others = [arrays.filled((size,), 7, np.int32) for _ in range(8)]
    stream.synchronize()
    assert float(total) == 2 * size
    assert all(int(other[size - 1]) == 7 for other in others)


def test_other_libraries_get_what_is_not_in_use() -> None:
    from featgraph.cuda import arrays
    from featgraph.cuda.dialect import cuda

    free, total = cuda.current_context().get_memory_info()
    made = arrays.empty((free // 2,), np.uint8)
    del made
    cuda.synchronize()
    left, _ = cuda.current_context().get_memory_info()
    assert left >= free - total // 6


def test_more_than_there_is_is_refused_with_its_size() -> None:
    from featgraph.cuda import arrays

    with pytest.raises(DeviceMemoryError, match="GB requested"):
        arrays.empty((1 << 45,), np.float64)

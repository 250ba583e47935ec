"""Recorded supersteps: which operations wait for which, in a graph and call by call."""

from __future__ import annotations

import ctypes
import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.runtime.cuda_record import Recording, Repetition, Touches, split_fills

FIRST, SIZE = 4096, 64
addresses = st.integers(0, SIZE // 4 - 1).map(lambda word: FIRST + 4 * word)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("set_words"), addresses, *[st.integers(1, 8)] * 2),
        st.tuples(st.just("copy"), addresses, addresses, st.just(4)),
        st.tuples(
            st.just("launch"), st.none(), st.just(1), st.just(32), st.just(0),
            st.lists(addresses, min_size=1, max_size=3).map(
                lambda given: np.array(given, np.int64).tobytes()
            ),
        ),
    ),
    max_size=9,
)  # fmt: skip


def run(asked: list[Any]) -> Any:
    """Return memory behind operations; a kernel adds up what its arguments point to."""
    memory = np.arange(SIZE // 4 + 8)
    for name, *arguments in asked:
        if name == "launch":
            places = (np.frombuffer(arguments[-1], np.int64) - FIRST) // 4
            memory[places[0]] = memory[places].sum() + 1
            continue
        place = (arguments[0] - FIRST) // 4
        if name == "set_words":
            memory[place : place + arguments[2]] = arguments[1]
        else:
            memory[place] = memory[(arguments[1] - FIRST) // 4]
    return memory


@settings(max_examples=400)
@given(operations)
def test_early_fills_change_no_result(asked: list[Any]) -> None:
    early, others = split_fills(asked)
    assert sorted(map(str, early + others)) == sorted(map(str, asked))
    assert all(o[0] == "set_words" for o in early)
    np.testing.assert_array_equal(run([*early, *others]), run(asked))


def test_a_fill_is_early_where_nothing_before_it_touches_its_memory() -> None:
    fill = ("set_words", FIRST, 0, 4)
    assert split_fills([("copy", FIRST + 16, FIRST + 32, 16), fill])[0] == [fill]
    assert split_fills([("copy", FIRST + 12, FIRST + 32, 4), fill])[0] == []
    packed = np.array([3, FIRST + 8], np.int64).tobytes()
    assert split_fills([("launch", None, 1, 32, 0, packed), fill])[0] == []


def test_touched_memory() -> None:
    packed = np.array([7, FIRST + 8], np.int64).tobytes()
    asked = [
        ("read", 8, FIRST, 8),
        ("launch", None, 1, 32, 0, packed),
        ("set_bytes", FIRST + 12, 0, 3),
    ]
    assert Touches(asked).find(FIRST, 8) == {0}
    assert Touches(asked).find(FIRST + 8, 8) == {1, 2}
    assert Touches(asked).find(FIRST + 15, 8) == set()
    assert Touches([]).find(FIRST, 8) == set()


class FakeApi:
    """The driver's calls: nodes of graphs, and operations on streams, run later."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2, CU_MEMORYTYPE_HOST=1)
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    CUDA_MEMSET_NODE_PARAMS = SimpleNamespace
    CUDA_MEMCPY3D = SimpleNamespace

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        #: Node -> what it waits for, and its operation.
        self.nodes: dict[int, tuple[list[int], Any]] = {}
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: (0, next(self.ids))

    def _add(self, before: Any, count: int, operation: Any) -> Any:
        assert len(before or ()) == count == len(set(before or ()))
        self.nodes[node := next(self.ids)] = list(before or ()), operation
        return 0, node

    def _kernel(self, handle: int, pointers: int) -> Any:
        """Return a launch, as the driver reads its arguments; `handle` counts them."""
        words = [
            ctypes.c_int64.from_address(
                ctypes.c_uint64.from_address(pointers + 8 * i).value
            ).value
            for i in range(handle)
        ]
        return "launch", handle, 1, 32, 0, np.array(words, np.int64).tobytes()

    def cuGraphAddKernelNode(self, graph: Any, before: Any, count: int, p: Any) -> Any:
        assert (p.gridDimX, p.gridDimY, p.gridDimZ) == (1, 1, 1)
        assert (p.blockDimX, p.blockDimY, p.blockDimZ) == (32, 1, 1)
        return self._add(before, count, self._kernel(p.func, p.kernelParams))

    def cuGraphAddMemsetNode(self, graph: Any, *given: Any) -> Any:
        before, count, p, _ = given
        assert (p.elementSize, p.height) == (4, 1)
        return self._add(before, count, ("set_words", p.dst, p.value, p.width))

    def cuGraphAddMemcpyNode(self, graph: Any, *given: Any) -> Any:
        before, count, p, _ = given
        assert (p.srcMemoryType, p.Height, p.Depth) == (2, 1, 1)
        is_read = p.dstMemoryType == 1
        target = p.dstHost if is_read else p.dstDevice
        return self._add(before, count, ("copy", target, p.srcDevice, p.WidthInBytes))

    def cuLaunchKernel(self, handle: int, *given: Any) -> Any:
        assert given[:7] == (1, 1, 1, 32, 1, 1, 0)
        self.calls.append((given[7], self._kernel(handle, given[8])))
        return (0,)

    def cuMemsetD32Async(self, *given: Any) -> Any:
        self.calls.append((given[3], ("set_words", *given[:3])))
        return (0,)

    def cuMemcpyDtoDAsync(self, *given: Any) -> Any:
        self.calls.append((given[3], ("copy", *given[:3])))
        return (0,)

    def cuMemcpyDtoHAsync(self, *given: Any) -> Any:
        return self.cuMemcpyDtoDAsync(*given)


class FakeDriver:
    def __init__(self) -> None:
        self.api = FakeApi()

    def check(self, result: Any) -> Any:
        assert result[0] == 0
        return result[1] if len(result) > 1 else None

    def enter(self) -> None: ...

    def side_stream(self) -> str:
        return "side"

    def record_event(self, stream: Any) -> str:
        self.api.calls.append((stream, "event"))
        return f"event on {stream}"


def handled(operation: Any) -> Any:
    """Return an operation, if a launch with as many arguments as its handle says."""
    if operation[0] != "launch":
        return operation
    return operation[0], len(operation[-1]) // 8, *operation[2:]


@settings(max_examples=200)
@given(operations, st.randoms(use_true_random=False))
def test_a_graph_runs_in_any_order_it_allows(
    asked: list[Any], chance: random.Random
) -> None:
    """And leaves what the operations leave one after the other."""
    driver: Any = FakeDriver()
    Recording(driver, [handled(o) for o in asked], beside=False)
    waiting, done = dict(driver.api.nodes), []
    while waiting:
        ready = [n for n, (before, _) in waiting.items() if not {*before} & {*waiting}]
        done.append(waiting.pop(chance.choice(ready))[1])
    np.testing.assert_array_equal(run(done), run(asked))


@settings(max_examples=50)
@given(operations)
def test_a_repetition_asks_for_the_same_in_the_same_order(asked: list[Any]) -> None:
    driver: Any = FakeDriver()
    repetition = Repetition(driver, [handled(o) for o in asked], beside=True)
    for _ in range(2):
        driver.api.calls.clear()
        repetition.launch()
        meant = [*[handled(o) for o in asked], "event"]
        assert [o for _, o in driver.api.calls] == meant
        assert all(stream == "side" for stream, _ in driver.api.calls)


def test_operations_of_other_streams_run_side_by_side() -> None:
    """They wait for the default one, and it for them."""
    kernel = np.array([5], np.int64).tobytes()
    hubs, main = 7, 8
    asked = [
        ("set_words", FIRST, 1, 2),
        *[("launch", 1, 1, 32, stream, kernel) for stream in (0, hubs, main, hubs, 0)],
        ("read", 8, FIRST + 8, 8),
    ]
    driver: Any = FakeDriver()
    asked[2] = hub = ("launch", 1, 1, 32, hubs, np.array([FIRST], np.int64).tobytes())
    Recording(driver, asked, beside=False)
    assert hub in asked
    fill, first, hub_node, main_node, again, last, read = driver.api.nodes
    waits = {node: before for node, (before, _) in driver.api.nodes.items()}
    assert waits == {
        fill: [], first: [], hub_node: [fill, first], main_node: [first],
        again: [hub_node], last: [first, again, main_node], read: [last],
    }  # fmt: skip
    calls: Any = FakeDriver()
    Repetition(calls, asked, beside=False).launch()
    assert [stream for stream, _ in calls.api.calls] == [0, 0, 7, 8, 7, 0, 0, 0]


def test_what_is_launched_behind_another_waits_for_its_event() -> None:
    driver: Any = FakeDriver()
    waited: list[Any] = []
    driver.api.cuStreamWaitEvent = lambda *given: (waited.append(given), (0,))[1]
    driver.api.cuEventSynchronize = lambda event: (waited.append(event), (0,))[1]
    first = Repetition(driver, [], beside=False)
    second = Recording(driver, [], beside=True)
    first.launch()
    second.launch(behind=first)
    second.wait()
    assert waited == [("side", "event on 0", 0), "event on side"]

"""Recorded supersteps: which operations wait for which, in a graph and call by call."""

from __future__ import annotations

import ctypes
import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featgraph.base.errors import DeviceError
from featgraph.runtime.recording.cuda_record import (
    ConditionalLoop,
    Recording,
    Repetition,
)

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


def run(drawn: list[Any]) -> Any:
    """Return memory behind operations; a kernel adds up what its arguments point to."""
    memory = np.arange(SIZE // 4 + 8)
    for name, *arguments in drawn:
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


class FakeApi:
    """The driver's calls, recorded with their waits.

    An operation waits for all before it on its stream; a graph of its own is made of
    those of a stream that captures.
    """

    CU_GRAPH_COND_ASSIGN_DEFAULT = 1
    CUgraphConditionalNodeType = SimpleNamespace(
        CU_GRAPH_COND_TYPE_IF=0, CU_GRAPH_COND_TYPE_WHILE=1
    )
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=13)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=1)

    def __init__(self) -> None:
        self.ids = itertools.count(1000)
        #: Node -> what it waits for, and its operation.
        self.nodes: dict[int, tuple[set[int], Any]] = {}
        #: Stream or event -> what the next operation there waits for.
        self.last: dict[Any, set[int]] = {}
        self.calls: list[Any] = []
        #: Conditional nodes: graph, kind, the nodes before it, handle.
        self.added: list[Any] = []
        #: Operations that were captured, by graph.
        self.captured: dict[str, list[Any]] = {}
        self.into: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: (0, next(self.ids))

    def _add(self, stream: Any, operation: Any) -> Any:
        self.nodes[node := next(self.ids)] = self.last.get(stream, set()), operation
        self.last[stream] = {node}
        self.calls.append((stream, operation))
        return (0,)

    def CUgraphNodeParams(self) -> Any:
        return SimpleNamespace(conditional=SimpleNamespace())

    def cuGraphAddNode(self, graph: Any, *given: Any) -> Any:
        """A node that runs its graph while, or if, the condition holds."""
        before, edges, count, node = given
        own = node.conditional
        assert (node.type, own.size, edges) == (13, 1, None)
        assert count == len(before or [])
        own.phGraph_out = [f"body {len(self.added)}"]
        self.added.append((graph, own.type, before, own.handle))
        return 0, f"node {len(self.added) - 1}"

    def cuStreamBeginCaptureToGraph(self, stream: Any, graph: Any, *given: Any) -> Any:
        self.into.append(graph)
        assert given[:3] == (None, None, 0)
        return self.cuStreamBeginCapture(stream, given[3])

    def cuStreamBeginCapture(self, stream: Any, mode: int) -> Any:
        self.nodes.clear()
        self.calls.clear()
        self.last[stream] = set()
        return (0,)

    def cuStreamEndCapture(self, stream: Any) -> Any:
        """All that was captured must have been waited for."""
        reached, found = set(self.last[stream]), {}
        while reached:
            found[node] = self.nodes[node := reached.pop()]
            reached |= found[node][0]
        assert found.keys() == self.nodes.keys()
        if self.into:
            operations = [operation for _, operation in self.nodes.values()]
            self.captured[self.into[-1]] = operations
        return 0, "graph"

    def cuEventRecord(self, event: Any, stream: Any) -> Any:
        self.last["event", event] = set(self.last[stream])
        return (0,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Any:
        before = self.last.get(stream, set())
        self.last[stream] = before | self.last["event", event]
        return (0,)

    def cuLaunchKernel(self, handle: int, *given: Any) -> Any:
        assert given[:7] == (1, 1, 1, 32, 1, 1, 0)
        pointers = (ctypes.c_uint64 * handle).from_address(given[8])
        words = [ctypes.c_int64.from_address(p).value for p in pointers]
        packed = np.array(words, np.int64).tobytes()
        return self._add(given[7], ("launch", handle, 1, 32, 0, packed))

    def cuMemsetD32Async(self, *given: Any) -> Any:
        return self._add(given[3], ("set_words", *given[:3]))

    def cuMemcpyDtoDAsync(self, *given: Any) -> Any:
        return self._add(given[3], ("copy", *given[:3]))

    def cuMemcpyDtoHAsync(self, *given: Any) -> Any:
        return self._add(given[3], ("read", *given[:3]))


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
    """Return an operation; of a launch, the number of its arguments."""
    if operation[0] != "launch":
        return operation
    return operation[0], len(operation[-1]) // 8, *operation[2:]


@settings(max_examples=200)
@given(operations, st.randoms(use_true_random=False))
def test_a_graph_runs_in_any_order_it_allows(
    drawn: list[Any], chance: random.Random
) -> None:
    """And leaves what the operations leave one after the other."""
    driver: Any = FakeDriver()
    Recording(driver, [handled(o) for o in drawn], beside=False)
    done = in_any_order(driver, chance)
    np.testing.assert_array_equal(run(done), run(drawn))


def in_any_order(driver: Any, chance: random.Random) -> list[Any]:
    """Return the operations of a graph in an order that it allows."""
    waiting, done = dict(driver.api.nodes), []
    while waiting:
        ready = [n for n, (before, _) in waiting.items() if not before & {*waiting}]
        done.append(waiting.pop(chance.choice(ready))[1])
    return done


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_in_a_loop_counts_come_beside_the_next_superstep(
    length: int, chance: random.Random
) -> None:
    """Behind their own, and before the next but one; in order, and all of them."""
    driver: Any = FakeDriver()
    supersteps = [
        ([("set_words", FIRST, n, 1), ("copy", FIRST, FIRST, n)],
         [("set_bytes", FIRST, n, 1), ("copy", FIRST + 4, FIRST, n)])
        for n in range(length)
    ]  # fmt: skip
    driver.api.cuMemsetD8Async = lambda *given: driver.api._add(
        given[3], ("set_bytes", *given[:3])
    )
    loop = ConditionalLoop(driver, supersteps, has_gates=False)
    assert driver.api.added[0][1:] == (1, None, loop.nodes.loop)
    assert driver.api.into == ["body 0"]
    order = in_any_order(driver, chance)
    at = {operation: place for place, operation in enumerate(order)}
    assert len(at) == 4 * length
    for n, (work, counts) in enumerate(supersteps):
        places = [at[operation] for operation in (*work, *counts)]
        assert places == sorted(places)
        if n:
            assert at[supersteps[n - 1][0][1]] < places[0]
            assert at[supersteps[n - 1][1][1]] < places[2]
        if n > 1:
            assert at[supersteps[n - 2][1][1]] < places[0]


@given(st.integers(1, 6))
def test_supersteps_with_gates_run_one_behind_the_other(length: int) -> None:
    """Each is the body of a node of its own, within the one that loops."""
    driver: Any = FakeDriver()
    supersteps = [([("set_words", FIRST, n + 1, 1)], ()) for n in range(length)]
    loop = ConditionalLoop(driver, supersteps, has_gates=True)
    (_, *whole), *gates = driver.api.added
    assert whole == [1, None, loop.nodes.loop]
    assert gates == [
        ("body 0", 0, [f"node {n}"] if n else None, loop.nodes.gates[n])
        for n in range(length)
    ]
    assert len({loop.nodes.loop, *loop.nodes.gates}) == 1 + length
    assert driver.api.captured == {
        f"body {n + 1}": [("set_words", FIRST, n + 1, 1)] for n in range(length)
    }


def test_a_loop_records_when_it_has_ended() -> None:
    driver: Any = FakeDriver()
    driver.api.CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=600)
    loop = ConditionalLoop(driver, [([("set_words", FIRST, 1, 1)], [])], False)
    launched: list[Any] = []
    driver.api.cuGraphLaunch = lambda *given: (launched.append(given), (0,))[1]
    loop.launch()
    assert launched[0][1] == 0
    answers = [(600,), (600,), (0,)]
    driver.api.cuEventQuery = lambda event: answers.pop(0)
    assert [loop.is_done() for _ in range(3)] == [False, False, True]


@settings(max_examples=50)
@given(operations)
def test_a_repetition_runs_the_same_in_the_same_order(drawn: list[Any]) -> None:
    driver: Any = FakeDriver()
    repetition = Repetition(driver, [handled(o) for o in drawn], beside=True)
    for _ in range(2):
        driver.api.calls.clear()
        repetition.launch()
        meant = [*[handled(o) for o in drawn], "event"]
        assert [o for _, o in driver.api.calls] == meant
        assert all(stream == "side" for stream, _ in driver.api.calls)


def test_operations_of_other_streams_run_side_by_side() -> None:
    """They wait for the default one, and it for them."""
    kernel = np.array([5], np.int64).tobytes()
    hubs, main = 7, 8
    drawn = [
        ("set_words", FIRST, 1, 2),
        *[("launch", 1, 1, 32, stream, kernel) for stream in (0, hubs, main, hubs, 0)],
        ("read", 8, FIRST + 8, 8),
        ("launch", 1, 1, 32, main, kernel),
    ]
    driver: Any = FakeDriver()
    Recording(driver, drawn, beside=False)
    fill, first, hub, other, again, last, read, end = driver.api.nodes
    waits = {node: before for node, (before, _) in driver.api.nodes.items()}
    assert waits == {
        fill: set(), first: {fill}, hub: {first}, other: {first}, again: {hub},
        last: {first, again, other}, read: {last}, end: {other, read},
    }  # fmt: skip
    calls: Any = FakeDriver()
    Repetition(calls, drawn, beside=False).launch()
    assert [stream for stream, _ in calls.api.calls] == [0, 0, 7, 8, 7, 0, 0, 8, 0]


def test_a_stream_that_events_hold_waits_for_these_alone() -> None:
    """So does the default one for what it was given, until an event holds it."""
    kernel, side = np.array([5], np.int64).tobytes(), 7
    begun, done = SimpleEvent(), SimpleEvent()

    def on(stream: int) -> Any:
        return "launch", 1, 1, 32, stream, kernel

    drawn = [
        on(0), ("mark", begun, 0), ("hold", side, begun), on(side), on(0),
        ("mark", begun, 0), ("hold", side, begun), on(side), on(0),
        ("mark", done, side), ("hold", 0, done), on(0),
    ]  # fmt: skip
    driver: Any = FakeDriver()
    Recording(driver, drawn, beside=False)
    first, sent, second, sent_then, third, last = driver.api.nodes
    waits = {node: before for node, (before, _) in driver.api.nodes.items()}
    assert waits == {
        first: set(), sent: {first}, second: {first}, sent_then: {sent, second},
        third: {second}, last: {third, sent_then},
    }  # fmt: skip
    calls: Any = FakeDriver()
    waited: list[Any] = []
    calls.api.cuEventRecord = lambda *given: (waited.append(given), (0,))[1]
    calls.api.cuStreamWaitEvent = lambda *given: (waited.append(given), (0,))[1]
    Repetition(calls, drawn, beside=False).launch()
    assert waited[:2] == [(begun, 0), (side, begun, 0)]
    assert waited[-2:] == [(done, side), (0, done, 0)]
    with pytest.raises(DeviceError, match="was launched before"):
        Recording(driver, drawn[2:], beside=False)


def test_a_graph_waits_for_all_that_it_has_begun() -> None:
    kernel, event = np.array([5], np.int64).tobytes(), SimpleEvent()
    drawn: Any = [("mark", event, 0), ("hold", 7, event)]
    drawn.append(("launch", 1, 1, 32, 7, kernel))
    driver: Any = FakeDriver()
    Recording(driver, drawn, beside=False)
    assert len(driver.api.nodes) == 1


class SimpleEvent:
    """An event of the driver."""


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

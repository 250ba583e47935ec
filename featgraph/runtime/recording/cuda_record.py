"""Recorded supersteps, launched again call by call or as a CUDA graph.

A `Repetition` sends recorded driver calls one by one, a `Recording` is a CUDA graph of
them, and a `ConditionalLoop` is a graph that repeats a cycle of supersteps: a while
node repeats its body until a kernel in the body clears the condition. `_Calls`
translates operations of a trace (`cuda_trace`) to driver calls; `_Capture` turns them
into a graph by stream capture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from featgraph.base.errors import DeviceError
from featgraph.cuda.arguments import point_to_words
from featgraph.cuda.driver import Driver
from featgraph.runtime.recording.control import Nodes

__all__ = ["ConditionalLoop", "Recording", "Repetition", "Superstep"]

#: Name of a driver call, or "turn", with its arguments: see `cuda_trace`.
Operation = tuple[Any, ...]
#: Operations of a superstep, and operations after it that may run concurrently with the
#: next superstep.
Superstep = tuple[Sequence[Operation], Sequence[Operation]]


class _Conditional(NamedTuple):
    """A conditional node: the handle of its condition, the node, the body's graph."""

    handle: int
    node: Any
    body: Any


class _Launched:
    """Operations that one launch sends to the device, and an event after them.

    Parameters
    ----------
    driver : Driver
    beside : bool
        Use a side stream: later work of the default stream does not wait for them.
    """

    def __init__(self, driver: Driver, beside: bool) -> None:
        driver.enter()
        self._driver, self._check, self._api = driver, driver.check, driver.api
        self._stream: Any = driver.side_stream() if beside else 0
        self._event: Any = None

    def launch(self, behind: _Launched | None = None) -> None:
        """Launch the operations after the last launch of `behind`.

        By default they follow all earlier work of the default stream. Call `wait`
        before the memory that they write is used for a later launch.
        """
        self._driver.enter()
        if behind is not None:
            wait = self._api.cuStreamWaitEvent
            self._check(wait(self._stream, behind._event, 0))
        self._launch()
        self._event = self._driver.record_event(self._stream)

    def _launch(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for the last launch."""
        self._check(self._api.cuEventSynchronize(self._event))


class Repetition(_Launched):
    """Operations that are sent again one by one.

    Making a repetition takes hardly longer than the calls themselves.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        Names of the driver's calls with their arguments; a launch ends with the handle
        of its stream and the packed words (`PackedArguments.copy_words`).
    beside : bool
        Use a side stream: see `_Launched`.
    """

    def __init__(
        self, driver: Driver, operations: Sequence[Operation], beside: bool
    ) -> None:
        super().__init__(driver, beside)
        self._given = _Calls(self._api, operations)
        default, api = self._stream, self._api

        def mark(event: Any, stream: Any) -> Any:
            return api.cuEventRecord(event, stream or default)

        def hold(stream: Any, event: Any) -> Any:
            return api.cuStreamWaitEvent(stream or default, event, 0)

        waits = {"mark": mark, "hold": hold}
        self._calls = list(self._given.on(lambda stream: stream or default, waits))

    def _launch(self) -> None:
        for call, arguments in self._calls:
            result = call(*arguments)
            if result[0]:  # an error code
                self._check(result)


class Recording(_Launched):
    """Operations as a CUDA graph, which runs in one launch.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        As for `Repetition`. They are captured and do not run.
    beside : bool
        Use a side stream: see `_Launched`.
    """

    def __init__(
        self, driver: Driver, operations: Sequence[Operation], beside: bool
    ) -> None:
        super().__init__(driver, beside)
        # Launching a graph built node by node takes as long as its operations do one by
        # one; a captured graph takes a quarter of that (NVIDIA H200, 2026-11-21).
        self._pieces = [
            _instantiate(self, driver, _Capture(driver).run([(piece, ())]))
            for piece, _ in _between_turns(operations)
        ]
        self._turns = [turn for _, turn in _between_turns(operations)]

    def _launch(self) -> None:
        for graph, turn in zip(self._pieces, self._turns, strict=True):
            self._check(self._api.cuGraphLaunch(graph, self._stream))
            if turn is not None:
                turn()


def _between_turns(
    operations: Sequence[Operation],
) -> list[tuple[list[Operation], Callable[[], None] | None]]:
    """Return operations in pieces, each with a host function to call after it, or None.

    A graph cannot contain a call of the host. The operations are cut at those calls, by
    which ranks of one process take turns; without any, there is one piece.
    """
    pieces: list[tuple[list[Operation], Callable[[], None] | None]] = []
    piece: list[Operation] = []
    for operation in operations:
        if operation[0] != "turn":
            piece.append(operation)
        elif operation[1] is not None:
            pieces.append((piece, operation[1]))
            piece = []
    return [*pieces, (piece, None)] if piece or not pieces else pieces


class ConditionalLoop(_Launched):
    """A cycle of supersteps that the device repeats while a condition holds.

    Each launch sets the condition. A kernel of the cycle may clear it, so that no
    further repetition begins (`cuda.dialect.set_condition`). With gates, each superstep
    has a condition of its own, too: it is skipped once a kernel has cleared that.

    Parameters
    ----------
    driver : Driver
    supersteps : sequence of Superstep
        Operations as for `Repetition`. The concurrent part of a superstep waits for its
        first part. The next superstep but one waits for the concurrent part, since it
        uses the same memory.
    has_gates : bool
        Make a conditional node of each superstep. No operations run concurrently with
        the next superstep then.

    Attributes
    ----------
    nodes : Nodes
        The handles of the conditions.
    """

    def __init__(
        self, driver: Driver, supersteps: Sequence[Superstep], has_gates: bool
    ) -> None:
        super().__init__(driver, beside=False)
        kinds = self._api.CUgraphConditionalNodeType
        graph = self._check(self._api.cuGraphCreate(0))
        try:
            gates: list[_Conditional] = []
            loop = self._add(graph, graph, kinds.CU_GRAPH_COND_TYPE_WHILE, [])
            for superstep in supersteps if has_gates else ():
                before = [gate.node for gate in gates[-1:]]
                kind = kinds.CU_GRAPH_COND_TYPE_IF
                gates.append(self._add(graph, loop.body, kind, before))
                _Capture(driver, gates[-1].body).run([superstep])
            if not has_gates:
                _Capture(driver, loop.body).run(supersteps)
        except BaseException:
            self._api.cuGraphDestroy(graph)
            raise
        self.nodes = Nodes(loop.handle, tuple(gate.handle for gate in gates))
        self._graph = _instantiate(self, driver, graph)

    def _add(self, graph: Any, into: Any, kind: Any, before: list[Any]) -> _Conditional:
        """Add a conditional node to `into`: the graph itself or another node's body.

        `before` are the nodes that it waits for. The condition is set at each launch.
        """
        api, check = self._api, self._check
        context = check(api.cuCtxGetCurrent())
        at_launch = api.CU_GRAPH_COND_ASSIGN_DEFAULT
        handle = check(api.cuGraphConditionalHandleCreate(graph, context, 1, at_launch))
        node = api.CUgraphNodeParams()
        node.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        own = node.conditional
        own.handle, own.type = handle, kind
        own.size, own.ctx = 1, context
        added = check(api.cuGraphAddNode(into, before or None, None, len(before), node))
        [body] = node.conditional.phGraph_out
        return _Conditional(int(handle), added, body)

    def _launch(self) -> None:
        self._check(self._api.cuGraphLaunch(self._graph, self._stream))

    def is_done(self) -> bool:
        """Whether the last launch has ended."""
        result = self._api.cuEventQuery(self._event)
        if result[0] == self._api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._check(result)
        return True


def _instantiate(owner: object, driver: Driver, graph: Any) -> Any:
    """Return the executable of a CUDA graph, and destroy the graph.

    The executable is destroyed with its owner.
    """
    api, check = driver.api, driver.check
    try:
        made = check(api.cuGraphInstantiate(graph, 0))
    finally:
        check(api.cuGraphDestroy(graph))
    destroy = weakref.finalize(owner, api.cuGraphExecDestroy, made)
    destroy.atexit = False  # the driver may have shut down by then
    return made


class _Calls:
    """Driver calls of some operations; owns the packed arguments of launches."""

    def __init__(self, api: Any, operations: Sequence[Operation]) -> None:
        self._api, self._operations = api, operations
        packed = b"".join(o[-1] for o in operations if o[0] == "launch")
        self._words, self._pointers = point_to_words(packed)

    def on(
        self, stream_of: Callable[[int], Any], waits: Mapping[str, Any]
    ) -> Iterator[tuple[Any, Operation]]:
        """Generate the driver's calls with their arguments.

        Parameters
        ----------
        stream_of : callable
            Returns the stream to use for the handle of a recorded stream.
        waits : mapping
            Functions for "mark" (record an event) and "hold" (wait for an event).
        """
        address = int(self._pointers.ctypes.data)
        for name, *given in self._operations:
            if name == "turn":
                if given[0] is not None:
                    yield _turning(given[0]), ()
                continue
            if name in waits:
                yield waits[name], tuple(given)
                continue
            if name != "launch":
                yield getattr(self._api, _CALLS[name]), (*given, stream_of(0))
                continue
            handle, blocks, threads, stream, words = given
            grid = blocks, 1, 1, threads, 1, 1
            arguments = handle, *grid, 0, stream_of(stream), address, 0
            yield self._api.cuLaunchKernel, arguments
            address += len(words)  # pointers to words take as many bytes as the words


def _turning(turn: Callable[[], None]) -> Callable[[], tuple[int]]:
    """Return a function that calls `turn` and returns no error, as the driver does."""

    def call() -> tuple[int]:
        turn()
        return (0,)

    return call


#: Operation -> the driver's call, which takes the same arguments and a stream.
_CALLS = {
    "set_words": "cuMemsetD32Async",
    "set_bytes": "cuMemsetD8Async",
    "copy": "cuMemcpyDtoDAsync",
    "read": "cuMemcpyDtoHAsync",
}


#: Stands for the stream of operations that run concurrently with the next superstep.
_BESIDE = -1


class _Capture:
    """A capture of operations into a CUDA graph, on streams of its own.

    One stream stands for the default stream, which cannot capture. It waits for all
    other streams and they wait for it, as the driver orders blocking streams
    implicitly. Streams that wait for an event ("hold") are ordered by events alone from
    then on.

    Parameters
    ----------
    driver : Driver
    into : graph, optional
        The graph that the operations are added to; default a new one.
    """

    def __init__(self, driver: Driver, into: Any = None) -> None:
        self._api, self._check = driver.api, driver.check
        self._into = into
        self._main = self._make_stream()
        #: Handle of a recorded stream -> the stream that captures its operations.
        self._others: dict[int, Any] = {}
        #: Streams with work that the main stream has not waited for.
        self._unjoined: set[int] = set()
        #: Streams that are ordered by events only.
        self._held: set[int] = set()
        #: Events of the capture, to destroy at its end.
        self._events: list[Any] = []
        #: Event of an operation -> the event that was last captured for it.
        self._marks: dict[Any, Any] = {}

    def _make_stream(self, like: Any = None) -> Any:
        """Return a new stream for the capture, with the priority of another one."""
        # A blocking stream (one that synchronizes with the default stream) cannot
        # capture.
        flag = int(self._api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if like is None:
            return self._check(self._api.cuStreamCreate(flag))
        priority = self._check(self._api.cuStreamGetPriority(like))
        return self._check(self._api.cuStreamCreateWithPriority(flag, priority))

    def run(self, supersteps: Sequence[Superstep]) -> Any:
        """Return the graph of some supersteps."""
        api, check = self._api, self._check
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        try:
            if self._into is None:
                check(api.cuStreamBeginCapture(self._main, mode))
            else:
                to = self._into, None, None, 0
                check(api.cuStreamBeginCaptureToGraph(self._main, *to, mode))
            try:
                self._send(supersteps)
            except BaseException:
                api.cuStreamEndCapture(self._main)
                raise
            return check(api.cuStreamEndCapture(self._main))
        finally:
            for event in self._events:
                api.cuEventDestroy(event)
            for stream in (self._main, *self._others.values()):
                api.cuStreamDestroy(stream)

    def _send(self, supersteps: Sequence[Superstep]) -> None:
        """Send supersteps to the capture, their concurrent parts on a side stream."""
        beside: list[Any] = []
        for number, (operations, others) in enumerate(supersteps):
            if number > 1 and beside:
                self._wait_for(self._main, beside.pop(0))
            self._send_on(self._stream, operations)
            self._join()
            if others:
                self._let_wait(self._beside(), self._main)
                self._send_on(self._beside, others)
                beside.append(self._record(self._beside()))
        if beside:
            self._wait_for(self._main, beside[-1])
        for stream in self._held:  # a capture ends with one stream that joins all
            self._let_wait(self._main, self._others[stream])

    def _send_on(
        self, stream_of: Callable[[int], Any], operations: Sequence[Operation]
    ) -> None:
        """Send operations, each to the stream of the capture for its own stream."""
        waits = {"mark": self._mark, "hold": self._hold}
        for call, arguments in _Calls(self._api, operations).on(stream_of, waits):
            self._check(call(*arguments))

    def _mark(self, event: Any, stream: Any) -> tuple[int]:
        """Capture the operation "mark": record an event on a stream."""
        self._marks[event] = self._record(self._stream(int(stream)))
        return (0,)

    def _hold(self, stream: Any, event: Any) -> tuple[int]:
        """Capture the operation "hold": a stream waits for an event.

        From then on the stream is ordered by events only.
        """
        requested, into = int(stream), self._main
        if event not in self._marks:
            raise DeviceError(
                "a recording cannot wait for work that was launched before it",
                got="an event that it has not recorded",
            )
        if requested:
            if requested not in self._others:
                self._others[requested] = self._make_stream(stream)
            self._unjoined.discard(requested)
            self._held.add(requested)
            into = self._others[requested]
        self._wait_for(into, self._marks[event])
        return (0,)

    def _record(self, stream: Any) -> Any:
        """Return a new event, recorded on a stream of the capture."""
        no_timing = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = self._check(self._api.cuEventCreate(int(no_timing)))
        self._events.append(event)
        self._check(self._api.cuEventRecord(event, stream))
        return event

    def _wait_for(self, stream: Any, event: Any) -> None:
        self._check(self._api.cuStreamWaitEvent(stream, event, 0))

    def _let_wait(self, later: Any, earlier: Any) -> None:
        """Have a stream wait for all operations captured on another one so far."""
        self._wait_for(later, self._record(earlier))

    def _beside(self, requested: int = 0) -> Any:
        """Return the side stream, whatever stream an operation was recorded on."""
        if _BESIDE not in self._others:
            self._others[_BESIDE] = self._make_stream()
        return self._others[_BESIDE]

    def _join(self) -> Any:
        """Have the main stream wait for all others; return it."""
        for stream in self._unjoined:
            self._let_wait(self._main, self._others[stream])
        self._unjoined.clear()
        return self._main

    def _stream(self, requested: int) -> Any:
        """Return the stream of the capture for the handle of a recorded stream.

        0 is the default stream, which first waits for all others.
        """
        if not requested:
            return self._join()
        if requested not in self._others:
            self._others[requested] = self._make_stream()
        if requested not in self._unjoined and requested not in self._held:
            self._let_wait(self._others[requested], self._main)
            self._unjoined.add(requested)
        return self._others[requested]

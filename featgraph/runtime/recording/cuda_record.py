"""Supersteps that are asked of the CUDA driver again: call by call, or as a graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from featgraph._cuda_driver import Driver
from featgraph.runtime.recording.arguments import point_to_words

__all__ = ["Recording", "Repetition"]

Operation = tuple[Any, ...]


class _Launched:
    """Operations that the device is given at once, and an event behind them.

    Parameters
    ----------
    driver : Driver
    beside : bool
        What is asked of the default stream from then on does not wait for them.
    """

    def __init__(self, driver: Driver, beside: bool) -> None:
        driver.enter()
        self._driver, self._check, self._api = driver, driver.check, driver.api
        self._stream: Any = driver.side_stream() if beside else 0
        self._event: Any = None

    def launch(self, behind: _Launched | None = None) -> None:
        """Have the device run the operations.

        Behind the last launch of others, if some are given; else behind all work of the
        default stream. Wait before a few more are launched.
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
        """Wait for what was launched last."""
        self._check(self._api.cuEventSynchronize(self._event))


class Repetition(_Launched):
    """Operations that are asked for again one by one, with nothing to decide.

    Making it takes hardly longer than asking for them.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        Names of the driver's calls with their arguments; of a launch the number of its
        stream and packed words (`PackedArguments.copy_words`).
    beside : bool
        See `launch`.
    """

    def __init__(
        self, driver: Driver, operations: Sequence[Operation], beside: bool
    ) -> None:
        super().__init__(driver, beside)
        self._given = _Calls(self._api, operations)
        default = self._stream
        self._calls = list(self._given.on(lambda asked: asked or default))

    def _launch(self) -> None:
        for call, arguments in self._calls:
            result = call(*arguments)
            if result[0]:  # the code of an error
                self._check(result)


class Recording(_Launched):
    """Operations that the device runs again at one launch: a CUDA graph.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        As for `Repetition`. They are captured, not run.
    beside : bool
        See `launch`.
    """

    def __init__(
        self, driver: Driver, operations: Sequence[Operation], beside: bool
    ) -> None:
        super().__init__(driver, beside)
        # A graph that is made node by node takes as long to launch as its operations do
        # one by one, one that was captured a quarter of it (NVIDIA H200, 2026-11-21).
        graph = _Capture(driver).run(operations)
        try:
            self._graph = self._check(self._api.cuGraphInstantiate(graph, 0))
        finally:
            self._check(self._api.cuGraphDestroy(graph))
        destroy = weakref.finalize(self, self._api.cuGraphExecDestroy, self._graph)
        destroy.atexit = False  # the driver may be gone before

    def _launch(self) -> None:
        self._check(self._api.cuGraphLaunch(self._graph, self._stream))


class _Calls:
    """The driver's calls for some operations; their arguments live as long as it."""

    def __init__(self, api: Any, operations: Sequence[Operation]) -> None:
        self._api, self._operations = api, operations
        packed = b"".join(o[-1] for o in operations if o[0] == "launch")
        self._words, self._pointers = point_to_words(packed)

    def on(self, stream_of: Callable[[int], Any]) -> Iterator[tuple[Any, Operation]]:
        """Give each call, with its arguments on the stream for the one asked for."""
        address = int(self._pointers.ctypes.data)
        for name, *given in self._operations:
            if name != "launch":
                yield getattr(self._api, _CALLS[name]), (*given, stream_of(0))
                continue
            handle, blocks, threads, asked, words = given
            grid = blocks, 1, 1, threads, 1, 1
            arguments = handle, *grid, 0, stream_of(asked), address, 0
            yield self._api.cuLaunchKernel, arguments
            address += len(words)  # a pointer takes what a word does


#: Operation -> the driver's call of the same arguments, and a stream.
_CALLS = {
    "set_words": "cuMemsetD32Async",
    "set_bytes": "cuMemsetD8Async",
    "copy": "cuMemcpyDtoDAsync",
    "read": "cuMemcpyDtoHAsync",
}


class _Capture:
    """Asks for operations once more, on streams that capture them.

    One stream stands for the default one, and each other stream waits for it and it for
    them, as the driver has it.
    """

    def __init__(self, driver: Driver) -> None:
        self._api, self._check = driver.api, driver.check
        self._main = self._make_stream()
        #: Stream that was asked for -> the one that captures.
        self._others: dict[int, Any] = {}
        #: Those with work that the main one has not waited for.
        self._ahead: set[int] = set()
        self._events: list[Any] = []

    def _make_stream(self) -> Any:
        # A stream that waits for the default one by itself cannot capture.
        flag = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._check(self._api.cuStreamCreate(int(flag)))

    def run(self, operations: Sequence[Operation]) -> Any:
        """Return the graph of some operations."""
        api, check = self._api, self._check
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        try:
            check(api.cuStreamBeginCapture(self._main, mode))
            try:
                for call, arguments in _Calls(api, operations).on(self._stream):
                    check(call(*arguments))
                self._join()
            except BaseException:
                api.cuStreamEndCapture(self._main)
                raise
            return check(api.cuStreamEndCapture(self._main))
        finally:
            for event in self._events:
                api.cuEventDestroy(event)
            for stream in (self._main, *self._others.values()):
                api.cuStreamDestroy(stream)

    def _let_wait(self, later: Any, earlier: Any) -> None:
        no_timing = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = self._check(self._api.cuEventCreate(int(no_timing)))
        self._events.append(event)
        self._check(self._api.cuEventRecord(event, earlier))
        self._check(self._api.cuStreamWaitEvent(later, event, 0))

    def _join(self) -> Any:
        """Return the main stream, behind all others."""
        for stream in self._ahead:
            self._let_wait(self._main, self._others[stream])
        self._ahead.clear()
        return self._main

    def _stream(self, asked: int) -> Any:
        if not asked:
            return self._join()
        if asked not in self._others:
            self._others[asked] = self._make_stream()
        if asked not in self._ahead:
            self._let_wait(self._others[asked], self._main)
            self._ahead.add(asked)
        return self._others[asked]

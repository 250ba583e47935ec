"""Supersteps recorded as CUDA graphs: many operations of the driver in one launch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from featgraph._cuda_driver import Driver
from featgraph.runtime.arguments import point_to_words

__all__ = ["Recording"]


class Recording:
    """Operations that the device runs again at one launch: a CUDA graph.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        Names of the driver's calls with their arguments; of a launch packed words
        (`PackedArguments.copy_words`). They are captured, not run.
    """

    def __init__(self, driver: Driver, operations: Sequence[tuple[Any, ...]]) -> None:
        self._driver = driver
        self._api, check = driver.api, driver.check
        driver.enter()
        graph = _Capture(driver).run(operations)
        try:
            self._graph = check(self._api.cuGraphInstantiate(graph, 0))
        finally:
            check(self._api.cuGraphDestroy(graph))
        no_timing = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._event = check(self._api.cuEventCreate(int(no_timing)))
        for destroy, what in (
            (self._api.cuGraphExecDestroy, self._graph),
            (self._api.cuEventDestroy, self._event),
        ):
            # At the end of the process the driver may be gone before.
            weakref.finalize(self, destroy, what).atexit = False

    def launch(self) -> None:
        """Run the operations behind all work of the default stream."""
        self._driver.enter()
        self._driver.check(self._api.cuGraphLaunch(self._graph, 0))
        self._driver.check(self._api.cuEventRecord(self._event, 0))

    def wait(self) -> None:
        """Wait for what was launched last."""
        self._driver.check(self._api.cuEventSynchronize(self._event))


class _Capture:
    """Asks for operations once more, on streams that capture them.

    One stream stands for the default one, and each other stream waits for it and it for
    them, as the driver has it.
    """

    def __init__(self, driver: Driver) -> None:
        self._api, self._check = driver.api, driver.check
        self._main = self._make_stream()
        #: Stream that was asked for -> the one that captures.
        self._others: dict[Any, Any] = {}
        #: Those with work that the main one has not waited for.
        self._ahead: set[Any] = set()
        self._events: list[Any] = []

    def _make_stream(self) -> Any:
        # A stream that waits for the default one by itself cannot capture.
        flag = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._check(self._api.cuStreamCreate(int(flag)))

    def run(self, operations: Sequence[tuple[Any, ...]]) -> Any:
        """Return the graph of some operations."""
        api, check = self._api, self._check
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        try:
            check(api.cuStreamBeginCapture(self._main, mode))
            try:
                for name, *arguments in operations:
                    getattr(self, f"_{name}")(*arguments)
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

    def _stream(self, asked: Any) -> Any:
        if not asked:
            return self._join()
        if asked not in self._others:
            self._others[asked] = self._make_stream()
        if asked not in self._ahead:
            self._let_wait(self._others[asked], self._main)
            self._ahead.add(asked)
        return self._others[asked]

    def _launch(
        self, handle: Any, blocks: int, threads: int, stream: Any, packed: bytes
    ) -> None:
        words, pointers = point_to_words(packed)
        where, address = self._stream(stream), int(pointers.ctypes.data)
        grid = blocks, 1, 1, threads, 1, 1
        self._check(self._api.cuLaunchKernel(handle, *grid, 0, where, address, 0))
        del words  # the driver has read them

    def _set_words(self, address: int, value: int, count: int) -> None:
        stream = self._join()
        self._check(self._api.cuMemsetD32Async(address, value, count, stream))

    def _set_bytes(self, address: int, value: int, count: int) -> None:
        stream = self._join()
        self._check(self._api.cuMemsetD8Async(address, value, count, stream))

    def _copy(self, target: int, source: int, size: int) -> None:
        stream = self._join()
        self._check(self._api.cuMemcpyDtoDAsync(target, source, size, stream))

    def _read(self, target: int, source: int, size: int) -> None:
        stream = self._join()
        self._check(self._api.cuMemcpyDtoHAsync(target, source, size, stream))

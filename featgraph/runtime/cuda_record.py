"""Supersteps recorded as CUDA graphs: many operations of the driver in one launch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph._cuda_driver import Driver
from featgraph.runtime.arguments import point_to_words

__all__ = ["Recording", "mentions", "split_fills"]

Operation = tuple[Any, ...]


class Recording:
    """Operations that the device runs again at one launch: a CUDA graph.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        Names of the driver's calls with their arguments; of a launch packed words
        (`PackedArguments.copy_words`). They are captured, not run.
    """

    def __init__(self, driver: Driver, operations: Sequence[Operation]) -> None:
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
        self._launch_on(0)

    def launch_behind(self, other: Recording) -> None:
        """Run the operations behind the last launch of another recording, no later.

        What is asked of the default stream from now on does not wait for them.
        """
        side, check = self._driver.side_stream(), self._driver.check
        check(self._api.cuStreamWaitEvent(side, other._event, 0))
        self._launch_on(side)

    def _launch_on(self, stream: Any) -> None:
        self._driver.check(self._api.cuGraphLaunch(self._graph, stream))
        self._driver.check(self._api.cuEventRecord(self._event, stream))

    def wait(self) -> None:
        """Wait for what was launched last."""
        self._driver.check(self._api.cuEventSynchronize(self._event))


def mentions(operation: Operation, first: int, size: int) -> bool:
    """Whether an operation may touch the bytes of a whole array, from `first` on.

    A kernel may if it is given an address there; a number that looks like one counts.
    """
    name, *given = operation
    if name == "launch":
        words = np.frombuffer(given[-1], np.int64)
        return bool(((words >= first) & (words < first + size)).any())
    span = _filled(operation)
    spans = [(a, given[2]) for a in given[:2]] if span is None else [span]
    return any(a < first + size and first < a + count for a, count in spans)


def split_fills(
    operations: Sequence[Operation],
) -> tuple[list[Operation], list[Operation]]:
    """Return the fills of memory that nothing before them touches, and all others."""
    early: list[Operation] = []
    others: list[Operation] = []
    for place, operation in enumerate(operations):
        span = _filled(operation)
        is_free = span is not None and not any(
            mentions(o, *span) for o in operations[:place]
        )
        (early if is_free else others).append(operation)
    return early, others


def _filled(operation: Operation) -> tuple[int, int] | None:
    """Return the address and the size in bytes of what an operation fills."""
    bytes_each = {"set_words": 4, "set_bytes": 1}.get(operation[0])
    return None if bytes_each is None else (operation[1], bytes_each * operation[3])


class _Capture:
    """Asks for operations once more, on streams that capture them.

    One stream stands for the default one, and each other stream waits for it and it for
    them, as the driver has it. Fills that may be early have a stream of their own: the
    others wait for them where they touch the same memory.
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

    def run(self, operations: Sequence[Operation]) -> Any:
        """Return the graph of some operations."""
        api, check = self._api, self._check
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        try:
            check(api.cuStreamBeginCapture(self._main, mode))
            try:
                self._ask(operations)
            except BaseException:
                api.cuStreamEndCapture(self._main)
                raise
            return check(api.cuStreamEndCapture(self._main))
        finally:
            for event in self._events:
                api.cuEventDestroy(event)
            for stream in (self._main, *self._others.values()):
                api.cuStreamDestroy(stream)

    def _ask(self, operations: Sequence[Operation]) -> None:
        early, others = split_fills(operations)
        spans = [span for o in early if (span := _filled(o)) is not None]
        fills = self._make_stream() if early else self._main
        if early:
            self._others[None] = fills
            self._let_wait(fills, self._main)
        for operation in early:
            self._call(fills, *operation)
        for operation in others:
            if any(mentions(operation, *span) for span in spans):
                spans.clear()
                self._let_wait(self._join(), fills)
            name, *arguments = operation
            asked = arguments.pop(3) if name == "launch" else 0
            self._call(self._stream(asked), name, *arguments)
        self._join()
        if spans:
            self._let_wait(self._main, fills)

    def _call(self, stream: Any, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(stream, *arguments)

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
        self, stream: Any, handle: Any, blocks: int, threads: int, packed: bytes
    ) -> None:
        words, pointers = point_to_words(packed)
        grid, address = (blocks, 1, 1, threads, 1, 1), int(pointers.ctypes.data)
        self._check(self._api.cuLaunchKernel(handle, *grid, 0, stream, address, 0))
        del words  # the driver has read them

    def _set_words(self, stream: Any, address: int, value: int, count: int) -> None:
        self._check(self._api.cuMemsetD32Async(address, value, count, stream))

    def _set_bytes(self, stream: Any, address: int, value: int, count: int) -> None:
        self._check(self._api.cuMemsetD8Async(address, value, count, stream))

    def _copy(self, stream: Any, target: int, source: int, size: int) -> None:
        self._check(self._api.cuMemcpyDtoDAsync(target, source, size, stream))

    def _read(self, stream: Any, target: int, source: int, size: int) -> None:
        self._check(self._api.cuMemcpyDtoHAsync(target, source, size, stream))

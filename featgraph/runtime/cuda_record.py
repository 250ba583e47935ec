"""Supersteps that are asked of the CUDA driver again: call by call, or as a graph."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph._cuda_driver import Driver
from featgraph.runtime.arguments import point_to_words

__all__ = ["Recording", "Repetition", "Touches", "split_fills"]

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
        packed = b"".join(o[-1] for o in operations if o[0] == "launch")
        self._words, self._pointers = point_to_words(packed)
        address = int(self._pointers.ctypes.data)
        self._calls: list[tuple[Any, tuple[Any, ...]]] = []
        for name, *given in operations:
            if name != "launch":
                call = getattr(self._api, _CALLS[name])
                self._calls.append((call, (*given, self._stream)))
                continue
            handle, blocks, threads, asked, words = given
            grid = blocks, 1, 1, threads, 1, 1
            arguments = handle, *grid, 0, asked or self._stream, address, 0
            self._calls.append((self._api.cuLaunchKernel, arguments))
            address += len(words)  # a pointer takes what a word does

    def _launch(self) -> None:
        for call, arguments in self._calls:
            result = call(*arguments)
            if result[0]:  # the code of an error
                self._check(result)


#: Operation -> the driver's call of the same arguments, and a stream.
_CALLS = {
    "set_words": "cuMemsetD32Async",
    "set_bytes": "cuMemsetD8Async",
    "copy": "cuMemcpyDtoDAsync",
    "read": "cuMemcpyDtoHAsync",
}


class Recording(_Launched):
    """Operations that the device runs again at one launch: a CUDA graph.

    Parameters
    ----------
    driver : Driver
    operations : sequence of tuple
        As for `Repetition`. They are not run.
    beside : bool
        See `launch`.
    """

    def __init__(
        self, driver: Driver, operations: Sequence[Operation], beside: bool
    ) -> None:
        super().__init__(driver, beside)
        graph = self._check(self._api.cuGraphCreate(0))
        try:
            _Nodes(driver, graph).add(operations)
            self._graph = self._check(self._api.cuGraphInstantiate(graph, 0))
        finally:
            self._check(self._api.cuGraphDestroy(graph))
        destroy = weakref.finalize(self, self._api.cuGraphExecDestroy, self._graph)
        destroy.atexit = False  # the driver may be gone before

    def _launch(self) -> None:
        self._check(self._api.cuGraphLaunch(self._graph, self._stream))


class Touches:
    """Which of some operations may touch what memory.

    A kernel may touch the bytes of a whole array if it is given an address there; a
    number that looks like one counts.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        starts, ends, places = [], [], []
        for place, operation in enumerate(operations):
            name, *given = operation
            if name == "launch":
                words = np.frombuffer(given[-1], np.int64)
                starts.append(words)
                ends.append(words + 1)
            else:
                first, size = zip(*_spans(operation), strict=True)
                starts.append(np.array(first, np.int64))
                ends.append(starts[-1] + size)
            places += [place] * starts[-1].size
        nothing = [np.zeros(0, np.int64)]
        self._starts = np.concatenate(starts or nothing)
        self._ends = np.concatenate(ends or nothing)
        self._places = np.array(places, np.int64)

    def find(self, first: int, size: int) -> set[int]:
        """Return the places of those that may touch an array, from `first` on."""
        touches = (self._starts < first + size) & (self._ends > first)
        return set(self._places[touches].tolist())


def split_fills(
    operations: Sequence[Operation],
) -> tuple[list[Operation], list[Operation]]:
    """Return the fills of memory that nothing before them touches, and all others."""
    early: list[Operation] = []
    others: list[Operation] = []
    touches = Touches(operations)
    for place, operation in enumerate(operations):
        is_fill = operation[0] in _BYTES_EACH
        is_early = is_fill and min(touches.find(*_spans(operation)[0])) == place
        (early if is_early else others).append(operation)
    return early, others


#: Operation that fills memory -> the bytes of what it sets.
_BYTES_EACH = {"set_words": 4, "set_bytes": 1}


def _spans(operation: Operation) -> list[tuple[int, int]]:
    """Return addresses and sizes in bytes of what a fill or a copy touches."""
    name, *given = operation
    if name in _BYTES_EACH:
        return [(given[0], _BYTES_EACH[name] * given[2])]
    return [(address, given[2]) for address in given[:2]]


class _Nodes:
    """Adds operations to a graph, each behind those that it has to wait for.

    What goes to the default stream waits for all that was asked for before it, and what
    goes to another stream for that one and the default one, as the driver has it. Fills
    that may be early wait for nothing; what touches the same memory waits for them.
    """

    def __init__(self, driver: Driver, graph: Any) -> None:
        self._api, self._check = driver.api, driver.check
        self._graph = graph
        self._context = self._check(self._api.cuCtxGetCurrent())
        #: What the next operation of the default stream waits for, whatever else.
        self._main: list[Any] = []
        #: Streams that the default one has not waited for -> their last nodes.
        self._ahead: dict[Any, Any] = {}

    def add(self, operations: Sequence[Operation]) -> None:
        """Add operations in the order in which they were asked for."""
        early, others = split_fills(operations)
        touches = Touches(others)
        #: Those that have to wait for an early fill, and for which.
        fills: dict[int, list[Any]] = {}
        for operation in early:
            node = self._add(operation, [])
            for place in touches.find(*_spans(operation)[0]):
                fills.setdefault(place, []).append(node)
        for place, operation in enumerate(others):
            asked = operation[4] if operation[0] == "launch" else 0
            before = fills.get(place, [])
            if asked:
                last = self._ahead.get(asked)
                before += self._main if last is None else [last]
                self._ahead[asked] = self._add(operation, before)
            else:
                before += [*self._main, *self._ahead.values()]
                self._ahead.clear()
                self._main = [self._add(operation, before)]

    def _add(self, operation: Operation, before: list[Any]) -> Any:
        name, *given = operation
        add, given_context = getattr(self, f"_{name}")(*given)
        found = self._graph, before or None, len(before), *given_context
        return self._check(add(*found))

    def _launch(
        self, handle: Any, blocks: int, threads: int, stream: int, packed: bytes
    ) -> Any:
        node = self._api.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.blockDimX = handle, blocks, threads
        node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
        # The driver reads them while the node is added.
        self._packed = point_to_words(packed)
        node.kernelParams = int(self._packed[1].ctypes.data)
        return self._api.cuGraphAddKernelNode, (node,)

    def _fill(self, address: int, value: int, count: int, size: int) -> Any:
        node = self._api.CUDA_MEMSET_NODE_PARAMS()
        node.dst, node.value, node.elementSize = address, value, size
        node.width, node.height = count, 1
        return self._api.cuGraphAddMemsetNode, (node, self._context)

    def _set_words(self, address: int, value: int, count: int) -> Any:
        return self._fill(address, value, count, 4)

    def _set_bytes(self, address: int, value: int, count: int) -> Any:
        return self._fill(address, value, count, 1)

    def _move(self, source: int, size: int) -> Any:
        node = self._api.CUDA_MEMCPY3D()
        node.srcMemoryType = self._api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        node.srcDevice = source
        node.WidthInBytes, node.Height, node.Depth = size, 1, 1
        return node

    def _copy(self, target: int, source: int, size: int) -> Any:
        node = self._move(source, size)
        node.dstMemoryType = self._api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        node.dstDevice = target
        return self._api.cuGraphAddMemcpyNode, (node, self._context)

    def _read(self, target: int, source: int, size: int) -> Any:
        node = self._move(source, size)
        node.dstMemoryType = self._api.CUmemorytype.CU_MEMORYTYPE_HOST
        node.dstHost = target
        return self._api.cuGraphAddMemcpyNode, (node, self._context)

"""Calls of a process: of the driver, of the runtime, of the collector.

A `Tracer` replaces functions, so it is made before their callers are imported. It
counts all calls of the driver, and keeps those that took long, with the Python that
made them; so it does where no call was made for long. `KernelTimes` puts events around
each launch of a run that is not replayed.
"""

from __future__ import annotations

import functools
import gc
import importlib
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["MADE", "Event", "KernelTimes", "Tracer"]

#: Calls that take so long, in s, are kept.
LONG_S = 2e-3
#: Calls of the driver that make something, which no warm call should.
MADE = (
    "cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemFree", "cuMemFreeAsync",
    "cuMemHostAlloc", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuGraphInstantiate",
    "cuGraphCreate", "cuGraphExecDestroy", "cuStreamBeginCapture", "cuStreamCreate",
    "cuEventCreate", "cuModuleLoadDataEx", "cuLibraryLoadData", "cuModuleGetFunction",
    "cuModuleUnload", "cuCtxSynchronize", "cuMemPoolTrimTo",
)  # fmt: skip
#: Methods of the runtime: module, class, method, and the name of the count.
METHODS = (
    ("runtime.loops.host", "HostLoop", "run", "by the host"),
    ("runtime.loops.replay_report", "HostReplay", "run", "flights"),
    ("runtime.loops.replay", "DeviceReplay", "run", "loops"),
    ("runtime.recording.cuda_trace", "RecordedSuperstep", "__init__", "recorded"),
    ("runtime.recording.cuda_trace", "RecordedSuperstep", "_make_graphs", "graphs"),
    ("runtime.recording.cuda_record", "ConditionalLoop", "__init__", "loops made"),
    ("cuda.launch", "Launches", "_launch_first", "first launches"),
    ("ranks.exchange.windows", "Mailboxes", "__init__", "windows"),
    ("ranks.exchange.window_numbers", "WindowNumbers", "_table", "tables of numbers"),
    ("ranks.exchange.window_channel", "Channel", "_columns", "columns"),
    ("runtime.devices.spare", "SpareMemory", "_find", "kits asked for"),
    ("runtime.devices.spare", "Kit", "__init__", "kits made"),
    ("runtime.devices.spare", "Kit", "note", "arrays of no kit"),
)
#: Frames of a stack that are kept.
_FRAMES = 9


class Event(NamedTuple):
    """Something that took long.

    Attributes
    ----------
    begun_ms, took_ms : float
        Since the trial began.
    what : str
    stack : str
        The Python frames of the call, the innermost last.
    """

    begun_ms: float
    took_ms: float
    what: str
    stack: str


class Tracer:
    """Counts calls, and keeps long ones.

    Parameters
    ----------
    modules : sequence of str
        Of the driver; all of their functions that begin with ``cu`` are traced.
    """

    def __init__(self, modules: Sequence[str] = ("cuda.bindings.driver",)) -> None:
        self._counts: Counter[str] = Counter()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._events: list[Event] = []
        self._begun = self._last = time.perf_counter()
        self._is_on, self._gc_begun = False, 0.0
        for name in modules:
            module = importlib.import_module(name)
            for function in dir(module):
                is_call = function.startswith("cu") and function[2:3].isupper()
                if is_call and callable(found := getattr(module, function)):
                    setattr(module, function, self._driver_call(function, found))
        gc.callbacks.append(self._collected)

    def follow(self) -> None:
        """Count calls of the runtime, too, from here on; it is imported."""
        importlib.import_module("featgraph")  # whole, before parts of it
        for module, owner, name, what in METHODS:
            try:
                kind = getattr(importlib.import_module(f"featgraph.{module}"), owner)
                setattr(kind, name, self._method(what, getattr(kind, name)))
            except (ImportError, AttributeError):
                print(f"    not traced: {owner}.{name}", flush=True)

    def begin(self) -> None:
        """Begin anew."""
        self._counts, self._spent = Counter(), defaultdict(float)
        self._events = []
        self._begun = self._last = time.perf_counter()
        self._is_on = True

    def end(self) -> dict[str, Any]:
        """Return counts, times and events since `begin`."""
        self._is_on = False
        waited = {n: 1000 * s for n, s in self._spent.items() if s > LONG_S}
        return {
            "counts": dict(self._counts),
            "spent_ms": waited,
            "events": [list(event) for event in self._events],
        }

    def _add(self, begun: float, ended: float, what: str) -> None:
        if len(self._events) < 200:
            stack = traceback.extract_stack()
            frames = [
                f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}"
                for frame in stack
                if frame.filename != __file__
            ]
            where = " > ".join(frames[-_FRAMES:])
            took = 1000 * (ended - begun)
            self._events.append(Event(1000 * (begun - self._begun), took, what, where))

    def _driver_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call, assigned=("__name__", "__doc__"), updated=())
        def traced(*arguments: Any, **named: Any) -> Any:
            if not self._is_on:
                return call(*arguments, **named)
            begun = time.perf_counter()
            if begun - self._last > LONG_S:
                self._add(self._last, begun, f"nothing before {name}")
            try:
                return call(*arguments, **named)
            finally:
                ended = self._last = time.perf_counter()
                self._counts[name] += 1
                self._spent[name] += ended - begun
                if ended - begun > LONG_S:
                    self._add(begun, ended, name)

        return traced

    def _method(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def traced(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                if self._is_on:
                    self._counts[what] += 1
                    self._spent[what] += time.perf_counter() - begun

        return traced

    def _collected(self, phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_begun = time.perf_counter()
        elif self._is_on:
            ended = time.perf_counter()
            self._counts[f"collector {about['generation']}"] += 1
            self._spent["collector"] += ended - self._gc_begun
            if ended - self._gc_begun > LONG_S:
                self._add(self._gc_begun, ended, f"collector {about['generation']}")


class KernelTimes:
    """Times kernels that are launched one by one, by events around each.

    Kernels of two streams that overlap have the time of both.

    Parameters
    ----------
    launches : Launches
        Of the device.
    """

    def __init__(self, launches: Any) -> None:
        self._launches = launches
        self._api: Any = importlib.import_module("cuda.bindings.driver")
        self._launch = self._api.cuLaunchKernel
        self._pairs: list[tuple[str, Any, Any]] = []
        self._names: dict[int, str] = {}

    def __enter__(self) -> KernelTimes:
        self._api.cuLaunchKernel = self._timed
        return self

    def __exit__(self, *failed: object) -> None:
        self._api.cuLaunchKernel = self._launch

    def _timed(self, handle: Any, *arguments: Any) -> Any:
        stream, events = arguments[7], []
        for _ in range(2):
            events.append(self._api.cuEventCreate(0)[1])
        self._api.cuEventRecord(events[0], stream)
        result = self._launch(handle, *arguments)
        self._api.cuEventRecord(events[1], stream)
        self._pairs.append((self._name(handle), *events))
        return result

    def _name(self, handle: Any) -> str:
        """Return the name of a kernel that the runtime has launched before."""
        if int(handle) not in self._names:
            for kernel, made in self._launches._prepared.items():
                name = getattr(kernel, "__name__", None) or kernel.py_func.__name__
                self._names |= {int(one.handle): name for one in made}
        return self._names.get(int(handle), f"{int(handle):x}")

    def read(self) -> dict[str, tuple[int, float]]:
        """Wait; return of each kernel how often it ran, and for how many ms in all."""
        self._api.cuCtxSynchronize()
        found: dict[str, tuple[int, float]] = {}
        for name, begun, ended in self._pairs:
            count, total = found.get(name, (0, 0.0))
            _, took = self._api.cuEventElapsedTime(begun, ended)
            found[name] = count + 1, total + float(took)
            self._api.cuEventDestroy(begun)
            self._api.cuEventDestroy(ended)
        self._pairs.clear()
        return found

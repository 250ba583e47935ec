"""The device's time of supersteps, without the host's gaps between launches.

Before each superstep the device is given something to do for about as long as the host
takes to launch all of it. Then the launches lie ready, and run one right behind the
other between two events. Where the host reads something within a superstep, the time
stops, and goes on behind that in the same way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from featgraph.cuda import dialect
from featgraph.runtime import iterate
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.run import Run
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["Stopwatch", "timed_supersteps"]

#: How long the device is kept busy, in ms: at least, and at most.
SHORTEST, LONGEST = 0.1, 3.0
#: Of so many supersteps, the one that took the host longest decides how long.
REMEMBERED = 16


class Stopwatch:
    """Adds up the device's time between `resume` and `pause`.

    Parameters
    ----------
    device : CudaDevice

    Attributes
    ----------
    exposed : int
        How often the host took longer than the device was kept busy: then a gap may
        be in the time.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._events: list[Any] = []
        self._laps: list[int] = []
        self._used = self.exposed = 0
        self._submitted: deque[float] = deque([0.5], REMEMBERED)
        self._since: float | None = None
        self._busy_ms = 0.0
        self._spin = dialect.kernel(_spin)
        self._out = device.upload(np.ones(1, np.int64))
        self._turns_a_ms = self._calibrate()

    def _calibrate(self) -> float:
        turns, (begin, end) = 1 << 20, (self._event(), self._event())
        for _ in range(3):
            begin.record()
            self._launch(turns)
            end.record()
            end.synchronize()
        self._used = 0
        return turns / float(dialect.cuda.event_elapsed_time(begin, end))

    def _launch(self, turns: int) -> None:
        self._device.launches(self._spin, 1, 32, (np.int64(turns), self._out))

    def _event(self) -> Any:
        if self._used == len(self._events):
            self._events.append(dialect.cuda.event(timing=True))
        self._used += 1
        return self._events[self._used - 1]

    @property
    def is_running(self) -> bool:
        """If it was resumed last."""
        return self._since is not None

    def resume(self) -> None:
        """Keep the device busy for a while; launches behind that are timed."""
        self._busy_ms = min(max(SHORTEST, 1.5 * max(self._submitted)), LONGEST)
        self._launch(int(self._busy_ms * self._turns_a_ms))
        self._since = time.perf_counter()
        self._event().record()

    def pause(self) -> None:
        """Time no launches until `resume` is called."""
        if self._since is None:
            return
        self._event().record()
        submitted = (time.perf_counter() - self._since) * 1e3
        self._submitted.append(submitted)
        self.exposed += submitted > self._busy_ms
        self._since = None

    def lap(self) -> None:
        """End a superstep."""
        self.pause()
        self._laps.append(self._used)

    def read(self) -> list[float]:
        """Return the ms of each superstep since the last call."""
        dialect.cuda.synchronize()
        elapsed, laps, begun = dialect.cuda.event_elapsed_time, [], 0
        for last in self._laps:
            pairs = range(begun, last, 2)
            events = self._events
            laps.append(sum(elapsed(events[n], events[n + 1]) for n in pairs))
            begun = last
        self._laps, self._used = [], 0
        return laps


def _spin(turns, out):  # type: ignore[no-untyped-def]
    """Iterate on a number."""
    x = out[0]
    for _ in range(turns):
        x = x * 6364136223846793005 + 1442695040888963407
    out[0] = x


@contextmanager
def timed_supersteps(watch: Stopwatch, device: Any) -> Iterator[None]:
    """Have `featgraph.iterate` run all supersteps by the host, and time them."""
    with (
        patch.object(iterate, "LOOPS", (_timed_loop(watch),)),
        patch.object(device, "download", _paused(watch, device.download)),
    ):
        yield


def _paused(watch: Stopwatch, download: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def paused(array: Any) -> Any:
        was_running = watch.is_running
        watch.pause()
        found = download(array)
        if was_running:
            watch.resume()
        return found

    return paused


def _timed_loop(watch: Stopwatch) -> type[HostLoop]:
    class TimedLoop(HostLoop):
        """Times supersteps up to where committed vertices are counted."""

        name: ClassVar[str] = "timed"

        def run(self, run: Run, most: int) -> bool:
            """Run the next foldmap that has something due; False if none has."""
            for step in self._run_state.runs:  # uploads are none of a superstep's
                step.plain.bound.arrive()
                step.plain.bound.data(Frontier(), None)
            watch.resume()
            try:
                return super().run(run, most)
            finally:
                watch.pause()

        def _note(self, *given: Any) -> None:
            watch.lap()
            super()._note(*given)

    return TimedLoop

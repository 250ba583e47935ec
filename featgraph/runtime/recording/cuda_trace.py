"""Traces of the CUDA calls of a superstep, and their repetitions.

`TracedDriver` has the interface of the driver. It passes calls on, and stores those
between `begin` and `end` of a thread as *operations*: tuples of a name and arguments.
`record` turns the operations of a superstep into a `RecordedSuperstep`, which can be
launched again. `loop` turns a cycle of these into a `DeviceLoop`, once the launches of
the host have cost more time than making the loop.

The driver also owns the pools from which vertex sets are taken, so that supersteps find
sets at the same addresses again.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceError
from featgraph.cuda.arguments import PackedArguments, point_to_words
from featgraph.cuda.launch import OPAQUE
from featgraph.runtime.recording.control import DeviceLoop, Shape
from featgraph.runtime.recording.cycles import DeferredCalls, KnownCycles

__all__ = [
    "LANDED",
    "OPAQUE",
    "TURN",
    "RecordedSuperstep",
    "TracedDriver",
    "read_landed",
]

#: Name of the operation between a message to other ranks and the wait for theirs. Its
#: argument is a function that lets the other ranks of this process send, or None if
#: each rank has a process of its own.
TURN = "turn"
#: The calls of a superstep, each as a tuple of its name and arguments.
Operations = tuple[tuple[Any, ...], ...]
#: Number of words -> sets of that size; sets without another reference are reused.
Pools = dict[int, list[Any]]
#: ``make(operations, beside=...)`` makes an object with `launch` and `wait`.
Make = Callable[..., Any]
#: Most recordings that a thread keeps.
_MOST_KEPT = 64
#: Most pairs of pools that are kept for later States.
_MOST_SPARE = 8
#: Most 64-bit words that a superstep returns to the host: the number of committed
#: vertices, two extremes of watched results, and two numbers of edges.
LANDED = 5
#: Time to make two CUDA graphs, in s, until it has been measured.
_RECORDING_SECONDS = 3e-4
#: Time to launch two CUDA graphs, in s (NVIDIA H200, 2026-11-21).
_LAUNCHING_SECONDS = 1.2e-5
#: Time to make a loop, in s, until it has been measured.
_LOOP_SECONDS = 6e-4
#: Least time, in s, that a loop saves per superstep: an event, and bookkeeping in
#: Python. The second value applies if no further superstep was launched ahead, so that
#: the device is idle meanwhile: `pagerank` on an R-MAT graph of 2^14 vertices saved
#: 70 us (NVIDIA H200, 2026-11-23).
_LOOP_SAVES, _LOOP_SAVES_ALONE = 5e-6, 4e-5
#: Assumed cost, in s, of sending a superstep of ranks call by call and not as a graph:
#: six to ten operations of 5 us each (NVIDIA H100).
_SENDING_SECONDS = 3e-5
#: Most loops that a thread keeps, with cycles of which no loop could be made.
_MOST_LOOPS = 32


def _count_references(pool: list[Any]) -> int:
    """Return the reference count of a pool's first entry, as seen in a loop over it."""
    for entry in pool:
        return sys.getrefcount(entry)
    return 0


#: The count, in such a loop, of a set to which only its pool refers.
_UNHELD = _count_references([object()])


class RecordedSuperstep:
    """A superstep that can be launched again, from its operations.

    At first the operations are sent to the device one by one. Two CUDA graphs replace
    them (one for the work, one to count the committed vertices) as soon as the device
    has been idle, because of slow launches, for as long as making the graphs takes.
    While the device has queued work, a launch costs no device time.

    On several ranks, a fixed cost per launch is assumed in place of a measured one. All
    ranks then make graphs and loops at the same superstep, and wait for each other
    once.

    Parameters
    ----------
    operations : tuple
        The driver's calls of a superstep.
    landed : ndarray of int64, shape (LANDED,)
        Page-locked memory for the count and the extremes of results.
    repeat, record : callable
        ``make(operations, beside=...)`` make a `Repetition`, and a `Recording`.
    """

    #: Time, in s, that making two graphs has taken last.
    recording_seconds = _RECORDING_SECONDS

    def __init__(
        self,
        operations: Operations,
        landed: npt.NDArray[Any],
        repeat: Make,
        record: Make,
    ) -> None:
        [read] = [o for o in operations if o[0] == "read"]
        #: Number of extremes of results that each launch returns with the count.
        self.extremes: int = read[3] // 8 - 1
        #: Whether other ranks take part.
        self.is_shared = any(o[0] == TURN for o in operations)
        #: Whether ranks of this process take part, which have to launch alternately.
        self.takes_turns = any(o[0] == TURN and o[1] is not None for o in operations)
        self._is_whole = self.extremes > 0 or self.is_shared
        work: list[tuple[Any, ...]] = []
        count: list[tuple[Any, ...]] = []
        for operation in operations:
            # Watched results must be read before the next superstep overwrites them.
            is_beside = not self._is_whole and _is_given(operation, read[2])
            (count if is_beside else work).append(operation)
        self._landed = landed
        #: Operations of the work, and those that count the committed vertices, without
        #: the copy to the host.
        self.superstep: tuple[Operations, Operations] = (
            tuple(o for o in work if o is not read),
            tuple(o for o in count if o is not read),
        )
        self._reads = ("read", int(landed.ctypes.data), *read[2:])
        self._record: Make | None = record
        self._make_both(repeat)
        #: Time of the last launch, and device time lost to launches.
        self._launching = self._lost = 0.0
        #: Number of launches, and of those without another launch queued after them.
        self._launched = self._alone = 0

    def _make_both(self, make: Make) -> None:
        """Make the objects that launch the work and, concurrently, the count."""
        work, counts = self.superstep
        if self._is_whole:
            self._working = make((*work, self._reads), beside=False)
            self._counting = None
            return
        counts = (*counts, self._reads)
        made = make(work, beside=False), make(counts, beside=True)
        self._working, self._counting = made

    def launch(self) -> None:
        """Launch the superstep after all earlier work of the device.

        The count runs on a side stream, so that later launches need not wait for it.
        """
        if self._record is not None and self._pays():
            self._make_graphs(self._record)
        begun = time.perf_counter()
        self._working.launch()
        if self._counting is not None:
            self._counting.launch(behind=self._working)
        self._launching = time.perf_counter() - begun
        self._launched += 1

    def wait(self, *, is_last: bool = False) -> tuple[int, list[float]]:
        """Wait for the launch; return the number of committed vertices, and extremes.

        With `is_last`, nothing has been launched after it, so that the device is idle
        until the next launch.
        """
        begun = time.perf_counter()
        (self._counting or self._working).wait()
        self._alone += is_last
        if self.is_shared:
            self._lost += _SENDING_SECONDS
        elif is_last or time.perf_counter() - begun < self._launching:
            self._lost += max(self._launching - _LAUNCHING_SECONDS, 0)
        return read_landed(self._landed, self.extremes)

    @property
    def lost(self) -> float:
        """Time, in s, that a loop on the device would have saved so far."""
        saved = self._launched * _LOOP_SAVES + self._alone * _LOOP_SAVES_ALONE
        return self._lost + saved

    def _pays(self) -> bool:
        """Whether launches have cost as much time as making graphs takes."""
        own = RecordedSuperstep.recording_seconds
        return self._lost >= (_RECORDING_SECONDS if self.is_shared else own)

    def _make_graphs(self, record: Make) -> None:
        """Replace single calls by CUDA graphs, and measure the time; try only once."""
        self._record = None
        begun = time.perf_counter()
        try:
            self._make_both(record)
        except DeviceError:  # call by call, as before
            return
        seconds = time.perf_counter() - begun
        # The first graph of a process takes much longer.
        known = RecordedSuperstep.recording_seconds
        RecordedSuperstep.recording_seconds = min(seconds, 2 * known)


def read_landed(
    landed: npt.NDArray[np.int64], extremes: int
) -> tuple[int, list[float]]:
    """Return the count and some extremes from page-locked memory."""
    seen: list[float] = landed[1 : 1 + extremes].view(np.float64).tolist()
    return int(landed[0]), seen


def _is_given(operation: tuple[Any, ...], address: int) -> bool:
    """Whether an operation takes the array at `address` as an argument."""
    if operation[0] == "launch":
        return address.to_bytes(8, sys.byteorder) in operation[-1]
    return address in operation[1:3]


class _Stream(NamedTuple):
    """A stream for `Driver.launch`, which reads its handle only."""

    handle: int


class _Traces(threading.local):
    """The trace and the recordings of a thread."""

    #: Operations since `TracedDriver.begin`; None while the thread does not trace.
    operations: list[tuple[Any, ...]] | None = None
    #: If set, all operations so far have been held back from the driver.
    deferred: DeferredCalls | None = None

    def __init__(self) -> None:
        #: The sets taken from pools since the trace began.
        self.taken: list[weakref.ref[Any]] = []
        #: Pools of sets that are made outside of traces.
        self.own_pools: Pools = {}
        self.pools = self.own_pools
        self.recorded: OrderedDict[Operations, RecordedSuperstep] = OrderedDict()
        #: (cycle, is_exact) -> its loop, or None if it cannot be made.
        self.loops: OrderedDict[Any, Any] = OrderedDict()


class TracedDriver:
    """The CUDA driver, which traces the calls of a thread between `begin` and `end`.

    Parameters
    ----------
    driver : Driver
    landing : ndarray of int64, shape (N, LANDED)
        Page-locked memory: a row for the values of each recording.
    repeat, record : callable
        ``make(driver, operations, beside)`` makes a `Repetition`, or a `Recording`.
    loop : callable
        ``make(driver, supersteps, shape)`` makes a `DeviceLoop` of a cycle, given as
        pairs: the operations of a superstep, and those that count.
    """

    def __init__(
        self,
        driver: Any,
        landing: npt.NDArray[Any],
        repeat: Make,
        record: Make,
        loop: Make,
    ) -> None:
        self._driver = driver
        self._repeat, self._record, self._loop = repeat, record, loop
        self._loop_seconds = _LOOP_SECONDS
        self._landing = landing
        self._free = list(range(len(landing)))
        self._own = _Traces()
        #: Pairs of pools of deleted owners.
        self._spare: list[tuple[Pools, ...]] = []
        self.known = KnownCycles()

    # -- tracing

    def lend_pools(self, to: object) -> tuple[Pools, ...]:
        """Return two pools of sets, which `to` owns while it lives.

        Another owner gets them afterwards: allocating sets takes longer than a short
        run, and freeing them waits for the device.
        """
        try:
            pools = self._spare.pop()
        except IndexError:
            pools = {}, {}
        weakref.finalize(to, self._give_back, pools).atexit = False
        return pools

    def _give_back(self, pools: tuple[Pools, ...]) -> None:
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(pools)

    def begin(self, pools: Pools, deferred: DeferredCalls | None = None) -> None:
        """Begin to trace the calls of this thread, with sets from some pools.

        Calls that `deferred` expects are held back from the driver.
        """
        self._own.operations, self._own.taken = [], []
        self._own.pools, self._own.deferred = pools, deferred

    def take(self, count: int, make: Callable[[tuple[int], str], Any]) -> Any:
        """Return an unused set of `count` words; `make` allocates arrays.

        Each State has two pools, which its supersteps use alternately. A superstep so
        gets the sets that the last superstep but one has used, and calls repeat with
        the same addresses.
        """
        own = self._own
        pool = own.pools.setdefault(count, [])
        for words in pool:
            if sys.getrefcount(words) == _UNHELD:
                break
        else:
            words = make((count,), "uint32")
            pool.append(words)
        if own.operations is not None:
            own.taken.append(weakref.ref(words))
        return words

    @property
    def taken(self) -> tuple[weakref.ref[Any], ...]:
        """The sets that this thread has taken since its trace began."""
        return tuple(self._own.taken)

    @staticmethod
    def are_free(taken: Sequence[Callable[[], Any]], pools: Pools) -> bool:
        """Whether sets that were taken from some pools still exist and are unused."""
        free = {
            id(words)
            for pool in pools.values()
            for words in pool
            if sys.getrefcount(words) == _UNHELD
        }
        return all(id(made()) in free for made in taken)

    def end(self) -> Operations | None:
        """End the trace; return its operations, or None if they cannot be recorded.

        They can if all of them run on the device, except one read of the count.
        """
        own = self._own
        if own.deferred is not None:  # the superstep failed before its read
            self._send_all()
        operations, own.operations, own.pools = own.operations, None, own.own_pools
        if not operations or OPAQUE in operations:
            return None
        reads = [o[0] for o in operations].count("read")
        return tuple(operations) if reads == 1 else None

    def record(self, operations: Operations) -> RecordedSuperstep | None:
        """Return the recording of a traced superstep, cached for later runs.

        None if no page-locked row is free for its results, or the driver fails.
        """
        recorded = self._own.recorded
        known = recorded.get(operations)
        if known is not None:
            recorded.move_to_end(operations)
            return known
        if len(recorded) == _MOST_KEPT:
            recorded.popitem(last=False)
        try:
            place = self._free.pop()
        except IndexError:
            return None
        landed = self._landing[place]
        try:
            made = RecordedSuperstep(
                operations,
                landed,
                partial(self._repeat, self._driver),
                partial(self._record, self._driver),
            )
        except DeviceError:  # the host goes on as before
            self._free.append(place)
            return None
        weakref.finalize(made, self._free.append, place)
        recorded[operations] = made
        return made

    def loop(
        self, recordings: Sequence[RecordedSuperstep], turns: int, is_exact: bool
    ) -> DeviceLoop | None:
        """Return the loop of a cycle of `turns` foldmaps, or None.

        The loop is made, and cached, when launches of the cycle from the host have cost
        as much time as making it, or if there is a loop of the same cycle that begins
        at another superstep. None before that, and if no loop can be made, as for ranks
        that share a process. With `is_exact` it can end after any superstep.
        """
        loops, cycle = self._own.loops, tuple(recordings)
        key = cycle, is_exact
        if key in loops:
            loops.move_to_end(key)
            return loops[key]  # type: ignore[no-any-return]
        lost = 0.0  # computed after each cycle that the host launches
        for recording in cycle:
            lost += recording.lost
        turned = [(cycle[n:] + cycle[:n], is_exact) for n in range(1, len(cycle))]
        costs = _LOOP_SECONDS if cycle[0].is_shared else self._loop_seconds
        pays = lost >= costs or any(map(loops.get, turned))
        if not pays or any(r.takes_turns for r in cycle):
            return None
        if len(loops) == _MOST_LOOPS:
            loops.popitem(last=False)
        begun = time.perf_counter()
        try:
            supersteps = [recording.superstep for recording in cycle]
            seen = max(recording.extremes for recording in cycle)
            shape = Shape(turns, len(cycle), len(cycle), seen, is_exact)
            loops[key] = self._loop(self._driver, supersteps, shape)
        except DeviceError:  # the host goes on as before
            loops[key] = None
        # The first loop of a process takes much longer.
        seconds = time.perf_counter() - begun
        self._loop_seconds = min(seconds, 2 * self._loop_seconds)
        return loops[key]  # type: ignore[no-any-return]

    def operations_of(self, call: Callable[[], Any]) -> Operations:
        """Call a function, and return its operations.

        If its first call makes calls that cannot be recorded, such as uploads, it is
        called a second time.
        """
        own = self._own
        own.operations = []
        try:
            call()
            if OPAQUE in own.operations:
                own.operations.clear()
                call()
            return tuple(own.operations)
        finally:
            own.operations = None

    def note(self, *operation: Any) -> None:
        """Add an operation to the trace of this thread, if it traces."""
        if self._own.deferred is not None:
            self._send_all()
        operations = self._own.operations
        if operations is not None:
            operations.append(operation)

    @property
    def streams(self) -> Any:
        """Streams for work that cannot be recorded.

        A superstep that uses them is not recorded. `mark` and `hold` can be.
        """
        self.note(*OPAQUE)
        return self._driver.streams

    def _takes(self, operation: tuple[Any, ...]) -> bool:
        """Add an operation to the trace; return whether it is held back.

        If it is not the next expected one, the driver first gets all held operations.
        """
        own = self._own
        deferred, operations = own.deferred, own.operations
        is_deferred = deferred is not None and deferred.takes(operation)
        if deferred is not None and not is_deferred:
            self._send_all()
        if operations is not None:
            operations.append(operation)
        return is_deferred

    def _send_all(self) -> None:
        """Send all held-back operations to the driver, and hold back no more."""
        own = self._own
        if own.deferred is None:
            return
        own.deferred = None
        for name, *given in own.operations or ():
            if name == "launch":
                *grid, stream, packed = given
                words, pointers = point_to_words(packed)
                where = _Stream(stream) if stream else 0
                self._driver.launch(*grid, where, int(pointers.ctypes.data))
                del words  # the pointers refer to them until the launch returns
            else:
                getattr(self._driver, name)(*given)

    # -- the driver's calls

    def launch(
        self,
        handle: Any,
        blocks: int,
        threads: int,
        stream: Any,
        packed: PackedArguments,
    ) -> None:
        """Launch a kernel with packed arguments."""
        if self._own.operations is not None:
            where, words = int(stream.handle) if stream else 0, packed.copy_words()
            if self._takes(("launch", handle, blocks, threads, where, words)):
                return
        self._driver.launch(handle, blocks, threads, stream, packed.address)

    def set_words(self, address: int, value: int, count: int) -> None:
        """Set `count` words of 32 bits."""
        is_traced = self._own.operations is not None
        if not (is_traced and self._takes(("set_words", address, value, count))):
            self._driver.set_words(address, value, count)

    def set_bytes(self, address: int, value: int, count: int) -> None:
        """Set `count` bytes."""
        is_traced = self._own.operations is not None
        if not (is_traced and self._takes(("set_bytes", address, value, count))):
            self._driver.set_bytes(address, value, count)

    def mark(self, event: Any, stream: Any) -> None:
        """Record an event on a stream; 0 is the default one."""
        self._send_all()  # the event stands for all calls before it
        self._driver.streams.mark(event, stream)
        self.note("mark", event, stream)

    def hold(self, stream: Any, event: Any) -> None:
        """Have later work of a stream wait for an event.

        A recording waits for events that were recorded in the same recording.
        """
        self._send_all()
        self._driver.streams.hold(stream, event)
        self.note("hold", stream, event)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes within the device."""
        is_traced = self._own.operations is not None
        if not (is_traced and self._takes(("copy", target, source, size))):
            self._driver.copy(target, source, size)

    def write(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes from host memory, which may be overwritten on return."""
        self._send_all()  # calls that were held back may read the old bytes
        self._driver.write(target, source, size)
        self.note(*OPAQUE)

    def read(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes to page-locked memory, and wait for all work."""
        own = self._own
        deferred, operation = own.deferred, ("read", target, source, size)
        if deferred is not None and deferred.takes(operation):
            # The calls of the loop are neither traced nor held back.
            operations, own.operations, own.deferred = own.operations, None, None
            try:
                words = deferred.instead()
            finally:
                own.operations, own.deferred = operations, deferred
            if words is not None:
                own.deferred = None
                ctypes.memmove(target, int(words.ctypes.data), size)
                self.note(*operation)
                return
        self._send_all()
        self._driver.read(target, source, size)
        self.note(*operation)

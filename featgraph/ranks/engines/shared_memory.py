"""The engine of ranks that are processes of one host, over shared memory.

In each exchange, every rank writes a record for each other rank, and longer messages to
a window; then it publishes the number of the exchange. A rank that has read the numbers
of all others reads their records and messages. Two windows alternate: when a rank
publishes exchange n + 2, all others have read exchange n. A waiting rank polls for some
microseconds, and then sleeps until a peer rings its bell, or dies.

A rank has three files: one of words and records (`Layout`), and one for each window,
for messages that do not fit in a record. Only that rank writes them (`OwnMemory`);
peers map them read-only (`PeerMemory`). They have no names: the kernel frees them when
the last process that maps them ends, however it ends. `Peers` publishes and waits, and
`SharedEngine` is the engine.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DistributedError
from featgraph.base.interrupts import import_whole
from featgraph.ranks.engines.failures import CONNECT_S, MEETING, Watching, watched
from featgraph.ranks.engines.meeting import Met, is_possible, meet
from featgraph.ranks.engines.messages import NOTHING, Bytes, Finish
from featgraph.ranks.engines.processes import (
    INLINE_BYTES,
    RECORD_BYTES,
    ConcurrentCalls,
    ProcessEngine,
    Record,
    Released,
    called,
    last_record,
    pack,
    require_same_call,
    unpack,
)
from featgraph.ranks.engines.protocol import Call, Read, Write, WriteOnce

__all__ = ["FLAGS", "SharedEngine"]

Words = npt.NDArray[np.int64]
#: Alignment of messages, and distance of words in different cache lines, in bytes: a
#: rank that polls a word does not slow down stores to the others.
ALIGNMENT = 64
_STRIDE = ALIGNMENT // 8
#: Sizes of windows are multiples of so many bytes.
_GRAIN = 1 << 20


class Layout:
    """The layout of words and records in a rank's memory, for `size` ranks.

    The `turn` of an exchange, its number modulo 2, selects one of two windows, with
    offsets and records of its own.

    Attributes
    ----------
    last : int
        Index of the word that is nonzero once the last record is published.
    nbytes : int
        Bytes of all words and records.
    """

    last = 0

    def __init__(self, size: int) -> None:
        self._size = size
        # Offsets, two for each rank, are read once an exchange, and may share lines.
        words = (1 + 2 * size) * _STRIDE + 2 * size
        self._offsets = (1 + 2 * size) * _STRIDE
        self._records = -(-words * 8 // ALIGNMENT) * ALIGNMENT
        self.nbytes = self._records + (2 * size + 1) * RECORD_BYTES

    def published(self, rank: int) -> int:
        """Return the index of the word with the number published to a rank."""
        return (1 + rank) * _STRIDE

    def asleep(self, rank: int) -> int:
        """Return the index of the flag that this rank sleeps until `rank` wakes it."""
        return (1 + self._size + rank) * _STRIDE

    def offset(self, turn: int, rank: int) -> int:
        """Return the index of the word with the offset of the message to a rank."""
        return self._offsets + turn * self._size + rank

    def record(self, turn: int, rank: int) -> slice:
        """Return the byte range of the record to a rank."""
        return self._record(turn * self._size + rank)

    @property
    def last_record(self) -> slice:
        """The byte range of the last record, for all ranks."""
        return self._record(2 * self._size)

    def _record(self, number: int) -> slice:
        begin = self._records + number * RECORD_BYTES
        return slice(begin, begin + RECORD_BYTES)


class OwnMemory:
    """The memory of this rank.

    Attributes
    ----------
    files : tuple of int
        Descriptors to send to peers.
    words, control : array
        The first file as int64 words and as bytes.
    """

    def __init__(self, layout: Layout) -> None:
        self.files = tuple(_nameless() for _ in range(3))
        _reserve(self.files[0], 0, layout.nbytes)
        self.control: Bytes = _mapped(self.files[0], layout.nbytes, mmap.PROT_WRITE)
        self.words: Words = _words(self.control)
        self._windows: list[Bytes] = [NOTHING] * 2

    def window(self, turn: int, nbytes: int) -> Bytes:
        """Return a window of at least `nbytes` bytes.

        Its contents are lost, so no peer may still read it.
        """
        known = self._windows[turn]
        if known.size < nbytes:
            # By a quarter at least: messages that grow slowly are seldom mapped anew.
            grown = -(-max(nbytes, known.size * 5 // 4) // _GRAIN) * _GRAIN
            self._windows[turn] = NOTHING
            _reserve(self.files[1 + turn], known.size, grown)
            self._windows[turn] = _mapped(self.files[1 + turn], grown, mmap.PROT_WRITE)
        return self._windows[turn]

    def close(self) -> None:
        """Close the memory."""
        self.control, self.words, self._windows = NOTHING, _words(NOTHING), []
        _close(self.files)


class PeerMemory:
    """The memory of another rank of this host, read-only.

    Attributes
    ----------
    words, control : array
        See `OwnMemory`.
    """

    def __init__(self, layout: Layout, files: Sequence[int]) -> None:
        self._files = tuple(files)
        _require_bytes(self._files[0], layout.nbytes)
        self.control: Bytes = _mapped(self._files[0], layout.nbytes)
        self.words: Words = _words(self.control)
        self._windows: list[Bytes] = [NOTHING] * 2

    def message(self, turn: int, offset: int, nbytes: int) -> Bytes:
        """Return a message in a window, as a view."""
        end = offset + nbytes
        # A window that has grown since is mapped again.
        if offset < 0 or self._windows[turn].size < end:
            file = self._files[1 + turn]
            _require_bytes(file, end if offset >= 0 else -1)
            self._windows[turn] = _mapped(file, os.fstat(file).st_size)
        return self._windows[turn][offset:end]

    def close(self) -> None:
        """Close the memory."""
        self.control, self.words, self._windows = NOTHING, _words(NOTHING), []
        _close(self._files)


def _nameless() -> int:
    """Return the descriptor of an empty file in memory, without a name."""
    file = os.memfd_create("featgraph")
    os.fchmod(file, 0o600)  # a descriptor can be opened again through /proc
    return file


def _reserve(file: int, known: int, nbytes: int) -> None:
    """Grow a file, with its pages allocated: a missing page would kill the process."""
    try:
        os.posix_fallocate(file, known, nbytes - known)
    except OSError as error:
        raise DistributedError(
            "no memory for messages between ranks of one host",
            got=f"{error.strerror}, for {nbytes} bytes",
            fix="ranks with smaller parts; fg.distributed.init(engine='gloo') takes "
            "less",
        ) from error


def _require_bytes(file: int, nbytes: int) -> None:
    found = os.fstat(file).st_size
    if not 0 <= nbytes <= found:
        raise DistributedError(
            "a message of another rank lies outside of its window",
            got=f"{found} bytes",
            expected=f"{nbytes}",
            fix="start all ranks with one version of featgraph",
        )


def _mapped(file: int, nbytes: int, also: int = 0) -> Bytes:
    memory = mmap.mmap(file, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | also)
    return np.frombuffer(memory, np.uint8)


def _words(control: Bytes) -> Words:
    return control[: control.size // 8 * 8].view(np.int64)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


#: The module of compiled loads and stores.
FLAGS = "featgraph.ranks.engines.flags"
#: Polls of a word before a rank sleeps: 20 to 100 microseconds.
LOOKS = 2000
#: Results of a poll: the rank has published the number, or its last record.
_PUBLISHED, _LAST = 1, 2


def flags() -> Any:
    """Return the compiled loads and stores."""
    return import_whole(FLAGS)


class Peers:
    """The other ranks of this host: their published numbers, records and messages.

    Exchanges are numbered from 1 on, alike on all ranks.

    Parameters
    ----------
    rank : int
        This rank.
    layout : Layout
        The layout of each rank's memory.
    own : OwnMemory
    met : mapping
        The other ranks, by rank.
    timeout : float
        Limit of waits, in seconds.
    watch : Watching, optional
        The watch of lost ranks, which replaces the limit: waits end when it reports a
        loss.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        own: OwnMemory,
        met: Mapping[int, Met],
        timeout: float,
        watch: Watching | None = None,
    ) -> None:
        self._flags = flags()
        self._rank, self._layout, self._own = rank, layout, own
        self._met, self._timeout = dict(met), timeout
        self._memory = {r: PeerMemory(layout, one.files) for r, one in met.items()}
        self._by_file = {one.bell.fileno(): r for r, one in met.items()}
        self._ended: set[int] = set()
        self._bells = select.poll()
        self._watch, self._alarm = watch, Alarm()
        for file in (self._alarm.file, *self._by_file):
            self._bells.register(file, select.POLLIN)
        if watch is not None:
            watch.when_lost(self._alarm.ring)
        # With fewer cores than ranks, polling ranks would keep others from running.
        enough = len(os.sched_getaffinity(0)) > len(met)
        self._looks = LOOKS if enough else 0

    def publish(self, rank: int, number: int) -> None:
        """Publish the number of an exchange to a rank."""
        self._publish(rank, self._layout.published(rank), number)

    def publish_last(self, number: int) -> None:
        """Publish the last record to all ranks."""
        for rank in self._met:
            self._publish(rank, self._layout.last, number)

    def wait_for(self, number: int) -> tuple[dict[int, bool], dict[int, str]]:
        """Wait until all ranks have published this number.

        Returns
        -------
        arrived : dict
            By rank, whether it has published its last record instead.
        lost : dict
            By lost rank, the reason.

        Raises
        ------
        WorkerLostError
            If the watch reports a lost rank.
        """
        until = math.inf if self._watch else time.monotonic() + self._timeout
        arrived: dict[int, bool] = {}
        for rank in self._met:
            found = self._wait(rank, number, until)
            if not found:
                return arrived, self._lost(number)
            arrived[rank] = found == _LAST
        return arrived, {}

    def record(self, rank: int, number: int, is_last: bool) -> Bytes:
        """Return the record of a rank for an exchange, or its last one."""
        layout = self._layout
        place = layout.record(number % 2, self._rank)
        return self._memory[rank].control[layout.last_record if is_last else place]

    def message(self, rank: int, number: int, nbytes: int) -> Bytes:
        """Return the message of a rank for an exchange, in the memory of that rank."""
        memory, turn = self._memory[rank], number % 2
        offset = int(memory.words[self._layout.offset(turn, self._rank)])
        return memory.message(turn, offset, nbytes)

    def close(self) -> None:
        """Close the memory of all ranks, and the connections with them."""
        self._alarm.close()
        for one in self._met.values():
            one.bell.close()
        for memory in self._memory.values():
            memory.close()

    def _publish(self, rank: int, place: int, number: int) -> None:
        theirs, asleep = self._memory[rank].words, self._layout.asleep(self._rank)
        if self._flags.publish(self._own.words, place, number, theirs, asleep):
            # A full socket has rung already; a closed one has no process behind it.
            with suppress(BlockingIOError, BrokenPipeError, ConnectionError):
                self._met[rank].bell.send(b"!", socket.MSG_NOSIGNAL)

    def _look(self, rank: int, number: int, looks: int = 0) -> int:
        """Poll a rank; return `_PUBLISHED`, `_LAST`, or 0 if neither was published."""
        layout = self._layout
        found: int = self._flags.spin(
            self._memory[rank].words,
            layout.published(self._rank),
            layout.last,
            number,
            looks,
        )
        return found

    def _wait(self, rank: int, number: int, until: float) -> int:
        """Wait for a rank; return as `_look` does, 0 if it or another one is lost."""
        found = self._look(rank, number, self._looks)
        if found:
            return found
        asleep = self._layout.asleep(rank)
        self._flags.announce_sleep(self._own.words, asleep)
        try:
            while True:
                # After the flag: a number published before it rings no bell.
                found = self._look(rank, number)
                left = until - time.monotonic()
                if found or left <= 0 or self._unpublished(self._ended, number):
                    return found
                self._sleep(left)
                if self._watch is not None:
                    self._watch.raise_lost()
        finally:
            self._flags.store(self._own.words, asleep, 0)

    def _sleep(self, seconds: float) -> None:
        """Sleep until a peer rings or ends, or the watch reports a loss."""
        # Limits are infinite under a watch, and `poll` takes ms as a 32-bit integer.
        for file, _ in self._bells.poll(math.ceil(min(seconds, 1e6) * 1000)):
            if file == self._alarm.file:
                continue
            rank = self._by_file[file]
            data = b""
            with suppress(ConnectionError):
                # Reads the rings of several exchanges at once.
                data = self._met[rank].bell.recv(64)
            if not data:
                self._bells.unregister(file)
                self._ended.add(rank)

    def _unpublished(self, ranks: set[int], number: int) -> list[int]:
        """Return the ranks that have published neither this number nor an end."""
        return [r for r in sorted(ranks) if not self._look(r, number)]

    def _lost(self, number: int) -> dict[int, str]:
        ended = self._unpublished(self._ended, number)
        if ended:
            return {r: f"its process {self._met[r].process} has ended" for r in ended}
        return {
            rank: f"nothing within {self._timeout:g} s from its process "
            f"{self._met[rank].process}{_state_of(self._met[rank].process)}"
            for rank in self._unpublished(set(self._met), number)
        }


class Alarm:
    """An event that wakes a sleeping rank, and stays set.

    Attributes
    ----------
    file : int
        A descriptor that is readable once the event is set.
    """

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_open = True
        self._turn = threading.Lock()

    def ring(self) -> None:
        """Set the event; from any thread, also after `close`."""
        with self._turn:
            if self._is_open:
                os.eventfd_write(self.file, 1)

    def close(self) -> None:
        """Close the descriptor."""
        with self._turn:
            self._is_open = False
            os.close(self.file)


def _state_of(process: int) -> str:
    """Return a text if a process is stopped; "" if not, or if that is unknown."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    is_stopped = text.rpartition(")")[2].split()[:1] in (["T"], ["t"])
    return ", which is stopped" if is_stopped else ""


#: The engines of this process, which a forked child must close.
_open_engines: weakref.WeakSet[SharedEngine] = weakref.WeakSet()


class SharedEngine(ProcessEngine):
    """The engine of a rank that is a process, over shared memory of one host.

    Parameters
    ----------
    rank, size : int
        The rank, and the number of ranks.
    address : str
    port : int
        The launcher's address for these ranks, used as a name only.
    timeout : float
        Seconds that an exchange may wait for a rank.
    watch : Watching, optional
        The watch of lost ranks. Ranks then meet at a name that rank 0 offers by it, and
        no exchange ends by the timeout.

    Raises
    ------
    DistributedError
        If the system is not Linux, or the ranks do not find each other in time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        port: int,
        timeout: float,
        watch: Watching | None = None,
    ) -> None:
        super().__init__(rank, size, timeout, watch)
        if not is_possible():
            raise DistributedError(
                "ranks share memory on Linux only",
                fix="fg.distributed.init(engine='gloo')",
            )
        flags()  # takes a second if it is not compiled yet
        self._layout = Layout(size)
        self._own = OwnMemory(self._layout)
        try:
            place = f"{address}, port {port}"
            if watch is None:
                met = meet(rank, size, place, self._own.files, timeout)
            else:
                met = _meet_watched(rank, size, self._own.files, timeout, watch)
        except BaseException:
            if watch is None:  # else a thread may still be sending its descriptors
                self._own.close()
            raise
        self._peers = Peers(rank, self._layout, self._own, met, timeout, watch)
        #: The number of the exchange published last.
        self._number = 0
        self._has_published_last = False
        _open_engines.add(self)

    def close(self, error: BaseException | None = None) -> None:
        """Publish the end of this rank, or the error by which it ends; close memory."""
        # A forked child must not publish the end of its parent.
        if not self._is_open or self._process != os.getpid():
            return
        record = last_record(self, error)
        if record is not None:
            self._publish_last(record)
        self.let_go()

    def let_go(self) -> None:
        """Close memory and connections without a last record.

        In a forked child they would hide the end of this rank from the others.
        """
        if self._is_open:
            self._is_open = False
            self._peers.close()
            self._own.close()

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        def write(rank: int, out: Bytes) -> None:
            out[:] = messages[rank]

        sizes = [m.size for m in messages]
        taken = self._take(call, lambda: self._publish_each(call, sizes, write))
        return lambda: [message.copy() for message in taken()]

    def _begin(
        self, call: Call, sizes: Sequence[int], write: Write, read: Read
    ) -> Finish:
        publish = partial(self._publish_each, call, sizes, write)
        return self._reading(self._take(call, publish), read)

    def _begin_to_all(
        self, call: Call, nbytes: int, write: WriteOnce, read: Read
    ) -> Finish:
        publish = partial(self._publish_all, call, nbytes, write)
        return self._reading(self._take(call, publish), read)

    def _take(
        self, call: Call, publish: Callable[[], Bytes]
    ) -> Callable[[], list[Bytes]]:
        """Publish own messages; return a function that waits for those of others.

        These are views of other ranks' memory, valid until the next exchange.
        """
        self._require_usable(call)
        with self._interrupting():
            own = publish()

        def received() -> list[Bytes]:
            # A loss may have been found while this rank computed.
            self._require_usable(call)
            with self._interrupting(), watched(self.watch, call):
                return self._receive(call, own)

        return received

    def _publish_each(self, call: Call, sizes: Sequence[int], write: Write) -> Bytes:
        """Write and publish all messages; return the message to this rank itself."""
        self._number += 1
        turn, places, end = self._number % 2, {}, 0
        for step in range(1, self.size):  # each rank begins with a different one
            rank = (self.rank + step) % self.size
            places[rank] = end
            if sizes[rank] > INLINE_BYTES:
                end += -(-sizes[rank] // ALIGNMENT) * ALIGNMENT
        window = self._own.window(turn, end)
        for rank, place in places.items():
            message = np.empty(sizes[rank], np.uint8)
            if sizes[rank] > INLINE_BYTES:
                message = window[place : place + sizes[rank]]
            if message.size:
                write(rank, message)
            self._publish(call, rank, place, message)
        message = np.empty(sizes[self.rank], np.uint8)
        if message.size:
            write(self.rank, message)
        return message

    def _publish_all(self, call: Call, nbytes: int, write: WriteOnce) -> Bytes:
        """Write and publish one message for all; return the empty message to itself."""
        self._number += 1
        is_short = nbytes <= INLINE_BYTES
        window = self._own.window(self._number % 2, 0 if is_short else nbytes)
        message = np.empty(nbytes, np.uint8) if is_short else window[:nbytes]
        write(message)
        for step in range(1, self.size):
            self._publish(call, (self.rank + step) % self.size, 0, message)
        return NOTHING

    def _publish(self, call: Call, rank: int, place: int, message: Bytes) -> None:
        """Publish a message to a rank: in the window, or in its record if short."""
        turn, record = self._number % 2, called(call)
        # Plain stores: the number that is published behind them releases them.
        self._own.words[self._layout.offset(turn, rank)] = place
        self._own.control[self._layout.record(turn, rank)] = pack(record, message)
        self._peers.publish(rank, self._number)

    def _receive(self, call: Call, own: Bytes) -> list[Bytes]:
        """Wait for all ranks; return their messages if they have made the same call."""
        arrived, absent = self._peers.wait_for(self._number)
        records: dict[int, Record] = {}
        found = {self.rank: (own.size, own)}
        for rank, is_last in arrived.items():
            data = self._peers.record(rank, self._number, is_last)
            records[rank], message = unpack(data, rank)
            found[rank] = records[rank].nbytes, message
        require_same_call(self, call, records, absent)
        return [
            self._peers.message(rank, self._number, nbytes)
            if rank != self.rank and nbytes > INLINE_BYTES
            else message
            for rank, (nbytes, message) in sorted(found.items())
        ]

    def _report(self, refusal: DistributedError) -> None:
        text = str(refusal.got)
        self._publish_last(Record("failed", self.exchanges, text, rank=self.rank))

    def _publish_last(self, record: Record) -> None:
        """Publish the last record, once: others may be reading it from then on."""
        if self._has_published_last:
            return
        self._has_published_last = True
        self._own.control[self._layout.last_record] = pack(record, NOTHING)
        # Not 0, also before the first exchange.
        self._peers.publish_last(self._number + 1)


def _meet_watched(
    rank: int, size: int, files: Sequence[int], timeout: float, watch: Watching
) -> dict[int, Met]:
    """Connect with ranks that are all running, at a random name of rank 0.

    Raises
    ------
    WorkerLostError
        If a rank is lost meanwhile, at once.
    """
    if rank == 0:
        watch.offer(MEETING, f"the place {secrets.token_hex(16)}")
    place, limit = watch.await_offer(MEETING), max(timeout, CONNECT_S)
    calls = ConcurrentCalls("featgraph meeting")
    watch.when_lost(calls.release)
    try:
        return calls.run(lambda: meet(rank, size, place, files, limit))
    except Released:
        watch.raise_lost()
        raise
    finally:
        calls.close(0)


def _let_go_of_all() -> None:
    for engine in list(_open_engines):
        engine.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_all)

"""Ranks that are processes of one host, over memory that they share, without PyTorch.

In each exchange every rank writes a record for each other rank, and behind it, in a
window, what does not fit there; then it publishes a number. A rank that has seen the
numbers of all others reads their records, and takes their messages. Two windows take
turns: whoever tells something for the third time has heard that everyone has taken what
was told first. Whoever waits looks for some microseconds, then sleeps until a peer
rings, or has died.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from featgraph.distributed.engines.aside import Aside, Released
from featgraph.distributed.engines.calls import Call, mismatch
from featgraph.distributed.engines.meeting import Met, is_possible, meet
from featgraph.distributed.engines.messages import (
    NOTHING,
    Bytes,
    Finish,
    MessageEngine,
)
from featgraph.distributed.engines.peers import Peers, flags
from featgraph.distributed.engines.processes import (
    broken_off,
    failed,
    last_word,
    lost,
    require_usable,
)
from featgraph.distributed.engines.protocol import Read, Write
from featgraph.distributed.engines.records import (
    INLINE_BYTES,
    Record,
    called,
    pack,
    unpack,
)
from featgraph.distributed.engines.watching import (
    CONNECT_S,
    MEETING,
    Watching,
    watched,
)
from featgraph.distributed.engines.windows import ALIGNMENT, Layout, OwnMemory
from featgraph.errors import DistributedError

__all__ = ["SharedEngine"]

#: Those of this process, of which a forked child must let go.
_open_engines: weakref.WeakSet[SharedEngine] = weakref.WeakSet()


class SharedEngine(MessageEngine):
    """A rank that is a process, one of several of one host.

    Parameters
    ----------
    rank, size : int
        Its number, and how many there are.
    address : str
    port : int
        What the launcher has chosen for these ranks; nobody listens there.
    timeout : float
        Seconds that an exchange may wait for a rank.
    watch : Watching, optional
        What says which rank is lost, and when to wait no more. Ranks then meet at a
        place that rank 0 tells by it, and time alone ends no exchange.

    Raises
    ------
    DistributedError
        Where the system is not Linux, or the ranks do not find each other in time.
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
        super().__init__(rank, size)
        self.timeout = timeout
        if not is_possible():
            raise DistributedError(
                "ranks share memory on Linux only",
                fix="fg.distributed.init(engine='gloo')",
            )
        flags()  # which takes a second where it is not compiled yet
        self._layout = Layout(size)
        self._own = OwnMemory(self._layout)
        try:
            place = f"{address}, port {port}"
            if watch is None:
                met = meet(rank, size, place, self._own.files, timeout)
            else:
                met = _meet_watched(rank, size, self._own.files, timeout, watch)
        except BaseException:
            if watch is None:  # else a thread may still be about to hand it out
                self._own.close()
            raise
        self._peers = Peers(rank, self._layout, self._own, met, timeout, watch)
        self.watch = watch
        #: How often this rank has told the others something.
        self._told = 0
        self._process = os.getpid()
        self._refusal: DistributedError | None = None
        self._is_open = True
        self._has_said_last = False
        _open_engines.add(self)

    def close(self, error: BaseException | None = None) -> None:
        """Tell the other ranks that this one ends, and why if it fails."""
        if not self._is_open or self._process != os.getpid():
            return
        said = last_word(self.rank, self.exchanges, self._refusal, error)
        if said is not None:
            self._say_last(said)
        self.let_go()

    def let_go(self) -> None:
        """Close what leads to the others, without a word.

        A child that has been forked would keep them from seeing that this rank ends.
        """
        if self._is_open:
            self._is_open = False
            self._peers.close()
            self._own.close()

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        received = [NOTHING] * self.size

        def write(rank: int, out: Bytes) -> None:
            out[:] = messages[rank]

        def read(rank: int, message: Bytes) -> None:
            received[rank] = message.copy()

        finish = self._begin(call, [m.size for m in messages], write, read)

        def finished() -> list[Bytes]:
            finish()
            return received

        return finished

    def _begin(
        self, call: Call, sizes: Sequence[int], write: Write, read: Read
    ) -> Finish:
        return self._take(call, lambda: self._tell(call, sizes, write), read)

    def _begin_to_all(
        self, call: Call, nbytes: int, write: Callable[[Bytes], None], read: Read
    ) -> Finish:
        return self._take(call, lambda: self._tell_all(call, nbytes, write), read)

    def _take(self, call: Call, tell: Callable[[], Bytes], read: Read) -> Finish:
        """Tell the others what they are to take; return what reads what they tell."""
        self._require_usable(call)
        with _breaking_off(self):
            own = tell()

        def finish() -> None:
            self._require_usable(call)
            with _breaking_off(self):
                with watched(self.watch, call):
                    messages = self._hear(call, own)
                for rank, message in enumerate(messages):
                    read(rank, message)

        return finish

    def _require_usable(self, call: Call) -> None:
        require_usable(self.rank, call, self._process, self._refusal, self._is_open)
        if self.watch is not None:
            self.watch.raise_lost()

    def _tell(self, call: Call, sizes: Sequence[int], write: Write) -> Bytes:
        """Write what the others are to take; return the message to this rank itself."""
        self._told += 1
        turn, places, end = self._told % 2, {}, 0
        for step in range(1, self.size):  # each rank begins with another one
            rank = (self.rank + step) % self.size
            places[rank] = end
            if sizes[rank] > INLINE_BYTES:
                end += -(-sizes[rank] // ALIGNMENT) * ALIGNMENT
        window = self._own.window(turn, end)
        for rank, place in places.items():
            message = np.empty(sizes[rank], np.uint8)
            if sizes[rank] > INLINE_BYTES:
                message = window[place : place + sizes[rank]]
            write(rank, message)
            self._publish(call, rank, place, message)
        message = np.empty(sizes[self.rank], np.uint8)
        write(self.rank, message)
        return message

    def _tell_all(
        self, call: Call, nbytes: int, write: Callable[[Bytes], None]
    ) -> Bytes:
        """Write what all others are to take; return nothing, for this rank itself."""
        self._told += 1
        is_short = nbytes <= INLINE_BYTES
        window = self._own.window(self._told % 2, 0 if is_short else nbytes)
        message = np.empty(nbytes, np.uint8) if is_short else window[:nbytes]
        write(message)
        for step in range(1, self.size):
            self._publish(call, (self.rank + step) % self.size, 0, message)
        return NOTHING

    def _publish(self, call: Call, rank: int, place: int, message: Bytes) -> None:
        """Have a rank see a message, which is long and in the window, or short."""
        turn, said = self._told % 2, called(call)
        self._own.words[self._layout.offset(turn, rank)] = place
        self._own.control[self._layout.record(turn, rank)] = pack(said, message)
        self._peers.tell(rank, self._told)

    def _hear(self, call: Call, own: Bytes) -> list[Bytes]:
        """Return the messages of all ranks, where they have made this call, too."""
        heard, absent = self._peers.hear(self._told)
        calls, ended, found = {self.rank: call}, {}, {self.rank: (own.size, own)}
        # As the others read it, whatever its length.
        said = called(call)
        calls = {self.rank: unpack(pack(said, NOTHING), self.rank)[0].call}
        for rank, is_last in heard.items():
            data = self._peers.record(rank, self._told, is_last)
            record, message = unpack(data, rank)
            if record.kind == "failed":
                raise failed(record, self.size, told_by=rank)
            if record.kind == "ended":
                ended[rank] = record.number
            else:
                calls[rank] = record.call
            found[rank] = record.nbytes, message
        if absent:
            raise lost(absent, self.size, f"rank {self.rank}, at {call}")
        different = mismatch(calls, ended)
        if different is not None:
            raise different
        return [
            self._peers.message(rank, self._told, nbytes)
            if rank != self.rank and nbytes > INLINE_BYTES
            else message
            for rank, (nbytes, message) in sorted(found.items())
        ]

    def _say_last(self, record: Record) -> None:
        """Say the last word, once: others may be reading it from then on."""
        if self._has_said_last:
            return
        self._has_said_last = True
        self._own.control[self._layout.last_record] = pack(record, NOTHING)
        self._peers.say_last(self._told + 1)


@contextmanager
def _breaking_off(engine: SharedEngine) -> Iterator[None]:
    """Take no more calls behind an error, and tell the others of one of our own."""
    try:
        yield
    except DistributedError as error:
        engine._refusal = error
        raise
    except BaseException as error:  # an interrupt; out of memory
        engine._refusal = broken_off(engine.rank, error)
        text = str(engine._refusal.got)
        engine._say_last(Record("failed", engine.exchanges, text, rank=engine.rank))
        raise


def _meet_watched(
    rank: int, size: int, files: Sequence[int], timeout: float, watch: Watching
) -> dict[int, Met]:
    """Meet ranks that are all there, at a place that nobody else can know.

    Raises
    ------
    WorkerLostError
        Of a rank that is lost meanwhile, at once.
    """
    if rank == 0:
        watch.offer(MEETING, f"the place {secrets.token_hex(16)}")
    place, limit = watch.ask(MEETING), max(timeout, CONNECT_S)
    aside = Aside("featgraph meeting")
    watch.when_lost(aside.release)
    try:
        return aside.run(lambda: meet(rank, size, place, files, limit))
    except Released:
        watch.raise_lost()
        raise
    finally:
        aside.close(0)


def _let_go_of_all() -> None:
    for engine in list(_open_engines):
        engine.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_all)

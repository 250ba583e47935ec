"""The calls of an engine, on top of one exchange: every rank sends bytes to each.

`MessageEngine` is the base class of all engines: it implements the calls of `Engine`
by `_start`, which an engine defines.

`led` returns an engine for runs in which only rank 0 computes, because it has all
vertices of a graph. The other ranks need only the results that decide how a run
continues. Rank 0 sends several results at once, and does not wait for the other ranks.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import ArgumentError, RankMismatchError
from featgraph.ranks.engines.protocol import (
    Array,
    Begun,
    Call,
    Engine,
    Read,
    Traffic,
    Write,
    WriteOnce,
    ragged,
    sendable,
    whole,
)

__all__ = [
    "NOTHING",
    "Bytes",
    "Finish",
    "MessageEngine",
    "gather_texts",
    "hosts_of",
    "led",
    "reduce_number",
    "rows_like",
]


def host_of_process() -> str:
    """Return the name of the host on which the launcher has started this process.

    With `featgraph launch` it is the name in the hosts file, with torchrun the number
    of the node, else the system's host name. Several nodes of torchrun on one machine
    count as several hosts.
    """
    if "FEATGRAPH_HOST" in os.environ:
        return os.environ["FEATGRAPH_HOST"]
    if "GROUP_RANK" in os.environ:
        return f"node {os.environ['GROUP_RANK']}"
    return socket.gethostname()


def hosts_of(engine: Engine) -> npt.NDArray[np.int64]:
    """Return the number of each rank's host: int64, shape (P,); all ranks call it.

    Hosts are numbered in the order of their first ranks.
    """
    names = gather_texts(engine, engine.host, "hosts of ranks")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)


def gather_texts(engine: Engine, text: str, about: str) -> list[str]:
    """Return the texts of all ranks, by rank; all ranks call it."""
    own = np.frombuffer(text.encode(), np.uint8)
    return [bytes(one).decode() for one in engine.all_gather(own, about=about)]


def reduce_number(engine: Engine, number: int, operator: str, about: str) -> int:
    """Return a whole number, combined over all ranks; all ranks call it."""
    own = np.array([number], np.int64)
    return int(engine.all_reduce(own, operator, about=about)[0])


Bytes = npt.NDArray[np.uint8]

#: Operator -> ufunc, and the kinds of dtypes that it takes.
OPERATORS: dict[str, tuple[np.ufunc, str]] = {
    "sum": (np.add, "iufc"),
    "product": (np.multiply, "iufc"),
    "min": (np.minimum, "biuf"),
    "max": (np.maximum, "biuf"),
    "or": (np.bitwise_or, "biu"),
    "and": (np.bitwise_and, "biu"),
}
#: Larger arrays are combined by pieces, one on each rank, so that no rank receives more
#: than twice the bytes of an array; smaller ones on all ranks, in a single exchange.
WHOLE_BYTES = 1 << 16

#: An empty message.
NOTHING = np.empty(0, np.uint8)


#: Finishes an exchange that has begun: reads the messages of other ranks.
Finish = Callable[[], None]
#: Begins an exchange: writes the messages to other ranks.
Begin = Callable[[Call], Finish]


class MessageEngine(ABC):
    """Base class of engines, on top of one exchange of bytes; see `Engine`.

    Attributes
    ----------
    rank, size, host, traffic
        See `Engine`.
    exchanges : int
        Number of exchanges so far.
    pending : object or None
        The queue of rank 0's results: see `led`.
    waited_s : float
        Seconds spent in exchanges.
    hidden_s : float
        Seconds in which exchanges were in flight while this rank computed.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.host = host_of_process()
        self.traffic = Traffic.none(size)
        self.exchanges = 0
        self.waited_s = self.hidden_s = 0.0
        #: The exchange in flight.
        self._begun: Begun | None = None
        #: The queue of rank 0's results, if other ranks follow it.
        self.pending: _PendingResults | None = None
        self.given: list[str] = []

    @property
    def moved_s(self) -> float:
        """Seconds in which exchanges were in flight."""
        return self.waited_s + self.hidden_s

    def catch_up(self) -> None:
        """Send pending results of rank 0 to all ranks."""
        if self.pending is not None:
            self.pending.catch_up(self)

    def _next(self, text: str, about: str) -> Call:
        """Finish the exchange in flight, send pending results; return the next call."""
        if self._begun is not None:
            self._begun.finish()
        if self.pending is not None:
            self.pending.catch_up(self)
            self.given.clear()  # the other ranks make the same calls later
        given = "; ".join(self.given)
        self.given.clear()
        self.exchanges += 1
        return Call(self.exchanges, text, about, given)

    @abstractmethod
    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        """Begin to send a message to each rank.

        Returns a function that waits for the messages of all ranks and returns them;
        they belong to the caller. Sent messages are only read, and may share memory.
        Raises RankMismatchError on all ranks if their calls differ.
        """

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Combine the arrays of all ranks, entry by entry, in the order of ranks."""
        array = np.asarray(array)
        dtype, combine, text = _reduction(operator, array.dtype, array.shape)
        flat = np.asarray(array, dtype, order="C").reshape(-1)
        if flat.nbytes <= WHOLE_BYTES:
            parts = self._exchange(text, about, [flat.view(np.uint8)] * self.size)
            return _in_order(combine, parts, dtype).reshape(array.shape)
        pieces = np.array_split(flat, self.size)
        parts = self._exchange(text, about, [_bytes(p) for p in pieces])
        piece = _in_order(combine, parts, dtype)
        parts = self._exchange(text, about, [_bytes(piece)] * self.size)
        return np.concatenate(parts).view(dtype).reshape(array.shape)

    def all_gather(self, array: Array, *, about: str = "") -> list[Array]:
        """Return the arrays of all ranks, by rank."""
        array = sendable(array)
        text = f"all_gather({ragged(array)})"
        parts = self._exchange(text, about, [_bytes(array)] * self.size)
        return [rows_like(part, array) for part in parts]

    def all_to_allv(self, arrays: Sequence[Array], *, about: str = "") -> list[Array]:
        """Send an array to each rank, and return the received ones, by rank."""
        arrays = [sendable(array) for array in arrays]
        if len(arrays) != self.size:
            raise ArgumentError(
                "all_to_allv takes an array for each rank, itself included",
                got=f"{len(arrays)} arrays",
                expected=f"{self.size}",
            )
        kinds = list(dict.fromkeys(map(ragged, arrays)))
        if len(kinds) > 1:
            raise ArgumentError(
                "arrays for several ranks differ in more than their first size",
                got=" and ".join(kinds),
                fix="one dtype and one shape of rows: convert them, or send bytes",
            )
        text = f"all_to_allv({kinds[0]})"
        parts = self._exchange(text, about, [_bytes(array) for array in arrays])
        return [rows_like(part, arrays[0]) for part in parts]

    def broadcast(self, array: Array, root: int, *, about: str = "") -> Array:
        """Return the array of rank `root`."""
        array = sendable(array)
        if not 0 <= root < self.size:
            raise ArgumentError(
                "there is no such rank", got=f"root={root}", expected=f"< {self.size}"
            )
        text = f"broadcast({whole(array)} of rank {root})"
        message = _bytes(array) if self.rank == root else NOTHING
        parts = self._exchange(text, about, [message] * self.size)
        return parts[root].view(array.dtype).reshape(array.shape)

    def barrier(self, *, about: str = "") -> None:
        """Wait until all ranks have called it."""
        self._exchange("barrier()", about, [NOTHING] * self.size)

    def hand_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> None:
        """Send each rank a message, written and read in memory of the engine."""
        begin = partial(self._begin, sizes=sizes, write=write, read=read)
        self._in_place("hand_bytes()", about, sizes, begin).finish()

    def begin_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> Begun:
        """Begin to send each rank a message; return the exchange in flight."""
        begin = partial(self._begin, sizes=sizes, write=write, read=read)
        return self._in_place("begin_bytes()", about, sizes, begin)

    def hand_to_all(
        self, nbytes: int, write: WriteOnce, read: Read, *, about: str = ""
    ) -> None:
        """Send one message to all other ranks, which is written once."""
        sizes = [nbytes] * self.size
        begin = partial(self._begin_to_all, nbytes=nbytes, write=write, read=read)
        self._in_place("hand_to_all()", about, sizes, begin).finish()

    def _in_place(
        self, text: str, about: str, sizes: Sequence[int], begin: Begin
    ) -> Begun:
        """Begin a call with messages in memory of the engine, and count their bytes."""
        call, begun = self._next(text, about), time.perf_counter()
        finish = begin(call)
        self.waited_s += time.perf_counter() - begun
        for rank in range(self.size):
            if rank != self.rank:
                self.traffic.sent[rank] += sizes[rank]
        self._begun = _Begun(self, finish)
        return self._begun

    def _begin(
        self, call: Call, sizes: Sequence[int], write: Write, read: Read
    ) -> Finish:
        """Write the messages, and return the function that finishes the exchange.

        See `Engine.begin_bytes`. Overridden by engines whose ranks share memory, where
        messages are written in place.
        """
        messages = []
        for rank, size in enumerate(sizes):
            messages.append(np.empty(size, np.uint8))
            if size:
                write(rank, messages[rank])
        return self._reading(self._start(call, messages), read)

    def _begin_to_all(
        self, call: Call, nbytes: int, write: WriteOnce, read: Read
    ) -> Finish:
        """Write one message for all ranks: see `_begin`.

        The message of a rank to itself is empty.
        """
        message = np.empty(nbytes, np.uint8)
        write(message)
        messages = [message] * self.size
        messages[self.rank] = NOTHING
        return self._reading(self._start(call, messages), read)

    def _reading(self, received: Callable[[], list[Bytes]], read: Read) -> Finish:
        """Return a function that waits for messages, counts their bytes, reads them."""

        def finish() -> None:
            for rank, message in enumerate(received()):
                if rank != self.rank:
                    self.traffic.received[rank] += message.size
                if message.size:
                    read(rank, message)

        return finish

    def _exchange(
        self, text: str, about: str, messages: Sequence[Bytes]
    ) -> list[Bytes]:
        call, begun = self._next(text, about), time.perf_counter()
        received = self._start(call, messages)()
        self.waited_s += time.perf_counter() - begun
        self._count([one.nbytes for one in messages], [one.nbytes for one in received])
        return received

    def _count(self, sent: Sequence[int], received: Sequence[int]) -> None:
        """Count the bytes of an exchange, but those of the rank to itself."""
        for rank in range(self.size):
            if rank != self.rank:
                self.traffic.sent[rank] += sent[rank]
                self.traffic.received[rank] += received[rank]


class _Begun:
    """An exchange of an engine in flight: see `Begun`."""

    def __init__(self, engine: MessageEngine, finish: Finish) -> None:
        self._engine, self._finish = engine, finish

    def finish(self) -> None:
        """Wait for the messages of other ranks and read them, once."""
        engine = self._engine
        if engine._begun is self:  # else it is finished
            engine._begun, begun = None, time.perf_counter()
            self._finish()
            engine.waited_s += time.perf_counter() - begun


# Supersteps repeat a few reductions: their checks and texts are made once.
@lru_cache(maxsize=256)
def _reduction(
    operator: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[np.dtype[Any], np.ufunc, str]:
    """Return the dtype that is sent, the combine, and the text of an `all_reduce`."""
    sent = sendable(np.empty(0, dtype)).dtype
    if operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        raise ArgumentError("unknown operator", got=repr(operator), expected=known)
    combine, kinds = OPERATORS[operator]
    if dtype.kind not in kinds:
        raise ArgumentError(
            f"{operator} is not defined for this dtype",
            got=f"{dtype}",
            fix="counts of booleans are sums of integers: array.astype(np.int64)",
        )
    return sent, combine, f"all_reduce({operator} of {sent}{list(shape)})"


def _in_order(combine: np.ufunc, parts: Sequence[Bytes], dtype: np.dtype[Any]) -> Array:
    """Combine messages from first to last, in their dtype."""
    found: Array = parts[0].view(dtype)
    for part in parts[1:]:
        found = combine(found, part.view(dtype))
    return found


def _bytes(array: Array) -> Bytes:
    """Return a view of an array in C order as bytes."""
    return array.reshape(-1).view(np.uint8)


def rows_like(message: Bytes, like: Array) -> Array:
    """Return a view of bytes as rows with the dtype and shape of an array's rows."""
    return message.view(like.dtype).reshape(-1, *like.shape[1:])


#: Most results that rank 0 collects, and most seconds since the first of them, before
#: it sends them: other ranks should not wait longer than for an ordinary exchange.
MOST_RESULTS, MOST_S = 256, 0.25


class _PendingResults:
    """The queue of results: on rank 0 those not sent yet, elsewhere those not used yet.

    An engine has one queue, since its exchanges have one order.
    """

    def __init__(self) -> None:
        self._results: deque[tuple[str, Array]] = deque()
        self._since = 0.0
        self._is_sending = False

    def result(self, engine: MessageEngine, text: str, array: Array) -> Array:
        """Return the next result of rank 0; on rank 0 it is `array`."""
        if engine.rank:
            if not self._results:
                self._hand_over(engine)
            known, found = self._results.popleft()
            if known != text:
                raise _mismatch_with_rank_0(engine.rank, f"calls {text}", known)
            return found
        now = time.monotonic()
        if not self._results:
            self._since = now
        # Copied: the caller may change its array before it is sent.
        self._results.append((text, array.copy()))
        if len(self._results) >= MOST_RESULTS or now - self._since > MOST_S:
            self._hand_over(engine)
        return array.copy()

    def catch_up(self, engine: MessageEngine) -> None:
        """Send all results to other ranks, before any other exchange."""
        # Sending is an exchange, and each exchange catches up first.
        if self._results and not self._is_sending:
            if engine.rank:
                does = "makes another call"
                raise _mismatch_with_rank_0(engine.rank, does, self._results[0][0])
            self._hand_over(engine)

    def _hand_over(self, engine: MessageEngine) -> None:
        self._is_sending = True
        try:
            message = NOTHING if engine.rank else _packed(self._results)
            gathered = engine.all_gather(message, about="results of rank 0")
        finally:
            self._is_sending = False
        self._results.clear()
        if engine.rank:
            self._results.extend(_unpacked(gathered[0]))


def led(engine: Engine) -> Engine:
    """Return an engine for runs in which only rank 0 computes.

    Its `all_reduce` returns the array of rank 0; arrays of other ranks are ignored. All
    other calls are those of `engine`, after pending results of rank 0 have been sent.
    """
    if not isinstance(engine, MessageEngine):
        return engine
    return cast(Engine, _LedEngine(engine))


class _LedEngine:
    """An engine for runs in which only rank 0 computes: see `led`."""

    def __init__(self, engine: MessageEngine) -> None:
        if engine.pending is None:
            engine.pending = _PendingResults()
        self._engine, self._pending = engine, engine.pending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Return the array of rank 0."""
        own = sendable(array)
        *_, text = _reduction(operator, own.dtype, own.shape)
        text = f"{text}, for {about}" if about else text
        return self._pending.result(self._engine, text, own)


#: The length of the JSON header that precedes the arrays of a message.
_HEAD = struct.Struct("<q")


def _packed(results: Iterable[tuple[str, Array]]) -> Bytes:
    heads = [(text, array.dtype.str, array.shape) for text, array in results]
    head = json.dumps(heads).encode()
    parts = [_HEAD.pack(len(head)), head, *(array.tobytes() for _, array in results)]
    return np.frombuffer(b"".join(parts), np.uint8)


def _unpacked(message: Bytes) -> Iterator[tuple[str, Array]]:
    data = message.tobytes()
    at = _HEAD.size + _HEAD.unpack_from(data)[0]
    for text, dtype, shape in json.loads(data[_HEAD.size : at]):
        count = prod(shape)
        array = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
        at += array.nbytes
        yield text, array


def _mismatch_with_rank_0(rank: int, does: str, known: str) -> RankMismatchError:
    return RankMismatchError(
        f"rank {rank} went another way than rank 0",
        rank=rank,
        got=f"rank 0 has called {known}; rank {rank} {does}",
        expected="the same calls in the same order on every rank",
        fix="make the same calls on all ranks: no condition may depend on the rank, "
        "its own data or a clock",
    )

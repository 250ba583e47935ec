"""The calls of an engine, on top of one exchange: every rank sends bytes to each."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import ArgumentError
from featgraph.ranks.engines.calls import Call, lent, ragged, whole
from featgraph.ranks.engines.hosts import host_of_process
from featgraph.ranks.engines.protocol import (
    Array,
    Begun,
    Read,
    Traffic,
    Write,
)

__all__ = ["NOTHING", "Bytes", "Finish", "MessageEngine"]

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

NOTHING = np.empty(0, np.uint8)


#: Finishes an exchange that has begun: reads the messages of other ranks.
Finish = Callable[[], None]


class Begin(Protocol):
    """A function that writes the messages of a call, and returns its `Finish`."""

    def __call__(self, call: Call, /, *, read: Read) -> Finish: ...


class MessageEngine(ABC):
    """Base class of engines, on top of one exchange of bytes; see `Engine`.

    Attributes
    ----------
    rank, size, host, traffic
        See `Engine`.
    exchanges : int
        Number of exchanges so far.
    ahead : object or None
        The queue of rank 0's results: see `led`.
    waited_s : float
        Seconds spent in exchanges.
    moved_s : float
        Seconds in which exchanges were in flight.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.host = host_of_process()
        self.traffic = Traffic.none(size)
        self.exchanges = 0
        self.waited_s = self.moved_s = 0.0
        #: The exchange in flight, or the last one.
        self._begun: Begun = _Begun(self, _nothing)
        #: The queue of rank 0's results, if other ranks follow it.
        self.ahead: Any = None
        self.given: list[str] = []

    def catch_up(self) -> None:
        """Send pending results of rank 0 to all ranks."""
        if self.ahead is not None:
            self.ahead.catch_up()

    def _next(self, text: str, about: str) -> Call:
        """Finish the exchange in flight, send pending results; return the next call."""
        self._begun.finish()
        self.catch_up()
        self.exchanges += 1
        # If other ranks follow rank 0, they make the same calls later.
        given = "" if self.ahead is not None else "; ".join(self.given)
        self.given.clear()
        return Call(self.exchanges, text, about, given)

    @abstractmethod
    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        """Begin to send a message to each rank; return a function for those received.

        Messages are only read, and may share memory; the returned ones belong to the
        caller. Raises RankMismatchError on all ranks if their calls differ.
        """

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Combine the arrays of all ranks, entry by entry, in the order of ranks."""
        array = lent(array)
        combine = _combine_of(operator, array)
        text = f"all_reduce({operator} of {whole(array)})"
        if array.nbytes <= WHOLE_BYTES:
            parts = self._exchange(text, about, [_bytes(array)] * self.size)
            arrays = [part.view(array.dtype) for part in parts]
            return _in_order(combine, arrays).reshape(array.shape)
        pieces = np.array_split(array.reshape(-1), self.size)
        parts = self._exchange(text, about, [_bytes(p) for p in pieces])
        piece = _in_order(combine, [part.view(array.dtype) for part in parts])
        parts = self._exchange(text, about, [_bytes(piece)] * self.size)
        return np.concatenate(parts).view(array.dtype).reshape(array.shape)

    def all_gather(self, array: Array, *, about: str = "") -> list[Array]:
        """Return the arrays of all ranks, by rank."""
        array = lent(array)
        text = f"all_gather({ragged(array)})"
        parts = self._exchange(text, about, [_bytes(array)] * self.size)
        return [_rows(part, array) for part in parts]

    def all_to_allv(self, arrays: Sequence[Array], *, about: str = "") -> list[Array]:
        """Send an array to each rank, and return the received ones, by rank."""
        arrays = [lent(array) for array in arrays]
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
        return [_rows(part, arrays[0]) for part in parts]

    def broadcast(self, array: Array, root: int, *, about: str = "") -> Array:
        """Return the array of rank `root`."""
        array = lent(array)
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
        begin = partial(self._begin, sizes=sizes, write=write)
        self._in_place("hand_bytes()", about, sizes, read, begin).finish()

    def begin_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> Begun:
        """Begin to send each rank a message; return the exchange in flight."""
        begin = partial(self._begin, sizes=sizes, write=write)
        return self._in_place("begin_bytes()", about, sizes, read, begin)

    def hand_to_all(
        self,
        nbytes: int,
        write: Callable[[Bytes], None],
        read: Read,
        *,
        about: str = "",
    ) -> None:
        """Send one message to all other ranks, which is written once."""

        def read_others(rank: int, message: Bytes) -> None:
            if rank != self.rank:
                read(rank, message)

        sizes = [nbytes] * self.size
        begin = partial(self._begin_to_all, nbytes=nbytes, write=write)
        self._in_place("hand_to_all()", about, sizes, read_others, begin).finish()

    def _in_place(
        self, text: str, about: str, sizes: Sequence[int], read: Read, begin: Begin
    ) -> Begun:
        """Begin a call with messages in memory of the engine, and count their bytes."""

        def read_counted(rank: int, message: Bytes) -> None:
            if rank != self.rank:
                self.traffic.received[rank] += message.nbytes
            read(rank, message)

        call, begun = self._next(text, about), time.perf_counter()
        finish = begin(call, read=read_counted)
        _spend(self, begun)
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
            write(rank, messages[rank])
        return _reading(self._start(call, messages), read)

    def _begin_to_all(
        self, call: Call, nbytes: int, write: Callable[[Bytes], None], read: Read
    ) -> Finish:
        """Write one message for all ranks: see `_begin`.

        The message of a rank to itself is empty.
        """
        message = np.empty(nbytes, np.uint8)
        write(message)
        messages = [message] * self.size
        messages[self.rank] = NOTHING
        return _reading(self._start(call, messages), read)

    def _exchange(
        self, text: str, about: str, messages: Sequence[Bytes]
    ) -> list[Bytes]:
        call, begun = self._next(text, about), time.perf_counter()
        received = self._start(call, messages)()
        _spend(self, begun)
        for rank in range(self.size):
            if rank != self.rank:
                self.traffic.sent[rank] += messages[rank].nbytes
                self.traffic.received[rank] += received[rank].nbytes
        return received


class _Begun:
    """An exchange of an engine in flight: see `Begun`."""

    def __init__(self, engine: MessageEngine, finish: Finish) -> None:
        self._engine = weakref.ref(engine)
        self._finish = finish

    def finish(self) -> None:
        """Wait for the messages of other ranks and read them, once."""
        finish, self._finish = self._finish, _nothing
        engine, begun = self._engine(), time.perf_counter()
        if engine is not None and finish is not _nothing:
            finish()
            _spend(engine, begun)


def _reading(received: Callable[[], list[Bytes]], read: Read) -> Finish:
    """Return a function that waits for messages, and reads them."""

    def finish() -> None:
        for rank, message in enumerate(received()):
            read(rank, message)

    return finish


def _nothing() -> None:
    """Finish an exchange that is finished already."""


def _spend(engine: MessageEngine, begun: float) -> None:
    """Add the seconds since `begun` to the times of an engine."""
    seconds = time.perf_counter() - begun
    engine.waited_s += seconds
    engine.moved_s += seconds


def _combine_of(operator: str, array: Array) -> np.ufunc:
    if operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        raise ArgumentError("unknown operator", got=repr(operator), expected=known)
    combine, kinds = OPERATORS[operator]
    if array.dtype.kind not in kinds:
        raise ArgumentError(
            f"{operator} is not defined for this dtype",
            got=f"{array.dtype}",
            fix="counts of booleans are sums of integers: array.astype(np.int64)",
        )
    return combine


def _in_order(combine: np.ufunc, arrays: Sequence[Array]) -> Array:
    """Combine arrays from first to last, in their dtype."""
    return np.asarray(reduce(combine, arrays))


def _bytes(array: Array) -> Bytes:
    """Return a view of an array in C order as bytes."""
    return array.reshape(-1).view(np.uint8)


def _rows(message: Bytes, like: Array) -> Array:
    """Return a view of bytes as rows with the dtype and shape of an array's rows."""
    return message.view(like.dtype).reshape(-1, *like.shape[1:])

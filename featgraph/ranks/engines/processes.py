"""Engines whose ranks are processes: base class, records, errors, blocking calls.

A record is a header that a process sends before each message, with its kind, the call,
and the number of bytes that follow. Its size is fixed, so that ranks with different
calls can still read each other's records. Short messages are stored within the record,
and need no second transfer.

`ConcurrentCalls` makes blocking calls on a thread that can be abandoned. Gloo blocks
within a transfer, and not every failure ends the wait: a transfer that had begun when
its connection broke is waited for until the timeout.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DistributedError, RankMismatchError, WorkerLostError
from featgraph.ranks.engines.failures import Watching
from featgraph.ranks.engines.messages import NOTHING, Bytes, MessageEngine
from featgraph.ranks.engines.protocol import Call, mismatch

__all__ = [
    "INLINE_BYTES",
    "RECORD_BYTES",
    "ConcurrentCalls",
    "ProcessEngine",
    "Record",
    "Released",
    "called",
    "last_record",
    "pack",
    "require_same_call",
    "unpack",
]

#: Always the same, so that ranks whose calls differ read each other's records.
RECORD_BYTES = 512
#: Messages of at most so many bytes are stored within their record.
INLINE_BYTES = 192

#: The first bytes of a record; they end with the version of the protocol.
_MAGIC = b"fgr2"
#: Magic, kind, number, bytes of the message, failed rank, bytes of the texts.
_HEAD = struct.Struct("<4sBqqiH")
_TEXT_BYTES = RECORD_BYTES - INLINE_BYTES - _HEAD.size
_KINDS = ("call", "ended", "failed")


@dataclass(frozen=True)
class Record:
    """A header sent from one rank to another.

    Attributes
    ----------
    kind : str
        "call"; "ended": the rank has ended; "failed": `rank` has failed.
    number : int
        Number of the rank's exchanges, this one included.
    text, about, given : str
        Of a call: see `Call`. Of a failure, `text` is the reason.
    rank : int
        The rank that failed first, else -1.
    nbytes : int
        Bytes of the message with this record.
    """

    kind: str
    number: int
    text: str = ""
    about: str = ""
    rank: int = -1
    nbytes: int = 0
    given: str = ""

    @property
    def call(self) -> Call:
        """The call of this record."""
        return Call(self.number, self.text, self.about, self.given)


def called(call: Call) -> Record:
    """Return the record of a call."""
    return Record("call", call.number, call.text, call.about, given=call.given)


def pack(record: Record, message: Bytes) -> Bytes:
    """Return a record as bytes, with the message if it is short."""
    encoded = "\0".join([record.text, record.about, record.given]).encode()
    if len(encoded) > _TEXT_BYTES:
        # Long texts that differ must stay different.
        digest = b"... " + hashlib.sha256(encoded).hexdigest()[:16].encode()
        cut = encoded[: _TEXT_BYTES - len(digest)].decode(errors="ignore").encode()
        encoded = cut + digest
    kind = _KINDS.index(record.kind)
    head = _HEAD.pack(
        _MAGIC, kind, record.number, message.size, record.rank, len(encoded)
    )
    out = np.zeros(RECORD_BYTES, np.uint8)
    out[: _HEAD.size + len(encoded)] = np.frombuffer(head + encoded, np.uint8)
    if message.size <= INLINE_BYTES:
        out[RECORD_BYTES - INLINE_BYTES :][: message.size] = message
    return out


def unpack(data: Bytes, peer: int) -> tuple[Record, Bytes]:
    """Return the record of a rank, and its message if that is stored in the record.

    Raises DistributedError if the bytes are no record.
    """
    magic, kind, number, nbytes, rank, length = _HEAD.unpack(bytes(data[: _HEAD.size]))
    if magic != _MAGIC or kind >= len(_KINDS) or nbytes < 0 or length > _TEXT_BYTES:
        raise DistributedError(
            f"a record from rank {peer} cannot be read",
            got=f"{bytes(data[:8])!r}",
            expected=f"{_MAGIC!r}",
            fix="start all ranks with one version of featgraph, on a port of their own",
        )
    texts = bytes(data[_HEAD.size : _HEAD.size + length]).decode(errors="replace")
    text, about, given = [*texts.split("\0"), "", ""][:3]
    inline = data[RECORD_BYTES - INLINE_BYTES :]
    message = inline[: nbytes if nbytes <= INLINE_BYTES else 0].copy()
    return Record(_KINDS[kind], number, text, about, rank, nbytes, given), message


class ProcessEngine(MessageEngine):
    """Base class of the engines of ranks that are processes.

    Parameters
    ----------
    rank, size : int
        The rank, and the number of ranks.
    timeout : float
        Limit of waits, in seconds.
    watch : Watching, optional
        The watch of lost ranks.
    """

    def __init__(
        self, rank: int, size: int, timeout: float, watch: Watching | None
    ) -> None:
        super().__init__(rank, size)
        self.timeout, self.watch = timeout, watch
        self._process = os.getpid()
        #: The error that has disabled the engine.
        self._refusal: DistributedError | None = None
        self._is_open = True

    def _require_usable(self, call: Call) -> None:
        """Raise an error if the engine is closed or failed, or a rank was lost.

        Raises
        ------
        DistributedError
            If it is closed, or of another process; or the error of an earlier call.
        WorkerLostError
            If the watch reports a lost rank.
        """
        if self._process != os.getpid():
            raise DistributedError(
                f"a forked child uses the engine of rank {self.rank}",
                got=str(call),
                fix="exchange in the process that called fg.distributed.init(); start "
                "others by the method 'spawn'",
            )
        if self._refusal is not None:
            # A copy for each call: an exception object has one traceback.
            raise copy.copy(self._refusal)
        if not self._is_open:
            raise DistributedError(f"rank {self.rank} has been closed", got=str(call))
        if self.watch is not None:
            self.watch.raise_lost()

    @contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Disable the engine after an error in the block."""
        try:
            yield
        except DistributedError as error:
            self._refusal = error
            raise
        except BaseException as error:  # an interrupt; out of memory
            self._refusal = DistributedError(
                f"an exchange of rank {self.rank} was interrupted",
                got=f"{type(error).__name__}: {error}",
            )
            self._report(self._refusal)
            raise

    def _report(self, refusal: DistributedError) -> None:
        """Send an interrupt of this rank to the others; by default, `close` does."""


def _lost(why: Mapping[int, str], size: int, where: str) -> WorkerLostError:
    """Return the error for lost ranks, with the reason of each; it names the first."""
    rank, got = next(iter(why.items()))
    others = ", ".join(str(r) for r in why if r != rank)
    return WorkerLostError(
        f"rank {rank} of {size} was lost"
        + (f"; no record came from {others}" if others else ""),
        rank=rank,
        where=where,
        got=got,
        fix=f"see the last output of rank {rank}; if it was still computing, "
        "pass more seconds as fg.distributed.init(timeout=)",
    )


def _failed(record: Record, size: int, reported_by: int) -> WorkerLostError:
    """Return the error for a failed rank, as reported by rank `reported_by`."""
    by = "" if reported_by == record.rank else f", as rank {reported_by} found"
    return WorkerLostError(
        f"rank {record.rank} of {size} failed{by}", rank=record.rank, got=record.text
    )


def require_same_call(
    engine: ProcessEngine,
    call: Call,
    records: Mapping[int, Record],
    absent: Mapping[int, str],
) -> None:
    """Raise an error unless all ranks have made the same call.

    Parameters
    ----------
    engine : ProcessEngine
        The engine of this rank.
    call : Call
        Its call.
    records : mapping
        The records of other ranks.
    absent : mapping
        The reason of each lost rank.

    Raises
    ------
    WorkerLostError
        If a rank has failed or is lost.
    RankMismatchError
        If calls differ.
    """
    rank, size = engine.rank, engine.size
    for other, record in records.items():
        if record.kind == "failed":
            raise _failed(record, size, other)
    if absent:
        raise _lost(absent, size, f"rank {rank}, at {call}")
    # The call as other ranks read it: long texts are cut.
    calls = {rank: unpack(pack(called(call), NOTHING), rank)[0].call}
    calls |= {r: one.call for r, one in records.items() if one.kind == "call"}
    ended = {r: one.number for r, one in records.items() if one.kind == "ended"}
    different = mismatch(calls, ended)
    if different is not None:
        raise different


def last_record(engine: ProcessEngine, error: BaseException | None) -> Record | None:
    """Return the last record of a rank; None if all ranks have seen its error.

    `error` is the one that ends the process, if any.
    """
    refusal = engine._refusal
    if isinstance(refusal, RankMismatchError):
        return None
    if isinstance(refusal, WorkerLostError) and refusal.rank is not None:
        text = str(refusal.got)
        return Record("failed", engine.exchanges, text, rank=refusal.rank)
    cause = refusal or error
    if cause is None:
        return Record("ended", engine.exchanges)
    what = cause.what if isinstance(cause, DistributedError) else str(cause)
    text = f"{type(cause).__name__}: {what}"
    return Record("failed", engine.exchanges, text, rank=engine.rank)


_T = TypeVar("_T")


class Released(Exception):
    """The wait for a call was abandoned; its thread may block in it forever."""


class ConcurrentCalls:
    """A thread that makes blocking calls, one at a time.

    The thread that waits for a result can be interrupted, and released by another one.

    Parameters
    ----------
    name : str
        The name of the thread, which is started by the first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._requests: SimpleQueue[tuple[int, Callable[[], Any]] | None] = (
            SimpleQueue()
        )
        #: Number, result and error of each finished call; None ends the wait.
        self._results: SimpleQueue[tuple[int, Any, BaseException | None] | None]
        self._results = SimpleQueue()
        self._numbers = itertools.count()
        self._is_released = False

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function on the thread; return its result, or raise its error.

        Raises
        ------
        Released
            If `release` has been called, before or during the call.
        """
        if threading.current_thread() is self._thread:  # within another call
            return function()
        return self.result(self.begin(function))  # type: ignore[no-any-return]

    def begin(self, function: Callable[[], Any]) -> int:
        """Begin to call a function; return the number of the call for `result`."""
        if self._is_released:
            raise Released
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name=self._name, daemon=True
            )
            self._thread.start()
        number = next(self._numbers)
        self._requests.put((number, function))
        return number

    def result(self, begun: int) -> Any:
        """Return the result of the last call begun by `begin`, or raise its error."""
        while (answer := self._results.get()) is not None:
            number, result, error = answer
            if number == begun:  # else of a call whose wait was interrupted
                if error is not None:
                    raise error
                return result
        raise Released

    def release(self) -> None:
        """Make present and later calls of `run` raise Released; from any thread."""
        self._is_released = True
        self._results.put(None)

    def close(self, seconds: float) -> None:
        """End the thread, and wait for it for at most `seconds`.

        A thread in a call that does not return is abandoned.
        """
        self.release()
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Make one call, and keep no reference to it: it may have large arrays."""
        request = self._requests.get()
        if request is None:
            return False
        number, function = request
        try:
            self._results.put((number, function(), None))
        except BaseException as error:  # raised by `result`
            self._results.put((number, None, error))
        return True

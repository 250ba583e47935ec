"""Several ranks in one process, with a thread each, one of which runs at a time.

Ranks run in order, each until its next exchange. When the last one has reached its
exchange, messages are copied, and the first continues. So runs are reproducible,
whatever the scheduling of threads. A run takes the time of all ranks together: loopback
is for tests, and to try how a program or a graph behaves on several ranks.

`run_ranks` starts the ranks, and `_Baton` passes control between their threads.
`NullEngine` is the engine of a single rank; `current_engine` returns the engine of the
calling rank.
"""

from __future__ import annotations

import contextvars
import copy
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import numpy as np

from featgraph.base.arguments import checked_arguments, require_integer, shown
from featgraph.base.errors import ArgumentError, DistributedError, WorkerLostError
from featgraph.base.interrupts import deferred_interrupts
from featgraph.ranks.engines.messages import Bytes, MessageEngine
from featgraph.ranks.engines.protocol import (
    Call,
    Engine,
    GpuArray,
    GpuMessages,
    bytes_of,
    mismatch,
)

__all__ = [
    "NullEngine",
    "current_engine",
    "engine_of_context",
    "engine_of_process",
    "is_begun",
    "run_ranks",
]


class NullEngine(MessageEngine):
    """The engine of a single rank: every call returns the rank's own arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import featgraph as fg
    >>> engine = fg.distributed.NullEngine()
    >>> engine.all_reduce(np.array([1, 2]), "sum")
    array([1, 2])
    """

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        return lambda: [messages[0].copy()]

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return True: a single rank sends no arrays."""
        return True

    def hand_over(self, messages: GpuMessages) -> list[GpuArray | None]:
        """Return the arrays themselves: see `GpuEngine`."""
        return list(messages.arrays)


#: The engine of a loopback rank, if several ranks run in one process.
engine_of_context: ContextVar[Engine] = ContextVar("featgraph_engine")

#: The engine made by `init`, if it was called, for all threads.
engine_of_process: list[Engine] = []

#: The engine outside of `run_ranks` and before `init`.
_ALONE = NullEngine()


def is_begun() -> bool:
    """Whether `init` was called, or this code runs on a loopback rank."""
    return bool(engine_of_process) or engine_of_context.get(None) is not None


def current_engine() -> Engine:
    """Return the engine of the current rank.

    Within `run_ranks`, it is the engine of the calling loopback rank; after `init`, the
    engine of the process; else an engine of a single rank.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.distributed.current_engine().size
    1
    >>> fg.distributed.run_ranks(2, lambda e: fg.distributed.current_engine() is e)
    [True, True]
    """
    of_process = engine_of_process[0] if engine_of_process else _ALONE
    return engine_of_context.get(of_process)


_R = TypeVar("_R")
#: Most ranks of a process, each of which has a thread.
_MOST = 1 << 10


@checked_arguments
def run_ranks(
    size: int, function: Callable[[Engine], _R], *, hosts: Sequence[str] | None = None
) -> list[_R]:
    """Run a function on ranks of this process, and return their results by rank.

    Each rank has a thread; one thread runs at a time, up to its next exchange. Within
    the function, `current_engine` returns the rank's engine.

    Parameters
    ----------
    size : int
        Number of ranks, 1 to 1024.
    function : callable
        Takes the engine of its rank.
    hosts : sequence of str, optional
        A host name for each rank, to simulate ranks of several hosts. Default: this
        host.

    Returns
    -------
    list
        The result of the function on each rank.

    Raises
    ------
    ArgumentError
        If `size`, `function` or the number of hosts is invalid.
    Exception
        The error that the function raised on a rank, with a note that names the rank.
        All other ranks raise `WorkerLostError` in their exchanges.
    RankMismatchError
        On all ranks, if their calls differ.
    KeyboardInterrupt
        After Ctrl-C, when all ranks have reached an exchange and ended there; at once
        after a second one.

    Examples
    --------
    >>> import numpy as np
    >>> import featgraph as fg
    >>> def total(engine):
    ...     return engine.all_reduce(np.array([engine.rank, 1]), "sum").tolist()
    >>> fg.distributed.run_ranks(3, total)
    [[3, 3], [3, 3], [3, 3]]
    """
    require_integer("size", size, 1, _MOST, error=ArgumentError)
    if not callable(function):
        raise ArgumentError(
            "not a function",
            where="function=",
            got=shown(function),
            expected="a function of the engine of a rank",
        )
    is_list = isinstance(hosts, Sequence) and not isinstance(hosts, str | bytes)
    if hosts is not None and not (is_list and len(hosts) == size):
        raise ArgumentError(
            "hosts= does not name one host per rank",
            where="hosts=",
            got=shown(hosts),
            expected=f"{size}, one a rank",
        )
    baton = _Baton(size)
    results: dict[int, _R] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        engine = _LoopbackEngine(rank, size, baton)
        if hosts is not None:
            engine.host = hosts[rank]
        engine_of_context.set(engine)
        try:
            baton.wait(rank)
            results[rank] = function(engine)
            engine.catch_up()
        except BaseException as error:
            errors[rank] = error
        baton.end(rank, engine.exchanges, errors.get(rank))

    _run_threads(run, baton)
    if errors:
        raise errors[baton.failed if baton.failed in errors else min(errors)]
    return [results[rank] for rank in range(size)]


def _run_threads(run: Callable[[int], None], baton: _Baton) -> None:
    """Start a thread for each rank, pass the baton to the first, and wait for all."""
    try:
        with deferred_interrupts():
            for rank in range(baton.size):
                # The context has NumPy's error state, among others.
                context = contextvars.copy_context()
                threading.Thread(
                    target=context.run,
                    args=(run, rank),
                    name=f"featgraph rank {rank}",
                    daemon=True,
                ).start()
            baton.begin()
        _wait(baton.done)
    except BaseException as error:
        baton.refusal = KeyboardInterrupt()
        if isinstance(error, KeyboardInterrupt):
            _wait(baton.done)
        raise


def _wait(event: threading.Event) -> None:
    """Wait for an event, with a timeout so that interrupts are handled.

    An interrupt just before a wait does not end it: Python handles it after the wait.
    """
    while not event.wait(0.1):
        pass


class _LoopbackEngine(MessageEngine):
    """The engine of one of several ranks in this process."""

    #: Ranks run one at a time, so no kernel may wait for launches of a later rank.
    takes_turns = True

    def __init__(self, rank: int, size: int, baton: _Baton) -> None:
        super().__init__(rank, size)
        self._baton = baton
        self._thread = threading.get_ident()

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return True: ranks share a GPU."""
        return True

    def hand_over(self, messages: GpuMessages) -> list[GpuArray | None]:
        """Exchange arrays of the GPU that all ranks share: see `GpuEngine`.

        Launches of all ranks on one stream run in the order of the launches.
        """
        arrays, about = messages.arrays, messages.about
        call = self._next("hand_over(arrays of a GPU)", about)
        begun = time.perf_counter()
        received = self._start(call, arrays)()
        self.waited_s += time.perf_counter() - begun
        self._count(list(map(bytes_of, arrays)), list(map(bytes_of, received)))
        return received

    def _start(self, call: Call, messages: Sequence[Any]) -> Callable[[], list[Any]]:
        is_own = threading.get_ident() == self._thread
        if not is_own or self.rank in self._baton.ended:
            raise DistributedError(
                f"the engine of rank {self.rank} is used outside of its rank",
                got=str(call),
                expected="a call in the thread, and before the end, of the function "
                "that run_ranks called with it",
                fix="take fg.distributed.current_engine() where it is used",
            )
        return partial(self._baton.swap, self.rank, call, messages)


class _Baton:
    """The running rank, the calls of all ranks, and the error that ends them.

    Only the rank with the baton uses it, but for `refusal` after Ctrl-C.

    Attributes
    ----------
    size : int
        Number of ranks.
    done : threading.Event
        Set when all ranks have ended.
    ended : dict
        Number of exchanges of each rank that has ended.
    failed : int or None
        The rank that failed first.
    refusal : BaseException or None
        The error that every later exchange raises.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.done = threading.Event()
        self.ended: dict[int, int] = {}
        self.failed: int | None = None
        self.refusal: BaseException | None = None
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._calls: dict[int, Call] = {}
        self._sent: dict[int, Sequence[Any]] = {}
        self._received: dict[int, list[Any]] = {}

    def begin(self) -> None:
        """Pass the baton to the first rank."""
        self._turns[0].release()

    def wait(self, rank: int) -> None:
        """Wait until a rank has the baton."""
        self._turns[rank].acquire()
        if self.refusal is not None:
            # A copy for each thread: an exception object has one traceback.
            raise copy.copy(self.refusal)

    def swap(self, rank: int, call: Call, messages: Sequence[Any]) -> list[Any]:
        """Wait until all ranks reach an exchange; return the messages to this rank."""
        self._calls[rank], self._sent[rank] = call, messages
        self._pass_on(rank)
        self.wait(rank)
        return self._received.pop(rank)

    def end(self, rank: int, exchanges: int, error: BaseException | None) -> None:
        """Continue without a rank, which has returned or failed."""
        self.ended[rank] = exchanges
        if error is not None and self.refusal is None:
            self.failed = rank
            error.add_note(f"on rank {rank} of {self.size}")
            self.refusal = WorkerLostError(
                f"rank {rank} of {self.size} failed",
                rank=rank,
                got=f"{type(error).__name__}: {error}",
            )
        self._pass_on(rank)

    def _pass_on(self, rank: int) -> None:
        """Pass the baton to the next rank; after the last one, to the first."""
        for other in [*range(rank + 1, self.size), *range(rank + 1)]:
            if other == 0:
                self._deliver()
            if other not in self.ended:
                self._turns[other].release()
                return
        self.done.set()

    def _deliver(self) -> None:
        """Deliver all messages, if all ranks have made the same call."""
        if self._calls and self.refusal is None:
            self.refusal = mismatch(self._calls, self.ended)
        if self.refusal is None:
            for by in sorted(self._sent):
                for to, message in enumerate(self._sent[by]):
                    # A received array belongs to its rank. GPU arrays are not copied:
                    # launches of all ranks run in one order, that of the baton.
                    is_on_host = isinstance(message, np.ndarray)
                    taken = message.copy() if is_on_host else message
                    self._received.setdefault(to, []).append(taken)
        self._calls.clear()
        self._sent.clear()

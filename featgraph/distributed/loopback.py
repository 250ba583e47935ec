"""Several ranks in one process: a thread each, of which one at a time runs.

Ranks run in turn, from the first to the last, each until its next exchange. When the
last one has come to its own, messages are copied, and the first goes on. So a run
repeats, whatever the system does with threads. It takes as long as all ranks take one
after the other: loopback is for tests, and to try how a program or a graph behaves on
several ranks.
"""

from __future__ import annotations

import contextvars
import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from featgraph._arguments import checked_arguments, require_integer, shown
from featgraph._interrupts import deferred_interrupts
from featgraph.distributed.current import engine_of_context
from featgraph.distributed.engines.calls import Call, mismatch
from featgraph.distributed.engines.messages import MessageEngine
from featgraph.distributed.engines.protocol import Beside, Engine, GpuArray, bytes_of
from featgraph.errors import ArgumentError, DistributedError, WorkerLostError

__all__ = ["run_ranks"]

_R = TypeVar("_R")
#: Ranks that threads of one process stand for, at most.
_MOST = 1 << 10


@checked_arguments
def run_ranks(
    size: int,
    function: Callable[[Engine], _R],
    *,
    hosts: Sequence[str] | None = None,
) -> list[_R]:
    """Run a function on ranks of this process, and return their results by rank.

    Each rank has a thread, of which one at a time runs: they take turns at each
    exchange. Within the function `current_engine` returns the rank's engine.

    Parameters
    ----------
    size : int
        How many ranks, 1 or more.
    function : callable
        Takes the engine of its rank.
    hosts : sequence of str, optional
        The host that each rank is to believe to be on, to try what ranks of several
        hosts do. Default: this one.

    Returns
    -------
    list
        What the function returned on each rank.

    Raises
    ------
    ArgumentError
        No such number of ranks; hosts of more ranks, or of fewer.
    Exception
        What the function raised on a rank, with a note that names it. All other ranks
        raise `WorkerLostError` in their exchanges.
    RankMismatchError
        On all ranks, where they went different ways.
    KeyboardInterrupt
        Behind Ctrl-C, when all ranks have come to an exchange and ended there; behind
        a second one at once.

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
            "each rank is on a host",
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
    """Start a thread a rank, hand the baton to the first, and wait for all."""
    try:
        with deferred_interrupts():
            for rank in range(baton.size):
                # With NumPy's error state, among others.
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
    """Wait for an event, and let interrupts in.

    One that comes just before a wait begins does not end it: Python sees to it behind
    the wait, so that has to end by itself.
    """
    while not event.wait(0.1):
        pass


class _LoopbackEngine(MessageEngine):
    """The engine of one of several ranks in this process."""

    #: What a kernel of one rank waits for is launched when that rank has its turn.
    takes_turns = True

    def __init__(self, rank: int, size: int, baton: _Baton) -> None:
        super().__init__(rank, size)
        self._baton = baton
        self._thread = threading.get_ident()

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return True: ranks share a GPU."""
        return True

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
        beside: Beside | None = None,
    ) -> list[GpuArray | None]:
        """Hand arrays of the GPU that all ranks share to them: see `GpuEngine`.

        What ranks launch on one stream runs in the order in which they launch it.
        """
        call = self._next("hand_over(arrays of a GPU)", about)
        begun = time.perf_counter()
        received = self._start(call, arrays)()
        self.waited_s += time.perf_counter() - begun
        for rank in range(self.size):
            if rank != self.rank:
                self.traffic.sent[rank] += bytes_of(arrays[rank])
                self.traffic.received[rank] += bytes_of(received[rank])
        return received

    def _start(self, call: Call, messages: Sequence[Any]) -> Callable[[], list[Any]]:
        is_own = threading.get_ident() == self._thread
        if not is_own or self.rank in self._baton.ended:
            raise DistributedError(
                f"the engine of rank {self.rank} is used outside of its rank",
                got=str(call),
                expected="a call in the thread, and before the end, of the function "
                "that run_ranks gave it to",
                fix="take fg.distributed.current_engine() where it is used",
            )
        return lambda: self._baton.swap(self.rank, call, messages)


class _Baton:
    """Which rank runs, what each one calls, and why all are to end.

    Only the rank that has the baton touches anything, but for `refusal` behind Ctrl-C.

    Attributes
    ----------
    size : int
        How many ranks.
    done : threading.Event
        All ranks have ended.
    ended : dict
        How many exchanges each rank had that has ended.
    failed : int or None
        The rank that failed first.
    refusal : BaseException or None
        What every exchange raises from now on.
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
        """Hand the baton to the first rank."""
        self._turns[0].release()

    def wait(self, rank: int) -> None:
        """Return when a rank has the baton."""
        self._turns[rank].acquire()
        self._raise_refusal()

    def swap(self, rank: int, call: Call, messages: Sequence[Any]) -> list[Any]:
        """Let all ranks come to an exchange; return what they handed to this one."""
        self._raise_refusal()
        self._calls[rank], self._sent[rank] = call, messages
        self._pass_on(rank)
        self.wait(rank)
        return self._received.pop(rank)

    def end(self, rank: int, exchanges: int, error: BaseException | None) -> None:
        """Let the others go on without a rank, which returned or failed."""
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

    def _raise_refusal(self) -> None:
        if self.refusal is not None:
            # An exception has the traceback of one thread.
            raise copy.copy(self.refusal)

    def _pass_on(self, rank: int) -> None:
        """Hand the baton to the next rank; behind the last one, to the first."""
        running = [r for r in range(self.size) if r not in self.ended]
        later = [r for r in running if r > rank]
        if not later:
            self._deliver()
        if running:
            self._turns[(later or running)[0]].release()
        else:
            self.done.set()

    def _deliver(self) -> None:
        """Deliver all messages, if all ranks have made one call."""
        if self._calls and self.refusal is None:
            self.refusal = mismatch(self._calls, self.ended)
        if self.refusal is None:
            for to in self._sent:
                senders = sorted(self._sent)
                self._received[to] = [_taken(self._sent[by][to]) for by in senders]
        self._calls.clear()
        self._sent.clear()


def _taken(message: Any) -> Any:
    """Return a message as the receiver's own; arrays of a GPU were given away."""
    return message.copy() if isinstance(message, np.ndarray) else message

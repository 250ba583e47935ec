"""`init`: joining the other processes of a run by the variables of a launcher.

All processes choose the same engine from these variables (`engine_class`).

With ``featgraph launch``, a `Watch` has a thread that receives messages of the
launcher, and sends the activity of the rank, also while kernels are compiled or files
are read.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from featgraph.base.activity import ACTIVITY, Activity, doing
from featgraph.base.arguments import require_real
from featgraph.base.config import VERSION, config
from featgraph.base.errors import (
    ArgumentError,
    DistributedError,
    FeatGraphError,
    WorkerLostError,
)
from featgraph.base.interrupts import import_whole
from featgraph.ranks.engines.loopback import (
    NullEngine,
    engine_of_context,
    engine_of_process,
)
from featgraph.ranks.engines.meeting import is_possible
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.shared_memory import SharedEngine
from featgraph.ranks.engines.torch_engine import TorchEngine, is_loopback
from featgraph.ranks.launching.agent import INHERITED, MOST_BYTES, PAGE_BYTES
from featgraph.ranks.launching.roll import BEAT_S, Loss

__all__ = ["init", "restart_count"]

#: The id of the process that called `init`.
_process: list[int] = []


def init(*, timeout: float = 30.0, engine: str = "auto") -> Engine:
    """Join the ranks that were started with this process, and return its engine.

    A launcher, ``featgraph launch`` or torchrun, sets the environment variables
    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` (default 127.0.0.1) and ``MASTER_PORT``.
    Without ``RANK`` and ``WORLD_SIZE``, and for a single rank, nothing is imported, and
    no connection is made. From then on `current_engine` returns the engine; it is
    closed when the process ends.

    Parameters
    ----------
    timeout : float
        Seconds, over 0, that ranks wait for each other, here and in each exchange. With
        ``featgraph launch``, a rank that compiles, loads or writes may take longer.
    engine : str
        "shared": shared memory of one host, on Linux. "gloo": PyTorch's Gloo, which
        needs the extra ``distributed``. "auto": "shared" if all ranks are on one host,
        by ``LOCAL_WORLD_SIZE`` or else by a loopback address in ``MASTER_ADDR``, unless
        ``fg.config.gpu_links`` is "engine"; else "gloo". The same on all ranks.

    Returns
    -------
    Engine

    Raises
    ------
    DistributedError
        After another `init`, in a forked child of a process that called it, or on a
        loopback rank; if ranks do not find each other, or an engine is not available.
    WorkerLostError
        If a rank ends before it has called `init`, or does not call it in time.
    RankMismatchError
        If ranks have different versions of featgraph.
    ArgumentError
        If a variable, the timeout or the name of the engine is invalid.

    Notes
    -----
    Memory is shared with processes of the same user only, has no name, and is freed
    with the last of them, however they end. Over Gloo, ranks listen at loopback
    addresses unless ``MASTER_ADDR`` is another one, or ``GLOO_SOCKET_IFNAME`` names an
    interface. Gloo does not encrypt, and trusts every process that can reach the port:
    use it within a host or a private network.

    Examples
    --------
    >>> import featgraph as fg
    >>> engine = fg.distributed.init()  # doctest: +SKIP
    >>> engine.rank, engine.size  # doctest: +SKIP
    (0, 1)
    """
    if not 0 < require_real("timeout", timeout, error=ArgumentError) < 1e9:
        raise ArgumentError(
            "not a timeout", where="timeout=", got=timeout, expected="seconds, over 0"
        )
    size = _number("WORLD_SIZE", least=1) if _is_launched() else 1
    rank = _number("RANK", least=0, below=size) if _is_launched() else 0
    require_engine(engine)
    _require_first()
    made: Engine = NullEngine()
    if size > 1:
        watch = watch_of_process(rank, size, float(timeout))
        ending = _Ending(watch)
        if watch is not None:
            watch.start()
        with doing("loading", "the engine, and connecting"):
            joined = ending.engine = _engine_for(
                engine, rank, size, float(timeout), watch
            )
        joined.barrier(about=f"the start of featgraph {VERSION}")
        made = joined
    _process.append(os.getpid())
    engine_of_process.append(made)
    return made


def restart_count() -> int:
    """Return how often the launcher has restarted all ranks: 0 in the first attempt.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.distributed.restart_count()
    0
    """
    for name in ("FEATGRAPH_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        if name in os.environ:
            return _number(name, least=0)
    return 0


def _engine_for(
    name: str, rank: int, size: int, timeout: float, watch: Watch | None
) -> SharedEngine | TorchEngine:
    """Return the engine for the variables of a launcher."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = _number("MASTER_PORT", least=1, below=1 << 16)
    made = engine_class(name, size, address)
    return made(rank, size, address, port, timeout, watch)


def _require_first() -> None:
    if engine_of_context.get(None) is not None:
        raise DistributedError(
            "init() on a rank that run_ranks started",
            fix="fg.distributed.current_engine() is its engine",
        )
    if _process and _process[0] != os.getpid():
        raise DistributedError(
            "init() in a forked child of a process that called it",
            got=f"process {os.getpid()}, a child of {_process[0]}",
            fix="call it in each rank's own process, or start processes by 'spawn'",
        )
    if _process:
        raise DistributedError(
            "init() a second time",
            fix="call it once; fg.distributed.current_engine() returns its engine",
        )


def _is_launched() -> bool:
    return "RANK" in os.environ or "WORLD_SIZE" in os.environ


def _number(name: str, *, least: int, below: int | None = None) -> int:
    """Return a variable of the launcher as a number from `least` to below `below`."""
    text = os.environ.get(name)
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if number < least or (below is not None and number >= below):
        most = "" if below is None else f" to {below - 1}"
        raise ArgumentError(
            f"the variable {name} has an invalid value",
            got="nothing" if text is None else repr(text),
            expected=f"a number from {least}{most or ' on'}",
            fix="start the program by featgraph launch or torchrun, or unset RANK and "
            "WORLD_SIZE to run it on one rank",
        )
    return number


class _Ending:
    """Handlers that report the end of the process, or its error, to other ranks.

    Parameters
    ----------
    watch : Watch or None

    Attributes
    ----------
    engine : SharedEngine, TorchEngine or None
        The engine to close.
    """

    def __init__(self, watch: Watch | None) -> None:
        self.engine: SharedEngine | TorchEngine | None = None
        self._watch = watch
        self._error: BaseException | None = None
        self._show: Callable[..., object] = sys.excepthook
        sys.excepthook = self._note
        atexit.register(self._end)

    def _note(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        self._error = error
        self._show(kind, error, trace)

    def _end(self) -> None:
        error, watch = self._error, self._watch
        # First: a rank that ends without an "ending" message has failed (`Roll`).
        if watch is not None:
            if error is None:
                watch.end()
            else:
                # Errors that are raised on all ranks name the rank that caused them.
                is_shared = isinstance(error, FeatGraphError | OSError)
                rank = getattr(error, "rank", None) if is_shared else None
                watch.fail(f"{type(error).__name__}: {error}", rank)
        if self.engine is None:
            return
        try:
            if error is None:
                self.engine.catch_up()
        finally:
            self.engine.close(error)


#: Names that `engine=` of `init` takes.
ENGINES = ("auto", "shared", "gloo")


def require_engine(name: str) -> None:
    """Raise ArgumentError unless `name` is one of `ENGINES`, also on a single rank."""
    if name not in ENGINES:
        raise ArgumentError(
            "no engine of this name", got=repr(name), expected=", ".join(ENGINES)
        )


def engine_class(
    name: str, size: int, address: str
) -> type[SharedEngine | TorchEngine]:
    """Return the class of engine for `size` ranks, with rank 0 at an address.

    "auto" is shared memory if all ranks are on this host: if ``LOCAL_WORLD_SIZE`` is
    their number, or, without that variable, if the address is a loopback address. Each
    rank finds the same, without an exchange. Only PyTorch's engine sends rows over NCCL
    (`config.gpu_links`).
    """
    if name == "auto":
        local = os.environ.get("LOCAL_WORLD_SIZE")
        are_here = is_loopback(address) if local is None else local == str(size)
        has_memory = are_here and is_possible() and config.gpu_links != "engine"
        name = "shared" if has_memory else "gloo"
    return SharedEngine if name == "shared" else TorchEngine


#: Seconds to wait for the launcher's report of a loss, after a connection has ended.
_WORD_S = 3.0


class Watch:
    """The connection of a rank with the launcher, and its watch of lost ranks.

    Parameters
    ----------
    rank, size : int
    timeout : float
        Seconds that ranks wait for each other.
    talk : socket
        The socket to the launcher.
    activity : Activity, optional
        The activity of the rank.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        talk: socket.socket,
        activity: Activity = ACTIVITY,
    ) -> None:
        self.rank, self.size = rank, size
        self._timeout, self._talk, self._activity = timeout, talk, activity
        self._changed = threading.Condition()
        self._loss: Loss | None = None
        self._are_present = self._is_over = False
        self._offers: dict[str, str] = {}
        self._wakes: list[Callable[[], None]] = []
        #: Functions that report other waits, such as those of kernels.
        self._waits: list[Callable[[], str]] = []
        #: The exchange that the rank waits in; the activity of the last message, and
        #: when that activity began.
        self._call: object = None
        self._last: tuple[Any, ...] = ()
        self._since = time.monotonic()
        #: Held while a line is sent: by the thread of the watch, or that of the rank.
        self._sends = threading.Lock()
        self._process = os.getpid()

    def start(self) -> None:
        """Connect with the launcher, and wait until all ranks have.

        Raises
        ------
        WorkerLostError
            If a rank does not connect in time.
        """
        self._send({"is": "hello", "timeout": self._timeout})
        threading.Thread(target=self._run, name="featgraph watch", daemon=True).start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._are_present or self._loss or self._is_over
            )
        self.raise_lost()
        _count_compilations(self._activity)

    # -- activity of the rank

    @contextmanager
    def waiting(self, call: object) -> Iterator[None]:
        """Report the rank as waiting in a call, within the block."""
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def watch_also(self, awaited: Callable[[], str]) -> Callable[[], None]:
        """Register a function that reports other waits, called before each message.

        It returns a text, "" without a wait. Returns a function that removes it.
        """
        self._waits.append(awaited)

        def end() -> None:
            with suppress(ValueError):
                self._waits.remove(awaited)

        return end

    def offer(self, name: str, text: str) -> None:
        """Send a text to all ranks, under a name."""
        self._send({"is": "offer", "name": name, "text": text})

    def await_offer(self, name: str) -> str:
        """Wait for a text that a rank offers under a name, and return it.

        Raises
        ------
        WorkerLostError
            If a rank was lost meanwhile.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: name in self._offers or self._loss or self._is_over
            )
        self.raise_lost()
        return self._offers[name]

    def fail(self, text: str, of: int | None = None) -> None:
        """Report the error by which the rank ends, and the rank `of` that caused it."""
        self._send(self._beat(time.monotonic()))
        message: dict[str, Any] = {"is": "failed", "text": text[: MOST_BYTES // 8]}
        if of is not None:
            message["of"] = of
        self._send(message)

    def end(self) -> None:
        """Report that the rank ends without an error."""
        self._send({"is": "ending"})

    # -- messages of the launcher

    def when_lost(self, wake: Callable[[], None]) -> None:
        """Register a function to be called, on another thread, when a rank is lost."""
        with self._changed:
            self._wakes.append(wake)
            is_late = self._loss is not None
        if is_late:
            wake()

    def raise_lost(self) -> None:
        """Raise the error of a lost rank, if there is one.

        Raises
        ------
        WorkerLostError
        """
        if self._loss is not None:
            raise self._error(self._loss)
        if self._is_over:
            raise DistributedError("the launcher has ended", where=f"rank {self.rank}")

    def find_loss(self) -> WorkerLostError | None:
        """Wait up to 3 s for a report of a loss; return its error, or None."""
        with self._changed:
            self._changed.wait_for(lambda: self._loss or self._is_over, _WORD_S)
        return None if self._loss is None else self._error(self._loss)

    def _error(self, loss: Loss) -> WorkerLostError:
        newest = _newest(loss.checkpoints)
        who = f"rank {loss.rank} of {self.size} on {loss.host} was lost"
        if loss.rank is None:
            who = f"{self.size} ranks do not continue"
        at = "" if loss.superstep is None else f", superstep {loss.superstep}"
        at += f", phase {loss.phase}" if at and loss.phase else ""
        checkpoint = "" if newest is None else f"; its last checkpoint is {newest}"
        return WorkerLostError(
            f"{who}{at}{checkpoint}",
            rank=loss.rank,
            host=None if loss.rank is None else loss.host,
            superstep=loss.superstep,
            phase=loss.phase,
            checkpoint=newest,
            where=f"rank {self.rank}" + (f", at {self._call}" if self._call else ""),
            got=loss.why,
            fix="see its last output; if it was still computing, "
            "pass more seconds as fg.distributed.init(timeout=); featgraph launch "
            "--restarts N continues from the checkpoint",
        )

    # -- the thread

    def _run(self) -> None:
        begun = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._talk, selectors.EVENT_READ)
            while True:
                self._send(self._beat(time.monotonic()))
                if not selector.select(BEAT_S):
                    continue
                try:
                    data = self._talk.recv(MOST_BYTES)
                except OSError:
                    data = b""
                if not data:
                    break
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._receive(json.loads(line))
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            wakes = list(self._wakes)
        # Without the lock: a thread that is woken calls the watch.
        for wake in wakes:
            wake()

    def _beat(self, now: float) -> dict[str, Any]:
        """Return a message with the rank's activity and its duration."""
        activity, call = self._activity, self._call
        for awaited in [] if call is not None else list(self._waits):
            call = call or awaited() or None
        doing = "waiting" if call is not None else activity.kind
        if not self._are_present:
            doing = "meeting"
        does = (doing, call)
        if does != self._last:
            self._last, self._since = does, now
        return {
            "is": "beat",
            "doing": doing,
            "for": now - self._since,
            "what": activity.what,
            "call": "" if call is None else str(call)[:500],
            "superstep": activity.superstep,
            "phase": activity.phase,
            "checkpoints": activity.checkpoints,
        }

    def _receive(self, message: Mapping[str, Any]) -> None:
        wakes: list[Callable[[], None]] = []
        with self._changed:
            if message["is"] == "present":
                self._are_present = True
            elif message["is"] == "offer":
                self._offers[message["name"]] = message["text"]
            elif message["is"] == "lost" and self._loss is None:
                self._loss = Loss.of_message(message)
                wakes = list(self._wakes)
            self._changed.notify_all()
        if self._loss is not None and wakes and self._call is None:
            # The rank may compute for long before its next exchange raises the error.
            print(f"featgraph: {self._error(self._loss)}", file=sys.stderr, flush=True)
        for wake in wakes:
            wake()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._process != os.getpid():  # in a forked child
            return
        data = json.dumps(message).encode() + b"\n"
        with self._sends, suppress(OSError):  # the launcher has gone
            self._talk.sendall(data)


def watch_of_process(rank: int, size: int, timeout: float) -> Watch | None:
    """Return the watch of a process that ``featgraph launch`` started, or None."""
    descriptors = os.environ.get(INHERITED)
    if descriptors is None:
        return None
    try:
        files = [int(number) for number in descriptors.split(",")]
        talk = socket.socket(fileno=files[0])
        os.set_inheritable(files[0], False)
        ACTIVITY.page = memoryview(mmap.mmap(files[1], PAGE_BYTES))
        os.close(files[1])
    except (OSError, ValueError, IndexError) as error:
        raise DistributedError(
            "the socket to the launcher is not open",
            where=INHERITED,
            got=f"{descriptors!r}: {error}",
            fix="call fg.distributed.init() in the process that featgraph launch "
            "starts, or keep open files in the process that starts it",
        ) from error
    return Watch(rank, size, timeout, talk)


def _newest(checkpoints: str | None) -> str | None:
    """Return the path of the newest checkpoint in a folder, by its number, or None."""
    if checkpoints is None:
        return None
    try:
        found = [name for name in os.listdir(checkpoints) if name.isdecimal()]
    except OSError:
        return None
    newest = max(found, key=int, default=None)
    return None if newest is None else os.path.join(checkpoints, newest)


def _count_compilations(activity: Activity) -> None:
    """Count running compilations in `activity`, on all threads."""
    event: Any = import_whole("numba.core.event")

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            activity.compiling += 1

        def on_end(self, _: Any) -> None:
            activity.compiling -= 1

    event.register("numba:compiler_lock", Listener())

"""What a rank hears from its launcher, and tells it: that it lives, and what it does.

A thread of its own does both, so that it also speaks while kernels are compiled or
files are read. Without a launcher of ours there is none of it.
"""

from __future__ import annotations

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
from typing import Any

from featgraph._activity import ACTIVITY, Activity
from featgraph._interrupts import import_whole
from featgraph.distributed.launching.agent import INHERITED, MOST_BYTES, PAGE_BYTES
from featgraph.distributed.launching.roll import BEAT_S, Loss
from featgraph.errors import DistributedError, WorkerLostError

__all__ = ["Watch", "watch_of_process"]

#: Seconds in which the launcher says who was lost, where a connection has ended.
_WORD_S = 3.0


class Watch:
    """The launcher, as a rank sees it.

    Parameters
    ----------
    rank, size : int
    timeout : float
        Seconds that ranks wait for each other.
    talk : socket
        To the launcher.
    activity : Activity, optional
        What the rank does.
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
        #: What else the rank may wait for: kernels do.
        self._asked: list[Callable[[], str]] = []
        #: The exchange that the rank waits in; what it did last, and since when.
        self._call: object = None
        self._last: tuple[Any, ...] = ()
        self._since = time.monotonic()
        self._sends = threading.Lock()
        self._process = os.getpid()

    def start(self) -> None:
        """Begin to talk, and return when all ranks do.

        Raises
        ------
        WorkerLostError
            If one does not come.
        """
        self._say({"is": "hello", "timeout": self._timeout})
        threading.Thread(target=self._run, name="featgraph watch", daemon=True).start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._are_present or self._loss or self._is_over
            )
        self.raise_lost()
        _tell_of_compilation(self._activity)

    # -- what the rank does

    @contextmanager
    def waiting(self, call: object) -> Iterator[None]:
        """Say that the rank waits for the others in a block."""
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def ask_too(self, awaited: Callable[[], str]) -> Callable[[], None]:
        """Have something asked what else the rank waits for, with each beat.

        It returns that, or nothing. What is returned ends it.
        """
        self._asked.append(awaited)

        def end() -> None:
            with suppress(ValueError):
                self._asked.remove(awaited)

        return end

    def offer(self, name: str, text: str) -> None:
        """Give all ranks something to know."""
        self._say({"is": "offer", "name": name, "text": text})

    def ask(self, name: str) -> str:
        """Return what a rank has given; waits for it.

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
        """Say why the rank ends, and which rank caused it, if that is another one."""
        self._say(self._beat(time.monotonic()))
        told: dict[str, Any] = {"is": "failed", "text": text[: MOST_BYTES // 8]}
        if of is not None:
            told["of"] = of
        self._say(told)

    def end(self) -> None:
        """Say that the rank ends as it should."""
        self._say({"is": "ending"})

    # -- what it hears

    def when_lost(self, wake: Callable[[], None]) -> None:
        """Have something called, on another thread, when a rank is lost."""
        with self._changed:
            self._wakes.append(wake)
            is_late = self._loss is not None
        if is_late:
            wake()

    def raise_lost(self) -> None:
        """Raise the error of a rank that was lost, if one was.

        Raises
        ------
        WorkerLostError
        """
        if self._loss is not None:
            raise self._error(self._loss)
        if self._is_over:
            raise DistributedError("the launcher has ended", where=f"rank {self.rank}")

    def word_of_loss(self) -> WorkerLostError | None:
        """Return who was lost; soon after, None where the launcher knows of no one."""
        with self._changed:
            self._changed.wait_for(lambda: self._loss or self._is_over, _WORD_S)
        return None if self._loss is None else self._error(self._loss)

    def _error(self, loss: Loss) -> WorkerLostError:
        newest = _newest(loss.checkpoints)
        who = f"rank {loss.rank} of {self.size} on {loss.host} was lost"
        if loss.rank is None:
            who = f"{self.size} ranks do not go on"
        at = "" if loss.superstep is None else f", superstep {loss.superstep}"
        at += f", phase {loss.phase}" if at and loss.phase else ""
        go_on = "" if newest is None else f"; its last checkpoint is {newest}"
        return WorkerLostError(
            f"{who}{at}{go_on}",
            rank=loss.rank,
            host=None if loss.rank is None else loss.host,
            superstep=loss.superstep,
            phase=loss.phase,
            checkpoint=newest,
            where=f"rank {self.rank}" + (f", at {self._call}" if self._call else ""),
            got=loss.why,
            fix="what it wrote last tells more; if it was still computing, "
            "fg.distributed.init(timeout=) with more seconds; featgraph launch "
            "--restarts N goes on from the checkpoint",
        )

    # -- the thread

    def _run(self) -> None:
        begun = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._talk, selectors.EVENT_READ)
            while True:
                self._say(self._beat(time.monotonic()))
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
                    self._hear(json.loads(line))
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def _beat(self, now: float) -> dict[str, Any]:
        """Return what the rank does, and for how long it has."""
        activity, call = self._activity, self._call
        for awaited in [] if call is not None else list(self._asked):
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

    def _hear(self, told: Mapping[str, Any]) -> None:
        wakes: list[Callable[[], None]] = []
        with self._changed:
            if told["is"] == "present":
                self._are_present = True
            elif told["is"] == "offer":
                self._offers[told["name"]] = told["text"]
            elif told["is"] == "lost" and self._loss is None:
                self._loss = Loss.heard(told)
                wakes = list(self._wakes)
            self._changed.notify_all()
        if self._loss is not None and wakes and self._call is None:
            # It may compute for long before it comes to an exchange, and raises.
            print(f"featgraph: {self._error(self._loss)}", file=sys.stderr, flush=True)
        for wake in wakes:
            wake()

    def _say(self, told: Mapping[str, Any]) -> None:
        if self._process != os.getpid():  # a forked child is no rank
            return
        data = json.dumps(told).encode() + b"\n"
        with self._sends, suppress(OSError):  # the launcher has gone
            self._talk.sendall(data)


def watch_of_process(rank: int, size: int, timeout: float) -> Watch | None:
    """Return the launcher that has started this process; None without one of ours."""
    told = os.environ.get(INHERITED)
    if told is None:
        return None
    try:
        files = [int(number) for number in told.split(",")]
        talk = socket.socket(fileno=files[0])
        os.set_inheritable(files[0], False)
        ACTIVITY.page = memoryview(mmap.mmap(files[1], PAGE_BYTES))
        os.close(files[1])
    except (OSError, ValueError, IndexError) as error:
        raise DistributedError(
            "the socket to the launcher is not open",
            where=INHERITED,
            got=f"{told!r}: {error}",
            fix="call fg.distributed.init() in the process that featgraph launch "
            "starts, or have what starts it keep open files",
        ) from error
    return Watch(rank, size, timeout, talk)


def _newest(checkpoints: str | None) -> str | None:
    """Return the newest checkpoint of a folder, which its names tell."""
    if checkpoints is None:
        return None
    try:
        found = [name for name in os.listdir(checkpoints) if name.isdecimal()]
    except OSError:
        return None
    newest = max(found, key=int, default=None)
    return None if newest is None else os.path.join(checkpoints, newest)


def _tell_of_compilation(activity: Activity) -> None:
    """Have the compiler say when it works, on whichever thread."""
    event: Any = import_whole("numba.core.event")

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            activity.compiling += 1

        def on_end(self, _: Any) -> None:
            activity.compiling -= 1

    event.register("numba:compiler_lock", Listener())

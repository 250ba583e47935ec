"""The other ranks of a host: telling them what is there, and waiting for them."""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from featgraph._interrupts import import_whole
from featgraph.distributed.engines.meeting import Met
from featgraph.distributed.engines.messages import Bytes
from featgraph.distributed.engines.watching import Watching
from featgraph.distributed.engines.windows import Layout, OwnMemory, PeerMemory

__all__ = ["Peers", "flags"]

#: The module of compiled loads and stores.
FLAGS = "featgraph.distributed.engines.flags"
#: Looks at a word before a rank sleeps: 20 to 100 microseconds.
LOOKS = 2000
#: What `hear` returns of a rank: it has told what was asked for, or its last word.
_TOLD, _LAST = 1, 2


def flags() -> Any:
    """Return the compiled loads and stores."""
    return import_whole(FLAGS)


class Peers:
    """The other ranks, and what they have told.

    What ranks tell has numbers from 1 on, the same on all of them.

    Parameters
    ----------
    rank : int
        This one.
    layout : Layout
        Of the memory of each rank.
    own : OwnMemory
    met : mapping
        The others, by rank.
    timeout : float
        Seconds to wait for them.
    watch : Watching, optional
        What knows of ranks that are lost, and when to wait no more: as long as it says
        nothing, ranks are waited for.
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
        # With fewer cores than ranks, those that look keep others from going on.
        enough = len(os.sched_getaffinity(0)) > len(met)
        self._looks = LOOKS if enough else 0

    def tell(self, rank: int, number: int) -> None:
        """Say that what has this number is there for a rank."""
        self._publish(rank, self._layout.told(rank), number)

    def say_last(self, number: int) -> None:
        """Say that the last record is there, for all."""
        for rank in self._met:
            self._publish(rank, self._layout.last, number)

    def hear(self, number: int) -> tuple[dict[int, bool], dict[int, str]]:
        """Wait until all have told what has this number.

        Returns
        -------
        heard : dict
            By rank, whether it has said its last word instead.
        lost : dict
            By rank, why nothing comes from it.

        Raises
        ------
        WorkerLostError
            Of a rank that the watch knows to be lost.
        """
        until = math.inf if self._watch else time.monotonic() + self._timeout
        heard: dict[int, bool] = {}
        for rank in self._met:
            found = self._wait(rank, number, until)
            if not found:
                return heard, self._lost(number)
            heard[rank] = found == _LAST
        return heard, {}

    def record(self, rank: int, number: int, is_last: bool) -> Bytes:
        """Return the record of what a rank has told, or its last one."""
        layout = self._layout
        place = layout.record(number % 2, self._rank)
        return self._memory[rank].control[layout.last_record if is_last else place]

    def message(self, rank: int, number: int, nbytes: int) -> Bytes:
        """Return the message that goes with it, in the memory of the rank."""
        memory, turn = self._memory[rank], number % 2
        offset = int(memory.words[self._layout.offset(turn, self._rank)])
        return memory.message(turn, offset, nbytes)

    def close(self) -> None:
        """Let go of all of them."""
        self._alarm.close()
        for one in self._met.values():
            one.bell.close()
        for memory in self._memory.values():
            memory.close()

    def _publish(self, rank: int, place: int, number: int) -> None:
        theirs, asleep = self._memory[rank].words, self._layout.asleep(self._rank)
        if self._flags.publish(self._own.words, place, number, theirs, asleep):
            with suppress(BlockingIOError, BrokenPipeError, ConnectionError):
                self._met[rank].bell.send(b"!", socket.MSG_NOSIGNAL)

    def _look(self, rank: int, number: int, looks: int = 0) -> int:
        """Return what a rank has told, 0 for nothing yet."""
        layout = self._layout
        found: int = self._flags.spin(
            self._memory[rank].words,
            layout.told(self._rank),
            layout.last,
            number,
            looks,
        )
        return found

    def _wait(self, rank: int, number: int, until: float) -> int:
        """Wait for a rank; return 0 where that, or another one, is lost."""
        found = self._look(rank, number, self._looks)
        if found:
            return found
        asleep = self._layout.asleep(rank)
        self._flags.lie_down(self._own.words, asleep)
        try:
            while True:
                found = self._look(rank, number)
                left = until - time.monotonic()
                if found or left <= 0 or self._unsaid(self._ended, number):
                    return found
                self._sleep(left)
                if self._watch is not None:
                    self._watch.raise_lost()
        finally:
            self._flags.store(self._own.words, asleep, 0)

    def _sleep(self, seconds: float) -> None:
        """Sleep until a peer rings or ends, or the watch knows of a loss."""
        for file, _ in self._bells.poll(math.ceil(min(seconds, 1e6) * 1000)):
            if file == self._alarm.file:
                continue
            rank = self._by_file[file]
            data = b""
            with suppress(ConnectionError):
                data = self._met[rank].bell.recv(64)
            if not data:
                self._bells.unregister(file)
                self._ended.add(rank)

    def _unsaid(self, ranks: set[int], number: int) -> list[int]:
        """Return which of some ranks have told nothing of this number."""
        return [r for r in sorted(ranks) if not self._look(r, number)]

    def _lost(self, number: int) -> dict[int, str]:
        ended = self._unsaid(self._ended, number)
        if ended:
            return {r: f"its process {self._met[r].process} has ended" for r in ended}
        return {
            rank: f"no word within {self._timeout:g} s from its process "
            f"{self._met[rank].process}{_state_of(self._met[rank].process)}"
            for rank in self._unsaid(set(self._met), number)
        }


class Alarm:
    """Wakes a rank that sleeps, for good.

    Attributes
    ----------
    file : int
        A descriptor that can be read from once it has rung.
    """

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_open = True
        self._turn = threading.Lock()

    def ring(self) -> None:
        """Wake it; on any thread, and also when there is nothing to be woken."""
        with self._turn:
            if self._is_open:
                os.eventfd_write(self.file, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._turn:
            self._is_open = False
            os.close(self.file)


def _state_of(process: int) -> str:
    """Say whether a process is stopped, if that can be seen."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    is_stopped = text.rpartition(")")[2].split()[:1] in (["T"], ["t"])
    return ", which is stopped" if is_stopped else ""

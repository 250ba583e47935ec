"""Detection of the failed rank of an attempt, from messages of ranks and times.

`Roll` has the state of each rank. Times are arguments, so no clock and no process is
needed to test it. A rank has failed if it

* ended with a status other than 0, or without an "ending" message;
* has sent nothing, and used no processor, for the timeout;
* computes while another rank has waited for it in an exchange for the timeout
  (compiling, loading and writing have no limit);
* has not called ``init()`` while another rank has waited there for the timeout.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from featgraph.base.dataclass import dataclass, field, replace

__all__ = ["BEAT_S", "Loss", "Roll"]

#: Seconds between two messages of a rank.
BEAT_S = 0.25
#: A rank is alive if its last message is at most so many seconds old: ten of them.
LIVES_S = 2.5


@dataclass(frozen=True)
class Loss:
    """The failure of a rank, as it is sent to all ranks.

    Attributes
    ----------
    rank : int or None
        None if an exchange does not end although all ranks have come to it.
    host : str
    why : str
        The reason, in one clause.
    superstep, phase, checkpoints
        The rank's last activity: see `Activity`.
    """

    rank: int | None
    host: str
    why: str
    superstep: int | None = None
    phase: str | None = None
    checkpoints: str | None = None

    def message(self) -> dict[str, Any]:
        """Return the failure as a message for ranks."""
        return {"is": "lost", **self.__dict__}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Loss:
        """Return the failure that a message reports."""
        names = cls.__dataclass_fields__
        return cls(**{name: message.get(name) for name in names})  # type: ignore[arg-type]

    def __str__(self) -> str:
        who = "the ranks" if self.rank is None else f"rank {self.rank} on {self.host}"
        at = "" if self.superstep is None else f", superstep {self.superstep}"
        at += f", phase {self.phase}" if self.phase and at else ""
        return f"{who}{at}: {self.why}"


@dataclass
class _Entry:
    """The state of a rank.

    Attributes
    ----------
    host : str
    timeout : float
        The argument of `init` on this rank; 0 before `init`.
    received_at : float
        Time of its last message.
    state : str
        "starting", before `init`; "meeting", in `init`; "waiting", in an exchange; a
        value of `Activity.kind`; "ending"; "ended".
    since : float
        When the state began.
    last : mapping
        Its last message.
    failed : str
        The reason of its failure by its own message.
    """

    host: str
    timeout: float = 0.0
    received_at: float = 0.0
    state: str = "starting"
    since: float = 0.0
    last: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def limit(self) -> float:
        """The limit of waits, reduced by the delay of messages, in seconds."""
        return self.timeout - min(2 * BEAT_S, self.timeout / 4)

    def is_silent(self, now: float) -> bool:
        """Whether its last message is too old for a rank that is alive."""
        return now - self.received_at > min(LIVES_S, self.limit / 2)


class Roll:
    """The states of the ranks of one attempt, and its first failure.

    Parameters
    ----------
    hosts : sequence of str
        The host of each rank.
    now : float
        The time in seconds, as in all methods.

    Attributes
    ----------
    lost : Loss or None
        The first failure.
    """

    def __init__(self, hosts: list[str], now: float) -> None:
        self._entries = [_Entry(host, since=now) for host in hosts]
        self._looked = now
        self.lost: Loss | None = None

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [r for r, one in enumerate(self._entries) if one.state != "ended"]

    @property
    def are_present(self) -> bool:
        """Whether all ranks have called `init`."""
        return all(one.timeout > 0 for one in self._entries)

    def receive(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        """Record a message of a rank."""
        one = self._entries[rank]
        one.received_at = now
        if one.state in ("ending", "ended"):
            return
        if message["is"] == "hello":
            one.timeout = float(message["timeout"])
            one.state, one.since = "meeting", now
        elif message["is"] == "beat":
            one.last, one.state = message, str(message["doing"])
            one.since = now - float(message["for"])
        elif message["is"] == "failed":
            one.failed = str(message["text"])
            of = message.get("of", rank)
            if type(of) is not int or not 0 <= of < len(self._entries):
                of = rank
            # It ends by the same error, and need not be killed.
            self._entries[of].failed = self._entries[of].failed or one.failed
            self._lose(of, one.failed)
        elif message["is"] == "ending":
            one.state, one.since = "ending", now

    def is_stuck(self, rank: int) -> bool:
        """Whether a rank runs, and has not reported an error of its own."""
        one = self._entries[rank]
        return one.state != "ended" and not one.failed

    def lose(self, rank: int, why: str) -> None:
        """Record that a rank is lost: no more messages will arrive."""
        self._entries[rank].state = "ended"
        self._lose(rank, why)

    def place(self, rank: int, place: tuple[int, str]) -> None:
        """Record the superstep and phase in which a rank has ended."""
        one = self._entries[rank]
        one.last = {**one.last, "superstep": place[0], "phase": place[1]}
        if self.lost is not None and self.lost.rank == rank:
            self.lost = replace(self.lost, superstep=place[0], phase=place[1])

    def end(self, rank: int, status: int, now: float) -> None:
        """Record the end of a rank's process; a negative status is a signal."""
        one = self._entries[rank]
        is_right = status == 0 and one.state in ("starting", "ending")
        one.state, one.received_at, one.since = "ended", now, now
        if is_right:
            self._miss(rank, now)
        else:
            self._lose(rank, one.failed or _ended(status))

    def look(self, now: float) -> None:
        """Check whether a rank has been silent, or waited for, for too long."""
        if self.lost is not None:
            return
        self._leave_out(now)
        for rank, one in enumerate(self._entries):
            is_watched = one.state not in ("starting", "ending", "ended")
            if is_watched and now - one.received_at >= one.limit:
                self._lose(rank, _silent(one, now))
        for rank, one in enumerate(self._entries):
            has_waited = now - one.since >= one.limit > 0
            # A silent rank may have stopped waiting: its state proves nothing.
            if one.state == "waiting" and has_waited and not one.is_silent(now):
                self._blame(rank, one, now)
            elif one.state == "meeting" and has_waited and not self.are_present:
                late = next(r for r, o in enumerate(self._entries) if o.timeout == 0)
                self._lose(
                    late,
                    f"has not called fg.distributed.init() while rank {rank} has "
                    f"waited there for {now - one.since:.1f} s",
                )

    def _leave_out(self, now: float) -> None:
        """Exclude time since the last check if the launcher was stopped.

        Messages of ranks from that time are still unread.
        """
        gap, self._looked = now - self._looked, now
        if gap > LIVES_S:
            for one in self._entries:
                one.received_at = min(one.received_at + gap, now)
                one.since = min(one.since + gap, now)

    def _miss(self, rank: int, now: float) -> None:
        """Record that a rank has ended without `init`, if other ranks wait in it."""
        waits = [r for r, one in enumerate(self._entries) if one.state == "meeting"]
        if self._entries[rank].timeout == 0 and waits:
            self._lose(
                rank, f"has ended while rank {waits[0]} waits in fg.distributed.init()"
            )

    def _blame(self, rank: int, waiting: _Entry, now: float) -> None:
        """Find the rank for which `rank` waits in an exchange, and mark it failed."""
        call, limit = waiting.last.get("call", ""), waiting.limit
        others = [
            (r, one)
            for r, one in enumerate(self._entries)
            if r != rank and one.state != "ended"
        ]
        for other, one in others:
            # The state of its last message may be outdated.
            if one.is_silent(now) and one.state != "ending":
                self._lose(other, _silent(one, now))
        for other, one in others:
            if one.state == "computing" and now - one.since >= limit:
                self._lose(
                    other,
                    f"has computed for {now - one.since:.1f} s while rank {rank} "
                    f"waits for it: {call}",
                )
        if all(o.state == "waiting" and now - o.since >= limit for _, o in others):
            self._lose(
                None,
                f"an exchange has not ended for {now - waiting.since:.1f} s although "
                f"all have come to it: {call}",
            )

    def _lose(self, rank: int | None, why: str) -> None:
        """Record that a rank has failed, unless a failure is recorded already."""
        if self.lost is not None:
            return
        one = self._entries[rank or 0]
        newest = next((o.last for o in self._entries if o.last.get("checkpoints")), {})
        self.lost = Loss(
            rank,
            one.host,
            why,
            one.last.get("superstep"),
            one.last.get("phase"),
            one.last.get("checkpoints") or newest.get("checkpoints"),
        )


def _silent(one: _Entry, now: float) -> str:
    return (
        f"has sent no message for {now - one.received_at:.1f} s, and was "
        f"{_doing(one)} before: it is stopped, or cannot be reached"
    )


def _doing(one: _Entry) -> str:
    if one.state == "waiting":
        return f"waiting at {one.last.get('call')}"
    what = one.last.get("what")
    return f"{one.state} {what}" if what else one.state


def _ended(status: int) -> str:
    if status == 0:
        return "has ended, with status 0, without leaving the other ranks"
    if status > 0:
        return f"has ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    out_of_memory = (
        "; out of memory, the system does that, too" if name == "SIGKILL" else ""
    )
    return f"was ended by {name}{out_of_memory}"

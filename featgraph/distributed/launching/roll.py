"""Which rank of an attempt has failed, by what ranks say of themselves and when.

No clock and no process is in it: times are given. A rank has failed that

* ended with another status than 0, or without saying that it would;
* says nothing any more, and does nothing, for the timeout;
* computes while another one has waited for it in an exchange for the timeout; what it
  compiles, loads or writes may take as long as it takes;
* has not called ``init()`` while another one has waited there for the timeout.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["BEAT_S", "Loss", "Roll"]

#: Seconds from one word of a rank to the next.
BEAT_S = 0.25
#: One of which something was heard within so many seconds is not stopped.
LIVES_S = 2.5


@dataclass(frozen=True)
class Loss:
    """That a rank has failed, as all others are told.

    Attributes
    ----------
    rank : int or None
        None where an exchange does not end although all ranks have come to it.
    host : str
    why : str
        In one clause.
    superstep, phase, checkpoints
        What it had told of itself: see `Activity`.
    """

    rank: int | None
    host: str
    why: str
    superstep: int | None = None
    phase: str | None = None
    checkpoints: str | None = None

    def told(self) -> dict[str, Any]:
        """Return it as it is sent."""
        return {"is": "lost", **self.__dict__}

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> Loss:
        """Return what was sent."""
        names = cls.__dataclass_fields__
        return cls(**{name: told.get(name) for name in names})  # type: ignore[arg-type]

    def __str__(self) -> str:
        who = "the ranks" if self.rank is None else f"rank {self.rank} on {self.host}"
        at = "" if self.superstep is None else f", superstep {self.superstep}"
        at += f", phase {self.phase}" if self.phase and at else ""
        return f"{who}{at}: {self.why}"


@dataclass
class _Entry:
    """What is known of a rank.

    Attributes
    ----------
    host : str
    timeout : float
        As it gave it to `init`; 0 before that.
    heard : float
        When it said something last.
    state : str
        "starting", before `init`; what `Activity.kind` has; "meeting", in `init`;
        "waiting", in an exchange; "ending"; "ended".
    since : float
        When that began.
    told : mapping
        Its last word.
    failed : str
        Why it ends, as it said itself.
    """

    host: str
    timeout: float = 0.0
    heard: float = 0.0
    state: str = "starting"
    since: float = 0.0
    told: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def limit(self) -> float:
        """How long others may wait, less what it takes to be told."""
        return self.timeout - min(2 * BEAT_S, self.timeout / 4)

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for longer than a rank that lives is silent."""
        return now - self.heard > min(LIVES_S, self.limit / 2)


class Roll:
    """The ranks of one attempt.

    Parameters
    ----------
    hosts : sequence of str
        Where each rank runs.
    now : float
        In seconds, as in all methods.
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

    def hear(self, rank: int, told: Mapping[str, Any], now: float) -> None:
        """Note what a rank has said."""
        one = self._entries[rank]
        one.heard = now
        if one.state in ("ending", "ended"):
            return
        if told["is"] == "hello":
            one.timeout, one.state, one.since = float(told["timeout"]), "meeting", now
        elif told["is"] == "beat":
            one.told, one.state = told, str(told["doing"])
            one.since = now - float(told["for"])
        elif told["is"] == "failed":
            one.failed = str(told["text"])
            of = told.get("of", rank)
            if type(of) is not int or not 0 <= of < len(self._entries):
                of = rank
            # It ends of the same error by itself, and need not be ended.
            self._entries[of].failed = self._entries[of].failed or one.failed
            self._lose(of, one.failed)
        elif told["is"] == "ending":
            one.state, one.since = "ending", now

    def is_stuck(self, rank: int) -> bool:
        """Whether a rank runs, and has not said why it is about to end."""
        one = self._entries[rank]
        return one.state != "ended" and not one.failed

    def lose(self, rank: int, why: str) -> None:
        """Note that nothing will be heard of a rank any more."""
        self._entries[rank].state = "ended"
        self._lose(rank, why)

    def place(self, rank: int, place: tuple[int, str]) -> None:
        """Note which superstep and phase a rank was in when it ended."""
        one = self._entries[rank]
        one.told = {**one.told, "superstep": place[0], "phase": place[1]}
        if self.lost is not None and self.lost.rank == rank:
            self.lost = replace(self.lost, superstep=place[0], phase=place[1])

    def end(self, rank: int, status: int, now: float) -> None:
        """Note that the process of a rank has ended, with a status or by a signal."""
        one = self._entries[rank]
        is_right = status == 0 and one.state in ("starting", "ending")
        one.state, one.heard, one.since = "ended", now, now
        if is_right:
            self._miss(rank, now)
        else:
            self._lose(rank, one.failed or _ended(status))

    def look(self, now: float) -> None:
        """See whether a rank has been silent, or waited for, for too long."""
        if self.lost is not None:
            return
        self._leave_out(now)
        for rank, one in enumerate(self._entries):
            is_watched = one.state not in ("starting", "ending", "ended")
            if is_watched and now - one.heard >= one.limit:
                self._lose(rank, _silent(one, now))
        for rank, one in enumerate(self._entries):
            has_waited = now - one.since >= one.limit > 0
            # One that is silent may have waited before, and does not tell who it is.
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
        """Leave out time in which nobody looked.

        The launcher may have been stopped, or its output; what ranks have said
        meanwhile is still to be heard.
        """
        gap, self._looked = now - self._looked, now
        if gap > LIVES_S:
            for one in self._entries:
                one.heard = min(one.heard + gap, now)
                one.since = min(one.since + gap, now)

    def _miss(self, rank: int, now: float) -> None:
        """Note that a rank has ended without `init`, which others wait in."""
        waits = [r for r, one in enumerate(self._entries) if one.state == "meeting"]
        if self._entries[rank].timeout == 0 and waits:
            self._lose(
                rank, f"has ended while rank {waits[0]} waits in fg.distributed.init()"
            )

    def _blame(self, rank: int, waiting: _Entry, now: float) -> None:
        """Find which rank has others wait in an exchange."""
        call, limit = waiting.told.get("call", ""), waiting.limit
        others = [
            (r, one)
            for r, one in enumerate(self._entries)
            if r != rank and one.state != "ended"
        ]
        for other, one in others:
            # What it was doing when it spoke last need not be what it does now.
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
        """Note that a rank has failed, unless another one has before it."""
        if self.lost is not None:
            return
        one = self._entries[rank or 0]
        told = next((o.told for o in self._entries if o.told.get("checkpoints")), {})
        self.lost = Loss(
            rank,
            one.host,
            why,
            one.told.get("superstep"),
            one.told.get("phase"),
            one.told.get("checkpoints") or told.get("checkpoints"),
        )


def _silent(one: _Entry, now: float) -> str:
    return (
        f"has said nothing for {now - one.heard:.1f} s, and was {_doing(one)} before: "
        "it is stopped, or cannot be reached"
    )


def _doing(one: _Entry) -> str:
    if one.state == "waiting":
        return f"waiting at {one.told.get('call')}"
    what = one.told.get("what")
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

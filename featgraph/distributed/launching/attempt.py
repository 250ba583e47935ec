"""One start of all ranks: what is done about what agents report, signals, and time."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from featgraph._activity import PLACE_BYTES, place_in
from featgraph.distributed.launching.agents import AgentProcess, Agents
from featgraph.distributed.launching.launch import Launch
from featgraph.distributed.launching.output import Output
from featgraph.distributed.launching.roll import BEAT_S, Loss, Roll
from featgraph.distributed.launching.signals import Signals
from featgraph.errors import DistributedError

__all__ = ["Attempt"]

#: Seconds in which the host of a lost rank may say what it did last.
_PLACE_S = 0.5
#: Seconds between passing Ctrl-C on and ending ranks.
_INTERRUPTED_S = 1.5
#: Variables that go to other hosts, by how their names begin.
_TAKEN = ("FEATGRAPH_", "NUMBA_", "OMP_", "MKL_", "GLOO_", "NCCL_", "PYTHON")


class Attempt:
    """One start of all ranks, up to their end.

    Parameters
    ----------
    launch : Launch
    number : int
        How often they were started before.
    agents : Agents
    signals : Signals
        Those that are to end it.
    output : Output
        Where goes what ranks print.
    """

    def __init__(
        self,
        launch: Launch,
        number: int,
        agents: Agents,
        signals: Signals,
        output: Output,
    ) -> None:
        self._launch, self._number, self._agents = launch, number, agents
        self._signals, self._output = signals, output
        self._selector = selectors.DefaultSelector()
        hosts = [h.name for h in launch.hosts for _ in range(h.ranks)]
        self._roll = Roll(hosts, time.monotonic())
        self._is_told_present = False
        self._told: Loss | None = None
        self._killed_at: float | None = None
        #: What is to be done when, once ranks are to end.
        self._steps: list[tuple[float, Callable[[], None]]] = []
        self._signals_seen = 0

    def run(self) -> Loss | None:
        """Start all ranks; return which one failed, when all have ended."""
        with self._selector as selector:
            listen = partial(selector.register, events=selectors.EVENT_READ)
            listen(self._signals.file, data=self._signals.drain)
            for agent in self._agents:
                listen(agent.outlet, data=partial(self._take, agent))
            self._start()
            while not self._agents.are_idle:
                for key, _ in selector.select(self._longest()):
                    key.data()
                self._see_signals()
                self._see_time()
        return self._roll.lost

    def _start(self) -> None:
        hosts, port = self._launch.hosts, _free_port()
        address = "127.0.0.1" if len(hosts) == 1 else hosts[0].name
        common = {
            "WORLD_SIZE": str(self._launch.size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "FEATGRAPH_RESTART_COUNT": str(self._number),
        }
        for place, agent in enumerate(self._agents):
            taken = {} if agent.host.is_here else _taken(os.environ)
            own = common | {"GROUP_RANK": str(place), "FEATGRAPH_HOST": agent.host.name}
            agent.is_idle = False
            agent.ask(
                "start",
                command=list(self._launch.command),
                folder=os.getcwd(),
                gpus=self._launch.gpus,
                ranks=[
                    {"rank": rank, "environment": taken | own | {"RANK": str(rank)}}
                    for rank in agent.ranks
                ],
            )

    # -- what agents report

    def _take(self, agent: AgentProcess) -> None:
        reports = agent.reports()
        if reports is None:
            self._lose_agent(agent)
            return
        for told in reports:
            self._take_report(agent, told)

    def _take_report(self, agent: AgentProcess, told: dict[str, Any]) -> None:
        now = time.monotonic()
        if "error" in told:
            raise DistributedError(
                f"the program cannot be started on {agent.host.name}",
                got=told["error"],
            )
        if "idle" in told:
            agent.is_idle = True
        elif "line" in told:
            self._output.print(self._number, told["rank"], told["to"], told["line"])
        elif "said" in told:
            self._hear(told["rank"], told["said"], now)
        elif "ended" in told:
            place = place_in(bytes.fromhex(told["left"]).ljust(PLACE_BYTES, b"\0"))
            self._roll.end(told["rank"], told["ended"], now)
            if place is not None:
                self._roll.place(told["rank"], place)

    def _hear(self, rank: int, said: Mapping[str, Any], now: float) -> None:
        if said.get("is") == "offer":
            self._agents.tell(dict(said))
            return
        try:
            self._roll.hear(rank, said, now)
        except (KeyError, TypeError, ValueError):  # of something else than featgraph
            return
        if self._roll.are_present and not self._is_told_present:
            self._is_told_present = True
            self._agents.tell({"is": "present"})

    def _lose_agent(self, agent: AgentProcess) -> None:
        """Take all ranks of a host for lost."""
        self._selector.unregister(agent.outlet)
        agent.is_idle = agent.has_gone = True
        for rank in agent.ranks:
            if rank in self._roll.running:
                self._roll.lose(rank, "its host cannot be reached any more")

    # -- what is done

    def _see_signals(self) -> None:
        """Pass Ctrl-C on, and end ranks; at once behind a second one."""
        signals = self._signals.seen
        if len(signals) == self._signals_seen:
            return
        is_first, self._signals_seen = self._signals_seen == 0, len(signals)
        now = time.monotonic()
        if not is_first:
            self._agents.signal(signal.SIGKILL)
        elif signals[0] == signal.SIGINT:
            self._agents.signal(signal.SIGINT)
            self._steps.append((now + _INTERRUPTED_S, self._agents.end_ranks))
        else:
            self._agents.end_ranks()

    def _see_time(self) -> None:
        """Do what it is time for."""
        now = time.monotonic()
        if not self._signals.seen:  # ranks that end then have not failed
            self._roll.look(now)
            self._see_loss(now)
        for step in [step for step in self._steps if step[0] <= now]:
            self._steps.remove(step)
            step[1]()

    def _see_loss(self, now: float) -> None:
        """Have a rank that has failed end, and tell the others when it has."""
        lost = self._roll.lost
        if lost is None or self._told is not None:
            return
        if lost.rank is None or not self._roll.is_stuck(lost.rank):
            self._tell_loss(lost)
        elif self._killed_at is None:
            self._killed_at = now
            self._agents.signal(signal.SIGKILL, [lost.rank])
        elif now >= self._killed_at + _PLACE_S:
            self._tell_loss(lost)

    def _longest(self) -> float:
        """Return for how many seconds nothing need be looked at."""
        now = time.monotonic()
        times = [at - now for at, _ in self._steps]
        if self._killed_at is not None and self._told is None:
            times.append(self._killed_at + _PLACE_S - now)
        return max(min([BEAT_S, *times]), 0)

    def _tell_loss(self, lost: Loss) -> None:
        """Tell survivors, who end by themselves, or are ended."""
        self._told = lost
        self._agents.tell(lost.told())
        self._steps.append(
            (time.monotonic() + self._launch.grace, self._agents.end_ranks)
        )


def _taken(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that another host is given."""
    return {n: text for n, text in environment.items() if n.startswith(_TAKEN)}


def _free_port() -> int:
    """Return a port of this host that is free, for programs that take one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

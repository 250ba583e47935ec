"""``featgraph launch``: starts ranks, watches them, ends them, and begins anew (0056).

An agent on each host has the ranks as its children; the launcher has the agents. It is
one thread, which waits for what agents report, for signals, and for points in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featgraph._activity import place_in
from featgraph.distributed.launching.agent import ENDS_S, MOST_BYTES
from featgraph.distributed.launching.hosts import Host
from featgraph.distributed.launching.output import Output
from featgraph.distributed.launching.roll import BEAT_S, Loss, Roll
from featgraph.errors import DistributedError

__all__ = ["Launch", "Launcher"]

#: Seconds in which the host of a lost rank may say what it did last.
_PLACE_S = 0.5
#: Seconds between passing Ctrl-C on and ending ranks.
_INTERRUPTED_S = 1.5
#: Variables that go to other hosts, by how their names begin.
_TAKEN = ("FEATGRAPH_", "NUMBA_", "OMP_", "MKL_", "GLOO_", "NCCL_", "PYTHON")
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Launch:
    """What is started.

    Attributes
    ----------
    command : sequence of str
        The program of each rank.
    hosts : sequence of Host
    agents : sequence of list of str
        The command that runs the agent of each host.
    restarts : int
        How often all ranks are started again behind a failure.
    grace : float
        Seconds that survivors have to end by themselves.
    gpus : str
        "own": each rank has a GPU of its own, or nothing runs; "auto": where there are
        any.
    logs : Path or None
        See `Output`.
    """

    command: Sequence[str]
    hosts: Sequence[Host]
    agents: Sequence[list[str]]
    restarts: int = 0
    grace: float = 5.0
    gpus: str = "auto"
    logs: Path | None = None

    @property
    def size(self) -> int:
        """How many ranks."""
        return sum(host.ranks for host in self.hosts)


class _Agent:
    """The agent of a host, from here.

    Parameters
    ----------
    host : Host
    ranks : range
    command : list of str
    """

    def __init__(self, host: Host, ranks: range, command: list[str]) -> None:
        self.host, self.ranks = host, ranks
        self.is_idle, self.has_gone = True, False
        self._begun = b""
        try:
            # A session of its own: Ctrl-C of the terminal is for us, who pass it on.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise DistributedError(
                f"nothing can be started on {host.name}",
                got=f"{command[0]}: {error}",
                fix="--ssh says by what command another host runs one",
            ) from error
        self._commands: Any = self.process.stdin
        self.outlet: Any = self.process.stdout

    def ask(self, do: str, **told: Any) -> None:
        """Have it do something; one that has gone does nothing."""
        data = json.dumps({"do": do, **told}).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._commands.write(data)
            self._commands.flush()

    def reports(self) -> list[dict[str, Any]] | None:
        """Return what has come; None when it has gone."""
        data = os.read(self.outlet.fileno(), MOST_BYTES)
        if not data:
            return None
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def close(self) -> None:
        """Have it end; return when it has."""
        for pipe in (self._commands, self.outlet):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.process.wait(2 * ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Launcher:
    """Runs a program on ranks to its end.

    Parameters
    ----------
    launch : Launch
    clock : callable, optional
        Returns seconds.
    """

    def __init__(
        self, launch: Launch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._launch, self._clock = launch, clock
        self._output = Output(launch.size, launch.logs)
        self._selector = selectors.DefaultSelector()
        self._agents: list[_Agent] = []
        self._signals: list[int] = []

    def run(self) -> int:
        """Run the program, and again behind failures; return the exit status.

        It is 0 where all ranks ended with 0, 128 and the number of a signal that ended
        the launcher, else 1.
        """
        launch = self._launch
        with self._noting_signals():
            try:
                self._start_agents()
                for attempt in range(launch.restarts + 1):
                    lost = _Attempt(self, attempt).run()
                    if self._signals:
                        return 128 + self._signals[0]
                    if lost is None:
                        return 0
                    again = attempt < launch.restarts and not self._gone()
                    _report(lost, attempt + 1, launch.restarts, again)
                    if not again:
                        break
                return 1
            finally:
                for agent in self._agents:
                    agent.close()
                self._output.close()
                self._selector.close()

    def _gone(self) -> list[str]:
        """Return the hosts that cannot be reached any more."""
        return [agent.host.name for agent in self._agents if agent.has_gone]

    def _start_agents(self) -> None:
        begin = 0
        for host, command in zip(self._launch.hosts, self._launch.agents, strict=True):
            agent = _Agent(host, range(begin, begin + host.ranks), command)
            self._agents.append(agent)
            self._selector.register(agent.outlet, selectors.EVENT_READ, agent)
            begin += host.ranks

    @contextlib.contextmanager
    def _noting_signals(self) -> Iterator[None]:
        """Note signals that are to end us, and be woken by them."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ, None)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        fd = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda number, _: self._signals.append(number))
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            wake.close()
            woken.close()


class _Attempt:
    """One start of all ranks, up to their end.

    Parameters
    ----------
    launcher : Launcher
    number : int
        How often they were started before.
    """

    def __init__(self, launcher: Launcher, number: int) -> None:
        self._launcher, self._launch, self._number = launcher, launcher._launch, number
        self._agents, self._clock = launcher._agents, launcher._clock
        hosts = [h.name for h in self._launch.hosts for _ in range(h.ranks)]
        self._roll = Roll(hosts, self._clock())
        self._is_told_present = False
        self._told: Loss | None = None
        self._killed_at: float | None = None
        #: What is to be done when, once ranks are to end.
        self._steps: list[tuple[float, Callable[[], None]]] = []
        self._signals_seen = 0

    def run(self) -> Loss | None:
        """Start all ranks; return which one failed, when all have ended."""
        self._start()
        selector = self._launcher._selector
        while not all(agent.is_idle for agent in self._agents):
            for key, _ in selector.select(self._longest()):
                if key.data is None:
                    os.read(key.fd, 4096)
                else:
                    self._take(key.data)
            self._see_signals()
            self._see_time()
        return self._roll.lost

    def _start(self) -> None:
        first, port = self._agents[0].host, _free_port()
        address = "127.0.0.1" if len(self._agents) == 1 else first.name
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

    def _take(self, agent: _Agent) -> None:
        reports = agent.reports()
        if reports is None:
            self._lose_agent(agent)
            return
        for told in reports:
            self._take_report(agent, told)

    def _take_report(self, agent: _Agent, told: dict[str, Any]) -> None:
        now = self._clock()
        if "error" in told:
            raise DistributedError(
                f"the program cannot be started on {agent.host.name}",
                got=told["error"],
            )
        if "idle" in told:
            agent.is_idle = True
        elif "line" in told:
            self._launcher._output.print(
                self._number, told["rank"], told["to"], told["line"]
            )
        elif "said" in told:
            self._hear(told["rank"], told["said"], now)
        elif "ended" in told:
            place = place_in(bytes.fromhex(told["left"]).ljust(_PAGE_BYTES, b"\0"))
            self._roll.end(told["rank"], told["ended"], now)
            if place is not None:
                self._roll.place(told["rank"], place)
            lost = self._roll.lost
            if lost is not None and lost.rank == told["rank"]:
                self._tell_loss(lost)

    def _hear(self, rank: int, said: Mapping[str, Any], now: float) -> None:
        if said.get("is") == "offer":
            self._tell_all(dict(said))
            return
        try:
            self._roll.hear(rank, said, now)
        except (KeyError, TypeError, ValueError):  # of something else than featgraph
            return
        if self._roll.are_present and not self._is_told_present:
            self._is_told_present = True
            self._tell_all({"is": "present"})

    def _lose_agent(self, agent: _Agent) -> None:
        """Take all ranks of a host for lost."""
        self._launcher._selector.unregister(agent.outlet)
        agent.is_idle = agent.has_gone = True
        for rank in agent.ranks:
            if rank in self._roll.running:
                self._roll.end(rank, -signal.SIGHUP, self._clock())

    # -- what is done

    def _see_signals(self) -> None:
        """Pass Ctrl-C on, and end ranks; at once behind a second one."""
        signals = self._launcher._signals
        if len(signals) == self._signals_seen:
            return
        is_first, self._signals_seen = self._signals_seen == 0, len(signals)
        now = self._clock()
        if not is_first:
            self._signal(signal.SIGKILL)
        elif signals[0] == signal.SIGINT:
            self._signal(signal.SIGINT)
            self._steps.append((now + _INTERRUPTED_S, self._end_all))
        else:
            self._end_all()

    def _see_time(self) -> None:
        """Do what it is time for."""
        now = self._clock()
        if self._roll.lost is None and not self._launcher._signals:
            self._roll.look(now)
        lost = self._roll.lost
        if lost is not None and self._told is None:
            if self._killed_at is None:
                self._killed_at = now
                self._signal(signal.SIGKILL, [] if lost.rank is None else [lost.rank])
            # When it has ended, its host says what it did last.
            is_running = lost.rank is not None and lost.rank in self._roll.running
            if not is_running or now >= self._killed_at + _PLACE_S:
                self._tell_loss(lost)
        for step in [step for step in self._steps if step[0] <= now]:
            self._steps.remove(step)
            step[1]()

    def _longest(self) -> float:
        """Return for how many seconds nothing need be looked at."""
        now = self._clock()
        times = [at - now for at, _ in self._steps]
        if self._killed_at is not None and self._told is None:
            times.append(self._killed_at + _PLACE_S - now)
        return max(min([BEAT_S, *times]), 0)

    def _tell_loss(self, lost: Loss) -> None:
        """Tell survivors, who end by themselves, or are ended."""
        if self._told is None:
            self._told = lost
            self._tell_all(lost.told())
            self._steps.append((self._clock() + self._launch.grace, self._end_all))

    def _tell_all(self, message: dict[str, Any]) -> None:
        for agent in self._agents:
            for rank in agent.ranks:
                agent.ask("tell", rank=rank, message=message)

    def _signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        for agent in self._agents:
            meant = [r for r in agent.ranks if ranks is None or r in ranks]
            agent.ask("signal", number=int(number), ranks=meant)

    def _end_all(self) -> None:
        for agent in self._agents:
            agent.ask("end")


def _report(lost: Loss, number: int, restarts: int, again: bool) -> None:
    text = f"featgraph: {lost}"
    if again:
        text += f"; all ranks are started again ({number} of {restarts})"
    print(text, file=sys.stderr, flush=True)


def _taken(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that another host is given."""
    return {n: text for n, text in environment.items() if n.startswith(_TAKEN)}


def _free_port() -> int:
    """Return a port of this host that is free, for programs that take one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

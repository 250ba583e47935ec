"""The launcher: starts ranks by agents, watches, ends and restarts them (0056).

The agent of each host is a child of the launcher, and the parent of the ranks there.
The launcher is one thread, which waits for reports of agents, signals, and times. An
`Attempt` is one start of all ranks, up to their end.

The first part of the file has hosts files, the commands that run the agent of a host,
and the launched program, `Launch`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

from featgraph.base.activity import PLACE_BYTES, place_in
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, DistributedError, FileFormatError
from featgraph.base.files import read_file
from featgraph.ranks.launching import agent as agents_file
from featgraph.ranks.launching.agent import ENDS_S, MOST_BYTES, drain
from featgraph.ranks.launching.roll import BEAT_S, Loss, Roll

__all__ = ["SSH", "Host", "Launch", "command_on", "read_hosts", "run"]


#: Most bytes of a hosts file: far more than a launcher can start.
_MOST_BYTES = 1 << 24
#: Names of the host on which the launcher runs.
HERE = frozenset({"localhost", "127.0.0.1", "::1"})
#: The template that runs a command on another host; the command is appended.
SSH = "ssh -o BatchMode=yes {host}"
#: A Python program that runs the agent's file on another host, without importing
#: featgraph there.
_AGENT_THERE = (
    "import importlib.util as u, runpy; "
    "[place] = u.find_spec('featgraph').submodule_search_locations; "
    "runpy.run_path(place + '/ranks/launching/agent.py', run_name='__main__')"
)


@dataclass(frozen=True)
class Host:
    """A host and its number of ranks.

    Attributes
    ----------
    name : str
    ranks : int
    """

    name: str
    ranks: int

    @property
    def is_here(self) -> bool:
        """Whether it is the host of the launcher."""
        return self.name in HERE


def read_hosts(path: Path) -> list[Host]:
    """Read a hosts file, with a line ``HOST RANKS`` for each; ``#`` begins a comment.

    Raises
    ------
    FileFormatError
        With file and line: if a line is invalid, a host occurs twice, the first of
        several hosts has a loopback name, or there are no hosts.
    OSError
        If the file cannot be read.
    """
    found: list[Host] = []
    for number, line in enumerate(_lines(path), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        is_count = len(words) == 2 and words[1].isascii() and words[1].isdecimal()
        # A name that begins with a dash would be an option of ssh.
        if not is_count or int(words[1]) < 1 or words[0].startswith("-"):
            raise FileFormatError(
                "not a host and its number of ranks",
                where=where,
                got=f"{line.strip()!r:.80}",
                expected="HOST RANKS, as in: node7 4",
            )
        if any(host.name == words[0] for host in found):
            raise FileFormatError(
                "a host occurs twice",
                where=where,
                got=words[0],
                fix="give it one line, with all of its ranks",
            )
        found.append(Host(words[0], int(words[1])))
    if not found:
        raise FileFormatError("no hosts", where=str(path), expected="HOST RANKS a line")
    if len(found) > 1 and found[0].is_here:
        raise FileFormatError(
            "other hosts cannot reach the first host by this name",
            where=str(path),
            got=found[0].name,
            expected="the name or address of the host to which all others connect",
        )
    return found


def command_on(host: Host, template: str, python: str) -> list[str]:
    """Return the command that runs the agent of a host.

    Parameters
    ----------
    host : Host
    template : str
        The command prefix for other hosts; ``{host}`` stands for the name.
    python : str
        The Python interpreter on the host.

    Raises
    ------
    ArgumentError
        If the template cannot be split into words.
    """
    if host.is_here:
        # Isolated: no module of the program's folder shadows the standard library.
        return [sys.executable, "-I", agents_file.__file__]
    try:
        words = [word.replace("{host}", host.name) for word in shlex.split(template)]
    except ValueError as error:
        raise ArgumentError(
            "not a command", where="--ssh", got=repr(template), expected=str(error)
        ) from error
    return [*words, shlex.join([python, "-c", _AGENT_THERE])]


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path, _MOST_BYTES, follows=True).decode().splitlines()
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            "not a text file",
            where=str(path),
            got=str(error),
            expected=f"a regular file of UTF-8 text, of {_MOST_BYTES} bytes at most",
        ) from error


@dataclass(frozen=True)
class Launch:
    """A program to be launched on ranks.

    Attributes
    ----------
    command : sequence of str
        The program of each rank.
    hosts : sequence of Host
    agents : sequence of list of str
        The command that runs the agent of each host.
    restarts : int
        Most restarts of all ranks after failures.
    grace : float
        Seconds that other ranks have to end by themselves after a failure.
    gpus : str
        "own": each rank needs a GPU of its own; "auto": ranks share the GPUs of their
        host, if there are any.
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
        """Number of ranks."""
        return sum(host.ranks for host in self.hosts)


class AgentProcess:
    """The agent of a host, as a child process of the launcher.

    Parameters
    ----------
    host : Host
    ranks : range
        The ranks on this host.
    command : list of str
        Runs the agent.
    """

    def __init__(self, host: Host, ranks: range, command: list[str]) -> None:
        self.host, self.ranks = host, ranks
        self.is_idle, self.has_gone = True, False
        self._begun = b""
        try:
            # A session of its own: the launcher forwards Ctrl-C of the terminal.
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
                fix="--ssh=COMMAND that runs a command on another host",
            ) from error
        self._commands: Any = self.process.stdin
        self.outlet: Any = self.process.stdout

    def request(self, do: str, **fields: Any) -> None:
        """Send a command to the agent; do nothing if it has ended."""
        data = json.dumps({"do": do, **fields}).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._commands.write(data)
            self._commands.flush()

    def reports(self) -> list[dict[str, Any]] | None:
        """Return the reports that have arrived; None if the agent has ended."""
        data = os.read(self.outlet.fileno(), MOST_BYTES)
        if not data:
            return None
        *lines, self._begun = (self._begun + data).split(b"\n")
        # A shell on another host may print lines of its own.
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def hang_up(self) -> None:
        """Close the pipes: the agent then ends its ranks, and itself."""
        for pipe in (self._commands, self.outlet):
            with contextlib.suppress(OSError):
                pipe.close()

    def wait(self, until: float) -> None:
        """Wait until the agent has ended; kill it at the time `until`."""
        try:
            self.process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Agents:
    """The agents of all hosts.

    Parameters
    ----------
    hosts : sequence of Host
    commands : sequence of list of str
        The command that runs the agent of each host.
    """

    def __init__(self, hosts: Sequence[Host], commands: Sequence[list[str]]) -> None:
        self._all: list[AgentProcess] = []
        begin = 0
        try:
            for host, command in zip(hosts, commands, strict=True):
                ranks = range(begin, begin + host.ranks)
                self._all.append(AgentProcess(host, ranks, command))
                begin = ranks.stop
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[AgentProcess]:
        return iter(self._all)

    @property
    def are_idle(self) -> bool:
        """Whether all ranks have ended."""
        return all(agent.is_idle for agent in self)

    @property
    def are_there(self) -> bool:
        """Whether the agents of all hosts still run."""
        return not any(agent.has_gone for agent in self)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to all ranks."""
        for agent in self:
            for rank in agent.ranks:
                agent.request("send", rank=rank, message=message)

    def signal(self, number: int, ranks: Iterable[int] | None = None) -> None:
        """Send a signal to the process groups of some ranks; default all."""
        chosen = None if ranks is None else set(ranks)
        for agent in self:
            meant = [r for r in agent.ranks if chosen is None or r in chosen]
            agent.request("signal", number=int(number), ranks=meant)

    def end_ranks(self) -> None:
        """End all ranks; after `ENDS_S` they are killed."""
        for agent in self:
            agent.request("end")

    def close(self) -> None:
        """End all agents, with their ranks."""
        for agent in self:
            agent.hang_up()
        until = time.monotonic() + 2 * ENDS_S
        for agent in self:
            agent.wait(until)


#: Signals that end an attempt.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context that records signals, in place of their handlers.

    Attributes
    ----------
    seen : list of int
        The signals received so far, in order.
    file : socket
        Readable after a signal, until it is drained.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._wake, self.file = socket.socketpair()
        for end in (self._wake, self.file):
            end.setblocking(False)
        self._before: dict[int, Any] = {}
        self._fd = -1

    def __enter__(self) -> Signals:
        self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in _NUMBERS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wake.close()
        self.file.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)


class Output:
    """The destination of the ranks' output.

    Parameters
    ----------
    size : int
        Number of ranks; lines of a single rank get no number.
    folder : Path, optional
        The folder of files, one for each rank and attempt: ``0-rank3.out`` and
        ``.err``. By default lines go to the launcher's output, prefixed by the rank.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        self._size, self._folder = size, folder
        self._files: dict[str, IO[str]] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def print(self, attempt: int, rank: int, name: str, line: str) -> None:
        """Write a line of a rank's "out" or "err"."""
        stream = sys.stderr if name == "err" else sys.stdout
        if self._folder is not None:
            file = f"{attempt}-rank{rank}.{name}"
            if file not in self._files:
                self._files[file] = (self._folder / file).open("w", encoding="utf-8")
            stream = self._files[file]
        elif self._size > 1:
            line = f"[{rank}] {line}"
        stream.write(line + "\n")
        stream.flush()

    def close(self) -> None:
        """Close all files."""
        while self._files:
            self._files.popitem()[1].close()


#: Seconds to wait for the agent's report of a lost rank's superstep.
_PLACE_S = 0.5
#: Seconds between forwarding Ctrl-C and ending ranks.
_INTERRUPTED_S = 1.5
#: Prefixes of environment variables that are copied to other hosts.
_TAKEN = ("FEATGRAPH_", "NUMBA_", "OMP_", "MKL_", "GLOO_", "NCCL_", "PYTHON")


class Attempt:
    """One start of all ranks, up to their end.

    Parameters
    ----------
    launch : Launch
    number : int
        Number of earlier attempts.
    agents : Agents
    signals : Signals
        The signals that end the attempt.
    output : Output
        The destination of the ranks' output.
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
        self._is_present_sent = False
        self._announced: Loss | None = None
        self._killed_at: float | None = None
        #: Steps that end the ranks, each with its time.
        self._steps: list[tuple[float, Callable[[], None]]] = []
        self._signals_seen = 0

    def run(self) -> Loss | None:
        """Start all ranks, wait until all have ended; return the failure, or None."""
        with self._selector as selector:
            listen = partial(selector.register, events=selectors.EVENT_READ)
            listen(self._signals.file, data=partial(drain, self._signals.file))
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
        """Send each agent the command and the environments of its ranks."""
        hosts, port = self._launch.hosts, _free_port()
        address = "127.0.0.1" if len(hosts) == 1 else hosts[0].name
        common = {
            "WORLD_SIZE": str(self._launch.size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "FEATGRAPH_RESTART_COUNT": str(self._number),
        }
        for place, agent in enumerate(self._agents):
            known = {} if agent.host.is_here else os.environ
            taken = {n: text for n, text in known.items() if n.startswith(_TAKEN)}
            own = common | {"GROUP_RANK": str(place), "FEATGRAPH_HOST": agent.host.name}
            agent.is_idle = False
            agent.request(
                "start",
                command=list(self._launch.command),
                folder=os.getcwd(),
                gpus=self._launch.gpus,
                ranks=[
                    {"rank": rank, "environment": taken | own | {"RANK": str(rank)}}
                    for rank in agent.ranks
                ],
            )

    # -- reports of agents

    def _take(self, agent: AgentProcess) -> None:
        reports = agent.reports()
        if reports is None:
            self._lose_agent(agent)
            return
        for fields in reports:
            self._take_report(agent, fields)

    def _take_report(self, agent: AgentProcess, fields: dict[str, Any]) -> None:
        now = time.monotonic()
        if "error" in fields:
            raise DistributedError(
                f"the program cannot be started on {agent.host.name}",
                got=fields["error"],
            )
        if "idle" in fields:
            agent.is_idle = True
        elif "line" in fields:
            self._output.print(
                self._number, fields["rank"], fields["to"], fields["line"]
            )
        elif "message" in fields:
            self._receive(fields["rank"], fields["message"], now)
        elif "ended" in fields:
            place = place_in(bytes.fromhex(fields["left"]).ljust(PLACE_BYTES, b"\0"))
            self._roll.end(fields["rank"], fields["ended"], now)
            if place is not None:
                self._roll.place(fields["rank"], place)

    def _receive(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        if message.get("is") == "offer":
            self._agents.send(dict(message))
            return
        try:
            self._roll.receive(rank, message, now)
        except (KeyError, TypeError, ValueError):  # not a message of featgraph
            return
        if self._roll.are_present and not self._is_present_sent:
            self._is_present_sent = True
            self._agents.send({"is": "present"})

    def _lose_agent(self, agent: AgentProcess) -> None:
        """Mark all running ranks of a host as lost."""
        self._selector.unregister(agent.outlet)
        agent.is_idle = agent.has_gone = True
        for rank in agent.ranks:
            if rank in self._roll.running:
                self._roll.lose(rank, "its host cannot be reached any more")

    # -- signals and times

    def _see_signals(self) -> None:
        """Forward the first signal and end ranks; kill them at a second signal."""
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
        """Check timeouts, and execute the steps that are due."""
        now = time.monotonic()
        if not self._signals.seen:  # after a signal, ranks end without a failure
            self._roll.look(now)
            self._see_loss(now)
        for step in [step for step in self._steps if step[0] <= now]:
            self._steps.remove(step)
            step[1]()

    def _see_loss(self, now: float) -> None:
        """Kill a failed rank that still runs, then report it to the others."""
        lost = self._roll.lost
        if lost is None or self._announced is not None:
            return
        if lost.rank is None or not self._roll.is_stuck(lost.rank):
            self._announce(lost)
        elif self._killed_at is None:
            self._killed_at = now
            self._agents.signal(signal.SIGKILL, [lost.rank])
        elif now >= self._killed_at + _PLACE_S:
            self._announce(lost)

    def _longest(self) -> float:
        """Return the seconds until the next step or check."""
        now = time.monotonic()
        times = [at - now for at, _ in self._steps]
        if self._killed_at is not None and self._announced is None:
            times.append(self._killed_at + _PLACE_S - now)
        return max(min([BEAT_S, *times]), 0)

    def _announce(self, lost: Loss) -> None:
        """Report a lost rank to all ranks; end those that still run after `grace`."""
        self._announced = lost
        self._agents.send(lost.message())
        self._steps.append(
            (time.monotonic() + self._launch.grace, self._agents.end_ranks)
        )


def _free_port() -> int:
    """Return a free port of this host, for MASTER_PORT."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(launch: Launch) -> int:
    """Run a program on ranks to its end, and restart it after failures.

    Returns
    -------
    int
        The exit status: 0 if all ranks ended with 0; 128 plus the number of the signal
        that ended the launcher; else 1.

    Raises
    ------
    DistributedError
        If the agent or the program cannot be started on a host.
    """
    with (
        closing(Output(launch.size, launch.logs)) as output,
        Signals() as signals,
        closing(Agents(launch.hosts, launch.agents)) as agents,
    ):
        for number in range(launch.restarts + 1):
            lost = Attempt(launch, number, agents, signals, output).run()
            if signals.seen:
                return 128 + signals.seen[0]
            if lost is None:
                return 0
            again = number < launch.restarts and agents.are_there
            count = f"{number + 1} of {launch.restarts}"
            then = f"; all ranks are started again ({count})" if again else ""
            print(f"featgraph: {lost}{then}", file=sys.stderr, flush=True)
            if not again:
                break
        return 1

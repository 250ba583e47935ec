"""The agents of all hosts, as the launcher sees them: processes that it asks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from featgraph.distributed.launching.agent import ENDS_S, MOST_BYTES
from featgraph.distributed.launching.hosts import Host
from featgraph.errors import DistributedError

__all__ = ["AgentProcess", "Agents"]


class AgentProcess:
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

    def hang_up(self) -> None:
        """Have it end all that it has started, and then itself."""
        for pipe in (self._commands, self.outlet):
            with contextlib.suppress(OSError):
                pipe.close()

    def wait(self, until: float) -> None:
        """Return when it has ended; it is killed if that takes too long."""
        try:
            self.process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Agents:
    """The agents of all hosts, each a process of its own, by which ranks are reached.

    Parameters
    ----------
    hosts : sequence of Host
    commands : sequence of list of str
        What runs the agent of each.
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
        """Whether no rank runs any more."""
        return all(agent.is_idle for agent in self)

    @property
    def are_there(self) -> bool:
        """Whether all hosts can be reached."""
        return not any(agent.has_gone for agent in self)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Hand a message to all ranks."""
        for agent in self:
            for rank in agent.ranks:
                agent.ask("tell", rank=rank, message=message)

    def signal(self, number: int, ranks: Iterable[int] | None = None) -> None:
        """Send a signal to some ranks, or all, and to what they have started."""
        chosen = None if ranks is None else set(ranks)
        for agent in self:
            meant = [r for r in agent.ranks if chosen is None or r in chosen]
            agent.ask("signal", number=int(number), ranks=meant)

    def end_ranks(self) -> None:
        """Have all ranks end; soon they are killed."""
        for agent in self:
            agent.ask("end")

    def close(self) -> None:
        """Have all of them end, with whatever they have started."""
        for agent in self:
            agent.hang_up()
        until = time.monotonic() + 2 * ENDS_S
        for agent in self:
            agent.wait(until)

"""Hosts files, commands that run the agent of a host, and the launched program."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, FileFormatError
from featgraph.base.files import read_file
from featgraph.ranks.launching import agent

__all__ = ["HERE", "SSH", "Host", "Launch", "command_on", "read_hosts"]

#: Most bytes of a hosts file: far more than a launcher can start.
_MOST_BYTES = 1 << 24
#: Names of the host on which the launcher runs.
HERE = frozenset({"localhost", "127.0.0.1", "::1"})
#: The template that runs a command on another host; the command is appended.
SSH = "ssh -o BatchMode=yes {host}"
#: Runs the agent by its file on another host, without importing featgraph.
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
        return [sys.executable, "-I", agent.__file__]
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

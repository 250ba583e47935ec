"""The agent of a host: starts its ranks, forwards their messages, and ends them.

The launcher runs one agent on each host, as a process that imports only the standard
library. They exchange lines of JSON over the agent's standard input and output. When
the input ends, because the launcher or the connection has ended, the agent ends all
processes that it has started; when the agent is killed, the system kills its ranks.

Each rank inherits a socket to the agent, so that nothing listens at an address, and no
other process can connect. It also inherits a page of shared memory for the number of
its superstep, which the agent reads when the rank has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

#: The environment variable with the descriptors of a rank's socket and page.
INHERITED = "FEATGRAPH_LAUNCHER"
#: Bytes of the shared memory with a rank's superstep: the least that can be mapped.
PAGE_BYTES = mmap.PAGESIZE
#: Longest line of a rank's output that is forwarded whole, and of a message.
MOST_BYTES = 1 << 16
#: Seconds between SIGTERM and SIGKILL.
ENDS_S = 2.5
#: Seconds without a message until a rank's processor time is read.
PULSE_S = 1.0
#: Numbers of operations of Linux' prctl.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Rank:
    """A running rank of this host.

    Parameters
    ----------
    number : int
    process : int
        Its id; the rank leads a session, and a process group, of its own.
    sources : dict of str to socket or file
        "message": the socket; "out" and "err": pipes that it writes.
    page : mmap
        Shared memory with its superstep and phase.
    """

    def __init__(
        self, number: int, process: int, sources: dict[str, Any], page: mmap.mmap
    ) -> None:
        self.number, self.process, self.page = number, process, page
        self.sources = sources
        #: Time of the last message or check, and the rank's processor time then.
        self.looked_at, self.used_s = time.monotonic(), 0.0
        #: Received bytes of incomplete lines, by source.
        self.begun = dict.fromkeys(sources, b"")

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process, number)


def start_process(
    command: Sequence[str], environment: Mapping[str, str], given: Sequence[int]
) -> tuple[int, dict[str, Any]]:
    """Start the program of a rank, which inherits the descriptors `given`.

    Returns the process id and its pipes, "out" and "err".
    """
    parent = os.getpid()

    def in_child() -> None:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)

    started = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=given,
        start_new_session=True,
        preexec_fn=in_child,  # no threads run here
    )
    started.returncode = 0  # this module waits for all children itself
    return started.pid, {"out": started.stdout, "err": started.stderr}


class Agent:
    """The event loop of an agent.

    Parameters
    ----------
    commands : int
        Descriptor from which the launcher's lines are read.
    reports : int
        Descriptor to which lines for the launcher are written.
    start : callable
        See `start_process`.
    """

    def __init__(
        self, commands: int, reports: int, start: Callable[..., Any] = start_process
    ) -> None:
        self._commands, self._reports, self._start = commands, reports, start
        self._begun = b""
        self._ranks: dict[int, Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._is_over = False
        self._does: dict[str, Callable[..., None]] = {
            "start": self._start_ranks,
            "send": self._send,
            "signal": self._signal,
            "end": self._end,
        }

    def run(self) -> None:
        """Execute the launcher's commands, until it and all ranks have ended."""
        # Orphans of ranks become children of the agent, which can then end them.
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        # A signal makes `woken` readable, and so ends the wait of the selector.
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._leave())
        self._selector.register(woken, selectors.EVENT_READ, lambda: drain(woken))
        self._selector.register(self._commands, selectors.EVENT_READ, self._obey)
        try:
            while not (self._is_over and not self._ranks):
                left = PULSE_S if self._ranks else None
                if self._kill_at is not None:
                    left = max(self._kill_at - time.monotonic(), 0)
                for key, _ in self._selector.select(left):
                    key.data()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill_at = None
                    self._signal(signal.SIGKILL, list(self._ranks))
                self._wait()
                self._check_pulses()
        finally:
            self._signal(signal.SIGKILL, list(self._ranks))
            _end_descendants()

    # -- commands of the launcher

    def _obey(self) -> None:
        """Execute the launcher's commands that have arrived."""
        data = os.read(self._commands, MOST_BYTES)
        if not data:
            self._leave()
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            self._does[fields.pop("do")](**fields)

    def _leave(self) -> None:
        """End all ranks, and then the agent."""
        if not self._is_over:
            self._is_over = True
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._commands)
        self._end()

    def _start_ranks(
        self, command: list[str], folder: str, ranks: list[dict[str, Any]], gpus: str
    ) -> None:
        """Start ranks, each with environment variables of its own."""
        self._kill_at = None  # earlier ranks have ended
        try:
            os.chdir(folder)
            cards = _cards(gpus, len(ranks))
            cores = max(len(os.sched_getaffinity(0)) // len(ranks), 1)
            for place, rank in enumerate(ranks):
                environment = dict(os.environ)
                for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
                    environment.setdefault(name, str(cores))
                if cards:
                    environment["CUDA_VISIBLE_DEVICES"] = cards[place % len(cards)]
                environment |= rank["environment"] | {
                    "LOCAL_RANK": str(place),
                    "LOCAL_WORLD_SIZE": str(len(ranks)),
                    "PYTHONUNBUFFERED": "1",
                }
                self._start_rank(rank["rank"], command, environment)
        except (OSError, ValueError) as error:
            self._report(error=f"{error}")

    def _start_rank(
        self, number: int, command: list[str], environment: dict[str, str]
    ) -> None:
        own, given = socket.socketpair()
        noted = os.memfd_create("featgraph rank")
        os.ftruncate(noted, PAGE_BYTES)
        try:
            files = given.fileno(), noted
            environment[INHERITED] = "{},{}".format(*files)
            process, outputs = self._start(command, environment, files)
            page = mmap.mmap(noted, PAGE_BYTES)
        except BaseException:
            own.close()
            raise
        finally:
            given.close()
            os.close(noted)
        sources = {"message": own, **outputs}
        rank = self._ranks[number] = Rank(number, process, sources, page)
        for name, source in sources.items():
            os.set_blocking(source.fileno(), False)
            receive = partial(self._receive, rank, source, name)
            self._selector.register(source, selectors.EVENT_READ, receive)

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        """Send a message to a rank; it is lost if the rank does not read."""
        if rank in self._ranks:
            talk, line = self._ranks[rank].sources["message"], json.dumps(message)
            with contextlib.suppress(OSError):
                talk.sendall(line.encode() + b"\n")

    def _signal(self, number: int, ranks: list[int]) -> None:
        for rank in ranks:
            if rank in self._ranks:
                self._ranks[rank].signal(number)

    def _end(self) -> None:
        """Send SIGTERM to all ranks; after `ENDS_S` they are killed."""
        for number in (signal.SIGTERM, signal.SIGCONT):  # also those that are stopped
            self._signal(number, list(self._ranks))
        if self._ranks and self._kill_at is None:
            self._kill_at = time.monotonic() + ENDS_S

    # -- messages and ends of ranks

    def _receive(self, rank: Rank, source: Any, name: str) -> None:
        """Forward messages or output of a rank, line by line."""
        try:
            data = os.read(source.fileno(), MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(source)
            return
        *lines, rest = (rank.begun[name] + data).split(b"\n")
        if len(rest) > MOST_BYTES:
            lines, rest = [*lines, rest], b""
        rank.begun[name] = rest
        for line in lines:
            self._hand_on(rank, name, line)

    def _hand_on(self, rank: Rank, name: str, line: bytes) -> None:
        """Forward a message, or a line of output, to the launcher."""
        if name != "message":
            text = line.decode(errors="replace")
            self._report(rank=rank.number, to=name, line=text)
            return
        rank.looked_at, rank.used_s = time.monotonic(), _used_s(rank.process)
        with contextlib.suppress(ValueError):
            self._report(rank=rank.number, message=json.loads(line))

    def _check_pulses(self) -> None:
        """Report silent ranks that use processor time.

        Compiled code may block the thread that sends messages.
        """
        now = time.monotonic()
        for rank in self._ranks.values():
            if now - rank.looked_at >= PULSE_S:
                used = _used_s(rank.process)
                if used > rank.used_s:
                    self._report(rank=rank.number, message={"is": "pulse"})
                rank.looked_at, rank.used_s = now, used

    def _forget(self, source: Any) -> None:
        """Close a socket or a pipe, and stop listening to it."""
        if not _is_closed(source):
            with contextlib.suppress(KeyError):
                self._selector.unregister(source)
            source.close()

    def _wait(self) -> None:
        """Report ranks that have ended, after forwarding all of their output."""
        by_process = {rank.process: rank for rank in self._ranks.values()}
        while (process := _ended_child()) is not None:
            rank = by_process.get(process)
            if rank is not None:
                # Its process group; the id is not reused before waitpid.
                rank.signal(signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if rank is None:
                continue  # an orphan that a rank had started
            for name, source in rank.sources.items():
                while _has_more(source):
                    self._receive(rank, source, name)
                self._forget(source)
                if rank.begun[name]:
                    self._hand_on(rank, name, rank.begun[name])
            del self._ranks[rank.number]
            left = rank.page[:].rstrip(b"\0").hex()
            rank.page.close()
            code = os.waitstatus_to_exitcode(status)
            self._report(rank=rank.number, ended=code, left=left)
            if not self._ranks:
                self._kill_at = None
                _end_descendants()
                self._report(idle=True)

    def _report(self, **fields: Any) -> None:
        data = json.dumps(fields).encode() + b"\n"
        while data:
            try:
                data = data[os.write(self._reports, data) :]
            except OSError:  # the launcher has gone
                self._leave()
                return


def _cards(gpus: str, ranks: int) -> list[str]:
    """Return the GPUs of this host, as CUDA_VISIBLE_DEVICES names them.

    Raises
    ------
    ValueError
        If `gpus` is "own", and there are fewer GPUs than ranks.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = [name.strip() for name in visible.split(",") if name.strip()]
    else:
        numbers = (re.fullmatch(r"nvidia(\d+)", name) for name in os.listdir("/dev"))
        found = sorted((n[1] for n in numbers if n), key=int)
    if gpus == "own" and ranks > len(found):
        raise ValueError(
            f"there are more ranks than GPUs on {socket.gethostname()}\n"
            f"  got:      {ranks} ranks, and {len(found)} GPUs"
            + ("" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})")
            + "\n  fix:      fewer ranks there, or no --gpus: ranks then share GPUs"
        )
    return found


def _control(operation: int, value: int) -> None:
    """Call Linux' prctl; do nothing if it does not exist."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(operation, value, 0, 0, 0)


def _ended_child() -> int | None:
    """Return the id of a child that has ended but is not reaped; None if none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _used_s(process: int) -> float:
    """Return the processor time of a process in seconds; 0 if it is unknown."""
    try:
        with open(f"/proc/{process}/stat", encoding="latin-1") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _is_closed(source: Any) -> bool:
    """Whether a socket or a file is closed."""
    return source.fileno() < 0 if isinstance(source, socket.socket) else source.closed


def _has_more(source: Any) -> bool:
    """Whether a source is readable, which includes its end."""
    if _is_closed(source):
        return False
    with selectors.DefaultSelector() as one:
        one.register(source, selectors.EVENT_READ)
        return bool(one.select(0))


def drain(end: socket.socket) -> None:
    """Read all bytes that have arrived at a non-blocking socket."""
    with contextlib.suppress(BlockingIOError):
        while end.recv(4096):
            pass


def _end_descendants() -> None:
    """Kill orphans of ranks, whose parent is now the agent."""
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    for _ in range(100):  # their children become orphans in turn
        try:
            with open(path, encoding="ascii") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            return
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


if __name__ == "__main__":
    Agent(sys.stdin.fileno(), sys.stdout.fileno()).run()

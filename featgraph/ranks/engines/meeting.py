"""Rendezvous of ranks on one host: exchange of descriptors of their shared memory.

In `meet`, rank 0 listens at an abstract socket, whose name is a hash of the user, the
launcher's address and the number of the start. The socket vanishes with the process,
and leaves no file. The other ranks send rank 0 descriptors of their memory; it
distributes them, with a connection for each pair of ranks. Processes of other users are
refused.

A connection serves as a bell that wakes a sleeping rank, and is closed by the kernel as
soon as its other end dies.
"""

from __future__ import annotations

import array
import hashlib
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DistributedError

__all__ = ["Met", "is_possible", "meet"]

#: The first bytes of each message but refusals; they end with the protocol's version.
_MAGIC = b"fgm1"
#: Magic, number of ranks, rank, process id.
_HELLO = struct.Struct("<4siiq")
#: Begins a refusal, which is sent in place of a hello.
_REFUSAL = b"no: "
#: Number of descriptors of a rank's memory.
_FILES = 3
#: A hello is shorter; refusals are cut.
_MESSAGE_BYTES = 4096
#: Seconds between two tries to bind or to connect.
_RETRY_S = 0.01
#: Variables of launchers that identify the start of a program.
_STARTS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True)
class Met:
    """Another rank of this host.

    Attributes
    ----------
    process : int
        Its id, as the kernel reports it to rank 0.
    files : tuple of int
        Descriptors of its memory.
    bell : socket
        The connection with it, non-blocking.
    """

    process: int
    files: tuple[int, ...]
    bell: socket.socket


def is_possible() -> bool:
    """Whether this system supports shared memory between ranks."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def meet(
    rank: int, size: int, place: str, files: Sequence[int], timeout: float
) -> dict[int, Met]:
    """Connect with the other ranks of this host, and return them by rank.

    Parameters
    ----------
    rank, size : int
    place : str
        A text that is unique to these ranks, the same on all of them.
    files : sequence of int
        Descriptors of this rank's memory.
    timeout : float
        Limit in seconds.

    Raises
    ------
    DistributedError
        If the ranks do not find each other in time, or are inconsistent.
    """
    name = _name_of(place)
    until = time.monotonic() + timeout
    try:
        if rank == 0:
            return _receive_all(name, size, files, until)
        return _join(name, rank, size, files, until)
    except (OSError, EOFError, struct.error) as error:
        why = str(error) or type(error).__name__
        raise DistributedError(
            f"rank {rank} of {size} did not find the others on this host, at {place}, "
            f"within {timeout:g} s",
            got=why,
            fix="start all ranks, each with its own RANK, as one user, with one "
            "engine=; another run may use this address",
        ) from error


def _name_of(place: str) -> str:
    parts = [os.getuid(), place, *(os.environ.get(name) for name in _STARTS)]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"\0featgraph-{digest[:32]}"


def _socket() -> socket.socket:
    # Messages keep their bounds, so each arrives with the descriptors sent with it.
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _receive_all(
    name: str, size: int, files: Sequence[int], until: float
) -> dict[int, Met]:
    """Wait for all ranks, and send each rank the descriptors of the others."""
    met: dict[int, Met] = {}
    try:
        with _socket() as listener:
            _bind(listener, name, until)
            listener.listen(size)
            while len(met) < size - 1:
                try:
                    listener.settimeout(_left(until))
                    bell, _ = listener.accept()
                except TimeoutError:
                    absent = [str(r) for r in range(1, size) if r not in met]
                    raise TimeoutError(
                        f"no connection from rank {', '.join(absent)}"
                    ) from None
                _welcome(bell, size, met, until)
        _deal_out(size, files, met)
    except OSError as error:
        for known in met.values():
            _refuse(known.bell, str(error))
        raise
    for known in met.values():
        known.bell.setblocking(False)
    return met


def _bind(listener: socket.socket, name: str, until: float) -> None:
    """Bind the name; retry while a rank 0 of an earlier start still has it."""
    while True:
        try:
            return listener.bind(name)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)


def _welcome(bell: socket.socket, size: int, met: dict[int, Met], until: float) -> None:
    """Check a rank that has connected, and add it to `met`."""
    process, user = _other_end(bell)
    if user != os.getuid():  # a stranger must not end the meeting
        bell.close()
        return
    bell.settimeout(_left(until))
    data, files = _receive(bell)
    magic, its_size, rank, _ = _HELLO.unpack(data)
    why = ""
    if magic != _MAGIC or len(files) != _FILES:
        why = "another version of featgraph"
    elif its_size != size:
        why = f"WORLD_SIZE is {size} on rank 0, and {its_size} on rank {rank}"
    elif not 0 < rank < size or rank in met:
        why = f"two ranks have RANK {rank}"
    if why:
        _refuse(bell, why)
        for file in files:
            os.close(file)
        raise OSError(why)
    met[rank] = Met(process, tuple(files), bell)


def _refuse(bell: socket.socket, why: str) -> None:
    with suppress(OSError):  # the peer may have ended
        bell.send((_REFUSAL + why.encode())[:_MESSAGE_BYTES])
    bell.close()


def _deal_out(size: int, files: Sequence[int], met: Mapping[int, Met]) -> None:
    """Send each rank the descriptors of the others, and a connection with each."""
    for rank, known in met.items():
        _send(known.bell, _HELLO.pack(_MAGIC, size, 0, os.getpid()), files)
        for other in range(rank + 1, size):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # Closed here once sent: a copy would hide the end of a rank from its peer.
            with ends[0], ends[1]:
                for to, end, of in ((rank, ends[0], other), (other, ends[1], rank)):
                    hello = _HELLO.pack(_MAGIC, size, of, met[of].process)
                    _send(met[to].bell, hello, [*met[of].files, end.fileno()])


def _join(
    name: str, rank: int, size: int, files: Sequence[int], until: float
) -> dict[int, Met]:
    """Send this rank's descriptors to rank 0; receive the descriptors of the others."""
    first = _connected(name, until)
    met: dict[int, Met] = {}
    try:
        _send(first, _HELLO.pack(_MAGIC, size, rank, os.getpid()), files)
        while len(met) < size - 1:
            first.settimeout(_left(until))
            data, got = _receive(first)
            if data.startswith(_REFUSAL):
                raise OSError(data[len(_REFUSAL) :].decode(errors="replace"))
            _, _, other, process = _HELLO.unpack(data)
            bell = first if other == 0 else socket.socket(fileno=got[_FILES])
            met[other] = Met(process, tuple(got[:_FILES]), bell)
        for known in met.values():
            known.bell.setblocking(False)
    except BaseException:
        first.close()
        raise
    return met


def _connected(name: str, until: float) -> socket.socket:
    """Connect to rank 0, as soon as it listens."""
    while True:
        first = _socket()
        try:
            first.settimeout(_left(until))
            first.connect(name)
            _, user = _other_end(first)
            if user != os.getuid():
                raise PermissionError(f"user {user} listens in the place of rank 0")
            return first
        except ConnectionRefusedError:
            first.close()
            time.sleep(_RETRY_S)
        except BaseException:
            first.close()
            raise


def _other_end(bell: socket.socket) -> tuple[int, int]:
    """Return process id and user id at the other end of a connection."""
    # The system's struct ucred: process, user and group, 32 bits each.
    data = bell.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process, user, _ = struct.unpack("3i", data)
    return process, user


def _send(bell: socket.socket, data: bytes, files: Sequence[int]) -> None:
    held = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    bell.sendmsg([data], [held], socket.MSG_NOSIGNAL)


def _receive(bell: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptors sent with it."""
    files = array.array("i")
    room = socket.CMSG_SPACE((_FILES + 1) * files.itemsize)
    data, parts, _, _ = bell.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, held in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            # A list that was cut may end within a descriptor.
            files.frombytes(held[: len(held) - len(held) % files.itemsize])
    if not data:
        raise EOFError("rank 0 has ended")
    return data, files.tolist()

"""Ranks that are processes: their bytes are moved by PyTorch, over Gloo and NCCL.

The only module that imports PyTorch, when the first such engine is made.

In each exchange every rank first hands every other a record of fixed size, then the
messages that do not fit in it, whose sizes both sides know by then: Gloo ends a process
whose peer sends another number of bytes. Each transfer is of one rank to one other, so
that what fails says whose it was. A thread beside waits within Gloo, so that whoever
waits for the exchange can be interrupted, and leaves when a watch knows of a loss.

Arrays of GPUs go over NCCL, in a group beside it, where each rank has a GPU of its own.
Sizes are known to both sides. A transfer that does not end within the timeout is given
up, on whatever GPU waits for it, and the next exchange over Gloo says which rank it is.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from featgraph._interrupts import import_whole
from featgraph.distributed.engines.aside import Aside, Released
from featgraph.distributed.engines.calls import Call, mismatch
from featgraph.distributed.engines.messages import Bytes, MessageEngine
from featgraph.distributed.engines.processes import (
    broken_off,
    failed,
    lost,
    require_usable,
)
from featgraph.distributed.engines.protocol import Beside, GpuArray, bytes_of
from featgraph.distributed.engines.records import (
    INLINE_BYTES,
    RECORD_BYTES,
    Record,
    called,
    pack,
    unpack,
)
from featgraph.distributed.engines.watching import (
    CONNECT_S,
    MEETING,
    Watching,
    watched,
)
from featgraph.errors import DistributedError, WorkerLostError

__all__ = ["TorchEngine"]

_T = TypeVar("_T")

NOTHING = np.empty(0, np.uint8)
#: Where a launcher says who is lost, Gloo does not: a rank may compile for long.
_NO_LIMIT = timedelta(days=365)
#: Seconds in which transfers end whose sockets have been shut down.
_LEAVES_S = 1.0


class TorchEngine(MessageEngine):
    """A rank that is a process, one of several that were started together.

    Parameters
    ----------
    rank, size : int
        Its number, and how many there are.
    address : str
        Of rank 0. If that is a loopback address, ranks listen at no other.
    port : int
        One that is free there.
    timeout : float
        Seconds that an exchange may wait for a rank.
    watch : Watching, optional
        What says which rank is lost, and when to wait no more. Ranks then meet at a
        port that it tells, and time alone ends no exchange.

    Raises
    ------
    DistributedError
        Where PyTorch is missing, or the ranks do not find each other in time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        port: int,
        timeout: float,
        watch: Watching | None = None,
    ) -> None:
        super().__init__(rank, size)
        self.timeout = timeout
        self.watch = watch
        self._links = _Links(rank, size, timeout, watch)
        self._links.join(address, port)
        self._process = os.getpid()
        self._refusal: DistributedError | None = None
        self._is_open = True
        #: When the last exchange was done, on the thread beside.
        self._done_at = 0.0
        #: Whether arrays of GPUs are handed over, when that has been found out.
        self._reaches: bool | None = None
        self._make: Callable[[int], GpuArray] | None = None

    def close(self, error: BaseException | None = None) -> None:
        """Tell the other ranks that this one ends, and why if it fails.

        Returns when they have come to an exchange, or to their own end, or when that
        takes longer than the timeout. A watch, where there is one, tells why it fails.
        """
        if not self._is_open or self._process != os.getpid():
            return
        self._is_open = False
        cause = self._refusal
        said = Record("ended", self.exchanges)
        if isinstance(cause, WorkerLostError) and cause.rank is not None:
            said = Record("failed", self.exchanges, str(cause.got), rank=cause.rank)
        elif cause is None and error is not None:
            text = f"{type(error).__name__}: {error}"
            said = Record("failed", self.exchanges, text, rank=self.rank)
        # Ranks that went different ways have all seen it.
        is_told = self.watch is not None and said.kind == "failed"
        if (cause is None or said.kind == "failed") and not is_told:
            self._tell(said, [NOTHING] * self.size)
        self._links.leave(is_whole=cause is None and error is None)

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Whether NCCL hands over arrays, for ranks of different GPUs: see `GpuEngine`.

        All ranks must have NCCL, and a GPU each.
        """
        if self._reaches is None:
            told = f"{gpu} {self._links.has_gpus}".encode()
            found = self.all_gather(
                np.frombuffer(told, np.uint8), about="GPUs of ranks"
            )
            gpus = {bytes(one) for one in found if bytes(one).endswith(b"True")}
            self._reaches = len(gpus) == self.size
            if self._reaches:
                self._links.join_gpus()
        self._make = make
        return self._reaches

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
        beside: Beside | None = None,
    ) -> list[GpuArray | None]:
        """Hand arrays of GPUs to other ranks over NCCL: see `GpuEngine`."""
        if self._make is None:
            raise DistributedError("arrays of GPUs before reach_gpus()", got=about)
        call = self._next("hand_over(arrays of a GPU)", about)
        self._require_usable(call)
        stream, make = beside or Beside(0, self._make)
        made = [
            make(size) if size and rank != self.rank else None
            for rank, size in enumerate(sizes)
        ]
        made[self.rank] = arrays[self.rank]
        peers = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._links.transfer_on_gpus(
                {r: arrays[r] for r in peers if bytes_of(arrays[r])},
                {r: made[r] for r in peers if sizes[r]},
                stream,
            )
        except RuntimeError as error:
            self.barrier(about=about)  # where a rank is lost, this says which
            raise DistributedError(
                f"NCCL failed on rank {self.rank} of {self.size}",
                where=str(call),
                got=_said_by(error),
                fix="NCCL_DEBUG=INFO has it say more",
            ) from error
        for rank in peers:
            self.traffic.sent[rank] += bytes_of(arrays[rank])
            self.traffic.received[rank] += sizes[rank]
        return made

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        self._require_usable(call)

        def exchange() -> list[Bytes]:
            received = self._exchanged(call, messages)
            self._done_at = time.perf_counter()
            return received

        with self._breaking_off():
            answer, left = self._links.begin(exchange), time.perf_counter()

        def received() -> list[Bytes]:
            waits = time.perf_counter()
            with self._breaking_off(), watched(self.watch, call):
                found = answer()
            # What the thread beside took while this one computed.
            self.moved_s += max(0.0, min(self._done_at, waits) - left)
            return found

        return received

    @contextmanager
    def _breaking_off(self) -> Iterator[None]:
        """Take no more calls behind an error."""
        try:
            yield
        except DistributedError as error:
            self._refusal = error
            raise
        except BaseException as error:  # an interrupt; out of memory
            self._refusal = broken_off(self.rank, error)
            raise

    def _require_usable(self, call: Call) -> None:
        require_usable(self.rank, call, self._process, self._refusal, self._is_open)
        if self.watch is not None:
            self.watch.raise_lost()

    def _exchanged(self, call: Call, messages: Sequence[Bytes]) -> list[Bytes]:
        said = called(call)
        heard, absent = self._tell(said, messages)
        records = {rank: record for rank, (record, _) in heard.items()}
        for rank, record in records.items():
            if record.kind == "failed":
                raise failed(record, self.size, told_by=rank)
        self._raise_lost(absent, call)
        # As the others read it, whatever its length.
        calls = {self.rank: unpack(pack(said, NOTHING), self.rank)[0].call}
        calls |= {r: one.call for r, one in records.items() if one.kind == "call"}
        ended = {r: one.number for r, one in records.items() if one.kind == "ended"}
        different = mismatch(calls, ended)
        if different is not None:
            raise different
        large = {
            rank: np.empty(record.nbytes, np.uint8)
            for rank, record in records.items()
            if record.nbytes > INLINE_BYTES
        }
        sent = {
            rank: message
            for rank, message in enumerate(messages)
            if rank != self.rank and message.size > INLINE_BYTES
        }
        self._raise_lost(self._links.transfer(sent, large, tag=1), call)
        received = {rank: message for rank, (_, message) in heard.items()} | large
        received[self.rank] = messages[self.rank].copy()
        return [received[rank] for rank in range(self.size)]

    def _tell(
        self, said: Record, messages: Sequence[Bytes]
    ) -> tuple[dict[int, tuple[Record, Bytes]], dict[int, str]]:
        """Hand every rank a record; return what they said, and who said nothing."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        sent = {rank: pack(said, messages[rank]) for rank in peers}
        heard = {rank: np.empty(RECORD_BYTES, np.uint8) for rank in peers}
        absent = self._links.transfer(sent, heard, tag=0)
        return {r: unpack(heard[r], r) for r in peers if r not in absent}, absent

    def _raise_lost(self, why: Mapping[int, str], call: Call) -> None:
        if why:
            raise lost(why, self.size, f"rank {self.rank}, at {call}")


class _Links:
    """Transfers between this process and each other one."""

    def __init__(
        self, rank: int, size: int, timeout: float, watch: Watching | None
    ) -> None:
        try:
            self._torch: Any = import_whole("torch")
            self._talk: Any = import_whole("torch.distributed")
        except ImportError as error:
            raise DistributedError(
                "several ranks need PyTorch",
                got=f"{type(error).__name__}: {error}",
                fix="pip install 'featgraph[distributed]'",
            ) from error
        self._rank, self._size, self._watch = rank, size, watch
        self._timeout = timeout if watch is None else max(timeout, CONNECT_S)
        self._group: Any = None
        self._gpus: Any = None
        self._gpus_end = False
        self._is_ours = False
        #: Sockets that were there before ranks met, and those by which they have, once
        #: that is known: their numbers, and what tells each from others.
        self._before: dict[int, str] = {}
        self._sockets: dict[int, str] | None = None
        self._aside = Aside("featgraph transfers")
        if watch is not None:
            watch.when_lost(self._give_up)

    def join(self, address: str, port: int) -> None:
        """Meet the other ranks."""
        self._before = _open_sockets()
        try:
            self._beside(lambda: self._join(address, port))
        except BaseException:
            self.leave(is_whole=False)
            raise
        self._sockets = self._new_sockets()

    def _join(self, address: str, port: int) -> None:
        limit = timedelta(seconds=self._timeout)
        try:
            with _listening_at(address):
                if self._talk.is_initialized():  # by the program: in a group beside it
                    self._group = self._talk.new_group(backend="gloo", timeout=limit)
                else:
                    self._talk.init_process_group(
                        "gloo",
                        rank=self._rank,
                        world_size=self._size,
                        timeout=limit,
                        **self._meeting(address, port, limit),
                    )
                    self._is_ours = True
        except (RuntimeError, ValueError) as error:
            raise DistributedError(
                f"rank {self._rank} of {self._size} did not find the others at "
                f"{address}, port {port}, within {self._timeout:g} s",
                got=_said_by(error),
                fix="start all ranks, each with its own RANK; is the port taken, or "
                "closed to others?",
            ) from error

    @property
    def has_gpus(self) -> bool:
        """Whether this process can take part in a group of GPUs."""
        return bool(self._torch.cuda.is_available() and self._talk.is_nccl_available())

    def join_gpus(self, backend: str = "nccl") -> None:
        """Meet the other ranks for transfers between GPUs."""
        # A transfer that takes too long is given up; the process goes on.
        with _variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"):
            self._gpus = self._beside(lambda: self._meet_gpus(backend))

    def _meet_gpus(self, backend: str) -> Any:
        """Return a group in which GPUs have met: whoever waits for that can leave."""
        limit, given = timedelta(seconds=self._timeout), {}
        if backend == "nccl":
            # Its few blocks begin before those of a sweep that have not begun.
            options = self._talk.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options._timeout = limit
            given = {"pg_options": options}
        group = self._talk.new_group(backend=backend, timeout=limit, **given)
        if backend == "nccl":  # ranks would meet within their first transfer
            self._talk.all_reduce(self._torch.zeros(1, device="cuda"), group=group)
            self._torch.cuda.synchronize()
        return group

    def _leave_gpus(self) -> None:
        """Begin to abort transfers between GPUs, on a thread that may be left there."""
        if self._gpus is not None and not self._gpus_end:
            self._gpus_end = True
            abort = Thread(target=self._abort_gpus, name="featgraph abort", daemon=True)
            abort.start()

    def _abort_gpus(self) -> None:
        """Have transfers between GPUs end that a lost rank does not take part in.

        Whatever waits for them on a GPU goes on, with anything in what was to come.
        """
        with suppress(RuntimeError):  # it has ended by itself
            self._gpus.abort()

    def transfer_on_gpus(
        self,
        outgoing: Mapping[int, GpuArray],
        incoming: Mapping[int, GpuArray],
        stream: int = 0,
    ) -> None:
        """Have GPUs send and fill arrays, by rank, behind what a stream is doing."""
        if stream:
            gpu = self._torch.cuda
            with gpu.stream(gpu.ExternalStream(stream)):
                self._transfer_on_gpus(outgoing, incoming)
        else:
            self._transfer_on_gpus(outgoing, incoming)

    def _transfer_on_gpus(
        self, outgoing: Mapping[int, GpuArray], incoming: Mapping[int, GpuArray]
    ) -> None:
        talk, asked = self._talk, []
        for begin, arrays in ((talk.irecv, incoming), (talk.isend, outgoing)):
            for rank, array in arrays.items():
                # PyTorch knows few types of integers; all know bytes.
                lent = self._torch.as_tensor(array.view(np.uint8))
                asked.append(talk.P2POp(begin, lent, rank, self._gpus))
        if asked:
            for work in talk.batch_isend_irecv(asked):
                work.wait()  # on the GPU: what the stream does next comes behind it

    def _meeting(self, address: str, port: int, limit: timedelta) -> dict[str, Any]:
        """Return where ranks meet, as a group takes it.

        With a watch, rank 0 listens at a port that it finds free, and says which.
        """
        watch = self._watch
        if watch is None:
            return {"init_method": _meeting_point(address, port)}
        server: dict[str, Any] = {}
        if self._rank == 0:
            listener = _listener_at(address)
            port = listener.getsockname()[1]
            server = {"is_master": True, "master_listen_fd": listener.detach()}
            watch.offer(MEETING, str(port))
        else:
            port = int(watch.ask(MEETING))
        store = self._talk.TCPStore(
            address, port, self._size, timeout=limit, wait_for_workers=False, **server
        )
        return {"store": store}

    def _beside(self, function: Callable[[], _T]) -> _T:
        """Return what a function returns that waits within Gloo, on its thread.

        Raises what the watch knows once a rank is lost, at once.
        """
        return self._answered(lambda: self._aside.run(function))

    def begin(self, function: Callable[[], _T]) -> Callable[[], _T]:
        """Have that thread call a function; return what waits for its result."""
        asked = self._answered(lambda: self._aside.ask(function))
        return lambda: self._answered(lambda: self._aside.answer(asked))

    def _answered(self, ask: Callable[[], _T]) -> _T:
        """Return an answer of the thread beside, or raise what the watch knows."""
        try:
            return ask()
        except Released:
            if self._watch is not None:
                self._watch.raise_lost()
            raise

    def _give_up(self) -> None:
        """Have nobody wait for transfers any more; on another thread."""
        self._aside.release()
        self._sever()
        self._leave_gpus()

    def _sever(self) -> None:
        """Have transfers end, so that the thread leaves Gloo, in nearly all cases.

        What had begun when its connection broke is not among those that Gloo fails.
        """
        links = self._new_sockets() if self._sockets is None else self._sockets
        for number, what in links.items():
            with suppress(OSError):  # closed, or it was never connected
                if os.readlink(f"/proc/self/fd/{number}") != what:
                    continue
                with socket.socket(fileno=os.dup(number)) as link:
                    link.getpeername()
                    link.shutdown(socket.SHUT_RDWR)

    def _new_sockets(self) -> dict[int, str]:
        return dict(_open_sockets().items() - self._before.items())

    def leave(self, is_whole: bool) -> None:
        """Give back what `join` made; with ranks lost, that is left to the end."""
        if not is_whole:
            self._sever()
            self._leave_gpus()
        self._aside.close(_LEAVES_S)
        if self._is_ours and is_whole:
            self._talk.destroy_process_group()

    def transfer(
        self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes], tag: int
    ) -> dict[int, str]:
        """Send and fill bytes, by rank; return why, of ranks with which that failed.

        The first of them is the one that failed by itself: behind a timeout, Gloo
        fails with all others, too.
        """
        return self._beside(lambda: self._transfer(outgoing, incoming, tag))

    def _transfer(
        self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes], tag: int
    ) -> dict[int, str]:
        limit = [] if self._watch is None else [_NO_LIMIT]
        works: list[tuple[int, Any]] = []
        lost: dict[int, str] = {}
        for start, parts in (("irecv", incoming), ("isend", outgoing)):
            for rank, part in parts.items():
                try:
                    begin = getattr(self._talk, start)
                    work = begin(self._tensor(part), rank, group=self._group, tag=tag)
                    works.append((rank, work))
                except RuntimeError as error:
                    lost.setdefault(rank, _said_by(error))
        for rank, work in works:
            if rank not in lost:
                try:
                    work.wait(*limit)
                except RuntimeError as error:
                    lost[rank] = _said_by(error)
        return lost

    def _tensor(self, part: Bytes) -> Any:
        # PyTorch warns of memory that may only be read.
        return self._torch.from_numpy(part if part.flags.writeable else part.copy())


def _said_by(error: Exception) -> str:
    """Return what an error of Gloo says, without its source file and advice."""
    text = re.sub(r"^\[\S*\] ", "", str(error).strip() or type(error).__name__)
    return text.splitlines()[0].partition(". This is typically")[0]


def _meeting_point(address: str, port: int) -> str:
    """Return where ranks meet; a launcher that keeps a place for it says so."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "env://"
    return f"tcp://{address}:{port}"


def _open_sockets() -> dict[int, str]:
    """Return the numbers of this process's sockets, and what tells each from others."""
    found: dict[int, str] = {}
    with suppress(OSError):  # there is no /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                what = os.readlink(f"/proc/self/fd/{name}")
                if what.startswith("socket:"):
                    found[int(name)] = what
    return found


def _listener_at(address: str) -> socket.socket:
    """Return a socket that listens at an address, and at no other."""
    family, kind, protocol, _, place = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.bind(place)
    listener.listen(128)
    return listener


@contextmanager
def _listening_at(address: str) -> Iterator[None]:
    """Have Gloo listen at the loopback address alone, if that is where ranks meet.

    Without it, it takes the address of the host's name. The user's choice stays.
    """
    if not _is_loopback(address):
        yield
        return
    with _variable("GLOO_SOCKET_IFNAME", "lo"):
        yield


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for a time, unless the user has."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False

"""The engine of ranks that are processes, by PyTorch over Gloo and NCCL.

No other module imports PyTorch; this one does when the first `TorchEngine` is made.

In each exchange, every rank first sends every other a record of fixed size, then the
messages that do not fit in it, whose sizes both sides have by then: Gloo ends a process
whose peer sends another number of bytes. Transfers (`_Links`) are point to point, so
that a failure names its rank. A separate thread waits within Gloo, so that the caller
can be interrupted, and returns as soon as a watch reports a loss.

Arrays of GPUs are sent over NCCL, in a second group, if each rank has a GPU of its own.
Both sides pass the sizes. A transfer that does not end within the timeout is aborted on
all GPUs that wait for it, and the next exchange over Gloo finds the lost rank.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from ipaddress import ip_address
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from featgraph.base.errors import DistributedError, WorkerLostError
from featgraph.base.interrupts import import_whole
from featgraph.ranks.engines.failures import CONNECT_S, MEETING, Watching, watched
from featgraph.ranks.engines.messages import NOTHING, Bytes, gather_texts
from featgraph.ranks.engines.processes import (
    INLINE_BYTES,
    RECORD_BYTES,
    ConcurrentCalls,
    ProcessEngine,
    Record,
    Released,
    called,
    last_record,
    pack,
    require_same_call,
    unpack,
)
from featgraph.ranks.engines.protocol import (
    Beside,
    Call,
    GpuArray,
    GpuMessages,
    bytes_of,
)

__all__ = ["TorchEngine", "is_loopback"]

_T = TypeVar("_T")

#: The limit of transfers if a launcher reports lost ranks: a rank may compile for long.
_NO_LIMIT = timedelta(days=365)
#: Seconds in which transfers end after their sockets have been shut down.
_LEAVES_S = 1.0


class TorchEngine(ProcessEngine):
    """The engine of a rank that is a process, over Gloo and NCCL.

    Parameters
    ----------
    rank, size : int
        The rank, and the number of ranks.
    address : str
        Address of rank 0. If it is a loopback address, ranks listen at no other.
    port : int
        A free port at that address.
    timeout : float
        Seconds that an exchange may wait for a rank.
    watch : Watching, optional
        The watch of lost ranks. Ranks then meet at a port that rank 0 offers by it, and
        no exchange ends by the timeout.

    Raises
    ------
    DistributedError
        If PyTorch is missing, or the ranks do not find each other in time.
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
        super().__init__(rank, size, timeout, watch)
        self._links = _Links(rank, size, timeout, watch)
        self._links.join(address, port)
        #: When the last exchange was done, on the thread of transfers.
        self._done_at = 0.0
        #: Whether arrays of GPUs can be sent; None until that is determined.
        self._reaches: bool | None = None
        self._make: Callable[[int], GpuArray] | None = None

    def close(self, error: BaseException | None = None) -> None:
        """Report the end of this rank, or the error that ends it, to the other ranks.

        Returns when all of them have reached an exchange or their end, or after the
        timeout. If there is a watch, the watch reports the error instead.
        """
        if not self._is_open or self._process != os.getpid():
            return
        self._is_open = False
        cause = self._refusal
        record = last_record(self, error)
        # After an interrupt, a transfer on the other thread may not end.
        can_send = cause is None or isinstance(cause, WorkerLostError)
        is_reported = self.watch is not None and (cause or error) is not None
        if record is not None and can_send and not is_reported:
            self._send_records(record, [NOTHING] * self.size)
        self._links.leave(is_whole=cause is None and error is None)

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return whether arrays can be sent over NCCL: see `GpuEngine`.

        All ranks must have NCCL, and a GPU of their own.
        """
        if self._reaches is None:
            own = f"{gpu} {self._links.has_gpus}"
            found = gather_texts(self, own, "GPUs of ranks")
            gpus = {one for one in found if one.endswith("True")}
            self._reaches = len(gpus) == self.size
            if self._reaches:
                self._links.join_gpus()
        self._make = make
        return self._reaches

    def hand_over(self, messages: GpuMessages) -> list[GpuArray | None]:
        """Send arrays of GPUs to other ranks over NCCL: see `GpuEngine`."""
        arrays, sizes, about, beside = messages
        if self._make is None:
            raise DistributedError("hand_over() before reach_gpus()", got=about)
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
            self.barrier(about=about)  # raises WorkerLostError if a rank is lost
            raise DistributedError(
                f"NCCL failed on rank {self.rank} of {self.size}",
                where=str(call),
                got=_text_of(error),
                fix="NCCL_DEBUG=INFO prints details",
            ) from error
        self._count(list(map(bytes_of, arrays)), sizes)
        return made

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        self._require_usable(call)

        def exchange() -> list[Bytes]:
            received = self._exchanged(call, messages)
            self._done_at = time.perf_counter()
            return received

        with self._interrupting():
            answer, left = self._links.begin(exchange), time.perf_counter()

        def received() -> list[Bytes]:
            waits = time.perf_counter()
            with self._interrupting(), watched(self.watch, call):
                found = answer()
            # The time of the other thread while this one computed.
            self.hidden_s += max(0.0, min(self._done_at, waits) - left)
            return found

        return received

    def _exchanged(self, call: Call, messages: Sequence[Bytes]) -> list[Bytes]:
        arrived, absent = self._send_records(called(call), messages)
        records = {rank: record for rank, (record, _) in arrived.items()}
        require_same_call(self, call, records, absent)
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
        absent = self._links.transfer(sent, large, tag=1)
        if absent:
            require_same_call(self, call, records, absent)
        received = {rank: message for rank, (_, message) in arrived.items()} | large
        received[self.rank] = messages[self.rank].copy()
        return [received[rank] for rank in range(self.size)]

    def _send_records(
        self, record: Record, messages: Sequence[Bytes]
    ) -> tuple[dict[int, tuple[Record, Bytes]], dict[int, str]]:
        """Exchange records with all ranks; return these, and reasons of lost ranks."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        sent = {rank: pack(record, messages[rank]) for rank in peers}
        arrived = {rank: np.empty(RECORD_BYTES, np.uint8) for rank in peers}
        absent = self._links.transfer(sent, arrived, tag=0)
        return {r: unpack(arrived[r], r) for r in peers if r not in absent}, absent


class _Links:
    """Point-to-point transfers between this process and the others."""

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
        #: The group of transfers between GPUs, and whether it has been aborted.
        self._gpus: Any = None
        self._gpus_end = False
        #: Whether this object has made the default group, which it then destroys.
        self._is_ours = False
        #: Sockets open before ranks were connected, and those of the connections (None:
        #: not yet connected): number -> unique name.
        self._before: dict[int, str] = {}
        self._sockets: dict[int, str] | None = None
        self._calls = ConcurrentCalls("featgraph transfers")
        if watch is not None:
            watch.when_lost(self._give_up)

    def join(self, address: str, port: int) -> None:
        """Connect with the other ranks."""
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
                # The user's program may have made the default group: add one to it.
                if self._talk.is_initialized():
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
                got=_text_of(error),
                fix="start all ranks, each with its own RANK; the port may be "
                "in use or blocked",
            ) from error

    @property
    def has_gpus(self) -> bool:
        """Whether this process can take part in a group of GPUs."""
        return bool(self._torch.cuda.is_available() and self._talk.is_nccl_available())

    def join_gpus(self, backend: str = "nccl") -> None:
        """Connect with the other ranks for transfers between GPUs."""
        # A transfer that takes too long is aborted; the process continues.
        with _variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"):
            self._gpus = self._beside(lambda: self._meet_gpus(backend))

    def _meet_gpus(self, backend: str) -> Any:
        """Return a group of connected GPUs; called on the thread of transfers."""
        limit, given = timedelta(seconds=self._timeout), {}
        if backend == "nccl":
            # Its few blocks start before pending blocks of a sweep.
            options = self._talk.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options._timeout = limit
            given = {"pg_options": options}
        group = self._talk.new_group(backend=backend, timeout=limit, **given)
        if backend == "nccl":  # else ranks would connect within their first transfer
            self._talk.all_reduce(self._torch.zeros(1, device="cuda"), group=group)
            self._torch.cuda.synchronize()
        return group

    def _leave_gpus(self) -> None:
        """Begin to abort transfers between GPUs, on a thread that may be abandoned."""

        def abort() -> None:
            # Launches that wait for transfers continue; received arrays are undefined.
            with suppress(RuntimeError):  # it may have ended already
                self._gpus.abort()

        if self._gpus is not None and not self._gpus_end:
            self._gpus_end = True
            Thread(target=abort, name="featgraph abort", daemon=True).start()

    def transfer_on_gpus(
        self,
        outgoing: Mapping[int, GpuArray],
        incoming: Mapping[int, GpuArray],
        stream: int = 0,
    ) -> None:
        """Send and receive arrays of GPUs, by rank, in the order of a stream."""
        talk, gpu, operations = self._talk, self._torch.cuda, []
        with gpu.stream(gpu.ExternalStream(stream)) if stream else nullcontext():
            for begin, arrays in ((talk.irecv, incoming), (talk.isend, outgoing)):
                for rank, array in arrays.items():
                    # PyTorch lacks some dtypes of integers, but has bytes.
                    sendable = self._torch.as_tensor(array.view(np.uint8))
                    operations.append(talk.P2POp(begin, sendable, rank, self._gpus))
            if operations:
                for work in talk.batch_isend_irecv(operations):
                    work.wait()  # on the GPU: later launches of the stream wait for it

    def _meeting(self, address: str, port: int, limit: timedelta) -> dict[str, Any]:
        """Return the arguments of a group for the rendezvous of ranks.

        With a watch, rank 0 listens at a free port, and offers its number by the watch.
        Else ranks meet at torchrun's store, or at the address and port.
        """
        watch = self._watch
        if watch is None:
            has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            return {"init_method": "env://" if has_store else f"tcp://{address}:{port}"}
        server: dict[str, Any] = {}
        if self._rank == 0:
            # Of its own for each start: an earlier one may still have its port (0056).
            listener = _listener_at(address)
            port = listener.getsockname()[1]
            server = {"is_master": True, "master_listen_fd": listener.detach()}
            watch.offer(MEETING, str(port))
        else:
            port = int(watch.await_offer(MEETING))
        store = self._talk.TCPStore(
            address, port, self._size, timeout=limit, wait_for_workers=False, **server
        )
        return {"store": store}

    def _beside(self, function: Callable[[], _T]) -> _T:
        """Call a function that waits within Gloo on the thread of transfers.

        Raises the error of the watch as soon as that reports a lost rank.
        """
        return self._result_of(lambda: self._calls.run(function))

    def begin(self, function: Callable[[], _T]) -> Callable[[], _T]:
        """Begin to call a function on the thread; return a function that waits."""
        begun = self._result_of(lambda: self._calls.begin(function))
        return lambda: self._result_of(lambda: self._calls.result(begun))

    def _result_of(self, call: Callable[[], _T]) -> _T:
        """Return the result of `begin`; if released, raise the error of the watch."""
        try:
            return call()
        except Released:
            if self._watch is not None:
                self._watch.raise_lost()
            raise

    def _give_up(self) -> None:
        """End all waits for transfers after a loss; called on another thread."""
        self._calls.release()
        self._sever()
        self._leave_gpus()

    def _sever(self) -> None:
        """Shut down the sockets of transfers, so that they end within Gloo.

        Gloo does not end transfers that had begun when their connection broke.
        """
        links = self._new_sockets() if self._sockets is None else self._sockets
        for number, what in links.items():
            with suppress(OSError):  # closed, or never connected
                # The number may have been given to another file meanwhile.
                if os.readlink(f"/proc/self/fd/{number}") != what:
                    continue
                # Of a copy: Gloo closes its own descriptor.
                with socket.socket(fileno=os.dup(number)) as link:
                    link.getpeername()
                    link.shutdown(socket.SHUT_RDWR)

    def _new_sockets(self) -> dict[int, str]:
        return dict(_open_sockets().items() - self._before.items())

    def leave(self, is_whole: bool) -> None:
        """Close the connections; `is_whole`: whether no rank was lost."""
        if not is_whole:
            self._sever()
            self._leave_gpus()
        self._calls.close(_LEAVES_S)
        if self._is_ours and is_whole:
            self._talk.destroy_process_group()

    def transfer(
        self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes], tag: int
    ) -> dict[int, str]:
        """Send and receive bytes, by rank; return the reasons of failed transfers.

        The first failed rank is the cause: after a timeout, Gloo fails transfers with
        all other ranks, too.
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
                    # PyTorch warns of read-only memory.
                    own = part if part.flags.writeable else part.copy()
                    tensor = self._torch.from_numpy(own)
                    work = begin(tensor, rank, group=self._group, tag=tag)
                    works.append((rank, work))
                except RuntimeError as error:
                    lost.setdefault(rank, _text_of(error))
        for rank, work in works:
            if rank not in lost:
                try:
                    work.wait(*limit)
                except RuntimeError as error:
                    lost[rank] = _text_of(error)
        return lost


def _text_of(error: Exception) -> str:
    """Return the message of an error of Gloo, without its source file and advice."""
    text = re.sub(r"^\[\S*\] ", "", str(error).strip() or type(error).__name__)
    return text.splitlines()[0].partition(". This is typically")[0]


def _open_sockets() -> dict[int, str]:
    """Return the sockets of this process: number -> unique name; {} without /proc."""
    found: dict[int, str] = {}
    with suppress(OSError):  # there is no /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                what = os.readlink(f"/proc/self/fd/{name}")
                if what.startswith("socket:"):
                    found[int(name)] = what
    return found


def _listener_at(address: str) -> socket.socket:
    """Return a socket that listens at a free port of this address only."""
    family, kind, protocol, _, place = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.bind(place)
    listener.listen(128)
    return listener


def _listening_at(address: str) -> AbstractContextManager[None]:
    """Make Gloo listen at the loopback address only, if `address` is one.

    By default Gloo takes the address of the host's name. A variable set by the user is
    kept.
    """
    is_here = is_loopback(address)
    return _variable("GLOO_SOCKET_IFNAME", "lo") if is_here else nullcontext()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the block, unless it is set already."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def is_loopback(address: str) -> bool:
    """Whether an address is that of this host for itself; unknown names are not."""
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False

"""Memory of a GPU that other ranks of the host store into, and its mailboxes.

A window is memory that the driver has allocated by itself: of memory of a pool there is
no handle. Ranks of one process have each other's addresses, those of several processes
map each other's memory by the driver's handles. A mapping is to be closed before the
memory is given back, so windows that are not used any more are kept until all ranks
have said so.
"""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph._cuda import cuda
from featgraph._cuda_driver import IpcMemory, address_of, uuid_of_current
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import DeviceError
from featgraph.ranks.lost import timeout_of, watch_of
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import TURN

__all__ = ["Mailboxes", "ThroughWindows", "find_near"]

#: Which ranks reach each other: (P, P), of truth values.
Near = npt.NDArray[np.bool_]
#: What stands for itself in memory of a GPU, so that no two are written in one sector.
_APART = 128
#: What the driver maps at a time: a smaller window would share it with other memory.
_MAPPED = 2 << 20
#: For how many ns a kernel waits where a watch says that a rank is lost.
_NO_LIMIT = np.int64(2**62)
#: Bytes that slots are multiples of.
_ALIGNMENT = 256


def find_near(engine: Engine, device: Device) -> Near:
    """Return which ranks can store into each other's memory; all of them call it.

    Those of one process can, and those on different GPUs of one host that reach each
    other. A rank is near itself.

    Returns
    -------
    array of bool, shape (P, P)
        The same on all ranks.
    """
    told = place_of_rank().encode()
    found = engine.all_gather(np.frombuffer(told, np.uint8), about="GPUs of ranks")
    near = _may_reach([bytes(one).decode().split("\n") for one in found])
    alone = np.eye(engine.size, dtype=np.bool_)
    if np.array_equal(near, alone):
        return near
    opened = _registry_of(engine).map(_ALIGNMENT, device, near).opened
    return alone | (near & opened & opened.T)


def place_of_rank() -> str:
    """Return what tells the host, the process and the GPU of this rank from others."""
    host = f"{socket.gethostname()}/{_system()}"
    return f"{host}\n{os.getpid()}\n{uuid_of_current()}"


def _may_reach(places: Sequence[Sequence[str]]) -> Near:
    """Return which ranks at hosts, in processes and with GPUs may map their memory.

    Processes that share a GPU take turns there: one would wait in vain for another. So
    no rank of their host is near another one.
    """
    hosts = np.array([place[0] for place in places])
    near = hosts[:, None] == hosts
    for host in set(hosts.tolist()):
        own = [place for place in places if place[0] == host]
        processes, gpus = (len({place[n] for place in own}) for n in (1, 2))
        if not (processes == 1 or processes == gpus == len(own)):
            near[hosts == host] = False
    found: Near = near | np.eye(len(places), dtype=np.bool_)
    return found


def _system() -> str:
    """Return what tells this system, and its numbers of processes, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _takes_turns(engine: Engine | None) -> bool:
    """Whether ranks share a process, and run one at a time."""
    return bool(getattr(engine, "takes_turns", False))


class _Window(NamedTuple):
    """Memory that ranks have mapped.

    Attributes
    ----------
    number : int
        The same on all ranks.
    memory : array of uint8
        Of this one.
    addresses : list of int
        Of all ranks', here; 0 of those that are not near.
    opened : Near
        Of each rank, whose memory it has an address of.
    """

    number: int
    memory: Any
    addresses: list[int]
    opened: Near


def _awaited(alarm: npt.NDArray[np.int64]) -> str:
    """Return what a kernel has waited for, for a while; empty if for nothing."""
    ranks = np.flatnonzero(alarm[1:]).tolist()
    return f"what rank {ranks[0]} stores, in a kernel" if ranks else ""


class _Registry:
    """The windows of a rank, by numbers that all ranks give them alike."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._count = 0
        #: Number -> memory, and mappings of the others'.
        self._windows: dict[int, tuple[Any, list[Any]]] = {}
        self._dropped: set[int] = set()
        #: Memory of the host: whether a rank is lost, and, behind that, for which ranks
        #: a kernel waits.
        self.alarm = alarm = cuda.mapped_array(1 + engine.size, np.int64)
        alarm[:] = 0
        watch = watch_of(engine)
        if watch is not None:
            watch.when_lost(lambda: alarm.__setitem__(0, 1))
            # At the end of the process memory goes while the watch still asks.
            atexit.register(watch.ask_too(lambda: _awaited(alarm)))

    def map(self, size: int, device: Device, near: Near) -> _Window:
        """Return a window of zeros that near ranks have mapped; all ranks call it.

        Where not all could, it is given back.
        """
        engine = self._engine()
        if engine is None:
            raise ReferenceError("the engine is gone")
        self._give_back(engine, device)
        if not _takes_turns(engine):
            size = -(-size // _MAPPED) * _MAPPED
        memory = cuda.device_array((size,), np.uint8)
        device.fill(memory, 0)
        device.synchronize()
        ipc = IpcMemory()
        own = np.frombuffer(ipc.describe(address_of(memory)), np.uint8)
        about = "addresses of windows"
        told = engine.all_gather(own, about=about)
        addresses, mappings = [], []
        for one, is_near in zip(told, near[engine.rank], strict=True):
            address, mapping = 0, None
            if is_near:
                with suppress(DeviceError):
                    address, mapping = ipc.open(bytes(one))
            addresses.append(address)
            mappings.append(mapping)
        own_opened = np.array([address != 0 for address in addresses])
        opened = np.stack(engine.all_gather(own_opened, about="mappings of windows"))
        self._count += 1
        number = self._count
        self._windows[number] = memory, mappings
        if not opened[near].all():
            self._dropped.add(number)
        return _Window(number, memory, addresses, opened)

    def drop(self, number: int) -> None:
        """Note that a window is not used any more."""
        self._dropped.add(number)

    def _give_back(self, engine: Engine, device: Device) -> None:
        """Give windows back that no rank uses: first the mappings, then the memory."""
        own = np.array(sorted(self._dropped.copy()), np.int64)
        found = engine.all_gather(own, about="windows that are not used any more")
        gone = set.intersection(*({int(n) for n in one} for one in found))
        if not gone:
            return
        device.synchronize()  # kernels may still store there
        for number in gone:
            for mapping in self._windows[number][1]:
                if mapping is not None:
                    mapping.close()
        engine.barrier(about="windows that are given back")
        for number in gone:
            del self._windows[number]
        self._dropped -= gone


_registries: weakref.WeakKeyDictionary[Any, _Registry] = weakref.WeakKeyDictionary()


def _registry_of(engine: Engine) -> _Registry:
    if engine not in _registries:
        _registries[engine] = _Registry(engine)
    return _registries[engine]


class Mailboxes:
    """A window on each rank, with a mailbox of two slots for each rank.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    sizes : sequence of int
        Bytes of a slot in this rank's window, by the rank that stores there.
    about : str
        What is stored.
    near : array of bool, shape (P, P), optional
        Which ranks store at each other; see `find_near`. Default: all. A rank stands in
        for those that are not near: it raises their flags in its own window, and takes
        no rows of them.

    Attributes
    ----------
    there, here : arrays of int64, shape (P, 3)
        Where this rank stores at each, and where each stores at this one: see
        `window_kernels`.
    own : array of int64
        What the kernels of this rank count.
    alarm : int64
        Address of memory of the host, by which kernels that wait hear that a rank is
        lost, and tell for which they wait.
    limit_ns : int64
        How long they wait.
    """

    def __init__(
        self,
        engine: Engine,
        device: Device,
        sizes: Sequence[int],
        about: str,
        near: Near | None = None,
    ) -> None:
        # What combines numbers for an engine is kept as long as that.
        self._engine = weakref.ref(engine)
        self._device, self._about = device, about
        slots = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        begins = np.cumsum(
            [-(-_APART * len(sizes) // 256) * 256, *(2 * s for s in slots)]
        )
        self.slots = slots
        if near is None:
            near = np.ones((engine.size, engine.size), np.bool_)
        mapped = _registry_of(engine).map(int(begins[-1]), device, near)
        if not mapped.opened[near].all():
            raise DeviceError("a rank cannot map the memory of another one's GPU")
        number, memory, addresses = mapped.number, mapped.memory, mapped.addresses
        weakref.finalize(self, _registry_of(engine).drop, number).atexit = False
        places = [
            np.array([begin, slot, _APART * rank], np.int64)
            for rank, (begin, slot) in enumerate(zip(begins, slots, strict=False))
        ]
        told = engine.all_to_allv(places, about="mailboxes of windows")
        bases = np.array(addresses, np.int64)
        first = np.array([[1, 0, 1]], np.int64)
        here = np.array(places) + np.int64(addresses[engine.rank]) * first
        there = np.array(told) + bases[:, None] * first
        there = np.where(near[engine.rank][:, None], there, here)
        self.there, self.here = device.upload(there), device.upload(here)
        self.own = device.upload(np.zeros(4, np.int64))
        self.alarm = np.int64(address_of(_registry_of(engine).alarm))
        # A watch says when a rank is lost: one that compiles may take its time.
        watched = watch_of(engine) is not None
        self.limit_ns = _NO_LIMIT if watched else np.int64(1e9 * timeout_of(engine))
        self._memory: npt.NDArray[Any] | Any = memory

    def turn(self) -> None:
        """Let ranks that take turns with this one post, too.

        Behind what a rank posts, and before it takes what others have. Where each rank
        has a process, nothing is to be done. A recording does it again.
        """
        takes_turns = _takes_turns(self._engine())
        if takes_turns:
            self._pass_on()
        note = self._device.driver.note  # type: ignore[attr-defined]
        note(TURN, self._pass_on if takes_turns else None)

    def _pass_on(self) -> None:
        engine = self._engine()
        if engine is not None:
            engine.barrier(about=self._about)


class ThroughWindows:
    """Hands over messages of GPUs that all store at each other, as a `GpuEngine` does.

    A rank has a window with a slot for each rank, in which that leaves its message.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._engine, self._device, self._slot = engine, device, 0
        self._window: _Window | None = None
        self._drop: Any = None

    def hand_over(
        self,
        arrays: Sequence[Any | None],
        sizes: Sequence[int],
        *,
        about: str = "",
    ) -> list[Any | None]:
        """Hand an array of bytes to each rank: see `GpuEngine`; waits for the GPU."""
        engine, device, own = self._engine, self._device, self._engine.rank
        driver: Any = device.driver  # type: ignore[attr-defined]
        most = max(0 if array is None else int(array.size) for array in arrays)
        device.synchronize()  # what came last has been taken, on all ranks then
        found = engine.all_reduce(np.array([most], np.int64), "max", about=about)
        window = self._of(int(found[0]))
        for rank, array in enumerate(arrays):
            if array is not None and array.size and rank != own:
                there = window.addresses[rank] + own * self._slot
                driver.copy(there, address_of(array), int(array.size))
        device.synchronize()
        engine.barrier(about=about)
        made: list[Any | None] = [None] * engine.size
        for rank, size in enumerate(sizes):
            if size and rank != own:
                made[rank] = device.empty((size,), "uint8")
                here = window.addresses[own] + rank * self._slot
                driver.copy(address_of(made[rank]), here, size)
        made[own] = arrays[own]
        return made

    def _of(self, size: int) -> _Window:
        """Return the windows, whose slots have room for a message; all ranks ask."""
        if self._window is None or size > self._slot:
            registry, ranks = _registry_of(self._engine), self._engine.size
            if self._drop is not None:
                self._drop()
            self._slot = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
            near = np.ones((ranks, ranks), np.bool_)
            self._window = registry.map(self._slot * ranks, self._device, near)
            if not self._window.opened.all():
                raise DeviceError("a rank cannot map the memory of another one's GPU")
            self._drop = weakref.finalize(self, registry.drop, self._window.number)
            self._drop.atexit = False
        return self._window

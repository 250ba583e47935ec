"""Windows: memory of a GPU into which other ranks of the host store.

`find_near` finds the ranks that can do so. `Mailboxes` has the windows of one kind of
exchange, with a mailbox for each rank, for the kernels of `window_kernels`.
`ThroughWindows` sends whole arrays by copies.

A window is an allocation of its own, since memory of a pool has no handle. Ranks of one
process use each other's addresses; ranks of several processes map each other's memory
by handles of the driver. A mapping must be closed before the memory is freed, so unused
windows are kept until all ranks have dropped them.
"""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DeviceError
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import IpcMemory, address_of, uuid_of_current
from featgraph.ranks.engines.failures import timeout_of, watch_of
from featgraph.ranks.engines.messages import gather_texts, reduce_number
from featgraph.ranks.engines.protocol import Engine, GpuMessages
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import TURN

__all__ = ["Mailboxes", "Near", "ThroughWindows", "find_near"]

#: Which ranks reach each other: bool, shape (P, P).
Near = npt.NDArray[np.bool_]
#: Distance of two flags in bytes, so that they are in different sectors.
_APART = 128
#: The driver's unit of mappings, in bytes: a smaller window would share it.
_MAPPED = 2 << 20
#: The limit of a kernel's waits, in ns, if a watch finds lost ranks.
_NO_LIMIT = np.int64(2**62)
#: Alignment of slots, in bytes.
_ALIGNMENT = 256


def find_near(engine: Engine, device: Device) -> Near:
    """Return which ranks can store into each other's memory; all ranks call it.

    These are ranks of one process, and ranks of one host on different GPUs that reach
    each other. A rank is near itself.

    Returns
    -------
    array of bool, shape (P, P)
        The same on all ranks.
    """
    places = gather_texts(engine, place_of_rank(), "GPUs of ranks")
    near = _may_reach([place.split("\n") for place in places])
    alone = np.eye(engine.size, dtype=np.bool_)
    if np.array_equal(near, alone):
        return near
    opened = _registry_of(engine).map(engine, _ALIGNMENT, device, near).opened
    return alone | (near & opened & opened.T)


def place_of_rank() -> str:
    """Return identifiers of this rank's host, process and GPU, one per line."""
    host = f"{socket.gethostname()}/{_system()}"
    return f"{host}\n{os.getpid()}\n{uuid_of_current()}"


def _may_reach(places: Sequence[Sequence[str]]) -> Near:
    """Return which ranks may map each other's memory, by host, process and GPU.

    Processes that share a GPU run one at a time, so a waiting kernel would block the
    other process: no two ranks of their host are near each other.
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
    """Return an identifier of this boot and process namespace; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _takes_turns(engine: Engine | None) -> bool:
    """Whether ranks share a process and run one at a time."""
    return bool(getattr(engine, "takes_turns", False))


@dataclass(frozen=True, eq=False)
class _Window:
    """A window of this rank, and its addresses of the windows of near ranks.

    Attributes
    ----------
    memory : array of uint8
        The window of this rank.
    addresses : list of int
        By rank, the address of its window in this process; 0 if it is not mapped.
    opened : Near
        Whether each rank has mapped the window of each rank.
    """

    memory: Any
    addresses: list[int]
    opened: Near


def _awaited(alarm: npt.NDArray[np.int64]) -> str:
    """Return a text about the rank for which a kernel waits; "" if there is none."""
    ranks = np.flatnonzero(alarm[1:]).tolist()
    return f"stores of rank {ranks[0]}, in a kernel" if ranks else ""


class _Registry:
    """The windows of a rank, by numbers that are the same on all ranks."""

    def __init__(self, engine: Engine) -> None:
        self._count = 0
        #: Number -> memory, and mappings of other ranks' windows.
        self._windows: dict[int, tuple[Any, list[Any]]] = {}
        self._dropped: set[int] = set()
        #: Memory of the host: whether a rank is lost, then for each rank whether a
        #: kernel waits for it.
        self.alarm = alarm = cuda.mapped_array(1 + engine.size, np.int64)
        alarm[:] = 0
        watch = watch_of(engine)
        if watch is not None:
            watch.when_lost(lambda: alarm.__setitem__(0, 1))
            # At exit the memory is freed while the watch still reads it.
            atexit.register(watch.watch_also(lambda: _awaited(alarm)))

    def map(self, engine: Engine, size: int, device: Device, near: Near) -> _Window:
        """Return a zeroed window for near ranks to map; all ranks call it.

        Its memory is freed in a later call, when no rank has a reference to it.
        """
        self._give_back(engine, device)
        if not _takes_turns(engine):
            size = -(-size // _MAPPED) * _MAPPED
        memory = cuda.device_array((size,), np.uint8)
        device.fill(memory, 0)
        device.synchronize()  # before any other rank stores there
        ipc = IpcMemory()
        own = np.frombuffer(ipc.describe(address_of(memory)), np.uint8)
        about = "addresses of windows"
        handles = engine.all_gather(own, about=about)
        addresses, mappings = [], []
        for one, is_near in zip(handles, near[engine.rank], strict=True):
            address, mapping = 0, None
            if is_near:
                with suppress(DeviceError):
                    address, mapping = ipc.open(bytes(one))
            addresses.append(address)
            mappings.append(mapping)
        own_opened = np.array([address != 0 for address in addresses])
        opened = np.stack(engine.all_gather(own_opened, about="mappings of windows"))
        self._count += 1
        self._windows[self._count] = memory, mappings
        window = _Window(memory, addresses, opened)
        # At exit no rank gives windows back.
        weakref.finalize(window, self._dropped.add, self._count).atexit = False
        return window

    def _give_back(self, engine: Engine, device: Device) -> None:
        """Free windows that all ranks have dropped: first mappings, then memory."""
        own = np.array(sorted(self._dropped.copy()), np.int64)
        found = engine.all_gather(own, about="unused windows")
        gone = set.intersection(*({int(n) for n in one} for one in found))
        if not gone:
            return
        device.synchronize()  # kernels may still store there
        for number in gone:
            for mapping in self._windows[number][1]:
                if mapping is not None:
                    mapping.close()
        # All mappings are closed before any memory is freed.
        engine.barrier(about="freed windows")
        for number in gone:
            del self._windows[number]
        self._dropped -= gone


#: Engine -> the windows of its rank.
_registries: weakref.WeakKeyDictionary[Any, _Registry] = weakref.WeakKeyDictionary()


def _registry_of(engine: Engine) -> _Registry:
    if engine not in _registries:
        _registries[engine] = _Registry(engine)
    return _registries[engine]


def _mapped(engine: Engine, device: Device, size: int, near: Near) -> _Window:
    """Return a window that all near ranks have mapped; all ranks call it."""
    window = _registry_of(engine).map(engine, size, device, near)
    if not window.opened[near].all():
        raise DeviceError("a rank cannot map the GPU memory of another rank")
    return window


class Mailboxes:
    """A window on each rank, with a mailbox of two slots for each rank.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    sizes : sequence of int
        Bytes of a slot in this rank's window, by the rank that stores there.
    about : str
        A name of the exchange, for errors.
    near : array of bool, shape (P, P), optional
        Which ranks store at each other; see `find_near`. Default: all. For ranks that
        are not near, this rank raises the flags in its own window, and takes no rows.

    Attributes
    ----------
    there, here : arrays of int64, shape (P, 3)
        Mailboxes of this rank in the windows of others, and of others in its own
        window: see `window_kernels`.
    own : array of int64
        Counters of this rank's kernels.
    alarm : int64
        Address of memory of the host with a flag for a lost rank, which waiting kernels
        read, and a flag for each rank, set by kernels that wait for it.
    limit_ns : int64
        The limit of a kernel's waits.
    """

    def __init__(
        self,
        engine: Engine,
        device: Device,
        sizes: Sequence[int],
        about: str,
        near: Near | None = None,
    ) -> None:
        # A strong reference would keep the engine alive.
        self._engine = weakref.ref(engine)
        self._device, self._about = device, about
        slots = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        flags = -(-_APART * len(sizes) // _ALIGNMENT) * _ALIGNMENT
        begins = np.cumsum([flags, *(2 * slot for slot in slots)])
        if near is None:
            near = np.ones((engine.size, engine.size), np.bool_)
        self._window = window = _mapped(engine, device, int(begins[-1]), near)
        places = [
            np.array([begin, slot, _APART * rank], np.int64)
            for rank, (begin, slot) in enumerate(zip(begins, slots, strict=False))
        ]
        mailboxes = engine.all_to_allv(places, about="mailboxes of windows")
        bases = np.array(window.addresses, np.int64)
        first = np.array([[1, 0, 1]], np.int64)
        here = np.array(places) + bases[engine.rank] * first
        there = np.array(mailboxes) + bases[:, None] * first
        there = np.where(near[engine.rank][:, None], there, here)
        self.there, self.here = device.upload(there), device.upload(here)
        self.own = device.upload(np.zeros(4, np.int64))
        self.alarm = np.int64(address_of(_registry_of(engine).alarm))
        # With a watch no limit is needed, so that another rank may compile for long.
        watched = watch_of(engine) is not None
        self.limit_ns = _NO_LIMIT if watched else np.int64(1e9 * timeout_of(engine))

    def turn(self) -> None:
        """Run the other ranks of a process that run one at a time, up to their post.

        Called between a rank's post and its take. Does nothing if each rank has a
        process. A recording repeats the call.
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
    """Exchange of GPU messages through windows, as a `GpuEngine` does.

    Each rank has a window with a slot for the message of every other rank.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._engine, self._device, self._slot = engine, device, 0
        self._window: _Window | None = None

    def hand_over(self, messages: GpuMessages) -> list[Any | None]:
        """Send an array of bytes to each rank: see `GpuEngine`; waits for the GPU."""
        arrays, sizes, about, _ = messages
        engine, device, own = self._engine, self._device, self._engine.rank
        driver: Any = device.driver  # type: ignore[attr-defined]
        most = max(0 if array is None else int(array.size) for array in arrays)
        # After this and the reduce, all ranks have copied the last messages out of
        # their windows, which may be written again.
        device.synchronize()
        window = self._of(reduce_number(engine, most, "max", about))
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
        """Return windows whose slots have `size` bytes or more; all ranks call it."""
        if self._window is None or size > self._slot:
            engine, ranks = self._engine, self._engine.size
            self._window = None  # its memory is freed when the new one is made
            self._slot = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
            near = np.ones((ranks, ranks), np.bool_)
            self._window = _mapped(engine, self._device, self._slot * ranks, near)
        return self._window

"""A GPU of host memory: the CUDA runtime runs on it, kernels lane by lane.

Device arrays are host memory that only kernels and copies of the driver may touch. The
driver takes a launch's arguments from the memory that the runtime packed, as the real
one does, and refuses addresses of arrays that are gone.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from featgraph.cuda import arrays as memory
from featgraph.cuda import dialect, download, foreign
from featgraph.cuda import memory as cuda_memory
from featgraph.cuda.arguments import (
    flatten,
    layout_of,
    point_to_words,
    tuples_of,
)
from featgraph.cuda.driver import Compiled, IpcMemory, ParameterType, _parameters
from featgraph.cuda.launch import Launches, PlainDriver
from featgraph.cuda.memory import _exposed
from featgraph.fold.schedules import mapping as mappings
from featgraph.graph.inputs import numbers
from featgraph.ranks.exchange import (
    gpu_messages,
    gpu_rows,
    gpu_transport,
    window_channel,
    windows,
)
from featgraph.runtime.devices import (
    cuda_arrays,
    cuda_device,
    cuda_sets,
    cuda_trees,
)
from featgraph.runtime.loops import background
from featgraph.runtime.recording.control import Nodes
from featgraph.runtime.streaming import ring as streamed_memory
from featgraph.runtime.streaming import slices as streamed_rows
from tests.simt import emulator
from tests.simt.dialect import conditions, memory_at
from tests.simt.emulator import Emulator, MemoryFault
from tests.simt.gpu_streams import EmulatedStreams, Streams, pinned
from tests.simt.lanes import EmulationError, pause
from tests.simt.memory import GuardedArray
from tests.simt.pieces import Pieces
from tests.simt.streams import Order, Touches

__all__ = ["Gpu", "Streams", "emulated_gpu", "pauses"]


#: The driver's, in bytes.
ALIGNMENT = 256


class Written:
    """Which bytes of a piece of device memory hold something.

    Of an entry the first byte stands for all. What copies on other streams have to do
    with the memory is watched, too.
    """

    def __init__(self, address: int, size: int, order: Order) -> None:
        self.address = address
        self.bytes = bytearray(size)
        self.touches = Touches(order)

    def fill(self, first: int, size: int) -> None:
        """Note that the host, or the driver, has written."""
        self.bytes[first : first + size] = b"\1" * size
        self.touches.fill()

    def read(self, address: int) -> None:
        """See that an entry has been written before it is read."""
        if not self.bytes[address - self.address]:
            raise MemoryFault("what is read here has never been written")
        if self.touches.watches:
            self.touches.read(address - self.address)

    def write(self, address: int) -> None:
        """Note a write."""
        self.bytes[address - self.address] = 1
        if self.touches.watches:
            self.touches.write(address - self.address)

    def update(self, address: int) -> None:
        """See that an entry has been written before it is updated."""
        self.read(address)
        if self.touches.watches:
            self.touches.write(address - self.address)


@contextmanager
def pauses(seed: int, share: float = 0.2, turns: int = 1) -> Iterator[None]:
    """Have lanes pause in front of some accesses to global memory, drawn by a seed.

    Others then come between a load and the store that belongs to it; other warps also
    pass `turns` times by lanes that wait for the one that pauses. Any block that waits
    runs next.
    """
    drawn = np.random.default_rng(seed)

    def any_block(waiting: Any) -> Any:
        waiting.rotate(int(drawn.integers(len(waiting))))
        return waiting.popleft()

    def paused(access: Any) -> Any:
        def take_time(self: Written, address: int) -> None:
            if drawn.random() < share:
                for _ in range(turns):
                    pause()
            access(self, address)

        return take_time

    with pytest.MonkeyPatch.context() as patch:
        for name in ("read", "write"):
            patch.setattr(Written, name, paused(getattr(Written, name)))
        patch.setattr(emulator, "next_block", any_block)
        yield


class DeviceArray:
    """The attributes of a dialect array that the runtime reads."""

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.memory = memory
        self.gpu: Any = None
        self.dtype = np.dtype(dtype)
        self.shape = shape if isinstance(shape, tuple) else (int(shape),)
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))
        self.strides = np.empty(self.shape, self.dtype).strides

    @property
    def device_ctypes_pointer(self) -> Any:
        return ctypes.c_void_p(self.memory.ctypes.data)

    def reshape(self, shape: Any) -> DeviceArray:
        return self._alike(shape, self.dtype)

    def _alike(self, shape: Any, dtype: Any) -> DeviceArray:
        made = DeviceArray(self.memory, shape, dtype)
        made.gpu = self.gpu
        return made

    def copy_to_host(self) -> Any:
        self.gpu.downloads.append(self.size * self.dtype.itemsize)
        return self.view().copy()

    def view(self, dtype: Any = None) -> Any:
        if dtype is not None:
            *rows, last = self.shape
            size = last * self.dtype.itemsize
            assert size % np.dtype(dtype).itemsize == 0
            return self._alike((*rows, size // np.dtype(dtype).itemsize), dtype)
        count = self.size * self.dtype.itemsize
        return self.memory[:count].view(self.dtype).reshape(self.shape)

    def is_c_contiguous(self) -> bool:
        return True

    def copy_to_device(self, other: Any) -> None:
        assert (other.shape, other.dtype) == (self.shape, self.dtype)
        size = self.size * self.dtype.itemsize
        if isinstance(other, np.ndarray):
            self.gpu.uploads.append(size)
        self.written.fill(0, size)
        self.view()[...] = other.view()

    @property
    def written(self) -> Written:
        return self.gpu.written[int(self.memory.ctypes.data)]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (int(self.memory.ctypes.data), False),
            "shape": self.shape,
            "strides": None,
            "typestr": self.dtype.str,
            "version": 3,
        }


class MappedArray(DeviceArray):
    """Memory of the host that kernels read, and write."""

    def __getitem__(self, place: Any) -> Any:
        return self.view()[place].copy()

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, slice):  # not a flag that is to be seen meanwhile
            self.written.touches.write_from_host()
        self.written.fill(0, self.size * self.dtype.itemsize)
        self.view()[place] = value


#: Views that are alive: the memory of some is no one's that the driver knows of.
LENT: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class SeenArray(cuda_memory.Strided):
    """An array that the package reads: its memory is registered while it lives."""

    __slots__ = ()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        LENT[id(self)] = self

    @property
    def data(self) -> Any:
        """The memory, as the host sees it."""
        interface = {"data": (self.address, False), "shape": self.shape, "version": 3}
        interface |= {"typestr": self.dtype.str, "strides": self.strides}
        return np.asarray(SimpleNamespace(__array_interface__=interface))


def lent_memory(address: int, size: int) -> Any:
    """Return memory of another library that a view looks at.

    What lies at addresses that no view has is no one's.
    """
    for view in LENT.values():
        first, last = np.lib.array_utils.byte_bounds(view.data)
        if first <= address and address + size <= last:
            interface = {"data": (address, False), "shape": (size,), "typestr": "|u1"}
            held = SimpleNamespace(__array_interface__=interface | {"version": 3})
            return np.asarray(held)
    raise AssertionError(f"no array lies at {address:#x}: a stale argument")


class StridedArray(DeviceArray):
    """A view of memory that another library has, with strides of its own."""

    def __init__(self, data: Any) -> None:
        self.data = data
        LENT[id(self)] = self
        self.dtype, self.shape, self.strides = data.dtype, data.shape, data.strides
        self.ndim, self.size = data.ndim, data.size

    @property
    def device_ctypes_pointer(self) -> Any:
        return ctypes.c_void_p(self.data.ctypes.data)

    def view(self, dtype: Any = None) -> Any:
        return self.data if dtype is None else StridedArray(self.data.view(dtype))

    def is_c_contiguous(self) -> bool:
        return bool(self.data.flags.c_contiguous)

    def reshape(self, shape: Any) -> StridedArray:
        return StridedArray(self.data.reshape(shape))

    def __getitem__(self, index: Any) -> StridedArray:
        return StridedArray(self.data[index])

    def copy_to_host(self) -> Any:
        return self.data.copy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = self.data.__array_interface__
        return {
            "data": found["data"], "shape": self.shape, "strides": self.strides,
            "typestr": found["typestr"], "version": 3, "owner": self.data,
        }  # fmt: skip


def from_cuda_array_interface(
    described: Any, owner: Any = None, sync: bool = True
) -> StridedArray:
    """Return an array over memory of the host that stands for that of the GPU."""
    address, _ = described["data"]
    interface = {key: described.get(key) for key in ("shape", "strides", "typestr")}
    interface |= {"data": (address, False), "version": 3}
    held = SimpleNamespace(__array_interface__=interface, owner=(owner, described))
    return StridedArray(np.asarray(held))


class Gpu:
    """The dialect's namespace and the driver at once; remembers what was launched.

    Attributes
    ----------
    by_dialect, by_driver : list of str
        Names of the kernels launched so, in order.
    compiled_ahead : list of str
        Of those that were compiled before they were launched.
    uploads, downloads : list of int
        Bytes of each array that came from the host, and of each that went there.
    """

    def __init__(self) -> None:
        self.alive = Pieces()
        self.by_dialect: list[str] = []
        self.by_driver: list[str] = []
        self.compiled_ahead: list[str] = []
        self.uploads: list[int] = []
        self.downloads: list[int] = []
        #: Bytes of each copy on a stream of its own.
        self.streamed: list[int] = []
        self.emulator = Emulator()
        self.written: dict[int, Written] = {}
        self.modules: dict[str, ModuleType] = {}
        self.numbers = itertools.count(1)
        #: Waits between streams, in order.
        self.order = Order()
        self.streams = Streams(self)
        #: Whether it is watched who waits for whom in memory that is made from now on.
        self.watches = False
        #: All that were made, of both kinds, and launches that have not run.
        self.recordings: list[Recording] = []
        self.waiting: list[Recording] = []
        #: All that were made, and the one that runs.
        self.loops: list[ConditionalLoop] = []
        self._run_by = threading.local()
        #: Streams of other libraries that were waited for.
        self.waited_for: list[int] = []
        self.from_cuda_array_interface = from_cuda_array_interface
        self.current_gpu = lambda: 0
        #: Memory that the GPU reports: so little that nothing is kept for it.
        self.memory_bytes = lambda: 0
        self.get_current_device = lambda: SimpleNamespace(id=0, MULTIPROCESSOR_COUNT=1)

    @property
    def running(self) -> ConditionalLoop | None:
        """The loop that runs for this thread: ranks take turns in their loops."""
        return getattr(self._run_by, "loop", None)

    @running.setter
    def running(self, loop: ConditionalLoop | None) -> None:
        self._run_by.loop = loop

    # -- the dialect's namespace

    def device_array(self, shape: Any, dtype: Any) -> DeviceArray:
        array = DeviceArray(None, shape, dtype)
        count = max(array.size * array.dtype.itemsize, 1)
        whole = np.full(count + ALIGNMENT, 0xAB, np.uint8)
        first = -whole.ctypes.data % ALIGNMENT
        memory = whole[first : first + count]
        address = int(memory.ctypes.data)
        self.alive.add(address, memory)
        # The next owner of the address has exposed nothing.
        weakref.finalize(memory, _exposed.discard, address)
        self.written[address] = Written(address, count, self.order)
        self.written[address].touches.watches = self.watches
        array.memory, array.gpu = memory, self
        return array

    def to_device(self, given: Any) -> DeviceArray:
        self.uploads.append(given.nbytes)
        array = self.device_array(given.shape, given.dtype)
        array.view()[...] = given
        self._fill(int(array.memory.ctypes.data), given.nbytes)
        return array

    def pinned_array(self, shape: Any, dtype: Any) -> Any:
        if np.prod(shape) == 0:
            raise ValueError("null buffer pointer")
        return pinned(shape, dtype)

    def mapped_array(self, shape: Any, dtype: Any) -> MappedArray:
        made = self.device_array(shape, dtype)
        array = MappedArray(made.memory, made.shape, dtype)
        array.gpu = self
        array.written.touches.watches = True
        return array

    def stream(self) -> Any:
        return SimpleNamespace(handle=next(self.numbers))

    def synchronize(self) -> None:
        self.order.synchronize()

    # -- the driver

    def _memory(self, address: int, size: int) -> Any:
        found = self.alive.at(address, size)
        assert found, f"no array lies at {address:#x}: a stale argument"
        start, piece = found
        return piece[address - start : address - start + size]

    def _place(self, address: int, size: int) -> tuple[Written, int]:
        """Return the record of a range of memory, and the range's offset in it."""
        found = self.alive.at(address, size)
        assert found, f"no array lies at {address:#x}"
        return self.written[found[0]], address - found[0]

    def _guarded(self, view: Any) -> Any:
        """Return an array as kernels see it."""
        if view.size == 0:
            return view
        return GuardedArray(view, self._place(view.ctypes.data, 1)[0])

    def _fill(self, address: int, size: int) -> None:
        if size:
            known, first = self._place(address, size)
            known.fill(first, size)

    def set_words(self, address: int, value: int, count: int) -> None:
        self._memory(address, 4 * count).view(np.uint32)[:] = value
        self._fill(address, 4 * count)

    def set_bytes(self, address: int, value: int, count: int) -> None:
        self._memory(address, count)[:] = value
        self._fill(address, count)

    def copy(self, target: int, source: int, size: int) -> None:
        to, place = self._place(target, size)
        to.touches.fill()
        if self.alive.at(source, size) is None:
            self._memory(target, size)[:] = lent_memory(source, size)
            to.bytes[place : place + size] = b"\1" * size
            return
        self._memory(target, size)[:] = self._memory(source, size)
        known, first = self._place(source, size)
        to.bytes[place : place + size] = known.bytes[first : first + size]

    def wait_for_stream(self, stream: int) -> None:
        self.order.synchronize()
        if stream > 1:  # the default one has these numbers
            self.waited_for.append(stream)

    def write(self, target: int, source: int, size: int) -> None:
        self.uploads.append(size)
        memory = self._memory(target, size)
        self._fill(target, size)
        ctypes.memmove(memory.ctypes.data, source, size)

    def read(self, target: int, source: int, size: int) -> None:
        if self.running is not None:
            self.running.finish()
        self.downloads.append(size)
        self.order.wait_for_default()
        is_ours = self.alive.at(source, size) is not None
        whole = self._memory(source, size) if is_ours else lent_memory(source, size)
        memory = np.ascontiguousarray(whole)
        ctypes.memmove(target, memory.ctypes.data, size)

    def launch(
        self, handle: Any, blocks: int, threads: int, stream: Any, parameters: int
    ) -> None:
        kernel, types, shapes = handle
        words = words_at(parameters)
        flat = [argument_of(self, type_, words) for type_ in types]
        arguments: list[Any] = []
        for shape in shapes:  # the class of a namedtuple, None for one argument
            count = 1 if shape is None else len(shape._fields)
            members, flat = flat[:count], flat[count:]
            arguments.append(members[0] if shape is None else shape(*members))
        self.by_driver.append(kernel.py_func.__name__)
        self._run(kernel, blocks, threads, arguments, stream)

    # -- kernels

    def bind(self, kernel: Any, blocks: int, threads: int, stream: Any) -> Any:
        """Stand in for the dialect's ``kernel[blocks, threads, stream]``."""

        def launch(*arguments: Any) -> None:
            self.by_dialect.append(kernel.py_func.__name__)
            given = [self._on_host(a) for a in arguments]
            self._run(kernel, blocks, threads, given, stream)

        return launch

    def _on_host(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return type(argument)(*map(self._on_host, argument))
        if isinstance(argument, StridedArray):
            if is_ours(self, argument.data):
                return self._guarded(argument.data)
            return GuardedArray(argument.data)
        if isinstance(argument, DeviceArray):
            return self._guarded(argument.view())
        return argument

    def compiled(self, kernel: Any, arguments: Any) -> Compiled:
        types = tuple(
            _type_of(value) for value in flatten(arguments, tuples_of(arguments))
        )
        shapes = [type(a) if isinstance(a, tuple) else None for a in arguments]
        return Compiled((kernel, types, tuple(shapes)), types)

    def ahead(self, kernel: Any, types: Any) -> Compiled:
        """Stand in for the compiler, which is given types of the dialect."""
        shapes = [getattr(type_, "instance_class", None) for type_ in types]
        parameters = tuple(
            p for type_ in types for p in _parameters(type_) if p is not None
        )
        self.compiled_ahead.append(kernel.py_func.__name__)
        return Compiled((kernel, parameters, tuple(shapes)), parameters)

    def _run(
        self, kernel: Any, blocks: int, threads: int, arguments: Any, stream: Any
    ) -> None:
        name = kernel.py_func.__module__
        if any(getattr(a, "dtype", None) == np.float16 for a in arguments):
            raise EmulationError(f"{name}: code of kernels of float16 is not storable")
        if name not in self.modules:
            source = inspect.getsource(sys.modules[name])
            self.modules[name] = self.emulator.load(source, name)
        module = self.modules[name]
        number = int(getattr(stream, "handle", stream))
        # Streams of the dialect wait for the default one, and it for them.
        self.order.begin(number if number in self.streams.made else 0)
        self.emulator.launch(
            module, kernel.py_func.__name__, blocks, threads, arguments
        )


class PieceDriver:
    """The driver of arrays that come to the host in pieces: each is there at once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def start_read(self, target: int, source: int, size: int) -> None:
        self._gpu.read(target, source, size)

    read = start_read

    def wait_for(self, event: None) -> None: ...


class Recording:
    """Runs recorded operations as late as the driver may.

    That is when something waits for them. Launches on the default stream run in order;
    what is launched beside it, behind one of them, may come behind all that were
    launched later.
    """

    is_graph = True

    def __init__(
        self, gpu: Gpu, operations: tuple[tuple[Any, ...], ...], beside: bool
    ) -> None:
        self.gpu, self.launched, self.beside = gpu, 0, beside
        self.operations = list(operations)
        self.is_behind = False
        gpu.recordings.append(self)

    def launch(self, behind: Recording | None = None) -> None:
        self.launched += 1
        assert self.beside == (behind is not None)
        if behind is None:
            self.gpu.waiting.append(self)
        else:
            assert behind in self.gpu.waiting
            self.is_behind = True

    def wait(self) -> None:
        while self.gpu.waiting:
            self.gpu.waiting.pop(0)._run()
        if self.is_behind:
            self._run()
        self.is_behind = False

    def _run(self) -> None:
        issue(self.gpu, self.operations)


def is_ours(gpu: Gpu, view: Any) -> bool:
    """Whether an array is of memory that was allocated there, and dense."""
    is_there = gpu.alive.at(view.ctypes.data, view.nbytes) is not None
    return is_there and bool(view.flags.c_contiguous)


def words_at(parameters: int) -> Iterator[int]:
    """Give the addresses of the words that a launch points to."""
    for place in itertools.count():
        yield ctypes.c_uint64.from_address(parameters + 8 * place).value


def argument_of(gpu: Gpu, type_: ParameterType, words: Iterator[int]) -> Any:
    """Return an argument as kernels see it, from the words that were packed."""
    dtype = np.dtype(type_.dtype)
    if type_.rank is None:
        raw = ctypes.string_at(next(words), dtype.itemsize)
        return np.frombuffer(raw, dtype)[0]
    fields = [
        ctypes.c_int64.from_address(next(words)).value
        for _ in range(5 + 2 * type_.rank)
    ]
    _, _, size, item, address, *rest = fields
    shape, strides = tuple(rest[: type_.rank]), tuple(rest[type_.rank :])
    assert item == dtype.itemsize
    assert size == np.prod(shape)
    assert layout_of(shape, strides, item)[0] == type_.layout or not size
    return view_at(gpu, address, shape, strides, dtype)


def view_at(
    gpu: Gpu, address: int, shape: Any, strides: Any, dtype: np.dtype[Any]
) -> Any:
    """Return an array as kernels see it, which may have any strides."""
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    before = sum(step for step in steps if step < 0)
    first, size = address + before, sum(map(abs, steps)) + dtype.itemsize
    is_ours = gpu.alive.at(first, size) is not None
    whole = gpu._memory(first, size) if is_ours else lent_memory(first, size)
    view = np.ndarray(shape, dtype, whole, -before, strides)
    return gpu._guarded(view) if is_ours else GuardedArray(view)


def entry_at(gpu: Gpu, address: int, dtype: Any) -> GuardedArray:
    """Return the entry at an address, as kernels see it that are given it."""
    view = gpu._memory(address, dtype.itemsize).view(dtype)
    return gpu._guarded(view)  # type: ignore[no-any-return]


def issue(gpu: Gpu, operations: Iterable[tuple[Any, ...]]) -> None:
    """Have operations done at once."""
    for name, *arguments in operations:
        if name == "turn":
            _ = arguments[0] and arguments[0]()
        elif name == "launch":
            words, pointers = point_to_words(arguments[-1])
            gpu.launch(*arguments[:-1], int(pointers.ctypes.data))
            del words
        elif name in {"mark", "hold"}:
            getattr(gpu.streams, name)(*arguments)
        else:
            getattr(gpu, name)(*arguments)


class ConditionalLoop:
    """Repeats its supersteps, once at each query for its end.

    What comes beside the next superstep runs as late as it may.
    """

    def __init__(self, gpu: Gpu, supersteps: Any, has_gates: bool) -> None:
        self.gpu, self.supersteps = gpu, list(supersteps)
        own = 1000 * (1 + len(gpu.loops))
        gates = range(own + 1, own + 1 + len(self.supersteps) * has_gates)
        self.nodes = Nodes(own, tuple(gates))
        self.launched = self.rounds = 0
        #: How many supersteps have run.
        self.ran = 0
        gpu.loops.append(self)

    def launch(self) -> None:
        assert not self.gpu.waiting
        assert self.gpu.running is None
        self.launched += 1
        conditions.update(dict.fromkeys((self.nodes.loop, *self.nodes.gates), 1))
        self.gpu.running = self

    def is_done(self) -> bool:
        if self.gpu.running is self:
            self.gpu.running = None  # for what is asked of it now
            self._run()
            if conditions[self.nodes.loop]:
                self.gpu.running = self
        return self.gpu.running is None

    def finish(self) -> None:
        while not self.is_done():
            pass

    def _run(self) -> None:
        self.rounds += 1
        beside: list[Any] = []
        gates = self.nodes.gates or [self.nodes.loop] * len(self.supersteps)
        for gate, (work, others) in zip(gates, self.supersteps, strict=True):
            if not conditions[gate]:
                continue
            assert not (others and self.nodes.gates)
            self.ran += 1
            if len(beside) > 1:
                issue(self.gpu, beside.pop(0))
            issue(self.gpu, work)
            beside.append(others)
        for others in beside:
            issue(self.gpu, others)


class Unmapped:
    """Stands for the driver where ranks are threads: no memory is mapped."""

    CUdeviceptr = int
    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    @staticmethod
    def cuIpcGetMemHandle(address: int) -> tuple[int, None]:
        return 1, None


class Repetition(Recording):
    """The same, one call at a time."""

    is_graph = False


def _type_of(value: Any) -> ParameterType:
    if isinstance(value, DeviceArray):
        shape, strides = tuple(value.shape), tuple(value.strides)
        layout, _ = layout_of(shape, strides, value.dtype.itemsize)
        return ParameterType(value.dtype.name, value.ndim, layout)
    spelt = {"int": "int64", "float": "float64", "bool_": "bool"}
    name = type(value).__name__
    return ParameterType(spelt.get(name, name))


@contextmanager
def emulated_gpu() -> Iterator[Gpu]:
    """Have ``target="cuda"`` run on a GPU of host memory."""
    gpu = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        launches = partial(
            Launches, by_dialect=gpu.bind, compiled=gpu.compiled, ahead=gpu.ahead
        )
        patch.setattr(background, "is_stored", lambda function, types: False)
        for module in (cuda_arrays, cuda_device, windows):
            patch.setattr(module, "cuda", gpu)
        for module in (gpu_messages, windows):
            patch.setattr(module, "uuid_of_current", lambda: "emulated")
        patch.setattr(windows, "IpcMemory", partial(IpcMemory, Unmapped()))
        for module in (cuda_arrays, cuda_device, cuda_sets, cuda_trees):
            patch.setattr(module, "BLOCK", 32)
        patch.setattr(cuda_trees, "THREADS", 32)
        for module in (
            cuda_device,
            gpu_messages,
            window_channel,
        ):
            patch.setattr(module, "BLOCK", 32)
        patch.setattr(gpu_messages, "cuda", gpu)
        patch.setattr(gpu_transport, "cuda", EmulatedStreams())
        patch.setattr(gpu_rows, "cuda", EmulatedStreams())
        patch.setattr(foreign, "cuda", gpu)
        patch.setattr(foreign, "Strided", SeenArray)
        patch.setattr(streamed_memory, "cuda", gpu)
        patch.setattr(streamed_rows, "BLOCK", 32)
        patch.setattr(download, "cuda", gpu)
        patch.setattr(download, "Driver", lambda: PieceDriver(gpu))
        patch.setattr(download, "device_of", lambda array: 0)
        patch.setattr(download, "_landings", {})
        places = download._FewBytes()
        patch.setattr(download, "_places", lambda: places)
        patch.setattr(memory, "cuda", gpu)
        patch.setattr(memory, "array_of", gpu.device_array)
        patch.setattr(memory, "unused_bytes", lambda: 0)
        patch.setattr(memory, "BLOCK", 32)
        patch.setattr(memory, "_driver", lambda: gpu)
        of_arrays = launches(PlainDriver(gpu))
        patch.setattr(memory, "_launches", lambda: of_arrays)
        of_threads = memory._Found()
        patch.setattr(memory, "_found", lambda: of_threads)
        patch.setattr(cuda_memory, "cuda", gpu)
        patch.setattr(foreign, "device_of", lambda array: 0)
        patch.setattr(numbers, "_copy_by_dialect", lambda values: values.data.copy())
        patch.setattr(cuda_arrays, "Driver", lambda: gpu)
        patch.setattr(cuda_arrays, "Launches", launches)
        patch.setattr(cuda_arrays, "ConditionalLoop", ConditionalLoop)
        patch.setattr(cuda_arrays, "Recording", Recording)
        patch.setattr(cuda_arrays, "Repetition", Repetition)
        # Lanes take their time: two blocks of a reduce are enough.
        patch.setattr(mappings, "REDUCE_BLOCKS", 2)
        device = cuda_device.CudaDevice()
        patch.setattr(cuda_device, "cuda_device", lambda: device)
        patch.setattr(dialect, "require", lambda gpu=False: None)
        patch.setattr(dialect, "is_available", lambda: True)
        memory_at.append(find := partial(entry_at, gpu))
        try:
            yield gpu
        finally:
            memory_at.remove(find)

"""The CUDA driver, where the dialect takes too long: launches, small copies.

The runtime launches a kernel through the dialect until that has compiled it, and then
through the driver. Importing this needs neither a GPU nor the driver.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DeviceError
from featgraph.base.interrupts import import_whole
from featgraph.cuda import dialect

__all__ = [
    "Compiled",
    "Driver",
    "IpcMemory",
    "ParameterType",
    "Streams",
    "address_of",
    "compiled",
    "compiled_ahead",
    "device_of",
    "uuid_of_current",
]


def _api() -> Any:
    return import_whole("cuda.bindings.driver")


class ParameterType(NamedTuple):
    """What a compiled kernel takes at one place.

    Attributes
    ----------
    dtype : str
        NumPy name of a scalar's type, or of an array's items.
    rank : int or None
        Dimensions of an array; None for a scalar.
    layout : str
        Of an array, as the dialect has it: "C" or "F" where it is contiguous, "A" for
        any other strides.
    """

    dtype: str
    rank: int | None = None
    layout: str = "C"


@dataclass(frozen=True)
class Compiled:
    """The machine code of a kernel for one set of argument types.

    Attributes
    ----------
    handle : object
        What the driver launches.
    parameters : tuple of ParameterType
        Its arguments, those of namedtuples one by one.
    """

    handle: Any
    parameters: tuple[ParameterType, ...]


def compiled(kernel: Any, arguments: Sequence[Any]) -> Compiled | None:
    """Return what the dialect has compiled of a kernel for some arguments.

    It reaches for the dialect's own names, since no public ones lead there.

    Parameters
    ----------
    kernel : numba.cuda.dispatcher.CUDADispatcher
        It has been launched with arguments of these types.
    arguments : sequence
        What it was launched with.

    Returns
    -------
    Compiled or None
        None where the dialect does not tell, or the kernel wants more than a plain
        launch.
    """
    try:
        types = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    except AttributeError:
        return None
    return _compiled_for(kernel, types)


def compiled_ahead(kernel: Any, types: Sequence[Any]) -> Compiled | None:
    """Compile a kernel for some types of the dialect, or load it from its cache.

    Returns
    -------
    Compiled or None
        As `compiled`.
    """
    dialect.cuda.current_context()
    with dialect.compiling():
        kernel.compile(tuple(types))
    return _compiled_for(kernel, tuple(types))


def _compiled_for(kernel: Any, types: tuple[Any, ...]) -> Compiled | None:
    """Return what the dialect has compiled of a kernel for some types."""
    try:
        overload = kernel.overloads[types]
        plain = not (overload.cooperative or overload.debug or overload.extensions)
        plain = plain and not getattr(overload, "launch_config_sensitive", False)
        kernel_handle = overload._codelibrary.get_cufunc().handle
    except (AttributeError, KeyError):
        return None
    parameters = [parameter for type_ in types for parameter in _parameters(type_)]
    if not plain or None in parameters:
        return None
    handle = _api().CUfunction(int(kernel_handle))
    return Compiled(handle, tuple(p for p in parameters if p is not None))


def _parameters(type_: Any) -> list[ParameterType | None]:
    """Return the parameters of one argument; None for what is not known here."""
    if hasattr(type_, "types"):  # a namedtuple
        return [parameter for field in type_ for parameter in _parameters(field)]
    if hasattr(type_, "layout"):
        return [ParameterType(str(type_.dtype), type_.ndim, type_.layout)]
    dtype = str(type_)
    return [ParameterType(dtype) if dtype in _SCALARS else None]


_SCALARS = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"bool", "float32", "float64"}


def address_of(array: Any) -> int:
    """Return the device address of an array of the dialect."""
    return array.device_ctypes_pointer.value or 0


def device_of(array: Any) -> int:
    """Return the number of the GPU that has the memory of an array of the dialect."""
    api = _api()
    ordinal = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, found = api.cuPointerGetAttribute(ordinal, address_of(array))
    if status != api.CUresult.CUDA_SUCCESS:
        raise DeviceError("memory of no GPU", got=f"status {int(status)}")
    return int(found)


def uuid_of_current() -> str:
    """Return what tells the current GPU from all others."""
    dialect.cuda.current_context()
    api = _api()
    status, device = api.cuCtxGetDevice()
    if status == api.CUresult.CUDA_SUCCESS:
        status, uuid = api.cuDeviceGetUuid(device)
    if status != api.CUresult.CUDA_SUCCESS:
        raise DeviceError("a GPU without a UUID", got=f"status {int(status)}")
    return bytes(uuid.bytes).hex()


class Mapping:
    """Memory of another process's GPU, mapped into this one until it is closed."""

    def __init__(self, api: Any, address: Any) -> None:
        self._api, self._address = api, address

    def close(self) -> None:
        """Unmap it: behind all work on it, and before its owner gives it back."""
        self._api.cuIpcCloseMemHandle(self._address)


#: Bytes of the driver's handle of memory.
_HANDLE_BYTES = 64


class IpcMemory:
    """Handles of memory that the driver has allocated, for other processes.

    They are bytes: the process, an address there, and the driver's handle.

    Parameters
    ----------
    api : module, optional
        The driver's bindings.
    """

    def __init__(self, api: Any = None) -> None:
        self._api = api or _api()

    def describe(self, address: int) -> bytes:
        """Return what another process opens memory by, or finds its address in."""
        api, process = self._api, os.getpid()
        status, handle = api.cuIpcGetMemHandle(api.CUdeviceptr(address))
        has_handle = status == api.CUresult.CUDA_SUCCESS
        raw = ctypes.string_at(handle.getPtr(), _HANDLE_BYTES) if has_handle else b""
        return struct.pack("<qq", process, address) + raw

    def open(self, described: bytes) -> tuple[int, Mapping | None]:
        """Return the address of memory here, and its mapping if it has one.

        Raises
        ------
        DeviceError
            If it is of another process, and cannot be mapped.
        """
        api, head = self._api, struct.calcsize("<qq")
        process, address = struct.unpack("<qq", described[:head])
        if process == os.getpid():
            return address, None
        handle = api.CUipcMemHandle()
        if len(described) == head:
            raise DeviceError("memory of another GPU has no handle")
        ctypes.memmove(handle.getPtr(), described[head:], _HANDLE_BYTES)
        flag = api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        status, mapped = api.cuIpcOpenMemHandle(handle, int(flag))
        if status != api.CUresult.CUDA_SUCCESS:
            _, name = api.cuGetErrorName(status)
            raise DeviceError(
                "memory of another process's GPU cannot be mapped",
                got=name.decode() if isinstance(name, bytes) else name,
            )
        return int(mapped), Mapping(api, mapped)


#: The driver puts so many bytes aside, and does not wait until they are there.
_FEW_BYTES = 1 << 16
#: Events of a thread, of which a few are waited for at a time.
_EVENTS = 16


class _OfThread(threading.local):
    """A thread's events, given out in turn, and whether it has a context."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.turn = 0
        self.has_context = False


class Driver:
    """The driver's calls that the runtime makes at every superstep.

    The dialect's own take several times as long. All work goes to the default stream,
    unless said otherwise, in order.
    """

    def __init__(self) -> None:
        dialect.require(gpu=True)
        self.api = _api()
        self._success = self.api.CUresult.CUDA_SUCCESS
        self._side: Any = None
        self._own = _OfThread()

    def check(self, result: tuple[Any, ...]) -> Any:
        """Return what a call of the driver gives besides its status."""
        # The same object for all calls that succeed, or an equal one.
        if result[0] is not self._success and result[0] != self._success:
            _, name = self.api.cuGetErrorName(result[0])
            raise DeviceError(
                "a call of the CUDA driver failed",
                got=name.decode() if isinstance(name, bytes) else name,
            )
        return result[1] if len(result) > 1 else None

    def enter(self) -> None:
        """Have the dialect make its context current, once a thread."""
        if not self._own.has_context:
            dialect.cuda.current_context()
            self._own.has_context = True

    def launch(
        self, handle: Any, blocks: int, threads: int, stream: Any, parameters: int
    ) -> None:
        """Launch a kernel.

        Parameters
        ----------
        handle : object
            Of a `Compiled`.
        blocks, threads : int
            Blocks of the grid, threads of a block.
        stream : object
            A stream of the dialect; 0 is the default one.
        parameters : int
            Address of the pointers to its arguments.
        """
        if not self._own.has_context:
            self.enter()
        where = int(stream.handle) if stream else 0
        result = self.api.cuLaunchKernel(
            handle, blocks, 1, 1, threads, 1, 1, 0, where, parameters, 0
        )
        if result[0] is not self._success:
            self.check(result)

    def set_words(self, address: int, value: int, count: int) -> None:
        """Set `count` words of 32 bits."""
        if not self._own.has_context:
            self.enter()
        self.check(self.api.cuMemsetD32Async(address, value, count, 0))

    def set_bytes(self, address: int, value: int, count: int) -> None:
        """Set `count` bytes."""
        self.enter()
        self.check(self.api.cuMemsetD8Async(address, value, count, 0))

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes within the device."""
        self.enter()
        self.check(self.api.cuMemcpyDtoDAsync(target, source, size, 0))

    def write(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes from the host, which may then write there again.

        Few bytes do not wait for the device: the driver puts what is not page-locked
        aside.
        """
        self.enter()
        if size > _FEW_BYTES:
            self.check(self.api.cuMemcpyHtoD(target, source, size))
            return
        own = ctypes.create_string_buffer(ctypes.string_at(source, size), size)
        address = ctypes.addressof(own)
        self.check(self.api.cuMemcpyHtoDAsync(target, address, size, 0))

    def read(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes to pinned memory of the host, and wait for all work."""
        self.enter()
        self.check(self.api.cuMemcpyDtoHAsync(target, source, size, 0))
        self.check(self.api.cuStreamSynchronize(0))

    def current_gpu(self) -> int:
        """Return the number of the GPU of the context."""
        self.enter()
        return int(self.check(self.api.cuCtxGetDevice()))

    def memory_bytes(self) -> int:
        """Return how much memory the GPU of the context has."""
        return int(self.check(self.api.cuDeviceTotalMem(self.current_gpu())))

    def wait_for_stream(self, stream: int) -> None:
        """Wait for what a stream was given; 0 is the default one."""
        self.enter()
        self.check(self.api.cuStreamSynchronize(stream))

    def start_read(self, target: int, source: int, size: int) -> Any:
        """Have bytes copied to pinned memory of the host; return an event behind it."""
        self.enter()
        self.check(self.api.cuMemcpyDtoHAsync(target, source, size, 0))
        return self.record_event(0)

    def wait_for(self, event: Any) -> None:
        """Wait until what was asked for before an event has been done."""
        self.check(self.api.cuEventSynchronize(event))

    def side_stream(self) -> Any:
        """Return a stream that waits for nothing it is not told to."""
        if self._side is None:
            self._side = self.streams.make_stream()
        return self._side

    @cached_property
    def streams(self) -> Streams:
        """Copies and waits on other streams."""
        return Streams(self)

    def record_event(self, stream: Any) -> Any:
        """Return an event behind what a stream was given.

        It is given out again after 15 others, since making one takes long.
        """
        own = self._own
        if len(own.events) < _EVENTS:
            no_timing = self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
            made = self.check(self.api.cuEventCreate(int(no_timing)))
            own.events.append(made)
        event = own.events[own.turn]
        own.turn = (own.turn + 1) % _EVENTS
        self.check(self.api.cuEventRecord(event, stream))
        return event


class Streams:
    """What is done on other streams than the default one, and who waits for whom.

    Parameters
    ----------
    driver : Driver
    """

    def __init__(self, driver: Driver) -> None:
        self._driver, self._api = driver, driver.api

    def make_stream(self, *, is_urgent: bool = False) -> Any:
        """Return a stream that waits for nothing it is not told to.

        Blocks of an urgent one begin before those of others that have not begun.
        """
        self._driver.enter()
        api, check = self._api, self._driver.check
        flag = int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if not is_urgent:
            return check(api.cuStreamCreate(flag))
        status, least, greatest = api.cuCtxGetStreamPriorityRange()
        check((status, least))
        return check(api.cuStreamCreateWithPriority(flag, greatest))

    def make_event(self) -> Any:
        """Return an event that is the caller's own."""
        self._driver.enter()
        no_timing = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self._driver.check(self._api.cuEventCreate(int(no_timing)))

    def mark(self, event: Any, stream: Any) -> None:
        """Put an event behind what a stream was given; 0 is the default one."""
        self._driver.enter()
        self._driver.check(self._api.cuEventRecord(event, stream))

    def hold(self, stream: Any, event: Any) -> None:
        """Have what a stream is given from now on wait for an event."""
        self._driver.enter()
        self._driver.check(self._api.cuStreamWaitEvent(stream, event, 0))

    def wait(self, event: Any) -> None:
        """Have the host wait for an event."""
        self._driver.wait_for(event)

    def start_write(self, target: int, source: int, size: int, stream: Any) -> None:
        """Have bytes copied from pinned memory of the host."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyHtoDAsync(target, source, size, stream))

    def start_read(self, target: int, source: int, size: int, stream: Any) -> None:
        """Have bytes copied to pinned memory of the host."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyDtoHAsync(target, source, size, stream))

    def copy_any(self, target: int, source: int, size: int) -> None:
        """Copy bytes between the device and pinned memory, on the default stream."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyAsync(target, source, size, 0))

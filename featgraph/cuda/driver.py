"""Calls of the CUDA driver where the dialect takes too long: launches, small copies.

The first launch of a kernel goes through the dialect, which compiles it; later ones go
through the driver (`launch.Launches`). `compiled` finds the function handle that the
dialect has compiled, `Driver` has the calls of each superstep, `Streams` copies and
events on other streams, and `IpcMemory` shares GPU memory between processes. Importing
this module needs neither a GPU nor the driver.
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
    """Return NVIDIA's Python bindings of the driver, imported at the first use."""
    return import_whole("cuda.bindings.driver")


class ParameterType(NamedTuple):
    """Type of one parameter of a compiled kernel.

    Attributes
    ----------
    dtype : str
        NumPy name of a scalar's type, or of an array's items.
    rank : int or None
        Number of dimensions of an array; None for a scalar.
    layout : str
        Layout of an array in the dialect's terms: "C" or "F" if it is contiguous, "A"
        for any other strides.
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
        The driver's function handle.
    parameters : tuple of ParameterType
        Parameter types, with namedtuples flattened.
    """

    handle: Any
    parameters: tuple[ParameterType, ...]


def compiled(kernel: Any, arguments: Sequence[Any]) -> Compiled | None:
    """Return the machine code that the dialect has compiled for some arguments.

    It is found by private names of the dialect, which has no public ones for it.

    Parameters
    ----------
    kernel : numba.cuda.dispatcher.CUDADispatcher
        A kernel that was launched with arguments of these types.
    arguments : sequence
        The arguments of that launch.

    Returns
    -------
    Compiled or None
        None if the dialect does not expose the code, or the kernel needs more than a
        plain launch.
    """
    try:
        types = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    except AttributeError:
        return None
    return _compiled_for(kernel, types)


def compiled_ahead(kernel: Any, types: Sequence[Any]) -> Compiled | None:
    """Compile a kernel for types of the dialect, or load it from the dialect's cache.

    Returns
    -------
    Compiled or None
        The same as `compiled` returns.
    """
    dialect.cuda.current_context()
    with dialect.compiling():
        kernel.compile(tuple(types))
    return _compiled_for(kernel, tuple(types))


def _compiled_for(kernel: Any, types: tuple[Any, ...]) -> Compiled | None:
    """Return the machine code that the dialect has compiled for some types."""
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
    """Return the parameters of one argument; an entry is None if not supported."""
    if hasattr(type_, "types"):  # a namedtuple
        return [parameter for field in type_ for parameter in _parameters(field)]
    if hasattr(type_, "layout"):
        return [ParameterType(str(type_.dtype), type_.ndim, type_.layout)]
    dtype = str(type_)
    return [ParameterType(dtype) if dtype in _SCALARS else None]


#: Types of scalar parameters that `PackedArguments` can pack.
_SCALARS = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"bool", "float32", "float64"}


def address_of(array: Any) -> int:
    """Return the device address of a `Strided`, or of an array of the dialect."""
    known: int | None = getattr(array, "address", None)
    return array.device_ctypes_pointer.value or 0 if known is None else known


def device_of(array: Any) -> int:
    """Return the ordinal of the GPU that holds an array's memory."""
    api = _api()
    ordinal = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, found = api.cuPointerGetAttribute(ordinal, address_of(array))
    if status != api.CUresult.CUDA_SUCCESS:
        raise DeviceError("not memory of a GPU", got=f"status {int(status)}")
    return int(found)


def uuid_of_current() -> str:
    """Return the UUID of the current GPU, in hexadecimal digits."""
    dialect.cuda.current_context()
    api = _api()
    status, device = api.cuCtxGetDevice()
    if status == api.CUresult.CUDA_SUCCESS:
        status, uuid = api.cuDeviceGetUuid(device)
    if status != api.CUresult.CUDA_SUCCESS:
        raise DeviceError("a GPU without a UUID", got=f"status {int(status)}")
    return bytes(uuid.bytes).hex()


class Mapping:
    """GPU memory of another process, mapped into this process until it is closed."""

    def __init__(self, api: Any, address: Any) -> None:
        self._api, self._address = api, address

    def close(self) -> None:
        """Unmap the memory.

        All work on it must have finished, and its owner must not have freed it yet.
        """
        self._api.cuIpcCloseMemHandle(self._address)


#: Bytes of the driver's handle of memory.
_HANDLE_BYTES = 64


class IpcMemory:
    """Makes and opens handles by which processes share GPU memory.

    A handle is a byte string: process id, address in that process, driver's handle.

    Parameters
    ----------
    api : module, optional
        The driver's bindings.
    """

    def __init__(self, api: Any = None) -> None:
        self._api = api or _api()

    def describe(self, address: int) -> bytes:
        """Return a handle of the memory at an address, for `open` in any process."""
        api, process = self._api, os.getpid()
        status, handle = api.cuIpcGetMemHandle(api.CUdeviceptr(address))
        has_handle = status == api.CUresult.CUDA_SUCCESS
        raw = ctypes.string_at(handle.getPtr(), _HANDLE_BYTES) if has_handle else b""
        return struct.pack("<qq", process, address) + raw

    def open(self, handle: bytes) -> tuple[int, Mapping | None]:
        """Return the address of memory in this process, and its mapping.

        The mapping is None if the memory belongs to this process.

        Raises
        ------
        DeviceError
            If memory of another process cannot be mapped.
        """
        api, head = self._api, struct.calcsize("<qq")
        process, address = struct.unpack("<qq", handle[:head])
        if process == os.getpid():
            return address, None
        own = api.CUipcMemHandle()
        if len(handle) == head:
            raise DeviceError("memory of another GPU has no handle")
        ctypes.memmove(own.getPtr(), handle[head:], _HANDLE_BYTES)
        flag = api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        status, mapped = api.cuIpcOpenMemHandle(own, int(flag))
        if status != api.CUresult.CUDA_SUCCESS:
            _, name = api.cuGetErrorName(status)
            raise DeviceError(
                "memory of another process's GPU cannot be mapped",
                got=name.decode() if isinstance(name, bytes) else name,
            )
        return int(mapped), Mapping(api, mapped)


#: Up to this many bytes, the driver stages a copy from pageable memory and returns at
#: once.
_FEW_BYTES = 1 << 16
#: Number of events of a thread, which are reused in turn. Callers wait for the last few
#: only.
_EVENTS = 16


class _OfThread(threading.local):
    """A thread's ring of events, and whether its context is current."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.turn = 0
        self.has_context = False


class Driver:
    """The driver calls of a superstep; they take several times as long in the dialect.

    All work goes to the default stream, in order, unless a stream is given.
    """

    def __init__(self) -> None:
        dialect.require(gpu=True)
        self.api = _api()
        self._success = self.api.CUresult.CUDA_SUCCESS
        self._side: Any = None
        self._own = _OfThread()

    def check(self, result: tuple[Any, ...]) -> Any:
        """Return the result of a driver call; DeviceError for a failure."""
        # Successful calls mostly return the same object, and `is` is faster than `==`.
        if result[0] is not self._success and result[0] != self._success:
            _, name = self.api.cuGetErrorName(result[0])
            raise DeviceError(
                "a call of the CUDA driver failed",
                got=name.decode() if isinstance(name, bytes) else name,
            )
        return result[1] if len(result) > 1 else None

    def enter(self) -> None:
        """Make the dialect's context current, once per thread."""
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
            `Compiled.handle` of the kernel.
        blocks, threads : int
            Blocks of the grid, threads of a block.
        stream : object
            A stream of the dialect; 0 is the default one.
        parameters : int
            Address of the array of pointers to its arguments.
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
        """Set `count` words of 32 bits; asynchronous."""
        if not self._own.has_context:
            self.enter()
        self.check(self.api.cuMemsetD32Async(address, value, count, 0))

    def set_bytes(self, address: int, value: int, count: int) -> None:
        """Set `count` bytes; asynchronous."""
        self.enter()
        self.check(self.api.cuMemsetD8Async(address, value, count, 0))

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes within the device; asynchronous."""
        self.enter()
        self.check(self.api.cuMemcpyDtoDAsync(target, source, size, 0))

    def write(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes from the host; the source may be overwritten afterwards.

        Up to 64 KiB, the copy does not wait for the device: the driver stages pageable
        memory.
        """
        self.enter()
        if size > _FEW_BYTES:
            self.check(self.api.cuMemcpyHtoD(target, source, size))
            return
        own = ctypes.create_string_buffer(ctypes.string_at(source, size), size)
        address = ctypes.addressof(own)
        self.check(self.api.cuMemcpyHtoDAsync(target, address, size, 0))

    def read(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes to page-locked host memory, and wait for all work."""
        self.enter()
        self.check(self.api.cuMemcpyDtoHAsync(target, source, size, 0))
        self.check(self.api.cuStreamSynchronize(0))

    def current_gpu(self) -> int:
        """Return the ordinal of the context's GPU."""
        self.enter()
        return int(self.check(self.api.cuCtxGetDevice()))

    def memory_bytes(self) -> int:
        """Return the bytes of memory of the context's GPU."""
        return int(self.check(self.api.cuDeviceTotalMem(self.current_gpu())))

    def wait_for_stream(self, stream: int) -> None:
        """Wait for all work on a stream; 0 is the default one."""
        self.enter()
        self.check(self.api.cuStreamSynchronize(stream))

    def start_read(self, target: int, source: int, size: int) -> Any:
        """Start a copy to page-locked host memory; return an event after it."""
        self.enter()
        self.check(self.api.cuMemcpyDtoHAsync(target, source, size, 0))
        return self.record_event(0)

    def wait_for(self, event: Any) -> None:
        """Wait for an event: all work recorded before it has finished."""
        self.check(self.api.cuEventSynchronize(event))

    def side_stream(self) -> Any:
        """Return a second stream, made once; it does not wait for the default one."""
        if self._side is None:
            self._side = self.streams.make_stream()
        return self._side

    @cached_property
    def streams(self) -> Streams:
        """Operations on other streams than the default one."""
        return Streams(self)

    def record_event(self, stream: Any) -> Any:
        """Record an event on a stream, and return it.

        The event is reused after 15 others of this thread, since creating one is slow.
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
    """Copies on streams, and the order between streams by events.

    Parameters
    ----------
    driver : Driver
    """

    def __init__(self, driver: Driver) -> None:
        self._driver, self._api = driver, driver.api

    def make_stream(self, *, is_urgent: bool = False) -> Any:
        """Return a new nonblocking stream.

        Pending blocks of an urgent stream start before those of other streams.
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
        """Return a new event without timing, which belongs to the caller."""
        self._driver.enter()
        no_timing = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self._driver.check(self._api.cuEventCreate(int(no_timing)))

    def mark(self, event: Any, stream: Any) -> None:
        """Record an event on a stream; 0 is the default one."""
        self._driver.enter()
        self._driver.check(self._api.cuEventRecord(event, stream))

    def hold(self, stream: Any, event: Any) -> None:
        """Make later work on a stream wait for an event."""
        self._driver.enter()
        self._driver.check(self._api.cuStreamWaitEvent(stream, event, 0))

    def wait(self, event: Any) -> None:
        """Wait for an event on the host."""
        self._driver.wait_for(event)

    def start_write(self, target: int, source: int, size: int, stream: Any) -> None:
        """Start a copy from page-locked host memory on a stream."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyHtoDAsync(target, source, size, stream))

    def start_read(self, target: int, source: int, size: int, stream: Any) -> None:
        """Start a copy to page-locked host memory on a stream."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyDtoHAsync(target, source, size, stream))

    def copy_any(self, target: int, source: int, size: int) -> None:
        """Copy bytes between GPU and page-locked memory, on the default stream."""
        self._driver.enter()
        self._driver.check(self._api.cuMemcpyAsync(target, source, size, 0))

"""GPU memory, allocated and freed in the order of the default stream.

The driver's plain allocation and freeing synchronize with the device, and take 200 us
each for some megabytes. `array_of` allocates from a memory pool of the driver instead
(cuMemAllocFromPoolAsync): an array is freed when all earlier work on the stream has
finished, and the pool keeps some freed memory for later allocations. Arrays that other
libraries may use on other streams are marked by `expose`. `Strided` is a view of GPU
memory.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np

from featgraph.base.errors import DeviceError
from featgraph.base.interrupts import import_whole
from featgraph.cuda.arguments import layout_of
from featgraph.cuda.dialect import cuda, dialect_module

__all__ = ["Strided", "array_of", "expose", "has_exposed", "is_exposed", "unused_bytes"]


class Strided:
    """A strided view of GPU memory, which kernels take as an array.

    Making one takes a tenth of the time of an array of the dialect.

    Parameters
    ----------
    owner : object
        Owner of the memory, kept alive by the view.
    address : int
        Address of the first element.
    shape, strides : tuple of int
        Strides are in bytes.
    dtype : numpy.dtype

    Attributes
    ----------
    size, ndim : int
        Number of elements, and of axes.
    """

    __slots__ = (
        "__weakref__", "address", "dtype", "ndim", "owner", "shape", "size", "strides",
    )  # fmt: skip

    def __init__(
        self,
        owner: Any,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.owner, self.address = owner, address
        self.shape, self.strides, self.dtype = shape, strides, dtype
        self.size, self.ndim = math.prod(shape), len(shape)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """The address, under the name that arrays of the dialect use."""
        return ctypes.c_void_p(self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, without a stream."""
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "version": 3,
        }

    def view(self, dtype: Any) -> Strided:
        """Return a view with another dtype.

        If its size differs, the array must be contiguous, and the view is flat.
        """
        typed, item = np.dtype(dtype), self.dtype.itemsize
        shape, strides = self.shape, self.strides
        if typed.itemsize != item:
            shape, strides = (self.size * item // typed.itemsize,), (typed.itemsize,)
        return Strided(self.owner, self.address, shape, strides, typed)

    def is_c_contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return layout_of(self.shape, self.strides, self.dtype.itemsize)[0] == "C"

    def in_dialect(self) -> Any:
        """Return an array of the dialect over the same memory."""
        described = self.__cuda_array_interface__
        return cuda.from_cuda_array_interface(described, owner=self, sync=False)


def array_of(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialized array of the dialect.

    Its memory is freed in the order of the default stream. Work on other streams must
    have ended by then, unless the array is marked by `expose`. If the device has no
    pools, or the user has installed a memory manager in the dialect, the manager of the
    dialect allocates the memory.
    """
    typed, pool = np.dtype(dtype), _current_pool()
    item = typed.itemsize
    size = math.prod(shape) * item
    if pool is None or size == 0:
        array = cuda.device_array(shape, typed)
        if size:
            ending = weakref.finalize(
                array.gpu_data, _exposed.discard, int(array.gpu_data.device_pointer)
            )
            ending.atexit = False
        return array
    strides = tuple(item * math.prod(shape[n:]) for n in range(1, len(shape) + 1))
    return pool.array_type(shape, strides, typed, gpu_data=pool.take(size))


def expose(address: int) -> None:
    """Mark the array at an address as used by other streams.

    Freeing the array then waits for all streams.
    """
    _exposed.add(address)


def has_exposed() -> bool:
    """Whether any array is marked as used by other streams."""
    return bool(_exposed)


def is_exposed(address: int) -> bool:
    """Whether the array at an address is marked as used by other streams."""
    return address in _exposed


def unused_bytes() -> int:
    """Return the free bytes in the pool of the current device."""
    pool = _current_pool()
    return 0 if pool is None else pool.unused_bytes()


#: Largest fraction of the device's memory that a pool keeps when arrays are freed.
#: Other libraries cannot allocate this memory.
_KEPT = 1 / 8
#: Addresses of arrays that other streams may use.
_exposed: set[int] = set()


class _Pool:
    """A memory pool on the device of the current context.

    Parameters
    ----------
    context : numba.cuda.cudadrv.driver.Context
    handle : object
        The driver's handle of the context.

    Attributes
    ----------
    array_type : type
        Type of the dialect's arrays.
    """

    def __init__(self, context: Any, handle: Any) -> None:
        self._api = api = import_whole("cuda.bindings.driver")
        arrays = dialect_module("cudadrv.devicearray")
        self.array_type = arrays.DeviceNDArray
        self._owner, self._context, device = context, handle, context.device.id
        props = api.CUmemPoolProps()
        props.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        props.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = device
        self._pool = self._checked(api.cuMemPoolCreate(props))
        most = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        kept = api.cuuint64_t(int(_KEPT * self._checked(api.cuDeviceTotalMem(device))))
        self._checked(api.cuMemPoolSetAttribute(self._pool, most, kept))

    def take(self, size: int) -> Any:
        """Return allocated memory, as a pointer of the dialect that owns it."""
        api = self._api
        allocated = api.cuMemAllocFromPoolAsync(size, self._pool, 0)
        memory = cuda.MemoryPointer(self._owner, self._checked(allocated), size)
        address = int(memory.device_pointer)
        ending = weakref.finalize(memory, self._free, address)
        ending.atexit = False  # the end of the process frees all memory
        return memory

    def unused_bytes(self) -> int:
        """Return the number of bytes that the pool has reserved and no array uses."""
        kinds = self._api.CUmemPool_attribute
        reserved, used = (
            int(self._checked(self._api.cuMemPoolGetAttribute(self._pool, kind)))
            for kind in (
                kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
            )
        )
        return reserved - used

    def _free(self, address: int) -> None:
        """Free memory, on any thread; do nothing in a forked child (no context)."""
        api = self._api
        is_exposed = address in _exposed
        _exposed.discard(address)
        [status] = api.cuCtxPushCurrent(self._context)
        if status != api.CUresult.CUDA_SUCCESS:
            return
        if is_exposed:
            api.cuCtxSynchronize()
        api.cuMemFreeAsync(address, 0)
        api.cuCtxPopCurrent()

    def _checked(self, result: tuple[Any, ...]) -> Any:
        """Return the result of a driver call; DeviceError for a failure."""
        if result[0] != self._api.CUresult.CUDA_SUCCESS:
            _, name = self._api.cuGetErrorName(result[0])
            raise DeviceError("a call of the CUDA driver failed", got=name.decode())
        return result[1] if len(result) > 1 else None


#: Handle of a context -> its pool; None if it cannot have one.
_pools: dict[int, _Pool | None] = {}


def _current_pool() -> _Pool | None:
    """Return the pool of the current context.

    The context comes from the driver, since the dialect takes 20 us to find it.
    """
    api = import_whole("cuda.bindings.driver")
    _, handle = api.cuCtxGetCurrent()
    if handle is None or int(handle) not in _pools:  # None: no driver call before
        context = cuda.current_context()  # makes the primary context current
        _, handle = api.cuCtxGetCurrent()
        if int(handle) not in _pools:
            _pools[int(handle)] = _Pool(context, handle) if _has_pool(context) else None
    return _pools[int(handle)]


def _has_pool(context: Any) -> bool:
    """Whether the device has memory pools, and the dialect its default manager."""
    api = import_whole("cuda.bindings.driver")
    kind = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    status, has_pools = api.cuDeviceGetAttribute(kind, context.device.id)
    is_plain = type(context.memory_manager).__name__ == "NumbaCUDAMemoryManager"
    return is_plain and status == api.CUresult.CUDA_SUCCESS and bool(has_pools)

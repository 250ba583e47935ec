"""Memory of the GPU that is given out and back in the order of the default stream.

The driver's plain allocation and freeing wait for the device, and take 200 us each for
some megabytes. A pool of the driver's gives memory back when the work before is done,
and keeps some of what was given back for the next who asks.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import Any

import numpy as np

from featgraph._cuda import cuda
from featgraph._interrupts import import_whole
from featgraph.errors import DeviceError

__all__ = ["array_of", "lend", "unused_bytes"]


def array_of(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array of the dialect with any contents.

    It is the default stream's: what other streams do with it is waited for, when its
    memory is given back, only behind `lend`. A memory manager that the user has put in
    the place of the dialect's own is asked for the memory; so is that, on a device
    without pools.
    """
    context, item = cuda.current_context(), np.dtype(dtype).itemsize
    pool, size = _pool_of(context.device.id), math.prod(shape) * item
    if pool is None or size == 0 or not _is_plain(context.memory_manager):
        return cuda.device_array(shape, dtype)
    strides = [item * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    arrays, memory = import_whole("numba.cuda.cudadrv.devicearray"), pool.take(size)
    return arrays.DeviceNDArray(shape, strides, dtype, gpu_data=memory)


def lend(address: int) -> None:
    """Note that other streams may use the memory of an array that begins there.

    It is given back when all streams are done with what they were given before.
    """
    _lent.add(address)


def unused_bytes() -> int:
    """Return how much memory the pool of the current device has that no array has."""
    pool = _pool_of(cuda.current_context().device.id)
    return 0 if pool is None else pool.unused_bytes()


#: A pool keeps this share of a device's memory, which other libraries do not get: their
#: allocations fail rather than take it.
_KEPT = 1 / 8
#: Addresses of memory of a pool that others may use.
_lent: set[int] = set()


class _Pool:
    """A pool of one device, in its current context."""

    def __init__(self, device: int) -> None:
        self._api = api = import_whole("cuda.bindings.driver")
        self._context = self._checked(api.cuCtxGetCurrent())
        told = api.CUmemPoolProps()
        told.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        told.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        told.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        told.location.id = device
        self._pool = self._checked(api.cuMemPoolCreate(told))
        most = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        kept = api.cuuint64_t(int(_KEPT * self._checked(api.cuDeviceTotalMem(device))))
        self._checked(api.cuMemPoolSetAttribute(self._pool, most, kept))

    def take(self, size: int) -> Any:
        """Return memory of some size, as the dialect has it."""
        api = self._api
        given = api.cuMemAllocFromPoolAsync(size, self._pool, 0)
        context = cuda.current_context()
        memory = cuda.MemoryPointer(context, self._checked(given), size)
        address = int(memory.device_pointer)
        ending = weakref.finalize(memory, self._give_back, address)
        ending.atexit = False  # the process gives back what it has
        return memory

    def unused_bytes(self) -> int:
        """Return how much of it is free."""
        kinds = self._api.CUmemPool_attribute
        reserved, used = (
            int(self._checked(self._api.cuMemPoolGetAttribute(self._pool, kind)))
            for kind in (
                kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
            )
        )
        return reserved - used

    def _give_back(self, address: int) -> None:
        """Free memory, in whatever thread that is; behind a fork it is not ours."""
        api = self._api
        is_lent = address in _lent
        _lent.discard(address)
        [status] = api.cuCtxPushCurrent(self._context)
        if status != api.CUresult.CUDA_SUCCESS:
            return
        if is_lent:
            api.cuCtxSynchronize()
        api.cuMemFreeAsync(address, 0)
        api.cuCtxPopCurrent()

    def _checked(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._api.CUresult.CUDA_SUCCESS:
            _, name = self._api.cuGetErrorName(result[0])
            raise DeviceError("a call of the CUDA driver failed", got=name.decode())
        return result[1] if len(result) > 1 else None


@functools.cache
def _pool_of(device: int) -> _Pool | None:
    """Return the pool of a device, in whose context the thread is; None for none."""
    api = import_whole("cuda.bindings.driver")
    kind = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    status, has_pools = api.cuDeviceGetAttribute(kind, device)
    return _Pool(device) if status == api.CUresult.CUDA_SUCCESS and has_pools else None


def _is_plain(manager: Any) -> bool:
    return type(manager).__name__ == "NumbaCUDAMemoryManager"

"""Memory of the GPU that is given out and back in the order of the default stream.

The driver's plain allocation and freeing wait for the device, and take 200 us each for
some megabytes. A pool of the driver's gives memory back when the work before is done,
and keeps some of what was given back for the next who asks.
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

__all__ = ["Strided", "array_of", "has_lent", "is_lent", "lend", "unused_bytes"]


class Strided:
    """Memory of another array, with other axes: what a kernel is given to look at.

    Making one takes a tenth of what an array of the dialect does.

    Parameters
    ----------
    owner : object
        Whoever has the memory; it is kept alive.
    address : int
        Of the first element.
    shape, strides : tuple of int
    dtype : numpy.dtype

    Attributes
    ----------
    size, ndim : int
        How many elements and axes there are.
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
        """The address, as arrays of the dialect give it."""
        return ctypes.c_void_p(self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What other libraries are told."""
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "version": 3,
        }

    def view(self, dtype: Any) -> Strided:
        """Return the same memory as another type: of as many bytes, or of one axis."""
        typed, item = np.dtype(dtype), self.dtype.itemsize
        shape, strides = self.shape, self.strides
        if typed.itemsize != item:
            shape, strides = (self.size * item // typed.itemsize,), (typed.itemsize,)
        return Strided(self.owner, self.address, shape, strides, typed)

    def is_c_contiguous(self) -> bool:
        """Whether it is in C order, without gaps."""
        return layout_of(self.shape, self.strides, self.dtype.itemsize)[0] == "C"

    def in_dialect(self) -> Any:
        """Return an array of the dialect over the same memory."""
        described = self.__cuda_array_interface__
        return cuda.from_cuda_array_interface(described, owner=self, sync=False)


def array_of(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array of the dialect with any contents.

    It is the default stream's: what other streams do with it is waited for, when its
    memory is given back, only behind `lend`. A memory manager that the user has put in
    the place of the dialect's own is asked for the memory; so is that, on a device
    without pools.
    """
    typed, pool = np.dtype(dtype), _current_pool()
    item = typed.itemsize
    size = math.prod(shape) * item
    if pool is None or size == 0:
        array = cuda.device_array(shape, typed)
        if size:
            ending = weakref.finalize(
                array.gpu_data, _lent.discard, int(array.gpu_data.device_pointer)
            )
            ending.atexit = False
        return array
    strides = tuple(item * math.prod(shape[n:]) for n in range(1, len(shape) + 1))
    return pool.array_type(shape, strides, typed, gpu_data=pool.take(size))


def lend(address: int) -> None:
    """Note that other streams may use the memory of an array that begins there.

    It is given back when all streams are done with what they were given before.
    """
    _lent.add(address)


def has_lent() -> bool:
    """Whether other streams may use the memory of any array."""
    return bool(_lent)


def is_lent(address: int) -> bool:
    """Whether other streams may use the memory of an array that begins there."""
    return address in _lent


def unused_bytes() -> int:
    """Return how much memory the pool of the current device has that no array has."""
    pool = _current_pool()
    return 0 if pool is None else pool.unused_bytes()


#: A pool keeps this share of a device's memory, which other libraries do not get: their
#: allocations fail rather than take it.
_KEPT = 1 / 8
#: Addresses of memory of a pool that others may use.
_lent: set[int] = set()


class _Pool:
    """A pool of the device of a context, which is current.

    Parameters
    ----------
    context : numba.cuda.cudadrv.driver.Context
    handle : object
        The driver's of it.

    Attributes
    ----------
    array_type : type
        Of the dialect's arrays.
    """

    def __init__(self, context: Any, handle: Any) -> None:
        self._api = api = import_whole("cuda.bindings.driver")
        arrays = dialect_module("cudadrv.devicearray")
        self.array_type = arrays.DeviceNDArray
        self._owner, self._context, device = context, handle, context.device.id
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
        memory = cuda.MemoryPointer(self._owner, self._checked(given), size)
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


#: The driver's number of a context -> its pool; None where it has none.
_pools: dict[int, _Pool | None] = {}


def _current_pool() -> _Pool | None:
    """Return the pool of the current context.

    The driver is asked which that is, since the dialect takes 20 us for it.
    """
    api = import_whole("cuda.bindings.driver")
    _, handle = api.cuCtxGetCurrent()
    if int(handle) not in _pools:
        context = cuda.current_context()  # makes one, or that of the process current
        _, handle = api.cuCtxGetCurrent()
        if int(handle) not in _pools:
            _pools[int(handle)] = _Pool(context, handle) if _has_pool(context) else None
    return _pools[int(handle)]


def _has_pool(context: Any) -> bool:
    """Whether memory may come from a pool in a context."""
    api = import_whole("cuda.bindings.driver")
    kind = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    status, has_pools = api.cuDeviceGetAttribute(kind, context.device.id)
    is_plain = type(context.memory_manager).__name__ == "NumbaCUDAMemoryManager"
    return is_plain and status == api.CUresult.CUDA_SUCCESS and bool(has_pools)

"""Arguments of a CUDA kernel, packed for the driver.

In numba-cuda's calling convention, an array is a sequence of 64-bit words: two null
pointers, its size, the bytes of an item, its address, its shape and its strides. A
namedtuple such as `d` has the words of its fields; a scalar has one word. Packing all
arguments takes longer than the launch itself, so that `PackedArguments` writes only the
words that have changed since the last launch. `ArrayWords` caches the words of arrays.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count
from operator import call, is_not, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda.driver import ParameterType

__all__ = [
    "ArrayWords",
    "OtherTypesError",
    "PackedArguments",
    "flatten",
    "layout_of",
    "picker",
    "point_to_words",
    "tuples_of",
]

Array = Any
#: Result of `ArrayWords.find`; words as bytes.
_Known = tuple[weakref.ref[Array], ParameterType, bytes, int]
#: Number of words of an array before its shape: two null pointers, size, bytes of an
#: item, address.
_SHAPE = 5
#: Name of a scalar's type -> Python and NumPy types that compile to it.
_SPELLINGS: dict[str, frozenset[type]] = {
    "bool": frozenset({bool, np.bool_}),
    "int64": frozenset({int, np.int64}),
    "float64": frozenset({float, np.float64}),
}


class OtherTypesError(Exception):
    """The arguments have other types than the kernel was compiled for."""


def tuples_of(arguments: Iterable[Any]) -> tuple[int, ...]:
    """Return the positions of arguments that are namedtuples."""
    return tuple(n for n, each in enumerate(arguments) if isinstance(each, tuple))


def flatten(arguments: Iterable[Any], tuples: Sequence[int]) -> list[Any]:
    """Return the arguments with namedtuples at some positions replaced by fields."""
    flat = list(arguments)
    for place in reversed(tuples):
        flat[place : place + 1] = flat[place]
    return flat


class ArrayWords:
    """Cache of the packed words of arrays, which it does not keep alive.

    Parameters
    ----------
    address_of : callable
        Returns the device address of an array.
    """

    def __init__(self, address_of: Callable[[Array], int]) -> None:
        self._address_of = address_of
        #: ``id(array)`` -> a weak reference to the array, its type, words and address.
        #: Every launch reads it, and a plain dict is faster than a WeakKeyDictionary.
        self._known: dict[int, _Known] = {}
        #: Type -> the object that stands for it, so that types are compared by `is`.
        self._types: dict[ParameterType, ParameterType] = {}

    def find(self, array: Array) -> _Known:
        """Return a weak reference to an array, its type, its words, and its address."""
        known = self._known.get(id(array))
        if known is None or known[0]() is not array:
            key, own = id(array), self._known

            def forget(reference: weakref.ref[Array]) -> None:
                if key in own and own[key][0] is reference:
                    del own[key]

            shape, strides = tuple(array.shape), tuple(array.strides)
            type_, head, tail = _framed(shape, strides, array.dtype)
            address = self._address_of(array)
            words = head + address.to_bytes(8, sys.byteorder) + tail
            known = weakref.ref(array, forget), self.same_type(type_), words, address
            own[key] = known
        return known

    def address_of(self, array: Array) -> int:
        """Return the device address of an array."""
        known = self._known.get(id(array))
        if known is None or known[0]() is not array:
            known = self.find(array)
        return known[3]

    def same_type(self, type_: ParameterType) -> ParameterType:
        """Return the object that `find` returns for an equal type."""
        return self._types.setdefault(type_, type_)


class PackedArguments:
    """The memory from which the driver reads a kernel's arguments.

    Arguments are compared with those of the last launch by identity. References to
    arrays are weak. An array or number that is the same object has the same words, and
    is not written again.

    Parameters
    ----------
    types : sequence of ParameterType
        Types that the kernel was compiled for, namedtuples flattened.
    array_words : ArrayWords
        Words of arrays; kernels may share one.

    Attributes
    ----------
    address : int
        Address of the array of pointers to parameters that the driver takes.
    """

    def __init__(self, types: Sequence[ParameterType], array_words: ArrayWords) -> None:
        self._array_words = array_words
        self._count = len(types)
        firsts = [0]
        for type_ in types:
            size = 1 if type_.rank is None else _SHAPE + 2 * type_.rank
            firsts.append(firsts[-1] + size)
        # One word per scalar: of a narrower type, the driver reads the first bytes.
        words = np.zeros(max(firsts[-1], 1), np.int64)
        self._pointers = words.ctypes.data + 8 * np.arange(words.size, dtype=np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self._words, of_bytes = words, words.data.cast("B")
        arrays: list[tuple[int, memoryview, ParameterType]] = []
        scalars: list[tuple[int, npt.NDArray[Any], frozenset[type]]] = []
        for place, (type_, first) in enumerate(zip(types, firsts, strict=False)):
            if type_.rank is not None:
                bytes_of = of_bytes[8 * first : 8 * firsts[place + 1]]
                arrays.append((place, bytes_of, array_words.same_type(type_)))
                continue
            own = words[first : first + 1]
            kind = np.dtype(type_.dtype)
            view = own.view(kind) if kind.kind == "f" else own
            spelt = _SPELLINGS.get(type_.dtype, frozenset({kind.type}))
            scalars.append((place, view, spelt))
        #: Bytes and type of each array parameter.
        self._arrays = [each[1:] for each in arrays]
        #: Weak reference to the array that is packed there.
        self._bound: list[Callable[[], Any]] = [_nothing] * len(arrays)
        #: Typed view of each scalar's word, and the Python types that it accepts.
        self._scalars = [each[1:] for each in scalars]
        #: The object that is packed there.
        self._written: list[Any] = [_NO_ARRAY] * len(scalars)
        self._pick_arrays = picker([each[0] for each in arrays])
        self._pick_scalars = picker([each[0] for each in scalars])

    def pack(self, values: Sequence[Any]) -> None:
        """Write the words of those flattened arguments that have changed.

        Unchanged arguments are skipped without a Python loop.

        Raises
        ------
        OtherTypesError
            If the number of arguments, or the type of one, differs from those that the
            kernel was compiled for. The kernel must not be launched then.
        """
        if len(values) != self._count:
            raise OtherTypesError
        arrays, bound = self._pick_arrays(values), self._bound
        for place in compress(count(), map(is_not, map(call, bound), arrays)):
            bound[place] = _nothing  # until all words are written
            own, type_ = self._arrays[place]
            reference, found, words, _ = self._array_words.find(arrays[place])
            if found is not type_:
                raise OtherTypesError
            own[:] = words  # as bytes
            bound[place] = reference
        # Numbers are immutable: the same object has the same value.
        scalars, written = self._pick_scalars(values), self._written
        for place in compress(count(), map(is_not, written, scalars)):
            value = scalars[place]
            view, types = self._scalars[place]
            if type(value) not in types:
                raise OtherTypesError
            view[0] = written[place] = value

    def copy_words(self) -> bytes:
        """Return a copy of the packed words, for `point_to_words`."""
        return self._words.tobytes()


def point_to_words(packed: bytes) -> tuple[Any, npt.NDArray[np.uint64]]:
    """Return an array of packed words, and pointers to them for the driver.

    Both must stay alive until the driver has read them.
    """
    words = np.frombuffer(packed, np.int64)
    return words, words.ctypes.data + 8 * np.arange(words.size, dtype=np.uint64)


#: Differs from all arrays and scalars.
_NO_ARRAY = object()


def _nothing() -> object:
    """Stand for the weak reference to an array while none is packed."""
    return _NO_ARRAY


@functools.lru_cache(1 << 12)
def layout_of(
    shape: tuple[int, ...], strides: tuple[int, ...], item: int
) -> tuple[str, tuple[int, ...]]:
    """Return the layout of an array in the dialect's terms, and the strides to pack.

    A stride of zero makes the layout "A", even along a single element. Otherwise
    strides along single elements, and those of an empty array, count as contiguous.

    Parameters
    ----------
    shape, strides : tuple of int
    item : int
        Bytes of an element.

    Returns
    -------
    layout : {"C", "F", "A"}
        C or Fortran order, or any other strides.
    strides : tuple of int
    """
    dense = _strides(shape, item)
    if 0 in shape:
        return "C", dense
    if 0 in strides:
        return "A", strides
    if _same_strides(shape, strides, dense):
        return "C", dense
    along = _strides(shape[::-1], item)[::-1]
    return ("F", along) if _same_strides(shape, strides, along) else ("A", strides)


@functools.lru_cache(1 << 12)
def _framed(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[ParameterType, bytes, bytes]:
    """Return the type of an array, and its words before and behind its address."""
    layout, strides = layout_of(shape, strides, dtype.itemsize)
    head = np.array((0, 0, math.prod(shape), dtype.itemsize), np.int64)
    type_ = ParameterType(dtype.name, len(shape), layout)
    return type_, head.tobytes(), np.array((*shape, *strides), np.int64).tobytes()


def _strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array."""
    strides = []
    for extent in reversed(shape):
        strides.append(item)
        item *= extent
    return tuple(reversed(strides))


def _same_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> bool:
    """Whether strides are as wanted along all axes of more than one element."""
    return all(n == 1 or s == w for n, s, w in zip(shape, strides, wanted, strict=True))


def picker(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from a container to a tuple of its items at some keys.

    Unlike `operator.itemgetter`, it returns a tuple for one key and for none. It runs
    no Python loop, and raises KeyError or IndexError for a missing item.
    """
    if not keys:
        return _none
    if len(keys) == 1:
        [key] = keys
        return lambda items: (items[key],)
    return itemgetter(*keys)


def _none(items: Any) -> tuple[Any, ...]:
    """Return an empty tuple: the `picker` of no keys."""
    return ()

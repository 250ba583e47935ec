"""Arguments of a CUDA kernel, packed for the driver.

A kernel takes its arguments one by one: of an array two null pointers, its size, the
bytes of an item, its address, its shape and its strides; of the namedtuple `d` one
field after the other. Packing them costs more than the launch itself, so what has not
changed since the last launch stays where it is.
"""

from __future__ import annotations

import functools
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
Words = npt.NDArray[np.int64]
_Known = tuple[weakref.ref[Array], ParameterType, Words, int]
#: Words of an array before its shape.
_SHAPE = 5
#: Types of values that a compiler takes for the same type.
_SPELLINGS: dict[str, frozenset[type]] = {
    "bool": frozenset({bool, np.bool_}),
    "int64": frozenset({int, np.int64}),
    "float64": frozenset({float, np.float64}),
}


class OtherTypesError(Exception):
    """The arguments are of other types than those that were packed for."""


def tuples_of(arguments: Iterable[Any]) -> tuple[int, ...]:
    """Return which of the arguments are namedtuples."""
    return tuple(n for n, given in enumerate(arguments) if isinstance(given, tuple))


def flatten(arguments: Iterable[Any], tuples: Sequence[int]) -> list[Any]:
    """Return the arguments with the fields of some in their place."""
    if tuples == (0,):  # mostly `d` alone
        first, *others = arguments
        return [*first, *others]
    flat = list(arguments)
    for place in reversed(tuples):
        flat[place : place + 1] = flat[place]
    return flat


class ArrayWords:
    """The words of arrays, as long as these live.

    Parameters
    ----------
    address_of : callable
        Gives the device address of an array.
    """

    def __init__(self, address_of: Callable[[Array], int]) -> None:
        self._address_of = address_of
        #: Identity of an array -> a reference to it, its type, its words, and where it
        #: is. That is found sooner than by the array itself, at every launch.
        self._known: dict[int, _Known] = {}
        self._types: dict[ParameterType, ParameterType] = {}

    def find(self, array: Array) -> _Known:
        """Return a reference to an array, its type, its words, and its address."""
        known = self._known.get(id(array))
        if known is None or known[0]() is not array:
            key, own = id(array), self._known

            def forget(reference: weakref.ref[Array]) -> None:
                if key in own and own[key][0] is reference:
                    del own[key]

            type_, words = self._make(array)
            known = weakref.ref(array, forget), type_, words, int(words[4])
            own[key] = known
        return known

    def address_of(self, array: Array) -> int:
        """Return where an array is."""
        known = self._known.get(id(array))
        if known is None or known[0]() is not array:
            known = self.find(array)
        return known[3]

    def same_type(self, type_: ParameterType) -> ParameterType:
        """Return a type as the object that `find` gives for it."""
        return self._types.setdefault(type_, type_)

    def _make(self, array: Array) -> tuple[ParameterType, Words]:
        shape, item = tuple(array.shape), array.dtype.itemsize
        layout, strides = layout_of(shape, tuple(array.strides), item)
        words = (0, 0, array.size, item, self._address_of(array), *shape, *strides)
        type_ = ParameterType(_name_of(array.dtype), len(shape), layout)
        return self.same_type(type_), np.array(words, np.int64)


class PackedArguments:
    """The memory from which the driver takes a kernel's arguments.

    Arrays are known by weak references: an array that is the same object as at the last
    launch is where it was, and none is kept alive for being packed. Scalars are written
    where they are other objects.

    Parameters
    ----------
    types : sequence of ParameterType
        What the kernel was compiled for, namedtuples flattened.
    array_words : ArrayWords
        May be shared with others.

    Attributes
    ----------
    address : int
        Of the array of pointers that the driver wants.
    """

    def __init__(self, types: Sequence[ParameterType], array_words: ArrayWords) -> None:
        self._array_words = array_words
        self._count = len(types)
        firsts = [0]
        for type_ in types:
            size = 1 if type_.rank is None else _SHAPE + 2 * type_.rank
            firsts.append(firsts[-1] + size)
        # One word each: of a narrower scalar the driver reads the first bytes.
        words = np.zeros(firsts[-1], np.int64)
        self._pointers = words.ctypes.data + 8 * np.arange(words.size, dtype=np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self._words = words
        arrays: list[tuple[int, Words, ParameterType]] = []
        scalars: list[tuple[int, npt.NDArray[Any], frozenset[type]]] = []
        for place, (type_, first) in enumerate(zip(types, firsts, strict=False)):
            own = words[first : firsts[place + 1]]
            if type_.rank is not None:
                arrays.append((place, own, array_words.same_type(type_)))
                continue
            kind = np.dtype(type_.dtype)
            view = own.view(kind) if kind.kind == "f" else own
            spelt = _SPELLINGS.get(type_.dtype, frozenset({kind.type}))
            scalars.append((place, view, spelt))
        #: Of each array its words, and its type; and what is packed there.
        self._arrays = [each[1:] for each in arrays]
        self._bound: list[Callable[[], Any]] = [_nothing] * len(arrays)
        #: Of each scalar a view of its word in which item 0 is it, and types of values.
        self._scalars = [each[1:] for each in scalars]
        self._written: list[Any] = [_NO_ARRAY] * len(scalars)
        self._pick_arrays = picker([each[0] for each in arrays])
        self._pick_scalars = picker([each[0] for each in scalars])

    def pack(self, values: Sequence[Any]) -> None:
        """Write what has changed of the flattened arguments.

        What has not is passed over without a loop of Python.

        Raises
        ------
        OtherTypesError
            If an argument has another type than the kernel was compiled for, or there
            are more or fewer. Nothing must be launched then.
        """
        if len(values) != self._count:
            raise OtherTypesError
        given, bound = self._pick_arrays(values), self._bound
        for place in compress(count(), map(is_not, map(call, bound), given)):
            bound[place] = _nothing  # until all of it is written
            own, type_ = self._arrays[place]
            reference, found, words, _ = self._array_words.find(given[place])
            if found is not type_:
                raise OtherTypesError
            own[:] = words
            bound[place] = reference
        # An object that is a number is the same number for ever.
        given, written = self._pick_scalars(values), self._written
        for place in compress(count(), map(is_not, written, given)):
            value = given[place]
            view, types = self._scalars[place]
            if type(value) not in types:
                raise OtherTypesError
            view[0] = written[place] = value

    def copy_words(self) -> bytes:
        """Return what is packed, for `point_to_words`."""
        return self._words.tobytes()


def point_to_words(packed: bytes) -> tuple[Any, npt.NDArray[np.uint64]]:
    """Return packed words, and the pointers to them that the driver wants.

    Keep both until the driver has read them.
    """
    words = np.frombuffer(packed, np.int64)
    return words, words.ctypes.data + 8 * np.arange(words.size, dtype=np.uint64)


_NO_ARRAY = object()


def _nothing() -> object:
    """Stand in for a reference to an array that has not been packed."""
    return _NO_ARRAY


@functools.lru_cache(1 << 12)
def layout_of(
    shape: tuple[int, ...], strides: tuple[int, ...], item: int
) -> tuple[str, tuple[int, ...]]:
    """Return the layout of an array as the dialect sees it, and strides to pack.

    An array with a stride of zero has any strides, though it had one element; strides
    over a single element, and those of nothing, are packed as of a contiguous array.

    Parameters
    ----------
    shape, strides : tuple of int
    item : int
        Bytes of an element.
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


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type, which NumPy makes up anew each time."""
    return dtype.name


def _strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array."""
    strides = []
    for extent in reversed(shape):
        strides.append(item)
        item *= extent
    return tuple(reversed(strides))


def _same_strides(
    shape: tuple[int, ...], given: tuple[int, ...], wanted: tuple[int, ...]
) -> bool:
    """Whether strides agree where there is a second element to stride to."""
    return all(n == 1 or g == w for n, g, w in zip(shape, given, wanted, strict=True))


def picker(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the items of some keys, in their order, as a tuple.

    It raises KeyError, or IndexError, where there is none.
    """
    if not keys:
        return _none
    if len(keys) == 1:
        [key] = keys
        return lambda items: (items[key],)
    return itemgetter(*keys)


def _none(items: Any) -> tuple[Any, ...]:
    return ()

"""Rows of several properties as one message in the memory of a GPU.

A message has the set of changed vertices, in words of 32 bits, followed by the rows of
each property, those with the widest entries first. Its form and number of rows are sent
beforehand; from these, both sides compute where everything stands.

========= =====================================================
form      which vertices changed
========= =====================================================
none      none of them, and the message has no bytes
ms        all of them, without a list
vr        a bit for each vertex of the send list
vr-list   their positions in the send list
========= =====================================================
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DistributedError
from featgraph.cuda.values import DeviceValues

__all__ = ["FORMS", "Entries", "Outline", "as_rows", "in_units"]

FORMS = ("none", "ms", "vr", "vr-list")


@dataclass(frozen=True, eq=False)
class Entries:
    """The values of a property as unsigned integers, for kernels that copy rows.

    Attributes
    ----------
    array : array of uint8 to uint64
        Shape (N, stride).
    width : int
        Entries of a row.
    item : int
        Bytes of an entry.
    dtype : dtype
        The dtype of the values.
    """

    array: Any
    width: int
    item: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, values: DeviceValues) -> Entries:
        """Return a view of values as entries."""
        found = _known.get(values.array)
        if found is None:
            item = values.array.dtype.itemsize
            matrix = as_rows(values.array.view(unit_of(item)))
            width = math.prod(values.shape[1:])
            made = cls(matrix, width, item, values.dtype)
            _known[values.array] = found = made
        return found


#: Array of a property -> its entries: making views takes as long as a launch.
_known: weakref.WeakKeyDictionary[Any, Entries] = weakref.WeakKeyDictionary()


def as_rows(array: Any) -> Any:
    """Return a view of an array as a matrix with the same rows."""
    rows = array.shape[0]
    return array.reshape((rows, array.size // max(rows, 1)))


def in_units(message: Any, item: int) -> Any:
    """Return a view of a message as unsigned integers of `item` bytes."""
    unit = unit_of(item)
    return message if message.dtype == unit else message.view(unit)


def unit_of(item: int) -> np.dtype[Any]:
    """Return the dtype of unsigned integers of `item` bytes."""
    return np.dtype(f"u{item}")


@dataclass(frozen=True)
class Outline:
    """The layout of a message.

    Attributes
    ----------
    form : str
        One of `FORMS`.
    count : int
        Number of rows of each property.
    words : int
        Number of words for the set of vertices.
    firsts : tuple of int
        The index of each property's first entry, in units of its entries.
    item : int
        Bytes of the narrowest entries.
    nbytes : int
        Bytes of the message: a multiple of 8.
    """

    form: str
    count: int
    words: int
    firsts: tuple[int, ...]
    item: int
    nbytes: int

    @classmethod
    def of(
        cls, form: str, count: int, words: int, entries: Sequence[Entries]
    ) -> Outline:
        """Return the outline of a message of `count` rows of a list."""
        words = {"vr": words, "vr-list": count}.get(form, 0)
        at, firsts = -(-4 * words // 8) * 8, [0] * len(entries)
        for which in sorted(range(len(entries)), key=lambda w: -entries[w].item):
            firsts[which] = at // entries[which].item
            at += count * entries[which].width * entries[which].item
        items = [*(one.item for one in entries), *[4] * bool(words)]
        item = min(items, default=8)
        return cls(form, count, words, tuple(firsts), item, -(-at // 8) * 8)

    @classmethod
    def choose(
        cls, count: int, size: int, entries: Sequence[Entries], form: str = "auto"
    ) -> Outline:
        """Return the outline of a message of `count` changed rows of a list.

        With form "auto" it has the fewest bytes; else it has this form, "vr" or
        "vr-list", unless all rows of the list changed, or none.
        """
        words = -(-size // 32)
        if count == 0:
            return cls.of("none", 0, 0, ())
        if form == "auto":
            form = "vr-list" if count < words else "vr"
        return cls.of("ms" if count == size else form, count, words, entries)

    @property
    def told(self) -> npt.NDArray[np.int64]:
        """The announcement for the receiver: form and count, int64, shape (2,)."""
        return np.array([FORMS.index(self.form), self.count], np.int64)

    @classmethod
    def read(
        cls, told: npt.NDArray[np.int64], size: int, entries: Sequence[Entries]
    ) -> Outline:
        """Return the outline of an announced message.

        Raises
        ------
        DistributedError
            If it does not fit a list of `size` vertices.
        """
        form, count = told.tolist()
        fits = 0 < count < size if form > 1 else count == (0, size)[max(form, 0)]
        if not (0 <= form < len(FORMS) and fits):
            raise DistributedError(
                "a message of rows cannot be read",
                got=f"form {form} with {count} rows",
                expected=f"rows of a list of {size} vertices",
                fix="one graph and one version of featgraph on all ranks",
            )
        if count == 0:
            return cls.of("none", 0, 0, ())
        return cls.of(FORMS[form], count, -(-size // 32), entries)

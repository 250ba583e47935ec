"""Partitions: ranges of vertices that ranks own."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.edges import freeze
from featgraph.graph.inputs.numbers import number_array

__all__ = ["Partition"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Ranges of vertices, one for each rank.

    Vertices have an order, and rank r owns those at the places ``cuts[r]`` to
    ``cuts[r + 1]``. A rank may own none.

    Parameters
    ----------
    cuts : array_like of integers, shape (P + 1,)
        Ascending from 0 to V, at any places.
    order : array_like of integers, shape (V,), optional
        The vertex at each place. Default: by number.

    Attributes
    ----------
    cuts : ndarray of int64, shape (P + 1,)
    order : ndarray of int32, shape (V,), or None

    Raises
    ------
    GraphInputError
        If cuts do not ascend from 0, or the order is not a permutation.

    Examples
    --------
    >>> from featgraph.graph import Partition
    >>> Partition([0, 2, 5]).owner([0, 1, 2, 4])
    array([0, 0, 1, 1], dtype=int32)
    """

    cuts: NDArray[np.int64]
    order: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", freeze(_checked_cuts(self.cuts)))
        if self.order is not None:
            order = checked_order(self.order, self.vertex_count)
            object.__setattr__(self, "order", freeze(order))

    @classmethod
    def of_known(cls, cuts: object, order: NDArray[np.int32] | None) -> Partition:
        """Return a partition with a valid order, which is not checked or copied."""
        made = cls(cuts)  # type: ignore[arg-type]
        object.__setattr__(made, "order", order)
        return made

    @classmethod
    def of_nothing(cls) -> Partition:
        """Return a partition with one part of no vertices, for an idle rank."""
        made = cls(np.array([0, 1]))
        object.__setattr__(made, "cuts", freeze(np.zeros(2, np.int64)))
        return made

    def __repr__(self) -> str:
        order = "" if self.order is None else ", in an order of its own"
        return f"Partition({self.vertex_count} vertices, {self.parts} parts{order})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls the constructor, which makes the arrays read-only again.
        return type(self), (self.cuts, self.order)

    @property
    def parts(self) -> int:
        """P, the number of ranges."""
        return self.cuts.size - 1

    @property
    def working(self) -> int:
        """The number of ranges that have vertices."""
        return int(np.count_nonzero(np.diff(self.cuts)))

    @property
    def is_led(self) -> bool:
        """Whether there are several ranges, and the first one has all vertices."""
        return self.parts > 1 and self.vertex_count == int(self.cuts[1]) > 0

    @property
    def vertex_count(self) -> int:
        """V."""
        return int(self.cuts[-1])

    @cached_property
    def places(self) -> NDArray[np.int32] | None:
        """The place of each vertex in the order, (V,); None if it is its number."""
        if self.order is None:
            return None
        places = np.empty_like(self.order)
        places[self.order] = np.arange(places.size, dtype=np.int32)
        return freeze(places)

    def owner(self, vertices: object) -> NDArray[np.int32]:
        """Return the rank that owns each vertex.

        Parameters
        ----------
        vertices : array_like of integers
            Numbers in the whole graph.

        Returns
        -------
        ndarray of int32, shape of `vertices`

        Raises
        ------
        GraphInputError
            If there is no such vertex.
        """
        numbers = _integers(vertices, "vertices")
        outside = (numbers < 0) | (numbers >= self.vertex_count)
        if outside.any():
            raise GraphInputError(
                "there is no such vertex",
                where="vertices",
                got=int(numbers[outside][0]),
                expected=f"0 <= vertex < {self.vertex_count}",
            )
        places = numbers if self.places is None else self.places[numbers]
        # "right": of several ranges with the same begin, all but the last are empty.
        return (np.searchsorted(self.cuts, places, "right") - 1).astype(np.int32)

    @cached_property
    def digest(self) -> str:
        """Hash of cuts and order; equal on every machine."""
        digest = hashlib.blake2b(b"featgraph partition 1", digest_size=16)
        digest.update(self.cuts.astype("<i8", copy=False).data)
        if self.order is not None:
            digest.update(self.order.astype("<i4", copy=False).data)
        return digest.hexdigest()


def _checked_cuts(cuts: object) -> NDArray[np.int64]:
    array = _integers(cuts, "cuts").astype(np.int64)
    steps = np.diff(np.atleast_1d(array))
    fix = None
    if array.ndim != 1 or array.size < 2:
        got = f"shape {array.shape}"
        fix = "one part of a graph with V vertices has the cuts [0, V]"
    elif array[0] != 0:
        got = f"cuts[0] = {array[0]}"
        fix = f"begin with 0: [0, {', '.join(map(str, array[:3]))}, ...]"
    elif (steps < 0).any():
        at = int(np.flatnonzero(steps < 0)[0])
        got = f"cuts[{at}] = {array[at]}, cuts[{at + 1}] = {array[at + 1]}"
        fix = "numpy.sort(cuts)"
    elif not 1 <= array[-1] <= MAX_VERTEX_COUNT:
        got = f"cuts[-1] = {array[-1]}"
        fix = "end with the number of vertices"
    else:
        return array
    raise GraphInputError(
        "not cuts between ranges of vertices",
        where="cuts",
        got=got,
        expected="P + 1 places that ascend from 0 to the number of vertices",
        fix=fix,
    )


def checked_order(order: object, vertex_count: int) -> NDArray[np.int32]:
    """Return a copy of an order; GraphInputError if it is not a permutation.

    Parameters
    ----------
    order : array_like of integers, shape (V,)
    vertex_count : int
    """
    array = _integers(order, "order")
    if array.shape != (vertex_count,):
        got = f"shape {array.shape}"
    elif int(array.min()) < 0 or int(array.max()) >= vertex_count:
        at = int(np.flatnonzero((array < 0) | (array >= vertex_count))[0])
        got = f"order[{at}] = {array[at]}"
    else:
        times = np.bincount(array, minlength=vertex_count)
        if (times == 1).all():
            return array.astype(np.int32)
        vertex = int(np.argmax(times))
        got = f"vertex {vertex} {times[vertex]} times"
    raise GraphInputError(
        "an order of the vertices is a permutation",
        where="order",
        got=got,
        expected=f"each of 0..{vertex_count - 1} once, shape ({vertex_count},)",
        fix="order[i] is the vertex at place i: numpy.argsort(place_of_each_vertex)",
    )


def _integers(values: object, role: str) -> NDArray[Any]:
    array = number_array(values, role)
    if array.dtype.kind not in "iu" and array.size:
        raise GraphInputError(
            "not integers",
            where=role,
            got=f"dtype {array.dtype}",
            expected="an integer dtype",
        )
    return array if array.size else array.astype(np.int64)

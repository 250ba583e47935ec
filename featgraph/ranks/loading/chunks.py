"""Edges given to a rank in chunks, and their exchange with the owners of their ends.

`EdgeChunks` are the edges of a rank, `exchange_edges` sends each edge to the owners of
its ends, in rounds; `by_owner` and `hand_over` are steps that other exchanges share.

A vertex has three numbers: its *id*, as given by the user; its *place*, in the order of
a partition; and its *number* in a `Division`, in which each word of 32 numbers has one
owner, so that loops over edges find the owner of an end without a search. Numbers are
places if the ranges of a partition begin at words. Else each range begins at the next
word, and some numbers stay unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import in_pieces, offset_dtype
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine

__all__ = [
    "ROUND_EDGES",
    "Chunk",
    "Division",
    "EdgeChunks",
    "by_owner",
    "count_sources",
    "exchange_counts",
    "exchange_edges",
    "hand_over",
]


Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges in given order.

    Attributes
    ----------
    sources, targets : ndarray of integers
    weights : ndarray or None
    rows : int or ndarray of int64
        Row in given order of each edge, or of the first one if rows are consecutive.
    """

    sources: Array
    targets: Array
    weights: Array | None
    rows: int | Array = 0

    @property
    def size(self) -> int:
        """Number of edges."""
        return int(self.sources.size)

    @property
    def all_rows(self) -> Array:
        """Row in given order of each edge."""
        if isinstance(self.rows, int):
            return np.arange(self.rows, self.rows + self.size)
        return self.rows

    def at(self, some: slice | Array) -> Chunk:
        """Return the edges of a range, or at some indices."""
        weights = None if self.weights is None else self.weights[some]
        rows = self.rows
        if isinstance(rows, np.ndarray):
            rows = rows[some]
        else:
            rows = rows + (some.start if isinstance(some, slice) else some)
        return Chunk(self.sources[some], self.targets[some], weights, rows)

    def parts(self, most: int) -> Iterator[Chunk]:
        """Yield the edges in chunks of at most `most`."""
        for begin in range(0, self.size, most):
            yield self.at(slice(begin, begin + most))


@dataclass(eq=False)
class EdgeChunks:
    """The edges of a graph that were given to this rank.

    Attributes
    ----------
    chunks : list of Chunk
        Checked edges, whose ends are vertices. They are released when they are sent.
    vertex_count : int
    directed : bool
    weights_dtype : dtype or None
    sides : tuple of int, or None
    is_on_gpu : bool
        Whether the arrays are on the GPU.
    """

    chunks: list[Chunk]
    vertex_count: int
    directed: bool
    weights_dtype: np.dtype[Any] | None
    sides: tuple[int, ...] | None = None
    is_on_gpu: bool = False

    @property
    def size(self) -> int:
        """Number of edges given to this rank."""
        return sum(chunk.size for chunk in self.chunks)

    def parts(self, most: int) -> Iterator[Chunk]:
        """Yield all edges in chunks of at most `most`."""
        for chunk in self.chunks:
            yield from chunk.parts(most)

    def take(self, most: int) -> Iterator[Chunk]:
        """Yield all edges in chunks of at most `most`, and release them."""
        self.chunks.reverse()
        while self.chunks:
            yield from self.chunks.pop().parts(most)


@dataclass(frozen=True, eq=False)
class Division:
    """A numbering of vertices in which each rank owns whole words.

    Attributes
    ----------
    partition : Partition
    firsts : ndarray of int64, shape (P + 1,)
        The first number of each rank, a multiple of 32, and the end of all numbers.
    numbers : ndarray of int32, shape (V,), or None
        The number of each possible end of an edge; None: ends are numbers already.
    """

    partition: Partition
    firsts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, partition: Partition, places: Array | None = None) -> Division:
        """Return the division of a partition.

        Parameters
        ----------
        partition : Partition
        places : ndarray of int32, shape (V,), optional
            The place of each possible end of an edge. Default: ends are places already.
        """
        cuts, count = partition.cuts, partition.vertex_count
        if bool(((cuts % WORD == 0) | (cuts == count)).all()):
            return cls(partition, cuts, places)
        sizes = np.diff(cuts)
        firsts = np.concatenate(([0], np.cumsum(-(-sizes // WORD) * WORD)))
        shifts = (firsts - cuts)[:-1].astype(np.int32)
        numbers = np.arange(count, dtype=np.int32) + np.repeat(shifts, sizes)
        return cls(partition, firsts, numbers if places is None else numbers[places])

    @property
    def size(self) -> int:
        """The end of all numbers."""
        return int(self.firsts[-1])

    @property
    def owners(self) -> npt.NDArray[np.int32]:
        """The rank that owns the vertices of each word."""
        words = np.diff(-(-self.firsts // WORD))
        return np.repeat(np.arange(words.size, dtype=np.int32), words)

    @property
    def vertices(self) -> npt.NDArray[np.int32] | None:
        """The id of each number's vertex, 0 for unused ones; None: numbers are ids."""
        order, firsts = self.partition.order, self.firsts
        if firsts is self.partition.cuts:
            return order
        made = np.zeros(self.size, np.int32)
        for (begin, end), first in zip(
            pairwise(self.partition.cuts.tolist()), firsts.tolist(), strict=False
        ):
            some = slice(first, first + end - begin)
            made[some] = np.arange(begin, end) if order is None else order[begin:end]
        return made

    def own(self, rank: int) -> tuple[int, int]:
        """Return the first number of a rank's vertices, and the end of its numbers."""
        first, cuts = int(self.firsts[rank]), self.partition.cuts
        return first, first + int(cuts[rank + 1] - cuts[rank])

    def renumbered(self, chunk: Chunk) -> Chunk:
        """Return a chunk whose ends are replaced by their numbers."""
        numbers = self.numbers
        if numbers is None:
            return chunk
        ends = numbers[chunk.sources], numbers[chunk.targets]
        return Chunk(*ends, chunk.weights, chunk.rows)

    def places(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the places of numbers, which ascend."""
        cuts, firsts = self.partition.cuts, self.firsts
        if firsts is cuts:
            return numbers
        # In the dtype of `numbers`, or all of them would be converted.
        counts = np.diff(np.searchsorted(numbers, firsts.astype(numbers.dtype)))
        return numbers + np.repeat((cuts - firsts)[:-1].astype(np.int32), counts)


#: Edges that a rank sends in a round: messages to the owners of both ends of an edge
#: have up to 24 bytes of it.
ROUND_EDGES = 1 << 18
_ABOUT = "edges of a graph"


def exchange_edges(
    engine: Engine,
    given: EdgeChunks,
    division: Division,
    given_count: int,
    both_ends: bool,
) -> Chunk:
    """Send each edge to the owner of its target, and to the owner of its source.

    All ranks call it. The given edges are released as they are sent. Returns the edges
    at own vertices, in given order, in contiguous arrays; ends are numbers of the
    division.

    Parameters
    ----------
    engine : Engine
    given : EdgeChunks
    division : Division
    given_count : int
        Number of edges of all ranks.
    both_ends : bool
        Whether the owners of sources get edges, too.
    """
    # Counted first: what each rank sends then has a place of its own in the result.
    owners = division.owners
    counts = np.zeros(engine.size, np.int64)
    for chunk in given.parts(ROUND_EDGES):
        numbered = division.renumbered(chunk)
        which = _receivers(numbered, owners, engine.size, both_ends)
        counts += [some.size for some in which]
    coming = exchange_counts(engine, counts)
    rounds = _rounds(engine, given)
    total, dtype = int(coming.sum()), given.weights_dtype
    dtypes: list[Any] = [np.int32, np.int32, offset_dtype(2 * given_count)]
    stores = [np.empty(total, one) for one in (*dtypes, dtype) if one is not None]
    at = np.cumsum(coming) - coming
    parts = given.take(ROUND_EDGES)
    for _ in range(rounds):
        # A rank that has sent all of its edges takes part in the other rounds.
        chunk = division.renumbered(next(parts, None) or _no_edges(given))
        which = _receivers(chunk, owners, engine.size, both_ends)
        values: Any = chunk.sources, chunk.targets, chunk.all_rows, chunk.weights
        hand_over(engine, list(zip(values, stores, strict=False)), which, at)
    sources, targets, rows, *weights = stores
    # Edges of one sender are in given order; those of several are merged.
    if rows.size > 1 and not bool((rows[1:] > rows[:-1]).all()):
        from featgraph.graph.building import kernels  # loads Numba

        order = kernels.order_of(rows)
        for array in stores:  # one after the other, which takes least memory
            array[:] = array[order]
    return Chunk(sources, targets, weights[0] if weights else None, rows)


def exchange_counts(
    engine: Engine, going: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the numbers of edges that this rank receives; all ranks call it.

    Parameters
    ----------
    engine : Engine
    going : ndarray of int64, shape (..., P)
        The numbers of edges that this rank sends to each rank.

    Returns
    -------
    ndarray of int64, of the same shape
        The numbers of edges that each rank sends to this one.
    """
    sent = [np.atleast_1d(going[..., rank]).copy() for rank in range(engine.size)]
    found = np.stack(engine.all_to_allv(sent, about=_ABOUT), axis=-1)
    return found.reshape(going.shape)


def count_sources(engine: Engine, given: EdgeChunks, division: Division) -> Array:
    """Return the out-degrees of own vertices, int64; all ranks call it."""
    from featgraph.graph.partition import kernels  # loads Numba

    first, last = division.own(engine.rank)
    counts, owners = np.zeros(last - first, np.int64), division.owners
    parts = given.parts(ROUND_EDGES)
    for _ in range(_rounds(engine, given)):
        chunk = division.renumbered(next(parts, None) or _no_edges(given))
        sources = chunk.sources.astype(np.int32, copy=False)
        sent = [sources[which] for which in by_owner(sources, owners, engine.size)]
        for part in engine.all_to_allv(sent, about="sources of edges"):
            kernels.count_own(part - np.int32(first), counts)
    return counts


def by_owner(ends: Array, owners: Array, ranks: int) -> list[Array]:
    """Return, by rank, the indices of the ends that the rank owns, ascending."""
    from featgraph.graph.partition import kernels  # loads Numba

    counted: dict[int, Array] = {}  # by begin: pieces end in any order

    def count(begin: int, end: int) -> None:
        counts = np.zeros(ranks, np.int64)
        kernels.count_owners(ends[begin:end], owners, counts)
        counted[begin] = counts

    in_pieces(ends.size, ends.nbytes, count)
    begins = sorted(counted)
    counts = np.stack([counted[begin] for begin in begins])
    stops = np.cumsum(counts.sum(axis=0))
    # The places of an owner in earlier pieces come first.
    before = stops - counts.sum(axis=0) + np.cumsum(counts, axis=0) - counts
    bounds = dict(zip(begins, before, strict=True))
    found = np.empty(ends.size, np.int64)

    def list_places(begin: int, end: int) -> None:
        kernels.list_by_owner(ends[begin:end], owners, begin, bounds[begin], found)

    in_pieces(ends.size, ends.nbytes, list_places)
    return np.split(found, stops[:-1])


def _rounds(engine: Engine, given: EdgeChunks) -> int:
    """Return the largest number of rounds of any rank; all ranks call it."""
    own = sum(-(-chunk.size // ROUND_EDGES) for chunk in given.chunks)
    return reduce_number(engine, own, "max", "rounds of edges")


def hand_over(
    engine: Engine,
    columns: Sequence[tuple[Array, Array]],
    which: Sequence[Array],
    at: Array,
) -> None:
    """Send columns of edges to other ranks, and store the received ones.

    Parameters
    ----------
    engine : Engine
    columns : sequence of (ndarray, ndarray)
        Values of own edges, and the array for received values.
    which : sequence of P ndarrays of int64
        By rank, the indices of the edges to send.
    at : ndarray of int64, shape (P,)
        The index for the next edge of each rank; changed in place.

    Notes
    -----
    A message has the columns one after the other, the widest first, so that each is
    aligned. Several threads write and read it in the memory of the engine.
    """
    widest = sorted(columns, key=lambda pair: -pair[1].dtype.itemsize)
    width = sum(store.dtype.itemsize for _, store in widest)

    def parts_of(message: Array) -> list[Array]:
        count, begin, parts = message.size // width, 0, []
        for _, store in widest:
            end = begin + count * store.dtype.itemsize
            parts.append(message[begin:end].view(store.dtype))
            begin = end
        return parts

    def write(rank: int, message: Array) -> None:
        some, parts = which[rank], parts_of(message)

        def put(begin: int, end: int) -> None:
            for (column, _), part in zip(widest, parts, strict=True):
                part[begin:end] = column[some[begin:end]]

        in_pieces(some.size, message.nbytes, put)

    def read(rank: int, message: Array) -> None:
        first, parts = int(at[rank]), parts_of(message)

        def take(begin: int, end: int) -> None:
            for (_, store), part in zip(widest, parts, strict=True):
                store[first + begin : first + end] = part[begin:end]

        in_pieces(parts[0].size, message.nbytes, take)
        at[rank] += parts[0].size

    engine.hand_bytes([width * some.size for some in which], write, read, about=_ABOUT)


def _no_edges(given: EdgeChunks) -> Chunk:
    none, dtype = np.empty(0, np.int64), given.weights_dtype
    return Chunk(none, none, None if dtype is None else none, none)


def _receivers(chunk: Chunk, owners: Array, ranks: int, both_ends: bool) -> list[Array]:
    """Return, by rank, the indices of the edges that the rank gets, ascending."""
    from featgraph.graph.partition import kernels  # loads Numba

    if not both_ends:
        return by_owner(chunk.targets, owners, ranks)
    ends, counts = (chunk.sources, chunk.targets), np.zeros(ranks, np.int64)
    kernels.count_both_owners(*ends, owners, counts)
    stops = np.cumsum(counts)
    found = np.empty(int(stops[-1]), np.int64)
    kernels.list_by_both_owners(*ends, owners, stops - counts, found)
    return np.split(found, stops[:-1])

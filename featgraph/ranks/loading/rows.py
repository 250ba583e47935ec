"""Parts built from rows (CSR) of a rank's own vertices, without sorting.

`part_of_rows` takes rows from a folder of slices, or of other ranks before a move. A
*cut edge* has its ends on two ranks: in rounds, it is sent to the owner of its source,
which has it in the row of a ghost. Ranges of ranks ascend, as ghosts do, so the rows of
ghosts arrive in the order in which they are stored. `HostRows` has the steps on the
host, `on_gpu.GpuRows` those on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import in_pieces, offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.edges import Adjacency, freeze
from featgraph.graph.building.row_edges import RowEdges
from featgraph.ranks.engines.failures import on_all
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.loading.chunks import (
    ROUND_EDGES,
    Division,
    by_owner,
    exchange_counts,
    hand_over,
)
from featgraph.ranks.loading.parts import Found, copy_to, localized

__all__ = ["CutEdges", "HostRows", "OwnRows", "part_of_rows", "with_room"]

#: An array of the host or of the dialect.
Array = Any
HostArray = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]


@dataclass(eq=False)
class OwnRows:
    """The edges into a rank's own vertices, row by row, in given order within a row.

    Arrays are on the host or on a GPU, but for `out` and `starts`.

    Attributes
    ----------
    division : Division
    rank : int
    offsets, degrees : array of integers
        The index of each row's first edge, and the end of the last row; the number of
        edges of each row.
    sources : array of int32
        Numbers of the division.
    read : callable
        ``read(sources, more)`` returns the row in given order of each edge, and weights
        or None, both with room for `more` further edges.
    given_count : int
        Number of given edges of the whole graph; rows in given order of twins begin
        there.
    directed : bool
    out : ndarray of integers, or None
        Out-degrees; None if they equal the in-degrees.
    starts : ndarray of int64, or None
        The edge id of each vertex's first in-edge; None if it follows from the order of
        ranks.
    """

    division: Division
    rank: int
    offsets: Array
    degrees: Array
    sources: Array
    read: Callable[[Array, int], tuple[Array, Array | None]]
    given_count: int
    directed: bool
    out: HostArray | None
    starts: HostArray | None


@dataclass(eq=False)
class CutEdges:
    """The edges into own vertices, followed by the received ones.

    Attributes
    ----------
    sources : array of int32
        Numbers of the division.
    targets : array of int32
        Numbers of the division, for the received edges.
    rows : array of integers
        Row in given order of each edge; released as soon as possible.
    weights : array or None
    """

    sources: Array
    targets: Array
    rows: Array
    weights: Array | None


class RowSteps(Protocol):
    """The steps of building a part from rows that differ between host and GPU.

    Attributes
    ----------
    round_edges : int
        Number of edges that a rank looks at in a round.
    most_rounds : int
        If there would be more rounds, each has more edges.
    """

    round_edges: int
    most_rounds: int

    def room(self, values: Array | None, more: int) -> Array: ...

    def count_cut(self, spans: list[tuple[int, int]]) -> Counts: ...

    def exchange(
        self, edges: CutEdges, span: tuple[int, int], counts: tuple[Counts, Counts],
        at: Counts,
    ) -> None: ...  # fmt: skip

    def finish(self, edges: CutEdges, along: str) -> Found: ...


def part_of_rows(
    engine: Engine, own: OwnRows, along: str, about: str, kind: Any
) -> Found:
    """Build the part of this rank from its rows; all ranks call it.

    Parameters
    ----------
    engine : Engine
    own : OwnRows
        `sources` are released when they are copied to those of all edges.
    along : {"both", "in"}
    about : str
        A name of the loading, for errors.
    kind : type of RowSteps
        `HostRows`, or one for a GPU.
    """
    steps: RowSteps = kind(engine, own)
    size = int(own.sources.size)
    rounds = -(-size // steps.round_edges) if along == "both" else 0
    most = reduce_number(engine, rounds, "max", "rounds of edges")
    round_count = min(most, steps.most_rounds)
    step = -(-size // max(round_count, 1))
    spans = list(pairwise(min(turn * step, size) for turn in range(round_count + 1)))
    going = steps.count_cut(spans)
    coming = exchange_counts(engine, going)
    sizes = coming.sum(axis=0)
    came = int(sizes.sum())
    # The shorter array is released: each is as long as the edges of the rank.
    own.sources = sources = steps.room(own.sources, came)
    rows, weights = on_all(engine, lambda: own.read(sources, came), about)
    targets = steps.room(None, came)
    edges, at = CutEdges(sources, targets, rows, weights), np.cumsum(sizes) - sizes
    for span, *counts in zip(spans, going, coming, strict=True):
        steps.exchange(edges, span, (counts[0], counts[1]), at)
    return steps.finish(edges, along)


def with_room(values: HostArray, more: int, dtype: Any = None) -> HostArray:
    """Return a copy of an array with room for `more` further elements."""
    made = np.empty(values.size + more, dtype or values.dtype)
    copy_to(made, values)
    return made


class HostRows:
    """The steps on the host; see `RowSteps`."""

    round_edges = ROUND_EDGES
    #: If there would be more rounds, each has more edges than `ROUND_EDGES`: a 32nd of
    #: all own edges, and enough for several threads.
    most_rounds = 32

    def __init__(self, engine: Engine, own: OwnRows) -> None:
        self._engine, self._own = engine, own
        self._owners, self._size = own.division.owners, int(own.sources.size)

    def room(self, values: HostArray | None, more: int) -> HostArray:
        """Return a copy of sources, or an empty array, with room for `more` ends."""
        return with_room(np.empty(0, np.int32) if values is None else values, more)

    def count_cut(self, spans: list[tuple[int, int]]) -> Counts:
        """Return, by round and rank, the number of sources that other ranks own."""
        from featgraph.graph.partition import kernels  # loads Numba

        going = np.zeros((len(spans), self._engine.size), np.int64)
        lock = threading.Lock()
        for sums, (first, last) in zip(going, spans, strict=True):
            sources = self._own.sources[first:last]

            def count(begin: int, end: int, own: Any = sources, to: Any = sums) -> None:
                counts = np.zeros_like(to)
                kernels.count_owners(own[begin:end], self._owners, counts)
                with lock:
                    to[:] += counts

            in_pieces(sources.size, sources.nbytes, count)
        going[:, self._engine.rank] = 0  # these edges are not cut
        return going

    def exchange(
        self, edges: CutEdges, span: tuple[int, int], counts: object, at: Counts
    ) -> None:
        """Send the cut edges of a round to the owners of their sources."""
        size, some = self._size, slice(*span)
        which = by_owner(edges.sources[some], self._owners, self._engine.size)
        which[self._engine.rank] = which[self._engine.rank][:0]
        columns = [
            (edges.sources[some], edges.sources[size:]),
            (_targets(self._own, some), edges.targets),
            (edges.rows[some], edges.rows[size:]),
        ]
        if edges.weights is not None:
            columns.append((edges.weights[some], edges.weights[size:]))
        hand_over(self._engine, columns, which, at)

    def finish(self, edges: CutEdges, along: str) -> Found:
        """Return the part of this rank, with local numbers."""
        from featgraph.graph.building import kernels  # loads Numba

        own = self._own
        both = edges.sources, edges.targets
        ghosts = localized(both, own.division, own.rank)
        degrees = np.concatenate((own.degrees, np.zeros(ghosts.size, np.int64)))
        kernels.count_one(edges.targets, degrees)
        offsets = np.zeros(degrees.size + 1, offset_dtype(edges.sources.size))
        np.cumsum(degrees, out=offsets[1:])
        in_edges = Adjacency(freeze(offsets), freeze(edges.sources), None)
        local = Graph(
            RowEdges(
                in_edges,
                None if along == "in" else edges.rows,
                edges.weights,
                own.given_count,
                own.directed or along == "in",
            )
        )
        out = own.degrees if own.out is None else own.out
        return Found(local, ghosts, edges.rows, (own.degrees, out), own.starts)


def _targets(own: OwnRows, some: slice) -> npt.NDArray[np.int32]:
    """Return the targets of a range of edges into own vertices."""
    offsets, at = own.offsets, own.division.own(own.rank)[0]
    found = np.empty(some.stop - some.start, np.int32)

    def fill(begin: int, end: int) -> None:
        low, high = some.start + begin, some.start + end
        first = max(int(np.searchsorted(offsets, low, "right")) - 1, 0)
        last = int(np.searchsorted(offsets, high, "left"))
        sizes: Array = np.diff(offsets[first : last + 1].clip(low, high))
        numbers = np.arange(at + first, at + first + sizes.size, dtype=np.int32)
        found[begin:end] = np.repeat(numbers, sizes)

    in_pieces(found.size, found.nbytes, fill)
    return found

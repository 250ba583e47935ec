"""Parts built from rows (CSR) of a rank's own vertices, without sorting.

Rows of ghosts are received from their owners in the order in which they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import in_pieces, offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.adjacency import Adjacency
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.row_edges import RowEdges
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import on_all
from featgraph.ranks.loading.chunks import Division
from featgraph.ranks.loading.parts import Found, copy_to, localized
from featgraph.ranks.loading.rounds import ROUND_EDGES, by_owner, hand_over

__all__ = ["OwnRows", "part_of_rows"]

Array = npt.NDArray[Any]
#: Most rounds. If there would be more, each has more edges than `ROUND_EDGES`: a 32nd
#: of all own edges, and enough for several threads.
_MOST_ROUNDS = 32


@dataclass(eq=False)
class OwnRows:
    """The edges into a rank's own vertices, row by row, in given order within a row.

    Attributes
    ----------
    division : Division
    rank : int
    offsets : ndarray of int64
        Where each row begins, and the last one ends.
    sources : ndarray of int32
        Numbers of the division; released when they are copied to those of all edges.
    read : callable
        Reads rows in given order, and weights if there are any, into arrays; called
        while sources are numbers of the division.
    weights_dtype : dtype or None
    given_count : int
        Number of given edges of the whole graph; rows of twins begin there.
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
    sources: npt.NDArray[np.int32]
    read: Callable[[Array, Array | None], Any]
    weights_dtype: np.dtype[Any] | None
    given_count: int
    directed: bool
    out: Array | None
    starts: Array | None

    @property
    def size(self) -> int:
        """Number of edges."""
        return int(self.offsets[-1])

    def has_inside(self, begin: int, end: int, low: int, high: int) -> bool:
        """Whether any source of the edges `begin` to `end` is from `low` to `high`."""
        found = self.sources[begin:end]
        return bool(((found >= low) & (found < high)).any())

    def renumber(self) -> None:
        """Replace sources, which are places, by numbers of the division."""
        numbers = self.division.numbers
        if numbers is not None:
            self.sources = numbers[self.sources]


def part_of_rows(engine: Engine, own: OwnRows, along: str, about: str) -> Found:
    """Return the part of this rank; all ranks call it."""
    return _found(own, _with_ghosts(engine, own, along, about), along)


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges into own vertices, followed by the received ones.

    Attributes
    ----------
    sources : ndarray of int32
        Numbers of the division.
    targets : ndarray of int32
        Numbers of the division, for the received edges.
    rows : ndarray of integers
        Rows in given order.
    weights : ndarray or None
    """

    sources: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    rows: Array
    weights: Array | None


def _with_ghosts(engine: Engine, own: OwnRows, along: str, about: str) -> _Edges:
    """Read rows and weights, and send cut edges to the owners of their sources."""
    from featgraph.graph.partition import kernels  # loads Numba

    owners = own.division.owners
    going, size = np.zeros(engine.size, np.int64), own.size
    lock = threading.Lock()

    def count(begin: int, end: int) -> None:
        counts = np.zeros(engine.size, np.int64)
        kernels.count_owners(own.sources[begin:end], owners, counts)
        with lock:
            going[:] += counts

    if along == "both":
        in_pieces(size, own.sources.nbytes, count)
        going[engine.rank] = 0
    gathered = engine.all_to_allv(list(going.reshape(-1, 1)), about="edges of a graph")
    coming = np.concatenate(gathered)
    came = int(coming.sum())
    dtype = own.weights_dtype
    edges = _Edges(
        np.empty(size + came, np.int32),
        np.empty(came, np.int32),
        np.empty(size + came, offset_dtype(2 * own.given_count)),
        None if dtype is None else np.empty(size + came, dtype),
    )
    copy_to(edges.sources, own.sources)
    own.sources = edges.sources[:size]

    weights = None if edges.weights is None else edges.weights[:size]
    on_all(engine, lambda: own.read(edges.rows[:size], weights), about)
    if along == "both":
        _exchange(engine, own, edges, owners, coming)
    return edges


def _exchange(
    engine: Engine, own: OwnRows, edges: _Edges, owners: Array, coming: Array
) -> None:
    """Send cut edges to the owners of their sources, in rounds."""
    size = own.size
    rounds = np.array([-(-size // ROUND_EDGES)])
    most = engine.all_reduce(rounds, "max", about="rounds of edges")
    turns = min(int(most[0]), _MOST_ROUNDS)
    at, step = np.cumsum(coming) - coming, -(-size // max(turns, 1))
    for turn in range(turns):
        begin = min(turn * step, size)
        some = slice(begin, min(begin + step, size))
        which = by_owner(edges.sources[some], owners, engine.size)
        which[engine.rank] = which[engine.rank][:0]
        columns = [
            (edges.sources[some], edges.sources[size:]),
            (_targets(own, some), edges.targets),
            (edges.rows[some], edges.rows[size:]),
        ]
        if edges.weights is not None:
            columns.append((edges.weights[some], edges.weights[size:]))
        hand_over(engine, columns, which, at)


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


def _found(own: OwnRows, edges: _Edges, along: str) -> Found:
    """Return the part of this rank, with local numbers."""
    from featgraph.graph.building import kernels  # loads Numba

    both = edges.sources, edges.targets
    ghosts = localized(both, own.division, own.rank)
    into = np.diff(own.offsets)
    degrees = np.concatenate((into, np.zeros(ghosts.size, np.int64)))
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
    out = into if own.out is None else own.out
    return Found(local, ghosts, edges.rows, (into, out), own.starts)

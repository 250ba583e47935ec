"""The last steps of building a part: local numbers, ghosts, degrees and traits.

`localized` replaces ends of edges by local numbers, and finds the ghosts. `made_graph`
exchanges lists and degrees of ghosts with their owners, and returns the graph. Places
and numbers of vertices are explained in `chunks`.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, replace
from featgraph.cuda.values import in_pieces, offset_dtype
from featgraph.fold.plan.traits import HUB_DEGREE, GraphTraits, traits_of_degrees
from featgraph.graph import Graph
from featgraph.graph.building.edges import freeze
from featgraph.graph.degrees import SHORT
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.graph.views.structure import in_offsets
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.remote_entries import LazyArray, PartEdges
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.chunks import Division

__all__ = ["Found", "GhostExchange", "copy_to", "localized", "made_graph"]

Array = npt.NDArray[Any]


class GhostExchange(Protocol):
    """The exchange of ghosts and their degrees; all ranks make these calls."""

    def send_lists(
        self, ghosts: Array, bounds: npt.NDArray[np.int64], first: int
    ) -> tuple[npt.NDArray[np.int32], ...]:
        """Return, by rank, the list of own vertices that are ghosts on that rank.

        Parameters
        ----------
        ghosts : ndarray of int32
            The places of this rank's ghosts, ascending.
        bounds : ndarray of int64, shape (P + 1,)
            The index of the first ghost of each rank among them.
        first : int
            The place of the first own vertex.
        """

    def degrees(
        self, values: Any, bounds: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> Array:
        """Return the degrees of own vertices and ghosts; owners send those of ghosts.

        Call `send_lists` before.

        Parameters
        ----------
        values : array
            The in- or out-degrees of own vertices.
        bounds : ndarray of int64, shape (P + 1,)
            The index of the first ghost of each rank.
        dtype : dtype
        """


@dataclass(frozen=True, eq=False)
class Found:
    """The edges at a rank's own vertices.

    Attributes
    ----------
    local : Graph
        These edges between local numbers.
    ghosts : ndarray of int32
        Places of the ghosts, ascending.
    rows : ndarray of integers, or a function that returns it
        Row in given order of each edge, by its edge id in `local`.
    degrees : tuple of 2 ndarrays
        In- and out-degrees of own vertices; on the GPU with a `ghost_exchange` of GPUs.
    starts : ndarray of int64 or None
        The edge id of the first in-edge of each own vertex; None if edge ids ascend by
        rank.
    ghost_exchange : GhostExchange, optional
        The exchange of ghosts. Default: by the host.
    """

    local: Graph
    ghosts: npt.NDArray[np.int32]
    rows: LazyArray
    degrees: tuple[Any, Any]
    starts: Array | None = None
    ghost_exchange: GhostExchange | None = None


def localized(
    ends: tuple[Array, Array], division: Division, rank: int
) -> npt.NDArray[np.int32]:
    """Replace numbers of a division by local ones, in place.

    Returns the places of the ghosts, ascending.
    """
    from featgraph.graph.partition import kernels  # loads Numba

    first, last = division.own(rank)
    words = np.zeros(-(-division.size // WORD), np.uint32)
    before = np.empty(words.size, np.int32)
    lock = threading.Lock()

    def mark(ends: Array, begin: int, end: int) -> None:
        marked = np.zeros_like(words)
        kernels.mark(ends[begin:end], marked)
        with lock:
            np.bitwise_or(words, marked, out=words)

    def localize(ends: Array, begin: int, end: int) -> None:
        kernels.localize(ends[begin:end], words, before)

    for some in ends:
        # Each thread has a copy of all words, which pays only for many more ends.
        nbytes = some.nbytes if some.size > 32 * words.size else 0
        in_pieces(some.size, nbytes, partial(mark, some))
    # A rank owns whole words; own vertices are no ghosts, and are numbered before them.
    own = slice(-(-first // WORD), -(-last // WORD))
    words[own] = 0
    ghosts = np.empty(kernels.count_words(words, before), np.int32)
    kernels.list_members(words, ghosts)
    before += np.int32(last - first)
    words[own] = 0xFFFFFFFF
    before[own] = np.arange(0, last - first, WORD)
    for some in ends:
        in_pieces(some.size, some.nbytes, partial(localize, some))
    return division.places(ghosts)


def made_graph(
    engine: Engine,
    whole: Whole,
    partition: Partition,
    along: str,
    found: Found,
    keeps_idle: bool = False,
) -> DistributedGraph:
    """Return the graph of the edges that each rank has found; all ranks call it.

    Parameters
    ----------
    engine : Engine
    whole : Whole
        Facts of the whole graph; its traits are replaced.
    partition : Partition
    along : {"both", "in"}
    found : Found
    keeps_idle : bool
        Whether ranks without vertices stay without any.
    """
    rank, ghosts = engine.rank, found.ghosts
    first, last = map(int, partition.cuts[rank : rank + 2])
    own = last - first
    # In the dtype of `ghosts`, or all of them would be converted.
    bounds = np.searchsorted(ghosts, partition.cuts.astype(ghosts.dtype))
    ghost_exchange = found.ghost_exchange or _HostGhosts(engine)
    send_lists = ghost_exchange.send_lists(ghosts, bounds, first)
    numbers = np.empty(own + ghosts.size, np.int32)

    def number(begin: int, end: int) -> None:
        middle = min(max(begin, own), end)
        numbers[begin:middle] = np.arange(first + begin, first + middle, dtype=np.int32)
        numbers[middle:end] = ghosts[middle - own : end - own]

    in_pieces(numbers.size, numbers.nbytes, number)
    if partition.order is not None:
        numbers = np.asarray(partition.order[numbers])
    shard = Shard(
        rank=rank,
        partition=partition,
        vertex_count=whole.vertex_count,
        edge_count=whole.edge_count,
        directed=whole.directed,
        digest=whole.digest,
        local=found.local,
        own=own,
        numbers=freeze(numbers),
        edge_ids=None,
        ghosts=freeze(own + bounds),
        send_lists=send_lists,
    )
    dtype = np.dtype(offset_dtype(whole.edge_count))
    degrees_of = [
        ghost_exchange.degrees(values, bounds, dtype)
        for values in found.degrees[: 1 + whole.directed]
    ]
    degrees = degrees_of[0], degrees_of[-1]
    traits = _traits(engine, whole, tuple(values[:own] for values in degrees_of))
    starts = found.starts
    if starts is None:
        starts = _starts(engine, shard)
    rows = found.rows
    rows = rows if callable(rows) else freeze(rows)
    edges = PartEdges(shard, along, rows, starts)
    whole = replace(whole, traits=traits)
    graph = DistributedGraph(whole, shard, engine, edges, degrees)
    graph.keeps_idle = keeps_idle
    return graph


class _HostGhosts:
    """The exchange of ghosts by messages of the host, on several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lists: list[npt.NDArray[np.int32]] = []

    def send_lists(
        self, ghosts: Array, bounds: npt.NDArray[np.int64], first: int
    ) -> tuple[npt.NDArray[np.int32], ...]:
        requested = [ghosts[b:e] for b, e in pairwise(bounds.tolist())]
        self._lists = lists = [np.empty(0, np.int32)] * len(requested)

        def write(rank: int, message: Array) -> None:
            copy_to(message.view(np.int32), requested[rank])

        def read(rank: int, message: Array) -> None:
            received = message.view(np.int32)
            lists[rank] = made = np.empty(received.size, np.int32)

            def take(begin: int, end: int) -> None:
                np.subtract(received[begin:end], np.int32(first), out=made[begin:end])

            in_pieces(received.size, message.nbytes, take)

        sizes = [one.nbytes for one in requested]
        self._engine.hand_bytes(sizes, write, read, about="ghosts")
        return tuple(freeze(listed) for listed in lists)

    def degrees(
        self, values: Array, bounds: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> Array:
        lists, own = self._lists, values.size
        made = np.empty(own + int(bounds[-1]), dtype)

        def write(rank: int, message: Array) -> None:
            listed, received = lists[rank], message.view(dtype)

            def put(begin: int, end: int) -> None:
                received[begin:end] = values[listed[begin:end]]

            in_pieces(received.size, message.nbytes, put)

        def read(rank: int, message: Array) -> None:
            copy_to(made[own + int(bounds[rank]) :], message.view(dtype))

        copy_to(made, values)
        sizes = [dtype.itemsize * listed.size for listed in lists]
        self._engine.hand_bytes(sizes, write, read, about="degrees of ghosts")
        return made


def copy_to(target: Array, values: Array) -> None:
    """Copy values to the begin of an array, on several threads if they are many."""

    def put(begin: int, end: int) -> None:
        target[begin:end] = values[begin:end]

    in_pieces(values.size, values.size * target.itemsize, put)


def _traits(engine: Engine, whole: Whole, degrees: tuple[Array, ...]) -> GraphTraits:
    """Return the traits of the whole graph from the degrees on all ranks.

    Parameters
    ----------
    engine : Engine
    whole : Whole
    degrees : tuple of ndarrays
        In-degrees of own vertices, and out-degrees if the graph is directed.
    """
    counted = [_counted(side) for side in degrees]
    longest, below = np.max([most for most, _ in counted], axis=0)
    about = "degrees of all vertices"
    most = engine.all_reduce(np.array([longest, below], np.int64), "max", about=about)
    short = engine.all_reduce(counted[0][1], "sum", about=about)
    return traits_of_degrees(whole, int(most[0]), int(most[1]), short)


def _counted(degrees: Array) -> tuple[Array, Array]:
    """Return the largest degrees, and the number of vertices of each low degree.

    The largest degrees are that of all vertices, and that of vertices below hubs.
    """
    from featgraph.graph.partition import kernels  # loads Numba

    found: list[tuple[Array, Array]] = []

    def count(begin: int, end: int) -> None:
        most, short = np.zeros(2, np.int64), np.zeros(SHORT, np.int64)
        kernels.survey_degrees(degrees[begin:end], HUB_DEGREE, most, short)
        found.append((most, short))

    in_pieces(degrees.size, degrees.nbytes, count)
    mosts, shorts = zip(*found, strict=True)
    return np.max(mosts, axis=0), np.sum(shorts, axis=0)


def _starts(engine: Engine, shard: Shard) -> Array:
    """Return the edge id of the first in-edge of each own vertex."""
    offsets = in_offsets(shard.local)[: shard.own + 1]
    last = offsets[-1:].astype(np.int64)
    counts = engine.all_gather(last, about="own edges")
    before = int(np.concatenate(counts)[: engine.rank].sum())
    made = np.empty(shard.own, np.int64)

    def put(begin: int, end: int) -> None:
        np.add(offsets[begin:end], np.int64(before), out=made[begin:end])

    in_pieces(made.size, made.nbytes, put)
    return made

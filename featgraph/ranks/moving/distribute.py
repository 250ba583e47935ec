"""`distribute` and `recut`: partition a graph over ranks, and move it to other cuts.

`distribute` selects each rank's part of a whole graph. `recut` sends the rows of a
distributed graph to their new owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.row_edges import RowEdges
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.cuts import WORD, round_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.graph.views.structure import require_fixed
from featgraph.ranks.engines.failures import require_same
from featgraph.ranks.engines.loopback import current_engine
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.build import part_of_whole
from featgraph.ranks.loading.chunks import Division
from featgraph.ranks.loading.cutting import cuts_of_words, with_idle, working_ranks
from featgraph.ranks.loading.parts import made_graph
from featgraph.ranks.loading.rows import HostRows, OwnRows, part_of_rows, with_room

__all__ = ["Mover", "distribute", "recut"]


def distribute(
    graph: Graph,
    *,
    order: Any = "given",
    cuts: Any = None,
    along: str = "both",
    ranks: int | None = None,
    engine: Engine | None = None,
) -> Graph:
    """Distribute a graph over all ranks: each keeps its own vertices and their edges.

    All ranks call it with the same graph. Programs on the result run on all ranks.
    A graph that is distributed already is moved to other cuts: ranks send each other
    the edges.

    Parameters
    ----------
    graph : Graph
        The result does not keep it alive.
    order : {"given", "spread", "locality", "metis"} or array_like, shape (V,)
        The order in which vertices are assigned to ranks: see `Graph.partition`.
    cuts : array_like of int, shape (P + 1,), optional
        The bounds of the ranges of ranks in that order. By default they are balanced. A
        distributed graph keeps its order.
    along : {"both", "in"}, optional
        "in": keep the edges into own vertices only, which saves up to half of the
        memory. Programs that gather along out-edges, or read the reverse of an edge,
        raise an error.
    ranks : int, optional
        How many ranks get vertices, the first ones. On a small graph, the work of one
        rank takes less time than an exchange. The other ranks make the same calls and
        get the same results without any work; if one rank works, a run exchanges
        nothing. Default: all.
    engine : Engine, optional
        The transport between ranks. Default: `distributed.current_engine`.

    Returns
    -------
    Graph
        A `DistributedGraph`; on one rank, the graph itself.

    Raises
    ------
    GraphInputError
        If graphs, orders or cuts differ between ranks, or cuts do not fit the graph or
        the ranks; if a distributed graph gets another order, engine or `along`, or
        neither cuts nor ranks; if `ranks` is invalid, or given together with cuts.

    Notes
    -----
    Each rank selects its own edges from the whole list in two passes, and sorts only
    these: on the GPU, if the graph's edges are there. No rows (CSR) of the whole graph
    are built, unless the order needs them.
    """
    if cuts is not None and ranks is not None:
        raise GraphInputError(
            "cuts determine which ranks get vertices",
            where="ranks=",
            got=f"ranks={shown(ranks)}, and cuts",
            expected="one of the two",
        )
    if engine is not None and not hasattr(engine, "all_to_allv"):
        raise GraphInputError(
            "not an engine",
            where="engine=",
            got=shown(engine),
            expected="the engine of fg.distributed.current_engine(), or None",
        )
    if isinstance(graph, DistributedGraph):
        if ranks is not None and _is_same(graph, order, along, engine):
            return _of_ranks(graph, ranks)
        return _again(graph, order, cuts, along, engine)
    require_fixed(graph, "fg.distribute")
    engine = engine or current_engine()
    working = working_ranks(engine, ranks)
    if engine.size == 1:
        return graph
    partition = _partition_for(engine, graph, order, cuts, working)
    require_same(
        engine,
        f"digest {graph.digest} {partition.digest}",
        "ranks were given different graphs, orders or cuts",
        fix="read or draw the graph in the same way, with the same seed",
        about="the digest of a graph",
    )
    return part_of_whole(engine, graph, partition, along, working < engine.size)


def _partition_for(
    engine: Engine, graph: Graph, order: Any, cuts: Any, working: int
) -> Partition:
    """Return the partition with given cuts, or for the first `working` ranks."""
    if cuts is not None:
        chosen = choose_partition(graph, order, cuts=cuts)
        check_fits(graph, chosen)
        if chosen.parts != engine.size:
            raise GraphInputError(
                "the cuts do not fit the number of ranks",
                where="cuts=",
                got=f"{chosen.parts} ranges",
                expected=f"{engine.size}, one for each rank",
            )
        return chosen
    chosen = choose_partition(graph, order, working)
    if working < engine.size:
        padded = with_idle(chosen.cuts, engine.size)
        chosen = Partition.of_known(padded, chosen.order)
    return chosen


def _again(
    graph: DistributedGraph, order: Any, cuts: Any, along: str, engine: Any
) -> DistributedGraph:
    """Return a distributed graph with other cuts."""
    if cuts is None or not _is_same(graph, order, along, engine):
        raise GraphInputError(
            "a distributed graph can be moved to other cuts only",
            where="fg.distribute",
            got=repr(graph.shard),
            expected="cuts= or ranks=, and neither another order=, along= nor engine=",
            fix="distribute the whole graph, or read it again",
        )
    return recut(graph, cuts)


def _is_same(graph: DistributedGraph, order: Any, along: str, engine: Any) -> bool:
    """Whether order, along and engine equal those of the distributed graph."""
    is_order = isinstance(order, str) and order == "given"
    is_along = along in (graph.along, "both")
    return is_order and is_along and engine in (None, graph.engine)


def _of_ranks(graph: DistributedGraph, ranks: Any) -> Graph:
    """Return a distributed graph with vertices on another number of ranks."""
    shard, engine = graph.shard, graph.engine
    working = working_ranks(engine, ranks)
    if working == shard.partition.working:
        return graph
    first = int(shard.partition.cuts[engine.rank])
    degrees = np.asarray(graph.part.in_degree[: shard.own], np.int64)
    words = np.zeros(-(-graph.vertex_count // WORD), np.int64)
    np.add.at(words, (first + np.arange(shard.own)) // WORD, degrees)
    words = engine.all_reduce(words, "sum", about="in-edges")
    cuts = cuts_of_words(words, graph.vertex_count, working, engine.size)
    made = recut(graph, cuts)
    made.keeps_idle = working < engine.size
    return made


Array = npt.NDArray[Any]
#: Most ranks whose cuts an error shows.
MOST_SHOWN = 8


class Mover:
    """Exchange of rows of vertices and edges between owners before and after a recut.

    All ranks call the same methods in the same order.

    Parameters
    ----------
    engine : Engine
    before, after : Partition
        Two partitions of the same order of vertices.
    """

    def __init__(self, engine: Engine, before: Partition, after: Partition) -> None:
        self._engine = engine
        own = before.cuts[engine.rank : engine.rank + 2]
        #: The own rows that this rank sends to each rank.
        bounds = np.clip(after.cuts, *own) - own[0]
        self._sent = [slice(begin, end) for begin, end in pairwise(bounds.tolist())]

    def rows(self, own: Array) -> Array:
        """Return the rows of the vertices that this rank owns after the move."""
        return self._handed(own, self._sent)

    def slots(self, offsets: Array, values: Array) -> Array:
        """Return the values of the edges in the rows of these vertices.

        `offsets` are the CSR offsets of own rows before the move.
        """
        ends = (
            (int(offsets[some.start]), int(offsets[some.stop])) for some in self._sent
        )
        return self._handed(values, [slice(*pair) for pair in ends])

    def _handed(self, own: Array, sent: Sequence[slice]) -> Array:
        parts = [np.ascontiguousarray(own[some]) for some in sent]
        found = self._engine.all_to_allv(parts, about="rows of other owners")
        return np.concatenate(found)


def with_ghosts(
    engine: Engine, sent: Sequence[Array], own: Array, about: str = "rows of ghosts"
) -> Array:
    """Return own rows, followed by the rows of ghosts, which their owners send.

    Parameters
    ----------
    engine : Engine
    sent : sequence of array of integers
        By rank, the own rows that are ghosts on that rank.
    own : array
    about : str
        A name of the exchange, for errors.
    """
    found = engine.all_to_allv([own[listed] for listed in sent], about=about)
    return np.concatenate((own, *found))


def recut(graph: DistributedGraph, cuts: object) -> DistributedGraph:
    """Return a distributed graph with other cuts; all ranks call it.

    The result equals that of `distribute` on the whole graph with these cuts and the
    same order of vertices. Rows are sent as they are, and nothing is sorted. During the
    exchange a rank stores its rows once more, beside both parts.

    Parameters
    ----------
    graph : DistributedGraph
        It is not changed.
    cuts : array_like of int, shape (P + 1,)
        Multiples of 32, but for the last one, V.

    Raises
    ------
    GraphInputError
        If cuts do not fit the graph or the number of ranks, are no multiples of 32, or
        differ between ranks.
    """
    engine, before = graph.engine, graph.shard.partition
    after = Partition.of_known(cuts, before.order)
    if (after.parts, after.vertex_count) != (before.parts, before.vertex_count):
        raise GraphInputError(
            "the cuts do not fit the graph or the number of ranks",
            where="cuts=",
            got=f"{after.parts} ranges of {after.vertex_count} vertices",
            expected=f"{before.parts} ranges of {before.vertex_count}",
        )
    rounded = np.where(
        after.cuts < after.vertex_count, round_cuts(after.cuts), after.cuts
    )
    if not np.array_equal(rounded, after.cuts):
        raise GraphInputError(
            "cuts of a distributed graph are multiples of 32",
            where="cuts=",
            got=str(after.cuts[after.cuts != rounded][0]),
            expected=f"multiples of {WORD}, and {after.vertex_count} at the end",
            fix=f"cuts={rounded.tolist()}" if after.parts <= MOST_SHOWN else None,
        )
    require_same(
        engine,
        f"digest {graph.digest} cuts {after.cuts.tolist()}",
        "ranks were given different graphs or cuts",
        fix="give the same on all of them",
        about="cuts",
    )
    mover = Mover(engine, before, after)
    # On the host, also for GPUs: rows are uploaded as they are, without sorting (0062).
    own, about = _moved(graph, mover, Division.of(after)), "edges of other owners"
    found = part_of_rows(engine, own, graph.along, about, HostRows)
    return made_graph(engine, graph.whole, after, graph.along, found)


def _moved(graph: DistributedGraph, mover: Mover, division: Division) -> OwnRows:
    """Return the edges into the vertices that this rank owns after the move."""
    shard, edges, part = graph.shard, graph.edges, graph.part
    partition, rows = shard.partition, part.in_edges
    offsets = np.asarray(rows.row_offsets[: shard.own + 1])
    ghosts = shard.numbers[shard.own :]
    if partition.places is not None:
        ghosts = partition.places[ghosts]
    first = int(partition.cuts[shard.rank])
    own = np.arange(first, first + shard.own, dtype=np.int32)
    places = np.concatenate((own, ghosts.astype(np.int32, copy=False)))
    sources = places[np.asarray(rows.column_indices[: edges.own])]
    moved = {"rows": mover.slots(offsets, np.asarray(edges.given_rows[: edges.own]))}
    weights = _weights_by_id(graph)
    if weights is not None:
        moved["weights"] = mover.slots(offsets, weights[: edges.own])

    dtype = offset_dtype(2 * graph.given_edge_count)

    def read(_: Array, more: int) -> tuple[Array, Array | None]:
        # Popped, so that each array is released once it is copied.
        given = with_room(moved.pop("rows"), more, dtype)
        if "weights" not in moved:
            return given, None
        return given, with_room(moved.pop("weights"), more)

    degrees = mover.rows(np.diff(offsets)).astype(np.int64, copy=False)
    return OwnRows(
        division,
        shard.rank,
        np.concatenate(([0], np.cumsum(degrees))),
        degrees,
        mover.slots(offsets, sources),
        read,
        graph.given_edge_count,
        graph.directed,
        mover.rows(np.asarray(part.out_degree)[: shard.own]),
        mover.rows(np.asarray(edges.starts)),
    )


def _weights_by_id(graph: DistributedGraph) -> Array | None:
    """Return the weights of the part by edge id; None without weights."""
    part = graph.part
    if isinstance(part._edges, RowEdges):
        return part._edges.by_id
    if part.weights is None:
        return None
    index, count = np.asarray(part.given_index), part.given_edge_count
    return np.asarray(part.weights[index - (index >= count) * count])

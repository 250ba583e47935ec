"""`distribute`: partition a graph over ranks, or give a distributed graph new cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.graph.views.structure import require_fixed
from featgraph.ranks.engines.current import current_engine
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import require_same
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.cutting import cuts_of_words, with_idle, working_ranks
from featgraph.ranks.loading.whole import part_of_whole
from featgraph.ranks.moving.recut import recut

__all__ = ["distribute"]


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
            "cuts say which ranks get vertices",
            where="ranks=",
            got=f"ranks={shown(ranks)}, and cuts",
            expected="one of the two",
        )
    if engine is not None and not hasattr(engine, "all_to_allv"):
        raise GraphInputError(
            "not an engine",
            where="engine=",
            got=shown(engine),
            expected="what fg.distributed.current_engine() returns, or None",
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
    """Return the partition by cuts, or with vertices on the first ranks."""
    if cuts is not None:
        chosen = choose_partition(graph, order, cuts=cuts)
        check_fits(graph, chosen)
        if chosen.parts != engine.size:
            raise GraphInputError(
                "the cuts are those of other ranks",
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
            "a graph in parts can have other cuts, and nothing else",
            where="fg.distribute",
            got=repr(graph.shard),
            expected="cuts= or ranks=, and neither another order=, along= nor engine=",
            fix="distribute the whole graph, or read it again",
        )
    return recut(graph, cuts)


def _is_same(graph: DistributedGraph, order: Any, along: str, engine: Any) -> bool:
    """Whether order, along and engine are those that the distributed graph has."""
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

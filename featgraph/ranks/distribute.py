"""Graphs of which each rank keeps a part."""

from __future__ import annotations

from typing import Any

from featgraph._arguments import shown
from featgraph.distributed.current import current_engine
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph._structure import require_fixed
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.ranks.agreed import require_same
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.whole import part_of_whole
from featgraph.ranks.moving.recut import recut
from featgraph.ranks.working import cuts_for, with_idle, working_ranks
from featgraph.runtime.loops.run import Run

__all__ = ["distribute"]


def distribute(
    graph: Graph,
    *,
    order: Any = "given",
    cuts: Any = None,
    along: str = "both",
    ranks: int | str | None = None,
    after: Run | None = None,
    engine: Engine | None = None,
) -> Graph:
    """Keep this rank's part of a graph, which all ranks have been given.

    All ranks call it with the same graph. What runs on it then runs on all of them.
    Of a graph that is in parts already, ranks hand each other edges, and keep the parts
    between other cuts.

    Parameters
    ----------
    graph : Graph
        It may be let go of afterwards.
    order : {"given", "spread", "locality", "metis"} or array_like, shape (V,)
        In which order vertices are dealt out: see `Graph.partition`.
    cuts : array_like of int, shape (P + 1,), or Machine, optional
        Where the ranges of ranks begin and end in that order. By default they are
        balanced. A graph in parts needs them, and keeps its order. Of a whole graph
        also what `distributed.calibrate` says of the target that this rank will run on:
        ranges are those with which supersteps are shortest by the model of
        `distributed.forecast`, however ranks differ. Ranks with which they are not get
        no vertices.
    along : {"both", "in"}, optional
        "in": keep the edges into own vertices only, which saves up to half of the
        memory. Programs that gather along out-edges, or ask for the reverse of an edge,
        are refused.
    ranks : int or "auto", optional
        How many ranks get vertices, the first ones. "auto": as many as have supersteps
        take the shortest time, in which every vertex is active, by the model of
        `distributed.forecast` with the constants of `distributed.calibrate`: of a small
        graph, what one rank does takes less than an exchange. The others make the same
        calls and get the same results, but have nothing to do; where one rank works,
        nothing is exchanged within a run. Default: all.
    after : Run, optional
        With ``ranks="auto"``, for a graph in parts: what has run on it. Its supersteps
        say what the functions of a program take, which the model does not know.
    engine : Engine, optional
        By what ranks hand each other bytes. Default: `distributed.current_engine`.

    Returns
    -------
    Graph
        A `DistributedGraph`; on one rank, the graph itself.

    Raises
    ------
    GraphInputError
        If ranks were given different graphs, orders or cuts, or cuts do not fit; if a
        graph in parts is asked for another order, engine or edges, or without cuts or
        ranks; if `ranks` is no number of them, or there are cuts, too.

    Notes
    -----
    A rank looks for its own edges in the list of all, twice, and sorts these alone: on
    the GPU, if the graph's edges are there. The whole has no rows, unless an order
    takes them.
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
            return _of_ranks(graph, ranks, after)
        return _again(graph, order, cuts, along, engine)
    require_fixed(graph, "fg.distribute")
    engine = engine or current_engine()
    if engine.size == 1:
        return graph
    partition, is_idle = _partition_for(engine, graph, order, cuts, ranks)
    require_same(
        engine,
        f"digest {graph.digest} {partition.digest}",
        "ranks were given different graphs, orders or cuts",
        fix="read or draw the graph in the same way, with the same seed",
        about="the digest of a graph",
    )
    made = part_of_whole(engine, graph, partition, along, is_idle)
    made.chooses = ranks == "auto"
    return made


def _partition_for(
    engine: Engine, graph: Graph, order: Any, cuts: Any, ranks: Any
) -> tuple[Partition, bool]:
    """Return who owns which vertices, and whether some ranks are to own none."""
    working = engine.size
    if hasattr(cuts, "to_json"):
        from featgraph.ranks.expected.shared import partition_for_machines

        # Not idle for good: what ranks take may say otherwise.
        return partition_for_machines(engine, graph, order, cuts), False
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
        return chosen, False
    if ranks is not None:
        size = graph.vertex_count, graph.edge_count
        working = working_ranks(engine, ranks, size, (graph, order))
    chosen = choose_partition(graph, order, working)
    if working < engine.size:
        padded = with_idle(chosen.cuts, engine.size)
        chosen = Partition.of_known(padded, chosen.order)
    return chosen, working < engine.size


def _again(
    graph: DistributedGraph, order: Any, cuts: Any, along: str, engine: Any
) -> DistributedGraph:
    """Return a graph in parts with other cuts."""
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
    """Whether a graph in parts is asked for as it is, but for its cuts."""
    is_order = isinstance(order, str) and order == "given"
    is_along = along in (graph.along, "both")
    return is_order and is_along and engine in (None, graph.engine)


def _of_ranks(graph: DistributedGraph, ranks: Any, after: Run | None) -> Graph:
    """Return a graph in parts of which other ranks have vertices."""
    engine, size = graph.engine, (graph.vertex_count, graph.edge_count)
    run_on = None if after is None else (graph, after)
    working = working_ranks(engine, ranks, size, after=run_on)
    if working == graph.shard.partition.working:
        return graph
    made = recut(graph, cuts_for(graph, working))
    made.keeps_idle, made.chooses = working < engine.size, ranks == "auto"
    return made

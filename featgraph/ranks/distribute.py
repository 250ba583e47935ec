"""Graphs of which each rank keeps a part."""

from __future__ import annotations

from typing import Any

from featgraph.distributed.current import current_engine
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.agreed import require_same
from featgraph.ranks.graph import DistributedGraph, Here, Whole
from featgraph.ranks.moving.recut import recut

__all__ = ["distribute"]


def distribute(
    graph: Graph,
    *,
    order: Any = "given",
    cuts: Any = None,
    along: str = "both",
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
    cuts : array_like of int, shape (P + 1,), optional
        Where the ranges of ranks begin and end in that order. By default they are
        balanced. A graph in parts needs them, and keeps its order.
    along : {"both", "in"}, optional
        "in": keep the edges into own vertices only, which saves up to half of the
        memory. Programs that gather along out-edges, or ask for the reverse of an edge,
        are refused.
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
        graph in parts is asked for another order, engine or edges, or without cuts.
    """
    if isinstance(graph, DistributedGraph):
        return _again(graph, order, cuts, along, engine)
    engine = engine or current_engine()
    if engine.size == 1:
        return graph
    parts = engine.size if cuts is None else None
    shards = graph.partition(order=order, parts=parts, cuts=cuts, along=along)
    shard = shards[engine.rank]
    require_same(
        engine,
        f"digest {shard.digest} {shard.partition.digest}",
        "ranks were given different graphs, orders or cuts",
        fix="read or draw the graph in the same way, with the same seed",
        about="the digest of a graph",
    )
    return DistributedGraph(Whole.of(graph), shard, engine, _here(graph, shard, along))


def _again(
    graph: DistributedGraph, order: Any, cuts: Any, along: str, engine: Any
) -> DistributedGraph:
    """Return a graph in parts with other cuts."""
    is_same = order == "given" and along in (graph.along, "both")
    if cuts is None or not is_same or engine not in (None, graph.engine):
        raise GraphInputError(
            "a graph in parts can have other cuts, and nothing else",
            where="fg.distribute",
            got=repr(graph.shard),
            expected="cuts=, and neither another order=, along= nor engine=",
            fix="distribute the whole graph, or read it again",
        )
    return recut(graph, cuts)


def _here(graph: Graph, shard: Shard, along: str) -> Here:
    """Return what a rank knows of its part of a graph that it has."""
    ids, numbers = shard.edge_ids, shard.numbers
    chosen = slice(ids.start, ids.stop) if isinstance(ids, range) else ids
    rows = graph.given_index[chosen][shard.local.given_index]
    starts = graph.in_edges.row_offsets[numbers[: shard.own]]
    degrees = graph.in_degree[numbers], graph.out_degree[numbers]
    return Here(along, rows, starts, degrees)

"""How many ranks make a superstep shortest, by the model of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.distributed.engines.protocol import Engine
from featgraph.graph import Graph
from featgraph.model.calibrate import calibrate
from featgraph.model.correction import Correction
from featgraph.model.links import Link, named_link
from featgraph.model.machine import Machine
from featgraph.model.times import Work
from featgraph.model.working import Choice, learned
from featgraph.ranks.graph import DistributedGraph

__all__ = ["chosen_ranks"]


def chosen_ranks(
    engine: Engine,
    size: tuple[int, int],
    whole: tuple[Graph, Any] | None,
    after: tuple[DistributedGraph, Any] | None,
) -> int:
    """Return how many ranks work: see `working_ranks`; all of them call it."""
    machine = calibrate(engine=engine)
    link = machine.links[-1] if machine.links else named_link("gloo")
    taught = None if after is None else _taught(engine, machine, link, *after)
    choice = Choice(machine, link, engine.size, taught)
    # Where no rank has the graph, sources may have any order.
    found = choice.for_size(*size)[0] if whole is None else choice.for_graph(*whole)
    # All have the same constants; with one of them deciding, nothing hangs on that.
    about = "how many ranks work"
    return int(engine.broadcast(np.array([found]), 0, about=about)[0])


def _taught(
    engine: Engine, machine: Machine, link: Link, graph: DistributedGraph, run: Any
) -> Correction:
    """Return what a run says of the model, from what all ranks have taken."""
    own = np.zeros((6, engine.size), np.int64)
    shard = graph.shard
    sent = sum(listed.size for listed in shard.send_lists)
    edges, ghosts = graph.edges.own, shard.numbers.size - shard.own
    told = edges, shard.own, sent, ghosts, 0, shard.numbers.size
    own[:, engine.rank] = told
    about = "what ranks have taken"
    parts = engine.all_reduce(own, "sum", about=about)
    if shard.partition.is_led:
        parts = parts[:, :1]
    seconds = engine.all_reduce(np.array(run.seconds), "max", about=about)
    active = [graph.vertex_count, *run.active_counts[:-1]]
    shares = [count / graph.vertex_count for count in active[: len(seconds)]]
    return learned(Work(*parts), machine, link, shares, seconds.tolist())

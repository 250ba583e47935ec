"""The number of ranks that makes a superstep shortest, by the cost model."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.graph import Graph
from featgraph.ranks.cost.calibrate import calibrate
from featgraph.ranks.cost.correction import Correction
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.cost.times import Work
from featgraph.ranks.cost.working import Choice, learned
from featgraph.ranks.engines.links import Link, named_link
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph

__all__ = ["Chosen", "chosen_again", "chosen_ranks"]


def chosen_ranks(
    engine: Engine,
    size: tuple[int, int],
    whole: tuple[Graph, Any] | None,
    after: tuple[DistributedGraph, Any] | None,
) -> int:
    """Return how many ranks work: see `working_ranks`; all ranks call it."""
    machine = calibrate(engine=engine)
    link = machine.links[-1] if machine.links else named_link("gloo")
    taught = None if after is None else _taught(engine, machine, link, *after)
    choice = Choice(machine, link, engine.size, taught)
    # If no rank has the whole graph, the order of sources is unknown.
    found = choice.for_size(*size)[0] if whole is None else choice.for_graph(*whole)
    # All ranks have the same constants; rank 0 decides in case they ever differ.
    about = "how many ranks work"
    return int(engine.broadcast(np.array([found]), 0, about=about)[0])


@dataclass(frozen=True)
class Chosen:
    """The number of ranks chosen for a program, by its first supersteps.

    Attributes
    ----------
    number : int
    now_s, then_s : float
        Seconds of a superstep in which every vertex is active, on the ranks that work
        now, and on `number` ranks.
    """

    number: int
    now_s: float
    then_s: float


def chosen_again(graph: DistributedGraph, run: Any, since: int = 0) -> Chosen:
    """Return how many ranks should work on a distributed graph; all ranks call it.

    Parameters
    ----------
    graph : DistributedGraph
    run : Run
        A run on the graph.
    since : int
        The first superstep of the run with the present cuts.
    """
    engine = graph.engine
    machine = calibrate(engine=engine)
    link = machine.links[-1] if machine.links else named_link("gloo")
    taught = _taught(engine, machine, link, graph, run, since)
    choice = Choice(machine, link, engine.size, taught)
    size, working = (
        (graph.vertex_count, graph.edge_count),
        graph.shard.partition.working,
    )
    number = choice.for_size(*size)[0]
    told = [float(number), *(choice.of_size(*size, n) for n in (working, number))]
    about = "how many ranks work"
    number, now_s, then_s = engine.broadcast(np.array(told), 0, about=about).tolist()
    return Chosen(int(number), now_s, then_s)


def _taught(
    engine: Engine,
    machine: Machine,
    link: Link,
    graph: DistributedGraph,
    run: Any,
    since: int = 0,
) -> Correction:
    """Return the correction of the cost model by the measured times of a run."""
    own = np.zeros((6, engine.size), np.int64)
    shard = graph.shard
    sent = sum(listed.size for listed in shard.send_lists)
    edges, ghosts = graph.edges.own, shard.numbers.size - shard.own
    told = edges, shard.own, sent, ghosts, 0, shard.numbers.size
    own[:, engine.rank] = told
    about = "what ranks have taken"
    parts = engine.all_reduce(own, "sum", about=about)
    seconds = np.array(run.seconds[since:])
    if shard.partition.is_led:  # the times of other ranks are waits for rank 0
        parts = parts[:, :1]
        seconds = engine.broadcast(seconds, 0, about=about)
    else:
        seconds = engine.all_reduce(seconds, "max", about=about)
    active = [graph.vertex_count, *run.active_counts[:-1]][since:]
    shares = [count / graph.vertex_count for count in active[: len(seconds)]]
    return learned(Work(*parts), machine, link, shares, seconds.tolist())

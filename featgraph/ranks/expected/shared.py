"""Cuts that balance the expected times of unequal machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.calibrate import measure_link
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.cost.machine_shares import share_out
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import on_all

__all__ = ["partition_for_machines"]


def partition_for_machines(
    engine: Engine, graph: Graph, order: Any, machine: Any
) -> Partition:
    """Return the partition with the shortest superstep by the model; all ranks call it.

    Parameters
    ----------
    engine : Engine
    graph : Graph
        The whole graph, the same on all ranks.
    order : str or array_like
        See `distribute`.
    machine : Machine
        The machine of this rank.
    """
    about = "the machines of ranks"

    def text() -> npt.NDArray[np.uint8]:
        if isinstance(machine, Machine) and graph.sides is None:
            return np.frombuffer(machine.to_json().encode(), np.uint8)
        raise GraphInputError(
            "ranges by the machines of ranks",
            where="cuts=",
            got=f"{machine!r:.60}, for {graph!r}",
            expected="a Machine, as fg.distributed.calibrate returns it, and a graph "
            "without sides",
            fix="cuts= by hand",
        )

    told = engine.all_gather(on_all(engine, text, about), about=about)
    machines = [Machine.from_json(one.tobytes().decode()) for one in told]
    links = machines[0].links
    link = links[-1] if links else measure_link(engine)
    chosen = choose_partition(graph, order, engine.size)
    into = np.asarray(graph.in_degree)
    if chosen.order is not None:
        into = into[chosen.order]
    # Measured constants differ between ranks: rank 0 decides for all.
    found = engine.broadcast(share_out(into, machines, link).cuts, 0, about=about)
    return Partition.of_known(found, chosen.order)

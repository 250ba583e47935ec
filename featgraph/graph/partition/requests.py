"""Requests for distributed graphs, which `featgraph.ranks` builds.

Imports point down, so `ranks` registers its functions in `distributed_builders`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError

__all__ = [
    "DistributedBuilders",
    "PartitionRequest",
    "distributed_builders",
    "partition_request",
]


@dataclass(frozen=True)
class DistributedBuilders:
    """The functions that build distributed graphs.

    Attributes
    ----------
    of_edges, of_matrix, of_file, of_drawing : callable
        Take a `PartitionRequest`, and the arguments of a constructor, the reader or a
        generator. They return None on a single rank, which then has the whole graph.
    alone : callable
        Called when a State is made on a graph that only this rank has.
    """

    of_edges: Callable[..., Any]
    of_matrix: Callable[..., Any]
    of_file: Callable[..., Any]
    of_drawing: Callable[..., Any]
    alone: Callable[[], None]


#: Has one entry when `featgraph.ranks` is imported.
distributed_builders: list[DistributedBuilders] = []

#: Orders of `Graph.partition`.
_ORDERS = ("given", "spread", "locality", "metis")


@dataclass(frozen=True)
class PartitionRequest:
    """A checked request for a partition.

    Attributes
    ----------
    along : str
        "in" or "both": the edges at own vertices that a rank has.
    ranks : object
        The caller's number of ranks that get vertices; not checked.
    """

    along: str
    ranks: object = None


def partition_request(
    partition: object, order: object, along: object, ranks: object = None
) -> PartitionRequest | None:
    """Return the request for a partition; None without one.

    Raises
    ------
    GraphInputError
        For options that require the whole graph, or have no effect.
    """
    if not isinstance(along, str) or along not in ("both", "in"):
        raise GraphInputError(
            "shards are cut along in-edges, or along all edges",
            where="along=",
            got=shown(along),
            expected="'in' or 'both'",
        )
    if partition is None:
        is_given = isinstance(order, str) and order == "given"
        if is_given and along == "both" and ranks is None:
            return None
        raise GraphInputError(
            "only a graph in parts has an order, and ranks",
            where="order=, along=, ranks=",
            got="partition=None",
            fix='partition="edges"',
        )
    if not isinstance(partition, str) or partition != "edges":
        raise GraphInputError(
            "unknown way to have a graph in parts",
            where="partition=",
            got=shown(partition),
            expected="'edges', or None for a graph that each rank has for itself",
        )
    if isinstance(order, str) and order == "given":
        return PartitionRequest(str(along), ranks)
    is_known = isinstance(order, str) and order in _ORDERS
    raise GraphInputError(
        "this order takes the whole graph, which no rank has"
        if is_known
        else "there is no such order",
        where="order=",
        got=shown(order),
        expected="'given'",
        fix=f"featgraph convert --order {order} stores the graph in that order"
        if is_known
        else "featgraph convert --order locality stores a graph in an order of its own",
    )

"""The choice of a partition from a caller's arguments.

`PartitionRequest` is a request for a distributed graph, which `featgraph.ranks` builds:
imports point down, so `ranks` registers its functions in `distributed_builders`.
`choose_partition` chooses the ranges of ranks, `choose_order` the order of vertices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FeatGraphError, GraphInputError
from featgraph.base.interrupts import import_whole
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.partition.cuts import (
    WORD,
    Balance,
    checked_balance,
    choose_cuts,
    cut_each_side,
    round_cuts,
)
from featgraph.graph.partition.partition import Partition, checked_order

__all__ = [
    "DistributedBuilders",
    "Ordered",
    "PartitionRequest",
    "checked_parts",
    "choose_order",
    "choose_partition",
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
        Called when a State is made on a graph that is not distributed: it warns if this
        process is one of several ranks.
    """

    of_edges: Callable[..., Any]
    of_matrix: Callable[..., Any]
    of_file: Callable[..., Any]
    of_drawing: Callable[..., Any]
    alone: Callable[[], None]


#: Empty until `featgraph.ranks` is imported, which adds one entry.
distributed_builders: list[DistributedBuilders] = []

#: Orders of `Graph.partition`.
_ORDERS = ("given", "spread", "locality", "metis")


@dataclass(frozen=True)
class PartitionRequest:
    """A checked request for a partition.

    Attributes
    ----------
    along : str
        "in" or "both": which edges at its own vertices a rank stores.
    ranks : object
        The caller's number of ranks that get vertices; not yet checked.
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
            "these options apply to a distributed graph only",
            where="order=, along=, ranks=",
            got="partition=None",
            fix='partition="edges"',
        )
    if not isinstance(partition, str) or partition != "edges":
        raise GraphInputError(
            "unknown kind of partition",
            where="partition=",
            got=shown(partition),
            expected="'edges', or None for a whole graph on this rank",
        )
    if isinstance(order, str) and order == "given":
        return PartitionRequest(str(along), ranks)
    is_known = isinstance(order, str) and order in _ORDERS
    raise GraphInputError(
        "this order is computed from the whole graph, which no rank has"
        if is_known
        else "there is no such order",
        where="order=",
        got=shown(order),
        expected="'given'",
        fix=f"featgraph convert --order {order} stores the graph in that order"
        if is_known
        else "featgraph convert --order locality stores a graph in another order",
    )


if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure


def choose_partition(
    graph: Structure,
    order: object = "given",
    parts: object = None,
    *,
    cuts: object = None,
    balance: object = None,
) -> Partition:
    """Choose the owners of vertices; see `Graph.partition`."""
    weights = Balance() if balance is None else checked_balance(balance)
    if cuts is None:
        count = checked_parts(parts)
        ordered = choose_order(graph, order, count, weights)
        is_cut_whole = isinstance(order, str) and order == "metis"
        if graph.sides is not None and not is_cut_whole:
            of_sides = None if balance is None else weights
            degrees, of = np.asarray(graph.in_degree), (graph.sides, ordered.order)
            return Partition(*cut_each_side(degrees, *of, count, of_sides))
        found = ordered.cuts
        if found is None:
            found = choose_cuts(graph, ordered.order, count, weights)
        return Partition(found, ordered.order)
    if parts is not None:
        raise GraphInputError(
            "cuts already define the number of parts",
            where="parts",
            got=f"parts={shown(parts)}, and cuts",
            expected="one of the two",
            fix="leave parts out",
        )
    partition = Partition(cuts)  # type: ignore[arg-type]
    return Partition(
        partition.cuts, choose_order(graph, order, partition.parts, weights).order
    )


def checked_parts(parts: object, name: str = "parts") -> int:
    """Return a number of parts; raise GraphInputError if it is invalid."""
    try:
        if isinstance(parts, bool | np.bool_):
            raise TypeError
        count = operator.index(parts)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if 1 <= count <= MAX_VERTEX_COUNT:
        return count
    raise GraphInputError(
        f"not a number of {name}",
        where=name,
        got=shown(parts),
        expected="an integer, 1 or more; parts beyond the number of vertices are empty",
        fix="parts=4, or cuts=",
    )


# -- orders of vertices


class Ordered(NamedTuple):
    """An order of vertices, with cuts if it was computed for P parts.

    Attributes
    ----------
    order : ndarray of int32, shape (V,), or None
        The vertex at each place; None: by number.
    cuts : ndarray of int64, shape (P + 1,), or None
        None: the module `cuts` chooses them.
    """

    order: NDArray[np.int32] | None
    cuts: NDArray[np.int64] | None = None


def choose_order(
    graph: Structure, order: object, parts: int, balance: Balance
) -> Ordered:
    """Return an order by its name, or from an array.

    Parameters
    ----------
    graph : Graph
    order : {"given", "spread", "locality", "metis"} or array_like, shape (V,)
    parts : int
    balance : Balance

    Raises
    ------
    GraphInputError
        If the name is unknown, or the array is not a permutation.
    FeatGraphError
        If `order` is "metis" and pymetis is not installed.
    """
    if not isinstance(order, str):
        return Ordered(checked_order(order, graph.vertex_count))
    makers = {"given": _given, "spread": _spread, "locality": _sweep, "metis": _metis}
    if order not in makers:
        raise GraphInputError(
            "there is no such order",
            where="order",
            got=shown(order),
            expected=f"{', '.join(map(repr, makers))}, or an array",
            fix='order="given" keeps the vertices as they are numbered',
        )
    return makers[order](graph, parts, balance)


def _given(graph: Structure, parts: int, balance: Balance) -> Ordered:
    return Ordered(None)


def _spread(graph: Structure, parts: int, balance: Balance) -> Ordered:
    """Assign vertices by decreasing in-degree, each to the part with least work."""
    from featgraph.graph.partition import kernels  # loads Numba

    work = balance.edge * graph.in_degree + balance.vertex
    falling = np.argsort(-graph.in_degree.astype(np.int64), kind="stable")
    part = np.empty(falling.size, np.int32)
    # Rounding cuts to whole words moves vertices at the ends of parts to other parts:
    # put vertices of few edges there, and vertices of high degree in the middle.
    few = WORD if WORD * parts <= falling.size else 0
    kernels.deal(work[falling], parts, few * parts, part)
    turn = np.arange(falling.size)
    side = np.where(turn // parts % 2, turn, -turn)
    order = falling[np.lexsort((side, part))].astype(np.int32)
    size = np.bincount(part, minlength=parts)
    return Ordered(order, round_cuts(np.concatenate(([0], np.cumsum(size)))))


def _sweep(graph: Structure, parts: int, balance: Balance) -> Ordered:
    """Order vertices breadth-first, each component from a peripheral vertex."""
    from featgraph.graph.partition import kernels  # loads Numba
    from featgraph.graph.views.structure import incident_columns

    rows = incident_columns(graph)
    degree = np.diff(rows.row_offsets)
    order = np.empty(graph.vertex_count, np.int32)
    # Vertices without edges come last; their order has no effect.
    seeds = np.lexsort((degree, degree == 0)).astype(np.int32)
    seen = np.zeros(graph.vertex_count, np.int8)
    kernels.sweep(rows.row_offsets, rows.column_indices, seeds, seen, order)
    return Ordered(order)


def _metis(graph: Structure, parts: int, balance: Balance) -> Ordered:
    """Cut few edges with METIS, which balances the work of vertices."""
    try:
        pymetis: Any = import_whole("pymetis")
    except ImportError as error:
        raise FeatGraphError(
            "METIS is not installed",
            where="order",
            got="'metis'",
            expected="the package pymetis",
            fix="pip install 'featgraph[metis]', or order=\"locality\"",
        ) from error
    offsets, columns, times = _symmetric(graph)
    work = balance.edge * graph.in_degree + balance.vertex
    # At least a word per part: METIS warns about parts without vertices.
    count = min(parts, -(-graph.vertex_count // WORD))
    _, part = pymetis.part_graph(
        count,
        adjacency=pymetis.CSRAdjacency(offsets, columns),
        vweights=np.rint(work).astype(np.int64),
        eweights=times,
    )
    order = np.argsort(part, kind="stable").astype(np.int32)
    size = np.bincount(part, minlength=parts)
    return Ordered(order, round_cuts(np.concatenate(([0], np.cumsum(size)))))


def _symmetric(graph: Structure) -> tuple[Any, Any, Any]:
    """Return rows of all neighbors without self-loops, with edge multiplicities."""
    from scipy import sparse

    u, v, count = graph.sources, graph.targets, graph.vertex_count
    is_loop = u == v
    u, v = u[~is_loop], v[~is_loop]
    ends = np.concatenate((u, v)), np.concatenate((v, u))
    ones = np.ones(ends[0].size, np.int32)
    # Repeated entries are summed.
    matrix = sparse.coo_array((ones, ends), shape=(count, count)).tocsr()
    return matrix.indptr, matrix.indices, matrix.data

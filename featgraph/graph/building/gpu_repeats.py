"""Repeated edges on the GPU, and combines of their weights.

Weights are combined one after another in given order, like those on the host in
`featgraph.graph.building.edges`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays, sorting
from featgraph.cuda.dialect import cuda, device_function, float64, int32, int64, kernel
from featgraph.graph.building.gpu_edges import GpuEdges, marked, taken

__all__ = ["Repeats", "first_of_each"]

#: Policies that select one of the weights.
LAST, LEAST, MOST = range(3)
#: Least difference of a wrapped sum: a multiple of 2**64 off, beyond rounding errors.
_WRAPPED = 2.0**62


@kernel(cache=True)
def order_ends(sources, targets, low, high):  # type: ignore[no-untyped-def]
    """Set the lower and the higher end of each edge."""
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = sources[edge], targets[edge]
        low[edge] = min(u, v)
        high[edge] = max(u, v)


@kernel(cache=True)
def mark_first(low, high, order, is_first):  # type: ignore[no-untyped-def]
    """Mark the first edge of each group of equal edges, adjacent in `order`."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        found = int32(1)
        if place > 0:
            other = order[place - 1]
            if low[edge] == low[other] and high[edge] == high[other]:
                found = int32(0)
        is_first[edge] = found


@device_function
def _number(edge, first):  # type: ignore[no-untyped-def]
    """Return the index of an edge among the ascending first edges."""
    low, high = int64(0), int64(first.size)
    while low < high:
        middle = (low + high) >> 1
        if first[middle] < edge:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(cache=True)
def add_repeats(weights, order, is_first, first, zero, out, found):  # type: ignore[no-untyped-def]
    """Sum the weights of equal edges; set ``found[0]`` if a sum overflows or is nan."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        total, rough = zero + weights[edge], float64(weights[edge])
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            total += weights[order[other]]
            rough += float64(weights[order[other]])
            other += 1
        if total != total or abs(float64(total) - rough) > _WRAPPED:
            found[0] = 1
        out[_number(edge, first)] = total


@kernel(cache=True)
def choose_of_repeats(weights, order, is_first, first, which, out):  # type: ignore[no-untyped-def]
    """Keep the last, least or largest weight of equal edges."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        chosen = weights[edge]
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            weight = weights[order[other]]
            if (
                which == LAST
                or (which == LEAST and weight < chosen)
                or (which == MOST and weight > chosen)
            ):
                chosen = weight
            other += 1
        out[_number(edge, first)] = chosen


Array = Any
_CHOSEN = {"last": LAST, "min": LEAST, "max": MOST}


@dataclass(frozen=True, eq=False)
class Repeats:
    """Groups of equal edges.

    Attributes
    ----------
    first : array of int32 or int64
        The first edge of each group, ascending.
    order : array of int32 or int64, shape (E_given,)
        The edges by group, in given order within a group.
    is_first : array of int32, shape (E_given,)
        Whether each edge is the first with its ends.
    """

    first: Array
    order: Array
    is_first: Array

    def combined(self, weights: Array, policy: str) -> Array | None:
        """Return the combined weights of groups; None if a sum overflows or is nan.

        Parameters
        ----------
        weights : array, shape (E_given,)
        policy : {"sum", "min", "max", "first", "last"}
        """
        if policy == "first":
            return taken(weights, self.first)
        given = weights, self.order, self.is_first, self.first
        count, kind = self.order.size, weights.dtype.kind
        if policy != "sum":
            made = arrays.empty(self.first.shape, weights.dtype)
            which = _CHOSEN[policy]
            arrays.launch_over(choose_of_repeats, count, *given, which, made)
            return made
        wide = np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[kind])
        made = arrays.empty(self.first.shape, weights.dtype if kind == "f" else wide)
        found = arrays.filled((1,), 0, np.int32)
        zero = wide.type(0)
        arrays.launch_over(add_repeats, count, *given, zero, made, found)
        return None if arrays.read(found)[0] else made


def first_of_each(edges: GpuEdges) -> Repeats | None:
    """Group edges with the same ends; None if all edges differ.

    In an undirected graph, both directions of an edge are equal.
    """
    low, high, count = edges.sources, edges.targets, edges.given_count
    if not edges.directed:
        low, high = (arrays.empty((count,), np.int32) for _ in range(2))
        arrays.launch_over(order_ends, count, edges.sources, edges.targets, low, high)
    _, order = sorting.sort_stably(high, edges.vertex_count)
    _, order = sorting.sort_stably(taken(low, order), edges.vertex_count, order)
    is_first = arrays.empty((count,), np.int32)
    arrays.launch_over(mark_first, count, low, high, order, is_first)
    first = marked(is_first)
    return None if first.size == count else Repeats(first, order, is_first)

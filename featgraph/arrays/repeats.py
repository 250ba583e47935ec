"""Edges on the GPU that are given more than once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph.arrays import memory, sorting
from featgraph.arrays import repeat_kernels as kernels
from featgraph.arrays.edges import GpuEdges, marked, taken

__all__ = ["Repeats", "first_of_each"]

Array = Any
_CHOSEN = {"last": kernels.LAST, "min": kernels.LEAST, "max": kernels.MOST}


@dataclass(frozen=True, eq=False)
class Repeats:
    """Edges of which some are given again.

    Attributes
    ----------
    first : array of int32 or int64
        The first of each, ascending.
    order : array of int32 or int64, shape (E_given,)
        The edges, those with the same ends one behind the other, as given.
    is_first : array of int32, shape (E_given,)
        Whether each edge is the first with its ends.
    """

    first: Array
    order: Array
    is_first: Array

    def combined(self, weights: Array, policy: str) -> Array | None:
        """Return what the first edges weigh, or None where weights have no sum.

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
            made = memory.empty(self.first.shape, weights.dtype)
            which = _CHOSEN[policy]
            memory.launch_over(kernels.choose_of_repeats, count, *given, which, made)
            return made
        wide = np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[kind])
        made = memory.empty(self.first.shape, weights.dtype if kind == "f" else wide)
        found = memory.filled((1,), 0, np.int32)
        zero = wide.type(0)
        memory.launch_over(kernels.add_repeats, count, *given, zero, made, found)
        return None if memory.read(found)[0] else made


def first_of_each(edges: GpuEdges) -> Repeats | None:
    """Find the first edge of all with the same ends; None where there are no others.

    Of an undirected graph an edge may be given either way.
    """
    low, high, count = edges.sources, edges.targets, edges.given_count
    if not edges.directed:
        low, high = (memory.empty((count,), np.int32) for _ in range(2))
        memory.launch_over(
            kernels.order_ends, count, edges.sources, edges.targets, low, high
        )
    _, order = sorting.sort_stably(high, edges.vertex_count)
    _, order = sorting.sort_stably(taken(low, order), edges.vertex_count, order)
    is_first = memory.empty((count,), np.int32)
    memory.launch_over(kernels.mark_first, count, low, high, order, is_first)
    first = marked(is_first)
    return None if first.size == count else Repeats(first, order, is_first)

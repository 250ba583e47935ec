"""Loops that combine the weights of edges with the same ends, as they were given.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["add_repeats", "choose_of_repeats"]

_Array: TypeAlias = NDArray[Any]


@jit
def add_repeats(
    weights: _Array, order: _Array, starts: _Array, sums: _Array, rough: _Array
) -> None:
    """Add up each group in the type of `sums`, and roughly as floats."""
    for group in range(starts.size):
        end = starts[group + 1] if group + 1 < starts.size else order.size
        sums[group] = rough[group] = 0
        for place in range(starts[group], end):
            sums[group] += weights[order[place]]
            rough[group] += weights[order[place]]


@jit
def choose_of_repeats(
    weights: _Array, order: _Array, starts: _Array, least: bool, chosen: _Array
) -> None:
    """Keep the least, or the most, of each group: the first of equals."""
    for group in range(starts.size):
        end = starts[group + 1] if group + 1 < starts.size else order.size
        found = weights[order[starts[group]]]
        for place in range(starts[group] + 1, end):
            weight = weights[order[place]]
            if (weight < found) if least else (weight > found):
                found = weight
        chosen[group] = found

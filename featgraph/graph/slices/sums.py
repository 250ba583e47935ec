"""Sums over edges by which slices are checked; import this inside functions only."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["add_degrees", "add_numbers", "add_twins"]

_Array: TypeAlias = NDArray[Any]


@jit
def add_numbers(values: _Array, first: int, last: int, found: _Array) -> None:
    """Store least, greatest, sum and sum of squares of some integers."""
    part = values[first:last]  # of which no index is below zero: loads are by vectors
    low = high = part[0]
    total = squares = np.int64(0)
    for i in range(part.size):
        value = part[i]
        low, high = min(low, value), max(high, value)
        total += np.int64(value)
        squares += np.int64(value) * np.int64(value)
    found[0], found[1], found[2], found[3] = low, high, total, squares


@jit
def add_degrees(degrees: _Array, found: _Array) -> None:
    """Store the least of some degrees, and what `add_numbers` has of their edges."""
    low, count = degrees[0], np.int64(0)
    total = squares = np.int64(0)
    for i in range(degrees.size):
        low = min(low, degrees[i])
        count += degrees[i]
        total += degrees[i] * i
        squares += degrees[i] * i * i
    found[0], found[1], found[2], found[3] = low, count, total, squares


@jit
def add_twins(
    adjacency: tuple[_Array, _Array, _Array],
    given: int,
    factors: _Array,
    place: int,
    last_place: int,
    found: _Array,
) -> None:
    """Add the undirected edges into some vertices.

    Edges that were given add their rows, and squares of these. A given edge i from u to
    v that is no self-loop adds a product of i, u and v, and its twin takes it away.
    """
    offsets, sources, rows = adjacency
    c0, c1, c2, c3 = factors
    total = squares = twins = loops = np.int64(0)
    for target in range(place, last_place):
        begin, end = offsets[target], offsets[target + 1]
        some, numbers = sources[begin:end], rows[begin:end]
        for slot in range(some.size):
            row, source = np.int64(numbers[slot]), np.int64(some[slot])
            is_twin, is_loop = row >= given, source == target
            row -= given * is_twin
            total += row * (not is_twin)
            squares += row * row * (not is_twin)
            loops += is_twin & is_loop
            u, v = (target, source) if is_twin else (source, target)
            product = (c0 + row * c1 + u * c2) * (c3 + row * c0 + v * c1)
            twins += (not is_loop) * (-product if is_twin else product)
    found[0], found[1], found[2], found[3] = total, squares, twins, loops

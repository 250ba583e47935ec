"""The twin of `featgraph.cuda.tiles`: tiles are tuples of scalars here, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.simt.lanes import MemoryFault
from tests.simt.memory import GuardedArray

__all__ = ["tiles_module"]

Tuple = tuple[Any, ...]


def _square(tile: Tuple) -> np.ndarray:
    side = math.isqrt(len(tile))
    return np.array(tile).reshape(side, side)


def _tuple(array: np.ndarray) -> Tuple:
    return tuple(array.ravel())


def _factored(tile: Tuple) -> Tuple:
    found = _square(tile)
    for j in range(len(found)):
        found[j, j] = found.dtype.type(1) / np.sqrt(found[j, j])
        found[j + 1 :, j] *= found[j, j]
        below = found[j + 1 :, j]
        found[j + 1 :, j + 1 :] -= np.outer(below, below)
    # Entries above the diagonal must not be read.
    found[np.triu_indices(len(found), 1)] = np.nan
    return _tuple(found)


def _backward(piece: Tuple, factor: Tuple) -> Tuple:
    found, lower = np.array(piece), _square(factor)
    for j in reversed(range(len(found))):
        found[j] *= lower[j, j]
        found[:j] -= lower[j, :j] * found[j]
    return _tuple(found)


def _places(
    array: GuardedArray, row: int, column: int, side: int, rows: int
) -> Iterator[tuple[int, int]]:
    """Yield indices; both the columns and the length of rows must be aligned."""
    if column % side or array.shape[-1] % side or len(array.shape) != 2:
        raise MemoryFault(f"{side} columns from {column} of {array.shape}")
    for i in range(rows):
        for j in range(side):
            yield row + i, column + j


def _load(array: GuardedArray, row: int, column: int, side: int, rows: int) -> Tuple:
    return tuple(array[place] for place in _places(array, row, column, side, rows))


def _store(
    array: GuardedArray, row: int, column: int, side: int, rows: int, values: Tuple
) -> None:
    places = _places(array, row, column, side, rows)
    for place, value in zip(places, values, strict=True):
        array[place] = value


def _plus(
    tile: Tuple, array: GuardedArray, row: int, column: int, side: int, rows: int
) -> Tuple:
    other = _load(array, row, column, side, rows)
    return tuple(x + y for x, y in zip(tile, other, strict=True))


def _divided(
    rows: Tuple, array: GuardedArray, row: int, column: int, side: int
) -> Tuple:
    lower = _square(_load(array, row, column, side, side)).T
    found = np.array(rows).reshape(-1, side)
    for j in range(side):
        found[:, j] *= lower[j, j]
        found[:, j + 1 :] -= np.outer(found[:, j], lower[j + 1 :, j])
    return _tuple(found)


def tiles_module() -> dict[str, Any]:
    """Return the members of the twin."""
    return {
        "spread": lambda value, count: (value,) * count,
        "plus_tile": lambda t, a, i, j, s: _plus(t, a, i, j, s, s),
        "plus_piece": lambda t, a, i, j, s: _plus(t, a, i, j, s, 1),
        "plus_product": lambda t, a, b: _tuple(_square(t) + np.outer(a, b)),
        "minus_product": lambda t, a, b: _tuple(_square(t) - np.outer(a, b)),
        "factored": _factored,
        "divided": _divided,
        "backward": _backward,
        "minus_turned": lambda p, t, x: _tuple(
            np.array(p) - _square(t).T @ np.array(x)
        ),
        "on_diagonal": lambda t, p: _tuple(_square(t) + np.diag(p)),
        "turned": lambda tile: _tuple(_square(tile).T),
        "load_piece": lambda a, i, j, s: _load(a, i, j, s, 1),
        "load_tile": lambda a, i, j, s: _load(a, i, j, s, s),
        "store_piece": lambda a, i, j, s, values: _store(a, i, j, s, 1, values),
        "store_tile": lambda a, i, j, s, values: _store(a, i, j, s, s, values),
    }

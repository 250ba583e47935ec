"""Checks of ids, counts and weights, which always run: one pass over each array."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import GraphInputError
from featgraph.graph.inputs.numbers import host_array, number_array

__all__ = [
    "BORN_FIRST",
    "MAX_VERTEX_COUNT",
    "MORE_VERTICES",
    "checked_count",
    "checked_sides",
    "checked_weights",
    "flat_array",
    "require_between_sides",
    "require_ids",
    "require_numbers",
    "require_real",
    "vertex_ids",
]

# Ids are int32 and counts must fit one too, so the largest id is 2**31 - 2.
MAX_VERTEX_COUNT = 2**31 - 1

#: Fixes in the errors for ids out of range: of a new graph, and of a batch of updates.
MORE_VERTICES = (
    "raise vertex_count, correct the ids, or pass names=True to renumber them"
)
BORN_FIRST = "insert the vertices first (graph.insert_vertices), or correct the ids"

# Entries that a check processes at once, which bounds the size of temporaries.
_CHUNK = 1 << 20


def checked_count(value: object, role: str = "vertex_count", least: int = 1) -> int:
    """Return a vertex count as an int; GraphInputError unless `least` to 2**31 - 1."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise GraphInputError(
            "not a count",
            where=role,
            got=f"{value!r} ({type(value).__name__})",
            expected=f"an integer in [{least}, {MAX_VERTEX_COUNT}]",
        ) from None
    if not least <= count <= MAX_VERTEX_COUNT:
        raise GraphInputError(
            "count out of range",
            where=role,
            got=count,
            expected=f"an integer in [{least}, {MAX_VERTEX_COUNT}]",
            fix="vertex ids are int32"
            if least == 0
            else "a graph has at least one vertex, and vertex ids are int32",
        )
    return count


def checked_sides(sides: object, vertex_count: object) -> tuple[int, ...]:
    """Return the number of vertices of each side; GraphInputError for invalid ones."""
    if not isinstance(sides, list | tuple) or not sides:
        raise GraphInputError(
            "not the sides of a graph",
            where="sides",
            got=f"{sides!r:.80}",
            expected="the number of vertices of each side, in the order of their ids",
            fix="sides=(user_count, item_count)",
        )
    counts = tuple(checked_count(count, f"sides[{i}]") for i, count in enumerate(sides))
    total = checked_count(sum(counts), "sum(sides)")
    if vertex_count is not None and checked_count(vertex_count) != total:
        raise GraphInputError(
            "sides contradict the number of vertices",
            where="sides",
            got=f"{counts}, which are {total}, and vertex_count={vertex_count}",
            expected="counts that add up to it",
            fix="leave vertex_count out",
        )
    return counts


def require_between_sides(
    sources: NDArray[Any], targets: NDArray[Any], sides: tuple[int, ...]
) -> None:
    """Raise GraphInputError unless the ends of each edge are in different sides."""
    begins = np.cumsum(sides, dtype=np.int64)
    for begin in range(0, sources.size, _CHUNK):
        own = sources[begin : begin + _CHUNK], targets[begin : begin + _CHUNK]
        of_sources, of_targets = (begins.searchsorted(ends, "right") for ends in own)
        within = of_sources == of_targets
        if not within.any():
            continue
        at = int(np.argmax(within))
        u, v, side = (int(found[at]) for found in (*own, of_sources))
        first = int(begins[side]) - sides[side]
        raise GraphInputError(
            "an edge within a side",
            where=f"sources[{begin + at}], targets[{begin + at}]",
            got=f"{u} and {v}, both of side {side}: the vertices from {first} to "
            f"{int(begins[side]) - 1}",
            expected="ends in two sides",
            fix="number the vertices of a side behind those of the sides before it, or "
            "leave sides out",
        )


def flat_array(values: object, role: str) -> NDArray[Any]:
    """Return the values as a one-dimensional host array; it may alias `values`."""
    array = host_array(values, role)
    if array.ndim != 1:
        raise GraphInputError(
            "one dimension is needed",
            where=role,
            got=f"shape {array.shape}, dtype {array.dtype}",
            expected="shape (E,), one entry for each given edge",
            fix="give sources and targets as two flat arrays, e.g. a[:, 0] and a[:, 1]",
        )
    return array


def paired_arrays(sources: object, targets: object) -> tuple[NDArray[Any], ...]:
    """Return the ends of edges as flat arrays of one length."""
    ends = flat_array(sources, "sources"), flat_array(targets, "targets")
    if ends[0].size != ends[1].size:
        raise GraphInputError(
            "as many targets as sources are needed",
            where="targets",
            got=f"{ends[0].size} sources and {ends[1].size} targets",
            expected="two arrays of one length",
        )
    return ends


def vertex_ids(
    array: NDArray[Any], role: str, vertex_count: int | None, fix: str = MORE_VERTICES
) -> NDArray[np.int32]:
    """Check integer ids against [0, vertex_count) and return them as a fresh int32.

    Parameters
    ----------
    array : ndarray of any dtype, shape (E,)
    role : str
        "sources" or "targets".
    vertex_count : int, optional
        None: all ids from 0 to 2**31 - 2 are valid.
    fix : str, optional
        The fix in the error for an id out of range.

    Raises
    ------
    GraphInputError
        If the dtype is not an integer, or an id is out of range, with its position.
    """
    require_ids(array, role, vertex_count, fix)
    return np.array(array, dtype=np.int32, order="C", copy=True)


def require_ids(
    array: NDArray[Any], role: str, vertex_count: int | None, fix: str = MORE_VERTICES
) -> int:
    """Return the highest id, or -1; raise GraphInputError as `vertex_ids` does."""
    if array.size == 0:
        return -1  # an empty list becomes float64
    if array.dtype.kind not in "iu":
        raise GraphInputError(
            "vertex ids must be integers",
            where=role,
            got=f"dtype {array.dtype}, first value {array[0]!r}",
            expected="an integer dtype; ids are never cast silently",
            fix="cast with .astype(numpy.int64) after checking the values, or pass "
            "names=True for ids of another type",
        )
    bound = MAX_VERTEX_COUNT if vertex_count is None else vertex_count
    # min and max in the array's dtype, then Python ints, which cannot wrap around.
    most = int(np.maximum.reduce(array))
    if int(np.minimum.reduce(array)) < 0 or most >= bound:
        _raise_out_of_range(array, role, bound, vertex_count, fix)
    return most


def _raise_out_of_range(
    array: NDArray[Any], role: str, bound: int, vertex_count: int | None, fix: str
) -> None:
    first, bad = -1, 0
    for begin in range(0, array.size, _CHUNK):
        part = array[begin : begin + _CHUNK]
        positions = np.flatnonzero((part < 0) | (part >= bound))
        if positions.size and first < 0:
            first = begin + int(positions[0])
        bad += int(positions.size)
    limit = "vertex_count" if vertex_count is not None else "the int32 limit"
    raise GraphInputError(
        "vertex id out of range",
        where=f"{role}[{first}]",
        got=f"{int(array[first])} ({bad} of {array.size} ids are out of range)",
        expected=f"0 <= id < {bound} ({limit})",
        fix=fix,
    )


def checked_weights(
    weights: object, given_edge_count: int, role: str = "weights"
) -> NDArray[Any]:
    """Return a fresh, contiguous, native copy of one weight for each given edge.

    Integers stay integers. Infinities are allowed, NaN is not.

    Raises
    ------
    GraphInputError
        If the dtype is not float16 to float64 or an integer, the length is another one,
        or a weight is NaN.
    """
    array = flat_array(number_array(weights, role), role)
    if array.size != given_edge_count:
        raise GraphInputError(
            f"as many {role} as edges are needed",
            where=role,
            got=f"{array.size} {role} for {given_edge_count} edges",
            expected=f"shape ({given_edge_count},)",
        )
    if array.size:
        require_real(array.dtype, role)
    require_numbers(array, role)
    dtype = array.dtype.newbyteorder("=") if array.size else np.dtype(np.float64)
    return np.array(array, dtype=dtype, order="C", copy=True)


def require_real(dtype: np.dtype[Any], role: str, kinds: str = "fiu") -> None:
    """Raise GraphInputError unless a dtype is of these kinds and of 64 bits or less."""
    if dtype.kind not in kinds or dtype.itemsize > 8:
        raise GraphInputError(
            f"{role} must be real numbers",
            where=role,
            got=f"dtype {dtype}",
            expected="float16, float32, float64 or an integer dtype",
            fix="cast with .astype(numpy.float32)",
        )


def require_numbers(array: NDArray[Any], role: str) -> None:
    """Raise GraphInputError if a weight is not a number."""
    for begin in range(0, array.size if array.dtype.kind == "f" else 0, _CHUNK):
        positions = np.flatnonzero(np.isnan(array[begin : begin + _CHUNK]))
        if positions.size:
            raise GraphInputError(
                f"{role} must be numbers",
                where=f"{role}[{begin + int(positions[0])}]",
                got="nan",
                expected="a number; infinities are allowed",
                fix="drop the edge or give it a weight",
            )

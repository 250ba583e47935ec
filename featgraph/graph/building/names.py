"""Vertex names: numbering of vertices that are not named 0..V-1, and look-up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import GraphInputError

__all__ = ["VertexNames", "are_integers", "factorise", "find_vertex"]

VertexNames: TypeAlias = NDArray[np.int64] | NDArray[np.uint64] | tuple[Hashable, ...]

_Ids: TypeAlias = NDArray[np.int32]


def are_integers(array: NDArray[Any]) -> bool:
    """Whether the entries are integers, also for dtype object."""
    if array.dtype.kind != "O":
        return array.dtype.kind in "iu"
    return all(
        isinstance(item, int | np.integer) and not isinstance(item, bool)
        for item in array
    )


def factorise(
    sources: NDArray[Any], targets: NDArray[Any]
) -> tuple[_Ids, _Ids, VertexNames | None]:
    """Assign a number to each distinct name in both arrays.

    Parameters
    ----------
    sources, targets : ndarray, shape (E,)
        Integers (any sign), strings, or hashable objects.

    Returns
    -------
    sources, targets : ndarray of int32, shape (E,)
    names : ndarray of int64 or uint64, tuple, or None
        ``names[v]`` is the name of vertex v: ascending for integers, otherwise in the
        order of first appearance (source before target, edge by edge). None if the
        names are exactly 0..V-1.

    Raises
    ------
    GraphInputError
        If names are floats, bools, missing (None or NaN) or unhashable.
    """
    if not sources.size:
        empty = np.empty(0, np.int32)
        return empty, empty.copy(), None
    for role, array in (("sources", sources), ("targets", targets)):
        if array.dtype.kind in "fcb":
            raise GraphInputError(
                "vertex names must be integers, strings or hashable objects",
                where=role,
                got=f"dtype {array.dtype}, first value {array[0]!r}",
                expected="no float (missing entries make integer columns float), "
                "bool or complex",
                fix="drop missing rows and cast with .astype(numpy.int64)",
            )
    if are_integers(sources) and are_integers(targets):
        return _factorise_integers(_plain_integers(sources), _plain_integers(targets))
    return _factorise_objects(sources, targets)


def _plain_integers(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "O":
        return array
    values = array.tolist()
    if max(values) >= 2**64 or min(values) < -(2**63):
        raise GraphInputError(
            "integer vertex names must fit 64 bits",
            got=f"{min(values)} to {max(values)}",
            fix="give the names as strings",
        )
    return np.array(values, np.uint64 if max(values) >= 2**63 else np.int64)


def _factorise_integers(
    sources: NDArray[Any], targets: NDArray[Any]
) -> tuple[_Ids, _Ids, VertexNames | None]:
    low = min(int(sources.min()), int(targets.min()))
    high = max(int(sources.max()), int(targets.max()))
    if high >= 2**63 and low < 0:
        raise GraphInputError(
            "integer vertex names span more than 64 bits",
            got=f"{low} to {high}",
            fix="give the names as strings",
        )
    dtype = np.uint64 if high >= 2**63 else np.int64
    wide = [array.astype(dtype) for array in (sources, targets)]
    # A table over the range takes O(E + range); sort only if ids are far apart.
    if high - low <= 8 * (sources.size + targets.size) + 1024:
        wide = [(array - low).astype(np.int64) for array in wide]
        is_used = np.zeros(high - low + 1, np.bool_)
        for array in wide:
            is_used[array] = True
        names = np.flatnonzero(is_used).astype(dtype) + dtype(low)
        number = np.cumsum(is_used, dtype=np.int64) - 1
        ids = [number[array].astype(np.int32) for array in wide]
    else:
        names = np.union1d(*wide)
        ids = [np.searchsorted(names, array).astype(np.int32) for array in wide]
    if low == 0 and high == names.size - 1:
        return ids[0], ids[1], None
    return ids[0], ids[1], names


def _factorise_objects(
    sources: NDArray[Any], targets: NDArray[Any]
) -> tuple[_Ids, _Ids, VertexNames | None]:
    number: dict[Hashable, int] = {}
    ids = np.empty((2, sources.size), np.int32)
    columns: tuple[Iterable[Any], Iterable[Any]] = (_items(sources), _items(targets))
    for i, pair in enumerate(zip(*columns, strict=True)):
        for side, name in enumerate(pair):
            try:
                ids[side, i] = number.setdefault(name, len(number))
            except TypeError:
                _raise_bad_name("an unhashable vertex name", side, i, name)
            if _is_missing(name):
                _raise_bad_name("a vertex name is missing", side, i, name)
    return ids[0].copy(), ids[1].copy(), tuple(number)


def _is_missing(name: Any) -> bool:
    if name is None:
        return True
    try:
        return bool(name != name)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def _items(array: NDArray[Any]) -> Iterable[Any]:
    # datetime64.tolist() returns plain integers for nanoseconds: keep NumPy's scalars.
    return array if array.dtype.kind in "mM" else array.tolist()


def _raise_bad_name(what: str, side: int, position: int, name: object) -> None:
    raise GraphInputError(
        what,
        where=f"{('sources', 'targets')[side]}[{position}]",
        got=f"{name!r} ({type(name).__name__})",
        expected="an integer, a string or another hashable object",
        fix="drop the edge or name its vertices",
    )


def find_vertex(
    names: VertexNames | None, name: object, vertex_count: int, cache: dict[str, Any]
) -> int:
    """Return the vertex with a name; `cache` stores the numbers of names in a tuple."""
    if names is None:
        is_integer = isinstance(name, int | np.integer) and not isinstance(name, bool)
        index = int(name) if is_integer else -1  # type: ignore[call-overload]
        index = index if index < vertex_count else -1
    elif isinstance(names, np.ndarray):
        index = _find_integer(names, name)
    else:
        if "numbers" not in cache:
            cache["numbers"] = {item: v for v, item in enumerate(names)}
        try:
            index = cache["numbers"].get(name, -1)
        except TypeError:  # unhashable, so not a name
            index = -1
    if index >= 0:
        return index
    raise GraphInputError(
        "no such vertex",
        got=f"{name!r} ({type(name).__name__})",
        expected=f"an integer in [0, {vertex_count})"
        if names is None
        else f"one of the {vertex_count} names in graph.vertex_names",
    )


def _find_integer(names: NDArray[Any], name: object) -> int:
    """Return the index of an integer name among ascending names, or -1."""
    if isinstance(name, bool) or not isinstance(name, int | np.integer):
        return -1
    value = int(name)
    if names.size == 0 or not int(names[0]) <= value <= int(names[-1]):
        return -1
    index = int(np.searchsorted(names, names.dtype.type(value)))
    return index if int(names[index]) == value else -1

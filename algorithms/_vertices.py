"""Vertices as callers give them, and values for some of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["at_living", "checked_vertices", "living_vertices", "values_by_name"]

Array = npt.NDArray[Any]

#: Names that an error lists.
_SHOWN = 5


def living_vertices(graph: fg.Graph) -> npt.NDArray[np.int64]:
    """Return the ids of all vertices that are not dead, ascending."""
    living = graph.living
    return np.arange(graph.vertex_count) if living is None else np.flatnonzero(living)


def at_living(graph: fg.Graph, given: fg.GivenArray, dead: float = 0) -> fg.GivenArray:
    """Return values of vertices, (V, ...), with those of dead ones replaced."""
    living = graph.living
    if living is None or not given.ndim or len(given) != len(living):
        return given
    values = np.array(given.on_host())
    values[~living] = dead
    return fg.given_array(values)


def checked_vertices(
    graph: fg.Graph, given: Any, where: str, *, is_row: bool = False
) -> Array:
    """Return (k,) in int64, or () of a single vertex.

    Integers are ids, also where the names of the vertices are integers. Text is names.

    Parameters
    ----------
    is_row : bool
        A single vertex is refused.

    Raises
    ------
    GraphInputError
        If they are neither, none, or no vertices of the graph.
    """
    names = _texts(given)
    if names is not None:
        found = np.array(_numbers(graph, names, where), np.int64)
        if not isinstance(given, str):
            return found
        given = found.reshape(())
    vertices = fg.given_array(given, where=where).on_host()
    count = graph.vertex_count
    is_wrong = vertices.ndim != 1 if is_row else vertices.ndim > 1
    if is_wrong or not vertices.size or vertices.dtype.kind not in "iu":
        is_mask = vertices.dtype.kind == "b" and vertices.shape == (count,)
        raise fg.GraphInputError(
            "vertices are integer ids, or names that are text",
            where=where,
            got=f"{vertices.dtype} of shape {vertices.shape}"
            + (f", first value {vertices.flat[0]}" if vertices.size else ""),
            expected="k >= 1 vertices in one axis"
            if is_row
            else "a vertex, or k >= 1 of them in one axis",
            fix="numpy.flatnonzero(mask)" if is_mask else None,
        )
    bad = np.ravel((vertices < 0) | (vertices >= count))
    if bad.any():
        place = int(np.argmax(bad))
        is_named = graph.vertex_names is not None
        raise fg.GraphInputError(
            "no vertex of the graph has this id",
            where=f"{where.removesuffix('=')}[{place}]",
            got=int(vertices.ravel()[place]),
            expected=f"0 <= id < {count}",
            fix="graph.vertex_index(name), if it is a name" if is_named else None,
        )
    living = graph.living
    if living is not None and not living[vertices].all():
        place = int(np.argmin(living[vertices]))
        raise fg.GraphInputError(
            "the vertex was deleted",
            where=f"{where.removesuffix('=')}[{place}]",
            got=int(vertices.ravel()[place]),
            expected=f"one of the {graph.living_count} living vertices",
        )
    return vertices.astype(np.int64)


def values_by_name(
    graph: fg.Graph, given: Mapping[Any, Any], where: str, missing: float | None
) -> Array:
    """Return (V,) of a mapping whose keys are names, or ids where there are no names.

    Parameters
    ----------
    missing : float or None
        The value of vertices that are no keys; None: all have to be.

    Raises
    ------
    GraphInputError
        If a key is no vertex, a value no number, or a vertex is missing.
    """
    vertices = _numbers(graph, list(given), where)
    try:
        values = fg.given_array(list(given.values()), np.float64, where).on_host()
    except fg.GraphInputError as error:
        raise fg.GraphInputError(
            "a value of a mapping is no number",
            where=where,
            got=error.got,
            expected="a number for each vertex that is a key",
        ) from error
    if values.ndim != 1:
        raise fg.GraphInputError(
            "a mapping has one number for each vertex",
            where=where,
            got=f"values of shape {values.shape[1:]}",
            expected="a number for each vertex that is a key",
            fix="give an array of shape (V, k) for k columns",
        )
    count = graph.vertex_count
    made = np.full(count, np.nan if missing is None else missing)
    made[vertices] = values
    count = graph.living_count
    if missing is None and len(vertices) < count:
        absent = np.setdiff1d(living_vertices(graph), vertices)
        left = [_name(graph, v) for v in absent[:_SHOWN].tolist()]
        raise fg.GraphInputError(
            "a mapping has a value for every vertex",
            where=where,
            got=f"none for {_listed(left, absent.size)}",
        )
    return made


def _texts(given: Any) -> list[Any] | None:
    """Return names of vertices as a list; None where nothing is text."""
    if isinstance(given, str):
        return [given]
    dtype = getattr(given, "dtype", None)
    # No array of numbers is looked through, and none on a GPU copied.
    if getattr(dtype, "kind", "O") in "biufcmM" or getattr(given, "ndim", 1) != 1:
        return None
    if dtype is not None and hasattr(given, "__array__"):
        given = np.asarray(given).tolist()
    if not isinstance(given, list | tuple):
        return None
    return list(given) if any(isinstance(item, str) for item in given) else None


def _numbers(graph: fg.Graph, names: list[Any], where: str) -> list[int]:
    """Return the ids of vertices by name."""
    found, unknown = [], []
    for name in names:
        try:
            found.append(graph.vertex_index(name))
        except fg.GraphInputError:
            unknown.append(name)
    if unknown:
        has_names = graph.vertex_names is not None
        known = [_name(graph, v) for v in range(min(graph.vertex_count, _SHOWN))]
        raise fg.GraphInputError(
            "no vertices of the graph have these names"
            if has_names
            else "the graph has no names, and these are no ids",
            where=where,
            got=_listed(unknown, len(unknown)),
            expected=f"names as {_listed(known, graph.vertex_count)}"
            if has_names
            else f"0 <= id < {graph.vertex_count}",
            fix=None if has_names else "names=True where the graph is made keeps names",
        )
    return found


def _name(graph: fg.Graph, vertex: int) -> Any:
    names = graph.vertex_names
    name = vertex if names is None else names[vertex]
    return name.item() if isinstance(name, np.generic) else name


def _listed(names: list[Any], count: int) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:_SHOWN])
    return shown if count <= _SHOWN else f"{shown}, ... ({count})"

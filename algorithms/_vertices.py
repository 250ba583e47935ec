"""Checks and conversions of vertices, and of values of vertices, that callers pass.

`checked_vertices` reads ids or names of vertices, `columns` values (V, k),
`distributions` values that are scaled so that each column sums to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = [
    "ByVertex",
    "at_living",
    "checked_vertices",
    "column_property",
    "columns",
    "columns_property",
    "distributions",
    "given_values",
    "held_values",
    "living_vertices",
    "only_living",
    "values_by_name",
    "width_of",
]

Array = npt.NDArray[Any]

#: Most names that an error lists.
_SHOWN = 5


def living_vertices(graph: fg.Graph) -> npt.NDArray[np.int64]:
    """Return the ids of all vertices that are not dead, ascending."""
    living = graph.living
    return np.arange(graph.vertex_count) if living is None else np.flatnonzero(living)


def at_living(graph: fg.Graph, given: fg.GivenArray, dead: float = 0) -> fg.GivenArray:
    """Return values of vertices, (V, ...), with `dead` at dead vertices."""
    living = graph.living
    if living is None or not given.ndim or len(given) != len(living):
        return given
    values = np.array(given.on_host())
    values[~living] = dead
    return fg.given_array(values)


def only_living(graph: fg.Graph, ids: Array) -> Array:
    """Return the vertices of some ids that are not dead."""
    return ids if graph.living is None else ids[graph.living[ids]]


def _matrix(
    graph: fg.Graph, name: str, given: fg.GivenArray, dead: float = 0, free: str = ""
) -> fg.GivenArray:
    """Return values, (V, k), with `dead` at dead vertices; (V,) is one column."""
    count = graph.vertex_count
    if given.ndim not in {1, 2} or len(given) != count or given.shape[1:] == (0,):
        raise fg.GraphInputError(
            f"{name} has one value, or k, for each vertex",
            got=f"shape {given.shape}",
            expected=f"({count},) or ({count}, k){free}",
        )
    return at_living(graph, given.matrix(), dead)


def held_values(graph: fg.Graph, name: str, values: npt.ArrayLike) -> fg.Held:
    """Return held vertices, and their values, (V, k) in float64 with 0 for nan.

    A vertex is held if it has numbers in all k columns, and free if it has nan in all.
    """
    given = fg.given_array(values, np.float64, name)
    given = _matrix(graph, name, given, np.nan, ", nan for free vertices")
    found = given.held()
    if found.first_bad is not None:
        raise fg.GraphInputError(
            f"{name} is finite, or nan in all columns",
            where=f"vertex {found.first_bad}",
            got=given.row(found.first_bad),
        )
    return found


def checked_vertices(
    graph: fg.Graph, given: Any, where: str, *, is_row: bool = False
) -> Array:
    """Return ids of vertices, int64 of shape (k,), or () for a single vertex.

    Integers are ids, even if the names of the vertices are integers. Text is a name.

    Parameters
    ----------
    is_row : bool
        Whether a single vertex is an error.

    Raises
    ------
    GraphInputError
        If `given` has no vertices, or has neither ids nor names of the graph.
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
    """Return the values of a mapping as an array (V,).

    Keys are names of vertices, or ids in a graph without names.

    Parameters
    ----------
    missing : float or None
        The value of vertices that are not keys; None: these are an error.

    Raises
    ------
    GraphInputError
        If a key is not a vertex, a value is not a number, or a vertex is missing.
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
    """Return names of vertices as a list; None if no entry is text."""
    if isinstance(given, str):
        return [given]
    dtype = getattr(given, "dtype", None)
    # Arrays of numbers are not searched for text, nor copied from a GPU.
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
            else "the graph has no names, and these are not ids",
            where=where,
            got=_listed(unknown, len(unknown)),
            expected=f"names as {_listed(known, graph.vertex_count)}"
            if has_names
            else f"0 <= id < {graph.vertex_count}",
            fix=None if has_names else "make the graph with names=True to keep names",
        )
    return found


def _name(graph: fg.Graph, vertex: int) -> Any:
    names = graph.vertex_names
    name = vertex if names is None else names[vertex]
    return name.item() if isinstance(name, np.generic) else name


def _listed(names: list[Any], count: int) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:_SHOWN])
    return shown if count <= _SHOWN else f"{shown}, ... ({count})"


#: Values of vertices: an array, or a mapping from names.
ByVertex: TypeAlias = npt.ArrayLike | Mapping[Any, float]

#: Powers of two. Columns whose largest values are between them are not scaled: their
#: sums, and quotients by the sums, neither overflow nor underflow.
_LEAST, _MOST = 2.0**-500, 2.0**500


def given_values(
    graph: fg.Graph, name: str, values: ByVertex, missing: float | None = None
) -> fg.GivenArray:
    """Wrap the values of a caller; a mapping becomes (V,), see `values_by_name`."""
    if isinstance(values, Mapping):
        values = values_by_name(graph, values, name, missing)
    return fg.given_array(values, where=name)


def columns(
    graph: fg.Graph, name: str, values: ByVertex, missing: float | None = None
) -> fg.GivenArray:
    """Return finite values, (V, k) in float64; an array (V,) is one column."""
    given = given_values(graph, name, values, missing).astype(np.float64, name)
    given = _matrix(graph, name, given)
    vertex = given.first_not_finite()
    if vertex is not None:
        raise fg.GraphInputError(
            f"{name} is finite", where=f"vertex {vertex}", got=given.row(vertex)
        )
    return given


def distributions(graph: fg.Graph, name: str, values: ByVertex | None) -> fg.GivenArray:
    """Return distributions, (V, 1) or (V, k), whose columns sum to one.

    None is the uniform distribution. Vertices that are not keys of a mapping have zero.
    """
    if values is None:
        uniform = np.full((graph.vertex_count, 1), 1 / max(graph.living_count, 1))
        return at_living(graph, fg.given_array(uniform))
    given = columns(graph, name, values, 0.0)
    vertex = given.first_row_outside(0, given.greatest)
    if vertex is not None:
        raise fg.GraphInputError(
            f"{name} is not negative", where=f"vertex {vertex}", got=given.row(vertex)
        )
    largest = given.largest_of_columns()
    if ((largest > _MOST) | (largest < _LEAST)).any():
        # By a power of two, which rounds no value.
        given = given.columns_divided(np.ldexp(1.0, np.frexp(largest)[1] - 1))
    sums = given.sums_of_columns()
    if not (sums > 0).all():
        raise fg.GraphInputError(
            f"{name} is zero everywhere",
            where=f"column {int(np.argmin(sums))}",
            expected="a positive value at one vertex at least",
        )
    return given.columns_divided(sums)


def width_of(given: Mapping[str, fg.GivenArray | None]) -> int:
    """Return the k of several arrays (V, k); single columns and None fit any k."""
    widths = {name: a.shape[1] for name, a in given.items() if a is not None}
    width = max(widths.values(), default=1)
    for name, own in widths.items():
        if own not in {1, width}:
            raise fg.GraphInputError(
                f"{' and '.join(given)} differ in their numbers of columns",
                where=name,
                got=f"{own} columns beside {width}",
                expected="k columns, or one for all",
            )
    return width


def columns_property(
    graph: fg.Graph,
    values: fg.GivenArray | None,
    width: int,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
    where: str | None = None,
) -> Any:
    """Return a property (V, k) from a result of `distributions`; uniform for None.

    Parameters
    ----------
    where : str, optional
        The argument's name in the error if the dtype cannot represent a value. Default:
        values are not checked, as those of distributions.
    """
    if values is None:
        uniform = dtype.type(1 / max(graph.living_count, 1))
        return fg.vertex_property(uniform, shape=(width,), iterated=iterated)
    array = values.widened(width).astype(dtype, where).values
    return fg.vertex_property(array, iterated=iterated, copy=False)


def column_property(
    graph: fg.Graph,
    name: str,
    values: ByVertex | None,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
) -> Any:
    """Return a property (V,) of one distribution of a caller; uniform for None."""
    if values is None:
        uniform = dtype.type(1 / max(graph.living_count, 1))
        return fg.vertex_property(uniform, iterated=iterated)
    given = distributions(graph, name, values)
    if given.shape[1] != 1:
        raise fg.GraphInputError(
            f"{name} has one value for each vertex",
            got=f"shape {given.shape}",
            expected=f"({graph.vertex_count},)",
        )
    column = given.column(0).astype(dtype).values
    return fg.vertex_property(column, iterated=iterated)

"""What callers give a graph that changes, and when they may.

`Names` are the names of its vertices, by which the ends of edges become ids. `Turns`
keeps batches and the supersteps of other threads apart.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._arguments import shown
from featgraph.arrays.values import is_on_gpu
from featgraph.errors import GraphInputError, StateError
from featgraph.graph.building.names import factorise
from featgraph.graph.inputs.numbers import number_array

__all__ = [
    "Names",
    "Turns",
    "all_columns",
    "ends_there",
    "listed",
    "of_one_length",
    "with_born",
]

Array = npt.NDArray[Any]


class Turns:
    """What keeps batches and the supersteps of other threads apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Threads that run supersteps -> on how many States.
        self._running: dict[int, int] = {}
        self._writer: int | None = None

    def enter(self, doing: str) -> None:
        """Begin supersteps on a State.

        Raises
        ------
        StateError
            If another thread applies a batch.
        """
        me = threading.get_ident()
        with self._lock:
            if self._writer not in (None, me):
                raise _at_once("supersteps", "a batch", doing)
            self._running[me] = self._running.get(me, 0) + 1

    def leave(self) -> None:
        """End what `enter` has begun."""
        me = threading.get_ident()
        with self._lock:
            self._running[me] -= 1
            if not self._running[me]:
                del self._running[me]

    def begin(self, doing: str) -> None:
        """Begin a batch.

        Raises
        ------
        StateError
            If another thread runs supersteps, or applies a batch.
        """
        me = threading.get_ident()
        with self._lock:
            others = self._running.keys() - {me}
            if others or self._writer is not None:
                other = "supersteps" if others else "another batch"
                raise _at_once("a batch", other, doing)
            self._writer = me

    def end(self) -> None:
        """End a batch."""
        self._writer = None


def _at_once(what: str, other: str, doing: str) -> StateError:
    return StateError(
        f"{what} on a graph while another thread is at {other}",
        where=doing,
        expected="batches between supersteps",
        fix="apply batches in callback= or then=, or in the thread that runs",
    )


class Names:
    """The names of vertices, in the order of their ids."""

    def __init__(self, names: Iterable[Hashable] = ()) -> None:
        self.of = list(names)
        self.ids = {name: vertex for vertex, name in enumerate(self.of)}

    def copy(self) -> Names:
        """Return independent names; those of deleted vertices stay free."""
        made = Names(self.of)
        made.ids = dict(self.ids)
        return made

    def look_up(self, sources: Array, targets: Array) -> tuple[Array, Array, list[Any]]:
        """Return the ids of the ends of edges, and the names that are new.

        The n-th new name, in the order of appearance, gets the id -1 - n.
        """
        *ends, found = factorise(sources, targets)
        count = 1 + max((int(e.max(initial=-1)) for e in ends), default=-1)
        distinct = [*range(count)] if found is None else list(found)
        if isinstance(found, np.ndarray):
            distinct = found.tolist()
        first = np.unique(np.stack(ends, axis=1).ravel(), return_index=True)[1]
        ids, fresh = np.empty(count, np.int64), []
        for number in np.argsort(first).tolist():
            name = distinct[number]
            vertex = self.ids.get(name)
            if vertex is None:
                fresh.append(name)
                vertex = -len(fresh)
            ids[number] = vertex
        return ids[ends[0]], ids[ends[1]], fresh

    def find(self, names: Any, where: str) -> Array:
        """Return the ids of vertices by their names.

        Raises
        ------
        GraphInputError
            A name that no vertex has.
        """
        wanted = listed(names)
        ids = [self.ids.get(name, -1) for name in wanted]
        if -1 in ids:
            first = ids.index(-1)
            raise GraphInputError(
                "no vertex has this name",
                where=f"{where}[{first}]",
                got=shown(wanted[first]),
                expected="a name of the graph",
            )
        return np.array(ids, np.int32)

    def put(self, names: list[Any], ids: Array) -> None:
        """Give vertices names."""
        for name, vertex in zip(names, ids.tolist(), strict=True):
            if vertex == len(self.of):
                self.of.append(name)
            else:
                self.of[vertex] = name
            self.ids[name] = vertex

    def drop(self, ids: Array) -> None:
        """Let names of deleted vertices be given to others."""
        for vertex in ids.tolist():
            self.ids.pop(self.of[vertex], None)


def listed(names: Any) -> list[Any]:
    """Return names as a list; a NumPy scalar becomes a number or string of Python."""
    return names.tolist() if isinstance(names, np.ndarray) else list(names)


def all_columns(weights: Any, columns: Any) -> dict[str, Any]:
    """Return all columns by name, as arrays.

    Raises
    ------
    GraphInputError
        If `columns` is no mapping of names, weights are given twice, or values are no
        numbers or no list.
    """
    if not isinstance(columns, Mapping | None) or not all(
        isinstance(name, str) for name in columns or ()
    ):
        raise GraphInputError(
            "columns are arrays by their names",
            where="columns=",
            got=shown(columns),
            expected='a mapping such as {"time": [9, 12]}',
        )
    if weights is not None and columns and "weight" in columns:
        raise GraphInputError(
            "the column of weights is given twice",
            where="weights=",
            got="weights, and columns['weight']",
            expected="one of them",
        )
    given = {**({} if weights is None else {"weight": weights}), **(columns or {})}
    for name, values in given.items():
        where = "weights" if name == "weight" else f"columns[{name!r}]"
        if not is_on_gpu(values):
            given[name] = values = number_array(values, where)
        if not values.shape:
            raise GraphInputError(
                "each edge has a value in each column",
                where=where,
                got=shown(values),
                expected="an array with one entry for each edge",
            )
    return given


def updates_of(batch: Any) -> tuple[Any, ...]:
    """Return the arguments of `DynamicGraph.update` for a batch of a window, in order.

    Raises
    ------
    GraphInputError
        If it is something else.
    """
    if not hasattr(batch, "targets"):
        raise GraphInputError(
            "edges are two arrays, of sources and of targets",
            where="targets=",
            got=f"{shown(batch)}, and no targets",
            expected="as many targets, or a batch of a window",
        )
    names = "sources", "targets", "insert", "weights", "columns", "copies"
    return tuple(getattr(batch, name) for name in names)


def of_one_length(sources: Array, targets: Array) -> tuple[Array, Array]:
    """Return the ends of edges; GraphInputError unless there are as many of both."""
    if sources.size != targets.size:
        raise GraphInputError(
            "as many targets as sources are needed",
            where="targets",
            got=f"{sources.size} sources and {targets.size} targets",
            expected="two arrays of one length",
        )
    return sources, targets


def ends_there(
    sources: Any, targets: Any, vertex_count: int | None
) -> tuple[Any, Any, int | None]:
    """Return ends of edges that are given on the GPU, and the number of vertices.

    None for the number, and the arrays as they are, where the host has to look at them.
    """
    from featgraph.arrays.edges import checked_ends  # imports the dialect

    found = checked_ends(sources, targets, vertex_count, True)
    if found is None:
        return sources, targets, None
    return found.sources, found.targets, found.vertex_count


def with_born(ends: Array, born: Array) -> Array:
    """Return ids, with those of new vertices in place of -1, -2, and so on."""
    is_new = ends < 0
    ends[is_new] = born[-1 - ends[is_new]]
    return ends

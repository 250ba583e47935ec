"""Arguments of dynamic graphs, names of vertices, and the lock of batches.

`Names` maps the names of vertices to ids. `Turns` keeps batches and the supersteps of
other threads apart. The functions check arguments of `DynamicGraph`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError, StateError
from featgraph.base.interrupts import deferred_interrupts
from featgraph.dynamic.rows import NONE
from featgraph.graph.building.check import BORN_FIRST, paired_arrays, vertex_ids
from featgraph.graph.building.names import factorise

__all__ = [
    "Names", "Turns", "all_columns", "argument_of", "ids_of", "listed", "parts",
    "require",
]  # fmt: skip

Array = npt.NDArray[Any]


class Turns(AbstractContextManager["Turns"]):
    """A lock against batches during supersteps of other threads, and the reverse.

    A thread that runs supersteps may apply batches between them, in a callback. A
    search of the rows without a State counts as a superstep.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Threads that run supersteps, once per State, and the thread of a batch.
        self._running: list[int] = []
        self._writer: int | None = None

    def enter(self, doing: str, *, is_batch: bool = False) -> None:
        """Register supersteps, or a batch.

        Raises
        ------
        StateError
            If another thread applies a batch; for a batch, also if another thread runs
            supersteps.
        """
        me, other = threading.get_ident(), ""
        with deferred_interrupts(), self._lock:
            # This thread's own batch has ended, by an interrupt outside its block.
            if self._writer not in (None, me):
                other = "a batch"
            elif is_batch and set(self._running) - {me}:
                other = "supersteps"
            elif is_batch:
                self._writer = me
            else:
                self._running.append(me)
        if other:
            raise StateError(
                f"{'a batch' if is_batch else 'supersteps'} on a graph while another "
                f"thread is at {other}", where=doing,
                expected="batches between supersteps",
                fix="apply batches in callback= or then=, or in the thread that runs",
            )  # fmt: skip

    def leave(self) -> None:
        """End the supersteps that `enter` has registered."""
        with self._lock:
            self._running.remove(threading.get_ident())

    @contextmanager
    def read(self, doing: str) -> Iterator[None]:
        """Register a search of the rows for a ``with`` block: see `enter`."""
        self.enter(doing)
        try:
            yield
        finally:
            self.leave()

    def batch(self, doing: str) -> Turns:
        """Register a batch for a ``with`` block: see `enter`."""
        self.enter(doing, is_batch=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._writer = None


class Names:
    """The names of vertices.

    Attributes
    ----------
    of : list
        Name by id; None for a deleted vertex.
    ids : dict
        Id by name, without deleted vertices.
    """

    def __init__(self, names: Iterable[Hashable] = ()) -> None:
        self.of = list(names)
        living = ((v, name) for v, name in enumerate(self.of) if name is not None)
        self.ids = {name: v for v, name in living}

    def look_up(
        self, sources: Any, targets: Any, ids_for: Callable[[int], Array]
    ) -> tuple[Array, Array, list[Any]]:
        """Return the ids of the ends of edges, and the new names among them.

        New names, in the order of appearance, get the ids that `ids_for` returns for
        their number. They are stored by `put` only.
        """
        *ends, found = factorise(*paired_arrays(sources, targets))
        both = np.stack(ends, axis=1)
        count = 1 + int(both.max(initial=-1))
        distinct = listed(range(count) if found is None else found)
        appearance = np.argsort(np.unique(both, return_index=True)[1])
        ids = np.array([self.ids.get(name, -1) for name in distinct], np.int64)
        is_new = appearance[ids[appearance] < 0]
        ids[is_new] = ids_for(is_new.size)
        fresh = [distinct[number] for number in is_new.tolist()]
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
                "no vertex has this name", where=f"{where}[{first}]",
                got=shown(wanted[first]), expected="a name of the graph",
            )  # fmt: skip
        return np.array(ids, np.int32)

    def put(self, names: list[Any], ids: Array, dead: Array = NONE) -> None:
        """Store the names of new vertices; free those of deleted ones, `dead`.

        The name of a dead vertex is None: another one may get the name that it had.
        """
        for vertex in dead.tolist():
            self.ids.pop(self.of[vertex], None)
            self.of[vertex] = None
        for name, vertex in zip(names, ids.tolist(), strict=True):
            self.of[vertex : vertex + 1] = [name]
            self.ids[name] = vertex


def require(
    holds: Any, what: str, where: str, got: Any, expected: str, fix: str | None = None
) -> None:
    """Raise GraphInputError, with these parts, unless `holds`."""
    if not holds:
        raise GraphInputError(what, where=where, got=got, expected=expected, fix=fix)


def listed(names: Any) -> list[Any]:
    """Return names as a list, with Python objects in place of NumPy scalars."""
    return names.tolist() if isinstance(names, np.ndarray) else list(names)


def all_columns(weights: Any, columns: Any) -> dict[str, Any]:
    """Return all columns by name, weights as "weight".

    Raises
    ------
    GraphInputError
        If `columns` is not a mapping from names, or weights are given twice.
    """
    is_right = columns is None or isinstance(columns, Mapping)
    if not is_right or (columns and not all(isinstance(name, str) for name in columns)):
        raise GraphInputError(
            "columns are arrays by their names", where="columns=", got=shown(columns),
            expected='a mapping such as {"time": [9, 12]}',
        )  # fmt: skip
    given = dict(columns or {})
    if weights is not None:
        require(
            "weight" not in given, "the column of weights is given twice", "weights=",
            "weights, and columns['weight']", "one of them",
        )  # fmt: skip
        given = {"weight": weights} | given
    return given


def argument_of(column: str) -> str:
    """Return how errors name the argument with the values of a column."""
    return "weights" if column == "weight" else f"columns[{column!r}]"


def ids_of(sources: Any, targets: Any, vertex_count: int) -> tuple[Array, Array]:
    """Return the ends of edges as int32 ids; raise GraphInputError for other values."""
    u, v = paired_arrays(sources, targets)
    u = vertex_ids(u, "sources", vertex_count, BORN_FIRST)
    return u, vertex_ids(v, "targets", vertex_count, BORN_FIRST)


def parts(batch: Any, **others: bool) -> tuple[Any, ...]:
    """Return the arguments of `DynamicGraph.update` from a `WindowBatch`.

    Raises
    ------
    GraphInputError
        If `batch` is not one, or any of the `others` is given besides.
    """
    if not hasattr(batch, "targets"):
        raise GraphInputError(
            "edges are two arrays, of sources and of targets", where="targets=",
            got=f"{shown(batch)}, and no targets",
            expected="as many targets, or a batch of a window",
        )  # fmt: skip
    given = ", ".join(f"{name}=" for name, is_given in others.items() if is_given)
    require(
        not given, "a batch of a window has all its values", given, "other values",
        "a batch alone", "give arrays of edges, or leave these out",
    )  # fmt: skip
    names = "sources", "targets", "insert", "weights", "columns", "copies"
    return tuple(getattr(batch, name) for name in names)

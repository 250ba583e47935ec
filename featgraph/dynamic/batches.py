"""Batches of updates: checked arguments, the result, and the log of changes.

`checked_batch`   checks the arguments of a user and copies them into a `Batch`
`UpdateResult`    the outcomes of a batch, for the user
`Record`          the edges and vertices that one batch has changed
`Log`             the records of the latest batches, a queue
`Changes`         the net changes between two versions, from consecutive records

Example: version 1 inserts (0, 1); version 2 deletes it and inserts (2, 1). The log has
two records. Since version 1, (2, 1) was inserted and (0, 1) deleted; since version 0,
only (2, 1) was inserted: edges are compared by the number of their insertion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.cached import cached_property
from featgraph.base.errors import GraphInputError
from featgraph.dynamic.inputs import argument_of, ids_of
from featgraph.dynamic.pools import numba_kernels
from featgraph.dynamic.rows import NO_KINDS, NONE, Array, Spec
from featgraph.graph.building.check import flat_array, require_numbers, require_real
from featgraph.graph.building.edges import freeze
from featgraph.graph.inputs.numbers import converted, number_array

__all__ = [
    "Batch", "Changes", "Log", "Record", "UpdateResult", "checked_batch",
    "checked_columns", "on_host", "require_choice",
]  # fmt: skip

Pairs: TypeAlias = tuple[Array, Array]

#: Words for the outcomes, which `kernels_cpu` numbers in this order.
OUTCOMES = np.array(["inserted", "replaced", "ignored", "deleted", "missing"])
_NO_EDGES = NONE, NONE, np.empty(0, np.int64)


@dataclass(eq=False)
class Batch:
    """Updates that are applied as a whole.

    Arrays are copies of those of the caller. If ends are on a GPU, they are those of
    the caller, and there are no `kinds` where the batch inserts or deletes alone.

    Attributes
    ----------
    sources, targets : int32, (M,)
        Ids below the number of vertices after the batch.
    kinds : uint8, (M,)
        1 for an insertion, 0 for a deletion.
    columns : dict of arrays, (M,) or (M, width)
        Values of insertions in the types of the store; None for deletions alone.
    insertions : int
        The number of insertions.
    births : int
        The number of vertices that are inserted before the edges.
    deaths : int32
        Vertices to delete, ascending. A batch that deletes vertices has no updates; the
        store adds deletions of their edges.
    copies : {"all", "first", "last"}
        The copies of a pair that a deletion removes.
    missing : {"ignore", "error"}
        The policy for deletions of absent edges.
    rename : callable, optional
        Stores the names of the vertices, once the batch is applied.
    """

    sources: Array = field(default_factory=NONE.view)
    targets: Array = field(default_factory=NONE.view)
    kinds: Array = field(default_factory=NO_KINDS.view)
    columns: dict[str, Array] | None = None
    insertions: int = 0
    births: int = 0
    deaths: Array = field(default_factory=NONE.view)
    copies: str = "all"
    missing: str = "ignore"
    rename: Callable[[], None] | None = None


class UpdateResult:
    """The outcomes of a batch.

    Attributes
    ----------
    version : int
        The version of the graph after the batch.
    inserted, replaced, ignored : int
        The number of insertions that made an edge, that changed the values of one, and
        that had no effect.
    deleted : int
        The number of edges that were deleted; a deletion may remove several copies.
    missing : int
        The number of deletions of absent edges.
    vertices : ndarray of int32
        The ids of inserted vertices, in the order given.
    """

    def __init__(
        self, version: int, counts: list[int], codes: Array, vertices: Array
    ) -> None:
        self.version, self.vertices = version, vertices
        self.inserted, self.replaced, self.ignored = counts[:3]
        self.missing, self.deleted = counts[4], counts[6]
        self._codes = codes

    @cached_property
    def outcomes(self) -> Array:
        """Outcome by update: inserted, replaced, ignored, deleted or missing."""
        return OUTCOMES[on_host(self._codes)]

    def __repr__(self) -> str:
        names = ("version", *OUTCOMES.tolist())
        parts = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"UpdateResult({parts}, vertices={len(self.vertices)})"


def on_host(array: Any) -> Array:
    """Return arrays on the host; one on a GPU is copied, a function is called."""
    if isinstance(array, np.ndarray | tuple):
        return array  # type: ignore[return-value]
    if callable(array):
        return array()  # type: ignore[no-any-return]
    from featgraph.cuda import arrays  # imports the dialect

    return arrays.read(array) if array.size else np.empty(array.shape, array.dtype)


def require_choice(value: object, choices: tuple[str, ...], where: str) -> str:
    """Return `value` if it is one of `choices`; raise GraphInputError if not."""
    if not isinstance(value, str) or value not in choices:
        raise GraphInputError(
            "not one of the choices", where=where, got=shown(value),
            expected="one of " + ", ".join(map(repr, choices)),
        )  # fmt: skip
    return value


def checked_batch(
    sources: object, targets: object, kinds: object, columns: Mapping[str, object],
    spec: Spec, vertex_count: int, **options: Any,
) -> Batch:  # fmt: skip
    """Check updates and copy them.

    Parameters
    ----------
    sources, targets : array_like of integers, shape (M,)
    kinds : bool, or array_like of bool, shape (M,)
        True for an insertion, False for a deletion.
    columns : mapping of str to array_like
        A value for each update, in each column of the graph. Values of deletions have
        no meaning. A batch of deletions alone needs no columns.
    spec : Spec
        Types of the columns of the graph.
    vertex_count : int
        All ids must be below it.
    **options
        Further attributes of the `Batch`.

    Raises
    ------
    GraphInputError
    """
    u, v = ids_of(sources, targets, vertex_count)
    count = u.size
    if isinstance(kinds, bool | np.bool_):
        is_new = np.full(count, kinds, np.uint8)
    else:
        is_new = flat_array(kinds, "insert")
        if is_new.dtype != np.bool_ or is_new.size != count:
            raise GraphInputError(
                "not a mask of the updates", where="insert",
                got=f"{is_new.size} values of {is_new.dtype}",
                expected=f"a bool for each of {count} updates",
            )  # fmt: skip
        is_new = is_new.astype(np.uint8)
    given, insertions = None, int(np.count_nonzero(is_new))
    if columns or insertions:
        given = checked_columns(columns, spec, is_new)
    return Batch(u, v, is_new, given, insertions, **options)


def checked_columns(
    columns: Mapping[str, object], spec: Spec, is_new: Array
) -> dict[str, Array]:
    """Return the value of each update in each column, converted; 0 for deletions.

    Raises
    ------
    GraphInputError
        Columns that are missing, unknown, or of another length, width or type; a weight
        that is not a number.
    """
    if unlike := set(columns) ^ set(spec):
        name = min(unlike)
        raise GraphInputError(
            "an insertion has a value in each column of the graph",
            where=argument_of(name), got=", ".join(columns) or "no columns",
            expected=", ".join(spec) or "no columns",
        )  # fmt: skip
    made = {}
    for name, (dtype, width) in spec.items():
        where = argument_of(name)
        array = number_array(columns[name], where)
        if array.dtype != dtype:
            require_real(array.dtype, where, "fiu" if name == "weight" else "fiub")
        shape = (is_new.size,) if width is None else (is_new.size, width)
        if array.shape != shape:
            raise GraphInputError(
                "a value for each update is needed", where=where,
                got=f"shape {array.shape}", expected=f"shape {shape}",
            )  # fmt: skip
        if np.count_nonzero(is_new) < is_new.size:
            array = array.copy()
            array[is_new == 0] = 0
        made[name] = converted(array, dtype, where)
        if name == "weight":
            require_numbers(made[name], where)
    return made


@dataclass(eq=False)
class Record:
    """The changes that one batch made to the rows along "in".

    Edges of undirected graphs are listed in the direction in which they were given:
    their twins, which have odd numbers, are left out. Arrays of a graph on a GPU stay
    there. The lists of edges are computed on the host when they are first read.

    Attributes
    ----------
    number : int
        The insertion number of update 0.
    births, deaths : int32
        Inserted and deleted vertices.
    ends : pair of int32, (M,), or of functions that return them
        Sources and targets of the updates.
    entries : pair of arrays, or of functions that return them
        `HostPlan.order` and `HostPlan.fates`.
    shift : int
        `HostPlan.shift`.
    left : array of uint32, (3 or 4, edges)
        Rows, ends and numbers of the deleted edges.
    other : four arrays, or one on a GPU, uint32, (4, entries); or None
        Of entries that replaced values: a mask of those that changed any, then rows,
        ends and numbers of the edges.
    counts : tuple of int
        The numbers of inserted, deleted and changed edges.
    """

    number: int
    births: Array
    deaths: Array
    ends: tuple[Any, Any]
    entries: tuple[Any, Any]
    shift: int
    left: Any
    other: Any
    counts: tuple[int, int, int]

    @property
    def size(self) -> int:
        """The number of edges and vertices that it lists."""
        return sum(self.counts) + self.births.size + self.deaths.size

    @cached_property
    def born(self) -> tuple[Array, ...]:
        """Sources, targets and numbers of the inserted edges."""
        order, fates = map(on_host, self.entries)
        appends = fates == numba_kernels().APPENDS
        order = order.astype(np.uint32)[appends] << self.shift
        order = order[order & 1 == 0]
        u, v = (on_host(ends)[order >> 1] for ends in self.ends)
        return u, v, order + 2 * self.number

    @cached_property
    def gone(self) -> tuple[Array, ...]:
        """Sources, targets and numbers of the deleted edges."""
        rows, ends, numbers = on_host(self.left)[:3]
        is_given = numbers & 1 == 0
        ends, rows = ends.view(np.int32)[is_given], rows.view(np.int32)[is_given]
        return ends, rows, numbers[is_given]

    @cached_property
    def changed(self) -> tuple[Array, ...]:
        """Sources, targets and numbers of the edges with other values."""
        if self.other is None:
            return _NO_EDGES
        is_other, rows, ends, numbers = on_host(self.other)
        at = np.flatnonzero(is_other)
        return ends.view(np.int32)[at], rows.view(np.int32)[at], numbers[at]


class Changes:
    """How a graph differs from an earlier version.

    Pairs of int32 arrays have the ends of edges; they are listed when they are first
    read, so that what needs vertices alone does not wait for a GPU.

    Attributes
    ----------
    since, version : int
    born, dead : int32
        Vertices that were inserted, and that were deleted, in between.
    """

    def __init__(self, since: int, version: int, records: list[Record]) -> None:
        self.since, self.version, self._records = since, version, records
        self.born, self.dead = (
            freeze(np.concatenate([NONE, *(getattr(r, name) for r in records)]))
            for name in ("births", "deaths")
        )

    def __repr__(self) -> str:
        counted = "{} inserted, {} deleted, {} changed edges".format(*self.counts)
        return f"Changes from version {self.since} to {self.version}: {counted}"

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of inserted, deleted and changed edges."""
        if len(self._records) == 1:
            return self._records[0].counts
        return tuple(sources.size for sources, _ in self._edges)

    @cached_property
    def inserted(self) -> Pairs:
        """Sources and targets of edges of the new version that the old one lacks.

        An edge that was deleted and inserted again is another edge. Undirected edges
        are listed once, in the direction in which they were given.
        """
        return self._edges[0]

    @cached_property
    def deleted(self) -> Pairs:
        """Edges of the old version that the new one does not have."""
        return self._edges[1]

    @cached_property
    def changed(self) -> Pairs:
        """Edges of both versions whose value in a column was replaced by another."""
        return self._edges[2]

    @cached_property
    def _edges(self) -> list[Pairs]:
        return _net_edges(self._records)


def _net_edges(records: list[Record]) -> list[Pairs]:
    """Return the edges inserted, deleted and changed by some batches, read-only."""
    came = _joined([record.born for record in records])
    gone = _joined([record.gone for record in records])
    changed = _joined([record.changed for record in records])
    if len(records) > 1:  # a single record lists net changes already
        number = 2 * records[0].number
        is_left = np.isin(came[2], gone[2], invert=True)
        came = tuple(array[is_left] for array in came)
        _, first = np.unique(changed[2], return_index=True)
        changed = tuple(array[np.sort(first)] for array in changed)
        stays = np.isin(changed[2], gone[2], invert=True) & (changed[2] < number)
        changed = tuple(array[stays] for array in changed)
        gone = tuple(array[gone[2] < number] for array in gone)
    return [(freeze(u), freeze(v)) for u, v, _ in (came, gone, changed)]


class Log:
    """The records of the latest batches; the last one leads to the present version."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._size = 0
        #: The last result of `since`: all results and States of a version request it.
        self._last: Changes | None = None

    def add(self, record: Record | None, room: int) -> None:
        """Append a record, and drop the oldest ones above `room`; None drops all."""
        if record is None:
            self._records.clear()
            self._size = 0
            return
        self._records.append(record)
        self._size += record.size
        while self._size > room:
            self._size -= self._records.popleft().size

    def copy(self) -> Log:
        """Return an independent log with the same records."""
        made = Log()
        made._records, made._size = self._records.copy(), self._size
        return made

    def since(self, since: int, version: int) -> Changes | None:
        """Return the net changes since a version; None if the log begins later."""
        last, count = self._last, version - since
        if count > len(self._records):
            return None
        if last is not None and (last.since, last.version) == (since, version):
            return last
        records = [self._records[n] for n in range(-count, 0)]
        self._last = Changes(since, version, records)
        return self._last


def _joined(parts: list[Any]) -> tuple[Array, ...]:
    """Return the concatenation of triples of sources, targets and numbers."""
    return tuple(map(np.concatenate, zip(_NO_EDGES, *parts, strict=True)))

"""A batch of updates: checked arguments, the result, and the log of changes.

A `Batch` owns arrays that have been checked to fit a store. `Log` keeps the changes of
batches, from which `Changes` between two versions are found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.cached import cached_property
from featgraph.base.errors import GraphInputError
from featgraph.dynamic.inputs import argument_of, ids_of
from featgraph.dynamic.rows import Array, Spec, numba_kernels
from featgraph.graph.building.check import flat_array, require_numbers
from featgraph.graph.inputs.numbers import converted, number_array

__all__ = [
    "Batch", "Changes", "Log", "Record", "UpdateResult", "checked_batch",
    "checked_columns", "on_host", "require_choice",
]  # fmt: skip

Pairs: TypeAlias = tuple[Array, Array]

#: By the codes of `kernels_cpu`.
OUTCOMES = np.array(["inserted", "replaced", "ignored", "deleted", "missing"])
_EMPTY = np.empty(0, np.int32)
_NO_EDGES = _EMPTY, _EMPTY, np.empty(0, np.int64)


@dataclass(eq=False)
class Batch:
    """Updates that are applied as one.

    Attributes
    ----------
    sources, targets : int32, (M,)
    kinds : uint8, (M,)
        1: an insertion, 0: a deletion.
    columns : dict of arrays, (M,) or (M, width)
    insertions : int
        How many updates insert an edge.
    births : int
        How many vertices are inserted, before the edges.
    deaths : int32
        Vertices that are deleted, ascending; such a batch has nothing else.
    copies : {"all", "first", "last"}
    missing : {"ignore", "error"}
    """

    sources: Array = field(default_factory=lambda: _EMPTY)
    targets: Array = field(default_factory=lambda: _EMPTY)
    kinds: Array = field(default_factory=lambda: _EMPTY)
    columns: dict[str, Array] | None = None
    insertions: int = 0
    births: int = 0
    deaths: Array = field(default_factory=lambda: _EMPTY)
    copies: str = "all"
    missing: str = "ignore"

    def on_host(self) -> Batch:
        """Return the same batch on the host."""
        return self


class UpdateResult:
    """The outcomes of a batch.

    Attributes
    ----------
    version : int
        The version of the graph afterwards.
    inserted, replaced, ignored : int
        How many insertions made an edge, changed one, or did nothing.
    deleted : int
        How many edges were deleted.
    missing : int
        How many deletions found no edge.
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
        """The outcome of each update: "inserted", "replaced", "ignored" and so on."""
        return OUTCOMES[on_host(self._codes)]

    def __repr__(self) -> str:
        names = ("version", *OUTCOMES.tolist())
        parts = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"UpdateResult({parts}, vertices={len(self.vertices)})"


def on_host(array: Any) -> Array:
    """Return an array of either target on the host."""
    if isinstance(array, np.ndarray):
        return array
    from featgraph.cuda import arrays  # imports the dialect

    return arrays.read(array) if array.size else np.empty(array.shape, array.dtype)


def require_choice(value: object, choices: tuple[str, ...], where: str) -> str:
    """Return one of some words, or raise GraphInputError."""
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
        Whether each update inserts its edge.
    columns : mapping of str to array_like
        A value for each update, in each column of the graph. Those of deletions are not
        looked at. Deletions alone need none.
    spec : Spec
    vertex_count : int
        Ids are below it.
    **options
        Of `Batch`.

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
    require_choice(options.get("copies", "all"), ("all", "first", "last"), "copies")
    require_choice(options.get("missing", "ignore"), ("ignore", "error"), "missing")
    given, insertions = None, int(np.count_nonzero(is_new))
    if columns or insertions:
        given = checked_columns(columns, spec, is_new)
    return Batch(u, v, is_new, given, insertions, **options)


def checked_columns(
    columns: Mapping[str, object], spec: Spec, is_new: Array
) -> dict[str, Array]:
    """Return a copy of the value of each update in each column.

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
    """The changes of one batch; arrays stay where the rows are until they are read.

    Attributes
    ----------
    number : int
        The number of its first insertion.
    births, deaths : int32
        Vertices.
    ends : pair of int32, by update
        Sources and targets.
    has_twins : bool
        Whether entries are at both ends of an edge; only those as given are logged.
    entries : pair
        Numbers of the entries and their fates, as in `Plan.order` and `Plan.fates`.
    shift : int
        Bits by which the numbers are shifted.
    left : triple of arrays
        Rows, other ends and numbers of edges that left.
    other : four arrays, or none
        The same of entries that found an edge, behind a mask of those that gave it
        another value.
    size : int
        How many entries of the log it takes.
    """

    number: int
    births: Array
    deaths: Array
    ends: tuple[Any, Any]
    has_twins: bool
    entries: tuple[Any, Any]
    shift: int
    left: tuple[Any, ...]
    other: tuple[Any, ...]
    size: int

    @cached_property
    def born(self) -> tuple[Array, ...]:
        """Sources, targets and numbers of edges that were inserted."""
        order, fates = map(on_host, self.entries)
        appends = fates == numba_kernels().APPENDS
        order = order.astype(np.uint32)[appends] << self.shift
        order = order[order & 1 == 0]
        u, v = (on_host(ends)[order >> 1] for ends in self.ends)
        return u, v, order + 2 * self.number

    @cached_property
    def gone(self) -> tuple[Array, ...]:
        """The same of edges that were deleted."""
        rows, ends, numbers = map(on_host, self.left)
        return _as_given(rows, ends, numbers, self.has_twins)

    @cached_property
    def changed(self) -> tuple[Array, ...]:
        """The same of edges that got other values."""
        if not self.other:
            return _NO_EDGES
        is_other, rows, ends, numbers = map(on_host, self.other)
        at = np.flatnonzero(is_other)
        return ends[at], rows[at], numbers[at]


@dataclass(frozen=True, eq=False)
class Changes:
    """How a graph differs from an earlier version.

    Attributes
    ----------
    since, version : int
    inserted : pair of int32
        Sources and targets of edges that came, without those that left again. An edge
        that was deleted and inserted again is another edge. Edges of undirected graphs
        are here once, in the direction in which they were given.
    deleted : pair of int32
        Edges that left.
    changed : pair of int32
        Edges of both versions, with other values in a column.
    born, dead : int32
        Vertices that came, and that were deleted.
    """

    since: int
    version: int
    inserted: Pairs
    deleted: Pairs
    changed: Pairs
    born: Array
    dead: Array


class Log:
    """The log of changes: those of the latest batches."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._size = 0
        #: The changes returned last: results and States of one version want the same.
        self._last: Changes | None = None

    def __len__(self) -> int:
        return self._size

    def add(self, record: Record | None, room: int) -> None:
        """Add a batch, and forget the oldest; None forgets all."""
        if record is None:
            self._records.clear()
            self._size = 0
            return
        self._records.append(record)
        self._size += record.size
        while self._size > room:
            self._size -= self._records.popleft().size

    def copy(self) -> Log:
        """Return another log of the same batches."""
        made = Log()
        made._records, made._size = self._records.copy(), self._size
        return made

    def since(self, since: int, version: int) -> Changes | None:
        """Return the net changes; None where some of them are forgotten."""
        last, count = self._last, version - since
        if count > len(self._records):
            return None
        if last is not None and (last.since, last.version) == (since, version):
            return last
        records = [self._records[n] for n in range(-count, 0)]
        came = _joined([record.born for record in records])
        gone = _joined([record.gone for record in records])
        changed = _joined([record.changed for record in records])
        if len(records) > 1:  # within one there is nothing to set off
            number = 2 * records[0].number
            is_left = np.isin(came[2], gone[2], invert=True)
            came = tuple(array[is_left] for array in came)
            _, first = np.unique(changed[2], return_index=True)
            changed = tuple(array[np.sort(first)] for array in changed)
            stays = np.isin(changed[2], gone[2], invert=True) & (changed[2] < number)
            changed = tuple(array[stays] for array in changed)
            gone = tuple(array[gone[2] < number] for array in gone)
        births, deaths = (
            np.concatenate([_EMPTY, *(getattr(r, name) for r in records)])
            for name in ("births", "deaths")
        )
        pairs = [(array[0], array[1]) for array in (came, gone, changed)]
        for array in (*sum(pairs, ()), births, deaths):  # others get them, too
            array.flags.writeable = False
        made = Changes(since, version, pairs[0], pairs[1], pairs[2], births, deaths)
        self._last = made
        return made


def _as_given(
    rows: Array, ends: Array, numbers: Array, has_twins: bool
) -> tuple[Array, ...]:
    """Return sources, targets and numbers of edges, without those of twins."""
    if has_twins:
        is_given = numbers & 1 == 0
        rows, ends, numbers = rows[is_given], ends[is_given], numbers[is_given]
    return ends, rows, numbers


def _joined(parts: list[Any]) -> tuple[Array, ...]:
    """Return sources, targets and numbers of all parts."""
    return tuple(map(np.concatenate, zip(_NO_EDGES, *parts, strict=True)))

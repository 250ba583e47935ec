"""State: the properties and scalars of a running program.

A `State` has a `Column` for each name (`program.column`). Values that a user gives are
converted in `program.given`; entries for changes of the graph are added in
`program.following`; `program.saved` writes and reads folders.
"""

from __future__ import annotations

import difflib
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import checked_arguments, require_flag
from featgraph.base.dataclass import replace
from featgraph.base.errors import ArgumentError, StateError
from featgraph.cuda.values import DeviceValues, Reordered, host_values
from featgraph.graph import Graph
from featgraph.graph.inputs.take import (
    require_item_shape,
    scalar_of_type,
    storage_dtype,
)
from featgraph.graph.partition.choose import distributed_builders
from featgraph.graph.views.structure import collect_by_id
from featgraph.program.column import Column, Place, versions
from featgraph.program.following import Puts, Seen, checked_put, follow, seen_now
from featgraph.program.given import (
    PropertySpec,
    compare_given,
    edge_values,
    finish_copies,
    loose_column,
    property_column,
    values_of_shape,
    vertex_values,
)
from featgraph.program.saved import Left, Snapshot, read_state, write_state
from featgraph.program.signature import (
    LONGEST,
    METHODS,
    RESERVED,
    PropertyKind,
    PropertyType,
    Signature,
    name_problem,
)
from featgraph.program.view import InUse, View

__all__ = ["PropertySpec", "State", "edge_property", "vertex_property"]

Array = npt.NDArray[Any]

#: Most properties and scalars that a repr lists, one per line.
SHOWN = 8


def vertex_property(
    values: Any,
    *,
    iterated: bool = False,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    at: Any = None,
    entries: Any = None,
    copy: bool = True,
    fill: Any = 0,
) -> PropertySpec:
    """Declare a property with one entry per vertex.

    Parameters
    ----------
    values : array_like of shape (V,), (V, K) or (V, K, K), or a scalar
        Copied; an array on the GPU is copied there. Masked values, missing values, and
        values that the storage type cannot represent (2.5 as an integer) are errors. A
        scalar fills every entry.
    iterated : bool, optional
        Whether functions write ``d.name_next``, while `d.name` keeps its value from the
        beginning of the superstep.
    dtype : dtype, optional
        Storage type; default that of `values`, an array or a data frame. Lists and
        Python numbers have none: float32 for floats, int64 for integers.
    shape : tuple of int, optional
        Shape of one entry, for a scalar `values`: ``()``, ``(K,)`` or ``(K, K)``.
    at : array_like of int, shape (N,), or tuple of such arrays, optional
        Index of the entries with other values than the scalar `values`: vertices, or an
        array for each axis of the property, as in NumPy. Of repeated indices, the last
        counts.
    entries : array_like of shape (N,), or a scalar
        The values of these entries.
    copy : bool, optional
        With False, a NumPy array of the storage type, in C order, is read in place, and
        copied before functions first write the property. Do not write the array
        meanwhile, or call `State.touch` afterwards. Other values are copied.
    fill : scalar, or array_like of shape `shape`, optional
        On a graph that changes, the value of the entries of new and of dead vertices.

    Raises
    ------
    ArgumentError
        If `iterated` or `copy` is not a truth value, or `shape` not a shape, or one of
        `at` and `entries` is missing.
    StateError
        If `dtype` cannot be stored. `State` raises errors about the values.

    Examples
    --------
    >>> import featgraph as fg
    >>> graph = fg.Graph.from_edges([0, 1], [1, 2])
    >>> level = fg.vertex_property(-1, at=[2, 0], entries=[5, 7])
    >>> fg.State(graph, level=level)["level"].tolist()
    [7, -1, 5]
    """
    if (at is None) != (entries is None):
        raise ArgumentError(
            "single entries need indices and values",
            where="fg.vertex_property",
            got="no entries=" if entries is None else "no at=",
            expected="both at= and entries=, or none of them",
        )
    return PropertySpec(
        PropertyKind.VERTEX,
        values,
        require_flag("iterated", iterated),
        storage_dtype(dtype, "dtype="),
        require_item_shape(shape),
        copy=require_flag("copy", copy),
        at=at,
        entries=entries,
        fill=fill,
    )


def edge_property(
    values: Any,
    *,
    iterated: bool = False,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    per_direction: bool | None = None,
    copy: bool = True,
    fill: Any = 0,
) -> PropertySpec:
    """Declare a property with one entry per edge, in the order they were given.

    Parameters
    ----------
    values : array_like of shape (E, ...) or, undirected graphs, (2 E, ...), or a scalar
        Copied. With 2 E rows, row ``E + i`` belongs to the twin of edge i.
    iterated, dtype, shape
        As for `vertex_property`.
    per_direction : bool, optional
        Undirected graphs: store an entry for each direction, which functions that write
        the property need. The property is read back with 2 E rows. Default: whether 2 E
        rows were given.
    copy : bool, optional
        As for `vertex_property`. Unless given order is that of edge ids
        (`Graph.given_index`), values are reordered when a kernel first reads them: the
        array is copied to a GPU as it is, and reordered there.
    fill : scalar or array_like, optional
        On a graph that changes, the value of the entries of new edges.

    Raises
    ------
    ArgumentError, StateError
        As for `vertex_property`.
    """
    return PropertySpec(
        PropertyKind.EDGE,
        values,
        require_flag("iterated", iterated),
        storage_dtype(dtype, "dtype="),
        require_item_shape(shape),
        per_direction is not None and require_flag("per_direction", per_direction),
        require_flag("copy", copy),
        fill=fill,
    )


class State:
    """The properties and scalars of a running program.

    Arrays are copied into the State; arrays on the GPU stay there. `state[name]`
    returns a copy on the host, for edge properties in the order in which the edges were
    given; `view` gives access to the values in place. Assigning to `state[name]` keeps
    shape and dtype, and makes every vertex due again.

    Parameters
    ----------
    graph : Graph
        The graph the properties belong to.
    **properties
        `vertex_property`, `edge_property`, scalars (float, int, bool), or arrays that
        belong to no vertex: vectors of shape (K,), matrices of shape (K, K).

    Raises
    ------
    StateError
        If a name is reserved, a shape does not fit the graph, or a dtype cannot be
        stored.

    Examples
    --------
    >>> import featgraph as fg
    >>> graph = fg.Graph.from_edges([0, 1], [1, 2])
    >>> x = fg.vertex_property([1.0, 0.0, 0.0], iterated=True)
    >>> state = fg.State(graph, x=x, alpha=0.5)
    >>> state["x"].tolist(), state["alpha"]
    ([1.0, 0.0, 0.0], 0.5)
    """

    # Positional only, so that a property may be called `self`.
    #: Whether algorithms may compute on the host in place of a foldmap. False while
    #: runs on the CPU find the kernels of runs on a GPU.
    is_read_on_host: ClassVar[bool] = True

    def __init__(self, graph: Graph | None = None, /, **properties: Any) -> None:
        if graph is None and isinstance(properties.get("graph"), Graph):
            graph = properties.pop("graph")
        if not isinstance(graph, Graph):
            raise StateError(
                "a State belongs to a graph",
                where="fg.State",
                got="no graph" if graph is None else type(graph).__name__,
                expected="fg.State(graph, name=...)",
            )
        if graph.ranks is None:
            for maker in distributed_builders:
                maker.alone()
        self.graph = graph
        self._columns: dict[str, Column] = {}
        #: ``d.superstep``: number of supersteps that have run on this State.
        self.superstep = 0
        #: Increases with every write by the caller; runtimes compare it.
        self.version = 0
        self._begin()
        for name, given in properties.items():
            self._add(name, given)
        finish_copies(self._columns.values())

    def _begin(self) -> None:
        #: Increases when a property is new, or has another type; runtimes compare it.
        self.types_version = 0
        self._types: tuple[int, tuple[tuple[str, PropertyType], ...]] | None = None
        #: The place of the current values, set by the runtime.
        self.residency: Place | None = None
        #: Lock for the thread that runs supersteps on this State.
        self.in_use = InUse(self.graph.changing)
        #: `version` of the State, and a dict of pending vertices that earlier runs have
        #: left. Keys are foldmaps, or the digests of their programs. Written by the
        #: runtime.
        self.left: tuple[int, dict[Any, Any]] = (self.version, {})
        #: Log of `put`.
        self.puts = Puts()
        #: Number of vertices that have entries.
        self.vertices_seen = self.graph.vertex_count
        #: The version of the graph, and the puts, that `follow` has processed.
        self._seen = seen_now(self)
        #: The last version of the graph for which `fg.trim` has reset values that
        #: depend on deleted edges.
        self.trimmed = self._seen.version
        #: Functions of the runs in progress that return their pending vertices.
        self.live: list[Callable[[], dict[Any, Left]]] = []
        #: Supersteps that are bound to the State, by their id. They are dropped when
        #: the State moves to another graph.
        self.bound: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )

    def _add(self, name: str, given: Any) -> None:
        _check_name(name)
        if isinstance(given, PropertySpec):
            self._columns[name] = made = property_column(self.graph, name, given)
            _note_edges(self.graph, made)
        else:
            self._columns[name] = loose_column(name, given, State)
        if self.graph.ranks is not None:
            compare_given(self.graph.ranks, name, given, self._columns[name])

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        names = list(self._columns)
        shown = names if len(names) <= SHOWN else names[: SHOWN - 1]
        rows = [f"  {name}: {self._columns[name].type.describe()}" for name in shown]
        if len(shown) < len(names):
            rows.append(f"  and {len(names) - len(shown)} more")
        return "\n".join([f"State on {self.graph!r}", *rows])

    @property
    def signature(self) -> Signature:
        """Types of all properties and scalars, by name."""
        return {name: column.type for name, column in self._columns.items()}

    @property
    def content_version(self) -> tuple[Any, ...]:
        """A value that changes at writes by the caller and changes of the graph."""
        return self.version, *self.follow()

    def follow(self) -> Seen:
        """Add entries for changes of the graph; return the current version."""
        graph, then = self.graph, self._seen
        is_same = graph.stamps.version is then.stamp and self.puts.count == then.puts
        if is_same and graph.changing is None:
            return then
        now = seen_now(self)
        if now != then:
            if now.stamp is not then.stamp:
                follow(self, then)
            self._seen = now
        return now

    @property
    def types(self) -> tuple[tuple[str, PropertyType], ...]:
        """The items of `signature`; the same object until a type changes."""
        known = self._types
        if known is None or known[0] != self.types_version:
            found = tuple([(n, column.type) for n, column in self._columns.items()])
            self._types = known = self.types_version, found
        return known[1]

    def _column(self, name: object) -> Column:
        self.follow()
        found = self._columns.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_name(name, self._columns, "this State")
        return found

    def __getitem__(self, name: str) -> Any:
        """Return a copy of the values; edge values in the order they were given."""
        self.in_use.check(f"reading state[{name!r}]")
        column = self._column(name)
        if column.type.kind is PropertyKind.EDGE:
            return self._given_order(name, column)
        values = self.stored(name)
        if column.type.kind is PropertyKind.SCALAR:
            return values
        if column.type.kind is PropertyKind.VERTEX:
            values = self.graph.collect_vertex_values(values)
        # Values may be a view of an array with spare capacity.
        ours = [a for a in (column.current(), column.values) if type(a) is type(values)]
        is_ours = any(np.may_share_memory(values, a) for a in ours)
        return values.copy() if is_ours else values

    def _given_order(self, name: str, column: Column) -> Any:
        """Return a copy of edge values in the order they were given."""
        check_edges(self)
        held = column.current() if self.graph.ranks is None else None
        if (
            isinstance(held, Reordered)
            and not column.per_direction
            and held.rows.of is self.graph.stamps.version
        ):
            return held.array.copy()  # still in the given order
        values = held if isinstance(held, DeviceValues) else self.stored(name)
        if self.graph.changing is not None:
            return collect_by_id(self.graph, values, column.per_direction)
        return self.graph.collect_edge_values(values, column.per_direction)

    def local(self, name: str) -> Any:
        """Return a copy of the values that this rank owns, without an exchange.

        A single rank owns all values. Scalars and vectors are the same on all ranks.

        Parameters
        ----------
        name : str

        Returns
        -------
        ndarray or scalar
            Rows of vertices in the order of ``graph.own_vertices``, of edges in that of
            ``graph.own_edges``.

        Raises
        ------
        StateError
            If there is no such property, or another thread runs on this State.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.Graph.from_edges([0], [1])
        >>> state = fg.State(graph, x=fg.vertex_property([3, 4]))
        >>> state.local("x").tolist(), graph.own_vertices.tolist()
        ([3, 4], [0, 1])
        """
        self.in_use.check(f"state.local({name!r})")
        values, kind = self.stored(name), self._column(name).type.kind
        if kind is PropertyKind.SCALAR:
            return values
        if kind is PropertyKind.VERTEX:
            values = values[: self.graph.own_vertices.size]
        elif kind is PropertyKind.EDGE and self.graph.changing is not None:
            return values[self.graph.changing.stored_ids]  # a copy
        elif kind is PropertyKind.EDGE:
            values = values[: self.graph.own_edges.size]
        return values.copy()

    def stored(self, name: str) -> Any:
        """Return the current values in kernel order, on the host; read-only."""
        return self._column(name).on_host()

    def view(self, name: str) -> View:
        """Return the values of a property in place, without a copy.

        Rows are in kernel order: rows of vertices by id, rows of edges as in
        ``view.order``. A view of values on the GPU has ``__cuda_array_interface__`` and
        ``__dlpack__``, a view on the host ``__array__`` and ``__dlpack__``. It is valid
        until the next call, superstep or assignment. Call `touch` after writing through
        it.

        Parameters
        ----------
        name : str

        Raises
        ------
        StateError
            If there is no such property, it is a scalar, or another thread runs on this
            State.

        Examples
        --------
        >>> import featgraph as fg, numpy as np
        >>> graph = fg.Graph.from_edges([0], [1])
        >>> state = fg.State(graph, x=fg.vertex_property([1.0, 2.0]))
        >>> np.asarray(state.view("x"))[1] = 5.0
        >>> state.touch("x")
        >>> state["x"].tolist()
        [1.0, 5.0]
        """
        self.in_use.check(f"state.view({name!r})")
        column = self._column(name)
        check_edges(self)
        column.require_own(f"state.view({name!r})")
        if column.type.kind is PropertyKind.SCALAR:
            raise StateError(
                "a scalar has no view",
                where=f"state.view({name!r})",
                expected="a property of vertices or edges, or a vector",
                fix=f"read it: state[{name!r}]",
            )
        return View(self, name, column.lend())

    def touch(self, name: str) -> None:
        """Mark the values of a property as written by the caller.

        Call this method after writing through a view, or into an array given with
        ``copy=False``. Every vertex is due again, as after an assignment. Views stay
        valid. On several ranks, all call it after each has written the rows of its own
        vertices; arrays given with ``copy=False`` are not read any more.

        Raises
        ------
        StateError
            If there is no such property, or another thread runs on this State; on
            several ranks, if it belongs to edges.
        """
        with self.in_use.hold(f"state.touch({name!r})", changes=False):
            column = self._column(name)
            column.require_own(f"state.touch({name!r})")
            if self.graph.ranks is not None:
                self._renew_ghosts(name, column)
            column.touch()
            self.version += 1

    def _renew_ghosts(self, name: str, column: Column) -> None:
        """Receive the rows of other ranks, if no device has the values yet."""
        if column.type.kind is PropertyKind.EDGE:
            raise StateError(
                "an edge may have values on two ranks",
                where=f"state.touch({name!r})",
                got=repr(self.graph),
                fix="assign all values, state[name] = values, on all ranks",
            )
        if column.type.kind is PropertyKind.VERTEX and column.held is None:
            values = column.lend()
            whole = self.graph.collect_vertex_values(values)
            values[...] = self.graph.local_rows(whole)

    def __setitem__(self, name: str, value: Any) -> None:
        with self.in_use.hold(f"writing state[{name!r}]"):
            self._write(name, value)
            self.version += 1

    def _write(self, name: str, value: Any) -> None:
        column = self._column(name)
        column.require_own(f"state[{name!r}] = ...")
        type_, graph = column.type, self.graph
        values: Any
        if type_.kind is PropertyKind.SCALAR:
            values = scalar_of_type(f"state[{name!r}]", value, type_.dtype)
        elif type_.kind is PropertyKind.VECTOR:
            values = host_values(values_of_shape(name, value, type_, ()))
        elif type_.kind is PropertyKind.VERTEX:
            rows = (graph.vertex_count,)
            given = values_of_shape(name, value, type_, rows)
            values = vertex_values(graph, given, column.fill)
        else:
            rows = (graph.given_edge_count * (2 if column.per_direction else 1),)
            given = values_of_shape(name, value, type_, rows)
            values = edge_values(graph, given)
        made = Column(type_, values, column.per_direction)
        compare_given(graph.ranks, name, value, made)
        finish_copies([made])
        column.put(values)
        _note_edges(graph, column)

    def put(self, name: str, ids: Any, values: Any) -> None:
        """Write some entries of a property, and make the vertices that read them due.

        Parameters
        ----------
        name : str
            A property of vertices or edges.
        ids : array_like of int, shape (N,), or a mask
            Vertices; edges in the order of `state[name]`. Of a repeated id, the last
            entry counts.
        values : array_like of shape (N, ...), or one value for all

        Raises
        ------
        StateError
            If there is no such property, shapes do not fit, the graph is on several
            ranks, or another thread runs on this State.
        GraphInputError
            If there is no such vertex or edge.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.Graph.from_edges([0, 1], [1, 2])
        >>> state = fg.State(graph, x=fg.vertex_property([1.0, 2.0, 3.0]))
        >>> state.put("x", [2, 0], [5.0, 7.0])
        >>> state["x"].tolist()
        [7.0, 2.0, 5.0]
        """
        with self.in_use.hold(f"state.put({name!r})"):
            checked_put(self, name, ids, values)()

    def put_result(self, name: str, type_: PropertyType, place: Place) -> None:
        """Register a new result of a reduce at a place."""
        known = self._columns.get(name)
        if known is None or known.type != type_:
            self.types_version += 1
        elif known.held == (place, name):
            known.values, known.version = None, next(versions)
            return
        self._columns[name] = made = Column(type_, None, False)
        made.held = place, name

    # -- copies, with pending vertices

    @classmethod
    def restore(cls, graph: Graph, snapshot: Snapshot) -> State:
        """Return a State with the content of a snapshot, whose arrays it then owns."""
        made = cls.__new__(cls)
        made.graph, made._columns = graph, snapshot.columns
        made.superstep, made.version = snapshot.superstep, 0
        made._begin()
        for column in made._columns.values():  # versions may come from another process
            column.mark_written(None)
            _note_edges(graph, column)
        made.keep_left(snapshot.left)
        return made

    def keep_left(self, left: dict[Any, Left]) -> None:
        """Store pending vertices for foldmaps, as of the current version."""
        seen = self.follow()
        left = {key: replace(found, seen=seen) for key, found in left.items()}
        self.left = self.version, left

    def copy(self) -> State:
        """Return an independent State on the same graph.

        The copy has the values, the number of supersteps, and the pending vertices: a
        run on it continues as a run on this State would. Values on the GPU are copied
        there. In a callback, the copy is as of the superstep that has just ended.
        `copy.copy` and `copy.deepcopy` do the same.

        Raises
        ------
        StateError
            If another thread runs on this State.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.Graph.from_edges([0], [1])
        >>> state = fg.State(graph, x=fg.vertex_property([1.0, 2.0]))
        >>> other = state.copy()
        >>> state["x"] = 0.0
        >>> other["x"].tolist()
        [1.0, 2.0]
        """
        with self.in_use.hold("copying a State", changes=False):
            if self.residency is not None:
                self.residency.renew_ghosts()
            snapshot = _snapshot(self, Column.current)
        return type(self).restore(self.graph, snapshot)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).restore, (self.graph, take_snapshot(self).by_digest())

    @checked_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write values, supersteps, and pending vertices into a folder.

        The folder has a manifest in JSON and a file per array, with checksums; it has
        no code and no graph. If the write fails, or the process ends during it, an
        older State that was saved there can still be loaded. ``fill=`` of properties is
        not saved, and a column of a graph is saved as a property.

        Parameters
        ----------
        path : str or path
            The folder: a new one, or one that a State was saved to before.

        Raises
        ------
        StateError
            If another thread runs on this State, or `path` has other files.
        OSError
            If it cannot be written.
        """
        write_state(path, self.graph, take_snapshot(self).by_digest())

    @classmethod
    @checked_arguments
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> State:
        """Return the State that was saved to a folder.

        A run of the same functions continues as on the State that was saved. The files
        are not trusted: sizes follow from `graph`, and checksums cover every byte.

        Parameters
        ----------
        path : str or path
            The folder.
        graph : Graph
            The graph on which it was saved, or one with the same edges in the same
            order.

        Raises
        ------
        FileFormatError
            If it is not a saved State, or newer, truncated or altered.
        StateError
            If it was saved on another graph.

        Examples
        --------
        >>> import featgraph as fg, tempfile
        >>> graph = fg.Graph.from_edges([0], [1])
        >>> state = fg.State(graph, x=fg.vertex_property([1.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state.save(f"{folder}/state")
        ...     again = fg.State.load(f"{folder}/state", graph)
        >>> again["x"].tolist()
        [1.0, 2.0]
        """
        if not isinstance(graph, Graph):
            raise StateError(
                "a State belongs to a graph",
                where="fg.State.load",
                got=type(graph).__name__,
                expected="fg.State.load(path, graph)",
            )
        return cls.restore(graph, read_state(path, graph))


def take_snapshot(state: State) -> Snapshot:
    """Return the values of a State on the host, with its pending vertices."""
    with state.in_use.hold("copying a State", changes=False):
        return _snapshot(state, Column.on_host)


def _snapshot(state: State, values_of: Callable[[Column], Any]) -> Snapshot:
    seen = state.follow()
    check_edges(state)
    version, kept = state.left
    left = {}
    if version == state.version:
        left = {k: found.on_host() for k, found in kept.items() if found.seen == seen}
    for pending in state.live:
        left |= pending()
    columns = {
        name: column.copy(values_of(column)) for name, column in state._columns.items()
    }
    return Snapshot(state.superstep, columns, left)


def _note_edges(graph: Graph, column: Column) -> None:
    """Store the version of the graph whose edges have the new values."""
    is_own = column.type.kind is PropertyKind.EDGE and not column.type.column
    if is_own and graph.changing is not None:
        graph.changing.keep_ids(column)
    elif is_own:
        column.edges = graph.stamps.version


def check_edges(state: State) -> None:
    """Raise StateError if edge values belong to an earlier version of the graph."""
    version = state.graph.stamps.version
    for name, column in state._columns.items():
        if column.edges is not None and column.edges is not version:
            raise StateError(
                "the values belong to edges of an earlier version of the graph",
                where=f"property {name!r}",
                got="values given before the graph changed",
                expected="a value for each edge that the graph has now",
                fix=f"assign all of them: state[{name!r}] = values",
            )


def unknown_name(name: object, known: Any, where: str) -> StateError:
    """Return the error for an unknown property, with the nearest known name."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return StateError(
        f"there is no property {name!r:.100}",
        where=where,
        expected=", ".join(known) or "no properties at all",
        fix=f"did you mean {near[0]!r}?" if near else "declare it in fg.State(...)",
    )


@functools.lru_cache(1 << 12)
def _check_name(name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        shown = name if len(name) <= LONGEST else f"{name[:30]}..."
        raise StateError(
            f"the name {shown!r} {problem}",
            where="fg.State",
            expected=f"none of {', '.join(sorted(RESERVED | METHODS))}"
            if problem == "is reserved"
            else None,
            fix="choose another name",
        )

"""`DynamicGraph`: a graph whose vertices and edges change in batches.

It is a `Graph` whose edges are in an `EdgeStore`. Each call that changes it makes a
`Batch`, and `_apply` has the store apply it as a whole. When `stamps` are next read,
those of what has changed are replaced (design note 0090), so that kernels, recordings
and arrays of the device that still hold are kept. Kernels read the arrays of the store
through the layout "runs" (`views.RunArrays`).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import require_flag, shown
from featgraph.base.errors import GraphInputError
from featgraph.base.interrupts import deferred_interrupts
from featgraph.cuda.dialect import chosen_target
from featgraph.dynamic import inputs, views
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import Batch, Changes, UpdateResult, on_host
from featgraph.dynamic.inputs import Names, require
from featgraph.dynamic.rows import edges_of
from featgraph.dynamic.store import EdgeStore
from featgraph.fold.plan.traits import GraphTraits, set_traits
from featgraph.graph import Graph
from featgraph.graph.building import check
from featgraph.graph.building.edges import Adjacency, freeze, named_count
from featgraph.graph.views.structure import require_fixed
from featgraph.graph.views.view import Aspect, Sizes, Stamps
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.graph_arrays import graph_arrays

__all__ = ["DynamicGraph"]

Array = npt.NDArray[Any]


class DynamicGraph(Graph):
    """A graph that changes in batches of insertions and deletions.

    Make one with `from_edges` or `from_graph`. It is a `Graph`: all programs and
    algorithms run on it, and its attributes are those of the present version. A batch
    is applied as a whole; after an error, the graph is as before.

    Rows have their edges in the order of insertion. `freeze` returns the graph that
    `Graph.from_edges` makes of the present edges in that order, and programs give the
    same bits on both.

    Attributes
    ----------
    version : int
        The number of batches that have changed something.

    Notes
    -----
    Batches are applied between supersteps: in ``callback=``, in ``then=``, or in a loop
    of one's own. A graph lives on one target. Ranks, shards, memory limits, slices,
    checkpoints and pickling refuse it: `freeze` it for these.

    Examples
    --------
    >>> import featgraph as fg
    >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], directed=False)
    >>> graph.insert_edges([2, 0], [0, 2]).inserted
    2
    >>> graph.delete_edges([2], [1]).deleted, graph.version
    (1, 2)
    >>> graph
    DynamicGraph(3 vertices, 6 edges (3 given), undirected)
    """

    changing: views.RunArrays
    _edges: Any = property(attrgetter("changing.edges"))
    version: Any = property(attrgetter("_store.version"), doc="Number of changes.")

    def __init__(self, store: EdgeStore, names: Names | None = None) -> None:
        if not isinstance(store, EdgeStore):
            raise GraphInputError(
                "a graph that changes is made of edges, or of another graph",
                got=type(store).__name__,
                fix="DynamicGraph.from_edges(sources, targets), or "
                "DynamicGraph.from_graph(graph)",
            )
        self._store, self._names = store, names
        self.changing = views.RunArrays(store, names)
        #: Of the stamps: versions and moves of the store, traits, key of lists of hubs.
        self._at = store.version, store.moves
        self._shape = GraphTraits(), 0
        self._following, self._is_advancing = threading.RLock(), False
        self._stamps = Stamps(layout=self.changing)
        self._found = self._stamps.version, {}
        self._view = graph_arrays(self, choose_device(store.target))
        self._at = -1, -1

    @classmethod
    def from_edges(  # type: ignore[override]
        cls, sources: Any = (), targets: Any = (), *, weights: Any = None,
        columns: Mapping[str, Any] | None = None, vertex_count: int | None = None,
        directed: bool = True, duplicates: str = "keep", loops: str = "keep",
        names: bool = False, capacity: int | None = None, target: str = "auto",
    ) -> DynamicGraph:  # fmt: skip
        """Make a dynamic graph from two arrays of vertex ids, which may be empty.

        Parameters
        ----------
        sources, targets : array_like of integers, shape (E_given,)
        weights : array_like, shape (E_given,), optional
            The column "weight".
        columns : mapping of str to array_like, shape (E_given,) or (E_given, K)
            Further columns. The set of columns and their types are fixed with the
            graph, and each insertion gives a value for each of them.
        vertex_count : int, optional
            Default: the highest id plus one.
        directed : bool
            False: each given edge stands for itself and its twin.
        duplicates : {"keep", "sum", "min", "max", "first", "last", "error"}
            The policy for repeated edges, here and in batches: see
            `Graph.from_edges`. "first" and "last" take all columns together. "sum",
            "min" and "max" are for graphs whose only column is "weight".
        loops : {"keep", "drop", "error"}
            The policy for edges from a vertex to itself.
        names : bool
            Ids are names, also in batches, where new names insert vertices. Vertices
            are numbered in the order of appearance.
        capacity : int, optional
            The number of edge slots in each direction, 64 at least, spare slots of rows
            included; memory then does not grow. Default: it grows by doubling.
        target : {"auto", "cpu", "cuda"}, optional
            The device on which the graph is kept, and programs on it run.

        Raises
        ------
        GraphInputError
            As for `Graph.from_edges`; if a column has another length or is not
            numeric; if `duplicates` does not allow the columns.
        DeviceError, PlanError
            If the target is not available, or not a target.

        Examples
        --------
        >>> import featgraph as fg
        >>> fg.DynamicGraph.from_edges()
        DynamicGraph(0 vertices, 0 edges, directed)
        """
        chosen, u, v, count = chosen_target(target), sources, targets, None
        if vertex_count is not None:
            count = check.checked_count(vertex_count, least=0)
        own_names = Names() if require_flag("names", names) else None
        if own_names is not None:
            u, v, fresh = own_names.look_up(u, v, np.arange)
            own_names.put(fresh, np.arange(len(fresh)))
            count = named_count(len(fresh), fresh, count)
        elif chosen == "cuda":
            # These import the dialect.
            from featgraph.dynamic.gpu_memory import moved
            from featgraph.graph.building.gpu_edges import checked_ends

            if (ends := checked_ends(moved(u), moved(v), count, True)) is not None:
                u, v, count = ends.sources, ends.targets, ends.vertex_count
        store = EdgeStore.from_edges(
            u, v, inputs.all_columns(weights, columns), vertex_count=count,
            directed=require_flag("directed", directed), duplicates=duplicates,
            loops=loops, capacity=capacity, target=chosen,
        )  # fmt: skip
        return cls(store, own_names)

    @classmethod
    def from_graph(
        cls, graph: Graph, *, duplicates: str = "keep", loops: str = "keep",
        capacity: int | None = None, target: str = "auto",
    ) -> DynamicGraph:  # fmt: skip
        """Make a dynamic graph with the edges, weights and names of another graph.

        Parameters
        ----------
        graph : Graph
        duplicates, loops, capacity, target : optional
            As for `from_edges`.

        Raises
        ------
        GraphInputError
            If the graph has `sides` or is a part, and as for `from_edges`.

        Examples
        --------
        >>> import featgraph as fg
        >>> ring = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
        >>> fg.DynamicGraph.from_graph(ring).freeze().digest == ring.digest
        True
        """
        if not isinstance(graph, Graph) or graph.sides is not None or graph.ranks:
            raise GraphInputError(
                "a graph that changes has no sides and no parts",
                where="DynamicGraph.from_graph", got=shown(graph),
                expected="a graph without sides, on one rank",
                fix="DynamicGraph.from_edges(graph.sources, graph.targets)",
            )  # fmt: skip
        graph = graph.freeze() if isinstance(graph, DynamicGraph) else graph
        made = cls.from_edges(
            graph.sources, graph.targets, weights=graph.weights,
            vertex_count=graph.vertex_count, directed=graph.directed,
            duplicates=duplicates, loops=loops, capacity=capacity, target=target,
        )  # fmt: skip
        names = graph.vertex_names
        return made if names is None else cls(made._store, Names(inputs.listed(names)))

    # -- batches

    def insert_edges(
        self, sources: Any, targets: Any, *, weights: Any = None,
        columns: Mapping[str, Any] | None = None,
    ) -> UpdateResult:  # fmt: skip
        """Insert edges in one batch.

        Parameters
        ----------
        sources, targets : array_like, shape (N,)
            Ids, or names.
        weights : array_like, shape (N,), optional
            The column "weight", if the graph has it.
        columns : mapping of str to array_like, optional
            Values of all other columns of the graph.

        Returns
        -------
        UpdateResult

        Raises
        ------
        GraphInputError
            As for `from_edges`; if a column is missing, unknown, or of another type; if
            an id has no vertex.
        StateError
            If another thread runs supersteps on the graph.
        DeviceMemoryError
            If memory, or `capacity`, is exhausted.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0], [1], weights=[2.0])
        >>> graph.insert_edges([1], [0], weights=[3.0])
        UpdateResult(version=1, inserted=1, replaced=0, ignored=0, deleted=0, \
missing=0, vertices=0)
        """
        return self.update(sources, targets, weights=weights, columns=columns)

    def delete_edges(
        self, sources: Any, targets: Any, *, copies: str = "all",
        missing: str = "ignore",
    ) -> UpdateResult:  # fmt: skip
        """Delete edges in one batch.

        Parameters
        ----------
        sources, targets : array_like, shape (N,)
            Ids, or names.
        copies : {"all", "first", "last"}, optional
            The copies of a pair that a deletion removes: all, the oldest or the latest.
        missing : {"ignore", "error"}, optional
            The policy for deletions of absent edges.

        Raises
        ------
        GraphInputError
            If an id has no vertex, or an edge is absent with ``missing="error"``.
        StateError, DeviceMemoryError
            As for `insert_edges`.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 0], [1, 1])
        >>> graph.delete_edges([0], [1], copies="first").deleted, graph.edge_count
        (1, 1)
        """
        return self.update(
            sources, targets, insert=False, copies=copies, missing=missing
        )

    def update(
        self, sources: Any, targets: Any = None, insert: Any = True, *,
        weights: Any = None, columns: Mapping[str, Any] | None = None,
        copies: str = "all", missing: str = "ignore",
    ) -> UpdateResult:  # fmt: skip
        """Insert and delete edges in one batch; edges are as if updated one by one.

        Parameters
        ----------
        sources, targets : array_like, shape (N,)
            Ids, or names. In place of all arguments: a `WindowBatch` of temporal edges.
        insert : bool or array_like of bool, shape (N,)
            True for an insertion, False for a deletion.
        weights : array_like, shape (N,), optional
        columns : mapping of str to array_like, optional
            Values of insertions; those of deletions have no meaning.
        copies, missing : optional
            As for `delete_edges`.

        Raises
        ------
        GraphInputError, StateError, DeviceMemoryError
            As for `insert_edges` and `delete_edges`.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2])
        >>> result = graph.update([0, 2, 2], [1, 1, 1], insert=[False, True, False])
        >>> result.outcomes.tolist()
        ['deleted', 'inserted', 'deleted']
        """
        if targets is None:
            sources, targets, insert, weights, columns, copies = inputs.parts(
                sources, insert=insert is not True, weights=weights is not None,
                columns=columns is not None, copies=copies != "all",
            )  # fmt: skip
        store, fresh = self._store, list[Any]()
        with self.changing.turns.batch("a batch of edges"):
            if self._names is not None:
                sources, targets, fresh = self._names.look_up(
                    sources, targets, store.next_vertices
                )
            batch = store.checked(
                sources, targets, insert, inputs.all_columns(weights, columns),
                store.vertex_count + len(fresh),
                births=len(fresh), copies=copies, missing=missing,
            )  # fmt: skip
            return self._apply(batch, fresh)

    def insert_vertices(self, vertices: Any) -> UpdateResult:
        """Insert vertices without edges.

        Parameters
        ----------
        vertices : int, or array_like
            The number of vertices; for a graph with names, their names. Names that the
            graph has already are ignored.

        Returns
        -------
        UpdateResult
            Its attribute ``vertices`` has the ids. Ids of deleted vertices are reused
            first, in the order of deletion.

        Raises
        ------
        GraphInputError
            If `vertices` is not a number or names, or there are too many vertices.
        StateError, DeviceMemoryError
            As for `insert_edges`.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges(["a"], ["b"], names=True)
        >>> graph.insert_vertices(["b", "c"]).vertices.tolist(), graph.vertex_names
        ([2], ('a', 'b', 'c'))
        """
        with self.changing.turns.batch("graph.insert_vertices"):
            if self._names is None:
                count = check.checked_count(vertices, "vertices", 0)
                return self._apply(Batch(births=count))
            names = check.flat_array(vertices, "vertices")
            *_, fresh = self._names.look_up(names, names, self._store.next_vertices)
            return self._apply(Batch(births=len(fresh)), fresh)

    def delete_vertices(self, vertices: Any) -> UpdateResult:
        """Delete vertices, with their edges in both directions.

        Parameters
        ----------
        vertices : array_like, shape (N,)
            Ids or names; repeats are ignored.

        Raises
        ------
        GraphInputError
            If an id or a name has no vertex.
        StateError, DeviceMemoryError
            As for `insert_edges`.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2])
        >>> graph.delete_vertices([1]).deleted, graph.vertex_count, graph.living_count
        (2, 3, 2)
        """
        with self.changing.turns.batch("graph.delete_vertices"):
            if self._names is not None:
                ids = self._names.find(vertices, "vertices")
            else:
                given = check.flat_array(vertices, "vertices")
                ids = check.vertex_ids(
                    given, "vertices", self._store.vertex_count, check.BORN_FIRST
                )
                self._store.require_living(ids, "vertices")
            ids = np.sort(ids)  # `np.unique` takes 2 ms for 10,000 ids
            return self._apply(Batch(deaths=ids[np.diff(ids, prepend=-1) > 0]))

    def compact(self) -> None:
        """Lay out all rows in order, each with the fewest spare slots.

        The graph lays out its rows by itself after E / 4 updates.
        """
        with self.changing.turns.batch("graph.compact"):
            self._store.compact()

    def _apply(self, batch: Batch, names: list[Any] | None = None) -> UpdateResult:
        """Apply a batch, which names its new vertices; start the new version."""
        store, names_of = self._store, self._names
        if names_of is not None:
            born = store.next_vertices(batch.births)
            batch.rename = partial(names_of.put, names or [], born, batch.deaths)
        return store.apply(batch)

    # -- reading

    def freeze(self) -> Graph:
        """Return a static graph of the present vertices and edges.

        It equals `Graph.from_edges` of the edges in the order of insertion, with the
        column "weight". Deleted vertices are left out; `vertex_names` then has the ids
        or names of the others.

        Raises
        ------
        GraphInputError
            If there is no vertex.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2])
        >>> _ = graph.delete_vertices([0])
        >>> graph.freeze().vertex_names.tolist()
        [1, 2]
        """
        return views.freeze_living(self._edges, self.living)

    def changes(self, since: int) -> Changes | None:
        """Return the net changes since a version; None if the log begins later.

        The log has room for E / 8 changes, or 4,096 if that is more: edges that were
        inserted, deleted or got other values, and vertices.

        Parameters
        ----------
        since : int
            An earlier `version`.

        Raises
        ------
        GraphInputError
            If the graph never had this version.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2])
        >>> _ = graph.update([0, 2], [1, 1], insert=[False, True])
        >>> [ends.tolist() for ends in graph.changes(since=0).inserted]
        [[2], [1]]
        """
        is_number = isinstance(since, int | np.integer) and not isinstance(since, bool)
        require(
            is_number and 0 <= since <= self.version, "not an earlier version",
            "since=", since, f"0 .. {self.version}",
        )  # fmt: skip
        return self._store.changes(int(since))

    def edges(self) -> tuple[Array, Array, dict[str, Array]]:
        """Return sources, targets and columns in the order of insertion, read-only."""
        edges = self._edges
        columns = {name: edges.column(name) for name in self._store.columns}
        return edges.sources, edges.targets, columns

    def column(self, name: str) -> views.GraphColumn:
        """Return a column of edge values: an array, or a property of a `State`.

        Parameters
        ----------
        name : str
            "weight", or the name of another column.

        Raises
        ------
        GraphInputError
            If the graph has no such column.

        Examples
        --------
        >>> import featgraph as fg, numpy as np
        >>> graph = fg.DynamicGraph.from_edges([0], [1], columns={"time": [9]})
        >>> state = fg.State(graph, time=graph.column("time"))
        >>> _ = graph.insert_edges([1], [0], columns={"time": [12]})
        >>> state["time"].tolist(), np.asarray(graph.column("time")).tolist()
        ([9, 12], [9, 12])
        """
        if not isinstance(name, str) or name not in self._store.columns:
            raise GraphInputError(
                "the graph has no column of this name", where="graph.column",
                got=shown(name),
                expected=", ".join(self._store.columns) or "a graph with columns",
            )  # fmt: skip
        return views.GraphColumn(views.ColumnValues(self, name))

    def contains(self, sources: Any, targets: Any) -> npt.NDArray[np.bool_]:
        """Return a mask of the pairs that are edges.

        Parameters
        ----------
        sources, targets : array_like, shape (N,)
            Ids or names.

        Raises
        ------
        GraphInputError
            If an id has no vertex. An unknown name has no edges.

        Examples
        --------
        >>> import featgraph as fg
        >>> graph = fg.DynamicGraph.from_edges([0, 1], [1, 2])
        >>> graph.contains([0, 1], [1, 0]).tolist()
        [True, False]
        """
        if self._names is not None:
            u, v, _ = self._names.look_up(sources, targets, lambda n: np.full(n, -1))
        else:
            u, v = inputs.ids_of(sources, targets, self.vertex_count)
        return views.find_pairs(self._store.pool("in"), u, v)

    def neighbors(self, vertex: Any) -> Array:
        """Return the targets of the out-edges of a vertex, in the order of insertion.

        In an undirected graph, return the other ends of all its edges.

        Parameters
        ----------
        vertex : int, or name

        Raises
        ------
        GraphInputError
            If the graph has no such vertex.

        Examples
        --------
        >>> import featgraph as fg
        >>> fg.DynamicGraph.from_edges([0, 0], [2, 1]).neighbors(0).tolist()
        [2, 1]
        """
        rows = np.array([self.vertex_index(vertex)])
        return edges_of(self._store.pool("out"), rows)[0]

    def vertex_index(self, name: object) -> int:
        """Return the living vertex with this name: see `Graph.vertex_index`."""
        if self._names is not None and isinstance(name, Hashable):
            vertex = self._names.ids.get(name)
            if vertex is not None:
                return vertex
        vertex = super().vertex_index(name)
        self._store.require_living(np.array([vertex]), "name")
        return vertex

    def copy(self) -> DynamicGraph:
        """Return an independent graph with the same edges, version and log."""
        with self.changing.turns.batch("graph.copy"):
            names = None if self._names is None else Names(self._names.of)
            return type(self)(self._store.copy(), names)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> DynamicGraph:
        return self.copy()

    def memory(self) -> dict[str, int]:
        """Return slots and used slots of each direction, and the bytes of all."""
        return self._store.memory()

    def audit(self) -> None:
        """Raise StateError unless all invariants of the graph hold: O(E log E)."""
        audit(self._store)

    def __reduce__(self) -> tuple[Any, ...]:
        require_fixed(self, "pickle")
        return ()

    def __repr__(self) -> str:
        return f"Dynamic{super().__repr__()}"

    # -- properties that the runtime reads

    @property
    def stamps(self) -> Stamps:
        """The stamps of the store's version, found when they are first read."""
        state = self._store.version, self._store.moves
        if state == self._at:
            return self._stamps
        with self._following, deferred_interrupts():  # other threads wait for new ones
            if state == self._at or self._is_advancing:
                return self._stamps
            self._is_advancing, aspects = True, list[Aspect]()
            try:
                store, layout = self._store, self.changing
                traits = layout.traits()
                if state[0] != self._at[0]:
                    aspects.append("version")
                exact = (name.startswith(views.EXACT) for name in self._view)
                if state[1] != self._at[1] or any(exact):
                    aspects.append("moves")
                if (shape := (traits, layout.list_hubs())) != self._shape:
                    aspects.append("shape")
                counts = store.vertex_count, store.edge_count
                self._view.advance(*aspects, sizes=Sizes(*layout.room, counts))
                if "shape" in aspects:
                    set_traits(self, traits)
                self._at, self._shape = state, shape
            finally:
                self._is_advancing = False
        return self._stamps

    @stamps.setter
    def stamps(self, stamps: Stamps) -> None:
        self._stamps = stamps

    @property
    def living(self) -> Array | None:
        """False for the ids of deleted vertices, (V,); None if there are none."""
        return self._store.living

    @property
    def living_count(self) -> int:
        """The number of vertices that are not deleted."""
        return self._store.living_count

    @property
    def in_edges(self) -> Adjacency:
        """CSC: row v lists the sources of its in-edges; the slots are the edge ids."""
        return self._edges.in_edges  # type: ignore[no-any-return]

    @property
    def self_loops(self) -> Array:
        """Rows in given order of the edges from a vertex to itself."""
        can_have = self._store.loops == "keep"
        return super().self_loops if can_have else np.empty(0, np.int64)

    def _degree(self, side: str) -> Array:
        key = f"{side}_degree"
        if key not in self._cache:
            degrees = on_host(self.changing.degrees(side))[: self.vertex_count]
            self._cache[key] = freeze(degrees.copy())
        return self._cache[key]  # type: ignore[no-any-return]

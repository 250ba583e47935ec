"""Views of a graph that may change: stamps for caches, sizes, the set of all vertices.

A graph has three stamps (`Stamps`). Caches of a graph are keyed by the stamps of what
they depend on. `GraphView` is the graph, or one part of it, on a device: the runtime
derives its arrays and kernels from that.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field, replace

__all__ = [
    "GraphView",
    "Preparation",
    "Prepared",
    "RowLayout",
    "Sizes",
    "Stamp",
    "Stamps",
    "VertexSet",
    "prefix",
    "words_of",
]

Array = Any
#: An aspect of a graph that has a stamp.
Aspect = Literal["version", "moves", "shape"]


class Stamp:
    """The identity of one aspect of a graph, until that changes.

    Stamps are compared by identity. A weak dictionary that is keyed by a stamp loses
    the entry when the stamp is replaced.
    """

    __slots__ = ("__weakref__",)


class RowLayout(Protocol):
    """A layout of a graph's rows in memory.

    Attributes
    ----------
    name : str
        The layout's key in `featgraph.fold.passes.nests.facts.LAYOUTS`.
    """

    name: str

    def array(self, graph: Any, name: str) -> npt.NDArray[Any] | None:
        """Return an array by its name in generated code; None for arrays of CSR.

        In a view with room for more than it has, arrays with an entry for each vertex,
        edge or word have entries up to the capacity, where rows are empty. So has each
        cut of words or vertices into chunks and windows. Slots of CSR behind the last
        row hold some vertex.
        """

    def renewed(self, name: str) -> tuple[Array, Array] | None:
        """Return which entries of an array to write in this version, and what.

        None where the array has the values of the version as it lies there.
        """

    def stays(self, name: str) -> bool:
        """Whether an array holds in another shape, where nothing has moved."""


@dataclass(frozen=True, eq=False, slots=True)
class Stamps:
    """The stamps of a graph.

    Attributes
    ----------
    version : Stamp
        Its edges.
    moves : Stamp
        Addresses and capacities of its arrays.
    shape : Stamp
        Its traits, hubs, and lists of rows.
    layout : RowLayout or None
        The layout of its rows; None: CSR. It changes with `moves` and `shape`.
    """

    version: Stamp = field(default_factory=Stamp)
    moves: Stamp = field(default_factory=Stamp)
    shape: Stamp = field(default_factory=Stamp)
    layout: RowLayout | None = None

    def after(self, *changed: Aspect) -> Stamps:
        """Return the stamps of a graph of which some aspects have changed."""
        made: dict[str, Any] = {aspect: Stamp() for aspect in changed}
        return replace(self, **made)

    def binds_as(self, then: Stamps) -> bool:
        """Whether kernels bound at those stamps still have the same arguments."""
        return self is then or (self.moves is then.moves and self.shape is then.shape)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of vertices and edges of a view.

    Attributes
    ----------
    vertices, edges : int
        Capacities of its arrays.
    counts : pair of int, or array
        The numbers of each in a version; an array of two may be in device
        memory, and is read once a version.
    """

    vertices: int
    edges: int
    counts: Any


@dataclass(frozen=True, slots=True)
class Preparation:
    """The time and memory that making arrays for schedules took.

    Attributes
    ----------
    seconds : float
        Their making, and copying them to the device.
    bytes : int
        Their size.
    """

    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Preparation) -> Preparation:
        return Preparation(self.seconds + other.seconds, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Prepared(Preparation):
    """Arrays made for a schedule, by the names of its kernels' arguments.

    Attributes
    ----------
    arrays : dict of str to array
        On the device.
    versions : tuple of int
        The versions of the columns that they were made from.
    summary : str
        The arrays in words, for `explain`.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    summary: str = ""


class VertexSet:
    """All vertices of a view: a prefix of the ids, or a set of words.

    Its type distinguishes it from other sets.

    Attributes
    ----------
    words : array
        Its bitvector on the device; do not write it.
    has_ghosts : bool
        Whether vertices that other ranks own are among them.
    has_dead : bool
        Whether ids up to the last of them are of dead vertices, which no phase writes.
    """

    __slots__ = ("has_dead", "has_ghosts", "words")

    def __init__(self, words: Array, *, has_ghosts: bool = False) -> None:
        self.words, self.has_ghosts, self.has_dead = words, has_ghosts, False


def prefix(count: int, room: int) -> npt.NDArray[np.uint32]:
    """Return the bitvector of the first `count` of `room` ids."""
    words = np.zeros(-(-room // 32), np.uint32)
    words[: count // 32] = 0xFFFFFFFF
    if count % 32:
        words[count // 32] = (1 << count % 32) - 1
    return words


def words_of(some: Any) -> Array:
    """Return the bitvector of a set, which may be a `VertexSet`."""
    return some.words if isinstance(some, VertexSet) else some


class GraphView:
    """One graph, or one part of it, on a device.

    Methods that return arrays or sizes call `follow` first. So does the runtime before
    a run.

    Parameters
    ----------
    graph : Structure
        It is not kept alive.

    Attributes
    ----------
    vertex_count, edge_count : int
        Capacities: see `Sizes`.
    room : tuple of int
        The same, as a pair.
    everyone : VertexSet
        All vertices that are not dead.
    """

    vertex_count: int
    edge_count: int
    room: tuple[int, int]
    everyone: VertexSet

    def __init__(self, graph: Any) -> None:
        self._graph = weakref.ref(graph)
        self._given_sizes: Sizes | None = None
        self._at = self.stamps
        self._find_sizes()

    @property
    def graph(self) -> Any:
        """The graph."""
        graph = self._graph()
        if graph is None:
            raise ReferenceError("the graph is gone")
        return graph

    @property
    def stamps(self) -> Stamps:
        """The stamps of the graph."""
        graph = self._graph() or self.graph
        return graph.stamps  # type: ignore[no-any-return]

    @property
    def sizes(self) -> Sizes:
        """Sizes of the graph, or those that `advance` was given last."""
        self.follow()
        return self._sizes

    def _find_sizes(self) -> None:
        graph, given = self.graph, self._given_sizes
        room = graph.vertex_count, graph.edge_count
        self._sizes = given = Sizes(*room, room) if given is None else given
        self.vertex_count, self.edge_count = given.vertices, given.edges
        self.room = given.vertices, given.edges

    def advance(self, *changed: Aspect, sizes: Sizes | None = None) -> None:
        """Replace the stamps of aspects of the graph that have changed.

        With `version` alone, the new edges are in the arrays in which the old ones
        were. Other capacities take `moves`.

        Parameters
        ----------
        *changed : {"version", "moves", "shape"}
        sizes : Sizes, optional
            Sizes of this view from now on, in place of the graph's.
        """
        self._given_sizes = sizes or self._given_sizes
        self.graph.stamps = self.stamps.after(*changed)

    def follow(self) -> None:
        """Drop entries whose stamps have changed since the last call."""
        graph = self._graph() or self.graph
        then, now = self._at, graph.stamps
        if now is not then:
            self._at = now
            self._find_sizes()
            self.forget(then, now)

    def forget(self, then: Stamps, now: Stamps) -> None:
        """Drop entries that depend on a stamp that differs between `then` and `now`."""
        raise NotImplementedError

    @property
    def layout(self) -> RowLayout | None:
        """The layout of the rows; None: CSR. Arrays that are bound move with it."""
        return self.stamps.layout

    @layout.setter
    def layout(self, layout: RowLayout | None) -> None:
        stamps = self.stamps.after("moves", "shape")
        self.graph.stamps = replace(stamps, layout=layout)

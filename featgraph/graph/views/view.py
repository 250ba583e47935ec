"""Views of a graph that may change: stamps for caches, sizes, the set of all vertices.

A graph has three stamps (`Stamps`), which are replaced when it changes. Caches are
keyed by the stamps on which they depend: what the host has read from edges by
`version`, bound kernels and recordings by `moves` and `shape`. `GraphView` is a graph,
or one part of it, on a device; the runtime gets arrays and kernels from its subclasses.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field, replace
from featgraph.base.interrupts import deferred_interrupts

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
    """The identity of one aspect of a graph until it changes.

    Stamps are compared by identity. A weak dictionary keyed by a stamp drops the entry
    when the stamp is replaced.
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

        In a view with spare capacity, arrays with an entry for each vertex, edge or
        word have entries up to the capacity, with empty rows, and so do cuts of words
        or vertices into chunks and windows. Spare slots of CSR contain a valid vertex.
        """

    def renewed(self, name: str) -> tuple[Array | None, Array] | None:
        """Return places and values of entries of an array to update in this version.

        The places are None for all of the array. None if the array is up to date.
        """

    def stays(self, name: str) -> bool:
        """Whether an array stays valid when only the shape changes."""


@dataclass(frozen=True, eq=False, slots=True)
class Stamps:
    """The stamps of a graph.

    Attributes
    ----------
    version : Stamp
        Changes with the edges.
    moves : Stamp
        Changes with addresses and capacities of arrays.
    shape : Stamp
        Changes with traits, hubs, and lists of rows.
    layout : RowLayout or None
        The layout of rows; None: CSR. It changes with `moves` and `shape`.
    """

    version: Stamp = field(default_factory=Stamp)
    moves: Stamp = field(default_factory=Stamp)
    shape: Stamp = field(default_factory=Stamp)
    layout: RowLayout | None = None

    def after(self, *changed: Aspect) -> Stamps:
        """Return stamps with new ones for some aspects."""
        return Stamps(
            Stamp() if "version" in changed else self.version,
            Stamp() if "moves" in changed else self.moves,
            Stamp() if "shape" in changed else self.shape,
            self.layout,
        )

    def binds_as(self, then: Stamps) -> bool:
        """Whether arguments that were bound to kernels at `then` are still valid."""
        return self is then or (self.moves is then.moves and self.shape is then.shape)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of vertices and edges of a view.

    Attributes
    ----------
    vertices, edges : int
        Capacities of the view's arrays.
    counts : pair of int, or array
        The current numbers of vertices and edges. An array of the two may be in device
        memory, and is read once per version.
    """

    vertices: int
    edges: int
    counts: Any


@dataclass(frozen=True, slots=True)
class Preparation:
    """Time and memory for preparing arrays of schedules.

    Attributes
    ----------
    seconds : float
        Time to compute the arrays and copy them to the device.
    bytes : int
        Size of the arrays.
    """

    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Preparation) -> Preparation:
        return Preparation(self.seconds + other.seconds, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Prepared(Preparation):
    """Arrays prepared for a schedule, by the names of its kernels' arguments.

    Attributes
    ----------
    arrays : dict of str to array
        Arrays on the device.
    versions : tuple of int
        Versions of the columns from which they were computed.
    summary : str
        Description of the arrays for `explain`.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    summary: str = ""


class VertexSet:
    """The set of all vertices of a view, as a bitvector on the device.

    Callers recognize the set of all vertices by this type.

    Attributes
    ----------
    words : array of uint32
        The bitvector; read-only.
    has_ghosts : bool
        Whether the set contains vertices of other ranks.
    has_dead : bool
        Whether it has gaps for dead vertices, which no phase writes.
    """

    __slots__ = ("has_dead", "has_ghosts", "words")

    def __init__(self, words: Array, *, has_ghosts: bool = False) -> None:
        self.words, self.has_ghosts, self.has_dead = words, has_ghosts, False


def prefix(count: int, room: int) -> npt.NDArray[np.uint32]:
    """Return the bitvector of the first `count` ids, with `room` bits or more."""
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

    Methods that return arrays or sizes call `follow` first, and so does the runtime
    before a run.

    Parameters
    ----------
    graph : Structure
        The view has a weak reference to it.

    Attributes
    ----------
    vertex_count, edge_count : int
        Capacities: see `Sizes`.
    room : tuple of int
        Both capacities as a pair.
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
            raise ReferenceError("the graph of this view has been deleted")
        return graph

    @property
    def stamps(self) -> Stamps:
        """The stamps of the graph."""
        graph = self._graph() or self.graph
        return graph.stamps  # type: ignore[no-any-return]

    @property
    def sizes(self) -> Sizes:
        """Sizes of the graph, or the sizes of the last call of `advance`."""
        self.follow()
        return self._sizes

    def _find_sizes(self) -> None:
        graph, sizes = self.graph, self._given_sizes
        room = graph.vertex_count, graph.edge_count
        self._sizes = sizes = Sizes(*room, room) if sizes is None else sizes
        self.vertex_count, self.edge_count = sizes.vertices, sizes.edges
        self.room = sizes.vertices, sizes.edges

    def advance(self, *changed: Aspect, sizes: Sizes | None = None) -> None:
        """Replace the stamps of changed aspects of the graph.

        With `version` alone, the new edges are in the same arrays as the old ones. A
        change of capacities needs `moves`.

        Parameters
        ----------
        *changed : {"version", "moves", "shape"}
        sizes : Sizes, optional
            New sizes of this view, which replace those of the graph.
        """
        self._given_sizes = sizes or self._given_sizes
        self.graph.stamps = self.stamps.after(*changed)

    def follow(self) -> None:
        """Drop cached entries whose stamps have changed since the last call."""
        graph = self._graph() or self.graph
        then, now = self._at, graph.stamps
        if now is not then:
            with deferred_interrupts():  # else stale entries could stay for ever
                self._at = now
                self._find_sizes()
                self.forget(then, now)

    def forget(self, then: Stamps, now: Stamps) -> None:
        """Drop cached entries of stamps that differ between `then` and `now`."""
        raise NotImplementedError

    @property
    def layout(self) -> RowLayout | None:
        """The layout of rows; None: CSR. A change moves all arrays."""
        return self.stamps.layout

    @layout.setter
    def layout(self, layout: RowLayout | None) -> None:
        stamps = self.stamps.after("moves", "shape")
        self.graph.stamps = replace(stamps, layout=layout)

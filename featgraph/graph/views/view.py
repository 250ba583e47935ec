"""What caches and kernels know of a graph that may change: stamps, sizes, all vertices.

A graph has three stamps (`Stamps`). Whatever is kept of it is kept by the stamps that
it depends on, and is made anew once one of these is another. `GraphView` is the graph,
or one part of it, on a device: the runtime derives its arrays and kernels from that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["GraphView", "RowLayout", "Sizes", "Stamp", "Stamps", "VertexSet"]

Array = Any
#: What a stamp is of.
Aspect = Literal["version", "moves", "shape"]


class Stamp:
    """A mark of one aspect of a graph, as long as that stays as it is.

    Stamps are compared by identity. As the key of a weak dictionary, a stamp ends what
    was kept of its graph when another one takes its place.
    """

    __slots__ = ("__weakref__",)


class RowLayout(Protocol):
    """A layout of a graph's rows in memory.

    Attributes
    ----------
    name : str
        The layout's key in `featgraph.fold.lowering.layouts.LAYOUTS`.
    """

    name: str

    def array(self, graph: Any, name: str) -> npt.NDArray[Any] | None:
        """Return an array by its name in generated code; None for those of CSR."""


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
        return replace(self, **{aspect: Stamp() for aspect in changed})

    def binds_as(self, then: Stamps) -> bool:
        """Whether kernels that were bound then have the same arguments now."""
        return self is then or (self.moves is then.moves and self.shape is then.shape)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of vertices and edges of a view.

    Attributes
    ----------
    vertices, edges : int
        Capacities: how many of each its arrays have room for.
    counts : pair of int, or array
        How many of each the whole graph has; an array of two may be in device memory.
    """

    vertices: int
    edges: int
    counts: Any


class VertexSet:
    """All vertices of a view: a prefix of the ids, or a set of words.

    Phases tell it from other sets by its type.

    Attributes
    ----------
    count : int
        The number of ids that it spans.
    words : array
        Its bitvector on the device; do not write it.
    """

    __slots__ = ("count", "words")

    def __init__(self, count: int, words: Array) -> None:
        self.count, self.words = count, words

    @classmethod
    def prefix(cls, count: int, upload: Callable[[Array], Array]) -> VertexSet:
        """Return the first `count` ids."""
        words = np.full(-(-count // 32), 0xFFFFFFFF, np.uint32)
        if count % 32:
            words[-1] = (1 << count % 32) - 1
        return cls(count, upload(words))


class GraphView:
    """One graph, or one part of it, on a device.

    Parameters
    ----------
    graph : Structure
        It is not kept alive.
    whole : Structure, optional
        The graph of which it is a part.

    Attributes
    ----------
    everyone : VertexSet
        All vertices.
    """

    everyone: VertexSet

    def __init__(self, graph: Any, whole: Any = None) -> None:
        self._graph = weakref.ref(graph)
        # Of a whole graph on ranks, which does not change.
        has_whole = whole is not None and whole is not graph
        self._whole = (whole.vertex_count, whole.edge_count) if has_whole else None

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
        return self.graph.stamps  # type: ignore[no-any-return]

    def find_sizes(self) -> Sizes:
        """Return the sizes of arrays that have room for what there is."""
        graph = self.graph
        room = graph.vertex_count, graph.edge_count
        return Sizes(*room, self._whole or room)

    def array(self, name: str) -> Array:
        """Return an array by its name in generated code."""
        raise NotImplementedError

    def advance(self, *changed: Aspect) -> None:
        """Note that the graph has changed, in these aspects.

        With `version` alone, the new edges are in the arrays in which the old ones
        were; with `shape` besides, lists of rows are made anew.
        """
        self.graph.stamps = self.stamps.after(*changed)

    @property
    def layout(self) -> RowLayout | None:
        """The layout of the rows; None: CSR. Arrays that are bound move with it."""
        return self.stamps.layout

    @layout.setter
    def layout(self, layout: RowLayout | None) -> None:
        stamps = self.stamps.after("moves", "shape")
        self.graph.stamps = replace(stamps, layout=layout)

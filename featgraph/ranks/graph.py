"""Distributed graphs: facts of the whole graph on every rank, and the rank's part.

`DistributedGraph` is a graph whose vertices are divided among ranks, `Whole` has its
facts that are the same on all ranks. `Pieces` sends values of all vertices or edges to
rank 0 piece by piece, so that no rank ever stores them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field, replace
from featgraph.base.errors import DistributedError, GraphInputError, StateError
from featgraph.cuda.values import Entries, Filled, Rows, host_values, taken
from featgraph.fold.plan.traits import GraphTraits, set_traits
from featgraph.graph import Graph
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.oriented import refuse_directed
from featgraph.graph.inputs.take import Borrowed
from featgraph.graph.partition.shard import Shard
from featgraph.graph.views.structure import set_degrees
from featgraph.ranks.engines.failures import of_lost_rank, on_all
from featgraph.ranks.engines.messages import NOTHING
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.exchange import RankExchange
from featgraph.ranks.exchange.gather_rows import gather_at, gather_rows
from featgraph.ranks.exchange.remote_entries import PartEdges
from featgraph.ranks.exchange.triangle_parts import TrianglePart
from featgraph.ranks.exchange.vertex_sets import packed, unpacked
from featgraph.runtime.devices.protocol import Device

__all__ = ["DistributedGraph", "Whole"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Whole:
    """Facts of a whole distributed graph, the same on all ranks.

    Attributes
    ----------
    vertex_count, given_count, edge_count : int
        Number of vertices, of given edges, and of directed edges.
    directed : bool
    weights_dtype : dtype or None
        None without weights.
    names : vertex names or None
    digest, weights_digest : str
        Hashes of the edges and of their weights.
    sides : tuple of int or None
        Number of vertices of each side of a bipartite graph.
    traits : GraphTraits
        Traits of the whole graph, so that all ranks choose the same plans.
    """

    vertex_count: int
    given_count: int
    edge_count: int
    directed: bool
    weights_dtype: Any
    names: Any
    digest: str
    weights_digest: str
    sides: tuple[int, ...] | None
    traits: GraphTraits = field(default_factory=GraphTraits)

    # No kernel and no State reads edges of the whole graph.
    is_given_on_gpu = is_built_on_gpu = False
    weights = None

    def there(self, array: object) -> None:
        """Return None: no GPU has the weights of the whole graph."""

    @classmethod
    def of(cls, edges: Any, digests: tuple[str, str], names: Any) -> Whole:
        """Return the facts of an edge list, or of slices, with default traits."""
        return cls(
            edges.vertex_count,
            edges.given_count,
            edges.edge_count,
            edges.directed,
            edges.weights_dtype,
            names,
            *digests,
            edges.sides,
        )


class DistributedGraph(Graph):
    """A graph of which each rank has a part.

    Vertices have their given ids on all ranks, and counts are those of the whole graph.
    Algorithms, `State`, foldmaps and `iterate` take it as any other graph; all ranks
    make the same calls in the same order, and get the same results.

    Attributes
    ----------
    shard : Shard
        The part of this rank.
    engine : Engine
        The transport between ranks.
    along : str
        Which edges at its vertices the rank has: "in" or "both".
    edges : PartEdges
        The own and ghost edges of the rank.
    keeps_idle : bool
        Whether ranks without vertices stay without any, because of ``ranks=``.
    whole : Whole
        Facts of the whole graph.
    """

    __slots__ = (
        "_exchanges",
        "along",
        "edges",
        "engine",
        "keeps_idle",
        "shard",
        "whole",
    )

    def __init__(
        self,
        whole: Whole,
        shard: Shard,
        engine: Engine,
        edges: PartEdges,
        degrees: tuple[Array, Array],
    ) -> None:
        self.whole = self._edges = whole  # type: ignore[assignment]
        self._begin(
            {
                "is_in_given_order": False,
                "digest": whole.digest,
                "weights_digest": whole.weights_digest,
            }
        )
        self.shard, self.engine, self.edges = shard, engine, edges
        self.along = edges.along
        self._exchanges: dict[Device, RankExchange] = {}
        self.keeps_idle = False
        local, numbers = shard.local, shard.numbers
        local._cache["vertex_numbers"] = np.ascontiguousarray(numbers, np.int32)
        set_degrees(local, *degrees)
        traits = replace(whole.traits, renumbered=True)
        set_traits(local, replace(traits, wide_offsets=False, wide_both=False))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a part of a graph belongs to its rank: save the whole graph")

    @property
    def part(self) -> Graph:
        """The part of this rank as a graph, with vertex ids of its own."""
        return self.shard.local  # type: ignore[no-any-return]

    @property
    def ranks(self) -> DistributedGraph:
        """The graph itself, which has the operations that all ranks call together."""
        return self

    def compare(self, given: str) -> None:
        """Make the next exchange check that `given` is the same on all ranks."""
        if self.engine.size > 1:
            self.engine.given.append(given)

    def exchange(self, device: Device) -> RankExchange:
        """Return the exchange with other ranks for runs on a device."""
        if device not in self._exchanges:
            self._exchanges[device] = RankExchange(
                self.shard, self.edges, self.engine, device, self._triangles
            )
        return self._exchanges[device]

    def losses(self) -> AbstractContextManager[None]:
        """Return a context in which errors of this rank's GPU name a lost rank."""
        return of_lost_rank(self.engine)

    def orient(self, target: object = "auto") -> None:
        """Prepare the edges for triangles: see `Graph.orient`; all ranks call it."""
        if self.directed:
            refuse_directed()
        self._triangles()

    def _triangles(self) -> TrianglePart:
        if "triangles" not in self._cache:
            part = TrianglePart(self.shard, self.edges, self.engine)
            self._cache["triangles"] = part
        return self._cache["triangles"]  # type: ignore[no-any-return]

    @property
    def given_index(self) -> Array:
        """Row in given order of each edge of this rank."""
        return self.edges.given_rows

    @property
    def self_loops(self) -> Array:
        """Rows in given order of all self-loops of the graph; all ranks call it."""
        if "self_loops" not in self._cache:
            own = self.edges.given_rows[self.edges.loops].astype(np.int64)
            parts = self.engine.all_gather(own, about="loops")
            self._cache["self_loops"] = np.sort(np.concatenate(parts))
        return self._cache["self_loops"]  # type: ignore[no-any-return]

    @property
    def weights(self) -> Array | None:
        """Weights of all edges in given order, gathered; all ranks call it.

        The weights of this rank's edges are ``part.weights``.
        """
        part = self.part
        own = part.weights
        if own is None:
            return None
        rows = np.asarray(part.given_index)[: self.edges.own]
        if not part.directed:
            rows = rows % max(part.given_edge_count, 1)
        weights = np.zeros(part.edge_count, own.dtype)
        weights[: rows.size] = own[rows]
        return freeze(self.collect_edge_values(weights))

    def weights_as(self, dtype: Any) -> Array | None:
        """Return the weights of this rank's edges in another dtype, for a `State`.

        A `State` of this graph takes them as an edge property: see `Graph.weights_as`.
        """
        return self.part.weights_as(dtype)

    @property
    def own_vertices(self) -> Array:
        """Ids of the vertices that this rank owns, int64."""
        return self.shard.numbers[: self.shard.own].astype(np.int64)

    @property
    def own_edges(self) -> Array:
        """Rows in given order of the edges that this rank owns."""
        return self.edges.given_rows[: self.edges.own]

    def local_rows(self, values: Any) -> Any:
        """Return the rows of this rank's vertices and ghosts, out of those of all.

        `values` is an array, a `Borrowed` array, or `Filled`.
        """
        numbers = self.shard.numbers
        if isinstance(values, Borrowed):
            return values.rows(Rows(self.shard, numbers.size, lambda: numbers))
        if not isinstance(values, Filled):
            return taken(host_values(values), numbers)
        shape, apart = (numbers.size, *values.shape[1:]), values.apart
        if apart is not None:
            width = math.prod(shape[1:])
            vertices, columns = np.divmod(apart.places, max(width, 1))
            local = self.shard.locals_of(vertices)
            is_here = local >= 0
            places = local[is_here].astype(np.int64) * width + columns[is_here]
            apart = Entries(places, apart.values[is_here])
        return Filled(values.value, shape, apart)

    def collect_vertex_values(self, stored: Any) -> Any:
        """Return the values of all vertices; all ranks call it."""
        own, about = host_values(stored)[: self.shard.own], "the values of a property"
        values = np.empty((self.vertex_count, *own.shape[1:]), own.dtype)
        gather_rows(self.engine, self.shard.partition, own, values, about)
        return values

    def collect_edge_values(self, stored: object, per_direction: bool = False) -> Array:
        """Return the values of all edges in given order; all ranks call it."""
        array, about = np.asarray(stored), "the values of a property"
        count, chosen, rows = _collected(self, per_direction)
        result = np.empty((count, *array.shape[1:]), array.dtype)
        gather_at(self.engine, rows, array, chosen, result, about)
        return result

    def local_set(self, words: Any) -> Any:
        """Return this rank's part of a set of all vertices: own ones and ghosts."""
        return packed(unpacked(words)[self.shard.numbers])

    def pieces_of_vertices(self, stored: Any, as_set: bool = False) -> Pieces:
        """Return the rows of all vertices, or the words of a set, as pieces.

        All ranks iterate over them.
        """
        rows = unpacked(stored) if as_set else host_values(stored)
        own = rows[: self.shard.own]
        return Pieces(self.engine, self.vertex_count, self.own_vertices, own, as_set)

    def pieces_of_edges(self, stored: Any, per_direction: bool) -> Pieces:
        """Return the values of all edges in given order, as pieces; all iterate."""
        count, chosen, places = _collected(self, per_direction)
        rows = np.take(np.asarray(stored), chosen, axis=0)
        places = places.astype(np.int64)
        return Pieces(self.engine, count, places, rows, as_set=False)

    def gather_first(
        self, first: Callable[[], Any], others: Callable[[], Any], about: str
    ) -> None:
        """Run `first`, which iterates over `Pieces`, on rank 0, and `others` elsewhere.

        An error of `first` is raised on rank 0, and as DistributedError on the others.
        """
        if self.engine.rank:
            others()
            _to_first(self.engine)
            return
        try:
            first()
        except BaseException as error:
            text = f"{about} failed on rank 0: {type(error).__name__}: {error}"
            _to_first(self.engine, failure=text.encode())
            raise
        _to_first(self.engine)

    def on_all(self, function: Callable[[], Any], about: str) -> Any:
        """Run a function on each rank; if one fails, raise on all."""
        return on_all(self.engine, function, about)

    def expand_edge_values(self, values: object) -> Array:
        """Raise GraphInputError: no rank has the edges of the whole graph."""
        raise _apart(self, "edge ids")

    def _degree(self, side: str) -> Array:
        if f"{side}_degree" not in self._cache:
            own = getattr(self.part, f"{side}_degree")
            self._cache[f"{side}_degree"] = self.collect_vertex_values(own)
        return self._cache[f"{side}_degree"]  # type: ignore[no-any-return]


def _collected(
    graph: DistributedGraph, per_direction: bool
) -> tuple[int, Array, Array]:
    """Return the number of values of the whole graph, and two arrays of own edges.

    These are the edge ids in the part that have a value, and their rows in given order.
    With `per_direction`, twins have values of their own, in rows behind all given ones.
    """
    given, own = graph.given_edge_count, graph.edges.own
    rows, chosen = graph.edges.given_rows[:own], np.arange(own)
    if per_direction:  # a loop is its own twin
        loops = graph.edges.loops
        rows = np.concatenate((rows, rows[loops] + given))
        chosen = np.concatenate((chosen, loops))
    count = given * (1 + per_direction)
    is_wanted = rows < count
    return count, chosen[is_wanted], rows[is_wanted]


def _apart(graph: DistributedGraph, what: str) -> GraphInputError:
    return GraphInputError(
        f"no rank has {what} of the whole graph",
        got=repr(graph.shard),
        fix="read them from the graph before it is distributed, or read those of "
        "this rank from `part`",
    )


def _refused(name: str) -> property:
    """Return a property that raises GraphInputError: no rank has the whole array."""

    def refuse(self: DistributedGraph) -> Any:
        raise _apart(self, name)

    return property(refuse, doc=f"Refused: no rank has {name} of the whole graph.")


for _name in ("sources", "targets", "in_edges", "out_edges", "incident_edges",
              "twins", "oriented"):  # fmt: skip
    setattr(DistributedGraph, _name, _refused(_name))


#: Approximate bytes of a piece.
PIECE_BYTES = 1 << 24
#: Rows of a piece are a multiple of this, so that sets have whole words.
_ROWS = 32


class Pieces:
    """An iterator over the rows of all ranks, in global order, piece by piece.

    All ranks iterate over it, once. Rank 0 gets the pieces, the others nothing.

    Parameters
    ----------
    engine : Engine
    count : int
        Number of rows in all.
    places : array of int64
        The global indices of this rank's rows, in any order; ranks may share some.
    rows : array
        The rows of this rank.
    as_set : bool
        Whether rows are booleans, to be packed into words of 32 bits.
    """

    def __init__(
        self, engine: Engine, count: int, places: Array, rows: Array, as_set: bool
    ) -> None:
        order = np.argsort(places, kind="stable")
        self._engine, self._count, self._as_set = engine, count, as_set
        self._places, self._rows = places[order], np.take(rows, order, axis=0)
        self.dtype: np.dtype[Any] = np.dtype(np.uint32) if as_set else rows.dtype
        length = -(-count // _ROWS) if as_set else count
        self.shape = (length, *rows.shape[1:])
        self._is_spent = False

    def __iter__(self) -> Iterator[Array]:
        if self._is_spent:
            raise StateError(
                "the values have been replaced meanwhile",
                fix="save again, or choose another path",
            )
        self._is_spent = True
        row = self._rows.itemsize * prod(self._rows.shape[1:])
        step = max(PIECE_BYTES // row // _ROWS, 1) * _ROWS
        for begin in range(0, self._count, step):
            size = min(step, self._count - begin)
            bounds = np.searchsorted(self._places, [begin, begin + size])
            chosen = slice(*bounds.tolist())
            # Within a piece, 32 bits are enough.
            offsets = (self._places[chosen] - begin).astype(np.int32)
            parts = [offsets.view(np.uint8), _bytes(self._rows[chosen])]
            received = _to_first(self._engine, np.concatenate(parts))
            if self._engine.rank == 0:
                yield self._put_together(received, size)

    def _put_together(self, received: list[Array], size: int) -> Array:
        piece = np.empty((size, *self._rows.shape[1:]), self._rows.dtype)
        row = piece.itemsize * prod(piece.shape[1:])
        for message in received:
            number = message.size // (4 + row)
            offsets = message[: 4 * number].view(np.int32)
            rows = np.ascontiguousarray(message[4 * number :]).view(piece.dtype)
            piece[offsets] = rows.reshape(number, *piece.shape[1:])
        return packed(piece) if self._as_set else piece


def _bytes(rows: Array) -> Array:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)


def _to_first(
    engine: Engine, message: Array = NOTHING, failure: bytes = b""
) -> list[Array]:
    """Send a message to rank 0, or from there a failure; return the received ones.

    Raises
    ------
    DistributedError
        On other ranks, if rank 0 has sent a failure.
    """
    error = np.frombuffer(failure, np.uint8)
    messages = [error if rank else message for rank in range(engine.size)]
    received = engine.all_to_allv(messages, about="rows for rank 0")
    if engine.rank and received[0].size:
        raise DistributedError(received[0].tobytes().decode())
    return received

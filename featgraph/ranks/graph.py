"""A graph in parts: what every rank knows of the whole, and the part that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import Filled, host_values
from featgraph.distributed.current import current_engine
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.fold.plan.traits import graph_traits, set_traits
from featgraph.graph import Graph
from featgraph.graph._structure import set_degrees
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.exchange import RankExchange
from featgraph.ranks.members import packed, unpacked
from featgraph.ranks.pieces import Pieces, gather_first, on_all
from featgraph.runtime.devices.protocol import Device

__all__ = ["DistributedGraph", "distribute"]

Array = npt.NDArray[Any]


class _WholeEdges:
    """What is known on each rank of all edges: everything but their ends."""

    is_given_on_gpu = is_built_on_gpu = False

    def __init__(self, whole: Graph) -> None:
        edges = whole._edges
        self.vertex_count, self.directed = edges.vertex_count, edges.directed
        self.given_count, self.edge_count = edges.given_count, edges.edge_count
        self.weights, self.weights_dtype = edges.weights, edges.weights_dtype
        self.names = edges.names

    def holds(self, array: Array) -> bool:
        """Whether an array is that of the weights."""
        return array is self.weights


class DistributedGraph(Graph):
    """A graph of which each rank has a part.

    Vertices have the user's numbers everywhere, and counts are those of the whole
    graph. Algorithms, `State`, foldmaps and `iterate` take it as they take any graph:
    then all ranks make the same calls in the same order, and get the same results.

    Attributes
    ----------
    shard : Shard
        The part of this rank.
    engine : Engine
        By what ranks hand each other bytes.
    along : str
        Which edges at its vertices the rank has: "in" or "both".
    edges : PartEdges
        Which of the edges that the rank has are its own.
    """

    __slots__ = ("_exchanges", "_given_rows", "along", "edges", "engine", "shard")

    def __init__(
        self, whole: Graph, shard: Shard, engine: Engine, along: str = "both"
    ) -> None:
        self._edges = _WholeEdges(whole)  # type: ignore[assignment]
        self._cache = {"is_in_given_order": False, "digest": shard.digest}
        self.shard, self.engine = shard, engine
        self.along, self.edges = along, PartEdges(shard, along)
        ids = shard.edge_ids
        chosen = slice(ids.start, ids.stop) if isinstance(ids, range) else ids
        self._given_rows: Array = whole.given_index[chosen][shard.local.given_index]
        self._cache["self_loops"] = whole.self_loops
        self._exchanges: dict[Device, RankExchange] = {}
        local = shard.local
        local._cache["vertex_numbers"] = np.ascontiguousarray(shard.numbers, np.int32)
        numbers = shard.numbers
        set_degrees(local, whole.in_degree[numbers], whole.out_degree[numbers])
        traits = replace(graph_traits(whole), renumbered=True)
        set_traits(local, replace(traits, wide_offsets=False, wide_both=False))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a part of a graph belongs to its rank: save the whole graph")

    @property
    def part(self) -> Graph:
        """The edges into the vertices of this rank, in numbers of its own."""
        return self.shard.local  # type: ignore[no-any-return]

    @property
    def ranks(self) -> DistributedGraph:
        """What is done together with other ranks."""
        return self

    def exchange(self, device: Device) -> RankExchange:
        """Return how runs on a device exchange rows with those of other ranks."""
        if device not in self._exchanges:
            made = RankExchange(self.shard, self.edges, self.engine, device)
            self._exchanges[device] = made
        return self._exchanges[device]

    @property
    def given_index(self) -> Array:
        """Row in given order of each edge of this rank."""
        return self._given_rows

    @property
    def own_vertices(self) -> Array:
        """Numbers of the vertices that this rank owns, int64."""
        return self.shard.numbers[: self.shard.own].astype(np.int64)

    @property
    def own_edges(self) -> Array:
        """Rows in given order of the edges that this rank owns."""
        return self._given_rows[: self.edges.own]

    def rows_here(self, values: Any) -> Any:
        """Return the values of this rank's vertices, and of its ghosts."""
        numbers = self.shard.numbers
        if isinstance(values, Filled) and values.apart is None:
            return Filled(values.value, (numbers.size, *values.shape[1:]))
        return host_values(values)[numbers]

    def collect_vertex_values(self, stored: Any) -> Any:
        """Return the values of all vertices; all ranks call it."""
        own = host_values(stored)[: self.shard.own]
        parts = self.engine.all_gather(own, about="the values of a property")
        found, order = np.concatenate(parts), self.shard.partition.order
        if order is None:
            return found
        values = np.empty_like(found)
        values[order] = found
        return values

    def collect_edge_values(self, stored: object, per_direction: bool = False) -> Array:
        """Return the values of all edges in given order; all ranks call it."""
        about, given = "the values of a property", self.given_edge_count
        own = slice(self.edges.own)
        rows, array = self._given_rows[own], np.asarray(stored)[own]
        rows = np.concatenate(self.engine.all_gather(rows, about=about))
        array = np.concatenate(self.engine.all_gather(array, about=about))
        result = np.empty((given * (1 + per_direction), *array.shape[1:]), array.dtype)
        is_wanted = rows < result.shape[0]
        result[rows[is_wanted]] = array[is_wanted]
        if per_direction:
            result[given + self.self_loops] = result[self.self_loops]
        return result

    def set_here(self, words: Any) -> Any:
        """Return the part of a set of vertices."""
        return packed(unpacked(words)[self.shard.numbers])

    def pieces_of_vertices(self, stored: Any) -> Pieces:
        """Return the rows of all vertices, piece by piece; all ranks go through it."""
        return self._of_vertices(host_values(stored), as_set=False)

    def pieces_of_set(self, words: Any) -> Pieces:
        """Return the words of a set of vertices likewise."""
        return self._of_vertices(unpacked(words), as_set=True)

    def _of_vertices(self, rows: Array, as_set: bool) -> Pieces:
        shard = self.shard
        numbers = shard.numbers[: shard.own].astype(np.int64)
        own = rows[: shard.own]
        return Pieces(self.engine, self.vertex_count, numbers, own, as_set)

    def pieces_of_edges(self, stored: Any, per_direction: bool) -> Pieces:
        """Return the values of all edges in given order likewise."""
        given, own = self.given_edge_count, slice(self.edges.own)
        places = self._given_rows[own].astype(np.int64)
        chosen = np.arange(places.size)
        if per_direction:  # a loop is its own twin
            loops = np.flatnonzero(np.isin(places, self.self_loops))
            places = np.concatenate([places, given + places[loops]])
            chosen = np.concatenate([chosen, loops])
        count = given * (1 + per_direction)
        is_wanted = places < count
        rows = np.take(np.asarray(stored), chosen[is_wanted], axis=0)
        return Pieces(self.engine, count, places[is_wanted], rows, as_set=False)

    def gather_first(
        self, first: Callable[[], Any], others: Callable[[], Any], about: str
    ) -> None:
        """Have rank 0 run what goes through pieces of rows: see `pieces`."""
        gather_first(self.engine, first, others, about)

    def on_all(self, function: Callable[[], Any], about: str) -> Any:
        """Run a function on each rank; where one fails, raise on all."""
        return on_all(self.engine, function, about)

    def expand_edge_values(self, values: object) -> Array:
        """Refuse: no rank has the edges of the whole graph."""
        raise self._apart("edge ids")

    def _degree(self, side: str) -> Array:
        if f"{side}_degree" not in self._cache:
            own = getattr(self.part, f"{side}_degree")
            self._cache[f"{side}_degree"] = self.collect_vertex_values(own)
        return self._cache[f"{side}_degree"]  # type: ignore[no-any-return]

    def _apart(self, what: str) -> GraphInputError:
        return GraphInputError(
            f"no rank has {what} of the whole graph",
            got=repr(self.shard),
            fix="ask the graph for them before it is distributed, or `part`, which has "
            "this rank's",
        )


def _refused(name: str) -> property:
    """Return an attribute of graphs that no rank has for the whole one."""

    def refuse(self: DistributedGraph) -> Any:
        raise self._apart(name)

    return property(refuse, doc=f"Refused: no rank has {name} of the whole graph.")


for _name in ("sources", "targets", "in_edges", "out_edges", "incident_edges",
              "twins", "oriented"):  # fmt: skip
    setattr(DistributedGraph, _name, _refused(_name))


def distribute(
    graph: Graph,
    *,
    order: Any = "given",
    cuts: Any = None,
    along: str = "both",
    engine: Engine | None = None,
) -> Graph:
    """Keep this rank's part of a graph, which all ranks have been given.

    All ranks call it with the same graph. What runs on it then runs on all of them.

    Parameters
    ----------
    graph : Graph
        It may be let go of afterwards.
    order : {"given", "spread", "locality", "metis"} or array_like, shape (V,)
        In which order vertices are dealt out: see `Graph.partition`.
    cuts : array_like of int, shape (P + 1,), optional
        Where the ranges of ranks begin and end in that order. By default they are
        balanced.
    along : {"both", "in"}, optional
        "in": keep the edges into own vertices only, which saves up to half of the
        memory. Programs that gather along out-edges, or ask for the reverse of an edge,
        are refused.
    engine : Engine, optional
        By what ranks hand each other bytes. Default: `distributed.current_engine`.

    Returns
    -------
    Graph
        A `DistributedGraph`; on one rank, the graph itself.

    Raises
    ------
    GraphInputError
        If ranks were given different graphs, orders or cuts, or cuts do not fit.
    """
    engine = engine or current_engine()
    if engine.size == 1:
        return graph
    parts = engine.size if cuts is None else None
    shards = graph.partition(order=order, parts=parts, cuts=cuts, along=along)
    shard = shards[engine.rank]
    _check_same(engine, f"{shard.digest} {shard.partition.digest}")
    return DistributedGraph(graph, shard, engine, along)


def _check_same(engine: Engine, digest: str) -> None:
    """Raise on all ranks if their graphs or partitions are not the same."""
    own = np.frombuffer(digest.encode(), np.uint8)
    found = engine.all_gather(own, about="the digest of a graph")
    other = next((r for r, d in enumerate(found) if not np.array_equal(d, found[0])), 0)
    if other:
        raise GraphInputError(
            "ranks were given different graphs, orders or cuts",
            got=f"digest {digest} on rank {engine.rank}; ranks 0 and {other} differ",
            expected="the same on all ranks",
            fix="read or draw the graph in the same way, with the same seed",
        )

"""A graph in parts, made of slices: each rank reads its own rows, as kernels take them.

Rows of ghosts come from their owners, who have them in the order in which they are
needed: nothing is sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import FileFormatError
from featgraph.fold.plan.traits import GraphTraits
from featgraph.graph import Graph
from featgraph.graph.building.adjacency import Adjacency
from featgraph.graph.building.arguments import require_path
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.row_edges import RowEdges
from featgraph.graph.formats.readers import require_no_options
from featgraph.graph.partition.asked import Asked
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.sides import cut_each_side, side_bounds
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.read import StoredRows, open_slices
from featgraph.ranks.agreed import on_all, require_same
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.parts import (
    Found,
    cuts_of_words,
    localized,
    made_graph,
)
from featgraph.ranks.loading.rounds import ROUND_EDGES, by_owner, hand_over
from featgraph.ranks.working import with_idle, working_ranks

__all__ = ["load_slices"]

Array = npt.NDArray[Any]


def load_slices(
    engine: Engine,
    how: Asked,
    path: Any,
    asked: tuple[bool | None, dict[str, Any]],
) -> DistributedGraph:
    """Read a rank's part of a folder of slices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    how : Asked
        Which edges at its vertices a rank gets, and how many ranks get any.
    path : path
    asked : (directed, options)
        What the caller of the reader says of the graph, which the folder knows.

    Raises
    ------
    FileFormatError
        On all ranks, where slices are missing or altered, or contradict each other.

    Notes
    -----
    A rank has the edges at its own vertices, once more the sources of those into them,
    and messages of `ROUND_EDGES`; of vertices as `build` has it.
    """
    about = f"reading {require_path(path)}"

    def opened() -> Slices:
        slices = open_slices(path)
        require_no_options(path, slices.manifest.directed, *asked)
        return slices

    slices = on_all(engine, opened, about)
    manifest = slices.manifest
    what, fix = "ranks read different slices", "give all ranks one folder"
    require_same(engine, f"checksum {manifest.checksum}", what, fix, about)
    along, size = how.along, (manifest.vertex_count, manifest.edge_count)
    working = working_ranks(engine, how.ranks, size)
    own = on_all(engine, lambda: _Own.read(slices, engine, working), about)
    joins_sides = _joins_sides(engine, own)
    own.renumber()
    edges = _with_ghosts(engine, own, along, about)
    whole = Whole(
        manifest.vertex_count,
        manifest.given_count,
        manifest.edge_count,
        manifest.directed,
        manifest.weights_dtype,
        own.names,
        manifest.digest,
        manifest.weights_digest,
        GraphTraits(),
        manifest.sides,
        joins_sides,
    )
    found = _found(own, edges, along)
    made = made_graph(engine, whole, own.division.partition, along, found)
    made.keeps_idle = working < engine.size
    made.chooses = how.ranks == "auto"
    return made


@dataclass(eq=False)
class _Own:
    """What a rank reads of its own vertices.

    Attributes
    ----------
    division : Division
    rank : int
    rows : StoredRows
        Edges into them.
    sources : ndarray of int32
        Places in the folder, edge by edge, then numbers; let go of when they are among
        those of all edges.
    out : ndarray of int64, or None
        Out-degrees; None where they are the in-degrees.
    starts : ndarray of int64, or None
        The edge id of the first in-edge of each, where it does not follow from ranks.
    names : ndarray or None
        Names of all vertices, in their file.
    """

    division: Division
    rank: int
    rows: StoredRows
    sources: npt.NDArray[np.int32]
    out: Array | None
    starts: Array | None
    names: Array | None

    @classmethod
    def read(cls, slices: Slices, engine: Engine, working: int) -> _Own:
        """Read it, and map what all vertices have."""
        manifest, rank = slices.manifest, engine.rank
        division, ranges = _divided(slices, engine.size, rank, working)
        rows = StoredRows.of(slices, ranges)
        names = starts = out = None
        if "order" in manifest.arrays:
            starts = rows.vertices("starts")
        elif manifest.sides is not None:
            starts = rows.starts
        if "names" in manifest.arrays:
            names = slices.mapped("names")
        if manifest.directed:
            out = rows.vertices("outs")
        sources = rows.read("sources")
        return cls(division, rank, rows, sources, out, starts, names)

    def renumber(self) -> None:
        """Have sources be numbers of the division."""
        numbers = self.division.numbers
        if numbers is not None:
            self.sources = numbers[self.sources]


def _divided(
    slices: Slices, size: int, rank: int, working: int
) -> tuple[Division, list[tuple[int, int]]]:
    """Return how vertices are divided among ranks, and which places are a rank's."""
    manifest = slices.manifest
    order = slices.mapped("order") if "order" in manifest.arrays else None
    if manifest.sides is None:
        words = slices.read("words")
        cuts = with_idle(cuts_of_words(words, manifest.vertex_count, working), size)
        first, last = map(int, cuts[rank : rank + 2])
        return Division.of(Partition.of_known(cuts, order)), [(first, last)]
    bounds = side_bounds(manifest.sides)
    if order is not None:
        _require_sides(slices, order, bounds)
    degrees = np.diff(slices.read("offsets"))
    # The folder has a side behind the other, each in the order of its own.
    cuts, at = cut_each_side(degrees, manifest.sides, None, working)
    cuts = with_idle(cuts, size)
    first, last = map(int, cuts[rank : rank + 2])
    ends = np.searchsorted(at[first:last], bounds)  # a rank's ranges ascend
    ranges = [
        (int(at[first + b]), int(at[first + e - 1]) + 1) if e > b else (0, 0)
        for b, e in pairwise(ends.tolist())
    ]
    places = np.empty_like(at)
    places[at] = np.arange(at.size, dtype=at.dtype)
    partition = Partition.of_known(cuts, at if order is None else order[at])
    return Division.of(partition, places), ranges


def _require_sides(slices: Slices, order: Array, bounds: Array) -> None:
    """Raise FileFormatError unless sides are stored one behind the other."""
    for begin, end in pairwise(bounds.tolist()):
        stored = order[begin:end]
        if not bool(((stored >= begin) & (stored < end)).all()):
            raise FileFormatError(
                "vertices of one side among those of another",
                where=str(slices.folder / "order.bin"),
                got=f"places {begin} to {end}",
                expected=f"the vertices {begin} to {end}, in any order",
                fix="convert again",
            )


def _joins_sides(engine: Engine, own: _Own) -> bool:
    """Return whether each edge of all ranks joins two sides; all of them call it."""
    sides = own.rows.slices.manifest.sides
    if sides is None:
        return False
    aside, at, bounds = 0, 0, side_bounds(sides)
    for place, (begin, end) in zip(own.rows.ranges, own.rows.spans, strict=True):
        found = own.sources[at : at + end - begin]
        at += end - begin
        side = int(np.searchsorted(bounds, place[0], "right")) - 1
        aside += bool(((found >= bounds[side]) & (found < bounds[side + 1])).any())
    told = np.array([aside], np.int64)
    return not engine.all_reduce(told, "max", about="edges in a side")[0]


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges into own vertices, and behind them those that have come.

    Attributes
    ----------
    sources : ndarray of int32
        Numbers of the division.
    targets : ndarray of int32
        Likewise, of those that have come.
    rows : ndarray of integers
        In given order.
    weights : ndarray or None
    """

    sources: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    rows: Array
    weights: Array | None


def _with_ghosts(engine: Engine, own: _Own, along: str, about: str) -> _Edges:
    """Read what else is known of edges, and hand those that are cut to other ends."""
    from featgraph.graph.partition import part_kernels  # loads Numba

    manifest, owners = own.rows.slices.manifest, own.division.owners
    going, size = np.zeros(engine.size, np.int64), own.rows.size
    if along == "both":
        part_kernels.count_owners(own.sources, owners, going)
        going[engine.rank] = 0
    told = engine.all_to_allv(list(going.reshape(-1, 1)), about="edges of a graph")
    coming = np.concatenate(told)
    came = int(coming.sum())
    dtype = manifest.weights_dtype
    edges = _Edges(
        np.empty(size + came, np.int32),
        np.empty(came, np.int32),
        np.empty(size + came, offset_dtype(2 * manifest.given_count)),
        None if dtype is None else np.empty(size + came, dtype),
    )
    edges.sources[:size] = own.sources
    own.sources = edges.sources[:size]

    def read() -> None:
        own.rows.read("rows", edges.rows[:size])
        if edges.weights is not None:
            own.rows.read("weights", edges.weights[:size])

    on_all(engine, read, about)
    if along == "both":
        _exchange(engine, own, edges, owners, coming)
    return edges


def _exchange(
    engine: Engine, own: _Own, edges: _Edges, owners: Array, coming: Array
) -> None:
    """Hand cut edges to the owners of their sources, some at a time."""
    size = own.rows.size
    rounds = np.array([-(-size // ROUND_EDGES)])
    most = engine.all_reduce(rounds, "max", about="rounds of edges")
    at = np.cumsum(coming) - coming
    for turn in range(int(most[0])):
        begin = min(turn * ROUND_EDGES, size)
        some = slice(begin, min(begin + ROUND_EDGES, size))
        which = by_owner(edges.sources[some], owners, engine.size)
        which[engine.rank] = which[engine.rank][:0]
        columns = [
            (edges.sources[some], edges.sources[size:]),
            (_targets(own, some), edges.targets),
            (edges.rows[some], edges.rows[size:]),
        ]
        if edges.weights is not None:
            columns.append((edges.weights[some], edges.weights[size:]))
        hand_over(engine, columns, which, at)


def _targets(own: _Own, some: slice) -> npt.NDArray[np.int32]:
    """Return the targets of some of the edges into own vertices."""
    offsets, at = own.rows.offsets, own.division.own(own.rank)[0]
    first = max(int(np.searchsorted(offsets, some.start, "right")) - 1, 0)
    last = int(np.searchsorted(offsets, some.stop, "left"))
    ends = offsets[first : last + 1].clip(some.start, some.stop)
    sizes: Array = np.diff(ends)
    numbers = np.arange(at + first, at + first + sizes.size, dtype=np.int32)
    return np.repeat(numbers, sizes)


def _found(own: _Own, edges: _Edges, along: str) -> Found:
    """Return the part of this rank."""
    from featgraph.graph.building import kernels  # loads Numba

    both, manifest = (edges.sources, edges.targets), own.rows.slices.manifest
    ghosts = localized(both, own.division, own.rank)
    into = np.diff(own.rows.offsets)
    degrees = np.concatenate((into, np.zeros(ghosts.size, np.int64)))
    kernels.count_one(edges.targets, degrees)
    offsets = np.zeros(degrees.size + 1, offset_dtype(edges.sources.size))
    np.cumsum(degrees, out=offsets[1:])
    in_edges = Adjacency(freeze(offsets), freeze(edges.sources), None)
    local = Graph(
        RowEdges(
            in_edges,
            None if along == "in" else edges.rows,
            edges.weights,
            manifest.given_count,
            manifest.directed or along == "in",
        )
    )
    out = into if own.out is None else own.out
    return Found(local, ghosts, edges.rows, (into, out), own.starts)

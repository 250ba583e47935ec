"""A graph in parts, made of slices: each rank reads its own rows, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph._arguments import require_path
from featgraph.distributed.engines.protocol import Engine
from featgraph.fold.plan.traits import GraphTraits
from featgraph.graph.building.names import VertexNames
from featgraph.graph.formats.readers import require_no_options
from featgraph.graph.partition.asked import Asked
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.sides import cut_each_side, side_bounds
from featgraph.graph.slices.checks import (
    read_words,
    require_order,
    require_sums,
    require_words,
    sums_of_edges,
    sums_of_vertices,
)
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.names import read_names
from featgraph.graph.slices.read import StoredRows, open_slices, within_a_side
from featgraph.ranks.agreed import on_all, require_same
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.division import Division
from featgraph.ranks.loading.parts import cuts_of_words, made_graph
from featgraph.ranks.loading.rows import OwnRows, part_of_rows
from featgraph.ranks.loading.taking import target_of
from featgraph.ranks.working import with_idle, working_ranks

if TYPE_CHECKING:
    from featgraph.graph.slices.there import RowsThere
    from featgraph.ranks.loading.stored_there import OwnThere

__all__ = ["load_slices"]

Array = npt.NDArray[Any]


def load_slices(
    engine: Engine,
    how: Asked,
    path: Any,
    asked: tuple[bool | None, dict[str, Any]],
    target: object = None,
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
    target : optional
        Where parts are made, as `read_graph` has it.

    Raises
    ------
    FileFormatError
        On all ranks, where slices are missing or altered, or contradict each other.

    Notes
    -----
    A rank checks what it reads as `read_slices` does, and ranks add up their sums over
    edges.

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
    is_there = target_of(engine, target, manifest.edge_count) == "cuda"
    along, size = how.along, (manifest.vertex_count, manifest.edge_count)
    working = working_ranks(engine, how.ranks, size)
    read = on_all(engine, lambda: _Read.of(slices, engine, working, is_there), about)
    _require_between_sides(engine, read)
    read.own.renumber()
    if isinstance(read.own, OwnRows):
        found = part_of_rows(engine, read.own, along, about)
    else:
        from featgraph.ranks.loading.stored_there import part_there

        found = part_there(engine, read.own, along, about)
    require_sums(slices, engine.all_reduce(read.sums, "sum", about=about))
    whole = Whole(
        manifest.vertex_count,
        manifest.given_count,
        manifest.edge_count,
        manifest.directed,
        manifest.weights_dtype,
        read.names,
        manifest.digest,
        manifest.weights_digest,
        GraphTraits(),
        manifest.sides,
    )
    partition = read.own.division.partition
    made = made_graph(engine, whole, partition, along, found)
    made.keeps_idle = working < engine.size
    made.chooses = how.ranks == "auto"
    return made


@dataclass(eq=False)
class _Read:
    """What a rank reads of its own vertices.

    Attributes
    ----------
    own : OwnRows or OwnThere
        Sources are places in the folder.
    rows : StoredRows or RowsThere
        Where they are.
    names : ndarray, tuple of str, or None
        Names of all vertices; integers in their file.
    sums : ndarray of uint64
        Sums over own vertices for `require_sums`; those over edges are added when these
        are read.
    """

    own: OwnRows | OwnThere
    rows: StoredRows | RowsThere
    names: VertexNames | None
    sums: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, slices: Slices, engine: Engine, working: int, is_there: bool) -> _Read:
        """Read it, to the GPU or not, and map what all vertices have."""
        manifest, rank = slices.manifest, engine.rank
        division, ranges = _divided(slices, engine.size, rank, working)
        names = read_names(slices, maps=True)
        rows = StoredRows.of(slices, ranges) if not is_there else _there(slices, ranges)
        (first, last), starts, sides = ranges[0], None, manifest.sides
        if sides is None and first < last:
            words = slices.read("words", first // WORD, -(-last // WORD))
            require_words(slices, rows.at_words(), words)
        number, vertices = division.own(rank)[0], division.vertices
        firsts = None
        if "order" in manifest.arrays:
            starts = rows.vertices("starts")
            own = vertices[number:][: starts.size]  # type: ignore[index]
            firsts = starts, rows.in_degrees(), own
        elif sides is not None:
            starts = StoredRows.of(slices, ranges).starts
        outs = rows.vertices("outs") if manifest.directed else None
        share = rank, engine.size
        sums = sums_of_vertices(slices, outs, firsts, number, share)
        sources = rows.read("sources")
        if isinstance(rows, StoredRows):
            stored, kind = rows, (manifest.weights_dtype, manifest.given_count)

            def read(given: Array, weights: Array | None) -> None:
                stored.read("rows", given)
                if weights is not None:
                    stored.read("weights", weights)
                edges = stored.offsets, made.sources, given, weights
                sums[:] += sums_of_edges(slices, edges, number, vertices)

            given = rows.offsets, sources, read, *kind, manifest.directed, outs, starts
            made = OwnRows(division, rank, *given)
            return cls(made, rows, names, sums)
        from featgraph.arrays import memory  # imports the dialect
        from featgraph.ranks.loading.stored_there import OwnThere

        there = OwnThere(
            division,
            rank,
            rows,
            sources,
            None if outs is None else memory.upload(outs),
            starts,
            sums,
        )
        return cls(there, rows, names, sums)


def _there(slices: Slices, ranges: list[tuple[int, int]]) -> RowsThere:
    from featgraph.graph.slices.there import RowsThere  # imports the dialect

    return RowsThere.of(slices, ranges)


def _divided(
    slices: Slices, size: int, rank: int, working: int
) -> tuple[Division, list[tuple[int, int]]]:
    """Return how vertices are divided among ranks, and which places are a rank's."""
    manifest = slices.manifest
    order = None
    if "order" in manifest.arrays:
        order = np.asarray(slices.mapped("order"))
        require_order(slices, order)
    if manifest.sides is None:
        words = read_words(slices)
        cuts = with_idle(cuts_of_words(words, manifest.vertex_count, working), size)
        first, last = map(int, cuts[rank : rank + 2])
        return Division.of(Partition.of_known(cuts, order)), [(first, last)]
    bounds = side_bounds(manifest.sides)
    every = StoredRows.of(slices, [(0, manifest.vertex_count)])
    degrees = np.diff(every.offsets)
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


def _require_between_sides(engine: Engine, read: _Read) -> None:
    """Raise FileFormatError unless each edge joins two sides; all ranks call it."""
    slices = read.rows.slices
    sides = slices.manifest.sides
    if sides is None:
        return
    within, at, bounds = False, 0, side_bounds(sides)
    for place, (begin, end) in zip(read.rows.ranges, read.rows.spans, strict=True):
        side = int(np.searchsorted(bounds, place[0], "right")) - 1
        of_side = int(bounds[side]), int(bounds[side + 1])
        within |= read.own.has_inside(at, at + end - begin, *of_side)
        at += end - begin
    told = np.array([within], np.int64)
    if engine.all_reduce(told, "max", about="edges in a side")[0]:
        raise within_a_side(slices)

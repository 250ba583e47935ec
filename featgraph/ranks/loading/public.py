"""Makers of distributed graphs for `Graph`, readers and generators.

`set_up` registers an entry for each source of edges: arrays (`edges_in_parts`), sparse
matrices, files and generators. Each returns None on a single rank, where the caller
builds the graph as usual.

Generated edges are functions of their indices. On the CPU each rank generates a share
of them, and they are sent to the owners of their ends. On a GPU each rank generates all
edges, piece by piece and several times, and keeps its own: only counts are exchanged. A
GPU generates about 5e9 edges a second, more than a link to another GPU carries. From a
folder of slices each rank reads only its own rows.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.activity import doing
from featgraph.base.arguments import require_path
from featgraph.base.dataclass import replace
from featgraph.base.errors import (
    DistributedError,
    DistributedWarning,
    FileFormatError,
    GraphInputError,
)
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.drawn import Drawing
from featgraph.graph.building.edges import named_count
from featgraph.graph.building.names import VertexNames
from featgraph.graph.formats.layout import Layout, Seen, read_blocks
from featgraph.graph.formats.readers import (
    SLICES,
    read_layout,
    require_no_options,
    suffix_of,
)
from featgraph.graph.partition.choose import (
    DistributedBuilders,
    PartitionRequest,
    distributed_builders,
)
from featgraph.graph.partition.cuts import WORD, cut_each_side, side_bounds
from featgraph.graph.partition.partition import Partition
from featgraph.graph.slices.checks import (
    read_words,
    require_order,
    require_sums,
    require_words,
    sums_of_vertices,
)
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.read import (
    PlacedRows,
    StoredRows,
    open_slices,
    read_names,
    within_a_side,
)
from featgraph.ranks.engines.failures import on_all, require_same
from featgraph.ranks.engines.loopback import current_engine, engine_of_process, is_begun
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.build import (
    ABOUT,
    agree,
    build,
    edges_of,
    entries_of,
    number_rows,
)
from featgraph.ranks.loading.chunks import Chunk, Division, EdgeChunks
from featgraph.ranks.loading.cutting import (
    Kind,
    cut_evenly,
    cuts_of_words,
    target_of,
    with_idle,
    working_ranks,
)
from featgraph.ranks.loading.parts import made_graph
from featgraph.ranks.loading.rows import HostRows, OwnRows, part_of_rows

__all__ = ["set_up"]

Array = npt.NDArray[Any]


def _engine(request: PartitionRequest) -> Engine | None:
    """Return the engine of several ranks; None if there is one rank only."""
    if not is_begun():
        raise DistributedError(
            "partition= needs ranks, and none have been started",
            where='partition="edges"',
            fix="call fg.distributed.init() first, which makes one rank where no "
            "launcher has started several, or leave partition out",
        )
    engine = current_engine()
    if engine.size > 1:
        return engine
    working_ranks(engine, request.ranks)  # raises if it is no number
    return None


def edges_in_parts(
    request: PartitionRequest, sources: object, targets: object, **options: Any
) -> Graph | None:
    """Return a graph of the edges given to each rank; see `Graph.from_edges`."""
    engine = _engine(request)
    if engine is None:
        return None
    with doing("loading", ABOUT):  # other ranks wait for the one with the most edges
        given = edges_of(engine, sources, targets, options)
        return _made(engine, request, given, options["vertex_count"])


def matrix_in_parts(
    request: PartitionRequest, matrix: Any, target: object
) -> Graph | None:
    """Return a graph of the entries given to each rank: `Graph.from_biadjacency`."""
    engine = _engine(request)
    if engine is None:
        return None
    with doing("loading", ABOUT):
        given = entries_of(engine, matrix, target)
        return _made(engine, request, given, given.vertex_count)


def _made(
    engine: Engine, request: PartitionRequest, given: EdgeChunks, vertex_count: object
) -> DistributedGraph:
    """Build a graph of given edges, on the GPU if the edges are on GPUs."""
    agree(engine, given, vertex_count)
    number_rows(engine, given)
    if not given.is_on_gpu:
        return build(engine, given, request.along, request.ranks)
    from featgraph.ranks.loading.on_gpu import build_on_gpu  # imports the dialect

    return build_on_gpu(engine, given, request.along, request.ranks)


def drawing_in_parts(
    request: PartitionRequest, drawing: Drawing, directed: bool, target: str
) -> Graph | None:
    """Generate a distributed graph; see `rmat`."""
    engine = _engine(request)
    if engine is None:
        return None
    described = (
        f"{drawing}, directed={directed}, target={target}, along={request.along}"
    )
    about, fix = "the generated graph", "give all ranks the same arguments"
    require_same(engine, described, f"{about} differs between ranks", fix, about)
    with doing("loading", "a generated graph"):
        return draw_parts(engine, drawing, directed, request.along, target)


def file_in_parts(
    request: PartitionRequest,
    path: Any,
    directed: bool | None,
    options: dict[str, Any],
    target: object,
) -> Graph | None:
    """Read a distributed graph from a file; see `read_graph`."""
    engine = _engine(request)
    if engine is None:
        return None
    if suffix_of(path) == SLICES:
        return load_slices(engine, request, path, (directed, options), target)
    return _of_text(engine, request, path, directed, options)


def _of_text(
    engine: Engine,
    request: PartitionRequest,
    path: Any,
    directed: bool | None,
    options: Any,
) -> Graph:
    """Read a range of a text file on each rank, and build the graph of all ranges."""
    about = f"reading {require_path(path)}"
    options = dict(options)
    policy = options.pop("duplicates", "keep")

    def begin() -> Layout:
        if policy != "keep":
            raise GraphInputError(
                "repeated edges are found in the whole graph, which no rank has",
                where="duplicates=",
                got=repr(policy),
                fix=f"featgraph convert --duplicates {policy} combines them once",
            )
        layout = read_layout(path, directed, options)
        if layout.are_words:
            raise _named(layout, "words")
        return layout

    layout = on_all(engine, begin, about)
    require_same(
        engine,
        str(replace(layout, path="")),  # hosts may have the file at other paths
        "ranks read different files",
        "one file on all ranks",
        about,
    )
    seen = Seen(layout)
    chunks = on_all(engine, lambda: _read_range(engine, layout, seen), about)
    named = _check_all(engine, layout, seen, about)
    count = layout.vertex_count or named
    if layout.are_names:
        _require_numbers(engine, layout, chunks, named)
        count = named_count(named, None, layout.vertex_count)
    given = EdgeChunks(chunks, count, layout.directed, None)
    _one_type_of_weights(engine, layout, given)
    number_rows(engine, given)
    return build(engine, given, request.along, request.ranks)


def _read_range(engine: Engine, layout: Layout, seen: Seen) -> list[Chunk]:
    """Return the edges of this rank's range of a text file; count them in `seen`."""
    chunks = []
    for block in read_blocks(layout, *layout.range_of(engine.rank, engine.size)):
        seen.add(block)
        if seen.least < 0 or seen.highest >= MAX_VERTEX_COUNT:
            raise _named(layout, f"{seen.least} to {seen.highest}")
        ends = block.sources.astype(np.int32), block.targets.astype(np.int32)
        chunks.append(Chunk(*ends, block.weights))
    return chunks


def _named(layout: Layout, got: str) -> FileFormatError:
    """Return the error for ids that are names, which no rank can number alone."""
    # Words have no gaps between them.
    gaps = "names=False: gaps are vertices without edges; or "
    gaps = "" if layout.are_words else gaps
    return FileFormatError(
        "the ids are names, which are numbered in the whole graph",
        where=layout.path,
        got=got,
        expected="each of 0 to V - 1",
        fix=f"{gaps}make slices, which keep the names: featgraph convert",
    )


def _require_numbers(
    engine: Engine, layout: Layout, chunks: list[Chunk], count: int
) -> None:
    """Raise FileFormatError on all ranks unless all ids from 0 to count - 1 occur."""
    from featgraph.graph.partition import kernels  # loads Numba

    ends = sum(2 * chunk.size for chunk in chunks)
    about = "ids that occur"
    total = reduce_number(engine, ends, "sum", about)
    if count > total:
        raise _named(layout, f"ids up to {count - 1} of {total} ends")
    words = np.zeros(-(-count // 32), np.uint32)
    for chunk in chunks:
        kernels.mark(chunk.sources, words)
        kernels.mark(chunk.targets, words)
    words = engine.all_reduce(words, "or", about=about)
    occur = kernels.count_words(words, np.empty(words.size, np.int32))
    if occur < count:
        raise _named(layout, f"{occur} of 0 to {count - 1}")


def _check_all(engine: Engine, layout: Layout, seen: Seen, about: str) -> int:
    """Check the file over all ranges; return the highest id plus one."""
    own = np.array([seen.count, seen.above, seen.below], np.int64)
    found = np.stack(engine.all_gather(own, about=about))
    total = int(found[:, 0].sum())
    sides = bool(found[:, 1].any()), bool(found[:, 2].any())
    before = int(found[: engine.rank, 0].sum())
    on_all(engine, lambda: seen.check(total, sides, before), about)
    return reduce_number(engine, seen.highest, "max", about) + 1


def _one_type_of_weights(engine: Engine, layout: Layout, given: EdgeChunks) -> None:
    """Convert weights on all ranks to one dtype: reals if any rank has reals."""
    if not layout.has_weights:
        return
    kinds = {chunk.weights.dtype.kind for chunk in given.chunks if chunk.size}  # type: ignore[union-attr]
    own = np.array([given.size, "f" in kinds], np.int64)
    about = "the type of weights"
    total, reals = engine.all_reduce(own, "sum", about=about).tolist()
    dtype = layout.weights_dtype(total, bool(reals))
    given.weights_dtype = dtype
    for i, chunk in enumerate(given.chunks):
        weights: Any = chunk.weights
        if weights.dtype != dtype:
            cast = weights.astype(dtype)
            given.chunks[i] = Chunk(chunk.sources, chunk.targets, cast)


#: Not empty after `warn_alone` has warned.
_has_warned: list[bool] = []


def warn_alone() -> None:
    """Warn, once, that a graph without `partition` belongs to its rank alone."""
    if _has_warned or not engine_of_process or engine_of_process[0].size == 1:
        return
    if current_engine() is not engine_of_process[0]:
        return
    _has_warned.append(True)
    warnings.warn(
        "a graph without partition= belongs to this rank alone: its runs exchange "
        "nothing with other ranks; fg.distribute(graph), or "
        'fg.read_graph(path, partition="edges"), makes one of all ranks',
        DistributedWarning,
        stacklevel=4,
    )


def set_up() -> None:
    """Register the builders of distributed graphs with `Graph` and the readers."""
    made = edges_in_parts, matrix_in_parts, file_in_parts, drawing_in_parts
    distributed_builders[:] = [DistributedBuilders(*made, warn_alone)]


def draw_parts(
    engine: Engine, drawing: Drawing, directed: bool, along: str, target: str
) -> DistributedGraph:
    """Build a distributed graph of generated edges; all ranks call it."""
    bounds = [drawing.count * r // engine.size for r in range(engine.size + 1)]
    share = bounds[engine.rank], bounds[engine.rank + 1]
    if target == "cuda":
        from featgraph.ranks.loading.on_gpu import part_of_stream, surveyed

        reals = None if drawing.weights is None else np.dtype(np.float32)
        known = directed, along, reals, drawing.sides
        kind = Kind(drawing.vertex_count, drawing.count, *known)
        counted = surveyed(engine, drawing.pieces(*share), kind)
        cut, whole = cut_evenly(engine, kind, counted), counted.whole(kind)
        return part_of_stream(engine, drawing.pieces(), kind, cut, whole)
    chunk = Chunk(*drawing.on_host(*share))
    dtype = None if chunk.weights is None else chunk.weights.dtype
    given = EdgeChunks([chunk], drawing.vertex_count, directed, dtype, drawing.sides)
    del chunk  # `given` releases it when it is sent
    number_rows(engine, given)
    return build(engine, given, along)


def load_slices(
    engine: Engine,
    how: PartitionRequest,
    path: Any,
    requested: tuple[bool | None, dict[str, Any]],
    target: object = None,
) -> DistributedGraph:
    """Read a rank's part of a folder of slices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    how : PartitionRequest
        `along`: which edges at its vertices a rank gets; `ranks`: how many ranks get
        vertices.
    path : path
    requested : (directed, options)
        Arguments of the reader that must agree with the folder.
    target : optional
        Where parts are built: see `read_graph`.

    Raises
    ------
    FileFormatError
        On all ranks, if slices are missing, altered or inconsistent.

    Notes
    -----
    A rank checks its slices as `read_slices` does; sums over edges are added up over
    all ranks. Memory of a rank: the edges at its own vertices, the sources of in-edges
    a second time, messages of `ROUND_EDGES` edges, and counts as for `build`.
    """
    about = f"reading {require_path(path)}"

    def opened() -> Slices:
        slices = open_slices(path)
        require_no_options(path, slices.manifest.directed, *requested)
        return slices

    slices = on_all(engine, opened, about)
    manifest = slices.manifest
    what, fix = "ranks read different slices", "give all ranks one folder"
    require_same(engine, f"checksum {manifest.checksum}", what, fix, about)
    readers: Any = StoredRows
    steps: Any = HostRows
    if target_of(engine, target, manifest.edge_count) == "cuda":
        from featgraph.graph.slices.on_gpu import RowsOnGpu  # imports the dialect
        from featgraph.ranks.loading.on_gpu import GpuRows

        readers, steps = RowsOnGpu, GpuRows
    along, working = how.along, working_ranks(engine, how.ranks)
    own, rows, names, sums = on_all(
        engine, lambda: _own_rows(slices, engine, working, readers), about
    )
    if manifest.sides is not None:
        within = rows.has_edge_within_a_side(own.sources)
        if reduce_number(engine, within, "max", "edges in a side"):
            raise within_a_side(slices)
    division = own.division
    if division.numbers is not None:
        own.sources = rows.renumbered(own.sources, division.numbers)
    found = part_of_rows(engine, own, along, about, steps)
    require_sums(slices, engine.all_reduce(sums, "sum", about=about))
    whole = Whole.of(manifest, (manifest.digest, manifest.weights_digest), names)
    is_idle = working < engine.size
    return made_graph(engine, whole, division.partition, along, found, is_idle)


def _own_rows(
    slices: Slices, engine: Engine, working: int, readers: Any
) -> tuple[OwnRows, PlacedRows, VertexNames | None, npt.NDArray[np.uint64]]:
    """Read a rank's own rows, and map arrays of all vertices.

    `readers` is the type of `PlacedRows` that reads them to the host or the GPU.

    Returns
    -------
    own : OwnRows
        Sources are places in the folder.
    rows : PlacedRows
        The same rows in the folder.
    names : ndarray, tuple of str, or None
        Names of all vertices; integers are mapped from their file.
    sums : ndarray of uint64
        Sums over own vertices for `require_sums`; sums over edges are added when all
        edges are read.
    """
    manifest, rank = slices.manifest, engine.rank
    division, ranges = _divided(slices, engine.size, rank, working)
    names = read_names(slices, maps=True)
    rows = readers.of(slices, ranges)
    (first, last), starts = ranges[0], None
    if manifest.sides is None and first < last:
        words = slices.read("words", first // WORD, -(-last // WORD))
        require_words(slices, rows.at_words(), words)
    number, vertices = division.own(rank)[0], division.vertices
    firsts = None
    if "order" in manifest.arrays:
        starts = rows.vertices("starts")
        own = vertices[number:][: starts.size]  # type: ignore[index]
        firsts = starts, rows.in_degrees(), own
    elif manifest.sides is not None:
        starts = rows.starts
    outs = rows.vertices("outs") if manifest.directed else None
    sums = sums_of_vertices(slices, outs, firsts, number, (rank, engine.size))

    def read(sources: Any, more: int) -> tuple[Any, Any]:
        given = rows.read("rows", more, offset_dtype(2 * manifest.given_count))
        has_weights = "weights" in manifest.arrays
        weights = rows.read("weights", more) if has_weights else None
        sums[:] += rows.sums((sources, given, weights), number, vertices)
        return given, weights

    at_place = rows.offsets, rows.degrees, rows.read("sources")
    known: Any = manifest.given_count, manifest.directed, outs, starts
    return OwnRows(division, rank, *at_place, read, *known), rows, names, sums


def _divided(
    slices: Slices, size: int, rank: int, working: int
) -> tuple[Division, list[tuple[int, int]]]:
    """Return the division of vertices among ranks, and a rank's ranges of places."""
    manifest = slices.manifest
    order = None
    if "order" in manifest.arrays:
        order = np.asarray(slices.mapped("order"))
        require_order(slices, order)
    if manifest.sides is None:
        words = read_words(slices)
        cuts = cuts_of_words(words, manifest.vertex_count, working, size)
        first, last = map(int, cuts[rank : rank + 2])
        return Division.of(Partition.of_known(cuts, order)), [(first, last)]
    bounds = side_bounds(manifest.sides)
    every = StoredRows.of(slices, [(0, manifest.vertex_count)])
    degrees = np.diff(every.offsets)
    # The folder stores the sides one after the other, each in its own order.
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

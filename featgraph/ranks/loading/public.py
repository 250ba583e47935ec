"""What constructor and readers ask for: graphs in parts, made by all ranks together."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._activity import doing
from featgraph._arguments import require_path
from featgraph.arrays.drawn import Drawing
from featgraph.distributed.current import (
    current_engine,
    engine_of_process,
    is_begun,
)
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import (
    DistributedError,
    DistributedWarning,
    FileFormatError,
    GraphInputError,
)
from featgraph.graph import Graph
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.building.edges import named_count
from featgraph.graph.formats.checks import Seen
from featgraph.graph.formats.ranges import Layout, read_blocks, read_layout
from featgraph.graph.formats.readers import SLICES, suffix_of
from featgraph.graph.partition.asked import Asked, Maker, makers
from featgraph.ranks.agreed import on_all, require_same
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.build import build, number_rows
from featgraph.ranks.loading.drawn import draw_parts
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.stored import load_slices
from featgraph.ranks.loading.taking import ABOUT, agree, edges_of, entries_of

__all__ = [
    "drawing_in_parts",
    "edges_in_parts",
    "file_in_parts",
    "matrix_in_parts",
    "set_up",
    "warn_alone",
]

Array = npt.NDArray[Any]


def _engine() -> Engine | None:
    """Return the engine of several ranks; None on the only one."""
    if not is_begun():
        raise DistributedError(
            "a graph in parts takes ranks, and there are none",
            where='partition="edges"',
            fix="call fg.distributed.init() first, which makes one rank where no "
            "launcher has started several, or leave partition out",
        )
    engine = current_engine()
    return None if engine.size == 1 else engine


def edges_in_parts(
    asked: Asked, sources: object, targets: object, **options: Any
) -> Graph | None:
    """Make a graph of the edges that each rank has; see `Graph.from_edges`."""
    engine = _engine()
    if engine is None:
        return None
    with doing("loading", ABOUT):  # others wait for the rank that has most
        given = edges_of(engine, sources, targets, options)
        return _made(engine, asked, given, options["vertex_count"])


def matrix_in_parts(asked: Asked, matrix: Any, target: object) -> Graph | None:
    """Make a graph of the entries that each rank has; see `Graph.from_biadjacency`."""
    engine = _engine()
    if engine is None:
        return None
    with doing("loading", ABOUT):
        given = entries_of(engine, matrix, target)
        return _made(engine, asked, given, given.vertex_count)


def _made(
    engine: Engine, asked: Asked, given: Given, vertex_count: object
) -> DistributedGraph:
    """Make a graph of what ranks were given, where it is."""
    agree(engine, given, vertex_count)
    number_rows(engine, given)
    if not given.is_on_gpu:
        return build(engine, given, asked.along, asked.ranks)
    from featgraph.ranks.loading.on_gpu import build_there  # imports the dialect

    return build_there(engine, given, asked.along, asked.ranks)


def drawing_in_parts(
    asked: Asked, drawing: Drawing, directed: bool, target: str
) -> Graph | None:
    """Draw a graph of which each rank keeps its part; see `rmat`."""
    engine = _engine()
    if engine is None:
        return None
    told = f"{drawing}, directed={directed}, target={target}, along={asked.along}"
    what, fix = "ranks draw different graphs", "give all ranks the same arguments"
    require_same(engine, told, what, fix, about="what graph is drawn")
    with doing("loading", "a graph that is drawn"):
        return draw_parts(engine, drawing, directed, asked.along, target)


def file_in_parts(
    asked: Asked,
    path: Any,
    directed: bool | None,
    options: dict[str, Any],
    target: object,
) -> Graph | None:
    """Read a graph of which each rank keeps its part; see `read_graph`."""
    engine = _engine()
    if engine is None:
        return None
    if suffix_of(path) == SLICES:
        return load_slices(engine, asked, path, (directed, options), target)
    return _of_text(engine, asked, path, directed, options)


def _of_text(
    engine: Engine, asked: Asked, path: Any, directed: bool | None, options: Any
) -> Graph:
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
        layout = read_layout(path, suffix_of(path), directed, options)
        if layout.are_words:
            raise _named(layout, "words")
        return layout

    layout = on_all(engine, begin, about)
    require_same(
        engine,
        str(replace(layout, path="")),
        "ranks read different files",
        "one file",
        about,
    )
    seen = Seen(layout)
    chunks = on_all(engine, lambda: _read_range(engine, layout, seen), about)
    named = _check_all(engine, layout, seen, about)
    count = layout.vertex_count or named
    if layout.are_names:
        _require_numbers(engine, layout, chunks, named)
        count = named_count(named, None, layout.vertex_count)
    given = Given(chunks, count, layout.directed, None)
    _one_type_of_weights(engine, layout, given)
    number_rows(engine, given)
    return build(engine, given, asked.along, asked.ranks)


def _read_range(engine: Engine, layout: Layout, seen: Seen) -> list[Chunk]:
    chunks = []
    for block in read_blocks(layout, *layout.range_of(engine.rank, engine.size)):
        seen.add(block)
        if seen.least < 0 or seen.highest >= MAX_VERTEX_COUNT:
            raise _named(layout, f"{seen.least} to {seen.highest}")
        ends = block.sources.astype(np.int32), block.targets.astype(np.int32)
        chunks.append(Chunk(*ends, block.weights))
    return chunks


def _named(layout: Layout, got: str) -> FileFormatError:
    # Words have no gaps.
    gaps = "names=False: gaps are vertices without edges; or "
    gaps = "" if layout.are_words else gaps
    return FileFormatError(
        "the ids are names, which are numbered in the whole graph",
        where=layout.path,
        got=got,
        expected="each of 0 to V - 1",
        fix=(
            ""
            if layout.are_words
            else "names=False: gaps are vertices without edges; or "
        )
        + "make slices, which keep the names: featgraph convert",
    )


def _require_numbers(
    engine: Engine, layout: Layout, chunks: list[Chunk], count: int
) -> None:
    """Raise on all ranks unless each of so many ids occurs: then none is a name."""
    from featgraph.graph.partition import part_kernels  # loads Numba

    ends = sum(2 * chunk.size for chunk in chunks)
    about = "ids that occur"
    total = engine.all_reduce(np.array([ends], np.int64), "sum", about=about)
    if count > int(total[0]):
        raise _named(layout, f"ids up to {count - 1} of {int(total[0])} ends")
    words = np.zeros(-(-count // 32), np.uint32)
    for chunk in chunks:
        part_kernels.mark(chunk.sources, words)
        part_kernels.mark(chunk.targets, words)
    words = engine.all_reduce(words, "or", about=about)
    occur = part_kernels.count_words(words, np.empty(words.size, np.int32))
    if occur < count:
        raise _named(layout, f"{occur} of 0 to {count - 1}")


def _check_all(engine: Engine, layout: Layout, seen: Seen, about: str) -> int:
    """Check what can only be seen in all ranges; return the highest id plus one."""
    own = np.array([seen.count, seen.above, seen.below], np.int64)
    found = np.stack(engine.all_gather(own, about=about))
    total = int(found[:, 0].sum())
    sides = bool(found[:, 1].any()), bool(found[:, 2].any())
    before = int(found[: engine.rank, 0].sum())
    on_all(engine, lambda: seen.check(total, sides, before), about)
    most = engine.all_reduce(np.array([seen.highest]), "max", about=about)
    return int(most[0]) + 1


def _one_type_of_weights(engine: Engine, layout: Layout, given: Given) -> None:
    """Have weights be reals on all ranks where they are on any."""
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


_has_warned: list[bool] = []


def warn_alone() -> None:
    """Say, once, that what runs on a graph of this rank is done by each rank."""
    if _has_warned or not engine_of_process or engine_of_process[0].size == 1:
        return
    if current_engine() is not engine_of_process[0]:
        return
    _has_warned.append(True)
    warnings.warn(
        "a graph without partition= belongs to this rank alone: nothing on it is done "
        "together with the others; fg.distribute(graph), or "
        'fg.read_graph(path, partition="edges"), makes one of all ranks',
        DistributedWarning,
        stacklevel=4,
    )


def set_up() -> None:
    """Have constructor and readers know what makes graphs in parts."""
    made = edges_in_parts, matrix_in_parts, file_in_parts, drawing_in_parts
    makers[:] = [Maker(*made, warn_alone)]

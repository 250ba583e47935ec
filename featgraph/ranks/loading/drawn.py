"""A graph in parts, of edges that are a function of their numbers.

On the CPU a rank draws its share, and edges go to the owners of their ends. On a GPU
each rank draws all of them, piece by piece, as often as it takes, and keeps its own:
nothing travels but counts. A GPU draws some 5e9 edges a second, which is more than a
link to another one carries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.arrays.drawn import Drawing
from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.graph.drawn import drawn_pieces, part_edges
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.build import build, number_rows
from featgraph.ranks.loading.cutting import Kind, cut_evenly
from featgraph.ranks.loading.given import Chunk, Given

__all__ = ["draw_parts"]


def draw_parts(
    engine: Engine, drawing: Drawing, directed: bool, along: str, target: str
) -> DistributedGraph:
    """Make a graph of drawn edges, of which each rank gets its part; all call it."""
    bounds = [drawing.count * r // engine.size for r in range(engine.size + 1)]
    share = bounds[engine.rank], bounds[engine.rank + 1]
    if target == "cuda":
        return _draw_there(engine, drawing, directed, along, share)
    chunk = Chunk(*drawing.on_host(*share))
    dtype = None if chunk.weights is None else chunk.weights.dtype
    given = Given([chunk], drawing.vertex_count, directed, dtype, drawing.sides)
    del chunk
    number_rows(engine, given)
    return build(engine, given, along)


def _draw_there(
    engine: Engine,
    drawing: Drawing,
    directed: bool,
    along: str,
    share: tuple[int, int],
) -> DistributedGraph:
    """Make it on the GPUs of all ranks."""
    from featgraph.arrays import memory  # imports the dialect
    from featgraph.ranks.loading.on_gpu import finish_there, surveyed, wanted_of

    count, given_count = drawing.vertex_count, drawing.count
    dtype = None if drawing.weights is None else np.dtype(np.float32)
    kind = Kind(count, given_count, directed, along, dtype, drawing.sides)
    counted = surveyed(engine, lambda: drawn_pieces(drawing, *share), kind)
    cut = cut_evenly(engine, kind, counted)
    places = cut.partition.places
    there = None if places is None else memory.upload(places)
    wanted = wanted_of(engine, kind, cut.partition, given_count)
    part, edges = part_edges(drawing, wanted, places=there)

    def numbers() -> Any:
        found = memory.read(part.numbers())
        return found.astype(offset_dtype(2 * given_count), copy=False)

    return finish_there(engine, counted.whole(kind), cut, (part, edges), numbers)

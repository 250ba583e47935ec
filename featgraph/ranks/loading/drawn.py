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
from featgraph.fold.plan.traits import GraphTraits
from featgraph.graph import Graph
from featgraph.graph._structure import structure_digest
from featgraph.graph.drawn import drawn_pieces, part_edges
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.build import build, number_rows
from featgraph.ranks.loading.given import Chunk, Given
from featgraph.ranks.loading.parts import Found, cuts_of_words, made_graph

__all__ = ["draw_parts"]


def draw_parts(
    engine: Engine, drawing: Drawing, directed: bool, along: str, target: str
) -> DistributedGraph:
    """Make a graph of drawn edges, of which each rank gets its part; all call it."""
    bounds = [drawing.count * r // engine.size for r in range(engine.size + 1)]
    share = bounds[engine.rank], bounds[engine.rank + 1]
    if target == "cuda":
        return _build_there(engine, drawing, directed, along, share)
    chunk = Chunk(*drawing.on_host(*share))
    dtype = None if chunk.weights is None else chunk.weights.dtype
    given = Given([chunk], drawing.vertex_count, directed, dtype)
    del chunk
    number_rows(engine, given)
    return build(engine, given, along)


def _build_there(
    engine: Engine,
    drawing: Drawing,
    directed: bool,
    along: str,
    share: tuple[int, int],
) -> DistributedGraph:
    """Make it on the GPUs of all ranks."""
    from featgraph.arrays import memory  # imports the dialect
    from featgraph.arrays.parts.passing import Wanted, survey
    from featgraph.graph.building import digests  # loads Numba

    count, given_count = drawing.vertex_count, drawing.count
    seen = survey(lambda: drawn_pieces(drawing, *share), count, directed)
    words = engine.all_reduce(seen.words, "sum", about="in-edges")
    sums = np.concatenate((seen.ends, seen.weights))
    sums = engine.all_reduce(sums, "sum", about="the digest of a graph")
    cuts = cuts_of_words(words, count, engine.size)
    has_weights = drawing.weights is not None
    whole = Whole(
        count,
        given_count,
        int(words.sum()),
        directed,
        np.dtype(np.float32) if has_weights else None,
        None,
        structure_digest(count, directed, digests.text_of(sums[:2])),
        f"float32 {digests.text_of(sums[2:])}" if has_weights else "",
        GraphTraits(),
    )
    first, last = map(int, cuts[engine.rank : engine.rank + 2])
    wanted = Wanted(first, last, count, given_count, along == "both", directed)
    part, edges = part_edges(drawing, wanted, {})
    own = part.on_host[1 : wanted.own + 1] - part.on_host[: wanted.own]

    def numbers() -> Any:
        found = memory.read(part.numbers())
        return found.astype(offset_dtype(2 * given_count), copy=False)

    degrees = own, part.out if directed else own
    found = Found(Graph(edges), part.ghosts, numbers, degrees)
    return made_graph(engine, whole, Partition.of_known(cuts, None), along, found)

"""The number of ranks that get vertices, and cuts that leave the others without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._arguments import shown
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.graph.partition.cuts import WORD
from featgraph.ranks.agreed import require_same
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.parts import cuts_of_words

__all__ = ["cuts_for", "with_idle", "working_ranks"]

Cuts = npt.NDArray[np.int64]


def working_ranks(engine: Engine, asked: Any) -> int:
    """Return how many ranks get vertices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    asked : None or int
        None: all ranks. A single rank takes any number.

    Raises
    ------
    GraphInputError
        On all ranks, if `asked` is invalid, or differs between ranks.
    """
    if asked is None:
        return engine.size
    about = "how many ranks work"
    what, fix = "ranks are to work in different numbers", "one ranks= on all of them"
    require_same(engine, f"ranks={asked!r}", what, fix, about)
    is_number = isinstance(asked, int | np.integer) and not isinstance(asked, bool)
    if not is_number or asked < 1 or asked > engine.size > 1:
        raise GraphInputError(
            "not how many ranks may work",
            where="ranks=",
            got=shown(asked),
            expected=f"a number from 1 to {engine.size}",
            fix="ranks=1 for a small graph; leave ranks out for all of them",
        )
    return min(int(asked), engine.size)


def with_idle(cuts: npt.ArrayLike, size: int) -> Cuts:
    """Return cuts for `size` ranks, of which the last ones have no vertices."""
    given = np.asarray(cuts, np.int64)
    return np.pad(given, (0, size + 1 - given.size), mode="edge")


def cuts_for(graph: DistributedGraph, working: int) -> Cuts:
    """Return balanced cuts of a distributed graph for `working` ranks; all call it."""
    shard, engine = graph.shard, graph.engine
    first = int(shard.partition.cuts[engine.rank])
    degrees = np.asarray(graph.part.in_degree[: shard.own], np.int64)
    words = np.zeros(-(-graph.vertex_count // WORD), np.int64)
    np.add.at(words, (first + np.arange(shard.own)) // WORD, degrees)
    words = engine.all_reduce(words, "sum", about="in-edges")
    return with_idle(cuts_of_words(words, graph.vertex_count, working), engine.size)

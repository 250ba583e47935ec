"""The number of ranks that work on a graph: given, or chosen by the cost model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError
from featgraph.graph import Graph
from featgraph.graph.partition.cuts import WORD
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import require_same
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.parts import cuts_of_words

__all__ = ["cuts_for", "with_idle", "working_ranks"]

Cuts = npt.NDArray[np.int64]


def working_ranks(
    engine: Engine,
    asked: Any,
    size: tuple[int, int],
    whole: tuple[Graph, Any] | None = None,
    after: tuple[DistributedGraph, Any] | None = None,
) -> int:
    """Return how many ranks work; all ranks call it.

    Parameters
    ----------
    engine : Engine
    asked : None, "auto" or int
        None: all ranks; "auto": the number with the shortest superstep; or a number.
    size : (vertices, edges)
    whole : (Graph, order), optional
        The whole graph, if ranks have it: its cut edges are counted if they matter.
    after : (DistributedGraph, Run), optional
        A run and its graph, whose supersteps correct the model.

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
    if asked != "auto":
        return _checked(asked, engine.size)
    if engine.size == 1:
        return 1
    from featgraph.ranks.expected.chosen import chosen_ranks  # loads the model

    return chosen_ranks(engine, size, whole, after)


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


def _checked(asked: Any, size: int) -> int:
    is_number = isinstance(asked, int | np.integer) and not isinstance(asked, bool)
    if not is_number or not 1 <= asked <= size:
        raise GraphInputError(
            "not how many ranks may work",
            where="ranks=",
            got=shown(asked),
            expected=f"'auto', or a number from 1 to {size}",
        )
    return int(asked)

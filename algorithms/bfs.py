"""Breadth-first search: the distance of every vertex in edges, and its parent.

A superstep reaches the vertices one edge further on::

    level'(v)  = 1 + level(u)  for the edges u -> v whose source has a level
    parent'(v) = u             for one of them

Only vertices without a level gather, and only if a source of theirs was reached in the
superstep before. All sources of such a vertex that have a level have the same level.
Therefore any of them may be the parent, and the gather stops at the first one
(``first=True``). All k columns, one for each search, are computed at once.

A superstep reads the edges of a due vertex until each search has found a source; a
vertex that has a level costs a test. It moves 8 k bytes for each vertex reached.

S. Beamer, K. Asanović, D. Patterson, "Direction-Optimizing Breadth-First Search", SC
2012; properties of a correct answer: S. Beamer, K. Asanović, D. Patterson, "The GAP
Benchmark Suite", 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._following import Following, Update
from featgraph.algorithms._paths import (
    NO_VERTEX,
    Kept,
    Sources,
    follow_paths,
    keep_paths,
    require_tree,
)
from featgraph.algorithms._result import PathsResult, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require

__all__ = ["BfsResult", "bfs", "verify_bfs"]

Array = npt.NDArray[Any]

#: The level of a vertex that was not reached.
UNREACHED = -1


@fg.vertex
def unseen(f, v, d):  # type: ignore[no-untyped-def]
    """Return True for vertices that a search has not reached."""
    return d.level[v, f] < 0


@fg.gather(into="near", combine="argmin", sources="active", first=True)
def seen_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the level of a source that has one."""
    if d.level[u, f] < 0:
        return fg.nothing
    return d.level[u, f]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Set the level of v to the next one, and its parent to the source found."""
    if d.level[v, f] >= 0 or d.near_source[v, f] < 0:
        return False
    d.level_next[v, f] = d.near[v, f] + 1
    d.parent_next[v, f] = d.near_source[v, f]
    return True


step = fg.foldmap(unseen, seen_neighbors, settle)


@fg.gather(into="near", combine="argmin", sources="active")
def levels_around(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the level of a source that has one; it may have become lower."""
    if d.level[u, f] < 0:
        return fg.nothing
    return d.level[u, f]


@fg.vertex
def lower(f, v, d):  # type: ignore[no-untyped-def]
    """Take a level below that of v, or the first one, and its source as the parent."""
    level = d.near[v, f] + 1
    is_lower = d.level[v, f] < 0 or level < d.level[v, f]
    if d.near_source[v, f] < 0 or not is_lower:
        return False
    d.level_next[v, f] = level
    d.parent_next[v, f] = d.near_source[v, f]
    return True


#: The superstep of updates, in which levels of reached vertices become lower, too.
follow_levels = fg.foldmap(levels_around, lower)


@dataclass(frozen=True, eq=False, kw_only=True)
class BfsResult(PathsResult):
    """Result of `bfs`.

    Attributes
    ----------
    levels : ndarray of int32, shape (V,) or (V, k)
        Number of edges of a shortest path from the source; -1 without a path.
    parents : ndarray of int32, shape (V,) or (V, k)
        The previous vertex on such a path; the source itself for a source, -1 without a
        path.
    """

    levels: npt.NDArray[np.int32] = answer()
    parents: npt.NDArray[np.int32] = answer()

    tree_name: ClassVar[str] = "parents"

    def _resume(self, following: Following) -> Update | str:
        """Recompute levels along deleted edges, then decrease levels."""
        if following.arguments["max_depth"] is not None:
            return "levels end at max_depth"
        kept = Kept("levels", "level", "parent", 0, UNREACHED, length=1, cost=4)
        return follow_paths(self, following, kept, follow_levels)


@fg.algorithm()
def bfs(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    *,
    together: bool = False,
    max_depth: int | None = None,
    **options: Any,
) -> BfsResult:
    """Search a graph breadth-first from one vertex or several.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Searches follow ``u -> v``, in both directions if the graph is undirected.
    sources : int or str, or array_like of them, shape (k,)
        The sources, as ids or as names that are text: see `Graph.vertex_names`. Each of
        several sources begins a search of its own, a column of the result.
    together : bool, optional
        Whether all sources begin one search: levels are distances from the nearest.
    max_depth : int, optional
        The highest level. Default: no limit.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    BfsResult
        Levels, parents, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If a source is not a vertex, or `max_depth` is not a count.

    Notes
    -----
    Levels are the same on every target and with all options. If a vertex has several
    possible parents, the choice is not defined; with ``deterministic=True``, it is the
    smallest, for which all edges are read.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import bfs
    >>> path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    >>> found = bfs(path, 1)
    >>> found.levels.tolist(), found.parents.tolist()
    ([-1, 0, 1, 2], [-1, 1, 1, 2])
    """
    graph = fg.as_graph(graph)
    begin = Sources(graph, sources, together)
    depth = _checked_depth(max_depth)
    state = fg.State(
        graph,
        level=begin.property(0, UNREACHED, np.int32),
        parent=begin.property(begin.vertices, NO_VERTEX, np.int32),
    )
    # A path has fewer than V edges; the last superstep reaches no vertex.
    options.setdefault("max_supersteps", graph.vertex_count + 1)
    run, _ = iterate_recorded(
        step,
        state,
        history=False,
        active=begin.vertices if depth != 0 else begin.vertices[:0],
        enough=depth,
        **options,
    )
    made = BfsResult.of(
        graph,
        run,
        levels=begin.result(state.view("level")),
        parents=begin.result(state.view("parent")),
    )
    return keep_paths(made, state)


def verify_bfs(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    levels: npt.ArrayLike,
    parents: npt.ArrayLike,
    *,
    together: bool = False,
    max_depth: int | None = None,
) -> None:
    """Check the answer of a search.

    * Sources, and no other vertices, have level zero.
    * No edge leads to a level that is higher by more than one, or to an unreached
      vertex, except from the level `max_depth`.
    * The parent of a vertex is one level lower, and an edge leads from it to the
      vertex; a source is its own parent, and an unreached vertex has none.

    Parameters
    ----------
    graph, sources, together, max_depth
        As passed to `bfs`.
    levels, parents : array_like of shape (V,) or (V, k)
        The answer of `bfs`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    begin, edges = Sources(graph, sources, together), edges_of(graph)
    shape = (graph.vertex_count, begin.width)
    last = np.inf if max_depth is None else max_depth
    found = zip(
        fg.given_array(levels, where="levels").on_host().reshape(shape).T,
        fg.given_array(parents, where="parents").on_host().reshape(shape).T,
        strict=True,
    )
    for column, (level, parent) in enumerate(found):
        begins = begin.mask(column)
        require((level == 0) == begins, "level 0 is that of sources, and of no other")
        reached = level >= 0
        require(reached | (level == UNREACHED), "no level")
        require(level <= last, "beyond the depth")
        before, behind = level[edges.sources], level[edges.targets]
        leads = (before >= 0) & (before < last)
        skipped = leads & ((behind < 0) | (behind > before + 1))
        short = np.ones(graph.vertex_count, np.bool_)
        short[edges.targets[skipped]] = False
        require(short, "an edge leads here from a nearer level")
        require_tree(edges, begins, parent, reached, before == behind - 1)


def _checked_depth(max_depth: int | None) -> int | None:
    if max_depth is None:
        return None
    is_count = isinstance(max_depth, int | np.integer) and max_depth >= 0
    if not is_count or isinstance(max_depth, bool):
        raise fg.GraphInputError(
            "the depth is a count of edges",
            where="max_depth=",
            got=repr(max_depth),
            expected="an integer, 0 or more, or None",
        )
    return int(max_depth)

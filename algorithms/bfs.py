"""Breadth-first search: how many edges away every vertex is, and by which neighbor.

A superstep reaches the vertices one edge further on::

    level'(v)  = 1 + level(u)  for the edges u -> v whose source has a level
    parent'(v) = u             for one of them

Only vertices without a level gather, and they are due only where a source was reached
in the superstep before. So all sources that have a level have the same one there, and
any one of them will do (``first=True``): a vertex looks no further than the first.
All k columns, one for each search, are computed at once.

Of a vertex that is due, a superstep reads edges until each search has found a source;
one that has its level costs a test. It moves 8 k bytes for each vertex reached.

S. Beamer, K. Asanović, D. Patterson, "Direction-Optimizing Breadth-First Search", SC
2012; properties of a right answer: S. Beamer, K. Asanović, D. Patterson, "The GAP
Benchmark Suite", 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._following import Following, Update
from featgraph.algorithms._paths import NO_VERTEX, Sources, follow_paths, require_tree
from featgraph.algorithms._result import PathsResult, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require

__all__ = ["BfsResult", "bfs", "verify_bfs"]

Array = npt.NDArray[Any]

#: The level of a vertex that was not reached.
UNREACHED = -1


@fg.vertex
def unseen(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices that a search has not reached."""
    return d.level[v, f] < 0


@fg.gather(into="near", combine="argmin", sources="active", first=True)
def seen_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the level of a source that has one."""
    if d.level[u, f] < 0:
        return fg.nothing
    return d.level[u, f]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Take the next level, from that source."""
    if d.level[v, f] >= 0 or d.near_source[v, f] < 0:
        return False
    d.level_next[v, f] = d.near[v, f] + 1
    d.parent_next[v, f] = d.near_source[v, f]
    return True


step = fg.foldmap(unseen, seen_neighbors, settle)


#: The level of unreached vertices in updates, which take paths of edges of length one.
FAR = 1 << 30


@dataclass(frozen=True, eq=False, kw_only=True)
class BfsResult(PathsResult):
    """Result of `bfs`.

    Attributes
    ----------
    levels : ndarray of int32, shape (V,) or (V, k)
        Edges of a shortest path from the source; -1 where none leads.
    parents : ndarray of int32, shape (V,) or (V, k)
        The vertex before on such a path; a source is its own, -1 where none leads.
    """

    levels: npt.NDArray[np.int32] = answer()
    parents: npt.NDArray[np.int32] = answer()

    tree_name: ClassVar[str] = "parents"

    def _resume(self, following: Following) -> Update | str:
        """Find the levels that are less, behind those whose edges are gone."""
        if following.arguments["max_depth"] is not None:
            return "levels end at max_depth"
        from featgraph.algorithms.sssp import step_by_one

        values = UNREACHED, FAR
        return follow_paths(self, following, "levels", step_by_one, values)


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
        A search goes along ``u -> v``; both ways where the graph is undirected.
    sources : int or str, or array_like of them, shape (k,)
        Where to begin, as ids or as names that are text: see `Graph.vertex_names`. Of
        several vertices, each begins a search of its own: a column of the result.
    together : bool, optional
        All sources begin one search: levels are edges from the nearest of them.
    max_depth : int, optional
        Go no further than so many edges. Default: as far as edges lead.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    BfsResult
        Levels, parents, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If a source is no vertex, or `max_depth` is no count.

    Notes
    -----
    Levels are the same on every target and with all options. It is not defined which of
    several vertices that could be the parent is taken; with ``deterministic=True`` the
    smallest is, and all edges are read for it.

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
    options.setdefault("max_supersteps", graph.vertex_count + 1)
    run, residuals = iterate_recorded(
        step,
        state,
        history=False,
        active=begin.vertices if depth != 0 else begin.vertices[:0],
        enough=depth,
        **options,
    )
    return BfsResult(
        run=run,
        vertex_names=graph.vertex_names,
        residuals=residuals,
        levels=begin.result(state.view("level")),
        parents=begin.result(state.view("parent")),
    )


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
    * No edge leads from a level to one more than one further, or to a vertex that was
      not reached, but from the last level that was asked for.
    * The parent of a vertex is one level nearer, and an edge leads from it; a source is
      its own, and a vertex that was not reached has none.

    Parameters
    ----------
    graph, sources, together, max_depth
        As given to `bfs`.
    levels, parents : array_like of shape (V,) or (V, k)
        Its answer.

    Raises
    ------
    AssertionError
        With the vertex at which a property fails first.
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
        starts = begin.of_column(column)
        begins = np.zeros(graph.vertex_count, np.bool_)
        begins[starts] = True
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
        require_tree(edges, starts, parent, reached, before == behind - 1)


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

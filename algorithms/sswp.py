"""Widest paths: the weight of the narrowest edge on the best path to every vertex.

A superstep relaxes edges::

    way(v)    = max over edges u -> v of min(width(u), w(u, v))
    width'(v) = way(v), where that is more than width(v)

and the u of that edge becomes the predecessor of v. It is the recurrence of shortest
paths with max for min and min for plus: see module `sssp` for the frontier, columns,
costs, and the reason why predecessors make a tree. Weights may be negative, since no
further edge makes a path wider.

M. Pollack, "The Maximum Capacity Through a Network", Operations Research 8, 1960.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._paths import (
    NO_VERTEX,
    Kept,
    Sources,
    checked_lengths,
    checked_reals,
    follow_paths,
    keep_paths,
    length_property,
    require_tree,
)
from featgraph.algorithms._result import PathsResult, answer
from featgraph.algorithms._verify import edges_of, require

__all__ = ["SswpResult", "sswp", "verify_sswp"]

Array = npt.NDArray[Any]


@fg.gather(into="way", combine="argmax", sources="active")
def ways(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the width of the path through the source, limited by the edge."""
    return min(d.width[u, f], d.weight[e])


@fg.vertex
def widen(f, v, d):  # type: ignore[no-untyped-def]
    """Store the largest width, if it is above the known one."""
    if d.way[v, f] <= d.width[v, f]:
        return False
    d.width_next[v, f] = d.way[v, f]
    d.predecessor_next[v, f] = d.way_source[v, f]
    return True


step = fg.foldmap(ways, widen)


@dataclass(frozen=True, eq=False, kw_only=True)
class SswpResult(PathsResult):
    """Result of `sswp`.

    Attributes
    ----------
    widths : ndarray of shape (V,) or (V, k)
        Least weight on the widest path from the source; inf at the source, -inf where
        no path leads.
    predecessors : ndarray of int32, shape (V,) or (V, k)
        The vertex before v on a widest path; v itself at a source, -1 where no path
        leads.
    """

    widths: Array = answer()
    predecessors: npt.NDArray[np.int32] = answer()

    def _resume(self, following: Any) -> Any:
        """Update the paths: recompute those that lost an edge, and widen others."""
        given = following.arguments
        real = checked_reals(given["dtype"])
        length_property(following.graph, given["weights"], real)  # checks new weights
        kept = Kept("widths", "width", "predecessor", np.inf, -np.inf, rises=True)
        return follow_paths(self, following, kept, step)


@fg.algorithm()
def sswp(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    together: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> SswpResult:
    """Find the widest paths from one vertex or several to all others.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Paths follow ``u -> v``, in both directions if the graph is undirected.
    sources : int or str, or array_like of them, shape (k,)
        Ids of the vertices at which paths begin, or their names if these are text: see
        `Graph.vertex_names`. Each of several sources has a column of the result.
    weights : array_like of shape (E,), optional
        The width of each edge, in the order in which the edges were given; -inf closes
        an edge. Default: the weights of the graph, or one.
    together : bool, optional
        Whether the result has one column, with the widest paths from any source.
    dtype : dtype, optional
        float32 or float64, of weights and widths.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    SswpResult
        Widths, predecessors, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If a source is no vertex, the weights do not fit the graph, or a weight is nan
        (the message names the edge).

    Notes
    -----
    Widths and predecessors are the same, bit for bit, on every target: of several
    equally wide predecessors, the smallest id is taken. ``asynchronous=True`` takes
    fewer supersteps, and ``near_far=fg.NearFar("width")`` reads fewer edges; the widths
    are the same, and another, equally wide predecessor may be found.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import sswp
    >>> pipes = fg.Graph.from_edges([0, 0, 1], [1, 2, 2], weights=[3.0, 1.0, 2.0])
    >>> found = sswp(pipes, 0)
    >>> found.widths.tolist(), found.predecessors.tolist()
    ([inf, 3.0, 2.0], [0, 0, 1])
    """
    graph = fg.as_graph(graph)
    begin, dtype = Sources(graph, sources, together), checked_reals(dtype)
    state = fg.State(
        graph,
        width=begin.property(np.inf, -np.inf, dtype),
        predecessor=begin.property(begin.vertices, NO_VERTEX, np.int32),
        weight=length_property(graph, weights, dtype),
    )
    # A path has fewer than V edges; the last superstep changes no vertex.
    options.setdefault("max_supersteps", graph.vertex_count + 1)
    run = fg.iterate(step, state, active=begin.vertices, **options)
    made = SswpResult.of(
        graph,
        run,
        widths=begin.result(state.view("width")),
        predecessors=begin.result(state.view("predecessor")),
    )
    return keep_paths(made, state)


def verify_sswp(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    widths: npt.ArrayLike,
    predecessors: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    together: bool = False,
) -> None:
    """Check the answer of a converged run, in the dtype of its widths.

    * Sources are infinitely wide.
    * No edge makes a path wider.
    * The width of a vertex is the lesser of that of its predecessor and that of an edge
      from there. The predecessor of a source is itself, and a vertex that was not
      reached has none.
    * Each chain of predecessors ends at a source.

    Parameters
    ----------
    graph, sources, weights, together
        As passed to `sswp`.
    widths, predecessors : array_like of shape (V,) or (V, k)
        The answer of `sswp`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    begin, edges = Sources(graph, sources, together), edges_of(graph)
    shape = (graph.vertex_count, begin.width)
    known = fg.given_array(widths, where="widths").on_host().reshape(shape)
    lengths = checked_lengths(graph, weights, checked_reals(known.dtype)).on_host()
    lengths = lengths[edges.given]
    before = fg.given_array(predecessors, where="predecessors").on_host().reshape(shape)
    for column in range(begin.width):
        width, begins = known[:, column], begin.mask(column)
        require(~np.isnan(width), "nan")
        require(~begins | (width == np.inf), "a source that is not infinitely wide")
        way = np.minimum(width[edges.sources], lengths)
        best = np.full(graph.vertex_count, -np.inf, width.dtype)
        np.maximum.at(best, edges.targets, way)
        require(width >= best, "an edge makes the path wider")
        fits = way == width[edges.targets]
        require_tree(edges, begins, before[:, column], width > -np.inf, fits)

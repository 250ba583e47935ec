"""Whether a path of open edges leads to each vertex from a held one.

*Link*, in one superstep: open edges join trees, as in `connected_components`, so that
each component has one top; held vertices mark theirs; vertices whose top has no mark
have no path. Vertex v stands below ``v - drop(v)``, at first on its own. An edge costs
two reads and one atomic operation, mostly.

*Search*, a superstep for each edge on the longest of the shortest paths, where ranks
have parts of the graph: what stands above a vertex may be another rank's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg

__all__ = ["path_properties", "require_paths"]


@fg.edge
def join(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Join what stands above the ends of an open edge; a twin has nothing to add."""
    if u > v or d.weight[e] <= 0:
        return True
    a = u - d.drop[u]
    b = v - d.drop[v]
    while a != b:
        high = max(a, b)
        low = min(a, b)
        before = high - fg.atomic.max(d.drop, high, high - low)
        if before == high:
            return True
        a = before
        b = low
    return True


@fg.vertex
def climb(f, v, d):  # type: ignore[no-untyped-def]
    """Stand right below the top, and mark it if v is held."""
    before = v
    top = v - d.drop[v]
    while d.drop[top] > 0:
        fg.atomic.max(d.drop, before, before - (top - d.drop[top]))
        before = top
        top = top - d.drop[top]
    fg.atomic.max(d.drop, v, v - top)
    if d.held[v]:
        fg.atomic.max(d.marked, top, 1)
    return True


@fg.reduce(into="floating", combine="sum")
def has_no_path(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices without a path; one that is held needs none."""
    return 0 if d.held[v] or d.marked[v - d.drop[v]] > 0 else 1


@fg.vertex
def not_linked(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices that no path is known to."""
    return not d.linked[v]


@fg.gather(into="leads", combine="any", sources="active")
def linked_by(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for an open edge to a vertex with a path."""
    return d.linked[u] and d.weight[e] > 0


@fg.vertex
def link(f, v, d):  # type: ignore[no-untyped-def]
    """Have a path as well."""
    d.linked_next[v] = True
    return d.leads[v]


trees = fg.foldmap(join, climb, has_no_path)
spread = fg.foldmap(not_linked, linked_by, link)


def path_properties(graph: fg.Graph, held: Any) -> dict[str, Any]:
    """Return what a State has to have beside ``held`` and ``weight``, all edges' own.

    The graph is undirected.
    """
    if graph.ranks is not None:
        return {"linked": fg.vertex_property(held, iterated=True)}
    nothing = fg.vertex_property(np.int32(0))
    return {"drop": nothing, "marked": nothing}


def require_paths(
    state: fg.State, held: int, target: str, *, what: str, fix: str | None
) -> None:
    """Raise GraphInputError where no path leads to a vertex from a held one.

    Parameters
    ----------
    state : State
    held : int
        How many vertices are.
    target : str
    what, fix : str
        For the error.
    """
    count = state.graph.vertex_count
    if state.graph.ranks is None:
        trees(state, target=target)
        missing = int(state["floating"][0])
    else:  # each of the others is committed once, when a path is found
        run = fg.iterate(spread, state, max_supersteps=count + 1, target=target)
        missing = count - held - sum(run.active_counts)
    if missing > 0:
        raise fg.GraphInputError(
            what,
            where=f"vertex {int(np.argmax(_floating(state)))}",
            got=f"{missing} such vertices",
            fix=fix,
        )


def _floating(state: fg.State) -> Any:
    """Return a mask of the vertices without a path."""
    if state.graph.ranks is not None:
        return ~state["linked"]
    tops = np.arange(state.graph.vertex_count) - state["drop"]
    found = ~state["held"] & (state["marked"][tops] == 0)
    return found if state.graph.living is None else found & state.graph.living

"""Triangle functions: every place that they write, filters, what makes them run."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import Rng, edge_count, eighths, signed

__all__ = ["PROGRAMS", "make_state"]


def heavier(a, b):
    return a if a > b else b


@fg.triangle
def everywhere(u, v, w, e_uv, e_uw, e_vw, d):
    """Add at all six, and let some triangles end early."""
    fg.atomic.add(d.at_vertex, u, 1)
    fg.atomic.add(d.at_vertex, v, 100)
    fg.atomic.add(d.at_vertex, w, 10_000)
    if d.kind[u] + d.kind[v] > d.kind[w] + d.limit:
        return
    fg.atomic.add(d.at_edge, e_uv, 1)
    fg.atomic.add(d.at_edge, e_uw, d.kind[v])
    fg.atomic.add(d.at_edge, e_vw, 7)
    if d.kind[v] > 0:
        fg.atomic.add(d.share, v, heavier(d.weight[e_uv], d.weight[e_vw]) / 2)
    fg.atomic.add(d.share, w, d.weight[e_uw])


@fg.triangle
def otherwise(u, v, w, e_uv, e_uw, e_vw, d):
    """Write what no register can hold: minima, old values, features, other places."""
    fg.atomic.min(d.least, w, u)
    fg.atomic.max(d.most, (v, 1), d.kind[w])
    fg.atomic.add(d.pair, (u, 1), d.kind[w])
    old = fg.atomic.add(d.at_edge, fg.reverse(e_uv), 1)
    for step in range(2):
        fg.atomic.add(d.share, u, step + old * 0)
    if u < v:
        fg.atomic.add(d.at_edge, e_uw, 1)


@fg.triangle(within="open")
def among_open(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.at_vertex, w, d.kind[u])
    fg.atomic.add(d.at_edge, e_uv, 1)
    fg.atomic.add(d.at_edge, e_uw, 10)
    fg.atomic.add(d.at_edge, e_vw, 100)


@fg.triangle(within="weight")
def among_heavy(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.at_vertex, v, 1)


@fg.vertex
def is_odd(f, v, d):
    d.kind_next[v] = d.kind[v] + 1
    return d.kind[v] % 2 != 0


@fg.edge
def closes(f, u, v, e, d):
    d.open_next[e] = False
    return d.open[e] and d.kind[u] + d.kind[v] > d.limit


@fg.edge
def comes_apart(f, u, v, e, d):
    """Read nothing but the edge, its reverse and a scalar."""
    if not d.open[e] or d.at_edge[e] + d.at_edge[fg.reverse(e)] > d.limit:
        return False
    d.open_next[e] = False
    return True


@fg.triangle(within="open")
def loses(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.at_edge, e_uv, -1)
    fg.atomic.add(d.at_edge, e_uw, -2)
    if d.kind[w] > 0:
        fg.atomic.add(d.at_edge, e_vw, 1)


@fg.vertex
def take_share(f, v, d):
    d.taken[v] = d.share[v] + d.at_vertex[v]
    return d.at_vertex[v] > 0


PROGRAMS = {
    "everywhere": fg.trianglemap(everywhere),
    "otherwise": fg.trianglemap(otherwise),
    "filters": fg.trianglemap(among_open, among_heavy),
    "behind_vertices": fg.foldmap(is_odd, everywhere, take_share),
    "behind_edges": fg.foldmap(closes, among_open, everywhere),
    "behind_changed_edges": fg.foldmap(comes_apart, loses),
}


def make_state(graph: Any, rng: Rng) -> dict[str, Any]:
    count, edges = graph.vertex_count, edge_count(graph)
    weight = eighths(rng, edges) * (rng.random(edges) < 0.9)
    return {
        "at_vertex": fg.vertex_property(np.zeros(count, np.int64)),
        "kind": fg.vertex_property(signed(rng, count), iterated=True),
        "share": fg.vertex_property(eighths(rng, count)),
        "least": fg.vertex_property(np.full(count, 99, np.int32)),
        "most": fg.vertex_property(np.zeros((count, 2), np.int32)),
        "pair": fg.vertex_property(signed(rng, count, 2)),
        "taken": fg.vertex_property(np.zeros(count, np.float32)),
        "at_edge": fg.edge_property(np.zeros(2 * edges, np.int32), per_direction=True),
        "open": fg.edge_property(rng.random(2 * edges) < 0.9, iterated=True),
        "weight": fg.edge_property(weight.astype(np.float32)),
        "limit": 4,
    }

"""Which direction an edge of an undirected graph is: as given, or the twin."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, signed


@fg.gather(into="sides", combine="sum")
def sides(f, u, v, e, d):
    if fg.is_twin(e):
        return 100 * d.w[e] + d.x[u, f]
    return d.w[e] - d.x[u, f] + (1000 if fg.is_twin(fg.reverse(e)) else 0)


@fg.gather(into="turned", combine="any")
def turned(f, u, v, e, d):
    return fg.is_twin(e)


@fg.vertex
def keep_sides(f, v, d):
    d.y[v, f] = d.sides[v, f] + d.turned[v]
    return True


@fg.edge
def mark_side(f, u, v, e, d):
    is_twin = fg.is_twin(e)
    d.side_next[e, f] = d.side[e, f] + d.bias[f] * is_twin + d.pair[v, fg.is_twin(e)]
    return is_twin or d.x[u, f] > 5


def _twin_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph)
    return {
        "x": fg.vertex_property(signed(rng, v, k)),
        "pair": fg.vertex_property(signed(rng, v, k + 1)),
        "y": fg.vertex_property(np.zeros((v, k), np.int64)),
        "w": fg.edge_property(signed(rng, e)),
        "side": fg.edge_property(signed(rng, 2 * e, k), iterated=True),
        "bias": signed(rng, k),
    }


PROGRAMS = (
    BankProgram(
        "twins",
        (fg.foldmap(sides, turned, keep_sides), fg.foldmap(mark_side)),
        _twin_state,
        widths=(1, 3, 8),
        exact=True,
        undirected=True,
        iterable=False,
    ),
)

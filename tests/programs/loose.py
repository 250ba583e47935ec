"""Vectors and matrices that belong to no vertex, by element and as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, floats, signed


@fg.gather(into="pulled", combine="sum")
def compatible(f, u, v, e, d):
    mixed = fg.matvec(d.psi, d.x[u, f], transpose=fg.is_twin(e))
    return mixed * fg.dot(d.alpha, d.w[e])


@fg.vertex
def keep_compatible(f, v, d):
    x = d.pulled[v, f] + d.psi[f, 0] - d.psi[d.row[v], f]
    x = x + fg.matvec(d.count_of, d.x[v]) + fg.dot(d.x[v], d.beta)
    x = x + fg.outer(d.alpha, d.x[v])[0, f] + fg.solve(d.spd, d.alpha, spd=True)
    d.y[v, f] = x
    return True


def _loose_state(dtype: Any) -> Callable[[Any, int, Rng], dict[str, Any]]:
    def make(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
        v, e = graph.vertex_count, edge_count(graph)
        half = floats(rng, k, k, dtype=dtype) / k
        return {
            "x": fg.vertex_property(floats(rng, v, k, dtype=dtype)),
            "row": fg.vertex_property(rng.integers(0, k, v).astype(np.int32)),
            "y": fg.vertex_property(np.zeros((v, k), dtype)),
            "w": fg.edge_property(floats(rng, e, k, dtype=dtype)),
            "psi": half,
            "spd": (half + half.T + 2 * np.eye(k)).astype(dtype),
            "alpha": floats(rng, k, dtype=dtype),
            "beta": signed(rng, k),
            "count_of": signed(rng, k, k),
        }

    return make


_LOOSE = (fg.foldmap(compatible, keep_compatible),)

PROGRAMS = (
    BankProgram(
        "loose",
        _LOOSE,
        _loose_state(np.float32),
        widths=(1, 3, 10, 33),
        undirected=True,
        slack=16.0,
        iterable=False,
    ),
    BankProgram(
        "loose_float64",
        _LOOSE,
        _loose_state(np.float64),
        widths=(3,),
        undirected=True,
        slack=16.0,
        iterable=False,
    ),
)

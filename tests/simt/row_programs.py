"""What belongs to no vertex, and whole rows, for the tests of CUDA kernels."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import edge, floats, loose, signed, vertex


@fn.gather(into="pulled", combine="sum")
def compatible(f, u, v, e, d):
    mixed = fg.matvec(d.psi, d.x[u, f], transpose=fg.is_twin(e))
    return mixed * fg.dot(d.alpha, d.w[e])


@fn.vertex
def keep_compatible(f, v, d):
    x = d.pulled[v, f] + d.psi[f, 0] - d.psi[d.row[v], f]
    x = x + fg.matvec(d.count_of, d.x[v]) + fg.dot(d.x[v], d.beta)
    d.y[v, f] = x + fg.outer(d.alpha, d.x[v])[0, f]
    return True


def loose_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(floats(rng, count, k)),
        "row": vertex(rng.integers(0, k, count).astype(np.int32)),
        "y": vertex(np.zeros((count, k))),
        "w": edge(floats(rng, graph.given_edge_count, k)),
        "psi": loose(floats(rng, k, k)),
        "alpha": loose(floats(rng, k)),
        "beta": loose(signed(rng, k)),
        "count_of": loose(signed(rng, k, k)),
    }

"""Programs with whole rows and values of no vertex, for tests of CUDA kernels."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import Case, edge, floats, loose, signed, vertex
from tests.simt.first_programs import FIRST_CASES


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


# -- logarithms; locals are called as those of generated code


@fn.gather(into="into_log", combine="sum")
def message_sum(f, u, v, e, d):
    x_d = fg.log_normalize(d.x[u, f])
    return fg.matvec(d.psi[e], x_d, fg.is_twin(e), "log_plus")


@fn.gather(into="into_max", combine="max")
def message_max(f, u, v, e, d):
    register_a = 2 * d.x[u, f]
    return register_a + fg.matvec(d.table, d.x[u], u > v, semiring="max_plus")


@fn.vertex
def keep_messages(f, v, d):
    x = d.into_log[v, f] + d.x[v, f]
    d.y[v, f] = fg.logsumexp(x) + fg.matvec(d.table, x, True, "log_plus")
    d.z[v, f] = fg.log_normalize(x) + max(d.into_max[v, f], -4.0)
    return fg.any_feature(x > 0)


def message_row_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    x = np.where(rng.random((count, k)) < 0.2, -40.0, np.log(floats(rng, count, k)))
    return {
        "x": vertex(x),
        "y": vertex(np.zeros((count, k))),
        "z": vertex(np.zeros((count, k))),
        "psi": edge(np.log(floats(rng, edges, k, k))),
        "table": loose(np.log(floats(rng, k, k))),
    }


ROW_CASES = (
    *FIRST_CASES,
    Case(
        "loose",
        (compatible, keep_compatible),
        loose_state,
        undirected=True,
        widest=10,
    ),
    Case(
        "semirings",
        (message_sum, message_max, keep_messages),
        message_row_state,
        undirected=True,
        widest=33,
    ),
)

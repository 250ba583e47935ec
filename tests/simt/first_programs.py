"""Gathers that may stop at the first contribution, for the tests of CUDA kernels."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import Case, edge, floats, signed, vertex


@fn.vertex
def unmarked(f, v, d):
    return not d.mark[v, f]


@fn.gather(into="least", combine="min", first=True)
def offer(f, u, v, e, d):
    return d.level[v, f] + 1 if d.mark[u, f] and d.open[e] else fg.nothing


@fn.gather(into="most", combine="argmax", first=True)
def offer_from(f, u, v, e, d):
    return d.level[v, f] + d.bonus[v] if d.mark[u, f] and d.open[e] else fg.nothing


@fn.vertex
def take_offer(f, v, d):
    if d.mark[v, f] or d.most_source[v, f] < 0:
        return False
    d.mark_next[v, f] = True
    d.level_next[v, f] = d.least[v, f] + d.most[v, f]
    return True


@fn.gather(into="touched", combine="any")
def touched(f, u, v, e, d):
    return d.mark[u, f] and d.open[e]


@fn.gather(into="touched", combine="any")
def touched_most(f, u, v, e, d):
    return d.level[u, f] < fg.feature_max(d.level[u, f]) and d.mark[u, f]


@fn.vertex
def spread(f, v, d):
    d.mark_next[v, f] = d.mark[v, f] or d.touched[v, f]
    return not d.mark[v, f] and d.touched[v, f]


@fn.gather(into="news", combine="sum", sources="active")
def tell(f, u, v, e, d):
    return d.level[u, f] * 2 + 1


@fn.gather(into="loudest", combine="max", sources="active")
def shout(f, u, v, e, d):
    return fg.feature_max(d.weight[e] * d.level[u, f])


@fn.gather(into="heard", combine="sum")
def tell_all(f, u, v, e, d):
    return d.level[u, f]


@fn.vertex
def note_news(f, v, d):
    d.level_next[v, f] = d.news[v, f] - d.heard[v, f]
    d.peak[v] = fg.feature_max(d.loudest[v, f])
    return fg.any_feature(d.news[v, f] % 3 > 0)


@fn.vertex
def is_awake(f, v, d):
    return d.count[v, f] > -3


@fn.gather(into="knocks", combine="sum", sources="active")
def knock(f, u, v, e, d):
    return d.count[u, f] if d.open[e] else fg.nothing


@fn.gather(into="caller", combine="argmin", sources="active", first=True)
def call(f, u, v, e, d):
    return d.count[v, f] if d.open[e] else fg.nothing


@fn.vertex
def answer(f, v, d):
    """Commit, whether or not a source was active."""
    d.count_next[v, f] = d.count[v, f] + d.knocks[v, f] + 1
    return True


@fn.vertex
def call_back(f, v, d):
    d.count_next[v, f] = 7 if d.caller_source[v, f] < 0 else -2
    return True


def calls_state(graph, k, rng):
    shape = graph.vertex_count, k
    return {
        "count": vertex(rng.integers(-5, 5, shape).astype(np.int32), True),
        "open": edge(rng.random(graph.given_edge_count) < 0.4),
    }


def news_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "level": vertex(signed(rng, count, k), True),
        "weight": edge(floats(rng, graph.given_edge_count)),
        "peak": vertex(np.zeros(count)),
    }


def first_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "mark": vertex(rng.random((count, k)) < 0.2, True),
        "open": edge(rng.random(graph.given_edge_count) < 0.8),
        "level": vertex(signed(rng, count, k), True),
        "bonus": vertex(signed(rng, count)),
    }


FIRST_CASES = (
    Case("first", (unmarked, offer, offer_from, take_offer), first_state),
    Case("touched", (touched, spread), first_state, widest=33),
    Case("knocks", (is_awake, knock, answer), calls_state, pushes=True),
    Case("calls", (is_awake, call, call_back), calls_state, pushes=True),
    Case("news", (tell, shout, tell_all, note_news), news_state, pushes=True),
)
#: Lanes meet at each edge: none may leave the loop over edges before the others.
TOUCHED_MOST = Case("touched_most", (touched_most, spread), first_state, widest=33)

"""Edge functions with a gather right behind them: messages, pulled or swept apart."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, floats, signed


def _rows(graph: Any) -> int:
    return edge_count(graph) * (1 if graph.directed else 2)


def _per_direction(graph: Any, values: Any, **options: Any) -> Any:
    """Return an edge property with an entry for each direction; one for a self-loop."""
    if graph.directed:
        return fg.edge_property(values, **options)
    loops = np.flatnonzero(graph.sources == graph.targets)
    values[edge_count(graph) + loops] = values[loops]
    return fg.edge_property(values, per_direction=True, **options)


# Features of an edge return apart, so not every path writes


@fg.edge
def offer(f, u, v, e, d):
    if d.price[u, f] + d.toll[e] >= d.offered[e, f]:
        return False
    d.offered_next[e, f] = d.price[u, f] + d.toll[e]
    return True


@fg.gather(into="best", combine="min")
def best_offer(f, u, v, e, d):
    return d.offered_next[e, f]


@fg.vertex
def accept(f, v, d):
    d.price_next[v, f] = min(d.price[v, f], d.best[v, f])
    return d.best[v, f] < d.price[v, f]


def _offer_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    offered = np.full((_rows(graph), k), 1000, np.int32)
    return {
        "price": fg.vertex_property(signed(rng, v, k), iterated=True),
        "offered": fg.edge_property(offered, iterated=True),
        "toll": fg.edge_property(rng.integers(0, 5, edge_count(graph))),
    }


# Two edge functions behind a vertex function, the second one without features; twins;
# gathers of both, and one with a source


@fg.vertex
def speak(f, v, d):
    d.calls[v, f] = d.calls[v, f] + 1
    return d.voice[v, f] % 4 != 0


@fg.edge
def answer(f, u, v, e, d):
    d.note_next[e, f] = d.voice[u, f] - d.note[fg.reverse(e), f] + d.note[e, f] % 3
    return (d.voice[u, f] + v) % 3 == 0


@fg.edge
def stamp(f, u, v, e, d):
    d.stamps_next[e] = d.stamps[e] + 1
    return u % 5 != v % 5


@fg.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):
    return d.note_next[e, f] + d.stamps_next[e]


@fg.gather(into="loudest", combine="argmax")
def hear_loudest(f, u, v, e, d):
    return d.note_next[e, f] - d.voice[v, f]


@fg.vertex
def reply(f, v, d):
    d.voice_next[v, f] = (d.heard[v, f] + d.loudest_source[v, f]) % 17 - 8
    return d.heard[v, f] % 3 != 0


def _note_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, rows = graph.vertex_count, _rows(graph)
    return {
        "voice": fg.vertex_property(signed(rng, v, k), iterated=True),
        "calls": fg.vertex_property(np.zeros((v, k), np.int32)),
        "note": _per_direction(graph, signed(rng, rows, k), iterated=True),
        "stamps": _per_direction(graph, signed(rng, rows), iterated=True),
    }


# Collaborative on both sides, and a second pass over the edges behind the first


@fg.edge
def opine(f, u, v, e, d):
    new = fg.softmax(d.x[u, f] * d.x[v, f])
    new = 0.5 * d.opinion[e, f] + 0.5 * new
    d.opinion_next[e, f] = new
    return fg.any_feature(abs(new - d.opinion[e, f]) > d.epsilon)


@fg.gather(into="mass", combine="sum")
def weigh(f, u, v, e, d):
    return fg.normalize(d.opinion_next[e, f]) * fg.feature_max(d.x[u, f])


@fg.gather(into="mixed", combine="sum")
def mix(f, u, v, e, d):
    return d.opinion_next[e, f] / (1 + d.mass[v, f])


@fg.vertex
def digest(f, v, d):
    new = fg.normalize(d.x[v, f] + d.mixed[v, f])
    d.x_next[v, f] = new
    return fg.any_feature(abs(new - d.x[v, f]) > d.epsilon)


def _opinion_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    opinion = floats(rng, _rows(graph), k)
    return {
        "x": fg.vertex_property(floats(rng, v, k), iterated=True),
        "opinion": _per_direction(graph, opinion, iterated=True),
        "epsilon": 1e-3,
    }


PROGRAMS = (
    BankProgram(
        "offers", (fg.foldmap(offer, best_offer, accept),), _offer_state, exact=True
    ),
    BankProgram(
        "notes",
        (
            fg.foldmap(answer, stamp, hear, hear_loudest, reply),
            fg.foldmap(speak, answer, stamp, hear, hear_loudest, reply),
        ),
        _note_state,
        exact=True,
        undirected=True,
        iterable=False,
    ),
    BankProgram(
        "opinions",
        (fg.foldmap(opine, weigh, mix, digest),),
        _opinion_state,
        thresholds=(("x", "epsilon"), ("opinion", "epsilon")),
        slack=4.0,
        iterable=False,
    ),
)

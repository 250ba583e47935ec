"""Exchanges between ranks in the text of `explain`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks
from tests.ranks.test_refusals import adopt, ask, lowest

WHOLE = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], directed=False)
BITS = "behind the superstep: which vertices were committed, and how many"


@fg.gather(into="low", combine="min")
def lowest_weighted(f, u, v, e, d):
    return d.x_next[u] + d.bias[u]


@fg.vertex
def shorten(f, v, d):
    d.x_next[v] = d.x[d.x[v]]
    return True


@fg.vertex
def spend(f, v, d):
    d.least[v] = d.least[v] + 1
    fg.atomic.min(d.bias, d.x[v], v)
    return True


@fg.edge
def turn(f, u, v, e, d):
    d.load_next[e] = d.load[fg.reverse(e)] + d.least[u]
    return True


@fg.reduce(into="most", combine="max")
def most(f, v, d):
    return d.x[v]


@fg.triangle
def corner(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.least, u, d.load[e_vw])


ROWS = {
    "triangles": (
        fg.trianglemap(corner),
        [
            "phase 0: rows of neighbors that others own: fetched once, a batch at a "
            "time",
            "phase 0: load: entries of edges that changed go before each",
            "phase 0: least: combined on each rank, then at the owners behind the "
            "phase",
            BITS,
        ],
    ),
    "committed": (
        fg.foldmap(lowest, adopt),
        [
            "phase 0: x: rows that were committed go with the bits that say which",
            "overlap: rows of x go piece by piece while phase 0 sweeps others, if that "
            "is measured to be faster",
            BITS,
        ],
    ),
    "ahead": (
        fg.foldmap(shorten, lowest_weighted, adopt),
        [
            "phase 0: x: rows of all vertices, on each rank",
            "phase 1: bias: never written here: rows go when they are first read, and "
            "if they are written from outside",
            "phase 1: x_next: rows of all ghosts go before the phase",
            "phase 2: nothing is sent",
            BITS,
        ],
    ),
    "in place": (
        fg.foldmap(spend, turn),
        [
            "phase 0: bias: combined on each rank, then at the owners behind the phase",
            "phase 1: least: rows that changed go before the phase",
            "phase 1: load: entries of cut edges that changed go before the phase",
            BITS,
        ],
    ),
    "reduce": (
        fg.foldmap(most),
        ["phase 0: most: combined over the ranks behind the phase", BITS],
    ),
    "refused": (
        fg.vertexmap(ask),
        ["the old value of least is used"],
    ),
}


def make(graph: fg.Graph) -> fg.State:
    return fg.State(
        graph,
        x=fg.vertex_property(np.arange(4), iterated=True),
        bias=fg.vertex_property(0),
        least=fg.vertex_property(9),
        load=fg.edge_property(0, iterated=True, per_direction=True),
    )


@pytest.mark.parametrize("name", ROWS)
def test_what_explain_shows(name: str) -> None:
    step, rows = ROWS[name]

    def on_a_rank(engine: Any) -> str:
        state = make(fg.distribute(WHOLE, cuts=[0, 2, 4]))
        return step.fold(state, target="cpu").explain()

    for text in run_ranks(2, on_a_rank):
        found = text.partition("on several ranks:")[2].strip().splitlines()
        if name == "refused":
            assert rows[0] in found[0]
            assert "test_refusals.py:" in found[0]
        else:
            assert [line.strip() for line in found] == rows
    assert "on several ranks" not in step.fold(make(WHOLE), target="cpu").explain()

"""Atomics at computed vertices, and what is read there: as on one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from featgraph.distributed import run_ranks
from tests.strategies import examples

V = 71
#: Powers of two, of which sums are exact in any order.
POWERS = np.float32(2.0) ** np.arange(-3, 5)


@fg.vertex
def tell(f, v, d):
    far = d.pick[v]
    fg.atomic.add(d.visits, far, 1)
    fg.atomic.add(d.mass, (d.pick[far], f), d.x[v, f])
    fg.atomic.min(d.least, (far, f), d.x[v, f] - v)
    fg.atomic.max(d.most, (far + 1) % d.vertex_count, v)
    fg.atomic.add(d.mine, v, d.in_degree[far] - d.out_degree[d.pick[far]])
    return d.x[far, f] > 0.2


@fg.vertex
def tell_more(f, v, d):
    fg.atomic.add(d.visits, d.pick[d.pick[v]], d.mine[v] % 3)
    fg.atomic.max(d.low, d.pick[v], d.pick[v] % 7)
    d.x_next[v, f] = d.x[v, f] + 1.0
    return d.mine[v] % 3 != 0


@fg.gather(into="around", combine="sum")
def told_around(f, u, v, e, d):
    return d.visits[u] + d.most[u] + d.mine[u] + d.low[u]


@fg.vertex
def keep(f, v, d):
    d.kept[v, f] = d.x_next[d.pick[v], f] + d.around[v]
    return True


step = fg.foldmap(tell, tell_more, told_around, keep)


def make_graph(directed: bool) -> fg.Graph:
    rng = np.random.default_rng(3)
    sources, targets = rng.integers(0, V - 3, (2, 210))
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


GRAPHS = {directed: make_graph(directed) for directed in (True, False)}


def make_state(graph: fg.Graph, seed: int) -> fg.State:
    rng = np.random.default_rng(seed)
    x = rng.choice(POWERS, (V, 2))
    return fg.State(
        graph,
        pick=fg.vertex_property(rng.integers(0, rng.integers(1, V + 1), V)),
        x=fg.vertex_property(x, iterated=True),
        visits=fg.vertex_property(rng.integers(0, 5, V)),
        mass=fg.vertex_property(np.float32(0), shape=(2,)),
        least=fg.vertex_property(x * 64.0),
        most=fg.vertex_property(rng.integers(0, V, V).astype(np.int32)),
        mine=fg.vertex_property(np.int32(1)),
        low=fg.vertex_property(np.int32(3)),
        kept=fg.vertex_property(np.float32(0), shape=(2,)),
    )


STARTS = ([1, 5, 40], None)
NAMES = sorted(make_state(GRAPHS[True], 0))


def run(graph: fg.Graph, seed: int, target: str) -> list[Any]:
    """Return all values behind some supersteps, and what was committed."""
    state, found = make_state(graph, seed), []
    for active in STARTS:
        out = step(state, active_in=active, target=target)
        assert len(out) > 10
        found += [out.mask, *(state[name] for name in NAMES)]
    return found


def interpreted(seed: int, directed: bool) -> list[Any]:
    """Return the same by the interpreter."""
    state, found = make_state(GRAPHS[directed], seed), []
    graph, values, signature = reference.from_state(state)
    for number, active in enumerate(STARTS):
        out = reference.superstep(
            step.program, graph, values, signature, active=active, superstep=number
        )
        values = out.values
        found += [out.active_out.mask, *(values[name] for name in NAMES)]
    return found


EXPECTED: dict[tuple[bool, int], list[Any]] = {}


@examples(12, 30)
@given(
    directed=st.booleans(),
    seed=st.integers(0, 2),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality", "reversed"]),
)
def test_what_reaches_other_vertices(
    target: str, directed: bool, seed: int, inner: list[int], order: str
) -> None:
    cuts, whole = [0, *inner, V], GRAPHS[directed]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order
    if (directed, seed) not in EXPECTED:
        EXPECTED[directed, seed] = interpreted(seed, directed)
    found = run_ranks(
        len(cuts) - 1,
        lambda _: run(fg.distribute(whole, order=given_order, cuts=cuts), seed, target),
    )
    for values in found:
        for name, one, other in zip(
            2 * ["", *NAMES], values, EXPECTED[directed, seed], strict=True
        ):
            np.testing.assert_array_equal(one, other, err_msg=name)

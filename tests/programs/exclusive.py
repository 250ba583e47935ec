"""Exclusive functions whose result depends on the order of edges, and checks.

A run is serialisable if each edge ran once, the turns at each vertex are all numbers
from 0 on, and the order that they imply has no cycle. The interpreter, in a topological
order of it, then gives the same bits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np

import featgraph as fg
from featgraph import reference

__all__ = [
    "ANY", "CASES", "KINDS", "LEARN", "PROGRAMS", "SERIAL", "TWO_SIDES", "UNORDERED",
    "check_learning", "check_levels", "check_run", "descend", "factors_of", "graph_of",
    "order_of", "replayed", "run", "schedules_of", "state_of",
]  # fmt: skip


@fg.edge(exclusive=True)
def mix(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    d.x[u, f] = 31 * a + b + d.w[e]
    d.x[v, f] = (17 * a) ^ b
    d.runs[e] = d.runs[e] + 1
    return d.w[e] % 3 != 0


@fg.edge(exclusive=True)
def mix_all(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    n = d.n[u]
    m = d.n[v]
    s = fg.feature_sum(a ^ b)
    if s % 2 == 0:
        d.n[u] = 3 * n + m + 1
    d.x[u, f] = 31 * a + b + d.w[e] + s
    d.x[v, f] = (17 * a) ^ b + m
    d.n[v] = 5 * m + n + s
    d.runs[e] = d.runs[e] + 1
    return True


@fg.edge(exclusive=True)
def mix_targets(f, u, v, e, d):
    b = d.x[v, f]
    n = d.n[v]
    d.x[v, f] = 7 * b + d.y[u, f] + n
    d.n[v] = 5 * n + d.w[e]
    d.runs[e] = d.runs[e] + 1
    return d.w[e] % 2 == 0


@fg.edge(exclusive=True)
def mix_given(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    w_e = d.w[e] + 1
    d.x[u, f] = 31 * a + b + d.w[e]
    d.x[v, f] = (17 * a) ^ b + w_e
    return True


@fg.vertex
def is_open(f, v, d):
    return v % 5 != 3


PROGRAMS = {
    "mix": fg.foldmap(mix),
    "mix_all": fg.foldmap(mix_all),
    "mix_targets": fg.foldmap(mix_targets),
    "mix_given": fg.foldmap(mix_given),
    "filtered": fg.foldmap(is_open, mix_all),
}


KINDS = ("directed", "undirected", "sides")
ANY = ("serial", "levels", "matching_edges", "edge_locked", "ticketed")
#: Whose order differs from run to run.
UNORDERED = {"edge_locked", "node_locked", "hybrid", "hubs apart"}
TWO_SIDES: dict[str, dict[str, Any]] = {
    "blocks": {"parts": 3},
    "matching_nodes": {"block_vertices": 3},
    "subgraph_matching": {"block_vertices": 3},
    "diagonal": {},
    "block_diagonal": {"block_vertices": 3},
    "node_locked": {},
    "hybrid": {"tries": 1},
    "hubs apart": {"schedule": "hybrid", "hubs": 3},
}
#: Schedules whose results equal those of `serial` bit by bit.
SERIAL = {"levels", "rows", "ticketed"}


def schedules_of(name: str, kind: str, scale: int = 1) -> dict[str, dict[str, Any]]:
    """Return the schedules of a program with their options; sizes are scaled."""
    found = {s: {"schedule": s} for s in (*ANY, *["rows"] * (name == "mix_targets"))}
    for schedule, own in TWO_SIDES.items() if kind == "sides" else ():
        sizes = {n: scale * own[n] for n in own if n not in {"schedule", "tries"}}
        found[schedule] = {"schedule": schedule} | own | sizes
    return found


CASES = [
    (name, kind, schedule)
    for name in PROGRAMS
    for kind in KINDS
    for schedule in schedules_of(name, kind)
]


def graph_of(kind: str, count: int, edges: int, seed: int) -> fg.Graph:
    """Return a random graph with hubs: "directed", "undirected" or "sides"."""
    rng = np.random.default_rng(seed)
    first = max(count // 2, 1)
    sources, targets = rng.integers(0, count, edges), rng.integers(0, count, edges)
    if kind == "sides":
        sources, targets = sources % first, first + targets % max(count - first, 1)
        count = max(count, first + 1)
    hubs = rng.random(edges) < 0.3
    sources[hubs & (rng.random(edges) < 0.5)] = 0
    targets[hubs] = count - 1
    twice = rng.random(edges) < 0.2  # parallel edges
    sources[twice], targets[twice] = sources[:1], targets[:1]
    more: dict[str, Any] = {"sides": (first, count - first)} if kind == "sides" else {}
    return fg.Graph.from_edges(
        sources, targets, vertex_count=count, directed=kind != "undirected", **more
    )


def state_of(graph: fg.Graph, k: int, seed: int = 0, **more: Any) -> fg.State:
    """Return a State for all programs."""
    rng = np.random.default_rng(seed)
    count, given = graph.vertex_count, graph.given_edge_count
    both = {} if graph.directed else {"per_direction": True}
    rows = given if graph.directed else 2 * given
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(-99, 99, (count, k))),
        y=fg.vertex_property(rng.integers(-99, 99, (count, k))),
        n=fg.vertex_property(rng.integers(-99, 99, count)),
        w=fg.edge_property(rng.integers(0, 99, given)),
        runs=fg.edge_property(np.zeros(rows, np.int64), **both),
        turn=fg.edge_property(np.zeros((rows, 2), np.int32), **both),
        **more,
    )


def order_of(graph: fg.Graph, turns: Any) -> list[int]:
    """Return the rows of edges in an order that turns imply.

    Raises
    ------
    AssertionError
        If turns at a vertex are not all numbers from 0 on, or imply a cycle.
    """
    sources, targets = graph.sources.tolist(), graph.targets.tolist()
    if not graph.directed:
        sources, targets = sources + targets, targets + sources
    at: dict[int, dict[int, int]] = defaultdict(dict)
    given = graph.given_edge_count
    rows = [row for row, turn in enumerate(turns.tolist()) if max(turn) >= 0]
    # The twin of a self-loop is that loop.
    rows = [row for row in rows if row < given or sources[row] != targets[row]]
    for row in rows:
        ends = zip((sources[row], targets[row]), turns[row].tolist(), strict=True)
        for end, turn in set(ends):
            if turn >= 0:
                assert turn not in at[end], f"two edges have turn {turn} at {end}"
                at[end][turn] = row
    behind: dict[int, list[int]] = defaultdict(list)
    before = dict.fromkeys(rows, 0)
    for end, by_turn in at.items():
        assert sorted(by_turn) == list(range(len(by_turn))), f"turns at {end}"
        for turn in range(1, len(by_turn)):
            behind[by_turn[turn - 1]].append(by_turn[turn])
            before[by_turn[turn]] += 1
    order, free = [], deque(row for row, count in before.items() if not count)
    while free:
        order.append(row := free.popleft())
        for later in behind[row]:
            before[later] -= 1
            if not before[later]:
                free.append(later)
    assert len(order) == len(rows), "the order of edges has a cycle"
    return order


def run(
    name: str, graph: fg.Graph, k: int, target: str, active: Any = None, **options: Any
) -> tuple[fg.State, Any]:
    """Run a program with its order recorded; return State and active set."""
    state = state_of(graph, k)
    committed = PROGRAMS[name](
        state, active_in=active, target=target, record_order="turn", **options
    )
    return state, committed


def check_run(
    step: Any, state: fg.State, committed: Any, active: Any = None, seed: int = 0
) -> list[int]:
    """See that a run of a foldmap, or of one by name, was serialisable and exact.

    Returns its order.
    """
    graph, k = state.graph, state["x"].shape[1]
    order = order_of(graph, state["turn"])
    given = reference.from_state(state_of(graph, k, seed))
    out = reference.superstep(
        PROGRAMS.get(step, step).program, *given, active=active, order=order,
        record_order="turn",
    )  # fmt: skip
    for of in ("turn", "x", "n", "y", "runs"):
        np.testing.assert_array_equal(state[of], out.values[of], err_msg=of)
    assert committed.vertices.tolist() == out.active_out.vertices.tolist()
    return order


@fg.edge(exclusive=True)
def learn(f, u, v, e, d):
    p = d.x[u, f]
    q = d.x[v, f]
    a = d.bias[u]
    b = d.bias[v]
    miss = d.rating[e] - (d.mean + a + b + fg.dot(p, q))
    d.x[u, f] = p + d.rate * (miss * q - d.ridge * p)
    d.x[v, f] = q + d.rate * (miss * p - d.ridge * q)
    d.bias[u] = a + d.rate * (miss - d.ridge * a)
    d.bias[v] = b + d.rate * (miss - d.ridge * b)
    return True


LEARN = fg.foldmap(learn)


def factors_of(graph: fg.Graph, k: int, dtype: Any = np.float32) -> fg.State:
    """Return a State of factors for `LEARN`."""
    rng = np.random.default_rng(3)
    count, rows = graph.vertex_count, graph.given_edge_count
    both = {} if graph.directed else {"per_direction": True}
    return fg.State(
        graph,
        x=fg.vertex_property(rng.normal(0, 0.5, (count, k)).astype(dtype)),
        bias=fg.vertex_property(rng.normal(0, 0.5, count).astype(dtype)),
        rating=fg.edge_property(rng.integers(1, 6, rows).astype(dtype)),
        turn=fg.edge_property(
            np.zeros((rows if graph.directed else 2 * rows, 2), np.int32), **both
        ),
        mean=3.0, rate=0.05, ridge=0.1,
    )  # fmt: skip


def descend(
    edges: Any, x: Any, bias: Any, mean: float, rate: float, ridge: float, *,
    ends: int = 2, has_biases: bool = True, least: float = -np.inf,
) -> None:  # fmt: skip
    """Take the steps of SGD for edges (u, v, rating), at both ends or u, in place."""
    for u, v, rating in edges:
        p, q, a, b = x[u].copy(), x[v].copy(), bias[u], bias[v]
        miss = rating - (mean + a + b + p @ q)
        for end, row, other, own in ((u, p, q, a), (v, q, p, b))[:ends]:
            x[end] = np.maximum(row + rate * (miss * other - ridge * row), least)
            bias[end] = own + rate * (miss - ridge * own) * has_biases


def learned(state: fg.State, order: list[int]) -> dict[str, Any]:
    """Return the result of `learn` in float64, computed edge by edge."""
    graph = state.graph
    x, bias = state["x"].astype(np.float64), state["bias"].astype(np.float64)
    ends = np.c_[graph.sources, graph.targets]
    ends, ratings = np.r_[ends, ends[:, ::-1]], np.tile(state["rating"], 2)
    edges = ((*ends[row], ratings[row]) for row in order)
    descend(edges, x, bias, 3.0, 0.05, 0.1)
    return {"x": x, "bias": bias}


def check_learning(graph: fg.Graph, k: int, target: str, **options: Any) -> fg.State:
    """Run `LEARN`, and compare with float64 in the order that it has recorded."""
    state = factors_of(graph, k)
    LEARN(state, target=target, record_order="turn", **options)
    order = order_of(graph, state["turn"])
    meant = learned(factors_of(graph, k), order)
    chain = 1 + max(int(state["turn"].max(initial=0)), 0)
    for name, values in meant.items():
        largest = max(abs(values).max(initial=0), 1)
        bound = (k + 8) * np.finfo(np.float32).eps * chain * largest
        np.testing.assert_allclose(state[name], values, rtol=0, atol=bound)
    return state


def check_levels(graph: fg.Graph, k: int, target: str) -> None:
    """See that `levels` and `serial` learn the same bits."""
    names = "serial", "levels"
    one, other = (check_learning(graph, k, target, schedule=name) for name in names)
    for name in ("x", "bias"):
        np.testing.assert_array_equal(one[name], other[name])


def replayed(graph: fg.Graph, k: int, order: list[int]) -> dict[str, Any]:
    """Return the result of `mix_all` on `state_of`, computed edge by edge in NumPy.

    For directed graphs.
    """
    state = state_of(graph, k)
    x, n, w = (state[name].copy() for name in ("x", "n", "w"))
    sources, targets = graph.sources.tolist(), graph.targets.tolist()
    with np.errstate(over="ignore"):
        for row in order:
            u, v = sources[row], targets[row]
            a, b, old, m = x[u].copy(), x[v].copy(), n[u], n[v]
            s = (a ^ b).sum()
            if s % 2 == 0:
                n[u] = 3 * old + m + 1
            x[u] = 31 * a + b + w[row] + s
            x[v] = (17 * a) ^ (b + m)
            n[v] = 5 * m + old + s
    return {"x": x, "n": n}

"""Sums of many terms err little, and have the same bits for any number of threads."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan.traits import SUM_BLOCK
from featgraph.runtime.devices import host_arrays

#: The leaves of a star, and its vertices: many more than a block has.
LEAVES = 120_000
EPS = float(np.finfo(np.float32).eps)


def plus(a, b):
    return a + b


@fg.gather(into="total", combine="sum")
def sum_leaves(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="own", combine=fg.combine(plus, identity=0.0))
def combine_leaves(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="products", combine="sum", matrix=True)
def sum_products(i, f, u, v, e, d):
    return d.x[u, i] * d.x[u, f]


@fg.gather(into="others", combine="sum", matrix=True)
def sum_matrices(i, f, u, v, e, d):
    return max(d.x[u, i], d.x[u, f])


@fg.gather(into="largest", combine="max")
def largest_leaf(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def keep(f, v, d):
    d.sum[v, f] = d.total[v, f]
    d.own_sum[v, f] = d.own[v, f]
    d.top[v, f] = d.largest[v, f]
    d.square[v, f] = d.products[v, f, f]
    d.other[v, f] = d.others[v, f, f]
    return True


@fg.reduce(into="everything", combine="sum")
def sum_all(f, v, d):
    return d.x[v, f]


@fg.reduce(into="gram", combine="sum", matrix=True)
def sum_all_products(i, f, v, d):
    return d.x[v, i] * d.x[v, f]


@fg.vertex
def move(f, v, d):
    d.x_next[v, f] = d.x[v, f] * d.factor
    return d.moves[v]


@fg.vertex
def store(f, v, d):
    d.sum[v, f] = d.total[v, f]
    return True


step = fg.foldmap(
    sum_all,
    sum_all_products,
    sum_leaves,
    combine_leaves,
    largest_leaf,
    sum_products,
    sum_matrices,
    keep,
)
kept = fg.foldmap(sum_leaves, store, move)


def star() -> fg.Graph:
    leaves = np.arange(1, LEAVES + 1)
    return fg.Graph.from_edges(leaves, np.zeros_like(leaves))


@pytest.fixture(scope="module")
def graph() -> fg.Graph:
    return star()


def terms(kind: str, k: int, rng: np.random.Generator) -> Any:
    if kind == "equal":
        return np.full((LEAVES + 1, k), 0.1, np.float32)
    x = rng.random((LEAVES + 1, k), np.float32)
    if kind == "alternating":
        x[::2] *= -1
    return x


def state_of(graph: fg.Graph, x: Any) -> fg.State:
    results = {
        name: fg.vertex_property(np.zeros_like(x))
        for name in ("sum", "own_sum", "top", "square", "other")
    }
    return fg.State(graph, x=fg.vertex_property(x), **results)


def exact(x: Any) -> Any:
    return np.array([math.fsum(column) for column in x.astype(np.float64).T.tolist()])


def bound(x: Any) -> Any:
    """Return how far a sum may be off: a block's terms, and those of blocks."""
    steps = SUM_BLOCK + math.log2(len(x)) + 40
    return steps * EPS * np.abs(x).sum(axis=0, dtype=np.float64)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", ["equal", "positive", "alternating"])
@pytest.mark.parametrize("k", [3, 18])
def test_many_terms(
    kind: str, k: int, graph: fg.Graph, target: str, rng: np.random.Generator
) -> None:
    x = terms(kind, k, rng)
    state = state_of(graph, x)
    step(state, target=target)
    leaves = x[1:]
    for name, summed in {
        "sum": leaves,
        "own_sum": leaves,
        "square": leaves.astype(np.float64) ** 2,
        "other": leaves,
    }.items():
        off = np.abs(state[name][0] - exact(summed))
        assert (off <= bound(summed)).all(), name
    np.testing.assert_array_equal(state["top"][0], leaves.max(axis=0))
    assert (np.abs(state["everything"] - exact(x)) <= bound(x)).all()
    gram = np.einsum("vi,vf->if", x, x, dtype=np.float64)
    assert np.abs(state["gram"] - gram).max() <= bound(x.astype(np.float64) ** 2).max()
    if kind == "equal":
        assert np.abs(state["sum"][0] / exact(leaves) - 1).max() <= 1e-5


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [3, 18])
def test_patched_and_recomputed_sums(
    k: int, graph: fg.Graph, target: str, rng: np.random.Generator
) -> None:
    x = terms("positive", k, rng)
    moves = rng.random(LEAVES + 1) < 0.3
    state = fg.State(
        graph,
        x=fg.vertex_property(x, iterated=True),
        sum=fg.vertex_property(np.zeros_like(x)),
        moves=fg.vertex_property(moves),
        factor=0.5,
    )
    with pytest.warns(fg.ConvergenceWarning):
        run = fg.iterate(
            kept, state, target=target, change_driven=True, max_supersteps=3
        )
    assert "patched" in run.aggregates
    expected = x.astype(np.float64)
    expected[moves] *= 0.25
    off = np.abs(state["sum"][0] - exact(expected[1:]))
    assert (off <= 3 * bound(x[1:])).all()


def test_same_bits_for_any_number_of_threads(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = terms("alternating", 3, rng)
    most, found = numba.config.NUMBA_NUM_THREADS, []
    before = numba.get_num_threads()
    for threads in (1, 2, 3):
        numba.set_num_threads(min(threads, most))
        with monkeypatch.context() as patch:
            # Chunks are cut for so many threads, however many there are.
            patch.setattr(numba, "get_num_threads", lambda n=threads: n)
            state = state_of(star(), x)
            step(state, target="cpu")
        found.append({n: np.array(state[n]).tobytes() for n in state})
    numba.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_a_reduce_of_chunks_of_any_size(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = terms("positive", 1, rng)
    for chunks in (1, 2, 7, 512):
        monkeypatch.setattr(host_arrays, "REDUCE_CHUNKS", chunks)
        state = state_of(star(), x)
        step(state, target="cpu")
        assert (np.abs(state["everything"] - exact(x)) <= bound(x)).all()

"""Reduces of reals with ``deterministic=True``: one digest, however a graph is cut."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.distributed import run_ranks
from featgraph.runtime.devices.fixed_trees import (
    combine_all,
    combine_groups,
    nodes_of,
)
from tests.strategies import examples, seeds

#: Vertices: more than a block of blocks.
V = 1157


@fg.reduce(into="mass", combine="sum")
def mass(f, v, d):
    return d.x[v, f] * d.scale[v]


@fg.reduce(into="spread", combine="product")
def spread(f, v, d):
    return 1 + 0.01 * d.x[v, f]


@fg.reduce(into="total", combine="sum")
def total(f, v, d):
    return d.scale[v] * d.scale[v]


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):
    return d.x[v, i] * d.x[v, f]


@fg.gather(into="around", combine="sum")
def around(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def move(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + d.mass[f] / 4000 + 0.01 * d.around[v, f]
    return abs(d.x_next[v, f] - d.x[v, f]) > 1e-3


@fg.vertex
def grow(f, v, d):
    d.scale[v] = d.scale[v] + (d.gram[0, 0] + d.gram[1, 0] + d.gram[2, 0]) * 1e-5
    return True


step = fg.foldmap(mass, gram, around, grow, move, spread, total)


def make_graph() -> fg.Graph:
    ends = np.random.default_rng(0).integers(0, V, (2, 4 * V))
    return fg.Graph.from_edges(*ends, vertex_count=V)


WHOLE = make_graph()


def digest_of_runs(graph: fg.Graph, seed: int, dtype: Any, **options: Any) -> str:
    """Return a digest of all values behind some runs."""
    rng = np.random.default_rng(seed)
    state = fg.State(
        graph,
        x=fg.vertex_property(rng.random((V, 3)).astype(dtype), iterated=True),
        scale=fg.vertex_property(rng.random(V).astype(dtype)),
    )
    options = {"target": "cpu", "deterministic": True, **options}
    found = hashlib.blake2b(digest_size=16)
    some = np.flatnonzero(rng.random(V) < 0.3)
    run = fg.iterate(step, state, max_supersteps=3, **options)
    for again in (step, step.on(some), step.on([4])):
        for name in ("x", "scale", "mass", "spread", "total", "gram"):
            found.update(np.ascontiguousarray(state[name]).tobytes())
        again(state, **options)
    found.update(repr(run.active_counts).encode())
    return found.hexdigest()


EXPECTED: dict[Any, str] = {}


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@examples(4, 6)
@given(
    seed=st.integers(0, 2),
    dtype=st.sampled_from([np.float32, np.float64]),
    inner=st.lists(st.integers(0, V) | st.integers(0, 36).map(lambda n: 32 * n),
                   max_size=3).map(sorted),
    order=st.sampled_from(["given", "given", "spread", "locality", "reversed"]),
)  # fmt: skip
def test_one_digest_on_any_number_of_ranks(
    seed: int, dtype: Any, inner: list[int], order: str
) -> None:
    cuts = [0, *inner, V]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order
    key = seed, dtype
    if key not in EXPECTED:
        EXPECTED[key] = digest_of_runs(WHOLE, *key)
    found = run_ranks(
        len(cuts) - 1,
        lambda _: digest_of_runs(
            fg.distribute(WHOLE, order=given_order, cuts=cuts), *key
        ),
    )
    assert set(found) == {EXPECTED[key]}


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_without_it_digests_differ() -> None:
    """So the test above would see sums in another order."""
    alone = digest_of_runs(WHOLE, 0, np.float32, deterministic=False)
    found = run_ranks(
        3,
        lambda _: digest_of_runs(
            fg.distribute(WHOLE), 0, np.float32, deterministic=False
        ),
    )
    assert alone not in found


ALGORITHMS = {
    "pagerank": lambda g, **o: al.pagerank(g, **o).ranks,
    "renormalized": lambda g, **o: al.pagerank(g, dangling="renormalize", **o).ranks,
    "eigenvector": lambda g, **o: al.eigenvector_centrality(g, **o).centralities,
    "hits": lambda g, **o: al.hits(g, tol=1e-3, **o).hubs,
    "katz": lambda g, **o: al.katz_centrality(g, alpha=0.01, **o).centralities,
}


@pytest.mark.slow
@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_have_one_digest(name: str) -> None:
    run = ALGORITHMS[name]
    alone = run(WHOLE, deterministic=True, target="cpu")
    for ranks, order in ((2, "given"), (3, "spread"), (4, "locality")):
        for found in run_ranks(
            ranks,
            lambda _, order=order: run(
                fg.distribute(WHOLE, order=order), deterministic=True, target="cpu"
            ),
        ):
            np.testing.assert_array_equal(found, alone)


@given(seeds, st.integers(1, 40_000), st.integers(1, 5), st.sampled_from(["f4", "f8"]))
def test_a_tree_is_one_however_it_is_cut(
    seed: int, count: int, ranks: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    blocks = rng.normal(size=(count, 2)).astype(dtype)
    meant = blocks
    while len(meant) > 1:
        meant = combine_groups(meant, np.add)
    cuts = np.sort([0, *rng.integers(0, count + 1, ranks - 1), count])
    nodes = [
        node
        for begin, end in pairwise(cuts)
        for node in nodes_of(int(begin), blocks[begin:end], np.add)
    ]
    found = combine_all(nodes, count, np.add)
    assert found.tobytes() == meant[0].tobytes()
    assert len(nodes) <= 8 * ranks
    assert all(len(node.rows) < 32 for node in nodes)


def test_a_combine_of_the_users_is_refused_on_ranks() -> None:
    def hypotenuse(a, b):
        return (a * a + b * b) ** 0.5

    @fg.reduce(into="length", combine=fg.combine(hypotenuse, identity=0.0))
    def length(f, v, d):
        return d.x[v, f]

    step = fg.foldmap(length)

    def on(graph: fg.Graph) -> fg.State:
        return fg.State(graph, x=fg.vertex_property(np.ones((V, 3))))

    step(on(WHOLE), deterministic=True, target="cpu")

    def on_a_rank(engine: Any) -> None:
        state = on(fg.distribute(WHOLE))
        step(state, target="cpu")
        with pytest.raises(
            fg.PlanError, match=r"test_in_a_tree.*ranks combine length by"
        ):
            step(state, deterministic=True, target="cpu")

    run_ranks(2, on_a_rank)


def test_explain_shows_how_it_is_summed() -> None:
    kernel = step.fold(target="cpu", deterministic=True, k=3)
    assert "sums: of 32 vertices, in a tree of 32 branches" in kernel.explain()

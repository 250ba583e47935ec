"""Reduces in a tree on an emulated GPU: one digest on any number of its ranks."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.config import config
from featgraph.runtime.devices import cuda_trees
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.cuda_trees import JoinTables
from featgraph.runtime.devices.fixed_trees import Subtree, combine_groups, join
from tests.ranks.forced import loops
from tests.simt.gpu import Gpu

V, K = 81, 2


@settings(max_examples=8, deadline=None)
@example(count=1025, inner=[31, 40], width=1, dtype="float64", pair=np.add, one_block=2)
@example(count=2, inner=[0], width=1, dtype="f4", pair=np.multiply, one_block=1 << 9)
@given(
    count=st.integers(1, 1100),
    inner=st.lists(st.integers(0, 1100), max_size=3),
    width=st.integers(1, 2),
    dtype=st.sampled_from(["float32", "float64"]),
    pair=st.sampled_from([np.add, np.multiply]),
    one_block=st.sampled_from([1, 1 << 9]),
)
def test_a_tree_is_that_of_the_host(
    gpu: Gpu,
    count: int,
    inner: list[int],
    width: int,
    dtype: str,
    pair: Any,
    one_block: int,
) -> None:
    """Of ranks that have some neighboring blocks each, or none."""
    device, rng = choose_device("cuda"), np.random.default_rng(count)
    blocks = (1 + 1e-3 * rng.normal(size=(count, width))).astype(dtype)
    meant = blocks
    while len(meant) > 1:
        meant = combine_groups(meant, pair)
    cuts = np.sort([0, *(min(i, count) for i in inner), count]).tolist()
    parts = [Subtree(begin, end, count) for begin, end in pairwise(cuts)]
    joined = join(parts)
    every = np.zeros(joined.firsts[-1] * width, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_trees, "_ONE_BLOCK", one_block)
        trees = cuda_trees.CudaTrees(device)
        for part, first in zip(parts, joined.firsts, strict=False):
            memory = np.zeros((max(part.row_count, 1), width), dtype)
            memory[: part.end - part.begin] = blocks[part.begin : part.end]
            nodes = device.upload(every)
            trees.climb(device.upload(memory), part, first, nodes, pair)
            every = every + device.download(nodes)
    work = device.working_memory((max(len(joined.children), 1), width), dtype)
    result = device.empty((width,), dtype)
    tables = JoinTables.of(joined, device)
    trees.join(device.upload(every), work, tables, result, pair)
    assert device.download(result).tobytes() == meant[0].tobytes()


@fg.reduce(into="mass", combine="sum")
def mass(f, v, d):
    return d.x[v, f] * d.scale[v]


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):
    return d.x[v, i] * d.x[v, f]


@fg.vertex
def move(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.01 * d.mass[f] + 0.01 * d.gram[f, 0]
    return True


@fg.reduce(into="spread", combine="product")
def spread(f, v, d):
    return 1 + 0.01 * d.x_next[v, f]


@fg.reduce(into="residual", combine="sum")
def residual(f, v, d):
    return abs(d.x_next[v, 0] - d.x[v, 0]) * d.scale[v]


@fg.reduce(into="most", combine="max")
def most(f, v, d):
    return d.x_next[v, 0]


step = fg.foldmap(mass, gram, move, spread, residual, most)


def make_graph() -> fg.Graph:
    ends = np.random.default_rng(0).integers(0, V, (2, 30))
    return fg.Graph.from_edges(*ends, vertex_count=V)


WHOLE = make_graph()


def digest_of_runs(graph: fg.Graph, dtype: Any, supersteps: int, **options: Any) -> str:
    """Return a digest of all values behind some supersteps."""
    rng = np.random.default_rng(1)
    state = fg.State(
        graph,
        x=fg.vertex_property(rng.random((V, K)).astype(dtype), iterated=True),
        scale=fg.vertex_property(rng.random(V).astype(dtype)),
    )
    options = {"target": "cuda", "deterministic": True, **options}
    found = hashlib.blake2b(digest_size=16)
    fg.iterate(step, state, max_supersteps=supersteps, **options)
    if supersteps == 1:
        step.on(np.flatnonzero(rng.random(V) < 0.3))(state, **options)
    for name in ("x", "mass", "gram", "spread", "residual", "most"):
        found.update(np.ascontiguousarray(state[name]).tobytes())
    return found.hexdigest()


EXPECTED: dict[Any, str] = {}


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(max_examples=2, deadline=None)
@example(dtype="float32", inner=[32], order="given", link="auto")
@example(dtype="float64", inner=[0, 64], order="given", link="host")
@example(dtype="float64", inner=[33, 33], order="spread", link="engine")
@given(
    dtype=st.sampled_from(["float32", "float64"]),
    inner=st.lists(st.integers(0, V) | st.sampled_from([32, 64]), max_size=3),
    order=st.sampled_from(["given", "given", "spread", "locality", "reversed"]),
    link=st.sampled_from(["auto", "engine", "host"]),
)
def test_one_digest_on_any_number_of_ranks(
    gpu: Gpu, dtype: str, inner: list[int], order: str, link: str
) -> None:
    cuts = [0, *sorted(inner), V]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order
    if dtype not in EXPECTED:
        EXPECTED[dtype] = digest_of_runs(WHOLE, dtype, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "gpu_links", link)
        found = run_ranks(
            len(cuts) - 1,
            lambda _: digest_of_runs(
                fg.distribute(WHOLE, order=given_order, cuts=cuts), dtype, 1
            ),
        )
    assert set(found) == {EXPECTED[dtype]}


@pytest.mark.drawn(2)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize(
    "cuts", [[0, 32, V], pytest.param([0, 40, V], marks=pytest.mark.slow)]
)
def test_one_digest_where_supersteps_run_in_a_loop(cuts: list[int]) -> None:
    """Whose end depends on a residual, which is left on the device."""

    def run(graph: fg.Graph) -> tuple[str, int]:
        rng = np.random.default_rng(1)
        state = fg.State(
            graph,
            x=fg.vertex_property(rng.random((V, 1)).astype("f4"), iterated=True),
            scale=fg.vertex_property(rng.random(V).astype("f4")),
        )
        ended = fg.iterate(
            halve, state, until=fg.below("residual", 1e-2), target="cuda",
            deterministic=True,
        )  # fmt: skip
        return state["x"].tobytes().hex(), ended.supersteps

    halve = fg.foldmap(mass, move_alone, residual)
    with loops() as made:
        whole = make_graph()
        alone = run(whole)
        before = len(made.loops)
        found = run_ranks(len(cuts) - 1, lambda _: run(fg.distribute(whole, cuts=cuts)))
        assert sum(loop.ran for loop in made.loops[before:]) >= 4
    assert set(found) == {alone}


@fg.vertex
def move_alone(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 1e-3 * d.mass[f]
    return True

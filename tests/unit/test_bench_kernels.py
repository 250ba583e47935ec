"""The hand-written kernels of the benches compute what featgraph computes.

They run on the host, thread by thread: see ``bench/baselines/kernels/on_host.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from bench.baselines import handwritten
from bench.graphs import make_graph
from bench.learning import by_hand
from bench.learning.problems import NAMES, LearningProblem, make_problem
from bench.sgd.sweeps import state_of
from featgraph.cuda import dialect
from featgraph.runtime.devices.choose import choose_device

needs_host_compiler = pytest.mark.skipif(
    not handwritten.has_host_compiler(), reason="needs g++"
)


def folded_supersteps(problem: LearningProblem, count: int) -> Any:
    device = choose_device("cpu")
    problem.reset(device)
    run = fg.iterate(
        problem.steps,
        problem.state,
        target="cpu",
        callback=lambda r, _: r.supersteps == count,
    )
    assert run.supersteps == count
    return problem.answer(), run.active_counts


@needs_host_compiler
@pytest.mark.parametrize("name", [*NAMES, "BP-E"])
def test_sweeps_agree(name: str) -> None:
    problem = make_problem(name, make_graph("kron-7").graph, 4)
    sweep = by_hand.Sweep(problem, handwritten.Host())
    counts = []
    for _ in range(4):
        sweep.launch()
        counts.append(sweep.committed())
    expected, committed = folded_supersteps(problem, 4)
    np.testing.assert_allclose(sweep.answer(), expected, rtol=2e-4, atol=2e-6)
    assert counts == committed


@pytest.mark.drawn(4)
@needs_host_compiler
@pytest.mark.parametrize(("name", "k"), [("LP", 4), ("LP", 32), ("BP", 4), ("BP", 32)])
def test_folded_kernels_agree(
    name: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_hand, "HUB_DEGREE", 40)
    problem = make_problem(name, make_graph("kron-7").graph, k)
    folded = by_hand.Folded(problem, handwritten.Host())
    assert folded.hub_count > 0
    for _ in range(2):
        folded.launch()
    expected, committed = folded_supersteps(problem, 2)
    np.testing.assert_allclose(folded.answer(), expected, rtol=2e-4, atol=2e-6)
    assert folded.committed() == committed[-1]


@needs_host_compiler
def test_sweep_ends_where_featgraph_ends() -> None:
    problem = make_problem("ALS", make_graph("grid8").graph, 4)
    sweep = by_hand.Sweep(problem, handwritten.Host())
    problem.reset(choose_device("cpu"))
    run = fg.iterate(problem.steps, problem.state, target="cpu", max_supersteps=400)
    supersteps, converged = sweep.iterate(400)
    assert run.converged
    assert converged
    assert abs(supersteps - run.supersteps) <= 2
    difference = np.abs(sweep.answer() - problem.answer()).max()
    assert difference <= 5 * problem.epsilon


@needs_host_compiler
@pytest.mark.parametrize("blocks", [1, 3])
def test_locked_sgd_runs_each_edge_once(blocks: int) -> None:
    graph = fg.Graph.from_edges(*_rated_pairs(), sides=(40, 12))
    state = state_of(graph, 16)
    x, rating = (np.array(state[name], np.float64) for name in ("x", "rating"))
    sweep = by_hand.EdgeLocked(state, handwritten.Host())
    sweep.launch(blocks)
    gained = np.zeros_like(x)  # to first order in the rate, in any order of the edges
    p, q = x[graph.sources], x[graph.targets]
    miss = (rating - np.einsum("ek,ek->e", p, q))[:, None]
    np.add.at(gained, graph.sources, miss * q - 0.05 * p)
    np.add.at(gained, graph.targets, miss * p - 0.05 * q)
    np.testing.assert_allclose(
        (sweep.answer() - x) / 1e-3, gained, rtol=0.03, atol=0.03
    )


def _rated_pairs() -> Any:
    """Return 150 pairs of 40 users and 12 items, one of which has all users."""
    rng = np.random.default_rng(3)
    pairs = {(user, 40) for user in range(40)}
    while len(pairs) < 150:
        pairs.add((int(rng.integers(40)), int(rng.integers(40, 52))))
    return np.array(sorted(pairs), np.int32)[rng.permutation(150)].T


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda")
@pytest.mark.parametrize(
    ("file", "defines"),
    [
        ("sweep", {}),
        ("folded_lp", {"K": 4, "G": 32}),
        ("folded_lp", {"K": 32, "G": 32}),
        ("folded_bp", {"K": 4, "G": 32}),
        ("folded_bp", {"K": 32, "G": 32}),
        ("sgd", {}),
    ],
)
def test_kernels_compile_for_a_gpu(file: str, defines: dict[str, int]) -> None:
    used = handwritten.resources(file, **defines)
    assert 0 < used.registers <= 128
    assert used.spill_stores_bytes == 0

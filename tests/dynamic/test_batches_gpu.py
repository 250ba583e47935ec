"""Batches, programs and results on the GPU: what they leave on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms
from tests.algorithms.test_smoke import CASES
from tests.bank import BANK, BankProgram
from tests.dynamic import test_programs
from tests.dynamic.pairs import check_arrays, check_batches, check_triangles
from tests.dynamic.reached import reached
from tests.dynamic.test_programs import ran, require_equal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning"),
]


_IS_DEEP = hypothesis.settings.get_current_profile_name() == "deep"
#: Algorithms that run where the profile is not deep: kernels take long to compile.
SOME = ("bfs", "connected_components", "k_core", "pagerank", "sssp", "triangle_count")


@pytest.mark.parametrize("seed", range(40))
def test_small_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_batches(rng, int(rng.integers(1, 12)), 12, [1, 2, 5, 9, 33, 70])


@pytest.mark.parametrize("seed", range(100, 112))
def test_large_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_batches(rng, 3000, 8, [1, 300, 5000, 40_000])


def test_contended_rounds() -> None:
    """One row gets everything, and single edges come and go within a batch."""
    rng = np.random.default_rng(3)
    both = [
        fg.DynamicGraph.from_edges(
            vertex_count=50, duplicates="last", weights=np.zeros(0), target=target
        )
        for target in ("cpu", "cuda")
    ]
    for number in range(1000):
        count = int(rng.integers(1, 2000))
        ends = rng.integers(0, 3 if number % 2 else 50, (2, count))
        ends[1] = 7
        kinds, weights = rng.random(count) < 0.5, rng.random(count)
        results = [graph.update(*ends, kinds, weights=weights) for graph in both]
        assert repr(results[0]) == repr(results[1])
        if number % 20 == 19:
            one, other = (graph.freeze() for graph in both)
            assert (one.digest, one.weights_digest) == (
                other.digest, other.weights_digest
            )  # fmt: skip
            both[1].audit()


@pytest.mark.parametrize("program", BANK[:: 1 if _IS_DEEP else 8], ids=str)
def test_programs_agree_with_the_frozen_graph(program: BankProgram) -> None:
    rng, k = np.random.default_rng(len(program.name)), program.widths[0]
    graph = reached(rng, 61, directed=not program.undirected, target="cuda")
    graph.audit()
    frozen = graph.freeze()
    (found, _), (wanted, _) = ran(graph, program, k), ran(frozen, program, k)
    for name, value in wanted.items():
        check = require_equal if program.exact else require_alike
        check(found[name], value, name)


def require_alike(found: Any, wanted: Any, name: str) -> None:
    """Require equal numbers, or close ones: plans for the GPU go by the traits."""
    if np.asarray(wanted).dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, 1e-3, 1e-5, err_msg=name)
    else:
        require_equal(found, wanted, name)


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_programs, "require_equal", require_alike)


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("name", CASES if _IS_DEEP else SOME)
def test_algorithms(name: str) -> None:
    test_programs.test_algorithms_have_the_answers_of_the_frozen_graph(name)


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("name", test_programs.WEIGHTED[:2])
def test_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_programs.test_algorithms_take_the_column_of_weights(name, monkeypatch)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("pagerank", "ranks"), ("connected_components", "labels"),
     ("triangle_count", "triangles")],
)  # fmt: skip
def test_results_follow(
    name: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ranks of the default tol may differ by more than is required here.
    options = {"tol": 1e-8, "epsilon": 1e-10} if name == "pagerank" else {}
    run, rng = partial(getattr(algorithms, name), **options), np.random.default_rng(11)
    ends = rng.integers(0, 4000, (2, 40_000))
    ends[0, :9000] = 5  # a hub
    graph = fg.DynamicGraph.from_edges(
        *ends, vertex_count=4000, directed=False, duplicates="last", loops="drop",
        target="cuda",
    )  # fmt: skip
    result = run(graph)
    for number in range(10):
        ends = rng.integers(0, 4000, (2, 500))
        if number % 3 == 2:
            ends = np.stack(graph.edges()[:2])[:, rng.integers(0, 20_000, 800)]
        graph.update(*ends, rng.random(ends.shape[1]) < 0.6)
        result.update()
        for other in (run(graph), run(graph.freeze())):
            require_alike(getattr(result, answer), getattr(other, answer), answer)
    graph.audit()


@pytest.mark.parametrize("seed", range(4))
def test_triangles_of_long_rows(seed: int) -> None:
    part = (7, 100, 8192, 64)[seed]
    check_triangles(
        np.random.default_rng(seed), 300, 600, chunk=min(part, 4096), part=part
    )


def test_arrays_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes what other libraries have on the GPU."""
    from numba import cuda

    check_arrays(monkeypatch, cuda.to_device, 500, 3000, [])

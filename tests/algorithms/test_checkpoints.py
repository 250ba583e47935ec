"""Every algorithm and estimator goes on from checkpoints, with the bits of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms as al
from featgraph.base import files
from featgraph.distributed import run_ranks
from featgraph.runtime.checkpoints.public import Session

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
V, E = 100, 230
NEVER = -1


def make_graph(directed: bool) -> fg.Graph:
    pairs = np.random.default_rng(3).permutation(V * (V - 1) // 2)[:E]
    above = np.triu_indices(V, 1)
    return fg.Graph.from_edges(
        above[0][pairs], above[1][pairs], vertex_count=V, directed=directed
    )


def rings() -> fg.Graph:
    """Return rings in a row, joined by edges one way: components of many rounds."""
    ring = np.arange(V - V % 8)
    ahead = np.where(ring % 8 == 7, ring - 7, ring + 1)
    sources = np.concatenate([ring, ring[:-8:2]])
    targets = np.concatenate([ahead, ring[:-8:2] + 8])
    return fg.Graph.from_edges(sources, targets, vertex_count=V)


DIRECTED, UNDIRECTED = make_graph(True), make_graph(False)
rng = np.random.default_rng(5)
SEEDS = np.where(np.arange(V) % 9 == 0, np.arange(V) % 3, -1)
RATINGS = sparse.random(12, 9, 0.5, "csr", random_state=1) * 5
WEIGHTS = rng.integers(1, 6, E).astype(float)
MODALS = rng.integers(1, 5, (E, 2)).astype(float)
HELD = np.where(np.arange(V) % 20 == 0, np.arange(V) * 1.0, np.nan)
MODEL = fg.FactorGraph(
    {"a": 2, "b": 2, "c": 2},
    [
        (("a",), [0.3, 0.7]),
        (("a", "b"), [[1, 2], [3, 1]]),
        (("b", "c"), [[2, 1], [1, 4]]),
    ],
)


def fit_labels(**options: Any) -> Any:
    return al.LabelPropagation(tol=1e-4, **options).fit(UNDIRECTED, SEEDS)


def fit_ratings(**options: Any) -> Any:
    return al.AlternatingLeastSquares(3, iterations=3, **options).fit(RATINGS)


def fit_by_steps(**options: Any) -> Any:
    return al.MatrixFactorization(3, epochs=5, **options).fit(RATINGS)


CALLS: dict[str, Callable[..., Any]] = {
    "AlternatingLeastSquares": fit_ratings,
    "LabelPropagation": fit_labels,
    "MatrixFactorization": fit_by_steps,
    "als": lambda **o: al.als(RATINGS, factors=3, iterations=3, history=True, **o),
    "belief_propagation": lambda **o: al.belief_propagation(
        UNDIRECTED, np.ones((V, 2)) + np.eye(2)[np.arange(V) % 2],
        [[0.8, 0.2], [0.2, 0.8]], damping=0.3, **o,
    ),
    "betweenness_centrality": lambda **o: al.betweenness_centrality(
        DIRECTED, sources=np.arange(10), batch=4, endpoints=True, **o
    ),
    "bfs": lambda **o: al.bfs(DIRECTED, [0, 3], **o),
    "circuit_simulation": lambda **o: al.circuit_simulation(
        fg.Graph.from_edges(np.arange(V - 1), np.arange(1, V), directed=False),
        HELD, max_supersteps=9, **o,
    ),
    "closeness_centrality": lambda **o: al.closeness_centrality(
        DIRECTED, np.arange(9), batch=3, **o
    ),
    "clustering": lambda **o: al.clustering(UNDIRECTED, **o),
    "connected_components": lambda **o: al.connected_components(
        UNDIRECTED, method="propagate", **o
    ),
    "eigenvector_centrality": lambda **o: al.eigenvector_centrality(UNDIRECTED, **o),
    "factor_propagation": lambda **o: al.factor_propagation(MODEL, **o),
    "gradient_factorization": lambda **o: al.gradient_factorization(
        RATINGS, factors=3, iterations=3, history=True, **o
    ),
    "sgd_factorization": lambda **o: al.sgd_factorization(
        RATINGS, factors=3, epochs=6, decay=0.1, history=True, validation=RATINGS, **o
    ),
    "heat_simulation": lambda **o: al.heat_simulation(
        UNDIRECTED, np.arange(V) * 1.0, max_supersteps=12, **o
    ),
    "hits": lambda **o: al.hits(DIRECTED, max_iter=20, **o),
    "k_core": lambda **o: al.k_core(UNDIRECTED, **o),
    "k_truss": lambda **o: al.k_truss(UNDIRECTED, **o),
    "katz_centrality": lambda **o: al.katz_centrality(DIRECTED, **o),
    "label_propagation": lambda **o: al.label_propagation(UNDIRECTED, SEEDS, **o),
    "label_set_propagation": lambda **o: al.label_set_propagation(
        UNDIRECTED, np.stack([SEEDS, SEEDS[::-1]], axis=1), **o
    ),
    "multi_manifold_ranking": lambda **o: al.multi_manifold_ranking(
        UNDIRECTED, np.eye(V)[0], weights=MODALS, **o
    ),
    "multimodal_learning": lambda **o: al.multimodal_learning(
        UNDIRECTED, np.eye(3)[SEEDS] * (SEEDS >= 0)[:, None], weights=MODALS, **o
    ),
    "neural_network": lambda **o: al.neural_network(
        DIRECTED, np.where(np.arange(V) < 5, 0.5, np.nan)[:, None],
        weights=WEIGHTS / 5, **o,
    ),
    "pagerank": lambda **o: al.pagerank(DIRECTED, **o),
    "pagerank_push": lambda **o: al.pagerank_push(
        UNDIRECTED, personalization=np.eye(V)[2], **o
    ),
    "sssp": lambda **o: al.sssp(DIRECTED, 0, weights=WEIGHTS, **o),
    "sswp": lambda **o: al.sswp(DIRECTED, 0, weights=WEIGHTS, **o),
    "strongly_connected_components": lambda **o: al.strongly_connected_components(
        rings(), **o
    ),
    "triangle_count": lambda **o: al.triangle_count(UNDIRECTED, **o),
}  # fmt: skip


class BrokenError(Exception):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_sync", lambda handle: None)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets after how many supersteps calls raise BrokenError."""
    plain, left = Session.look, [NEVER]

    def look(self: Session, *given: Any) -> None:
        plain(self, *given)
        left[0] -= self._call is not None and self._call._found is None
        if left == [0]:
            left[0] = NEVER
            raise BrokenError

    monkeypatch.setattr(Session, "look", look)

    def begin(most: int) -> None:
        left[0] = most

    return begin


def answers(result: Any) -> dict[str, Any]:
    """Return the arrays and numbers of a result, or of an estimator."""
    if isinstance(result, al.AlternatingLeastSquares | al.MatrixFactorization):
        result = result.result_
    names = [f.name for f in fields(result)] if is_dataclass(result) else vars(result)
    found = {name: getattr(result, name) for name in names}
    run = found.pop("run", None)
    if run is not None:
        found["run"] = run.supersteps, run.converged, tuple(run.active_counts)
    kinds = (np.ndarray, int, float, tuple, dict)
    skipped = {"checkpoint", "every", "repartition"}
    return {n: v for n, v in found.items() if isinstance(v, kinds) and n not in skipped}


def require_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_equal(found[name], value, err_msg=name)


def test_the_table_has_every_algorithm() -> None:
    assert CALLS.keys() == set(al.__all__)


@pytest.mark.drawn(16)
@pytest.mark.parametrize("name", CALLS)
def test_an_algorithm_goes_on(
    name: str, tmp_path: Path, breaks: Callable[[int], None]
) -> None:
    """Broken here and there, again and again, it ends as if it had not been."""
    call, steps = CALLS[name], np.random.default_rng(len(name))
    wanted = answers(call(target="cpu"))
    kept = {"checkpoint": tmp_path / "kept", "every": 0}
    for _ in range(60):
        breaks(int(steps.integers(2, 12)))
        try:
            found = answers(call(target="cpu", **kept))
        except BrokenError:
            assert fg.newest_checkpoint(kept["checkpoint"]) is not None
            continue
        break
    require_same(found, wanted)
    breaks(NEVER)
    require_same(answers(call(target="cpu", **kept)), wanted)
    assert not list((tmp_path / "kept").glob(".*"))


@pytest.mark.drawn(11)
@pytest.mark.parametrize("name", CALLS)
def test_an_algorithm_hands_on_how_ranks_move(name: str) -> None:
    with pytest.raises(fg.ArgumentError, match="repartition="):
        CALLS[name](target="cpu", repartition="often")


@pytest.mark.parametrize("name", ["pagerank", "sssp", "closeness_centrality"])
def test_an_algorithm_goes_on_with_other_ranks(
    name: str, tmp_path: Path, breaks: Callable[[int], None]
) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "pagerank": lambda graph, **o: al.pagerank(graph, **o),
        "sssp": lambda graph, **o: al.sssp(graph, 0, **o),
        "closeness_centrality": lambda graph, **o: al.closeness_centrality(
            graph, np.arange(9), batch=3, **o
        ),
    }
    wanted = answers(calls[name](DIRECTED, target="cpu"))
    kept = {"checkpoint": tmp_path / "kept", "every": 0, "target": "cpu"}

    def on_a_rank(engine: Any) -> dict[str, Any]:
        return answers(calls[name](fg.distribute(DIRECTED), **kept))

    for ranks in (2, 3, 1, 2):
        breaks(4 * ranks)  # of all together
        try:
            found = run_ranks(ranks, on_a_rank)
        except BrokenError:
            continue
        break
    else:
        breaks(NEVER)
        found = run_ranks(2, on_a_rank)
    # Ranks add reals up in another order.
    rtol = 1e-4 if name == "pagerank" else 0
    for values in found:
        assert values.pop("run") == wanted["run"]
        for key, value in values.items():
            np.testing.assert_allclose(value, wanted[key], rtol, err_msg=key)


def test_calls_with_other_arguments_are_refused(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoint": tmp_path / "kept", "target": "cpu"}
    al.pagerank(DIRECTED, **kept)
    before = sorted(p.name for p in (tmp_path / "kept").iterdir())
    others: dict[str, Callable[[], Any]] = {
        "arguments: alpha": lambda: al.pagerank(DIRECTED, alpha=0.5, **kept),
        "arguments: personalization": lambda: al.pagerank(
            DIRECTED, personalization=np.eye(V)[0], **kept
        ),
        "arguments: graph": lambda: al.pagerank(UNDIRECTED, **kept),
        "arguments: direction": lambda: al.pagerank(DIRECTED, direction="pull", **kept),
        "another function": lambda: al.hits(DIRECTED, **kept),
    }
    for what, call in others.items():
        with pytest.raises(fg.StateError, match=what) as caught:
            call()
        assert "another folder" in str(caught.value)
    assert before == sorted(p.name for p in (tmp_path / "kept").iterdir())
    more = al.pagerank(DIRECTED, max_supersteps=7000, progress=False, **kept)
    assert more.converged


def test_what_is_drawn_takes_a_seed(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoint": tmp_path / "kept", "samples": 3}
    al.betweenness_centrality(DIRECTED, **kept)
    with pytest.raises(fg.StateError, match="other arguments: seed"):
        al.betweenness_centrality(DIRECTED, **kept)
    kept["checkpoint"] = tmp_path / "seeded"
    first, second = (
        al.betweenness_centrality(DIRECTED, seed=np.random.default_rng(2), **kept)
        for _ in range(2)
    )
    require_same(answers(first), answers(second))


def test_a_limit_may_be_raised(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoint": tmp_path / "kept", "every": 0}
    wanted = answers(al.pagerank(DIRECTED, target="cpu"))
    al.pagerank(DIRECTED, target="cpu", max_supersteps=5, **kept)
    require_same(answers(al.pagerank(DIRECTED, target="cpu", **kept)), wanted)

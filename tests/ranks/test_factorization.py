"""Factorisations on several ranks: each has a share of the users and of the items."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import (
    AlternatingLeastSquares,
    _ratings,
    als,
    gradient_factorization,
)
from featgraph.algorithms._ratings import sides_of
from featgraph.algorithms.als import cholesky_half
from featgraph.distributed import run_ranks


def some_ratings() -> Any:
    rng = np.random.default_rng(5)
    full = rng.integers(1, 6, (190, 75)) * (rng.random((190, 75)) < 0.2)
    return sparse.csr_matrix(full.astype(np.float64))


CASES: dict[str, Any] = {
    "cholesky": lambda r, **o: als(r, factors=3, iterations=3, history=True, **o),
    "cg": lambda r, **o: als(
        r, factors=4, iterations=3, solver="cg", tolerance=1e-2, **o
    ),
    "implicit": lambda r, **o: als(
        r, factors=3, iterations=2, implicit=True, history=True, **o
    ),
    "gradient": lambda r, **o: gradient_factorization(
        r, factors=3, iterations=3, history=True, **o
    ),
    "estimator": lambda r, **o: (
        AlternatingLeastSquares(3, iterations=3, history=True, **o).fit(r).result_
    ),
}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", CASES)
def test_a_factorisation_runs_on_ranks(target: str, name: str) -> None:
    whole = fg.Graph.from_biadjacency(some_ratings())
    options: dict[str, Any] = {"dtype": np.float64, "target": target}

    def answers(graph: fg.Graph) -> list[Any]:
        result = CASES[name](graph, **options)
        return [
            result.supersteps, result.user_factors, result.item_factors,
            result.residuals,
        ]  # fmt: skip

    alone = answers(whole)
    for ranks in (2, 3):
        for found in run_ranks(ranks, lambda _: answers(fg.distribute(whole))):
            assert found[0] == alone[0]
            for one, other in zip(found[1:], alone[1:], strict=True):
                # Reduces add what ranks have in another order.
                np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_what_is_made_of_ratings_is_kept_with_a_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Totals are, and sides of the part; neither for longer than the graph."""
    looked: list[Any] = []
    look = _ratings.survey
    monkeypatch.setattr(
        _ratings, "survey", lambda state, **k: looked.append(1) or look(state, **k)
    )
    whole = fg.Graph.from_biadjacency(some_ratings())
    # The kernels of the test above.
    options: dict[str, Any] = {"factors": 3, "iterations": 2, "history": True}
    options["dtype"] = np.float64
    expected = als(whole, **options).factors

    def predicted(_: Any) -> Any:
        graph = fg.distribute(whole)
        for _ in range(3):
            found = als(graph, **options).factors
            np.testing.assert_allclose(found, expected, rtol=1e-4)
        halves = sides_of(graph).halves(cholesky_half)
        kept = [half._on for half in halves]
        assert [len(own) for own in kept] == [1, 1]
        return weakref.ref(graph), kept

    predictions = run_ranks(2, predicted)
    assert len(looked) == 3  # once of the whole, and once on each rank
    gc.collect()
    for known, kept in predictions:
        assert known() is None
        assert not any(map(len, kept))


def test_every_rank_has_its_share_of_each_side() -> None:
    whole = fg.Graph.from_biadjacency(some_ratings())
    shards = whole.partition(parts=2, balance=(1, 0, 0))
    users = np.arange(190)
    degrees = np.asarray(whole.in_degree)
    for side in (users, np.arange(190, 265)):
        own = [np.intersect1d(s.numbers[: s.own], side) for s in shards]
        assert sorted(np.concatenate(own)) == side.tolist()
        edges = [int(degrees[vertices].sum()) for vertices in own]
        most = degrees[side].max() * 32  # cuts are at multiples of 32
        assert abs(edges[0] - edges[1]) <= most
        assert min(edges) > 0

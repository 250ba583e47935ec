"""Results and estimators go through pickle, copy and clone."""

from __future__ import annotations

import copy
import importlib
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

import featgraph as fg
from featgraph.algorithms import (
    AlternatingLeastSquares,
    LabelPropagation,
    MatrixFactorization,
)


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for field in fields(one):
        value = getattr(one, field.name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(other, field.name), equal_nan=True)
    assert repr(one.run) == repr(other.run)


@pytest.mark.parametrize("name", ["pagerank", "bfs", "connected_components"])
def test_results(name: str) -> None:
    graph = fg.Graph.from_edges([0, 1, 2, 4], [1, 2, 0, 3], directed=False)
    module = importlib.import_module(f"featgraph.algorithms.{name}")
    run = getattr(module, name)
    result = run(graph, 0) if name == "bfs" else run(graph)
    same(pickle.loads(pickle.dumps(result)), result)
    same(copy.deepcopy(result), result)


def test_estimators() -> None:
    rng = np.random.default_rng(1)
    points, labels = rng.random((20, 2)), np.r_[0, 1, [-1] * 18]
    model = LabelPropagation().fit(points, labels)
    ratings = AlternatingLeastSquares(factors=3).fit(
        csr_matrix(rng.integers(0, 4, (8, 6)).astype(float))
    )
    biased = MatrixFactorization(factors=3).fit(csr_matrix(np.eye(8, 6)))
    for fitted in (model, ratings, biased):
        again = pickle.loads(pickle.dumps(fitted))
        for name, value in vars(fitted).items():
            if isinstance(value, np.ndarray):
                assert np.array_equal(getattr(again, name), value), name
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(points), model.predict(points))
    assert clone(again).get_params() == model.get_params()

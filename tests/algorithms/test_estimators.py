"""The estimators: scikit-learn's conventions, and graphs without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import LabelPropagation
from featgraph.algorithms.label_propagation import label_propagation

sklearn_checks = pytest.importorskip("sklearn.utils.estimator_checks")

ROOT = Path(__file__).parents[2]


# Some checks set max_iter to 5 and look at other things than convergence.
@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@sklearn_checks.parametrize_with_checks([LabelPropagation(target="cpu")])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def path(length: int) -> fg.Graph:
    ends = np.arange(length)
    return fg.Graph.from_edges(ends[:-1], ends[1:], directed=False)


def test_graph_fit_is_label_propagation(target: str) -> None:
    graph = path(6)
    given = [3, -1, -1, -1, -1, 8]
    model = LabelPropagation(target=target, tol=1e-6).fit(graph, given)
    result = label_propagation(graph, [0, -1, -1, -1, -1, 1], epsilon=1e-6)
    assert model.classes_.tolist() == [3, 8]
    assert model.label_distributions_ == pytest.approx(result.distributions, abs=1e-4)
    assert model.transduction_.tolist() == [3, 3, 3, 8, 8, 8]
    assert model.predict(graph).tolist() == model.transduction_.tolist()
    assert model.predict([4, 1]).tolist() == [8, 3]
    assert model.predict_proba([0]).tolist() == [[1.0, 0.0]]
    assert model.score([0, 1, 2], [3, 3, 8]) == pytest.approx(2 / 3)
    assert model.score([0, 1], [3, 8], sample_weight=[3, 1]) == pytest.approx(0.75)
    assert model.n_iter_ > 1
    assert model.target_ == target


def test_names_as_labels() -> None:
    given = np.array(["red", -1, "blue"], dtype=object)
    model = LabelPropagation().fit(path(3), given)
    assert model.classes_.tolist() == ["blue", "red"]
    assert model.transduction_.tolist()[::2] == ["red", "blue"]


def test_what_no_label_reaches_gets_the_frequencies() -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 0, 1], vertex_count=5)
    model = LabelPropagation().fit(graph, [0, 1, 1, -1, -1])
    assert model.label_distributions_[3:] == pytest.approx(
        np.tile([1 / 3, 2 / 3], (2, 1))
    )
    assert model.transduction_[3:].tolist() == [1, 1]


def test_another_graph_is_refused() -> None:
    model = LabelPropagation().fit(path(3), [0, -1, 1])
    with pytest.raises(ValueError, match="not the graph that was fitted"):
        model.predict(path(3))


def test_labels_that_do_not_fit_the_graph_are_refused() -> None:
    with pytest.raises(ValueError, match="labels of shape"):
        LabelPropagation().fit(path(3), [0, 1])


def test_digits_are_read_from_five_percent_of_them(target: str) -> None:
    from sklearn.datasets import load_digits
    from sklearn.semi_supervised import LabelSpreading

    points, truth = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    seen = np.arange(1500)  # the rest stays out, for predict
    given = np.full(seen.size, -1)
    kept = rng.permutation(seen.size)[:75]
    given[kept] = truth[kept]
    model = LabelPropagation(target=target).fit(points[seen], given)
    reference = LabelSpreading(kernel="knn", n_neighbors=7).fit(points[seen], given)
    free = given < 0
    ours = np.mean((model.transduction_ == truth[seen])[free])
    theirs = np.mean((reference.transduction_ == truth[seen])[free])
    assert ours > 0.9
    assert ours > theirs
    # scikit-learn's own predict, from the same kind of neighbors, on the unseen rest.
    assert model.score(points[1500:], truth[1500:]) > 0.9
    assert model.predict_proba(points[1500:]).sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_graphs_work_without_scikit_learn() -> None:
    code = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"  # makes every import of it fail
        "import featgraph as fg\n"
        "from featgraph.algorithms import AlternatingLeastSquares, LabelPropagation\n"
        "recommender = AlternatingLeastSquares(8).set_params(alpha=2.0)\n"
        "assert recommender.get_params()['factors'] == 8\n"
        "assert repr(recommender) == 'AlternatingLeastSquares(factors=8, alpha=2.0)'\n"
        "try:\n"
        "    recommender.set_params(beta=1)\n"
        "except ValueError as error:\n"
        "    assert 'beta' in str(error)\n"
        "graph = fg.Graph.from_edges([0, 1], [1, 2], directed=False)\n"
        "model = LabelPropagation(target='cpu').fit(graph, [0, -1, -1])\n"
        "assert model.predict(graph).tolist() == [0, 0, 0]\n"
        "assert model.score(graph, [0, 0, 1]) == 2 / 3\n"
        "try:\n"
        "    LabelPropagation().predict(graph)\n"
        "except ValueError as error:\n"
        "    assert 'fit' in str(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""Handwritten digits: the data of ``featgraph demo``, and measures of its results."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms.label_propagation import (
    LabelPropagationResult,
    label_propagation,
)
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FeatGraphError

__all__ = [
    "CURVE_SEEDS",
    "CURVE_SHARES",
    "Digits",
    "Outcome",
    "accuracy",
    "accuracy_curves",
    "label_spreading",
    "load_graph_of_digits",
    "propagate",
    "split",
]

Array = npt.NDArray[Any]

#: Shares of labelled digits, and seeds for each, of the curve in the picture.
CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
CURVE_SEEDS = 3


@dataclass(frozen=True, eq=False)
class Digits:
    """scikit-learn's handwritten digits, and the graph of their nearest neighbors.

    Attributes
    ----------
    images : ndarray of shape (V, 8, 8)
        Grey levels, 0 to 16.
    truth : ndarray of int64, shape (V,)
        The digit of each image.
    neighbors : int
        The number of nearest neighbors of each image.
    affinity : scipy.sparse matrix of shape (V, V)
        1 if either image is a nearest neighbor of the other.
    graph : Graph
        The same, undirected.
    """

    images: Array
    truth: npt.NDArray[np.int64]
    neighbors: int
    affinity: Any
    graph: fg.Graph

    @property
    def points(self) -> Array:
        """Images as rows, (V, 64)."""
        return self.images.reshape(len(self.images), -1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one method on one split.

    Attributes
    ----------
    name : str
        The method.
    accuracy : float
        Share of right labels among the images that were not labelled.
    rounds : int
        Supersteps or iterations.
    seconds : float
        Wall time.
    """

    name: str
    accuracy: float
    rounds: int
    seconds: float


def load_graph_of_digits(neighbors: int) -> Digits:
    """Load the digits that come with scikit-learn and make their graph.

    Parameters
    ----------
    neighbors : int
        The number of nearest neighbors of each image.

    Returns
    -------
    Digits
        1,797 images.

    Raises
    ------
    FeatGraphError
        If there are not so many neighbors.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    images, truth = load_digits().images, load_digits().target
    if neighbors >= len(truth):
        raise FeatGraphError(
            "more neighbors than images", got=neighbors, expected=f"< {len(truth)}"
        )
    search = NearestNeighbors(n_neighbors=neighbors).fit(images.reshape(len(truth), -1))
    named = search.kneighbors_graph().astype(bool)
    affinity = named.maximum(named.T).tocsr().astype(np.float64)
    graph = fg.Graph.from_scipy(affinity, directed=False)
    return Digits(images, truth.astype(np.int64), neighbors, affinity, graph)


def split(
    truth: npt.NDArray[np.int64], share: float, seed: int
) -> npt.NDArray[np.int64]:
    """Return the labels with all but a random `share` of them replaced by -1.

    Parameters
    ----------
    truth : ndarray of int64, shape (V,)
        All labels.
    share : float
        In (0, 1).
    seed : int
        Of the random choice.

    Returns
    -------
    ndarray of int64, shape (V,)
        At least one label is kept.
    """
    order = np.random.default_rng(seed).permutation(len(truth))
    kept = order[: max(1, round(share * len(truth)))]
    labels = np.full(len(truth), -1, np.int64)
    labels[kept] = truth[kept]
    return labels


def accuracy(predicted: Array, truth: Array, labels: Array) -> float:
    """Return the share of right predictions among the unlabelled.

    Parameters
    ----------
    predicted, truth, labels : ndarray of int64, shape (V,)
        Labels; -1 in `labels` marks the unlabelled.

    Returns
    -------
    float
        In [0, 1].
    """
    return float((predicted == truth)[labels < 0].mean())


def propagate(digits: Digits, labels: Array, target: str) -> LabelPropagationResult:
    """Run label propagation with its defaults.

    Parameters
    ----------
    digits : Digits
        The graph.
    labels : ndarray of int64, shape (V,)
        -1 for the unlabelled.
    target : str
        Where to run.

    Returns
    -------
    LabelPropagationResult
        Over ten classes, also where some are not among the labels.
    """
    return label_propagation(
        digits.graph, labels, class_count=10, history=False, target=target
    )


def label_spreading(digits: Digits, labels: Array, *, same_graph: bool) -> Outcome:
    """Run scikit-learn's LabelSpreading, its other parameters at their defaults.

    Parameters
    ----------
    digits : Digits
        Points and graph.
    labels : ndarray of int64, shape (V,)
        -1 for the unlabelled.
    same_graph : bool
        Give it our graph; otherwise ``kernel="knn"`` makes its own, which is directed.

    Returns
    -------
    Outcome
        The time includes making the graph only where it makes its own.
    """
    from sklearn.semi_supervised import LabelSpreading

    kernel: Any = (lambda x, y: digits.affinity) if same_graph else "knn"
    model = LabelSpreading(kernel=kernel, n_neighbors=digits.neighbors)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # few labels: rows that no label reaches are 0/0
        model.fit(digits.points, labels)
    seconds = time.perf_counter() - started
    name = "same graph" if same_graph else 'kernel="knn"'
    return Outcome(
        f"scikit-learn LabelSpreading, {name}",
        accuracy(model.transduction_, digits.truth, labels),
        model.n_iter_,
        seconds,
    )


def accuracy_curves(digits: Digits, target: str) -> dict[str, list[list[float]]]:
    """Compute accuracy by share of labelled digits for both methods, on our graph.

    Parameters
    ----------
    digits : Digits
        Points and graph.
    target : str
        Where to run ours.

    Returns
    -------
    dict
        Method -> accuracies, by `CURVE_SHARES` (outer) and seed (inner).
    """
    ours, theirs = [], []
    for share in CURVE_SHARES:
        splits = [split(digits.truth, share, seed) for seed in range(CURVE_SEEDS)]
        ours.append(
            [
                accuracy(propagate(digits, s, target).labels, digits.truth, s)
                for s in splits
            ]
        )
        theirs.append(
            [label_spreading(digits, s, same_graph=True).accuracy for s in splits]
        )
    return {"featgraph": ours, "scikit-learn LabelSpreading": theirs}

"""Algorithms as estimators with scikit-learn's conventions.

scikit-learn is optional: estimators on graphs run without it. On a matrix of points,
its nearest-neighbor search makes the graph.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import UNLABELLED, normalize_rows, require_number
from featgraph.algorithms._estimator import (
    BaseEstimator,
    ClassifierMixin,
    NotFittedError,
)
from featgraph.algorithms._vertices import checked_vertices
from featgraph.algorithms.label_propagation import label_propagation

__all__ = ["LabelPropagation"]

Array = npt.NDArray[Any]


@fg.checked_arguments
def _check(*, n_neighbors: int, tol: float, max_iter: int) -> None:
    """Check parameters by their names in scikit-learn."""
    require_number("n_neighbors", n_neighbors, n_neighbors > 0, "1 or more")
    require_number("tol", tol, tol >= 0, "0 or more")
    require_number("max_iter", max_iter, 0 <= max_iter < 1 << 63, "0 or more")


@dataclass(eq=False, repr=False)
class LabelPropagation(ClassifierMixin, BaseEstimator):
    """Label propagation with scikit-learn's conventions, on points or on a graph.

    Fitted on points, it propagates along their symmetric k-nearest-neighbor graph,
    without weights: two points are joined if either is a neighbor of the other.

    Parameters
    ----------
    n_neighbors : int, optional
        Number of neighbors of each point; also the number of training points from which
        a new point is predicted. Unused for graphs.
    alpha, tol, max_iter : float, float, int, optional
        ``alpha``, ``epsilon`` and ``max_supersteps`` of `label_propagation`.
    target : {"auto", "cpu", "cuda"}, optional
        The target of `fit`.
    checkpoint, every : path, float, optional
        A folder from which `fit` resumes, and seconds between its checkpoints: see
        `featgraph.Checkpoints`.
    repartition : {False, "auto"} or int, optional
        Whether vertices may move between ranks: see `featgraph.iterate`.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The labels that occur, except -1.
    label_distributions_ : ndarray of shape (V, K)
        The distribution of each point or vertex. If no label reaches it: the
        frequencies of the classes among labelled ones.
    transduction_ : ndarray of shape (V,)
        The predicted label of each point or vertex of the fit.
    n_iter_ : int
        Number of supersteps.
    target_ : str
        The target on which `fit` ran.
    n_features_in_ : int
        Number of features of the points; only after a fit on points.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import LabelPropagation
    >>> path = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], directed=False)
    >>> model = LabelPropagation().fit(path, [5, -1, -1, -1, 9])
    >>> model.transduction_.tolist(), model.predict([1]).tolist()
    ([5, 5, 5, 9, 9], [5])
    """

    _: KW_ONLY
    n_neighbors: int = 7
    alpha: float = 0.85
    tol: float = 1e-3
    max_iter: int = 1000
    target: str = "auto"
    checkpoint: Any = None
    every: float = 60.0
    repartition: bool | str | int = False

    def fit(self, X: Any, y: npt.ArrayLike) -> LabelPropagation:
        """Propagate the labels of `y` over the graph, or the graph of the points.

        Parameters
        ----------
        X : Graph, or array_like or sparse matrix of shape (V, F)
            A graph, or V points.
        y : array_like of shape (V,)
            Labels, numbers or text; the number -1 marks unlabelled points. Beside text,
            it must be in a list or in an array of objects, since an array of text has
            no numbers.

        Returns
        -------
        LabelPropagation
            Itself.

        Raises
        ------
        ValueError
            If `X` and `y` have different lengths, or there are no labels.
        ImportError
            If `X` is a matrix and scikit-learn is not installed.
        """
        _check(n_neighbors=self.n_neighbors, tol=self.tol, max_iter=self.max_iter)
        self.graph_: fg.Graph | None = X if isinstance(X, fg.Graph) else None
        text = _text_labels(y)
        if self.graph_ is not None:
            graph = self.graph_
            self.classes_, labels = _coded(_labels(y))
        elif text is not None:  # checks of points would convert the marks -1 to text
            self.classes_, labels = _coded(text)
            graph, _ = self._graph_of_points(X, labels)
        else:
            graph, y = self._graph_of_points(X, y)
            self.classes_, labels = _coded(_labels(y))
        result = label_propagation(
            graph,
            labels,
            alpha=self.alpha,
            epsilon=self.tol,
            max_supersteps=self.max_iter,
            history=False,
            target=self.target,
            checkpoint=self.checkpoint,
            every=self.every,
            repartition=self.repartition,
        )
        prior = np.bincount(labels[labels != UNLABELLED], minlength=len(self.classes_))
        unreached = result.labels == UNLABELLED
        self.label_distributions_ = result.distributions
        # No label reaches these: they get the shares of the given labels.
        self.label_distributions_[unreached] = prior / prior.sum()
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        self.n_iter_: int = result.run.supersteps
        self.target_: str = result.run.target
        return self

    def _graph_of_points(self, X: Any, y: Any) -> tuple[fg.Graph, Array]:
        from sklearn.neighbors import NearestNeighbors
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import validate_data

        X, y = validate_data(self, X, y, accept_sparse="csr", ensure_min_samples=2)
        check_classification_targets(y)
        near = min(self.n_neighbors, X.shape[0] - 1)
        self._neighbors = NearestNeighbors(n_neighbors=near).fit(X)
        named = self._neighbors.kneighbors_graph().astype(bool)
        return fg.Graph.from_scipy(named.maximum(named.T), directed=False), y

    def predict_proba(self, X: Any) -> Array:
        """Return the class distributions of points or vertices.

        Parameters
        ----------
        X : Graph, array_like of int, or array_like of shape (N, F)
            After a fit on a graph: this graph for all its vertices, or ids of some
            vertices, or names that are text. After a fit on points: any points; the
            prediction is the mean of those of the nearest training points.

        Returns
        -------
        ndarray of shape (N, K)
            Columns as in ``classes_``.

        Raises
        ------
        ValueError
            If `X` is another graph, or has another number of features than in `fit`.
        """
        if not hasattr(self, "classes_"):
            raise NotFittedError("call fit before predict")
        if self.graph_ is None:
            from sklearn.utils.validation import validate_data

            X = validate_data(self, X, accept_sparse="csr", reset=False)
            nearest = self._neighbors.kneighbors(X, return_distance=False)
            return normalize_rows(self.label_distributions_[nearest].mean(axis=1))
        if isinstance(X, fg.Graph):
            if X is not self.graph_:
                raise ValueError("this graph is not the graph that was fitted")
            return self.label_distributions_.copy()
        vertices = checked_vertices(self.graph_, X, "X")
        return np.asarray(self.label_distributions_[vertices])

    def predict(self, X: Any) -> Array:
        """Return the most likely label of points or vertices; `X` as `predict_proba`.

        Parameters
        ----------
        X : Graph, array_like of int, or array_like of shape (N, F)
            The samples to predict: points, or vertices of the graph.

        Returns
        -------
        ndarray of shape (N,)
            Labels from ``classes_``.
        """
        distributions = self.predict_proba(X)
        return np.asarray(self.classes_[distributions.argmax(axis=1)])

    def score(self, X: Any, y: npt.ArrayLike, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict`.

        Parameters
        ----------
        X : Graph, array_like of int, or array_like of shape (N, F)
            The samples to predict: points, or vertices of the graph.
        y : array_like of shape (N,)
            The correct labels.
        sample_weight : array_like of shape (N,), optional
            The weight of each sample.

        Returns
        -------
        float
            The share of correct predictions, in [0, 1].
        """
        found, right = self.predict(X), _labels(y)
        if found.shape != right.shape:
            raise fg.GraphInputError(
                "one correct label for each prediction is needed",
                where="y",
                got=f"shape {right.shape}",
                expected=f"{found.shape}",
            )
        weights = None
        if sample_weight is not None:
            given = fg.given_array(sample_weight, np.float64, "sample_weight")
            weights = given.on_host()
            if weights.shape != found.shape or not weights.sum() > 0:
                raise fg.GraphInputError(
                    "one weight for each prediction is needed, with a positive sum",
                    where="sample_weight",
                    got=f"shape {weights.shape}",
                    expected=f"{found.shape}",
                )
        return float(np.average(found == right, weights=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _coded(labels: Array) -> tuple[Array, Array]:
    """Return the classes, and labels as indices of classes, -1 for none."""
    is_labelled = np.asarray(labels != UNLABELLED, bool)
    named = labels[is_labelled]
    if named.dtype == object:
        named = np.array(named.tolist(), str)
    classes, places = np.unique(named, return_inverse=True)
    coded = np.full(labels.shape, UNLABELLED, np.int64)
    coded[is_labelled] = places
    return classes, coded


def _labels(given: Any) -> Array:
    """Return labels, (N,): numbers, or objects, which are text or the number -1.

    Raises
    ------
    GraphInputError
        If a label is missing, masked, or neither a number nor text, or -1 is text.
    """
    text = _text_labels(given)
    labels = fg.given_array(given, where="y").on_host() if text is None else text
    if labels.ndim != 1:
        raise fg.GraphInputError(
            "labels have one axis",
            where="y",
            got=f"shape {labels.shape}",
            expected="one label for each point or vertex",
        )
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise fg.GraphInputError(
            "a label is missing",
            where=f"y[{int(np.argmax(np.isnan(labels)))}]",
            got="nan",
            expected=f"a label, or {UNLABELLED} for none",
        )
    return labels


def _text_labels(given: Any) -> Array | None:
    """Return labels as objects if one of them is text; else None."""
    if getattr(getattr(given, "dtype", None), "kind", "O") not in "OUST":
        return None
    items = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(items, list | tuple):
        return None
    if not any(isinstance(item, str) for item in items):
        return None
    for place, item in enumerate(items):
        is_mark = not isinstance(item, str | bool | list) and item == UNLABELLED
        if not is_mark and (not isinstance(item, str) or item == str(UNLABELLED)):
            raise fg.GraphInputError(
                "a label is neither text nor the number for unlabelled",
                where=f"y[{place}]",
                got=f"{item!r:.60} ({type(item).__name__})",
                expected=f"text, or the number {UNLABELLED}",
                fix="give a list or an array of objects, where -1 is a number",
            )
    labels = np.empty(len(items), object)
    labels[:] = items
    return labels

"""Recommenders with the conventions of the library `implicit`, and explicit ratings.

`AlternatingLeastSquares` and `MatrixFactorization` are estimators around `als` and
`sgd_factorization`. Their base class `_Factors` has the queries on fitted factors and
reads and writes files. The *products* below are the scalar products of a row of a user
and a row of an item: scores, or predicted ratings.
"""

from __future__ import annotations

import json
import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_count
from featgraph.algorithms._estimator import BaseEstimator
from featgraph.algorithms._ratings import checked_ratings, rows_of
from featgraph.algorithms.als import ALSResult, als, solve_side
from featgraph.algorithms.sgd import SGDResult, learn_side, sgd_factorization

__all__ = ["AlternatingLeastSquares", "MatrixFactorization"]

Array = npt.NDArray[Any]
_VERSION = 1
#: One side of the ratings -> the other side.
_OTHER = {"user": "item", "item": "user"}


@fg.checked_arguments
def _is_weighted(weighted_regularization: bool | None, implicit: bool) -> bool:
    return not implicit if weighted_regularization is None else weighted_regularization


class _Factors:
    """Queries on fitted factors, and files of them."""

    target: str
    user_factors: Array
    item_factors: Array
    result_: ALSResult | SGDResult
    #: Attributes of a fitted model that are saved.
    _fitted: tuple[str, ...] = ("user_factors", "item_factors")

    def _part(self, what: str, ids: Any = slice(None)) -> dict[str, Array]:
        """Return the fitted arrays of users or of items by name, all rows or some."""
        names = (name for name in self._fitted if name.startswith(what))
        return {name: getattr(self, name)[ids] for name in names}

    def _row(self, what: str, part: dict[str, Array]) -> Array:
        """Return the rows of users or of items in products, from their arrays."""
        return part[f"{what}_factors"]

    def _in_products(
        self, users: Any = slice(None), items: Any = slice(None)
    ) -> tuple[Array, Array]:
        """Return the rows of users and of items in products."""
        return (
            self._row("user", self._part("user", users)),
            self._row("item", self._part("item", items)),
        )

    def _found(self, rows: Any, what: str) -> dict[str, Array]:
        """Compute the arrays of users or items from ratings, the other side fixed."""
        raise NotImplementedError

    def _solved(self, rows: Any) -> Array:
        """Compute the rows of users in products from their ratings."""
        return self._row("user", self._found(rows, "user"))

    def _wanted(self, ratings: Array) -> Array:
        """Return the values with which predictions of entries are compared."""
        return ratings

    def predict(self, userids: npt.ArrayLike, itemids: npt.ArrayLike) -> Array:
        """Return the predicted ratings of pairs of users and items.

        Parameters
        ----------
        userids, itemids : int or array_like of int, shape (N,)
            A user and an item for each rating. A single user is paired with all items,
            and a single item with all users.

        Returns
        -------
        ndarray of shape (N,)

        Raises
        ------
        GraphInputError
            If ids are out of range, or the numbers of users and items differ.
        """
        self._check_fitted()
        users = _checked_ids(userids, len(self.user_factors), "userids")
        items = _checked_ids(itemids, len(self.item_factors), "itemids")
        x, y = self._in_products(users, items)
        if len(x) != len(y) and 1 not in {len(x), len(y)}:
            raise fg.GraphInputError(
                "predictions are of pairs of a user and an item",
                where="itemids=",
                got=f"{len(x)} users and {len(y)} items",
                expected="as many of both, or one of either",
                fix="for all pairs, repeat the users with numpy.repeat, and the items "
                "with numpy.tile",
            )
        found: Array = np.einsum("...k,...k->...", x, y)
        return found

    @fg.checked_arguments
    def recommend(
        self,
        userid: Any,
        user_items: Any = None,
        N: int = 10,
        filter_already_liked_items: bool = True,
        items: npt.ArrayLike | None = None,
        recalculate_user: bool = False,
    ) -> tuple[Array, Array]:
        """Return the best items of one user or several, best first.

        Parameters
        ----------
        userid : int or array_like of int, shape (M,)
            Users to recommend items to.
        user_items : csr_matrix of shape (M, I), optional
            The known items of these users, one row per user. Required to filter and to
            recalculate.
        N : int, optional
            Number of items, 0 or more.
        filter_already_liked_items : bool, optional
            Whether to leave out the items of `user_items`.
        items : array_like of int, optional
            Recommend only these items.
        recalculate_user : bool, optional
            Compute the factors of the users from `user_items` first; the model's
            factors of these users are neither used nor changed.

        Returns
        -------
        ids, scores : ndarray of int32 and float, shape (N,); (M, N) for several users
            Items with equal scores are in the order of their ids. If fewer than N items
            are left, the rest has id -1 and score -inf.

        Raises
        ------
        GraphInputError
            If ids are out of range, `user_items` does not fit them, or `N` is negative.
        """
        self._check_fitted()
        require_count("N", N, 0)
        given = fg.given_array(userid, where="userid")
        # If users are computed from their rows, only the number of ids counts.
        most = None if recalculate_user else len(self.user_factors)
        users = _checked_ids(given, most, "userid")
        rows = self._checked_rows(
            user_items, len(users), filter_already_liked_items or recalculate_user,
            "or filter_already_liked_items=False",
        )  # fmt: skip
        x, y = self._in_products([] if recalculate_user else users)
        scores = (self._solved(rows) if recalculate_user else x) @ y.T
        if items is not None:
            chosen = _checked_ids(items, len(self.item_factors), "items")
            outside = np.ones(scores.shape[1], np.bool_)
            outside[chosen] = False
            scores[:, outside] = -np.inf
        if filter_already_liked_items and rows is not None:
            liked = rows.tocoo()
            scores[liked.row, liked.col] = -np.inf
        return _best(scores, N, given.ndim == 0)

    @fg.checked_arguments
    def similar_items(
        self,
        itemid: Any,
        N: int = 10,
        items: npt.ArrayLike | None = None,
        item_users: Any = None,
        recalculate_item: bool = False,
    ) -> tuple[Array, Array]:
        """Return the items whose factors have the largest cosines with an item's.

        The item itself is the first. Ids and cosines have the shapes of `recommend`.
        With ``recalculate_item=True``, the factors of the items are first computed from
        `item_users` of shape (M, U); the model's factors of these items are neither
        used nor changed.
        """
        self._check_fitted()
        names, own = ("itemid", "items"), None
        if recalculate_item:
            count = fg.given_array(itemid, where="itemid").on_host().size
            rows = self._checked_rows(item_users, count, True, what="item")
            own = self._found(rows, "item")["item_factors"]
        return _similar(self.item_factors, (itemid, items), N, names, own)

    @fg.checked_arguments
    def similar_users(
        self, userid: Any, N: int = 10, users: npt.ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return the users whose factors have the largest cosines with a user's."""
        self._check_fitted()
        return _similar(self.user_factors, (userid, users), N, ("userid", "users"))

    def score(self, user_items: Any, y: Any = None) -> float:
        """Return the negative error of predicting one half of each row from the other.

        The entries of each row are dealt alternately to two halves. The factors of the
        user are computed from each half, with the factors of the items fixed, and
        predict the other half. The users need not have been fitted, so the rows may be
        a fold of a cross-validation.

        Parameters
        ----------
        user_items : sparse matrix of shape (M, I)
            Ratings. For implicit feedback, preferences are predicted: one for positive
            entries, zero for others.
        y : None
            Not used.

        Returns
        -------
        float
            The negative root of the mean squared error: larger is better.

        Raises
        ------
        GraphInputError
            If `user_items` is no sparse matrix of the fitted items, or is empty.
        """
        self._check_fitted()
        items = len(self.item_factors)
        shape = getattr(user_items, "shape", None)
        if shape is None or shape[1:] != (items,) or not hasattr(user_items, "tocoo"):
            raise fg.GraphInputError(
                "the rows do not fit the items",
                got=f"{type(user_items).__name__}, shape {shape}",
                expected=f"a sparse matrix of shape (M, {items})",
            )
        entries = user_items.tocoo()
        if not entries.nnz:
            raise fg.GraphInputError("no ratings to compare with", got=f"{shape}")
        order = np.lexsort((entries.col, entries.row))
        first = np.searchsorted(entries.row[order], entries.row[order])
        half = (np.arange(order.size) - first) % 2
        wanted, y_all = self._wanted(entries.data), self._in_products([])[1]
        total = 0.0
        for seen, held in ((order[half == 0], order[half == 1]),
                           (order[half == 1], order[half == 0])):  # fmt: skip
            x, y_held = self._solved(rows_of(entries, seen)), y_all[entries.col[held]]
            predicted = np.einsum("nk,nk->n", x[entries.row[held]], y_held)
            total += float(np.sum((predicted - wanted[held]) ** 2.0))
        return -float(np.sqrt(total / entries.nnz))

    def plot(self, ax: Any = None) -> Any:
        """Plot the recorded errors; requires ``history=True``."""
        self._check_fitted()
        return self.result_.plot(ax)

    @fg.checked_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and fitted attributes to one file, atomically."""
        self._check_fitted()
        kept: dict[str, Any] = self.get_params()  # type: ignore[attr-defined]
        kept = {name: kept[name] for name in kept if name not in _NOT_SAVED}
        kept["dtype"] = np.dtype(kept["dtype"]).name
        header = {"version": _VERSION, "estimator": type(self).__name__}
        arrays = {name: np.asarray(getattr(self, name)) for name in self._fitted}
        header |= {"parameters": kept}
        fg.write_arrays(path, {"header": np.array(json.dumps(header)), **arrays})

    @classmethod
    @fg.checked_arguments
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the model in a file that `save` wrote.

        Raises
        ------
        FileFormatError
            If the file is damaged, or of another kind or version.
        """
        try:
            file = fg.read_arrays(path)
            header = json.loads(str(file["header"]))
            fitted = {name: file[name] for name in cls._fitted}
            version, parameters = header["version"], header["parameters"]
            kind = header.get("estimator", AlternatingLeastSquares.__name__)
            is_own = (version, kind) == (_VERSION, cls.__name__)
            model = cls(**parameters) if is_own else None
        except fg.FileFormatError:
            raise
        except _DAMAGE as error:
            raise fg.FileFormatError(
                "not a saved model, or damaged", where=str(path), got=error
            ) from error
        if model is None:
            raise fg.FileFormatError(
                "a model of another version or kind", where=str(path),
                got=f"{kind}, version {version}",
                expected=f"{cls.__name__}, version {_VERSION}",
            )  # fmt: skip
        for name, array in fitted.items():
            setattr(model, name, array)
        shapes = {name: array.shape for name, array in fitted.items()}
        is_real = all(array.dtype.kind == "f" for array in fitted.values())
        if shapes != model._shapes() or not is_real:
            raise fg.FileFormatError(
                "the factors do not fit the parameters", where=str(path), got=shapes
            )
        return model

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the expected shapes of the fitted attributes."""
        parts = {name: getattr(self, name) for name in self._fitted[:2]}
        width: int = self.factors  # type: ignore[attr-defined]
        return {name: (*part.shape[:1], width) for name, part in parts.items()}

    def _check_fitted(self) -> None:
        if not hasattr(self, "user_factors"):
            raise fg.FeatGraphError("the model is not fitted", fix="call fit first")

    def _checked_rows(
        self, rows: Any, count: int, needed: bool, fix: str = "", what: str = "user"
    ) -> Any:
        other = _OTHER[what]
        name = f"{what}_{other}s"
        if rows is None and needed:
            raise fg.GraphInputError(
                f"{name} is needed to filter or recalculate",
                fix=f"give the rows of these {what}s{', ' * bool(fix)}{fix}",
            )
        expected = (count, len(getattr(self, f"{other}_factors")))
        if rows is not None and (
            getattr(rows, "shape", None) != expected or not hasattr(rows, "tocsr")
        ):
            raise fg.GraphInputError(
                f"the rows do not fit: {name} has a row for each {what}",
                got=f"{type(rows).__name__}, shape {getattr(rows, 'shape', None)}",
                expected=f"a sparse matrix of shape {expected}",
                fix=f"{name}[{what}id], of a scipy.sparse.csr_matrix",
            )
        return rows

    def partial_fit_users(self, userids: npt.ArrayLike, user_items: Any) -> None:
        """Compute the factors of old or new users from their rows, with items fixed.

        Parameters
        ----------
        userids : array_like of int, shape (M,)
            Ids beyond the last user add users; the factors of those in between are
            zero.
        user_items : csr_matrix of shape (M, I)
            The ratings of these users, one row per user.
        """
        self._refit(userids, user_items, "user")

    def partial_fit_items(self, itemids: npt.ArrayLike, item_users: Any) -> None:
        """Compute the factors of old or new items from their rows, with users fixed."""
        self._refit(itemids, item_users, "item")

    def _refit(self, given: npt.ArrayLike, rows: Any, what: str) -> None:
        """Store newly computed rows of users or items; extend the arrays by zeros."""
        self._check_fitted()
        ids = _checked_ids(given, None, f"{what}ids")
        found = self._found(self._checked_rows(rows, len(ids), True, what=what), what)
        for name, own in found.items():
            old = getattr(self, name)
            count = max(len(old), int(ids.max(initial=-1)) + 1)
            new = np.zeros((count, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            new[ids] = own
            setattr(self, name, new)


@dataclass(eq=False, repr=False)
class AlternatingLeastSquares(_Factors, BaseEstimator):
    """Recommendations from factors that alternating least squares computes.

    It is an estimator of scikit-learn, which can clone it, and search for parameters
    by `score`. All else works without scikit-learn.

    Parameters
    ----------
    factors, regularization, alpha, iterations, tolerance, solver, random_state, dtype
        As for `featgraph.algorithms.als.als`.
    implicit : bool, optional
        As for `als`: whether ``alpha`` times the entries are confidences that a user
        likes an item. Default: they are ratings.
    weighted_regularization : bool, optional
        Default: for explicit ratings (ALS-WR), and not for implicit ones.
    history : bool, optional
        Whether to record the error after every half iteration.
    target : {"auto", "cpu", "cuda"}, optional
        The target of all supersteps.
    checkpoint, every : path, float, optional
        A folder of checkpoints from which `fit` resumes, and the seconds between them:
        see `featgraph.Checkpoints`.
    repartition : {False, "auto"} or int, optional
        Whether vertices may move between ranks: see `featgraph.iterate`.

    Attributes
    ----------
    user_factors, item_factors : ndarray of shape (U, K), (I, K)
        After `fit`.
    result_ : ALSResult
        Errors and the record of the run.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from featgraph.algorithms import AlternatingLeastSquares
    >>> likes = scipy.sparse.csr_matrix([[9, 9, 0, 0], [9, 0, 0, 0], [0, 0, 9, 9]])
    >>> model = AlternatingLeastSquares(factors=2, implicit=True, target="cpu")
    >>> model = model.fit(likes)
    >>> ids, scores = model.recommend(1, likes[1], N=1)
    >>> ids.tolist()
    [1]
    """

    factors: int = 32
    regularization: float = 0.05
    alpha: float = 1.0
    iterations: int = 15
    _: KW_ONLY
    implicit: bool = False
    weighted_regularization: bool | None = None
    tolerance: float = 0.0
    solver: str = "auto"
    dtype: npt.DTypeLike = np.float32
    random_state: int | None = 0
    history: bool = False
    target: str = "auto"
    checkpoint: Any = None
    every: float = 60.0
    repartition: bool | str | int = False

    def _objective(self) -> dict[str, Any]:
        return {
            "regularization": self.regularization,
            "alpha": self.alpha,
            "implicit": self.implicit,
            "weighted_regularization": _is_weighted(
                self.weighted_regularization, self.implicit
            ),
        }

    def _found(self, rows: Any, what: str) -> dict[str, Array]:
        held = getattr(self, f"{_OTHER[what]}_factors")
        found = solve_side(rows, held, target=self.target, **self._objective())
        return {f"{what}_factors": found}

    def _wanted(self, ratings: Array) -> Array:
        return ratings > 0 if self.implicit else ratings

    def fit(self, user_items: Any, y: Any = None) -> AlternatingLeastSquares:
        """Factorize a sparse matrix of shape (U, I); return the model.

        `y` is not used: scikit-learn passes it.

        Raises
        ------
        GraphInputError, FeatGraphError
            As `featgraph.algorithms.als.als`.
        """
        self.result_ = als(user_items, **self.get_params() | self._objective())
        self.user_factors = self.result_.user_factors
        self.item_factors = self.result_.item_factors
        return self


@dataclass(eq=False, repr=False)
class MatrixFactorization(_Factors, BaseEstimator):
    """Predicted ratings and recommendations by stochastic gradient descent.

    The predicted rating of user u and item i is ``mean + user_biases[u] +
    item_biases[i] + user_factors[u] @ item_factors[i]``. Similarities do not use the
    biases. Like `AlternatingLeastSquares`, it is an estimator of scikit-learn.

    Parameters
    ----------
    factors, rate, decay, regularization, epochs, biases, nonnegative, shuffle, \
    random_state, patience, history, dtype
        As for `featgraph.algorithms.sgd.sgd_factorization`.
    clip : bool, optional
        Whether `predict` clips to the range of the fitted ratings. Scores of
        `recommend` are not clipped.
    schedule : str, optional
        The schedule of exclusive functions (S11 of the model), such as "serial", which
        sets the ratings that are used at the same time. "auto" is "blocks" on the CPU.
    target : {"auto", "cpu", "cuda"}, optional
        The target of all supersteps.
    checkpoint, every, repartition : optional
        As for `AlternatingLeastSquares`.

    Attributes
    ----------
    user_factors, item_factors : ndarray of `dtype`, shape (U, K), (I, K)
        Zeros for users and items without ratings.
    user_biases, item_biases : ndarray of `dtype`, shape (U,), (I,)
        Zeros without biases, and for users and items without ratings.
    mean : float
        The mean of the ratings; 0.0 without biases.
    limits : ndarray of float64, shape (2,)
        The smallest and the largest rating.
    result_ : SGDResult
        Errors and the record of the run. A loaded model has none.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from featgraph.algorithms import MatrixFactorization
    >>> ratings = scipy.sparse.csr_matrix([[5, 4, 0], [0, 2, 1], [5, 0, 3]])
    >>> model = MatrixFactorization(factors=2, target="cpu").fit(ratings)
    >>> bool(1 <= model.predict(0, 2)[0] <= 5)
    True
    """

    user_biases: Array = field(init=False)
    item_biases: Array = field(init=False)
    mean: float | Array = field(init=False)
    limits: Array = field(init=False)
    _fitted = (*_Factors._fitted, "user_biases", "item_biases", "mean", "limits")

    factors: int = 32
    rate: float = 0.01
    decay: float = 0.0
    regularization: float = 0.05
    epochs: int = 30
    _: KW_ONLY
    biases: bool | None = None
    nonnegative: bool = False
    clip: bool = True
    shuffle: int | None = 0
    dtype: npt.DTypeLike = np.float32
    random_state: int | None = 0
    patience: int | None = None
    history: bool = False
    schedule: str = "auto"
    target: str = "auto"
    checkpoint: Any = None
    every: float = 60.0
    repartition: bool | str | int = False

    def fit(
        self, user_items: Any, y: Any = None, *, validation: Any = None
    ) -> MatrixFactorization:
        """Fit factors and biases to ratings.

        Parameters
        ----------
        user_items : sparse matrix of shape (U, I), or Graph
            Ratings, as for `featgraph.algorithms.sgd.sgd_factorization`.
        y : None
            Not used: scikit-learn passes it.
        validation : sparse matrix of shape (U, I), or Graph, optional
            Held-out ratings: the factors of the epoch with their least error are kept.
            `patience` sets when epochs end.

        Returns
        -------
        MatrixFactorization
            Itself.

        Raises
        ------
        GraphInputError, PlanError, DivergenceError
            As `featgraph.algorithms.sgd.sgd_factorization`.
        """
        own = self._own_parameters()
        found = sgd_factorization(user_items, validation=validation, **own)
        is_graph = isinstance(user_items, fg.Graph)
        values: Any = user_items.weights if is_graph else user_items.tocoo().data
        return self._take(found, [values.min(), values.max()])

    def partial_fit(
        self, user_items: Any, y: Any = None, *, validation: Any = None
    ) -> MatrixFactorization:
        """Continue from the fitted factors with ratings of old or new users and items.

        The mean stays, and so do users and items without new ratings. Users and items
        without factors begin as in `fit`. The rate is again that of the first epoch. No
        checkpoints are written. Parameters, result and errors are those of `fit`, which
        a model that is not fitted calls instead.

        Parameters
        ----------
        user_items : sparse matrix of shape (U, I), or Graph
            New ratings, with at least as many users and items as the model has.
        """
        if not hasattr(self, "user_factors"):
            return self.fit(user_items, validation=validation)
        real = self.user_factors.dtype
        own = self._own_parameters() | {"checkpoint": None, "dtype": real}
        given = checked_ratings(user_items, real, self.target, directed=True)
        graph, count = given.graph, given.user_count
        shape = count, graph.vertex_count - count
        least = len(self.user_factors), len(self.item_factors)
        if shape[0] < least[0] or shape[1] < least[1]:
            raise fg.GraphInputError(
                "there are fewer users or items than the model has",
                where="user_items=",
                got=f"shape {shape}",
                expected=f"at least {least}",
                fix="scipy.sparse.csr_matrix((ratings, (users, items)), shape=(U, I))",
            )
        # No epoch: factors of new users and items are drawn as a fit would draw them.
        begun = sgd_factorization(graph, **own | {"epochs": 0, "patience": None})
        x, biases = begun.factors.copy(), np.zeros_like(begun.biases)
        for what, first in (("user", 0), ("item", count)):
            old, own_biases = self._part(what).values()
            known = np.flatnonzero(old.any(axis=1))
            x[first + known] = old[known]
            biases[first : first + len(old)] = own_biases
        begin = x[:count], x[count:], biases, self.mean
        found = sgd_factorization(graph, initial=begin, validation=validation, **own)
        values: Any = graph.weights
        ends = [min(values.min(), self.limits[0]), max(values.max(), self.limits[1])]
        return self._take(found, ends)

    def _own_parameters(self) -> dict[str, Any]:
        """Return the model's parameters that `sgd_factorization` takes."""
        return {n: value for n, value in self.get_params().items() if n != "clip"}

    def _take(self, found: SGDResult, limits: list[Any]) -> MatrixFactorization:
        """Store the result and the range of the ratings; return the model."""
        self.limits, self.mean = np.array(limits, np.float64), found.mean
        self.result_, count = found, len(found.user_factors)
        self.user_factors, self.item_factors = found.user_factors, found.item_factors
        self.user_biases, self.item_biases = np.split(found.biases, [count])
        return self

    def predict(self, userids: npt.ArrayLike, itemids: npt.ArrayLike) -> Array:
        """Return the predicted ratings of pairs of users and items.

        Parameters, shapes and errors are those of `AlternatingLeastSquares.predict`.
        With ``clip=True``, predictions are within `limits`.
        """
        found = super().predict(userids, itemids)
        return np.clip(found, *self.limits.astype(found.dtype)) if self.clip else found

    def _row(self, what: str, part: dict[str, Array]) -> Array:
        """Return factors with two more columns, so that products include the biases."""
        x, b = part[f"{what}_factors"], part[f"{what}_biases"][:, None]
        ones = np.ones_like(b)
        if what == "item":
            return np.hstack((x, ones, b))
        return np.hstack((x, b + x.dtype.type(self.mean), ones))

    def _found(self, rows: Any, what: str) -> dict[str, Array]:
        """Run the epochs for these users or items, from zeros, with the others held."""
        x, biases = learn_side(
            rows,
            *self._part(_OTHER[what]).values(),
            float(self.mean),
            rate=self.rate,
            decay=self.decay,
            regularization=self.regularization,
            epochs=self.epochs,
            has_biases=not self.nonnegative if self.biases is None else self.biases,
            nonnegative=self.nonnegative,
            target=self.target,
        )
        return {f"{what}_factors": x, f"{what}_biases": biases}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        users, items = len(self.user_factors), len(self.item_factors)
        more = {"user_biases": (users,), "item_biases": (items,)}
        return super()._shapes() | more | {"mean": (), "limits": (2,)}


#: Errors that NumPy, zip and JSON raise for a damaged file.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)

#: Parameters that are not saved with a model: they belong to the machine of the fit.
_NOT_SAVED = ("checkpoint", "every", "repartition")


def _checked_ids(given: Any, count: int | None, name: str) -> Array:
    """Return the ids in parameter `name`; raise GraphInputError if any is invalid."""
    ids, where = np.atleast_1d(fg.given_array(given, where=name).on_host()), f"{name}="
    what = "user" if name.startswith("user") else "item"
    if ids.ndim > 1:
        raise fg.GraphInputError(
            f"{what} ids are one number or an array of one dimension",
            where=where,
            got=f"shape {ids.shape}",
        )
    if ids.size and ids.dtype.kind not in "iu":
        raise fg.GraphInputError(f"{what} ids are integers", where=where, got=ids.dtype)
    bad = (ids < 0) | (ids >= count if count is not None else False)
    if bad.any():
        raise fg.GraphInputError(
            f"no such {what}",
            where=where,
            got=int(ids[np.argmax(bad)]),
            expected=f"0 <= id < {count}" if count is not None else "0 or more",
        )
    return ids.astype(np.int64)


def _best(scores: Array, count: int, single: bool) -> tuple[Array, Array]:
    """Return the ids and scores of the `count` largest entries of each row."""
    wanted = min(count, scores.shape[1])
    # The sort is stable, so equal scores are in the order of their ids.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :wanted]
    best = np.take_along_axis(scores, order, axis=1)
    ids = np.where(np.isneginf(best), -1, order).astype(np.int32)
    if wanted < count:
        padding = ((0, 0), (0, count - wanted))
        ids = np.pad(ids, padding, constant_values=-1)
        best = np.pad(best, padding, constant_values=-np.inf)
    return (ids[0], best[0]) if single else (ids, best)


def _similar(
    factors: Array,
    given: tuple[Any, Any],
    count: int,
    names: tuple[str, str],
    own: Array | None = None,
) -> tuple[Array, Array]:
    """Return ids and cosines of the rows of `factors` with the largest cosines.

    Here `given` has the ids of the rows to compare with, and those to choose from, or
    None; `names` the names of these parameters. Rows `own` replace the rows of the ids.
    """
    asked = fg.given_array(given[0], where=names[0])
    most = len(factors) if own is None else None
    ids, chosen = _checked_ids(asked, most, names[0]), given[1]
    require_count("N", count, 0)
    directions = _directions(factors)
    scores = (directions[ids] if own is None else _directions(own)) @ directions.T
    if chosen is not None:
        outside = np.ones(len(factors), np.bool_)
        outside[_checked_ids(chosen, len(factors), names[1])] = False
        scores[:, outside] = -np.inf
    return _best(scores, count, asked.ndim == 0)


def _directions(factors: Array) -> Array:
    lengths = np.linalg.norm(factors, axis=1)
    # A row of zeros has no direction: its cosines are 0.
    found: Array = factors / np.where(lengths > 0, lengths, 1)[:, None]
    return found

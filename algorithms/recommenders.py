"""Recommenders with the conventions of the library `implicit`, and explicit ratings."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_number
from featgraph.algorithms._estimator import BaseEstimator
from featgraph.algorithms._sides import rows_of
from featgraph.algorithms.als import ALSResult, als, solve_side

__all__ = ["AlternatingLeastSquares"]

Array = npt.NDArray[Any]
_VERSION = 1


@fg.checked_arguments
def _is_weighted(weighted_regularization: bool | None, implicit: bool) -> bool:
    return not implicit if weighted_regularization is None else weighted_regularization


class _Factors:
    """Queries on fitted factors."""

    regularization: float
    alpha: float
    implicit: bool
    weighted_regularization: bool | None
    target: str
    user_factors: Array
    item_factors: Array

    def _objective(self) -> dict[str, Any]:
        return {
            "regularization": self.regularization,
            "alpha": self.alpha,
            "implicit": self.implicit,
            "weighted_regularization": _is_weighted(
                self.weighted_regularization, self.implicit
            ),
        }

    def predict(self, userids: npt.ArrayLike, itemids: npt.ArrayLike) -> Array:
        """Return the predicted ratings of pairs of users and items.

        Parameters
        ----------
        userids, itemids : int or array_like of int, shape (N,)
            A user and an item for each rating; one of them stands for all.

        Returns
        -------
        ndarray of shape (N,)

        Raises
        ------
        GraphInputError
            If ids are out of range, or there are not as many of both.
        """
        self._check_fitted()
        x = self.user_factors[_checked_ids(userids, len(self.user_factors), "userids")]
        y = self.item_factors[_checked_ids(itemids, len(self.item_factors), "itemids")]
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
            What these users have, a row for each. Needed to filter or recalculate.
        N : int, optional
            How many items, 0 or more.
        filter_already_liked_items : bool, optional
            Whether to leave out what `user_items` has.
        items : array_like of int, optional
            Choose from these only.
        recalculate_user : bool, optional
            Find the factors of the users from `user_items` first; those of the model
            are neither used nor changed.

        Returns
        -------
        ids, scores : ndarray of int32 and float, shape (N,); (M, N) for several users
            Equal scores by id. Where fewer items are left: id -1, score -inf.

        Raises
        ------
        GraphInputError
            If ids are out of range, `user_items` does not fit them, or `N` is no count.
        """
        self._check_fitted()
        _check_count(N)
        given = fg.given_array(userid, where="userid")
        # Of users that are found from their rows, ids only say how many there are.
        most = None if recalculate_user else len(self.user_factors)
        users = _checked_ids(given, most, "userid")
        rows = self._checked_rows(
            user_items, len(users), filter_already_liked_items or recalculate_user
        )
        if recalculate_user:
            x = solve_side(
                rows, self.item_factors, target=self.target, **self._objective()
            )
        else:
            x = self.user_factors[users]
        scores = x @ self.item_factors.T
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
        self, itemid: Any, N: int = 10, items: npt.ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return the items whose factors make the smallest angles with an item's.

        The item itself is the first. Returns ids and cosines as `recommend` does.
        """
        self._check_fitted()
        return _similar(self.item_factors, (itemid, items), N, ("itemid", "items"))

    @fg.checked_arguments
    def similar_users(
        self, userid: Any, N: int = 10, users: npt.ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return the users whose factors make the smallest angles with a user's."""
        self._check_fitted()
        return _similar(self.user_factors, (userid, users), N, ("userid", "users"))

    def _check_fitted(self) -> None:
        if not hasattr(self, "user_factors"):
            raise fg.FeatGraphError("the model is not fitted", fix="call fit first")

    def _checked_rows(self, rows: Any, count: int, needed: bool) -> Any:
        if rows is None and needed:
            raise fg.GraphInputError(
                "user_items is needed to filter or recalculate",
                fix="give the rows of these users, or filter_already_liked_items=False",
            )
        expected = (count, len(self.item_factors))
        if rows is not None and (
            getattr(rows, "shape", None) != expected or not hasattr(rows, "tocsr")
        ):
            raise fg.GraphInputError(
                "user_items has a row for each user asked for",
                got=f"{type(rows).__name__}, shape {getattr(rows, 'shape', None)}",
                expected=f"a sparse matrix of shape {expected}",
                fix="user_items[userid], of a scipy.sparse.csr_matrix",
            )
        return rows


class AlternatingLeastSquares(_Factors, BaseEstimator):
    """Recommendations from factors found by alternating least squares.

    It has the parameters of an estimator of scikit-learn, which clones it, and searches
    for parameters by `score`. Without scikit-learn, all else works.

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
        Whether to record the error behind every half.
    target : {"auto", "cpu", "cuda"}, optional
        Where to run.
    checkpoint, every : path, float, optional
        A folder from which `fit` goes on, and seconds between its checkpoints: see
        `featgraph.Checkpoints`.
    repartition : {False, "auto"} or int, optional
        Whether ranks may get other vertices: see `featgraph.iterate`.

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

    def __init__(
        self,
        factors: int = 32,
        regularization: float = 0.05,
        alpha: float = 1.0,
        iterations: int = 15,
        *,
        implicit: bool = False,
        weighted_regularization: bool | None = None,
        tolerance: float = 0.0,
        solver: str = "auto",
        dtype: npt.DTypeLike = np.float32,
        random_state: int | None = 0,
        history: bool = False,
        target: str = "auto",
        checkpoint: Any = None,
        every: float = 60.0,
        repartition: bool | str | int = False,
    ) -> None:
        self.factors = factors
        self.regularization = regularization
        self.alpha = alpha
        self.iterations = iterations
        self.implicit = implicit
        self.weighted_regularization = weighted_regularization
        self.tolerance = tolerance
        self.solver = solver
        self.dtype = dtype
        self.random_state = random_state
        self.history = history
        self.target = target
        self.checkpoint = checkpoint
        self.every = every
        self.repartition = repartition

    def fit(self, user_items: Any, y: Any = None) -> AlternatingLeastSquares:
        """Find the factors of a sparse matrix of shape (U, I); returns itself.

        `y` is not used: scikit-learn passes it.

        Raises
        ------
        GraphInputError, FeatGraphError
            As `featgraph.algorithms.als.als`.
        """
        self.result_: ALSResult = als(
            user_items,
            factors=self.factors,
            iterations=self.iterations,
            tolerance=self.tolerance,
            solver=self.solver,
            dtype=self.dtype,
            random_state=self.random_state,
            history=self.history,
            target=self.target,
            checkpoint=self.checkpoint,
            every=self.every,
            repartition=self.repartition,
            **self._objective(),
        )
        self.user_factors = self.result_.user_factors
        self.item_factors = self.result_.item_factors
        return self

    def score(self, user_items: Any, y: Any = None) -> float:
        """Return how well ratings are predicted that are held out of their rows.

        The entries of each row go in turns to two halves. The factors of the user are
        found from either half, with the factors of the items held, and predict the
        other. Rows may be of users that were not fitted: folds of a cross-validation.

        Parameters
        ----------
        user_items : sparse matrix of shape (M, I)
            Ratings; for implicit feedback, their preferences are predicted: one, or
            zero for negative entries.
        y : None
            Not used.

        Returns
        -------
        float
            The root of the mean squared error, negative: larger is better.

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
        wanted = entries.data > 0 if self.implicit else entries.data
        total = 0.0
        for seen, held in ((order[half == 0], order[half == 1]),
                           (order[half == 1], order[half == 0])):  # fmt: skip
            x = solve_side(
                rows_of(entries, seen), self.item_factors,
                target=self.target, **self._objective(),
            )  # fmt: skip
            y_held = self.item_factors[entries.col[held]]
            predicted = np.einsum("nk,nk->n", x[entries.row[held]], y_held)
            total += float(np.sum((predicted - wanted[held]) ** 2.0))
        return -float(np.sqrt(total / entries.nnz))

    def plot(self, ax: Any = None) -> Any:
        """Draw the error of each half; needs ``history=True``."""
        self._check_fitted()
        return self.result_.plot(ax)

    def partial_fit_users(self, userids: npt.ArrayLike, user_items: Any) -> None:
        """Set the factors of users, old or new, from their rows; items are held.

        Parameters
        ----------
        userids : array_like of int, shape (M,)
            Ids beyond the last user make room; users in between get zeros.
        user_items : csr_matrix of shape (M, I)
            Their rows.
        """
        self._check_fitted()
        self.user_factors = self._refitted(
            self.user_factors, self.item_factors, userids, user_items, "user"
        )

    def partial_fit_items(self, itemids: npt.ArrayLike, item_users: Any) -> None:
        """Set the factors of items, old or new, from their rows; users are held."""
        self._check_fitted()
        self.item_factors = self._refitted(
            self.item_factors, self.user_factors, itemids, item_users, "item"
        )

    def _refitted(
        self, old: Array, others: Array, given: npt.ArrayLike, rows: Any, what: str
    ) -> Array:
        ids = _checked_ids(given, None, f"{what}ids")
        if not hasattr(rows, "tocsr") or rows.shape != (len(ids), len(others)):
            raise fg.GraphInputError(
                f"the rows do not fit the {what}s",
                got=getattr(rows, "shape", type(rows).__name__),
                expected=f"a sparse matrix of shape {(len(ids), len(others))}",
            )
        found = solve_side(rows, others, target=self.target, **self._objective())
        count = max(len(old), int(ids.max(initial=-1)) + 1)
        new = np.zeros((count, old.shape[1]), old.dtype)
        new[: len(old)] = old
        new[ids] = found
        return new

    @fg.checked_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and factors to one file, whole or not at all."""
        self._check_fitted()
        kept = {
            name: getattr(self, name) for name in _PARAMETERS if name != "random_state"
        }
        kept |= {"dtype": np.dtype(self.dtype).name, "random_state": self.random_state}
        header = json.dumps({"version": _VERSION, "parameters": kept})
        fg.write_arrays(
            path,
            {
                "header": np.array(header),
                "user_factors": self.user_factors,
                "item_factors": self.item_factors,
            },
        )

    @classmethod
    @fg.checked_arguments
    def load(cls, path: str | os.PathLike[str]) -> AlternatingLeastSquares:
        """Read what `save` has written.

        Raises
        ------
        FileFormatError
            If the file is damaged, or of another kind or version.
        """
        try:
            file = fg.read_arrays(path)
            header = json.loads(str(file["header"]))
            factors = file["user_factors"], file["item_factors"]
            version, parameters = header["version"], header["parameters"]
            model = cls(**parameters) if version == _VERSION else None
        except fg.FileFormatError:
            raise
        except _DAMAGE as error:
            raise fg.FileFormatError(
                "not a saved model, or damaged", where=str(path), got=error
            ) from error
        if model is None:
            raise fg.FileFormatError(
                "a model of another version", where=str(path), got=version,
                expected=_VERSION,
            )  # fmt: skip
        widths = {part.shape[1:] for part in factors}
        if widths != {(model.factors,)} or any(p.dtype.kind != "f" for p in factors):
            raise fg.FileFormatError(
                "the factors do not fit the parameters", where=str(path), got=widths
            )
        model.user_factors, model.item_factors = factors
        return model


#: What NumPy, zip and JSON raise for a file that is not what it should be.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)

#: Saved with a model; not where a fit is gone on with, which is of one machine.
_PARAMETERS = (
    "factors", "regularization", "alpha", "iterations", "implicit",
    "weighted_regularization", "tolerance", "solver", "random_state", "history",
    "target",
)  # fmt: skip


def _checked_ids(given: Any, count: int | None, name: str) -> Array:
    """Return ids of users or items; `name` is the parameter."""
    ids, where = np.atleast_1d(fg.given_array(given, where=name).on_host()), f"{name}="
    what = "user" if name.startswith("user") else "item"
    if ids.ndim > 1:
        raise fg.GraphInputError(
            f"{what} ids are one number or a row of them",
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


def _check_count(count: int) -> None:
    require_number("N", count, 0 <= count < 1 << 31, "from 0 to 2**31 - 1")


def _best(scores: Array, count: int, single: bool) -> tuple[Array, Array]:
    """Return the ids and scores of the largest entries of each row."""
    wanted = min(count, scores.shape[1])
    # Of all that are as large as the last one wanted, the smallest ids stay.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :wanted]
    best = np.take_along_axis(scores, order, axis=1)
    ids = np.where(np.isneginf(best), -1, order).astype(np.int32)
    if wanted < count:
        padding = ((0, 0), (0, count - wanted))
        ids = np.pad(ids, padding, constant_values=-1)
        best = np.pad(best, padding, constant_values=-np.inf)
    return (ids[0], best[0]) if single else (ids, best)


def _similar(
    factors: Array, given: tuple[Any, Any], count: int, names: tuple[str, str]
) -> tuple[Array, Array]:
    asked = fg.given_array(given[0], where=names[0])
    ids, chosen = _checked_ids(asked, len(factors), names[0]), given[1]
    _check_count(count)
    lengths = np.linalg.norm(factors, axis=1)
    directions = factors / np.where(lengths > 0, lengths, 1)[:, None]
    scores = directions[ids] @ directions.T
    if chosen is not None:
        outside = np.ones(len(factors), np.bool_)
        outside[_checked_ids(chosen, len(factors), names[1])] = False
        scores[:, outside] = -np.inf
    return _best(scores, count, asked.ndim == 0)

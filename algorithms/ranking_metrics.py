"""Quality of recommendations: the error of ratings, and measures of ranked lists.

`ranking_metrics` compares the first N recommendations of each user, which leave out the
user's training items, with the user's held-out items: those of the test matrix. A *hit*
is a held-out item in the list. Users without held-out items do not count.

=============  =======================================================================
``precision``  hits divided by the most that were possible: min(N, held-out items)
``recall``     hits divided by held-out items; the mean over users
``ndcg``       sum over hits of 1 / log2(1 + rank), divided by the largest such sum
``map``        sum over hits of the precision up to their rank, divided by
               min(N, held-out items)
``auc``        share of the pairs of a held-out and another item in which the held-out
               one is ranked first; a pair of unlisted items counts half
=============  =======================================================================

All but recall are defined as in the library `implicit`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_number
from featgraph.algorithms._ratings import rows_of

__all__ = ["ranking_metrics", "rmse", "train_test_split"]

Array = npt.NDArray[Any]


def rmse(
    ratings: Any, user_factors: npt.ArrayLike, item_factors: npt.ArrayLike
) -> float:
    """Return the root of the mean squared error of predicted ratings.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I)
        True ratings; stored zeros count.
    user_factors, item_factors : array_like of shape (U, K), (I, K)
        The predictions are ``user_factors @ item_factors.T``.

    Raises
    ------
    GraphInputError
        If there are no ratings, or the factors do not fit them.
    """
    entries = _sparse(ratings, "ratings").tocoo()
    if not entries.nnz:
        raise fg.GraphInputError("no ratings to compare with", got=f"{ratings.shape}")
    x = fg.given_array(user_factors, where="user_factors").on_host()
    y = fg.given_array(item_factors, where="item_factors").on_host()
    if x.ndim != 2 or (y.shape[1:], (len(x), len(y))) != (x.shape[1:], entries.shape):
        raise fg.GraphInputError(
            "the factors do not fit the ratings",
            got=f"shapes {x.shape} and {y.shape}",
            expected=f"({entries.shape[0]}, K) and ({entries.shape[1]}, K)",
        )
    total = 0.0
    for first in range(0, entries.nnz, 1 << 20):  # bounds memory of gathered rows
        part = slice(first, first + (1 << 20))
        rows, columns = entries.row[part], entries.col[part]
        predicted = np.einsum("nk,nk->n", x[rows], y[columns], dtype=np.float64)
        total += float(np.sum((predicted - entries.data[part]) ** 2))
    return float(np.sqrt(total / entries.nnz))


def train_test_split(
    ratings: Any, train_fraction: float = 0.8, random_state: int | None = 0
) -> tuple[Any, Any]:
    """Split the entries of a sparse matrix at random into two.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I)
        The matrix to split.
    train_fraction : float, optional
        Fraction of the entries in `train`, in (0, 1); rounded to whole entries.
    random_state : int, optional
        Seed.

    Returns
    -------
    train, test : csr_matrix of shape (U, I)
        Every entry is in exactly one of them. An entry that is given twice remains two
        entries, as in `als`; ``sum_duplicates()`` adds them up.
    """
    is_share = 0 < train_fraction < 1
    require_number("train_fraction", train_fraction, is_share, "0 < share < 1")
    entries = _sparse(ratings, "ratings").tocoo()
    order = np.random.default_rng(random_state).permutation(entries.nnz)
    cut = round(train_fraction * entries.nnz)
    train, test = np.sort(order[:cut]), np.sort(order[cut:])
    return rows_of(entries, train), rows_of(entries, test)


def ranking_metrics(
    model: Any, train: Any, test: Any, N: int = 10, batch: int = 1000
) -> dict[str, float]:
    """Return precision, recall, ndcg, map and auc of the first N recommendations.

    Parameters
    ----------
    model : AlternatingLeastSquares
        Or another object with a method ``recommend`` like its own.
    train, test : csr_matrix of shape (U, I)
        The training matrix, and the matrix of held-out entries.
    N : int, optional
        Length of the lists.
    batch : int, optional
        Number of users in a call of ``recommend``.
    """
    train, test = _sparse(train, "train").tocsr(), _sparse(test, "test").tocsr()
    if train.shape != test.shape:
        raise fg.GraphInputError(
            "train and test are of the same users and items",
            got=f"shapes {train.shape} and {test.shape}",
        )
    users = np.flatnonzero(np.diff(test.indptr))
    sums = dict.fromkeys(("precision", "recall", "ndcg", "map", "auc"), 0.0)
    possible = 0.0
    for first in range(0, len(users), batch):
        part = users[first : first + batch]
        listed, _ = model.recommend(part, train[part], N=N)
        for user, items in zip(part, listed, strict=True):
            held = test.indices[test.indptr[user] : test.indptr[user + 1]]
            found = _of_user(np.asarray(items), np.unique(held), test.shape[1])
            possible += found.pop("possible")
            for name, value in found.items():
                sums[name] += value
    count = max(len(users), 1)
    result = {name: total / count for name, total in sums.items()}
    result["precision"] = sums["precision"] / max(possible, 1.0)
    return result


def _sparse(given: Any, where: str) -> Any:
    if hasattr(given, "tocsr") and getattr(given, "ndim", 0) == 2:
        return given
    raise fg.GraphInputError(
        "ratings are a sparse matrix, users by items",
        where=where,
        got=type(given).__name__,
        expected="a SciPy sparse matrix of shape (U, I)",
        fix="scipy.sparse.csr_matrix((ratings, (users, items)))",
    )


def _of_user(listed: Array, held: Array, item_count: int) -> dict[str, float]:
    most = min(len(listed), len(held))
    hit = np.isin(listed, held)
    ranks = np.flatnonzero(hit) + 1.0
    weights = 1.0 / np.log2(np.arange(2, most + 2))
    hits = float(hit.sum())
    others = item_count - len(held)
    misses_before = ranks - np.arange(1, len(ranks) + 1)
    in_order = float(np.sum(others - misses_before))
    misses = float((~hit & (listed >= 0)).sum())
    unlisted = (others - misses) / 2.0  # an unlisted item is in the middle of them
    in_order += unlisted * (len(held) - hits)
    return {
        "possible": float(most),
        "precision": hits,
        "recall": hits / len(held),
        "ndcg": float(np.sum(1.0 / np.log2(ranks + 1)) / weights.sum()),
        "map": float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / most),
        "auc": in_order / (len(held) * others) if others else 0.0,
    }

"""Ratings as a bipartite graph, and the options of factorisations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = [
    "MOST_FOR_CHOLESKY",
    "Options",
    "Ratings",
    "checked_options",
    "checked_ratings",
    "given_factors",
]

Array = npt.NDArray[Any]
#: Target -> the factors up to which "auto" takes exact solutions. On the CPU, these
#: then cost at most twice as much as three steps of conjugate gradients: 58 against 31
#: ms of CPU an iteration with 1M ratings at K = 32, 178 against 52 ms at K = 64.
MOST_FOR_CHOLESKY = {"cpu": 32, "cuda": 128}


@dataclass(frozen=True, eq=False)
class Ratings:
    """A matrix of ratings as a graph: users are its first vertices, then the items.

    Attributes
    ----------
    values : ndarray of shape (N,)
        The ratings.
    """

    graph: fg.Graph
    user_count: int
    values: Array

    @property
    def count(self) -> int:
        """How many ratings there are."""
        return len(self.values)

    @property
    def sources(self) -> Array:
        """The user of each rating."""
        return self.graph.sources

    @property
    def targets(self) -> Array:
        """The item of each rating, as a vertex."""
        return self.graph.targets

    @property
    def users(self) -> Array:
        """The vertices of users."""
        return np.arange(self.user_count)

    @property
    def items(self) -> Array:
        """The vertices of items."""
        return np.arange(self.user_count, self.graph.vertex_count)

    def name(self, vertex: int) -> str:
        """Return what a vertex stands for."""
        if vertex < self.user_count:
            return f"user {vertex}"
        return f"item {vertex - self.user_count}"


@dataclass(frozen=True)
class Options:
    """What is minimised, and how."""

    regularization: float
    weighted: bool
    implicit: bool
    alpha: float
    uses_cg: bool

    def of_rating(self, real: np.dtype[Any]) -> dict[str, float]:
        """Return what makes confidence, and what a rating asks for, of a rating r.

        The first is ``slope * abs(r) + above`` beyond that of pairs that are not given,
        the second, times the confidence, ``max(scale * r, least)``.
        """
        if self.implicit:
            alpha = self.alpha
            return {"slope": alpha, "above": -1.0, "scale": alpha, "least": 0.0}
        least = float(np.finfo(real).min)
        return {"slope": 0.0, "above": 1.0, "scale": 1.0, "least": least}

    def of_edges(self, values: Array) -> tuple[Array, Array]:
        """Return the confidence of each rating, and confidence times what it wants."""
        r = values.astype(np.float64)
        if not self.implicit:
            return np.ones_like(r), r
        confidence = self.alpha * r
        return np.abs(confidence), np.maximum(confidence, 0.0)


def checked_ratings(ratings: Any, dtype: np.dtype[Any]) -> Ratings:
    """Return the graph of a matrix of ratings.

    Raises
    ------
    GraphInputError
        If it is no sparse matrix, is empty, or has values that are not finite.
    """
    if not hasattr(ratings, "tocoo") or getattr(ratings, "ndim", 2) != 2:
        raise fg.GraphInputError(
            "ratings are a sparse matrix, users by items",
            got=type(ratings).__name__,
            expected="a SciPy sparse matrix of shape (U, I)",
            fix="scipy.sparse.csr_matrix((ratings, (users, items)))",
        )
    if dtype not in (np.float32, np.float64):
        raise fg.GraphInputError(
            "not a type of factors", got=dtype, expected="float32 or float64"
        )
    entries = ratings.tocoo(copy=False)
    user_count, item_count = entries.shape
    if not user_count or not item_count:
        raise fg.GraphInputError(
            "ratings without users or items", got=f"shape {entries.shape}"
        )
    values = np.asarray(entries.data)
    if values.dtype.kind not in "biuf":
        raise fg.GraphInputError("ratings are real numbers", got=values.dtype)
    values = values.astype(dtype, copy=False)
    if not _are_finite(values):
        place = int(np.argmin(np.isfinite(values)))
        raise fg.GraphInputError(
            "a rating is not finite",
            where=f"user {entries.row[place]}, item {entries.col[place]}",
            got=values[place],
        )
    count = user_count + item_count
    wide = entries.col.dtype if count <= np.iinfo(entries.col.dtype).max else np.int64
    items = np.add(entries.col, user_count, dtype=wide)
    graph = fg.Graph.from_edges(entries.row, items, vertex_count=count, directed=False)
    return Ratings(graph, user_count, values)


def _are_finite(values: Array) -> bool:
    """Whether all are: a sum of squares that is finite tells so in one pass."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    return bool(math.isfinite(squares) or np.isfinite(values).all())


def checked_options(
    factors: int,
    regularization: float,
    weighted: bool,
    implicit: bool,
    alpha: float,
    *,
    solver: str = "cholesky",
    iterations: int = 1,
    tolerance: float = 0.0,
    target: str = "cpu",
) -> Options:
    """Return the options; `target` is where solver="auto" has to be fast.

    Raises
    ------
    GraphInputError
        If one is out of range.
    """
    for name, count, least in (("factors", factors, 1), ("iterations", iterations, 0)):
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise fg.GraphInputError(f"{name} is a count", got=repr(count))
        if count < least:
            raise fg.GraphInputError(
                f"{name} out of range", got=count, expected=f"{least} or more"
            )
    for name, value in (
        ("regularization", regularization),
        ("alpha", alpha),
        ("tolerance", tolerance),
    ):
        if not (math.isfinite(value) and value >= 0):
            raise fg.GraphInputError(
                f"{name} out of range", got=value, expected="0 or more, finite"
            )
    if solver not in {"auto", "cholesky", "cg"}:
        raise fg.GraphInputError(
            "no such solver", got=repr(solver), expected="'auto', 'cholesky' or 'cg'"
        )
    is_wide = factors > MOST_FOR_CHOLESKY[target]
    uses_cg = solver == "cg" or (solver == "auto" and is_wide)
    return Options(float(regularization), weighted, implicit, float(alpha), uses_cg)


def given_factors(
    given: Ratings, factors: int, initial: Any, dtype: np.dtype[Any]
) -> Array:
    """Return factors that are given; zeros for vertices without ratings.

    Raises
    ------
    GraphInputError
        If `initial` does not fit, or is not finite.
    """
    parts = [np.asarray(part, np.float64) for part in initial]
    shapes = [part.shape for part in parts]
    item_count = given.graph.vertex_count - given.user_count
    expected = [(given.user_count, factors), (item_count, factors)]
    if shapes != expected:
        raise fg.GraphInputError(
            "initial factors of another shape", got=shapes, expected=expected
        )
    x = np.concatenate(parts)
    if not np.isfinite(x).all():
        raise fg.GraphInputError("initial factors are not finite")
    x[np.asarray(given.graph.in_degree) == 0] = 0
    return x.astype(dtype, copy=False)

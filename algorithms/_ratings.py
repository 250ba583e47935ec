"""Ratings as a bipartite graph, and the objective of factorisations.

`checked_ratings` makes a graph from a sparse matrix, `look_through` checks and sums its
ratings, and `Options` has the objective that the factorisations minimise. `Sides` and
`Totals` are computed once per graph.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_choice, require_count, require_number

__all__ = [
    "MOST_FOR_CHOLESKY",
    "Options",
    "Ratings",
    "Sides",
    "Totals",
    "checked_options",
    "checked_ratings",
    "look_through",
    "rows_of",
    "sides_of",
]

Array = npt.NDArray[Any]
#: Target -> largest K for which solver="auto" is Cholesky. On the CPU, it then costs at
#: most twice as much as three steps of conjugate gradients: with 1M ratings, 58 against
#: 31 ms of processor time per iteration for K = 32, and 178 against 52 ms for K = 64.
MOST_FOR_CHOLESKY = {"cpu": 32, "cuda": 128}


@dataclass(frozen=True)
class Options:
    """The objective of a factorisation, and its solver."""

    regularization: float
    weighted: bool
    implicit: bool
    alpha: float
    uses_cg: bool

    def of_rating(self, real: np.dtype[Any]) -> dict[str, float]:
        """Return the scalars that map a rating r to its confidence and its target.

        The confidence, minus that of pairs that are not given, is ``slope * abs(r) +
        above``. The target times the confidence is ``max(scale * r, least)``.
        """
        if self.implicit:
            alpha = self.alpha
            return {"slope": alpha, "above": -1.0, "scale": alpha, "least": 0.0}
        least = float(np.finfo(real).min)
        return {"slope": 0.0, "above": 1.0, "scale": 1.0, "least": least}

    def of_ridge(self) -> dict[str, float]:
        """Return the regularization per vertex, and per rating."""
        ridge = self.regularization
        return {
            "ridge": 0.0 if self.weighted else ridge,
            "ridge_each": ridge if self.weighted else 0.0,
        }

    def of_edges(self, values: Array) -> tuple[Array, Array]:
        """Return the confidence of each rating, and the confidence times its target."""
        r = values.astype(np.float64)
        if not self.implicit:
            return np.ones_like(r), r
        confidence = self.alpha * r
        return np.abs(confidence), np.maximum(confidence, 0.0)


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
    """Return checked options; `target` determines the choice of solver="auto".

    Raises
    ------
    GraphInputError
        If an option is out of range.
    """
    require_count("factors", factors, 1)
    require_count("iterations", iterations, 0)
    for name, value in (
        ("regularization", regularization),
        ("alpha", alpha),
        ("tolerance", tolerance),
    ):
        require_number(name, value, value >= 0, "0 or more, finite")
    require_choice("solver", solver, ("auto", "cholesky", "cg"))
    is_wide = factors > MOST_FOR_CHOLESKY[target]
    uses_cg = solver == "cg" or (solver == "auto" and is_wide)
    return Options(float(regularization), weighted, implicit, float(alpha), uses_cg)


class Sides:
    """Data derived once from a graph of ratings; it has no reference to the graph.

    Parameters
    ----------
    graph : Graph
        A graph with two sides.

    Attributes
    ----------
    users, items : ActiveSet
        The vertices of each side.
    totals : dict
        `Totals` by target, dtype and objective.
    """

    def __init__(self, graph: fg.Graph) -> None:
        count, sides = graph.vertex_count, cast("tuple[int, int]", graph.sides)
        is_user = np.arange(count) < sides[0]
        self.users = fg.ActiveSet(count, is_user)
        self.items = fg.ActiveSet(count, ~is_user)
        self.totals: dict[Hashable, Any] = {}
        self._halves: dict[fg.FoldMap, tuple[fg.FoldMap, fg.FoldMap]] = {}

    def halves(self, foldmap: fg.FoldMap) -> tuple[fg.FoldMap, fg.FoldMap]:
        """Return a foldmap restricted to the users, and to the items."""
        found = self._halves.get(foldmap)
        if found is None:
            found = foldmap.on(self.users), foldmap.on(self.items)
            self._halves[foldmap] = found
        return found


#: Version of a graph -> its sides, so that a target stores their sets and lists once.
_sides: weakref.WeakKeyDictionary[Any, Sides] = weakref.WeakKeyDictionary()


def sides_of(graph: fg.Graph) -> Sides:
    """Return the `Sides` of a graph of ratings, which are cached."""
    found = _sides.get(version := graph.stamps.version)
    if found is None:
        found = _sides[version] = Sides(graph)
    return found


def _entries_as(matrix: Any, dtype: np.dtype[Any]) -> Any:
    """Cast a sparse matrix; its own ``astype`` would sum repeated entries."""
    made = matrix.copy()
    made.data = made.data.astype(dtype)
    return made


def rows_of(entries: Any, chosen: Array) -> Any:
    """Return some entries of a COO matrix as CSR; SciPy would sum repeated entries."""
    from scipy.sparse import csr_matrix

    order = chosen[np.lexsort((entries.col[chosen], entries.row[chosen]))]
    counts = np.bincount(entries.row[order], minlength=entries.shape[0])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    arrays = entries.data[order], entries.col[order], offsets
    return csr_matrix(arrays, shape=entries.shape)


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings as a graph: users are its first vertices, then the items.

    Attributes
    ----------
    graph : Graph
        A graph with two sides, undirected or from users to items. Its weights are the
        ratings.
    values : array of shape (N,)
        The ratings in the dtype of the factors; on ranks, those of this rank's edges.
    sides : Sides
    """

    graph: fg.Graph
    values: Any
    sides: Sides = field(repr=False)

    @property
    def count(self) -> int:
        """The number of ratings."""
        return self.graph.given_edge_count

    @property
    def user_count(self) -> int:
        """The number of users."""
        sides: Any = self.graph.sides
        return int(sides[0])

    def name(self, vertex: int) -> str:
        """Return "user N" or "item N" for a vertex."""
        if vertex < self.user_count:
            return f"user {vertex}"
        return f"item {vertex - self.user_count}"


def checked_ratings(
    ratings: Any, dtype: np.dtype[Any], target: str = "cpu", *, directed: bool = False
) -> Ratings:
    """Return the graph of a sparse matrix of ratings, or check a graph of ratings.

    The graph is undirected, or leads from users to items.

    Raises
    ------
    GraphInputError
        If `ratings` is neither a sparse matrix nor a graph of ratings, is empty, or has
        values that are not numbers. `look_through` checks the ratings of a graph.
    """
    if dtype not in (np.float32, np.float64):
        raise fg.GraphInputError(
            "not a type of factors",
            where="dtype=",
            got=f"{dtype!r:.60}",
            expected="float32 or float64",
        )
    if isinstance(ratings, fg.Graph):
        graph = _checked_graph(ratings, directed)
    else:
        graph = _graph_of(ratings, dtype, target, directed)
    return Ratings(graph, graph.weights_as(dtype), sides_of(graph))


def _checked_graph(graph: fg.Graph, directed: bool) -> fg.Graph:
    is_of_two = graph.sides is not None and len(graph.sides) == 2
    if is_of_two and graph.directed == directed and graph.part.weights is not None:
        return graph
    sides = "no sides" if graph.sides is None else f"sides {graph.sides}"
    raise fg.GraphInputError(
        "not a graph of ratings",
        got=f"{graph}, {sides}",
        expected="a directed graph, from users to items, whose weights are the ratings"
        if directed
        else "an undirected graph of two sides whose weights are the ratings",
        fix="fg.Graph.from_biadjacency(matrix), or "
        * (not directed)
        + "fg.Graph.from_edges(users, user_count + items, weights=ratings, "
        f"directed={directed}, sides=(user_count, item_count))",
    )


def _graph_of(
    ratings: Any, dtype: np.dtype[Any], target: str, directed: bool
) -> fg.Graph:
    if not hasattr(ratings, "tocoo") or getattr(ratings, "ndim", 2) != 2:
        raise fg.GraphInputError(
            "ratings are a sparse matrix, users by items",
            got=type(ratings).__name__,
            expected="a SciPy sparse matrix of shape (U, I), or a graph of two sides",
            fix="scipy.sparse.csr_matrix((ratings, (users, items)))",
        )
    if not all(ratings.shape):
        raise fg.GraphInputError(
            "ratings without users or items", got=f"shape {ratings.shape}"
        )
    is_compressed = ratings.format in ("csr", "csc")
    entries = ratings if is_compressed else ratings.tocoo(copy=False)
    values = fg.given_array(entries.data, where="ratings").on_host()
    with np.errstate(over="ignore"):
        as_stored = values.astype(dtype, copy=False)
    if not _are_finite(as_stored):
        _require_finite(ratings.tocoo(copy=False), dtype)
    if values.dtype.kind == "b" or values.dtype.itemsize > 8:
        entries = _entries_as(entries, dtype)
    # "auto": for few ratings, compiling the kernels of a GPU would take longer.
    made_on = "cpu" if target == "cpu" else "auto"
    if not directed:
        return fg.Graph.from_biadjacency(entries, target=made_on)
    entries, sides = entries.tocoo(copy=False), ratings.shape
    ends = entries.row, entries.col.astype(np.int64) + sides[0]
    return fg.Graph.from_edges(*ends, weights=entries.data, sides=sides, target=made_on)


def _require_finite(entries: Any, dtype: np.dtype[Any]) -> None:
    """Raise GraphInputError for the first entry that is not finite in a type."""
    values = entries.data
    with np.errstate(over="ignore"):
        is_bad = ~np.isfinite(values.astype(dtype))
    for place in np.flatnonzero(is_bad):  # raises at the first one
        is_lost = np.isfinite(values[place])
        raise fg.GraphInputError(
            f"a rating does not fit {dtype}" if is_lost else "a rating is not finite",
            where=f"user {entries.row[place]}, item {entries.col[place]}",
            got=values[place],
            fix="give dtype=np.float64, or scale the ratings" if is_lost else None,
        )


def _are_finite(values: Array) -> bool:
    """Whether all values are finite, as a finite sum of squares shows in one pass."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    return bool(math.isfinite(squares) or np.isfinite(values).all())


#: The sums of `survey`, one per feature: absolute values of ratings, squared error of a
#: model without factors, and number of ratings within a side.
KINDS = SIZE, ERROR, ASIDE = 0, 1, 2


@fg.gather(into="found", combine="sum")
def look_at(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum `KINDS` over the ratings of v."""
    rating = d.rating[e]
    kind = d.kind[f]
    wanted = max(d.scale * rating, d.least)
    error = wanted if d.is_implicit else wanted * rating
    aside = 1 if (u < d.user_count) == (v < d.user_count) else 0
    return abs(rating) if kind == SIZE else (error if kind == ERROR else aside)


@fg.vertex
def note(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sums for the reduce."""
    d.seen[v, f] = d.found[v, f]
    return True


@fg.reduce(into="all_seen", combine="sum")
def sum_of_seen(f, v, d):  # type: ignore[no-untyped-def]
    """Sum over all vertices: each rating counts at both of its ends."""
    return d.seen[v, f]


survey = fg.foldmap(look_at, note, sum_of_seen)


@dataclass(frozen=True)
class Totals:
    """Sums over all ratings.

    Attributes
    ----------
    mean_size : float
        Mean of the absolute values of the ratings.
    unexplained : float
        The squared error if all products of factors are zero, without regularization.
    """

    mean_size: float
    unexplained: float


def look_through(given: Ratings, chosen: Options, *, target: str) -> Totals:
    """Check and sum the ratings on the target; results are cached by objective.

    Raises
    ------
    GraphInputError
        If a rating is not finite, or its edge joins two vertices of one side.
    """
    if not given.count:
        return Totals(0.0, 0.0)
    scalars = chosen.of_rating(given.values.dtype)
    # The rounding of sums depends on target and dtype.
    key = target, given.values.dtype.name, chosen.implicit, *scalars.values()
    known = given.sides.totals.get(key)
    if known is not None:
        return known
    state = fg.State(
        given.graph,
        rating=fg.edge_property(given.values, copy=False),
        is_implicit=chosen.implicit,
        user_count=given.user_count,
        kind=np.array(KINDS),
        seen=fg.vertex_property(np.float64(0), shape=(len(KINDS),)),
        **scalars,
    )
    survey(state, target=target)
    size, error, aside = map(float, state["all_seen"])
    for kind, is_bad, what in (
        (SIZE, not math.isfinite(size), "a rating is not finite"),
        (ASIDE, aside > 0, "a rating is of a user and an item, no edge within a side"),
    ):
        if is_bad:
            seen = state["seen"][:, kind]
            vertex = int(np.argmax(~np.isfinite(seen) if kind == SIZE else seen > 0))
            raise fg.GraphInputError(what, where=given.name(vertex))
    found = given.sides.totals[key] = Totals(size / 2 / given.count, error / 2)
    return found

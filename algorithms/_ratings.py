"""Ratings as a bipartite graph, and what they come to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._objective import Options

__all__ = [
    "Ratings",
    "Totals",
    "checked_ratings",
    "look_through",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings as a graph: users are its first vertices, then the items.

    Attributes
    ----------
    graph : Graph
        Undirected, of two sides. Its weights are the ratings.
    values : array of shape (N,)
        These, in the type of the factors; on ranks, those of this one's edges.
    """

    graph: fg.Graph
    values: Any

    @property
    def count(self) -> int:
        """How many ratings there are."""
        return self.graph.given_edge_count

    @property
    def user_count(self) -> int:
        """How many users there are."""
        sides: Any = self.graph.sides
        return int(sides[0])

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


def checked_ratings(ratings: Any, dtype: np.dtype[Any], target: str = "cpu") -> Ratings:
    """Return the graph of a matrix of ratings, made on a target, or take one.

    Raises
    ------
    GraphInputError
        If it is no sparse matrix and no graph of ratings, is empty, or has values that
        are no numbers. Of a graph, `look_through` checks the rest.
    """
    if dtype not in (np.float32, np.float64):
        raise fg.GraphInputError(
            "not a type of factors", got=dtype, expected="float32 or float64"
        )
    if isinstance(ratings, fg.Graph):
        graph = _checked_graph(ratings)
    else:
        graph = _graph_of(ratings, dtype, target)
    return Ratings(graph, graph.weights_as(dtype))


def _checked_graph(graph: fg.Graph) -> fg.Graph:
    is_of_two = graph.sides is not None and len(graph.sides) == 2
    if is_of_two and not graph.directed and graph.part.weights is not None:
        return graph
    sides = "no sides" if graph.sides is None else f"sides {graph.sides}"
    raise fg.GraphInputError(
        "not a graph of ratings",
        got=f"{graph}, {sides}",
        expected="an undirected graph of two sides whose weights are the ratings",
        fix="fg.Graph.from_biadjacency(matrix), or fg.Graph.from_edges(users, "
        "user_count + items, weights=ratings, directed=False, "
        "sides=(user_count, item_count))",
    )


def _graph_of(ratings: Any, dtype: np.dtype[Any], target: str) -> fg.Graph:
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
    values = np.asarray(entries.data)
    if values.dtype.kind not in "biuf":
        raise fg.GraphInputError("ratings are real numbers", got=values.dtype)
    if not _are_finite(values.astype(dtype, copy=False)):
        _require_finite(ratings.tocoo(copy=False), dtype)
    if values.dtype.kind == "b" or values.dtype.itemsize > 8:
        entries = entries.astype(dtype)
    return fg.Graph.from_biadjacency(entries, target=target)


def _require_finite(entries: Any, dtype: np.dtype[Any]) -> None:
    """Raise GraphInputError for the first entry that is not finite in a type."""
    values = np.asarray(entries.data).astype(dtype)
    for place in np.flatnonzero(~np.isfinite(values)):  # none behind the last entry
        where = f"user {entries.row[place]}, item {entries.col[place]}"
        got = values[place]
        raise fg.GraphInputError("a rating is not finite", where=where, got=got)


def _are_finite(values: Array) -> bool:
    """Whether all are: a sum of squares that is finite tells so in one pass."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    return bool(math.isfinite(squares) or np.isfinite(values).all())


@fg.gather(into="size_of", combine="sum")
def sizes(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add up how large the ratings of v are."""
    return abs(d.rating[e])


@fg.gather(into="asked_of", combine="sum")
def asked(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add up the error that v has while nothing is explained."""
    wanted = max(d.scale * d.rating[e], d.least)
    return wanted if d.is_implicit else wanted * d.rating[e]


@fg.gather(into="aside_of", combine="sum")
def aside(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count ratings within a side."""
    return 1 if (u < d.user_count) == (v < d.user_count) else 0


@fg.vertex
def note(f, v, d):  # type: ignore[no-untyped-def]
    """Keep what is added up next."""
    d.size[v] = d.size_of[v]
    d.asked_at[v] = d.asked_of[v]
    d.aside_at[v] = d.aside_of[v]
    return True


@fg.reduce(into="all_sizes", combine="sum")
def sum_of_sizes(f, v, d):  # type: ignore[no-untyped-def]
    """Add up how large all ratings are, each at both of its ends."""
    return d.size[v]


@fg.reduce(into="all_asked", combine="sum")
def sum_of_asked(f, v, d):  # type: ignore[no-untyped-def]
    """Add up the error likewise."""
    return d.asked_at[v]


@fg.reduce(into="not_finite", combine="min")
def first_not_finite(f, v, d):  # type: ignore[no-untyped-def]
    """Find the first vertex with a rating that is not finite."""
    return d.vertex_count if math.isfinite(d.size[v]) else v


@fg.reduce(into="misplaced", combine="min")
def first_misplaced(f, v, d):  # type: ignore[no-untyped-def]
    """Find the first vertex with a rating within its side."""
    return d.vertex_count if d.aside_at[v] == 0 else v


survey = fg.foldmap(
    sizes, asked, aside, note, sum_of_sizes, sum_of_asked, first_not_finite,
    first_misplaced,
)  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """What ratings come to.

    Attributes
    ----------
    mean_size : float
        Mean of their absolute values.
    unexplained : float
        The error of factors that explain nothing, without what their size adds.
    """

    mean_size: float
    unexplained: float


def look_through(given: Ratings, chosen: Options, *, target: str) -> Totals:
    """Add the ratings up, where they are.

    Raises
    ------
    GraphInputError
        If a rating is not finite, or is no one's of the other side.
    """
    if not given.count:
        return Totals(0.0, 0.0)
    state = fg.State(
        given.graph,
        rating=fg.edge_property(given.values, copy=False),
        is_implicit=chosen.implicit,
        user_count=given.user_count,
        size=fg.vertex_property(np.float64(0)),
        asked_at=fg.vertex_property(np.float64(0)),
        aside_at=fg.vertex_property(0),
        **chosen.of_rating(given.values.dtype),
    )
    survey(state, target=target)
    for name, what in (
        ("not_finite", "a rating is not finite"),
        ("misplaced", "a rating is of a user and an item, no edge within a side"),
    ):
        vertex = int(state[name][0])
        if vertex < given.graph.vertex_count:
            raise fg.GraphInputError(what, where=given.name(vertex))
    sizes, asked = (float(state[name][0]) / 2 for name in ("all_sizes", "all_asked"))
    return Totals(sizes / given.count, asked)

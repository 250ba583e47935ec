"""Ratings as a bipartite graph, and what they come to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._objective import Options
from featgraph.algorithms._sides import Sides, entries_as, sides_of

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
        Of two sides, undirected or from users to items. Its weights are the ratings.
    values : array of shape (N,)
        These, in the type of the factors; on ranks, those of this one's edges.
    sides : Sides
    """

    graph: fg.Graph
    values: Any
    sides: Sides = field(repr=False)

    @property
    def count(self) -> int:
        """How many ratings there are."""
        return self.graph.given_edge_count

    @property
    def user_count(self) -> int:
        """How many users there are."""
        sides: Any = self.graph.sides
        return int(sides[0])

    def name(self, vertex: int) -> str:
        """Return what a vertex stands for."""
        if vertex < self.user_count:
            return f"user {vertex}"
        return f"item {vertex - self.user_count}"


def checked_ratings(
    ratings: Any, dtype: np.dtype[Any], target: str = "cpu", *, directed: bool = False
) -> Ratings:
    """Return the graph of a matrix of ratings, made on a target, or take one.

    It is undirected, or leads from users to items.

    Raises
    ------
    GraphInputError
        If it is no sparse matrix and no graph of ratings, is empty, or has values that
        are no numbers. Of a graph, `look_through` checks the rest.
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
        entries = entries_as(entries, dtype)
    # Of few ratings the host makes the graph before a GPU has compiled how to.
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
    for place in np.flatnonzero(is_bad):  # none behind the last entry
        is_lost = np.isfinite(values[place])
        raise fg.GraphInputError(
            f"a rating does not fit {dtype}" if is_lost else "a rating is not finite",
            where=f"user {entries.row[place]}, item {entries.col[place]}",
            got=values[place],
            fix="give dtype=np.float64, or scale the ratings" if is_lost else None,
        )


def _are_finite(values: Array) -> bool:
    """Whether all are: a sum of squares that is finite tells so in one pass."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    return bool(math.isfinite(squares) or np.isfinite(values).all())


#: What is added up, one a feature: how large ratings are, the error that there is while
#: nothing is explained, and ratings within a side.
KINDS = SIZE, ERROR, ASIDE = 0, 1, 2


@fg.gather(into="found", combine="sum")
def look_at(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add these up for v."""
    rating = d.rating[e]
    kind = d.kind[f]
    wanted = max(d.scale * rating, d.least)
    error = wanted if d.is_implicit else wanted * rating
    aside = 1 if (u < d.user_count) == (v < d.user_count) else 0
    return abs(rating) if kind == SIZE else (error if kind == ERROR else aside)


@fg.vertex
def note(f, v, d):  # type: ignore[no-untyped-def]
    """Keep what is added up next."""
    d.seen[v, f] = d.found[v, f]
    return True


@fg.reduce(into="all_seen", combine="sum")
def sum_of_seen(f, v, d):  # type: ignore[no-untyped-def]
    """Add it up over all vertices: each rating counts at both of its ends."""
    return d.seen[v, f]


survey = fg.foldmap(look_at, note, sum_of_seen)


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
    """Add the ratings up, where they are, once for each way to look at them.

    Raises
    ------
    GraphInputError
        If a rating is not finite, or is no one's of the other side.
    """
    if not given.count:
        return Totals(0.0, 0.0)
    asked = chosen.of_rating(given.values.dtype)
    # A sum is rounded as its target and its type have it.
    key = target, given.values.dtype.name, chosen.implicit, *asked.values()
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
        **asked,
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

"""Factors of users and items: initial values, regularization, and results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_number
from featgraph.algorithms._ratings import Ratings, Totals
from featgraph.algorithms._result import Result, answer

__all__ = [
    "FactorsResult",
    "factors_to_begin",
    "fields_of_factors",
    "iterate_halves",
    "sum_of_penalties",
    "weigh",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class FactorsResult(Result):
    """Base of the results of factorisations.

    Attributes
    ----------
    factors : ndarray of shape (U + I, K)
        Factors of the users, followed by those of the items; zeros for users and items
        without ratings.
    user_factors, item_factors : ndarray of shape (U, K), (I, K)
        The two parts of `factors`. Their products are the predicted ratings.
    residuals : ndarray of float64
        The regularised squared error after every half superstep; empty without history.
    training_rmse : ndarray of float64
        Root of the mean squared error of the given ratings after every half superstep;
        empty without history.
    """

    factors: npt.NDArray[Any] = answer()
    user_factors: npt.NDArray[Any] = answer(is_per_vertex=False)
    item_factors: npt.NDArray[Any] = answer(is_per_vertex=False)
    training_rmse: npt.NDArray[np.float64]

    residual_name = "regularised squared error"


def fields_of_factors(run: fg.Run, state: fg.State, user_count: int) -> dict[str, Any]:
    """Return the fields of a `FactorsResult`: errors that were noted, and factors."""
    return {
        "run": run,
        "residuals": np.array(run.notes.get("errors", [])),
        "training_rmse": np.array(run.notes.get("rmse", [])),
        "factors": state.view("x"),
        "user_factors": lambda result: result.factors[:user_count],
        "item_factors": lambda result: result.factors[user_count:],
    }


def iterate_halves(
    steps: Sequence[fg.FoldMap],
    state: fg.State,
    last: int,
    record: Callable[[fg.Run, fg.State], bool] | None,
    **options: Any,
) -> fg.Run:
    """Run `last` supersteps, or fewer if `record` ends the run.

    Without `record`, the host reads nothing between supersteps.
    """
    if record is None:
        return fg.iterate(steps, state, supersteps=last, **options)
    own = options.pop("callback", None)

    def look(run: fg.Run, state: fg.State) -> bool:
        ends = record(run, state)
        return (own is not None and bool(own(run, state))) or ends

    # Never reached: `record` ends the run after the last superstep.
    return fg.iterate(steps, state, max_supersteps=1 << 40, callback=look, **options)


def drawn(place: Any) -> Any:
    """Return a pseudorandom number in [0, 1) that is a function of an integer.

    Three multiplications mix the bits of the integer, as in SplitMix64 (Steele, Lea and
    Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
    """
    bits = place * -7046029254386353131
    bits = (bits ^ ((bits >> 30) & 17179869183)) * -4658895280553007687
    bits = (bits ^ ((bits >> 27) & 137438953471)) * -7723592293110705685
    bits = (bits >> 40) & 16777215
    return bits / 16777216.0


@fg.vertex
def scatter(f, v, d):  # type: ignore[no-untyped-def]
    """Draw the initial factors of v; a vertex without ratings keeps zeros."""
    if d.in_degree[v] == 0:
        return False
    d.x_next[v, f] = d.size * (0.5 + drawn(v * d.feature_count + f + int(d.seed)))
    return True


@fg.vertex
def scatter_in_place(f, v, d):  # type: ignore[no-untyped-def]
    """Draw initial factors that are not iterated, on a directed graph."""
    if d.in_degree[v] + d.out_degree[v] == 0:
        return False
    d.x[v, f] = d.size * (d.least + drawn(v * d.feature_count + f + int(d.seed)))
    return True


scattered = fg.foldmap(scatter)
scattered_in_place = fg.foldmap(scatter_in_place)


@fg.vertex
def weigh(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the regularization term of the factors of v."""
    ridge = d.ridge + d.ridge_each * d.in_degree[v]
    d.penalty[v] = ridge * fg.dot(d.x[v, f], d.x[v, f])
    return True


@fg.reduce(into="penalties", combine="sum")
def sum_of_penalties(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the regularization terms."""
    return d.penalty[v]


def factors_to_begin(
    given: Ratings,
    factors: int,
    initial: Any,
    real: np.dtype[Any],
    totals: Totals,
    seed: int | None,
    target: str,
    *,
    around: str = "",
    goes_on: bool = False,
    **more: Any,
) -> fg.State:
    """Return a State with the initial factors ``x``, given or drawn, and `more`.

    Each drawn factor is a function of the seed and its index, so that it is drawn on
    the target.

    Parameters
    ----------
    around : {"", "products", "zero"}
        "": ``x`` is iterated, and products of factors are about as large as ratings.
        "products": the same, but ``x`` is written in place. "zero": ``x`` is written in
        place; products have the mean zero and a tenth of `totals.mean_size` as size.
    goes_on : bool
        Whether vertices without ratings keep given factors, rather than get zeros.
    """
    in_place = bool(around)
    is_seed = seed is None or seed >= 0
    require_number("random_state", seed or 0, is_seed, "0 or more, or None")
    if initial is not None:
        x = _given_factors(given, factors, initial, real, goes_on)
        begin = fg.vertex_property(x, iterated=not in_place)
        return fg.State(given.graph, x=begin, **more)
    size = math.sqrt(min(totals.mean_size, 1e6) / factors)
    if around == "zero":
        # A product of vectors sums k products of independent entries, which have the
        # variance size**2 / 12.
        size = math.sqrt(1.2 * min(totals.mean_size, 1e6) / math.sqrt(factors))
    if in_place:
        more["least"] = -0.5 if around == "zero" else 0.5
    state = fg.State(
        given.graph,
        x=fg.vertex_property(0, dtype=real, shape=(factors,), iterated=not in_place),
        size=size,
        seed=int(np.random.default_rng(seed).integers(1 << 62)),
        **more,
    )
    (scattered_in_place if in_place else scattered)(state, target=target)
    return state


def _given_factors(
    given: Ratings, factors: int, initial: Any, dtype: np.dtype[Any], goes_on: bool
) -> Array:
    """Return checked given factors, with zeros for vertices without ratings.

    Raises
    ------
    GraphInputError
        If `initial` does not fit, or is not finite.
    """
    if not isinstance(initial, tuple | list):
        raise fg.GraphInputError(
            "initial factors are those of the users and those of the items",
            where="initial=",
            got=type(initial).__name__,
            expected="(user_factors, item_factors)",
        )
    parts = [fg.given_array(x, np.float64, "initial").on_host() for x in initial]
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
    degree = np.asarray(given.graph.in_degree) + np.asarray(given.graph.out_degree)
    x[(degree == 0) & (not goes_on)] = 0
    return fg.given_array(x, dtype, "initial").on_host()

"""Checks and conversions of potentials, evidence and beliefs of belief propagation.

Potentials are not negative; kernels compute with their logarithms, which are -inf for
impossible states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._vertices import at_living

__all__ = [
    "MODES",
    "UNOBSERVED",
    "checked_unary",
    "distributions",
    "explain_contradiction",
    "logarithm",
    "observation",
    "observed",
    "pairwise_logs",
    "require_held_logs",
    "unary_logs",
]

Array = npt.NDArray[Any]

MODES = ("sum-product", "max-product")

#: The evidence of a vertex that has none.
UNOBSERVED = -1


def logarithm(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the log, -inf for zero, in float64."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, np.float64))


def distributions(beliefs: Array) -> npt.NDArray[np.float64]:
    """Return exp of each row, divided by its sum; zeros for a row of -inf."""
    logs = beliefs.astype(np.float64)
    top = logs.max(axis=1, keepdims=True)
    # The largest term is exp(0): no sum overflows or vanishes.
    raised = np.exp(logs - np.where(np.isfinite(top), top, 0))
    total = raised.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(raised, total, out=raised, where=total > 0))


def _checked(given: fg.GivenArray, what: str, item: str, is_log: bool) -> fg.GivenArray:
    """Return checked potentials, finite and not negative, or logs below inf."""
    values = given.astype(np.float64)
    first = values.first_outside(-np.inf if is_log else 0, values.greatest)
    if first is not None:
        place = [int(part) for part in np.unravel_index(first, given.shape)]
        where = f"{item} {place[0]}" if given.ndim > 2 or item == "vertex" else "shared"
        raise fg.GraphInputError(
            f"{what} potentials are "
            + ("logs below inf" if is_log else "finite, >= 0"),
            where=f"{where}, entry {place}",
            got=values.row(place[0])[tuple(place[1:])],
            fix=None if is_log else "is_log=True, if they are logarithms",
        )
    return values


def checked_unary(graph: fg.Graph, unary: npt.ArrayLike, is_log: bool) -> fg.GivenArray:
    """Return potentials or logs, (V, K) in float64; each row has a possible state."""
    given = fg.given_array(unary, where="unary")
    if given.ndim != 2 or len(given) != graph.vertex_count or given.shape[1] == 0:
        raise fg.GraphInputError(
            "one row of K potentials per vertex is needed",
            where="unary",
            got=f"shape {given.shape}",
            expected=f"({graph.vertex_count}, K)",
        )
    values = _checked(at_living(graph, given, 1), "unary", "vertex", is_log)
    lost = values.first_row_without(-np.inf if is_log else 0)
    if lost is not None:
        raise fg.GraphInputError(
            "unary potentials leave no state",
            where=f"vertex {lost}",
            fix="give a state a chance",
        )
    return values


def require_held_logs(given: fg.GivenArray, what: str, real: np.dtype[Any]) -> None:
    """Raise GraphInputError if a finite log is infinite in a dtype.

    A state that is possible would become impossible.
    """
    most, greatest = float(np.finfo(real).max), np.finfo(np.float64).max
    values = given.astype(np.float64)
    for least, largest in (
        (-greatest, np.nextafter(-most, -np.inf)),
        (np.nextafter(most, np.inf), greatest),
    ):
        row = values.first_row_inside(least, largest) if least <= largest else None
        if row is not None:
            found = values.row(row)
            raise fg.GraphInputError(
                f"a log does not fit {real}",
                where=f"{what}, row {row}",
                got=found[(found >= least) & (found <= largest)][0],
                expected=f"a magnitude of at most {most:.2g}, or -inf",
                fix="give dtype=np.float64, or -inf for what is impossible",
            )


def unary_logs(graph: fg.Graph, unary: npt.ArrayLike, is_log: bool) -> Array:
    """Return the logs of unary potentials, checked by `checked_unary`, on the host."""
    values = checked_unary(graph, unary, is_log).on_host()
    return values if is_log else logarithm(values)


def pairwise_logs(
    graph: fg.Graph, pairwise: npt.ArrayLike, k: int, is_log: bool
) -> fg.GivenArray:
    """Return the logs of pairwise potentials, (E, K, K) or (K, K), in float64.

    They are computed here and not by an edge function, which may not write a property
    that both directions of an edge share.
    """
    given = fg.given_array(pairwise, where="pairwise")
    shapes = ((k, k), (graph.given_edge_count, k, k))
    if given.shape not in shapes:
        raise fg.GraphInputError(
            "one K x K potential per given edge, or one for all, is needed",
            where="pairwise",
            got=f"shape {given.shape}",
            expected=f"{shapes[1]} or {shapes[0]}",
        )
    values = _checked(given, "pairwise", "edge", is_log)
    return values if is_log else values.logs()


def observation(
    evidence: Mapping[int, int] | npt.ArrayLike | None, count: int, k: int
) -> tuple[Any, bool]:
    """Return a property (V,) of observed states, and whether a vertex is observed."""
    if evidence is None or isinstance(evidence, Mapping):
        seen, states = observed(evidence, count, k)
        unobserved = np.int32(UNOBSERVED)
        return fg.vertex_property(unobserved, at=seen, entries=states), seen.size > 0
    given = _checked_states(evidence, count, k)
    is_any = count > 0 and given.largest_of_columns().max() > UNOBSERVED
    return fg.vertex_property(given.values, dtype=np.int32), bool(is_any)


def observed(
    evidence: Mapping[int, int] | npt.ArrayLike | None, count: int, k: int
) -> tuple[Array, Array]:
    """Return the observed vertices, and their states."""
    if evidence is None:
        evidence = {}
    if isinstance(evidence, Mapping):
        for vertex, state in evidence.items():
            is_id = isinstance(vertex, int | np.integer) and not isinstance(
                vertex, bool
            )
            if not is_id or not 0 <= vertex < count:
                raise fg.GraphInputError(
                    "evidence of a vertex that is not there",
                    got=vertex,
                    expected=f"0 to {count - 1}",
                )
            _check_state(vertex, state, k)
        return np.array([*evidence], np.int64), np.array([*evidence.values()], np.int32)
    states = _checked_states(evidence, count, k).on_host()
    seen = np.flatnonzero(states != UNOBSERVED)
    return seen, states[seen].astype(np.int32)


def _checked_states(evidence: npt.ArrayLike, count: int, k: int) -> fg.GivenArray:
    states = fg.given_array(evidence, where="evidence")
    if states.shape != (count,) or states.dtype.kind not in "iu":
        raise fg.GraphInputError(
            "evidence is a state per vertex, or a mapping of vertex to state",
            got=f"{states.dtype} of shape {states.shape}",
            expected=f"integers of shape ({count},), -1 for unobserved",
        )
    bad = states.first_outside(UNOBSERVED, k - 1)
    if bad is not None:
        _check_state(bad, states.row(bad), k)
    return states


def _check_state(vertex: int, state: Any, k: int) -> None:
    if not isinstance(state, int | np.integer) or not 0 <= state < k:
        raise fg.GraphInputError(
            "not a state", where=f"vertex {vertex}", got=state, expected=f"0 to {k - 1}"
        )


def explain_contradiction(
    step: fg.FoldMap,
    fresh: Callable[[], fg.State],
    describe: Callable[[int], str],
    **options: Any,
) -> fg.GraphInputError:
    """Return the error with the vertex that first had no possible state.

    A vertex without a possible state excludes all states of its neighbors, and in the
    end of its component. The run is repeated to find the first such vertex.
    """
    first: list[int] = []

    def look(run: fg.Run, state: fg.State) -> bool:
        first.extend(np.flatnonzero((state["belief"] == -np.inf).all(axis=1)).tolist())
        return bool(first)

    fg.iterate(step, fresh(), callback=look, **options)
    return fg.GraphInputError(
        "the evidence contradicts itself: no state is possible",
        where=describe(first[0]),
        got="potentials or messages that exclude every state",
        fix="drop an observation, or replace zero potentials by small ones",
    )

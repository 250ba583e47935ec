"""Repartitions of a run: moves of vertices to other ranks, and their options (0062).

The layer of ranks, above this one, registers the functions that measure and move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from featgraph.base.arguments import shown
from featgraph.base.errors import ArgumentError, PlanError
from featgraph.program.state import State
from featgraph.runtime.loops.run import Run

__all__ = ["Moves", "checked_repartition", "make_moves", "makers", "repartition_option"]

#: `run_state.RunState`, which imports this module.
RunState = Any


class Moves(Protocol):
    """Measures the ranks of a run, and moves vertices between them if that pays.

    All ranks call the same methods in the same order.
    """

    def add(self, seconds: Sequence[float]) -> None:
        """Add the time of each rank for a superstep, without waits."""

    def move(
        self, run: Run, run_state: RunState, left: int
    ) -> Callable[[RunState], None] | None:
        """Move the State of a run if that pays within `left` supersteps.

        Returns
        -------
        callable or None
            None if nothing has moved. Otherwise a function that moves pending vertices
            to another run state, on the new graph of the State.
        """

    def end(self, run: Run) -> None:
        """Complete the record of a run."""


#: Takes a State and the most moves; registered by the layer of ranks.
makers: list[Callable[[State, int | None], Moves]] = []
#: The option `repartition` of the algorithm in progress.
_of_algorithm: ContextVar[Any] = ContextVar("featgraph_repartition", default=False)


@contextmanager
def repartition_option(repartition: Any) -> Iterator[None]:
    """Set `repartition` for runs within the block that do not have the option."""
    token = _of_algorithm.set(repartition)
    try:
        yield
    finally:
        _of_algorithm.reset(token)


def checked_repartition(option: Any) -> Any:
    """Return the option `repartition`; ArgumentError for a wrong value.

    None stands for the option of the algorithm.
    """
    is_count = type(option) is int and 0 < option < 1 << 63
    is_auto = isinstance(option, str) and option == "auto"
    if not (option is None or option is False or is_count or is_auto):
        raise ArgumentError(
            "not a number of repartitions",
            where="repartition=",
            got=shown(option),
            expected="'auto', False, or a number of moves, 1 or more",
        )
    return option


def make_moves(option: Any, state: State, options: Mapping[str, Any]) -> Moves | None:
    """Return the moves of a run; None if nothing may move.

    A State with another run in progress keeps its partition.

    Parameters
    ----------
    option : object
        "auto", False, or the most moves; None: the option of the algorithm.
    options : mapping
        Options of the run.

    Raises
    ------
    ArgumentError
        If `option` is something else.
    PlanError
        If rows are rounded on their way to ghosts, since new owners have them exactly;
        if the graph has sides; or if some ranks must stay without vertices.
    """
    option = checked_repartition(_of_algorithm.get() if option is None else option)
    if option is False or state.graph.ranks is None or state.live:
        return None
    if options.get("wire_dtype") is not None:
        raise PlanError(
            "a graph with rounded rows of ghosts cannot be repartitioned",
            where="repartition=",
            got=f"wire_dtype={options['wire_dtype']!r}",
            fix="drop one of the two",
        )
    if state.graph.sides is not None:
        raise PlanError(
            "a graph with sides cannot be repartitioned: ranks keep a range of each",
            where="repartition=",
            got=f"a graph of {len(state.graph.sides)} sides",
            fix="repartition=False",
        )
    most = option if type(option) is int else None
    if state.graph.ranks.keeps_idle:
        raise PlanError(
            "ranks without vertices get none by a repartition",
            where="repartition=",
            got=f"a graph on {state.graph.shard.partition.working} of the ranks, by "  # type: ignore[attr-defined]
            "ranks=",
            fix="repartition=False, or distribute the graph without ranks=",
        )
    return makers[0](state, most)

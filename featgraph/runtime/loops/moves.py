"""Moves of a run: when ranks are to own other vertices, and what is told of it (0062).

Ranks are the layer above: it sets up what measures them and moves a State.
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

__all__ = ["Moves", "asking", "checked_repartition", "make_moves", "makers"]

#: Of the layer above.
Agenda = Any


class Moves(Protocol):
    """Measures the ranks of a run, and has them own other vertices where that pays.

    All ranks call the same methods in the same order.
    """

    def add(self, seconds: Sequence[float]) -> None:
        """Note what each rank has taken for a superstep, without waits."""

    def move(
        self, run: Run, agenda: Agenda, left: int
    ) -> Callable[[Agenda], None] | None:
        """Move the State of a run if that pays within so many supersteps, at most.

        Returns
        -------
        callable or None
            None where nothing has moved. Else what is pending has to go to another
            agenda, on the graph that the State has now: it is given that.
        """

    def end(self, run: Run) -> None:
        """Have the record of a run complete."""


#: Takes a State and the most moves; the layer of ranks registers it.
makers: list[Callable[[State, int | None], Moves]] = []
#: What a call has been asked for that iterates.
_asked: ContextVar[Any] = ContextVar("featgraph_repartition", default=False)


@contextmanager
def asking(repartition: Any) -> Iterator[None]:
    """Have runs within move as asked for, unless they are asked themselves."""
    token = _asked.set(repartition)
    try:
        yield
    finally:
        _asked.reset(token)


def checked_repartition(asked: Any) -> Any:
    """Return how often ranks may get other vertices; ArgumentError for anything else.

    None is as the call was asked.
    """
    is_count = type(asked) is int and 0 < asked < 1 << 63
    is_auto = isinstance(asked, str) and asked == "auto"
    if not (asked is None or asked is False or is_count or is_auto):
        raise ArgumentError(
            "not how often ranks may get other vertices",
            where="repartition=",
            got=shown(asked),
            expected="'auto', False, or a number of moves, 1 or more",
        )
    return asked


def make_moves(asked: Any, state: State, options: Mapping[str, Any]) -> Moves | None:
    """Return what moves the State of a run; None where nothing is to.

    A State on which another run is in progress stays where that one has it.

    Parameters
    ----------
    asked : object
        "auto", False, or how many moves there may be; None: as the call was asked.
    options : mapping
        Of the run.

    Raises
    ------
    ArgumentError
        If it is something else.
    PlanError
        Where rows are rounded on their way, for new owners have them exactly; the graph
        has sides, or ranks that are to stay without vertices: a number was said.
    """
    asked = checked_repartition(_asked.get() if asked is None else asked)
    if asked is False or state.graph.ranks is None or state.live:
        return None
    if options.get("wire_dtype") is not None:
        raise PlanError(
            "rows of ghosts that are rounded stay where they are",
            where="repartition=",
            got=f"wire_dtype={options['wire_dtype']!r}",
            fix="drop one of the two",
        )
    if state.graph.sides is not None:
        raise PlanError(
            "ranks have a range of each side, and keep it",
            where="repartition=",
            got=f"a graph of {len(state.graph.sides)} sides",
            fix="repartition=False",
        )
    most = asked if type(asked) is int else None
    if state.graph.ranks.keeps_idle:
        raise PlanError(
            "ranks that are to have no vertices get none",
            where="repartition=",
            got=f"a graph on {state.graph.shard.partition.working} of the ranks, by "  # type: ignore[attr-defined]
            "ranks=",
            fix="repartition=False, or distribute the graph without ranks=",
        )
    return makers[0](state, most)

"""Supersteps of one or several programs until no vertex is due (S4, S7).

`iterate` is the reference of `fg.iterate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.graph import Graph
from featgraph.program.functions import ReduceFunction
from featgraph.program.program import Program
from featgraph.program.signature import Signature
from featgraph.program.state import State
from featgraph.reference.facts import Facts
from featgraph.reference.memory import living_mask, mask_of
from featgraph.reference.rules import Outcome, superstep

__all__ = ["Run", "from_state", "iterate"]

Mask = npt.NDArray[np.bool_]
#: Scalars and vectors that a program has read: (function number, name) -> value.
Seen = dict[tuple[int, str], Any]


@dataclass(frozen=True)
class Run:
    """The record of a run.

    Attributes
    ----------
    values, signature : dict
        Values after the last superstep, and their types.
    supersteps : int
        Number of supersteps: calls of a program with due vertices.
    converged : bool
        Whether no vertex was due at the end.
    outcomes : list of Outcome
        One per superstep.
    """

    values: dict[str, Any]
    signature: Signature
    supersteps: int
    converged: bool
    outcomes: list[Outcome]


@dataclass
class _Waiting:
    """The vertices that are due for one program, over all of its restrictions by `on`.

    Attributes
    ----------
    active : ndarray of bool
        Vertices committed since the program last ran.
    left_due : ndarray of bool
        Due vertices that `on` excluded.
    seen : dict or None
        Scalars and vectors that the program read in its last run.
    """

    active: Mask
    left_due: Mask
    seen: Seen | None = None


def iterate(
    programs: Any,
    graph: Graph,
    values: dict[str, Any],
    signature: Signature,
    *,
    active: Any = None,
    max_supersteps: int = 1000,
    start: int = 0,
    asynchronous: bool = False,
) -> Run:
    """Run one program, or several alternately, until nothing is due for any of them.

    Parameters
    ----------
    programs : Program or (Program, on), or a list of them
        `on` is the restriction of ``foldmap.on(vertices)``, or None.
    graph, values, signature
        As for `superstep`.
    active : ActiveSet or array_like, optional
        Active at the start, for each program; None for all vertices.
    max_supersteps : int, optional
        Most supersteps.
    start : int, optional
        ``d.superstep`` of the first.
    asynchronous : bool, optional
        As for `superstep`.
    """
    steps = _steps(programs)
    count = graph.vertex_count
    first = mask_of(active, count) & living_mask(graph)
    waiting = {
        program: _Waiting(first.copy(), np.zeros(count, np.bool_))
        for program, _ in steps
    }
    outcomes: list[Outcome] = []
    turn = idle = 0
    while len(outcomes) < max_supersteps and idle < len(steps):
        program, on = steps[turn % len(steps)]
        turn += 1
        own = waiting[program]
        if not _is_due(program, own, on, values, signature):
            idle += 1
            continue
        idle = 0
        outcome = _run_one(
            program,
            own,
            on,
            (graph, values, signature),
            superstep=start + len(outcomes),
            asynchronous=asynchronous,
        )
        values, signature = outcome.values, outcome.signature
        own.active = np.zeros(count, np.bool_)
        own.left_due = outcome.left_due.mask
        for other in waiting.values():
            other.active |= outcome.active_out.mask
        outcomes.append(outcome)
    converged = idle >= len(steps) or not any(
        _is_due(program, waiting[program], on, values, signature)
        for program, on in steps
    )
    return Run(values, signature, len(outcomes), converged, outcomes)


def _steps(programs: Any) -> list[tuple[Program, Mask | None]]:
    if isinstance(programs, Program):
        return [(programs, None)]
    if isinstance(programs, tuple):
        return [programs]  # (program, on)
    listed: Sequence[Any] = programs
    return [(p, None) if isinstance(p, Program) else p for p in listed]


def _is_due(
    program: Program,
    own: _Waiting,
    on: Any,
    values: dict[str, Any],
    signature: Signature,
) -> bool:
    reachable = mask_of(on, own.active.size)
    return bool(
        own.active.any()
        or (own.left_due & reachable).any()
        or _changed(own.seen, _seen(program, signature, values, values))
    )


def _run_one(
    program: Program,
    own: _Waiting,
    on: Any,
    start: tuple[Graph, dict[str, Any], Signature],
    **options: Any,
) -> Outcome:
    """Run one superstep; on all vertices if a scalar or reduce result changed (S7)."""
    _, values, signature = start
    options |= {"on": on}
    # The result of a late reduce depends on the vertices on which earlier functions
    # run, so it is not comparable with that of a run on other vertices.
    is_late = own.seen is not None and Facts(program, signature).has_late_reduce
    active = None if is_late else own.active
    outcome = superstep(
        program, *start, active=active, also_due=own.left_due, **options
    )
    seen = _seen(program, signature, values, outcome.values)
    if _changed(own.seen, seen) and not is_late:
        # The result of the program's own reduce is known only now.
        outcome = superstep(program, *start, active=None, **options)
    own.seen = seen
    return outcome


def _seen(
    program: Program,
    signature: Signature,
    before: dict[str, Any],
    after: dict[str, Any],
) -> Seen:
    """Return the scalars and vectors that each function read.

    A function after the reduce of a value reads its new result. Other reduces run over
    all vertices anyway.
    """
    seen: Seen = {}
    made: dict[str, int] = {
        function.into: number
        for number, function in enumerate(program.functions)
        if isinstance(function, ReduceFunction)
    }
    for number, name in Facts(program, signature).loose_reads():
        fresh = name in made and made[name] < number
        table = after if fresh else before
        is_due = not (fresh and isinstance(program.functions[number], ReduceFunction))
        if name in table and is_due:
            seen[number, name] = np.array(table[name])
    return seen


def _changed(last: Seen | None, now: Seen) -> bool:
    """Whether a value differs from that of the last run."""
    if last is None:
        return False
    return any(
        not np.array_equal(last[key], value, equal_nan=True)
        for key, value in now.items()
        if key in last
    )


def from_state(state: State) -> tuple[Graph, dict[str, Any], Signature]:
    """Return graph, values and signature of a State, for `superstep`.

    Examples
    --------
    >>> from featgraph.graph import Graph
    >>> from featgraph.program.state import State, vertex_property
    >>> graph = Graph.from_edges([0], [1])
    >>> state = State(graph, x=vertex_property([1.0, 2.0]), alpha=0.5)
    >>> graph, values, signature = from_state(state)
    >>> values["x"].tolist(), values["alpha"]
    ([1.0, 2.0], 0.5)
    """
    return state.graph, {name: state[name] for name in state}, state.signature

"""The record of a run, its progress bar, and repartitions.

`Run` is the result of `fg.iterate`. A `Repartition` describes a move of vertices to
other ranks during a run (0062). `featgraph.ranks`, a room above this one, implements
`Moves` and registers it in `makers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import ArgumentError, PlanError
from featgraph.graph import Graph
from featgraph.graph.views.view import Preparation
from featgraph.program.active import ActiveSet
from featgraph.program.state import State

__all__ = [
    "Moves",
    "Repartition",
    "Run",
    "checked_repartition",
    "make_moves",
    "makers",
    "progress_bar",
    "repartition_option",
]


@dataclass
class Repartition:
    """A move of vertices between ranks within a run.

    Attributes
    ----------
    superstep : int
        Number of supersteps of the run before it.
    cuts : ndarray of int64, shape (P + 1,)
        Rank r owns the vertices at positions ``cuts[r]`` to ``cuts[r + 1]`` from then
        on.
    moved : int
        Number of vertices with another owner.
    slowest_s : float
        Time of a superstep of the slowest rank before the move, without waits, in s.
    expected_s : float
        Expected gain per superstep, in s.
    gained_s : float
        Measured gain per superstep of the slowest rank, in s; NaN if no superstep has
        run since.
    cost_s : float
        Time of the move, in s.
    within_hosts : bool
        Whether each host has kept its range, and only its ranks have divided it anew.
    """

    superstep: int
    cuts: npt.NDArray[np.int64]
    moved: int
    slowest_s: float
    expected_s: float
    gained_s: float = math.nan
    cost_s: float = math.nan
    within_hosts: bool = True


@dataclass
class Run:
    """The record of `iterate`.

    Attributes
    ----------
    supersteps : int
        Number of supersteps.
    converged : bool
        Whether nothing was active, or `until` was met, at the end.
    target : str
        "cpu" or "cuda".
    active_counts : list of int
        Vertices committed by each superstep; with `due`, those that it processed.
    directions : list of str
        "pull", "push" or "-" (no gather), for each superstep.
    aggregates : list of str
        Treatment of the aggregates of gathers in each superstep: "recomputed", "kept"
        (recomputed and kept), "patched" or "-" (no gather).
    seconds : list of float
        Time of each superstep; the first includes compilation. Supersteps that ran in
        one launch on a CPU have equal shares of its time.
    waits : list of float
        On several ranks, the part of each time that was spent in exchanges: on the
        wire, and waiting for slower ranks. Empty on one.
    forms : dict of str to int
        On several ranks, the number of messages of rows that this rank has sent in each
        form: see ``exchange=``. Stores of kernels to other GPUs' memory are not
        counted.
    sent_bytes : dict of str to list of int
        On several ranks, the bytes that this rank has sent to each rank: "messages";
        the rows that kernels have stored in other GPUs' memory with their indices, by
        form; and "numbers", which are counts and results.
    evaluated : int or None
        On a graph that changes, the number of edges that gathers went along; None where
        they are not counted: on GPUs, and on other graphs.
    pieces : list of int
        On several ranks, the number of pieces in which each superstep has sent its rows
        while it swept others; 0 if they were sent after it: see ``overlap=``. Empty on
        one.
    wire_dtype : str or None
        On several ranks, the type that rows were rounded to when they were sent to
        ghosts, so that the fixpoint is that of rounded rows; None if they were not.
    working : int or None
        On several ranks, the number of ranks with vertices at the start; None for all.
    kernels : list of Kernel
        The kernels used, one for each foldmap.
    active_sets : list of ActiveSet or None
        The vertices that each superstep committed, with `record_active`.
    asynchronous : bool
        Whether updates could be seen within their superstep.
    watched : list of float
        With `watch`, the largest entry of that result after each superstep that
        computed it, as float64; NaN if any entry is.
    thresholds : list of float
        With `near_far`, the threshold of each superstep.
    refused : dict of str to str
        Loops that run many supersteps at once -> why this run could not use them.
    notes : dict of str to list of float
        For callbacks: their entries are saved in checkpoints, and restored when the run
        is resumed.
    partitions : list of Repartition
        With `repartition`, the moves of vertices between ranks, with their cost and
        gain.
    preparation : Preparation
        Time and bytes of arrays that schedules prepared in the run; zero if they need
        none, or found them prepared.
    graph : Graph or None
        The graph after the last move, for later runs; None if nothing has moved, and in
        copies of other processes.
    """

    target: str
    kernels: list[Any]
    supersteps: int = 0
    converged: bool = False
    active_counts: list[int] = field(default_factory=list)
    directions: list[str] = field(default_factory=list)
    aggregates: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    forms: dict[str, int] = field(default_factory=dict)
    sent_bytes: dict[str, list[int]] = field(default_factory=dict)
    evaluated: int | None = None
    pieces: list[int] = field(default_factory=list)
    wire_dtype: str | None = None
    working: int | None = None
    active_sets: list[ActiveSet] | None = None
    asynchronous: bool = False
    watched: list[float] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[float]] = field(default_factory=dict)
    partitions: list[Repartition] = field(default_factory=list)
    preparation: Preparation = field(default_factory=Preparation)
    graph: Graph | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the graph, which other processes cannot use."""
        return vars(self) | {"graph": None}

    def add(self, number: int, seconds: float, direction: str, work: str) -> None:
        """Record a superstep that committed `number` vertices."""
        self.supersteps += 1
        self.seconds.append(seconds)
        self.active_counts.append(number)
        self.directions.append(direction)
        self.aggregates.append(work)

    def explain(self) -> str:
        """Return the supersteps, reasons against faster loops, and sent bytes."""
        lines = [f"  not by {name}: {why}" for name, why in self.refused.items()]
        if self.working is not None:
            lines.append(f"  ranks with vertices: the first {self.working}")
        if self.forms:
            texts = (f"{count} as {form!r}" for form, count in self.forms.items())
            lines.append(f"  messages of rows to other ranks: {', '.join(texts)}")
        if self.sent_bytes:
            texts = (f"{sum(to):,} as {kind!r}" for kind, to in self.sent_bytes.items())
            lines.append(f"  bytes to other ranks: {', '.join(texts)}")
        if any(self.pieces):
            count = sum(n > 0 for n in self.pieces)
            lines.append(
                f"  rows sent while others were swept: in {count} supersteps, "
                f"in up to {max(self.pieces)} pieces"
            )
        return "\n".join([repr(self), *lines])

    def __repr__(self) -> str:
        end = "converged" if self.converged else "not converged"
        rounded = "" if self.wire_dtype is None else f", ghosts in {self.wire_dtype}"
        some = "" if self.working is None else f", ranks at work: {self.working}"
        return (
            f"<Run: {self.supersteps} supersteps on {self.target}, {end}, "
            f"{sum(self.seconds):.3g} s{rounded}{some}>"
        )

    def add_all(
        self,
        numbers: Sequence[int],
        seconds: Sequence[float],
        directions: Sequence[str],
        works: Sequence[str],
    ) -> None:
        """Record supersteps that ran in one launch; see `add`."""
        self.supersteps += len(numbers)
        self.active_counts += numbers
        self.seconds += seconds
        self.directions += directions
        self.aggregates += works


def progress_bar(wanted: bool, total: int) -> Any:
    """Return a progress bar; None unless `wanted`."""
    if not wanted:
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="superstep")


#: `run_state.RunState`; it cannot be imported, since `run_state` imports this module.
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
        """Move vertices of a run if that pays within the next `left` supersteps.

        Returns
        -------
        callable or None
            None if nothing has moved. Otherwise a function that takes the run state
            made for the new graph, and copies the pending vertices to it.
        """

    def end(self, run: Run) -> None:
        """Complete the record of a run."""


#: A function that takes a State and the largest number of moves, and returns the
#: `Moves` of a run; `featgraph.ranks` registers it.
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

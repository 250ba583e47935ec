"""The number of working ranks, revised during a run by its supersteps (0067).

For a graph distributed with ``ranks="auto"`` the cost model chooses the number, first
without the cost of the program's functions. A few supersteps measure it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from featgraph.program.state import State
from featgraph.ranks.expected.chosen import Chosen, chosen_again
from featgraph.ranks.loading.working import cuts_for
from featgraph.ranks.moving.moves import ASSUMED_S, RankMoves, move_state, overlap_of
from featgraph.runtime.loops.run import Repartition, Run
from featgraph.runtime.loops.run_state import RunState

__all__ = ["FIRST_LOOK", "RankNumbers"]

#: Supersteps before the first revision, and the factor from one revision to the next.
#: The first superstep compiles, and does not count.
FIRST_LOOK, _LATER = 5, 4


class RankNumbers:
    """The choice of the number of working ranks in a run: see `Moves`.

    While all ranks work, their ranges are balanced, too.

    Parameters
    ----------
    state : State
        A State of a graph that was distributed with ``ranks="auto"``.
    most : int or None
        Most moves of the run; None: no limit.
    """

    def __init__(self, state: State, most: int | None) -> None:
        self._state = state
        self._most = math.inf if most is None else most
        self._begun, self._look_at = 0, FIRST_LOOK
        self._balance()

    @property
    def times_ranks(self) -> bool:
        """Whether ranks exchange the times of supersteps."""
        return self._balanced is not None

    def add(self, seconds: Sequence[float]) -> None:
        """Note the seconds of each rank for a superstep, without waits."""
        if self._balanced is not None:
            self._balanced.add(seconds)

    def move(
        self, run: Run, run_state: RunState, left: int
    ) -> Callable[[RunState], None] | None:
        """Change the number of working ranks if that pays: see `Moves`."""
        if run.supersteps >= self._look_at and len(run.partitions) < self._most:
            self._look_at = _LATER * run.supersteps
            found = self._found(run, left)
            if found is not None:
                return self._moved(run, run_state, found)
        if self._balanced is None:
            return None
        go_on = self._balanced.move(run, run_state, left)
        if go_on is not None:
            self._state.graph.chooses = True  # type: ignore[attr-defined]
            self._begun = run.supersteps
        return go_on

    def end(self, run: Run) -> None:
        """Complete the record of a run."""
        if self._balanced is not None:
            self._balanced.end(run)

    def _balance(self) -> None:
        """Start balancing ranges if all ranks have vertices."""
        partition = self._state.graph.shard.partition  # type: ignore[attr-defined]
        self._balanced: RankMoves | None = None
        if partition.working == partition.parts:
            most = None if self._most == math.inf else int(self._most)
            self._balanced = RankMoves(self._state, most)

    def _found(self, run: Run, left: int) -> Chosen | None:
        """Return another number of ranks if it pays within `left` supersteps."""
        graph = self._state.graph
        found = chosen_again(graph, run, since=self._begun)  # type: ignore[arg-type]
        working = graph.shard.partition.working  # type: ignore[attr-defined]
        # No more supersteps are assumed to come than have run.
        gain_s = (found.now_s - found.then_s) * min(left, run.supersteps)
        if found.number == working or gain_s <= ASSUMED_S * graph.edge_count:
            return None
        return found

    def _moved(
        self, run: Run, run_state: RunState, found: Chosen
    ) -> Callable[[RunState], None]:
        begun, before = time.perf_counter(), self._state.graph.shard.partition  # type: ignore[attr-defined]
        cuts = cuts_for(self._state.graph, found.number)  # type: ignore[arg-type]
        go_on = move_state(self._state, run, run_state, cuts)
        graph, size = self._state.graph, before.parts
        graph.keeps_idle = found.number < size  # type: ignore[attr-defined]
        graph.chooses = True  # type: ignore[attr-defined]
        run.working = found.number if found.number < size else None
        self._begun = run.supersteps
        self._balance()

        def begin(new: RunState) -> None:
            go_on(new)
            taken = np.array([time.perf_counter() - begun])
            engine = new.state.graph.ranks.engine
            taken = engine.all_reduce(taken, "max", about="what moving took")
            run.partitions.append(
                Repartition(
                    superstep=run.supersteps,
                    cuts=cuts,
                    moved=int(cuts[-1]) - overlap_of(before.cuts, cuts),
                    slowest_s=found.now_s,
                    expected_s=found.now_s - found.then_s,
                    cost_s=float(taken[0]),
                )
            )

        return begin

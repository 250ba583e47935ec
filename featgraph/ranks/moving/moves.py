"""Moves of a run on ranks: measured, decided by all alike, and made (0062)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._activity import doing
from featgraph.distributed.engines.hosts import hosts_of
from featgraph.graph.partition.cuts import Balance, word_places
from featgraph.program.state import State
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.moving.balancer import Balancer, Expected, Move
from featgraph.ranks.moving.recut import recut
from featgraph.ranks.moving.state import StateMover
from featgraph.ranks.moving.work import Work, joined
from featgraph.runtime.checkpoints.moment import go_on, take
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.run import Repartition, Run

__all__ = ["ASSUMED_S", "RankMoves", "move_state", "overlap_of"]

Cuts = npt.NDArray[np.int64]
#: Seconds that moving takes for each edge and vertex of a rank, until one was measured:
#: 0.4 to 1.1e-7 s of processor time, the most where there are few edges a vertex (AMD
#: EPYC, 2026-11-27).
ASSUMED_S = 1e-7
#: The first superstep compiles, and the first behind a move has fresh memory.
_NOT_TIMED = 1


class RankMoves:
    """Measures the ranks of a run, and moves its State: see `Moves`.

    Parameters
    ----------
    state : State
        Of a graph in parts.
    most : int or None
        How many moves there may be.
    """

    def __init__(self, state: State, most: int | None) -> None:
        graph = state.graph
        self._state, self._most = state, math.inf if most is None else most
        size = (graph.edge_count + graph.vertex_count) / graph.ranks.engine.size
        cuts = graph.shard.partition.cuts  # type: ignore[attr-defined]
        self._balancer = Balancer(cuts, self._expected, ASSUMED_S * size)
        self._untimed = _NOT_TIMED

    #: Ranks tell each other what supersteps have taken.
    times_ranks = True

    def add(self, seconds: Sequence[float]) -> None:
        """Note what each rank has taken for a superstep, without waits."""
        if self._untimed:
            self._untimed -= 1
        else:
            self._balancer.add(seconds)

    def move(
        self, run: Run, agenda: Agenda, left: int
    ) -> Callable[[Agenda], None] | None:
        """Move the State of a run if that pays: see `Moves`.

        How many supersteps come is not known: as many as have run, at most.
        """
        if len(run.partitions) >= self._most:
            return None
        found = self._balancer.proposal(min(left, run.supersteps))
        self._note(run)
        if found is None:
            return None
        begun, before = time.perf_counter(), self._state.graph
        moved = move_state(self._state, run, agenda, found.cuts)

        def begin(new: Agenda) -> None:
            moved(new)
            taken = np.array([time.perf_counter() - begun])
            engine = new.state.graph.ranks.engine
            taken = engine.all_reduce(taken, "max", about="what moving took")
            self._note_move(run, found, before, float(taken[0]))

        return begin

    def end(self, run: Run) -> None:
        """Have the record of a run complete."""
        self._balancer.settle()
        self._note(run)

    def _note_move(self, run: Run, found: Move, before: Any, took: float) -> None:
        stays = overlap_of(before.shard.partition.cuts, found.cuts)
        made = Repartition(
            superstep=run.supersteps,
            cuts=found.cuts,
            moved=before.vertex_count - stays,
            slowest_s=found.before_s,
            expected_s=found.gain_s,
            cost_s=took,
            within_hosts=found.is_within,
        )
        run.partitions.append(made)
        self._balancer.moved(found, took)
        self._untimed = _NOT_TIMED

    def _note(self, run: Run) -> None:
        if run.partitions:
            run.partitions[-1].gained_s = self._balancer.found_s

    def _expected(self) -> Expected:
        """Return the work that the graph has, and on which host each rank is."""
        graph: Any = self._state.graph
        engine = graph.engine
        return Expected(work_of(graph), hosts_of(engine))


def move_state(
    state: State, run: Run, agenda: Agenda, cuts: Cuts
) -> Callable[[Agenda], None]:
    """Move the State of a run; return what hands over what is pending.

    All ranks call it; what it returns is given the agenda of the moved State.
    """
    with doing("loading", "what has other owners"):
        graph = state.graph
        after = recut(graph, cuts)  # type: ignore[arg-type]
        mover = StateMover(graph, after)  # type: ignore[arg-type]
        snapshot, rest = take(agenda, frozenset(state))
        lefts = {place: mover.left(left) for place, left in snapshot.left.items()}
        mover.hand_over(run.active_sets or [], agenda.device)
        mover.move(state)
        run.graph = after
    return lambda new: go_on(new, lefts, rest)


def work_of(graph: DistributedGraph) -> Work:
    """Return the work that cuts of a graph make even by default; all ranks call it."""
    engine, shard, weights = graph.engine, graph.shard, Balance()
    cuts = shard.partition.cuts
    first, last = cuts[engine.rank : engine.rank + 2].tolist()
    places = joined(word_places(graph.vertex_count), cuts)
    own = places[(places >= first) & (places <= last)] - first
    edges = np.asarray(graph.part.in_edges.row_offsets)[own]
    work = weights.edge * edges + weights.vertex * own
    parts = engine.all_gather(np.diff(work), about="in-edges")
    return Work(places, np.concatenate(([0.0], np.cumsum(np.concatenate(parts)))))


def overlap_of(before: Cuts, after: Cuts) -> int:
    """Return how many vertices stay with their owners."""
    begin = np.maximum(before[:-1], after[:-1])
    end = np.minimum(before[1:], after[1:])
    return int(np.maximum(end - begin, 0).sum())

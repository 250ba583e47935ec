"""Moves of a run on ranks: measured, decided by all alike, and made (0062).

A State goes to other owners with its values, its sets, and what is due.

Whether ranks should own other ranges follows from the time that theirs have taken.
Lux's way: partial sums of measured work are exact at the cuts; between them the work
that is expected of in-edges and vertices interpolates. New cuts are where the sum is
i / P of the whole. Behind a move the work is one that agrees with what was measured
before it, too, so that each move knows more than the one before.

Noise moves nothing: a gain must be beyond the spread of what ranks take. A load that
wanders, such as the wave of a search, is not chased: cuts found from older supersteps
must do better on nearly all later ones, too; and a move that has not brought half of
what it promised has the next one wait for four times as many supersteps.

Ranks of a host share its range anew before hosts do: that costs less, and behind it
work is known better. What a move costs is measured for either kind by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from featgraph._activity import doing
from featgraph._interrupts import deferred_interrupts
from featgraph.arrays.values import Filled
from featgraph.distributed.engines.hosts import hosts_of
from featgraph.graph.partition.cuts import Balance, word_places
from featgraph.program.active import ActiveSet
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind
from featgraph.program.snapshot import Left
from featgraph.program.state import State
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.members import packed, unpacked
from featgraph.ranks.moving.recut import Mover, recut, with_ghost_edges, with_ghosts
from featgraph.ranks.moving.work import Work, agreeing, cut_evenly, joined
from featgraph.runtime.checkpoints.moment import go_on, take
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.run import Repartition, Run
from featgraph.runtime.memory.buffers import Buffers

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


Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]


class StateMover:
    """Moves what belongs to vertices and edges of one graph in parts to another one.

    All ranks call the same methods in the same order. What owners have is moved;
    ghosts are sent by their new owners.

    Parameters
    ----------
    before, after : DistributedGraph
        The same graph between different cuts.
    """

    def __init__(self, before: DistributedGraph, after: DistributedGraph) -> None:
        self._before, self._after, self._engine = before, after, after.engine
        cuts = before.shard.partition, after.shard.partition
        self._mover = Mover(after.engine, *cuts)

    def move(self, state: State) -> None:
        """Have a State be of the other graph; it is unchanged if anything fails."""
        types = state.signature.items()
        columns = {name: self._column(state, name, type_.kind) for name, type_ in types}
        version, entries = state.left
        if version != state.version:
            entries = {}
        # Others than the run's, which does not know of them.
        lefts = {key: self.left(known.on_host()) for key, known in entries.items()}
        with deferred_interrupts():
            if isinstance(state.residency, Buffers):
                state.residency.drop()
            state.graph, state._columns = self._after, columns
            state.keep_left(lefts)
            for kept in list(state.bound.values()):
                kept.clear()

    def set(self, words: Words) -> Words:
        """Return a set of vertices, with ghosts."""
        own = unpacked(words)[: self._before.shard.own]
        return packed(
            with_ghosts(self._engine, self._after.shard, self._mover.rows(own))
        )

    def left(self, left: Left) -> Left:
        """Return what a foldmap has not seen."""
        words, also = (
            None if words is None else self.set(words)
            for words in (left.words, left.left)
        )
        return Left(words, also, left.scalars)

    def hand_over(self, sets: Sequence[ActiveSet], device: Device) -> None:
        """Have sets that the old graph holds on a device be with the other one."""
        old, new = (g.exchange(device).holder for g in (self._before, self._after))

        def move(words: Any) -> Any:
            return device.sets.upload(self.set(device.download(words)))

        for one in sets:
            one.hand_over(old, new, move)

    def _column(self, state: State, name: str, kind: PropertyKind) -> Column:
        column = state._columns[name]
        if kind in (PropertyKind.SCALAR, PropertyKind.VECTOR):
            values = state.stored(name)
        elif kind is PropertyKind.VERTEX:
            values = self._vertex_values(state, name, column)
        else:
            values = self._edge_values(state, name, column)
        return Column(column.type, values, column.per_direction)

    def _vertex_values(self, state: State, name: str, column: Column) -> Any:
        shard = self._after.shard
        if isinstance(column.values, Filled):  # no kernel has asked for it yet
            shape = (shard.numbers.size, *column.values.shape[1:])
            return Filled(column.values.value, shape)
        own = state.stored(name)[: self._before.shard.own]
        return with_ghosts(self._engine, shard, self._mover.rows(own))

    def _edge_values(self, state: State, name: str, column: Column) -> Any:
        values = column.values
        if isinstance(values, Filled):
            shape = (self._after.part.edge_count, *values.shape[1:])
            return Filled(values.value, shape)
        own = state.stored(name)[: self._before.edges.own]
        offsets = self._before.part.in_edges.row_offsets
        moved = self._mover.slots(np.asarray(offsets), own)
        return with_ghost_edges(self._engine, self._after.edges, moved)


#: How much longer than the mean the slowest rank may take: at least 0.92 of the speed
#: of ranks that take the same.
TOLERATED = 0.08
#: What share of a superstep a move must save: less is noise of a clock.
LEAST_GAIN = 0.05
#: Supersteps that are looked at before a move: so many at least, and at most.
WINDOW, _MOST_SEEN = 8, 32
#: A move is looked for each time behind so many more; behind a share of all more where
#: none was found: looking takes some milliseconds for a million vertices.
_EVERY, _SHARE = 4, 8
#: A gain must be so many times its standard error.
_SIGNIFICANT = 3.0
#: Of a normal distribution: the standard deviation over the median deviation, and the
#: standard error of a median over that of a mean.
_DEVIATION, _OF_MEDIAN = 1.4826, 1.2533
#: How many times as many they are behind a move that has not brought half of its gain.
_PATIENCE = 4
#: Moves whose measurements are kept.
_MOST_KNOWN = 6
#: In all later supersteps but so large a share of them, a move must gain.
_EXCEPT = 0.25
#: A move within hosts comes first where it gains so much of what any move would; where
#: it gains less, the one between hosts would follow at once.
_ENOUGH = 0.7

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known before anything was measured.

    Attributes
    ----------
    work : Work
        Of vertices, in any unit.
    hosts : sequence of int
        On which host each rank is; those of one host stand together.
    """

    work: Work
    hosts: Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Move:
    """Ranges that ranks are to own instead.

    Attributes
    ----------
    cuts : ndarray of int64, shape (P + 1,)
    before_s : float
        Seconds that the slowest rank has taken of late.
    gain_s : float
        Seconds that a superstep is expected to take less.
    is_within : bool
        Whether each host keeps its range.
    """

    cuts: Numbers
    before_s: float
    gain_s: float
    is_within: bool = True


class Balancer:
    """Looks at what ranks take, and says when they should own other ranges.

    All ranks give it the same numbers, and so decide alike.

    Parameters
    ----------
    cuts : ndarray of int64, shape (P + 1,)
    expected : callable
        Returns what is `Expected`; it is called once, on all ranks, when it is first
        needed.
    cost_s : float
        What a move is expected to take, until one has been measured.

    Attributes
    ----------
    found_s : float
        What the last move has saved of a superstep; NaN until that is known.
    """

    def __init__(
        self, cuts: Numbers, expected: Callable[[], Expected], cost_s: float
    ) -> None:
        self.cuts, self._find = cuts, expected
        self._costs = _Costs(cost_s)
        self._expected: Expected | None = None
        self._window, self._added = WINDOW, 0
        self._look_at = 0
        self._seen: list[Reals] = []
        #: Cuts, and what ranks have typically taken, before each move.
        self._measured: list[tuple[Numbers, Reals]] = []
        #: The last move, until it is known what it has brought.
        self._last: Move | None = None
        self.found_s = math.nan

    def add(self, seconds: Sequence[float]) -> None:
        """Note what each rank has taken in a superstep, without waits."""
        self._added += 1
        self._seen.append(np.asarray(seconds, np.float64))
        del self._seen[: -max(self._window, _MOST_SEEN)]

    def forget(self) -> None:
        """Look at later supersteps only."""
        self._seen.clear()

    def proposal(self, supersteps_left: float) -> Move | None:
        """Return a move that pays within so many supersteps; None if none does."""
        if self.cuts.size < 3 or len(self._seen) < self._window:
            return None
        if (
            self._added % _EVERY
            or self._added < self._look_at
            or self._seen[-1].max() * supersteps_left <= self._costs.least_s
        ):
            return None
        seen = np.array(self._seen)
        # Medians, for a rank that was held up once is not slow.
        typical = np.median(seen, axis=0)
        if self._has_broken_its_promise(float(typical.max())):
            return None
        # No cuts gain more than this.
        excess = float(typical.max() - typical.mean())
        is_even = excess <= TOLERATED * typical.mean()
        if is_even or excess * supersteps_left <= self._costs.least_s:
            return None
        found = self._found(seen, typical, supersteps_left)
        if found is None:
            self._look_at = self._added + self._added // _SHARE
        return found

    def moved(self, move: Move, took_s: float) -> None:
        """Note that ranks own the ranges of a move, and what moving took."""
        typical = np.median(self._seen, axis=0)
        self._measured.append((self.cuts, typical))
        del self._measured[:-_MOST_KNOWN]
        self._last, self.found_s = move, math.nan
        self.cuts = move.cuts
        self._costs.note(move.is_within, took_s)
        self.forget()

    def _found(self, seen: Reals, typical: Reals, left: float) -> Move | None:
        """Return a move that pays: within hosts, or else between them."""
        older, later = np.array_split(seen, 2)
        before, work = self._work(np.median(older, axis=0)), self._work(typical)
        spread = np.median(np.abs(seen - typical).max(axis=1)) * _DEVIATION
        error = spread * _OF_MEDIAN * (2 / len(later)) ** 0.5
        slowest = float(typical.max())
        least = max(LEAST_GAIN * slowest, _SIGNIFICANT * error)
        moves = [self._move(work, slowest, within) for within in self._kinds]
        enough = _ENOUGH * moves[-1].gain_s
        for move in moves:
            # What it would have gained in supersteps that it is not of.
            gains = self._gains(self._cuts(before, move.is_within), before, later)
            gain = min(move.gain_s, float(np.median(gains)))
            stays = (gains <= 0).sum() <= _EXCEPT * gains.size
            pays = gain > least and gain * left > self._costs.of(move.is_within)
            if stays and pays and move.gain_s >= enough:
                return move
        return None

    def _move(self, work: Work, slowest: float, is_within: bool) -> Move:
        """Return the best move of a kind."""
        cuts = self._cuts(work, is_within)
        gain = slowest - float(work.between(cuts).max())
        return Move(cuts, slowest, gain, is_within)

    @property
    def _kinds(self) -> tuple[bool, ...]:
        """Whether moves stay within hosts; of a single one all do."""
        return (True, False)[: len(set(self._known().hosts))]

    def _gains(self, cuts: Numbers, before: Work, later: Reals) -> Reals:
        """Return what cuts would have saved of supersteps, by work known before."""
        before = before.only_at(np.union1d(self.cuts, cuts))
        after = [before.measured(self.cuts, one).between(cuts).max() for one in later]
        gains: Reals = later.max(axis=1) - np.array(after)
        return gains

    def _work(self, seconds: Reals) -> Work:
        """Return the work that has made ranks take so long now."""
        return agreeing(self._known().work, [*self._measured, (self.cuts, seconds)])

    def _known(self) -> Expected:
        if self._expected is None:
            self._expected = self._find()
        return self._expected

    def _cuts(self, work: Work, is_within: bool) -> Numbers:
        """Return the best cuts, of those that leave each host its range or of all."""
        last, ranks = int(self.cuts[-1]), self.cuts.size - 1
        allowed, sizes = word_places(last), [ranks]
        if is_within and len(self._kinds) > 1:
            sizes = [len(list(one)) for _, one in groupby(self._known().hosts)]
        found, rank = [np.zeros(1, np.int64)], 0
        for size in sizes:
            begin, end = self.cuts[[rank, rank + size]].tolist()
            found.append(cut_evenly(work, allowed, size, begin, end)[1:])
            rank += size
        return np.concatenate(found)

    def settle(self) -> None:
        """Find what the last move has brought, as far as that is known by now."""
        if self._last is not None and self._seen:
            self.found_s = self._last.before_s - float(
                np.median(self._seen, axis=0).max()
            )

    def _has_broken_its_promise(self, slowest: float) -> bool:
        """Look once, behind a move, at what it has brought; wait longer if little."""
        last, self._last = self._last, None
        if last is None:
            return False
        self.found_s = last.before_s - slowest
        is_broken = self.found_s < 0.5 * last.gain_s
        self._window *= _PATIENCE if is_broken else 1
        return is_broken


class _Costs:
    """What moves take, within hosts and between them.

    Parameters
    ----------
    cost_s : float
        What is expected of either, until it is measured. One between hosts never counts
        for less than one within them.
    """

    def __init__(self, cost_s: float) -> None:
        self._expected_s = cost_s
        self._measured_s: dict[bool, float] = {}

    def note(self, is_within: bool, took_s: float) -> None:
        """Note what a move has taken."""
        self._measured_s[is_within] = took_s

    def of(self, is_within: bool) -> float:
        """Return what a move would take, within hosts or between them."""
        within = self._measured_s.get(True, self._expected_s)
        if True not in self._measured_s and False in self._measured_s:
            within = min(within, self._measured_s[False])
        if is_within:
            return within
        return max(within, self._measured_s.get(False, self._expected_s))

    @property
    def least_s(self) -> float:
        """What the cheapest move takes."""
        return self.of(True)

"""Repartitioning of a run: times of ranks, the decision, and the move (0062).

`RankMoves` is the interface to a run. It adds the times of each superstep to a
`Balancer`, which proposes a `Move`; `move_state` sends a State to the new owners: its
values, sets, and pending vertices.

Cuts are found as in Lux. `Work` has prefix sums of work over the order of vertices;
they are measured at the cuts, and interpolated between them by the work expected of
in-edges and vertices. New cuts are where the sum is i / P of the whole. After a move,
the work agrees with the measurements before it, too, so that estimates improve from
move to move.

A gain must exceed the spread of the times of ranks. A load that moves, such as the
frontier of a search, is not followed: cuts found from older supersteps must be faster
on nearly all later ones, too; and after a move that gained less than half of its
estimate, four times as many supersteps are observed before the next one.

Ranges are first changed between ranks of one host, then between hosts: a move within
hosts is cheaper, and improves the estimate of work. The costs of both kinds are
measured separately.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.activity import doing
from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import deferred_interrupts
from featgraph.cuda.values import Filled
from featgraph.graph.partition.cuts import TOLERANCE, Balance, word_places
from featgraph.program.active import ActiveSet
from featgraph.program.column import Column
from featgraph.program.saved import Left
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.ranks.engines.messages import hosts_of
from featgraph.ranks.exchange.vertex_sets import packed, unpacked
from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.moving.distribute import Mover, recut, with_ghosts
from featgraph.runtime.checkpoints.resume_point import go_on, take
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.run import Repartition, Run
from featgraph.runtime.loops.run_state import RunState
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["RankMoves"]

#: Passes of the fit over all measurements; the disagreement that remains is below the
#: noise of clocks.
_PASSES = 16

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Work:
    """Prefix sums of work at some places of an order of vertices, linear between them.

    Attributes
    ----------
    places : ndarray of int64, shape (N,)
        Ascending, from 0 to V.
    before : ndarray of float64, shape (N,)
        Work before each place, in any unit; nondecreasing.
    """

    places: Numbers
    before: Reals

    def at(self, cuts: Numbers) -> Reals:
        """Return the work before some places."""
        found: Reals = np.interp(cuts, self.places, self.before)
        return found

    def between(self, cuts: Numbers) -> Reals:
        """Return the work of each range."""
        return np.diff(self.at(cuts))

    def measured(self, cuts: Numbers, seconds: Reals) -> Work:
        """Return this work, scaled within each range to its measured seconds.

        Parameters
        ----------
        cuts : ndarray of int64, shape (P + 1,)
            The ranges; their ends are added to the places.
        seconds : ndarray of float64, shape (P,)
            Seconds of each range; those of an empty range are ignored.
        """
        places = joined(self.places, cuts)
        inside = np.diff(self.at(places))
        ranges = np.searchsorted(cuts, places[:-1], "right") - 1
        parts = len(seconds)
        expected = np.bincount(ranges, inside, parts)
        # If no work is expected of a range, its vertices get equal shares.
        inside = np.where(expected[ranges] > 0, inside, np.diff(places))
        share = inside / np.bincount(ranges, inside, parts)[ranges]
        return Work(places, _summed(seconds[ranges] * share))

    def only_at(self, places: Numbers) -> Work:
        """Return the work at some places only, the first and the last among them."""
        return Work(places, self.at(places))

    def smooth(self, expected: Work) -> Work:
        """Return the same work at its places, interpolated at the places of `expected`.

        The interpolant is a monotone cubic in the expected work. At a cut, the work of
        a vertex is between the averages of both sides, so that a dense range that ends
        within a part is found in fewer moves than by linear interpolation.
        """
        places = joined(expected.places, self.places)
        # Strictly ascending, even if no work is expected of some vertices.
        of = expected.at(places) + 1e-9 * expected.before[-1] * places / places[-1]
        at = of[np.searchsorted(places, self.places)]
        if not at[-1] > 0:
            return self
        return Work(places, _monotone(at, self.before, of))


def _monotone(x: Reals, y: Reals, at: Reals) -> Reals:
    """Return the monotone cubic interpolant of nondecreasing points at `at`.

    SciPy has this function, too, but its import takes longer than a move.

    References
    ----------
    F. N. Fritsch, J. Butland, A method for constructing local monotone piecewise cubic
    interpolants, 1984.
    """
    widths = np.diff(x)
    rises = np.diff(y) / widths
    if rises.size == 1:
        found: Reals = np.interp(at, x, y)
        return found
    slopes = np.zeros(x.size)
    first, second = rises[:-1], rises[1:]
    weights = widths[:-1] + 2 * widths[1:], 2 * widths[:-1] + widths[1:]
    both = (first > 0) & (second > 0)
    some = [np.where(both, rise, 1.0) for rise in (first, second)]
    mean = sum(weights) / (weights[0] / some[0] + weights[1] / some[1])
    slopes[1:-1] = np.where(both, mean, 0.0)
    # At both ends, the slope of the parabola through the three nearest points.
    for end, near, far in ((0, 0, 1), (-1, -1, -2)):
        width, other = widths[near], widths[far]
        slope = (2 * width + other) * rises[near] - width * rises[far]
        slopes[end] = max(slope / (width + other), 0.0)
    piece = np.clip(np.searchsorted(x, at, "right") - 1, 0, rises.size - 1)
    width, t = widths[piece], (at - x[piece]) / widths[piece]
    bend = (slopes[piece] + slopes[piece + 1] - 2 * rises[piece]) * width
    line = y[piece] + t * (y[piece + 1] - y[piece])
    # The excess of the first slope over the line's.
    rest = (slopes[piece] - rises[piece]) * width
    return line + t * (1 - t) * (rest - t * bend)


def joined(places: Numbers, others: Numbers) -> Numbers:
    """Return the ascending union of ascending places and a few others.

    It does not sort all places: the search for a move must not take longer than a move.
    """
    few = np.unique(others)
    at = np.searchsorted(places, few)
    is_new = places[np.minimum(at, places.size - 1)] != few
    return np.insert(places, at[is_new], few[is_new]) if is_new.any() else places


def _summed(work: Reals) -> Reals:
    found: Reals = np.concatenate(([0.0], np.cumsum(work)))
    return found


def agreeing(expected: Work, measured: Sequence[tuple[Numbers, Reals]]) -> Work:
    """Return work that agrees with the measured seconds of ranges under several cuts.

    Uses iterative proportional fitting between all cuts. Measurements may contradict
    each other, since loads and speeds change; the result equals the last one exactly.

    Parameters
    ----------
    expected : Work
    measured : sequence of (cuts, seconds)
        See `Work.measured`.
    """
    grid = np.unique(np.concatenate([cuts for cuts, _ in measured]))
    found = Work(grid, expected.at(grid))
    for _ in range(_PASSES if len(measured) > 1 else 1):
        for cuts, seconds in measured:
            found = found.measured(cuts, seconds)
    return found.smooth(expected)


def cut_evenly(
    work: Work, allowed: Numbers, parts: int, first: int, last: int
) -> Numbers:
    """Return cuts of a range at allowed places that minimize the largest work.

    Starts from the cuts nearest to equal work, and keeps them if no others are better.

    Parameters
    ----------
    work : Work
    allowed : ndarray of int64
        Allowed places of cuts, ascending.
    parts : int
    first, last : int
        The range.

    Returns
    -------
    ndarray of int64, shape (parts + 1,)
    """
    inner = allowed[(allowed > first) & (allowed < last)]
    places = np.concatenate(([first], inner, [last])).astype(np.int64)
    before = work.at(places)
    goals = before[0] + (before[-1] - before[0]) * (np.arange(1, parts) / parts)
    # The place whose work before it is nearest to the goal.
    nearest = np.searchsorted((before[:-1] + before[1:]) / 2, goals)
    near = np.concatenate(([0], nearest, [places.size - 1]))
    # Bisection: ranges are filled one after the other up to a bound.
    low, high = (before[-1] - before[0]) / parts, np.diff(before[near]).max()
    while high - low > TOLERANCE * low:
        bound = (low + high) / 2
        ends = [0]
        for _ in range(parts):
            full = before[ends[-1]] + bound
            ends.append(int(np.searchsorted(before, full, "right")) - 1)
        if ends[-1] == places.size - 1:
            near, high = np.array(ends), bound
        else:
            low = bound
    return places[near]


#: Seconds of a move for each edge and vertex of a rank, until one is measured: 0.4 to
#: 1.1e-7 s of processor time, the most with few edges a vertex (AMD EPYC, 2026-11-27).
ASSUMED_S = 1e-7
#: Supersteps without times at the start and after a move: the first superstep compiles,
#: and the first after a move allocates memory.
_NOT_TIMED = 1


class RankMoves:
    """Moves of a run's State by the measured times of its ranks: see `Moves`.

    Parameters
    ----------
    state : State
        A State of a distributed graph.
    most : int or None
        Most moves of the run; None: no limit.
    """

    def __init__(self, state: State, most: int | None) -> None:
        graph = state.graph
        self._state, self._most = state, math.inf if most is None else most
        size = (graph.edge_count + graph.vertex_count) / graph.ranks.engine.size
        cuts = graph.shard.partition.cuts  # type: ignore[attr-defined]
        self._balancer = Balancer(cuts, self._expected, ASSUMED_S * size)
        self._untimed = _NOT_TIMED

    def add(self, seconds: Sequence[float]) -> None:
        """Record the seconds of each rank for a superstep, without waits."""
        if self._untimed:
            self._untimed -= 1
        else:
            self._balancer.add(seconds)

    def move(
        self, run: Run, run_state: RunState, left: int
    ) -> Callable[[RunState], None] | None:
        """Move the State of a run if that pays: see `Moves`.

        The number of supersteps to come is unknown; as many as have run are assumed, or
        `left` if that is less.
        """
        if len(run.partitions) >= self._most:
            return None
        found = self._balancer.proposal(min(left, run.supersteps))
        self._note(run)
        if found is None:
            return None
        begun, before = time.perf_counter(), self._state.graph
        moved = move_state(self._state, run, run_state, found.cuts)

        def begin(new: RunState) -> None:
            moved(new)
            taken = np.array([time.perf_counter() - begun])
            engine = new.state.graph.ranks.engine
            taken = engine.all_reduce(taken, "max", about="seconds of a move")
            self._note_move(run, found, before, float(taken[0]))

        return begin

    def end(self, run: Run) -> None:
        """Complete the record of a run."""
        self._balancer.settle()
        self._note(run)

    def _note_move(self, run: Run, found: Move, before: Any, took: float) -> None:
        """Add a move, which took `took` seconds, to the record of the run."""
        old, new = before.shard.partition.cuts, found.cuts
        begin, end = np.maximum(old[:-1], new[:-1]), np.minimum(old[1:], new[1:])
        stays = int(np.maximum(end - begin, 0).sum())
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
        """Store the measured gain of the last move in the record of the run."""
        if run.partitions:
            run.partitions[-1].gained_s = self._balancer.found_s

    def _expected(self) -> Expected:
        """Return the expected work of the graph, and the host of each rank."""
        graph: Any = self._state.graph
        return Expected(work_of(graph), hosts_of(graph.engine))


def move_state(
    state: State, run: Run, run_state: RunState, cuts: Numbers
) -> Callable[[RunState], None]:
    """Move the State of a run; return a function that restores pending vertices.

    All ranks call it. The returned function takes the run state of the moved State.
    """
    with doing("loading", "vertices with other owners"):
        graph = state.graph
        after = recut(graph, cuts)  # type: ignore[arg-type]
        mover = StateMover(graph, after)  # type: ignore[arg-type]
        snapshot, rest = take(run_state, frozenset(state))
        lefts = {place: mover.left(left) for place, left in snapshot.left.items()}
        mover.hand_over(run.active_sets or [], run_state.device)
        mover.move(state)
        run.graph = after
    return lambda new: go_on(new, lefts, rest)


def work_of(graph: DistributedGraph) -> Work:
    """Return the work that default cuts of a graph balance; all ranks call it."""
    engine, shard, weights = graph.engine, graph.shard, Balance()
    cuts = shard.partition.cuts
    first, last = cuts[engine.rank : engine.rank + 2].tolist()
    places = joined(word_places(graph.vertex_count), cuts)
    own = places[(places >= first) & (places <= last)] - first
    edges = np.asarray(graph.part.in_edges.row_offsets)[own]
    work = weights.edge * edges + weights.vertex * own
    parts = engine.all_gather(np.diff(work), about="in-edges")
    return Work(places, _summed(np.concatenate(parts)))


Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]


class StateMover:
    """Moves of values and sets of a distributed graph to the same graph with new cuts.

    All ranks call the same methods in the same order. Old owners send values to new
    owners, which then send them to ghosts.

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
        """Move a State to the other graph; it is unchanged if an error is raised."""
        types = state.signature.items()
        columns = {name: self._column(state, name, type_.kind) for name, type_ in types}
        version, entries = state.left
        if version != state.version:
            entries = {}
        # Pending vertices of foldmaps outside of the run.
        lefts = {key: self.left(known.on_host()) for key, known in entries.items()}
        with deferred_interrupts():
            if isinstance(state.residency, Buffers):
                state.residency.drop()
            state.graph, state._columns = self._after, columns
            state.keep_left(lefts)
            for kept in list(state.bound.values()):
                kept.clear()

    def set(self, words: Words) -> Words:
        """Return a set of vertices with the other cuts, ghosts included."""
        own = unpacked(words)[: self._before.shard.own]
        sent = self._after.shard.send_lists
        return packed(with_ghosts(self._engine, sent, self._mover.rows(own)))

    def left(self, left: Left) -> Left:
        """Return the pending vertices of a foldmap with the other cuts."""
        words, also = (
            None if words is None else self.set(words)
            for words in (left.words, left.left)
        )
        return Left(words, also, left.scalars)

    def hand_over(self, sets: Sequence[ActiveSet], device: Device) -> None:
        """Move active sets on a device from the old graph to the new one."""
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
        if isinstance(column.values, Filled):  # no kernel has used it yet
            shape = (shard.numbers.size, *column.values.shape[1:])
            return Filled(column.values.value, shape)
        own = state.stored(name)[: self._before.shard.own]
        return with_ghosts(self._engine, shard.send_lists, self._mover.rows(own))

    def _edge_values(self, state: State, name: str, column: Column) -> Any:
        values = column.values
        if isinstance(values, Filled):
            shape = (self._after.part.edge_count, *values.shape[1:])
            return Filled(values.value, shape)
        own = state.stored(name)[: self._before.edges.own]
        offsets = self._before.part.in_edges.row_offsets
        moved = self._mover.slots(np.asarray(offsets), own)
        sent = self._after.edges.lists.sent
        return with_ghosts(self._engine, sent, moved, "entries of edges")


#: Tolerated excess of the slowest rank's time over the mean, as a fraction.
TOLERATED = 0.08
#: The least fraction of a superstep that a move must save: less is noise of clocks.
LEAST_GAIN = 0.05
#: Least and most supersteps whose times are used for a move.
WINDOW, _MOST_SEEN = 8, 32
#: A move is searched after every 4 supersteps; after a search that found none, only
#: after 1/8 of all supersteps more: it takes milliseconds for a million vertices.
_EVERY, _SHARE = 4, 8
#: Least ratio of a gain to its standard error.
_SIGNIFICANT = 3.0
#: For a normal distribution: the ratio of standard to median deviation, and of the
#: standard errors of median and mean.
_DEVIATION, _OF_MEDIAN = 1.4826, 1.2533
#: The factor on `WINDOW` after a move that gained less than half of its estimate.
_PATIENCE = 4
#: Most moves whose measurements are kept.
_MOST_KNOWN = 6
#: The largest fraction of later supersteps in which a move may not gain.
_EXCEPT = 0.25
#: A move within hosts is preferred if it has this fraction of the gain of any move;
#: otherwise a move between hosts would follow at once.
_ENOUGH = 0.7


@dataclass(frozen=True, eq=False)
class Expected:
    """Work and hosts before any measurement.

    Attributes
    ----------
    work : Work
        Work of vertices, in any unit.
    hosts : sequence of int
        The host of each rank; ranks of one host are consecutive.
    """

    work: Work
    hosts: Sequence[int] | Numbers


@dataclass(frozen=True, eq=False)
class Move:
    """A proposal of other cuts.

    Attributes
    ----------
    cuts : ndarray of int64, shape (P + 1,)
    before_s : float
        Recent seconds of the slowest rank for a superstep.
    gain_s : float
        Seconds of a superstep that the move is expected to save.
    is_within : bool
        Whether each host keeps its range.
    """

    cuts: Numbers
    before_s: float
    gain_s: float
    is_within: bool = True


class Balancer:
    """The decision to move, from the times of ranks.

    All ranks add the same times, and so get the same decisions.

    Parameters
    ----------
    cuts : ndarray of int64, shape (P + 1,)
    expected : callable
        Returns an `Expected`; called once, on all ranks, when it is first needed.
    cost_s : float
        Expected seconds of a move, until one has been measured.

    Attributes
    ----------
    found_s : float
        Seconds of a superstep saved by the last move; NaN until that is measured.
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
        #: Cuts before each move, and the median seconds of ranks with them.
        self._measured: list[tuple[Numbers, Reals]] = []
        #: The last move, until its gain is measured.
        self._last: Move | None = None
        self.found_s = math.nan

    def add(self, seconds: Sequence[float]) -> None:
        """Add the seconds of each rank for a superstep, without waits."""
        self._added += 1
        self._seen.append(np.asarray(seconds, np.float64))
        del self._seen[: -max(self._window, _MOST_SEEN)]

    def proposal(self, supersteps_left: float) -> Move | None:
        """Return a move that pays within `supersteps_left`; None if none does."""
        if self.cuts.size < 3 or len(self._seen) < self._window:
            return None
        least_s = self._costs.of(is_within=True)  # the cheapest move
        if (
            self._added % _EVERY
            or self._added < self._look_at
            or self._seen[-1].max() * supersteps_left <= least_s
        ):
            return None
        seen = np.array(self._seen)
        # Medians: a rank that was delayed once is not slow.
        typical = np.median(seen, axis=0)
        if self._gained_too_little(float(typical.max())):
            return None
        # The upper bound of any gain.
        excess = float(typical.max() - typical.mean())
        is_even = excess <= TOLERATED * typical.mean()
        if is_even or excess * supersteps_left <= least_s:
            return None
        found = self._found(seen, typical, supersteps_left)
        if found is None:
            self._look_at = self._added + self._added // _SHARE
        return found

    def moved(self, move: Move, took_s: float) -> None:
        """Record a move and its seconds."""
        typical = np.median(self._seen, axis=0)
        self._measured.append((self.cuts, typical))
        del self._measured[:-_MOST_KNOWN]
        self._last, self.found_s = move, math.nan
        self.cuts = move.cuts
        self._costs.note(move.is_within, took_s)
        self._seen.clear()

    def _found(self, seen: Reals, typical: Reals, left: float) -> Move | None:
        """Return a move that pays, within hosts if possible; None if none does."""
        older, later = np.array_split(seen, 2)
        before, work = self._work(np.median(older, axis=0)), self._work(typical)
        spread = np.median(np.abs(seen - typical).max(axis=1)) * _DEVIATION
        error = spread * _OF_MEDIAN * (2 / len(later)) ** 0.5
        slowest = float(typical.max())
        least = max(LEAST_GAIN * slowest, _SIGNIFICANT * error)
        moves = [self._move(work, slowest, within) for within in self._kinds]
        enough = _ENOUGH * moves[-1].gain_s
        for move in moves:
            # The gain of cuts found from older supersteps, in later ones.
            gains = self._gains(self._cuts(before, move.is_within), before, later)
            gain = min(move.gain_s, float(np.median(gains)))
            stays = (gains <= 0).sum() <= _EXCEPT * gains.size
            pays = gain > least and gain * left > self._costs.of(move.is_within)
            if stays and pays and move.gain_s >= enough:
                return move
        return None

    def _move(self, work: Work, slowest: float, is_within: bool) -> Move:
        """Return the best move, within hosts or between them."""
        cuts = self._cuts(work, is_within)
        gain = slowest - float(work.between(cuts).max())
        return Move(cuts, slowest, gain, is_within)

    @property
    def _kinds(self) -> tuple[bool, ...]:
        """The kinds of moves, by `is_within`; a single host has only one kind."""
        return (True, False)[: len(set(self._known().hosts))]

    def _gains(self, cuts: Numbers, before: Work, later: Reals) -> Reals:
        """Return the seconds that cuts would have saved of each later superstep."""
        before = before.only_at(np.union1d(self.cuts, cuts))
        after = [before.measured(self.cuts, one).between(cuts).max() for one in later]
        gains: Reals = later.max(axis=1) - np.array(after)
        return gains

    def _work(self, seconds: Reals) -> Work:
        """Return the work that agrees with the present and all measured times."""
        return agreeing(self._known().work, [*self._measured, (self.cuts, seconds)])

    def _known(self) -> Expected:
        if self._expected is None:
            self._expected = self._find()
        return self._expected

    def _cuts(self, work: Work, is_within: bool) -> Numbers:
        """Return the best cuts; with `is_within`, hosts keep their ranges."""
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
        """Set `found_s` by the supersteps since the last move, if there are any."""
        if self._last is not None and self._seen:
            slowest = float(np.median(self._seen, axis=0).max())
            self.found_s = self._last.before_s - slowest

    def _gained_too_little(self, slowest: float) -> bool:
        """Set `found_s`, once after a move; return whether it is too small.

        If it is less than half of the estimate, later windows are longer.
        """
        last, self._last = self._last, None
        if last is None:
            return False
        self.found_s = last.before_s - slowest
        is_too_little = self.found_s < 0.5 * last.gain_s
        self._window *= _PATIENCE if is_too_little else 1
        return is_too_little


class _Costs:
    """Seconds of moves, within hosts and between them.

    Parameters
    ----------
    cost_s : float
        Expected seconds of either, until it is measured. A move between hosts never
        counts less than one within them.
    """

    def __init__(self, cost_s: float) -> None:
        self._expected_s = cost_s
        self._measured_s: dict[bool, float] = {}

    def note(self, is_within: bool, took_s: float) -> None:
        """Record the seconds of a move."""
        self._measured_s[is_within] = took_s

    def of(self, is_within: bool) -> float:
        """Return the expected seconds of a move, within hosts or between them."""
        within = self._measured_s.get(True, self._expected_s)
        if True not in self._measured_s and False in self._measured_s:
            within = min(within, self._measured_s[False])
        if is_within:
            return within
        return max(within, self._measured_s.get(False, self._expected_s))

"""Work of vertices as a prefix sum: fitted to measured times, and cut evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.graph.partition.cuts import TOLERANCE

__all__ = ["Work", "agreeing", "cut_evenly", "joined"]

#: Passes of the fit over all measurements; what remains of their disagreement is below
#: the noise of clocks.
_PASSES = 16

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


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
        """Return work that equals measured seconds at cuts, and is scaled between them.

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
        """Return the same work at its places, interpolated at the places of another.

        By a monotone cubic of the expected work: at a cut, the work of a vertex is
        between that on both sides, so that a dense range that ends within a part is
        found in fewer moves than by linear interpolation.
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

    SciPy has it, too, but its import takes longer than a move.

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
    for end, near, far in ((0, 0, 1), (-1, -1, -2)):  # of the parabola of three points
        width, other = widths[near], widths[far]
        slope = (2 * width + other) * rises[near] - width * rises[far]
        slopes[end] = max(slope / (width + other), 0.0)
    piece = np.clip(np.searchsorted(x, at, "right") - 1, 0, rises.size - 1)
    width, t = widths[piece], (at - x[piece]) / widths[piece]
    bend = (slopes[piece] + slopes[piece + 1] - 2 * rises[piece]) * width
    line = y[piece] + t * (y[piece + 1] - y[piece])
    # Both ends' slopes, as they differ from the line's.
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

    Iterative proportional fitting between all cuts. Measurements may contradict each
    other, since loads and speeds change; the last one holds exactly.

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

    Cuts nearest to equal work are kept if no others are better.

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

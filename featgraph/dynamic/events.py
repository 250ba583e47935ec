"""Temporal edges, and windows that move over them.

`TemporalEdges` has events (u, v, t), sorted by time. A `Window` is the interval
[a, a + length) of times, which moves by a step: `Window.graph` makes the graph of the
first interval, and iteration yields a `WindowBatch` for each further one. The events of
an interval are a range of all events, so that a batch follows from two ranges: events
that leave the window, and events that enter it.

With ``duplicates="keep"``, each event is an edge. With ``"last"``, a pair is one edge,
which leaves with its last event: ``_next[i]`` is the next event of the same pair as
event i, and the pair stays if that is in the window. Example: events (a, b) at 10 and
20, and (b, c) at 15; length 10, step 5. The window [10, 20) has both pairs. The batch
to [15, 25) deletes nothing: (a, b) has an event at 20, which enters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.activity import loading
from featgraph.base.arguments import require_choice, require_flag, require_real
from featgraph.base.cached import cached_property
from featgraph.base.errors import FileFormatError, GraphInputError, StateError
from featgraph.dynamic.graph import DynamicGraph
from featgraph.dynamic.inputs import require
from featgraph.graph.building.check import checked_weights, paired_arrays
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.names import factorise
from featgraph.graph.formats.edge_list import (
    EdgeListOptions,
    edge_columns,
    read_columns,
)
from featgraph.graph.formats.text import read_text

__all__ = ["TemporalEdges", "Window", "WindowBatch", "read_temporal"]

Array = NDArray[Any]


class TemporalEdges:
    """Edges with times: a stream of events.

    Parameters
    ----------
    s, t : array_like, shape (N,)
        Names of the ends of each event: integers, strings or hashable objects.
    times : array_like of int or float, shape (N,)
        In any order and any unit. Events of equal times stay in the order given.
    weights : array_like of int or float, shape (N,), optional

    Attributes
    ----------
    sources, targets : ndarray, shape (N,)
        The names, in the order of time.
    times : ndarray, shape (N,)
        Ascending.
    weights : ndarray of shape (N,), or None

    Raises
    ------
    GraphInputError
        If there are no events, arrays differ in length, a time is not finite, or a name
        or a weight is none that `Graph.from_edges` takes.

    Examples
    --------
    >>> import featgraph as fg
    >>> events = fg.TemporalEdges([7, 8, 7], [8, 9, 9], times=[20, 10, 30])
    >>> events.sources.tolist(), events.times.tolist()
    ([8, 7, 7], [10, 20, 30])
    """

    def __init__(self, s: Any, t: Any, times: Any, weights: Any = None) -> None:
        given = paired_arrays(s, t)
        count = given[0].size
        require(count, "no events", "s, t", "empty arrays", "one event or more")
        own = checked_weights(times, count, "times")
        first = int(np.argmin(np.isfinite(own)))
        require(
            np.isfinite(own[first]), "a time is not finite", f"times[{first}]",
            own[first], "finite numbers",
        )  # fmt: skip
        order = np.argsort(own, kind="stable")
        *ends, names = factorise(*given)
        self._ends = np.stack(ends)[:, order]
        self._vertex_count = int(self._ends.max()) + 1
        self._names: Any = np.arange(self._vertex_count) if names is None else names
        if isinstance(names, tuple):  # np.array would split names that are tuples
            self._names = np.fromiter(names, object, len(names))
        self.times = freeze(own[order])
        self.weights = None
        if weights is not None:
            self.weights = freeze(checked_weights(weights, count)[order])

    def __len__(self) -> int:
        return int(self.times.size)

    def _values(self, some: Any) -> dict[str, Any]:
        """Return weights and columns of some events, by name of argument."""
        weights = None if self.weights is None else self.weights[some]
        return {"weights": weights, "columns": {"time": self.times[some]}}

    def __repr__(self) -> str:
        first, last = self.times[[0, -1]].tolist()
        return f"<TemporalEdges: {len(self)} events at times {first} .. {last}>"

    @cached_property
    def sources(self) -> Array:
        """Names of the sources, in the order of time."""
        return freeze(self._names[self._ends[0]])

    @cached_property
    def targets(self) -> Array:
        """Names of the targets, in the order of time."""
        return freeze(self._names[self._ends[1]])

    def window(
        self, *, length: float, step: float, start: float | None = None
    ) -> Window:
        """Return a window that moves over the events.

        Parameters
        ----------
        length : float
            The length of the interval [a, a + length), in the unit of the times; > 0.
        step : float
            The distance by which each batch moves the interval; > 0.
        start : float, optional
            The begin of the first interval; earlier events are left out. Default: the
            time of the first event.

        Returns
        -------
        Window

        Raises
        ------
        GraphInputError
            If a number is out of range, or no event lies at `start` or later.

        Examples
        --------
        >>> import featgraph as fg
        >>> events = fg.TemporalEdges([0, 1, 0], [1, 2, 2], times=[10, 20, 30])
        >>> window = events.window(length=15, step=10)
        >>> graph = window.graph(directed=False)
        >>> for batch in window:
        ...     _ = graph.update(batch)
        ...     print(batch.begin, graph.edges()[2]["time"].tolist())
        20 [20, 30]
        """
        return Window(self, length, step, start)


class Window:
    """An interval of time that moves over events; see `TemporalEdges.window`.

    Iteration yields a `WindowBatch` for each step, the first from the first interval to
    the second. The last interval is the first one that has the last event. Each
    iteration begins with the first interval.

    Attributes
    ----------
    events : TemporalEdges
    length, step, start : float
        As for `TemporalEdges.window`.
    """

    def __init__(
        self, events: TemporalEdges, length: Any, step: Any, start: Any
    ) -> None:
        for name, value in (("length", length), ("step", step)):
            is_right = require_real(name, value) > 0
            require(is_right, f"{name} out of range", f"{name}=", value, "> 0")
        first, last = events.times[[0, -1]].tolist()
        if start is None:
            start = first
        require_real("start", start)
        require(  # not rounded to a float
            start <= last, "no events in the windows", "start=", start,
            f"at most {last}, the time of the last event",
        )  # fmt: skip
        self.events, self.length, self.step, self.start = events, length, step, start
        self._policy: tuple[bool, str, str] | None = None
        self._pairs = self._next = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of batches that an iteration yields."""
        behind = self.events.times[-1].item() - self.length - self.start
        return max(int(behind // self.step) + 1, 0)

    def __repr__(self) -> str:
        return (
            f"<Window of {self.length} over {len(self.events)} events, from "
            f"{self.start} on: {len(self)} steps of {self.step}>"
        )

    def graph(
        self, *, directed: bool = True, duplicates: str = "last", loops: str = "keep",
        **options: Any,
    ) -> DynamicGraph:  # fmt: skip
        """Return the graph of the first interval, which the batches update.

        Parameters
        ----------
        directed : bool, optional
            False: each event is an undirected edge.
        duplicates : {"last", "keep"}, optional
            "last": a pair is one edge, with time and weight of its last event; it is
            deleted when the window has none of its events. "keep": each event is an
            edge; an event that leaves deletes the oldest copy of its pair.
        loops : {"keep", "drop", "error"}, optional
            The policy for events that join a vertex to itself.
        **options
            ``capacity`` and ``target``, as for `DynamicGraph.from_edges`.

        Returns
        -------
        DynamicGraph
            It has the names of the events, the column ``time``, and weights if the
            events have them. Vertices are inserted with their first event, and stay.

        Raises
        ------
        StateError
            If the window has made a graph with other arguments.
        """
        self._prepare(directed, duplicates, loops)
        first, stop = self._range(0)
        events = self.events
        sources, targets = events._names[events._ends[:, first:stop]]
        return DynamicGraph.from_edges(
            sources, targets, directed=directed, duplicates=duplicates, loops=loops,
            names=True, **events._values(slice(first, stop)), **options,
        )  # fmt: skip

    def _prepare(self, directed: Any, duplicates: Any, loops: Any) -> None:
        """Store the arguments of the graph, number the pairs, and find `_next`."""
        policy = (
            require_flag("directed", directed),
            require_choice("duplicates", duplicates, ("last", "keep")),
            require_choice("loops", loops, ("keep", "drop", "error")),
        )
        if self._policy not in (None, policy):
            text = "directed={}, duplicates={!r}, loops={!r}"
            raise StateError(
                "the window has a graph of another kind", where="graph()",
                got=text.format(*policy), expected=text.format(*self._policy or ()),
                fix="make another window of the events",
            )  # fmt: skip
        ends = self.events._ends.astype(np.int64)
        u, v = ends if policy[0] else np.sort(ends, axis=0)
        self._pairs = u * self.events._vertex_count + v
        order = np.argsort(self._pairs, kind="stable")
        is_followed = np.diff(self._pairs[order]) == 0
        self._next = np.full(order.size, order.size)
        self._next[order[:-1][is_followed]] = order[1:][is_followed]
        self._policy = policy

    def _range(self, number: int) -> tuple[int, int]:
        """Return the range of the events in the interval after so many steps."""
        begin = self.start + number * self.step
        return self._events_before(begin), self._events_before(begin + self.length)

    def _events_before(self, bound: Any) -> int:
        times = self.events.times
        first, last = times[[0, -1]].tolist()
        if not first < bound <= last:  # a bound of another sign, or of more bits
            return int(times.size) if bound > last else 0
        if times.dtype.kind != "f":  # searchsorted would convert all times to floats
            bound = times.dtype.type(math.ceil(bound))
        return int(np.searchsorted(times, bound))

    def __iter__(self) -> Iterator[WindowBatch]:
        if self._policy is None:
            raise StateError(
                "the window has no graph that its batches update",
                where="iteration of a Window", fix="graph = window.graph(...) first",
            )  # fmt: skip
        for number in range(1, len(self) + 1):
            begin = self.start + number * self.step
            yield self._batch(self._range(number - 1), self._range(number), begin)

    def _batch(
        self, old: tuple[int, int], new: tuple[int, int], begin: Any
    ) -> WindowBatch:
        """Return the batch from the graph of one range of events to that of another."""
        events, (_, kept, loops) = self.events, self._policy or (True, "last", "keep")
        leaving = np.arange(old[0], min(old[1], new[0]))
        coming = np.arange(max(old[1], new[0]), new[1])
        if kept == "last":
            after = self._next[leaving]
            stays = (new[0] <= after) & (after < new[1])
            if old[1] < new[0]:  # events between the intervals are in neither
                stays = np.isin(self._pairs[leaving], self._pairs[coming])
            leaving = leaving[(after >= min(old[1], new[0])) & ~stays]
        if loops != "keep":
            ends = events._ends[:, leaving]
            leaving = leaving[ends[0] != ends[1]]
        rows = np.concatenate([leaving, coming])
        sources, targets = events._names[events._ends[:, rows]]
        return WindowBatch(
            sources, targets, insert=np.arange(rows.size) >= leaving.size,
            copies="all" if kept == "last" else "first", begin=begin,
            end=begin + self.length, **events._values(rows),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """Updates that move the graph of a window by one step, for `DynamicGraph.update`.

    Attributes
    ----------
    sources, targets : ndarray, shape (N,)
        Names of the ends.
    insert : ndarray of bool, shape (N,)
        True for an insertion, False for a deletion. Deletions come first.
    weights : ndarray of shape (N,), or None
        Weights of insertions; entries of deletions have no meaning.
    columns : dict of str to ndarray of shape (N,)
        The column ``time``, likewise.
    copies : {"all", "first"}
        The copies of a pair that a deletion removes.
    begin, end : float
        The interval [begin, end) of the graph after the batch.
    """

    sources: Array
    targets: Array
    insert: NDArray[np.bool_]
    weights: Array | None
    columns: dict[str, Array]
    copies: str
    begin: float
    end: float

    def __len__(self) -> int:
        return int(self.insert.size)

    def __repr__(self) -> str:
        came = int(self.insert.sum())
        return (
            f"<WindowBatch: {came} insertions and {len(self) - came} deletions, to the "
            f"interval [{self.begin}, {self.end})>"
        )


@loading
def read_temporal(
    path: str | os.PathLike[str], *, comments: str = "#%", separator: str = "auto",
    max_bytes: int | None = None,
) -> TemporalEdges:  # fmt: skip
    r"""Read a text file with an event on each line: ``u v t`` or ``u v t w``.

    Parameters
    ----------
    path : str or path
        Plain or gzipped. Lines may be in any order. Ids are names, as for
        `read_edge_list` with ``names=True``; times and weights that are all integers
        stay integers.
    comments, separator, max_bytes : optional
        As for `read_edge_list`.

    Returns
    -------
    TemporalEdges

    Raises
    ------
    FileFormatError
        If a line is not an event, a time is not finite, or the file is damaged or has
        no events.
    OSError
        If the file is missing or may not be read.

    Examples
    --------
    >>> import pathlib, featgraph as fg
    >>> path = pathlib.Path("events.txt")
    >>> _ = path.write_text("# source target time\n7 9 20\n7 8 10\n")
    >>> fg.read_temporal(path)
    <TemporalEdges: 2 events at times 10 .. 20>
    >>> path.unlink()
    """
    text = read_text(path, max_bytes)

    def columns(weights: int) -> tuple[int, Array, Array, Any]:
        given = EdgeListOptions(
            weights=weights, comments=comments, names=True, separator=separator
        )
        how = edge_columns(text, given)
        return how.field_count, *read_columns(text, how, given)

    field_count, sources, targets, times = columns(2)
    if not sources.size:
        text.fail("no events", len(text.data), got="the end of the file")
    if field_count > 4:
        text.fail(
            "too many fields", got=f"{field_count} in each line",
            expected="u v t, or u v t w",
            fix="read the columns that you mean, and give them to TemporalEdges",
        )  # fmt: skip
    try:
        weights = columns(3)[3] if field_count == 4 else None
        return TemporalEdges(sources, targets, times, weights)
    except GraphInputError as error:
        raise FileFormatError(
            error.what, where=f"{text.path}, {error.where}", got=error.got
        ) from error

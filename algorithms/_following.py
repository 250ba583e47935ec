"""Updates of results after their graph has changed: `Result.update`.

A result of an `fg.DynamicGraph` keeps a `Following`: the call that made it, and the
version of the graph. An update either continues from the values of the result, by the
algorithm's own `Result._resume`, or calls the algorithm again with the same arguments
and takes over all attributes of the new result. `ends_of` and `spread` are the parts of
`_resume` that algorithms with minima or trees (components, shortest paths, label
propagation) share: where an insertion may lower a value, and the supersteps from there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.algorithms._vertices import only_living

__all__ = [
    "FEW", "Following", "Update", "are_column", "edges_into", "ends_of", "follow",
    "is_on_gpu", "spread",
]  # fmt: skip

#: Arguments of algorithms with a value for each given edge: edges that were inserted
#: later have no value in them.
EDGE_VALUES = ("weights", "conductances", "conductivities", "pairwise")
#: `Following.changes` limits changes as if a graph had this many edges, or more: a
#: share of the edges of a small graph would be no change at all.
FEW = 4096
#: Most supersteps of a call for each vertex: two foldmaps alternate.
CALL_STEPS = 2
#: After an update that took longer than a call, so many updates begin anew at once: the
#: first number, and twice as many each time that the next one takes longer, too, up to
#: the last number. Graphs with fewer edges than `LEAST_WEIGHED` are left out.
PAUSES, LEAST_WEIGHED = (8, 64), 100_000


@dataclass(frozen=True)
class Update:
    """A report on an update of a result.

    Attributes
    ----------
    version : int
        The version of the graph that the result is now of.
    began_anew : str
        The reason why the algorithm began anew; "" if it continued, or if the graph had
        not changed.
    supersteps : int
        The number of supersteps that ran.
    edges : int or None
        The number of evaluations of edges, over all supersteps. None if the algorithm
        began anew, or does not count them.
    """

    version: int
    began_anew: str = ""
    supersteps: int = 0
    edges: int | None = None


@dataclass
class Pause:
    """Updates that begin anew at once, since one took longer than a call.

    Attributes
    ----------
    least : int
        The number of changes of that update. Updates with fewer are not concerned.
    left : int
        How many updates still begin anew.
    length : int
        How many begin anew after that update in all; 0 after one that was faster.
    """

    least: int = sys.maxsize
    left: int = 0
    length: int = 0


@dataclass
class Following:
    """The call that made a result, and the version of the graph that the result is of.

    Attributes
    ----------
    graph : DynamicGraph
    version : int
    call : callable
        The algorithm, with its arguments. Arrays are not copied.
    arguments : dict
        The arguments of the call, with defaults.
    target : str
        The argument of the call.
    too_deep : str
        The reason why all updates after deletions begin anew, once one has found it; or
        "".
    call_work : float
        The work of the call, in the unit in which the algorithm counts that of updates.
    pauses : tuple of Pause
        For updates with insertions alone, and for others.
    is_whole : bool
        Whether the States of updates are whole: no update has ended in an error.
    """

    graph: Any
    version: int
    call: Callable[[], Any]
    arguments: dict[str, Any]
    target: str
    too_deep: str = ""
    call_work: float = 0
    pauses: tuple[Pause, Pause] = field(default_factory=lambda: (Pause(), Pause()))
    is_whole: bool = True

    def update(self, result: Any) -> Update:
        """Bring a result up to date in place; see `Result.update`."""
        fixed = [
            name for name, values in self.arguments.items()
            if name in EDGE_VALUES and values is not None
            and not (name == "pairwise" and np.ndim(values) == 2)  # for all edges
            and getattr(values, "graph", None) is not self.graph  # a column
        ]  # fmt: skip
        if fixed:
            raise fg.StateError(
                "the result is computed from edge values that are no column",
                where=f"{type(result).__name__}.update()",
                got=f"{fixed[0]}= for the edges of version {self.version}",
                expected="values that come with the edges",
                fix=f"leave {fixed[0]} out, and give the graph weights",
            )
        version = self.graph.version
        if version == self.version:
            return Update(version, edges=0)
        done: Any = "an update ended in an error"
        if self.is_whole:
            self.is_whole = False
            done = result._resume(self)
        if isinstance(done, Update):
            self.version, self.is_whole = version, True
            return done
        fresh = self.call()
        kept = fresh._following
        kept.too_deep, kept.pauses = self.too_deep, self.pauses
        known, new = vars(result), vars(fresh)
        for name in known.keys() - new.keys():  # cached answers of the old version
            del known[name]
        known.update(new)  # with a `Following` that is whole
        return Update(version, done, fresh.supersteps)

    def changes(self, share: int, depth: int = 1) -> Any:
        """Return the changes since the result's version, or a reason to begin anew.

        Parameters
        ----------
        share : int
            ``depth * count`` changes of edges may be E / share at most.
        depth : int, optional
            The number of edges along which the effect of a change spreads.
        """
        options = self.arguments["options"]
        if options.get("callback") is not None:
            return "callback= was given"  # it has seen the State, too
        limit = options.get("max_supersteps")
        if limit is not None and limit < CALL_STEPS * self.graph.vertex_count + 4:
            return "max_supersteps= was given"  # a call might end there
        changes = self.graph.changes(since=self.version)
        if changes is None:
            return f"the log of changes begins after version {self.version}"
        count = sum(changes.counts)
        if count * depth > max(self.graph.given_edge_count, FEW) // share:
            along = "" if depth == 1 else f", along {depth} edges each,"
            return f"{count} changes{along} are more than 1 / {share} of the edges"
        pause = self.pauses[count > changes.counts[0]]
        if pause.left and count >= pause.least:
            pause.left -= 1
            return f"{pause.least} changes took longer than a call"
        return changes

    def weigh(self, changes: Any, share: float, *, is_first: bool = False) -> None:
        """Begin or end a pause after an update.

        Times are estimated from counts, so that equal updates begin anew in every run.

        Parameters
        ----------
        changes : Changes
        share : float
            The time of the update over that of a call.
        is_first : bool, optional
            Whether the update made a State, which took as long for insertions alone as
            for others: both pause.
        """
        count = sum(changes.counts)
        own = self.pauses[count > changes.counts[0]]
        for pause in self.pauses if is_first else (own,):
            if share > 1 and self.graph.given_edge_count >= LEAST_WEIGHED:
                shortest, longest = PAUSES
                pause.length = min(2 * pause.length or shortest, longest)
                pause.least, pause.left = count, pause.length
            elif count >= pause.least:
                pause.length = 0


def follow(
    version: Any, call: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Following | None:
    """Return the call that a result keeps; None unless its graph is dynamic."""
    bound = _signature_of(call).bind(*args, **kwargs)
    graph = next(iter(bound.arguments.values()), None)
    if not isinstance(graph, fg.DynamicGraph):
        return None
    bound.apply_defaults()
    again, target = partial(call, *args, **kwargs), kwargs.get("target", "auto")
    return Following(graph, version, again, bound.arguments, target)


_signature_of = cache(inspect.signature)


def is_on_gpu(graph: Any) -> bool:
    """Return whether a dynamic graph lives on a GPU."""
    return bool(graph.changing.target_of("auto") == "cuda")


def are_column(graph: Any, weights: dict[str, Any]) -> bool:
    """Return whether properties of weights, if any, are a column of a dynamic graph.

    Weights that were converted or scaled are not: they are those of one version.
    """
    own = graph.changing
    return all(own.column_of(graph, w.values) is not None for w in weights.values())


def ends_of(
    state: Any, name: str, changes: Any, lost: Any, *, far: float = np.nan,
    length: int = 0, rises: bool = False,
) -> Any:  # fmt: skip
    """Return the living vertices that may get a lower value, for `spread`.

    These are the vertices in `lost`, and the targets of inserted and changed edges. On
    the CPU, only targets whose value the edge can lower count; from a GPU, all values
    would have to be copied for that.

    Parameters
    ----------
    state : State
    name : str
        A property of which a vertex takes the value of its source plus `length`, or
        more.
    changes : Changes
    lost : ndarray
        Vertices that `fg.trim` has reset.
    far : float, optional
        The value of vertices that have none.
    length : int, optional
    rises : bool, optional
        Whether greater values are looked for, of which an edge passes on its own or
        less.
    """
    graph = state.graph
    pairs = zip(changes.inserted, changes.changed, strict=True)
    u, v = (np.concatenate(ends) for ends in pairs)
    if name == "label" or not graph.directed:
        u, v = np.concatenate([u, v]), np.concatenate([v, u])
    if not is_on_gpu(graph):
        values = state.stored(name).reshape(-1)
        before, now = values[u], values[v]
        is_lower = before > now if rises else before + length < now
        v = v[(before != far) & ((now == far) | is_lower)]
    return only_living(graph, np.unique(np.concatenate([v, lost])))


def spread(
    step: Any, state: Any, due: Any, lost: Any, target: str
) -> tuple[int, int | None]:
    """Evaluate due vertices, then all vertices that get lower values from them.

    Returns
    -------
    supersteps : int
    edges : int or None
        The number of evaluations of edges, those into `lost` included; None on a GPU.
    """
    graph = state.graph
    if not due.size:
        return 0, 0
    active = step.on(due)(state, target=target)
    most = graph.vertex_count + 4
    run = fg.iterate(step, state, active=active, max_supersteps=most, target=target)
    before = edges_into(graph, due, lost)
    edges = None if before is None else before + (run.evaluated or 0)
    return run.supersteps + 1, edges


def edges_into(graph: Any, *sets: Any) -> int | None:
    """Return the number of edges into vertices; None if the graph is on a GPU."""
    if is_on_gpu(graph):
        return None
    rows, ids = graph.changing.in_rows, np.concatenate(sets)
    return int((rows.stops[ids] - rows.starts[ids]).sum(dtype=np.int64))

"""Updates of results after their graph has changed: `Result.update`.

`featgraph.algorithm` passes each result the call that has made it. Where its graph is
an `fg.DynamicGraph`, the result keeps the call. An update either resumes, by the
algorithm's own `Result._resume`, or calls the algorithm again with the same arguments,
and takes over all attributes of the new result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import featgraph as fg

__all__ = [
    "FEW", "Following", "Update", "edges_into", "ends_of", "follow", "spread",
]  # fmt: skip

#: Arguments of algorithms that have values for edges, in the order in which the edges
#: were given: edges inserted since have no values.
EDGE_VALUES = ("weights", "conductances", "conductivities", "pairwise")
#: Of a graph with fewer edges, as many changes are gone on from as with so many.
FEW = 4096


@dataclass(frozen=True)
class Update:
    """A report on an update of a result.

    Attributes
    ----------
    version : int
        The version of the graph that the result now is of.
    began_anew : str
        Why the algorithm began anew; "" where it went on from what it had, or the graph
        had not changed.
    supersteps : int
        How many ran.
    edges : int or None
        How many edges were evaluated, those that are in several supersteps counted
        several times. None where it began anew, or where that is not counted.
    """

    version: int
    began_anew: str = ""
    supersteps: int = 0
    edges: int | None = None


@dataclass
class Following:
    """The call that has made a result, and the version of the graph that it has seen.

    Attributes
    ----------
    graph : DynamicGraph
    version : int
    call : callable
        The algorithm, with its arguments. Arrays are not copied.
    given, arguments : dict
        The arguments of the call, without and with defaults.
    target : str
        Where the call has run.
    too_deep : str
        Why updates begin anew wherever edges went, once one has found that; or "".
    """

    graph: Any
    version: int
    call: Callable[[], Any]
    given: dict[str, Any]
    arguments: dict[str, Any]
    target: str
    too_deep: str = ""

    def update(self, result: Any) -> Update:
        """Bring a result up to date in place; see `Result.update`."""
        fixed = [
            name for name, values in self.given.items()
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
        done = result._resume(self)
        if isinstance(done, Update):
            self.version = version
            return done
        fresh = self.call()
        fresh._following.too_deep = self.too_deep
        known, new = vars(result), vars(fresh)
        known.update(new)
        for name in known.keys() - new.keys():  # answers of before
            del known[name]
        return Update(version, done, fresh.supersteps)

    def changes(self, share: int, depth: int = 1) -> Any:
        """Return the changes of the graph since, or the reason to begin anew.

        Parameters
        ----------
        share : int
            More changes than one for so many edges are too many.
        depth : int, optional
            Of changes whose effect goes along so many edges, so many times fewer are.
        """
        changes = self.graph.changes(since=self.version)
        if changes is None:
            return f"the log of changes begins after version {self.version}"
        pairs = changes.inserted, changes.deleted, changes.changed
        count = sum(sources.size for sources, _ in pairs)
        if count * depth > max(self.graph.given_edge_count, FEW) // share:
            along = "" if depth == 1 else f", along {depth} edges each,"
            return f"{count} changes{along} are more than 1 / {share} of the edges"
        return changes


def follow(
    version: Any, call: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Following | None:
    """Return the call that a result keeps; None where its graph does not change."""
    bound = inspect.signature(call).bind(*args, **kwargs)
    given = dict(bound.arguments)
    graph = next(iter(given.values()), None)
    if not isinstance(graph, fg.DynamicGraph):
        return None
    bound.apply_defaults()
    again, target = partial(call, *args, **kwargs), kwargs.get("target", "auto")
    return Following(graph, version, again, given, dict(bound.arguments), target)


def ends_of(state: Any, name: str, changes: Any, lost: Any, *, length: int = 0) -> Any:
    """Return where an edge that came may make a value less, and vertices without one.

    Values are compared on the host alone: from a GPU all of them would have to come.

    Parameters
    ----------
    name : str
        A property that is less by `length` at least where a value comes from.
    """
    graph = state.graph
    pairs = zip(changes.inserted, changes.changed, strict=True)
    u, v = (np.concatenate(ends) for ends in pairs)
    if name == "label" or not graph.directed:
        u, v = np.concatenate([u, v]), np.concatenate([v, u])
    if graph.changing.target_of("auto") == "cpu":
        values = state.stored(name).reshape(-1)
        v = v[values[u] + length < values[v]]
    ids = np.unique(np.concatenate([v, lost]))
    return ids if graph.living is None else ids[graph.living[ids]]


def spread(
    step: Any, state: Any, due: Any, lost: Any, target: str
) -> tuple[int, int | None]:
    """Find values of due vertices, and of all that theirs make less.

    Return how many supersteps that takes, and how many edges are evaluated, with those
    of the vertices that `trim` has found.
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
    """Return the number of edges into vertices; None where a GPU has the degrees."""
    if graph.changing.target_of("auto") != "cpu":
        return None
    rows, ids = graph.changing.in_rows, np.concatenate(sets)
    return int((rows.stops[ids] - rows.starts[ids]).sum(dtype=np.int64))

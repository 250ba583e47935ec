"""Updates of results after their graph has changed: `Result.update`.

`featgraph.algorithm` passes each result the call that has made it. If the graph is an
`fg.DynamicGraph`, the result stores the call (`Following`). An update either resumes
from the result, by the algorithm's `Result._resume`, or calls the algorithm again with
the same arguments and copies all attributes of the new result.
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

#: Arguments of algorithms that are values of edges, in given order: edges that were
#: inserted later have no value.
EDGE_VALUES = ("weights", "conductances", "conductivities", "pairwise")
#: Limits that are shares of the edges (or vertices) of a small graph are computed as if
#: it had this many.
FEW = 4096


@dataclass(frozen=True)
class Update:
    """A report on an update of a result.

    Attributes
    ----------
    version : int
        The version of the graph that the result now is of.
    began_anew : str
        The reason why the algorithm began anew; "" if it resumed from the result, or
        the graph had not changed.
    supersteps : int
        The number of supersteps that ran.
    edges : int or None
        The number of edges evaluated; an edge that is evaluated in several supersteps
        counts several times. None if the algorithm began anew, or does not count.
    """

    version: int
    began_anew: str = ""
    supersteps: int = 0
    edges: int | None = None


@dataclass
class Following:
    """The call that has made a result, and the version of the graph that it is of.

    Attributes
    ----------
    graph : DynamicGraph
    version : int
    call : callable
        The algorithm, with its arguments. Arrays are not copied.
    given, arguments : dict
        The arguments of the call, without and with defaults.
    target : str
        The target of the call.
    too_deep : str
        The reason why updates after deletions begin anew, set by the first update that
        found it; or "".
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
        for name in known.keys() - new.keys():  # answers of the old version
            del known[name]
        return Update(version, done, fresh.supersteps)

    def changes(self, share: int, depth: int = 1) -> Any:
        """Return the changes of the graph since the version of the result.

        If there are too many changes, return the reason to begin anew, a text.

        Parameters
        ----------
        share : int
            Changes of more than 1 / `share` of the edges are too many.
        depth : int, optional
            Number of edges along which the effect of a change spreads; the limit is
            divided by it.
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
    """Return the call to store in a result; None if its graph does not change."""
    bound = inspect.signature(call).bind(*args, **kwargs)
    given = dict(bound.arguments)
    graph = next(iter(given.values()), None)
    if not isinstance(graph, fg.DynamicGraph):
        return None
    bound.apply_defaults()
    again, target = partial(call, *args, **kwargs), kwargs.get("target", "auto")
    return Following(graph, version, again, given, dict(bound.arguments), target)


def ends_of(state: Any, name: str, changes: Any, lost: Any, *, length: int = 0) -> Any:
    """Return the vertices whose value may decrease, and those whose value is lost.

    The value of a vertex may decrease if an inserted or changed edge leads to it. On
    the CPU, edges whose source has no smaller value are excluded; on a GPU, comparing
    would require downloading all values.

    Parameters
    ----------
    name : str
        A property that increases by at least `length` along each edge.
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
    """Compute the values of due vertices, and of all vertices that depend on them.

    Return the number of supersteps, and the number of edges evaluated, including the
    edges into the `lost` vertices, which `fg.trim` has evaluated.
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
    """Return the number of edges into some vertices; None if degrees are on a GPU."""
    if graph.changing.target_of("auto") != "cpu":
        return None
    rows, ids = graph.changing.in_rows, np.concatenate(sets)
    return int((rows.stops[ids] - rows.starts[ids]).sum(dtype=np.int64))

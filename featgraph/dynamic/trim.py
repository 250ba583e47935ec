"""`trim`: reset values of a State that depend on deleted or changed edges.

A program that keeps minima or maxima, such as shortest distances, can continue after
insertions. After a deletion, a vertex may have a value that no path gives any more. If
a property stores the vertex that each value was taken from, its *source*, `trim` resets
exactly the values whose chain of sources uses a deleted or changed edge.

The log gives the vertices whose own edge to their source is lost. A program, `_lose`,
then spreads "lost" to the vertices whose source is lost, until none is added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import require_choice, require_flag, shown
from featgraph.base.errors import ArgumentError, StateError
from featgraph.cuda.values import DeviceValues
from featgraph.program.following import checked_put, log_since
from featgraph.program.functions import gather, vertex
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State, vertex_property
from featgraph.runtime.iterate import iterate
from featgraph.runtime.superstep.foldmap import foldmap

__all__ = ["trim"]

Ids = npt.NDArray[np.int64]


def has_lost_source(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.source[v] == u


@vertex
def lose(f, v, d):  # type: ignore[no-untyped-def]
    is_new = d.is_lost[v] and not d.lost[v]
    d.lost_next[v] = d.lost[v] or d.is_lost[v]
    return is_new


_looks = {
    along: gather(into="is_lost", combine="any", along=along, sources="active")
    for along in ("in", "out", "both")
}
#: Direction in which values were gathered -> the program that spreads "lost".
_lose = {along: foldmap(look(has_lost_source), lose) for along, look in _looks.items()}


def trim(
    state: State, source: str = "previous", *, reset: dict[str, Any], along: str = "in",
    values: bool = True, target: str = "auto",
) -> Ids:  # fmt: skip
    """Reset the vertices whose values depend on deleted or changed edges.

    A vertex is reset if the edge from its source was deleted or got another value since
    `trim` was last called, or if its source is reset. It becomes due for all foldmaps.
    For gathers from active vertices only, its neighbors become active.

    Parameters
    ----------
    state : State
    source : str, optional
        A property of vertices: the id of the vertex that the value was taken from, or
        the own id or a negative number if there is none. It is reset to -1, unless
        `reset` has another value.
    reset : dict of str to array_like
        Property -> the value of vertices that are reset, or values of shape (V, ...).
    along : {"in", "out", "both"}, optional
        The direction in which values were gathered.
    values : bool, optional
        Whether the values depend on edge values. If not, edges that got other values
        count as unchanged.
    target : {"auto", "cpu", "cuda"}, optional
        The device on which chains are followed.

    Returns
    -------
    ndarray of int64
        The vertices that were reset, ascending.

    Raises
    ------
    ArgumentError
        If `along`, `values` or `reset` is invalid.
    StateError
        If a property is missing or not one of vertices, or another thread runs
        supersteps on the State.

    Notes
    -----
    A vertex is reset even if another copy of its deleted edge is left. If the log of
    the graph begins after the last call, all vertices that have a source are reset.

    Examples
    --------
    >>> import featgraph as fg
    >>> graph = fg.DynamicGraph.from_edges([0, 1, 0], [1, 2, 3])
    >>> state = fg.State(
    ...     graph,
    ...     hops=fg.vertex_property([0, 1, 2, 1], iterated=True),
    ...     previous=fg.vertex_property([-1, 0, 1, 0]),
    ... )
    >>> graph.delete_edges([0], [1]).deleted
    1
    >>> fg.trim(state, reset={"hops": 99}).tolist(), state["hops"].tolist()
    ([1, 2], [0, 99, 99, 1])
    """
    require_choice("along", along, tuple(_lose))
    require_flag("values", values)
    if not isinstance(reset, dict):
        raise ArgumentError(
            "values are reset by the names of properties", where="reset=",
            got=shown(reset), expected='a dict such as {"distance": numpy.inf}',
        )  # fmt: skip
    with state.in_use.hold("fg.trim"):
        for name in (source, *reset):
            known = state.signature.get(name) if isinstance(name, str) else None
            is_one = known and (name != source or known.item_shape in {(), (1,)})
            if known is None or known.kind is not PropertyKind.VERTEX or not is_one:
                role = "source" if name is source else "reset"
                raise StateError(
                    "vertices are reset, and have one source each",
                    where=f"fg.trim, {role}={shown(name)}",
                    got="no property" if known is None else known.describe(),
                    expected="a property of vertices",
                )  # fmt: skip
        now = state.follow()
        ends = _find_gone(state, along, values)
        lost = _find_lost(state, source, ends, along, target)
        writes = []  # all is checked before anything is written
        for name, given in ({source: -1} | reset).items():
            made = _values_at(state, name, given, lost)
            writes.append(checked_put(state, name, lost, made, is_reset=True))
        for write in writes:
            write()
        state.trimmed = now.version
    return lost


def _find_gone(state: State, along: str, values: bool) -> Ids | None:
    """Return the deleted and changed edges, as values were gathered: sources, targets.

    None if the log begins after the last call of `trim`.
    """
    changes = log_since(state.graph, state.trimmed)
    if changes is None:
        return None
    gone = [changes.deleted, changes.changed][: 1 + values]
    ends = np.concatenate([np.asarray(pairs, np.int64) for pairs in gone], 1)
    if along == "out":
        ends = ends[::-1]
    if along == "both" or not state.graph.directed:
        ends = np.concatenate([ends, ends[::-1]], 1)
    return ends


def _find_lost(
    state: State, source: str, ends: Ids | None, along: str, target: str
) -> Ids:
    """Return the vertices whose chain of sources uses one of the edges `ends`."""
    graph = state.graph
    if ends is None:
        sources = state.stored(source).reshape(-1)
        return np.flatnonzero((sources >= 0) & (sources != np.arange(len(sources))))
    s, t = ends
    first = np.unique(t[(_entries(state, source, t) == s) & (s != t)])
    if not first.size:
        return first
    lost = vertex_property(False, dtype=bool, iterated=True, at=first, entries=True)
    sources = vertex_property(state[source].reshape(-1), copy=False)
    scratch = State(graph, source=sources, lost=lost)
    most = graph.vertex_count + 1
    iterate(_lose[along], scratch, active=first, max_supersteps=most, target=target)
    return np.flatnonzero(scratch["lost"])


def _entries(state: State, name: str, ids: Ids) -> Any:
    """Return some entries of a property of vertices that has one element each."""
    held = state._column(name).current()
    if not isinstance(held, DeviceValues):
        return state.stored(name).reshape(-1)[ids]
    from featgraph.cuda import arrays as memory  # imports the dialect
    from featgraph.dynamic.gpu_memory import bits_of
    from featgraph.graph.building.gpu_edges import taken

    found = taken(bits_of(held.array), memory.upload(ids))
    return memory.read(found).view(held.dtype)


def _values_at(state: State, name: str, values: Any, ids: Ids) -> Any:
    """Return the values for the vertices `ids`, from one value or from (V, ...)."""
    given, item = np.asarray(values), state._column(name).type.item_shape
    return given[ids] if given.shape == (state.graph.vertex_count, *item) else given

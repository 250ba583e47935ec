"""What the verifiers share: every edge both ways, sums over in-edges, one error."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["Edges", "edges_of", "require", "sums_over_in_edges"]

Array = npt.NDArray[Any]


class Edges(NamedTuple):
    """All edges in the direction in which they are travelled.

    Attributes
    ----------
    sources, targets : ndarray of shape (E,)
        Ends; an undirected edge stands twice, a self-loop once.
    given : ndarray of shape (E,)
        Its place in the order in which the edges were given.
    """

    sources: Array
    targets: Array
    given: Array


def edges_of(graph: fg.Graph) -> Edges:
    """Return the edges of a graph, twins of undirected ones behind them."""
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    given = np.arange(len(sources))
    if graph.directed:
        return Edges(sources, targets, given)
    twins = np.flatnonzero(sources != targets)  # a self-loop is its own twin
    return Edges(
        np.concatenate([sources, targets[twins]]),
        np.concatenate([targets, sources[twins]]),
        np.concatenate([given, twins]),
    )


def sums_over_in_edges(edges: Edges, contributions: Array, vertex_count: int) -> Array:
    """Return (V, ...): contributions of shape (E, ...) added up at the targets."""
    sums = np.zeros((vertex_count, *contributions.shape[1:]), contributions.dtype)
    np.add.at(sums, edges.targets, contributions)
    return sums


def require(holds: Any, what: str) -> None:
    """Raise AssertionError with the first vertex at which something does not hold."""
    holds = np.asarray(holds)
    if not holds.all():
        raise AssertionError(f"vertex {int(np.argmin(holds))}: {what}")

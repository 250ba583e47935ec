"""Link analysis and centrality, in float64 and with NetworkX's stopping rules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms.pagerank import pagerank as featgraph_pagerank
from featgraph.networkx.claims import claim
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["pagerank"]

Array = npt.NDArray[Any]


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave it to the caller to tell of a run that has not converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        yield


def _weights(graph: NetworkXGraph, attribute: str | None) -> Array | None:
    """Return finite, not negative weights in float64, or None where all are one."""
    weights = graph.weights_of(attribute)
    if weights is None:
        return None
    values = weights.values.astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise NotImplementedError(f"values of {attribute!r} that are infinite or < 0")
    return values


def _distribution(
    graph: NetworkXGraph, name: str, given: dict[Any, Any] | None
) -> Array | None:
    if given is None:
        return None
    column = graph.column(given)
    if not (np.isfinite(column) & (column >= 0)).all():
        raise NotImplementedError(f"{name} with values that are infinite or < 0")
    if name == "personalization" and column.sum() == 0:
        raise ZeroDivisionError
    if column.sum() == 0:
        raise NotImplementedError(f"{name} that is zero everywhere")
    return column


def _unless_pagerank(
    G: Any, alpha: float, max_iter: int, tol: float, **_: Any
) -> str | None:
    if not 0 <= alpha <= 1:
        return f"alpha={alpha}: featgraph takes 0 to 1"
    return None if max_iter >= 1 and tol >= 0 else "max_iter < 1 or tol < 0"


@claim(pays_from=10_000, refuse=_unless_pagerank)
def pagerank(
    G: NetworkXGraph,
    alpha: float = 0.85,
    personalization: dict[Any, Any] | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: dict[Any, Any] | None = None,
    weight: str | None = "weight",
    dangling: dict[Any, Any] | None = None,
) -> dict[Any, float]:
    """Rank nodes by where a random surfer is found; `networkx.pagerank`."""
    if len(G) == 0:
        return {}
    with _quiet():
        result = featgraph_pagerank(
            G.topology,
            alpha=alpha,
            personalization=_distribution(G, "personalization", personalization),
            dangling=_distribution(G, "dangling", dangling),
            weights=_weights(G, weight),
            nstart=_distribution(G, "nstart", nstart),
            tol=tol,
            max_supersteps=max_iter,
            dtype=np.float64,
        )
    if not result.converged:
        raise nx.PowerIterationFailedConvergence(max_iter)
    return G.by_node(result.ranks)

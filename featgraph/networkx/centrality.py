"""Link analysis, centrality and clustering, with the results of NetworkX.

Iterations run in float64, with NetworkX's stopping rules. For clustering, a kernel
counts triangles. Coefficients are quotients of integers, computed here: they are the
same floats as NetworkX's, and the integer zero where NetworkX returns it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph import algorithms
from featgraph.networkx.graph import NetworkXGraph
from featgraph.networkx.paths import lengths_of

__all__ = [
    "average_clustering",
    "betweenness_centrality",
    "closeness_centrality",
    "clustering",
    "core_number",
    "eigenvector_centrality",
    "katz_centrality",
    "pagerank",
    "transitivity",
    "triangles",
]

Array = npt.NDArray[Any]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress convergence warnings: callers raise NetworkX's error instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        yield


def _weights(graph: NetworkXGraph, attribute: str | None) -> Array | None:
    """Return finite, nonnegative weights in float64; None if all are one.

    Raises NotImplementedError for others: NetworkX then runs its own function.
    """
    weights = graph.weights_of(attribute)
    return None if weights is None else weights.finite(attribute)


def _distribution(
    graph: NetworkXGraph, name: str, values: dict[Any, Any] | None
) -> Array | None:
    """Return a distribution over nodes as an array; None without one.

    Declines values for which NetworkX's results would differ.
    """
    if values is None:
        return None
    column = graph.column(values)
    if not (np.isfinite(column) & (column >= 0)).all():
        raise NotImplementedError(f"{name} with values that are infinite or < 0")
    if name == "personalization" and column.sum() == 0:
        raise ZeroDivisionError
    if column.sum() == 0:
        raise NotImplementedError(f"{name} that is zero everywhere")
    return column


def pagerank(
    G: NetworkXGraph,
    *,
    alpha: float = 0.85,
    personalization: dict[Any, Any] | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: dict[Any, Any] | None = None,
    weight: str | None = "weight",
    dangling: dict[Any, Any] | None = None,
) -> dict[Any, float]:
    """Rank nodes by the visits of a random surfer; `networkx.pagerank`."""
    if len(G) == 0:
        return {}
    with _quiet():
        result = algorithms.pagerank(
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


def katz_centrality(
    G: NetworkXGraph,
    *,
    alpha: float = 0.1,
    beta: Any = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-6,
    nstart: dict[Any, float] | None = None,
    normalized: bool = True,
    weight: str | None = None,
) -> dict[Any, float]:
    """Count walks, weighted by their length; `networkx.katz_centrality`."""
    if len(G) == 0:
        return {}
    if isinstance(beta, Mapping):
        if set(beta) != set(G):
            raise nx.NetworkXError("beta dictionary must have a value for every node")
        beta = G.column(beta)
    if not np.isfinite(beta).all():
        raise NotImplementedError("beta that is infinite or nan")
    unit = float(np.abs(beta).max()) or 1.0  # NetworkX's `tol` is absolute
    try:
        with _quiet():
            result = algorithms.katz_centrality(
                G.topology,
                alpha=alpha,
                beta=beta,
                weights=_weights(G, weight),
                tol=tol / unit,
                normalized=normalized,
                max_supersteps=max_iter,
            )
    except fg.DivergenceError as error:
        raise nx.PowerIterationFailedConvergence(max_iter) from error
    if not result.converged:
        raise nx.PowerIterationFailedConvergence(max_iter)
    return G.by_node(result.centralities)


def eigenvector_centrality(
    G: NetworkXGraph,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: dict[Any, float] | None = None,
    weight: str | None = None,
) -> dict[Any, float]:
    """Find the first eigenvector; `networkx.eigenvector_centrality`."""
    if len(G) == 0:
        raise nx.NetworkXPointlessConcept(
            "cannot compute centrality for the null graph"
        )
    if nstart is not None:
        if all(value == 0 for value in nstart.values()):
            raise nx.NetworkXError("initial vector cannot have all zero values")
        if set(nstart) != set(G):
            raise NotImplementedError("nstart that is not one value for every node")
    with _quiet():
        result = algorithms.eigenvector_centrality(
            G.topology,
            weights=_weights(G, weight or None),
            nstart=_distribution(G, "nstart", nstart),
            shift=1.0,
            tol=tol,
            max_supersteps=max_iter,
        )
    if not result.converged:
        raise nx.PowerIterationFailedConvergence(max_iter)
    found = G.by_node(result.centralities)
    # NetworkX returns nodes in the order of `nstart`.
    return found if nstart is None else {node: found[node] for node in nstart}


def core_number(G: NetworkXGraph) -> dict[Any, int]:
    """Find the innermost core of every node; `networkx.core_number`."""
    if (G.sources == G.targets).any():
        raise nx.NetworkXNotImplemented(
            "Input graph has self loops which is not permitted; "
            "Consider using G.remove_edges_from(nx.selfloop_edges(G))."
        )
    if len(G) == 0:
        return {}
    return G.by_node(algorithms.k_core(G.topology).core_numbers)


def betweenness_centrality(
    G: NetworkXGraph,
    k: int | None = None,
    normalized: bool = True,
    weight: str | None = None,
    endpoints: bool = False,
    seed: Any = None,
) -> dict[Any, float]:
    """Count shortest paths through nodes; `networkx.betweenness_centrality`."""
    sources = None
    if k is not None and k != len(G):
        # The same sample as NetworkX's, from the same state of the generator.
        drawn = nx.utils.create_py_random_state(seed).sample(G.nodes, k)
        sources = np.array([G.index[node] for node in drawn], np.int64)
    if len(G) == 0:
        return {}
    lengths = lengths_of(G, weight)
    if lengths is not None and not (lengths > 0).all():
        raise NotImplementedError(f"values of {weight!r} that are zero")
    try:
        result = algorithms.betweenness_centrality(
            G.topology,
            sources=sources,
            weights=lengths,
            normalized=normalized,
            endpoints=endpoints,
        )
    except fg.DivergenceError as error:
        raise NotImplementedError("more paths than float64 can count") from error
    return G.by_node(result.centralities)


def closeness_centrality(
    G: NetworkXGraph,
    u: Any = None,
    distance: str | None = None,
    wf_improved: bool = True,
) -> Any:
    """Compute closeness; `networkx.closeness_centrality`."""
    if u is not None and u not in G:
        what = (
            "Source {} is not in G"
            if distance is None
            else "Node {} not found in graph"
        )
        raise nx.NodeNotFound(what.format(u))
    if len(G) == 0:
        return {}
    result = algorithms.closeness_centrality(
        G.topology,
        None if u is None else [G.index[u]],
        weights=lengths_of(G, distance),
        wf_improved=wf_improved,
    )
    found = result.centralities
    return G.by_node(found) if u is None else float(found[0])


# -- triangles and clustering


def _counts(graph: NetworkXGraph) -> tuple[Array, Array]:
    """Return the triangles of each node, (V,), and its ordered pairs of neighbors."""
    is_loop = graph.sources == graph.targets
    ends = np.concatenate([graph.sources[~is_loop], graph.targets[~is_loop]])
    degrees = np.bincount(ends, minlength=len(graph))
    return algorithms.triangle_count(graph.topology).triangles, degrees * (degrees - 1)


def triangles(G: NetworkXGraph, nodes: Any = None) -> dict[Hashable, int]:
    """Count the triangles at each node; `networkx.triangles`."""
    return G.by_node(_counts(G)[0]) if len(G) else {}


def clustering(
    G: NetworkXGraph, nodes: Any = None, weight: Any = None
) -> dict[Hashable, Any]:
    """Divide triangles by pairs of neighbors; `networkx.clustering`."""
    if len(G) == 0:
        return {}
    found, pairs = _counts(G)
    quotients = np.divide(2 * found, pairs, out=np.zeros(len(G)), where=found > 0)
    coefficients = [value or 0 for value in quotients.tolist()]  # the integer zero
    return dict(zip(G.nodes, coefficients, strict=True))


def average_clustering(
    G: NetworkXGraph, nodes: Any = None, weight: Any = None, count_zeros: bool = True
) -> float:
    """Take the mean of coefficients; `networkx.average_clustering`."""
    coefficients = list(clustering(G).values())
    if not count_zeros:
        coefficients = [value for value in coefficients if value > 0]
    return float(sum(coefficients) / len(coefficients))


def transitivity(G: NetworkXGraph) -> float:
    """Divide all triangles by all pairs; `networkx.transitivity`."""
    if len(G) == 0:
        return 0
    found, pairs = _counts(G)
    count = 2 * int(found.sum())
    return 0 if count == 0 else count / int(pairs.sum())

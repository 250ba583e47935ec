"""Triangles, and what they say of clustering; exact, as NetworkX's quotients of counts.

A kernel counts triangles. Coefficients are divided here, so that they are the same
floats, and the integer zero where NetworkX gives that.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.algorithms.triangle_count import triangle_count
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["average_clustering", "clustering", "transitivity", "triangles"]

Array = npt.NDArray[Any]


def _counts(graph: NetworkXGraph) -> tuple[Array, Array]:
    """Return (V,) triangles, and (V,) pairs of neighbors, ordered ones."""
    is_loop = graph.sources == graph.targets
    ends = np.concatenate([graph.sources[~is_loop], graph.targets[~is_loop]])
    degrees = np.bincount(ends, minlength=len(graph))
    return triangle_count(graph.topology).triangles, degrees * (degrees - 1)


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

"""Statistics of a graph's degrees for plans, computed on the host or on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.cuda import dialect
from featgraph.graph.views.structure import (
    Structure,
    gpu_edges,
    is_built_on_gpu,
    is_given_on_gpu,
)

__all__ = ["SHORT", "most_edges", "short_counts"]

#: Number of degrees that `short_counts` counts: 0 to 63, as the kernel on the GPU does.
SHORT = 64


def most_edges(
    graph: Structure, side: str, target: str, below: int | None = None
) -> int:
    """Return the highest degree.

    Parameters
    ----------
    graph : Graph
    side : {"in", "out"}
    target : {"cpu", "cuda"}
        The target of the plan: a GPU that builds the rows computes the statistics, too.
    below : int, optional
        Only vertices with fewer edges are considered.
    """
    if _are_on_gpu(graph, target):
        return gpu_edges(graph).most_edges(side, *(() if below is None else (below,)))
    degrees = _on_host(graph, side)
    if below is not None:
        degrees = degrees[degrees < below]
    return int(degrees.max(initial=0))


def short_counts(graph: Structure, side: str, target: str) -> NDArray[np.int64]:
    """Count the vertices with 0, 1, ... `SHORT` - 1 edges; see `most_edges`."""
    if _are_on_gpu(graph, target):
        return gpu_edges(graph).short_counts(side).astype(np.int64)
    degrees = _on_host(graph, side)
    return np.bincount(np.minimum(degrees, SHORT), minlength=SHORT)[:SHORT]


def _are_on_gpu(graph: Structure, target: str) -> bool:
    """Whether the degrees are counted on the GPU."""
    if is_given_on_gpu(graph):
        return True
    # A plan for a GPU can be made on a machine without a GPU.
    return target == "cuda" and is_built_on_gpu(graph) and dialect.is_available()


def _on_host(graph: Structure, side: str) -> NDArray[Any]:
    return graph.in_degree if side == "in" else graph.out_degree

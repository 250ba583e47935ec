"""The program that the superstep benches run, its data, and its answer in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

import featgraph as fg
from bench.graphs import make_graph

ALPHA, EPSILON = 0.85, 1e-4
#: Bound on the norm of the difference over the norm, float32 against float64.
LIMIT = 1e-5
#: Relative to EPSILON: so near to it, rounding decides whether a vertex commits.
MARGIN = 1e-2


@fg.gather(into="aggr", combine="sum")
def labels_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Class f of the source, weighted by the edge."""
    return d.weight[e] * d.label[u, f]


@fg.vertex
def relax(f, v, d):  # type: ignore[no-untyped-def]
    """Move towards the mean of the sources; commit a move of over epsilon."""
    if d.clamped[v]:
        return False
    p = d.alpha * fg.normalize(d.aggr[v, f]) + (1 - d.alpha) * d.label[v, f]
    p = fg.normalize(p)
    d.label_next[v, f] = p
    return fg.any_feature(abs(p - d.label[v, f]) > d.epsilon)


step = fg.foldmap(labels_of_neighbors, relax)


class Problem:
    """Label propagation on a graph, no vertex clamped, from random distributions.

    Parameters
    ----------
    graph : Graph
    k : int
        Classes.
    seed : int
        Of the weights and the distributions.
    """

    def __init__(self, graph: fg.Graph, k: int, seed: int = 1) -> None:
        self.graph, self.k = graph, k
        rng = np.random.default_rng(seed)
        weights = rng.random(graph.given_edge_count, np.float32) + np.float32(0.5)
        labels = rng.random((graph.vertex_count, k), np.float32) + np.float32(0.01)
        labels /= labels.sum(axis=1, keepdims=True)
        self.initial = labels
        self.state = fg.State(
            graph,
            label=fg.vertex_property(labels, iterated=True),
            clamped=fg.vertex_property(np.zeros(graph.vertex_count, np.bool_)),
            weight=fg.edge_property(weights),
            alpha=ALPHA,
            epsilon=EPSILON,
        )
        #: In the order of the CSC's slots, as kernels read them.
        self.weights = self.state.stored("weight")

    def reset(self) -> None:
        """Go back to the initial distributions."""
        self.state["label"] = self.initial
        self.state["epsilon"] = EPSILON

    def reset_dense(self) -> None:
        """Go back, with an epsilon below any change: every superstep commits all.

        Otherwise most vertices settle within ten supersteps, and the last of a batch
        would not do the work of the first.
        """
        self.reset()
        self.state["epsilon"] = -1.0

    @cached_property
    def matrix(self) -> Any:
        """The CSC as a SciPy matrix, row v its in-edges; repeated edges stay apart."""
        return in_matrix(self.graph, self.weights)

    @cached_property
    def aggregate(self) -> Any:
        """The gather's result in float64."""
        return self.matrix.astype(np.float64) @ self.initial.astype(np.float64)

    @cached_property
    def expected(self) -> tuple[Any, Any]:
        """The labels that a superstep proposes, and the change of each vertex."""
        return proposed(self.aggregate, self.initial)

    def check_aggregate(self, actual: Any) -> dict[str, Any]:
        """Compare with the gather alone."""
        return compared(actual, self.aggregate)

    def check(self, labels: Any, committed: Any) -> dict[str, Any]:
        """Compare labels and the mask of committed vertices with one superstep.

        Vertices whose change is so near to epsilon that rounding decides may do either.
        """
        moved, change = self.expected
        passes = change > EPSILON
        undecided = np.abs(change - EPSILON) <= MARGIN * EPSILON
        wrong = int(np.count_nonzero((committed != passes) & ~undecided))
        expected = np.where(committed[:, None], moved, self.initial)
        checks = compared(labels, expected)
        return {
            "ok": checks["ok"] and wrong == 0,
            "error": checks["error"],
            "wrong_commits": wrong,
            "undecided": int(undecided.sum()),
            "committed": int(np.count_nonzero(committed)),
        }

    def compulsory_bytes(self, *, aggregate_only: bool = False) -> int:
        """Return the bytes of a superstep: each input read, each result written once.

        A product alone (`aggregate_only`) neither reads `clamped` nor writes the set of
        those that passed.
        """
        count, edges = self.graph.vertex_count, self.graph.edge_count
        offset = self.graph.in_edges.row_offsets.itemsize
        moved = offset * (count + 1) + (4 + 4) * edges + 2 * 4 * self.k * count
        return moved if aggregate_only else moved + count + count // 8

    def gathered_bytes(self) -> int:
        """Return the bytes if no source's row were ever found in a cache."""
        return self.compulsory_bytes() + 4 * self.k * (
            self.graph.edge_count - self.graph.vertex_count
        )


def problems(arguments: Any) -> Iterator[tuple[Problem, dict[str, Any]]]:
    """Yield the problem of each graph and K, with the fields of its lines."""
    for name in arguments.graph:
        named = make_graph(name)
        for k in arguments.k:
            yield Problem(named.graph, k), {"k": k, "graph": named.describe()}


def in_matrix(graph: fg.Graph, values: Any) -> Any:
    """Return the CSC with values as a SciPy matrix, row v its in-edges."""
    ins, count = graph.in_edges, graph.vertex_count
    parts = (values, ins.column_indices, ins.row_offsets)
    return scipy.sparse.csr_array(parts, shape=(count, count))


def normalized(rows: Any) -> Any:
    """Divide rows by their sums, where these are not zero."""
    sums = rows.sum(axis=1, keepdims=True)
    return rows / np.where(sums == 0, 1, sums)


def proposed(aggregate: Any, labels: Any) -> tuple[Any, Any]:
    """Return the labels that a superstep proposes, and the change of each vertex."""
    moved = ALPHA * normalized(aggregate) + (1 - ALPHA) * labels
    moved = normalized(moved)
    return moved, np.abs(moved - labels).max(axis=1)


def compared(actual: Any, expected: Any) -> dict[str, Any]:
    """Return whether values are within `LIMIT` of those in float64, and the error."""
    if actual.shape != expected.shape:
        return {"ok": False, "error": float("inf")}
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    error = float(error) if np.isfinite(error) else float("inf")
    return {"ok": error <= LIMIT, "error": error}

"""The learning algorithms in SciPy and NumPy, a sweep of everything a superstep.

Each takes a `bench.learning.problems.LearningProblem` and iterates in float32 until no
vertex moves by more than its epsilon: the rule that featgraph stops by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from bench.learning.problems import ALPHA, LearningProblem
from bench.programs import in_matrix


def _commit(new: Any, old: Any, epsilon: float) -> tuple[Any, bool]:
    moved = (np.abs(new - old) > epsilon).any(axis=1)
    return np.where(moved[:, None], new, old), bool(moved.any())


def _settle(step: Callable[[Any], Any], values: Any, epsilon: float) -> Any:
    """Return the values after which a superstep moves no vertex by over epsilon."""
    goes_on = True
    while goes_on:
        values, goes_on = _commit(step(values), values, epsilon)
    return values


def ranking(problem: LearningProblem) -> Callable[[], Any]:
    """MMR: a sparse product for each manifold."""
    query, weight = problem.initial["score"], problem.state.stored("weight")
    columns = [np.ascontiguousarray(column) for column in weight.T]
    matrices = [in_matrix(problem.graph, column) for column in columns]
    mass = np.stack([m.sum(axis=1) for m in matrices], axis=1)
    factor = np.float32(ALPHA) / np.where(mass == 0, 1, mass)
    given = np.float32(1 - ALPHA) * query

    def step(rank: Any) -> Any:
        columns = [m @ rank[:, f] for f, m in enumerate(matrices)]
        return factor * np.stack(columns, axis=1) + given

    return lambda: _settle(step, query, problem.epsilon)


def modes(problem: LearningProblem) -> Callable[[], Any]:
    """MML: a sparse product with the fused weights."""
    mode, weights = problem.initial["mmode"], problem.state.stored("fused")
    matrix = in_matrix(problem.graph, weights)
    given = np.float32(1 - ALPHA) * mode
    return lambda: _settle(lambda m: matrix @ m + given, mode, problem.epsilon)


def beliefs(problem: LearningProblem) -> Callable[[], Any]:
    """BP: all messages as one array, summed by a sparse product with ones."""
    graph, ins = problem.graph, problem.graph.in_edges
    ones, slots = np.ones(graph.edge_count, np.float32), np.arange(graph.edge_count)
    shape = graph.vertex_count, graph.edge_count
    total = scipy.sparse.csr_array((ones, slots, ins.row_offsets), shape=shape)
    sources, twins, psi = ins.column_indices, graph.twins, problem.state.stored("psi")
    phi = problem.state.stored("phi")

    def run() -> Any:
        msg = problem.initial["msg"]

        def step(belief: Any) -> Any:
            nonlocal msg
            cavity = belief[sources] - msg[twins]
            cavity -= cavity.max(axis=1, keepdims=True)
            new = np.log(np.exp(cavity, out=cavity) @ psi.T)
            new -= new.max(axis=1, keepdims=True)
            msg, _ = _commit(new, msg, problem.epsilon)
            return phi + total @ msg

        return _settle(step, problem.initial["belief"], problem.epsilon)

    return run


#: Algorithm -> function of a problem that returns the call.
PEERS = {"MMR": ranking, "MML": modes, "BP": beliefs}


def power_iteration(
    graph: Any, alpha: float, tol: float, dtype: Any = np.float64
) -> Any:
    """Return PageRank by products with a CSR matrix.

    It ends where rounding keeps the change from falling, too.
    """
    count, dangling = graph.vertex_count, graph.out_degree == 0
    share = (1 / np.maximum(graph.out_degree, 1)).astype(dtype)
    matrix = in_matrix(graph, share[graph.in_edges.column_indices])
    rank, before = np.full(count, 1 / count, dtype), np.inf
    while True:
        new = alpha * (matrix @ rank + rank[dangling].sum() / count)
        new += (1 - alpha) / count
        apart = np.abs(new - rank).sum()
        if apart < count * tol or apart >= before:
            return new
        rank, before = new, apart

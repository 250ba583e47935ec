"""The learning algorithms in SciPy and NumPy, a sweep of everything a superstep.

Each takes a `bench.learning.problems.LearningProblem` and iterates in float32 until no
vertex moves by more than its epsilon: the rule that featgraph stops by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from bench.learning.problems import ALPHA, LearningProblem

__all__ = ["PEERS", "power_iteration"]


def _matrix(problem: LearningProblem, values: Any) -> Any:
    """Return the in-edges as a matrix with these values, row v its in-edges."""
    ins, count = problem.graph.in_edges, problem.graph.vertex_count
    parts = (values, ins.column_indices, ins.row_offsets)
    return scipy.sparse.csr_array(parts, shape=(count, count))


def _commit(new: Any, old: Any, epsilon: float) -> tuple[Any, bool]:
    moved = (np.abs(new - old) > epsilon).any(axis=1)
    return np.where(moved[:, None], new, old), bool(moved.any())


class Ranking:
    """MMR: a sparse product for each manifold."""

    def __init__(self, problem: LearningProblem) -> None:
        self.problem = problem
        self.query = problem.initial["score"]
        weight = problem.state.stored("weight")
        columns = [np.ascontiguousarray(column) for column in weight.T]
        self.matrices = [_matrix(problem, column) for column in columns]
        mass = np.stack([m.sum(axis=1) for m in self.matrices], axis=1)
        self.factor = np.float32(ALPHA) / np.where(mass == 0, 1, mass)

    def __call__(self) -> Any:
        """Return the ranks."""
        rank, goes_on = self.query, True
        given = np.float32(1 - ALPHA) * self.query
        while goes_on:
            columns = [m @ rank[:, f] for f, m in enumerate(self.matrices)]
            new = self.factor * np.stack(columns, axis=1) + given
            rank, goes_on = _commit(new, rank, self.problem.epsilon)
        return rank


class Modes:
    """MML: a sparse product with the fused weights."""

    def __init__(self, problem: LearningProblem) -> None:
        self.problem = problem
        self.given = problem.initial["mmode"]
        self.matrix = _matrix(problem, problem.state.stored("fused"))

    def __call__(self) -> Any:
        """Return the modes."""
        mode, goes_on = self.given, True
        given = np.float32(1 - ALPHA) * self.given
        while goes_on:
            new = self.matrix @ mode + given
            mode, goes_on = _commit(new, mode, self.problem.epsilon)
        return mode


class Beliefs:
    """BP: all messages as one array, summed by a sparse product with ones."""

    def __init__(self, problem: LearningProblem) -> None:
        self.problem = problem
        self.sum = scipy.sparse.csr_array(
            (
                np.ones(problem.graph.edge_count, np.float32),
                np.arange(problem.graph.edge_count, dtype=np.int32),
                problem.graph.in_edges.row_offsets,
            ),
            shape=(problem.graph.vertex_count, problem.graph.edge_count),
        )

    def __call__(self) -> Any:
        """Return the beliefs."""
        problem = self.problem
        sources = problem.graph.in_edges.column_indices
        twins, psi = problem.graph.twins, problem.state.stored("psi")
        phi, belief = problem.state.stored("phi"), problem.initial["belief"]
        msg, goes_on = problem.initial["msg"], True
        while goes_on:
            cavity = belief[sources] - msg[twins]
            cavity -= cavity.max(axis=1, keepdims=True)
            new = np.log(np.exp(cavity, out=cavity) @ psi.T)
            new -= new.max(axis=1, keepdims=True)
            msg, _ = _commit(new, msg, problem.epsilon)
            belief, goes_on = _commit(phi + self.sum @ msg, belief, problem.epsilon)
        return belief


#: Algorithm -> class.
PEERS: dict[str, Any] = {"MMR": Ranking, "MML": Modes, "BP": Beliefs}


def power_iteration(
    graph: Any, alpha: float, tol: float, dtype: Any = np.float64
) -> Any:
    """Return PageRank by products with a CSR matrix.

    It ends where rounding keeps the change from falling, too.
    """
    ins, count = graph.in_edges, graph.vertex_count
    share = (1 / np.maximum(graph.out_degree, 1)).astype(dtype)
    dangling = graph.out_degree == 0
    parts = (share[ins.column_indices], ins.column_indices, ins.row_offsets)
    matrix = scipy.sparse.csr_array(parts, shape=(count, count))
    rank, before = np.full(count, 1 / count, dtype), np.inf
    while True:
        new = alpha * (matrix @ rank + rank[dangling].sum() / count)
        new += (1 - alpha) / count
        apart = np.abs(new - rank).sum()
        if apart < count * tol or apart >= before:
            return new
        rank, before = new, apart

"""Sparse matrix times dense: the gather alone, as other libraries do it.

Each class takes a `bench.programs.Problem`; calling the object computes the product and
`result()` brings it to the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.programs import ALPHA, EPSILON, Problem


class ScipyProduct:
    """``csr_array @ dense``; SciPy uses one thread."""

    def __init__(self, problem: Problem) -> None:
        self.matrix, self.labels = problem.matrix, problem.initial
        self.product: Any = None

    def __call__(self) -> None:
        """Multiply."""
        self.product = self.matrix @ self.labels

    def result(self) -> Any:
        """Return the product on the host."""
        return self.product


def _normalize(rows: Any) -> Any:
    """Divide rows by their sums in place, where these are not zero."""
    mass = rows.sum(axis=1, keepdims=True)
    mass[mass == 0] = 1
    rows /= mass
    return rows


class ScipySuperstep(ScipyProduct):
    """The whole superstep in SciPy and NumPy."""

    def __call__(self) -> None:
        """Run a superstep."""
        labels = self.labels
        total = _normalize(self.matrix @ labels)
        total *= np.float32(ALPHA)
        total += np.float32(1 - ALPHA) * labels
        total = _normalize(total)
        self.committed = (np.abs(total - labels) > EPSILON).any(axis=1)
        self.product = np.where(self.committed[:, None], total, labels)


class TorchProduct(ScipyProduct):
    """``torch.sparse_csr_tensor @ dense`` on the GPU: cuSPARSE."""

    def __init__(self, problem: Problem, index_bits: int) -> None:
        import torch

        ins, count = problem.graph.in_edges, problem.graph.vertex_count
        dtype = torch.int32 if index_bits == 32 else torch.int64

        def on_device(array: Any, dtype: Any) -> Any:
            return torch.from_numpy(np.array(array)).to("cuda", dtype)

        self.matrix = torch.sparse_csr_tensor(
            on_device(ins.row_offsets, dtype),
            on_device(ins.column_indices, dtype),
            on_device(problem.weights, torch.float32),
            size=(count, count),
        )
        self.labels = on_device(problem.initial, torch.float32)

    def result(self) -> Any:
        """Return the product on the host."""
        return self.product.cpu().numpy()


class CupyProduct(ScipyProduct):
    """``cupyx.scipy.sparse.csr_matrix @ dense``; CuPy copies dense to F order."""

    def __init__(self, problem: Problem) -> None:
        import cupy
        from cupyx.scipy import sparse

        ins, count = problem.graph.in_edges, problem.graph.vertex_count
        parts = (problem.weights, ins.column_indices, ins.row_offsets)
        arrays = tuple(cupy.asarray(part) for part in parts)
        self.matrix = sparse.csr_matrix(arrays, shape=(count, count))
        # Said, or CuPy sums repeats and sorts within the first product.
        self.matrix.has_canonical_format = True
        self.labels = cupy.asarray(problem.initial)
        self.product: Any = None

    def __call__(self) -> None:
        """Multiply."""
        self.product = self.matrix @ self.labels

    def result(self) -> Any:
        """Return the product on the host."""
        return self.product.get()

"""Exact marginals from all joint states: the oracle of belief propagation."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def joint_of(
    shape: Sequence[int], factors: Sequence[tuple[Sequence[int], Array]]
) -> Array:
    """Return the product of tables over all joint states, an axis for each variable."""
    joint = np.ones(tuple(shape))
    letters = string.ascii_letters[: joint.ndim]
    for scope, table in factors:
        axes = "".join(letters[v] for v in scope)
        joint = np.einsum(f"{letters},{axes}->{letters}", joint, table)
        joint /= joint.max() or 1.0
    return joint


def marginals_of(joint: Array, mode: str = "sum-product") -> list[Array]:
    """Return marginals, or max-marginals scaled to sum to one, of each variable."""
    reduce = np.sum if mode == "sum-product" else np.max
    found = []
    for axis in range(joint.ndim):
        rest = tuple(a for a in range(joint.ndim) if a != axis)
        row = np.asarray(reduce(joint, axis=rest))
        found.append(row / row.sum())
    return found


def pairwise_joint(graph: Any, unary: Array, pairwise: Array) -> Array:
    """Return the joint of a pairwise model; a self-loop reads its diagonal."""
    count, k = unary.shape
    tables = np.broadcast_to(pairwise, (graph.given_edge_count, k, k))
    factors: list[tuple[Sequence[int], Array]] = [
        ((v,), unary[v]) for v in range(count)
    ]
    for u, v, table in zip(graph.sources, graph.targets, tables, strict=True):
        same = int(u) == int(v)
        factors.append(((u,), np.diag(table)) if same else ((u, v), table))
    return joint_of((k,) * count, factors)

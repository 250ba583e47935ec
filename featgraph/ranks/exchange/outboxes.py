"""Atomic operations at vertices of other ranks, by way of outboxes.

A rank has an outbox for each property and operation: a row for every vertex of the
graph, initialized to the identity. Kernels combine into it as if it were the property.
After the phase, rows with other values are sent to the owners, and combined there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.ranks.exchange.members import packed
from featgraph.ranks.exchange.row_forms import SendList, choose
from featgraph.ranks.exchange.row_messages import decode, encode, row_bytes

__all__ = ["combine_rows", "identity", "in_outbox"]

Rows = npt.NDArray[Any]
#: Operation -> ufunc. Minimum and maximum ignore NaN, as atomics of the CPU do.
_COMBINES: dict[str, np.ufunc] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def identity(operation: str, dtype: np.dtype[Any]) -> Any:
    """Return the identity of an operation; for sums -0.0, since -0.0 + 0.0 is 0.0."""
    if dtype.kind == "f":
        return dtype.type({"add": -0.0, "min": np.inf, "max": -np.inf}[operation])
    limits = np.iinfo(dtype)
    return dtype.type({"add": 0, "min": limits.max, "max": limits.min}[operation])


def in_outbox(rows: Rows, operation: str) -> npt.NDArray[np.uint8]:
    """Return the message to an owner with the rows that differ from the identity."""
    nothing = identity(operation, rows.dtype)
    changed = (rows != nothing).any(axis=tuple(range(1, rows.ndim)))
    link = _whole_range(len(rows))
    chosen = choose(link, packed(changed), row_bytes([rows]))
    return encode(link, chosen, [np.ascontiguousarray(rows)])


def combine_rows(
    message: npt.NDArray[np.uint8], own: Rows, operation: str
) -> npt.NDArray[np.int32]:
    """Combine received rows into the owner's; return the indices of these rows."""
    arrived = decode(_whole_range(len(own)), message, [own])
    positions = arrived.positions
    own[positions] = _COMBINES[operation](own[positions], arrived.rows[0])
    return positions


def _whole_range(count: int) -> SendList:
    return SendList(np.arange(count, dtype=np.int32), count)

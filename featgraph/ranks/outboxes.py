"""Atomic operations at vertices of other ranks: combined here first, then there.

A rank has an outbox for each property and operation: a row for every vertex of the
graph, which changes nothing at first. Kernels combine into it as if it were the
property. Behind the phase, owners get the rows in which there is anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.rows.forms import SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes
from featgraph.ranks.members import packed

__all__ = ["combine_rows", "identity", "in_outbox"]

Rows = npt.NDArray[Any]
#: What an operation does with two arrays; a value that is NaN changes nothing, as in
#: the atomics of the CPU.
_COMBINES: dict[str, np.ufunc] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def identity(operation: str, dtype: np.dtype[Any]) -> Any:
    """Return the value that changes nothing; -0.0 is one for sums, and 0.0 is none."""
    if dtype.kind == "f":
        return dtype.type({"add": -0.0, "min": np.inf, "max": -np.inf}[operation])
    limits = np.iinfo(dtype)
    return dtype.type({"add": 0, "min": limits.max, "max": limits.min}[operation])


def in_outbox(rows: Rows, operation: str) -> npt.NDArray[np.uint8]:
    """Return the message to an owner with the rows of its vertices that have any."""
    nothing = identity(operation, rows.dtype)
    changed = (rows != nothing).any(axis=tuple(range(1, rows.ndim)))
    link = _whole_range(len(rows))
    chosen = choose(link, packed(changed), row_bytes([rows]))
    return encode(link, chosen, [np.ascontiguousarray(rows)])


def combine_rows(
    message: npt.NDArray[np.uint8], own: Rows, operation: str
) -> npt.NDArray[np.int32]:
    """Combine what a rank has sent into the owner's rows; return which of them."""
    arrived = decode(_whole_range(len(own)), message, [own])
    positions = arrived.positions
    own[positions] = _COMBINES[operation](own[positions], arrived.rows[0])
    return positions


def _whole_range(count: int) -> SendList:
    return SendList(np.arange(count, dtype=np.int32), count)

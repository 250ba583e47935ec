"""How far apart the rows of a property stand on the GPU: at whole loads of a lane."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["MULTIPLES", "row_stride", "stored_shape"]

#: Features that a row of three or more is padded to a multiple of, the first that makes
#: it no more than 1.6 times as long. Benches set others, before anything is prepared.
MULTIPLES = (4,)
#: Bytes of the elements that kernels load several of.
_LOADED = frozenset({4, 8})


def row_stride(width: int) -> int:
    """Return the elements from a row of K features to the next: K, or a few more.

    That is at most K + 7, and 1.6 K from K = 5 on.
    """
    for multiple in MULTIPLES if width > 2 else ():
        stride = -(-width // multiple) * multiple
        if 5 * stride <= 8 * width or stride <= 4:
            return stride
    return width


def stored_shape(shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
    """Return the shape of the array that has a property's values on the GPU.

    Parameters
    ----------
    shape : tuple of int
        ``(N,)``, ``(N, K)`` or ``(N, K, K)``, of N vertices or edges.
    dtype : dtype
        The storage type.

    Returns
    -------
    tuple of int
        With padded rows, where there are rows that kernels load in pieces.
    """
    if len(shape) != 2:
        return shape
    return shape[0], _stride(shape[1], dtype, MULTIPLES)


@lru_cache(1 << 10)
def _stride(width: int, dtype: Any, multiples: tuple[int, ...]) -> int:
    """Return the elements from a row of K to the next, of some type."""
    return row_stride(width) if np.dtype(dtype).itemsize in _LOADED else width

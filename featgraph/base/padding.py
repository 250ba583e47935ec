"""Strides of property rows on the GPU, padded so that a lane can load whole vectors.

Vector loads of 4 elements need rows that begin at multiples of 4 elements.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["MULTIPLES", "row_stride", "stored_shape"]

#: A row of three or more features is padded to a multiple of the first of these numbers
#: that makes it at most 1.6 times as long. Benchmarks set other numbers, before any
#: graph or State is on the GPU.
MULTIPLES = (4,)
#: Element sizes in bytes for which kernels use vector loads.
_LOADED = frozenset({4, 8})


def row_stride(width: int) -> int:
    """Return the stride between rows of K features in elements: K or more.

    The stride is at most K + 7, and at most 1.6 K from K = 5 on.
    """
    for multiple in MULTIPLES if width > 2 else ():
        stride = -(-width // multiple) * multiple
        if 5 * stride <= 8 * width or stride <= 4:
            return stride
    return width


def stored_shape(shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
    """Return the shape of a property's array on the GPU.

    Parameters
    ----------
    shape : tuple of int
        ``(N,)``, ``(N, K)`` or ``(N, K, K)``, of N vertices or edges.
    dtype : dtype
        The storage type.

    Returns
    -------
    tuple of int
        The shape with padded rows, if the dtype allows vector loads.
    """
    if len(shape) != 2:
        return shape
    return shape[0], _stride(shape[1], dtype, MULTIPLES)


@lru_cache(1 << 10)
def _stride(width: int, dtype: Any, multiples: tuple[int, ...]) -> int:
    """Return the stride between rows of K features in elements, for a dtype."""
    return row_stride(width) if np.dtype(dtype).itemsize in _LOADED else width

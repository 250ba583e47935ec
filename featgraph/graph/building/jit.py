"""The decorator of loops on the host: Numba with a disk cache.

Modules that use it, such as `kernels` and `scan`, are imported inside functions only,
so that ``import featgraph`` does not import Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from featgraph.base.interrupts import njit

__all__ = ["jit"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def jit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a host loop for the argument types of its first call; cached on disk.

    The loop releases the GIL.
    """
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Numba raises here if neither the package's folder nor the user's cache is
        # writable. Compile in each process instead.
        compiled = njit(nogil=True)(function)
    return cast("Callable[_P, _R]", compiled)

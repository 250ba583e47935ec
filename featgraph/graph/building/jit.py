"""The compiler switch of this package: Numba, imported when the first kernel needs it.

The modules that hold kernels (`_kernels`, `_scan`) are imported inside functions only,
so that ``import featgraph`` does not pay for Numba's import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from featgraph.base.interrupts import njit

__all__ = ["jit"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def jit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a host loop for the argument types of its first call; kept on disk.

    It lets go of the interpreter.
    """
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written: Numba says
        # so when decorating. Compiling again in each process is better than failing.
        compiled = njit(nogil=True)(function)
    return cast("Callable[_P, _R]", compiled)

"""Numbers as a kernel has them: IEEE arithmetic in float64, integers of 64 bits.

Python's own numbers raise where a kernel goes on with inf or nan, so user functions
get NumPy scalars and a `math` that does not raise. What is stored is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np

from featgraph.program.operations import Collaborative
from featgraph.program.program import Program
from featgraph.program.source import plain_function

__all__ = ["as_number", "freeze", "round_to"]


def as_number(value: Any) -> Any:
    """Return `value` as what user functions compute with: float64, int64 or bool."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return np.int64(_wrapped(int(value), 64))
    return np.float64(value)


def round_to(dtype: str, value: Any) -> Any:
    """Return `value` as stored with `dtype`: floats rounded, integers wrapped."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return kind.type(bool(value))
    if kind.kind == "f":
        return kind.type(value)
    bits = 8 * kind.itemsize
    wrapped = _wrapped(int(value), bits)
    return kind.type(wrapped if kind.kind == "i" else wrapped % 2**bits)


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


_SAME_IN_NUMPY = frozenset(
    {
        "acos",
        "asin",
        "atan",
        "atan2",
        "ceil",
        "cos",
        "cosh",
        "exp",
        "expm1",
        "fabs",
        "floor",
        "hypot",
        "isfinite",
        "isinf",
        "isnan",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
    }
)


class _Math(ModuleType):
    """The `math` module, but inf and nan come out where Python raises."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np if name in _SAME_IN_NUMPY else math, name)


_MATH = _Math("math")


def _as_int(value: Any) -> Any:
    return np.int64(math.trunc(value))


#: What a user function captures (by identity) -> what it gets instead.
_REPLACED: dict[int, Any] = {id(math): _MATH, id(float): np.float64, id(int): _as_int}
_REPLACED |= {id(getattr(math, name)): getattr(np, name) for name in _SAME_IN_NUMPY}


def freeze(program: Program, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the captured values that `program` froze when declared."""
    return _Freezer(program).function(function)


class _Freezer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.done: dict[Any, Any] = {}

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Rebuild one function over a namespace of its own."""
        plain = plain_function(function)
        if not isinstance(plain, FunctionType) or plain not in self.program.captured:
            return function
        if plain not in self.done:
            code, names = plain.__code__, dict(plain.__globals__)
            cells = tuple(CellType() for _ in code.co_freevars)
            rebuilt = FunctionType(
                code, names, plain.__name__, plain.__defaults__, cells
            )
            self.done[plain] = rebuilt  # before its captures: it may call itself
            for name, captured in self.program.captured[plain].items():
                value = self.value(captured)
                names[name] = value
                if name in code.co_freevars:
                    cells[code.co_freevars.index(name)].cell_contents = value
        return self.done[plain]  # type: ignore[no-any-return]

    def value(self, captured: Any) -> Any:
        """Return what a captured value becomes."""
        if id(captured) in _REPLACED:
            return _REPLACED[id(captured)]
        if isinstance(captured, Collaborative):
            return self.function(captured.function)
        if isinstance(captured, ModuleType):
            return _Reached(captured, self)
        if isinstance(plain_function(captured), FunctionType):
            return self.function(captured)
        return captured


class _Reached(ModuleType):
    """A captured module: what user functions reach through it is frozen, too."""

    def __init__(self, module: ModuleType, freezer: _Freezer) -> None:
        super().__init__(module.__name__)
        self._module = module
        self._freezer = freezer

    def __getattr__(self, name: str) -> Any:
        value = self._freezer.value(getattr(self._module, name))
        setattr(self, name, value)
        return value

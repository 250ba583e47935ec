"""Numbers of programs: IEEE arithmetic in float64, integers of 64 bits.

Python's own numbers raise where a kernel continues with inf, nan or 0, and its integers
are unbounded. So user functions get `Real`, `Integer`, and functions of `math` that do
not raise; booleans stay Python's. Stored values are rounded (`round_to`). `freeze`
rebuilds a user function over such numbers, with the values that it has captured.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np

from featgraph.program.operations import Collaborative
from featgraph.program.program import Program
from featgraph.program.source import plain_function

__all__ = ["Integer", "Real", "as_number", "freeze", "round_to"]

_WORD = 64
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def _wrapped(value: int, bits: int = _WORD) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _floor_divide(a: int, b: int) -> int:
    return a // b if b else 0


def _remainder(a: int, b: int) -> int:
    return a % b if b else 0


def _shift_left(a: int, b: int) -> int:
    return a << b if 0 <= b < _WORD else 0


def _shift_right(a: int, b: int) -> int:
    return a >> (b if 0 <= b < _WORD else _WORD - 1)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << _WORD)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


#: Operator -> function of two integers.
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "floordiv": _floor_divide,
    "mod": _remainder,
    "lshift": _shift_left,
    "rshift": _shift_right,
    "pow": _power,
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Integer(int):
    """An integer of 64 bits: two's complement, compared exactly with real numbers."""

    #: NumPy's numbers leave the arithmetic to this class.
    __array_ufunc__ = None
    __hash__ = int.__hash__

    def __truediv__(self, other: Any) -> Any:
        return Real(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / Real(self)

    def __abs__(self) -> Integer:
        return Integer(_wrapped(abs(int(self))))

    def __neg__(self) -> Integer:
        return _Negated(_wrapped(-int(self)))

    def __pos__(self) -> Integer:
        return self

    def __invert__(self) -> Integer:
        return Integer(~int(self))


class _Negated(Integer):
    """The result of ``-b``: a power with such an exponent is a real number (S10)."""


class Real(float):
    """A float64 whose operations give inf and nan where Python's raise."""

    #: As for `Integer`.
    __array_ufunc__ = None
    __hash__ = float.__hash__

    def __neg__(self) -> Real:
        return Real(-float(self))

    def __pos__(self) -> Real:
        return self

    def __abs__(self) -> Real:
        return Real(abs(float(self)))


def _of_real(name: str, reflected: bool) -> Callable[[Real, Any], Any]:
    compute = getattr(operator, name)

    def operate(self: Real, other: Any) -> Any:
        if not isinstance(other, float | int | np.number | np.bool_):
            return NotImplemented
        a, b = np.float64(float(self)), np.float64(float(other))
        return Real(compute(b, a) if reflected else compute(a, b))

    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Real, f"__{_name}__", _of_real(_name, False))
    setattr(Real, f"__r{_name}__", _of_real(_name, True))


def _ordered(name: str) -> Callable[[Real, Any], Any]:
    compare = getattr(operator, name)

    def operate(self: Real, other: Any) -> Any:
        if not isinstance(other, float | int | np.number | np.bool_):
            return NotImplemented
        # Python may negate an integer to compare it; a plain int does not wrap.
        plain = int(other) if isinstance(other, int) else float(other)
        return bool(compare(float(self), plain))

    return operate


for _name in _COMPARISONS:
    setattr(Real, f"__{_name}__", _ordered(_name))


def _forward(name: str) -> Callable[[Any, Any], Any]:
    compute = _OPERATORS[name]
    real = getattr(operator, f"{name}_" if name in {"and", "or"} else name)

    def operate(a: Any, b: Any) -> Any:
        if isinstance(a, float) or isinstance(b, float):
            return real(Real(a), Real(b))
        if not (_is_integer(a) and _is_integer(b)):
            return NotImplemented
        if name == "pow" and isinstance(b, _Negated):
            return Real(a) ** Real(b)
        return Integer(_wrapped(compute(int(a), int(b))))

    return operate


def _reflected(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: forward(other, self)


def _compared(name: str) -> Callable[[Any, Any], Any]:
    compare = getattr(operator, name)

    def operate(self: Integer, other: Any) -> Any:
        if isinstance(other, float):
            return compare(int(self), float(other))  # exact in Python
        if _is_integer(other):
            return compare(int(self), int(other))
        return NotImplemented

    return operate


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer | np.bool_)


for _name in _OPERATORS:
    setattr(Integer, f"__{_name}__", _forward(_name))
    setattr(Integer, f"__r{_name}__", _reflected(_forward(_name)))
for _name in _COMPARISONS:
    setattr(Integer, f"__{_name}__", _compared(_name))


def as_number(value: Any) -> Any:
    """Return `value` as a number of user functions: Real, Integer or bool."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return Integer(_wrapped(int(value)))
    return Real(value)


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


_SAME_IN_NUMPY = (
    "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "exp", "expm1", "fabs",
    "floor", "hypot", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2",
    "pow", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def _of_reals(function: Any) -> Callable[..., Any]:
    """Return a function of `math` that converts its arguments to float64."""

    def compute(*values: Any) -> Any:
        return as_number(function(*(np.float64(float(value)) for value in values)))

    return compute


_FUNCTIONS = {name: _of_reals(getattr(np, name)) for name in _SAME_IN_NUMPY}


class _Math(ModuleType):
    """The `math` module with functions that return inf and nan and do not raise."""

    def __getattr__(self, name: str) -> Any:
        return _FUNCTIONS.get(name) or as_constant(getattr(math, name))


def _as_int(value: Any) -> Integer:
    """Return the integral part as the nearest int64, 0 for NaN."""
    if isinstance(value, float):
        if math.isnan(value):
            return Integer(0)
        if math.isinf(value):
            return Integer(_MOST if value > 0 else _LEAST)
    return Integer(min(max(int(value), _LEAST), _MOST))


def _range(*bounds: Any) -> Iterator[Integer]:
    """Yield the numbers of `range`; none with step 0."""
    plain = [operator.index(bound) for bound in bounds]
    if plain[2:] != [0]:  # where Python raises
        yield from map(Integer, range(*plain))


def as_constant(value: Any) -> Any:
    """Return a captured value or a literal, with numbers as `Real` and `Integer`."""
    if isinstance(value, tuple):
        return tuple(map(as_constant, value))
    if type(value) is int and value < 0:
        return _Negated(_wrapped(value))
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return as_number(value) if is_number else value


#: Id of a captured object -> its replacement.
_REPLACED: dict[int, Any] = {
    id(math): _Math("math"),
    id(float): Real,
    id(int): _as_int,
    id(range): _range,
}
_REPLACED |= {id(getattr(math, name)): f for name, f in _FUNCTIONS.items()}
_REPLACED |= {id(getattr(np, name)): f for name, f in _FUNCTIONS.items()}
_REPLACED |= {id(getattr(np, name)): abs for name in ("abs", "absolute")}
_REPLACED |= {id(np.minimum): min, id(np.maximum): max}
_REPLACED |= {id(kind): Real for kind in (np.float32, np.float64)}
_REPLACED |= {id(kind): _as_int for kind in (np.int32, np.int64)}


def freeze(program: Program, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the captured values frozen in `program`'s declaration."""
    return _Freezer(program).function(function)


class _Freezer:
    """The rebuilt functions of one program: helpers that are shared, or recursive."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.done: dict[Any, Any] = {}

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Rebuild a function over a namespace of its own."""
        plain = plain_function(function)
        if not isinstance(plain, FunctionType) or plain not in self.program.captured:
            return function
        if plain not in self.done:
            written = tuple(map(as_constant, plain.__code__.co_consts))
            code = plain.__code__.replace(co_consts=written)
            names = dict(plain.__globals__)
            cells = tuple(CellType() for _ in code.co_freevars)
            rebuilt = FunctionType(
                code, names, plain.__name__, plain.__defaults__, cells
            )
            self.done[plain] = rebuilt  # before its captures: it may call itself
            names.setdefault("range", _range)
            for name, captured in self.program.captured[plain].items():
                value = self.value(captured)
                names[name] = value
                if name in code.co_freevars:
                    cells[code.co_freevars.index(name)].cell_contents = value
        return self.done[plain]  # type: ignore[no-any-return]

    def value(self, captured: Any) -> Any:
        """Return the replacement of a captured value."""
        if id(captured) in _REPLACED:
            return _REPLACED[id(captured)]
        if isinstance(captured, Collaborative):
            return self.function(captured.function)
        if isinstance(captured, ModuleType):
            return _Reached(captured, self)
        if isinstance(plain_function(captured), FunctionType):
            return self.function(captured)
        return as_constant(captured)


class _Reached(ModuleType):
    """A captured module whose attributes are frozen, too."""

    def __init__(self, module: ModuleType, freezer: _Freezer) -> None:
        super().__init__(module.__name__)
        self._module = module
        self._freezer = freezer

    def __getattr__(self, name: str) -> Any:
        value = self._freezer.value(getattr(self._module, name))
        setattr(self, name, value)
        return value

"""Arithmetic with the rules of Python where Numba differs, for both targets.

`for_target` compiles the functions; `featgraph.device.numbers_cpu` and
`featgraph.device.numbers_cuda` export them. `i`, `a` and `b` are integers, converted to
int64 first; `x` and `y` are real numbers of one type. No function raises: where Python
raises, they return a value (docs/model.md, S10).

====================================================  ================================
``to_int(x)``                                         int64: `x` truncated, clamped to
                                                      the range; 0 for NaN
``add(a, b)`` ``subtract`` ``multiply``               low 64 bits of the result; LLVM
                                                      may assume that Numba's own
                                                      operators do not overflow
``negate(a)``, ``absolute(a)``                        the same
``floor_divide(a, b)``, ``remainder(a, b)``           ``a // b``, ``a % b``; 0 for b = 0
``power(a, b)``                                       ``a ** b``; truncated for b < 0
``shift_left(a, b)``, ``shift_right(a, b)``           ``a << b``, ``a >> b``; all bits
                                                      are lost unless 0 <= b < 64
``is_less_float32(i, x)`` ``.._float64``              bool: ``i < x``, both exact
``is_at_most_float32(i, x)`` ``.._float64``           ``i <= x``
``is_greater_float32(i, x)`` ``.._float64``           ``i > x``
``is_at_least_float32(i, x)`` ``.._float64``          ``i >= x``
``is_equal_float32(i, x)`` ``.._float64``             ``i == x``
``lesser(x, y)``, ``greater(x, y)``                   Python's min and max
``range_stop(start, stop, step)``                     `start` for step 0, else `stop`
``range_step(step)``                                  1 for step 0, else `step`
====================================================  ================================
"""

import numpy as np
from numba import int64, uint64

# 2**63, the first number beyond int64, is exact in both real types, so that comparisons
# need no conversion.
_LIMIT = np.float32(2.0**63)
# The range of int64, and the largest shift that keeps a bit.
_LEAST, _MOST = -0x7FFFFFFF_FFFFFFFF - 1, 0x7FFFFFFF_FFFFFFFF
_LAST_BIT = 63


def for_target(compiled, **reals):
    """Return all functions by name, compiled by a decorator.

    Parameters
    ----------
    compiled : callable
    **reals : type
        The target's float32 and float64.
    """
    found = make(compiled) | make_choices(compiled)
    for suffix, real in reals.items():
        for name, function in make_comparisons(compiled, real).items():
            found[f"{name}_{suffix}"] = function
    return found


def make(compiled):
    """Return the functions of integers, compiled by the decorator `compiled`."""

    @compiled
    def to_int(x):
        if x >= _LIMIT:
            return int64(_MOST)
        if x < -_LIMIT:
            return int64(_LEAST)
        return int64(x) if x == x else int64(0)

    @compiled
    def add(a, b):
        return int64(uint64(int64(a)) + uint64(int64(b)))

    @compiled
    def subtract(a, b):
        return int64(uint64(int64(a)) - uint64(int64(b)))

    @compiled
    def multiply(a, b):
        return int64(uint64(int64(a)) * uint64(int64(b)))

    @compiled
    def negate(a):
        return subtract(0, a)

    @compiled
    def absolute(a):
        value = int64(a)
        return value if value >= 0 else subtract(0, value)

    @compiled
    def floor_divide(a, b):
        dividend, divisor = int64(a), int64(b)
        if divisor == -1:  # Numba returns 0 for the least int64
            return subtract(0, a)
        return int64(dividend // divisor) if divisor != 0 else int64(0)

    @compiled
    def remainder(a, b):
        return int64(int64(a) % int64(b)) if b != 0 else int64(0)

    @compiled
    def power(a, b):
        base, left, result = int64(a), int64(b), int64(1)
        if left < 0:
            is_one = base == 1 or base == -1
            return int64(base if left & 1 != 0 else 1) if is_one else int64(0)
        while left > 0:
            if left & 1 != 0:
                result = multiply(result, base)
            base = multiply(base, base)
            left = int64(left >> 1)
        return result

    @compiled
    def shift_left(a, b):
        inside = b >= 0 and b <= _LAST_BIT
        return int64(int64(a) << int64(b if inside else 0)) if inside else int64(0)

    @compiled
    def shift_right(a, b):
        inside = b >= 0 and b <= _LAST_BIT
        return int64(int64(a) >> int64(b if inside else _LAST_BIT))

    return {name: made for name, made in locals().items() if made is not compiled}


def make_choices(compiled):
    """Return min and max of real numbers, and the bounds of ranges."""

    @compiled
    def lesser(x, y):
        return y if y < x else x

    @compiled
    def greater(x, y):
        return y if y > x else x

    @compiled
    def range_stop(start, stop, step):
        return int64(stop) if step != 0 else int64(start)

    @compiled
    def range_step(step):
        return int64(step) if step != 0 else int64(1)

    return {name: made for name, made in locals().items() if made is not compiled}


def make_comparisons(compiled, real):
    """Return the comparisons of an integer with a `real`, float32 or float64.

    A real number in the range of int64, truncated, converts back exactly.
    """

    @compiled
    def is_less(i, x):
        if not (x >= -_LIMIT and x < _LIMIT):
            return x >= _LIMIT
        number, whole = int64(i), int64(x)
        return number < whole or (number == whole and real(whole) < x)

    @compiled
    def is_at_most(i, x):
        if not (x >= -_LIMIT and x < _LIMIT):
            return x >= _LIMIT
        number, whole = int64(i), int64(x)
        return number < whole or (number == whole and real(whole) <= x)

    @compiled
    def is_greater(i, x):
        if not (x >= -_LIMIT and x < _LIMIT):
            return x < -_LIMIT
        number, whole = int64(i), int64(x)
        return number > whole or (number == whole and real(whole) > x)

    @compiled
    def is_at_least(i, x):
        if not (x >= -_LIMIT and x < _LIMIT):
            return x < -_LIMIT
        number, whole = int64(i), int64(x)
        return number > whole or (number == whole and real(whole) >= x)

    @compiled
    def is_equal(i, x):
        if not (x >= -_LIMIT and x < _LIMIT):
            return False
        whole = int64(x)
        return int64(i) == whole and real(whole) == x

    return {
        name: made for name, made in locals().items() if made not in (compiled, real)
    }

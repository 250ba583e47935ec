"""The changes of `tests.compilers` do not affect the compiler's choices."""

from __future__ import annotations

import operator
from itertools import product
from typing import Any

import pytest
from llvmlite import ir
from numba import njit
from numba.core import errors, types
from numba.core.registry import cpu_target
from numba.extending import lower_builtin, type_callable

KINDS = (
    types.boolean, types.int8, types.uint8, types.int32, types.uint32, types.int64,
    types.uint64, types.float32, types.float64, types.literal(3), types.literal(True),
)  # fmt: skip


@pytest.mark.parametrize("name", ["add", "truediv", "floordiv", "lt", "and_", "pow"])
def test_operators_have_the_signatures_that_the_compiler_finds(name: str) -> None:
    """Whatever operands were typed before."""
    context = cpu_target.typing_context
    context.refresh()
    function = context.resolve_value_type(getattr(operator, name))
    find = type(function).get_call_type
    whole = getattr(find, "__wrapped__", find)

    def found(how: Any, operands: Any) -> str:
        try:
            return str(how(function, context, operands, {}))
        except errors.NumbaError as error:
            return type(error).__name__

    for _ in range(2):
        for operands in product(KINDS, repeat=2):
            assert found(find, operands) == found(whole, operands), operands


def test_implementations_are_found_that_are_registered_later() -> None:
    assert njit(lambda: 2)() == 2  # the registries have been gone through

    def later() -> int:
        raise NotImplementedError

    type_callable(later)(lambda context: lambda: types.int64)
    lower_builtin(later)(
        lambda context, builder, signature, values: context.get_constant(types.int64, 3)
    )
    assert njit(lambda: later())() == 3


def test_sizes_of_types_are_those_that_llvm_finds() -> None:
    context = cpu_target.target_context
    for bits in (32, 64):
        whole = ir.IntType(bits)
        pair = ir.LiteralStructType([whole, ir.IntType(1)])
        for of_type, size in ((whole, 1), (pair, 2), (ir.ArrayType(pair, 3), 6)):
            for _ in range(2):
                assert context.get_abi_sizeof(of_type) == bits // 8 * size


def test_functions_that_python_cannot_call_are_only_linked() -> None:
    """Objects of their environments, such as those that are printed, are found."""

    @njit(no_cpython_wrapper=True)
    def inner(x):  # type: ignore[no-untyped-def]
        print("given", x, "and", (x, 2.5))
        if x < 0:
            raise ValueError("negative", x)
        return x + 1

    outer = njit(lambda x: 2 * inner(x))
    for _ in range(2):
        assert outer(3) == 8
        with pytest.raises(ValueError, match="negative") as found:
            outer(-1)
        assert found.value.args == ("negative", -1)
    libraries = [made.library for f in (inner, outer) for made in f.overloads.values()]
    assert [library.is_only_linked for library in libraries] == [True, False]

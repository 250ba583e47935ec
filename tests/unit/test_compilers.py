"""What `tests.compilers` changes leaves the compiler's choices as they are."""

from __future__ import annotations

import operator
from itertools import product
from typing import Any

import pytest
from numba.core import errors, types
from numba.core.registry import cpu_target

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

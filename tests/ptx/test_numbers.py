"""Python's arithmetic compiles for a GPU, without float64 in float32 kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from tests.reference import test_numbers as numbers
from tests.simt.test_combines import gathered, reduced

GRAPH = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])


def state(**dtypes: str) -> fg.State:
    arrays = {n: fg.vertex_property(np.zeros(3, d)) for n, d in dtypes.items()}
    return fg.State(GRAPH, **arrays, s=3, t=4, left_out=-1)


COMBINES = [(c, "bool") for c in ("sum", "product", "min", "max", "any", "argmin")]
COMBINES += [("min", "uint8"), ("sum", "uint32")]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("combine", "dtype"), COMBINES)
def test_combines_compile(combine: str, dtype: str) -> None:
    given = state(x=dtype, out="bool", source="int64")
    for direction in ("pull", "push"):
        step = gathered(combine)
        assert step.fold(given, target="cuda", direction=direction).ptx((9, 0))
    if combine != "argmin":
        assert reduced(combine).fold(given, target="cuda").ptx((9, 0))


@pytest.mark.parametrize(
    ("function", "dtypes"),
    [
        (
            numbers.unsigned,
            {
                **dict.fromkeys(("a", "b"), "uint8"),
                **dict.fromkeys(("difference", "half"), "float32"),
                **dict.fromkeys(("minus", "bits", "local"), "int64"),
                "less": "bool",
            },
        ),
        (
            numbers.compare,
            {
                **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "chain"), "bool"),
                "i": "int64",
                "x": "float32",
            },
        ),
        (
            numbers.powers,
            {
                **dict.fromkeys(("a", "left", "right", "power", "square"), "int64"),
                **dict.fromkeys(("least", "three", "total", "step"), "int64"),
                "b": "int8",
                "inverse": "float32",
            },
        ),
        (
            numbers.cut,
            {
                **dict.fromkeys(("x", "down", "up", "scalar_real"), "float32"),
                **dict.fromkeys(("whole", "same", "scalar"), "int64"),
            },
        ),
    ],
    ids=["unsigned", "compare", "powers", "cut"],
)
def test_functions_compile(function: Any, dtypes: dict[str, str]) -> None:
    ptx = fg.vertexmap(function).fold(state(**dtypes), target="cuda").ptx((9, 0))
    assert ".f64" not in ptx

"""S10: drawn expressions over every dtype, with edge values, mean the same everywhere.

The interpreter, the CPU and the emulated GPU agree bit for bit, and the interpreter
agrees with Python wherever Python has a value of 64 bits.
"""

from __future__ import annotations

import importlib.util
import linecache
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import Phase, given, settings

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from tests.reference import test_numbers
from tests.simt.gpu import emulated_gpu
from tests.simt.superstep import Superstep
from tests.strategies import seeds

LEAST, MOST = -(2**63), 2**63 - 1
COUNT = 40
#: Expressions of each type in a function: compiling takes longer than drawing.
EACH = 5
EXAMPLES = 3
OPERATIONS = 5

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
LITERALS = [0, 1, -1, 2, 3, 7, 63, 64, 16777217, -16777217, 2**31, 2**53 + 1]
LITERALS += [MOST, LEAST + 1, LEAST]
REALS = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e19, -1e19, 0.5, -2.5, 3.0]
REALS += [16777216.0, 2.0**53, 2.0**63, -(2.0**63), 1e-30]
TAME = [0.0, 0.5, -2.5, 3.0, 7.25, -1.0]


class Drawer(Random):
    """Draws expressions of at most `left` operations each, about."""

    left = 0

    def expression(self, draw: Draw) -> str:
        self.left = OPERATIONS
        return draw(self)


Draw = Callable[[Drawer], str]


def _words(*words: str) -> Draw:
    return lambda random: random.choice(words)


def _any(*draws: Draw) -> Draw:
    return lambda random: random.choice(draws)(random)


def _in_brackets(*parts: Draw) -> Draw:
    return lambda random: f"({' '.join(part(random) for part in parts)})"


def _call(name: str, *arguments: Draw) -> Draw:
    return lambda random: f"{name}({', '.join(each(random) for each in arguments)})"


def _later(place: int) -> Draw:
    return lambda random: _MADE[place](random)


def _grown(leaf: Draw, *larger: Draw) -> Draw:
    def draw(random: Drawer) -> str:
        random.left -= 1
        ends = random.left < 0 or random.random() < 0.2
        return leaf(random) if ends else random.choice(larger)(random)

    return draw


#: Real numbers that sums and products of few of them are exact in float32.
_exact = _words("d.tame[v]", "d.half[v]", "0.5", "3.0", "d.n_int8[v]", "d.alpha", "2")
_tame = _any(
    _in_brackets(_words("0.5 *"), _exact),
    _in_brackets(_words("0.5 *"), _exact, _words("+", "-"), _exact),
    _in_brackets(
        _words("d.tame[v]"), _words("/", "//", "%"), _words("d.half[v]", "4.0")
    ),
    _in_brackets(_words("d.n_int8[v]"), _words("/"), _words("d.half[v]", "4.0")),
)


def _choices(inner: Draw, test: Draw) -> Draw:
    return _any(
        _in_brackets(inner, _words("if"), test, _words("else"), inner),
        _in_brackets(inner, _words("and", "or"), inner),
        _call("min", inner, inner),
        _call("max", inner, inner),
    )


_integers, _reals, _tests = map(_later, range(3))

_MADE = (
    _grown(
        _any(
            _words(*(f"d.n_{dtype}[v]" for dtype in INTEGERS)),
            _words(*(f"(v * 0 + ({n}))" for n in LITERALS)),
            _words("v", "d.limit", "d.in_degree[v]"),
        ),
        _in_brackets(
            _integers, _words("+", "-", "*", "//", "%", "&", "|", "^"), _integers
        ),
        _in_brackets(_integers, _words("-", "+", "*"), _integers),
        _in_brackets(_integers, _words("<<", ">>", "**"), _words("d.n_int8[v]", "3")),
        _in_brackets(_integers, _words("//", "%", "*"), _words("2", "-1", "0", "-3")),
        _in_brackets(_words("-", "~", "+"), _integers),
        _call("abs", _integers),
        _call("int", _any(_reals, _tests)),
        _in_brackets(_tests, _words("+", "*", "-"), _tests),
        _choices(_integers, _tests),
    ),
    _grown(
        _any(_words("d.x[v]", "d.y[v]", "9223372036854775808.0", "math.inf"), _tame),
        _call("math.floor", _reals),
        _call("math.ceil", _reals),
        _call("abs", _reals),
        _in_brackets(_words("-"), _reals),
        _choices(_reals, _tests),
    ),
    _grown(
        _any(_words("d.flag[v]", "True"), _in_brackets(_reals, _words("<"), _reals)),
        _in_brackets(_integers, _words("<", "<=", ">", "==", "!="), _reals),
        _in_brackets(_reals, _words("<", ">=", ">", "==", "!="), _integers),
        _in_brackets(_integers, _words("<", ">=", "=="), _integers),
        _in_brackets(_integers, _words("<"), _reals, _words("<="), _integers),
        _in_brackets(_words("not"), _any(_integers, _reals, _tests)),
        _in_brackets(_tests, _words("and", "or"), _tests),
        _call("math.isnan", _reals),
    ),
)


def draw_values(rng: np.random.Generator, real: str) -> dict[str, Any]:
    """Return columns of edge values: of each dtype its limits, too."""
    columns: dict[str, Any] = {"flag": rng.random(COUNT) < 0.5}
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        known = {0, 1, 2, 3, 64, limits.min, limits.max, limits.max - 1}
        known |= {n for n in (-1, -7, *LITERALS) if limits.min <= n <= limits.max}
        columns[f"n_{dtype}"] = rng.choice(np.array(sorted(known), dtype), COUNT)
    columns["x"] = rng.choice(np.array(REALS, real), COUNT)
    columns["y"] = rng.choice(np.array(REALS, real), COUNT)
    columns["tame"] = rng.choice(np.array(TAME, real), COUNT)
    columns["half"] = rng.choice(np.array([0.5, 2.0, -4.0], real), COUNT)
    return columns


def program(expressions: dict[str, list[str]], folder: Path) -> fg.FoldMap:
    """Return a vertex function with one output an expression."""
    lines = ["import math", "import featgraph as fg", "", "@fg.vertex"]
    lines += ["def drawn(f, v, d):"]
    for kind, texts in expressions.items():
        lines += [f"    d.{kind}_{n}[v] = {t}" for n, t in enumerate(texts)]
    path = folder / "drawn.py"
    path.write_text("\n".join([*lines, "    return True", ""]), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("drawn", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(path))
    spec.loader.exec_module(module)
    return fg.vertexmap(module.drawn)


class Whole(int):
    """Python's integer, as long as it fits 64 bits and Python has it at all."""


def _strict(name: str) -> Any:
    def operate(self: int, *others: Any) -> Any:
        if (name == "__pow__" and others[0] < 0) or (name == "__rpow__" and self < 0):
            raise OverflowError  # a real number in Python
        result = getattr(int, name)(self, *others)
        if type(result) is int:
            if not LEAST <= result <= MOST:
                raise OverflowError
            return Whole(result)
        return result

    return operate


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "pow", "rshift"):
    setattr(Whole, f"__{_name}__", _strict(f"__{_name}__"))
    setattr(Whole, f"__r{_name}__", _strict(f"__r{_name}__"))
for _name in ("neg", "abs", "invert", "and", "or", "xor", "pos"):
    setattr(Whole, f"__{_name}__", _strict(f"__{_name}__"))


class _Entry:
    """``d.name``: one row's value, whatever the index."""

    def __init__(self, value: Any) -> None:
        self.value = Whole(value) if type(value) is int else value

    def __getitem__(self, v: int) -> Any:
        return self.value


def _int(value: Any) -> Whole:
    if not LEAST <= int(value) <= MOST:
        raise OverflowError
    return Whole(value)


def in_python(text: str, rows: dict[str, Any], v: int) -> Any:
    """Evaluate an expression in Python; return None where it raises or overflows."""
    fields: dict[str, Any] = {n: _Entry(x[v].item()) for n, x in rows.items()}
    fields |= {"in_degree": _Entry(0), "limit": Whole(5), "alpha": 0.5}
    d = SimpleNamespace(**fields)
    try:
        value = eval(text, {"math": math, "d": d, "v": Whole(v), "int": _int})  # noqa: S307
    except (ArithmeticError, ValueError, TypeError):
        return None
    return value


def check(
    expressions: dict[str, list[str]], seed: int, real: str, folder: Path
) -> None:
    columns = draw_values(np.random.default_rng(seed), real)
    graph = fg.Graph.from_edges([], [], vertex_count=COUNT)
    stored = {"integer": "int64", "small": "int16", "number": real, "test": "bool"}
    outputs = {
        f"{kind}_{n}": np.zeros(COUNT, stored[kind])
        for kind, texts in expressions.items()
        for n in range(len(texts))
    }
    values = {**columns, **outputs}

    def make() -> fg.State:
        properties = {n: fg.vertex_property(x) for n, x in values.items()}
        return fg.State(graph, **properties, limit=5, alpha=0.5)

    step, state = program(expressions, folder), make()
    meant = reference.superstep(step.program, *reference.from_state(make())).values
    options, traits = Options(target="cuda"), GraphTraits(4, False, False, False)
    kernels = emit(make_plan(step.program, state.signature, options, traits))
    given_values = {**values, "limit": 5, "alpha": 0.5}
    emulated = Superstep(kernels, graph, given_values).run(np.ones(COUNT, bool)).values
    step(state, target="cpu")
    for kind, texts in expressions.items():
        for n, text in enumerate(texts):
            name = f"{kind}_{n}"
            for got in (state[name], emulated[name]):
                np.testing.assert_array_equal(got, meant[name], err_msg=text)
            if kind != "small":
                _check_python(text, columns, meant[name])


def _check_python(text: str, columns: dict[str, Any], meant: Any) -> None:
    for v in range(COUNT):
        value = in_python(text, columns, v)
        if value is None or (isinstance(value, float) and meant.dtype.kind == "i"):
            continue
        got = meant[v]
        wanted = np.asarray(value).astype(meant.dtype)
        assert got == wanted or (got != got and wanted != wanted), (text, v)


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.parametrize("real", ["float64", "float32"])
def test_expressions(real: str, tmp_path: Path) -> None:
    is_deep = hypothesis.settings.get_current_profile_name() == "deep"

    @settings(
        max_examples=200 if is_deep else EXAMPLES,
        phases=[p for p in Phase if p is not Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @given(seeds)
    def holds(seed: int) -> None:
        random = Drawer(seed)
        draws = {"integer": _integers, "small": _integers, "number": _reals}
        draws["test"] = _tests
        expressions = {
            kind: [random.expression(draw) for _ in range(EACH)]
            for kind, draw in draws.items()
        }
        check(expressions, seed, real, tmp_path)

    holds()


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
def test_float32_is_widened_on_the_gpu() -> None:
    with emulated_gpu():
        test_numbers.test_float32_is_widened_where_reals_are_float64("cuda")
        for width in (3, 40):
            test_numbers.test_float32_is_widened_in_gathers_and_together(
                "cuda", width, True, np.random.default_rng(width)
            )

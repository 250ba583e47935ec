"""S10: numbers mean what Python means by them, in the interpreter and on targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference

LEAST, MOST = -(2**63), 2**63 - 1
UNSIGNED = ("uint8", "uint16", "uint32")
SIGNED = ("int8", "int16", "int32", "int64")


def wrapped(value: int, bits: int = 64) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def check(
    function: Any,
    columns: dict[str, Any],
    expected: dict[str, Callable[..., Any]],
    target: str,
    **scalars: Any,
) -> None:
    """Compare ``d.out[v]`` with ``expected[out](row)`` on the target and in reference.

    The dtype of an output is that of its first expected value.
    """
    count = len(next(iter(columns.values())))
    rows = [{n: x[v].item() for n, x in columns.items()} for v in range(count)]
    wanted = {n: [compute(**row) for row in rows] for n, compute in expected.items()}
    is_narrow = _has(columns, "float32") and not _has(columns, "float64")
    real = "float32" if is_narrow else "float64"
    kinds = {bool: "bool", int: "int64", float: real}
    graph = fg.Graph.from_edges([], [], vertex_count=count)
    state = fg.State(
        graph,
        **{n: fg.vertex_property(np.asarray(x)) for n, x in columns.items()},
        **{
            n: fg.vertex_property(np.zeros(count, kinds[type(x[0])]))
            for n, x in wanted.items()
        },
        **scalars,
    )
    step = fg.vertexmap(function)
    meant = reference.superstep(step.program, *reference.from_state(state)).values
    step(state, target=target)
    for name, values in wanted.items():
        for got in (meant[name], state[name]):
            meant_exactly = np.asarray(values).astype(got.dtype)
            if target == "cuda" and name == "inverse":
                # CUDA's pow is right within two units in the last place.
                np.testing.assert_array_max_ulp(got, meant_exactly, 2, got.dtype)
            else:
                np.testing.assert_array_equal(got, meant_exactly, err_msg=name)


def _has(columns: dict[str, Any], dtype: str) -> bool:
    return any(np.asarray(x).dtype == dtype for x in columns.values())


@fg.vertex
def unsigned(f, v, d):
    d.less[v] = d.a[v] - d.b[v] < 0
    d.difference[v] = d.a[v] - d.b[v]
    d.half[v] = abs(d.a[v] - d.b[v]) * 0.5
    d.minus[v] = -d.a[v]
    d.bits[v] = ~d.a[v]
    smaller = min(d.a[v], d.b[v])
    d.local[v] = smaller - d.b[v] - 1
    return True


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers(dtype: str, target: str) -> None:
    most = int(np.iinfo(dtype).max)
    columns = {
        "a": np.array([1, 0, most, 0, most, 7], dtype),
        "b": np.array([2, most, 0, 0, most, 9], dtype),
    }
    expected = {
        "less": lambda a, b: a - b < 0,
        "difference": lambda a, b: float(a - b),
        "half": lambda a, b: abs(a - b) * 0.5,
        "minus": lambda a, b: -a,
        "bits": lambda a, b: ~a,
        "local": lambda a, b: min(a, b) - b - 1,
    }
    check(unsigned, columns, expected, target)


@fg.vertex
def least(f, v, d):
    d.absolute[v] = abs(d.a[v])
    d.minus[v] = -d.a[v]
    d.divided[v] = d.a[v] // d.b[v]
    d.turned[v] = d.a[v] // -1
    d.rest[v] = d.a[v] % d.b[v]
    d.product[v] = d.a[v] * d.a[v]
    return True


@pytest.mark.parametrize("dtype", SIGNED)
def test_least_integers(dtype: str, target: str) -> None:
    limits = np.iinfo(dtype)
    a = [limits.min, limits.min, limits.max, limits.max, 0, -7]
    columns = {"a": np.array(a, dtype), "b": np.array([-1, 0, -1, 3, 0, 2], dtype)}
    expected = {
        "absolute": lambda a, b: wrapped(abs(a)),
        "minus": lambda a, b: wrapped(-a),
        "divided": lambda a, b: wrapped(a // b) if b else 0,
        "turned": lambda a, b: wrapped(-a),
        "rest": lambda a, b: a % b if b else 0,
        "product": lambda a, b: wrapped(a * a),
    }
    check(least, columns, expected, target)


@fg.vertex
def operands(f, v, d):
    d.either[v] = d.a[v] or 7
    d.both[v] = d.a[v] and d.b[v]
    d.mixed[v] = d.x[v] or d.a[v]
    d.condition[v] = (d.a[v] > 1) and d.x[v]
    d.chain[v] = (d.a[v] and d.b[v]) or d.x[v] or 2.5
    d.no[v] = not d.x[v]
    return d.a[v] or d.x[v]


def test_and_and_or_give_an_operand(target: str) -> None:
    columns = {
        "a": np.array([0, 1, 2, 0, 3, 0], np.uint8),
        "b": np.array([5, 0, 1, 0, 0, 2], np.uint8),
        "x": np.array([0.0, 1.5, 0.0, -0.0, math.nan, math.inf]),
    }
    expected = {
        "either": lambda a, b, x: a or 7,
        "both": lambda a, b, x: a and b,
        "mixed": lambda a, b, x: float(x or a),
        "condition": lambda a, b, x: float((a > 1) and x),
        "chain": lambda a, b, x: float((a and b) or x or 2.5),
        "no": lambda a, b, x: not x,
    }
    check(operands, columns, expected, target)


@fg.vertex
def counted(f, v, d):
    old = fg.atomic.add(d.n, v, 1) and fg.atomic.add(d.n, v, 1)
    return old > 0


def test_and_of_atomics_is_refused() -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=2)
    state = fg.State(graph, n=fg.vertex_property(0))
    with pytest.raises(fg.UserFunctionError, match="`and` of numbers"):
        fg.vertexmap(counted)(state, target="cpu")


@fg.vertex
def cut(f, v, d):
    d.down[v] = math.floor(d.x[v])
    d.up[v] = math.ceil(d.x[v])
    d.whole[v] = int(d.x[v])
    d.same[v] = int(d.whole[v])
    d.scalar[v] = abs(d.s)
    d.scalar_real[v] = float(d.s) + math.sqrt(d.t)
    return True


def as_int(x: float) -> int:
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return MOST if x > 0 else LEAST
    return min(max(int(x), LEAST), MOST)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floor_ceil_and_int(dtype: str, target: str) -> None:
    x = [-2.5, 2.5, math.nan, math.inf, -math.inf, 1e19, -1e19, 2.0**62, -0.0]
    columns = {"x": np.array(x, dtype)}
    special = lambda compute: lambda x: float(compute(x)) if math.isfinite(x) else x  # noqa: E731
    expected = {
        "down": special(math.floor),
        "up": special(math.ceil),
        "whole": as_int,
        "same": as_int,
        "scalar": lambda x: 3,
        "scalar_real": lambda x: -1.0,
    }
    check(cut, columns, expected, target, s=-3, t=4)


@fg.vertex
def compare(f, v, d):
    d.lt[v] = d.i[v] < d.x[v]
    d.le[v] = d.i[v] <= d.x[v]
    d.gt[v] = d.i[v] > d.x[v]
    d.ge[v] = d.i[v] >= d.x[v]
    d.eq[v] = d.i[v] == d.x[v]
    d.ne[v] = d.x[v] != d.i[v]
    d.chain[v] = d.i[v] - 1 < d.i[v] <= d.x[v] < 9007199254740993
    return True


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_integers_compare_exactly_with_reals(dtype: str, target: str) -> None:
    integers = [16777217, -16777217, 2**53 + 1, MOST, LEAST, LEAST + 1, 0, 3, -3]
    reals = [2.0**24, -(2.0**24), 2.0**53, 2.0**63, -(2.0**63), 0.0, 3.5, -3.5, 1e30]
    reals += [-1e30, math.nan, math.inf, -math.inf]
    pairs = [(i, x) for i in integers for x in reals]
    columns = {
        "i": np.array([i for i, _ in pairs]),
        "x": np.array([x for _, x in pairs], dtype),
    }
    expected = {
        "lt": lambda i, x: i < x,
        "le": lambda i, x: i <= x,
        "gt": lambda i, x: i > x,
        "ge": lambda i, x: i >= x,
        "eq": lambda i, x: i == x,
        "ne": lambda i, x: i != x,
        "chain": lambda i, x: wrapped(i - 1) < i <= x < 9007199254740993,
    }
    check(compare, columns, expected, target)


def times(x, y):
    return x * y


@fg.vertex
def mixed(f, v, d):
    product = d.a[v] * d.b[v]
    d.product[v] = product
    d.rest[v] = product - d.c[v]
    d.total[v] = d.a[v] + d.b[v]
    d.quotient[v] = -d.a[v] / d.b[v]
    d.most[v] = max(d.a[v] * d.b[v], d.a[v] + d.b[v])
    d.root[v] = math.sqrt(abs(d.b[v]))
    d.helped[v] = times(d.a[v], d.s[0])
    d.whole[v] = int(d.a[v] * 16777216 + d.b[v])
    return True


def test_float32_is_widened_where_reals_are_float64(target: str) -> None:
    """S10: what is loaded has the real type before anything is done with it."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 40)).astype(np.float32)
    scale = float(np.float32(0.1))
    columns = {"a": a, "b": b, "c": a.astype(np.float64) * b}
    expected = {
        "product": lambda a, b, c: a * b,
        "rest": lambda a, b, c: a * b - c,
        "total": lambda a, b, c: a + b,
        "quotient": lambda a, b, c: -a / b,
        "most": lambda a, b, c: max(a * b, a + b),
        "root": lambda a, b, c: math.sqrt(abs(b)),
        "helped": lambda a, b, c: a * scale,
        "whole": lambda a, b, c: int(a * 16777216 + b),
    }
    check(mixed, columns, expected, target, s=np.array([0.1], np.float32))


@fg.gather(into="sent", combine="sum")
def weighted(f, u, v, e, d):
    return d.w[e] * d.a[u, f]


@fg.vertex
def together(f, v, d):
    d.received[v, f] = d.sent[v, f]
    d.inner[v, f] = fg.dot(d.a[v], d.b[v])
    d.times[v, f] = fg.matvec(d.m[v], d.a[v, f])
    return True


@pytest.mark.drawn(2)
@pytest.mark.parametrize("width", [3, 8, 24])
@pytest.mark.parametrize("is_wide", [True, False])
def test_float32_is_widened_in_gathers_and_together(
    target: str, width: int, is_wide: bool, rng: np.random.Generator
) -> None:
    source, end = rng.integers(0, 9, (2, 20))
    graph = fg.Graph.from_edges(source, end, vertex_count=9)
    given = {n: rng.random((9, width), np.float32) for n in "ab"}
    given["m"] = rng.random((9, width, width), np.float32)
    w = rng.random(20, np.float32)
    a, b, m = (given[n].astype(np.float64) for n in "abm")
    received = np.zeros((9, width))
    np.add.at(received, end, w.astype(np.float64)[:, None] * a[source])
    state = fg.State(
        graph,
        **{name: fg.vertex_property(values) for name, values in given.items()},
        w=fg.edge_property(w),
        received=fg.vertex_property(np.zeros((9, width))),
        inner=fg.vertex_property(np.zeros((9, width))),
        times=fg.vertex_property(np.zeros((9, width))),
    )
    fg.foldmap(weighted, together)(state, target=target, feature_parallel=is_wide)
    inner = np.broadcast_to((a * b).sum(axis=1)[:, None], a.shape)
    times = (m @ a[:, :, None])[:, :, 0]
    for name, meant in (("received", received), ("inner", inner), ("times", times)):
        np.testing.assert_allclose(state[name], meant, rtol=1e-14, err_msg=name)


@fg.vertex
def powers(f, v, d):
    d.left[v] = d.a[v] << d.b[v]
    d.right[v] = d.a[v] >> d.b[v]
    d.power[v] = d.a[v] ** d.b[v]
    d.square[v] = d.a[v] ** 2
    d.inverse[v] = d.a[v] ** -1
    d.least[v] = -9223372036854775808
    d.three[v] = (d.a[v] > 1) + (d.a[v] > 2) + True
    total = 0
    for i in range(0, 5, d.step[v]):
        total += i + 1
    d.total[v] = total
    return True


def inverse(a: int) -> float:
    return 1.0 / a if a else math.inf


def power(a: int, b: int) -> int:
    if b < 0:
        return int(1 / a**-b) if abs(a) == 1 else 0
    return wrapped(a**b)


def test_shifts_powers_and_ranges(target: str) -> None:
    pairs = [(a, b) for a in (0, 1, -1, 2, -5, LEAST, MOST) for b in (-1, 0, 1, 63, 64)]
    columns = {
        "a": np.array([a for a, _ in pairs]),
        "b": np.array([b for _, b in pairs], np.int8),
        "step": np.arange(len(pairs)) % 5 - 1,
    }
    expected = {
        "left": lambda a, b, step: wrapped(a << b) if 0 <= b < 64 else 0,
        "right": lambda a, b, step: a >> (b if 0 <= b < 64 else 63),
        "power": lambda a, b, step: power(a, b),
        "square": lambda a, b, step: wrapped(a * a),
        "inverse": lambda a, b, step: inverse(a),
        "least": lambda a, b, step: LEAST,
        "three": lambda a, b, step: (a > 1) + (a > 2) + 1,
        "total": lambda a, b, step: (
            sum(i + 1 for i in range(0, 5, step) if step) if step else 0
        ),
    }
    check(powers, columns, expected, target)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_what_is_stored_wraps(kind: str, bits: int, target: str) -> None:
    dtype = f"{kind}{bits}"
    values = np.array([LEAST, -1, 2 ** (bits - 1), 2**bits + 5, MOST, 3])

    @fg.vertex
    def narrowed(f, v, d):
        d.small[v] = d.large[v]
        d.again[v] = d.small[v] - 1
        return True

    graph = fg.Graph.from_edges([], [], vertex_count=len(values))
    state = fg.State(
        graph,
        large=fg.vertex_property(values),
        small=fg.vertex_property(0, dtype=dtype),
        again=fg.vertex_property(0),
    )
    step = fg.vertexmap(narrowed)
    meant = reference.superstep(step.program, *reference.from_state(state)).values
    step(state, target=target)
    for got in (meant, state):
        np.testing.assert_array_equal(got["small"], values.astype(dtype))
        again = values.astype(dtype).astype(np.int64) - 1
        np.testing.assert_array_equal(got["again"], again)


@fg.vertex
def too_far(f, v, d):
    d.n[v] = 1 << 64
    return True


@fg.vertex
def nowhere(f, v, d):
    for i in range(0, 5, 0):
        d.n[v] = i
    return True


@pytest.mark.parametrize(
    ("function", "what"),
    [(too_far, "does not fit 64 bits"), (nowhere, "range with step 0")],
)
def test_literals_that_python_could_not_keep(function: Any, what: str) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=2)
    state = fg.State(graph, n=fg.vertex_property(0))
    with pytest.raises(fg.UserFunctionError, match=what):
        fg.vertexmap(function)(state, target="cpu")

"""logsumexp, log_normalize and the semirings of matvec, against SciPy and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference

WIDTHS = (1, 2, 3, 4, 8, 33)
COUNT = 6
OUTPUTS = ("total", "normal", "log_v", "max_v", "log_psi", "max_psi")


@fg.vertex
def logarithms(f, v, d):
    x = d.x[v, f]
    top_b = -x  # as locals of generated code are called
    d.total[v, f] = fg.logsumexp(x)
    d.normal[v, f] = fg.log_normalize(x)
    d.log_v[v, f] = fg.matvec(d.M[v], x, transpose=d.turn[v], semiring="log_plus")
    d.max_v[v, f] = fg.matvec(d.M[v], d.x[v], d.turn[v], "max_plus")
    d.log_psi[v, f] = fg.matvec(d.psi, x, transpose=True, semiring="log_plus")
    d.max_psi[v, f] = fg.matvec(d.psi, x, transpose=False, semiring="max_plus")
    d.same[v, f] = -top_b
    return True


STEP = fg.foldmap(logarithms)


@fg.vertex
def in_pairs(f, v, d):
    d.total[v, f] = fg.logsumexp(d.x[v, f], group=2)
    d.normal[v, f] = fg.log_normalize(d.x[v], 2)
    return True


PAIRS = fg.foldmap(in_pairs)


def values(x: Any, matrices: Any, psi: Any, turn: Any) -> dict[str, Any]:
    zeros = np.zeros_like(x)
    return {
        "x": fg.vertex_property(x),
        "M": fg.vertex_property(matrices),
        "psi": psi,
        "turn": fg.vertex_property(turn),
        "same": fg.vertex_property(zeros),
        **{name: fg.vertex_property(zeros) for name in OUTPUTS},
    }


def largest(array: Any, axis: int) -> Any:
    finite = np.where(np.isfinite(array), np.abs(array), 0.0)
    return finite.max(axis=axis)


def expectations(x: Any, matrices: Any, psi: Any, turn: Any) -> dict[str, Any]:
    """Return (value, scale of the error) of every output, in float64."""
    x, matrices, psi = (np.asarray(a, np.float64) for a in (x, matrices, psi))
    turned = np.where(turn[:, None, None], np.swapaxes(matrices, 1, 2), matrices)
    total = scipy.special.logsumexp(x, axis=1)[:, None]
    with np.errstate(invalid="ignore"):
        normal = np.where(np.isneginf(total), x, x - total)
    row = largest(x, 1)[:, None]
    found = {"total": (total + np.zeros_like(x), row), "normal": (normal, row)}
    products = {
        "log_v": turned,
        "max_v": turned,
        "log_psi": psi.T[None],
        "max_psi": psi[None],
    }
    for name, matrix in products.items():
        terms = matrix + x[:, None, :]
        scale = largest(matrix + np.zeros_like(terms), 2) + row
        log = name.startswith("log")
        value = scipy.special.logsumexp(terms, axis=2) if log else terms.max(axis=2)
        found[name] = (value, scale)
    return found


def check(state: Any, expected: dict[str, Any], k: int) -> None:
    for name, (wanted, scale) in expected.items():
        got = state[name]
        eps = float(np.finfo(got.dtype).eps)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - wanted) <= 8 * eps * (k + scale + np.abs(wanted))
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        bad = np.argwhere(~(near | same))
        assert not bad.size, (name, bad[0], got[tuple(bad[0])], wanted[tuple(bad[0])])


def draw_values(rng: Any, k: int, dtype: Any) -> tuple[Any, ...]:
    """Rows of every size: moderate, far apart, underflowing, without any weight."""

    def numbers(*shape: int) -> Any:
        scale = rng.choice([1.0, 1.0, 30.0, 1e4, 1e30], shape[:1])
        found = rng.standard_normal(shape) * scale.reshape(-1, *[1] * (len(shape) - 1))
        return np.where(rng.random(shape) < rng.choice([0, 0.3, 0.9]), -np.inf, found)

    x = numbers(COUNT, k)
    x[0] = -np.inf
    x[1] -= 1e5
    psi = numbers(1, k, k)[0]
    matrices = numbers(COUNT, k, k)
    turn = rng.random(COUNT) < 0.5
    return x.astype(dtype), matrices.astype(dtype), psi.astype(dtype), turn


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("k", "dtype", "options"),
    [(k, "float32", {}) for k in WIDTHS]
    + [(3, "float64", {}), (33, "float64", {})]
    + [(4, "float32", {"feature_parallel": False})],
)
def test_logarithms(k: int, dtype: str, options: dict[str, Any], target: str) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=COUNT)

    @settings(max_examples=15)
    @given(st.integers(0, 2**32 - 1))
    @example(0)
    def holds(seed: int) -> None:
        drawn = draw_values(np.random.default_rng(seed), k, dtype)
        state = fg.State(graph, **values(*drawn))
        STEP(state, target=target, **options)
        np.testing.assert_array_equal(state["same"], drawn[0])
        check(state, expectations(*drawn), k)

    holds()


def test_the_interpreter_means_the_same(rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=COUNT)
    drawn = draw_values(rng, 3, np.float64)
    state = fg.State(graph, **values(*drawn))
    out = reference.superstep(STEP.program, *reference.from_state(state))
    check(out.values, expectations(*drawn), 3)


@pytest.mark.parametrize("k", [4, 10, 64])
def test_groups(k: int, target: str, rng: np.random.Generator) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=COUNT)
    x = (draw_values(rng, k, np.float32))[0]
    zeros = fg.vertex_property(np.zeros_like(x))
    state = fg.State(graph, x=fg.vertex_property(x), total=zeros, normal=zeros)
    PAIRS(state, target=target)
    pairs = x.reshape(-1, 2)
    nothing = np.zeros((len(pairs), 2, 2))
    wanted = expectations(pairs, nothing, nothing[0], np.zeros(len(pairs), bool))
    for name in ("total", "normal"):
        value, scale = wanted[name]
        whole = (value.reshape(x.shape), np.repeat(scale, 2, axis=1).reshape(x.shape))
        check(state, {name: whole}, 2)


@pytest.mark.parametrize("k", [1, 3, 33])
def test_infinity_and_nan(k: int, target: str) -> None:
    x = np.zeros((4, k), np.float32)
    x[0, -1], x[1, 0], x[2, :], x[3, 0] = np.inf, np.nan, np.nan, -1e38
    x[3, -1] = 1e38
    graph = fg.Graph.from_edges([], [], vertex_count=4)
    ones = np.zeros((4, k, k), np.float32)
    drawn = (x, ones, ones[0], np.zeros(4, bool))
    state = fg.State(graph, **values(*drawn))
    STEP(state, target=target)
    check(state, {n: expectations(*drawn)[n] for n in ("total", "normal")}, k)


def test_a_semiring_has_a_name() -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=1)

    @fg.vertex
    def unknown(f, v, d):
        d.y[v, f] = fg.matvec(d.M[v], d.y[v], semiring="plus_max")
        return True

    @fg.vertex
    def of_outer(f, v, d):
        d.y[v, f] = fg.matvec(fg.outer(d.y[v], d.y[v]), d.y[v], semiring="max_plus")
        return True

    state = fg.State(
        graph,
        y=fg.vertex_property(np.zeros((1, 2), np.float32)),
        M=fg.vertex_property(np.zeros((1, 2, 2), np.float32)),
    )
    for function, what in ((unknown, "'plus_max'"), (of_outer, "outer product")):
        with pytest.raises(fg.UserFunctionError, match=what):
            fg.vertexmap(function)(state, target="cpu")

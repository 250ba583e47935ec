"""The interpreter's features: width, collaborative operations, numbers, captures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

import featgraph as fg
from featgraph import reference


def run(foldmap: Any, **values: Any) -> Any:
    """Run one superstep on vertices without edges."""
    count = next(len(v.values) for v in values.values() if hasattr(v, "values"))
    graph = fg.Graph.from_edges([], [], vertex_count=count)
    state = fg.State(graph, **values)
    return reference.superstep(foldmap.program, *reference.from_state(state))


def outputs(rng: np.random.Generator, *names: str, k: int = 6) -> dict[str, Any]:
    """Return a row property x, and float64 places for results."""
    x = rng.uniform(0.5, 2.0, (5, k))
    places = {name: fg.vertex_property(np.zeros((5, k))) for name in names}
    return {"x": fg.vertex_property(x), **places}


@fg.vertex
def whole_rows(f, v, d):
    x = d.x[v, f]
    d.share[v, f] = fg.normalize(x)
    d.soft[v, f] = fg.softmax(x)
    d.length[v, f] = fg.norm(x)
    d.inner[v, f] = fg.dot(x, d.x[v])
    d.extent[v, f] = fg.feature_max(x) - fg.feature_min(x)
    d.last[v, f] = fg.broadcast(x, d.feature_count - 1 - f)
    d.place[v, f] = fg.argmax(x)
    return fg.all_features(x > 0) and not fg.any_feature(x > 2)


def test_collaborative_operations_see_the_whole_row(rng: np.random.Generator) -> None:
    names = ("share", "soft", "length", "inner", "extent", "last", "place")
    values = outputs(rng, *names)
    x = values["x"].values
    out = run(fg.foldmap(whole_rows), **values)
    row = np.ones_like(x)
    expected = {
        "share": x / x.sum(axis=1, keepdims=True),
        "soft": scipy.special.softmax(x, axis=1),
        "length": np.linalg.norm(x, axis=1, keepdims=True) * row,
        "inner": (x * x).sum(axis=1, keepdims=True) * row,
        "extent": np.ptp(x, axis=1, keepdims=True) * row,
        "last": x[:, ::-1],
        "place": x.argmax(axis=1, keepdims=True) * row,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(out.values[name], value, err_msg=name)
    assert len(out.active_out) == 5


@fg.vertex
def in_threes(f, v, d):
    d.share[v, f] = fg.normalize(d.x[v, f], group=3)
    d.place[v, f] = fg.argmax(d.x[v, f], group=3)
    d.flag[v, f] = 1.0 if fg.any_feature(d.x[v, f] > 1.5, group=3) else 0.0
    return True


def test_groups_lie_side_by_side(rng: np.random.Generator) -> None:
    values = outputs(rng, "share", "place", "flag")
    out = run(fg.foldmap(in_threes), **values)
    x = values["x"].values.reshape(5, 2, 3)
    share = (x / x.sum(axis=2, keepdims=True)).reshape(5, 6)
    np.testing.assert_allclose(out.values["share"], share)
    place = np.repeat(x.argmax(axis=2) + np.array([0, 3]), 3, axis=1)
    np.testing.assert_array_equal(out.values["place"], place)
    flag = np.repeat((x > 1.5).any(axis=2), 3, axis=1)
    np.testing.assert_array_equal(out.values["flag"], flag)


@fg.vertex
def algebra(f, v, d):
    d.forth[v, f] = fg.matvec(d.M[v], d.x[v, f])
    d.back[v, f] = fg.matvec(d.M[v], d.x[v], transpose=v > 2)
    d.solved[v, f] = fg.solve(d.M[v], d.x[v, f], diagonal=d.ridge * v)
    d.undone[v, f] = fg.matvec(fg.inverse(d.M[v]), d.forth[v, f])
    d.crossed[v, f] = fg.outer(d.x[v, f], d.back[v, f])[2, f]
    return True


def test_matrix_operations(rng: np.random.Generator) -> None:
    names = ("forth", "back", "solved", "undone", "crossed")
    values = outputs(rng, *names, k=4)
    matrix = rng.uniform(-1, 1, (5, 4, 4)) + 4 * np.eye(4)
    out = run(fg.foldmap(algebra), M=fg.vertex_property(matrix), ridge=0.5, **values)
    for v, (m, x) in enumerate(zip(matrix, values["x"].values, strict=True)):
        got = {name: out.values[name][v] for name in names}
        np.testing.assert_allclose(got["forth"], m @ x)
        np.testing.assert_allclose(got["back"], (m.T if v > 2 else m) @ x)
        system = m + 0.5 * v * np.eye(4)
        np.testing.assert_allclose(got["solved"], np.linalg.solve(system, x))
        np.testing.assert_allclose(got["undone"], x)
        np.testing.assert_allclose(got["crossed"], x[2] * got["back"])


def test_a_singular_system_gives_no_exception() -> None:
    @fg.vertex
    def solve_it(f, v, d):
        d.x[v, f] = fg.solve(d.M[v], d.x[v, f])
        d.y[v, f] = fg.inverse(d.M[v])[0, f]
        return True

    out = run(
        fg.foldmap(solve_it),
        M=fg.vertex_property(np.zeros((1, 2, 2))),
        x=fg.vertex_property(np.ones((1, 2))),
        y=fg.vertex_property(np.ones((1, 2))),
    )
    assert not np.isfinite(out.values["x"]).any()
    assert not np.isfinite(out.values["y"]).any()


@fg.vertex
def under_a_condition(f, v, d):
    if d.x[v, f] > 1:
        return fg.any_feature(d.x[v, f] > 2)
    return False


@fg.vertex
def other_calls(f, v, d):
    if f == 0:
        return fg.feature_sum(d.x[v, f]) > 0
    return fg.feature_sum(1.0) > 0


@fg.vertex
def other_options(f, v, d):
    return fg.solve(d.M[v], d.x[v, f], diagonal=d.x[v, f]) > 0


@fg.vertex
def reads_a_neighbor(f, v, d):
    d.y[v, f] = d.x[v, f]
    return d.y[v, (f + 1) % d.feature_count] > 0


@fg.vertex
def one_reads_what_all_write(f, v, d):
    if f == 0:
        d.y[v, f] = d.one[v]
    d.one[v] = 2.0
    return True


@fg.vertex
def writes_apart(f, v, d):
    d.one[v] = d.x[v, f]
    return True


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (under_a_condition, "not all features"),
        (other_calls, "not all features"),
        (other_options, "diagonal= differs"),
        (reads_a_neighbor, "reads an entry that another one writes"),
        (one_reads_what_all_write, "reads an entry that another one writes"),
        (writes_apart, "different values to one entry"),
    ],
)
def test_features_must_not_part(function: Any, message: str) -> None:
    x = np.array([[0.5, 1.5, 2.5]])
    with pytest.raises(fg.UserFunctionError, match=message) as caught:
        run(
            fg.foldmap(function),
            x=fg.vertex_property(x),
            y=fg.vertex_property(x),
            one=fg.vertex_property(np.zeros(1)),
            M=fg.vertex_property(np.eye(3)[None]),
        )
    assert function.name in str(caught.value)


@fg.vertex
def uniform_branch(f, v, d):
    if d.skip[v]:
        return False
    total = 0.0
    for _ in range(v):
        total = fg.feature_sum(d.x[v, f] + total)
    d.y[v, f] = total
    return True


def test_conditions_and_loops_may_depend_on_the_vertex() -> None:
    x = np.ones((4, 2))
    out = run(
        fg.foldmap(uniform_branch),
        x=fg.vertex_property(x),
        y=fg.vertex_property(np.zeros((4, 2))),
        skip=fg.vertex_property(np.array([False, False, True, False])),
    )
    assert out.values["y"][:, 0].tolist() == [0, 2, 0, 14]


@fg.vertex
def count_calls(f, v, d):
    fg.atomic.add(d.calls, v, 1)
    first = fg.feature_sum(d.x[v, f])
    old = fg.atomic.add(d.calls, v, 10)
    d.y[v, f] = old + 0 * fg.feature_sum(first)
    return True


def test_atomics_happen_once_a_feature_whatever_is_run_again() -> None:
    out = run(
        fg.foldmap(count_calls),
        x=fg.vertex_property(np.ones((1, 3))),
        y=fg.vertex_property(np.zeros((1, 3))),
        calls=fg.vertex_property(np.zeros(1, np.int32)),
    )
    assert out.values["calls"].tolist() == [33]
    assert sorted(out.values["y"][0].tolist()) == [3, 13, 23]


# Width


@fg.vertex
def once(f, v, d):
    fg.atomic.add(d.runs, 0, 1)
    return d.flag[v]


@fg.vertex
def each_feature(f, v, d):
    fg.atomic.add(d.runs, 0, 1)
    if d.flag[v]:
        return True
    return d.x[v, f] > 0


@fg.vertex
def two_widths(f, v, d):
    return d.x[v, f] > d.z[f]


def test_width_is_that_of_what_is_indexed_with_f() -> None:
    values = {
        "x": fg.vertex_property(np.ones((2, 5))),
        "flag": fg.vertex_property(np.ones(2, np.bool_)),
        "runs": fg.vertex_property(np.zeros(2, np.int32)),
        "z": np.ones(3),
    }
    assert run(fg.foldmap(once), **values).values["runs"][0] == 2
    assert run(fg.foldmap(each_feature), **values).values["runs"][0] == 10
    with pytest.raises(fg.UserFunctionError, match="several widths"):
        run(fg.foldmap(two_widths), **values)


# Numbers


@fg.vertex
def odd_numbers(f, v, d):
    d.a[v] = 1 / d.x[v]
    d.b[v] = math.log(d.x[v])
    d.c[v] = math.exp(1000 * (d.x[v] + 1))
    d.d[v] = d.x[v] / d.x[v]
    d.e[v] = math.sqrt(d.x[v] - 1)
    d.f[v] = 1.0 / d.n[v]
    return True


def test_numbers_are_ieee() -> None:
    places = {name: fg.vertex_property(np.zeros(1)) for name in "abcdef"}
    out = run(
        fg.foldmap(odd_numbers),
        x=fg.vertex_property(np.zeros(1)),
        n=fg.vertex_property(np.zeros(1, np.int32)),
        **places,
    )
    got = [out.values[name][0] for name in "abcdef"]
    np.testing.assert_array_equal(
        got, [np.inf, -np.inf, np.inf, np.nan, np.nan, np.inf]
    )


@fg.vertex
def store(f, v, d):
    d.small[v] = d.n[v]
    d.tiny[v] = d.n[v]
    d.single[v] = 0.1 + 0.2
    d.truth[v] = d.n[v] > 5
    d.whole[v] = int(d.single[v] * 10) + d.n[v] // 7
    return True


def test_values_are_rounded_when_they_are_stored() -> None:
    out = run(
        fg.foldmap(store),
        n=fg.vertex_property(np.array([300], np.int64)),
        small=fg.vertex_property(np.zeros(1, np.int8)),
        tiny=fg.vertex_property(np.zeros(1, np.uint8)),
        single=fg.vertex_property(np.zeros(1, np.float32)),
        truth=fg.vertex_property(np.zeros(1, np.bool_)),
        whole=fg.vertex_property(np.zeros(1, np.int32)),
    )
    assert out.values["small"][0] == np.int64(300).astype(np.int8)
    assert out.values["tiny"][0] == 44
    assert out.values["single"][0] == np.float32(0.1 + 0.2)
    assert out.values["truth"][0]
    assert out.values["whole"][0] == 3 + 42
    for name, value in out.values.items():
        assert value.dtype == out.signature[name].dtype


# Captures are frozen when the foldmap is declared

FACTOR = 2


def scale(x):
    return x * FACTOR


@fg.collaborative
def scaled_sum(x):
    return fg.feature_sum(scale(x))


@fg.vertex
def apply_scale(f, v, d):
    d.x[v, f] = scale(d.x[v, f]) + FACTOR + 0 * scaled_sum(d.x[v, f])
    d.y[v, f] = scaled_sum(d.y[v, f])
    return True


def test_captured_constants_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = fg.foldmap(apply_scale)
    monkeypatch.setitem(globals(), "FACTOR", 1000)
    monkeypatch.setitem(globals(), "scale", None)
    out = run(
        fold,
        x=fg.vertex_property(np.full((1, 2), 3.0)),
        y=fg.vertex_property(np.full((1, 2), 3.0)),
    )
    assert out.values["x"].tolist() == [[8.0, 8.0]]
    assert out.values["y"].tolist() == [[12.0, 12.0]]


# Reductions


@fg.reduce(into="total", combine="sum")
def total(f, v, d):
    return d.x[v, f]


@fg.reduce(into="top", combine="max")
def top(f, v, d):
    return d.n[v] if v != 0 else fg.nothing


@fg.vertex
def share_of_total(f, v, d):
    d.x_next[v, f] = d.x[v, f] / d.total[f] + d.top[0]
    return True


def test_reductions_are_read_by_later_functions_and_kept() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    out = run(
        fg.foldmap(total, top, share_of_total),
        x=fg.vertex_property(x, iterated=True),
        n=fg.vertex_property(np.array([9, 4, 5], np.int32)),
    )
    assert out.values["total"].tolist() == [6, 9]
    assert out.values["total"].dtype == np.float32
    assert out.values["top"].tolist() == [5]
    np.testing.assert_allclose(out.values["x"], x / [6, 9] + 5, rtol=1e-6)
    assert out.magnitude["total"].tolist() == [6, 9]

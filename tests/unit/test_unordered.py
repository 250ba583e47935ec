"""asynchronous=True and near_far=: refusals, their reasons, and explanations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from tests.programs.monotone import BY_NAME

PATHS = BY_NAME["paths"].foldmaps[0]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def lower(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v]


@fg.gather(into="total", combine="sum")
def add_up(f, u, v, e, d):
    return d.x[u]


@fg.gather(into="weight", combine="sum")
def weigh(f, u, v, e, d):
    return d.w[e]


@fg.gather(into="twice", combine="sum")
def add_found(f, u, v, e, d):
    return d.low[v]


@fg.edge
def send(f, u, v, e, d):
    d.w[e] = d.x[u]
    return True


@fg.reduce(into="least", combine="min")
def least_of_all(f, v, d):
    return d.x[v]


@fg.reduce(into="heaviest", combine="max")
def heaviest_of_all(f, v, d):
    return d.y[v]


@fg.vertex
def below(f, v, d):
    return d.x[v] > 0


@fg.vertex
def fixed(f, v, d):
    return d.y[v] > 0


@fg.vertex
def late(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v] and d.superstep > 2


@fg.vertex
def counting(f, v, d):
    d.y[v] = d.y[v] + 1
    return False


@fg.vertex
def counting_atomically(f, v, d):
    fg.atomic.add(d.y, v, 1)
    return False


@fg.gather(into="low", combine="min", first=True)
def whichever(f, u, v, e, d):
    return d.x[u]


@fg.gather(into="pair", combine="min")
def of_two(f, u, v, e, d):
    return d.x[u] + d.z[u]


@fg.vertex
def both(f, v, d):
    d.x_next[v] = d.pair[v]
    d.z_next[v] = d.pair[v]
    return d.pair[v] < d.x[v]


@fg.gather(into="far", combine="min")
def first_feature(f, u, v, e, d):
    return d.rows[u, 0] + d.rows[v, f]


@fg.gather(into="far", combine="min")
def spread_of_features(f, u, v, e, d):
    return fg.feature_max(d.rows[u, f])


@fg.vertex
def lower_rows(f, v, d):
    d.rows_next[v, f] = d.far[v, f]
    return d.far[v, f] < d.rows[v, f]


@fg.vertex
def elsewhere(f, v, d):
    return d.x_next[(v + 1) % d.vertex_count] > 0


def state(**more: Any) -> fg.State:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    zeros = np.zeros(4, np.int32)
    return fg.State(
        graph,
        x=fg.vertex_property(np.arange(4, dtype=np.int32), iterated=True),
        z=fg.vertex_property(zeros, iterated=True),
        rows=fg.vertex_property(np.zeros((4, 2), np.float32), iterated=True),
        y=fg.vertex_property(zeros),
        w=fg.edge_property(np.ones(3, np.float32)),
        **more,
    )


#: Functions -> what the message says.
EITHER: dict[str, tuple[tuple[Any, ...], str]] = {
    "sum": ((add_up, lowest, lower), "add_up combines x, .* with 'sum'"),
    "sum of a gather": ((lowest, add_found, lower), "add_found combines low, .*'sum'"),
    "first": ((whichever, lower), "whichever takes the first of what x contributes"),
    "edge": ((lowest, lower, send), "send is an edge function"),
    "reduce": ((least_of_all, lowest, lower), "least_of_all reduces x"),
    "filter": ((below, lowest, lower), "below runs before a gather and reads x"),
    "superstep": ((lowest, late), "late reads d.superstep"),
    "in place": ((lowest, lower, counting), "counting writes y in place"),
    "atomic": ((lowest, lower, counting_atomically), "counting_atomically uses fg.at"),
}
IN_KERNEL: dict[str, tuple[tuple[Any, ...], str]] = {
    "two properties": ((of_two, both), "of_two reads z at other vertices, and of_two"),
    "another feature": ((first_feature, lower_rows), "first_feature reads other feat"),
    "all features": ((spread_of_features, lower_rows), "makes a collaborative call"),
    "two kernels": ((lowest, lower, elsewhere), "elsewhere needs a kernel of its own"),
}


def refusal(functions: tuple[Any, ...], **options: Any) -> str:
    step, given = fg.foldmap(*functions), state()
    before = given["x"].copy()
    with pytest.raises(fg.PlanError) as caught:
        fg.iterate(step, given, target="cpu", **options)
    np.testing.assert_array_equal(given["x"], before)
    assert "fix:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("what", EITHER)
@pytest.mark.parametrize("option", ["asynchronous", "near_far"])
def test_what_could_see_the_order_is_refused(what: str, option: str) -> None:
    functions, text = EITHER[what]
    value = True if option == "asynchronous" else fg.NearFar("x")
    message = refusal(functions, **{option: value})
    assert f"{option}=" in message
    assert re.search(text, message), message
    assert f"{Path(__file__).name}:" in message


@pytest.mark.parametrize("what", IN_KERNEL)
def test_what_cannot_be_committed_in_the_kernel_is_refused(what: str) -> None:
    functions, text = IN_KERNEL[what]
    message = refusal(functions, asynchronous=True)
    assert text in message, message


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"direction": "push"}, "lowest is pushed"),
        ({"folding": False}, "folding is off"),
        ({"deterministic": True}, "not repeatable"),
        ({"change_driven": True}, "kept aggregates"),
    ],
)
def test_options_against_it(option: dict[str, Any], text: str) -> None:
    assert text in refusal((lowest, lower), asynchronous=True, **option)


@pytest.mark.parametrize(
    "options", [{}, {"asynchronous": True}, {"near_far": fg.NearFar("comp", 3)}]
)
def test_nothing_is_kept(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_A_VERTEX", 0)
    program = BY_NAME["components"]
    graph = fg.Graph.from_edges(np.arange(60), np.arange(1, 61))
    given = program.state(graph, 0)
    run = fg.iterate(program.foldmaps[0], given, active=[0], target="cpu", **options)
    assert not given["comp"].any()
    assert ("recomputed" in run.aggregates) == bool(options)
    assert (set(run.aggregates) == {"recomputed"}) == bool(options)


def test_other_foldmaps_of_the_run_count() -> None:
    """Other foldmaps of the run must not change the terms of a sum."""
    given = state()
    with pytest.raises(fg.PlanError, match="add_up combines x"):
        fg.iterate(
            [fg.foldmap(lowest, lower), fg.foldmap(add_up, fixed)],
            given,
            target="cpu",
            asynchronous=True,
        )


def test_what_does_not_change_may_be_read_in_any_way() -> None:
    given = state()
    given["y"] = np.ones(4, np.int32)
    step = fg.foldmap(heaviest_of_all, fixed, weigh, lowest, lower)
    run = fg.iterate(step, given, target="cpu", asynchronous=True)
    assert run.asynchronous
    assert run.supersteps == 2
    assert given["x"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("change_driven", [True, False])
def test_near_far_needs_announcements(change_driven: bool) -> None:
    options = {"near_far": fg.NearFar("x"), "change_driven": change_driven}
    assert "change_driven=" in refusal((lowest, lower), **options)


@pytest.mark.parametrize(
    ("near_far", "text"),
    [
        ("x", "not a rule for near and far vertices"),
        (fg.NearFar("missing"), "'missing' is no key of near and far vertices"),
        (fg.NearFar("y"), "'y' is no key of near and far vertices"),
        (fg.NearFar("z"), "no gather that reads z at its sources"),
    ],
)
def test_keys(near_far: Any, text: str) -> None:
    with pytest.raises(fg.PlanError, match=text):
        fg.iterate(fg.foldmap(lowest, lower), state(), target="cpu", near_far=near_far)


@pytest.mark.parametrize("delta", [0, -1.0, np.inf, np.nan, True, "wide"])
def test_deltas(delta: Any) -> None:
    with pytest.raises(fg.PlanError, match="delta is a distance"):
        fg.NearFar("x", delta)


def test_the_default_delta() -> None:
    """32 mean weights over the mean degree, and at least one of them."""
    from featgraph.runtime.devices.choose import choose_device
    from featgraph.runtime.loops.near_far import Waiting
    from featgraph.runtime.superstep.exchange import exchange_of

    for graph, expected in (
        (fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0]), 2.5 * 32),
        (fg.Graph.from_edges(np.zeros(80, int), np.arange(80) % 2), 2.5),
    ):
        length = np.resize([1.0, -2.0, 3.0, 4.0], graph.edge_count)
        given = fg.State(
            graph,
            distance=fg.vertex_property(0.0, shape=(2,), iterated=True),
            previous=fg.vertex_property(0, shape=(2,), iterated=True),
            length=fg.edge_property(length.astype(np.float32)),
        )
        plan = PATHS.fold(given, target="cpu").plan
        exchange = exchange_of(graph, choose_device("cpu"))
        waiting = Waiting(fg.NearFar("distance"), [plan], given, exchange)
        assert waiting.delta == expected


@pytest.mark.parametrize("given", ["weights", "lent", "one"])
def test_no_weights_are_moved_for_a_delta(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of them is enough, in the order in which they were given."""
    from featgraph.cuda.values import Filled, Reordered
    from featgraph.runtime.loops import near_far

    weights = np.array([4.0, 1.0, 2.0], np.float32)
    graph = fg.Graph.from_edges([2, 1, 0], [0, 2, 1], weights=weights)
    own: Any = weights if given == "lent" else graph.weights_as(np.dtype(np.float32))
    state = fg.State(
        graph, length=fg.edge_property(-3.0 if given == "one" else own, copy=False)
    )
    kind = Filled if given == "one" else Reordered
    assert isinstance(state._columns["length"].values, kind)
    monkeypatch.setattr(Reordered, "on_host", lambda _: pytest.fail("a copy"))
    found = near_far._sampled(state, "length")
    assert found.tolist() == ([-3.0] if given == "one" else [4.0, 1.0, 2.0])


@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_which_are_near(large_first: bool, dtype: str, target: str) -> None:
    from featgraph.runtime.devices.choose import choose_device

    device = choose_device(target)
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 100, (77, 2)).astype(dtype)
    if dtype == "float32":
        keys[3] = np.nan
        keys[5] = np.inf
    mask = rng.random(77) < 0.5
    mask[[3, 5]] = True
    words = device.sets.upload(fg.ActiveSet(77, mask).words.copy())
    uploaded = device.upload(keys)
    sign = -1.0 if large_first else 1.0
    within = ~(sign * keys > sign * 30.0)
    near = np.array(
        device.download(device.keys.near(words, uploaded, 2, sign, sign * 30.0))
    )
    np.testing.assert_array_equal(
        fg.ActiveSet.from_words(77, near).mask, mask & within.any(axis=1)
    )
    first = device.keys.first(words, uploaded, 2, sign)
    is_nan = bool(np.isnan(keys[mask]).any())
    assert first == (-np.inf if is_nan else np.min(sign * keys[mask]))
    empty = device.sets.empty(len(near))
    assert device.keys.first(empty, uploaded, 2, sign) == np.inf


def test_what_the_docstring_of_a_kernel_has() -> None:
    for target in ("cpu", "cuda"):
        plain = PATHS.fold(target=target, k=3)
        kernel = PATHS.fold(target=target, k=3, asynchronous=True)
        assert "commits: distance, previous" in str(kernel.plan)
        assert "asynchronous: distance, previous committed in the" in kernel.explain()
        assert "asynchronous" not in plain.explain()
        assert "commits" not in plain.source
        # The digest is of the text, which carries the plan.
        assert kernel.source != plain.source
        assert "commits: distance, previous" in kernel.source

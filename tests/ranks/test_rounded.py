"""Ghosts whose rows were rounded on their way: what they are, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.distributed import run_ranks
from featgraph.ranks.exchange.row_loops import round_rows, widen
from tests.ranks.test_partitions import GRAPHS, V

WIRE = ("float16", "bfloat16")


def round_as(values: Any, wire_dtype: str) -> Any:
    """Return values as ghosts have them."""
    rows = values.reshape(len(values), -1)
    out = np.empty(rows.shape, np.uint16)
    places = np.arange(len(rows))
    assert round_rows(rows, places, places, out, wire_dtype) == -1
    return widen(out, values.dtype, wire_dtype).reshape(values.shape)


@fg.gather(into="total", combine="sum")
def shares(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fg.vertex
def move(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.03 * d.total[v, f]
    return True


@fg.vertex
def mix(f, v, d):
    d.y[v] = d.total[v, 0] + v
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.03 * d.total[v, f]
    return fg.any_feature(abs(d.x_next[v, f] - d.x[v, f]) > 1e-3)


@fg.gather(into="around", combine="max", sources="active")
def most_around(f, u, v, e, d):
    return d.x_next[u, f] + d.y[u]


@fg.vertex
def keep(f, v, d):
    d.x_next[v, f] = d.x_next[v, f] + 0.001 * d.around[v, f]
    return v % 3 > 0


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.far[u] + d.weight[e]


@fg.vertex
def approach(f, v, d):
    d.far_next[v] = min(d.far[v], d.low[v])
    return d.low[v] < d.far[v]


step, near, mixing = (
    fg.foldmap(shares, move),
    fg.foldmap(lowest, approach),
    fg.foldmap(shares, mix, most_around, keep),
)


def make_state(graph: fg.Graph, seed: int) -> fg.State:
    rng = np.random.default_rng(seed)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.random((V, 3)).astype(np.float32), iterated=True),
        y=fg.vertex_property(rng.random(V)),
        far=fg.vertex_property(
            np.where(np.arange(V) == 3, 0, np.inf).astype(np.float32), iterated=True
        ),
        weight=fg.edge_property(
            rng.random(graph.given_edge_count).astype(np.float32) + 0.25
        ),
    )


class ByHand:
    """The same on one rank: each rank's rows for itself, rounded ones from others."""

    def __init__(self, whole: fg.Graph, cuts: list[int], wire_dtype: str) -> None:
        self.whole, self.wire_dtype = whole, wire_dtype
        owner = np.searchsorted(cuts, np.arange(V), "right") - 1
        edges = whole.in_edges
        self.targets = np.repeat(np.arange(V), np.diff(edges.row_offsets))
        self.sources = edges.column_indices
        self.crosses = owner[self.sources] != owner[self.targets]

    def read(self, values: Any) -> Any:
        """Return the values read at the source of each edge."""
        own, ghosts = values[self.sources], round_as(values, self.wire_dtype)
        crosses = self.crosses.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(crosses, ghosts[self.sources], own)


@settings(max_examples=8, deadline=None)
@given(
    wire_dtype=st.sampled_from(WIRE),
    form=st.sampled_from(["auto", "all", "ms", "vr", "vr-list"]),
    directed=st.booleans(),
    inner=st.lists(st.integers(0, V), min_size=1, max_size=3).map(sorted),
    rounds=st.integers(1, 4),
)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_ghosts_are_the_rows_of_their_owners_rounded_once(
    wire_dtype: str, form: str, directed: bool, inner: list[int], rounds: int
) -> None:
    whole, cuts = GRAPHS[directed], [0, *inner, V]

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=cuts)
        state = make_state(graph, 1)
        given = state["x"]
        step(state, wire_dtype=wire_dtype)
        state["x"] = given
        run = fg.iterate(
            step, state, max_supersteps=rounds, wire_dtype=wire_dtype, exchange=form,
            target="cpu",
        )  # fmt: skip
        view = np.array(state.view("x"))
        return state["x"], run.supersteps, repr(run), view, graph.shard

    hand, state = ByHand(whole, cuts, wire_dtype), make_state(whole, 1)
    x, weight = state["x"], whole.expand_edge_values(state["weight"])
    for _ in range(rounds):
        total = np.zeros_like(x)
        np.add.at(total, hand.targets, weight[:, None] * hand.read(x))
        x = (0.5 * x + 0.03 * total).astype(np.float32)
    ranks = len(cuts) - 1
    for found, supersteps, shown, view, shard in run_ranks(ranks, on_a_rank):
        assert supersteps == rounds
        assert f"ghosts in {wire_dtype}" in shown
        np.testing.assert_allclose(found, x, rtol=2e-5)
        own, numbers = shard.own, shard.numbers
        np.testing.assert_array_equal(view[:own], found[numbers[:own]])
        ghosts = round_as(found, wire_dtype)[numbers[own:]]
        np.testing.assert_array_equal(view[own:], ghosts)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("wire_dtype", WIRE)
def test_runs_that_round_nothing_have_the_bits_of_one_rank_again(
    wire_dtype: str,
) -> None:
    whole = GRAPHS[False]

    def ghosts(engine: Any) -> None:
        graph = fg.distribute(whole, cuts=[0, 40, V])
        state = make_state(graph, 2)
        numbers, own = graph.shard.numbers, graph.shard.own
        fg.iterate(step, state, max_supersteps=2, wire_dtype=wire_dtype)
        rows = np.asarray(state.view("x"))
        assert not np.array_equal(rows[own:], state["x"][numbers[own:]])
        copied = state.copy()  # has all of it as owners do
        rows = np.asarray(copied.view("x"))
        np.testing.assert_array_equal(rows, state["x"][numbers])
        fg.iterate(step, state, max_supersteps=1, wire_dtype=wire_dtype)
        # A later phase, and another run, reads rows as owners have them.
        before = state["x"]
        step(state, target="cpu")
        alone = make_state(whole, 2)
        alone["x"] = before
        step(alone, target="cpu")
        np.testing.assert_array_equal(state["x"], alone["x"])

    run_ranks(2, ghosts)


@pytest.mark.drawn(2)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("wire_dtype", WIRE)
def test_rows_of_later_phases_and_options(wire_dtype: str) -> None:
    """Near the answer of one rank: `_next` rows, rows in place, kept aggregates."""
    whole, eps = GRAPHS[True], {"float16": 2.0**-11, "bfloat16": 2.0**-8}[wire_dtype]

    def results_of(graph: fg.Graph, rounded: Any, **options: Any) -> list[Any]:
        state = make_state(graph, 3)
        fg.iterate(mixing, state, max_supersteps=3, **rounded)
        run = fg.iterate(near, state, **options, **rounded)
        assert run.converged
        return [state["x"], state["y"], state["far"]]

    for options in (
        {"change_driven": True},
        {"asynchronous": True},
        {"near_far": fg.NearFar("far", delta=0.5)},
    ):
        alone = results_of(whole, {}, **options)
        found = run_ranks(
            3,
            lambda _, options=options: results_of(
                fg.distribute(whole, order="spread"), {"wire_dtype": wire_dtype},
                **options,
            ),
        )  # fmt: skip
        for one in found[1:]:  # all ranks have the same
            for a, b in zip(one, found[0], strict=True):
                np.testing.assert_array_equal(a, b)
        for a, b in zip(found[0], alone, strict=True):
            assert (np.isfinite(a) == np.isfinite(b)).all()
            finite = np.isfinite(b)
            np.testing.assert_allclose(a[finite], b[finite], rtol=40 * eps)
        assert not np.array_equal(found[0][0], alone[0])


def test_rows_take_half_of_the_bytes() -> None:
    whole = GRAPHS[False]

    def on_a_rank(engine: Any) -> list[int]:
        sent = []
        for wire_dtype in (None, "float16"):
            state = make_state(fg.distribute(whole, cuts=[0, 40, V]), 1)
            step(state, wire_dtype=wire_dtype)
            before = engine.traffic.copy()
            step(state, wire_dtype=wire_dtype, exchange="ms")
            sent.append(int((engine.traffic - before).sent.sum()))
        return sent

    for rank, (wide, narrow) in enumerate(run_ranks(2, on_a_rank)):
        shard = whole.partition(cuts=[0, 40, V])[rank]
        listed = sum(numbers.size for numbers in shard.send_lists)
        assert wide - narrow == listed * 3 * 2


@pytest.mark.drawn(2)
@pytest.mark.parametrize("wire_dtype", WIRE)
def test_algorithms_that_take_it_are_near(wire_dtype: str) -> None:
    whole = GRAPHS[False]
    labels = np.where(np.arange(V) % 10 == 0, np.arange(V) % 3, -1)

    def answers(graph: fg.Graph, **options: Any) -> list[Any]:
        ranked = al.pagerank(graph, tol=1e-5, target="cpu", **options)
        labelled = al.label_propagation(graph, labels, target="cpu", **options)
        return [ranked.ranks, labelled.distributions, ranked.run.wire_dtype]

    alone = answers(whole, wire_dtype="float16")  # on one rank nothing is sent
    assert alone.pop() is None
    np.testing.assert_array_equal(alone[0], answers(whole)[0])
    for *found, dtype in run_ranks(
        2,
        lambda _: answers(fg.distribute(whole, cuts=[0, 40, V]), wire_dtype=wire_dtype),
    ):
        assert dtype == wire_dtype
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=0.05, atol=1e-3)
            assert not np.array_equal(one, other)


def test_a_run_goes_on_with_the_bits_of_an_unbroken_one(tmp_path: Any) -> None:
    whole = GRAPHS[True]

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 40, V])
        given: Any = {"wire_dtype": "float16"}
        unbroken = make_state(graph, 1)
        fg.iterate(step, unbroken, max_supersteps=9, **given)
        for most in (4, 9):
            state = make_state(graph, 1)
            saved = {"checkpoint": tmp_path, "every": 1e-9}
            fg.iterate(step, state, max_supersteps=most, **saved, **given)
        np.testing.assert_array_equal(state["x"], unbroken["x"])
        with pytest.raises(fg.StateError, match="wire_dtype"):
            fg.iterate(step, make_state(graph, 1), checkpoint=tmp_path)

    with pytest.warns(fg.ConvergenceWarning):
        run_ranks(2, on_a_rank)


@fg.gather(into="least", combine="min")
def least_number(f, u, v, e, d):
    return d.number[u]


@fg.gather(into="nearest", combine="argmin")
def nearest(f, u, v, e, d):
    return d.far[u]


@fg.vertex
def take(f, v, d):
    d.y[v] = d.y[v] + d.least[v]
    return False


@fg.vertex
def take_source(f, v, d):
    d.y[v] = d.nearest_source[v]
    return False


@fg.edge
def turn(f, u, v, e, d):
    d.load_next[e] = d.load[fg.reverse(e)]
    return True


REFUSED = {
    "int64": (
        fg.foldmap(least_number, take),
        {},
        "number at a neighbor.*number of int64",
    ),
    "argmin": (fg.foldmap(nearest, take_source), {}, "nearest asks which neighbor is"),
    "reverse": (fg.edgemap(turn), {}, "fg.reverse reads edges"),
    "deterministic": (step, {"deterministic": True}, "other bits on each number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rounded_is_refused(name: str) -> None:
    step, options, message = REFUSED[name]

    def on(graph: fg.Graph) -> None:
        state = make_state(graph, 1)
        state = fg.State(
            graph,
            y=fg.vertex_property(0.0), number=fg.vertex_property(3),
            far=fg.vertex_property(1.0), x=fg.vertex_property(np.ones((V, 3), "f4")),
            load=fg.edge_property(0.0, iterated=True, per_direction=True),
            weight=fg.edge_property(1.0), total=1.0,
        ) if name != "deterministic" else state  # fmt: skip
        with pytest.raises(fg.PlanError, match=f"(?s)wire_dtype='float16'.*{message}"):
            step(state, wire_dtype="float16", target="cpu", **options)

    on(GRAPHS[False])
    run_ranks(2, lambda _: on(fg.distribute(GRAPHS[False])))
    with pytest.raises(fg.PlanError, match="wire_dtype cannot be 'float8'"):
        step(make_state(GRAPHS[False], 1), wire_dtype="float8")


def test_values_that_do_not_fit_are_an_error() -> None:
    whole = GRAPHS[True]

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(whole, cuts=[0, 40, V]), 1)
        state["x"] = state["x"] + np.float32(1e6)
        step(state, wire_dtype="bfloat16")
        step(state, wire_dtype="float16")

    with pytest.raises(fg.DivergenceError, match="does not fit into float16"):
        run_ranks(2, on_a_rank)


def test_ranks_that_round_otherwise_are_refused() -> None:
    whole = GRAPHS[True]

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(whole, cuts=[0, 40, V]), 1)
        step(state, wire_dtype=WIRE[engine.rank])

    with pytest.raises(fg.RankMismatchError, match=r"ghosts in b?float16"):
        run_ranks(2, on_a_rank)


def test_explain_shows_it() -> None:
    def on_a_rank(engine: Any) -> str:
        state = make_state(fg.distribute(GRAPHS[True]), 1)
        return step.explain(state, target="cpu", wire_dtype="float16")

    for text in run_ranks(2, on_a_rank):
        assert "rows of ghosts: reals are rounded to float16, once" in text
